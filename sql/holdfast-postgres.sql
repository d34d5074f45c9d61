-- SPDX-License-Identifier: MIT
--
-- The tables of the postgres: engine, for those whose programs may not create tables themselves. PostgreSQL 11 or newer.
--
--     psql -f holdfast-postgres.sql                         holdfast_locks
--     psql -v table=jobs -f holdfast-postgres.sql           for URLs with ?table=jobs
--     psql -v table=jobs -v role=worker -f …                and lets that role use them
--
-- This is all that a program needs: SELECT, INSERT, UPDATE and DELETE on the three, and for `holdfast break` on the
-- strategies that are bound to a connection the same role as the holder, or membership in pg_signal_backend.

\if :{?table}
\else
\set table holdfast_locks
\endif
\set waiters :table '_waiters'
\set grants :table '_grants'

BEGIN;

-- One row for each name. lease, version: kept for ever, and with it the last token. insert: there only while the lock is
-- held. for-update: kept, and locked while the lock is held.
CREATE TABLE IF NOT EXISTS :"table" (
    name text COLLATE "C" PRIMARY KEY,      -- the unique index without which this would be no lock
    token bigint NOT NULL DEFAULT 0,
    client bigint,                          -- the owner; NULL: free
    serial bigint,
    since timestamptz,
    expires timestamptz,
    host text,
    pid int,
    note text,
    queued boolean NOT NULL DEFAULT false   -- somebody waits: who frees it serves them first
) WITH (fillfactor = 50);

-- Who waits, in order. Unlogged: whoever waits lines up again after a crash.
CREATE UNLOGGED TABLE IF NOT EXISTS :"waiters" (
    name text COLLATE "C" NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    client bigint NOT NULL,
    serial bigint NOT NULL,
    backend int NOT NULL,                   -- the server's process that listens for the client
    host text,
    pid int,
    note text,
    PRIMARY KEY (name, place),
    UNIQUE (client, serial)
);

-- The last token of each name where the lock itself does not keep it (insert, for-update, advisory), and who holds it.
CREATE TABLE IF NOT EXISTS :"grants" (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL DEFAULT 0,
    client bigint,
    serial bigint,
    backend int,
    since timestamptz,
    host text,
    pid int,
    note text
) WITH (fillfactor = 50);

\if :{?role}
GRANT SELECT, INSERT, UPDATE, DELETE ON :"table", :"waiters", :"grants" TO :"role";
\endif

COMMIT;
