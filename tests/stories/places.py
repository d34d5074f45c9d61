# SPDX-License-Identifier: MIT
"""places.py: Redis servers that can be killed, restarted and promoted, and ways to them that can be slow."""

import fcntl
import mmap
import os
import random
import shutil
import socket
import struct
import subprocess
import threading

from tale import LIMIT_S, ROOT, Connection, NotRun, Trouble, start_process, wait_until

REDIS_CLI = shutil.which("redis-cli")
GUARD = os.path.join(ROOT, "scripts", "holdfast-guard.lua")

# Below those that the kernel gives to outgoing connections: while a server is down, nobody gets its port.
PORTS = range(25000, 32000)


class Claims:
    """The ports that tests have at the moment: bytes of a file that are locked, as in tests/lib/server_home.c."""

    file = None
    ours = set()  # a process can lock a byte that it has locked already

    @classmethod
    def take(cls):
        if cls.file is None:
            path = f"/tmp/holdfast-ports-{os.getuid()}"
            cls.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        while True:
            port = random.choice(PORTS)
            if port in cls.ours:
                continue
            try:
                fcntl.lockf(cls.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                with socket.socket() as trial:
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    trial.bind(("127.0.0.1", port))
                cls.ours.add(port)
                return port
            except OSError:
                continue  # another test has it, or somebody else


class SocketConnection(Connection):
    """The story's own connection to a server, by its socket file."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")


class Redis:
    """One server, on a port and a socket file, with nothing on the disk unless its arguments say so."""

    def __init__(self, story, *arguments, program="redis-server", clock=False):
        self.program = shutil.which(program)
        if not self.program:
            raise NotRun(f"there is no {program}")
        self.port = Claims.take()
        self.folder = os.path.join(story.folder, f"redis-{self.port}")
        os.mkdir(self.folder)
        self.socket = os.path.join(self.folder, "s")
        self.arguments = ["--save", "", *arguments]
        self.env = dict(os.environ)
        self.clock = os.path.join(self.folder, "clock") if clock else None
        self.process = self.connection = None
        if clock:
            self.set_clock(0)
            self.env.update(LD_PRELOAD=os.environ["TEST_CLOCK_SHIM"], SERVER_CLOCK=self.clock)
        story.keep(self)
        self.start()
        if not story.server:
            name = "Valkey" if "valkey_version:" in self.ask("INFO", "server") else "Redis"
            story.server = f"{name} {self.info(name.lower() + '_version')}"

    def start(self, *more):
        """With what it has on its disk."""
        with open(os.path.join(self.folder, "log"), "a", encoding="utf-8") as log:
            self.process = start_process(
                [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket,
                 "--dir", self.folder, *self.arguments, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.env)
        wait_until(self.answers, LIMIT_S, "redis-server answers")

    def answers(self):
        if self.process.poll() is not None:
            with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as file:
                raise Trouble("redis-server has ended: " + "".join(file.readlines()[-2:]))
        try:
            self.connection = SocketConnection(self.socket)
            return self.ask("PING") == "PONG"
        except (OSError, Trouble):
            return False  # not yet

    def ask(self, *words):
        return self.connection.ask(*words)

    def info(self, name):
        fields = dict(line.split(":", 1) for line in self.ask("INFO", "all").splitlines() if ":" in line)
        return fields.get(name, "")

    def follow(self, port, host="127.0.0.1"):
        """Becomes a replica of what is behind the port."""
        self.ask("REPLICAOF", host, port)
        wait_until(lambda: self.info("master_link_status") == "up", LIMIT_S, "the replica is in step")

    def promote(self):
        self.ask("REPLICAOF", "NO", "ONE")

    def set_clock(self, ahead_s):
        """Its wall clock, beside the machine's; see tests/lib/clock_shim.c."""
        file = os.open(self.clock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(file, 8)
        with mmap.mmap(file, 8) as seen:
            seen[:] = struct.pack("=q", ahead_s * 1000000000)
        os.close(file)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Relay:
    """A way to a server: what it is told to hold back arrives when it is let go, also if its sender is gone by then."""

    def __init__(self, story, target, host="127.0.0.1"):
        self.target = target  # where connections lead that are made from now on: a port, or a socket file
        self.port = Claims.take()
        self.path = os.path.join(story.folder, f"relay-{self.port}")
        self.gate = threading.Condition()
        self.closed = self.held = False
        self.held_from = None  # the address of those who are held back; None: everybody is
        self.waiting = 0  # bytes
        self.sockets = []
        self.listeners = [socket.socket(), socket.socket(socket.AF_UNIX)]
        self.listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listeners[0].bind((host, self.port))
        self.listeners[1].bind(self.path)
        for listener in self.listeners:
            listener.listen(64)
            threading.Thread(target=self.serve, args=[listener], daemon=True).start()
        story.keep(self)

    def serve(self, listener):
        while not self.closed:
            try:
                client, sender = listener.accept()
            except OSError:
                return  # the story is over
            come_from = sender[0] if sender else None
            server = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
            self.sockets += [client, server]
            try:
                server.connect(self.target if isinstance(self.target, str) else ("127.0.0.1", self.target))
            except OSError:
                client.close()  # nobody is there
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=[source, sink, come_from], daemon=True).start()

    def passes(self, come_from):
        return self.closed or not self.held or self.held_from not in (None, come_from)

    def pump(self, source, sink, come_from):
        try:
            while data := source.recv(65536):
                with self.gate:
                    self.waiting += len(data)
                    self.gate.wait_for(lambda: self.passes(come_from))
                    self.waiting -= len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one end is gone; what comes from it still arrives at the other

    def hold(self, come_from=None):
        with self.gate:
            self.held, self.held_from = True, come_from

    def let_go(self):
        with self.gate:
            self.held = False
            self.gate.notify_all()

    def lead_to(self, target):
        """From now on, to another server: those who were connected have to come again."""
        self.target = target
        self.cut_off()

    def cut_off(self):
        sockets, self.sockets = self.sockets, []
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was not connected any more
            one.close()

    def close(self):
        with self.gate:
            self.closed = True
            self.gate.notify_all()
        for listener in self.listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut_off()


class Pair:
    """A master, a replica behind a network that can be slow, and a name that leads to whichever is in service."""

    def __init__(self, tale):
        self.master, self.replica = Redis(tale), Redis(tale)
        self.between = Relay(tale, self.master.port)
        self.replica.follow(self.between.port)
        self.name = Relay(tale, self.master.socket)

    def fail_over(self, telling):
        self.master.kill()
        telling.note("the master", "is killed: kill -KILL")
        self.between.cut_off()
        self.replica.promote()
        self.name.lead_to(self.replica.socket)
        telling.note("the replica", "is promoted, and the name leads to it")

    def has(self, key):
        return self.replica.ask("EXISTS", key) == 1


def told(tale, title, path):
    """A telling whose people have the script that guards, and a redis-cli and a HOLDFAST_URL that lead to this socket
    file, unless there are several."""
    telling = tale.told(title)
    if path:
        telling.program("redis-cli", f'#!/bin/sh\nexec "{REDIS_CLI}" -s "{path}" "$@"\n')
        telling.env["HOLDFAST_URL"] = f"redis+unix://{path}"
    shutil.copy(GUARD, telling.folder)
    return telling
