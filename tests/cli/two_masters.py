#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""two_masters.py PORT PORT COMMAND…: runs COMMAND with {} replaced by a socket file behind which there are both
servers: the processes that connect are led to one and to the other by turns, and each stays with its own. That is what
a name looks like that leads some machines to one master and some to another. Exits as COMMAND does."""
import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def peer_of(client):
    """The number of the process at the other end."""
    return struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def serve(listener, ports):
    turns, led_to = itertools.cycle(ports), {}
    while True:
        client, _ = listener.accept()
        process = peer_of(client)
        if process not in led_to:
            led_to[process] = next(turns)
        server = socket.create_connection(("127.0.0.1", led_to[process]))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((client, server), (server, client)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    threading.Thread(target=serve, args=(listening, [int(port) for port in sys.argv[1:3]]), daemon=True).start()
    command = [word.replace("{}", path) for word in sys.argv[3:]]
    status = subprocess.run(command, check=False).returncode
sys.exit(status)
