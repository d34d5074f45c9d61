-- SPDX-License-Identifier: MIT
--
-- The tables and the guard of the postgres: engine, for those whose programs may not create them. PostgreSQL 11 or
-- newer. Running it again does no harm, and brings tables of an earlier version up to date.
--
--     psql -f holdfast-postgres.sql                         holdfast_locks
--     psql -v table=jobs -f holdfast-postgres.sql           for URLs with ?table=jobs
--     psql -v table=jobs -v role=worker -f …                and lets that role use them
--     psql -v schema=app -f holdfast-postgres.sql           in that schema: for URLs with ?table=app.holdfast_locks
--
-- What is granted to the role at the end is all that a program needs; and for `holdfast break` on the strategies that
-- are bound to a connection the same role as the holder, or membership in pg_signal_backend.

\set ON_ERROR_STOP on
\if :{?table}
\else
\set table holdfast_locks
\endif
\if :{?schema}
\else
SELECT pg_catalog.current_schema() AS schema \gset
\endif
\set waiters :table '_waiters'
\set grants :table '_grants'
\set fences :table '_fences'
\set done :table '_done'

BEGIN;
-- From here on nothing that somebody else has made is taken for what the server has.
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT CASE :'table' WHEN 'holdfast_locks' THEN 'holdfast_guard' ELSE :'table' || '_guard' END AS guard \gset

-- One row for each name. lease, version: kept for ever, and with it the last token. insert: there only while the lock is
-- held. for-update: kept, and locked while the lock is held.
CREATE TABLE IF NOT EXISTS :"schema".:"table" (
    name text COLLATE "C" PRIMARY KEY,      -- the unique index without which this would be no lock
    token bigint NOT NULL DEFAULT 0,
    client bigint,                          -- the owner; NULL: free
    serial bigint,
    since timestamptz,
    expires timestamptz,
    ttl bigint,                             -- ms that it was given: an end further away is a clock that was set back
    host text,
    pid int,
    note text,
    queued boolean NOT NULL DEFAULT false,  -- somebody waits: who frees it serves them first
    request bigint NOT NULL DEFAULT 0       -- the holder's last: one with a smaller number, which comes late, is ignored
) WITH (fillfactor = 50);
ALTER TABLE :"schema".:"table" ADD COLUMN IF NOT EXISTS request bigint NOT NULL DEFAULT 0; -- made by version 0.1

-- Who waits, in order. Unlogged: whoever waits lines up again after a crash. The row without a name says above what
-- number the tokens of advisory locks are until the next crash; it may be deleted, as all others.
CREATE UNLOGGED TABLE IF NOT EXISTS :"schema".:"waiters" (
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

-- The last token of each name where the lock itself does not keep it (insert, for-update, advisory), and who holds it;
-- advisory: or held it last. The row without a name: how far tokens of advisory locks may be forgotten by a crash; it is
-- made anew if it is deleted.
-- lease, version, insert: of a lock that was broken, in the note: whose token that was, and who did it.
CREATE TABLE IF NOT EXISTS :"schema".:"grants" (
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

-- The highest token that was shown for each resource.
CREATE TABLE IF NOT EXISTS :"schema".:"fences" (
    resource text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50);

-- That the work of a lock is done: who asks for it once per some time (once_per_ms) is not given it until then.
CREATE TABLE IF NOT EXISTS :"schema".:"done" (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,                  -- of whoever did it
    host text,
    pid int,
    note text,
    done timestamptz NOT NULL,
    expires timestamptz NOT NULL            -- until when it counts; a row after that means nothing, and may be deleted
) WITH (fillfactor = 50);

-- Fencing where the data lives: call it first in the transaction that writes. It raises HF001 unless the token is at
-- least as great as every one that was shown for the resource, and keeps others waiting until the transaction ends, so
-- that none with an older token can commit after it. With its schema and the types nothing else can be meant:
--
--     BEGIN; SELECT public.holdfast_guard('accounts'::text, 1731668400000001::bigint); UPDATE accounts …; COMMIT;
SELECT format($text$CREATE OR REPLACE FUNCTION %1$I.%2$I(resource text, token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $holdfast$
#variable_conflict use_column
DECLARE
    highest bigint;
BEGIN
    INSERT INTO %1$I.%3$I AS f (resource, token) VALUES ($1, $2)
    ON CONFLICT (resource) DO UPDATE SET token = greatest(f.token, excluded.token) RETURNING f.token INTO highest;
    IF highest > $2 THEN
        RAISE EXCEPTION 'token %% for %% is too old: %% was shown before', $2, $1, highest
            USING ERRCODE = 'HF001', HINT = 'The lock was lost, and somebody else has had it since.';
    END IF;
END
$holdfast$$text$, :'schema', :'guard', :'fences') \gexec

\if :{?role}
GRANT USAGE ON SCHEMA :"schema" TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON :"schema".:"table", :"schema".:"waiters", :"schema".:"grants" TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON :"schema".:"done" TO :"role";
GRANT SELECT, INSERT, UPDATE ON :"schema".:"fences" TO :"role";
GRANT EXECUTE ON FUNCTION :"schema".:"guard"(text, bigint) TO :"role";
\endif

COMMIT;
