/* SPDX-License-Identifier: MIT
 *
 * test_postgres_doctor.c: what hf_examine() says of servers that are set up well, and of one that is set up badly in
 * each way that can be had.
 */
#include "postgres_support.h"
#include "server_clock.h"

#include <stdio.h>

/* New sessions have it, and those of the pool are told. */
static void set(struct postgres_server *server, const char *name, const char *value)
{
    char sql[200];
    postgres_server_do(server, "ALTER SYSTEM SET %s = %s", name, value);
    postgres_server_do(server, "SELECT pg_reload_conf()");
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pg_settings WHERE name = '%s' AND setting = %s::text", name, value);
    postgres_server_await(server, 1, sql);
}

static void reset(struct postgres_server *server, const char *name)
{
    char sql[200];
    postgres_server_do(server, "ALTER SYSTEM RESET %s", name);
    postgres_server_do(server, "SELECT pg_reload_conf()");
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pg_settings WHERE name = '%s' AND source <> 'configuration file'",
             name);
    postgres_server_await(server, 1, sql);
}

/* The server of a test is as fast as can be: nothing is flushed. */
#define DURABLE "-c fsync=on -c full_page_writes=on -c synchronous_commit=on"

TEST_LIMIT(a_good_server_has_nothing_wrong, 60)
{
    struct postgres_server *server = start_store("lease", DURABLE);
    for (size_t s = 0; s < STRATEGIES; s++) {
        use_strategy(server, strategy_names[s]);
        hf_client *client = open_client();
        must_find_no_risk(find_with(client, 0));
        hf_close(client);
    }
    found(HF_FINDING_NOTE, "replication", "alone");
    found(HF_FINDING_OK, "pooler", "as was announced");
}

TEST_LIMIT(a_server_that_forgets_is_found, 60)
{
    struct postgres_server *server = start_store("lease", "");
    static const char *const settings[][3] = { { "fsync", "'off'", "disk" },
                                               { "full_page_writes", "'off'", "pages" },
                                               { "autovacuum", "'off'", "vacuum" } };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        char words[60];
        snprintf(words, sizeof words, "%s is off", settings[i][0]);
        set(server, settings[i][0], settings[i][1]);
        found(HF_FINDING_RISK, settings[i][2], words);
        reset(server, settings[i][0]);
    }
    set(server, "synchronous_commit", "'off'");
    found(HF_FINDING_OK, "commits", "synchronous_commit is local"); /* in sessions of ours */
    reset(server, "synchronous_commit");
    hf_client *client = open_client(); /* while it can still commit */
    set(server, "synchronous_standby_names", "'nobody'");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "replication", "there is none");
    reset(server, "synchronous_standby_names");
    hf_close(client);
}

TEST_LIMIT(a_standby_that_may_lag_is_found, 60)
{
    struct postgres_server *server = start_store("lease", "");
    char url[200];
    postgres_server_start_standby(server);
    found(HF_FINDING_RISK, "replication", "forgets the last grants");
    set(server, "synchronous_standby_names", "'*'");
    postgres_server_await(server, 1, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'");
    found(HF_FINDING_OK, "replication", "1 standbys are connected, 1 are waited for");
    postgres_server_do(server, "CREATE ROLE keeper LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO keeper");
    hf_client *client = open_client(); /* while it can still commit */
    snprintf(url, sizeof url, "postgres://keeper@127.0.0.1:%d/postgres", server->port);
    use_url(url);
    found(HF_FINDING_NOTE, "replication", "may not see which are waited for");
    set(server, "synchronous_standby_names", "'another'");
    postgres_server_await(server, 1, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "replication", "none is waited for");
    reset(server, "synchronous_standby_names");
    hf_close(client);
}

TEST_LIMIT(tables_that_cannot_keep_locks_are_found, 60)
{
    struct postgres_server *server = start_store("lease", DURABLE);
    hf_client *client = open_client();
    postgres_server_do(server, "ALTER TABLE holdfast_locks SET UNLOGGED");
    must_find(find_with(client, 0), HF_FINDING_RISK, "logging", "holdfast_locks: unlogged");
    postgres_server_do(server, "ALTER TABLE holdfast_locks SET LOGGED");
    postgres_server_do(server, "ALTER TABLE holdfast_locks_waiters SET LOGGED");
    must_find(find_with(client, 0), HF_FINDING_RISK, "logging", "holdfast_locks_waiters\": logged");
    postgres_server_do(server, "ALTER TABLE holdfast_locks_waiters SET UNLOGGED");
    postgres_server_do(server, "CREATE SCHEMA other; CREATE TABLE other.holdfast_locks (name text)");
    must_find(find_with(client, 0), HF_FINDING_RISK, "search_path", "in other");
    postgres_server_do(server, "DROP SCHEMA other CASCADE");
    postgres_server_do(server, "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
                               " CREATE TRIGGER watcher BEFORE UPDATE ON holdfast_locks FOR EACH ROW EXECUTE FUNCTION"
                               " f()");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "triggers", "watcher");
    postgres_server_do(server, "DROP FUNCTION f CASCADE");
    must_find_no_risk(find_with(client, 0));
    postgres_server_do(server, "ALTER TABLE holdfast_locks DROP CONSTRAINT holdfast_locks_pkey");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "index", "holdfast_locks");
    postgres_server_do(server, "DROP TABLE holdfast_locks_waiters");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "a table is missing");
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM pg_class WHERE relname LIKE '%%waiters'"));
    hf_close(client);
}

TEST_LIMIT(rights_are_looked_at, 60)
{
    char url[200];
    struct postgres_server *server = start_store("lease", DURABLE);
    hf_close(open_client()); /* makes the tables */
    snprintf(url, sizeof url, "postgres://keeper@127.0.0.1:%d/postgres", server->port);
    postgres_server_do(server, "CREATE ROLE keeper LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO keeper");
    use_url(url);
    hf_client *client = open_client();
    must_find_no_risk(find_with(client, 0));
    postgres_server_do(server, "REVOKE DELETE ON holdfast_locks_waiters FROM keeper");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "rights", "DELETE on public.\"holdfast_locks_waiters\"");
    postgres_server_do(server, "GRANT DELETE ON holdfast_locks_waiters TO keeper");
    postgres_server_do(server, "REVOKE ALL ON holdfast_locks_fences FROM keeper");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "rights", "_fences");
    postgres_server_do(server, "GRANT UPDATE ON holdfast_locks TO PUBLIC");
    must_find(find_with(client, 0), HF_FINDING_RISK, "strangers", "UPDATE on");
    postgres_server_do(server, "REVOKE UPDATE ON holdfast_locks FROM PUBLIC");
    postgres_server_do(server, "ALTER TABLE holdfast_locks ENABLE ROW LEVEL SECURITY");
    must_find(find_with(client, 0), HF_FINDING_RISK, "row security", "holdfast_locks");
    postgres_server_do(server, "ALTER TABLE holdfast_locks DISABLE ROW LEVEL SECURITY");
    postgres_server_do(server, "REVOKE ALL ON SCHEMA public FROM PUBLIC");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "could not be looked at");
    postgres_server_do(server, "GRANT USAGE ON SCHEMA public TO PUBLIC");
    hf_close(client);
    postgres_server_do(server, "ALTER ROLE keeper CONNECTION LIMIT 3");
    found(HF_FINDING_RISK, "connections", "of 3 allowed by the limit of the role");
    postgres_server_do(server, "ALTER ROLE keeper CONNECTION LIMIT -1");
    postgres_server_do(server, "ALTER ROLE keeper SET default_transaction_read_only = on");
    found(HF_FINDING_BROKEN, "writable", "nothing can be written");
}

TEST_LIMIT(a_clock_that_is_wrong_is_found, 60)
{
    struct postgres_server *server = start_store("lease", DURABLE);
    postgres_server_own_clock(server);
    server_clock_set(server->clock, -5000);
    found(HF_FINDING_RISK, "clock", "behind the clock");
    server_clock_set(server->clock, 5000);
    found(HF_FINDING_RISK, "clock", "ahead of the clock");
}
