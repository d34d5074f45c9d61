/* SPDX-License-Identifier: MIT
 *
 * test_redis_queue.c: who gets the lock next: in order of arrival, past the dead at once and past the silent in
 * time, and nobody is left standing in the queue.
 */
#include "redis_support.h"

#include <stdio.h>
#include <string.h>

#define NAME "the-lock"

/* The note of whoever holds it, by what the server knows. "since host pid note" */
static void holders_note(struct redis_server *server, char *out, size_t size)
{
    char info[300];
    redis_server_text(server, info, sizeof info, "HGET hf:{%s} i", NAME);
    const char *note = strrchr(info, ' ');
    snprintf(out, size, "%s", note ? note + 1 : "");
}

/* ------------------------------------------------------------------------------------------------------------ order */

#define WAITERS 64

struct procession {
    hf_client *clients[4];
    _Atomic uint32_t served;
    char order[WAITERS][16]; /* notes, as they were served */
};

static void take_turn(void *arg, uint32_t index)
{
    struct procession *procession = arg;
    char note[16];
    hf_options options = stranger(0);
    snprintf(note, sizeof note, "w%u", index);
    options.note = note;
    hf_lock *lock = must_acquire(procession->clients[index % 4], NAME, &options);
    const uint32_t place = atomic_load(&procession->served);
    memcpy(procession->order[place], note, sizeof note);
    atomic_store(&procession->served, place + 1); /* the lock is what makes this right */
    must_release(lock);
}

static void *run_procession(void *arg)
{
    run_threads(WAITERS, take_turn, arg);
    return NULL;
}

TEST_LIMIT(waiters_are_served_in_the_order_in_which_the_server_saw_them, 30)
{
    struct redis_server *server = serve("");
    struct procession *procession = shared_new(sizeof *procession);
    pthread_t runner;
    for (int i = 0; i < 4; i++)
        procession->clients[i] = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(procession->clients[0], NAME, &options);
    REQUIRE_INT(0, pthread_create(&runner, NULL, run_procession, procession));
    await_queue(server, NAME, WAITERS);
    redisReply *queue = redis_server_command(server, "ZRANGE hf:{%s}:q 0 -1", NAME);
    REQUIRE_INT(WAITERS, queue->elements);
    const int64_t published = redis_server_calls(server, "publish");
    must_release(lock);
    REQUIRE_INT(0, pthread_join(runner, NULL));
    for (size_t i = 0; i < WAITERS; i++) {
        const char *note = strrchr(queue->element[i]->str, ' ');
        CHECK_STR(note ? note + 1 : "", procession->order[i]);
    }
    freeReplyObject(queue);
    /* One was woken for each release, no more. */
    CHECK_INT(WAITERS, redis_server_calls(server, "publish") - published);
    for (int i = 0; i < 4; i++)
        hf_close(procession->clients[i]);
}

/* -------------------------------------------------------------------------------------------------------- one wakes */

TEST(a_release_wakes_one_waiter_and_the_others_send_nothing)
{
    enum { OTHERS = 6 };
    struct redis_server *server = serve("");
    struct waiter waiters[OTHERS];
    hf_client *clients[OTHERS];
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    for (int i = 0; i < OTHERS; i++) {
        clients[i] = open_client();
        waiter_start(&waiters[i], clients[i], NAME, NULL);
        await_queue(server, NAME, i + 1);
    }
    for (int i = 0; i < OTHERS; i++) {
        const int64_t published = redis_server_calls(server, "publish");
        const int64_t sent = redis_server_sent(server);
        must_release(i == 0 ? lock : waiters[i - 1].lock);
        waiter_join(&waiters[i], HF_OK);
        CHECK_INT(1, redis_server_calls(server, "publish") - published);
        CHECK(redis_server_sent(server) - sent <= 2); /* the release; the first one loads the script */
        for (int later = i + 1; later < OTHERS; later++)
            CHECK_INT(0, gate_count(&waiters[later].ended));
    }
    must_release(waiters[OTHERS - 1].lock);
    for (int i = 0; i < OTHERS; i++)
        hf_close(clients[i]);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------ the dead and the silent */

struct queuer {
    char note[16];
    uint32_t threads;
    uint32_t ttl_ms;
    struct gate got;
};

static void queue_in_thread(void *arg, uint32_t index)
{
    struct queuer *queuer = ((void **)arg)[0];
    hf_client *client = ((void **)arg)[1];
    hf_options options = stranger(queuer->ttl_ms);
    (void)index;
    options.note = queuer->note;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    if (hf_acquire(&lock, client, NAME, &options, &err) != HF_OK)
        return; /* it may well be stopped for longer than the store is patient */
    gate_pass(&queuer->got);
    hf_release(lock, NULL);
}

static void queue_in_process(void *arg)
{
    struct queuer *queuer = arg;
    void *both[2] = { queuer, open_client() };
    run_threads(queuer->threads, queue_in_thread, both);
    hf_close(both[1]);
}

static struct queuer *queuer_new(const char *note, uint32_t threads, uint32_t ttl_ms)
{
    struct queuer *queuer = shared_new(sizeof *queuer);
    snprintf(queuer->note, sizeof queuer->note, "%s", note);
    queuer->threads = threads;
    queuer->ttl_ms = ttl_ms;
    return queuer;
}

/* Waits until the server has noticed that a dead client's subscription is gone. */
static void await_channels(struct redis_server *server, int64_t count)
{
    size_t channels;
    do {
        redisReply *reply = redis_server_command(server, "PUBSUB CHANNELS");
        channels = reply->elements;
        freeReplyObject(reply);
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    } while ((int64_t)channels != count);
}

TEST(dead_waiters_are_skipped_at_once)
{
    enum { DEAD = 3 };
    struct redis_server *server = serve("");
    pid_t dead[DEAD];
    struct holder *holder = holder_new("unused");
    snprintf(holder->name.text, sizeof holder->name.text, "%s", NAME);
    holder->options.ttl_ms = endless_ttl_ms();
    pid_t holding = holder_start(holder);
    for (int i = 0; i < DEAD; i++) {
        dead[i] = helper_start(queue_in_process, queuer_new("dead", 1, 0));
        await_queue(server, NAME, i + 1);
    }
    struct queuer *live = queuer_new("live", 1, 0);
    pid_t living = helper_start(queue_in_process, live);
    await_queue(server, NAME, DEAD + 1);
    for (int i = 0; i < DEAD; i++)
        helper_kill(dead[i]);
    await_channels(server, 1);
    CHECK_INT(DEAD + 1, server_waiters(server, NAME)); /* nobody has removed them yet */
    const int64_t published = redis_server_calls(server, "publish");
    holder_finish(holder, holding, HF_OK);
    /* It was the release itself that went past the dead, each of whom it also calls on the replicas. */
    CHECK_INT(2 * DEAD + 1, redis_server_calls(server, "publish") - published);
    CHECK_INT(0, server_waiters(server, NAME));
    helper_join(living);
    CHECK_INT(1, gate_count(&live->got));
}

/* How long it takes from a release until `live` has the lock, behind a stopped process with `threads` waiting. */
static int64_t stall_behind_stopped_ms(uint32_t threads, uint32_t ttl_ms)
{
    struct redis_server *server = serve("");
    struct holder *holder = holder_new("unused");
    snprintf(holder->name.text, sizeof holder->name.text, "%s", NAME);
    holder->options.ttl_ms = ttl_ms;
    pid_t holding = holder_start(holder);
    pid_t silent = helper_start(queue_in_process, queuer_new("silent", threads, ttl_ms));
    await_queue(server, NAME, threads);
    struct queuer *live = queuer_new("live", 1, ttl_ms);
    pid_t living = helper_start(queue_in_process, live);
    await_queue(server, NAME, threads + 1);
    helper_stop(silent);
    const int64_t released_ns = test_now_ns();
    holder_finish(holder, holding, HF_OK);
    char note[16];
    holders_note(server, note, sizeof note);
    CHECK_STR("silent", note); /* the gift went to who was first */
    gate_await(&live->got, 1);
    const int64_t stall_ms = (test_now_ns() - released_ns) / 1000000;
    helper_continue(silent);
    helper_join(living);
    helper_join(silent);
    CHECK(!server_has_owner(server, NAME));
    return stall_ms;
}

TEST_LIMIT(a_silent_waiter_costs_the_claim_time_and_a_lease_at_most, 30)
{
    const uint32_t ttl_ms = test_ms(1000);
    const int64_t stall_ms = stall_behind_stopped_ms(1, ttl_ms);
    test_note("stalled for %d ms", (int)stall_ms);
    CHECK(stall_ms <= CLAIM_MS + ttl_ms + test_ms(1000));
}

/* A stopped process has stopped with all its threads: it must not be given the lock once for each. */
TEST_LIMIT(a_silent_process_with_many_waiters_costs_no_more, 30)
{
    const uint32_t ttl_ms = test_ms(1000);
    const int64_t stall_ms = stall_behind_stopped_ms(4, ttl_ms);
    test_note("stalled for %d ms", (int)stall_ms);
    CHECK(stall_ms <= CLAIM_MS + ttl_ms + test_ms(1000));
}

/* Its gift has long been given to somebody else when it wakes up: it must line up again, and sleep. */
TEST_LIMIT(a_waiter_that_slept_through_its_turn_lines_up_again_and_is_quiet, 30)
{
    struct redis_server *server = serve("");
    struct holder *first = holder_new("unused"), *second = holder_new("unused");
    snprintf(first->name.text, sizeof first->name.text, "%s", NAME);
    second->name = first->name;
    first->options.ttl_ms = test_ms(1000);
    pid_t first_pid = holder_start(first);
    struct queuer *sleeper = queuer_new("sleeper", 1, endless_ttl_ms());
    pid_t sleeping = helper_start(queue_in_process, sleeper);
    await_queue(server, NAME, 1);
    pid_t second_pid = holder_launch(second);
    await_queue(server, NAME, 2);
    helper_stop(sleeping);
    holder_finish(first, first_pid, HF_OK);
    gate_await(&second->held, 1); /* after the claim time */
    helper_continue(sleeping);
    await_queue(server, NAME, 1);
    const int64_t before = redis_server_sent(server);
    CHECK(!gate_await_for(&sleeper->got, 1, 500));
    const int64_t sent = redis_server_sent(server) - before;
    test_note("%d commands while it waited", (int)sent);
    CHECK(sent <= 4); /* a renewal of the holder's, and the backstop */
    holder_finish(second, second_pid, HF_OK);
    helper_join(sleeping);
    CHECK_INT(1, gate_count(&sleeper->got));
}

/* -------------------------------------------------------------------------------------------------- abandoned waits */

TEST(a_wait_that_ends_leaves_the_queue_at_once)
{
    struct redis_server *server = serve("");
    struct waiter canceled, closed;
    hf_client *holding = open_client();
    hf_client *waiting = open_client();
    hf_client *closing = open_client();
    hf_lock *lock = must_acquire(holding, NAME, NULL);

    hf_options options = stranger(0);
    hf_lock *none = NULL;
    hf_error err = { 0 };
    options.wait_ms = 50;
    CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, waiting, NAME, &options, &err), &err);
    CHECK_INT(0, server_waiters(server, NAME));

    waiter_start(&canceled, waiting, NAME, NULL);
    await_queue(server, NAME, 1);
    CHECK_STATUS(HF_OK, hf_cancel(waiting, NAME), NULL);
    waiter_join(&canceled, HF_CANCELED);
    CHECK_INT(0, server_waiters(server, NAME));

    waiter_start(&closed, closing, NAME, NULL);
    await_queue(server, NAME, 1);
    hf_close(closing);
    waiter_join(&closed, HF_CANCELED);
    CHECK_INT(0, server_waiters(server, NAME));

    must_release(lock);
    check_free(holding, NAME);
    hf_close(holding);
    hf_close(waiting);
}

/* A wait may end in the very moment in which the lock is handed to it: it must be given on, every time. */
TEST_LIMIT(a_gift_to_a_wait_that_has_just_ended_is_given_on, 40)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_client *leaving = open_client();
    for (int i = 0; i < 60; i++) {
        struct waiter waiter;
        hf_options options = stranger(endless_ttl_ms());
        hf_lock *lock = must_acquire(client, NAME, &options);
        options.wait_ms = 3 + random_below(8);
        waiter_start(&waiter, leaving, NAME, &options);
        random_pause(12000);
        must_release(lock);
        gate_await(&waiter.ended, 1);
        REQUIRE_INT(0, pthread_join(waiter.thread, NULL));
        CHECK(waiter.status == HF_OK || waiter.status == HF_TIMEOUT);
        hf_release(waiter.lock, NULL);
        /* Its time-to-live is endless: only a release can have freed it. */
        check_becomes_free(client, NAME);
        CHECK_INT(0, server_waiters(server, NAME));
    }
    hf_close(leaving);
    hf_close(client);
}
