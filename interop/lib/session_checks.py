# SPDX-License-Identifier: MIT
"""session_checks.py: what Holdfast and another client must do for each other on locks that live for as long as their
holder's session. Each check takes the peers both ways round, uses locks of its own, and raises Trouble if something is
not as it must be."""

import random
import threading
import time

from checks import LINE_UP_LIMIT_S, LONG_MS, SLACK_S, WAIT_LIMIT_S, WAIT_MS, exclusion
from stage import Trouble, wait_until

SESSION_MS = 4000
SESSION_S = SESSION_MS / 1000
ADD_S = 0.0005  # between reading and writing: wide enough a gap for another one to slip in
CLIENTS = 4
SETTLE_S = 0.3
SETTLE_MOST = 20
# Name, and how it is stored.
NAMES = [("a", "a"), ("a/b", "a%2Fb"), ("a%2Fb", "a%252Fb"), ("锁", "锁")]


def side_by_side(players):
    """Both ways round at once: a peer that waits has no push for anything else, so there are two of each kind."""
    spare_foreign, spare_holdfast = players.spare
    return (players.foreign, players.holdfast), (spare_holdfast, spare_foreign)


def line_up(players, waiter, lock, place):
    """Has the waiter ask for the lock, and waits until it is in the line, or has at least asked."""
    store = players.servers
    before = store.asked(lock)
    waiter.send("acquire", lock, LONG_MS, WAIT_MS)
    if players.pairing.how.queues:
        wait_until(lambda: store.in_line(lock) >= place, LINE_UP_LIMIT_S, f"{waiter.name} is in line")
    else:
        wait_until(lambda: store.asked(lock) > before, LINE_UP_LIMIT_S, f"{waiter.name} asks for the lock")


def watch_traffic(players, locks):
    """For the length of a session, nobody may ask for more than it takes to keep sessions alive."""
    before = players.servers.asked(*locks)
    for _ in range(SETTLE_MOST):  # those who came last may still have something to ask; a busy machine takes its time
        time.sleep(SETTLE_S)
        earlier, before = before, players.servers.asked(*locks)
        if before == earlier:
            break
    begun = time.monotonic()
    time.sleep(SESSION_S)
    asked = players.servers.asked(*locks) - before
    seconds = time.monotonic() - begun  # more than it was to be, if the machine is busy
    # One in each third of a session, and one for good measure.
    if asked > CLIENTS * (int(3 * seconds / SESSION_S) + 1):
        raise Trouble(f"somebody polls: {asked:g} requests in {seconds:.1f} s")


def hand_over(players, name):
    """A lock is kept for longer than a session would last; a waiter that does not poll has it after the release."""
    rounds = [(holder, waiter, f"{name}.{index}") for index, (holder, waiter) in enumerate(side_by_side(players))]
    for holder, _, lock in rounds:
        holder.ask("held", "keep", lock, SESSION_MS, WAIT_MS)
    for _, waiter, lock in rounds:
        line_up(players, waiter, lock, 2)
    watch_traffic(players, [lock for _, _, lock in rounds])
    for holder, waiter, lock in rounds:
        if waiter.has_answered():
            waiter.expect("nothing yet", 0, "while the lock was held")
        holder.ask("released", "release", lock)
        waiter.expect("held", SLACK_S, "after the release")
        waiter.ask("released", "release", lock)


def order(players, name):
    """Who came first is served first, whatever it is."""
    spare_foreign, spare_holdfast = players.spare
    lines = [(players.foreign, players.holdfast, spare_foreign, spare_holdfast),
             (players.holdfast, players.foreign, spare_holdfast, spare_foreign)]
    for index, line in enumerate(lines):
        lock = f"{name}.{index}"
        line[0].ask("held", "acquire", lock, LONG_MS, WAIT_MS)
        for place, waiter in enumerate(line[1:]):
            line_up(players, waiter, lock, place + 2)
        for place, (holder, following) in enumerate(zip(line, line[1:])):
            holder.ask("released", "release", lock)
            following.expect("held", SLACK_S, f"as number {place + 2} in the line")
            for later in line[place + 2:]:
                if later.has_answered():
                    later.expect("nothing yet", 0, "before its turn")
        line[-1].ask("released", "release", lock)


def tokens(players, name):
    """Every grant has a greater number than the one before it, whoever gets it."""
    last = 0
    for holder in (players.foreign, players.holdfast, *players.spare, players.foreign, players.holdfast):
        holder.ask("held", "acquire", name, LONG_MS, WAIT_MS)
        holder.send("token", name)
        answer = holder.answer(SLACK_S, "with a number")
        if not answer.isdigit() or int(answer) <= last:
            raise Trouble(f"{holder.name} has the number {answer} after {last}")
        last = int(answer)
        holder.ask("released", "release", name)


def names(players, name):
    """A name that is no plain word is found where the manual says, and is no other lock's name or beginning."""
    for mine, stored in NAMES:
        players.foreign.ask("held", "acquire", name + stored, LONG_MS, WAIT_MS)
        for other, _ in NAMES:
            players.holdfast.ask("busy" if other == mine else "held", "try", name + other, LONG_MS)
            if other != mine:
                players.holdfast.ask("released", "release", name + other)
        players.foreign.ask("released", "release", name + stored)


def counter(players, name):
    """Both add to one number at the same time, reading and writing in two steps: nothing gets lost."""
    total = [0]
    troubles = []

    def add(peer):
        try:
            for _ in range(players.pairing.rounds):
                peer.ask("held", "acquire", name, LONG_MS, WAIT_MS, limit_s=WAIT_LIMIT_S)
                number = total[0]
                time.sleep(ADD_S)
                total[0] = number + 1
                peer.ask("released", "release", name)
                time.sleep(random.uniform(0, 0.004))  # so that one without a place in a line gets its turn
        except Trouble as trouble:
            troubles.append(trouble)

    threads = [threading.Thread(target=add, args=(peer,)) for peer in (players.foreign, players.holdfast)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if troubles:
        raise troubles[0]
    if total[0] != 2 * players.pairing.rounds:
        raise Trouble(f"{2 * players.pairing.rounds} additions under the lock came to {total[0]}")


def death(players, name):
    """The lock of a client that was killed is free when its session is over, and not before."""
    waits = []
    for index, (victim, waiter) in enumerate(zip(players.spare, (players.holdfast, players.foreign))):
        lock = f"{name}.{index}"
        victim.ask("held", "keep", lock, SESSION_MS, WAIT_MS)
        line_up(players, waiter, lock, 2)
        victim.kill()
        if victim.name == "consul-lock":
            players.servers.end_session_of(lock)  # else up to 30 s; the lock-delay is enough to wait for
        waits.append((waiter, lock, time.monotonic()))
    for waiter, lock, killed in waits:
        moment = waiter.expect("held", WAIT_LIMIT_S, "after the holder's death")
        # The last heartbeat may be as old as a third of the session; and a little, if the machine is busy.
        if moment < killed + SESSION_S / 3:
            raise Trouble(f"{waiter.name} got it {moment - killed:.3f} s after the holder was killed")
        if moment > killed + players.pairing.how.end_s + SLACK_S:
            raise Trouble(f"{waiter.name} got it only {moment - killed:.1f} s after the holder was killed")
        waiter.ask("released", "release", lock)
    players.leave()  # the dead are not played with


def pause(players, name):
    """A holder that was stopped for longer than its session has lost the lock: what it does then changes nothing."""
    spare_foreign, spare_holdfast = players.spare
    rounds = [(players.foreign, spare_holdfast, f"{name}.0"), (players.holdfast, spare_foreign, f"{name}.1")]
    for holder, taker, lock in rounds:
        holder.ask("held", "keep", lock, SESSION_MS, WAIT_MS)
        line_up(players, taker, lock, 2)
        holder.stop()
    for _, taker, _ in rounds:
        taker.expect("held", WAIT_LIMIT_S, "after the stopped holder's session")
    for holder, _, _ in rounds:
        holder.resume()
    players.holdfast.ask("refused", "release", rounds[1][2])
    # Some say that all is well, some raise errors. It is for the next lines that they are asked.
    players.foreign.send("release", rounds[0][2])
    players.foreign.answer(WAIT_LIMIT_S, "to a release that comes late")
    for _, taker, lock in rounds:
        players.holdfast.ask("busy", "try", lock, SESSION_MS)
        taker.ask("released", "release", lock)
    players.leave()  # for some of them their session was all they had


# In the order in which they run: column of the table, check, and which pairings it is for.
SESSION_CHECKS = [
    ("exclusion", exclusion, lambda pairing: True),
    ("hand-over", hand_over, lambda pairing: True),
    ("order", order, lambda pairing: pairing.how.queues),
    ("tokens", tokens, lambda pairing: pairing.numbered),
    ("names", names, lambda pairing: pairing.other == "holdfast"),
    ("counter", counter, lambda pairing: True),
    ("kill -9", death, lambda pairing: True),
    ("pause", pause, lambda pairing: pairing.other == "holdfast" and not pairing.is_command),
]
