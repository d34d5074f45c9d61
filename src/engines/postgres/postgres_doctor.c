/* SPDX-License-Identifier: MIT
 *
 * postgres_doctor.c: looks at the way the server, the database and the role are set up, for whatever could lose a lock.
 *
 * What a session of ours sets for itself (see postgres_session.c) is not judged, unless a pooler keeps us from it.
 */
#include "engines/local.h"
#include "engines/sql/sql_doctor.h"
#include "postgres.h"
#include <stdio.h>
#include <string.h>

struct doctor {
    struct postgres_store *store;
    struct postgres_connection *connection;
    const struct hfi_examination *examination;
    hfi_time deadline_ns;
};

/* The first row of the answer to one question. */
static hf_status ask(const struct doctor *doctor, const char *text, const char *const *parameters, int count,
                     PGresult **answer, hf_error *err)
{
    const struct postgres_text question = { .text = text, .parameters = parameters, .count = count };
    *answer = NULL;
    const hf_status status =
        hfi_postgres_say(doctor->store, doctor->connection, &question, 1, answer, doctor->deadline_ns, err);
    return hfi_postgres_not_unknown(status, err);
}

static bool is_true(const PGresult *answer, int column)
{
    return PQgetvalue(answer, 0, column)[0] == 't';
}

/* --- what survives a crash, and a failover --- */

static const struct hfi_sql_rule rules[] = {
    { "disk", "fsync", NULL, "off", HF_FINDING_RISK, "a grant is on the disk before its holder knows of it",
      "a crash of the server's machine can undo grants whose holders know of them, and damage the tables: a lock is "
      "given twice",
      "ALTER SYSTEM SET fsync = on" },
    { "pages", "full_page_writes", NULL, "off", HF_FINDING_RISK, "a page that was half written in a crash is mended",
      "a crash can leave the tables or their index half written: a lock is lost, or is there twice",
      "ALTER SYSTEM SET full_page_writes = on" },
    { "commits", "synchronous_commit", NULL, "off", HF_FINDING_RISK,
      "a grant is committed before its holder knows of it",
      "a crash of the server undoes the grants of the last moments, whose holders know of them: a lock is given twice",
      "ALTER ROLE ... RESET synchronous_commit, or SET synchronous_commit = on" },
    { "writable", "transaction_read_only", NULL, "on", HF_FINDING_BROKEN, "this session may write",
      "nothing can be written in this database or by this role: no lock is granted",
      "ALTER ROLE ... SET default_transaction_read_only = off, and see the database and the server" },
};

#define RULES (sizeof rules / sizeof rules[0])
static const char ask_settings[] =
    "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),"
    " current_setting('transaction_read_only'), current_setting('synchronous_standby_names'),"
    " (SELECT count(*) FROM pg_stat_replication),"
    " (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),"
    " (SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL),"
    " current_setting('server_version'), pg_encoding_to_char("
    "(SELECT encoding FROM pg_database WHERE datname = current_database())), current_setting('autovacuum')";
enum {
    SEEN_COMMIT = 2,
    SEEN_NAMES = 4,
    SEEN_STANDBYS,
    SEEN_AWAITED, /* of them: commits wait for these */
    SEEN_HIDDEN,  /* … and whether for these this role may not see */
    SEEN_VERSION,
    SEEN_ENCODING,
    SEEN_AUTOVACUUM
};

#define REPLICATION "SHOW synchronous_standby_names; SELECT sync_state FROM pg_stat_replication"

static void judge_replication(const struct hfi_examination *examination, const PGresult *answer)
{
    const char *names = PQgetvalue(answer, 0, SEEN_NAMES), *commit = PQgetvalue(answer, 0, SEEN_COMMIT);
    const long long standbys = hfi_postgres_number(answer, 0, SEEN_STANDBYS, 0);
    const long long awaited = hfi_postgres_number(answer, 0, SEEN_AWAITED, 0);
    const bool waits = *names && strcmp(commit, "off") != 0 && strcmp(commit, "local") != 0;
    if (waits && awaited == 0 && hfi_postgres_number(answer, 0, SEEN_HIDDEN, 0) > 0)
        hfi_finding(examination, HF_FINDING_NOTE, "replication",
                    "every commit waits for a standby; if none of those that are connected is one, no lock is granted\n"
                    "synchronous_standby_names is '%s', %lld standbys are connected; this role may not see which are "
                    "waited for (" REPLICATION ")\nGRANT pg_read_all_stats, to see it",
                    names, standbys);
    else if (waits && awaited == 0)
        hfi_finding(examination, HF_FINDING_BROKEN, "replication",
                    "every commit waits for a standby, and there is none: no lock is granted or renewed in time\n"
                    "synchronous_standby_names is '%s', %lld standbys are connected, and none is waited for "
                    "(" REPLICATION ")\n"
                    "start the standby, or take its name out",
                    names, standbys);
    else if (waits)
        hfi_finding(examination, HF_FINDING_OK, "replication",
                    "a standby has a grant before its holder knows of it\n"
                    "synchronous_standby_names is '%s', %lld standbys are connected, %lld are waited for "
                    "(" REPLICATION ")",
                    names, standbys, awaited);
    else if (standbys > 0)
        hfi_finding(examination, HF_FINDING_RISK, "replication",
                    "a failover to a standby that lags forgets the last grants: until their holders renew, others can "
                    "be granted the same locks\n"
                    "synchronous_standby_names is '%s', synchronous_commit is %s, %lld standbys are connected "
                    "(" REPLICATION ")\n"
                    "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)', and synchronous_commit = on",
                    names, commit, standbys);
    else
        hfi_finding(examination, HF_FINDING_NOTE, "replication",
                    "the server is alone: while it is down no lock is granted or renewed; none is forgotten\n"
                    "0 standbys are connected (SELECT count(*) FROM pg_stat_replication)");
}

static hf_status look_at_server(const struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    PGresult *answer;
    const hf_status status = ask(doctor, ask_settings, NULL, 0, &answer, err);
    if (status != HF_OK)
        return status;
    hfi_finding(examination, HF_FINDING_OK, "role", "the server is a primary\npg_is_in_recovery() is f, PostgreSQL %s",
                PQgetvalue(answer, 0, SEEN_VERSION));
    for (int i = 0; i < (int)RULES; i++)
        hfi_sql_judge(examination, &rules[i], PQgetvalue(answer, 0, i), "SHOW %s");
    judge_replication(examination, answer);
    const char *encoding = PQgetvalue(answer, 0, SEEN_ENCODING);
    if (strcmp(encoding, "UTF8") == 0)
        hfi_finding(examination, HF_FINDING_OK, "encoding",
                    "every name can be a lock's\nthe encoding is UTF8 (SHOW server_encoding)");
    else
        hfi_finding(examination, HF_FINDING_NOTE, "encoding",
                    "names that the encoding of the database cannot express are refused\n"
                    "the encoding is %s (SHOW server_encoding)\nCREATE DATABASE ... ENCODING 'UTF8'",
                    encoding);
    const struct hfi_sql_rule vacuum = {
        "vacuum",
        "autovacuum",
        NULL,
        "off",
        HF_FINDING_RISK,
        "rows that are over are tidied away",
        "each grant leaves a dead row that nobody removes: acquires and renewals become slower, until they are too "
        "late",
        "ALTER SYSTEM SET autovacuum = on"
    };
    hfi_sql_judge(examination, &vacuum, PQgetvalue(answer, 0, SEEN_AUTOVACUUM), "SHOW %s");
    PQclear(answer);
    return HF_OK;
}

/* --- the tables --- */

/* By the names of the four tables that must last, and the plain name of the first. */
static const char ask_tables[] =
    "WITH ours AS (SELECT * FROM pg_class WHERE oid IN (to_regclass($1), to_regclass($2), to_regclass($3), "
    "to_regclass($4)))"
    " SELECT (SELECT string_agg(relname, ', ') FROM ours WHERE relpersistence <> 'p'),"
    " (SELECT string_agg(relname, ', ') FROM ours WHERE row_security_active(oid)),"
    " (SELECT string_agg(tgname, ', ') FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'"
    " AND tgrelid IN (SELECT oid FROM ours)),"
    " (SELECT string_agg(quote_ident(nspname), ', ') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname = $5 AND c.relkind IN ('r', 'p') AND c.oid <> to_regclass($1))";
enum { SEEN_UNLOGGED, SEEN_SECURED, SEEN_TRIGGERS, SEEN_OTHERS };

static void judge_tables(const struct doctor *doctor, const PGresult *answer)
{
    const struct hfi_examination *examination = doctor->examination;
    const struct postgres_config *config = &doctor->store->config;
    if (!PQgetisnull(answer, 0, SEEN_UNLOGGED))
        hfi_finding(examination, HF_FINDING_RISK, "logging",
                    "a crash of the server empties these tables, and no standby has them: locks that are held are "
                    "given to others, and tokens begin anew\n"
                    "%s: unlogged (\\d+ %s)\nALTER TABLE ... SET LOGGED",
                    PQgetvalue(answer, 0, SEEN_UNLOGGED), config->names.locks);
    if (!PQgetisnull(answer, 0, SEEN_SECURED))
        hfi_finding(examination, HF_FINDING_RISK, "row security",
                    "rows that a policy hides from this role are locks that it does not see: it is refused, or waits "
                    "for ever\n"
                    "%s: row security is active (SELECT row_security_active('%s'))\n"
                    "ALTER TABLE ... DISABLE ROW LEVEL SECURITY",
                    PQgetvalue(answer, 0, SEEN_SECURED), config->names.locks);
    if (!PQgetisnull(answer, 0, SEEN_TRIGGERS))
        hfi_finding(examination, HF_FINDING_NOTE, "triggers",
                    "what a trigger does, each grant waits for; one that changes or skips rows breaks locks\n"
                    "%s (\\d %s)",
                    PQgetvalue(answer, 0, SEEN_TRIGGERS), config->names.locks);
    if (!PQgetisnull(answer, 0, SEEN_OTHERS) && !*config->schema)
        hfi_finding(examination, HF_FINDING_RISK, "search_path",
                    "clients whose search_path leads to another schema use another table, and do not exclude those of "
                    "this one: a lock has two holders\n"
                    "this client uses %s; there is one of that name in %s (\\d *.%s)\n"
                    "name the schema in each URL: table=SCHEMA.%s",
                    config->names.locks, PQgetvalue(answer, 0, SEEN_OTHERS), config->table, config->table);
    else
        hfi_finding(examination, HF_FINDING_OK, "search_path", "%s\nthis client uses %s (\\d *.%s)",
                    *config->schema ? "the URL says in which schema the tables are"
                                    : "there is one table of that name, wherever a search_path leads",
                    config->names.locks, config->table);
}

static hf_status look_at_tables(const struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    const struct postgres_config *config = &doctor->store->config;
    const struct postgres_names *names = &config->names;
    struct postgres_tables found;
    hf_status status = hfi_postgres_look_at_tables(doctor->store, doctor->connection, &found, doctor->deadline_ns, err);
    if (status != HF_OK)
        return hfi_postgres_not_unknown(status, err);
    if (!found.tables)
        hfi_finding(examination, HF_FINDING_BROKEN, "tables",
                    "a table is missing: no lock is granted before it is made anew, and what is held is forgotten\n"
                    "%s and its companions (\\d %s)\n%s",
                    names->locks, names->locks, config->remedy);
    else if (!found.locks_index || !found.grants_index)
        hfi_finding(examination, HF_FINDING_BROKEN, "index",
                    "no unique index keeps two rows of one name apart: a lock has two holders\n%s (\\d %s)\n"
                    "ALTER TABLE %s ADD PRIMARY KEY (name)",
                    found.locks_index ? names->grants : names->locks, found.locks_index ? names->grants : names->locks,
                    found.locks_index ? names->grants : names->locks);
    else if (!found.column && !config->strategy->bound)
        hfi_finding(examination, HF_FINDING_BROKEN, "tables",
                    "without the column request a late request could end a later grant, so no lock is granted\n"
                    "%s (\\d %s)\n%s",
                    names->locks, names->locks, config->remedy);
    else
        hfi_finding(examination, HF_FINDING_OK, "tables",
                    "they are there, and a unique index keeps each name's row alone\n%s (\\d %s)", names->locks,
                    names->locks);
    if (found.waiters_last)
        hfi_finding(examination, HF_FINDING_RISK, "logging",
                    "a crash of the server must empty this table, or it is not noticed: tokens of advisory locks can "
                    "be smaller after it than before, and clients that have seen this wait for the disk with each\n"
                    "%s: logged (\\d %s)\nALTER TABLE %s SET UNLOGGED",
                    names->waiters, names->waiters, names->waiters);
    if (found.tables && (!found.guard || !found.done))
        hfi_finding(examination, HF_FINDING_NOTE, "guard",
                    "tokens cannot be checked in the database, or work not be marked as done; locks do not need it\n"
                    "%s is %s, %s is %s (\\df %s)\n%s",
                    names->guard, found.guard ? "there" : "missing", names->done, found.done ? "there" : "missing",
                    names->guard, config->remedy);
    PGresult *answer;
    const char *const parameters[] = { names->locks, names->grants, names->fences, names->done, config->table };
    status = ask(doctor, ask_tables, parameters, 5, &answer, err);
    if (status == HF_OK)
        judge_tables(doctor, answer);
    PQclear(answer);
    return status;
}

/* --- rights --- */

#define TABLES_AND_RIGHTS                                                                                              \
    "unnest(ARRAY[$1, $2, $3, $4, $5]::text[]) WITH ORDINALITY t(name, n),"                                            \
    " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r(word)"                                                   \
    " WHERE to_regclass(t.name) IS NOT NULL AND NOT (t.n = 4 AND r.word = 'DELETE')"

static const char ask_rights[] =
    "SELECT (SELECT string_agg(r.word || ' on ' || t.name, ', ') FROM " TABLES_AND_RIGHTS
    " AND t.n <= 3 AND NOT has_table_privilege(t.name, r.word)),"
    " (SELECT string_agg(r.word || ' on ' || t.name, ', ') FROM " TABLES_AND_RIGHTS
    " AND t.n > 3 AND NOT has_table_privilege(t.name, r.word)),"
    " (SELECT string_agg(r.word || ' on ' || t.name, ', ') FROM " TABLES_AND_RIGHTS
    " AND r.word <> 'SELECT' AND has_table_privilege('public', t.name, r.word)),"
    " (SELECT has_schema_privilege('public', relnamespace, 'CREATE') FROM pg_class WHERE oid = to_regclass($1)),"
    " current_user";
enum { SEEN_NEEDED, SEEN_WANTED, SEEN_PUBLIC, SEEN_CREATE, SEEN_USER };

static hf_status look_at_rights(const struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    const struct postgres_names *names = &doctor->store->config.names;
    const char *const parameters[] = { names->locks, names->waiters, names->grants, names->fences, names->done };
    PGresult *answer;
    const hf_status status = ask(doctor, ask_rights, parameters, 5, &answer, err);
    if (status != HF_OK)
        return status;
    const char *user = PQgetvalue(answer, 0, SEEN_USER);
    if (!PQgetisnull(answer, 0, SEEN_NEEDED))
        hfi_finding(examination, HF_FINDING_BROKEN, "rights",
                    "this role cannot take, renew or give back every lock\nit lacks %s (\\dp %s)\n"
                    "GRANT SELECT, INSERT, UPDATE, DELETE ON %s, %s, %s TO %s",
                    PQgetvalue(answer, 0, SEEN_NEEDED), names->locks, names->locks, names->waiters, names->grants,
                    user);
    else if (!PQgetisnull(answer, 0, SEEN_WANTED))
        hfi_finding(examination, HF_FINDING_NOTE, "rights",
                    "this role cannot show tokens to the guard, or mark work as done\nit lacks %s (\\dp %s)\n"
                    "GRANT SELECT, INSERT, UPDATE, DELETE ON %s, %s TO %s",
                    PQgetvalue(answer, 0, SEEN_WANTED), names->locks, names->fences, names->done, user);
    else
        hfi_finding(examination, HF_FINDING_OK, "rights", "this role may do all that locks need\n%s (\\dp %s)", user,
                    names->locks);
    if (!PQgetisnull(answer, 0, SEEN_PUBLIC))
        hfi_finding(examination, HF_FINDING_RISK, "strangers",
                    "every role of this database can take a lock from its holder, or set its token back\n"
                    "PUBLIC has %s (\\dp %s)\nREVOKE ALL ON %s FROM PUBLIC",
                    PQgetvalue(answer, 0, SEEN_PUBLIC), names->locks, names->locks);
    if (is_true(answer, SEEN_CREATE))
        hfi_finding(examination, HF_FINDING_NOTE, "schema",
                    "every role may create in the schema of the tables: should they go, anybody can make others in "
                    "their place\nPUBLIC has CREATE (\\dn+)\nREVOKE CREATE ON SCHEMA ... FROM PUBLIC");
    PQclear(answer);
    return HF_OK;
}

/* --- sessions: how many, how long, and whose --- */

static const char ask_connections[] =
    "SELECT l.* FROM (VALUES"
    " ('max_connections', current_setting('max_connections')::int"
    " - current_setting('superuser_reserved_connections')::int, (SELECT sum(numbackends) FROM pg_stat_database)),"
    " ('the limit of the role', (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),"
    " (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)),"
    " ('the limit of the database', (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),"
    " (SELECT numbackends FROM pg_stat_database WHERE datname = current_database())))"
    " l(name, most, used) WHERE l.most >= 0 ORDER BY l.most - l.used LIMIT 1";

static hf_status look_at_connections(const struct doctor *doctor, hf_error *err)
{
    PGresult *answer;
    const hf_status status = ask(doctor, ask_connections, NULL, 0, &answer, err);
    if (status != HF_OK)
        return status;
    const struct hfi_sql_connections found = {
        .limit = PQgetvalue(answer, 0, 0),
        .most = hfi_postgres_number(answer, 0, 1, 0),
        .used = hfi_postgres_number(answer, 0, 2, 0),
        .bound = doctor->store->config.strategy->bound,
        .show = "SHOW max_connections; SELECT count(*) FROM pg_stat_activity",
        .remedy = "ALTER SYSTEM SET max_connections, ALTER ROLE ... CONNECTION LIMIT, or fewer connections of others"
    };
    hfi_sql_judge_connections(doctor->examination, &found);
    PQclear(answer);
    return HF_OK;
}

/* What our session could not set for itself, when it is not its own. */
static const char ask_time_outs[] =
    "SELECT pg_backend_pid(), current_setting('statement_timeout'), current_setting('lock_timeout'),"
    " current_setting('idle_in_transaction_session_timeout'), current_setting('default_transaction_isolation'),"
    " (SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')";

static void judge_pooled(const struct doctor *doctor, const PGresult *answer)
{
    hfi_finding(doctor->examination, HF_FINDING_NOTE, "pooler",
                "a pooler gives the server's sessions to others in between: nobody is notified, waiters ask about ten "
                "times a second, and are not served in order\n"
                "the server's process is %d, which is not the one that was announced, %d (SELECT pg_backend_pid())\n"
                "connect directly",
                doctor->connection->backend, PQbackendPID(doctor->connection->pq));
    const char *statement = PQgetvalue(answer, 0, 1), *lock = PQgetvalue(answer, 0, 2);
    const char *isolation = PQgetvalue(answer, 0, 4);
    const bool good = strcmp(statement, "0") == 0 && strcmp(lock, "0") == 0 && strcmp(isolation, "read committed") == 0;
    hfi_finding(doctor->examination, good ? HF_FINDING_OK : HF_FINDING_NOTE, "time-outs",
                "%s\nstatement_timeout is %s, lock_timeout %s, default_transaction_isolation '%s' (SHOW ...)%s",
                good ? "nothing ends a statement that waits for a row"
                     : "through the pooler the server's own settings count: a request that waits for a row may be "
                       "ended or refused, and is made again",
                statement, lock, isolation, good ? "" : "\nALTER ROLE ... SET statement_timeout = 0");
}

/* Two connections at once: a pooler that keeps sessions together never shows them the same process. */
static hf_status look_twice(const struct doctor *doctor, int64_t backend, hf_error *err)
{
    struct doctor other = *doctor;
    PGresult *answer = NULL;
    hf_status status = hfi_postgres_connect(doctor->store, &other.connection, doctor->deadline_ns, err);
    if (status != HF_OK)
        return hfi_postgres_not_unknown(status, err);
    status = ask(&other, ask_time_outs, NULL, 0, &answer, err);
    const int64_t second = hfi_postgres_number(answer, 0, 0, 0);
    PQclear(answer);
    hfi_postgres_give_back(doctor->store, other.connection);
    if (status != HF_OK)
        return status;
    const struct hfi_sql_sessions found = { .go_between = "pooler",
                                            .first = backend,
                                            .second = second,
                                            .show = "SELECT pg_backend_pid()",
                                            .remedy = "pool_mode = session, or connect directly" };
    hfi_sql_judge_sessions(doctor->examination, &found);
    return HF_OK;
}

static hf_status look_at_sessions(const struct doctor *doctor, hf_error *err)
{
    PGresult *answer;
    hf_status status = ask(doctor, ask_time_outs, NULL, 0, &answer, err);
    if (status != HF_OK)
        return status;
    if (doctor->connection->pooled)
        judge_pooled(doctor, answer);
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "time-outs",
                    "our sessions set their own, so none of the server's ends a lock\nstatement_timeout is %s, "
                    "idle_in_transaction_session_timeout %s",
                    PQgetvalue(answer, 0, 1), PQgetvalue(answer, 0, 3));
    if (strcmp(PQgetvalue(answer, 0, 5), "0") == 0)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "paused writers",
                    "a program that is paused in a transaction in which it has shown its token holds up all others of "
                    "that resource for as long\n"
                    "idle_in_transaction_session_timeout is 0 (SHOW idle_in_transaction_session_timeout)\n"
                    "ALTER ROLE ... SET idle_in_transaction_session_timeout = '1min' for those that write");
    if (doctor->store->config.session_pooler)
        status = look_twice(doctor, hfi_postgres_number(answer, 0, 0, 0), err);
    else if (!doctor->connection->pooled)
        hfi_finding(doctor->examination, HF_FINDING_OK, "pooler",
                    "there is none between us and the server\nthe server's process is %d, as was announced "
                    "(SELECT pg_backend_pid())",
                    doctor->connection->backend);
    PQclear(answer);
    return status;
}

static hf_status look_at_clock(const struct doctor *doctor, hf_error *err)
{
    PGresult *answer;
    const int64_t before_ms = hfi_wall_ms();
    const hf_status status =
        ask(doctor, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", NULL, 0, &answer, err);
    const int64_t after_ms = hfi_wall_ms();
    if (status == HF_OK)
        hfi_sql_judge_clock(doctor->examination, before_ms, hfi_postgres_number(answer, 0, 0, 0), after_ms,
                            "SELECT clock_timestamp()");
    PQclear(answer);
    return status;
}

hf_status hfi_postgres_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                               hf_error *err)
{
    static const struct hfi_sql_look looks[] = {
        { "server", look_at_server },     { "tables", look_at_tables },           { "rights", look_at_rights },
        { "sessions", look_at_sessions }, { "connections", look_at_connections }, { "clock", look_at_clock }
    };
    struct postgres_store *store = memory;
    struct doctor doctor = { .store = store, .examination = examination, .deadline_ns = deadline_ns };
    hf_status status = hfi_postgres_borrow(store, &doctor.connection, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = hfi_sql_look(examination, looks, sizeof looks / sizeof looks[0], &doctor, &doctor.connection->broken,
                          store->config.remedy, err);
    hfi_postgres_give_back(store, doctor.connection);
    return status;
}
