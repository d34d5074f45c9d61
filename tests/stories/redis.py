#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""redis.py: how locks on a Redis server are lost.

    redis.py HOLDFAST OUT [NAME...]
"""

import json
import os
import sys

sys.dont_write_bytecode = True

from places import REDIS_CLI, Pair, Redis, Relay, told  # noqa: E402
from tale import HOLD, SET_NX, STOPPABLE, TRY, NotRun, Trouble, main, story  # noqa: E402

def lease_is_over(telling, server, whose, key="lock"):
    telling.sees("Redis", lambda: server.ask("EXISTS", key) == 0, f"has ended the lease of {whose}")


def lock_is_free(telling, whose):
    telling.sees("Redis", lambda: telling.is_free("stock"), f"has ended the lease of {whose}")


@story
def set_then_expire(tale):
    """A lock in two commands

    SETNX takes the lock, EXPIRE gives it an end. Whoever dies between the two has locked for ever.
    """
    server = Redis(tale)
    t = told(tale, "SETNX, then EXPIRE", server.socket)
    recipe = """
        [ "$(redis-cli SETNX lock "$ME")" = 1 ] || { say "is refused"; exit; }
        say "has the lock, which has no end yet"
        work
        redis-cli EXPIRE lock 10
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock, which has no end yet")
    t.kills(anna)
    t.finds("Redis", server.ask("TTL", "lock"), -1, "keeps the lock of the dead without an end: TTL lock is -1")
    ben = t.person("Ben", recipe)
    t.hears(ben, "is refused")
    t.ends(ben)
    t.ended(1, "Nobody will ever have this lock again.")

    t = told(tale, "holdfast run", server.socket)
    anna = t.person("Anna", HOLD, LEASE="1s")
    t.hears(anna, "has the lock")
    t.kills(anna)
    ben = t.person("Ben", HOLD, LEASE="1s")
    t.hears(ben, "has the lock")
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "The lock and its end are granted in one step: the dead have it until the lease is over, a second here.")


@story
def late_owner_deletes(tale):
    """A late owner deletes the lock of another

    Anna's lease is over before she is done, and Ben has the lock. When she is done she deletes the key, as her recipe
    says: it is Ben's.
    """
    server = Redis(tale)
    t = told(tale, "SET NX PX, then DEL", server.socket)
    anna = t.person("Anna", SET_NX, LEASE="300")
    t.hears(anna, "has the lock")
    lease_is_over(t, server, "Anna")
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    carl = t.person("Carl", SET_NX, LEASE="60000")
    t.hears(carl, "has the lock")
    for one in (ben, carl):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Ben and Carl have the lock at once, and neither of them did anything wrong.")

    t = told(tale, "holdfast run, without renewal so that Anna can be late", server.socket)
    recipe = TRY.replace("-n -t", "-n --no-renew --on-lost ignore -t").replace("gives the lock back", "is done")
    anna = t.person("Anna", recipe, LEASE="300ms")
    t.hears(anna, "has the lock")
    lock_is_free(t, "Anna")
    ben = t.person("Ben", TRY, LEASE="60s")
    t.hears(ben, "has the lock")
    t.lets_work_end(anna)
    t.hears(anna, "is done")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    carl = t.person("Carl", TRY, LEASE="60s")
    t.hears(carl, "is refused: exit code 75, somebody else has it")
    t.ends(carl)
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(2, "Anna goes on when her lease is over, as she was told to (--on-lost ignore). Her release frees nothing, "
            "she is told that she was late, and Carl is refused.")


@story
def check_then_delete(tale):
    """To look first whose lock it is does not help

    Anna deletes the key only if it is still hers. It is, when she looks. Then something takes its time, a swapped page
    or a slow network, and the command that deletes arrives when it is Ben's.
    """
    server = Redis(tale)
    t = told(tale, "SET NX PX, GET, then DEL", server.socket)
    recipe = SET_NX.replace('    redis-cli DEL lock\n', """
    if [ "$(redis-cli GET lock)" = "$ME" ]; then
        say "sees that it is still hers"
        work
        redis-cli DEL lock
        say "has deleted it"
    fi
    """.lstrip("\n"))
    anna = t.person("Anna", recipe, LEASE="3000")
    t.hears(anna, "has the lock")
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.hears(anna, "sees that it is still hers")
    lease_is_over(t, server, "Anna")
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    t.lets_work_end(anna)
    t.hears(anna, "has deleted it")
    t.ends(anna)
    carl = t.person("Carl", SET_NX, LEASE="60000")
    t.hears(carl, "has the lock")
    for one in (ben, carl):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Anna has deleted Ben's lock, and Carl has it beside him.")

    network = Relay(tale, server.socket)
    t = told(tale, "holdfast run, and a network that holds back the release itself", server.socket)
    anna = t.person("Anna", TRY, LEASE="1s", HOLDFAST_URL=f"redis+unix://{network.path}")
    t.hears(anna, "has the lock")
    network.hold()
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.sees("the network", lambda: network.waiting > 0, "holds back her release")
    lock_is_free(t, "Anna")
    ben = t.person("Ben", TRY, LEASE="60s")
    t.hears(ben, "has the lock")
    before = calls(server, "eval")
    network.let_go()
    t.sees("the network", lambda: calls(server, "eval") > before, "delivers her release, which frees nothing")
    finish_late(t, anna)
    carl = t.person("Carl", TRY, LEASE="60s")
    t.hears(carl, "is refused: exit code 75, somebody else has it")
    t.ends(carl)
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "Look and release are one step in the server, and a late one releases what Anna had, and nothing else.")


def calls(server, command):
    """How often the server was asked for a command, or for one whose name begins so."""
    lines = [line for line in server.ask("INFO", "commandstats").splitlines() if line.startswith("cmdstat_" + command)]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


def status(telling):
    """What `holdfast status --json` says of the lock, which must be held."""
    code, said = telling.asks("status", "stock", "--json")
    if code != 0:
        raise Trouble(f"the lock is not held: {said}")
    return json.loads(said)


def finish_late(telling, person):
    telling.hears(person, "is told: exit code 76, the lock was lost")
    telling.ends(person)


@story
def lease_too_short(tale):
    """The work takes longer than the lease

    Half a second was plenty, until one day it was not. Nobody tells Anna that her lock has ended.
    """
    server = Redis(tale)
    t = told(tale, "SET NX PX 500", server.socket)
    anna = t.person("Anna", SET_NX, LEASE="500")
    t.hears(anna, "has the lock")
    lease_is_over(t, server, "Anna")
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once.")

    t = told(tale, "holdfast run -t 3s, which renews", server.socket)
    anna = t.person("Anna", HOLD, LEASE="3s")
    t.hears(anna, "has the lock")
    t.sees("Redis", lambda: status(t)["held_ms"] > 7000, "still keeps her lock of 3 s after 7 s")
    ben = t.person("Ben", TRY, LEASE="3s")
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.ended(1, "The lease is for the dead; the living renew it every third of its time.")


@story
def renewal_dies(tale):
    """The renewal dies, and the work goes on

    A second process renews the lock. It dies, and the work does not know.
    """
    server = Redis(tale)
    t = told(tale, "a background process that renews", server.socket)
    recipe = """
        redis-cli SET lock "$ME" NX PX 1000
        while sleep 0.2; do redis-cli PEXPIRE lock 1000; done &
        echo $! >renewal
        say "has the lock, and a process that renews it"
        work
        say "gives the lock back"
        redis-cli DEL lock
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock, and a process that renews it")
    with open(os.path.join(t.folder, "renewal"), encoding="ascii") as file:
        os.kill(int(file.read()), 9)
    t.note("Anna's renewal", "dies: kill -KILL")
    lease_is_over(t, server, "Anna")
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once, and Anna never knows.")

    t = told(tale, "holdfast run, which is killed", server.socket)
    recipe = """
        holdfast run -t 2s stock -- sh -c '
            echo $PPID >renewal
            say "has the lock"
            work
            say "writes what it should not"'
        say "has ended with its renewal"
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock")
    ben = t.person("Ben", HOLD, LEASE="60s")
    with open(os.path.join(t.folder, "renewal"), encoding="ascii") as file:
        os.kill(int(file.read()), 9)
    t.hears(anna, "has ended with its renewal")
    t.ends(anna)
    t.hears(ben, "has the lock")
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "Who renews and who works die together: the kernel ends Anna's work with holdfast.")

    network = Relay(tale, server.socket)
    t = told(tale, "holdfast run, whose way to the server is cut", server.socket)
    recipe = """
        holdfast run -t 3s stock -- sh -c '
            trap "say is told to stop: SIGTERM; exit" TERM
            say "has the lock"
            work
            say "writes what it should not"'
        tell $?
        """
    anna = t.person("Anna", recipe, HOLDFAST_URL=f"redis+unix://{network.path}")
    t.hears(anna, "has the lock")
    network.hold()
    t.note("the network", "is cut between Anna and the server")
    ben = t.person("Ben", HOLD, LEASE="60s")
    t.hears(anna, "is told to stop: SIGTERM")
    t.hears(ben, "has the lock")
    network.let_go()
    t.note("the network", "is mended")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "Anna's work is ended before the server can give the lock to Ben.")


def is_told_and_overtaken(t, anna, first):
    """The server has forgotten that Anna has the lock. Ben gets it with a greater token, and she is told."""
    ben = t.person("Ben", STOPPABLE, LEASE="9s")
    second, = t.hears(ben, "has the lock, token #")
    if second <= first:
        raise Trouble(f"token {second} after {first}")
    t.hears(anna, "is told to stop: SIGTERM")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)


@story
def master_dies_before_replicating(tale):
    """The master dies before the replica has heard of the lock

    Redis answers before it replicates. A failover in between forgets what was granted.
    """
    pair = Pair(tale)
    t = told(tale, "SET NX PX, on a master with a replica", pair.name.path)
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
    t.ended(2, "Two at once, each with a lock of a minute.")

    pair = Pair(tale)
    t = told(tale, "holdfast run, with the same URL as for one server", pair.name.path)
    pair.between.hold()
    t.note("the network", "is slow between master and replica")
    anna = t.person("Anna", STOPPABLE, LEASE="9s")
    first, = t.hears(anna, "has the lock, token #")
    pair.fail_over(t)
    is_told_and_overtaken(t, anna, first)
    t.ended(2, "What the server forgot Holdfast cannot keep. Anna is told at her next renewal, after a third of the "
            "lease, and Ben's token is the greater one.")

    pair = Pair(tale)
    t = told(tale, "holdfast run, with ?replicas=1", pair.name.path)
    t.env["HOLDFAST_URL"] += "?replicas=1&replica_timeout=500"
    pair.between.hold()
    t.note("the network", "is slow between master and replica")
    anna = t.person("Anna", TRY, LEASE="60s")
    t.hears(anna, "is refused: exit code 69")
    t.complains(anna, "")
    t.ends(anna)
    pair.between.let_go()
    t.note("the network", "is as it should be")
    again = t.person("Carl", TRY.replace("run -n", "run -w 30s"), LEASE="60s")
    t.hears(again, "has the lock")
    t.sees("the replica", lambda: pair.has("hf:{stock}"), "has it, too")
    pair.fail_over(t)
    ben = t.person("Ben", TRY, LEASE="60s", HOLDFAST_URL=f"redis+unix://{pair.name.path}")
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    t.lets_work_end(again)
    t.hears(again, "gives the lock back")
    t.ends(again)
    t.ended(1, "What no replica has was not granted; what was granted outlives the master.")


@story
def restart_without_fsync(tale):
    """The server forgets when it is started again

    As Redis is installed, it writes to its disk now and then. What was granted since is gone after a crash.
    """
    program = os.environ.get("TEST_VALKEY") or "redis-server"
    server = Redis(tale, program=program)
    if not server.ask("COMMAND", "INFO", "WAITAOF")[0]:
        raise NotRun("fsync=yes needs Redis 7.2 or newer")
    t = told(tale, "SET NX PX, on a server without appendonly", server.socket)
    anna = t.person("Anna", SET_NX, LEASE="60000")
    t.hears(anna, "has the lock")
    restart(t, server)
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once.")

    t = told(tale, "holdfast, on the same server", server.socket)
    code, said = t.asks("doctor", "--read-only")
    if code != 1 or "risk    persistence: " not in said:
        raise Trouble(f"holdfast doctor: {code}, {said}")
    words = said.partition("risk    persistence: ")[2].splitlines()[0]
    t.note("holdfast doctor", f"says: risk, persistence: {words}")
    t.env["HOLDFAST_URL"] += "?fsync=yes"
    anna = t.person("Anna", TRY, LEASE="60s")
    t.hears(anna, "is refused: exit code 64")
    t.complains(anna, "fsync=yes needs appendonly yes on the server")
    t.ends(anna)
    t.ended(0, "The doctor says it before it happens; with ?fsync=yes no lock is granted that a crash would forget.")

    t = told(tale, "holdfast run with ?fsync=yes, on the server with appendonly", server.socket)
    t.env["HOLDFAST_URL"] += "?fsync=yes"
    server.arguments += ["--appendonly", "yes"]
    restart(t, server)
    anna = t.person("Anna", TRY, LEASE="60s")
    t.hears(anna, "has the lock")
    restart(t, server)
    ben = t.person("Ben", TRY, LEASE="60s")
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.ended(1, "What was granted was on the disk before.")


def restart(telling, server):
    server.kill()
    server.start()
    telling.note("the server", "is killed, and started again")


def flood(server, gone):
    """Writes what fills the memory until it is so."""
    count = 0
    while not gone():
        for _ in range(50):
            server.ask("SET", f"page:{count}", "x" * 4000)
            count += 1
        if count > 200000:
            raise Trouble("the server throws nothing away")
    server.ask("CONFIG", "SET", "maxmemory", "0")  # once is enough: the next write would throw away something else


@story
def eviction(tale):
    """The server needs room, and throws the lock away

    A server that is also a cache is full all the time, and a lock is a key like any other.
    """
    server = Redis(tale, "--maxmemory-policy", "allkeys-random")
    server.ask("CONFIG", "SET", "maxmemory", "4mb")
    t = told(tale, "SET NX PX, with maxmemory-policy allkeys-random", server.socket)
    anna = t.person("Anna", SET_NX, LEASE="60000")
    t.hears(anna, "has the lock")
    flood(server, lambda: server.ask("EXISTS", "lock") == 0)
    t.note("Redis", "is full of pages, and has thrown the lock away")
    ben = t.person("Ben", SET_NX, LEASE="60000")
    t.hears(ben, "has the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once.")

    server.ask("FLUSHALL")
    server.ask("CONFIG", "SET", "maxmemory", "4mb")
    t = told(tale, "holdfast, on the same server", server.socket)
    code, said = t.asks("doctor", "--read-only")
    if code != 1 or " eviction: " not in said:
        raise Trouble(f"holdfast doctor: {code}, {said}")
    words = said.partition(" eviction: ")[2].splitlines()[0]
    t.note("holdfast doctor", f"says: risk, eviction: {words}")
    anna = t.person("Anna", STOPPABLE, LEASE="9s")
    first, = t.hears(anna, "has the lock, token #")
    flood(server, lambda: server.ask("EXISTS", "hf:{stock}") == 0)
    t.note("Redis", "is full of pages, and has thrown the lock away")
    is_told_and_overtaken(t, anna, first)
    t.ended(2, "The doctor says it before it happens. Anna is told at her next renewal, and Ben's token is greater.")


NAIVE_WRITER = """
    [ "$(redis-cli SET lock "$ME" NX PX "$LEASE")" = OK ] || { say "is refused"; exit; }
    say "has the lock, and reads $(redis-cli GET count)"
    count=$(($(redis-cli GET count) - SOLD))
    [ "$(redis-cli GET lock)" = "$ME" ] && say "sees that it is still theirs"
    work
    redis-cli SET count $count
    say "writes $count"
    """
# --on-lost ignore: nothing may depend on the command being ended in time.
FENCED_WRITER = """
    holdfast run -t "$LEASE" --no-renew --on-lost ignore stock -- sh -c '
        say "has the lock, token $HOLDFAST_TOKEN, and reads $(redis-cli GET "count:{stock}")"
        count=$(($(redis-cli GET "count:{stock}") - SOLD))
        work
        redis-cli --eval holdfast-guard.lua "hf:{stock}:g" "count:{stock}" , \\
            "$HOLDFAST_TOKEN" SET "count:{stock}" $count >answer-$ME 2>&1
        if grep -q OK answer-$ME
        then say "writes $count"
        else say "is refused: $(grep -o "FENCED token [0-9]* is too old" answer-$ME)"
        fi'
    tell $?
    """


@story
def paused_past_the_lease(tale):
    """Anna is stopped for longer than her lock lives

    She has looked: the lock is hers. Before she writes, her machine swaps, sleeps, or is moved. No lock can prevent
    what follows, whoever makes it; the place that is written to can.
    """
    server = Redis(tale)
    server.ask("SET", "count", "42")
    t = told(tale, "SET NX PX, a look, and a write", server.socket)
    anna = t.person("Anna", NAIVE_WRITER, LEASE="2500", SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.hears(anna, "sees that it is still theirs")
    t.stops(anna)
    lease_is_over(t, server, "Anna")
    ben = t.person("Ben", NAIVE_WRITER, LEASE="60000", SOLD="2")
    t.hears(ben, "has the lock, and reads 42")
    t.hears(ben, "sees that it is still theirs")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, "writes 41")
    t.ends(anna)
    t.finds("Redis", server.ask("GET", "count"), "41", "has 41: what Ben has sold is forgotten")
    t.ended(2, "42 - 1 - 2 is 41.")

    server.ask("SET", "count:{stock}", "42")
    t = told(tale, "holdfast run, and a write that shows its token", server.socket)
    anna = t.person("Anna", FENCED_WRITER, LEASE="1s", SOLD="1")
    first, = t.hears(anna, "has the lock, token #, and reads 42")
    t.stops(anna)
    lock_is_free(t, "Anna")
    ben = t.person("Ben", FENCED_WRITER, LEASE="60s", SOLD="2")
    t.hears(ben, "has the lock, token #, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, f"is refused: FENCED token {first} is too old")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.finds("Redis", server.ask("GET", "count:{stock}"), "40", "has 40, as Ben has left it")
    t.ended(2, "Anna's write is refused, and she is told.")


@story
def delayed_packet(tale):
    """A write is under way for longer than the lock lives

    Anna is not even stopped: she has written in time. A router holds her packet back.
    """
    server = Redis(tale)
    server.ask("SET", "count", "42")
    network = Relay(tale, server.socket)
    t = told(tale, "SET NX PX, and a write", server.socket)
    way = f'#!/bin/sh\nexec "{REDIS_CLI}" -s "{network.path}" "$@"\n'
    t.program("redis-cli-far", way)
    recipe = NAIVE_WRITER.replace("redis-cli SET count", "redis-cli-far SET count").replace(
        "    work\n", '    work\n    say "sends $count"\n')
    anna = t.person("Anna", recipe, LEASE="2500", SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.hears(anna, "sees that it is still theirs")
    network.hold()
    t.lets_work_end(anna)
    t.hears(anna, "sends 41")
    t.sees("the network", lambda: network.waiting > 0, "holds it back")
    lease_is_over(t, server, "Anna")
    ben = t.person("Ben", NAIVE_WRITER, LEASE="60000", SOLD="2")
    t.hears(ben, "has the lock, and reads 42")
    t.hears(ben, "sees that it is still theirs")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    network.let_go()
    t.hears(anna, "writes 41")
    t.ends(anna)
    t.finds("Redis", server.ask("GET", "count"), "41", "has 41: what Ben has sold is forgotten")
    t.ended(2, "42 - 1 - 2 is 41.")

    server.ask("SET", "count:{stock}", "42")
    t = told(tale, "holdfast run, and a write that shows its token", server.socket)
    t.program("redis-cli-far", way)
    recipe = FENCED_WRITER.replace("redis-cli --eval", "redis-cli-far --eval").replace(
        "        work\n", '        work\n        say "sends $count with its token"\n')
    anna = t.person("Anna", recipe, LEASE="1s", SOLD="1")
    first, = t.hears(anna, "has the lock, token #, and reads 42")
    network.hold()
    t.lets_work_end(anna)
    t.hears(anna, "sends 41 with its token")
    t.sees("the network", lambda: network.waiting > 0, "holds it back")
    lock_is_free(t, "Anna")
    ben = t.person("Ben", FENCED_WRITER, LEASE="60s", SOLD="2")
    t.hears(ben, "has the lock, token #, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    network.let_go()
    t.note("the network", "delivers it")
    t.hears(anna, f"is refused: FENCED token {first} is too old")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.finds("Redis", server.ask("GET", "count:{stock}"), "40", "has 40, as Ben has left it")
    t.ended(2, "The server that is written to decides, when the write arrives.")


@story
def hundred_waiters(tale):
    """A hundred wait, and one can have it

    Whoever gives the lock back says so to all. All of them come at once, and ninety-nine for nothing.
    """
    server = Redis(tale)
    t = told(tale, "SUBSCRIBE, and SET NX PX whenever a release is published", server.socket)
    recipe = """
        redis-cli SUBSCRIBE released | while read -r word; do
            [ "$word" = lock ] || continue
            if [ "$(redis-cli SET lock "$ME" NX PX 60000)" = OK ]; then
                say "has the lock"
                work
            else
                say "is refused"
            fi
        done
        """
    anna = t.person("Anna", SET_NX.replace("DEL lock", "DEL lock\n    redis-cli PUBLISH released lock"), LEASE="60000")
    t.hears(anna, "has the lock")
    for number in range(100):
        t.person(f"waiter{number + 1}", recipe)
    t.sees("Redis", lambda: server.ask("PUBSUB", "NUMSUB", "released")[1] == 100, "has a hundred subscribers")
    before = calls(server, "set")
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.gathers({"is refused": 99, "has the lock": 1})
    t.finds("Redis", calls(server, "set") - before, 100, "was asked 100 times for one lock")
    t.ended(1, "A herd: with every release all of them ask, and whoever is the quickest gets it.")

    server.ask("FLUSHALL")
    t = told(tale, "holdfast run", server.socket)
    anna = t.person("Anna", HOLD, LEASE="60s")
    t.hears(anna, "has the lock")
    first = t.person("waiter1", HOLD, LEASE="60s")
    t.sees("Redis", lambda: status(t)["waiters"] == 1, "has waiter1 in line")
    for number in range(1, 100):
        t.person(f"waiter{number + 1}", HOLD, LEASE="60s")
    t.sees("Redis", lambda: status(t)["waiters"] == 100, "has a hundred in line")
    before = calls(server, "eval")
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.hears(first, "has the lock")
    t.ends(anna)
    asked = calls(server, "eval") - before
    if asked > 5:
        raise Trouble(f"the server was asked {asked} times")
    t.note("Redis", f"was asked {number_word(asked)} for it")
    t.ended(1, "The release hands the lock to the first in line, and nobody else wakes.")


def number_word(count):
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


@story
def clients_clock(tale):
    """The clock of a client is wrong by an hour

    The end of the lock is written by the clock of whoever takes it, and read by the clock of whoever wants it.
    """
    if not os.environ.get("TEST_WRONG_CLOCK"):
        raise NotRun("there is nothing to set a client's clock with")
    server = Redis(tale)
    ahead = {"LD_PRELOAD": os.environ["TEST_WRONG_CLOCK"], "WRONG_CLOCK_S": "3600"}
    behind = {**ahead, "WRONG_CLOCK_S": "-3600"}
    t = told(tale, "SETNX with a time, GETSET when it is over", server.socket)
    recipe = """
        now=$(date +%s)
        if [ "$(redis-cli SETNX lock $((now + 60)))" = 1 ]; then
            say "has the lock, for a minute"
        elif [ "$(redis-cli GET lock)" -lt "$now" ] &&
            [ "$(redis-cli GETSET lock $((now + 60)))" -lt "$now" ]; then
            say "has the lock, as the one before is over"
        else
            say "is refused"
            exit
        fi
        work
        say "gives the lock back"
        redis-cli DEL lock
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock, for a minute")
    t.note("Ben", "has a clock that is an hour ahead")
    ben = t.person("Ben", recipe, **ahead)
    t.hears(ben, "has the lock, as the one before is over")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once.")

    t = told(tale, "holdfast run", server.socket)
    t.note("Anna", "has a clock that is an hour behind")
    anna = t.person("Anna", HOLD, LEASE="3s", **behind)
    t.hears(anna, "has the lock")
    t.sees("Redis", lambda: status(t)["held_ms"] > 5000, "still keeps her lock of 3 s after 5 s")
    t.note("Ben", "has a clock that is an hour ahead")
    ben = t.person("Ben", TRY, LEASE="3s", **ahead)
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.ended(1, "The server counts the time, and each client only how much of it has passed.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
