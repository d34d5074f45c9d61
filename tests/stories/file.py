#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""file.py: how locks between the processes of one machine are lost.

    file.py HOLDFAST OUT [NAME...]
"""

import os
import sys

sys.dont_write_bytecode = True

from tale import LIMIT_S, TRY, main, story, wait_until  # noqa: E402


def told(tale, title, count=None):
    telling = tale.told(title)
    telling.env["HOLDFAST_URL"] = f"file://{telling.folder}/locks"
    if count is not None:
        with open(os.path.join(telling.folder, "count"), "w", encoding="ascii") as file:
            file.write(f"{count}\n")
    return telling


def count_of(telling):
    with open(os.path.join(telling.folder, "count"), encoding="ascii") as file:
        return int(file.read())


@story
def old_lock_directory(tale):
    """A lock that is old is taken for that of a dead

    mkdir succeeds for one alone, so it is a lock. Whoever dies leaves it behind; so one that is old is removed. But
    whoever has it is not dead: the machine has slept, or a debugger is attached.
    """
    t = told(tale, "mkdir, and rmdir when it is older than a second", 42)
    recipe = """
        until mkdir lock 2>/dev/null; do
            changed=$(stat -c %Y lock 2>/dev/null) || continue
            [ $(($(date +%s) - changed)) -le 1 ] || rmdir lock
            sleep 0.05
        done
        count=$(cat count)
        say "has the lock, and reads $count"
        work
        echo $((count - SOLD)) >count
        say "writes $((count - SOLD))"
        say "gives the lock back"
        rmdir lock
        """
    anna = t.person("Anna", recipe, SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.stops(anna)
    ben = t.person("Ben", recipe, SOLD="2")
    t.hears(ben, "has the lock, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, "writes 41")
    t.hears(anna, "gives the lock back")
    t.finds("the file", count_of(t), 41, "has 41: what Ben has sold is forgotten")
    t.ended(2, "42 - 1 - 2 is 41.")

    t = told(tale, "holdfast run", 42)
    recipe = """
        holdfast run -w "$WAIT" stock -- sh -c '
            count=$(cat count)
            say "has the lock, and reads $count"
            work
            echo $((count - SOLD)) >count
            say "writes $((count - SOLD))"
            say "gives the lock back"'
        tell $?
        """
    anna = t.person("Anna", recipe, WAIT="60s", SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.stops(anna)
    ben = t.person("Ben", recipe, WAIT="2s", SOLD="2")
    t.hears(ben, "is refused: exit code 75, somebody else has it")
    t.ends(ben)
    carl = t.person("Carl", recipe, WAIT="60s", SOLD="2")
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, "writes 41")
    t.hears(anna, "gives the lock back")
    t.ends(anna)
    t.hears(carl, "has the lock, and reads 41")
    t.lets_work_end(carl)
    t.hears(carl, "writes 39")
    t.hears(carl, "gives the lock back")
    t.ends(carl)
    t.finds("the file", count_of(t), 39, "has 39")
    t.ended(1, "The kernel knows who lives. Whoever is only stopped keeps the lock, and Ben hears that after 2 s.")


@story
def killed_holder(tale):
    """Who is killed leaves the lock behind

    The same directory, and nobody who removes what is old.
    """
    t = told(tale, "mkdir")
    recipe = """
        mkdir lock || { say "is refused"; exit; }
        trap "rmdir lock" EXIT
        say "has the lock"
        work
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock")
    t.kills(anna)
    ben = t.person("Ben", recipe)
    t.hears(ben, "is refused")
    t.ends(ben)
    t.ended(1, "Nobody will ever have this lock again: whoever is killed does nothing at the end.")

    t = told(tale, "holdfast run")
    anna = t.person("Anna", TRY, LEASE="60s")
    t.hears(anna, "has the lock")
    t.kills(anna)
    ben = t.person("Ben", TRY, LEASE="60s")
    t.hears(ben, "has the lock")
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "The kernel frees the lock when its holder dies: Ben has it at his first try.")


@story
def lock_of_a_child(tale):
    """A child keeps the lock of its parent

    flock(1) locks an open file, and whoever inherits that has the lock, too: a daemon that the work starts, for one.
    """
    t = told(tale, "exec 9>file; flock 9")
    recipe = """
        exec 9>lock
        flock -n 9 || { say "is refused"; exit; }
        say "has the lock"
        sh -c 'trap "" HUP; touch there; work' &
        until [ -e there ]; do sleep 0.02; done
        say "goes home, and a daemon that was started stays"
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock")
    t.hears(anna, "goes home, and a daemon that was started stays")
    t.ends(anna)
    ben = t.person("Ben", recipe)
    t.hears(ben, "is refused")
    t.ends(ben)
    t.ended(1, "Nobody works, and nobody else may.")

    t = told(tale, "holdfast run")
    recipe = """
        holdfast run -n stock -- sh -c '
            say "has the lock"
            sh -c "work" &
            say "goes home, and a daemon that was started stays"'
        tell $?
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock")
    t.hears(anna, "goes home, and a daemon that was started stays")
    t.ends(anna)
    ben = t.person("Ben", recipe)
    t.hears(ben, "has the lock")
    t.hears(ben, "goes home, and a daemon that was started stays")
    t.ends(ben)
    wait_until(t.lines.empty, LIMIT_S, "nobody says more")
    t.ended(1, "The lock is that of holdfast, which gives it back when the command has ended; nothing is inherited.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
