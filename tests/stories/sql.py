#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sql.py: how locks in a database are lost; on PostgreSQL, which tests/postgres/with_postgres starts.

    sql.py HOLDFAST OUT URL [NAME...]
"""

import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

from tale import HOLD, TRY, Trouble, main, story  # noqa: E402

URL = sys.argv[3].partition("?")[0] if len(sys.argv) > 3 else ""
PSQL = [shutil.which("psql") or "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", URL]


def ask(sql):
    done = subprocess.run([*PSQL, "-c", sql], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Trouble(f"{sql}: {done.stderr}")
    return done.stdout.strip()


def told(tale, title, *tables):
    telling = tale.told(title)
    telling.program("psql", "#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in PSQL) + ' "$@"\n')
    telling.env["HOLDFAST_URL"] = URL
    tale.server = "PostgreSQL " + ask("SHOW server_version").split()[0]
    ask("SET client_min_messages = warning; DROP TABLE IF EXISTS locks, items; " + "; ".join(tables))
    return telling


@story
def lock_table_without_index(tale):
    """A table of locks without a unique index

    Insert a row unless there is one: that is one statement, and looks like one step. But two transactions that have
    not ended do not see each other's rows.
    """
    t = told(tale, "INSERT … WHERE NOT EXISTS", "CREATE TABLE locks (name text, owner text)")
    recipe = r"""
        psql <<SQL
            BEGIN;
            INSERT INTO locks SELECT 'stock', '$ME'
                WHERE NOT EXISTS (SELECT FROM locks WHERE name = 'stock');
            \! say asks for the lock
            \! work
            COMMIT;
        SQL
        mine=$(psql -c "SELECT count(*) FROM locks WHERE name = 'stock' AND owner = '$ME'")
        [ "$mine" = 1 ] || { say "is refused"; exit; }
        say "has the lock"
        work
        say "gives the lock back"
        psql -c "DELETE FROM locks WHERE owner = '$ME'"
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "asks for the lock")
    ben = t.person("Ben", recipe)
    t.hears(ben, "asks for the lock")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "has the lock")
    t.finds("PostgreSQL", ask("SELECT string_agg(owner, ' and ' ORDER BY owner) FROM locks"), "Anna and Ben",
            "has two rows for one lock: of Anna and Ben")
    for one in (anna, ben):
        t.lets_work_end(one)
        t.hears(one, "gives the lock back")
        t.ends(one)
    t.ended(2, "Two at once.")

    t = told(tale, "holdfast run, in the same database")
    people = [t.person(name, TRY, LEASE="60s") for name in ("Anna", "Ben")]
    t.gathers({"has the lock": 1, "is refused: exit code 75, somebody else has it": 1})
    for one in people:
        t.lets_work_end(one)
    t.gathers({"gives the lock back": 1})
    for one in people:
        t.ends(one)
    t.ended(1, "They come at the same time, and one of them is refused: the name is the table's key.")


@story
def dead_clients_row(tale):
    """The row of a dead client

    With a primary key it is a lock. Whoever dies leaves the row behind.
    """
    t = told(tale, "INSERT, and DELETE", "CREATE TABLE locks (name text PRIMARY KEY, owner text)")
    recipe = """
        psql -c "INSERT INTO locks VALUES ('stock', '$ME')" || { say "is refused"; exit; }
        say "has the lock"
        work
        psql -c "DELETE FROM locks WHERE name = 'stock'"
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "has the lock")
    t.kills(anna)
    ben = t.person("Ben", recipe)
    t.hears(ben, "is refused")
    t.ends(ben)
    t.finds("PostgreSQL", ask("SELECT owner FROM locks"), "Anna", "has the row of Anna, who is dead")
    t.ended(1, "Nobody will have this lock again, until somebody deletes the row by hand.")

    t = told(tale, "holdfast run")
    t.asks("run", "stock", "--", "true")  # which makes the tables
    anna = t.person("Anna", HOLD, LEASE="2s")
    t.hears(anna, "has the lock")
    t.kills(anna)
    ben = t.person("Ben", HOLD, LEASE="2s")
    t.hears(ben, "has the lock")
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "The row says until when it counts; whoever is dead does not renew it.")

    t = told(tale, "holdfast run, with ?strategy=advisory")
    t.env["HOLDFAST_URL"] += "?strategy=advisory"
    anna = t.person("Anna", HOLD, LEASE="60s")
    t.hears(anna, "has the lock")
    t.kills(anna)
    ben = t.person("Ben", HOLD, LEASE="60s")
    t.hears(ben, "has the lock")
    t.lets_work_end(ben)
    t.hears(ben, "gives the lock back")
    t.ends(ben)
    t.ended(1, "Bound to its connection the lock ends with its holder at once, though its time would be a minute.")


@story
def version_conflict(tale):
    """A version that has changed, and nobody who looks

    The row has a version, and the statement that writes names the one that was read. Whoever comes second changes no
    row, which is no error: psql ends with 0, and so do most libraries.
    """
    table = "CREATE TABLE items (item int, count int, version int); INSERT INTO items VALUES (7, 42, 1)"
    t = told(tale, "UPDATE … WHERE version = …", table)
    recipe = """
        was=$(psql -F ' ' -c "SELECT count, version FROM items WHERE item = 7")
        say "reads ${was% *}, version ${was#* }"
        work
        psql -c "UPDATE items SET count = $((${was% *} - 1)), version = version + 1
                 WHERE item = 7 AND version = ${was#* }" &&
            say "sells one"
        """
    anna = t.person("Anna", recipe)
    t.hears(anna, "reads 42, version 1")
    ben = t.person("Ben", recipe)
    t.hears(ben, "reads 42, version 1")
    for one in (ben, anna):
        t.lets_work_end(one)
        t.hears(one, "sells one")
        t.ends(one)
    t.finds("PostgreSQL", ask("SELECT count FROM items"), "41", "has 41, and two were sold")
    t.ended(0, "The second sale was never written, and was made all the same.")

    t = told(tale, "holdfast run, and the same statements", table)
    with open(f"{t.folder}/sell.sh", "w", encoding="utf-8") as file:
        file.write(recipe)
    recipe = "holdfast run stock -- sh sell.sh"
    anna = t.person("Anna", recipe)
    t.hears(anna, "reads 42, version 1")
    ben = t.person("Ben", recipe)
    t.lets_work_end(anna)
    t.hears(anna, "sells one")
    t.ends(anna)
    t.hears(ben, "reads 41, version 2")
    t.lets_work_end(ben)
    t.hears(ben, "sells one")
    t.ends(ben)
    t.finds("PostgreSQL", ask("SELECT count FROM items"), "40", "has 40, and two were sold")
    t.ended(0, "sell.sh is the recipe from above. Ben reads when Anna has written.")


ITEMS = "CREATE TABLE items (item int, count int); INSERT INTO items VALUES (7, 42)"


@story
def paused_writer_in_a_database(tale):
    """Stopped for longer than the lock lives, in a database

    The lock is a row with an end, by the clock of the server, and taken in one statement. All of that is right, and
    the write that comes after the pause is made all the same.
    """
    t = told(tale, "a row with an end", ITEMS, "CREATE TABLE locks (name text PRIMARY KEY, owner text, "
             "until timestamptz)", "INSERT INTO locks VALUES ('stock', NULL, '-infinity')")
    recipe = """
        taken=$(psql -c "UPDATE locks SET owner = '$ME', until = clock_timestamp() + interval '$LEASE'
                         WHERE name = 'stock' AND until < clock_timestamp() RETURNING 1")
        [ "$taken" = 1 ] || { say "is refused"; exit; }
        count=$(psql -c "SELECT count FROM items WHERE item = 7")
        say "has the lock, and reads $count"
        work
        psql -c "UPDATE items SET count = $((count - SOLD)) WHERE item = 7"
        say "writes $((count - SOLD))"
        """
    anna = t.person("Anna", recipe, LEASE="1 s", SOLD="1")
    t.hears(anna, "has the lock, and reads 42")
    t.stops(anna)
    t.sees("PostgreSQL", lambda: ask("SELECT until < clock_timestamp() FROM locks") == "t", "has ended Anna's lease")
    ben = t.person("Ben", recipe, LEASE="60 s", SOLD="2")
    t.hears(ben, "has the lock, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, "writes 41")
    t.ends(anna)
    t.finds("PostgreSQL", ask("SELECT count FROM items"), "41", "has 41: what Ben has sold is forgotten")
    t.ended(2, "42 - 1 - 2 is 41.")

    t = told(tale, "holdfast run, and a transaction that shows its token", ITEMS)
    # --on-lost ignore: nothing may depend on the command being ended in time.
    recipe = """
        holdfast run -t "$LEASE" --no-renew --on-lost ignore stock -- sh -c '
            count=$(psql -c "SELECT count FROM items WHERE item = 7")
            say "has the lock, token $HOLDFAST_TOKEN, and reads $count"
            work
            if psql -c "BEGIN;
                        SELECT public.holdfast_guard(\\$\\$stock\\$\\$::text, $HOLDFAST_TOKEN::bigint);
                        UPDATE items SET count = $((count - SOLD)) WHERE item = 7;
                        COMMIT" 2>answer-$ME
            then say "writes $((count - SOLD))"
            else say "is refused: $(grep -o "token [0-9]* for stock is too old" answer-$ME | head -n 1)"
            fi'
        tell $?
        """
    anna = t.person("Anna", recipe, LEASE="1s", SOLD="1")
    first, = t.hears(anna, "has the lock, token #, and reads 42")
    t.stops(anna)
    t.sees("PostgreSQL", lambda: t.is_free("stock"), "has ended Anna's lease")
    ben = t.person("Ben", recipe, LEASE="60s", SOLD="2")
    t.hears(ben, "has the lock, token #, and reads 42")
    t.lets_work_end(ben)
    t.hears(ben, "writes 40")
    t.ends(ben)
    t.goes_on(anna)
    t.lets_work_end(anna)
    t.hears(anna, f"is refused: token {first} for stock is too old")
    t.hears(anna, "is told: exit code 76, the lock was lost")
    t.ends(anna)
    t.finds("PostgreSQL", ask("SELECT count FROM items"), "40", "has 40, as Ben has left it")
    t.ended(2, "Anna's transaction is refused as a whole, and she is told.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[4:]))
