#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""two_masters.py PORT PORT COMMAND…: runs COMMAND with {} replaced by a port of 127.0.0.1 behind which there are both
servers: each connection leads to the other one than the connection before it. That is what a name with two masters
behind it looks like. Exits as COMMAND does."""
import itertools
import socket
import subprocess
import sys
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


def serve(listener, ports):
    for port in itertools.cycle(ports):
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for ends in ((client, server), (server, client)):
            for end in ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pump, args=ends, daemon=True).start()


listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listening, [int(port) for port in sys.argv[1:3]]), daemon=True).start()
command = [word.replace("{}", str(listening.getsockname()[1])) for word in sys.argv[3:]]
sys.exit(subprocess.run(command, check=False).returncode)
