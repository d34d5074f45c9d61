#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fencing-example.sh URL: runs the lines for psql of docs/FENCING.md as they stand there. With the greatest token they
# write; with an older one they write nothing, and say so by their exit code.
set -eu
url=${1:-$HOLDFAST_URL}
export HOLDFAST_URL="$url"
server=${url%%\?*}
shop=${server%/*}/shop
psql -qAt -v ON_ERROR_STOP=1 "$server" -c 'CREATE DATABASE shop'
query() { psql -qAt -v ON_ERROR_STOP=1 "$shop" -c "$1"; }
query 'CREATE TABLE items (item int, count int); INSERT INTO items VALUES (7, 42)'

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
sed -n '/^psql shop /,/^SQL$/p' "$FENCING" >"$directory/sell.sh"
[ "$(wc -l <"$directory/sell.sh")" -eq 6 ] || { echo "FAIL: the example is not there" && exit 1; }
mkdir "$directory/bin"
# `psql shop` means this server.
printf '#!/bin/sh\n[ "$1" = shop ] || exit 99\nshift\nexec %s "%s" "$@"\n' "$(command -v psql)" "$shop" \
    >"$directory/bin/psql"
chmod +x "$directory/bin/psql"
sell() { PATH=$directory/bin:$PATH HOLDFAST_TOKEN=$1 sh "$directory/sell.sh" >/dev/null; }

HOLDFAST_URL=$shop "$HOLDFAST" guard stock 30 # makes the function, too
sell 34
[ "$(query 'SELECT count FROM items')" -eq 41 ] || { echo "FAIL: nothing was sold" && exit 1; }
code=0
sell 33 2>"$directory/said" || code=$?
[ $code -eq 3 ] || { echo "FAIL: exit code $code for a sale that was refused" && exit 1; }
grep -q 'too old' "$directory/said" || { cat "$directory/said" && exit 1; }
[ "$(query 'SELECT count FROM items')" -eq 41 ] || { echo "FAIL: it was sold with an old token" && exit 1; }
