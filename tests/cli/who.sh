# SPDX-License-Identifier: MIT
# Who is named as the holder: never one that has gone; and what is shown of one that left no note.
. "$HERE/lib.sh"

# It is the turn of a process that does not run: the record is that of the last holder, who is dead.
"$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
first=$!
until_true '[ -e ready ]'
expect 75 "$HOLDFAST" run -n x -- true
said "held by $(uname -n):$first"
"$HOLDFAST" run x -- true &
second=$!
until_true '"$HOLDFAST" status x --json | grep -q "\"waiters\": 1"'
kill -STOP $second
touch done
wait $first
expect 75 "$HOLDFAST" run -n x -- true
said "held by somebody else"
"$HOLDFAST" status x --json >out || :
json 'it.get("pid") is None'
kill -CONT $second
wait $second

# Without a note: the user and the command, but not its arguments, which may be secret.
rm -f ready done
LOGNAME=alice "$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' secret &
first=$!
until_true '[ -e ready ]'
expect 0 "$HOLDFAST" status x --json
json 'it["note"] == "alice: sh"'
touch done
wait $first
rm -f ready done
"$HOLDFAST" run --note '' x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
first=$!
until_true '[ -e ready ]'
expect 0 "$HOLDFAST" status x --json
json 'it["note"] is None'
touch done
wait $first
# However long it is.
long=$(printf '锁%.0s' $(seq 60))
ln -s /bin/sleep "$long"
expect 0 "$HOLDFAST" run x -- "./$long" 0
