# SPDX-License-Identifier: MIT
# ^Z where the lock must be renewed: the job stops, the process that keeps the lock does not.
. "$HERE/lib.sh"
export HOLDFAST_FRONT=1

# No shell: one that is just starting a process when ^Z comes waits (in D, not T) for that one to leave the memory that
# they share.
cat >work <<'END'
import os, signal, sys, time

def write(name, text):
    with open(name, "w") as file:
        file.write(text)

signal.signal(signal.SIGINT, lambda *_: write("got", "INT"))
write("pid", str(os.getpid()))
write("keeper", str(os.getppid()))
write("ready", "")
while not os.path.exists("done"):
    time.sleep(0.02)
sys.exit(6)
END
cat >stopped-but-kept <<'END'
state() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' /proc/$1/status; }
until [ "$(state "$(cat pid)")" = T ]; do sleep 0.02; done
[ "$(state $JOB)" = T ] && [ "$(state "$(cat keeper)")" != T ] && [ "$(cat keeper)" != $JOB ] && "$HOLDFAST" status x
END
expect 0 "$JOBPTY" file:ready key:z stopped 'sh:sh stopped-but-kept' fg key:c file:got 'sh:touch done' exited:6 -- \
    "$HOLDFAST" run x -- python3 work
same "$(cat got)" INT
free x || fail "x is still held"

# The command is in the process group that the shell knows, the keeper is not.
expect 0 "$HOLDFAST" run x -- sh -c 'ps -o pgid= -p $$ -p $PPID | tr -d " "'
[ "$(sort -u out | wc -l)" -eq 2 ] || fail "the keeper is in the group of the command: $(cat out)"

# A lock that is lost while the job is stopped ends it all the same; the shell learns of it when it continues the job.
rm -f ready got done
expect 0 "$JOBPTY" file:ready key:z stopped 'sh:"$HOLDFAST" break x' \
    'sh:until ! [ -d /proc/$(cat keeper) ] || grep -q "State:.Z" /proc/$(cat keeper)/status; do sleep 0.02; done' \
    'sh:! [ -d /proc/$(cat pid) ]' fg exited:76 -- "$HOLDFAST" run x -- python3 work

# While it waits, the whole job stops, and goes on.
rm -f ready done
"$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e ready ]'
cat >all-stopped <<'END'
state() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' /proc/$1/status; }
keeper=$(cat /proc/$JOB/task/$JOB/children)
until [ "$(state $keeper)" = T ]; do sleep 0.02; done
END
expect 0 "$JOBPTY" 'sh:until "$HOLDFAST" status x --json | grep -q "\"waiters\": 1"; do sleep 0.02; done' \
    key:z stopped 'sh:sh all-stopped' fg 'sh:touch done' exited:9 -- "$HOLDFAST" run x -- sh -c 'exit 9'
wait

# The keeper, in the background of the terminal, is not stopped for saying why.
expect 0 "$JOBPTY" exited:76 -- "$HOLDFAST" run --max-hold 300ms x -- sh -c 'stty tostop; exec sleep 1000'
printed "holdfast: the lock 'x'"

# Exit codes come through.
expect 0 "$HOLDFAST" run x -- true
expect 7 "$HOLDFAST" run x -- sh -c 'exit 7'
expect 137 "$HOLDFAST" run x -- sh -c 'kill -KILL $$'
expect 127 "$HOLDFAST" run x -- ./no-such-command
expect 64 "$HOLDFAST" run '' -- true
expect 76 "$HOLDFAST" run --max-hold 300ms x -- sleep 1000
