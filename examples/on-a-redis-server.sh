#!/bin/sh
# SPDX-License-Identifier: MIT
#
# on-a-redis-server.sh SERVER COMMAND [ARG...]: runs COMMAND ARG... URL, where URL names a Redis or Valkey server that
# is started for it and gone afterwards. HOLDFAST_URL says the same. It listens on a socket in a directory of its own,
# so that no port has to be found free. For the tests; HOLDFAST_MODULES says where the engine is if it is not installed.
set -eu
server=$1
shift
directory=$(mktemp -d)
"$server" --port 0 --unixsocket "$directory/socket" --dir "$directory" --save '' --logfile "$directory/log" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" || true; rm -rf "$directory"' EXIT
attempts=0
# The socket is there before the server listens on it.
until grep -q 'eady to accept connections' "$directory/log" 2>/dev/null; do
    attempts=$((attempts + 1))
    if [ "$attempts" -gt 200 ] || ! kill -0 "$pid" 2>/dev/null; then
        echo "on-a-redis-server.sh: $server does not start" >&2
        cat "$directory/log" >&2
        exit 1
    fi
    sleep 0.05
done
HOLDFAST_URL=redis+unix://$directory/socket
export HOLDFAST_URL
"$@" "$HOLDFAST_URL"
