/* SPDX-License-Identifier: MIT
 *
 * test_consul_replies.c: answers that are lost, answers that come late, and requests that arrive when nobody waits for
 * them any more. Whatever the caller was told stays true, and nothing is left behind.
 */
#include "consul_support.h"
#include "late_relay.h"

#include <stdio.h>
#include <string.h>

#define NAME "x"
#define KEYS "holdfast/x/"
/* So many transactions a client needs to open and to make its session; the next one is the first about a lock. */
#define FIRST 3

static hf_client *open_through(const struct meddler *meddler, uint32_t timeout_ms)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    REQUIRE_STATUS(HF_OK, hf_open(&client, meddler_url(meddler), &options, &err), &err);
    return client;
}

/* --- answers --- */

/* One round with the meddler at every transaction in turn, until a round has fewer. */
static void meddle_with_each(enum meddling what, uint32_t timeout_ms, bool contended)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *other = open_client();
    unsigned number = FIRST, count;
    do {
        meddler_expect(meddler, number, what);
        hf_client *client = open_through(meddler, timeout_ms);
        hf_options options = stranger(10000);
        struct waiter waiter;
        hf_error err = { 0 };
        hf_lock *held = contended ? must_acquire(other, NAME, NULL) : NULL;
        waiter_start(&waiter, client, NAME, &options);
        if (held) {
            await_waiters(other, NAME, 1);
            must_release(held);
        }
        waiter_join(&waiter, HF_OK);
        check_busy(other, NAME);
        const hf_status status = hf_release(waiter.lock, &err);
        if (status != HF_OK && status != HF_UNAVAILABLE)
            CHECK_STATUS(HF_UNKNOWN, status, &err);
        check_becomes_free(other, NAME);
        hf_close(client);
        await_keys(server, KEYS, 0);
        count = meddler_count(meddler);
        test_note("transaction %u of %u", number, count);
    } while (++number <= count && number < 30);
    CHECK(number >= FIRST + (contended ? 4 : 2)); /* or nothing was tried */
    hf_close(other);
}

TEST_LIMIT(any_answer_may_be_lost, 60)
{
    meddle_with_each(MEDDLE_LOSE_REPLY, 5000, false);
}

TEST_LIMIT(any_answer_to_a_waiter_may_be_lost, 60)
{
    meddle_with_each(MEDDLE_LOSE_REPLY, 5000, true);
}

/* The client asks again, and finds the answer to its earlier question. */
TEST_LIMIT(any_answer_may_come_late, 60)
{
    meddle_with_each(MEDDLE_DELAY, 100, true);
}

TEST_LIMIT(any_answer_may_end_in_the_middle, 60)
{
    meddle_with_each(MEDDLE_HALF, 5000, true);
}

TEST_LIMIT(any_answer_may_come_in_single_bytes, 60)
{
    meddle_with_each(MEDDLE_DRIBBLE, 5000, true);
}

TEST_LIMIT(any_answer_may_be_garbage, 60)
{
    meddle_with_each(MEDDLE_GARBAGE, 5000, true);
}

/* --- answers that nobody should give --- */

/* A server that breaks its own rules: whatever it did is undone. */
TEST_LIMIT(an_answer_that_makes_no_sense_is_named_and_undone, 60)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler, 5000), *other = open_client();
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    must_release(must_acquire(client, "y", NULL));
    meddler_expect(meddler, 1, MEDDLE_NONSENSE);
    CHECK_STATUS(HF_INTERNAL, hf_acquire(&lock, client, NAME, NULL, &err), &err);
    CHECK_INT(HF_INTERNAL, err.status);
    check_becomes_free(other, NAME);
    hf_close(client);
    hf_close(other);
    await_keys(server, KEYS, 0);
}

/* Nothing is given up for it. */
TEST_LIMIT(an_answer_to_a_release_that_makes_no_sense_leaves_nothing_held, 60)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler, 5000), *other = open_client();
    hf_error err = { 0 };
    hf_lock *held = must_acquire(client, "y", NULL); /* for which the session is renewed */
    hf_lock *lock = must_acquire(client, NAME, NULL);
    meddler_expect(meddler, 1, MEDDLE_NONSENSE);
    CHECK_STATUS(HF_UNKNOWN, hf_release(lock, &err), &err);
    CHECK_INT(HF_UNKNOWN, err.status);
    check_becomes_free(other, NAME);
    must_release(held);
    hf_close(client);
    hf_close(other);
    await_keys(server, KEYS, 0);
}

/* A leader that was just elected may say so of a session that it has not read yet. The session is looked for before
 * anything is believed lost. */
TEST_LIMIT(a_leader_that_does_not_know_the_session_yet_costs_nothing, 60)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler, 5000), *other = open_client();
    hf_options options = stranger(test_ms(3000));
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    meddler_forget(meddler, 3);
    while (meddler_forgets(meddler) > 0) { /* of the keeper's own renewals, and of those that make sure */
        REQUIRE_INT(0, gate_count(&loss.told));
        await_a_moment();
    }
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
    CHECK_INT(0, gate_count(&loss.told));
    check_busy(other, NAME);
    must_release(lock);
    check_free(other, NAME);
    hf_close(client);
    hf_close(other);
}

/* --- requests that come late --- */

/* Waits until what was sent by the client's session before can do nothing any more: its key was written anew. */
static void await_settled(struct consul_server *server)
{
    for (;;) {
        char answer[4000];
        unsigned long long created = 0, modified = 0;
        consul_server_do(server, "GET", "/v1/kv/holdfast/.holdfast/?recurse&consistent", "", answer, sizeof answer);
        for (const char *at = answer; (at = strstr(at, "\"CreateIndex\":")) != NULL; at++) {
            if (sscanf(at, "\"CreateIndex\":%llu,\"ModifyIndex\":%llu", &created, &modified) == 2 && modified > created)
                return;
        }
        await_a_moment();
    }
}

TEST_LIMIT(a_request_for_the_lock_that_comes_late_takes_nothing, 30)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler, 1000);
    hf_lock *none = NULL;
    hf_error err = { 0 };
    meddler_expect(meddler, FIRST - 1, MEDDLE_KEEP);
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&none, client, NAME, NULL, &err), &err);
    await_settled(server);
    CHECK_INT(409, meddler_deliver(meddler));
    CHECK_INT(0, consul_server_keys(server, KEYS));
    must_release(must_acquire(client, NAME, NULL));
    hf_close(client);
}

TEST_LIMIT(a_request_for_a_place_that_comes_late_takes_none, 30)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler, 1000), *other = open_client();
    hf_lock *lock = must_acquire(other, NAME, NULL), *none = NULL;
    hf_options options = HF_OPTIONS_INIT;
    options.wait_ms = 300;
    meddler_expect(meddler, FIRST, MEDDLE_KEEP);
    const hf_status status = hf_acquire(&none, client, NAME, &options, NULL);
    CHECK_STATUS(HF_TIMEOUT, status, NULL);
    await_keys(server, KEYS, 1);
    CHECK_INT(409, meddler_deliver(meddler));
    CHECK_INT(1, consul_server_keys(server, KEYS));
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_release_that_comes_late_frees_nobody_elses_lock, 30)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler, 1000), *other = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    meddler_expect(meddler, 1, MEDDLE_KEEP);
    CHECK_STATUS(HF_UNKNOWN, hf_release(lock, NULL), NULL);
    lock = must_acquire(other, NAME, NULL); /* the keeper has released it */
    CHECK_INT(409, meddler_deliver(meddler));
    check_busy(client, NAME);
    must_release(lock);
    lock = must_acquire(client, NAME, NULL); /* its own next one */
    CHECK_INT(409, meddler_deliver(meddler));
    check_busy(other, NAME);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

static void *break_it(void *client)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_break(client, NAME, &err), &err);
    return NULL;
}

/* Its holder, whom the break was meant for, has released the lock meanwhile; and the request is sent again when it was
 * not answered. */
TEST_LIMIT(a_break_that_comes_late_breaks_nobody_else, 30)
{
    struct consul_server *server = start_store("");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *breaker = NULL, *client = open_client();
    struct waiter waiter;
    char url[60];
    pthread_t thread;
    options.timeout_ms = test_ms(3000);
    snprintf(url, sizeof url, "consul://127.0.0.1:%d", late_relay_port(relay));
    REQUIRE_STATUS(HF_OK, hf_open(&breaker, url, &options, NULL), NULL);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, client, NAME, NULL);
    await_waiters(client, NAME, 1);
    late_relay_catch(relay, "\"delete\"", 1);
    REQUIRE_INT(0, pthread_create(&thread, NULL, break_it, breaker));
    late_relay_await(relay);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    pthread_join(thread, NULL);
    CHECK(late_relay_resets(relay) >= 1); /* by whoever gave it up */
    CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, NULL), NULL);
    late_relay_deliver(relay);
    CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, NULL), NULL);
    must_release(waiter.lock);
    hf_close(breaker);
    hf_close(client);
}

TEST_LIMIT(a_break_whose_answer_is_lost_breaks_nobody_else, 30)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *breaker = open_through(meddler, 3000), *client = open_client();
    struct waiter waiter;
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, client, NAME, NULL);
    await_waiters(client, NAME, 1);
    meddler_expect(meddler, 2, MEDDLE_LOSE_REPLY);
    break_it(breaker);
    waiter_join(&waiter, HF_OK);
    CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(waiter.lock);
    hf_close(breaker);
    hf_close(client);
}
