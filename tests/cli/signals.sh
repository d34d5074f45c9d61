# SPDX-License-Identifier: MIT
# Signals to `holdfast run` are the command's; those that the caller ignores stay ignored.
. "$HERE/lib.sh"

for front in 0 1; do
    export HOLDFAST_FRONT=$front
    for signal in TERM INT HUP QUIT USR1 USR2 ALRM WINCH CONT; do
        rm -f ready got
        # A background job of a shell ignores INT and QUIT; env puts that right before holdfast looks.
        env --default-signal "$HOLDFAST" run x -- bash -c "trap 'echo $signal >got; exit 5' $signal; touch ready
            while :; do sleep 0.02; done" &
        pid=$!
        until_true '[ -e ready ]'
        kill -$signal $pid
        code=0
        wait $pid || code=$?
        same "$code $(cat got)" "5 $signal" "front $front"
    done

    # A command that does not handle it dies of it, and the exit code says so.
    rm -f ready
    env --default-signal "$HOLDFAST" run x -- sh -c 'touch ready; exec sleep 1000' &
    pid=$!
    until_true '[ -e ready ]'
    kill -TERM $pid
    code=0
    wait $pid || code=$?
    same "$code" 143 "front $front"
    free x || fail "x is still held"

    # nohup
    rm -f ready done
    (
        trap '' HUP
        exec "$HOLDFAST" run x -- sh -c 'grep SigIgn /proc/self/status >ignored; touch ready
            until [ -e done ]; do sleep 0.02; done; exit 4'
    ) &
    pid=$!
    until_true '[ -e ready ]'
    kill -HUP $pid
    touch done
    code=0
    wait $pid || code=$?
    same "$code" 4 "front $front"
    mask=0x$(sed 's/.*0*\(........\)$/\1/' ignored)
    [ $((mask & 1)) -eq 1 ] || fail "the command does not ignore HUP"
done

# Mask and dispositions of the command are those of the caller.
grep 'Sig\(Blk\|Ign\|Cgt\)' /proc/self/status >before
for front in 0 1; do
    HOLDFAST_FRONT=$front "$HOLDFAST" run x -- grep 'Sig\(Blk\|Ign\|Cgt\)' /proc/self/status >after
    cmp before after || fail "signals are not what they were (front $front): $(cat before after)"
done

# An ignored SIGCHLD, left to us by a careless parent, does not hide the end of the command.
expect 3 env --ignore-signal=CHLD "$HOLDFAST" run x -- sh -c 'exit 3'
