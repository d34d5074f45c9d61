#!/bin/sh
# SPDX-License-Identifier: MIT
#
# cron.sh: the same crontab on several hosts, and a job that must run once.
#
#     ./cron.sh [URL]                 (HOLDFAST=path/to/holdfast if the command is not installed)
#
# In a real crontab it is one line, the same on every host, with the URL of a store that all of them reach:
#
#     0 3 * * *  holdfast -u "$URL" run --once-per 12h nightly -- /usr/local/bin/nightly
#
# The lock alone keeps two runs from overlapping. A host whose clock is late would still start a second run when the
# first has finished; --once-per has the store remember that it was done. Exits 0 if the job ran once a night.
set -eu

holdfast=${HOLDFAST:-holdfast}
url=${1:-file:}
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export here

# The job: what would be /usr/local/bin/nightly. HOLDFAST_TOKEN goes wherever the job writes to.
cat >"$here/nightly" <<'JOB'
#!/bin/sh
echo "$1: running the nightly job with token $HOLDFAST_TOKEN"
echo "$1" >>"$here/runs"
JOB
chmod +x "$here/nightly"

# Five hosts, whose clocks all say three o'clock, at different times. Each background process is what cron does on one
# of them.
night()
{
    hosts=
    for host in ant bee cow dog emu; do
        "$holdfast" -u "$url" run --once-per 12h nightly -- "$here/nightly" "$host" &
        hosts="$hosts $!"
        sleep 0.1
    done
    for host in $hosts; do
        wait "$host" # set -e: a host that failed ends the script
    done
}

night
"$holdfast" -u "$url" ls --done
"$holdfast" -u "$url" forget nightly # or wait for twelve hours
night
"$holdfast" -u "$url" forget nightly

runs=$(wc -l <"$here/runs")
echo "five hosts, two nights, $((runs)) runs"
[ "$runs" -eq 2 ]
