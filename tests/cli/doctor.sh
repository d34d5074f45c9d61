# SPDX-License-Identifier: MIT
# `holdfast doctor`: levels, exit codes, --json, the lock of its own, and --read-only, which writes nothing.
. "$HERE/lib.sh"

# A good store: nothing worse than a note, about this machine's own clock if at all.
expect 0 "$HOLDFAST" doctor
printed "$HOLDFAST_URL, with locks of 30 s"
printed "the lock 'holdfast-doctor' is taken for a moment"
printed "ok      permissions: "
printed "ok      lock: a lock was taken, renewed and released"
tail -n 1 out | grep -Eq '^[0-9]+ ok(, [0-9]+ notes?)?$' || fail "no summary"
expect 0 "$HOLDFAST" doctor --read-only
! grep -q holdfast-doctor out || fail "a lock with --read-only"

# The URL stands where it is easiest to type, the time-to-live too.
expect 0 "$HOLDFAST" doctor "$HOLDFAST_URL" --ttl 5s
printed "with locks of 5 s"
HOLDFAST_URL=nonsense: expect 0 "$HOLDFAST" doctor -u "$HOLDFAST_URL"
expect 64 "$HOLDFAST" doctor nonsense:
said "nonsense"
expect 64 "$HOLDFAST" doctor file: file:
said "too many"
expect 64 "$HOLDFAST" doctor --ttl 1ms
said "too short"
expect 64 "$HOLDFAST" doctor mem:

# What mends it stands below it.
chmod 770 locks
expect 1 "$HOLDFAST" doctor
printed "risk    permissions: every member of its group"
printed "        found:  $TMP/locks has mode 0770"
printed "        mend:   chmod +t $TMP/locks"
tail -n 1 out | grep -q ', 1 risk$' || fail "the risk is not counted"
expect 1 "$HOLDFAST" doctor --json --read-only
python3 - out <<'END' || fail "the JSON is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["lock"] is None and report["ttl_ms"] == 30000 and report["url"].startswith("file:"), report
assert report["risk"] == 1 and report["broken"] == 0, report
assert report["ok"] + report["note"] + 1 == len(report["findings"]), report
risk, = [finding for finding in report["findings"] if finding["level"] == "risk"]
assert set(risk) == {"level", "what", "sentence", "evidence", "remedy"}, risk
assert risk["what"] == "permissions" and risk["remedy"].startswith("chmod +t "), risk
END
chmod 700 locks

# A database is left as it is found.
"$HOLDFAST" -u "sqlite://$TMP/full.db" run x -- true
expect 0 "$HOLDFAST" doctor --read-only "sqlite://$TMP/full.db"
printed "ok      tables: "
python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute("CREATE TABLE items (n)")' "$TMP/empty.db"
expect 64 "$HOLDFAST" doctor --read-only "sqlite://$TMP/empty.db?create=yes"
said "is missing"
same "$(python3 -c 'import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM sqlite_master").fetchone()[0])' "$TMP/empty.db")" 1
"$HOLDFAST" doctor --read-only "sqlite://$TMP/none.db" >out 2>err && fail "there is no such file"
[ ! -e none.db ] || fail "a file was made"

# Somebody else's doctor is waited for, and then it is only a note.
expect 0 "$HOLDFAST" run holdfast-doctor -- "$HOLDFAST" doctor
printed "note    lock: somebody else holds 'holdfast-doctor'"

# A machine with few descriptors.
(ulimit -n 100 && expect 1 "$HOLDFAST" doctor --read-only)
printed "risk    descriptors: "

# A store that cannot be asked is broken, and has the exit code that it has elsewhere.
[ -n "$REDIS_SERVER" ] || exit 0
url=redis+unix://$TMP/socket
expect 69 "$HOLDFAST" doctor "$url"
printed "broken  store: it cannot be asked"
tail -n 1 out | grep -q ', 1 broken$' || fail "it is not counted"
expect 69 "$HOLDFAST" doctor "$url" --json
python3 -m json.tool out >/dev/null || fail "no JSON"

"$REDIS_SERVER" --port 0 --unixsocket "$TMP/socket" --save '' --appendonly yes --appendfsync always --dir "$TMP" \
    >redis.log 2>&1 &
server=$!
trap 'kill $server' EXIT
until_true '"$HOLDFAST" -u "$url" ls >/dev/null 2>&1'
redis()
{
    "$(dirname "$REDIS_SERVER")/redis-cli" -s "$TMP/socket" "$@" >cli
}
writes()
{
    redis INFO persistence
    sed -n 's/^rdb_changes_since_last_save:\([0-9]*\).*/\1/p' cli
}
expect 0 "$HOLDFAST" doctor "$url" --read-only
same "$(writes)" 0
redis DBSIZE
same "$(cat cli)" 0
expect 0 "$HOLDFAST" doctor "$url"
printed "ok      renewal: "
[ "$(writes)" -gt 0 ] || fail "no lock was taken"
expect 1 "$HOLDFAST" status holdfast-doctor -u "$url"
redis CONFIG SET appendfsync everysec
expect 1 "$HOLDFAST" doctor "$url"
printed "risk    persistence: "
printed "appendfsync is everysec (CONFIG GET appendfsync)"
# The worst decides; a user who may look but not lock.
redis ACL SETUSER default -hset
expect 2 "$HOLDFAST" doctor "$url"
printed "broken  rights: "
printed "ACL SETUSER default +hset"
printed "broken  lock: a lock could not be taken"
redis ACL SETUSER default +hset -eval
redis ACL SETUSER default '>secret'
expect 77 "$HOLDFAST" doctor "$url"
printed "broken  store: it refuses us"
