/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_waiters.c: those who wait for redlock: line up on one master, the usher: how a crowd passes the
 * lock along, and what becomes of it when the usher dies, stands still or is cut off. Leases are endless: nobody is
 * helped by time.
 */
#include "redlock_support.h"

#include <string.h>

/* ---------------------------------------------------------------------------------------------------------- a crowd */

struct crowd {
    struct gate ready, go;
    int rounds;
    bool backwards; /* every other one has the masters in another order */
    char other_url[400];
    struct witness witness;
};

static void compete(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    hf_client *client = crowd->backwards && index % 2 ? open_url("%s", crowd->other_url) : open_client();
    const hf_options options = stranger(endless_ttl_ms()); /* no help from time */
    gate_pass(&crowd->ready);
    gate_await(&crowd->go, 1);
    for (int i = 0; i < crowd->rounds; i++) {
        hf_lock *lock = must_acquire(client, NAME, &options);
        witness_visit(&crowd->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
    hf_close(client);
}

/* Returns how long it took. */
static int64_t let_compete(struct redis_group *group, bool backwards)
{
    enum { CONTENDERS = 8, ROUNDS = 25 };
    struct crowd *crowd = shared_new(sizeof *crowd);
    pid_t helpers[CONTENDERS];
    crowd->rounds = ROUNDS;
    crowd->backwards = backwards;
    reverse_url(crowd->other_url, sizeof crowd->other_url, group);
    for (uint32_t i = 0; i < CONTENDERS; i++)
        helpers[i] = start_process(compete, crowd, i);
    gate_await(&crowd->ready, CONTENDERS);
    const int64_t begun_ns = test_now_ns();
    gate_pass(&crowd->go);
    for (int i = 0; i < CONTENDERS; i++)
        helper_join(helpers[i]);
    const int64_t took_ns = test_now_ns() - begun_ns;
    witness_check(&crowd->witness);
    CHECK_INT(CONTENDERS * ROUNDS, crowd->witness.entries);
    await_clean(group);
    return took_ns;
}

/* There is a client that makes no progress at all here: each gets one vote, and steps back, and so on. */
TEST_LIMIT(eight_contenders_over_three_masters_make_progress, 40)
{
    let_compete(start_masters(3, NULL), false);
}

TEST_LIMIT(eight_contenders_with_urls_in_different_order_make_progress, 40)
{
    let_compete(start_masters(3, NULL), true);
}

/* A release reaches the usher of a waiter long before the other masters: the waiter is called, gets the usher's vote,
 * finds that the others still have the holder, and steps back; again and again, until nobody is left to call it. */
TEST(a_waiter_that_was_called_too_early_is_not_forgotten)
{
    enum { TRIES = 7, COMMANDS = 2 /* asks, steps back */ };
    struct redis_group *group = start_masters(3, NULL);
    struct redis_server *usher = group->server[2];
    char url[400], member[300];
    struct waiter waiter;
    const hf_options options = stranger(endless_ttl_ms());
    reverse_url(url, sizeof url, group);
    hf_client *client = open_url("%s", url);
    struct held *held = hold_lock(group, endless_ttl_ms());
    waiter_start(&waiter, client, NAME, &options);
    await_line(usher, 1);
    redis_server_do(usher, "DEL %s", NAME);
    redis_server_text(usher, member, sizeof member, "EVAL %s 0",
                      "return redis.call('zrange', 'hf:{" NAME "}:w', 0, 0)[1]");
    const int serial = (int)strtol(member + 17, NULL, 10);
    member[16] = 0;
    const int64_t before = redis_server_sent(usher);
    REQUIRE_INT(1, redis_server_number(usher, "PUBLISH hf:c:%s %d", member, serial));
    while (redis_server_sent(usher) - before < TRIES * COMMANDS)
        await_a_moment();
    await_line(usher, 1);
    redis_server_do(group->server[1], "DEL %s", NAME);
    redis_server_do(group->server[0], "DEL %s", NAME);
    waiter_finish(&waiter);
    hf_release(held->lock, NULL);
    hf_close(held->client);
    hf_close(client);
    await_clean(group);
}

/* The same of one that asks all masters at once: its usher, where the release has been, answers after the others, which
 * still have the holder. */
TEST(a_waiter_whose_usher_answers_last_is_not_forgotten)
{
    static const char other_name[] = "another-lock";
    struct redis_group *group = start_masters(3, NULL);
    struct redis_server *usher = group->server[2];
    char url[400];
    struct waiter other, waiter;
    const hf_options options = stranger(endless_ttl_ms());
    reverse_url(url, sizeof url, group);
    hf_client *client = open_url("%s", url);
    struct held *held = hold_lock(group, endless_ttl_ms());
    hf_lock *other_lock = must_acquire(held->client, other_name, &options);
    waiter_start(&other, client, other_name, &options); /* from then on the client hears its usher */
    while (redis_server_number(usher, "ZCARD hf:{%s}:w", other_name) != 1)
        await_a_moment();
    must_release(other_lock);
    waiter_finish(&other);
    redis_server_do(usher, "DEL %s", NAME);
    const int64_t before[2] = { redis_server_sent(group->server[0]), redis_server_sent(group->server[1]) };
    redis_server_pause(usher);
    waiter_start(&waiter, client, NAME, &options);
    for (int i = 0; i < 2; i++) {
        while (redis_server_sent(group->server[i]) == before[i])
            await_a_moment();
    }
    redis_server_continue(usher);
    await_line(usher, 1);
    redis_server_do(group->server[1], "DEL %s", NAME);
    redis_server_do(group->server[0], "DEL %s", NAME);
    waiter_finish(&waiter);
    hf_release(held->lock, NULL);
    hf_close(held->client);
    hf_close(client);
    await_clean(group);
}

/* Once each of them has found out, the others do without an usher that is dead or stands still. */
static void compete_without(enum fault fault)
{
    struct redis_group *group = start_masters(5, NULL);
    const int64_t well_ns = let_compete(group, false);
    strike(group, 0, fault);
    strike(group, 1, fault);
    const int64_t ill_ns = let_compete(group, false);
    test_note("usher %s: 200 pairs in %d ms, %d ms before", fault_name(fault), (int)(ill_ns / 1000000),
              (int)(well_ns / 1000000));
    CHECK(ill_ns < 10 * well_ns + 5 * SECOND_NS); /* a second is what an answer may take, at a tenth of the pairs */
}

TEST_LIMIT(eight_contenders_make_progress_without_their_usher, 40)
{
    compete_without(KILLED);
}

TEST_LIMIT(eight_contenders_make_progress_when_their_usher_stands_still, 40)
{
    compete_without(PAUSED);
}

struct queue {
    hf_client *clients[4];
    struct witness witness;
};

static void wait_in_line(void *arg, uint32_t index)
{
    struct queue *queue = arg;
    const hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(queue->clients[index % 4], NAME, &options);
    witness_visit(&queue->witness, index + 1, hf_token(lock));
    must_release(lock);
}

struct started_queue {
    struct queue *queue;
    uint32_t count;
};

static void *run_queue(void *arg)
{
    const struct started_queue *started = arg;
    run_threads(started->count, wait_in_line, started->queue);
    return NULL;
}

/* Commands to the usher and the others, and calls, for each of `count` releases. */
struct price {
    int64_t usher, other, calls;
};

static struct price pass_along(struct redis_group *group, uint32_t count)
{
    struct queue *queue = shared_new(sizeof *queue);
    struct started_queue started = { queue, count };
    int64_t before[5];
    pthread_t runner;
    for (int i = 0; i < 4; i++) {
        queue->clients[i] = open_client();
        teach_masters(group, queue->clients[i]);
    }
    struct held *held = hold_lock(group, endless_ttl_ms());
    REQUIRE_INT(0, pthread_create(&runner, NULL, run_queue, &started));
    await_line(group->server[0], count);
    pause_ms(test_ms(100)); /* whoever has just lined up may be about to look again, once */
    note_sent(group, before);
    const int64_t calls = redis_server_calls(group->server[0], "publish");
    finish(held, HF_OK);
    REQUIRE_INT(0, pthread_join(runner, NULL));
    const struct price price = { redis_server_sent(group->server[0]) - before[0],
                                 redis_server_sent(group->server[1]) - before[1],
                                 redis_server_calls(group->server[0], "publish") - calls };
    witness_check(&queue->witness);
    CHECK_INT(count, queue->witness.entries);
    test_note("%u waiters: %d commands to the usher, %d to another, %d calls", count, (int)price.usher,
              (int)price.other, (int)price.calls);
    for (int i = 0; i < 4; i++)
        hf_close(queue->clients[i]);
    return price;
}

/* Each release calls one, who asks everybody: release, acquire, and the token written back now and then. */
TEST_LIMIT(a_release_calls_one_of_sixty_four_waiters, 40)
{
    struct redis_group *group = start_masters(3, NULL);
    const struct price few = pass_along(group, 8);
    const struct price many = pass_along(group, 64);
    CHECK_INT(8, few.calls);
    CHECK_INT(64, many.calls);
    CHECK(few.usher <= 8 * 4);
    CHECK(many.usher <= 64 * 4);
    CHECK(many.other <= 64 * 4);
}

/* But one of them looks after the usher, once a second at most. */
TEST(nobody_asks_for_it_while_a_holder_simply_holds)
{
    enum { WAITERS = 8 };
    int64_t before[3];
    struct redis_group *group = start_masters(3, NULL);
    struct waiter waiters[WAITERS];
    hf_client *others = open_client();
    teach_masters(group, others);
    struct held *held = hold_lock(group, endless_ttl_ms());
    for (int i = 0; i < WAITERS; i++)
        waiter_start(&waiters[i], others, NAME, NULL);
    await_line(group->server[0], WAITERS);
    pause_ms(test_ms(100));
    note_sent(group, before);
    pause_ms(2000);
    CHECK(redis_server_sent(group->server[0]) - before[0] <= 3);
    CHECK_INT(before[1], redis_server_sent(group->server[1]));
    CHECK_INT(before[2], redis_server_sent(group->server[2]));
    CHECK_STATUS(HF_OK, hf_cancel(others, NAME), NULL);
    for (int i = 0; i < WAITERS; i++)
        waiter_join(&waiters[i], HF_CANCELED);
    CHECK_INT(0, in_line(group));
    finish(held, HF_OK);
    await_clean(group);
    hf_close(others);
}

/* It cannot take what it is called for: then whoever is next does, when the last holder's time is over. */
TEST(a_stopped_waiter_at_the_head_holds_up_nobody_for_long)
{
    struct redis_group *group = start_masters(3, NULL);
    struct holder *first = holder_new("");
    struct waiter second;
    snprintf(first->name.text, sizeof first->name.text, "%s", NAME);
    first->options = stranger(endless_ttl_ms());
    struct held *held = hold_lock(group, test_ms(1500));
    const pid_t pid = holder_launch(first);
    await_line(group->server[0], 1);
    waiter_start(&second, held->client, NAME, NULL);
    await_line(group->server[0], 2);
    helper_stop(pid);
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release(held->lock, &err), &err);
    waiter_join(&second, HF_OK);
    helper_continue(pid);
    CHECK(!gate_await_for(&first->held, 1, 200));
    must_release(second.lock);
    gate_await(&first->held, 1);
    CHECK(atomic_load(&first->token) > second.token);
    holder_finish(first, pid, HF_OK);
    hf_close(held->client);
    await_clean(group);
}

struct tries {
    hf_client *client;
    struct witness *witness;
    uint32_t who;
    _Atomic bool over;
    _Atomic uint32_t made, got;
};

static void *try_and_try(void *arg)
{
    struct tries *tries = arg;
    const hf_options options = stranger(endless_ttl_ms());
    while (!atomic_load(&tries->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_try_acquire(&lock, tries->client, NAME, &options, &err);
        if (CHECK_STATUS(status == HF_OK ? HF_OK : HF_BUSY, status, &err) && lock) {
            witness_visit(tries->witness, tries->who, hf_token(lock));
            atomic_fetch_add(&tries->got, 1);
        }
        hf_release(lock, NULL);
        atomic_fetch_add(&tries->made, 1);
    }
    return NULL;
}

/* Those who only try take no places, and do not keep those who wait from their turn. */
TEST_LIMIT(tries_do_not_disturb_those_who_wait, 40)
{
    enum { WAITERS = 12 };
    struct redis_group *group = start_masters(3, NULL);
    struct queue *queue = shared_new(sizeof *queue);
    struct started_queue started = { queue, WAITERS };
    struct tries tries[2] = { { .client = open_client(), .witness = &queue->witness, .who = WAITERS + 1 },
                              { .client = open_client(), .witness = &queue->witness, .who = WAITERS + 2 } };
    pthread_t runner, trying[2];
    for (int i = 0; i < 4; i++)
        queue->clients[i] = open_client();
    struct held *held = hold_lock(group, endless_ttl_ms());
    REQUIRE_INT(0, pthread_create(&runner, NULL, run_queue, &started));
    await_line(group->server[0], WAITERS);
    for (int i = 0; i < 2; i++)
        REQUIRE_INT(0, pthread_create(&trying[i], NULL, try_and_try, &tries[i]));
    while (atomic_load(&tries[0].made) < 20 || atomic_load(&tries[1].made) < 20)
        await_a_moment();
    CHECK_INT(WAITERS, line_at(group->server[0]));
    CHECK_INT(0, gate_count(&held->loss.told));
    finish(held, HF_OK);
    REQUIRE_INT(0, pthread_join(runner, NULL));
    for (int i = 0; i < 2; i++) {
        atomic_store(&tries[i].over, true);
        REQUIRE_INT(0, pthread_join(trying[i], NULL));
        hf_close(tries[i].client);
    }
    test_note("%u and %u tries, %u and %u got it", tries[0].made, tries[1].made, tries[0].got, tries[1].got);
    witness_check(&queue->witness);
    CHECK_INT(WAITERS + tries[0].got + tries[1].got, queue->witness.entries);
    await_clean(group);
    for (int i = 0; i < 4; i++)
        hf_close(queue->clients[i]);
}

/* --------------------------------------------------------------------------------------------- the usher in trouble */

/* The usher falls, with the line: they line up on the next one, and are called there. */
static void wait_through(struct redis_group *group, enum fault fault, bool come_back)
{
    enum { WAITERS = 6 };
    struct waiter waiters[WAITERS];
    const hf_client_options patient = { .size = sizeof patient, .timeout_ms = 60000 };
    const hf_options options = stranger(endless_ttl_ms());
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, group->url, &patient, &err), &err);
    struct held *held = hold_lock(group, endless_ttl_ms());
    for (int i = 0; i < WAITERS; i++)
        waiter_start(&waiters[i], client, NAME, &options);
    await_line(group->server[0], WAITERS);
    strike(group, 0, fault);
    strike(group, 3, fault);
    if (fault == KILLED) /* the others can only be noticed by those who ask */
        await_line(group->server[1], WAITERS);
    if (come_back) {
        heal(group, 0, fault);
        heal(group, 3, fault);
    }
    CHECK_STATUS(HF_OK, hf_release(held->lock, &err), &err);
    uint64_t last = 0;
    for (int done = 0; done < WAITERS; done++) {
        int next = 0;
        while (waiters[next].lock == NULL || !gate_count(&waiters[next].ended)) {
            next = (next + 1) % WAITERS;
            if (next == 0)
                await_a_moment();
        }
        waiter_join(&waiters[next], HF_OK);
        CHECK(waiters[next].token > last);
        last = waiters[next].token;
        must_release(waiters[next].lock);
        waiters[next].lock = NULL;
    }
    hf_close(client);
    hf_close(held->client);
}

TEST(waiters_go_to_the_next_usher_when_theirs_is_killed)
{
    wait_through(start_masters(5, NULL), KILLED, false);
}

TEST(waiters_survive_a_restart_of_their_usher)
{
    wait_through(start_masters(5, NULL), KILLED, true);
}

TEST(waiters_go_on_when_their_usher_stands_still)
{
    wait_through(start_masters(5, NULL), PAUSED, false);
}

TEST(waiters_go_on_when_their_usher_stood_still)
{
    wait_through(start_masters(5, NULL), PAUSED, true);
}

TEST(waiters_go_on_when_their_usher_is_cut_off)
{
    wait_through(start_masters_apart(5), CUT, false);
}

/* Whoever waits when the majority dies is told, and leaves no place behind. */
TEST(waiters_are_told_that_the_majority_is_gone)
{
    struct redis_group *group = start_masters(5, NULL);
    struct waiter waiter;
    struct held *held = hold_lock(group, endless_ttl_ms());
    hf_options options = stranger(test_ms(1500)); /* which is also how long it bears with trouble */
    waiter_start(&waiter, held->client, NAME, &options);
    await_line(group->server[0], 1);
    for (int i = 1; i < 4; i++)
        strike(group, i, KILLED);
    CHECK(!gate_await_for(&waiter.ended, 1, 200)); /* the usher lives, and who holds it may still give it back */
    strike(group, 0, KILLED);
    waiter_join(&waiter, HF_UNAVAILABLE);
    CHECK_INT(0, line_at(group->server[4]));
    hf_release(held->lock, NULL);
    hf_close(held->client);
}
