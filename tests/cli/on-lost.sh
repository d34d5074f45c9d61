# SPDX-License-Identifier: MIT
# A lock that is taken away: the command and its descendants end, and the exit code is 76.
. "$HERE/lib.sh"

start() # OPTION ...: a holder of x with a descendant whose own parent is gone
{
    rm -f ready pids done
    "$HOLDFAST" run "$@" x -- sh -c '(sleep 1000 & echo $! >>pids); echo $$ >>pids; touch ready
        until [ -e done ]; do sleep 0.01; done; exit 3' 2>holder.err &
    holder=$!
    until_true '[ -e ready ]'
}
finish()
{
    code=0
    wait $holder || code=$?
    same "$code" 76 "$*"
    grep -q "^holdfast: " holder.err || fail "not said why ($*)"
}
all_gone()
{
    for pid in $(cat pids); do
        gone "$pid" || return 1
    done
}

for how in term kill; do
    for front in 0 1; do
        HOLDFAST_FRONT=$front start --on-lost $how
        expect 0 "$HOLDFAST" break x
        finish $how $front
        all_gone || fail "a process of the command is left ($how, front $front)"
    done
done

start --on-lost ignore
expect 0 "$HOLDFAST" break x
until_true 'free x'
for pid in $(cat pids); do
    ! gone "$pid" || fail "process $pid was ended in spite of --on-lost ignore"
done
touch done
finish ignore
kill "$(head -n 1 pids)"

# Without a loss, what the command has left running stays.
expect 0 "$HOLDFAST" run x -- sh -c 'sleep 1000 >/dev/null 2>&1 & echo $! >daemon'
! gone "$(cat daemon)" || fail "a process that the command left behind was ended without a loss"
kill "$(cat daemon)"
