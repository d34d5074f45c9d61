/* SPDX-License-Identifier: MIT
 *
 * sqlite_strategies.c: the strategies, each a table of statements.
 *
 * Time is the kernel's CLOCK_BOOTTIME, which all processes of a machine share. It starts over with each boot, of which
 * the holders are dead then, whatever their row says. A row that names this boot is of this boot. One that names
 * another may be of another container, which can have a name of its own for the same boot: it is of another boot for
 * certain if it was renewed at a time that has not come yet. Else it is believed until its end, which is at most one
 * time-to-live away. So who holds it is never taken for dead, whatever the boot is called.
 *
 * A token is one more than the last, which is kept for as long as the file is. After a boot it leaps: a power failure
 * may have taken back the last grants that were given out.
 *
 * Clients of different strategies may meet on one name: what holds for one holds for all. The last token is in the row
 * or, when the row has gone, with the grants, and who makes or removes the row carries it over.
 */
#include "sqlite.h"
#include <string.h>

/* What a power failure can take back is far less. */
#define LEAP "1048576"
#define MINE "(l.client = ?2 AND l.serial = ?3)"
#define NOBODY_WAITS "NOT EXISTS (SELECT 1 FROM {W} w WHERE w.name = ?1)"
#define NEXT(row) row ".token + CASE WHEN " row ".boot IS ?6 THEN 1 ELSE " LEAP " END"

/* --- what all of them do --- */

static const char enter[] = "INSERT INTO {W} (name, client, serial, host, pid, note) VALUES (?1, ?2, ?3, ?8, ?9, ?10)"
                            " ON CONFLICT (client, serial) DO NOTHING";

static const char queue[] = "SELECT place, client, serial FROM {W} WHERE name = ?1 ORDER BY place";

static const char strike[] = "DELETE FROM {W} WHERE name = ?1 AND place <= ?7";

static const char leave[] = "DELETE FROM {W} WHERE client = ?2 AND serial = ?3";

static const char renew[] = "UPDATE {L} SET expires = ?5, renewed = ?4 WHERE name = ?1 AND client = ?2 AND serial = ?3"
                            " AND boot = ?6 AND expires > ?4";

/* Version 0.1 does not note when. For it, what another boot has left is over. */
#define RENEWED "CASE WHEN l.renewed >= l.since THEN l.renewed ELSE coalesce(l.expires, 0) END"
#define OF_ANOTHER_BOOT(differs) "(l.boot " differs " ?6 AND " RENEWED " > ?4)"

/* The trigger of this view refuses, and undoes the transaction. */
static const char guard[] = "INSERT INTO holdfast_guard (resource, token) VALUES (?1, ?7)";

/* What is done: when, in milliseconds of the wall clock, and for how long that counts. */
static const char done[] = "SELECT coalesce(host, ''), coalesce(pid, 0), coalesce(note, ''), done, lasts,"
                           " coalesce(client, 0), coalesce(serial, 0) FROM {D} WHERE name = ?1";

static const char record_done[] =
    "INSERT INTO {D} (name, token, client, serial, done, lasts, host, pid, note)"
    " SELECT name, token, client, serial, ?4, ?5, host, pid, note FROM {L}"
    " WHERE name = ?1 AND client = ?2 AND serial = ?3 ON CONFLICT (name) DO UPDATE SET token = excluded.token,"
    " client = excluded.client, serial = excluded.serial, done = excluded.done, lasts = excluded.lasts,"
    " host = excluded.host, pid = excluded.pid, note = excluded.note";

static const char forget_done[] = "DELETE FROM {D} WHERE name = ?1";

#define LOOK(free)                                                                                                     \
    "SELECT l.name IS NOT NULL, coalesce(" MINE ", 0), coalesce(" free ", l.name IS NULL), NOT " NOBODY_WAITS          \
    ", coalesce(l.token, 0), coalesce(l.pid, 0), coalesce(l.expires, 0), coalesce(l.client, 0),"                       \
    " coalesce(l.serial, 0), coalesce(l.host, '') FROM (SELECT 1) LEFT JOIN {L} l ON l.name = ?1"

/* By characters: a database may also be in UTF-16. */
#define BEGINS "l.name >= ?1 AND substr(l.name, 1, length(?1)) = ?1"
#define IS_IT "l.name = ?1"

#define INSPECT(wanted, free)                                                                                          \
    "SELECT l.name, coalesce(l.host, ''), coalesce(l.pid, 0), l.token, coalesce(l.since, ?4), coalesce(l.expires, 0)," \
    " (SELECT count(*) FROM {W} w WHERE w.name = l.name), coalesce(l.note, '') FROM {L} l"                             \
    " WHERE " wanted " AND NOT coalesce(" free ", 0) ORDER BY l.name"

static const char inspect_done[] =
    "SELECT l.name, coalesce(l.host, ''), coalesce(l.pid, 0), l.token, l.done, l.lasts, -1, coalesce(l.note, '')"
    " FROM {D} l WHERE " BEGINS " ORDER BY l.name";

#define COMMON                                                                                                         \
    [LITE_BEGIN] = "BEGIN IMMEDIATE", [LITE_COMMIT] = "COMMIT", [LITE_ROLLBACK] = "ROLLBACK", [LITE_ENTER] = enter,    \
    [LITE_QUEUE] = queue, [LITE_STRIKE] = strike, [LITE_LEAVE] = leave, [LITE_RENEW] = renew, [LITE_GUARD] = guard,    \
    [LITE_DONE] = done, [LITE_RECORD_DONE] = record_done, [LITE_FORGET_DONE] = forget_done,                            \
    [LITE_INSPECT_DONE] = inspect_done

/* --- lease and version: the row is kept for ever, and with it the last token --- */

#define ROW_FREE "(l.client IS NULL OR l.expires <= ?4 OR " OF_ANOTHER_BOOT("IS NOT") ")"

static const char row_look[] = LOOK(ROW_FREE);

static const char row_inspect[] = INSPECT(BEGINS, ROW_FREE);
static const char row_inspect_one[] = INSPECT(IS_IT, ROW_FREE);

static const char lease_take[] =
    "INSERT INTO {L} AS l (name, token, client, serial, boot, since, renewed, expires, host, pid, note)"
    " VALUES (?1, coalesce((SELECT " NEXT("g") " FROM {G} g WHERE g.name = ?1), 1), ?2, ?3, ?6, ?4, ?4, ?5, ?8, ?9,"
                                               " ?10) ON CONFLICT (name) DO UPDATE SET"
                                               " token = CASE WHEN " MINE " THEN l.token ELSE " NEXT(
                                                   "l") " END,"
                                                        " since = CASE WHEN " MINE " THEN l.since ELSE ?4 END,"
                                                        " client = ?2, serial = ?3, boot = ?6, renewed = ?4, expires = "
                                                        "?5, host = ?8, pid = ?9, note = ?10"
                                                        " WHERE " MINE " OR (" ROW_FREE " AND " NOBODY_WAITS
                                                        ") RETURNING token";

static const char version_add[] =
    "INSERT INTO {L} (name, token, boot) SELECT ?1, coalesce(max(g.token), 0), coalesce(max(g.boot), ?6)"
    " FROM {G} g WHERE g.name = ?1 ON CONFLICT (name) DO NOTHING";

static const char version_take[] = "UPDATE {L} AS l SET token = " NEXT(
    "l") ", since = ?4, renewed = ?4, client = ?2, serial = ?3, boot = ?6, expires = ?5,"
         " host = ?8, pid = ?9, note = ?10 WHERE l.name = ?1 AND l.token = ?7 AND " ROW_FREE " AND " NOBODY_WAITS
         " RETURNING token";

static const char row_give[] = "UPDATE {L} AS l SET token = " NEXT(
    "l") ", since = ?4, renewed = ?4, boot = ?6, expires = ?5,"
         " (client, serial, host, pid, note) = (SELECT client, serial, host, pid, note FROM {W} WHERE place = ?7)"
         " WHERE l.name = ?1";

#define ROW_FREE_IT                                                                                                    \
    "UPDATE {L} SET client = NULL, serial = NULL, expires = NULL WHERE name = ?1 AND client = ?2 AND serial = ?3"

static const char row_free[] = ROW_FREE_IT;

static const char row_free_alone[] = ROW_FREE_IT " AND " NOBODY_WAITS;

static const char row_evict[] = "UPDATE {L} SET client = NULL, serial = NULL, expires = NULL WHERE name = ?1";

/* --- insert: the row is the lock; the last token, which must outlive it, is in the row of grants --- */

/* One that somebody else has inserted has no end, and belongs to no boot. One that belongs to a boot, but to no client,
 * was freed by another strategy. */
#define INSERTED_FREE "(l.expires <= ?4 OR (l.client IS NULL AND l.boot IS NOT NULL) OR " OF_ANOTHER_BOOT("<>") ")"

static const char insert_look[] = LOOK(INSERTED_FREE);

static const char insert_inspect[] = INSPECT(BEGINS, INSERTED_FREE);
static const char insert_inspect_one[] = INSPECT(IS_IT, INSERTED_FREE);

static const char insert_count[] = "INSERT INTO {G} AS g (name, token, boot) VALUES (?1, 1, ?6)"
                                   " ON CONFLICT (name) DO UPDATE SET token = " NEXT("g") ", boot = ?6 RETURNING token";

static const char insert_keep[] =
    "INSERT INTO {G} (name, token, boot) SELECT l.name, l.token, l.boot FROM {L} l WHERE l.name = ?1 AND l.token > 0"
    " AND NOT EXISTS (SELECT 1 FROM {G} g WHERE g.name = ?1 AND g.token >= l.token)"
    " ON CONFLICT (name) DO UPDATE SET token = excluded.token, boot = excluded.boot";

#define INSERT_IT "INSERT INTO {L} (name, token, client, serial, boot, since, renewed, expires, host, pid, note)"
/* Over what is there: it was found to be free. */
#define REPLACE_IT                                                                                                     \
    " ON CONFLICT (name) DO UPDATE SET token = excluded.token, client = excluded.client, serial = excluded.serial,"    \
    " boot = excluded.boot, since = excluded.since, renewed = excluded.renewed, expires = excluded.expires,"           \
    " host = excluded.host, pid = excluded.pid, note = excluded.note RETURNING token"

static const char insert_take[] = INSERT_IT " VALUES (?1, ?7, ?2, ?3, ?6, ?4, ?4, ?5, ?8, ?9, ?10)" REPLACE_IT;

static const char insert_give[] =
    INSERT_IT " SELECT ?1, (SELECT token FROM {G} WHERE name = ?1), client, serial, ?6, ?4, ?4, ?5, host, pid, note"
              " FROM {W} WHERE place = ?7" REPLACE_IT;

#define DELETE_IT "DELETE FROM {L} WHERE name = ?1 AND client = ?2 AND serial = ?3"

static const char insert_free[] = DELETE_IT;

static const char insert_free_alone[] = DELETE_IT " AND " NOBODY_WAITS;

static const char insert_evict[] = "DELETE FROM {L} WHERE name = ?1";

/* --- the table --- */

static const struct sqlite_strategy strategies[] = {
    { .name = "lease",
      .blind = true,
      .sql = { COMMON, [LITE_LOOK] = row_look, [LITE_TAKE] = lease_take, [LITE_GIVE] = row_give, [LITE_FREE] = row_free,
               [LITE_FREE_ALONE] = row_free_alone, [LITE_EVICT] = row_evict, [LITE_INSPECT] = row_inspect,
               [LITE_INSPECT_ONE] = row_inspect_one } },
    { .name = "version",
      .sql = { COMMON, [LITE_LOOK] = row_look, [LITE_ADD] = version_add, [LITE_TAKE] = version_take,
               [LITE_GIVE] = row_give, [LITE_FREE] = row_free, [LITE_FREE_ALONE] = row_free_alone,
               [LITE_EVICT] = row_evict, [LITE_INSPECT] = row_inspect, [LITE_INSPECT_ONE] = row_inspect_one } },
    { .name = "insert",
      .count = true,
      .sql = { COMMON, [LITE_LOOK] = insert_look, [LITE_KEEP] = insert_keep, [LITE_COUNT] = insert_count,
               [LITE_TAKE] = insert_take, [LITE_GIVE] = insert_give, [LITE_FREE] = insert_free,
               [LITE_FREE_ALONE] = insert_free_alone, [LITE_EVICT] = insert_evict, [LITE_INSPECT] = insert_inspect,
               [LITE_INSPECT_ONE] = insert_inspect_one } },
};

const struct sqlite_strategy *hfi_sqlite_strategy(const char *name)
{
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        if (strcmp(strategies[i].name, name) == 0)
            return &strategies[i];
    }
    return NULL;
}
