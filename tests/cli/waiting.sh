# SPDX-License-Identifier: MIT
# Waiting: in order, ended by a signal, and leaving nothing behind.
. "$HERE/lib.sh"

waiters()
{
    "$HOLDFAST" status x --json | sed -n 's/.*"waiters": \([0-9]*\).*/\1/p'
}

for front in 0 1; do
    export HOLDFAST_FRONT=$front
    rm -f ready done order
    "$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
    until_true '[ -e ready ]'
    for number in 1 2 3; do
        "$HOLDFAST" run x -- sh -c "echo $number >>order" &
        until_true "[ \"\$(waiters)\" = $number ]"
    done

    # A waiter that is told to end does so, as by the signal, and its place is free.
    for signal in INT TERM HUP USR1; do
        env --default-signal "$HOLDFAST" run x -- touch ran 2>waiter.err &
        pid=$!
        until_true '[ "$(waiters)" = 4 ]'
        kill -$signal $pid
        code=0
        wait $pid || code=$?
        same "$code" $((128 + $(kill -l $signal 2>/dev/null || bash -c "kill -l $signal")))
        same "$(cat waiter.err)" ""
        until_true '[ "$(waiters)" = 3 ]'
    done
    # So does one whose time is over.
    expect 75 "$HOLDFAST" run -w 30ms x -- touch ran
    until_true '[ "$(waiters)" = 3 ]'
    [ ! -e ran ] || fail "a waiter ran without the lock"

    # A signal that the caller ignores does not end the wait.
    (
        trap '' HUP
        exec "$HOLDFAST" run x -- touch patient
    ) &
    pid=$!
    until_true '[ "$(waiters)" = 4 ]'
    kill -HUP $pid

    touch done
    code=0
    wait $pid || code=$?
    same "$code" 0
    wait
    same "$(cat order | tr '\n' ' ')" "1 2 3 "
    free x || fail "x is still held"
done
