# SPDX-License-Identifier: MIT
"""command_peer.py: a command that runs another one under a lock, played by interop/run through one line at a time (see
interop/README.md).

    command_peer.py etcdctl|consul PROGRAM SESSION_MS PREFIX HOST:PORT

The command that is run says that it has the lock and then waits for a line in a FIFO. Both die with their parent:
kill -9 of this program is kill -9 of all of it.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TRY_MS = 2000  # for one that should not wait: neither command can be told so
END_S = 15
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
# A FIFO whose writer has died gives no line; to open it again then blocks for as long as this lives.
CHILD = [*WITH_PARENT, "sh", "-c", 'echo "held ${ETCD_LOCK_REV:-}"; until read -r line <"$0"; do :; done']


class Held:
    """One run of the command."""

    def __init__(self, command, fifo, env):
        os.mkfifo(fifo)
        self.fifo = os.open(fifo, os.O_RDWR)
        self.process = subprocess.Popen([*WITH_PARENT, *command, *CHILD, fifo], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, env={**os.environ, **env})

    def await_line(self, wait_s):
        """What the child says, or nothing if it was not started by then; the empty line of a command that has ended."""
        ready, _, _ = select.select([self.process.stdout], [], [], wait_s)
        return self.process.stdout.readline().decode() if ready else None

    def end(self, how):
        how()
        status = self.process.wait(END_S)
        os.close(self.fifo)
        self.process.stdout.close()
        return status

    def let_go(self):
        os.write(self.fifo, b"now\n")


class Peer:
    def __init__(self, kind, program, session_ms, prefix, address):
        self.folder = tempfile.mkdtemp(prefix="holdfast-interop-")
        self.kind, self.program, self.prefix, self.address = kind, program, prefix, address
        self.session_s = int(session_ms) // 1000
        self.held, self.tokens, self.count = {}, {}, 0

    def command(self, name, wait_ms):
        if self.kind == "etcdctl":
            return [self.program, "--endpoints=" + self.address, "lock", f"--ttl={self.session_s}",
                    self.prefix + name, "--"]
        # Its session is for 15 s, whatever one would like.
        return [self.program, "lock", "-http-addr=" + self.address, "-shell=false", f"-timeout={wait_ms}ms",
                self.prefix + name]

    def take(self, name, _ttl_ms, wait_ms=TRY_MS):
        self.count += 1
        fifo = os.path.join(self.folder, str(self.count))
        held = Held(self.command(name, wait_ms), fifo, {"ETCDCTL_API": "3"})
        # consul ends by itself, etcdctl waits for ever.
        line = held.await_line(int(wait_ms) / 1000 + (END_S if self.kind == "consul" else 0))
        if line and line.startswith("held"):
            self.held[name], self.tokens[name] = held, line.split()[1:]
            return "held"
        status = held.end(lambda: held.process.send_signal(signal.SIGINT))
        if line is None or self.kind == "consul" and status == 1:
            return "busy"
        return f"error status {status}"

    def release(self, name):
        held = self.held.pop(name)
        status = held.end(held.let_go)
        return "released" if status == 0 else f"error status {status}"

    def token(self, name):
        return self.tokens[name][0]

    def pairs(self, name, count):
        """Nanoseconds of each pair, without anybody in its way."""
        times = []
        for _ in range(int(count)):
            start = time.monotonic_ns()
            self.take(name, 0)
            self.release(name)
            times.append(time.monotonic_ns() - start)
        return " ".join(map(str, times))

    def obey(self, command, *words):
        known = {"try": self.take, "acquire": self.take, "keep": self.take, "release": self.release,
                 "token": self.token, "pairs": self.pairs}
        return known[command](*words)


def main():
    peer = Peer(*sys.argv[1:])
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        try:
            answer = peer.obey(*line.split())
        except Exception as error:  # whatever goes wrong is an answer, and the next command has its chance
            answer = "error " + repr(error).replace("\n", " ")
        print(answer, flush=True)
    for held in peer.held.values():
        held.end(held.process.kill)
    shutil.rmtree(peer.folder)


if __name__ == "__main__":
    main()
