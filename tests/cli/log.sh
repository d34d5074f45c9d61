# SPDX-License-Identifier: MIT
# --log: what becomes of a lock, as lines of JSON; --on-lost-exec: a command after a loss.
. "$HERE/lib.sh"

line() # NUMBER EXPRESSION: of the Python object `it`, which is that line
{
    sed -n "$1p" events >"$TMP/out"
    json "$2"
}

expect 0 "$HOLDFAST" run --log events --on-lost-exec 'touch called' 'the "x"' -- true
same "$(wc -l <events)" 2
line 1 'it["event"] == "acquired" and it["name"] == "the \"x\"" and it["waited_ms"] >= 0 and it["token"] > 0'
line 1 'it["store"].startswith("file:") and it["pid"] > 1 and len(it["time"]) == 24'
line 2 'it["event"] == "released" and it["held_ms"] >= 0'
[ ! -e called ] || fail "called without a loss"

# Not acquired; and lost, which somebody wants to know.
rm events
"$HOLDFAST" run --log events --on-lost-exec 'echo "$HOLDFAST_NAME: $HOLDFAST_WHY" >called; exit 3' x -- \
    sh -c 'touch ready; exec sleep 1000' 2>holder.err &
holder=$!
until_true '[ -e ready ]'
expect 75 "$HOLDFAST" run -n --log events x -- true
expect 0 "$HOLDFAST" break x
code=0
wait $holder || code=$?
same "$code" 76
grep -Eqx 'x: it was broken by [^ ]+@[^ ]+:[0-9]+' called || fail "called with: $(cat called)"
same "$(wc -l <events)" 3
line 2 'it["event"] == "waited" and it["why"].startswith("held by") and "token" not in it'
line 3 'it["event"] == "lost" and it["why"].startswith("it was broken by ") and "@" in it["why"] and it["held_ms"] >= 0'

# The same of `hold`; and a log that cannot be written is said, and costs nothing.
rm events
mkfifo input
"$HOLDFAST" hold --log events y <input >holder.out &
holder=$!
exec 9>input
until_true '[ -s holder.out ]'
exec 9>&-
wait $holder
line 2 'it["event"] == "released" and it["name"] == "y"'
expect 0 "$HOLDFAST" run --log /nowhere/log x -- true
grep -q "cannot write to the log '/nowhere/log': No such file" err || fail "not said"
expect 64 "$HOLDFAST" run --log '' x -- true

# The system's logs, where they are listened to.
cat >listen <<'END'
import os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
server.bind(sys.argv[1])
server.settimeout(30)
pid = os.fork()
if pid == 0:
    os.environ["LD_LIBRARY_PATH"] = os.path.dirname(sys.argv[3]) + "/../src"
    os.execv(sys.argv[3], [sys.argv[3], "run", "--log", sys.argv[2], "x", "--", "/bin/true"])
texts = [server.recv(65536).decode() for _ in range(2)]
os.waitpid(pid, 0)
assert '"event": "acquired"' in texts[0] and '"event": "released"' in texts[1], texts
assert "holdfast" in texts[0], texts
assert sys.argv[2] == "syslog" or texts[0].startswith('MESSAGE={"time"'), texts
END
apart=
unshare -m true 2>/dev/null || apart=-r
if unshare $apart -m true 2>/dev/null; then
    unshare $apart -m sh -c 'mount -t tmpfs none /run && exec python3 listen /run/systemd/journal/socket journal "$HOLDFAST"'
    unshare $apart -m sh -c 'mount -t tmpfs none /dev && exec python3 listen /dev/log syslog "$HOLDFAST"'
else
    not_run "what the journal and syslog are told: it needs namespaces, which this system refuses"
fi
