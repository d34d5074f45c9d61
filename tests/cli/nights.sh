#!/bin/sh
# SPDX-License-Identifier: MIT
#
# nights.sh: the same line in the crontab of five hosts whose clocks differ, night after night, in the store of
# HOLDFAST_URL. Read by once.sh, and run with a store of its own by the tests of others: sh nights.sh URL NIGHTS.

# nights N: fails unless the job of each of N nights runs exactly once. It takes 0.1 s: some hosts come while it runs,
# and the last one when it is over.
nights()
{
    jobs=$(mktemp -d)
    night=0
    while [ $night -lt "$1" ]; do
        hosts=
        for late in 0 0 0.05 0.15 0.3; do
            {
                sleep $late
                exec "$HOLDFAST" run --once-per 12h nightly -- sh -c "sleep 0.1; echo ran >>'$jobs/$night'"
            } &
            hosts="$hosts $!"
        done
        for host in $hosts; do
            wait "$host" || { echo "FAIL: a host of night $night"; exit 1; }
        done
        [ "$(wc -l <"$jobs/$night")" -eq 1 ] || { echo "FAIL: night $night: $(wc -l <"$jobs/$night") runs"; exit 1; }
        "$HOLDFAST" forget nightly || exit 1
        night=$((night + 1))
    done
    rm -r "$jobs"
}

if [ -n "${2-}" ]; then
    HOLDFAST_URL=$1
    export HOLDFAST_URL
    set -eu
    nights "$2"
    echo "1..1"
    echo "ok 1 - one run in each of $2 nights"
fi
