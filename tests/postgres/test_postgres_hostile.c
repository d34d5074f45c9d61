/* SPDX-License-Identifier: MIT
 *
 * test_postgres_hostile.c: somebody else in the same database who may make things in a schema to which the path leads,
 * or who may read the tables: no lock, and no guard, is decided by that.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

static PGconn *connect_guest(const struct postgres_server *server)
{
    char url[200];
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    PGconn *guest = PQconnectdb(url);
    REQUIRE_INT(CONNECTION_OK, PQstatus(guest));
    return guest;
}

static void run(PGconn *pq, const char *sql)
{
    PGresult *result = PQexec(pq, sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        FAIL("%s", PQerrorMessage(pq));
    PQclear(result);
}

/* ----------------------------------------------------------------------------------------- what others have made */

/* No time is long, all is equal, nothing is greater, it is 1970, all processes are the same, nothing is set. */
static const char *const traps[] = {
    "CREATE FUNCTION %s.no_time(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT '0'::interval $$",
    "CREATE OPERATOR %s.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = %s.no_time)",
    "CREATE FUNCTION %s.equal(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$",
    "CREATE OPERATOR %s.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = %s.equal)",
    "CREATE FUNCTION %s.not_greater(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$",
    "CREATE OPERATOR %s.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = %s.not_greater)",
    "CREATE FUNCTION %s.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$",
    "CREATE FUNCTION %s.pg_backend_pid() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$",
    "CREATE FUNCTION %s.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'no' $$",
    "CREATE FUNCTION %s.holdfast_guard(text, bigint) RETURNS void LANGUAGE sql AS $$ $$",
};

static void set_traps(PGconn *guest, const char *schema, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char sql[300];
        snprintf(sql, sizeof sql, traps[i], schema, schema);
        run(guest, sql);
    }
}

static void check_once(hf_client *client, const char *name)
{
    hf_error err = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    options.once_per_ms = 3600000;
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, name, &options), &err), &err);
    CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, client, name, &options, &err), &err);
}

static void check_not_fooled(const char *strategy)
{
    hf_client *client = open_client(), *other = open_client();
    hf_error err = { 0 };
    struct waiter waiter;
    hf_lock *lock = must_acquire(client, strategy, NULL);
    check_busy(other, strategy);
    waiter_start(&waiter, other, strategy, NULL);
    await_waiters(client, strategy, 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    check_busy(client, strategy);
    must_release(waiter.lock);
    CHECK_STATUS(HF_OK, hf_guard(client, strategy, 10, &err), &err);
    CHECK_STATUS(HF_LOST, hf_guard(client, strategy, 9, &err), &err);
    check_once(client, strategy);
    hf_close(client);
    hf_close(other);
}

/* In the schema of the tables themselves, which is after the server's own on the path: where it is the closer match. */
TEST_LIMIT(a_closer_match_in_the_same_schema_is_not_used, 60)
{
    struct postgres_server *server = start_store("lease", "");
    postgres_server_do(server, "GRANT CREATE ON SCHEMA public TO guest");
    PGconn *guest = connect_guest(server);
    set_traps(guest, "public", 2);
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        check_not_fooled(strategy_names[i]);
    }
    PQfinish(guest);
}

static struct postgres_server *start_with_path(PGconn **guest)
{
    struct postgres_server *server = start_store("lease", "");
    check_open(server->url, HF_OK, "");
    postgres_server_do(server, "CREATE SCHEMA trap AUTHORIZATION guest");
    *guest = connect_guest(server);
    set_traps(*guest, "trap", sizeof traps / sizeof traps[0]);
    postgres_server_do(server, "ALTER ROLE postgres SET search_path = trap, public, pg_catalog");
    return server;
}

/* In a schema before all others. */
TEST_LIMIT(what_is_first_on_the_path_is_not_used, 60)
{
    PGconn *guest;
    struct postgres_server *server = start_with_path(&guest);
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        check_not_fooled(strategy_names[i]);
    }
    PQfinish(guest);
}

/* The guard in the transaction of a user who has that path. */
TEST_LIMIT(the_guard_means_the_same_on_every_path, 60)
{
    PGconn *guest;
    struct postgres_server *server = start_with_path(&guest);
    PGconn *user = PQconnectdb(server->url);
    run(user, "SELECT public.holdfast_guard('r'::text, 10::bigint)");
    PGresult *result = PQexec(user, "SELECT public.holdfast_guard('r'::text, 9::bigint)");
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    CHECK_STR("HF001", state ? state : "");
    PQclear(result);
    PQfinish(user);
    PQfinish(guest);
}

/* The tables are where the path leads at first; also if that has a name which needs care. */
TEST_LIMIT(tables_are_found_where_the_path_leads, 60)
{
    struct postgres_server *server = postgres_server_start("");
    postgres_server_do(server, "CREATE SCHEMA \"it's \"\"odd\"\"\"");
    postgres_server_do(server, "ALTER ROLE postgres SET search_path = missing, \"it's \"\"odd\"\"\", public");
    use_strategy(server, "lease");
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_guard(client, "x", 1, &err), &err);
    hf_close(client);
    CHECK_INT(5, postgres_server_number(server, "SELECT count(*) FROM pg_tables WHERE schemaname LIKE 'it%%odd%%'"));
    postgres_server_do(server, "ALTER ROLE postgres SET search_path = missing");
    check_open(server->url, HF_INVALID, "table=schema.holdfast_locks");
}

/* --------------------------------------------------------------------------------------------- who may only read */

TEST_LIMIT(a_notification_of_somebody_who_may_only_read_is_not_believed, 60)
{
    static const char *const rows[] = { "lease", "version", "insert" };
    struct postgres_server *server = start_store("lease", "");
    check_open(server->url, HF_OK, "");
    postgres_server_do(server, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest");
    PGconn *guest = connect_guest(server);
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = open_client(), *other = open_client();
        struct waiter waiter;
        hf_lock *lock = must_acquire(client, rows[i], NULL);
        waiter_start(&waiter, other, rows[i], NULL);
        await_waiters(client, rows[i], 1);
        for (int tries = 0; tries < 3; tries++) {
            run(guest, "SELECT pg_notify('holdfast_' || lpad(to_hex(client), 16, '0'), serial || ' ' ||"
                       " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint || ' ' ||"
                       " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM holdfast_locks_waiters");
            CHECK(!gate_await_for(&waiter.ended, 1, 300));
        }
        must_release(lock);
        waiter_finish(&waiter);
        hf_close(client);
        hf_close(other);
    }
    PQfinish(guest);
}
