#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""redlock.py: how locks on several Redis masters are lost.

    redlock.py HOLDFAST OUT [NAME...]
"""

import os
import sys

sys.dont_write_bytecode = True

from places import Redis, told  # noqa: E402
from tale import TRY, NotRun, main, story  # noqa: E402

# The algorithm as it is described for three masters, in as few lines as it takes.
NAIVE = """
    votes=0
    for master in $MASTERS; do
        answer=$(redis-cli -s "$master" SET lock "$ME" NX PX "$LEASE")
        [ "$answer" != OK ] || votes=$((votes + 1))
    done
    [ $votes -ge 2 ] || { say "is refused: $votes of 3"; exit; }
    count=$(redis-cli -s data GET count)
    say "has the lock, $votes of 3, and reads $count"
    work
    redis-cli -s data SET count $((count - SOLD))
    say "writes $((count - SOLD))"
    """
FENCED = """
    holdfast run -t "$LEASE" stock -- sh -c '
        trap "say is told to stop: SIGTERM; exit" TERM
        count=$(redis-cli -s data GET "count:{stock}")
        say "has the lock, token $HOLDFAST_TOKEN, and reads $count"
        work
        redis-cli -s data --eval holdfast-guard.lua "hf:{stock}:g" "count:{stock}" , \\
            "$HOLDFAST_TOKEN" SET "count:{stock}" $((count - SOLD)) >answer-$ME 2>&1
        if grep -q OK answer-$ME
        then say "writes $((count - SOLD))"
        else say "is refused: $(grep -o "FENCED token [0-9]* is too old" answer-$ME)"
        fi
        work'
    tell $?
    """
# Nothing may depend on the command being ended in time.
FENCED_IGNORING = "\n".join(line for line in FENCED.replace("-t", "--on-lost ignore -t").splitlines()
                            if "trap" not in line).replace("fi\n        work'", "fi'")


class Masters:
    """Three that know nothing of each other, and a fourth server for the data."""

    def __init__(self, tale, *arguments):
        if not os.environ.get("TEST_CLOCK_SHIM"):
            raise NotRun("there is nothing to set a server's clock with")
        self.data = Redis(tale)
        self.all = [Redis(tale, *arguments, clock=True) for _ in range(3)]

    def told(self, tale, title):
        telling = told(tale, title, None)
        telling.env["MASTERS"] = " ".join(master.socket for master in self.all)
        telling.env["HOLDFAST_URL"] = "redlock://" + ",".join(f"127.0.0.1:{master.port}" for master in self.all)
        os.symlink(self.data.socket, os.path.join(telling.folder, "data"))
        for key in ("count", "count:{stock}"):
            self.data.ask("SET", key, "42")
        self.data.ask("DEL", "hf:{stock}:g")
        return telling


def ben_sells(t, ben, words):
    t.hears(ben, words)
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)


def play_naive(t, masters, happens, **lease):
    """Anna has two votes of three, then something happens, and Ben has two as well."""
    masters.all[2].kill()
    t.note("master 3", "is down")
    anna = t.person("Anna", NAIVE, SOLD="1", **lease)
    t.hears(anna, "has the lock, 2 of 3, and reads 42")
    masters.all[2].start()
    t.note("master 3", "is back; it never had anything to forget")
    happens(anna)
    ben = t.person("Ben", NAIVE, SOLD="2", LEASE="60000")
    ben_sells(t, ben, "has the lock, # of 3, and reads 42")
    return anna


def play_fenced(t, masters, recipe, happens, **lease):
    masters.all[2].kill()
    t.note("master 3", "is down")
    anna = t.person("Anna", recipe, SOLD="1", **lease)
    first, = t.hears(anna, "has the lock, token #, and reads 42")
    masters.all[2].start()
    t.note("master 3", "is back; it never had anything to forget")
    happens(anna)
    ben = t.person("Ben", recipe, SOLD="2", LEASE="60s")
    t.lets_work_end(ben)  # the second one
    ben_sells(t, ben, "has the lock, token #, and reads 42")
    return anna, first


def anna_overwrites(t, masters, anna):
    t.lets_work_end(anna)
    t.hears(anna, "writes 41")
    t.ends(anna)
    t.finds("the data", masters.data.ask("GET", "count"), "41", "are 41: what Ben has sold is forgotten")
    t.ended(2, "42 - 1 - 2 is 41.")


def anna_is_refused(t, masters, anna, first, verdict, is_told=True):
    t.lets_work_end(anna)
    t.hears(anna, f"is refused: FENCED token {first} is too old")
    if is_told:
        t.hears(anna, "is told to stop: SIGTERM")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.finds("the data", masters.data.ask("GET", "count:{stock}"), "40", "are 40, as Ben has left them")
    t.ended(2, verdict)


@story
def redlock_clock_jump(tale):
    """The clock of one of three masters jumps

    A majority has to have the lock, and each master ends it by its own clock. One clock that is set is enough, if its
    vote was needed.
    """
    masters = Masters(tale)

    def jump(t):
        def happens(_anna):
            masters.all[1].set_clock(3600)
            t.note("master 2", "has its clock set forward by an hour")
        return happens

    t = masters.told(tale, "three times SET NX PX")
    anna = play_naive(t, masters, jump(t), LEASE="60000")
    anna_overwrites(t, masters, anna)

    masters = Masters(tale)
    t = masters.told(tale, "holdfast run, with redlock:// and a write that shows its token")
    anna, first = play_fenced(t, masters, FENCED, jump(t), LEASE="9s")
    anna_is_refused(t, masters, anna, first,
                    "No majority can know which of its clocks is wrong. The tokens grow all the same: the write is "
                    "refused, and Anna is told at her next renewal.")


@story
def redlock_paused_client(tale):
    """A majority does not help who is stopped

    However many masters there are: whoever has looked and is stopped then writes when nobody has the lock for them.
    """
    def pause(t, is_over):
        def happens(anna):
            t.stops(anna)
            t.sees("a majority", is_over, "has ended Anna's lease")
        return happens

    masters = Masters(tale)
    t = masters.told(tale, "three times SET NX PX")
    anna = play_naive(t, masters, pause(t, lambda: sum(m.ask("EXISTS", "lock") for m in masters.all) == 0),
                      LEASE="1500")
    t.goes_on(anna)
    anna_overwrites(t, masters, anna)

    masters = Masters(tale)
    t = masters.told(tale, "holdfast run, with redlock:// and a write that shows its token")
    anna, first = play_fenced(t, masters, FENCED_IGNORING, pause(t, lambda: t.is_free("stock")),
                              LEASE="1500ms")
    t.goes_on(anna)
    anna_is_refused(t, masters, anna, first, "Anna's write is refused, and she is told.", is_told=False)


@story
def redlock_master_restarted_empty(tale):
    """One of three masters is started again, and has forgotten

    Two of three have the lock. One of these forgets, and with the third there is another majority.
    """
    def forget(t, masters):
        def happens(_anna):
            masters.all[1].kill()
            masters.all[1].start()
            t.note("master 2", "is killed, and started again")
        return happens

    masters = Masters(tale)
    t = masters.told(tale, "three times SET NX PX")
    anna = play_naive(t, masters, forget(t, masters), LEASE="60000")
    anna_overwrites(t, masters, anna)

    masters = Masters(tale)
    t = masters.told(tale, "holdfast run, on masters that keep nothing")
    anna, first = play_fenced(t, masters, FENCED, forget(t, masters), LEASE="9s")
    anna_is_refused(t, masters, anna, first, "What a majority has forgotten nobody can keep. The tokens grow all the "
                    "same: the write is refused, and Anna is told at her next renewal.")

    masters = Masters(tale, "--appendonly", "yes", "--appendfsync", "always")
    t = masters.told(tale, "holdfast run, on masters with appendonly yes and appendfsync always")
    masters.all[2].kill()
    t.note("master 3", "is down")
    anna = t.person("Anna", TRY, LEASE="60s")
    t.hears(anna, "has the lock")
    masters.all[2].start()
    t.note("master 3", "is back; it never had anything to forget")
    forget(t, masters)(anna)
    ben = t.person("Ben", TRY, LEASE="60s")
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    t.lets_work_end(anna)
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.ended(1, "A master that keeps what it has said has nothing to forget.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
