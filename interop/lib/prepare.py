# SPDX-License-Identifier: MIT
"""prepare.py: fetches the foreign clients in the versions of their lock files and builds every peer, all of it below
build/interop. What is there and has not changed is neither fetched nor built again, so that a second run needs no
network."""

import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "interop")
HOME = os.path.join(ROOT, "build", "interop")
LIMIT_S = 900  # a registry that never answers must not hang the run
# Maven itself has no lock file: its plugin is named in full, and what it fetches is compared with SHA256SUMS.
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class CannotPrepare(Exception):
    """In words for the user."""


def run(what, command, **options):
    """Runs a command, with its output in a log that is shown if it fails."""
    log = os.path.join(HOME, "logs", f"prepare-{what}.log")
    with open(log, "a", encoding="utf-8") as output:
        output.write("\n$ " + " ".join(command) + "\n")
        output.flush()
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
                                    timeout=LIMIT_S, **options).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotPrepare(f"{what}: {error}") from error
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as file:
            tail = "".join(file.readlines()[-30:])
        raise CannotPrepare(f"{what}: {command[0]} failed with status {status}; the end of its log, "
                            f"{os.path.relpath(log, ROOT)}:\n{tail}")


def digest(paths):
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            total.update(file.read())
    return total.hexdigest()


def unless_done(folder, inputs, make):
    """Calls make(folder), for a folder that is new, unless it was made from the same inputs before."""
    stamp = os.path.join(folder, ".made-from")
    wanted = digest(os.path.join(SOURCE, path) for path in inputs)
    if os.path.exists(stamp):
        with open(stamp, encoding="ascii") as file:
            if file.read() == wanted:
                return
    print(f"interop: preparing {os.path.relpath(folder, ROOT)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    make(folder)
    with open(stamp, "w", encoding="ascii") as file:
        file.write(wanted)


# ---------------------------------------------------------------------------------------------------------- clients

def check_jars(folder, sums):
    """Every jar is listed, with its checksum, and every listed one is there."""
    with open(sums, encoding="ascii") as file:
        listed = {name: checksum for checksum, name in (line.split() for line in file)}
    found = {name: digest([os.path.join(folder, name)]) for name in os.listdir(folder) if name.endswith(".jar")}
    wrong = sorted(name for name in listed.keys() | found.keys() if listed.get(name) != found.get(name))
    if wrong:
        raise CannotPrepare(f"these jars are not those of {os.path.relpath(sums, ROOT)}: {' '.join(wrong)}")


def java(name, pins, source):
    """The class path of a Java peer, with the jars of the folder `pins`."""
    folder = os.path.join(HOME, name)
    pom, sums = os.path.join(pins, "pom.xml"), os.path.join(pins, "SHA256SUMS")

    def make(folder):
        run(name, ["mvn", "-B", "-q", "--strict-checksums", "-f", os.path.join(SOURCE, pom),
                   "-Dmaven.repo.local=" + os.path.join(HOME, "maven"), COPY_JARS,
                   "-DincludeScope=runtime", "-DoutputDirectory=" + folder])
        check_jars(folder, os.path.join(SOURCE, sums))
        run(name, ["javac", "-Xlint:all,-classfile,-processing", "-cp", os.path.join(folder, "*"), "-d", folder,
                   os.path.join(SOURCE, source)])

    unless_done(folder, [pom, sums, source], make)
    return folder + os.pathsep + os.path.join(folder, "*")


def go():
    """The path of the program with the libraries for Go."""
    folder = os.path.join(HOME, "go")
    inputs = [os.path.join("go", name) for name in sorted(os.listdir(os.path.join(SOURCE, "go")))]
    # The cache is writable, so that it can be removed like everything else; the user's own Go settings stay out.
    env = {**os.environ, "GOENV": "off", "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false", "GOTOOLCHAIN": "local",
           "GOPATH": os.path.join(HOME, "go-path"), "GOMODCACHE": os.path.join(HOME, "go-modules"),
           "GOCACHE": os.path.join(HOME, "go-cache"), "GOBIN": "", "GOWORK": "off", "CGO_ENABLED": "0"}

    def make(folder):
        run("go", ["go", "build", "-o", os.path.join(folder, "peer"), "."], cwd=os.path.join(SOURCE, "go"), env=env)

    unless_done(folder, inputs, make)
    return os.path.join(folder, "peer")


def node():
    """The path of the peer: beside its modules, where Node looks for them."""
    folder = os.path.join(HOME, "node")
    inputs = [os.path.join("node", name) for name in ("package.json", "package-lock.json", "peer.js")]

    def make(folder):
        for path in inputs:
            shutil.copy(os.path.join(SOURCE, path), folder)
        run("node", ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund",
                     "--cache=" + os.path.join(HOME, "npm-cache")], cwd=folder)

    unless_done(folder, inputs, make)
    return os.path.join(folder, "peer.js")


def python():
    """The path of an interpreter that has redis-py and kazoo."""
    folder = os.path.join(HOME, "python")

    def make(folder):
        run("python", ["python3", "-m", "venv", folder])
        run("python", [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--disable-pip-version-check",
                       "--require-hashes", "--only-binary=:all:", "--cache-dir=" + os.path.join(HOME, "pip-cache"),
                       "-r", os.path.join(SOURCE, "python", "requirements.txt")])

    unless_done(folder, ["python/requirements.txt"], make)
    return os.path.join(folder, "bin", "python")


def program(name):
    """The path of a program: the system's, or of Consul the one from Debian's archive, unpacked where the tests are."""
    found = shutil.which(name)
    if not found and name == "consul":
        made = subprocess.run([os.path.join(ROOT, "tools", "servers"), os.path.join(ROOT, "build"), name],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        found = made.stdout.strip()
        if made.returncode != 0:
            raise CannotPrepare(made.stderr.strip())
    if not found:
        raise CannotPrepare(f"there is no {name}: run 'tools/setup interop' first")
    return found


def said_version(path):
    """What a program answers to "version"."""
    said = subprocess.run([path, "version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env={**os.environ, "ETCDCTL_API": "3"}, timeout=LIMIT_S).stdout
    return re.search(r"\d+\.\d+\.\d+", said).group(0)


def holdfast(build):
    """The path of the peer, linked with the library in the folder `build`."""
    library = os.path.join(ROOT, build, "src")
    peer = os.path.join(HOME, "holdfast-peer")
    if not os.path.exists(os.path.join(library, "libholdfast.so")):
        raise CannotPrepare(f"there is no library in {build}: run 'make' first")
    run("holdfast", [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
                     "-I" + os.path.join(ROOT, "include"), os.path.join(SOURCE, "holdfast_peer.c"),
                     "-L" + library, "-lholdfast", "-Wl,-rpath," + library, "-o", peer])
    return peer
