/* SPDX-License-Identifier: MIT
 *
 * test_redis_line.c: threads of one client that pass a lock on among themselves: what the server has reserved for them,
 * in a grant and in a gift, and that it is not asked in between.
 *
 * Nobody but the client sees its line. A thread that was too late for it is no failure: the round is played again.
 */
#include "redis_support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"
#define TOKENS 64

static uint64_t last_token(struct redis_server *server)
{
    char text[32];
    redis_server_text(server, text, sizeof text, "HGET hf:{%s} t", NAME);
    return strtoull(text, NULL, 10);
}

/* The first has it. True: it was passed on to the second without a command, with a token of its own that was reserved,
 * and whoever comes next gets a larger one than was. */
static bool is_passed_on(struct redis_server *server, hf_client *other, struct waiter waiters[2])
{
    const uint64_t token = waiters[0].token, last = last_token(server);
    const int64_t before = redis_server_sent(server);
    must_release(waiters[0].lock);
    waiter_join(&waiters[1], HF_OK);
    const bool silent = redis_server_sent(server) == before;
    CHECK(waiters[1].token > token);
    if (silent) {
        CHECK_INT(token + 1, waiters[1].token);
        CHECK_INT(token + TOKENS - 1, last);
    }
    must_release(waiters[1].lock);
    hf_lock *lock = must_acquire(other, NAME, NULL);
    CHECK(hf_token(lock) > last);
    must_release(lock);
    return silent;
}

static bool grant_is_passed_on(struct redis_server *server, hf_client *client, hf_client *other)
{
    struct waiter waiters[2];
    hf_lock *lock = must_acquire(client, NAME, NULL);
    const hf_options options = stranger(0);
    waiter_start(&waiters[0], client, NAME, &options);
    gate_await(&waiters[0].began, 1);
    pause_ms(5);
    waiter_start(&waiters[1], client, NAME, &options);
    gate_await(&waiters[1].began, 1);
    pause_ms(5);
    CHECK_INT(0, server_waiters(server, NAME)); /* while the client itself has it */
    must_release(lock);
    struct waiter *first = gate_await_for(&waiters[0].ended, 1, 1000) ? &waiters[0] : &waiters[1];
    waiter_join(first, HF_OK);
    if (first == &waiters[0])
        return is_passed_on(server, other, waiters);
    must_release(first->lock);
    waiter_finish(&waiters[0]);
    return false;
}

TEST_LIMIT(a_grant_is_passed_on_without_a_command, 60)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client_with_handoff(endless_ttl_ms()), *other = open_client();
    while (!grant_is_passed_on(server, client, other))
        REQUIRE(test_now_ns() < test_deadline_ns());
    hf_close(client);
    hf_close(other);
}

/* Or they would run away from it, and begin anew with smaller ones once the server has forgotten them. */
TEST_LIMIT(no_tokens_are_reserved_ahead_of_the_clock, 60)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client_with_handoff(endless_ttl_ms());
    struct waiter waiters[2];
    const hf_options options = stranger(0);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    redis_server_do(server, "HSET hf:{%s} t 4000000000000000", NAME);
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], client, NAME, &options);
        gate_await(&waiters[i].began, 1);
        pause_ms(5);
    }
    must_release(lock);
    const int first = gate_await_for(&waiters[0].ended, 1, 1000) ? 0 : 1;
    waiter_join(&waiters[first], HF_OK);
    CHECK_INT(4000000000000001, waiters[first].token);
    CHECK_INT(4000000000000001, last_token(server));
    must_release(waiters[first].lock);
    waiter_join(&waiters[1 - first], HF_OK);
    CHECK_INT(4000000000000002, waiters[1 - first].token);
    CHECK_INT(4000000000000002, last_token(server));
    must_release(waiters[1 - first].lock);
    hf_close(client);
}

/* True: the first in the queue is to get more than one token. */
static bool wants_more(struct redis_server *server)
{
    char score[32];
    redisReply *queue = redis_server_command(server, "ZRANGE hf:{%s}:q 0 0 WITHSCORES", NAME);
    REQUIRE_INT(2, queue->elements);
    snprintf(score, sizeof score, "%s", queue->element[1]->str);
    freeReplyObject(queue);
    return strstr(score, ".5") != NULL;
}

static bool gift_is_passed_on(struct redis_server *server, hf_client *client, hf_client *other)
{
    struct waiter waiters[2], foreign;
    const hf_options options = stranger(0);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], client, NAME, &options);
        gate_await(&waiters[i].began, 1);
        pause_ms(5);
    }
    waiter_start(&foreign, other, NAME, &options);
    await_queue(server, NAME, 1);
    must_release(lock);
    waiter_join(&foreign, HF_OK);
    await_queue(server, NAME, 1); /* one for both */
    const bool more = wants_more(server);
    must_release(foreign.lock);
    struct waiter *first = gate_await_for(&waiters[0].ended, 1, 1000) ? &waiters[0] : &waiters[1];
    waiter_join(first, HF_OK);
    if (first == &waiters[0])
        return is_passed_on(server, other, waiters) && more;
    must_release(first->lock);
    waiter_finish(&waiters[0]);
    return false;
}

TEST_LIMIT(a_gift_is_passed_on_without_a_command, 60)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client_with_handoff(endless_ttl_ms()), *other = open_client();
    while (!gift_is_passed_on(server, client, other))
        REQUIRE(test_now_ns() < test_deadline_ns());
    hf_close(client);
    hf_close(other);
}

/* A client that does not pass on, and one of an earlier version, sees nothing of all this. */
TEST(a_waiter_without_a_line_is_given_one_token)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    hf_client *client = open_client_with_handoff(endless_ttl_ms()), *other = open_client();
    hf_lock *lock = must_acquire(other, NAME, NULL);
    CHECK_INT(hf_token(lock), last_token(server));
    waiter_start(&waiter, client, NAME, NULL);
    await_queue(server, NAME, 1);
    CHECK(!wants_more(server));
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(waiter.token, last_token(server));
    must_release(waiter.lock);
    hf_close(client);
    hf_close(other);
}

/* --- two processes --- */

#define THREADS 8

struct party {
    hf_client *client;
    struct witness *witness;
    uint32_t first; /* number of its first thread */
    uint32_t rounds;
};

static void compete(void *arg, uint32_t index)
{
    const struct party *party = arg;
    for (uint32_t i = 0; i < party->rounds; i++) {
        const hf_options options = with_ttl(i % 5 ? 0 : 20000);
        hf_lock *lock = must_acquire(party->client, NAME, &options);
        witness_visit(party->witness, party->first + index, hf_token(lock));
        must_release(lock);
    }
}

static void compete_elsewhere(void *arg)
{
    struct party party = { open_client_with_handoff(0), arg, 1 + THREADS, 100 };
    run_threads(THREADS, compete, &party);
    hf_close(party.client);
}

TEST_LIMIT(two_processes_of_many_threads_never_meet, 60)
{
    struct redis_server *server = serve("");
    struct witness *witness = shared_new(sizeof *witness);
    const pid_t pid = helper_start(compete_elsewhere, witness);
    struct party party = { open_client_with_handoff(0), witness, 1, 100 };
    run_threads(THREADS, compete, &party);
    helper_join(pid);
    witness_check(witness);
    CHECK_INT(2 * THREADS * 100, atomic_load(&witness->entries));
    CHECK(!server_has_owner(server, NAME));
    CHECK_INT(0, server_waiters(server, NAME));
    hf_close(party.client);
}
