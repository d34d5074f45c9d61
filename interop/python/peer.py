# SPDX-License-Identifier: MIT
"""peer.py: Lock of redis-py, played by interop/run through one line at a time (see interop/README.md).

    peer.py HOST:PORT
"""

import sys
import threading
import traceback
import uuid

import redis
from redis.exceptions import LockError

POLL_S = 0.01  # redis-py's own default, a tenth of a second, would only make the run longer


class Held:
    """One lock, and the thread that renews it if it is to be kept: redis-py has none of its own."""

    def __init__(self, lock, keep):
        self.lock = lock
        self.done = threading.Event()
        self.keeper = None
        if keep:
            self.keeper = threading.Thread(target=self.renew, daemon=True)
            self.keeper.start()

    def renew(self):
        while not self.done.wait(self.lock.timeout / 3):
            self.lock.reacquire()

    def release(self):
        self.done.set()
        if self.keeper:
            self.keeper.join()
        self.lock.release()


class Peer:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.client = redis.Redis(host=host, port=int(port))
        self.client.ping()
        self.held = {}

    def lock(self, name, ttl_ms):
        # Not per thread: the keeper has to see the token.
        return self.client.lock(name, timeout=int(ttl_ms) / 1000, sleep=POLL_S, thread_local=False)

    def take(self, name, ttl_ms, wait_ms=None, keep=False):
        lock = self.lock(name, ttl_ms)
        if wait_ms is None:
            got = lock.acquire(blocking=False)
        else:
            got = lock.acquire(blocking_timeout=int(wait_ms) / 1000)
        if got:
            self.held[name] = Held(lock, keep)
        return "held" if got else "busy"

    def keep(self, name, ttl_ms, wait_ms):
        return self.take(name, ttl_ms, wait_ms, keep=True)

    def release(self, name):
        try:
            self.held.pop(name).release()
            return "released"
        except LockError:
            return "refused"

    def steal(self, name):
        """With a token of its own, as if it had held the lock."""
        lock = self.lock(name, 1000)
        lock.local.token = uuid.uuid1().hex.encode()
        try:
            lock.release()
            return "released"
        except LockError:
            return "refused"

    def obey(self, command, *words):
        known = {"try": self.take, "acquire": self.take, "keep": self.keep, "release": self.release,
                 "steal": self.steal}
        return known[command](*words)


def main():
    peer = Peer(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        try:
            answer = peer.obey(*line.split())
        except Exception as error:  # whatever goes wrong is an answer, and the next command has its chance
            traceback.print_exc()
            answer = "error " + repr(error).replace("\n", " ")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
