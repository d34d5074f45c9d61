# SPDX-License-Identifier: MIT
# On a terminal `run` and `ls` name the store; "not acquired" names it anywhere. A script gets nothing more.
. "$HERE/lib.sh"
url=file://$TMP/locks

expect 0 "$JOBPTY" exited:0 -- "$HOLDFAST" run x -- true
printed "the lock 'x' is held in $url"
expect 0 "$JOBPTY" exited:0 -- "$HOLDFAST" run -q x -- true
same "$(cat out)" ""
expect 0 "$HOLDFAST" run x -- true
same "$(cat out err)" ""
expect 0 "$JOBPTY" exited:0 -- "$HOLDFAST" ls
printed "locks in $url"
expect 0 "$JOBPTY" exited:0 -- "$HOLDFAST" ls --names
same "$(cat out)" ""
expect 0 "$HOLDFAST" ls
same "$(head -c 4 out)" NAME
expect 75 "$HOLDFAST" run x -- sh -c 'unset HOLDFAST_HELD; exec "$HOLDFAST" run -n x -- true'
said "the lock 'x' was not acquired: "
said "($url)"
