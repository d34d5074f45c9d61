# SPDX-License-Identifier: MIT
"""clients.py: the versions of the clients, and the commands that start them."""

import functools
import os
import re

import prepare
from checks import KEEP_MS
from session_checks import SESSION_MS
from stores import JAVA

# Where the version of a client is pinned; a command has the version that it says.
PINS = {
    "redis-py": ("python/requirements.txt", r"^redis==(\S+)"),
    "redsync": ("go/go.mod", r"redsync/v4 v(\S+)"),
    "redislock": ("go/go.mod", r"redislock v(\S+)"),
    "node-redlock": ("node/package.json", r'"redlock": "([^"]+)"'),
    "redisson-3": ("redisson/3/pom.xml", r"<version>(3\.[^<]+)</version>"),
    "redisson-4": ("redisson/4/pom.xml", r"<version>(4\.[^<]+)</version>"),
    "curator": ("curator/pom.xml", r"<version>(5\.[^<]+)</version>"),
    "kazoo": ("python/requirements.txt", r"^kazoo==(\S+)"),
    "kazoo-told": ("python/requirements.txt", r"^kazoo==(\S+)"),
    "go-zookeeper": ("go/go.mod", r"go-zookeeper/zk v(\S+)"),
    "etcd-go": ("go/go.mod", r"etcd/client/v3 v(\S+)"),
    "consul-go": ("go/go.mod", r"consul/api v(\S+)"),
}
COMMANDS = ("etcdctl", "consul-lock")
GO = ("redsync", "redislock", "go-zookeeper", "etcd-go", "consul-go")


@functools.lru_cache
def version(client):
    if client in COMMANDS:
        return prepare.said_version(prepare.program(client.partition("-")[0]))
    path, pattern = PINS[client]
    with open(os.path.join(prepare.SOURCE, path), encoding="utf-8") as file:
        return re.search(pattern, file.read(), flags=re.M).group(1)


class Clients:
    """The commands that start the clients; each client is prepared when it is first asked for."""

    def __init__(self, build, session_ms=SESSION_MS, java=JAVA):
        self.build, self.session_ms, self.java = build, session_ms, java
        self.commands = {}

    def prepare(self, client):
        if client not in self.commands:
            self.commands[client] = self.find(client)

    def find(self, client):
        if client == "holdfast":
            return [prepare.holdfast(self.build)]
        if client in GO:
            return [prepare.go(), client]
        if client == "redis-py":
            return [prepare.python(), os.path.join(prepare.SOURCE, "python", "peer.py")]
        if client.startswith("kazoo"):
            # Told so, kazoo also minds the nodes of Curator and of all who name theirs alike.
            patterns = ["--pattern=-lock-"] if client == "kazoo-told" else []
            return [prepare.python(), os.path.join(prepare.SOURCE, "python", "kazoo_peer.py"), *patterns]
        if client == "node-redlock":
            return ["node", prepare.node()]
        if client == "curator":
            return [*self.java, "-cp", prepare.java("curator", "curator", "curator/CuratorPeer.java"), "CuratorPeer"]
        if client in COMMANDS:
            name = client.partition("-")[0]
            return ["python3", os.path.join(prepare.SOURCE, "commands", "command_peer.py"), name, prepare.program(name)]
        classes = prepare.java(client, client.replace("-", "/"), "redisson/RedissonPeer.java")
        return [*self.java, "-cp", classes, "RedissonPeer", str(KEEP_MS)]

    def command(self, client, mode, servers):
        addresses = servers.addresses()
        if client == "holdfast":
            return [*self.commands[client], mode.url.format(",".join(addresses))]
        if mode.store:
            return [*self.commands[client], str(self.session_ms), servers.prefix, *addresses]
        if client.startswith("redisson"):
            return [*self.commands[client], "cluster" if mode.cluster else "single", *addresses]
        return [*self.commands[client], *addresses]
