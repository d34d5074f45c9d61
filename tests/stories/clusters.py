# SPDX-License-Identifier: MIT
"""clusters.py: stores with consensus, of one server or three, whose leader can be killed. Their data need not survive a
loss of power: it is not synced to the disk."""

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.request

from places import Claims
from tale import LIMIT_S, NotRun, Trouble, start_process, wait_until

JAR = "/usr/share/java/zookeeper.jar"
# For a machine with many of them, that start often and do little.
JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
        "-Dzookeeper.fastleader.maxNotificationInterval=1000"]


class Cluster:
    """What differs is how a server is started, and who leads."""

    def __init__(self, tale, count):
        self.must_be_there()
        self.count = count
        self.ports = [Claims.take() for _ in range(count)]
        self.peers = [Claims.take() for _ in range(count)]
        self.others = [Claims.take() for _ in range(count)]
        self.folders = [os.path.join(tale.folder, f"server-{port}") for port in self.ports]
        self.members = []
        tale.keep(self)
        for index, folder in enumerate(self.folders):
            os.mkdir(folder)
            with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
                self.members.append(start_process(self.command(index), stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=log, cwd=folder))
        try:
            wait_until(self.is_up, 2 * LIMIT_S, f"{type(self).__name__} serves")
        except Trouble as trouble:
            raise Trouble("\n".join([str(trouble), *map(self.last_words, self.folders)])) from None
        tale.server = (tale.server + ", " if tale.server else "") + self.version()

    @classmethod
    def must_be_there(cls):
        pass

    def write(self, index, name, text):
        path = os.path.join(self.folders[index], name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def get(self, index, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[index]}{path}", data=body)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return json.loads(reply.read())

    @property
    def hosts(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def leader(self):
        """The number of the member that leads, None while nobody does."""
        for index, member in enumerate(self.members):
            try:
                if member.poll() is None and self.leads(index):
                    return index
            except (OSError, ValueError):
                pass  # not yet
        return None

    def serves(self):
        return self.leader() is not None

    def is_up(self):
        if any(member.poll() is not None for member in self.members):
            raise Trouble(f"{type(self).__name__} has ended")
        return self.serves()

    @staticmethod
    def last_words(folder):
        with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-15:])

    def told(self, tale, title):
        telling = tale.told(title)
        telling.env.update(HOLDFAST_URL=self.url())
        return telling

    def kill_leader(self, telling):
        index = self.leader()
        self.members[index].kill()
        self.members[index].wait()
        telling.note("the leader", "is killed: kill -KILL")

    def close(self):
        for member in self.members:
            member.kill()
            member.wait()


class Etcd(Cluster):
    def command(self, index):
        client, peer = f"http://127.0.0.1:{self.ports[index]}", f"http://127.0.0.1:{self.peers[index]}"
        cluster = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(self.peers))
        return ["etcd", "--name", f"m{index}", "--data-dir", "data", "--unsafe-no-fsync", "--log-level", "error",
                "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster]

    def leads(self, index):
        status = self.get(index, "/v3/maintenance/status", b"{}")
        return status.get("leader", "0") != "0" and status["leader"] == status["header"]["member_id"]

    def version(self):
        return "etcd " + self.get(0, "/version")["etcdserver"]

    def url(self):
        return f"etcd://{self.hosts}"

    def told(self, tale, title):
        telling = super().told(tale, title)
        telling.env.update(ETCDCTL_API="3", ETCDCTL_ENDPOINTS=self.hosts)
        return telling


class ZooKeeper(Cluster):
    @classmethod
    def must_be_there(cls):
        if not os.path.exists(JAR) or not shutil.which("java"):
            raise NotRun("there is no ZooKeeper")

    def command(self, index):
        os.mkdir(os.path.join(self.folders[index], "data"))
        self.write(index, "data/myid", f"{index + 1}\n")
        settings = ["tickTime=500", "initLimit=50", "syncLimit=20", f"dataDir={self.folders[index]}/data",
                    f"clientPort={self.ports[index]}", "clientPortAddress=127.0.0.1", "maxSessionTimeout=60000",
                    "maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=*"]
        settings += [f"server.{number + 1}=127.0.0.1:{self.peers[number]}:{self.others[number]}"
                     for number in range(self.count)]
        return [*JAVA, "-cp", JAR, "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                self.write(index, "zoo.cfg", "\n".join(settings) + "\n")]

    def word(self, index, four_letters):
        with socket.create_connection(("127.0.0.1", self.ports[index]), timeout=LIMIT_S) as connection:
            connection.sendall(four_letters.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def leads(self, index):
        return "Mode: leader" in self.word(index, "srvr")

    def serves(self):
        try:
            return all("Mode: " in self.word(index, "srvr") for index in range(self.count))
        except OSError:
            return False  # not yet

    def asked(self):
        """The last request of each session, apart from heartbeats."""
        return dict(re.findall(r"sid=0x(\w+),.*?lcxid=0x(\w+),", self.word(0, "cons")))

    def version(self):
        return "ZooKeeper " + self.word(0, "srvr").partition("version: ")[2].partition("-")[0].partition(",")[0]

    def url(self):
        return f"zookeeper://{self.hosts}"


class Consul(Cluster):
    @classmethod
    def must_be_there(cls):
        if not os.environ.get("TEST_CONSUL"):
            raise NotRun("there is no Consul")

    def command(self, index):
        settings = {"server": True, "bootstrap_expect": self.count, "node_name": f"n{index}",
                    "data_dir": os.path.join(self.folders[index], "data"), "bind_addr": "127.0.0.1",
                    "ports": {"http": self.ports[index], "server": self.peers[index], "serf_lan": self.others[index],
                              "serf_wan": -1, "dns": -1, "grpc": -1},
                    "performance": {"raft_multiplier": 1}, "disable_update_check": True, "retry_interval": "1s",
                    "retry_join": [f"127.0.0.1:{port}" for port in self.others]}
        return [os.environ["TEST_CONSUL"], "agent",
                "-config-file=" + self.write(index, "settings.json", json.dumps(settings))]

    def leads(self, index):
        return self.get(index, "/v1/status/leader") == f"127.0.0.1:{self.peers[index]}"

    def serves(self):
        """All are members, and their checks pass, on which sessions stand."""
        leader = self.leader()
        try:
            return leader is not None and len(self.get(leader, "/v1/health/state/passing")) == self.count
        except OSError:
            return False  # not yet

    def version(self):
        return "Consul " + self.get(0, "/v1/agent/self")["Config"]["Version"]

    def url(self):
        """A server that does not lead: the one that people ask must survive."""
        return f"consul://127.0.0.1:{self.ports[(self.leader() + 1) % self.count]}"
