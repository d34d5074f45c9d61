# SPDX-License-Identifier: MIT
# `verify`: on a store that keeps its promises; what it says, what it leaves, and how it ends.
. "$HERE/lib.sh"

# Nobody holds anything. That nobody works on is seen by `run`.
nothing_left()
{
    same "$("$HOLDFAST" ls --names)" "" "held after $1"
}

expect 0 "$HOLDFAST" verify --seconds 3 --ttl 300ms --kill --pause --prefix "of-$$-a" --json --html page.html
json 'it["kept"] and it["violations"] == [] and it["workers"] == 4 and it["ttl_ms"] == 300 and \
    {p["promise"] for p in it["promises"] if p["verdict"] == "kept"} >= {"1", "2", "3", "5", "9", "12"} and \
    {p["promise"] for p in it["promises"] if p["verdict"] == "not claimed"} == {"5-paused"} and \
    it["figures"]["killed"] > 0 and it["figures"]["paused"] > 0 and it["figures"]["handoffs"] > 0 and \
    {e["kind"] for e in it["events"]} >= {"killed", "paused"} and \
    all(r["asked_s"] <= r["answered_s"] for r in it["history"] if r["answered_s"] is not None)'
same "$(cat err)" ""
nothing_left "a run"

# The page needs nothing else.
grep -q '^<!DOCTYPE html>' page.html || fail "no page"
! grep -Eq '<script|<link|<img|src=|href=|url\(|@import|https?://' page.html || fail "the page wants something else"
python3 - page.html <<'END' || fail "the page is not well-formed"
import sys, xml.etree.ElementTree as tree
text = open(sys.argv[1], encoding="utf-8").read()
text = text.replace("<!DOCTYPE html>", "").replace("&thinsp;", " ")
for start in ("<meta ", ):
    while start in text:
        at = text.index(start)
        end = text.index(">", at)
        text = text[:at] + text[end + 1:]
tree.fromstring(text)
END

# The URL may stand there as it is; what is said for people.
mkdir -m 700 other
expect 0 "$HOLDFAST" verify "file://$TMP/other" --seconds 0.5
printed "file://$TMP/other: 4 workers"
printed "at most one holder"
printed "not tried; --kill does"
printed "longest gap in service"

# The user's own fault, in the middle; what still runs at the end is ended.
expect 0 "$HOLDFAST" verify --seconds 1 --workers 1 --during 'echo here; exit 7'
printed "exit code 7"
same "$(cat err)" here
expect 0 "$HOLDFAST" verify --seconds 1 --workers 2 --during 'echo $$ >fault; exec sleep 60'
printed "exit code 143"
gone "$(cat fault)" || fail "the fault goes on"

# Names that somebody uses are left alone.
mkfifo end
"$HOLDFAST" hold "of-$$-mine-2" <end >/dev/null &
exec 9>end
until_true 'held "of-$$-mine-2"'
expect 75 "$HOLDFAST" verify --prefix "of-$$-mine" --seconds 1
said "of-$$-mine-2"
exec 9>&-
wait

# Told to end: a verdict, nothing left, and the shell is told.
"$HOLDFAST" verify --seconds 60 --pause --prefix "of-$$-b" --json >out 2>err &
pid=$!
until_true '"$HOLDFAST" ls --names | grep -q "of-$$-b"'
kill -TERM $pid
code=0
wait $pid || code=$?
same "$code" 143
json 'it["kept"] and it["seconds"] < 60'
nothing_left SIGTERM

# A verify that is killed takes its workers along.
"$HOLDFAST" verify --seconds 60 --pause --prefix "of-$$-c" >out 2>err &
pid=$!
until_true '"$HOLDFAST" ls --names | grep -q "of-$$-c"'
kill -KILL $pid
wait $pid || :
until_true '[ -z "$("$HOLDFAST" ls --names)" ]'
nothing_left SIGKILL

# What makes no sense.
expect 64 "$HOLDFAST" verify mem:
said "exclude nobody"
expect 64 "$HOLDFAST" verify -u "file://$TMP/other" "file://$TMP/other"
said "stands there twice"
expect 64 "$HOLDFAST" verify "file://$TMP/other" more
said "too many arguments"
expect 64 "$HOLDFAST" verify --workers 0
said "--workers 0"
expect 64 "$HOLDFAST" verify --seconds never
said "--seconds never"
expect 64 "$HOLDFAST" verify --ttl 5ms
said "--ttl 5ms"
expect 64 "$HOLDFAST" verify --during ''
said "not empty"
expect 70 "$HOLDFAST" verify --seconds 0.2 --html no/such/folder
said "cannot write no/such/folder"
