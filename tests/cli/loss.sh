# SPDX-License-Identifier: MIT
# Every loss is said with its cause, its store and its time: each cause in its own words.
. "$HERE/lib.sh"
file=$HOLDFAST_URL
redis=redis+unix://$TMP/socket
start_server()
{
    "$REDIS_SERVER" --port 0 --unixsocket "$TMP/socket" --save '' --dir "$TMP" >redis.log 2>&1 &
    server=$!
    until_true '"$HOLDFAST" -u "$redis" status x 2>/dev/null >&2 || [ $? -eq 1 ]'
}
trap 'kill $server 2>/dev/null || :' EXIT
start_server

lost() # PATTERN: the holder's only line is a loss with this cause
{
    code=0
    wait $holder || code=$?
    same "$code" 76
    same "$(wc -l <holder.err)" 1 "lines"
    grep -Eq "^holdfast: the lock 'x' was lost at [0-2][0-9]:[0-5][0-9]:[0-6][0-9] after [0-9a-z]+: $1\$" holder.err ||
        fail "said: $(cat holder.err)"
}
free_in_redis()
{
    code=0
    "$HOLDFAST" -u "$redis" status -q x || code=$?
    [ $code -eq 1 ]
}
start() # URL OPTION ...
{
    rm -f ready
    url=$1
    shift
    "$HOLDFAST" -u "$url" run "$@" x -- sh -c 'exec 2>/dev/null; touch ready; exec sleep 1000' 2>holder.err &
    holder=$!
}

start "$file"
until_true '[ -e ready ]'
"$HOLDFAST" -u "$file" break x
lost "it was broken by [^ ]+@[^ ]+:[0-9]+ \\($file\\)"

start "$redis" -t 9s
until_true '[ -e ready ]'
"$HOLDFAST" -u "$redis" break x
lost "the store no longer has it: it was broken, or ended or forgotten there \\(redis\\+unix://.*/socket\\)"

start "$file" --max-hold 300ms
lost "that is as long as --max-hold allows \\($file\\)"
start "$redis" --no-renew -t 2s
lost "its time-to-live is over, and it was not to be renewed \\(redis\\+unix://.*/socket\\)"

# A server that answers, and refuses: it is not silent.
tell_server() # COMMAND
{
    python3 -c 'import socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
server.sendall((sys.argv[2] + "\r\n").encode())
answer = server.recv(1000)
sys.exit(answer != b"+OK\r\n" and repr(answer))' "$TMP/socket" "$1"
}
start "$redis" -t 6s
until_true '[ -e ready ]'
tell_server 'ACL SETUSER default -eval -evalsha'
lost "the store has refused to renew it since [0-2][0-9]:[0-5][0-9]:[0-6][0-9] \\(.*\\) \\(redis.*\\)"
tell_server 'ACL SETUSER default +@all'
# The release was refused too: it ends by itself.
until_true 'free_in_redis'

# A server that is gone.
start "$redis" -t 6s
until_true '[ -e ready ]'
kill -KILL $server
wait $server || :
lost "the store is silent since [0-2][0-9]:[0-5][0-9]:[0-6][0-9] \\(cannot connect to .*/socket: .*\\) \\(redis.*\\)"

# Where the command runs on, the loss is the library's, and said in its words.
rm -f socket
start_server
rm -f ready
"$HOLDFAST" -u "$redis" run -t 4s --on-lost ignore --log events x -- sh -c 'exec 2>/dev/null; touch ready
    while "$HOLDFAST" -u "$HOLDFAST_URL" run -n x -- true; do sleep 0.02; done; touch ended' 2>holder.err &
holder=$!
until_true '[ -e ready ]'
kill -KILL $server
wait $server || :
until_true '[ -e ended ]'
lost "the store has been silent for [0-9.]+ s \\(.*/socket.*\\) \\(redis.*\\)"
grep -q '"event": "lost".*"why": "the store has been silent' events || fail "not in the log: $(cat events)"
