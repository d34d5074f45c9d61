# SPDX-License-Identifier: MIT
"""kazoo_peer.py: Lock of kazoo, played by interop/run through one line at a time (see interop/README.md).

    kazoo_peer.py [--pattern=TEXT] SESSION_MS PREFIX HOST:PORT

--pattern: kazoo is told that nodes with TEXT before their number are locks too, as its users do beside other clients.
"""

import sys
import time
import traceback

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

PATIENCE_S = 20


class Peer:
    def __init__(self, patterns, session_ms, prefix, address):
        self.client = KazooClient(hosts=address, timeout=int(session_ms) / 1000)
        self.client.start()
        self.patterns, self.prefix = patterns, prefix
        self.locks = {}

    def lock(self, name):
        if name not in self.locks:
            self.locks[name] = self.client.Lock(self.prefix + name, extra_lock_patterns=self.patterns)
        return self.locks[name]

    def take(self, name, _ttl_ms, wait_ms=None):
        try:
            if wait_ms is None:
                got = self.lock(name).acquire(blocking=False)
            else:
                got = self.lock(name).acquire(timeout=int(wait_ms) / 1000)
        except LockTimeout:
            got = False
        return "held" if got else "busy"

    def release(self, name):
        return "released" if self.lock(name).release() else "refused"

    def token(self, name):
        """The transaction that made the node."""
        lock = self.lock(name)
        return str(self.client.exists(f"{lock.path}/{lock.node}").czxid)

    def pairs(self, name, count):
        """Nanoseconds of each pair, without anybody in its way."""
        lock, times = self.lock(name), []
        for _ in range(int(count)):
            start = time.monotonic_ns()
            lock.acquire(timeout=PATIENCE_S)
            lock.release()
            times.append(time.monotonic_ns() - start)
        return " ".join(map(str, times))

    def obey(self, command, *words):
        known = {"try": self.take, "acquire": self.take, "keep": self.take, "release": self.release,
                 "token": self.token, "pairs": self.pairs}
        return known[command](*words)

    def timed(self, *words):
        """Adds to the answer when the call began and when it was back."""
        called = time.monotonic_ns()
        return f"{self.obey(*words)} {called} {time.monotonic_ns()}"


def main():
    arguments = sys.argv[1:]
    patterns = [arguments.pop(0).partition("=")[2]] if arguments[0].startswith("--pattern=") else []
    peer = Peer(patterns, *arguments)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        words = line.split()
        try:
            answer = peer.timed(*words[1:]) if words[0] == "timed" else peer.obey(*words)
        except Exception as error:  # whatever goes wrong is an answer, and the next command has its chance
            traceback.print_exc()
            answer = "error " + repr(error).replace("\n", " ")
        print(answer, flush=True)
    peer.client.stop()
    peer.client.close()


if __name__ == "__main__":
    main()
