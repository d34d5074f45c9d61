/* SPDX-License-Identifier: MIT
 *
 * test_postgres_once.c: what is done once per some time: where that is written down, when it is seen, and who may.
 */
#include "postgres_support.h"
#include "server_clock.h"

#include <stdio.h>
#include <string.h>

#define HOUR_MS 3600000u
#define MARKS "SELECT count(*) FROM holdfast_locks_done"
#define IDLE "FROM pg_stat_activity WHERE application_name = 'holdfast' AND state = 'idle'"
#define RIGHTS "SELECT, INSERT, UPDATE, DELETE"

static hf_options once(void)
{
    hf_options options = HF_OPTIONS_INIT;
    options.once_per_ms = HOUR_MS;
    options.ttl_ms = endless_ttl_ms();
    options.owner = HF_OWNER_HANDLE;
    options.note = "nightly";
    return options;
}

static hf_status try_once(hf_client *client, const char *name, hf_lock **lock, hf_error *err)
{
    const hf_options options = once();
    return hf_try_acquire(lock, client, name, &options, err);
}

static void do_it(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, try_once(client, name, &lock, &err), &err);
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
}

static void check_done(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_DONE, try_once(client, name, &lock, &err), &err);
    CHECK(strstr(err.message, " nightly ") != NULL);
}

/* ---------------------------------------------------------------------------------------------- what is kept, where */

TEST_LIMIT(a_mark_survives_a_crash_of_the_server, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client();
        do_it(client, strategy_names[i]);
        do_it(client, "all"); /* whatever its strategy, a mark is a mark */
        CHECK_STATUS(HF_OK, hf_forget_done(client, "all", NULL), NULL);
        postgres_server_do(server, "DELETE FROM holdfast_locks WHERE name = 'all'");
        hf_close(client);
    }
    postgres_server_kill(server);
    postgres_server_restart(server);
    CHECK_INT(STRATEGIES, postgres_server_number(server, MARKS));
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[STRATEGIES - 1 - i]);
        hf_client *client = open_client();
        check_done(client, strategy_names[i]);
        hf_close(client);
    }
}

TEST_LIMIT(a_mark_lasts_by_the_clock_of_the_server, 90)
{
    struct postgres_server *server = start_store("lease", "");
    postgres_server_own_clock(server);
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        server_clock_set(server->clock, 0);
        hf_client *client = open_client();
        do_it(client, strategy_names[i]);
        server_clock_set(server->clock, 3500 * 1000);
        check_done(client, strategy_names[i]);
        server_clock_set(server->clock, 3700 * 1000);
        do_it(client, strategy_names[i]);
        CHECK_INT(1, postgres_server_number(server, MARKS " WHERE name = '%s'", strategy_names[i]));
        hf_close(client);
    }
}

/* -------------------------------------------------------------------------------------------------- when it is seen */

/* It begins to wait for the row before the one who frees it has committed that it is done. */
static void check_seen_after_a_wait(struct postgres_server *server, const char *freeing)
{
    hf_client *client = open_client();
    const hf_options options = once();
    struct waiter waiter;
    hf_lock *lock = must_acquire(client, "x", &options);
    PGconn *holder = PQconnectdb(server->url);
    PQclear(PQexec(holder, "BEGIN"));
    PGresult *result = PQexec(holder, freeing);
    CHECK_INT(PGRES_COMMAND_OK, PQresultStatus(result));
    PQclear(result);
    waiter_start(&waiter, client, "x", &options);
    postgres_server_await(server, 1, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
    PQclear(PQexec(holder, "COMMIT"));
    waiter_join(&waiter, HF_DONE);
    check_becomes_free(client, "x");
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    PQfinish(holder);
    hf_close(client);
    postgres_server_do(server, "TRUNCATE holdfast_locks, holdfast_locks_done");
}

#define LEAVE_MARK                                                                                                     \
    " INSERT INTO holdfast_locks_done VALUES ('x', 1, '', 1, '', now(), now() + interval '1 hour') RETURNING 1) "

TEST_LIMIT(a_mark_is_seen_by_who_waits_for_the_row, 60)
{
    struct postgres_server *server = start_store("lease", "");
    check_seen_after_a_wait(server,
                            "WITH mark AS (" LEAVE_MARK "UPDATE holdfast_locks SET client = NULL, serial = NULL,"
                            " expires = NULL WHERE name = 'x'");
    use_strategy(server, "insert");
    check_seen_after_a_wait(server, "WITH mark AS (" LEAVE_MARK ", gone AS (DELETE FROM holdfast_locks RETURNING 1)"
                                    " UPDATE holdfast_locks_grants SET token = token WHERE name = 'x'");
}

/* The first request is given up, and done after its repetition. */
TEST_LIMIT(a_release_that_is_said_twice_leaves_one_mark, 90)
{
    static const char *const rows[] = { "lease", "insert", "version" };
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = NULL;
        hf_client_options impatient = HF_CLIENT_OPTIONS_INIT;
        impatient.timeout_ms = 1000;
        REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &impatient, NULL), NULL);
        hf_lock *lock = NULL;
        REQUIRE_STATUS(HF_OK, try_once(client, rows[i], &lock, NULL), NULL);
        const uint64_t token = hf_token(lock);
        postgres_server_await(server, 1, "SELECT count(*) " IDLE);
        const pid_t backend = (pid_t)postgres_server_number(server, "SELECT pid " IDLE);
        postgres_server_pause_backend(backend);
        CHECK_STATUS(HF_UNKNOWN, hf_release_done(lock, NULL), NULL);
        postgres_server_await(server, (int64_t)i + 1, MARKS);
        const int64_t done = postgres_server_number(
            server, "SELECT (extract(epoch FROM done) * 1000000)::bigint FROM holdfast_locks_done WHERE name = '%s'",
            rows[i]);
        postgres_server_continue_backend(backend);
        char lives[100];
        snprintf(lives, sizeof lives, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d", (int)backend);
        postgres_server_await(server, 0, lives); /* it has done what it was sent, and found its client gone */
        CHECK_INT(1, postgres_server_number(server,
                                            MARKS " WHERE name = '%s' AND token = %lld"
                                                  " AND (extract(epoch FROM done) * 1000000)::bigint = %lld",
                                            rows[i], (long long)token, (long long)done));
        hf_client *other = open_client();
        check_done(other, rows[i]);
        check_becomes_free(other, rows[i]);
        hf_close(client);
        hf_close(other);
    }
}

/* What is taken back late is not what was done since. */
TEST_LIMIT(a_mark_is_not_taken_back_late, 60)
{
    struct postgres_server *server = start_store("lease", "");
    hf_client *client = NULL;
    hf_client_options impatient = HF_CLIENT_OPTIONS_INIT;
    impatient.timeout_ms = 1000;
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &impatient, NULL), NULL);
    do_it(client, "x");
    postgres_server_await(server, 1, "SELECT count(*) " IDLE);
    const pid_t backend = (pid_t)postgres_server_number(server, "SELECT pid " IDLE);
    postgres_server_pause_backend(backend);
    const hf_status status = hf_forget_done(client, "x", NULL);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    hf_client *other = open_client();
    CHECK_STATUS(HF_OK, hf_forget_done(other, "x", NULL), NULL);
    do_it(other, "x");
    postgres_server_continue_backend(backend);
    char lives[100];
    snprintf(lives, sizeof lives, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d", (int)backend);
    postgres_server_await(server, 0, lives); /* it has done what it was sent, and found its client gone */
    check_done(other, "x");
    hf_close(client);
    hf_close(other);
}

/* ---------------------------------------------------------------------------------------------------------- who may */

TEST_LIMIT(tables_of_an_earlier_version_are_completed, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_close(open_client());
        postgres_server_do(server, "DROP TABLE holdfast_locks_done");
        hf_client *client = open_client();
        do_it(client, strategy_names[i]);
        check_done(client, strategy_names[i]);
        hf_close(client);
    }
}

static void check_rights(struct postgres_server *server, const char *name)
{
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    postgres_server_do(server, "REVOKE ALL ON holdfast_locks_done FROM guest");
    must_release(must_acquire(client, name, NULL)); /* who does not ask for it needs none */
    CHECK_STATUS(HF_DENIED, try_once(client, name, &lock, &err), &err);
    CHECK(strstr(err.message, "psql -v table=holdfast_locks -v role=guest -f holdfast-postgres.sql") != NULL);
    postgres_server_do(server, "GRANT SELECT ON holdfast_locks_done TO guest");
    REQUIRE_STATUS(HF_OK, try_once(client, name, &lock, &err), &err);
    CHECK_STATUS(HF_DENIED, hf_release_done(lock, &err), &err);
    CHECK(strstr(err.message, "holdfast_locks_done") != NULL);
    check_free(client, name); /* all the same */
    CHECK_INT(0, postgres_server_number(server, MARKS " WHERE name = '%s'", name));
    postgres_server_do(server, "GRANT " RIGHTS " ON holdfast_locks_done TO guest");
    do_it(client, name);
    check_done(client, name);
    CHECK_STATUS(HF_OK, hf_forget_done(client, name, &err), &err);
    hf_close(client);
}

TEST_LIMIT(once_needs_rights_on_its_table_alone, 90)
{
    char url[300];
    struct postgres_server *server = start_store("lease", "");
    hf_close(open_client());
    postgres_server_do(server,
                       "GRANT " RIGHTS " ON holdfast_locks, holdfast_locks_waiters, holdfast_locks_grants TO guest");
    for (size_t i = 0; i < STRATEGIES; i++) {
        snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres?strategy=%s", server->port,
                 strategy_names[i]);
        use_url(url);
        check_rights(server, strategy_names[i]);
    }
    postgres_server_do(server, "DROP TABLE holdfast_locks_done"); /* this role cannot make it */
    for (size_t i = 0; i < STRATEGIES; i++) {
        snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres?strategy=%s", server->port,
                 strategy_names[i]);
        use_url(url);
        hf_client *client = open_client();
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        must_release(must_acquire(client, strategy_names[i], NULL));
        CHECK_STATUS(HF_INVALID, try_once(client, strategy_names[i], &lock, &err), &err);
        check_error(&err, HF_INVALID, "holdfast_locks_done\" is missing; have an administrator run: psql");
        CHECK_STATUS(HF_INVALID, hf_forget_done(client, strategy_names[i], &err), &err);
        check_error(&err, HF_INVALID, "holdfast_locks_done\" is missing; have an administrator run: psql");
        must_release(must_acquire(client, strategy_names[i], NULL));
        hf_close(client);
    }
}
