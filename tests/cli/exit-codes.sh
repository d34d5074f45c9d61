# SPDX-License-Identifier: MIT
# The exit codes of `run`: the command's own, or what became of it.
. "$HERE/lib.sh"

for code in 0 1 7 75 76 255; do
    expect $code "$HOLDFAST" run x -- sh -c "exit $code"
    same "$(cat err)" "" "a command's own exit code needs no words"
done

expect 137 "$HOLDFAST" run x -- sh -c 'kill -KILL $$'
expect 143 "$HOLDFAST" run x -- sh -c 'kill -TERM $$'
expect 134 "$HOLDFAST" run x -- sh -c 'ulimit -c 0; kill -ABRT $$'

expect 127 "$HOLDFAST" run x -- ./no-such-command
said "cannot run './no-such-command'"
expect 127 "$HOLDFAST" run x -- no-such-command-anywhere
said "no-such-command-anywhere"
touch not-executable
expect 126 "$HOLDFAST" run x -- ./not-executable
said "cannot run './not-executable'"
expect 126 "$HOLDFAST" run x -- "$TMP"
said "cannot run"

# Not acquired.
expect 0 "$HOLDFAST" run x -- "$HOLDFAST" -u "$HOLDFAST_URL" status x
cat >contend <<'END'
code=0
unset HOLDFAST_HELD
"$HOLDFAST" run "$@" x -- touch ran || code=$?
exit $code
END
expect 75 "$HOLDFAST" run x -- sh contend -n
said "x"
expect 75 "$HOLDFAST" run x -- sh contend -w 50ms
said "x"
expect 3 "$HOLDFAST" run x -- sh contend -n -E 3
expect 0 "$HOLDFAST" run x -- sh contend -w 1ms --conflict-exit-code 0
[ ! -e ran ] || fail "the command ran without the lock"

# Whatever happened, nothing is left locked.
free x || fail "x is still held"
