#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""zk_lock.py: the lock that everybody writes first on ZooKeeper, for a story.

    zk_lock.py PORT PATH COUNT

So many sessions want one node: whoever can create it has the lock, and all others watch it until it is gone. What they
say goes where `say` puts it. Whoever has the lock does `work`, and then deletes the node.
"""

import socket
import struct
import subprocess
import sys
import threading

CREATE, DELETE, EXISTS = 1, 2, 3
EPHEMERAL = 1
NO_NODE = -101
SESSION_MS = 60000


def text(value):
    return struct.pack(">i", len(value)) + value.encode()


class Session:
    """As much of the protocol as that takes. A story is over before a session would need a heartbeat."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")
        self.number = 0
        self.send(struct.pack(">iqiqi16x", 0, 0, SESSION_MS, 0, 16))
        self.receive()

    def send(self, body):
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive(self):
        size, = struct.unpack(">i", self.file.read(4))
        return self.file.read(size)

    def ask(self, kind, body):
        """The number of its error, 0 for none."""
        self.number += 1
        self.send(struct.pack(">ii", self.number, kind) + body)
        number = 0
        while number != self.number:  # a node that was gone when it was looked at is watched, too: it has come back
            number, _, error = struct.unpack_from(">iqi", self.receive())
        return error

    def create(self, path):
        acl = struct.pack(">ii", 1, 31) + text("world") + text("anyone")
        return self.ask(CREATE, text(path) + text("") + acl + struct.pack(">i", EPHEMERAL)) == 0

    def watch(self, path):
        """False if it is gone already."""
        return self.ask(EXISTS, text(path) + b"\1") != NO_NODE

    def delete(self, path):
        self.ask(DELETE, text(path) + struct.pack(">i", -1))


def say(words):
    subprocess.run(["say", words], check=True)


def lock(port, path):
    session = Session(port)
    words = "is refused, and watches"
    while not session.create(path):
        watches = session.watch(path)
        say(words)
        if watches:
            session.receive()
        words = "is refused again"
    say("has the lock")
    subprocess.run(["work"], check=True)
    say("gives the lock back")
    session.delete(path)


def main(port, path, count):
    crowd = [threading.Thread(target=lock, args=[int(port), path]) for _ in range(int(count))]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
