# SPDX-License-Identifier: MIT
# `holdfast ls` and `holdfast status`.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" ls
same "$(wc -l <out)" 1 "only the titles"
expect 0 "$HOLDFAST" ls --json
json 'it == []'
expect 0 "$HOLDFAST" --json ls
json 'it == []'
expect 1 "$HOLDFAST" status web
same "$(cat out)" "web is free"
expect 1 "$HOLDFAST" status web --json
json 'it == {"held": False, "name": "web"}'

for name in web-2 web-1 '锁 "quoted" \' db; do
    "$HOLDFAST" run --note "note of $name" "$name" -- sh -c 'echo ok >>ready; until [ -e done ]; do sleep 0.02; done' &
done
until_true '[ -e ready ] && [ "$(wc -l <ready)" -eq 4 ]'

expect 0 "$HOLDFAST" ls
same "$(sed 's/  .*//' out | tr '\n' ',')" 'NAME,db,web-1,web-2,锁 "quoted" \,' "sorted by name"
printed "note of db"
printed "$(uname -n):"
expect 0 "$HOLDFAST" ls web
same "$(sed 's/  .*//' out | tr '\n' ',')" 'NAME,web-1,web-2,'
expect 0 "$HOLDFAST" ls --json
json '[l["name"] for l in it] == ["db", "web-1", "web-2", "锁 \"quoted\" \\"]'
json 'all(l["note"] == "note of " + l["name"] for l in it)'
json 'all(set(l) == {"name", "host", "pid", "token", "held_ms", "remaining_ms", "waiters", "note", "waiting"} for l in it)'
json 'all(l["pid"] > 1 and l["token"] > 0 and l["held_ms"] >= 0 and l["waiters"] == 0 for l in it)'
json 'all(l["host"] == __import__("os").uname().nodename and l["remaining_ms"] is None for l in it)'
expect 0 "$HOLDFAST" ls web --json
json 'len(it) == 2'
expect 0 "$HOLDFAST" ls nothing-like-it --json
json 'it == []'

expect 0 "$HOLDFAST" status web-1
printed "name       web-1"
printed "note       note of web-1"
expect 1 "$HOLDFAST" status web
expect 0 "$HOLDFAST" status --json web-1
json 'it["held"] is True and it["name"] == "web-1"'

# Plain in a pipe, with the titles in bold on a terminal, unless that is not wanted.
! "$HOLDFAST" ls | grep -q "$(printf '\033')" || fail "escapes in a pipe"
"$JOBPTY" exited:0 -- "$HOLDFAST" ls | grep -q "$(printf '\033\\[1m')NAME" || fail "not bold on a terminal"
! NO_COLOR=1 "$JOBPTY" exited:0 -- "$HOLDFAST" ls | grep -q "$(printf '\033')" || fail "bold in spite of NO_COLOR"
touch done
wait
