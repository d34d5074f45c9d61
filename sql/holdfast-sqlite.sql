-- SPDX-License-Identifier: MIT
--
-- The tables of the sqlite: engine, for those whose programs may not create tables themselves. SQLite 3.35 or newer.
--
--     sqlite3 app.db < holdfast-sqlite.sql
--
-- A table of version 0.1 is lacking a column:
--
--     sqlite3 app.db 'ALTER TABLE holdfast_locks ADD COLUMN renewed INTEGER'
--
-- For URLs with ?table=jobs, replace holdfast_locks by jobs: sed s/holdfast_locks/jobs/g holdfast-sqlite.sql

BEGIN IMMEDIATE;

-- One row for each name. lease, version: kept for ever, and with it the last token. insert: there only while the lock is
-- held. since, expires and renewed are nanoseconds of the kernel's CLOCK_BOOTTIME, and mean nothing after another boot.
CREATE TABLE IF NOT EXISTS holdfast_locks (
    name TEXT NOT NULL PRIMARY KEY,         -- without a unique index this would be no lock
    token INTEGER NOT NULL DEFAULT 0,
    client INTEGER,                         -- the owner; NULL: free
    serial INTEGER,
    boot INTEGER,                           -- which boot of the machine, or of the container
    since INTEGER,
    expires INTEGER,
    host TEXT,
    pid INTEGER,
    note TEXT,
    renewed INTEGER                         -- when it was last taken or renewed: later than now is another boot
) WITHOUT ROWID;

-- Who waits, in order.
CREATE TABLE IF NOT EXISTS holdfast_locks_waiters (
    place INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    client INTEGER NOT NULL,
    serial INTEGER NOT NULL,
    host TEXT,
    pid INTEGER,
    note TEXT,
    UNIQUE (client, serial),
    UNIQUE (name, place)
);

-- The last token of each name where the lock itself does not keep it (insert).
CREATE TABLE IF NOT EXISTS holdfast_locks_grants (
    name TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    boot INTEGER
) WITHOUT ROWID;

-- What is done once per some time (hf_release_done()): one row for each name, the last one. It does not count any more
-- once done + lasts is over; then the row can be deleted.
CREATE TABLE IF NOT EXISTS holdfast_locks_done (
    name TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    client INTEGER,                         -- who did it
    serial INTEGER,
    done INTEGER NOT NULL,                  -- when: milliseconds since 1970 by the machine's wall clock
    lasts INTEGER NOT NULL,                 -- for how many milliseconds that counts
    host TEXT,
    pid INTEGER,
    note TEXT
) WITHOUT ROWID;

-- The largest token that was shown for each resource. In the transaction that writes to the resource:
--
--     INSERT INTO holdfast_guard (resource, token) VALUES ('stock', 42);
--
-- A smaller token than one that was shown before undoes the whole transaction.
CREATE TABLE IF NOT EXISTS holdfast_fences (
    resource TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL
) WITHOUT ROWID;

CREATE VIEW IF NOT EXISTS holdfast_guard AS SELECT resource, token FROM holdfast_fences;

CREATE TRIGGER IF NOT EXISTS holdfast_guard_insert INSTEAD OF INSERT ON holdfast_guard BEGIN
    SELECT RAISE(ROLLBACK, 'holdfast_guard: a token is a number')
        WHERE typeof(NEW.resource) <> 'text' OR typeof(NEW.token) <> 'integer';
    SELECT RAISE(ROLLBACK, 'holdfast_guard: a larger token was shown before')
        FROM holdfast_fences WHERE resource = NEW.resource AND token > NEW.token;
    INSERT INTO holdfast_fences (resource, token) VALUES (NEW.resource, NEW.token)
        ON CONFLICT (resource) DO UPDATE SET token = excluded.token;
END;

COMMIT;
