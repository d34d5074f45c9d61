# SPDX-License-Identifier: MIT
"""checks.py: what Holdfast and another client must do for each other on one lock. Each check takes the two peers both
ways round, uses locks of its own, and raises Trouble if something is not as it must be."""

import random
import threading
import time

from stage import Connection, Trouble, wait_until

KEEP_MS = 3000        # of a lock that its client renews, and of Redisson's watchdog
LONG_MS = 30000       # a lease that must not be what ends a wait
SHORT_MS = 1000       # a lease that a check lets expire
WAIT_MS = 20000
SLACK_S = 5           # how much later than its time something may happen on a busy machine; far less than LONG_MS
QUIET_S = 1.5         # silence that shows that nobody polls
LINE_UP_LIMIT_S = 15
WAIT_LIMIT_S = WAIT_MS / 1000 + SLACK_S
ROUNDS = 200          # of the counter, for each side


class Players:
    """The two peers of a check, the servers they meet on, and how to get more peers of either kind."""

    def __init__(self, servers, start, pairing):
        self.servers = servers
        self.start = start  # start(side) starts a peer: "foreign" or "holdfast"
        self.pairing = pairing
        self.foreign = self.holdfast = None
        self.spare = []

    def both_ways(self):
        return (self.foreign, self.holdfast), (self.holdfast, self.foreign)

    def enter(self):
        """Starts a peer of each kind, and a second of each for the check that kills them."""
        self.foreign, self.holdfast = self.start("foreign"), self.start("holdfast")
        self.spare = [self.start("foreign"), self.start("holdfast")]
        for peer in (self.foreign, self.holdfast, *self.spare):
            peer.await_ready()

    def leave(self):
        for peer in (self.foreign, self.holdfast, *self.spare):
            if peer:
                peer.close()
        self.foreign = self.holdfast = None
        self.spare = []


def exclusion(players, name):
    """Whoever holds it, the other is told that it is busy, until it is released."""
    for holder, other in players.both_ways():
        holder.ask("held", "try", name, LONG_MS)
        other.ask("busy", "try", name, LONG_MS)
        holder.ask("released", "release", name)
        other.ask("held", "try", name, LONG_MS)
        holder.ask("busy", "try", name, LONG_MS)
        other.ask("released", "release", name)


def await_silence(players, name, mentions_before):
    """Until the waiter has lined up, and for a while after that sends nothing more about the lock."""
    servers = players.servers
    wait_until(lambda: servers.mentions(name) > mentions_before, LINE_UP_LIMIT_S, "the waiter asks for the lock")
    last, since = servers.mentions(name), time.monotonic()
    end = since + LINE_UP_LIMIT_S
    while time.monotonic() - since < QUIET_S:
        if servers.mentions(name) != last:
            last, since = servers.mentions(name), time.monotonic()
        if time.monotonic() > end:
            raise Trouble(f"the waiter polls: never silent for {QUIET_S} s")
        time.sleep(0.01)


def hand_over(players, name):
    """A waiter gets it soon after the release: by a message, where the dialect has one, and else by polling."""
    for index, (holder, waiter) in enumerate(players.both_ways()):
        lock = f"{name}.{index}"
        holder.ask("held", "try", lock, LONG_MS)
        before = players.servers.mentions(lock)
        waiter.send("acquire", lock, LONG_MS, WAIT_MS)
        if players.pairing.how.wakes:
            await_silence(players, lock, before)
        else:
            # Some attempts, whatever an attempt is made of.
            wait_until(lambda n=lock, b=before: players.servers.mentions(n) >= b + 4, LINE_UP_LIMIT_S,
                       f"{waiter.name} tries again and again")
        if waiter.has_answered():
            waiter.expect("nothing yet", 0, "while the lock was held")
        holder.ask("released", "release", lock)
        waiter.expect("held", SLACK_S, "after the release, long before the lease would have ended")
        waiter.ask("released", "release", lock)


def death(players, name):
    """The lock of a client that was killed is free when its time is over, and not before."""
    waits = []
    for victim, waiter in zip(players.spare, (players.holdfast, players.foreign)):
        lock = f"{name}.{victim.name}"
        asked = time.monotonic()
        victim.ask("held", "keep", lock, KEEP_MS, WAIT_MS)
        victim.kill()
        killed = time.monotonic()
        waiter.send("acquire", lock, LONG_MS, WAIT_MS)
        waits.append((waiter, lock, asked, killed))
    for waiter, lock, asked, killed in waits:
        moment = waiter.expect("held", WAIT_LIMIT_S, "after the holder's death")
        if moment < asked + KEEP_MS / 1000:
            raise Trouble(f"{waiter.name} got it {moment - asked:.3f} s after it was taken for {KEEP_MS} ms")
        if moment > killed + KEEP_MS / 1000 + SLACK_S:
            raise Trouble(f"{waiter.name} got it only {moment - killed:.1f} s after the holder was killed")
        waiter.ask("released", "release", lock)


def foreign_release(players, name):
    """Who has lost a lock, or never had it, cannot release it for the one who has."""
    locks = []
    for index, (loser, taker) in enumerate(players.both_ways()):
        lock = f"{name}.{index}"
        loser.ask("held", "try", lock, SHORT_MS)
        locks.append((loser, taker, lock))
    for _, taker, lock in locks:
        taker.send("acquire", lock, LONG_MS, WAIT_MS)
    for _, taker, _ in locks:
        taker.expect("held", WAIT_LIMIT_S, "after the other's lease")
    for loser, taker, lock in locks:
        stored = players.servers.dump(lock)
        if not any(stored):
            raise Trouble(f"{taker.name} holds {lock}, but no server has that key")
        loser.ask("refused", "release", lock)
        if loser is players.foreign and players.pairing.steals:
            loser.ask("refused", "steal", lock)
        if players.servers.dump(lock) != stored:
            raise Trouble(f"{loser.name} changed what {taker.name} holds")
        loser.ask("busy", "try", lock, SHORT_MS)
        taker.ask("released", "release", lock)


def renewal(players, name):
    """A lock that is kept outlives its first time-to-live twice over, although the other waits for it."""
    locks = [(holder, waiter, f"{name}.{index}") for index, (holder, waiter) in enumerate(players.both_ways())]
    for holder, _, lock in locks:
        holder.ask("held", "keep", lock, KEEP_MS, WAIT_MS)
    for _, waiter, lock in locks:
        waiter.send("acquire", lock, SHORT_MS, 2 * KEEP_MS + KEEP_MS // 4)
    for _, waiter, lock in locks:
        waiter.expect("busy", WAIT_LIMIT_S, "while the lock is renewed")
    for holder, waiter, lock in locks:
        holder.ask("released", "release", lock)
        waiter.ask("held", "try", lock, SHORT_MS)
        waiter.ask("released", "release", lock)


def counter(players, name):
    """Both add to one number at the same time, reading and writing in two steps: nothing gets lost."""
    troubles = []

    def add(peer, connection):
        try:
            for _ in range(ROUNDS):
                peer.ask("held", "acquire", name, LONG_MS, WAIT_MS, limit_s=WAIT_LIMIT_S)
                number = int(connection.ask("GET", key))
                time.sleep(0.0005)  # wide enough a gap for another one to slip in
                connection.ask("SET", key, number + 1)
                peer.ask("released", "release", name)
                time.sleep(random.uniform(0, 0.004))  # so that one that polls gets its turn
        except Trouble as trouble:
            troubles.append(trouble)

    connections = [Connection(players.servers.ports[0]) for _ in range(2)]
    # In a cluster the number lives where its server's own slots are; any key that this server takes will do.
    key = players.servers.key_of_first(connections[0], f"{name}.number")
    connections[0].ask("SET", key, 0)
    threads = [threading.Thread(target=add, args=pair) for pair in
               zip((players.foreign, players.holdfast), connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = int(connections[0].ask("GET", key))
    for connection in connections:
        connection.close()
    if troubles:
        raise troubles[0]
    if total != 2 * ROUNDS:
        raise Trouble(f"{2 * ROUNDS} additions under the lock came to {total}")


def hold_count(players, name):
    """Taken twice by the one, it is busy for the other until it was released twice."""
    for holder, other in players.both_ways():
        holder.ask("held", "try", name, LONG_MS)
        holder.ask("held", "try", name, LONG_MS)
        other.ask("busy", "try", name, LONG_MS)
        holder.ask("released", "release", name)
        other.ask("busy", "try", name, LONG_MS)
        holder.ask("released", "release", name)
        other.ask("held", "try", name, LONG_MS)
        other.ask("released", "release", name)


def minority_down(players, name):
    """Exclusion and hand-over go on when two of five masters are gone. The last check: they stay gone."""
    for index in (1, 3):
        players.servers.kill(index)
    exclusion(players, name)


# In the order in which they run: column of the table, check, and which pairings it is for.
CHECKS = [
    ("exclusion", exclusion, lambda pairing: True),
    ("hand-over", hand_over, lambda pairing: True),
    ("kill -9", death, lambda pairing: True),
    ("foreign release", foreign_release, lambda pairing: True),
    ("renewal", renewal, lambda pairing: True),
    ("counter", counter, lambda pairing: True),
    ("hold count", hold_count, lambda pairing: pairing.how.reenters),
    ("2 of 5 down", minority_down, lambda pairing: pairing.mode == "redlock"),
]
