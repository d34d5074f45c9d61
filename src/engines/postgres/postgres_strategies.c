/* SPDX-License-Identifier: MIT
 *
 * postgres_strategies.c: the strategies, each a table of statements.
 *
 * All that concerns one name is done under the lock of one row, which the first statement of a sequence takes; the
 * statements after it see what was committed until then. Without that, a waiter could line up while the holder, which
 * does not see it yet, hands the lock to nobody.
 *
 * A request that was given up may arrive after its successors: each that sets an end has a number, which grows within
 * a hold, and does nothing if the row has a greater one.
 *
 * Time is the server's clock_timestamp(): now() stands still during a transaction. A token is the larger of the last
 * one + 1 and the server's microseconds, and is drawn while the row is locked: one that is drawn before could be
 * overtaken.
 *
 * That the work of a lock is done stands in a table of its own, written with the statement that frees the lock, or
 * before it. Whoever asks for once looks there after the statement that took the lock, and not in it: a statement that
 * had to wait for the row knows its latest state, but all other tables as they were before the wait. That the statement
 * looks as well only spares it, nearly always, to take what it would have to give back.
 */
#include "postgres_sql.h"
#include <string.h>

#define NOW "clock_timestamp()"
#define MICROSECONDS "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
#define TTL "$4 * interval '1 millisecond'"
#define CLAIM_MS "1000"
#define CLAIM "interval '1 second'"
#define LEFT_MS(end) "(extract(epoch FROM " end " - clock_timestamp()) * 1000)::bigint"
#define HELD_MS "greatest(0, (extract(epoch FROM clock_timestamp() - since) * 1000)::bigint)"
/* A waiter whose listening session has ended is not served: nobody else has the lock that this session had. (To look
 * for the process among the server's would cost as much as the rest of the statement.) */
#define LIVES "NOT pg_try_advisory_xact_lock_shared(" HFI_POSTGRES_LIVE_CLASS ", w.backend)"
#define NOTIFY(row, word)                                                                                              \
    "pg_notify('holdfast_' || lpad(to_hex(" row ".client), 16, '0'), " row ".serial::text || " word ")"
/* 64 bits of a name: the first eight bytes of its SHA-256, most significant first. */
#define KEY(name) "('x' || left(encode(sha256(convert_to(" name ", 'UTF8')), 'hex'), 16))::bit(64)::bigint"

/* The first waiter that lives. */
#define HEIR                                                                                                           \
    "SELECT w.place, w.client, w.serial, w.host, w.pid, w.note FROM {W} w WHERE w.name = $1 AND " LIVES                \
    " ORDER BY w.place LIMIT 1"
/* … and the next one, which is told to look after the first: it may have died this very moment. */
#define SECOND                                                                                                         \
    "SELECT w.place, w.client, w.serial FROM {W} w WHERE w.name = $1 AND w.place > h.place AND " LIVES                 \
    " ORDER BY w.place LIMIT 1"
#define TELL_SECOND "CASE WHEN s.place IS NOT NULL THEN " NOTIFY("s", "' second'") " END"
/* The commit of this one transaction does not wait for the disk. A release that a crash undoes costs a time-to-live,
 * and whoever takes the lock after it waits for the disk, and so for what was written before. What gives the lock to
 * somebody, or says that it is done, must wait. */
#define NEED_NOT_LAST "set_config('synchronous_commit', 'off', true)"

/* --- what is done --- */

#define IS_DONE "d.name = $1 AND d.expires > " NOW
#define UNLESS_DONE " AND NOT EXISTS (SELECT FROM {D} d WHERE " IS_DONE ")"
#define DONE_MS "greatest(0, (extract(epoch FROM clock_timestamp() - d.done) * 1000)::bigint)"
#define MARK_INTO "INSERT INTO {D} (name, token, host, pid, note, done, expires)"
#define MARK_OVER                                                                                                      \
    " ON CONFLICT (name) DO UPDATE SET token = excluded.token, host = excluded.host, pid = excluded.pid,"              \
    " note = excluded.note, done = excluded.done, expires = excluded.expires"
/* For a statement that frees the row, and says what it was. */
#define FREE_AND_MARK(freeing)                                                                                         \
    "WITH freed AS (" freeing " RETURNING l.name, l.token, l.host, l.pid, l.note) " MARK_INTO                          \
    " SELECT f.name, f.token,"                                                                                         \
    " f.host, f.pid, f.note, " NOW ", " NOW " + " TTL " FROM freed f" MARK_OVER

static const char done[] =
    "SELECT d.host, d.pid, d.note, " LEFT_MS("d.expires") ", " DONE_MS ", d.token FROM {D} d WHERE " IS_DONE;

static const char inspect_done[] = "SELECT d.name, d.host, d.pid, d.token, " DONE_MS ", " LEFT_MS(
    "d.expires") ", -1, d.note FROM {D} d WHERE starts_with(d.name, $1) AND d.expires > " NOW " ORDER BY d.name";

static const char forget_done[] = "DELETE FROM {D} WHERE name = $1 AND token = $2";

/* On the connection that has the lock, which is why no owner is compared. */
static const char bound_mark[] = MARK_INTO " VALUES ($1, $2, $3, $5, $6, " NOW ", " NOW " + " TTL ")" MARK_OVER;

/* --- whether a session has a lock that is bound to it --- */

#define ADVISORY_OF(name)                                                                                              \
    "k.locktype = 'advisory' AND k.objsubid = 1"                                                                       \
    " AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())"                               \
    " AND ((k.classid::bigint << 32) | k.objid::bigint) = " KEY(name)
#define IS_HELD_BY(name, whom) "EXISTS (SELECT FROM pg_locks k WHERE " ADVISORY_OF(name) " AND k.granted" whom ")"
#define THAT_BACKEND " AND k.pid = g.backend"
/* Whose row lock it is stands in the row itself: the transaction. A process number alone may have gone to another
 * session since, which holds another lock. */
#define HOLDS_ROW                                                                                                      \
    "EXISTS (SELECT FROM {L} l JOIN pg_locks k ON k.transactionid = l.xmax WHERE l.name = g.name"                      \
    " AND k.locktype = 'transactionid' AND k.mode = 'ExclusiveLock' AND k.granted AND k.pid = g.backend)"

/* --- lease and version --- */

#define IS_FREE "(l.client IS NULL OR l.expires <= " NOW ")"
#define IS_MINE "(l.client = $2 AND l.serial = $3)"
#define IS_MINE_STILL "(" IS_MINE " AND l.request < $8)"
/* … and still is: who only looks must not take a claim that is over for a grant. */
#define IS_HELD_BY_ME "(" IS_MINE " AND l.expires > " NOW ")"
#define NEXT_TOKEN "greatest(l.token + 1, " MICROSECONDS ")"
/* Its end is further away than its whole time: the server's clock was set back, by an hour perhaps, and for that hour a
 * dead holder would keep it. */
#define WHOLE_TIME "l.ttl * interval '1 millisecond'"
#define IS_AHEAD "(l.expires > " NOW " + " WHOLE_TIME ")"

#define LEASE_TAKE(unless)                                                                                             \
    "WITH taken AS (INSERT INTO {L} AS l (name, client, serial, token, since, expires, ttl, host, pid, note, request)" \
    " VALUES ($1, $2, $3, " MICROSECONDS ", " NOW ", " NOW " + " TTL ", $4, $5, $6, $7, $8)"                           \
    " ON CONFLICT (name) DO UPDATE SET client = $2, serial = $3,"                                                      \
    " token = CASE WHEN " IS_MINE " THEN l.token ELSE " NEXT_TOKEN " END,"                                             \
    " since = CASE WHEN " IS_MINE " THEN l.since ELSE " NOW " END,"                                                    \
    " expires = " NOW " + " TTL ", ttl = $4, host = $5, pid = $6, note = $7, request = $8"                             \
    " WHERE " IS_MINE_STILL " OR (NOT l.queued AND " IS_FREE unless ") RETURNING token)"                               \
    " SELECT token, NULL::text, NULL::int, NULL::bigint, false, false, NULL::bigint FROM taken"                        \
    " UNION ALL SELECT 0, l.host, l.pid, " LEFT_MS(                                                                    \
        "l.expires") ", " IS_FREE ", " IS_AHEAD ", " MICROSECONDS                                                      \
                     " FROM {L} l WHERE l.name = $1 AND NOT EXISTS (SELECT FROM taken)"

static const char lease_take[] = LEASE_TAKE("");
static const char lease_take_once[] = LEASE_TAKE(UNLESS_DONE);

static const char lease_look[] = "SELECT CASE WHEN " IS_HELD_BY_ME " THEN l.token ELSE 0 END, l.host, l.pid, " LEFT_MS(
    "l.expires") ", " IS_FREE ", " IS_AHEAD ", " MICROSECONDS ", l.token, l.queued FROM {L} l WHERE l.name = $1";

static const char version_swap[] =
    "UPDATE {L} l SET client = $2, serial = $3, token = " NEXT_TOKEN ", since = " NOW ", expires = " NOW " + " TTL
    ", ttl = $4, host = $5, pid = $6, note = $7, request = $9 WHERE l.name = $1 AND l.token = $8 AND NOT l.queued "
    "AND " IS_FREE " RETURNING token";

static const char lease_lock[] =
    "INSERT INTO {L} (name, queued) VALUES ($1, true) ON CONFLICT (name) DO UPDATE SET queued = true";

static const char enter[] =
    "INSERT INTO {W} (name, client, serial, backend, host, pid, note) SELECT $1, $2, $3, $4, $5, $6, $7"
    " WHERE NOT EXISTS (SELECT FROM {L} l WHERE l.name = $1 AND " IS_HELD_BY_ME ")"
    " ON CONFLICT (client, serial) DO UPDATE SET backend = excluded.backend";

#define TELL_HEIR NOTIFY("h", "' ' || l.token || ' ' || (extract(epoch FROM l.since) * 1000000)::bigint")

/* Every release has to run it, and a hand-off is hardly more than that: what it takes to start counts, so it has few
 * parts. Whoever stands before the second in line has been served, or is dead. */
#define LEASE_GIVE                                                                                                     \
    "WITH given AS (UPDATE {L} l SET client = h.client, serial = h.serial, token = " NEXT_TOKEN ", since = " NOW       \
    ", expires = " NOW " + " CLAIM ", ttl = " CLAIM_MS ", host = h.host, pid = h.pid, note = h.note,"                  \
    " request = 0, queued = s.place IS NOT NULL"                                                                       \
    " FROM (" HEIR ") h LEFT JOIN LATERAL (" SECOND ") s ON true WHERE l.name = $1 AND " IS_FREE                       \
    " RETURNING coalesce(s.place, 9223372036854775807) AS place, " TELL_HEIR ", " TELL_SECOND ")"
#define LEASE_TAKE_OUT "DELETE FROM {W} w WHERE w.name = $1 AND w.place < (SELECT place FROM given)"

static const char lease_serve[] = LEASE_GIVE " " LEASE_TAKE_OUT;

static const char lease_finish[] =
    LEASE_GIVE ", gone AS (" LEASE_TAKE_OUT ") SELECT " NEED_NOT_LAST " WHERE NOT EXISTS (SELECT FROM given)";

/* After those who wait were served: nobody does, or it is still free, as all of them are dead. That is looked at again:
 * its time may have come to an end since, and those who live must stay in line. */
static const char lease_clean[] =
    "WITH idle AS (UPDATE {L} l SET queued = false WHERE l.name = $1 AND l.queued AND NOT EXISTS (SELECT FROM {W} w"
    " WHERE w.name = $1 AND (NOT " IS_FREE " OR " LIVES ")) RETURNING l.name)"
    " DELETE FROM {W} w USING idle WHERE w.name = idle.name";

static const char leave[] = "DELETE FROM {W} WHERE client = $1 AND serial = $2";

static const char renew[] =
    "UPDATE {L} SET expires = " NOW " + " TTL ", ttl = $4, request = $5 WHERE name = $1 AND client = $2 AND serial = $3"
    " AND request < $5 AND expires > " NOW;

/* Its holder counts from before the clock was set, and so has no more than this left. */
static const char mend[] = "UPDATE {L} l SET expires = " NOW " + " WHOLE_TIME " WHERE l.name = $1 AND " IS_AHEAD;

/* Locks the row; a waiter who has lined up meanwhile is seen by the next statement, which serves it. */
#define MAKE_FREE "UPDATE {L} l SET client = NULL, serial = NULL, expires = NULL, request = 0 WHERE l.name = $1"

#define LEASE_FREE MAKE_FREE " AND " IS_MINE

static const char lease_free[] = LEASE_FREE;
static const char lease_mark[] = FREE_AND_MARK(LEASE_FREE);

/* The hold that was looked at. */
#define EVICTED " AND l.token = $2 AND l.client IS NOT NULL"

static const char lease_evict[] = MAKE_FREE EVICTED;

/* In the row of grants, which stays when the next one is served. A statement of its own after the other: within it this
 * would wait for that row while it has the row of the lock, which insert locks the other way round. The row may be that
 * of who holds the lock with a strategy that is bound to a connection, and it then stays; or has held it. */
static const char row_blame[] =
    "INSERT INTO {G} AS g (name, token, note) VALUES ($1, $2, $3)"
    " ON CONFLICT (name) DO UPDATE SET note = excluded.note, client = NULL, serial = NULL, backend = NULL"
    " WHERE g.client IS NULL OR NOT (" IS_HELD_BY("g.name", THAT_BACKEND) " OR " HOLDS_ROW ")";

static const char row_broken[] = "SELECT g.note FROM {G} g WHERE g.name = $1 AND g.client IS NULL";

static const char row_holder[] = "SELECT 0, l.token FROM {L} l WHERE l.name = $1 AND l.client IS NOT NULL";

#define BEGINS "starts_with(name, $1)"
#define IS_IT "name = $1"

#define ROW_INSPECT(wanted)                                                                                            \
    "SELECT l.name, l.host, l.pid, token, " HELD_MS ", " LEFT_MS(                                                      \
        "expires") ", (SELECT count(*) FROM {W} w"                                                                     \
                   " WHERE w.name = l.name), l.note, (SELECT string_agg(w.host || ':' || w.pid || ' ' || w.note, "     \
                   "E'\n' ORDER BY place)"                                                                             \
                   " FROM {W} w WHERE w.name = l.name) FROM {L} l WHERE l.client IS NOT NULL AND expires > " NOW       \
                   " AND " wanted " ORDER BY l.name"

static const char row_inspect[] = ROW_INSPECT(BEGINS);
static const char row_inspect_one[] = ROW_INSPECT(IS_IT);

/* --- insert: the row is the lock; the last token, which must outlive it, is in the row of grants ---
 *
 * A row that is free is one of another strategy. Those lock the row itself before they look who waits; so does whoever
 * lines up here, as a conflict locks the row also where it changes nothing. */

#define INSERT_TAKE(unless)                                                                                            \
    "INSERT INTO {L} AS l (name, client, serial, token, since, expires, ttl, host, pid, note, request)"                \
    " SELECT $1, $2, $3, 0, " NOW ", " NOW " + " TTL ", $4, $5, $6, $7, $8"                                            \
    " WHERE NOT EXISTS (SELECT FROM {W} w WHERE w.name = $1)" unless                                                   \
    " OR EXISTS (SELECT FROM {L} l WHERE l.name = $1 AND " IS_MINE ")"                                                 \
    " ON CONFLICT (name) DO UPDATE SET client = $2, serial = $3,"                                                      \
    " token = CASE WHEN " IS_MINE " THEN l.token ELSE 0 END, since = CASE WHEN " IS_MINE " THEN l.since ELSE " NOW     \
    " END, expires = " NOW " + " TTL ", ttl = $4, host = $5, pid = $6, note = $7, request = $8 WHERE " IS_MINE_STILL   \
    " OR " IS_FREE

static const char insert_take[] = INSERT_TAKE("");
static const char insert_take_once[] = INSERT_TAKE(UNLESS_DONE);

/* Above all that advisory locks were given and a crash may have forgotten, see postgres_tokens.c: above the floor, or
 * where it would be. Not always above the ceiling, which is ahead of the clock: a failover that forgets the last token
 * leaves nothing but the clock to make the next one greater. */
#define ABOVE_FORGOTTEN                                                                                                \
    "coalesce((SELECT w.note::bigint FROM {W} w WHERE w.client = 0 AND w.serial = 0),"                                 \
    " (SELECT m.token FROM {G} m WHERE m.name = ''), -1) + 1"
#define INSERT_COUNT                                                                                                   \
    "WITH fresh AS (SELECT FROM {L} WHERE name = $1 AND token = 0 AND client IS NOT NULL),"                            \
    " counted AS (UPDATE {G} g SET token = greatest(g.token + 1, " MICROSECONDS ", " ABOVE_FORGOTTEN                   \
    ") FROM fresh WHERE g.name = $1 RETURNING g.token)"
#define INSERT_GIVE_TOKEN "UPDATE {L} l SET token = counted.token FROM counted WHERE l.name = $1"

static const char insert_count[] = INSERT_COUNT " " INSERT_GIVE_TOKEN;

static const char insert_finish[] =
    INSERT_COUNT ", given AS (" INSERT_GIVE_TOKEN ") SELECT " NEED_NOT_LAST " WHERE NOT EXISTS (SELECT FROM counted)";

static const char insert_look[] = "SELECT CASE WHEN " IS_MINE " THEN l.token ELSE 0 END, l.host, l.pid, " LEFT_MS(
    "l.expires") ", " IS_FREE ", " IS_AHEAD ", " MICROSECONDS " FROM (SELECT 1) one LEFT JOIN {L} l ON l.name = $1";

/* The last token may be that of another strategy, whose rows stay. */
static const char insert_lock[] =
    "INSERT INTO {G} AS g (name, token) VALUES ($1, coalesce((SELECT l.token FROM {L} l WHERE l.name = $1), 0))"
    " ON CONFLICT (name) DO UPDATE SET token = greatest(g.token, excluded.token)";

#define TELL_GIVEN NOTIFY("given", "''")

static const char insert_serve[] =
    "WITH heir AS (" HEIR "),"
    " given AS (INSERT INTO {L} AS l (name, client, serial, token, since, expires, ttl, host, pid, note)"
    " SELECT $1, h.client, h.serial, 0, " NOW ", " NOW " + " CLAIM ", " CLAIM_MS ", h.host, h.pid, h.note FROM heir h"
    " ON CONFLICT (name) DO UPDATE SET client = excluded.client, serial = excluded.serial, token = 0,"
    " since = excluded.since, expires = " NOW " + " CLAIM ", ttl = " CLAIM_MS
    ", host = excluded.host, pid = excluded.pid,"
    " note = excluded.note, request = 0 WHERE " IS_FREE " RETURNING l.client, l.serial),"
    " gone AS (DELETE FROM {W} w WHERE w.name = $1 AND ((EXISTS (SELECT FROM given)"
    " AND w.place <= (SELECT place FROM heir)) OR NOT EXISTS (SELECT FROM heir)))"
    " SELECT " TELL_GIVEN ", " TELL_SECOND " FROM given, heir h LEFT JOIN LATERAL (" SECOND ") s ON true";

static const char insert_free[] = "DELETE FROM {L} WHERE name = $1 AND client = $2 AND serial = $3";
static const char insert_mark[] = FREE_AND_MARK("DELETE FROM {L} l WHERE l.name = $1 AND " IS_MINE);

static const char insert_evict[] = "DELETE FROM {L} l WHERE l.name = $1" EVICTED;

/* --- bound to a connection: who holds it, or held it last, and its token, is in the row of grants --- */

#define GRANT_COLUMNS "name, token, client, serial, backend, since, host, pid, note"
#define GRANT_UPDATE                                                                                                   \
    " ON CONFLICT (name) DO UPDATE SET token = greatest(g.token + 1, excluded.token), client = excluded.client,"       \
    " serial = excluded.serial, backend = excluded.backend, since = excluded.since, host = excluded.host,"             \
    " pid = excluded.pid, note = excluded.note RETURNING token"
#define GRANTED(token) "$1, " token ", $2, $3, $4, " NOW ", $5, $6, $7"

static const char grant[] = "INSERT INTO {G} AS g (" GRANT_COLUMNS
                            ") VALUES (" GRANTED("greatest(" MICROSECONDS ", " ABOVE_FORGOTTEN ")") ")" GRANT_UPDATE;

#define CLEAR                                                                                                          \
    "UPDATE {G} SET client = NULL, serial = NULL, backend = NULL WHERE name = $1 AND client = $2 AND serial = $3"

static const char clear[] = CLEAR;

/* Whoever reads the row looks whether that session has the lock. */
static const char bound_finish[] = CLEAR " RETURNING " NEED_NOT_LAST;

static const char cancel[] = "SELECT pg_cancel_backend($1)";

/* How tokens grow though a grant does not wait for the disk: postgres_tokens.c. No floor, nothing done: OFFSET, so
 * that the lock is not tried before it was read. */
#define ABOVE_FLOOR "greatest(f.floor + 1, " MICROSECONDS ")"
#define ADVISORY_GRANT(condition)                                                                                      \
    "INSERT INTO {G} AS g (" GRANT_COLUMNS ") SELECT " GRANTED(                                                        \
        ABOVE_FLOOR) " FROM (SELECT w.note::bigint AS floor FROM {W} w WHERE w.client = 0 AND w.serial = 0 OFFSET 0) " \
                     "f" condition " ON CONFLICT (name) DO UPDATE SET token = greatest(g.token + 1, excluded.token),"  \
                     " client = excluded.client, serial = excluded.serial, backend = excluded.backend,"                \
                     " since = excluded.since, host = excluded.host, pid = excluded.pid, note = excluded.note"         \
                     " RETURNING token, CASE WHEN token <= $8 THEN " NEED_NOT_LAST " END"
#define ADVISORY_TRY "pg_try_advisory_lock(" KEY("$1") ")"

static const char advisory_take[] = ADVISORY_GRANT(" WHERE " ADVISORY_TRY);
/* Conditions that are joined by AND are looked at in any order. */
static const char advisory_take_once[] = ADVISORY_GRANT(" WHERE CASE WHEN EXISTS (SELECT FROM {D} d WHERE " IS_DONE
                                                        ") THEN false ELSE " ADVISORY_TRY " END");
static const char advisory_grant[] = ADVISORY_GRANT("");

/* Whether there is a floor; who holds it, as the row is that of the last who did; and whether anybody does. */
static const char advisory_look[] =
    "SELECT EXISTS (SELECT FROM {W} w WHERE w.client = 0 AND w.serial = 0), g.host, g.pid, " IS_HELD_BY(
        "$1", "") " FROM (SELECT 1) one LEFT JOIN {G} g ON g.name = $1 AND " IS_HELD_BY("$1", THAT_BACKEND);

/* A ceiling is that much above a token that its table had before. So should the row be deleted, no token that a crash
 * can make forgotten is further above those that are left. */
#define AHEAD "15000000"
#define LOST_CEILING "coalesce((SELECT max(l.token) + " AHEAD " FROM {G} l), 0)"

static const char token_floor[] =
    "WITH mark AS (SELECT coalesce((SELECT g.token FROM {G} g WHERE g.name = ''), " LOST_CEILING ") AS token),"
    " made AS (INSERT INTO {G} (name, token) SELECT '', token FROM mark ON CONFLICT (name) DO NOTHING)"
    " INSERT INTO {W} (name, client, serial, backend, note) SELECT '', 0, 0, 0, token::text FROM mark"
    " ON CONFLICT (client, serial) DO NOTHING";

/* One at a time: who hangs while it has the row locked must hold up nobody. */
static const char token_ceiling[] =
    "WITH raised AS (UPDATE {G} g SET token = greatest(g.token, $1 + " AHEAD ") FROM (SELECT m.name FROM {G} m"
    " WHERE m.name = '' FOR UPDATE SKIP LOCKED) m WHERE g.name = m.name RETURNING g.token),"
    " made AS (INSERT INTO {G} (name, token) SELECT '', " LOST_CEILING " WHERE NOT EXISTS (SELECT FROM {G} m"
    " WHERE m.name = '') ON CONFLICT (name) DO NOTHING RETURNING token)"
    " SELECT token FROM raised UNION ALL SELECT token FROM made";

static const char advisory_block[] = "SELECT pg_advisory_lock(" KEY("$1") ")";

static const char advisory_unlock[] = "SELECT pg_advisory_unlock(" KEY("$1") ")";

#define ADVISORY_INSPECT(wanted)                                                                                       \
    "SELECT name, host, g.pid, token, " HELD_MS ", -1, (SELECT count(*) FROM pg_locks k WHERE " ADVISORY_OF(           \
        "g.name") " AND NOT k.granted), note FROM {G} g WHERE g.client IS NOT NULL AND " wanted                        \
                  " AND " IS_HELD_BY("g.name", THAT_BACKEND) " ORDER BY name"

static const char advisory_inspect[] = ADVISORY_INSPECT(BEGINS);
static const char advisory_inspect_one[] = ADVISORY_INSPECT(IS_IT);

/* 0: a program of another kind, which writes no token; or one that has not written it yet. */
#define ADVISORY_TOKEN                                                                                                 \
    "coalesce((SELECT g.token FROM {G} g WHERE g.name = $1 AND g.client IS NOT NULL AND g.backend = k.pid), 0)"

static const char advisory_holder[] =
    "SELECT k.pid, " ADVISORY_TOKEN " FROM pg_locks k WHERE " ADVISORY_OF("$1") " AND k.granted";

static const char advisory_evict[] = "SELECT pg_terminate_backend(k.pid) FROM pg_locks k WHERE " ADVISORY_OF(
    "$1") " AND k.granted AND k.pid = $2 AND $3 IN (0, " ADVISORY_TOKEN ")";

/* What a row strategy holds is not taken: that would keep its holder from renewing it. */
#define IS_HELD_AS_ROW "(l.client IS NOT NULL AND l.expires > " NOW ")"
#define UPDATE_TAKE(unless)                                                                                            \
    "WITH got AS (SELECT FROM {L} l WHERE l.name = $1 AND " IS_FREE unless " FOR UPDATE SKIP LOCKED)"                  \
    " SELECT EXISTS (SELECT FROM got)::int, g.host, g.pid, NULL::bigint, l.name IS NULL, " IS_HELD_AS_ROW              \
    " FROM (SELECT 1) one LEFT JOIN {L} l ON l.name = $1 LEFT JOIN {G} g ON g.name = $1 AND g.client IS NOT NULL"

static const char update_take[] = UPDATE_TAKE("");
static const char update_take_once[] = UPDATE_TAKE(UNLESS_DONE);

static const char update_add[] = "INSERT INTO {L} (name) VALUES ($1) ON CONFLICT (name) DO NOTHING";

static const char update_block[] = "SELECT " IS_HELD_AS_ROW " FROM {L} l WHERE l.name = $1 FOR UPDATE";

#define UPDATE_INSPECT(wanted)                                                                                         \
    "SELECT name, host, g.pid, token, " HELD_MS ", -1, -1, note FROM {G} g WHERE g.client IS NOT NULL"                 \
    " AND " wanted " AND " HOLDS_ROW " UNION ALL SELECT name, host, l.pid, token, " HELD_MS                            \
    ", " LEFT_MS("expires") ", -1, note FROM {L} l WHERE " IS_HELD_AS_ROW " AND " wanted " ORDER BY name"

static const char update_inspect[] = UPDATE_INSPECT(BEGINS);
static const char update_inspect_one[] = UPDATE_INSPECT(IS_IT);

static const char update_holder[] =
    "SELECT g.backend, g.token FROM {G} g WHERE g.name = $1 AND g.client IS NOT NULL AND " HOLDS_ROW;

static const char update_evict[] =
    "SELECT pg_terminate_backend(g.backend) FROM {G} g WHERE g.name = $1 AND g.client IS NOT NULL"
    " AND g.backend = $2 AND g.token = $3 AND " HOLDS_ROW;

/* --- the table --- */

static const char begin[] = "BEGIN ISOLATION LEVEL READ COMMITTED";

static const char show_token[] = "SELECT {H}($1, $2)";

/* The sessions of roles that may write who holds what. */
static const char vouch[] = "SELECT string_agg(a.pid::text, ' ') FROM pg_stat_activity a"
                            " WHERE a.datname = current_database() AND has_table_privilege(a.usesysid, $1, 'UPDATE')";

/* No row: it has ended, or the server that had it has, and all that it had is undone. A beginning that may not be seen
 * is that of a session that may not be ended either, which the server then says. */
static const char end_session[] =
    "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = $1 AND a.usename = session_user"
    " AND (a.backend_start IS NULL OR (extract(epoch FROM a.backend_start) * 1000000)::bigint <= $2)"
    " AND extract(epoch FROM pg_postmaster_start_time())::text = $3";

#define ROW_CAPS                                                                                                       \
    (HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |       \
     HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE)
#define BOUND_CAPS                                                                                                     \
    (HF_CAP_BOUND | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN | HF_CAP_INSPECT |     \
     HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE)

static const struct postgres_strategy strategies[] = {
    { .name = "lease",
      .caps = ROW_CAPS,
      .sql = { [POSTGRES_TAKE] = { lease_take, "ncsthpkr" },
               [POSTGRES_TAKE_ONCE] = { lease_take_once, "ncsthpkr" },
               [POSTGRES_LOCK] = { lease_lock, "n" },
               [POSTGRES_ENTER] = { enter, "ncsbhpk" },
               [POSTGRES_SERVE] = { lease_serve, "n" },
               [POSTGRES_FINISH] = { lease_finish, "n" },
               [POSTGRES_CLEAN] = { lease_clean, "n" },
               [POSTGRES_MEND] = { mend, "n" },
               [POSTGRES_LEAVE] = { leave, "cs" },
               [POSTGRES_RENEW] = { renew, "ncstr" },
               [POSTGRES_FREE] = { lease_free, "ncs" },
               [POSTGRES_MARK] = { lease_mark, "ncst" },
               [POSTGRES_HOLDER] = { row_holder, "n" },
               [POSTGRES_EVICT] = { lease_evict, "nv" },
               [POSTGRES_BLAME] = { row_blame, "nvk" },
               [POSTGRES_BROKEN] = { row_broken, "n" },
               [POSTGRES_INSPECT] = { row_inspect, "n" },
               [POSTGRES_INSPECT_ONE] = { row_inspect_one, "n" },
               [POSTGRES_DONE] = { done, "n" },
               [POSTGRES_INSPECT_DONE] = { inspect_done, "n" },
               [POSTGRES_FORGET_DONE] = { forget_done, "nv" },
               [POSTGRES_GUARD] = { show_token, "nv" },
               [POSTGRES_VOUCH] = { vouch, "l" },
               [POSTGRES_END_SESSION] = { end_session, "bvk" } },
      .attempt = { POSTGRES_TAKE },
      .line_up = { POSTGRES_LOCK, POSTGRES_ENTER, POSTGRES_SERVE, POSTGRES_TAKE },
      .help = { POSTGRES_LOCK, POSTGRES_MEND, POSTGRES_SERVE, POSTGRES_CLEAN, POSTGRES_TAKE },
      .release = { POSTGRES_FREE, POSTGRES_FINISH },
      .mark = { POSTGRES_MARK, POSTGRES_SERVE },
      .leave = { POSTGRES_LOCK, POSTGRES_FREE, POSTGRES_LEAVE, POSTGRES_SERVE, POSTGRES_CLEAN },
      .evict = { POSTGRES_EVICT, POSTGRES_SERVE } },
    { .name = "version",
      .caps = ROW_CAPS,
      .swap = true,
      .sql = { [POSTGRES_LOOK] = { lease_look, "ncs" },
               [POSTGRES_SWAP] = { version_swap, "ncsthpkvr" },
               [POSTGRES_ADD] = { update_add, "n" },
               [POSTGRES_LOCK] = { lease_lock, "n" },
               [POSTGRES_ENTER] = { enter, "ncsbhpk" },
               [POSTGRES_SERVE] = { lease_serve, "n" },
               [POSTGRES_FINISH] = { lease_finish, "n" },
               [POSTGRES_CLEAN] = { lease_clean, "n" },
               [POSTGRES_MEND] = { mend, "n" },
               [POSTGRES_LEAVE] = { leave, "cs" },
               [POSTGRES_RENEW] = { renew, "ncstr" },
               [POSTGRES_FREE] = { lease_free, "ncs" },
               [POSTGRES_MARK] = { lease_mark, "ncst" },
               [POSTGRES_HOLDER] = { row_holder, "n" },
               [POSTGRES_EVICT] = { lease_evict, "nv" },
               [POSTGRES_BLAME] = { row_blame, "nvk" },
               [POSTGRES_BROKEN] = { row_broken, "n" },
               [POSTGRES_INSPECT] = { row_inspect, "n" },
               [POSTGRES_INSPECT_ONE] = { row_inspect_one, "n" },
               [POSTGRES_DONE] = { done, "n" },
               [POSTGRES_INSPECT_DONE] = { inspect_done, "n" },
               [POSTGRES_FORGET_DONE] = { forget_done, "nv" },
               [POSTGRES_GUARD] = { show_token, "nv" },
               [POSTGRES_VOUCH] = { vouch, "l" },
               [POSTGRES_END_SESSION] = { end_session, "bvk" } },
      .attempt = { POSTGRES_LOOK },
      .line_up = { POSTGRES_LOCK, POSTGRES_ENTER, POSTGRES_SERVE, POSTGRES_LOOK },
      .help = { POSTGRES_LOCK, POSTGRES_MEND, POSTGRES_SERVE, POSTGRES_CLEAN, POSTGRES_LOOK },
      .release = { POSTGRES_FREE, POSTGRES_FINISH },
      .mark = { POSTGRES_MARK, POSTGRES_SERVE },
      .leave = { POSTGRES_LOCK, POSTGRES_FREE, POSTGRES_LEAVE, POSTGRES_SERVE, POSTGRES_CLEAN },
      .evict = { POSTGRES_EVICT, POSTGRES_SERVE } },
    { .name = "insert",
      .caps = ROW_CAPS,
      .sql = { [POSTGRES_TAKE] = { insert_take, "ncsthpkr" },
               [POSTGRES_TAKE_ONCE] = { insert_take_once, "ncsthpkr" },
               [POSTGRES_COUNT] = { insert_count, "n" },
               [POSTGRES_LOOK] = { insert_look, "ncs" },
               [POSTGRES_LOCK] = { insert_lock, "n" },
               [POSTGRES_ENTER] = { enter, "ncsbhpk" },
               [POSTGRES_SERVE] = { insert_serve, "n" },
               [POSTGRES_FINISH] = { insert_finish, "n" },
               [POSTGRES_MEND] = { mend, "n" },
               [POSTGRES_LEAVE] = { leave, "cs" },
               [POSTGRES_RENEW] = { renew, "ncstr" },
               [POSTGRES_FREE] = { insert_free, "ncs" },
               [POSTGRES_MARK] = { insert_mark, "ncst" },
               [POSTGRES_HOLDER] = { row_holder, "n" },
               [POSTGRES_EVICT] = { insert_evict, "nv" },
               [POSTGRES_BLAME] = { row_blame, "nvk" },
               [POSTGRES_BROKEN] = { row_broken, "n" },
               [POSTGRES_INSPECT] = { row_inspect, "n" },
               [POSTGRES_INSPECT_ONE] = { row_inspect_one, "n" },
               [POSTGRES_DONE] = { done, "n" },
               [POSTGRES_INSPECT_DONE] = { inspect_done, "n" },
               [POSTGRES_FORGET_DONE] = { forget_done, "nv" },
               [POSTGRES_GUARD] = { show_token, "nv" },
               [POSTGRES_VOUCH] = { vouch, "l" },
               [POSTGRES_END_SESSION] = { end_session, "bvk" } },
      .attempt = { POSTGRES_LOCK, POSTGRES_TAKE, POSTGRES_COUNT, POSTGRES_LOOK },
      .line_up = { POSTGRES_LOCK, POSTGRES_ENTER, POSTGRES_SERVE, POSTGRES_TAKE, POSTGRES_COUNT, POSTGRES_LOOK },
      .help = { POSTGRES_LOCK, POSTGRES_MEND, POSTGRES_SERVE, POSTGRES_TAKE, POSTGRES_COUNT, POSTGRES_LOOK },
      .release = { POSTGRES_LOCK, POSTGRES_FREE, POSTGRES_SERVE, POSTGRES_FINISH },
      .mark = { POSTGRES_LOCK, POSTGRES_MARK, POSTGRES_SERVE, POSTGRES_COUNT },
      .leave = { POSTGRES_LOCK, POSTGRES_FREE, POSTGRES_LEAVE, POSTGRES_SERVE, POSTGRES_COUNT },
      .evict = { POSTGRES_LOCK, POSTGRES_EVICT, POSTGRES_SERVE, POSTGRES_COUNT } },
    { .name = "advisory",
      .caps = BOUND_CAPS | HF_CAP_FAIR,
      .bound = true,
      .sql = { [POSTGRES_BEGIN] = { begin, "" },
               [POSTGRES_COMMIT] = { "COMMIT", "" },
               [POSTGRES_FLOOR] = { token_floor, "" },
               [POSTGRES_CEILING] = { token_ceiling, "v" },
               [POSTGRES_TAKE] = { advisory_take, "ncsbhpke" },
               [POSTGRES_TAKE_ONCE] = { advisory_take_once, "ncsbhpke" },
               [POSTGRES_LOOK] = { advisory_look, "n" },
               [POSTGRES_BLOCK] = { advisory_block, "n" },
               [POSTGRES_GRANT] = { advisory_grant, "ncsbhpke" },
               [POSTGRES_MARK] = { bound_mark, "nvhtpk" },
               [POSTGRES_FREE] = { advisory_unlock, "n" },
               [POSTGRES_CANCEL] = { cancel, "b" },
               [POSTGRES_HOLDER] = { advisory_holder, "n" },
               [POSTGRES_EVICT] = { advisory_evict, "nbv" },
               [POSTGRES_INSPECT] = { advisory_inspect, "n" },
               [POSTGRES_INSPECT_ONE] = { advisory_inspect_one, "n" },
               [POSTGRES_DONE] = { done, "n" },
               [POSTGRES_INSPECT_DONE] = { inspect_done, "n" },
               [POSTGRES_FORGET_DONE] = { forget_done, "nv" },
               [POSTGRES_GUARD] = { show_token, "nv" },
               [POSTGRES_END_SESSION] = { end_session, "bvk" } },
      .attempt = { POSTGRES_TAKE },
      .release = { POSTGRES_FREE },
      /* the unlocking is at once, the mark with the end */
      .mark = { POSTGRES_BEGIN, POSTGRES_MARK, POSTGRES_COMMIT, POSTGRES_FREE } },
    { .name = "for-update",
      .caps = BOUND_CAPS,
      .bound = true,
      .transaction = true,
      .sql = { [POSTGRES_BEGIN] = { begin, "" },
               [POSTGRES_COMMIT] = { "COMMIT", "" },
               [POSTGRES_ROLLBACK] = { "ROLLBACK", "" },
               [POSTGRES_TAKE] = { update_take, "n" },
               [POSTGRES_TAKE_ONCE] = { update_take_once, "n" },
               [POSTGRES_ADD] = { update_add, "n" },
               [POSTGRES_BLOCK] = { update_block, "n" },
               [POSTGRES_GRANT] = { grant, "ncsbhpk" },
               [POSTGRES_CLEAR] = { clear, "ncs" },
               [POSTGRES_FINISH] = { bound_finish, "ncs" },
               [POSTGRES_MARK] = { bound_mark, "nvhtpk" },
               [POSTGRES_CANCEL] = { cancel, "b" },
               [POSTGRES_HOLDER] = { update_holder, "n" },
               [POSTGRES_EVICT] = { update_evict, "nbv" },
               [POSTGRES_INSPECT] = { update_inspect, "n" },
               [POSTGRES_INSPECT_ONE] = { update_inspect_one, "n" },
               [POSTGRES_DONE] = { done, "n" },
               [POSTGRES_INSPECT_DONE] = { inspect_done, "n" },
               [POSTGRES_FORGET_DONE] = { forget_done, "nv" },
               [POSTGRES_GUARD] = { show_token, "nv" },
               [POSTGRES_END_SESSION] = { end_session, "bvk" } },
      .attempt = { POSTGRES_TAKE },
      .release = { POSTGRES_FINISH, POSTGRES_COMMIT },
      .mark = { POSTGRES_MARK, POSTGRES_CLEAR, POSTGRES_COMMIT } },
};

const struct postgres_strategy *hfi_postgres_strategy(const char *name)
{
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        if (strcmp(name, strategies[i].name) == 0)
            return &strategies[i];
    }
    return NULL;
}
