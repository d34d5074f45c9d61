# SPDX-License-Identifier: MIT
# A store that is away: -w waits for it as well, and for nothing that waiting does not mend.
. "$HERE/lib.sh"
export HOLDFAST_URL=redis+unix://$TMP/socket

start_server()
{
    "$REDIS_SERVER" --port 0 --unixsocket "$TMP/socket" --requirepass right --save '' --dir "$TMP" >redis.log 2>&1 9>&- &
    server=$!
}
trap '[ -z "${server-}" ] || kill $server 2>/dev/null || :' EXIT

# It is given up when the wait is over, and without one at once.
begin=$(date +%s%N)
expect 69 "$HOLDFAST" run -w 700ms x -- touch ran
said "socket"
[ $(($(date +%s%N) - begin)) -ge 700000000 ] || fail "given up before the wait was over"
expect 69 "$HOLDFAST" run -n x -- touch ran
expect 69 "$HOLDFAST" run -w 0 x -- touch ran
[ ! -e ran ] || fail "ran without a lock"

# It comes back in time, for `run` and for `hold`.
export HOLDFAST_PASSWORD=right
"$HOLDFAST" run --verbose -w 60s x -- sh -c 'exit 5' 2>waiting.err &
run=$!
mkfifo input
"$HOLDFAST" hold -w 60s y <input >holder.out 2>holder.err &
hold=$!
exec 9>input
until_true 'grep -q "waiting for the store" waiting.err'
start_server
code=0
wait $run || code=$?
same "$code" 5
same "$(wc -l <waiting.err)" 1 "said once"
until_true 'grep -q "^held y" holder.out'
exec 9>&-
wait $hold

# ^C ends the wait for it.
kill $server
wait $server || :
server=
"$HOLDFAST" run --verbose -w 60s x -- touch ran 2>waiting.err &
run=$!
until_true 'grep -q "waiting for the store" waiting.err'
kill -TERM $run
code=0
wait $run || code=$?
same "$code" 143

# What waiting does not mend fails at once.
start_server
until_true '[ -S socket ]'
begin=$(date +%s)
HOLDFAST_PASSWORD=wrong expect 77 "$HOLDFAST" run -w 60s x -- touch ran
expect 64 "$HOLDFAST" -u nothing: run -w 60s x -- touch ran
[ $(($(date +%s) - begin)) -lt 50 ] || fail "waited for what does not change"
[ ! -e ran ] || fail "ran without a lock"
