/* SPDX-License-Identifier: MIT
 *
 * test_postgres_mixed.c: clients that use different strategies for the same name: rows exclude each other, wait for
 * each other and show each other, whichever strategy wrote them; for-update refuses what a row strategy holds.
 */
#include "postgres_support.h"
#include "server_clock.h"

#include <stdio.h>
#include <string.h>

#define ROWS 3

static hf_client *open_with(const struct postgres_server *server, const char *strategy)
{
    use_strategy(server, strategy);
    return open_client();
}

static hf_lock *must_try(hf_client *client, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    options.ttl_ms = endless_ttl_ms();
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, name, &options, &err), &err);
    return lock;
}

static int keep_token(const hf_info *info, void *arg)
{
    *(uint64_t *)arg = info->token;
    return 0;
}

/* As the client sees it; 0: free. */
static uint64_t shown_token(hf_client *client, const char *name)
{
    uint64_t token = 0;
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_inspect_one(client, name, keep_token, &token, &err), &err);
    return token;
}

/* In turns, and one after the other has released it. */
static void check_turns(hf_client *one, hf_client *other, const char *name)
{
    uint64_t last = 0;
    for (int i = 0; i < 4; i++) {
        hf_lock *lock = must_try(i % 2 ? other : one, name);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        check_busy(one, name);
        check_busy(other, name);
        CHECK_INT(last, shown_token(one, name));
        CHECK_INT(last, shown_token(other, name));
        must_release(lock);
        CHECK_INT(0, shown_token(one, name));
        CHECK_INT(0, shown_token(other, name));
    }
}

/* Who waits is served by whoever frees it, in order. */
static void check_hand_offs(hf_client *one, hf_client *other, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiters[4];
    options.ttl_ms = endless_ttl_ms();
    options.owner = HF_OWNER_HANDLE;
    hf_lock *lock = must_try(one, name);
    for (int i = 0; i < 4; i++) {
        waiter_start(&waiters[i], i % 2 ? one : other, name, &options);
        await_waiters(one, name, i + 1);
    }
    for (int i = 0; i < 4; i++) {
        const uint64_t token = hf_token(lock);
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
        CHECK(hf_token(lock) > token);
        check_busy(one, name);
        check_busy(other, name);
    }
    must_release(lock);
}

static void check_breaks(hf_client *one, hf_client *other, const char *name)
{
    hf_error err = { 0 };
    hf_lock *lock = must_try(one, name);
    CHECK_STATUS(HF_OK, hf_break(other, name, &err), &err);
    must_release(must_try(other, name));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
}

TEST_LIMIT(rows_of_different_strategies_are_one_lock, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < ROWS; j++) {
            char name[50];
            hf_client *one = open_with(server, strategy_names[i]), *other = open_with(server, strategy_names[j]);
            snprintf(name, sizeof name, "%s and %s", strategy_names[i], strategy_names[j]);
            test_note("%s", name);
            check_turns(one, other, name);
            check_hand_offs(one, other, name);
            check_breaks(one, other, name);
            CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks_waiters"));
            hf_close(one);
            hf_close(other);
        }
    }
}

#define MEMBERS 6
#define VISITS 30

struct mixed_crowd {
    struct postgres_server *server;
    const char *strategies[MEMBERS];
    struct witness witness;
};

static void visit(void *arg, uint32_t index)
{
    struct mixed_crowd *crowd = arg;
    use_strategy(crowd->server, crowd->strategies[index]);
    hf_client *client = open_patient_client();
    for (int i = 0; i < VISITS; i++) {
        hf_lock *lock = must_acquire(client, "counter", NULL);
        witness_visit(&crowd->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
    hf_close(client);
}

/* Members use one strategy after the other of the first `count` names. */
static struct witness *run_crowd(const char *const *names, size_t count)
{
    struct mixed_crowd *crowd = shared_new(sizeof *crowd);
    crowd->server = start_store("lease", "");
    for (size_t i = 0; i < MEMBERS; i++)
        crowd->strategies[i] = names[i % count];
    run_processes(MEMBERS, visit, crowd);
    CHECK_INT(MEMBERS * VISITS, atomic_load(&crowd->witness.entries));
    CHECK_INT(MEMBERS * VISITS, atomic_load(&crowd->witness.counter));
    return &crowd->witness;
}

/* Tokens may be out of order: after insert has deleted the row, a lease may begin with one that was drawn before. */
TEST_LIMIT(a_crowd_of_all_row_strategies_counts_right, 90)
{
    CHECK_INT(0, atomic_load(&run_crowd(strategy_names, ROWS)->overlaps));
}

TEST_LIMIT(a_crowd_of_lease_and_version_has_tokens_in_order, 90)
{
    static const char *const names[] = { "lease", "version" };
    witness_check(run_crowd(names, 2));
}

/* Also if the clock was set back meanwhile. */
TEST_LIMIT(tokens_grow_when_a_name_changes_to_insert, 60)
{
    struct postgres_server *server = start_store("lease", "");
    postgres_server_own_clock(server);
    hf_client *lease = open_with(server, "lease"), *insert = open_with(server, "insert");
    hf_lock *lock = must_try(lease, "x");
    uint64_t token = hf_token(lock);
    must_release(lock);
    server_clock_set(server->clock, -7200 * 1000);
    for (int i = 0; i < 3; i++) {
        lock = must_try(insert, "x");
        CHECK(hf_token(lock) > token);
        token = hf_token(lock);
        must_release(lock);
    }
    hf_close(lease);
    hf_close(insert);
}

/* ------------------------------------------------------------------------------------------------------- for-update */

static void check_refused(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    options.wait_ms = 10000;
    hf_acquire(&lock, client, name, &options, &err);
    check_error(&err, HF_INVALID, "use the same strategy everywhere");
}

TEST_LIMIT(for_update_refuses_what_a_row_strategy_holds, 60)
{
    struct postgres_server *server = start_store("lease", "");
    hf_client *bound = open_with(server, "for-update");
    for (size_t i = 0; i < ROWS; i++) {
        const char *name = strategy_names[i];
        hf_client *client = open_with(server, name);
        hf_lock *lock = must_try(client, name);
        CHECK_INT(hf_token(lock), shown_token(bound, name));
        check_refused(bound, name);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL); /* nothing of it is in the way */
        must_release(lock);
        CHECK_INT(0, shown_token(bound, name));
        must_release(must_try(bound, name));
        must_release(must_try(client, name));
        hf_close(client);
    }
    hf_close(bound);
}

/* Two wait behind a holder of for-update; the first to come takes the row. */
TEST_LIMIT(for_update_that_waited_refuses_it_too, 60)
{
    static const char locked[] = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    struct postgres_server *server = start_store("lease", "");
    hf_client *bound = open_with(server, "for-update");
    use_strategy(server, "lease");
    hf_client *lease = open_patient_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter first, second;
    options.ttl_ms = endless_ttl_ms();
    options.owner = HF_OWNER_HANDLE;
    hf_lock *lock = must_try(bound, "x");
    waiter_start(&first, lease, "x", &options);
    postgres_server_await(server, 1, locked);
    waiter_start(&second, bound, "x", &options);
    postgres_server_await(server, 2, locked);
    must_release(lock);
    waiter_join(&first, HF_OK);
    waiter_join(&second, HF_INVALID);
    must_release(first.lock);
    must_release(must_try(bound, "x"));
    hf_close(bound);
    hf_close(lease);
}

TEST_LIMIT(a_row_that_for_update_holds_is_not_taken, 60)
{
    struct postgres_server *server = start_store("lease", "");
    hf_client *bound = open_with(server, "for-update");
    hf_lock *lock = must_try(bound, "x"), *none = NULL;
    for (size_t i = 0; i < ROWS; i++) {
        hf_client *client = NULL;
        hf_client_options impatient = HF_CLIENT_OPTIONS_INIT;
        hf_error err = { 0 };
        impatient.timeout_ms = 1000;
        use_strategy(server, strategy_names[i]);
        REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &impatient, NULL), NULL);
        CHECK(hf_try_acquire(&none, client, "x", NULL, &err) != HF_OK);
        test_note("%s", err.message);
        hf_close(client);
    }
    must_release(lock);
    hf_close(bound);
}
