# SPDX-License-Identifier: MIT
# --max-hold and --no-renew end the command before the lock ends, so that two holders never overlap; and --max-hold
# not before its time.
. "$HERE/lib.sh"

# The command notes when it is alive; a second one that overlaps would see the first one's mark.
cat >stubborn <<'END'
trap '' TERM
mkdir mark || { touch overlap; exit 1; }
echo $$ >>pids
while :; do sleep 0.01; done
END
for how in '--max-hold 2s --grace 500ms' '--no-renew -t 3s' '--max-hold 2s --on-lost kill'; do
    # Not only the shell but a child of its own that nobody waits for.
    "$HOLDFAST" run $how x -- sh -c '(trap "" TERM; sleep 1000 & echo $! >>pids; wait) & exec sh stubborn' 2>first.err &
    first=$!
    until_true '[ -d mark ]'
    expect 0 "$HOLDFAST" run x -- sh -c 'for pid in $(cat pids); do [ ! -d /proc/$pid ] || touch overlap; done'
    [ ! -e overlap ] || fail "a process of the first holder was there when the second had the lock ($how)"
    code=0
    wait $first || code=$?
    same "$code" 76 "$how"
    grep -q "^holdfast: .*lock 'x'" first.err || fail "not said why: $(cat first.err)"
    rm -rf mark pids
done

# What was allowed is given: the grace comes after it, not out of it. SIGTERM comes first, and the command may use it.
begin=$(date +%s%N)
expect 76 "$HOLDFAST" run --max-hold 3s --grace 10s x -- \
    sh -c 'exec 2>/dev/null; trap "date +%s%N >told; exit 0" TERM; while :; do sleep 0.01; done'
[ -s told ] || fail "the command had no chance to clean up"
[ $(($(cat told) - begin)) -ge 3000000000 ] || fail "told $((($(cat told) - begin) / 1000000)) ms after the beginning"
said "as long as --max-hold allows"
# The library's own end of it stands behind that: the exit code is the same when it comes first.
expect 76 "$HOLDFAST" run --no-renew -t 1s --max-hold 1s x -- sleep 1000
said "was not to be renewed"

# No grace: no chance.
expect 76 "$HOLDFAST" run --max-hold 300ms --grace 0 x -- \
    sh -c 'trap "touch late; exit 0" TERM; while :; do sleep 0.01; done'
[ ! -e late ] || fail "the command got SIGTERM in spite of --grace 0"
# A stopped command is ended too, with the same chance.
expect 76 "$HOLDFAST" run --max-hold 3s x -- \
    sh -c 'trap "touch thawed; exit 0" TERM; kill -STOP $$; while :; do sleep 0.01; done'
[ -e thawed ] || fail "the stopped command had no chance to clean up"
# ignore: it runs on, and the exit code tells.
expect 76 "$HOLDFAST" run --max-hold 200ms --on-lost ignore x -- \
    sh -c 'while "$HOLDFAST" status x >/dev/null; do sleep 0.02; done; touch finished'
[ -e finished ] || fail "the command was ended in spite of --on-lost ignore"
said "x"
# A command that ends in time has its own exit code.
expect 5 "$HOLDFAST" run --max-hold 30s --no-renew -t 30s x -- sh -c 'exit 5'

# Without /proc, too, the command is asked to end before it is killed. (What a sanitizer makes of the exit code there is
# its own affair.)
apart=
unshare -m true 2>/dev/null || apart=-r
if unshare $apart -m true 2>/dev/null; then
    LD_LIBRARY_PATH=$(dirname "$HOLDFAST")/../src \
        unshare $apart -m sh -c 'mount -t tmpfs none /proc && exec "$HOLDFAST" run --max-hold 3s x -- \
            sh -c "trap \"touch told-too; exit\" TERM; while :; do sleep 0.02; done"' 2>err || :
    grep -q 'as long as --max-hold allows' err || fail "not ended"
    [ -e told-too ] || fail "killed without SIGTERM where there is no /proc"
else
    not_run "a system without /proc: it needs namespaces, which this system refuses"
fi
