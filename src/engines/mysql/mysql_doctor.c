/* SPDX-License-Identifier: MIT
 *
 * mysql_doctor.c: looks at the way the server and the user are set up, for whatever could lose a lock.
 *
 * What a session of ours sets for itself (see mysql_connect.c) is not judged. The two servers have other words for the
 * same thing: a variable that there is not is passed over.
 */
#include "engines/local.h"
#include "engines/sql/sql_doctor.h"
#include "mysql_engine.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct doctor {
    struct mysql_store *store;
    struct mysql_connection *connection;
    const struct hfi_examination *examination;
    hfi_time deadline_ns;
};

static hf_status ask(const struct doctor *doctor, const char *text, struct mysql_answer *answer, hf_error *err)
{
    *answer = (struct mysql_answer){ .found = false };
    if (doctor->connection->broken) /* whoever passes over what cannot be read does not see it at once */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection broke");
    return hfi_mysql_say(doctor->store, doctor->connection, text, answer, doctor->deadline_ns, err);
}

/* --- variables --- */

#define VALUE_MAX 120

/* Of the server, for all sessions. False: it has no such variable, or cannot be asked. */
static bool read_one(const struct doctor *doctor, const char *kind, const char *name, char value[VALUE_MAX])
{
    char text[120];
    struct mysql_answer answer;
    snprintf(text, sizeof text, "SHOW GLOBAL %s LIKE '%s'", kind, name);
    value[0] = 0;
    if (ask(doctor, text, &answer, NULL) != HF_OK || !answer.found)
        return false;
    snprintf(value, VALUE_MAX, "%.*s", VALUE_MAX - 1, answer.row.text[1]);
    return true;
}

static bool is_on(const struct doctor *doctor, const char *name)
{
    char value[VALUE_MAX];
    return read_one(doctor, "VARIABLES", name, value) && (strcasecmp(value, "ON") == 0 || strcmp(value, "1") == 0);
}

static int64_t read_number(const struct doctor *doctor, const char *kind, const char *name)
{
    char value[VALUE_MAX];
    return read_one(doctor, kind, name, value) ? strtoll(value, NULL, 10) : -1;
}

static const struct hfi_sql_rule rules[] = {
    { "disk", "innodb_flush_log_at_trx_commit", "1", NULL, HF_FINDING_RISK,
      "a grant is on the disk before its holder knows of it",
      "a crash of the server (0) or of its machine (2) undoes the grants of the last second, whose holders know of "
      "them: "
      "a lock is given twice",
      "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in its option file" },
    { "flushing", "innodb_flush_method", NULL, "nosync", HF_FINDING_RISK, "what is written is flushed",
      "nothing is flushed: a crash of the server's machine undoes grants whose holders know of them, and can damage "
      "the "
      "tables",
      "innodb_flush_method = fsync or O_DIRECT in the option file of the server" },
    { "pages", "innodb_doublewrite", NULL, "OFF", HF_FINDING_RISK, "a page that was half written in a crash is mended",
      "a crash can leave the tables or their index half written: a lock is lost, or is there twice",
      "innodb_doublewrite = ON in the option file of the server" },
    { "repair", "innodb_force_recovery", "0", NULL, HF_FINDING_RISK, "the server does not run for repair",
      "the server runs for repair: what it has may be damaged, and from 4 on nothing can be written",
      "take innodb_force_recovery out of the option file of the server" },
    { "writable", "read_only", "OFF", NULL, HF_FINDING_BROKEN, "the server may be written to",
      "the server is read-only, a replica or under repair: no lock is granted", "use the primary" },
};

static const struct hfi_sql_rule logged_rules[] = {
    { "log", "sync_binlog", "1", NULL, HF_FINDING_RISK, "what replicas are told of is on the disk here",
      "after a crash of the server's machine its log can lack grants that it has, or that replicas have: they go "
      "different ways, and the next failover forgets grants",
      "SET GLOBAL sync_binlog = 1, and in its option file" },
    { "log format", "binlog_format", NULL, "STATEMENT", HF_FINDING_RISK, "replicas are told of rows",
      "replicas repeat statements which ask for user-level locks that are not held there: their rows differ, and a "
      "failover forgets grants",
      "SET GLOBAL binlog_format = 'ROW'" },
};

static void judge_all(const struct doctor *doctor, const struct hfi_sql_rule *all, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char value[VALUE_MAX];
        if (read_one(doctor, "VARIABLES", all[i].setting, value))
            hfi_sql_judge(doctor->examination, &all[i], value, "SHOW GLOBAL VARIABLES LIKE '%s'");
    }
}

/* --- replication --- */

struct replication {
    int64_t replicas; /* -1: may not be seen */
    bool waits;       /* semi-synchronous */
    int64_t waited_for;
};

#define SHOW_REPLICAS "SHOW GLOBAL STATUS LIKE 'Slaves_connected'; SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync%%'"

static void judge_replication(const struct doctor *doctor, const struct replication *found)
{
    const struct hfi_examination *examination = doctor->examination;
    if (found->waits && found->waited_for > 0)
        hfi_finding(examination, HF_FINDING_OK, "replication",
                    "a replica has a grant before its holder knows of it, as long as one answers in time\n"
                    "%" PRId64 " replicas answer, semi-synchronous (" SHOW_REPLICAS ")",
                    found->waited_for);
    else if (found->waits)
        hfi_finding(examination, HF_FINDING_RISK, "replication",
                    "commits are to wait for a replica, and none answers: each waits for its time-out, or goes on "
                    "without, and a failover forgets it\n"
                    "semi-synchronous, 0 replicas answer (" SHOW_REPLICAS ")\n"
                    "start the replica with rpl_semi_sync_slave_enabled, or SET GLOBAL rpl_semi_sync_master_enabled = "
                    "OFF");
    else if (found->replicas > 0)
        hfi_finding(examination, HF_FINDING_RISK, "replication",
                    "a failover to a replica that lags forgets the last grants: until their holders renew, others can "
                    "be granted the same locks\n"
                    "%" PRId64 " replicas, not semi-synchronous (" SHOW_REPLICAS ")\n"
                    "SET GLOBAL rpl_semi_sync_master_enabled = ON here, rpl_semi_sync_slave_enabled there",
                    found->replicas);
    else if (found->replicas == 0)
        hfi_finding(examination, HF_FINDING_NOTE, "replication",
                    "the server is alone: while it is down no lock is granted or renewed; none is forgotten\n"
                    "0 replicas (" SHOW_REPLICAS ")");
    else
        hfi_finding(examination, HF_FINDING_NOTE, "replication",
                    "if the server has replicas, a failover to one that lags forgets the last grants\n"
                    "this user may not see whether it has (SHOW PROCESSLIST)\nGRANT PROCESS, to see it");
}

static hf_status look_at_replication(const struct doctor *doctor, hf_error *err)
{
    struct mysql_answer answer;
    hf_status status = HF_OK;
    struct replication found = { .replicas = read_number(doctor, "STATUS", "Slaves_connected") };
    found.waits = is_on(doctor, "rpl_semi_sync_master_enabled") || is_on(doctor, "rpl_semi_sync_source_enabled");
    found.waited_for = read_number(doctor, "STATUS", "Rpl_semi_sync_master_clients");
    if (found.waited_for < 0)
        found.waited_for = read_number(doctor, "STATUS", "Rpl_semi_sync_source_clients");
    if (found.replicas < 0) { /* not MariaDB; an own connection alone is seen by everybody */
        status = ask(doctor,
                     "SELECT SUM(COMMAND LIKE 'Binlog Dump%'), SUM(USER <> SUBSTRING_INDEX(USER(), '@', 1))"
                     " FROM information_schema.PROCESSLIST",
                     &answer, err);
        if (status == HF_OK && (hfi_mysql_number(&answer.row, 0) > 0 || hfi_mysql_number(&answer.row, 1) > 0))
            found.replicas = (int64_t)hfi_mysql_number(&answer.row, 0);
    }
    if (status != HF_OK)
        return status;
    judge_replication(doctor, &found);
    if (is_on(doctor, "log_bin"))
        judge_all(doctor, logged_rules, sizeof logged_rules / sizeof logged_rules[0]);
    /* It may be written to, or it would have been refused. */
    if (read_number(doctor, "STATUS", "Slaves_running") > 0 ||
        (ask(doctor, "SHOW REPLICA STATUS", &answer, NULL) == HF_OK && answer.found))
        hfi_finding(doctor->examination, HF_FINDING_RISK, "role",
                    "the server repeats what is written to another one, and can be written to itself: whoever locks "
                    "here and whoever locks there do not exclude each other\n"
                    "it is a replica (SHOW REPLICA STATUS), read_only is %s\n"
                    "use the primary, and SET GLOBAL read_only = ON here",
                    is_on(doctor, "read_only") ? "ON" : "OFF");
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "role",
                    "the server is no replica of another one, as far as this user may see\n"
                    "SHOW REPLICA STATUS shows nothing, %s",
                    mysql_get_server_info(doctor->connection->client));
    return doctor->connection->broken ? hfi_fail(err, HF_UNAVAILABLE, 0, "the connection broke") : HF_OK;
}

static hf_status look_at_server(const struct doctor *doctor, hf_error *err)
{
    judge_all(doctor, rules, sizeof rules / sizeof rules[0]);
    if (is_on(doctor, "wsrep_on")) {
        const bool bells = doctor->store->config.strategy->bound && !doctor->store->config.strategy->transaction;
        hfi_finding(doctor->examination, bells ? HF_FINDING_RISK : HF_FINDING_NOTE, "cluster",
                    "%s\nwsrep_on is ON (SHOW GLOBAL VARIABLES LIKE 'wsrep_on')\nlet all clients use the same node",
                    bells
                        ? "user-level locks are known to one node: two clients on two nodes have the same lock"
                        : "clients on other nodes do not hear of a release, and wait until the holder's time is over");
    }
    return doctor->connection->broken ? hfi_fail(err, HF_UNAVAILABLE, 0, "the connection broke") : HF_OK;
}

/* --- the tables, and who may use them --- */

static hf_status look_at_tables(const struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    const struct mysql_config *config = &doctor->store->config;
    struct mysql_tables found = { .why = { .message = "" } };
    char script[HFI_DATA_FILE_MAX];
    const hf_status status =
        hfi_mysql_look_at_tables(doctor->store, doctor->connection, &found, doctor->deadline_ns, err);
    if (status != HF_OK)
        return status;
    hfi_data_file(script, "holdfast-mysql.sql");
    if (!found.usable)
        hfi_finding(examination, HF_FINDING_BROKEN, "tables",
                    "the table cannot keep locks: a name may have two rows, and two holders, or a row outlive what "
                    "was rolled back\n%s (SHOW CREATE TABLE %s)\nhave its owner mend it after %s",
                    found.why.message, config->locks, script);
    else if (!found.there || !found.newer)
        hfi_finding(examination, HF_FINDING_BROKEN, "tables",
                    "a table or column is missing: no lock is granted, and what is held is forgotten\n"
                    "%s or one of its companions (SHOW CREATE TABLE %s)\nhave its owner run %s",
                    config->locks, config->locks, script);
    else
        hfi_finding(examination, HF_FINDING_OK, "tables",
                    "they are there, kept by InnoDB, and a unique index keeps each name's row alone\n"
                    "%s (SHOW CREATE TABLE %s)",
                    config->locks, config->locks);
    return HF_OK;
}

/* To explain a statement takes the rights that it takes, and does nothing. */
static const struct {
    const char *text;
    enum { BY_ALL, BY_INSERT, BY_NONE } needed; /* for locks: by which strategies */
} statements[] = {
    { "EXPLAIN SELECT * FROM {L} WHERE name = ''", BY_ALL },
    { "EXPLAIN INSERT INTO {L} (name) VALUES ('')", BY_ALL },
    { "EXPLAIN UPDATE {L} SET token = token WHERE name = ''", BY_ALL },
    { "EXPLAIN DELETE FROM {L} WHERE name = ''", BY_INSERT },
    { "EXPLAIN SELECT * FROM {G} WHERE name = ''", BY_ALL },
    { "EXPLAIN INSERT INTO {G} (name) VALUES ('')", BY_ALL },
    { "EXPLAIN UPDATE {G} SET token = token WHERE name = ''", BY_ALL },
    { "EXPLAIN SELECT * FROM {W} WHERE name = ''", BY_ALL },
    { "EXPLAIN INSERT INTO {W} (connection, name, owner, since) VALUES (0, '', '', '1970-01-01')", BY_ALL },
    { "EXPLAIN DELETE FROM {W} WHERE connection = 0", BY_ALL },
    { "EXPLAIN SELECT * FROM {F} WHERE resource = ''", BY_NONE },
    { "EXPLAIN INSERT INTO {F} (resource, token) VALUES ('', 0)", BY_NONE },
    { "EXPLAIN UPDATE {F} SET token = token WHERE resource = ''", BY_NONE },
    { "EXPLAIN SELECT * FROM {N} WHERE name = ''", BY_NONE },
    { "EXPLAIN INSERT INTO {N} (name, token, since, expires) VALUES ('', 0, '1970-01-01', '1970-01-01')", BY_NONE },
    { "EXPLAIN UPDATE {N} SET token = token WHERE name = ''", BY_NONE },
    { "EXPLAIN DELETE FROM {N} WHERE name = ''", BY_NONE },
};

static hf_status try_statement(const struct doctor *doctor, const char *template, hf_error *err)
{
    struct mysql_answer answer;
    char *text = hfi_mysql_expand(&doctor->store->config, template);
    const hf_status status = text ? ask(doctor, text, &answer, err) : hfi_fail(err, HF_NOMEM, 0, "no memory");
    hfi_free(text);
    return status;
}

static hf_status look_at_rights(const struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    const char *locks = doctor->store->config.locks;
    const bool inserts = strcmp(doctor->store->config.strategy->name, "insert") == 0;
    bool all = true;
    for (size_t i = 0; i < sizeof statements / sizeof statements[0] && all; i++) {
        hf_error trouble = { .message = "" };
        const bool spare = statements[i].needed == BY_NONE;
        if (statements[i].needed == BY_INSERT && !inserts)
            continue;
        const hf_status status = try_statement(doctor, statements[i].text, &trouble);
        if (doctor->connection->broken) {
            if (err)
                *err = trouble;
            return status;
        }
        if (status != HF_DENIED) /* a table that is missing was told of */
            continue;
        all = false;
        hfi_finding(examination, spare ? HF_FINDING_NOTE : HF_FINDING_BROKEN, "rights",
                    "%s\n%s (SHOW GRANTS)\nGRANT SELECT, INSERT, UPDATE, DELETE ON the tables that begin with %s",
                    spare ? "this user cannot show tokens to the guard, or mark work as done"
                          : "this user cannot take, renew or give back every lock",
                    trouble.message, locks);
    }
    if (all)
        hfi_finding(examination, HF_FINDING_OK, "rights", "this user may do all that locks need\n%s (SHOW GRANTS)",
                    locks);
    return HF_OK;
}

/* --- sessions --- */

static hf_status look_at_proxy(const struct doctor *doctor, hf_error *err)
{
    struct doctor other = *doctor;
    struct mysql_answer first, second;
    if (!doctor->store->config.session_pooler) { /* it was looked at when the connection was made */
        hfi_finding(doctor->examination, HF_FINDING_OK, "proxy",
                    "there is none that gives our sessions to others\n"
                    "the connection's number is %llu, as was announced (SELECT CONNECTION_ID())",
                    doctor->connection->id);
        return HF_OK;
    }
    hf_status status = hfi_mysql_connect(doctor->store, &other.connection, doctor->deadline_ns, err);
    if (status == HF_OK)
        status = ask(doctor, "SELECT CONNECTION_ID()", &first, err);
    if (status == HF_OK)
        status = ask(&other, "SELECT CONNECTION_ID()", &second, err);
    hfi_mysql_give_back(doctor->store, other.connection);
    if (status != HF_OK)
        return status;
    const struct hfi_sql_sessions found = { .go_between = "proxy",
                                            .first = (int64_t)hfi_mysql_number(&first.row, 0),
                                            .second = (int64_t)hfi_mysql_number(&second.row, 0),
                                            .show = "SELECT CONNECTION_ID()",
                                            .remedy = "switch multiplexing off in the proxy, or connect directly" };
    hfi_sql_judge_sessions(doctor->examination, &found);
    return HF_OK;
}

static hf_status look_at_connections(const struct doctor *doctor, hf_error *err)
{
    struct mysql_answer answer;
    const bool bound = doctor->store->config.strategy->bound;
    const hf_status status = ask(doctor,
                                 "SELECT @@max_connections, @@session.max_user_connections, (SELECT COUNT(*) FROM"
                                 " information_schema.PROCESSLIST WHERE USER = SUBSTRING_INDEX(USER(), '@', 1))",
                                 &answer, err);
    if (status != HF_OK)
        return status;
    const int64_t mine = (int64_t)hfi_mysql_number(&answer.row, 1), my_use = (int64_t)hfi_mysql_number(&answer.row, 2);
    struct hfi_sql_connections found = {
        .limit = "max_connections",
        .show = "SHOW GLOBAL STATUS LIKE 'Threads_connected'",
        .remedy =
            "SET GLOBAL max_connections, ALTER USER ... WITH MAX_USER_CONNECTIONS, or fewer connections of others",
        .most = (int64_t)hfi_mysql_number(&answer.row, 0),
        .used = read_number(doctor, "STATUS", "Threads_connected"),
        .bound = bound
    };
    if (mine > 0 && mine - my_use < found.most - found.used) {
        found.limit = "max_user_connections";
        found.show = "SELECT @@max_user_connections; SHOW PROCESSLIST";
        found.most = mine;
        found.used = my_use;
    }
    hfi_sql_judge_connections(doctor->examination, &found);
    return HF_OK;
}

static hf_status look_at_clock(const struct doctor *doctor, hf_error *err)
{
    struct mysql_answer answer;
    const int64_t before_ms = hfi_wall_ms();
    const hf_status status =
        ask(doctor, "SELECT CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) * 1000 AS UNSIGNED)", &answer, err);
    if (status == HF_OK)
        hfi_sql_judge_clock(doctor->examination, before_ms, (int64_t)hfi_mysql_number(&answer.row, 0), hfi_wall_ms(),
                            "SELECT UTC_TIMESTAMP(6)");
    return status;
}

hf_status hfi_mysql_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                            hf_error *err)
{
    static const struct hfi_sql_look looks[] = { { "server", look_at_server }, { "replication", look_at_replication },
                                                 { "tables", look_at_tables }, { "rights", look_at_rights },
                                                 { "proxy", look_at_proxy },   { "connections", look_at_connections },
                                                 { "clock", look_at_clock } };
    struct doctor doctor = { .store = memory, .examination = examination, .deadline_ns = deadline_ns };
    hf_status status = hfi_mysql_borrow(memory, &doctor.connection, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = hfi_sql_look(examination, looks, sizeof looks / sizeof looks[0], &doctor, &doctor.connection->broken,
                          "GRANT what holdfast-mysql(7) says", err);
    hfi_mysql_give_back(memory, doctor.connection);
    return status;
}
