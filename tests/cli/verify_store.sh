#!/bin/sh
# SPDX-License-Identifier: MIT
#
# verify_store.sh WHAT ROUNDS URL: `holdfast verify` on servers that were started for it, ROUNDS times.
#
#     kept URL           with workers that are paused and killed: every promise is kept
#     flushed URL        redis: all data are deleted every second: found each time
#     two-masters URL    redlock: two masters behind one name: found each time
set -eu
here=$(cd "$(dirname "$0")" && pwd)
what=$1 rounds=$2 url=$3
out=$(mktemp)
trap 'rm -f "$out"' EXIT
port=${url##*:}
port=${port%%[!0-9]*}

try()
{
    case $what in
    kept) "$HOLDFAST" verify "$url" --seconds 5 --ttl 1s --pause --kill ;;
    flushed)
        "$HOLDFAST" verify "$url" --seconds 4 --during "while :; do redis-cli -p $port flushall; sleep 1; done"
        ;;
    two-masters)
        set -- $(echo "$url" | grep -o ':[0-9][0-9]*' | tr -d :)
        python3 "$here/two_masters.py" "$1" "$2" "$HOLDFAST" verify 'redis+unix://{}' --seconds 2
        ;;
    esac
}

expected=70
[ "$what" != kept ] || expected=0
round=0
echo "1..$rounds"
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    code=0
    try >"$out" 2>&1 || code=$?
    sed 's/^/# /' "$out"
    if [ $code -ne $expected ]; then
        echo "not ok $round - $what: exit code $code instead of $expected"
        exit 1
    fi
    # An overlap, or a lock that the store forgot, and not some other trouble.
    if [ $expected -eq 70 ] && ! grep -Eq 'BROKEN: promise (1|6|9)' "$out"; then
        echo "not ok $round - $what: the exit code is right and the verdict is not"
        exit 1
    fi
    echo "ok $round - $what"
done
