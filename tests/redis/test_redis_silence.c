/* SPDX-License-Identifier: MIT
 *
 * test_redis_silence.c: connections that die without a word, one of them or all, while the server is well and others
 * go on; and a name that leads to another server while connections to the old one still stand.
 */
#include "redlock_support.h"
#include "silent_relay.h"
#include "turns.h"

#include <string.h>

/* ---------------------------------------------------------------------------------------------------- subscriptions */

/* A waiter by way of `relay` is deaf from the moment at which it stands in line. Whoever hands it the lock is told that
 * it was heard. It must find out by itself, and is then served among the others. */
static void go_deaf(struct relay *relay, hf_client *deaf, hf_client *others, uint32_t ttl_ms, uint32_t wait_ms)
{
    struct waiter waiter;
    hf_options options = stranger(ttl_ms);
    hf_lock *lock = must_acquire(others, NAME, &options);
    options.wait_ms = wait_ms;
    waiter_start(&waiter, deaf, NAME, &options);
    await_waiters(others, NAME, 1);
    atomic_store(&relay->swallow_pushes, true);
    while (atomic_load(&relay->swallowed) == 0)
        await_a_moment();
    /* Where there is no queue they leave room for others. */
    struct turns *turns = turns_start(others, NAME, ttl_ms, hf_capabilities(others) & HF_CAP_WAKE_ONE ? 0 : 15);
    must_release(lock);
    gate_await(&waiter.ended, 1);
    waiter_join(&waiter, HF_OK);
    hf_release(waiter.lock, NULL);
    test_note("%u grants to others meanwhile", turns_stop(turns));
    CHECK_INT(1, atomic_load(&relay->swallowed));
    hf_close(deaf);
    hf_close(others);
    relay_stop(relay);
}

/* In a crowd that is well it would never find the lock free. */
TEST_LIMIT(a_waiter_whose_subscription_died_without_a_word_is_served, 60)
{
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *deaf = open_url("redis://127.0.0.1:%d", relay->port);
    go_deaf(relay, deaf, open_client(), test_ms(6000), test_ms(18000));
}

/* Where a release only calls, the crowd waits with it for the end of the time-to-live. It must not come to that. */
TEST_LIMIT(a_waiter_whose_lock_has_a_channel_of_its_own_that_died_is_served_before_the_time_is_over, 60)
{
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *deaf = open_url("redis://127.0.0.1:%d?dialect=redisson", relay->port);
    go_deaf(relay, deaf, open_url("%s?dialect=redisson", server->url), test_ms(9000), test_ms(8000));
}

TEST_LIMIT(a_waiter_whose_usher_calls_in_vain_is_served_before_the_time_is_over, 60)
{
    struct redis_group *group = start_masters(3, "");
    struct relay *relay = relay_start(group->server[0]->port);
    hf_client *deaf = open_url("redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", relay->port, group->server[1]->port,
                               group->server[2]->port);
    go_deaf(relay, deaf, open_client(), test_ms(9000), test_ms(8000));
}

/* --------------------------------------------------------------------------------------------- requests and answers */

static void *renew(void *lock)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    return NULL;
}

/* A router forgot them, say. The first request is lost; the others must not be lost one by one. */
TEST_LIMIT(connections_that_died_while_idle_cost_one_request_and_not_one_each, 40)
{
    enum { TIMEOUT_MS = 1000 };
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *client = open_url("redis://127.0.0.1:%d?timeout=%d", relay->port, TIMEOUT_MS);
    hf_lock *held = must_acquire(client, "held", NULL), *lock = NULL;
    hf_error err = { 0 };
    pthread_t thread;
    struct waiter waiter;
    redis_server_pause(server); /* one that asks, and one that renews, which has a connection of its own then */
    waiter_start(&waiter, client, NAME, NULL);
    pause_ms(test_ms(100));
    REQUIRE_INT(0, pthread_create(&thread, NULL, renew, held));
    pause_ms(test_ms(100));
    redis_server_continue(server);
    waiter_finish(&waiter);
    pthread_join(thread, NULL);
    pause_ms(300); /* what was used a moment ago is not suspected */
    atomic_store(&relay->swallow_all, true);
    while (atomic_load(&relay->swallowed) < 2)
        await_a_moment();
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, client, "first", NULL, &err), &err);
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, client, "second", NULL, &err), &err);
    renew(held);
    must_release(lock);
    must_release(held);
    check_becomes_free(client, "first"); /* nothing is left of it */
    hf_close(client);
    relay_stop(relay);
}

/* ---------------------------------------------------------------------------------------- names that lead elsewhere */

/* The old master stays up, with all connections to it, as a replica of the new one, where the address now leads. */
TEST_LIMIT(a_demoted_server_is_left_for_the_one_that_its_address_leads_to, 60)
{
    struct redis_server *old = serve("");
    struct redis_server *new = redis_server_start_replica(old);
    struct relay *relay = relay_start(old->port);
    hf_client *client = open_url("redis://127.0.0.1:%d", relay->port);
    struct waiter waiter;
    struct loss loss = { 0 };
    hf_options options = stranger(test_ms(6000));
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, client, NAME, NULL);
    await_queue(new, NAME, 1);
    redis_server_do(new, "REPLICAOF NO ONE");
    redis_server_do(old, "REPLICAOF 127.0.0.1 %d", new->port);
    refuse_lock(client, "another-lock", HF_UNAVAILABLE, "replica");
    while (redis_server_calls(old, "role") == 0) /* nobody listens to it again, though the address still leads there */
        await_a_moment();
    atomic_store(&relay->upstream, new->port);
    must_release(must_acquire(client, "another-lock", NULL));
    CHECK(server_has_keys(new, "another-lock"));
    while (redis_server_calls(new, "subscribe") == 0) /* the waiter has come after it */
        await_a_moment();
    const int64_t end_ns = test_now_ns() + options.ttl_ms * 1000000LL;
    while (test_now_ns() < end_ns) /* it has been renewed since */
        await_a_moment();
    CHECK(hf_remaining_ms(lock) > 0);
    check_busy(client, NAME);
    must_release(lock);
    waiter_finish(&waiter);
    CHECK_INT(0, gate_count(&loss.told));
    hf_close(client);
    relay_stop(relay);
}
