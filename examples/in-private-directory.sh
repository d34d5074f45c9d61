#!/bin/sh
# SPDX-License-Identifier: MIT
#
# in-private-directory.sh COMMAND [ARG...]: runs COMMAND ARG... URL, where URL is a file:// directory of its own that
# is gone afterwards. HOLDFAST_URL says the same. For the tests: they must not meet locks of the user's, nor of each
# other.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir -m 700 "$directory/locks"
HOLDFAST_URL=file://$directory/locks
export HOLDFAST_URL
"$@" "$HOLDFAST_URL"
