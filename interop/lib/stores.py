# SPDX-License-Identifier: MIT
"""stores.py: real servers of the stores whose locks live in sessions, on free ports of this machine, and what one can
learn from them about the locks: who is in line, and whether anybody has asked for something."""

import base64
import json
import os
import re
import socket
import subprocess
import urllib.error
import urllib.request

from stage import REPLY_LIMIT_S, START_LIMIT_S, Trouble, free_ports, start_process, wait_until

# For a machine with many of them, that start often and do little.
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]


class Store:
    """One server. What differs is how it is started, whether it answers, and how it is looked into."""

    prefix = "holdfast/"  # what is before the name of a lock, for a client that does not know Holdfast

    def __init__(self, folder):
        os.makedirs(folder)
        self.folder = folder
        self.log_path = os.path.join(folder, "log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = start_process(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(self.is_ready, START_LIMIT_S, f"{type(self).__name__} answers")
        except BaseException:
            self.close()
            raise

    def is_ready(self):
        if self.process.poll() is not None:
            raise Trouble(f"{type(self).__name__} has ended: " + "".join(self.log().splitlines(True)[-3:]))
        try:
            return self.answers()
        except (OSError, ValueError):
            return False  # not yet; or it is about to end, which the next look will tell

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def addresses(self):
        return [f"127.0.0.1:{self.port}"]

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def http(self, path, body=None, method=None):
        """The answer's text; a 404 is none."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=REPLY_LIMIT_S) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return ""

    def kill(self, _index):
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()


class ZooKeeper(Store):
    """Debian's; the words of four letters tell what the sessions have."""

    prefix = "/holdfast/"
    java = JAVA

    def command(self):
        (self.port,) = free_ports(1)
        # Sessions from 1 s to 10 s. Nothing has to survive the machine here: no sync to the disk.
        settings = self.write("zoo.cfg", f"tickTime=500\ndataDir={self.folder}\nclientPort={self.port}\n"
                              "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n"
                              "4lw.commands.whitelist=*\n")
        return [*self.java, "-Dzookeeper.forceSync=no", "-cp", "/usr/share/java/zookeeper.jar",
                "org.apache.zookeeper.server.ZooKeeperServerMain", settings]

    def word(self, four_letters):
        with socket.create_connection(("127.0.0.1", self.port), timeout=REPLY_LIMIT_S) as connection:
            connection.sendall(four_letters.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def answers(self):
        return "Mode: " in self.word("srvr")

    def in_line(self, name):
        """How many nodes of live sessions are in the lock's directory."""
        return len(set(re.findall(rf"^\t{re.escape(self.prefix + name)}/\S+", self.word("dump"), flags=re.M)))

    def asked(self, *_names):
        """Requests so far, apart from heartbeats of the protocol: each client numbers its own."""
        return sum(int(number, 16) for number in re.findall(r"lcxid=0x([0-9a-f]+),", self.word("cons")))


class Etcd(Store):
    """Debian's, asked through its JSON gateway and its metrics."""

    def command(self):
        self.port, peer_port = free_ports(2)
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer_port}"
        # Nothing has to survive the machine here: no sync to the disk.
        return ["etcd", "--name=one", "--data-dir=" + os.path.join(self.folder, "data"), "--unsafe-no-fsync",
                "--listen-client-urls=" + client, "--advertise-client-urls=" + client, "--listen-peer-urls=" + peer,
                "--initial-advertise-peer-urls=" + peer, "--initial-cluster=one=" + peer, "--log-level=error"]

    def answers(self):
        return json.loads(self.http("/health")).get("health") == "true"

    def in_line(self, name):
        """How many keys the lock has."""
        start = (self.prefix + name + "/").encode()
        body = {"key": base64.b64encode(start).decode(), "count_only": True,
                "range_end": base64.b64encode(start[:-1] + b"0").decode()}
        return int(json.loads(self.http("/v3/kv/range", body)).get("count", 0))

    def asked(self, *_names):
        """Calls so far, apart from those that keep leases alive."""
        lines = re.findall(r'^grpc_server_started_total\{grpc_method="(\w+)".*\} (\S+)$', self.http("/metrics"), re.M)
        return sum(float(count) for method, count in lines if method != "LeaseKeepAlive")


class Consul(Store):
    """A server with nothing on the disk. Waiters are only known to its log, which has a line for each request."""

    log_level = "debug"

    def __init__(self, folder, program):
        self.program = program
        super().__init__(folder)

    def command(self):
        self.port, server, lan, wan, grpc = free_ports(5)
        settings = {"bind_addr": "127.0.0.1", "session_ttl_min": "1s", "log_level": self.log_level,
                    "ports": {"http": self.port, "server": server, "serf_lan": lan, "serf_wan": wan, "grpc": grpc,
                              "dns": -1, "https": -1}}
        return [self.program, "agent", "-dev", "-config-file=" + self.write("consul.json", json.dumps(settings))]

    def answers(self):
        return "serfHealth" in self.http("/v1/health/state/passing")  # which sessions stand on

    def asked(self, *names):
        """Requests so far for these locks; a transaction may be for any."""
        keys = "|".join(re.escape(self.prefix + name) for name in names)
        return len(re.findall(rf"url=/v1/(?:kv/(?:{keys})/|txn)", self.log()))

    def end_session_of(self, name):
        """Ends the session that has the lock, as its time-to-live would."""
        found = json.loads(self.http(f"/v1/kv/{self.prefix}{name}/.lock"))
        self.http(f"/v1/session/destroy/{found[0]['Session']}", method="PUT")
