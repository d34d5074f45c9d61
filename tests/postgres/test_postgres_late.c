/* SPDX-License-Identifier: MIT
 *
 * test_postgres_late.c: requests that were given up and arrive all the same, after their successors: the process of the
 * server that has them is stopped, and goes on later. Whatever arrives late does nothing.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 1000
#define LAST_STATEMENT "SELECT (extract(epoch FROM query_start) * 1000000)::bigint, state FROM pg_stat_activity"
#define IDLE "FROM pg_stat_activity WHERE application_name = 'holdfast' AND state = 'idle'"

static const char *const rows[] = { "lease", "insert", "version" };

static hf_client *open_impatient(void)
{
    hf_client *client = NULL;
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &options, NULL), NULL);
    return client;
}

/* Stops the process of the one session that there is. */
static pid_t stop_session(struct postgres_server *server)
{
    postgres_server_await(server, 1, "SELECT count(*) " IDLE);
    const pid_t backend = (pid_t)postgres_server_number(server, "SELECT pid " IDLE);
    postgres_server_pause_backend(backend);
    return backend;
}

/* It does what it has been sent; and ends, if it finds its client gone. */
static void let_it_run(struct postgres_server *server, pid_t backend)
{
    char unfinished[200];
    const int64_t before = postgres_server_number(server, LAST_STATEMENT " WHERE pid = %d", (int)backend);
    snprintf(unfinished, sizeof unfinished,
             "SELECT count(*) FROM (" LAST_STATEMENT " WHERE pid = %d) one (at, state)"
             " WHERE at <= %lld OR state <> 'idle'",
             (int)backend, (long long)before);
    postgres_server_continue_backend(backend);
    postgres_server_await(server, 0, unfinished);
}

static int64_t seconds_left(struct postgres_server *server, const char *name)
{
    return postgres_server_number(server,
                                  "SELECT extract(epoch FROM expires - clock_timestamp())::bigint"
                                  " FROM holdfast_locks WHERE name = '%s'",
                                  name);
}

TEST_LIMIT(a_late_renewal_does_not_cut_the_lease, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = open_impatient();
        hf_options options = HF_OPTIONS_INIT;
        options.ttl_ms = 300000; /* nothing is renewed by itself meanwhile */
        hf_lock *lock = must_acquire(client, rows[i], &options);
        const pid_t backend = stop_session(server);
        CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 100000, NULL), NULL);
        CHECK_STATUS(HF_OK, hf_renew(lock, 200000, NULL), NULL);
        let_it_run(server, backend);
        CHECK(hf_remaining_ms(lock) > 110000);
        CHECK(seconds_left(server, rows[i]) >= hf_remaining_ms(lock) / 1000);
        must_release(lock);
        hf_close(client);
    }
}

/* The same with the request that took the lock, which its owner had to send twice. */
TEST_LIMIT(a_late_acquire_does_not_cut_the_lease, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = open_impatient();
        hf_options options = HF_OPTIONS_INIT;
        options.ttl_ms = 100000;
        must_release(must_acquire(client, rows[i], NULL));
        const pid_t backend = stop_session(server);
        hf_lock *lock = must_acquire(client, rows[i], &options);
        CHECK_STATUS(HF_OK, hf_renew(lock, 200000, NULL), NULL);
        let_it_run(server, backend);
        CHECK(hf_remaining_ms(lock) > 110000);
        CHECK(seconds_left(server, rows[i]) >= hf_remaining_ms(lock) / 1000);
        must_release(lock);
        CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks WHERE expires > now()"));
        hf_close(client);
    }
}

/* Its release has been answered, or tried in vain, before the server gets round to it. (for-update takes two sessions,
 * and ends with one.) */
TEST_LIMIT(a_late_acquire_takes_the_lock_for_nobody, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        if (strcmp(strategy_names[i], "for-update") == 0)
            continue;
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_impatient(), *other = NULL;
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL;
        options.ttl_ms = endless_ttl_ms();
        must_release(must_acquire(client, strategy_names[i], NULL));
        const pid_t backend = stop_session(server);
        CHECK(hf_try_acquire(&lock, client, strategy_names[i], &options, NULL) != HF_OK);
        postgres_server_await(server, 1,
                              "SELECT least(1, count(*)) " IDLE " AND query NOT LIKE '%set_config%'"
                              " AND query_start > clock_timestamp() - interval '10 s'");
        let_it_run(server, backend);
        other = open_client();
        check_becomes_free(other, strategy_names[i]);
        hf_close(client);
        check_free(other, strategy_names[i]);
        hf_close(other);
        postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    }
}

/* Whoever broke a lock and got no answer goes away, and the lock changes hands. */
TEST_LIMIT(a_late_break_does_not_break_the_next_holder, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_options options = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        hf_client *breaker = open_impatient();
        CHECK_STATUS(HF_OK, hf_break(breaker, "another", NULL), NULL);
        const pid_t backend = stop_session(server);
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL);
        CHECK(hf_break(breaker, strategy_names[i], NULL) != HF_OK);
        hf_close(breaker);
        must_release(lock);
        record_loss(&options, &loss);
        lock = must_acquire(client, strategy_names[i], &options);
        let_it_run(server, backend);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        CHECK_INT(0, gate_count(&loss.told));
        must_release(lock);
        hf_close(client);
        postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    }
}

#define TABLE_OF_0_1                                                                                                   \
    "CREATE TABLE holdfast_locks (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL DEFAULT 0,"               \
    " client bigint, serial bigint, since timestamptz, expires timestamptz, ttl bigint, host text, pid int,"           \
    " note text, queued boolean NOT NULL DEFAULT false) WITH (fillfactor = 50)"

/* The tables of version 0.1 have no number of a request: it is added, by whoever may. */
TEST_LIMIT(a_table_of_the_version_before_is_brought_up_to_date, 60)
{
    char guest[200], no[200];
    struct postgres_server *server = postgres_server_start("");
    snprintf(guest, sizeof guest, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    snprintf(no, sizeof no, "%s?create=no", server->url);
    use_strategy(server, "lease");
    hf_client *client = open_client();
    postgres_server_do(server, "DROP TABLE holdfast_locks");
    postgres_server_do(server, TABLE_OF_0_1);
    postgres_server_do(server, "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest");
    check_open(guest, HF_INVALID, "-f holdfast-postgres.sql");
    check_open(no, HF_INVALID, "column request");
    must_release(must_acquire(client, "x", NULL)); /* a client that had another table before */
    check_open(guest, HF_OK, "");
    check_open(no, HF_OK, "");
    hf_close(client);
}
