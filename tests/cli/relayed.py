#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""relayed.py URL: the command on a real store that it reaches through relays of this test: -w waits for a store that is
away when it begins, and what `status` reads does not grow with the number of locks. HOLDFAST is the command, LIBRARY
its library. Prints TAP."""
import ctypes
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

HOLDFAST = os.environ["HOLDFAST"]
LIMIT_S = 90 * int(os.environ.get("HOLDFAST_TEST_SLOW", "1"))
LOCKS = 300


class Relay:
    """A way to a server. Whoever connects is refused until it is opened; counts what the server sends."""

    def __init__(self, host, port):
        self.server = host, int(port)
        self.sent = 0
        self.counting = threading.Lock()
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def open(self):
        self.listener.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.server)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(*ends, server), daemon=True).start()

    def pump(self, source, sink, server):
        try:
            while data := source.recv(65536):
                if source is server:
                    with self.counting:
                        self.sent += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def a_store_that_is_away_is_waited_for(url, relays):
    with tempfile.NamedTemporaryFile("w") as said:
        run = subprocess.Popen([HOLDFAST, "-u", url, "run", "--verbose", "-w", f"{LIMIT_S}s", "job", "--", "echo",
                                "ran"], stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            deadline = time.monotonic() + LIMIT_S
            while "waiting for the store" not in text_of(said.name):
                if run.poll() is not None or time.monotonic() > deadline:
                    return f"it does not wait for the store: {text_of(said.name)}"
                time.sleep(0.02)
            for relay in relays:
                relay.open()
            output, _ = run.communicate(timeout=LIMIT_S)
        finally:
            run.kill()
        held = (run.returncode, output) == (0, "ran\n")
        return None if held else f"exit code {run.returncode}, {output!r}: {text_of(said.name)}"


def bytes_read(url, relays, command, *arguments):
    before = sum(relay.sent for relay in relays)
    subprocess.run([HOLDFAST, command, "-u", url, *arguments], stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
    return sum(relay.sent for relay in relays) - before


def status_reads_one_lock(direct, url, relays):
    library = ctypes.CDLL(os.environ["LIBRARY"])
    client, lock = ctypes.c_void_p(), ctypes.c_void_p()

    def take(name):
        if library.hf_acquire(ctypes.byref(lock), client, name.encode(), None, None) != 0:
            raise RuntimeError(f"cannot take {name}")

    if library.hf_open(ctypes.byref(client), direct.encode(), None, None) != 0:
        raise RuntimeError(f"cannot open {direct}")
    take("job")
    bytes_read(url, relays, "status", "job")  # what is only done once is done
    alone = bytes_read(url, relays, "status", "job")
    for number in range(LOCKS):
        take(f"lock-{number:04}")
    among_others = bytes_read(url, relays, "status", "job")
    everything = bytes_read(url, relays, "ls", "--names")
    library.hf_close(client)
    found = f"status read {alone} bytes, {among_others} among {LOCKS} others, and ls {everything}"
    if everything < alone + 5 * LOCKS:
        return f"{found}: nothing is shown"
    return None if among_others < alone + 2 * LOCKS else found


def main():
    direct = sys.argv[1]
    relays = []

    def relayed(match):
        relays.append(Relay(*match.groups()))
        return f"127.0.0.1:{relays[-1].port}"

    url = re.sub(r"(\d+\.\d+\.\d+\.\d+):(\d+)", relayed, direct)
    results = [("a store that is away is waited for", a_store_that_is_away_is_waited_for(url, relays))]
    # memcached: knows no list of locks. If the first has failed the relays may be closed still.
    if not results[0][1] and not url.startswith("memcached:"):
        results.append(("status reads one lock", status_reads_one_lock(direct, url, relays)))
    for number, (what, trouble) in enumerate(results, 1):
        print(f"{'not ok' if trouble else 'ok'} {number} - {what}")
        for line in (trouble or "").splitlines():
            print(f"# {line}")
    print(f"1..{len(results)}")
    return 1 if any(trouble for _, trouble in results) else 0


if __name__ == "__main__":
    sys.exit(main())
