# SPDX-License-Identifier: MIT
# `holdfast engines`.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" engines
printed "file (file:): "
printed "mem (mem:): "
printed "  + frees a lock at once when its holder dies"
printed "  - does not exclude other machines"
expect 0 "$HOLDFAST" engines --json
json 'all(set(e) == {"name", "schemes", "summary", "present", "missing", "can", "cannot"} for e in it)'
json 'all(e["name"] and e["summary"] and all(s.endswith(":") for s in e["schemes"]) for e in it)'
json 'all((e["missing"] is None) == e["present"] == (e["can"] is not None) for e in it)'
json 'all(e["missing"] for e in it if not e["present"])'
words='["expiry", "bound", "fair", "wake-one", "processes", "machines", "durable-token", "inspect", "break", "guard"]'
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
      "consul": ["consul:", "consuls:"]}'
expect 0 "$HOLDFAST" engines --json
json "{e['name']: e['schemes'] for e in it} == $(echo "$all" | tr '\n' ' ')"
json 'all(("machines" in e["can"]) == (e["name"] not in ("file", "mem", "sqlite")) for e in it if e["present"])'
json 'all("inspect" in e["can"] and "break" in e["can"] for e in it if e["present"])'
