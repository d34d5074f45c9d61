#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""consensus.py: what a store with consensus keeps, and what it cannot keep either.

    consensus.py HOLDFAST OUT [NAME...]
"""

import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True

from clusters import Consul, Etcd, ZooKeeper  # noqa: E402
from places import Pair, Redis, told  # noqa: E402
from tale import HOLD, LIMIT_S, SET_NX, TRY, Trouble, main, story  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def the_lock_stays(t, happens):
    """Anna has it, something happens, and Ben is refused."""
    anna = t.person("Anna", TRY, LEASE="60s")
    t.hears(anna, "has the lock")
    happens()
    ben = t.person("Ben", TRY.replace("run -n", "run -w 5s"), LEASE="60s")
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)


@story
def leader_dies(tale):
    """The server that granted the lock dies

    A replica that takes over has what it was sent in time. A majority has what it has agreed on.
    """
    for kind in (ZooKeeper, Consul):
        kind.must_be_there()
    pair = Pair(tale)
    t = told(tale, "SET NX PX, on a Redis master with a replica", pair.name.path)
    pair.between.hold()
    t.note("the network", "is slow between master and replica")
    anna = t.person("Anna", SET_NX, LEASE="60000")
    t.hears(anna, "has the lock")
    pair.fail_over(t)
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once.")

    masters = [Redis(tale) for _ in range(3)]
    t = told(tale, "holdfast run, with redlock:// and three masters", None)
    t.env["HOLDFAST_URL"] = "redlock://" + ",".join(f"127.0.0.1:{master.port}" for master in masters)

    def one_dies():
        masters[0].kill()
        t.note("master 1", "is killed: kill -KILL")

    the_lock_stays(t, one_dies)
    t.ended(1, "Two of three masters still have it, and there is nobody who takes over.")

    for kind, where in ((Etcd, "etcd:// and three members"), (ZooKeeper, "zookeeper:// and three servers"),
                        (Consul, "consul:// and three servers")):
        cluster = kind(tale, 3)
        t = cluster.told(tale, f"holdfast run, with {where}")
        the_lock_stays(t, lambda cluster=cluster, t=t: cluster.kill_leader(t))
        t.ended(1, "Whoever leads next has the lock, too: it was granted when a majority had it.")


@story
def herd_on_zookeeper(tale):
    """A hundred watch one node

    Whoever creates the node has the lock, the others watch it. When it goes, all of them are told.
    """
    zookeeper = ZooKeeper(tale, 1)
    t = zookeeper.told(tale, "create, and a watch")
    t.program("zk-lock", f'#!/bin/sh\nexec python3 "{HERE}/zk_lock.py" {zookeeper.ports[0]} "$@"\n')
    recipe = 'zk-lock /stock "$COUNT"'
    anna = t.person("Anna", recipe, COUNT="1")
    t.hears(anna, "has the lock")
    t.person("waiters", recipe, COUNT="100")
    t.gathers({"is refused, and watches": 100})
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.gathers({"is refused again": 99, "has the lock": 1})
    t.ended(1, "A herd: with each release all of them come, and whoever is the quickest gets it.")

    t = zookeeper.told(tale, "holdfast run")
    anna = t.person("Anna", HOLD, LEASE="60s")
    t.hears(anna, "has the lock")
    first = t.person("waiter1", HOLD, LEASE="60s")
    t.sees("ZooKeeper", lambda: waiters(t) == 1, "has waiter1 in line")
    for number in range(1, 100):
        t.person(f"waiter{number + 1}", HOLD, LEASE="60s")
    t.sees("ZooKeeper", lambda: waiters(t) == 100, "has a hundred in line")
    before = zookeeper.asked()
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.hears(first, "has the lock")
    t.ends(anna)
    after = zookeeper.asked()
    woken = sum(before.get(session) not in (None, after[session]) for session in after)
    if woken > 5:
        raise Trouble(f"{woken} sessions have asked for something")
    t.note("ZooKeeper", f"was asked by {woken or 'none'} of those who waited")
    t.ended(1, "Each of them watches the one before it: the release wakes the next, and nobody else.")


def waiters(telling):
    """How many wait for the lock, which must be held."""
    code, said = telling.asks("status", "stock", "--json")
    if code != 0:
        raise Trouble(f"the lock is not held: {said}")
    return json.loads(said)["waiters"]


@story
def look_then_put(tale):
    """A key that is not there, and is put

    A store with consensus answers every question right. Between the answer and what is made of it there is time.
    """
    etcd = Etcd(tale, 1)
    t = etcd.told(tale, "etcdctl get, then etcdctl put")
    recipe = """
        [ -z "$(etcdctl get lock)" ] || { say "is refused"; exit; }
        say "sees that nobody has it"
        work
        etcdctl put lock "$ME"
        say "has the lock"
        work
        say "gives the lock back"
        etcdctl del lock
        """
    people = []
    for name in ("Anna", "Ben"):
        people.append(t.person(name, recipe))
        t.hears(people[-1], "sees that nobody has it")
    for words in ("has the lock", "gives the lock back"):
        for one in people:
            t.lets_work_end(one)
            t.hears(one, words)
    for one in people:
        t.ends(one)
    t.ended(2, "Two at once, in a store that has lost nothing.")

    t = etcd.told(tale, "holdfast run")
    people = [t.person(name, TRY, LEASE="60s") for name in ("Anna", "Ben")]
    t.gathers({"has the lock": 1, "is refused: exit code 75, somebody else has it": 1})
    for one in people:
        t.lets_work_end(one)
    t.gathers({"gives the lock back": 1})
    for one in people:
        t.ends(one)
    t.ended(1, "They come at the same time, and one of them is refused: look and put are one transaction.")


@story
def paused_client_of_etcd(tale):
    """Consensus does not help who is stopped

    `etcdctl lock` takes the lock with a lease. Anna is stopped for longer than that, and then writes, to the very store
    that has given the lock to Ben.
    """
    etcd = Etcd(tale, 1)
    t = etcd.told(tale, "etcdctl lock, and etcdctl put")
    recipe = """
        etcdctl lock --ttl 2 -- stock sh -c '
            count=$(etcdctl get --print-value-only count)
            say "has the lock, and reads $count"
            work
            etcdctl put count $((count - SOLD))
            say "writes $((count - SOLD))"'
        """
    put(t, "count", "42")
    anna = t.person("Anna", recipe, SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.stops(anna)
    ben = t.person("Ben", recipe, SOLD="2")
    t.hears(ben, "has the lock, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, "writes 41")
    t.finds("etcd", value(t, "count"), "41", "has 41: what Ben has sold is forgotten")
    t.ended(2, "42 - 1 - 2 is 41.")

    t = etcd.told(tale, "holdfast run, and a transaction that looks whether the lock's key is still there")
    # --on-lost ignore: nothing may depend on the command being ended in time.
    recipe = """
        holdfast run -t 2s --on-lost ignore stock -- sh -c '
            count=$(etcdctl get --print-value-only count)
            key=$(etcdctl get --prefix --keys-only --sort-by CREATE --limit 1 holdfast/stock/)
            say "has the lock, and reads $count"
            work
            printf "%s\\n" "create(\\"${key%%[[:space:]]*}\\") > \\"0\\"" "" "put count $((count - SOLD))" "" "" |
                etcdctl txn >answer-$ME
            if grep -q SUCCESS answer-$ME
            then say "writes $((count - SOLD))"
            else say "is refused: $(grep FAILURE answer-$ME)"
            fi'
        tell $?
        """
    put(t, "count", "42")
    anna = t.person("Anna", recipe, SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.stops(anna)
    ben = t.person("Ben", recipe, SOLD="2")
    t.hears(ben, "has the lock, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, "is refused: FAILURE")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.finds("etcd", value(t, "count"), "40", "has 40, as Ben has left it")
    t.ended(2, "Anna's write is refused, and she is told.")


def etcdctl(telling, *words):
    done = subprocess.run(["etcdctl", *words], env=telling.env, capture_output=True, text=True, check=False,
                          timeout=LIMIT_S)
    if done.returncode != 0:
        raise Trouble(f"etcdctl {words}: {done.stderr}")
    return done.stdout.strip()


def put(telling, key, text):
    etcdctl(telling, "put", key, text)


def value(telling, key):
    return etcdctl(telling, "get", "--print-value-only", key)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
