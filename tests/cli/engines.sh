# SPDX-License-Identifier: MIT
# `holdfast engines`.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" engines
printed "file (file:): "
printed "mem (mem:): "
printed "bound          frees a lock at once when its holder dies"

# The matrix fits a terminal, and says of each engine what the JSON says.
sed '/^$/,$d' "$TMP/out" >matrix
[ "$(awk 'length > 80' matrix)" = '' ] || fail "wider than 80 columns"
! grep -q ' $' "$TMP/out" || fail "blanks at a line end"
"$HOLDFAST" engines --json >engines.json
python3 - matrix engines.json <<'END' || fail "the matrix is not what the JSON says"
import json, re, sys
first, second, *rows = open(sys.argv[1]).read().splitlines()
starts = [m.start() for m in re.finditer(r"\S+", first)]
part = lambda line, i: line[starts[i]:][:(starts + [99])[i + 1] - starts[i]].strip()
words = [part(first, i) + part(second, i) for i in range(len(starts))]
engines = json.load(open(sys.argv[2]))
for engine in engines:
    for key in "can", "cannot":
        engine[key] = [word.replace("-", "") for word in engine[key]]
assert [row.split()[0] for row in rows] == [engine["name"] for engine in engines]
for row, engine in zip(rows, engines):
    if not engine["present"]:
        assert row.split(None, 1)[1] == "not present", row
        continue
    marks = [part(row, i) for i in range(len(words))]
    assert set(marks) <= {"yes", "-"}, row
    assert {w for w, m in zip(words, marks) if m == "yes"} == set(engine["can"]), row
    assert set(words) == set(engine["can"] + engine["cannot"]), words
END
expect 0 "$HOLDFAST" engines --json
json 'all(set(e) == {"name", "schemes", "summary", "present", "missing", "can", "cannot"} for e in it)'
json 'all(e["name"] and e["summary"] and all(s.endswith(":") for s in e["schemes"]) for e in it)'
json 'all((e["missing"] is None) == e["present"] == (e["can"] is not None) for e in it)'
json 'all(e["missing"] for e in it if not e["present"])'
words='["expiry", "bound", "fair", "wake-one", "processes", "machines", "durable-token", "inspect", "break", "guard", "once"]'
json "all(sorted(e['can'] + e['cannot']) == sorted($words) for e in it if e['present'])"
json '{"bound", "processes", "durable-token", "break"} <= set(next(e for e in it if e["name"] == "file")["can"])'
json '"guard" in next(e for e in it if e["name"] == "file")["cannot"]'
json '"processes" in next(e for e in it if e["name"] == "mem")["cannot"]'
expect 0 "$HOLDFAST" --json engines
json 'len(it) >= 2'

# Every scheme is somebody's, installed or not, and the others cannot do what only a network makes possible.
all='{"file": ["file:"], "mem": ["mem:"], "redlock": ["redlock:"], "sqlite": ["sqlite:"], "zookeeper": ["zookeeper:"],
      "redis": ["redis:", "rediss:", "redis+unix:", "redis+sentinel:", "redis+cluster:"],
      "postgres": ["postgres:", "postgresql:"], "mysql": ["mysql:", "mariadb:"], "etcd": ["etcd:", "etcds:"],
      "consul": ["consul:", "consuls:"], "memcached": ["memcached:", "memcached+unix:"]}'
expect 0 "$HOLDFAST" engines --json
json "{e['name']: e['schemes'] for e in it} == $(echo "$all" | tr '\n' ' ')"
json 'all(("machines" in e["can"]) == (e["name"] not in ("file", "mem", "sqlite")) for e in it if e["present"])'
json 'all(("inspect" in e["can"]) == (e["name"] != "memcached") for e in it if e["present"])'
json 'all("break" in e["can"] for e in it if e["present"])'
