# SPDX-License-Identifier: MIT
# Who is waited for: on a terminal in one line that goes away, elsewhere only if that is wanted.
. "$HERE/lib.sh"
HOLDFAST_URL=redis+unix://$TMP/socket
"$REDIS_SERVER" --port 0 --unixsocket "$TMP/socket" --save '' --dir "$TMP" >redis.log 2>&1 &
server=$!
trap 'kill $server' EXIT
until_true '"$HOLDFAST" status deploy >/dev/null 2>&1 || [ $? -eq 1 ]'

hold() # NOTE
{
    rm -f ready done
    "$HOLDFAST" run --note "$1" deploy -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
    holder=$!
    until_true '[ -e ready ]'
}

hold 'release 12'
"$HOLDFAST" run --verbose deploy -- true 2>first.err &
first=$!
until_true '"$HOLDFAST" status deploy --json | grep -q "\"waiters\": 1"'
"$HOLDFAST" run --verbose deploy -- true 2>second.err &
second=$!
until_true 'grep -q waiting first.err && grep -q waiting second.err'
who="held by $(uname -n):$holder since [0-9a-z]*"
grep -Eq "^holdfast: waiting for 'deploy', $who \(release 12\), 0 before you\$" first.err || fail "$(cat first.err)"
grep -Eq "^holdfast: waiting for 'deploy', $who \(release 12\), 1 before you\$" second.err || fail "$(cat second.err)"

# In one line, which is gone before the command says anything.
"$JOBPTY" 'sh:until grep -q "waiting for" screen; do sleep 0.05; done; touch done' exited:0 -- \
    "$HOLDFAST" run deploy -- echo running >screen
grep -q "waiting for 'deploy', held by" screen || fail "not said on a terminal"
same "$(grep -c 'waiting for' screen)" 1 "lines of the terminal with the wait in them"
case $(tr '\r' '\n' <screen | grep -A 1 'waiting for' | tail -n 1) in
"$(printf '\033[K')"*) ;;
*) fail "the line was not taken away: $(cat -v screen)" ;;
esac
wait $holder $first $second

# A script hears nothing unless it asks, and nobody who wants quiet does.
hold 'release 13'
for how in '' '-q --verbose'; do
    expect 75 "$HOLDFAST" run $how -w 1500ms deploy -- true
    ! grep -q 'waiting for' err || fail "said: $how"
done
"$JOBPTY" exited:75 -- "$HOLDFAST" run -q -w 1500ms deploy -- true >screen
! grep -q 'waiting for' screen || fail "said on a terminal in spite of -q"
touch done
wait $holder
