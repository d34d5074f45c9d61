# SPDX-License-Identifier: MIT
# What is expected is not said: cron makes a mail of every line.
. "$HERE/lib.sh"

"$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e ready ]'
silent() # CODE ARGUMENT ...
{
    expect "$@"
    same "$(cat out err)" "" "not silent: $*"
}
silent 0 "$HOLDFAST" run -n -E 0 x -- echo ran
silent 0 "$HOLDFAST" run -w 20ms --conflict-exit-code=0 x -- echo ran
silent 75 "$HOLDFAST" run -q -n x -- echo ran
silent 3 "$HOLDFAST" run --quiet -w 20ms -E 3 x -- echo ran
silent 0 "$HOLDFAST" status -q x
silent 1 "$HOLDFAST" status --quiet y
# Errors are said.
mkdir -m 700 theirs
if [ "$(id -u)" -eq 0 ]; then chown 65534 theirs; else chmod 0 theirs; fi
expect 77 "$HOLDFAST" run -q -n -E 0 -u "file://$TMP/theirs" x -- echo ran
said theirs
expect 77 "$HOLDFAST" status -q -u "file://$TMP/theirs" x
said theirs
touch done
wait
# A loss is one.
expect 76 "$HOLDFAST" run -q -E 0 x -- sh -c '"$HOLDFAST" break x; sleep 100'
said "the lock 'x' was lost"

# What `status` cannot find out is neither held nor free: the example of holdfast(1).
manual 'somebody deploys' >example
mkdir bin
ln -s "$HOLDFAST" bin/holdfast
PATH=$TMP/bin:$PATH
expect 0 sh example
same "$(cat out err)" "nobody deploys"
expect 0 holdfast run deploy -- sh example
same "$(cat out err)" "somebody deploys"
HOLDFAST_URL=redis://127.0.0.1:1 expect 0 sh example
same "$(cat out)" "cannot tell"
# And that for cron.
printf '#!/bin/sh\necho report\n' >report.sh
chmod +x report.sh
manual '-E 0' >example
expect 0 sh example
same "$(cat out err)" report
expect 0 holdfast run nightly-report -- env -u HOLDFAST_HELD sh example
same "$(cat out err)" ""
