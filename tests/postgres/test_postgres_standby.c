/* SPDX-License-Identifier: MIT
 *
 * test_postgres_standby.c: a streaming standby that takes over. What it had not received is lost; whoever held it is
 * told, and its token is smaller than that of the next.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

struct pair {
    struct postgres_server *primary, *standby;
    char url[200]; /* of both */
};

static void start_pair(struct pair *pair, const char *strategy)
{
    pair->primary = start_store(strategy, "");
    pair->standby = postgres_server_start_standby(pair->primary);
    snprintf(pair->url, sizeof pair->url, "postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?strategy=%s",
             pair->primary->port, pair->standby->port, strategy);
    store_url = pair->url;
}

static void await_in_step(const struct pair *pair)
{
    char replayed[200];
    const int64_t written = postgres_server_number(pair->primary, "SELECT pg_current_wal_lsn() - '0/0'");
    snprintf(replayed, sizeof replayed, "SELECT (pg_last_wal_replay_lsn() - '0/0' >= %lld)::int", (long long)written);
    postgres_server_await(pair->standby, 1, replayed);
}

/* From now on the standby receives nothing. */
static void cut_off(const struct pair *pair)
{
    await_in_step(pair);
    postgres_server_do(pair->standby, "ALTER SYSTEM SET primary_conninfo = ''");
    postgres_server_do(pair->standby, "SELECT pg_reload_conf()");
    postgres_server_await(pair->standby, 0, "SELECT count(*) FROM pg_stat_wal_receiver");
}

static void promote(const struct pair *pair)
{
    postgres_server_do(pair->standby, "SELECT pg_promote()");
}

TEST_LIMIT(a_standby_is_refused_until_it_is_promoted, 90)
{
    struct pair pair;
    start_pair(&pair, "lease");
    check_open(pair.standby->url, HF_UNAVAILABLE, "standby");
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    const uint64_t token = hf_token(lock);
    must_release(lock);
    await_in_step(&pair);
    postgres_server_kill(pair.primary);
    promote(&pair);
    use_strategy(pair.standby, "lease");
    hf_client *next = open_client();
    lock = must_acquire(next, "x", NULL);
    CHECK(hf_token(lock) > token);
    must_release(lock);
    hf_close(next);
    hf_close(client);
}

/* The holder has nothing to renew for minutes; it asks for something else, finds another server in the place of the one
 * it knew, and has all its locks renewed at once. */
static void check_lag(const char *strategy)
{
    struct pair pair;
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 }, none = { 0 };
    hf_error err = { 0 };
    start_pair(&pair, strategy);
    hf_client *client = open_client(), *other = open_client();
    options.ttl_ms = endless_ttl_ms();
    record_loss(&options, &none);
    hf_lock *received = must_acquire(client, "received", &options);
    CHECK_STATUS(HF_OK, hf_guard(client, "r", hf_token(received), &err), &err);
    cut_off(&pair);
    record_loss(&options, &loss);
    hf_lock *forgotten = must_acquire(client, "forgotten", &options);
    const uint64_t token = hf_token(forgotten);
    postgres_server_kill(pair.primary);
    promote(&pair);
    /* Nobody waits for the end of a time that the new primary knows nothing of. */
    hf_lock *lock = must_acquire(other, "forgotten", NULL);
    CHECK(hf_token(lock) > token);
    CHECK_STATUS(HF_OK, hf_guard(other, "r", hf_token(lock), &err), &err);
    must_release(must_acquire(client, "else", NULL));
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_guard(client, "r", token, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(forgotten, NULL), NULL);
    /* What the standby had received is still held. */
    CHECK_INT(0, gate_count(&none.told));
    check_busy(other, "received");
    must_release(received);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_lagging_standby_forgets_the_last_lease, 90)
{
    check_lag("lease");
}

TEST_LIMIT(a_lagging_standby_forgets_the_last_insert, 90)
{
    check_lag("insert");
}

TEST_LIMIT(a_lagging_standby_forgets_the_last_version, 90)
{
    check_lag("version");
}

static void check_bound(const char *strategy)
{
    struct pair pair;
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    start_pair(&pair, strategy);
    hf_client *client = open_client(), *other = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    const uint64_t token = hf_token(lock);
    await_in_step(&pair);
    postgres_server_kill(pair.primary);
    gate_await(&loss.told, 1); /* at once, however good the standby is */
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    promote(&pair);
    lock = must_acquire(other, "x", NULL);
    CHECK(hf_token(lock) > token);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_bound_lock_survives_no_failover, 120)
{
    check_bound("advisory");
    check_bound("for-update");
}

/* The old primary is still there, and still has our connections, but may not be written to any more. */
TEST_LIMIT(a_primary_that_became_read_only_is_left, 90)
{
    struct pair pair;
    start_pair(&pair, "lease");
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    const uint64_t token = hf_token(lock);
    must_release(lock);
    await_in_step(&pair);
    postgres_server_do(pair.primary, "ALTER SYSTEM SET default_transaction_read_only = on");
    postgres_server_do(pair.primary, "SELECT pg_reload_conf()");
    postgres_server_await(pair.primary, 1, "SELECT (current_setting('transaction_read_only') = 'on')::int");
    promote(&pair);
    lock = must_acquire(client, "x", NULL);
    CHECK(hf_token(lock) > token);
    CHECK_INT(1, postgres_server_number(pair.standby, "SELECT count(*) FROM holdfast_locks WHERE client IS NOT NULL"));
    CHECK_INT(0, postgres_server_number(pair.primary, "SELECT count(*) FROM holdfast_locks WHERE client IS NOT NULL"));
    must_release(lock);
    hf_close(client);
}
