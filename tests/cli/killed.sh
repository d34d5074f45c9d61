# SPDX-License-Identifier: MIT
# `kill -9` of holdfast leaves no command running, and no lock.
. "$HERE/lib.sh"

"$HOLDFAST" run x -- sh -c 'echo $$ >pid; touch ready; exec sleep 1000' &
holder=$!
until_true '[ -e ready ]'
held x || fail "x is not held"
kill -KILL $holder
until_true 'gone "$(cat pid)"'
until_true 'free x'
expect 0 "$HOLDFAST" run -n x -- true

# With a front: whichever of both is killed, all that the command has started is gone too.
for victim in front keeper; do
    rm -f ready pid grandchild
    HOLDFAST_FRONT=1 "$HOLDFAST" run --grace 100ms x -- sh -c '
        sleep 1000 & echo $! >grandchild; echo $$ >pid; echo $PPID >keeper; touch ready; wait' 2>err &
    front=$!
    until_true '[ -e ready ]'
    [ "$(cat keeper)" -ne $front ] || fail "there is no front"
    if [ $victim = front ]; then kill -KILL $front; else kill -KILL "$(cat keeper)"; fi
    until_true 'gone "$(cat pid)" && gone "$(cat grandchild)" && gone "$(cat keeper)"'
    until_true 'free x'
    code=0
    wait $front || code=$?
    if [ $victim = front ]; then same "$code" 137; else same "$code" 76; fi
done

# A command that becomes another user does not die with its parent by itself; with a front it is ended.
if [ "$(id -u)" -eq 0 ]; then
    rm -f ready pid
    HOLDFAST_FRONT=1 "$HOLDFAST" run x -- setpriv --reuid 65534 sh -c 'exec sleep 1000' 2>err &
    front=$!
    # Who holds it is not known in the very first moment.
    until_true '"$HOLDFAST" status x --json >out 2>&1 && grep -q "\"pid\": [0-9]" out'
    keeper=$(python3 -c 'import json; print(json.load(open("out"))["pid"])')
    until_true '[ -n "$(cat /proc/$keeper/task/$keeper/children)" ]'
    command=$(cat /proc/$keeper/task/$keeper/children)
    until_true '[ "$(sed -n "s/^Uid:[[:space:]]*\([0-9]*\).*/\1/p" /proc/${command% }/status)" = 65534 ]'
    kill -KILL "$keeper"
    until_true 'gone "${command% }"'
    code=0
    wait $front || code=$?
    same "$code" 76
else
    not_run "a command that becomes another user: it needs root"
fi
