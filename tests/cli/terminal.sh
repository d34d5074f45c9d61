# SPDX-License-Identifier: MIT
# The command on a terminal: job control and keys, where holdfast stops with its command (no renewal is needed).
. "$HERE/lib.sh"

# ^Z stops the job; fg continues it; ^C reaches the command.
cat >work <<'END'
trap 'echo INT >>got' INT
trap 'echo USR1 >>got' USR1
touch ready
until [ -e done ]; do sleep 0.02; done
exit 6
END
expect 0 "$JOBPTY" file:ready key:z stopped 'sh:! [ -e got ]' fg key:c file:got 'sh:touch done' exited:6 -- \
    "$HOLDFAST" run x -- sh work
same "$(cat got)" INT
free x || fail "x is still held"

# What the terminal sends is not sent a second time: a command that has left the terminal's group gets no ^C at all.
# The other signal comes after it, and shows that it was seen. (The pause gives the terminal time to make a signal of
# the key; if it were too short, the test would see less, not fail.)
for front in 0 1; do
    rm -f ready got done
    HOLDFAST_FRONT=$front expect 0 "$JOBPTY" file:ready key:c 'sh:sleep 0.1; kill -USR1 $JOB' file:got \
        'sh:touch done' exited:6 -- \
        "$HOLDFAST" run x -- setsid sh work
    same "$(cat got)" USR1 "front $front"
done

# The terminal is the command's: it may read from it and is in the foreground.
expect 0 "$JOBPTY" exited:0 -- "$HOLDFAST" run x -- sh -c 'test -t 0 && test -t 1 && ps -o stat= -p $$ | grep -q "+"'

# ^C ends a command that does not care, and a wait.
rm -f ready
expect 0 "$JOBPTY" file:ready key:c exited:130 -- "$HOLDFAST" run x -- sh -c 'touch ready; exec sleep 1000'
rm -f ready done
"$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e ready ]'
for front in 0 1; do
    HOLDFAST_FRONT=$front expect 0 "$JOBPTY" \
        'sh:until "$HOLDFAST" status x --json | grep -q "\"waiters\": 1"; do sleep 0.02; done' key:c signaled:2 -- \
        "$HOLDFAST" run x -- true
done
touch done
wait
free x || fail "x is still held"
