# SPDX-License-Identifier: MIT
# `holdfast run NAME` inside of `holdfast run NAME`.
. "$HERE/lib.sh"

# The same name re-enters at once, keeps the token, and passes the exit code on.
expect 7 "$HOLDFAST" run x -- \
    sh -c 'echo $HOLDFAST_TOKEN; "$HOLDFAST" run -n x -- sh -c "echo \$HOLDFAST_TOKEN; exit 7"'
same "$(sed -n 1p out)" "$(sed -n 2p out)"
# However deep, through other names, with hostile ones, and with the store named in another way.
expect 0 "$HOLDFAST" run x -- "$HOLDFAST" run y -- "$HOLDFAST" run -n x -- "$HOLDFAST" run -n y -- true
expect 0 "$HOLDFAST" run 'a b:%' -- "$HOLDFAST" run 'b:%' -- \
    "$HOLDFAST" run -n 'a b:%' -- "$HOLDFAST" run -n 'b:%' -- true
expect 0 "$HOLDFAST" run x -- "$HOLDFAST" -u "file://$TMP/locks" run -n x -- sh -c 'echo $HOLDFAST_NAME'
same "$(cat out)" x
# The end of the inner run does not end the outer's hold.
expect 0 "$HOLDFAST" run x -- sh -c '"$HOLDFAST" run x -- true && "$HOLDFAST" status x >/dev/null'
# Another name, or another store, is another lock.
mkdir -m 700 other
expect 0 "$HOLDFAST" run x -- "$HOLDFAST" -u "file://$TMP/other" run -n x -- "$HOLDFAST" -u "file://$TMP/other" status x
free x || fail "x is still held"

# The variable alone proves nothing: one that was left over from a run that has ended does not let anybody in.
"$HOLDFAST" run x -- sh -c 'echo "$HOLDFAST_HELD"' >stale
"$HOLDFAST" run x -- sh -c 'echo "$HOLDFAST_HELD" >held; touch started; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e started ]'
HOLDFAST_HELD=$(cat stale) expect 75 "$HOLDFAST" run -n x -- true
HOLDFAST_HELD=$(cat held) expect 75 "$HOLDFAST" run -n x -- true
# Nor does the number of a process, which may be an ancestor of ours by chance: numbers are used again, and 1 is in
# every container.
for pid in $$ 1; do
    HOLDFAST_HELD=$(sed "s/^\([0-9]*\):[^:]*:/\1:$pid:/" held) expect 75 "$HOLDFAST" run -n x -- true
done
HOLDFAST_HELD="garbage :: 1:1 $(cat stale) :" expect 75 "$HOLDFAST" run -n x -- true
touch done
wait

# An inner run that outlives the outer one, and thereby the lock, is ended.
expect 0 "$HOLDFAST" run x -- sh -c '
    { "$HOLDFAST" run x -- sh -c "echo \$\$ >pid; touch inner; exec sleep 1000" 2>inner.err; echo $? >inner.code; } &
    until [ -e inner ]; do sleep 0.02; done'
until_true '[ -s inner.code ]'
same "$(cat inner.code)" 76
gone "$(cat pid)" || fail "the inner command is still there"
grep -q '^holdfast: .*outer run' inner.err || fail "not said why: $(cat inner.err)"

# What the outer run has lost is not entered, and is lost to those who are in.
rm -f inner
"$HOLDFAST" run --on-lost ignore x -- sh -c '
    { "$HOLDFAST" run x -- sh -c "touch early; exec sleep 1000" 2>early.err; echo $? >early.code; } &
    until [ -e broken ]; do sleep 0.02; done
    "$HOLDFAST" run -n x -- touch inner 2>late.err; echo $? >late.code; wait' 2>/dev/null &
until_true '[ -e early ]'
expect 0 "$HOLDFAST" break x
until_true 'free x'
until_true '[ -s early.code ]'
touch broken
until_true '[ -s late.code ]'
same "$(cat early.code) $(cat late.code)" "76 76"
[ ! -e inner ] || fail "the command was started without the lock"
grep -q '^holdfast: .*outer run' late.err || fail "not said why: $(cat late.err)"
wait
