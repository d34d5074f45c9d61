#!/bin/sh
# SPDX-License-Identifier: MIT
#
# demo.sh DEMO BUILD: runs the demonstration as a test. In a pipe it must be plain text: no escape codes, no carriage
# returns.
set -eu
picture=$(mktemp)
trap 'rm -f "$picture"' EXIT
"$@" >"$picture"
cat "$picture"
if [ "$(LC_ALL=C tr -d '\n\040-\176' <"$picture" | wc -c)" -ne 0 ]; then
    echo "demo.sh: the output holds characters that are not plain text" >&2
    exit 1
fi
