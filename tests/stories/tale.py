# SPDX-License-Identifier: MIT
"""tale.py: how a story is played, on real servers, with people who are shell scripts.

A story has several tellings: the same thing happens first to people with a recipe that looks right, and then to people
with Holdfast. What each of them does is a script, and nothing but the script: `say` puts a line on the timeline, `work`
is whatever takes time there, and lasts until the story lets it end. A telling says which line comes next, and by whom;
a line that is another one, or is missing, fails the story. So the timeline that is printed is the one that was
asserted.
"""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "interop", "lib"))

from stage import Connection, Trouble, end_everything, start_process, wait_until  # noqa: E402,F401

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLOW = int(os.environ.get("HOLDFAST_TEST_SLOW", "1"))
LIMIT_S = 40 * SLOW  # for whatever is waited for
# For a run that is cut short: the process groups of the people who are there, and the folders of their stories.
GROUPS, FOLDERS = set(), set()

# What a line says about whom it is told of, by its first words. Whoever has the lock believes so until a line says that
# he knows better.
MEANINGS = [(re.compile(words), meaning) for words, meaning in (
    ("has the lock", "holds"), ("gives the lock back|is killed|is told|has ended with|goes home", "lets"),
    ("is stopped", "stops"), ("goes on", "goes on"), ("writes|sells", "writes"), ("is refused", "refused"))]

SAY = """#!/bin/sh
echo "$ME $*" >"$SAID"
"""
# A file that stays empty: the pipe is opened for each `work`, and the story writes a line for one of them.
WORK = """#!/bin/sh
read -r _ <"$WORK"
"""
# What the exit code of holdfast means.
TELL = """#!/bin/sh
case $1 in
0) ;;
75) exec say "is refused: exit code 75, somebody else has it" ;;
76) exec say "is told: exit code 76, the lock was lost" ;;
*) exec say "is refused: exit code $1" ;;
esac
"""

# For whoever has no more to do than to have the lock, and how naive people do that.
HOLD = """
    holdfast run -t "$LEASE" stock -- sh -c '
        say "has the lock"
        work
        say "gives the lock back"'
    tell $?
    """
TRY = HOLD.replace("run -t", "run -n -t")
# The same, for somebody whose lock is going to be lost.
STOPPABLE = """
    holdfast run -t "$LEASE" stock -- sh -c '
        trap "say is told to stop: SIGTERM; exit" TERM
        say "has the lock, token $HOLDFAST_TOKEN"
        work
        say "gives the lock back"'
    tell $?
    """
SET_NX = """
    [ "$(redis-cli SET lock "$ME" NX PX "$LEASE")" = OK ] || { say "is refused"; exit; }
    say "has the lock"
    work
    say "gives the lock back"
    redis-cli DEL lock
    """


class NotRun(Exception):
    """What the story needs is not there: in words for the user."""


def meaning_of(words):
    return next((meaning for pattern, meaning in MEANINGS if pattern.match(words)), "")


def running(group):
    """The states of the processes of a group."""
    states = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[2]) == group:
            states.append(fields[0])
    return states


class Person:
    """Somebody with a script, in a process group of their own, so that all of it can be stopped or killed at once."""

    def __init__(self, telling, name, script, env):
        self.name = name
        self.work = os.path.join(telling.folder, f"work-{name}")
        os.mkfifo(self.work)
        self.work_fd = os.open(self.work, os.O_RDWR)
        self.log_path = os.path.join(telling.folder, f"log-{name}")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = start_process(["sh", "-uc", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         cwd=telling.folder, start_new_session=True,
                                         env={**telling.env, **env, "ME": name, "WORK": self.work})

        GROUPS.add(self.process.pid)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self):
        with contextlib.suppress(ProcessLookupError):  # all of it may have ended
            self.signal(signal.SIGKILL)
        GROUPS.discard(self.process.pid)
        self.process.wait()
        os.close(self.work_fd)


class Telling:
    """What happens to people with one recipe."""

    def __init__(self, story, title):
        self.story, self.title, self.verdict = story, title, ""
        self.folder = tempfile.mkdtemp(prefix="telling.", dir=story.folder)
        self.people, self.recipes, self.events = [], [], []
        self.start = None
        self.lines = queue.Queue()
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        said = os.path.join(self.folder, "said")
        os.mkfifo(said)
        self.said = open(os.open(said, os.O_RDWR), encoding="utf-8", errors="replace")
        self.env = {name: value for name, value in os.environ.items()
                    if not re.match(r"HOLDFAST_(?!MODULES)|XDG_|PG|MYSQL|ETCDCTL|CONSUL", name)}
        self.env.update(SAID=said, HOME=self.folder, PATH=self.bin + ":" + os.environ["PATH"], LC_ALL="C")
        self.program("say", SAY)
        self.program("work", WORK)
        self.program("tell", TELL)
        os.symlink(story.holdfast, os.path.join(self.bin, "holdfast"))
        threading.Thread(target=self.listen, daemon=True).start()

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def listen(self):
        # One pipe for all: the order of its lines is that in which they were said.
        for line in self.said:
            who, _, words = line.rstrip("\n").partition(" ")
            self.lines.put((time.monotonic(), who, words))

    # ---------------------------------------------------------------------------------------------- what people do

    def person(self, name, script, **env):
        """Starts somebody. Those who have the same script are shown with it once, and with what differs."""
        script = textwrap.dedent(script).strip("\n")
        own = " ".join(f"{word}={text}" for word, text in env.items() if f"${word}" in script or f"{word}))" in script)
        for recipe in self.recipes:
            if recipe["script"] == script:
                recipe["names"].append([name, own])
                break
        else:
            self.recipes.append({"names": [[name, own]], "script": script})
        one = Person(self, name, script, env)
        self.people.append(one)
        return one

    def hears(self, person, words):
        """The next line on the timeline is this one; # stands for a number. Returns the numbers."""
        try:
            moment, who, said = self.lines.get(timeout=LIMIT_S)
        except queue.Empty:
            raise Trouble(f"{person.name} does not say {words!r} within {LIMIT_S} s") from None
        self.put(moment, who, said)
        match = re.fullmatch(re.escape(words).replace(r"\#", r"(\d+)"), said)
        if who != person.name or not match:
            raise Trouble(f"{who} says {said!r}, where {person.name} should have said {words!r}")
        return [int(number) for number in match.groups()]

    def hears_of(self, said):
        """The next lines, in whichever order: {person: words}."""
        for _ in range(len(said)):
            moment, who, words = self.lines.get(timeout=LIMIT_S)
            self.put(moment, who, words)
            left = [person for person, expected in said.items() if (person.name, expected) == (who, words)]
            if not left:
                raise Trouble(f"{who} says {words!r}, which was not expected")
            said = {person: expected for person, expected in said.items() if person is not left[0]}

    def gathers(self, counts):
        """So many say this and so many that, in whichever order: one line on the timeline for each."""
        left = dict(counts)
        while any(left.values()):
            try:
                _, who, said = self.lines.get(timeout=LIMIT_S)
            except queue.Empty:
                raise Trouble(f"still expected: {left}") from None
            if not left.get(said):
                raise Trouble(f"{who} says {said!r}, which was not expected any more")
            left[said] -= 1
        for words, count in counts.items():
            self.note("one of them" if count == 1 else f"each of {count}", words)

    def lets_work_end(self, person):
        os.write(person.work_fd, b"\n")

    def stops(self, person):
        """As a machine is that swaps, sleeps or is moved."""
        person.signal(signal.SIGSTOP)
        # D: it waits for a child of vfork(), which is stopped before it runs its program.
        wait_until(lambda: set(running(person.process.pid)) <= {"T", "Z", "D"}, LIMIT_S, f"{person.name} is stopped")
        self.note(person.name, "is stopped: kill -STOP")

    def goes_on(self, person):
        self.note(person.name, "goes on: kill -CONT")
        person.signal(signal.SIGCONT)

    def kills(self, person):
        person.signal(signal.SIGKILL)
        wait_until(lambda: set(running(person.process.pid)) <= {"Z"}, LIMIT_S, f"{person.name} is dead")
        self.note(person.name, "is killed: kill -KILL")

    def ends(self, person, code=0):
        """The script has come to its end."""
        try:
            found = person.process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Trouble(f"{person.name} has not ended within {LIMIT_S} s") from None
        if found != code:
            raise Trouble(f"{person.name} has ended with {found} instead of {code}")

    def asks(self, *words):
        """What the command answers to the story itself: exit code and output."""
        done = subprocess.run([self.story.holdfast, *words], env=self.env, cwd=self.folder, capture_output=True,
                              text=True, check=False, timeout=LIMIT_S)
        return done.returncode, done.stdout + done.stderr

    def is_free(self, name):
        code, said = self.asks("status", name)
        if code not in (0, 1):
            raise Trouble(f"holdfast status: {said}")
        return code == 1

    # ------------------------------------------------------------------------------------------------ the timeline

    def put(self, moment, who, words):
        if self.start is None:
            self.start = moment
        moment = max(moment, self.start + (self.events[-1]["s"] if self.events else 0))  # they are told in this order
        self.events.append({"s": moment - self.start, "who": who, "words": words, "meaning": meaning_of(words)})

    def note(self, who, words):
        """What the story does, or sees in the store."""
        self.put(time.monotonic(), who, words)

    def complains(self, person, words):
        """What holdfast has said to somebody on stderr, in a line that begins with these words."""
        said = [line for line in person.log().splitlines() if line.startswith(f"holdfast: {words}")]
        if not said:
            raise Trouble(f"holdfast does not say {words!r} to {person.name}")
        self.note("holdfast", f"says to {person.name}: {said[0].partition(': ')[2]}")

    def sees(self, who, condition, words, what=""):
        """Waits until it is so, and puts that on the timeline."""
        wait_until(condition, LIMIT_S, what or f"{who} {words}")
        self.note(who, words)

    def finds(self, who, found, expected, words):
        """What is in the store must be this, and is put on the timeline."""
        if found != expected:
            raise Trouble(f"{who}: found {found!r} instead of {expected!r}, where it {words}")
        self.note(who, words)

    def holders(self):
        """How many have believed to have the lock at once, at the worst moment."""
        holding, most = set(), 0
        for event in self.events:
            if event["meaning"] == "holds":
                holding.add(event["who"])
            elif event["meaning"] == "lets":
                holding.discard(event["who"])
            most = max(most, len(holding))
        return most

    def ended(self, holders, verdict):
        """The telling ends as it must: so many had the lock at once, and nobody says anything more."""
        if not self.lines.empty():
            raise Trouble(f"somebody says more than was expected: {self.lines.get()[1:]}")
        if self.holders() != holders:
            raise Trouble(f"{self.holders()} had the lock at once, and not {holders}")
        self.verdict = verdict

    def close(self):
        people, self.people = self.people, []
        for person in people:
            person.close()

    def text(self):
        width = max((len(event["who"]) for event in self.events), default=0)
        lines = [f"{event['s']:7.2f} s  {event['who'].ljust(width)}  {event['words']}" for event in self.events]
        return "\n".join(lines + ([f"           => {self.verdict}"] if self.verdict else []))

    def record(self):
        return {"title": self.title, "recipes": self.recipes, "events": self.events, "verdict": self.verdict}


class Story:
    """One of those below; `play` is the function that tells it."""

    def __init__(self, play):
        self.play, self.name = play, play.__name__
        self.title, _, rest = (play.__doc__ or "").partition("\n\n")
        self.prose = textwrap.dedent("    " + rest.strip()).strip()
        self.tellings, self.closing = [], []
        self.folder = self.holdfast = self.server = None

    def told(self, title):
        if self.tellings:
            self.tellings[-1].close()
        self.tellings.append(Telling(self, title))
        return self.tellings[-1]

    def keep(self, thing):
        """It is closed when the story ends."""
        self.closing.append(thing)
        return thing

    def run(self, holdfast):
        """None, or what went wrong."""
        self.folder = tempfile.mkdtemp(prefix="holdfast-story.")
        FOLDERS.add(self.folder)
        self.holdfast = holdfast
        try:
            self.play(self)
            return None
        except (Trouble, OSError, queue.Empty, subprocess.TimeoutExpired) as trouble:
            logs = [f"{person.name}: {person.log()}" for telling in self.tellings[-1:] for person in telling.people]
            return "\n".join([f"{type(trouble).__name__}: {trouble}", *logs])
        finally:
            for thing in [*self.tellings, *reversed(self.closing)]:
                thing.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            FOLDERS.discard(self.folder)

    def record(self):
        return {"name": self.name, "title": self.title, "prose": self.prose, "server": self.server,
                "tellings": [telling.record() for telling in self.tellings]}


STORIES = []


def story(play):
    """A function that is told as a story: its first line is the title, the rest says what the trap is."""
    STORIES.append(play)
    return play


def comment(text):
    return "\n".join("# " + line for line in text.splitlines())


def cut_short(number, _frame):
    for group in GROUPS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    end_everything()
    for folder in FOLDERS:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + number)


def main(holdfast, out, names):
    """Plays the stories, prints TAP, and writes what was seen to the file `out` for the book."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, cut_short)
    told, failed, count, left_out = [], 0, 0, 0
    try:
        for play in STORIES:
            if names and play.__name__ not in names:
                continue
            one = Story(play)
            try:
                trouble = one.run(os.path.abspath(holdfast))
            except NotRun as why:
                print(f"# not run: {one.name}: {why}", flush=True)
                left_out += 1
                continue
            count += 1
            failed += bool(trouble)
            print(f"{'not ok' if trouble else 'ok'} {count} - {one.name}")
            for telling in one.tellings:
                print(comment(f"\n{telling.title}\n{telling.text()}"))
            if trouble:
                print(comment(trouble))
            sys.stdout.flush()
            told.append(one.record())
    finally:
        end_everything()
    print(f"1..{count}")
    if not failed and not names:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)
    return 1 if failed or not (count or left_out) else 0
