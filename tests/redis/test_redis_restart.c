/* SPDX-License-Identifier: MIT
 *
 * test_redis_restart.c: what a held lock and a waiter go through when the server forgets, dies, comes back or stands
 * still.
 */
#include "redis_support.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define NAME "the-lock"
#define DURABLE "--appendonly yes --appendfsync always"

static int64_t wall_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

struct held {
    hf_client *client;
    hf_lock *lock;
    struct loss loss;
    _Atomic int64_t told_wall_us;
    int64_t asked_ns;
    uint32_t ttl_ms;
};

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct held *held = arg;
    (void)lock;
    CHECK(why != NULL && *why != '\0');
    atomic_store(&held->told_wall_us, wall_clock_us());
    atomic_store(&held->loss.told_ns, test_now_ns());
    gate_pass(&held->loss.told);
}

static struct held *hold_lock(uint32_t ttl_ms)
{
    struct held *held = shared_new(sizeof *held);
    hf_options options = with_ttl(ttl_ms);
    options.on_lost = note_loss;
    options.arg = held;
    held->ttl_ms = ttl_ms;
    held->client = open_client();
    held->asked_ns = test_now_ns();
    held->lock = must_acquire(held->client, NAME, &options);
    return held;
}

/* Gives it back, which must end as expected, and says how often the loss was told. */
static void finish(struct held *held, hf_status expected)
{
    hf_error err = { 0 };
    CHECK_STATUS(expected, hf_release(held->lock, &err), &err);
    CHECK_INT(expected == HF_LOST ? 1 : 0, gate_count(&held->loss.told));
    hf_close(held->client);
}

/* Waits until it has been renewed in the background after now. */
static void await_renewal(const struct held *held)
{
    int64_t before_ms = hf_remaining_ms(held->lock);
    int64_t left_ms = before_ms;
    while (left_ms <= before_ms) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        before_ms = left_ms;
        pause_ms(2);
        left_ms = hf_remaining_ms(held->lock);
    }
    CHECK(left_ms > 0);
}

/* ------------------------------------------------------------------------------------------------------- forgetting */

TEST(a_flushed_lock_is_reported_at_its_next_renewal)
{
    struct redis_server *server = serve("");
    struct held *held = hold_lock(test_ms(4000));
    redis_server_do(server, "FLUSHALL");
    gate_await(&held->loss.told, 1);
    /* Long before its own time would have been over. */
    CHECK(atomic_load(&held->loss.told_ns) < held->asked_ns + held->ttl_ms * 1000000LL * 9 / 10);
    CHECK(hf_remaining_ms(held->lock) <= 0);
    finish(held, HF_LOST);
    CHECK(!server_has_owner(server, NAME));
}

/* Whoever takes it in between is not disturbed by the one who lost it. */
TEST(a_flushed_lock_can_be_taken_and_the_loser_disturbs_nobody)
{
    struct redis_server *server = serve("");
    struct held *held = hold_lock(test_ms(2000));
    const uint64_t token = hf_token(held->lock);
    redis_server_do(server, "FLUSHALL");
    hf_client *other = open_client();
    hf_lock *lock = must_acquire(other, NAME, NULL);
    CHECK(hf_token(lock) > token);
    gate_await(&held->loss.told, 1);
    finish(held, HF_LOST);
    check_busy(other, NAME);
    must_release(lock);
    hf_close(other);
}

TEST(tokens_grow_through_flushes)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    uint64_t last = 0;
    for (int i = 0; i < 20; i++) {
        hf_lock *lock = must_acquire(client, NAME, NULL);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        must_release(lock);
        if (i % 3 == 1)
            redis_server_do(server, "FLUSHALL");
    }
    hf_close(client);
}

TEST(flushing_the_scripts_is_harmless)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    struct held *held = hold_lock(test_ms(5000));
    hf_error err = { 0 };
    redis_server_do(server, "SCRIPT FLUSH");
    CHECK_STATUS(HF_OK, hf_renew(held->lock, 0, &err), &err);
    redis_server_do(server, "SCRIPT FLUSH");
    waiter_start(&waiter, held->client, NAME, NULL);
    await_queue(server, NAME, 1);
    redis_server_do(server, "SCRIPT FLUSH");
    CHECK_STATUS(HF_OK, hf_release(held->lock, &err), &err);
    waiter_join(&waiter, HF_OK);
    redis_server_do(server, "SCRIPT FLUSH");
    must_release(waiter.lock);
    CHECK_INT(0, gate_count(&held->loss.told));
    hf_close(held->client);
}

/* A waiter whose place was flushed away asks again when the holder's time is over, at the latest. */
TEST(a_waiter_survives_a_flush)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    struct held *held = hold_lock(short_ttl_ms());
    waiter_start(&waiter, held->client, NAME, NULL);
    await_queue(server, NAME, 1);
    redis_server_do(server, "FLUSHALL");
    waiter_finish(&waiter);
    gate_await(&held->loss.told, 1);
    finish(held, HF_LOST);
}

/* ------------------------------------------------------------------------------------------------------- restarting */

TEST(a_held_lock_survives_a_restart_that_kept_its_data)
{
    struct redis_server *server = serve(DURABLE);
    struct held *held = hold_lock(test_ms(5000));
    const uint64_t token = hf_token(held->lock);
    redis_server_restart(server, true, "");
    await_renewal(held);
    hf_client *other = open_client();
    check_busy(other, NAME);
    CHECK_INT(token, hf_token(held->lock));
    finish(held, HF_OK);
    hf_lock *lock = must_acquire(other, NAME, NULL);
    CHECK(hf_token(lock) > token);
    must_release(lock);
    hf_close(other);
}

TEST(a_held_lock_is_lost_by_a_restart_that_kept_nothing)
{
    struct redis_server *server = serve("");
    struct held *held = hold_lock(test_ms(3000));
    const uint64_t token = hf_token(held->lock);
    redis_server_restart(server, false, "");
    gate_await(&held->loss.told, 1);
    CHECK(atomic_load(&held->loss.told_ns) < held->asked_ns + held->ttl_ms * 1000000LL);
    finish(held, HF_LOST);
    hf_client *other = open_client();
    hf_lock *lock = must_acquire(other, NAME, NULL);
    CHECK(hf_token(lock) > token); /* though the server knows of no earlier one */
    must_release(lock);
    hf_close(other);
}

/* A server that stays away: the holder knows in time, from its own clock. */
TEST(a_held_lock_is_lost_when_the_server_stays_away)
{
    struct redis_server *server = serve("");
    struct held *held = hold_lock(short_ttl_ms());
    redis_server_kill(server);
    gate_await(&held->loss.told, 1);
    finish(held, HF_LOST);
}

static void wait_through_restart(const char *arguments, bool with_data)
{
    struct redis_server *server = serve(arguments);
    struct waiter waiters[3];
    hf_options options = stranger(test_ms(6000)); /* which is also how long a waiter bears with an absent server */
    hf_client *other = open_client();
    struct held *held = hold_lock(test_ms(6000));
    for (int i = 0; i < 3; i++) {
        waiter_start(&waiters[i], other, NAME, &options);
        await_queue(server, NAME, i + 1);
    }
    redis_server_kill(server);
    /* It stays away long enough for every waiter to have noticed, and to have asked in vain. */
    for (int i = 0; i < 3; i++)
        CHECK(!gate_await_for(&waiters[i].ended, 1, 100));
    redis_server_restart(server, with_data, "");
    if (with_data) {
        await_renewal(held);
        await_queue(server, NAME, 3);
        finish(held, HF_OK);
    } else {
        gate_await(&held->loss.told, 1);
        finish(held, HF_LOST);
    }
    for (int done = 0; done < 3; done++) {
        int next = -1;
        for (int i = 0; next < 0; i = (i + 1) % 3) {
            next = waiters[i].client && gate_await_for(&waiters[i].ended, 1, 5) ? i : -1;
            REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        }
        waiter_join(&waiters[next], HF_OK);
        waiters[next].client = NULL;
        must_release(waiters[next].lock);
    }
    CHECK_INT(0, server_waiters(server, NAME));
    hf_close(other);
}

TEST_LIMIT(waiters_go_on_waiting_through_a_restart_that_kept_its_data, 30)
{
    wait_through_restart(DURABLE, true);
}

TEST_LIMIT(waiters_go_on_waiting_through_a_restart_that_kept_nothing, 30)
{
    wait_through_restart("", false);
}

/* The waiters' line to the server breaks, everything else stays: what they missed they ask for. */
TEST(a_broken_subscription_is_made_again)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    hf_client *other = open_client();
    struct held *held = hold_lock(endless_ttl_ms());
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(server, NAME, 1);
    const int64_t subscribed = redis_server_calls(server, "subscribe");
    CHECK_INT(1, redis_server_number(server, "CLIENT KILL TYPE pubsub"));
    while (redis_server_calls(server, "subscribe") == subscribed)
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    finish(held, HF_OK);
    waiter_finish(&waiter);
    hf_close(other);
}

/* Every connection breaks, again and again, while threads compete. */
TEST_LIMIT(connections_that_break_cost_nobody_the_lock, 40)
{
    struct redis_server *server = serve("");
    struct held *held = hold_lock(test_ms(3000));
    for (int i = 0; i < 10; i++) {
        redis_server_do(server, "CLIENT KILL TYPE normal SKIPME yes");
        pause_ms(test_ms(150));
        CHECK(hf_remaining_ms(held->lock) > 0);
    }
    await_renewal(held);
    finish(held, HF_OK);
}

/* Nor does a process that has no descriptor left for another one when it lets go. */
TEST_LIMIT(a_release_without_a_descriptor_is_made_when_there_is_one, 20)
{
    struct rlimit before, few;
    hf_error err = { 0 };
    REQUIRE_INT(0, getrlimit(RLIMIT_NOFILE, &before));
    few = before;
    few.rlim_cur = 8; /* enough for poll(); and below all that the client has, since what breaks is given back */
    while (dup(STDOUT_FILENO) < (int)few.rlim_cur)
        continue;
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL); /* for 30 s, which the test does not have */
    redis_server_do(server, "CLIENT KILL TYPE normal SKIPME yes");
    REQUIRE_INT(0, setrlimit(RLIMIT_NOFILE, &few));
    CHECK_STATUS(HF_UNKNOWN, hf_release(lock, &err), &err); /* on the connection that broke */
    pause_ms(test_ms(500));                                 /* in which it is tried again, without success */
    REQUIRE_INT(0, setrlimit(RLIMIT_NOFILE, &before));
    while (server_has_owner(server, NAME)) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 5000000000LL);
        pause_ms(5);
    }
    hf_close(client);
}

/* --------------------------------------------------------------------------------------------------- standing still */

/* The server stands still while a lock of this time-to-live is held. True: its holder was told before the end. */
static bool is_told_in_time(struct redis_server *server, uint32_t ttl_ms)
{
    struct held *held = hold_lock(ttl_ms);
    redis_server_pause(server);
    gate_await(&held->loss.told, 1); /* while the server stands still */
    redis_server_continue(server);
    /* `u` is when the server itself will end it, by the clock that both share here. */
    const int64_t until_us = redis_server_number(server, "HGET hf:{%s} u", NAME);
    CHECK(until_us > 0);
    const bool in_time = atomic_load(&held->told_wall_us) < until_us;
    finish(held, HF_LOST);
    return in_time;
}

/* A callback on a busy machine is called a little after its time: longer leases have more to spare. */
TEST(the_loss_is_known_before_a_paused_server_would_give_the_lock_away)
{
    struct redis_server *server = serve("");
    CHECK(is_told_in_time(server, short_ttl_ms()) || is_told_in_time(server, 4 * short_ttl_ms()) ||
          is_told_in_time(server, 12 * short_ttl_ms()));
    hf_client *other = open_client();
    check_becomes_free(other, NAME);
    hf_close(other);
}

TEST(a_short_pause_of_the_server_is_not_noticed)
{
    struct redis_server *server = serve("");
    struct held *held = hold_lock(test_ms(3000));
    redis_server_pause(server);
    /* Past the moment of the renewal, which now waits for its answer. */
    CHECK(!gate_await_for(&held->loss.told, 1, held->ttl_ms / 2));
    redis_server_continue(server);
    await_renewal(held);
    hf_client *other = open_client();
    check_busy(other, NAME);
    finish(held, HF_OK);
    hf_close(other);
}

TEST(a_waiter_does_not_notice_a_short_pause_of_the_server)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    hf_client *other = open_client();
    struct held *held = hold_lock(test_ms(6000));
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(server, NAME, 1);
    redis_server_pause(server);
    CHECK(!gate_await_for(&waiter.ended, 1, 300));
    redis_server_continue(server);
    finish(held, HF_OK);
    waiter_finish(&waiter);
    hf_close(other);
}

/* A shorter time that was asked for in vain may have been granted all the same: the holder must reckon with it. */
TEST(a_renewal_to_a_shorter_time_counts_even_if_its_answer_is_lost)
{
    struct redis_server *server = serve("");
    hf_client *client = open_url("%s?timeout=300", server->url);
    hf_client *other = open_client();
    hf_options options = with_ttl(endless_ttl_ms());
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = must_acquire(client, NAME, &options);
    hf_error err = { 0 };
    while (hf_renew(lock, 0, &err) != HF_OK) /* from here on the server knows the script */
        REQUIRE_STATUS(HF_UNKNOWN, err.status, &err);
    redis_server_pause(server);
    const hf_status status = hf_renew(lock, 300, NULL);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    redis_server_continue(server); /* and does what it was asked for */
    hf_lock *theirs = NULL;
    const int64_t end_ns = test_now_ns() + test_ms(1000) * 1000000LL;
    while (!theirs && test_now_ns() < end_ns) {
        const hf_options next = stranger(0);
        if (hf_try_acquire(&theirs, other, NAME, &next, NULL) == HF_OK)
            CHECK(hf_remaining_ms(lock) <= 0);
        pause_ms(5);
    }
    hf_release(theirs, NULL);
    hf_release(lock, NULL);
    hf_close(other);
    hf_close(client);
}
