/* SPDX-License-Identifier: MIT
 *
 * test_postgres_pooler.c: PgBouncer between the engine and the server. In transaction mode it gives the server's
 * sessions to others after each transaction: nothing may be kept in them, neither a lock nor a setting nor a prepared
 * statement.
 */
#include "findings.h"
#include "pooler.h"
#include "postgres_support.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void use_pooler(const struct pooler *pooler, const char *options)
{
    char url[200];
    snprintf(url, sizeof url, "%s?%s", pooler->url, options);
    use_url(url);
}

TEST_LIMIT(bound_strategies_are_refused_in_transaction_mode, 60)
{
    struct postgres_server *server = postgres_server_start("");
    const struct pooler pooler = pooler_start(server, "transaction", 4);
    check_open_at(HF_UNSUPPORTED, "pooler", "%s?strategy=advisory", pooler.url);
    check_open_at(HF_UNSUPPORTED, "pooler=session", "%s?strategy=for-update", pooler.url);
    pooler_stop(&pooler);
}

struct crowd {
    struct witness witness;
};

static void visit(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    hf_client *client = open_client();
    for (int i = 0; i < 15; i++) {
        hf_lock *lock = must_acquire(client, "counter", NULL);
        witness_visit(&crowd->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
    hf_close(client);
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

/* Fewer sessions than clients, so that every statement may come to another one. */
static void check_rows(struct postgres_server *server)
{
    static const char *const rows[] = { "strategy=lease", "strategy=insert", "strategy=version" };
    const struct pooler pooler = pooler_start(server, "transaction", 3);
    for (size_t i = 0; i < 3; i++) {
        use_pooler(&pooler, rows[i]);
        CHECK(!store_can(HF_CAP_FAIR) && !store_can(HF_CAP_WAKE_ONE)); /* nobody can be notified */
        struct crowd *crowd = shared_new(sizeof *crowd);
        run_processes(6, visit, crowd);
        witness_check(&crowd->witness);
        CHECK_INT(6 * 15, atomic_load(&crowd->witness.entries));
        hf_client *client = open_client();
        hf_error err = { 0 };
        CHECK_STATUS(HF_OK, hf_guard(client, "r", 2 * i + 2, &err), &err);
        CHECK_STATUS(HF_LOST, hf_guard(client, "r", 2 * i + 1, &err), &err);
        check_once(client, rows[i]);
        hf_close(client);
        postgres_server_do(server, "TRUNCATE holdfast_locks, holdfast_locks_grants");
    }
    /* Nothing of ours is left in sessions that are others' now. */
    PGconn *user = PQconnectdb(pooler.url);
    for (int i = 0; i < 6; i++) {
        PGresult *result = PQexec(user, "SELECT count(*) FROM pg_prepared_statements");
        CHECK_STR("0", PQgetvalue(result, 0, 0));
        PQclear(result);
        result = PQexec(user, "SHOW lock_timeout");
        CHECK_STR("0", PQgetvalue(result, 0, 0));
        PQclear(result);
    }
    PQfinish(user);
    pooler_stop(&pooler);
}

TEST_LIMIT(row_strategies_work_in_transaction_mode, 90)
{
    check_rows(postgres_server_start(""));
}

/* Nor can the isolation level be set through it: conflicts are then retried. */
TEST_LIMIT(row_strategies_work_in_transaction_mode_where_all_is_serializable, 90)
{
    check_rows(postgres_server_start("-c default_transaction_isolation=serializable"));
}

/* Nor what is waited for: it is set for each transaction. */
TEST_LIMIT(a_grant_through_it_survives_a_crash_though_the_role_does_not_wait_for_the_disk, 60)
{
    const hf_options options = with_ttl(endless_ttl_ms());
    struct postgres_server *server =
        postgres_server_start("-c wal_writer_delay=10s -c wal_writer_flush_after=100MB -c autovacuum=off");
    postgres_server_do(server, "ALTER ROLE postgres SET synchronous_commit = off");
    const struct pooler pooler = pooler_start(server, "transaction", 3);
    use_pooler(&pooler, "strategy=lease");
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", &options);
    postgres_server_kill(server);
    postgres_server_restart(server);
    CHECK_INT((int64_t)hf_token(lock), postgres_server_number(server, "SELECT token FROM holdfast_locks"));
    hf_release(lock, NULL);
    hf_close(client);
    pooler_stop(&pooler);
}

/* The user vouches for it with pooler=session. */
TEST_LIMIT(all_strategies_work_in_session_mode, 90)
{
    char options[100];
    struct postgres_server *server = postgres_server_start("");
    const struct pooler pooler = pooler_start(server, "session", 60);
    for (size_t i = 0; i < STRATEGIES; i++) {
        snprintf(options, sizeof options, "pooler=session&strategy=%s", strategy_names[i]);
        use_pooler(&pooler, options);
        CHECK(store_can(is_bound(strategy_names[i]) ? HF_CAP_BOUND : HF_CAP_FAIR));
        hf_client *client = open_client(), *other = open_client();
        struct waiter waiter;
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL);
        check_busy(other, strategy_names[i]);
        waiter_start(&waiter, other, strategy_names[i], NULL);
        await_waiters(client, strategy_names[i], 1);
        must_release(lock);
        waiter_finish(&waiter);
        hf_close(client);
        hf_close(other);
    }
    pooler_stop(&pooler);
}

/* A pooler that has stopped keeps the client's connection open, whatever becomes of the server's. */
TEST_LIMIT(a_holder_behind_a_pooler_that_hangs_is_told, 90)
{
    struct postgres_server *server = postgres_server_start("");
    for (size_t i = 0; i < STRATEGIES; i++) {
        char options[100];
        struct loss loss = { 0 };
        hf_options watched = HF_OPTIONS_INIT;
        if (!is_bound(strategy_names[i]))
            continue;
        const struct pooler pooler = pooler_start(server, "session", 60);
        snprintf(options, sizeof options, "pooler=session&strategy=%s", strategy_names[i]);
        use_pooler(&pooler, options);
        hf_client *client = open_client();
        record_loss(&watched, &loss);
        hf_lock *lock = must_acquire(client, strategy_names[i], &watched);
        CHECK(!gate_await_for(&loss.told, 1, 5000)); /* pings do no harm */
        REQUIRE_INT(0, kill(pooler.pid, SIGSTOP));
        postgres_server_do(server,
                           "SELECT pg_terminate_backend(backend, 5000) FROM holdfast_locks_grants WHERE name = '%s'",
                           strategy_names[i]);
        gate_await(&loss.told, 1);
        CHECK(hf_remaining_ms(lock) <= 0);
        REQUIRE_INT(0, kill(pooler.pid, SIGCONT));
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        must_release(must_acquire(client, strategy_names[i], NULL));
        hf_close(client);
        pooler_stop(&pooler);
    }
}

/* Where a session's path cannot be set, that of a transaction is. */
TEST_LIMIT(what_others_have_made_is_not_used_through_a_pooler, 60)
{
    static const char *const rows[] = { "strategy=lease", "strategy=insert", "strategy=version" };
    struct postgres_server *server = postgres_server_start("");
    postgres_server_do(server, "CREATE FUNCTION no_time(bigint, interval) RETURNS interval LANGUAGE sql"
                               " AS $$ SELECT '0'::interval $$");
    postgres_server_do(server, "CREATE OPERATOR * (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = no_time)");
    const struct pooler pooler = pooler_start(server, "transaction", 3);
    for (size_t i = 0; i < 3; i++) {
        use_pooler(&pooler, rows[i]);
        hf_client *client = open_client(), *other = open_client();
        hf_lock *lock = must_acquire(client, rows[i], NULL);
        check_busy(other, rows[i]);
        must_release(lock);
        hf_close(client);
        hf_close(other);
    }
    pooler_stop(&pooler);
}

/* That it gives sessions away is seen by one session for two connections, also if the URL says that it does not. With
 * the schema: what the first connection sets for itself, the next one has. */
TEST_LIMIT(examining_finds_the_pooler, 60)
{
    struct postgres_server *server = postgres_server_start("-c fsync=on");
    const struct pooler pooler = pooler_start(server, "transaction", 4);
    use_pooler(&pooler, "strategy=lease");
    hf_client *client = open_client();
    must_find(find_with(client, 0), HF_FINDING_NOTE, "pooler", "not served in order");
    must_find_no_risk(find_with(client, 0));
    hf_close(client);
    postgres_server_do(server, "ALTER ROLE postgres SET statement_timeout = '2s'");
    pooler_stop(&pooler);
    const struct pooler again = pooler_start(server, "transaction", 1);
    use_pooler(&again, "strategy=lease");
    client = open_client();
    must_find(find_with(client, 0), HF_FINDING_NOTE, "time-outs", "statement_timeout is 2s");
    hf_close(client);
    use_pooler(&again, "strategy=lease&pooler=session&table=public.holdfast_locks");
    client = open_client();
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "pooler", "two connections at the same time");
    hf_close(client);
    pooler_stop(&again);
    const struct pooler honest = pooler_start(server, "session", 4);
    use_pooler(&honest, "strategy=advisory&pooler=session");
    client = open_client();
    must_find(find_with(client, 0), HF_FINDING_OK, "pooler", "two sessions");
    must_find_no_risk(find_with(client, 0));
    hf_close(client);
    pooler_stop(&honest);
}
