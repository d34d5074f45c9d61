/* SPDX-License-Identifier: MIT
 *
 * test_postgres_trouble.c: what can be wrong with a URL, a role, a table or a server has a status and a sentence, which
 * never holds a password.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

TEST(urls_that_make_no_sense)
{
    check_open("postgres:here", HF_INVALID, "looks like this");
    check_open("postgres://h/d?strategy=mutex", HF_INVALID, "for-update");
    check_open("postgres://h/d?strategy=", HF_INVALID, "strategy");
    check_open("postgres://h/d?table=a.b.c", HF_INVALID, "schema.name");
    check_open("postgres://h/d?table=1a", HF_INVALID, "schema.name");
    check_open("postgres://h/d?table=x%22y", HF_INVALID, "schema.name");
    check_open("postgres://h/d?create=maybe", HF_INVALID, "yes or no");
    check_open("postgres://h/d?pooler=transaction", HF_INVALID, "pooler is session");
    check_open("postgres://h/d?colour=blue", HF_INVALID, "colour");
    check_open("postgres://u:open-sesame%zz@h/d", HF_INVALID, "cannot read the URL");
}

TEST(servers_that_are_not_there)
{
    check_open("postgres://u:open-sesame@127.0.0.1:1/d", HF_UNAVAILABLE, "127.0.0.1:1");
    check_open("postgres://no-such-host.invalid/d", HF_UNAVAILABLE, "no-such-host.invalid");
    check_open("postgres:///d?host=/nonexistent", HF_UNAVAILABLE, "/nonexistent");
}

TEST_LIMIT(roles_and_databases, 60)
{
    char url[300];
    struct postgres_server *server = start_store("lease", "");
    check_open_at(HF_DENIED, "28P01", "postgres://guest:sesame-street@127.0.0.1:%d/postgres", server->port);
    check_open_at(HF_DENIED, "password", "postgres://guest@127.0.0.1:%d/postgres", server->port);
    check_open_at(HF_INVALID, "3D000", "postgres://guest:open-sesame@127.0.0.1:%d/nowhere", server->port);
    /* The right password opens, but this role may do nothing with the tables that are there. */
    snprintf(url, sizeof url, "postgres://127.0.0.1:%d/postgres?user=guest&password=open-sesame", server->port);
    hf_client *client = NULL;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, NULL, &err), &err);
    CHECK(strstr(hf_url(client), "sesame") == NULL && strstr(hf_url(client), "user=guest") != NULL);
    CHECK_STATUS(HF_DENIED, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    hf_close(client);
    /* The least that it needs. */
    postgres_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_locks, holdfast_locks_waiters,"
                               " holdfast_locks_grants TO guest");
    for (size_t i = 0; i < STRATEGIES; i++) {
        char mine[400];
        snprintf(mine, sizeof mine, "%s&strategy=%s", url, strategy_names[i]);
        store_url = mine;
        client = open_client();
        must_release(must_acquire(client, strategy_names[i], NULL)); /* a name has one strategy */
        hf_close(client);
    }
}

TEST_LIMIT(tables_that_are_missing, 60)
{
    char url[300];
    struct postgres_server *server = postgres_server_start("");
    check_open_at(HF_INVALID, "holdfast-postgres.sql", "%s?create=no", server->url);
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    check_open(url, HF_INVALID, "may not create");
    check_open(server->url, HF_OK, "");
    check_open(url, HF_OK, "");
    /* Dropped under a client that is open: made anew. */
    use_strategy(server, "lease");
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    postgres_server_do(server, "DROP TABLE holdfast_locks, holdfast_locks_waiters");
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}

/* sql/holdfast-postgres.sql into the server's folder, where its user can read it. */
static void copy_schema(const struct postgres_server *server)
{
    char path[300], line[500];
    const char *schema = getenv("TEST_SQL");
    REQUIRE(schema != NULL);
    snprintf(path, sizeof path, "%s/holdfast-postgres.sql", server->directory);
    FILE *from = fopen(schema, "re"), *to = fopen(path, "we");
    REQUIRE(from != NULL && to != NULL);
    REQUIRE_INT(0, fchmod(fileno(to), 0644));
    while (fgets(line, sizeof line, from))
        fputs(line, to);
    REQUIRE_INT(0, fclose(from) | fclose(to));
}

/* What follows "run: " in the sentence, as the superuser. */
static void run_remedy(const struct postgres_server *server, const char *url)
{
    char command[900];
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_INVALID, hf_open(&client, url, NULL, &err), &err);
    const char *remedy = strstr(err.message, "run: psql ");
    REQUIRE(remedy != NULL);
    snprintf(command, sizeof command, "psql -q -h %s -p %d -U postgres %s", server->directory, server->port,
             remedy + strlen("run: psql "));
    postgres_server_run(server, command);
}

#define SHAPE_IN(schema)                                                                                               \
    "SELECT relname, relpersistence, reloptions::text, attname, format_type(atttypid, atttypmod), attnotnull,"         \
    " attcollation, attidentity, (SELECT string_agg(pg_get_constraintdef(k.oid), ',' ORDER BY contype, conkey)"        \
    " FROM pg_constraint k WHERE conrelid = c.oid) FROM pg_class c JOIN pg_attribute ON attrelid = c.oid"              \
    " WHERE relkind = 'r' AND attnum > 0 AND relnamespace = '" schema "'::regnamespace"
#define SOURCE_IN(schema)                                                                                              \
    "SELECT replace(replace(prosrc, '\"', ''), '" schema ".', ''), provolatile, prosecdef, proconfig::text"            \
    " FROM pg_proc"                                                                                                    \
    " WHERE pronamespace = '" schema "'::regnamespace"

/* The file makes what the engine makes, and a role that may do no more than it says can do everything. */
TEST_LIMIT(the_command_in_the_sentence_makes_what_is_missing, 60)
{
    char url[300];
    struct postgres_server *server = start_store("lease", "");
    copy_schema(server);
    postgres_server_do(server, "CREATE SCHEMA app");
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres?table=app.holdfast_locks",
             server->port);
    run_remedy(server, url);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM (%s EXCEPT %s) different",
                                            i ? SHAPE_IN("app") : SHAPE_IN("public"),
                                            i ? SHAPE_IN("public") : SHAPE_IN("app")));
        CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM (%s EXCEPT %s) different",
                                            i ? SOURCE_IN("app") : SOURCE_IN("public"),
                                            i ? SOURCE_IN("public") : SOURCE_IN("app")));
    }
    CHECK_INT(5, postgres_server_number(server, "SELECT count(DISTINCT relname) FROM (" SHAPE_IN("app") ") shape"));
    for (size_t i = 0; i < STRATEGIES; i++) {
        char mine[400];
        snprintf(mine, sizeof mine, "%s&strategy=%s", url, strategy_names[i]);
        store_url = mine;
        hf_client *client = open_client();
        hf_error err = { 0 };
        must_release(must_acquire(client, strategy_names[i], NULL)); /* a name has one strategy */
        CHECK_STATUS(HF_OK, hf_guard(client, strategy_names[i], 1, &err), &err);
        hf_close(client);
    }
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres?table=app.jobs", server->port);
    run_remedy(server, url);
    check_open(url, HF_OK, "");
}

TEST_LIMIT(a_table_without_a_unique_index_is_refused, 60)
{
    char url[300];
    struct postgres_server *server = postgres_server_start("");
    postgres_server_do(server, "CREATE TABLE mine (name text, token bigint)");
    snprintf(url, sizeof url, "%s?table=mine", server->url);
    check_open(url, HF_INVALID, "unique index");
    postgres_server_do(server, "DROP TABLE mine");
    postgres_server_do(server, "CREATE TABLE mine_grants (name text, token bigint)");
    check_open(url, HF_INVALID, "mine_grants");
    check_open_at(HF_OK, "", "%s?table=public.others", server->url);
    CHECK_INT(1, postgres_server_number(server, "SELECT count(*) FROM pg_tables WHERE tablename = 'others_grants'"));
}

TEST_LIMIT(a_session_that_may_only_read, 60)
{
    struct postgres_server *server = start_store("lease", "");
    postgres_server_do(server, "ALTER ROLE postgres SET default_transaction_read_only = on");
    hf_client *client = open_client();
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "25006") != NULL);
    hf_close(client);
}
