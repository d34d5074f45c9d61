# SPDX-License-Identifier: MIT
# `holdfast break`.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" break nobody-holds-it
same "$(cat out err)" ""
"$HOLDFAST" run x -- sh -c 'touch ready; exec sleep 1000' 2>holder.err &
until_true '[ -e ready ]'
"$HOLDFAST" run x -- touch second &
until_true '"$HOLDFAST" status x --json | grep -q "\"waiters\": 1"'
expect 0 "$HOLDFAST" break x
until_true '[ -e second ]'
code=0
wait %1 || code=$?
same "$code" 76
wait
until_true 'free x'

# The next one starts when the command of the last is gone, not when that is told.
rm -f ready second
"$HOLDFAST" run --grace 60s x -- sh -c 'trap "touch told" TERM; touch ready
    until [ -e go ]; do sleep 0.02; done; [ ! -e second ] || touch overlap' 2>holder.err &
holder=$!
until_true '[ -e ready ]'
"$HOLDFAST" run x -- touch second &
until_true '"$HOLDFAST" status x --json | grep -q "\"waiters\": 1"'
"$HOLDFAST" break x &
breaker=$!
until_true '[ -e told ]'
turns=0
until [ -e second ] || [ $turns -eq 50 ]; do
    turns=$((turns + 1))
    sleep 0.02
done
touch go
until_true '[ -e second ]'
wait $breaker || fail "break failed although the holder let go"
code=0
wait $holder || code=$?
same "$code" 76
wait
[ ! -e overlap ] || fail "two commands ran at once"

# A holder that takes its time: said, and nothing is taken from it.
rm -f ready told go
"$HOLDFAST" run --grace 60s x -- sh -c 'trap "" TERM; touch ready; until [ -e go ]; do sleep 0.02; done' 2>holder.err &
holder=$!
until_true '[ -e ready ]'
expect 69 "$HOLDFAST" break x
said "has not let go"
held x || fail "x was freed under a command that runs"
touch go
code=0
wait $holder || code=$?
same "$code" 76
