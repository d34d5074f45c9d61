/* SPDX-License-Identifier: MIT
 *
 * mysql_strategies.c: the strategies, each a table of statements.
 *
 * Time is the server's UTC_TIMESTAMP(6), the moment at which the statement began: a holder counts from the moment
 * before it was sent, so waiting for a row makes a lease shorter for others and never longer for its holder. A request
 * that was given up may still arrive, or come through behind a row that was locked. So each has a number, and the row
 * keeps that of its owner's last one: an earlier one finds it, and does nothing. And an owner that gives up while
 * something is unanswered is written down in the row (undone), before it is freed: it cannot take it any more.
 *
 * A token is the larger of the last one + 1 and the server's microseconds, drawn while the row is locked; the statement
 * hands it back by LAST_INSERT_ID(). Assignments of an UPDATE of one table are made from left to right.
 *
 * The bell is a user-level lock, GET_LOCK(). Who holds a row holds its bell, on the same connection; who waits, waits
 * for the bell, in the server's own queue; who frees the row lets go of the bell in the same statement, while the row
 * is still locked, so that the one that is woken finds the row free after a moment. A row that was freed is for whoever
 * has the bell, for a second. After that, or when a lease is over, the bell may be stuck with somebody who stands
 * still: the row can be taken without it, and then gets a new bell, which has a new number (epoch).
 *
 * What must be true, or somebody waits in vain or is overtaken:
 *   1. The bell of a row is with its holder, with one who is going to ask for the row by itself (first in line), or
 *      free. A connection in the pool has none.
 *   2. Who is first stays first until it has the row or gives up: no answer but the end of its connection takes the
 *      bell from it.
 *   3. Whoever looks whether a row is claimed sees every release that began before the row is free.
 *   4. A bell whose number is no longer the row's is let go by whoever notices, so that the next one notices too.
 *   5. What nobody can tell (the first stands still; its bell is stuck) ends by asking: see BACKSTOP_ in mysql_rows.c.
 *
 * Conditions that ring or take a bell stand in an IF(), which is not evaluated before its condition. What they give is
 * used: MySQL does not call a function whose value, such as that of "… IS NULL", it knows already.
 */
#include "mysql_engine.h"
#include <string.h>

#define NOW "UTC_TIMESTAMP(6)"
#define MICROSECONDS "CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) * 1000000 AS UNSIGNED)"
#define END NOW " + INTERVAL ? * 1000 MICROSECOND"
#define CLAIM_MS "1000"
#define CLAIM_END NOW " + INTERVAL 1 SECOND"
#define LEFT_MS(end) "TIMESTAMPDIFF(MICROSECOND, " NOW ", " end ") DIV 1000"
#define HELD_MS "GREATEST(0, TIMESTAMPDIFF(MICROSECOND, since, " NOW ") DIV 1000)"
/* Its end is further away than its whole time: the server's clock was set back, by an hour perhaps, and for that hour a
 * dead holder would keep it. More than a minute further, as NOW is when a statement began: one that had to wait for the
 * row must not cut short what was renewed meanwhile. */
#define IS_AHEAD(expires, ttl) "(" expires " > " NOW " + INTERVAL (" ttl " + 60000) * 1000 MICROSECOND)"
#define BEGINS(name) "LEFT(" name ", LENGTH(?)) = ?"
#define IS_IT(name) name " = ?"

/* User-level locks are the server's, not the database's, and their names are short. */
#define TAG(name) "CONCAT('holdfast:', LEFT(SHA2(CONCAT(CAST({D} AS BINARY), '.', {T}, '.', " name "), 256), 32), ':'"
#define BELL TAG("name") ", epoch)"
#define BELL_OF(row) TAG(row ".name") ", " row ".epoch)"
#define IS_MINE(bell) "(IS_USED_LOCK(" bell ") <=> CONNECTION_ID())"
#define MINE IS_MINE(BELL)
#define GOT_BELL "(" MINE " OR GET_LOCK(" BELL ", 0))"
/* Who looks and has the bell of another time lets go of it. */
#define IS_FIRST(bell) "IF(" IS_MINE(bell) ", 1, RELEASE_ALL_LOCKS() * 0)"
#define NEXT_TOKEN "GREATEST(token + 1, " MICROSECONDS ")"

/* --- once: the mark that the work of a lock is done --- */

/* Looked at when the lock is ours, or the row of its name locked, so that it is there if whoever had it last has left
 * one. Therefore not "name = ?", by which a row would be read before the statement is carried out; and a locking read,
 * which sees what is there now. The bell, or the lock, is let go of, and 1 in the place of a token says why. */
#define UNLESS_DONE(condition)                                                                                         \
    "IF((SELECT d.expires > " NOW " FROM {N} d WHERE d.name >= ? AND d.name <= ? LOCK IN SHARE MODE),"                 \
    " LAST_INSERT_ID(RELEASE_ALL_LOCKS() * 0 + 1) * 0, " condition ")"

/* While the lock is held: `row` is there only then, and nobody can take it before this is committed. */
#define MARK(row)                                                                                                      \
    "INSERT INTO {N} (name, token, since, expires, host, pid, note)"                                                   \
    " SELECT name, token, " NOW ", " END ", host, pid, note FROM (" row " FOR UPDATE) r WHERE name IS NOT NULL"        \
    " ON DUPLICATE KEY UPDATE token = VALUES(token), since = VALUES(since), expires = VALUES(expires),"                \
    " host = VALUES(host), pid = VALUES(pid), note = VALUES(note)"

static const char lease_mark[] = MARK("SELECT name, token, host, pid, note FROM {L} WHERE name = ? AND owner = ?");

#define LOOK_AT_MARKS(wanted)                                                                                          \
    "SELECT name, host, pid, token, " HELD_MS ", " LEFT_MS("expires") ", -1, note FROM {N} WHERE " wanted

static const char marks[] = LOOK_AT_MARKS("expires > " NOW " AND " BEGINS("name") " ORDER BY name");
static const char look_at_mark[] = LOOK_AT_MARKS(IS_IT("name"));

static const char forget[] = "DELETE FROM {N} WHERE name = ? AND token = ?";

/* --- lease and version --- */

#define OVER "(expires <= " NOW " OR (expires IS NULL AND owner IS NULL))"
#define TAKE_ROW                                                                                                       \
    "UPDATE {L} SET token = LAST_INSERT_ID(IF(owner <=> ?, token, " NEXT_TOKEN                                         \
    ")), since = IF(owner <=> ?, since, " NOW "), epoch = IF(owner <=> ? OR " MINE                                     \
    ", epoch, token), bell = IF(" GOT_BELL ", CONNECTION_ID(), 0),"                                                    \
    " owner = ?, request = ?, ttl = ?, expires = " END ", host = ?, pid = ?, note = ? WHERE name = ?"
#define IF_FREE                                                                                                        \
    "IF(LOCATE(?, undone), 0, IF(owner <=> ?, request < ?,"                                                            \
    " IF(owner IS NULL OR " OVER ", " GOT_BELL " OR " OVER ", 0)))"

static const char lease_take[] = TAKE_ROW " AND " IF_FREE;
static const char lease_take_once[] = TAKE_ROW " AND " UNLESS_DONE(IF_FREE);

/* Optimistic: as it was when it was looked at, or not at all. */
static const char version_take[] = TAKE_ROW " AND token = ? AND " IF_FREE;
static const char version_take_once[] = TAKE_ROW " AND token = ? AND " UNLESS_DONE(IF_FREE);

/* With an end: a row without one is somebody else's, and a lock to those who use insert. */
#define LONG_AGO "'1970-01-01 00:00:00'"
static const char lease_add[] =
    "INSERT INTO {L} (name, expires) VALUES (?, " LONG_AGO ") ON DUPLICATE KEY UPDATE epoch = epoch";

#define LOOK_AT_ROW                                                                                                    \
    "SELECT owner <=> ?, host, pid, IF(owner IS NULL, 0, " LEFT_MS("expires") "), " BELL ", " IS_FIRST(                \
        BELL) ", token, owner IS NULL OR " OVER ", " IS_AHEAD("expires", "ttl") " FROM {L} WHERE name = ?"

static const char lease_look[] = LOOK_AT_ROW;

/* The bell rings before the row is committed: whoever looks first, and was rung for, must see it free. */
static const char version_look[] = LOOK_AT_ROW " LOCK IN SHARE MODE";

/* Its holder counts from before the clock was set, and so has no more than this left. */
static const char mend[] =
    "UPDATE {L} SET expires = " NOW " + INTERVAL ttl * 1000 MICROSECOND WHERE name = ? AND " IS_AHEAD("expires", "ttl");

/* Who waits is written down for people. Each has a user-level lock, too, by which it is seen that it really does. */
#define SIGN(connection) "CONCAT('holdfast:waits:', " connection ")"
#define IN_LINE(lock)                                                                                                  \
    "SELECT COUNT(*) FROM {W} w WHERE w.name = " lock ".name AND NOT (w.owner <=> " lock ".owner)"                     \
    " AND IS_USED_LOCK(" SIGN("w.connection") ") = w.connection"
/* A row that somebody else has inserted may have no bell, and MySQL refuses NULL as the name of a lock. */
#define RINGER_OF(row) "COALESCE(IS_USED_LOCK(COALESCE(" BELL_OF(row) ", 'holdfast')), 0)"
/* The first in line, which has the bell if the holder has none, need not have waited for it. */
#define WAITERS(lock, row)                                                                                             \
    "(" IN_LINE(lock) " AND w.connection <> " RINGER_OF(row) ") + (" RINGER_OF(row) " NOT IN (0, " row ".bell))"

static const char enter[] = "REPLACE INTO {W} (connection, name, owner, since, host, pid, note)"
                            " VALUES (CONNECTION_ID(), ?, ?, " NOW ", ?, ?, ?)";

static const char tidy[] =
    "DELETE FROM {W} WHERE since < " NOW " - INTERVAL 1 MINUTE AND IS_USED_LOCK(" SIGN("connection") ") IS NULL";

/* The sign, and in the same breath the place in line. */
#define CALL(bell) "SELECT GET_LOCK(" SIGN("CONNECTION_ID()") ", 0), GET_LOCK(" bell ", 31536000)"

static const char call[] = CALL("?");

#define RENEW "UPDATE {L} SET request = ?, ttl = ?, expires = " END
#define IF_HELD " AND expires > " NOW " AND request < ?"

static const char renew[] = RENEW " WHERE name = ? AND owner = ?" IF_HELD;

/* An owner is unique, so that no pair of a name and another's owner can match. */
static const char renew_many[] = RENEW " WHERE name IN ({M}) AND owner IN ({M})" IF_HELD;

static const char alive_many[] = "SELECT owner FROM {L} WHERE name IN ({M}) AND owner IN ({M}) AND expires > " NOW;

/* The last thousand of a name. Made if the name was never used: an attempt may come after the one who makes it. */
#define REFUSE(table, columns, values)                                                                                 \
    "INSERT INTO " table " (name, undone" columns ") VALUES (?, CONCAT(?, ',')" values ") ON DUPLICATE KEY UPDATE"     \
    " undone = RIGHT(CONCAT(COALESCE(undone, ''), VALUES(undone)), 33000)"

static const char lease_refuse[] = REFUSE("{L}", ", expires", ", " LONG_AGO);

static const char lease_free[] = "UPDATE {L} SET owner = NULL, expires = " CLAIM_END ", ttl = " CLAIM_MS
                                 ", bell = RELEASE_ALL_LOCKS() * 0 WHERE name = ? AND owner = ?";

/* That of insert is in the row of grants; the later one is greater. */
#define LATER_TOKEN "GREATEST(l.token, COALESCE((SELECT g.token FROM {G} g WHERE g.name = l.name), 0))"

/* Of who had it when it was looked at: what arrives late must not break the next one. */
static const char lease_ringer[] = "SELECT IF(IS_USED_LOCK(" BELL ") <=> bell, bell, 0), " BELL ", owner, " LATER_TOKEN
                                   " FROM {L} l WHERE name = ? AND owner IS NOT NULL";

static const char lease_evict[] = "UPDATE {L} SET owner = NULL, expires = " NOW " WHERE name = ? AND owner = ?";

/* A lock that is bound to a connection: whether the one that the row of grants names has it. */
#define IS_HELD "(owner IS NOT NULL AND IS_USED_LOCK(COALESCE(lockname, 'holdfast')) = connection)"

/* In the row of grants, which stays when the next one takes it: in the place of the note of a lock that is bound to a
 * connection, unless that is held. */
static const char blame[] =
    "INSERT INTO {G} (name, note) VALUES (?, LEFT(?, 120)) ON DUPLICATE KEY UPDATE"
    " note = IF(" IS_HELD ", note, VALUES(note)), connection = IF(" IS_HELD ", connection, NULL)";

static const char broken[] = "SELECT note FROM {G} WHERE name = ? AND connection IS NULL";

#define ROW_INSPECT(wanted)                                                                                            \
    "SELECT name, host, pid, " LATER_TOKEN ", " HELD_MS                                                                \
    ", " LEFT_MS("expires") ", " WAITERS("l", "l") ", note FROM {L} l"                                                 \
                                                   " WHERE owner IS NOT NULL AND expires > " NOW " AND " wanted        \
                                                   " ORDER BY name"

static const char row_inspect[] = ROW_INSPECT(BEGINS("name"));
static const char row_inspect_one[] = ROW_INSPECT(IS_IT("name"));

/* --- insert: the row is the lock; what must outlive it is in the row of grants --- */

static const char insert_add[] = "INSERT INTO {G} (name) VALUES (?) ON DUPLICATE KEY UPDATE epoch = epoch";

/* Its time is over, or lease or version have freed it: they leave a row behind, which has a token. */
#define IS_OVER(row) "(" row ".expires <= " NOW " OR (" row ".owner IS NULL AND " row ".token > 0))"
#define OLD_IS_OVER IS_OVER("{L}")
#define ROW_IS_OVER IS_OVER("l")

/* The row that is there already stays as it is, unless it is over, or this very owner's. The row of grants is locked: a
 * release writes its claim there before it frees the lock, and who had read an older one would overtake those who
 * wait. */
#define UNLESS_OVER(column) column " = IF(" OLD_IS_OVER ", VALUES(" column "), {L}." column ")"
#define IF_MINE(column)                                                                                                \
    column " = IF({L}.owner = VALUES(owner) AND {L}.request = VALUES(request), VALUES(" column "), {L}." column ")"
#define TAKE_OVER                                                                                                      \
    UNLESS_OVER("since")                                                                                               \
    ", " UNLESS_OVER("host") ", " UNLESS_OVER("pid") ", " UNLESS_OVER(                                                 \
        "note") ", request = IF(" OLD_IS_OVER " OR ({L}.owner = VALUES(owner) AND {L}.request <"                       \
                " VALUES(request)), VALUES(request), {L}.request), " UNLESS_OVER("owner") ", " IF_MINE(                \
                    "ttl") ", " IF_MINE("expires")
#define INSERT_ROW                                                                                                     \
    "INSERT INTO {L} (name, owner, request, since, ttl, expires, host, pid, note)"                                     \
    " SELECT g.name, ?, ?, " NOW ", ?, " END                                                                           \
    ", ?, ?, ? FROM (SELECT name, epoch, claim, undone FROM {G} WHERE name = ? LOCK IN SHARE MODE) g WHERE "
#define IF_CLAIMED                                                                                                     \
    "IF(LOCATE(?, undone), 0,"                                                                                         \
    " EXISTS (SELECT 1 FROM {L} m WHERE m.name = g.name AND m.owner = ?) OR " GOT_BELL " OR claim <= " NOW             \
    " OR " IS_AHEAD("claim", CLAIM_MS) ")"
static const char insert_take[] = INSERT_ROW IF_CLAIMED " ON DUPLICATE KEY UPDATE " TAKE_OVER;
static const char insert_take_once[] = INSERT_ROW UNLESS_DONE(IF_CLAIMED) " ON DUPLICATE KEY UPDATE " TAKE_OVER;

/* Whoever takes it has the row of grants locked from before it looks for a mark. */
static const char insert_mark[] =
    MARK("SELECT g.name, g.token, l.host, l.pid, l.note FROM {G} g JOIN {L} l ON l.name = g.name"
         " WHERE g.name = ? AND g.owner = ? AND l.owner = ?");

static const char insert_count[] =
    "UPDATE {G} SET token = LAST_INSERT_ID(IF(owner <=> ?, token, " NEXT_TOKEN ")), epoch = IF(owner <=> ? OR " MINE
    ", epoch, token), bell = IF(" GOT_BELL ", CONNECTION_ID(), 0), owner = ?"
    " WHERE name = ? AND (SELECT l.owner FROM {L} l WHERE l.name = ?) = ? AND IF(LOCATE(?, undone), 0, 1)";

static const char insert_refuse[] = REFUSE("{G}", "", "");

static const char insert_look[] =
    "SELECT l.owner <=> ?, l.host, l.pid, " LEFT_MS("l.expires") ", " BELL_OF("g") ", " IS_FIRST(BELL_OF(
        "g")) ", g.token, l.name IS NULL OR " ROW_IS_OVER
              ", " IS_AHEAD("l.expires", "l.ttl") " FROM {G} g LEFT JOIN {L} l ON l.name = g.name WHERE g.name = ?";

/* For a second the lock is for whoever has the bell. */
static const char insert_claim[] = "UPDATE {G} SET claim = " CLAIM_END " WHERE name = ? AND owner = ?";

static const char insert_free[] =
    "DELETE FROM {L} WHERE name = ? AND owner = ? AND IF(owner IS NULL, 0, RELEASE_ALL_LOCKS() + 1)";

/* A row that somebody else has inserted may have neither an owner nor a bell. */
static const char insert_ringer[] = "SELECT IF(" RINGER_OF("g") " = g.bell, g.bell, 0), " BELL_OF(
    "g") ", l.owner, " LATER_TOKEN " FROM {L} l"
         " LEFT JOIN {G} g ON g.name = l.name WHERE l.name = ?";

static const char insert_evict[] = "DELETE FROM {L} WHERE name = ? AND owner <=> ?";

#define INSERT_INSPECT(wanted)                                                                                         \
    "SELECT l.name, l.host, l.pid, " LATER_TOKEN ", GREATEST(0, TIMESTAMPDIFF(MICROSECOND, l.since, " NOW              \
    ") DIV 1000), " LEFT_MS("l.expires") ", " WAITERS(                                                                 \
        "l", "g") ", l.note FROM {L} l LEFT JOIN {G} g ON g.name = l.name"                                             \
                  " WHERE NOT COALESCE(" ROW_IS_OVER ", 0) AND " wanted " ORDER BY l.name"

static const char insert_inspect[] = INSERT_INSPECT(BEGINS("l.name"));
static const char insert_inspect_one[] = INSERT_INSPECT(IS_IT("l.name"));

/* --- bound to a connection: who holds it, and its token, is in the row of grants --- */

#define GRANT_COLUMNS "name, token, owner, lockname, connection, since, host, pid, note"
#define GRANT_UPDATE                                                                                                   \
    " ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(" NEXT_TOKEN "), owner = VALUES(owner),"                          \
    " lockname = VALUES(lockname), connection = VALUES(connection), since = VALUES(since), host = VALUES(host),"       \
    " pid = VALUES(pid), note = VALUES(note)"
/* The name itself where that is plain, else a hash of it. */
#define KEY "COALESCE(?, CONCAT('holdfast#', LEFT(SHA2(CONCAT(CAST({D} AS BINARY), CHAR(0), ?), 256), 50)))"
/* By this it can be seen who has locked a row, without a privilege. */
#define ROW_KEY(name) TAG(name) ", 'row')"

static const char bound_look[] = "SELECT 0, host, pid, NULL FROM {G} WHERE name = ? AND " IS_HELD;

static const char bound_free[] = "SELECT RELEASE_ALL_LOCKS()";

static const char bound_mark[] = MARK("SELECT name, token, host, pid, note FROM {G} WHERE name = ? AND owner = ?"
                                      " AND connection = CONNECTION_ID() AND " IS_HELD);

static const char bound_ringer[] = "SELECT IS_USED_LOCK(lockname), lockname FROM {G} WHERE name = ? AND " IS_HELD;

#define LOOK_AT_GRANTS(waiters, wanted)                                                                                \
    "SELECT name, host, pid, token, " HELD_MS ", -1, " waiters ", note FROM {G} g WHERE " IS_HELD " AND " wanted       \
    " ORDER BY name"

static const char lock_inspect[] = LOOK_AT_GRANTS("(" IN_LINE("g") ")", BEGINS("name"));
static const char lock_inspect_one[] = LOOK_AT_GRANTS("(" IN_LINE("g") ")", IS_IT("name"));

/* A row for each waiter would have to be written outside of its transaction. */
static const char update_inspect[] = LOOK_AT_GRANTS("-1", BEGINS("name"));
static const char update_inspect_one[] = LOOK_AT_GRANTS("-1", IS_IT("name"));

#define TAKE_LOCK                                                                                                      \
    "INSERT INTO {G} (" GRANT_COLUMNS ") SELECT ?, LAST_INSERT_ID(" MICROSECONDS "), ?, k.word, CONNECTION_ID(), " NOW \
    ", ?, ?, ? FROM (SELECT " KEY " AS word) k WHERE "

static const char lock_take[] = TAKE_LOCK "GET_LOCK(k.word, 0)" GRANT_UPDATE;
static const char lock_take_once[] = TAKE_LOCK "IF(GET_LOCK(k.word, 0), " UNLESS_DONE("1") ", 0)" GRANT_UPDATE;

static const char lock_grant[] = "INSERT INTO {G} (" GRANT_COLUMNS ") VALUES (?, LAST_INSERT_ID(" MICROSECONDS
                                 "), ?, " KEY ", CONNECTION_ID(), " NOW ", ?, ?, ?)" GRANT_UPDATE;
static const char lock_grant_once[] =
    "INSERT INTO {G} (" GRANT_COLUMNS ") SELECT ?, LAST_INSERT_ID(" MICROSECONDS "), ?, " KEY ", CONNECTION_ID(), " NOW
    ", ?, ?, ? FROM DUAL WHERE " UNLESS_DONE("1") GRANT_UPDATE;

static const char lock_call[] = CALL(KEY);

static const char lock_waits[] = "SELECT IS_USED_LOCK(" SIGN("?") ") <=> ?";

/* Somebody who does not write down that it has the lock is found too. */
static const char lock_ringer[] = "SELECT IS_USED_LOCK(k.word), k.word FROM (SELECT " KEY " AS word) k";

/* And whether somebody holds it with another strategy, whose renewals would wait behind this in vain. */
#define LOCK_ROW                                                                                                       \
    "SELECT 1, GET_LOCK(" ROW_KEY("name") ", 0), owner IS NOT NULL AND expires > " NOW                                 \
                                          " FROM {L} WHERE name = ? FOR UPDATE"

static const char update_take[] = LOCK_ROW " NOWAIT";
static const char update_call[] = LOCK_ROW;

static const char update_grant[] = "INSERT INTO {G} (" GRANT_COLUMNS ") VALUES (?, LAST_INSERT_ID(" MICROSECONDS
                                   "), ?, " ROW_KEY("?") ", ?, " NOW ", ?, ?, ?)" GRANT_UPDATE;

static const char update_grant_once[] =
    "INSERT INTO {G} (" GRANT_COLUMNS ") SELECT ?, LAST_INSERT_ID(" MICROSECONDS
    "), ?, " ROW_KEY("?") ", ?, " NOW ", ?, ?, ? FROM DUAL WHERE " UNLESS_DONE("1") GRANT_UPDATE;

/* --- fencing --- */

static const char guard[] = "INSERT INTO {F} (resource, token) VALUES (?, LAST_INSERT_ID(?))"
                            " ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, VALUES(token)))";

/* --- the table --- */

#define ALL_CAPS                                                                                                       \
    (HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN | HF_CAP_INSPECT | HF_CAP_BREAK |     \
     HF_CAP_GUARD | HF_CAP_ONCE)
#define MARK_STATEMENTS                                                                                                \
    [SQL_MARKS] = { marks, "nn" }, [SQL_LOOK_AT_MARK] = { look_at_mark, "n" }, [SQL_FORGET] = { forget, "nv" }
#define ROW_STATEMENTS                                                                                                 \
    [SQL_ENTER] = { enter, "nohpk" }, [SQL_TIDY] = { tidy, "" }, [SQL_CALL] = { call, "l" },                           \
    [SQL_WAITS] = { lock_waits, "bb" }, [SQL_MEND] = { mend, "n" }, [SQL_RENEW] = { renew, "rttnor" },                 \
    [SQL_RENEW_MANY] = { renew_many, "rttNOr" }, [SQL_ALIVE_MANY] = { alive_many, "NO" },                              \
    [SQL_BLAME] = { blame, "nk" }, [SQL_BROKEN] = { broken, "n" }, [SQL_GUARD] = { guard, "nv" }, MARK_STATEMENTS

static const struct mysql_strategy strategies[] = {
    { .name = "lease",
      .caps = ALL_CAPS | HF_CAP_EXPIRY | HF_CAP_FAIR,
      .sql = { ROW_STATEMENTS, [SQL_ADD] = { lease_add, "n" }, [SQL_TAKE] = { lease_take, "oooortthpknoor" },
               [SQL_TAKE_ONCE] = { lease_take_once, "oooortthpknnnoor" }, [SQL_MARK] = { lease_mark, "dno" },
               [SQL_LOOK] = { lease_look, "on" }, [SQL_REFUSE] = { lease_refuse, "no" },
               [SQL_FREE] = { lease_free, "no" }, [SQL_EVICT] = { lease_evict, "no" },
               [SQL_RINGER] = { lease_ringer, "n" }, [SQL_INSPECT] = { row_inspect, "nn" },
               [SQL_INSPECT_ONE] = { row_inspect_one, "n" } } },
    { .name = "version",
      .caps = ALL_CAPS | HF_CAP_EXPIRY | HF_CAP_FAIR,
      .looks_first = true,
      .sql = { ROW_STATEMENTS, [SQL_ADD] = { lease_add, "n" }, [SQL_TAKE] = { version_take, "oooortthpknvoor" },
               [SQL_TAKE_ONCE] = { version_take_once, "oooortthpknvnnoor" }, [SQL_MARK] = { lease_mark, "dno" },
               [SQL_LOOK] = { version_look, "on" }, [SQL_REFUSE] = { lease_refuse, "no" },
               [SQL_FREE] = { lease_free, "no" }, [SQL_EVICT] = { lease_evict, "no" },
               [SQL_RINGER] = { lease_ringer, "n" }, [SQL_INSPECT] = { row_inspect, "nn" },
               [SQL_INSPECT_ONE] = { row_inspect_one, "n" } } },
    { .name = "insert",
      .caps = ALL_CAPS | HF_CAP_EXPIRY | HF_CAP_FAIR,
      .sql = { ROW_STATEMENTS, [SQL_ADD] = { insert_add, "n" }, [SQL_TAKE] = { insert_take, "ortthpknoo" },
               [SQL_TAKE_ONCE] = { insert_take_once, "ortthpknnnoo" }, [SQL_MARK] = { insert_mark, "dnoo" },
               [SQL_COUNT] = { insert_count, "ooonnoo" }, [SQL_REFUSE] = { insert_refuse, "no" },
               [SQL_LOOK] = { insert_look, "on" }, [SQL_CLAIM] = { insert_claim, "no" },
               [SQL_FREE] = { insert_free, "no" }, [SQL_EVICT] = { insert_evict, "no" },
               [SQL_RINGER] = { insert_ringer, "n" }, [SQL_INSPECT] = { insert_inspect, "nn" },
               [SQL_INSPECT_ONE] = { insert_inspect_one, "n" } } },
    { .name = "get-lock",
      .caps = ALL_CAPS | HF_CAP_BOUND | HF_CAP_FAIR,
      .bound = true,
      .sql = { MARK_STATEMENTS, [SQL_TAKE] = { lock_take, "nohpkxn" },
               [SQL_TAKE_ONCE] = { lock_take_once, "nohpkxnnn" }, [SQL_MARK] = { bound_mark, "dno" },
               [SQL_LOOK] = { bound_look, "n" }, [SQL_ENTER] = { enter, "nohpk" }, [SQL_TIDY] = { tidy, "" },
               [SQL_CALL] = { lock_call, "xn" }, [SQL_WAITS] = { lock_waits, "bb" },
               [SQL_GRANT] = { lock_grant, "noxnhpk" }, [SQL_GRANT_ONCE] = { lock_grant_once, "noxnhpknn" },
               [SQL_FREE] = { bound_free, "" }, [SQL_RINGER] = { lock_ringer, "xn" },
               [SQL_INSPECT] = { lock_inspect, "nn" }, [SQL_INSPECT_ONE] = { lock_inspect_one, "n" },
               [SQL_GUARD] = { guard, "nv" } } },
    { .name = "for-update",
      .caps = ALL_CAPS | HF_CAP_BOUND,
      .bound = true,
      .transaction = true,
      .sql = { MARK_STATEMENTS, [SQL_ADD] = { lease_add, "n" }, [SQL_TAKE] = { update_take, "n" },
               [SQL_MARK] = { bound_mark, "dno" }, [SQL_LOOK] = { bound_look, "n" }, [SQL_CALL] = { update_call, "n" },
               [SQL_GRANT] = { update_grant, "nonbhpk" }, [SQL_GRANT_ONCE] = { update_grant_once, "nonbhpknn" },
               [SQL_FREE] = { bound_free, "" }, [SQL_RINGER] = { bound_ringer, "n" },
               [SQL_INSPECT] = { update_inspect, "nn" }, [SQL_INSPECT_ONE] = { update_inspect_one, "n" },
               [SQL_GUARD] = { guard, "nv" } } },
};

const struct mysql_strategy *hfi_mysql_strategy(const char *name)
{
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        if (strcmp(name, strategies[i].name) == 0)
            return &strategies[i];
    }
    return NULL;
}
