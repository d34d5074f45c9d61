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

static void start_pair(struct pair *pair)
{
    pair->primary = start_store("lease", "");
    pair->standby = postgres_server_start_standby(pair->primary);
}

/* open_client() goes to whichever of them can be written to. */
static void use_pair(struct pair *pair, const char *strategy)
{
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
    start_pair(&pair);
    use_pair(&pair, "lease");
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

#define ROWS 3

struct lagger {
    hf_client *client, *other;
    hf_lock *received, *forgotten;
    char names[3][40]; /* of these, and of one to ask for later: a name has one strategy */
    struct loss loss, none;
};

static void hold_both(struct lagger *it, const char *strategy, struct pair *pair)
{
    hf_options options = HF_OPTIONS_INIT;
    use_pair(pair, strategy);
    it->client = open_client();
    it->other = open_client();
    snprintf(it->names[0], sizeof it->names[0], "received-%s", strategy);
    snprintf(it->names[1], sizeof it->names[1], "forgotten-%s", strategy);
    snprintf(it->names[2], sizeof it->names[2], "else-%s", strategy);
    options.ttl_ms = endless_ttl_ms();
    record_loss(&options, &it->none);
    it->received = must_acquire(it->client, it->names[0], &options);
}

/* The holder has nothing to renew for minutes; it asks for something else, finds another server in the place of the one
 * it knew, and has all its locks renewed at once. */
static void check_forgotten(struct lagger *it)
{
    const char *resource = it->names[1];
    const uint64_t token = hf_token(it->forgotten);
    hf_error err = { 0 };
    /* Nobody waits for the end of a time that the new primary knows nothing of. */
    hf_lock *lock = must_acquire(it->other, it->names[1], NULL);
    CHECK(hf_token(lock) > token);
    CHECK_STATUS(HF_OK, hf_guard(it->other, resource, hf_token(lock), &err), &err);
    must_release(must_acquire(it->client, it->names[2], NULL));
    gate_await(&it->loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_guard(it->client, resource, token, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(it->forgotten, NULL), NULL);
    /* What the standby had received is still held. */
    CHECK_INT(0, gate_count(&it->none.told));
    check_busy(it->other, it->names[0]);
    must_release(it->received);
    must_release(lock);
    hf_close(it->client);
    hf_close(it->other);
}

TEST_LIMIT(a_lagging_standby_forgets_the_last_rows, 90)
{
    static struct lagger all[ROWS];
    struct pair pair;
    start_pair(&pair);
    for (size_t i = 0; i < ROWS; i++)
        hold_both(&all[i], strategy_names[i], &pair);
    cut_off(&pair);
    for (size_t i = 0; i < ROWS; i++) {
        hf_options options = HF_OPTIONS_INIT;
        options.ttl_ms = 3600000;
        record_loss(&options, &all[i].loss);
        all[i].forgotten = must_acquire(all[i].client, all[i].names[1], &options);
    }
    postgres_server_kill(pair.primary);
    promote(&pair);
    for (size_t i = 0; i < ROWS; i++)
        check_forgotten(&all[i]);
}

TEST_LIMIT(bound_locks_survive_no_failover, 90)
{
    struct pair pair;
    struct loss losses[2] = { 0 };
    hf_client *clients[2];
    hf_lock *locks[2];
    uint64_t tokens[2];
    start_pair(&pair);
    for (size_t i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT;
        use_pair(&pair, strategy_names[ROWS + i]);
        record_loss(&options, &losses[i]);
        clients[i] = open_client();
        locks[i] = must_acquire(clients[i], strategy_names[ROWS + i], &options);
        tokens[i] = hf_token(locks[i]);
    }
    await_in_step(&pair);
    postgres_server_kill(pair.primary);
    for (size_t i = 0; i < 2; i++) { /* at once, however good the standby is */
        gate_await(&losses[i].told, 1);
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    }
    promote(&pair);
    for (size_t i = 0; i < 2; i++) {
        locks[i] = must_acquire(clients[i], strategy_names[ROWS + i], NULL);
        CHECK(hf_token(locks[i]) > tokens[i]);
        must_release(locks[i]);
        hf_close(clients[i]);
    }
}

/* The old primary is still there, and still has our connections, but may not be written to any more. */
TEST_LIMIT(a_primary_that_became_read_only_is_left, 90)
{
    struct pair pair;
    start_pair(&pair);
    use_pair(&pair, "lease");
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
