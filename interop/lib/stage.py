# SPDX-License-Identifier: MIT
"""stage.py: real servers on free ports of this machine, a few words of their protocol, and the peers that play on
them. Everything that is started here is ended here, by its process id."""

import os
import queue
import signal
import socket
import subprocess
import threading
import time

START_LIMIT_S = 60  # a JVM on a busy machine
REPLY_LIMIT_S = 10
CLUSTER_SLOTS = 16384


started = []  # every process of the run, for end_everything()


class Trouble(Exception):
    """A check, or what it stands on, did not hold: in words for the user."""


def wait_until(condition, limit_s, what):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise Trouble(f"not within {limit_s} s: {what}")
        time.sleep(0.01)


def start_process(command, **options):
    # In the driver's own process group: whoever ends that group ends everything.
    process = subprocess.Popen(command, **options)
    started.append(process)
    return process


def end_everything():
    """For a run that is cut short: nothing may stay behind."""
    for process in started:
        if process.poll() is None:
            process.kill()


# ---------------------------------------------------------------------------------------------------------- servers

class Connection:
    """One connection of the driver's own to a server."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=REPLY_LIMIT_S)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        parts = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise Trouble("a server closed the driver's connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Trouble("a server said: " + rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self.file.read(size + 2)[:-2].decode(errors="backslashreplace")
        if kind == b"*":
            return None if int(rest) < 0 else [self.reply() for _ in range(int(rest))]
        return rest.decode(errors="backslashreplace")

    def ask(self, *words):
        self.send(*words)
        return self.reply()

    def close(self):
        self.file.close()
        self.socket.close()


class Watch:
    """Everything that a server is asked, through MONITOR."""

    def __init__(self, port):
        self.lines = []
        self.connection = Connection(port)
        self.connection.ask("MONITOR")
        self.connection.socket.settimeout(None)  # silence is no fault here; close() ends the wait
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            while True:
                self.lines.append(self.connection.reply())
        except (Trouble, OSError, ValueError):
            pass  # the server or the driver has ended it

    def mentions(self, word):
        return sum(1 for line in self.lines if word in line)

    def close(self):
        try:
            self.connection.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server was first
        self.thread.join()
        self.connection.close()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Servers:
    """One server, or several that know nothing of each other, or a cluster of masters."""

    def __init__(self, folder, count, cluster=False, module=None):
        self.processes = []
        self.watches = []
        ports = free_ports(2 * count)
        self.ports, bus_ports = ports[:count], ports[count:]
        try:
            for index, port in enumerate(self.ports):
                extra = ["--loadmodule", module] if module else []
                if cluster:
                    extra = ["--cluster-enabled", "yes", "--cluster-port", str(bus_ports[index]),
                             "--cluster-announce-ip", "127.0.0.1"]
                self.start(os.path.join(folder, str(port)), port, extra)
            for process, port in zip(self.processes, self.ports):
                self.await_answer(process, port, os.path.join(folder, str(port), "log"))
            if cluster:
                self.join(bus_ports)
            self.watches = [Watch(port) for port in self.ports]
        except BaseException:
            self.close()
            raise

    def start(self, folder, port, extra):
        os.makedirs(folder)
        with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
            self.processes.append(start_process(
                ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                 "--dir", folder, *extra], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def await_answer(self, process, port, log):
        def answers():
            if process.poll() is not None:
                with open(log, encoding="utf-8", errors="replace") as file:
                    raise Trouble("redis-server has ended: " + "".join(file.read().splitlines()[-1:]))
            try:
                connection = Connection(port)
                pong = connection.ask("PING")
                connection.close()
                return pong == "PONG"
            except (OSError, Trouble):
                return False  # not yet; or it is about to end, which the next look will tell

        wait_until(answers, REPLY_LIMIT_S, f"redis-server answers on port {port}")

    def join(self, bus_ports):
        """Deals out the slots and makes the servers known to each other."""
        connections = [Connection(port) for port in self.ports]
        share = CLUSTER_SLOTS // len(connections)
        for index, connection in enumerate(connections):
            last = CLUSTER_SLOTS - 1 if index == len(connections) - 1 else (index + 1) * share - 1
            connection.ask("CLUSTER", "ADDSLOTSRANGE", index * share, last)
            connection.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for port, bus_port in zip(self.ports[1:], bus_ports[1:]):
            connections[0].ask("CLUSTER", "MEET", "127.0.0.1", port, bus_port)

        def whole(connection):
            info = connection.ask("CLUSTER", "INFO")
            return "cluster_state:ok" in info and f"cluster_known_nodes:{len(connections)}\r" in info

        for connection in connections:
            wait_until(lambda c=connection: whole(c), 30, "the cluster is whole")
        for connection in connections:
            connection.close()

    def addresses(self):
        return [f"127.0.0.1:{port}" for port in self.ports]

    def mentions(self, word):
        """How often the servers were asked something about `word`."""
        return sum(watch.mentions(word) for watch in self.watches)

    def dump(self, name):
        """What is stored under a name, in all servers, as bytes that can be compared."""
        found = []
        for port in self.ports:
            connection = Connection(port)
            try:
                found.append(connection.ask("DUMP", name))
            except Trouble as moved:
                if "MOVED" not in str(moved):
                    raise
            finally:
                connection.close()
        return found

    def key_of_first(self, connection, prefix):
        """A key that belongs to the first server; every key does, unless this is a cluster."""
        for number in range(1000):
            key = f"{prefix}.{number}"
            try:
                connection.ask("EXISTS", key)
                return key
            except Trouble as moved:
                if "MOVED" not in str(moved):
                    raise
        raise Trouble("the first server owns no slots")

    def kill(self, index):
        self.processes[index].kill()
        self.processes[index].wait()

    def close(self):
        for watch in self.watches:
            watch.close()
        for process in self.processes:
            process.kill()
            process.wait()


# ------------------------------------------------------------------------------------------------------------ peers

class Peer:
    """One client program. Every line in and out goes to its log, with the time."""

    def __init__(self, name, command, log_path, env):
        self.name = name
        self.log = open(log_path, "a", encoding="utf-8", errors="replace")
        self.note("$ " + " ".join(command))
        self.process = start_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                     bufsize=1, env={**os.environ, **env})
        self.answers = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def note(self, words):
        self.log.write(f"{time.monotonic():.3f} {words}\n")
        self.log.flush()

    def read(self):
        for line in self.process.stdout:
            self.note("> " + line.rstrip("\n"))
            self.answers.put((time.monotonic(), line.rstrip("\n")))
        self.answers.put((time.monotonic(), None))

    def await_ready(self):
        self.expect("ready", limit_s=START_LIMIT_S)

    def send(self, *words):
        line = " ".join(str(word) for word in words)
        self.note("< " + line)
        try:
            self.process.stdin.write(line + "\n")
        except OSError as error:
            raise Trouble(f"{self.name} is gone: {error}") from error

    def next_answer(self, limit_s, wanted, why):
        try:
            moment, answer = self.answers.get(timeout=limit_s)
        except queue.Empty:
            raise Trouble(f"{self.name} did not answer within {limit_s} s, {wanted} expected {why}") from None
        if answer is None:
            raise Trouble(f"{self.name} has ended, {wanted} expected {why}")
        return moment, answer

    def answer(self, limit_s, why=""):
        """Waits for an answer, whatever it is."""
        return self.next_answer(limit_s, "an answer", why)[1]

    def expect(self, wanted, limit_s, why=""):
        """Waits for an answer and compares it; returns the moment when it came."""
        moment, answer = self.next_answer(limit_s, repr(wanted), why)
        if answer != wanted:
            raise Trouble(f"{self.name} answered {answer!r}, not {wanted!r} {why}")
        return moment

    def ask(self, wanted, *words, limit_s=REPLY_LIMIT_S):
        self.send(*words)
        return self.expect(wanted, limit_s, f"to {' '.join(str(word) for word in words)!r}")

    def has_answered(self):
        return not self.answers.empty()

    def stop(self):
        self.note("stopped")
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.note("resumed")
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """kill -9, so that nothing of it can clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self):
        self.process.wait()
        self.reader.join()
        for file in (self.process.stdin, self.process.stdout):
            try:
                file.close()
            except OSError:
                pass  # a line that was never read goes down with its pipe
        self.log.close()

    def close(self):
        if self.log.closed:
            return
        try:
            self.process.stdin.write("quit\n")
            self.process.wait(timeout=REPLY_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.end()
