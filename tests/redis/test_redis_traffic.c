/* SPDX-License-Identifier: MIT
 *
 * test_redis_traffic.c: how many commands the server gets, counted by the server itself.
 */
#include "redis_support.h"

#define NAME "the-lock"

/* The first use of a script is an EVALSHA that fails and an EVAL; and with its first renewal a client listens. */
static void teach_scripts(struct redis_server *server, hf_client *client)
{
    const int64_t listeners = redis_server_listeners(server);
    hf_options options = with_ttl(0);
    hf_lock *lock = must_acquire(client, "warm-up", &options);
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    while (redis_server_listeners(server) == listeners)
        await_a_moment();
}

TEST(a_pair_that_nobody_disturbs_is_two_commands)
{
    enum { PAIRS = 50 };
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    teach_scripts(server, client);
    const int64_t before = redis_server_sent(server);
    for (int i = 0; i < PAIRS; i++)
        must_release(must_acquire(client, NAME, NULL));
    CHECK_INT(2 * PAIRS, redis_server_sent(server) - before);
    hf_close(client);
}

TEST(reentry_is_no_command)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_lock *first = must_acquire(client, NAME, NULL);
    const int64_t before = redis_server_sent(server);
    for (int i = 0; i < 50; i++)
        must_release(must_acquire(client, NAME, NULL));
    CHECK_INT(0, redis_server_sent(server) - before);
    must_release(first);
    hf_close(client);
}

/* A try that fails is one command, and leaves nothing that would have to be removed by another. */
TEST(a_failed_try_is_one_command)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    teach_scripts(server, client);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    const int64_t before = redis_server_sent(server);
    check_busy(client, NAME);
    CHECK_INT(1, redis_server_sent(server) - before);
    must_release(lock);
    hf_close(client);
}

TEST(nobody_sends_anything_while_a_holder_simply_holds)
{
    enum { WAITERS = 8 };
    struct redis_server *server = serve("");
    struct waiter waiters[WAITERS];
    hf_client *client = open_client();
    hf_client *others = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL); /* 30 s: the first renewal is due after ten */
    for (int i = 0; i < WAITERS; i++)
        waiter_start(&waiters[i], others, NAME, NULL);
    await_queue(server, NAME, WAITERS);
    const int64_t before = redis_server_sent(server);
    pause_ms(3000);
    CHECK_INT(0, redis_server_sent(server) - before);
    CHECK_STATUS(HF_OK, hf_cancel(others, NAME), NULL);
    for (int i = 0; i < WAITERS; i++)
        waiter_join(&waiters[i], HF_CANCELED);
    must_release(lock);
    hf_close(others);
    hf_close(client);
}

/* A subscription that says nothing is pinged: one for all waiters of a client, no more often than a holder renews. */
TEST(a_client_that_waits_is_heard_of_as_seldom_as_one_that_holds)
{
    enum { WAITERS = 8, THIRDS = 4 };
    struct redis_server *server = serve("");
    struct waiter waiters[WAITERS];
    hf_client *client = open_client();
    hf_client *others = open_client();
    const hf_options holding = stranger(endless_ttl_ms());
    hf_options waiting = stranger(test_ms(3000));
    hf_lock *lock = must_acquire(client, NAME, &holding);
    for (int i = 0; i < WAITERS; i++)
        waiter_start(&waiters[i], others, NAME, &waiting);
    await_queue(server, NAME, WAITERS);
    const int64_t before = redis_server_calls(server, "ping");
    const int64_t begun = test_now_ns(), third_ns = waiting.ttl_ms * 1000000LL / 3;
    while (redis_server_calls(server, "ping") - before < THIRDS)
        await_a_moment();
    CHECK(test_now_ns() - begun > (THIRDS - 1) * third_ns);
    CHECK_STATUS(HF_OK, hf_cancel(others, NAME), NULL);
    for (int i = 0; i < WAITERS; i++)
        waiter_join(&waiters[i], HF_CANCELED);
    await_queue(server, NAME, 0); /* they are taken out in the background, by a connection that is looked at first */
    const int64_t after = redis_server_calls(server, "ping");
    pause_ms(2 * waiting.ttl_ms / 3); /* and nobody is when nobody waits */
    CHECK_INT(after, redis_server_calls(server, "ping"));
    must_release(lock);
    hf_close(others);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------- in a crowd */

#define CLIENTS 4

struct crowd {
    hf_client *clients[CLIENTS];
    struct gate ready, go;
    int rounds;
    struct witness witness;
};

static void compete(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    hf_client *client = crowd->clients[index % CLIENTS];
    gate_pass(&crowd->ready);
    gate_await(&crowd->go, 1);
    for (int i = 0; i < crowd->rounds; i++) {
        hf_lock *lock = must_acquire(client, NAME, NULL);
        witness_visit(&crowd->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
}

struct started_crowd {
    struct crowd *crowd;
    uint32_t threads;
};

static void *run_crowd(void *arg)
{
    struct started_crowd *started = arg;
    run_threads(started->threads, compete, started->crowd);
    return NULL;
}

/* Commands per hundred pairs, when `threads` compete. */
static int64_t commands_per_100_pairs(struct redis_server *server, uint32_t threads)
{
    const int pairs = 1280;
    struct crowd *crowd = shared_new(sizeof *crowd);
    struct started_crowd started = { crowd, threads };
    pthread_t runner;
    crowd->rounds = pairs / (int)threads;
    for (int i = 0; i < CLIENTS; i++) {
        crowd->clients[i] = open_client();
        teach_scripts(server, crowd->clients[i]);
    }
    REQUIRE_INT(0, pthread_create(&runner, NULL, run_crowd, &started));
    gate_await(&crowd->ready, threads);
    const int64_t before = redis_server_sent(server);
    gate_pass(&crowd->go);
    REQUIRE_INT(0, pthread_join(runner, NULL));
    const int64_t sent = redis_server_sent(server) - before;
    witness_check(&crowd->witness);
    CHECK_INT(pairs, crowd->witness.entries);
    for (int i = 0; i < CLIENTS; i++)
        hf_close(crowd->clients[i]);
    return 100 * sent / pairs;
}

/* What it costs may not depend on how many wait: the same, up to the first meeting of everybody, which is a part of
 * it. */
TEST_LIMIT(a_pair_in_a_crowd_is_three_commands_however_large_the_crowd, 40)
{
    struct redis_server *server = serve("");
    const int64_t with_4 = commands_per_100_pairs(server, 4);
    const int64_t with_64 = commands_per_100_pairs(server, 64);
    test_note("%d commands per 100 pairs with 4 threads, %d with 64", (int)with_4, (int)with_64);
    CHECK(with_4 <= 300);
    CHECK(with_64 <= 300);
    CHECK(with_64 <= with_4 + 25);
}

/* --------------------------------------------------------------------------------------------------------- renewals */

static void await_remaining(const hf_lock *lock, int64_t least_ms, int64_t most_ms)
{
    int64_t left_ms;
    do {
        await_a_moment();
        left_ms = hf_remaining_ms(lock);
    } while (left_ms < least_ms || left_ms > most_ms);
}

TEST(many_locks_are_renewed_in_few_commands)
{
    enum { LOCKS = 200 };
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_lock *locks[LOCKS];
    const uint32_t ttl_ms = test_ms(3000);
    hf_options options = with_ttl(ttl_ms);
    teach_scripts(server, client);
    for (unsigned i = 0; i < LOCKS; i++)
        locks[i] = must_acquire(client, numbered_name("lock", i).text, &options);
    const int64_t before = redis_server_sent(server);
    await_remaining(locks[LOCKS - 1], 0, ttl_ms * 3 / 4);
    await_remaining(locks[LOCKS - 1], ttl_ms * 9 / 10, ttl_ms); /* the last one has been renewed, and so have all */
    const int64_t sent = redis_server_sent(server) - before;
    for (unsigned i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    test_note("%d commands to renew %d locks", (int)sent, LOCKS);
    CHECK(sent <= 8);
    hf_close(client);
}
