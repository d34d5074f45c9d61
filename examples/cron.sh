#!/bin/sh
# SPDX-License-Identifier: MIT
#
# cron.sh: the same crontab on several hosts, and a job that must run once.
#
#     ./cron.sh [URL]                 (HOLDFAST=path/to/holdfast if the command is not installed)
#
# In a real crontab it is one line, the same on every host, with the URL of a store that all of them reach:
#
#     0 3 * * *  holdfast -u "$URL" run -n -E 0 nightly -- /usr/local/bin/nightly
#
# -n: somebody else is at it, so do not wait. -E 0: and that is no reason for a mail from cron.
#
# The lock alone keeps two runs from overlapping. A host whose clock is late would still start a second run when the
# first has finished, so the job notes what it has done, and looks there first; both under the lock. Exits 0 if the
# job ran once.
set -eu

holdfast=${HOLDFAST:-holdfast}
url=${1:-file:}
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export here

# The job: what would be /usr/local/bin/nightly. HOLDFAST_TOKEN goes wherever the job writes to.
cat >"$here/nightly" <<'JOB'
#!/bin/sh
if [ -e "$here/done-today" ]; then
    echo "$1: done already, says token $(cat "$here/done-today")"
    exit 0
fi
echo "$1: running the nightly job with token $HOLDFAST_TOKEN"
sleep 0.2
echo "$1" >>"$here/runs"
echo "$HOLDFAST_TOKEN" >"$here/done-today"
JOB
chmod +x "$here/nightly"

# Five hosts, whose clocks all say three o'clock. Each background process is what cron does on one of them.
hosts=
for host in ant bee cow dog emu; do
    (
        code=0
        "$holdfast" -u "$url" run -n nightly -- "$here/nightly" "$host" || code=$?
        case $code in
        0) ;;
        75) echo "$host: somebody else is at it" ;;
        *) echo "$host: holdfast ended with $code" >&2 && exit 1 ;;
        esac
    ) &
    hosts="$hosts $!"
done
for host in $hosts; do
    wait "$host" # set -e: a host that failed ends the script
done

runs=$(wc -l <"$here/runs")
echo "five hosts, $((runs)) run"
[ "$runs" -eq 1 ]
