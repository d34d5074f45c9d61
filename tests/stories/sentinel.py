#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sentinel.py: how locks behind Sentinels are lost.

    sentinel.py HOLDFAST OUT [NAME...]
"""

import os
import subprocess
import sys

sys.dont_write_bytecode = True

from places import REDIS_CLI, Claims, Redis, Relay  # noqa: E402
from tale import HOLD, LIMIT_S, STOPPABLE, main, start_process, story, wait_until  # noqa: E402

# Who comes from here is on the other side of the cut.
THERE = "127.0.0.3"
MASTER = "127.0.0.2"


class Watched:
    """A master and those on the other side of a network: its replica, a Sentinel, and Ben."""

    def __init__(self, tale):
        self.old = Redis(tale)
        self.way = Relay(tale, self.old.port, host=MASTER)
        self.new = Redis(tale, "--bind-source-addr", THERE, "--protected-mode", "no")
        self.new.follow(self.way.port, MASTER)
        self.sentinel = Claims.take()
        folder = os.path.join(tale.folder, f"sentinel-{self.sentinel}")
        os.mkdir(folder)
        with open(os.path.join(folder, "conf"), "w", encoding="utf-8") as file:
            file.write(f"port {self.sentinel}\nbind 127.0.0.1\nbind-source-addr {THERE}\ndir {folder}\n"
                       f"sentinel monitor shop {MASTER} {self.way.port} 1\n"
                       "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 5000\n")
        with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
            self.process = start_process(["redis-server", os.path.join(folder, "conf"), "--sentinel"],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.annas_sentinel = Relay(tale, self.sentinel)
        tale.keep(self)
        wait_until(self.knows_the_replica, LIMIT_S, "the Sentinel knows the replica")

    def knows_the_replica(self):
        said = self.say("SENTINEL", "replicas", "shop").splitlines()
        return str(self.new.port) in said and said[said.index("flags") + 1] == "slave" and \
            said[said.index("master-link-status") + 1] == "ok"

    def say(self, *words):
        done = subprocess.run([REDIS_CLI, "-p", str(self.sentinel), *words], capture_output=True, text=True,
                              check=False, timeout=LIMIT_S)
        return done.stdout

    def told(self, tale, title):
        telling = tale.told(title)
        telling.env["SENTINEL"] = str(self.sentinel)
        return telling

    def url(self, way, options=""):
        return f"redis+sentinel://127.0.0.1:{way}/shop{options}"

    def cut(self, telling):
        """Anna stays with the old master; the Sentinel, which Ben asks, makes the replica a master."""
        self.way.hold(come_from=THERE)
        self.annas_sentinel.hold()
        telling.note("the network", "is cut: Anna and the master here, the replica and the Sentinel there")
        telling.sees("the Sentinel", lambda: str(self.new.port) in
                     self.say("SENTINEL", "get-master-addr-by-name", "shop"), "has promoted the replica")

    def close(self):
        self.process.kill()
        self.process.wait()


@story
def split_brain(tale):
    """The master is cut off, and so is whoever has the lock

    The Sentinels cannot reach the master and promote the replica. The old master does not know, and goes on: it renews
    what it has granted for as long as the network is cut. On the new master the same lock ends, as nobody renews it
    there.
    """
    watched = Watched(tale)
    t = watched.told(tale, "SET NX PX, and a background process that renews")
    recipe = """
        set -- $(redis-cli -p "$SENTINEL" SENTINEL get-master-addr-by-name shop)
        until [ "$(redis-cli -h "$1" -p "$2" SET lock "$ME" NX PX 3000)" = OK ]; do
            sleep 0.1
        done
        while sleep 0.5; do redis-cli -h "$1" -p "$2" PEXPIRE lock 3000; done >renewed &
        say "has the lock"
        work
        [ "$(redis-cli -h "$1" -p "$2" GET lock)" = "$ME" ] && say "sees that it is still theirs"
        work
        kill $!
        say "gives the lock back"
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock")
    t.sees("the replica", lambda: watched.new.ask("EXISTS", "lock") == 1, "has heard of it")
    watched.cut(t)
    ben = t.person("Ben", recipe)
    t.hears(ben, "has the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "sees that it is still theirs")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once, until the cut is mended: both renew, and both see that it is theirs.")

    watched = Watched(tale)
    t = watched.told(tale, "holdfast run, with redis+sentinel:// and ?replicas=1")
    anna = t.person("Anna", STOPPABLE, LEASE="9s", HOLDFAST_URL=watched.url(watched.annas_sentinel.port, "?replicas=1"))
    t.hears(anna, "has the lock, token #")
    watched.cut(t)
    ben = t.person("Ben", HOLD, LEASE="60s", HOLDFAST_URL=watched.url(watched.sentinel))
    t.hears(anna, "is told to stop: SIGTERM")
    t.hears_of({anna: "is told: exit code 76, the lock was lost", ben: "has the lock"})
    t.ends(anna)
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "A renewal that no replica confirms does not count: Anna is told before the new master can give the "
            "lock to Ben.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
