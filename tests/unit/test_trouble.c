/* SPDX-License-Identifier: MIT
 *
 * test_trouble.c: what the core does when the store is slow, silent, forgetful or gone.
 */
#include "core.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define TTL test_ms(600)

static struct gate lost;
static _Atomic int64_t lost_at_ns;
static char lost_why[200];

static void on_lost(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)arg;
    strncpy(lost_why, why, sizeof lost_why - 1);
    atomic_store(&lost_at_ns, test_now_ns());
    gate_pass(&lost);
}

static hf_lock *take_for(uint32_t ttl_ms, hf_client *client, const char *name, hf_options *options)
{
    hf_lock *lock = NULL;
    hf_error err;
    options->ttl_ms = ttl_ms;
    options->on_lost = on_lost;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, name, options, &err), &err);
    return lock;
}

static hf_lock *take(hf_client *client, const char *name, hf_options *options)
{
    return take_for(TTL, client, name, options);
}

static void await_at_least(_Atomic int *value, int wanted)
{
    while (atomic_load(value) < wanted)
        await_a_moment();
}

static void await_equal(_Atomic int *value, int wanted)
{
    while (atomic_load(value) != wanted)
        await_a_moment();
}

TEST(a_held_lock_is_renewed_again_and_again)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take(client, "x", &options);
    const int64_t start = test_now_ns();
    await_at_least(&script_renewed, 5); /* at a third of the ttl each: longer than the ttl itself */
    CHECK(test_now_ns() - start > TTL * HFI_MS);
    CHECK(hf_remaining_ms(lock) > 0);
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    CHECK_INT(0, gate_count(&lost));
    CHECK_INT(0, script_held);
    hf_close(client);
}

TEST(many_locks_share_an_exchange)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *locks[300];
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "lock-%d", i);
        locks[i] = take(client, name, &options);
    }
    await_at_least(&script_renewed, 900);
    CHECK(script_largest_renewal >= 100);
    CHECK(script_renew.calls * 20 < script_renewed);
    for (int i = 0; i < 300; i++)
        CHECK_STATUS(HF_OK, hf_release(locks[i], NULL), NULL);
    hf_close(client);
}

/* More than one exchange takes. */
static void check_many_losses(uint32_t timeout_ms, hf_status status, bool stalls)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(timeout_ms);
    hf_lock *locks[300];
    const int64_t start = test_now_ns();
    script_set(&script_renew, SCRIPT_FOREVER, status, stalls);
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "lock-%d", i);
        locks[i] = take(client, name, &options);
    }
    gate_await(&lost, 300);
    CHECK(script_renew.calls < (test_now_ns() - start) / HFI_MS);
    for (int i = 0; i < 300; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    hf_close(client);
}

/* Those that fail must not come before the rest again, and again. */
TEST(many_locks_that_cannot_be_renewed_take_turns)
{
    check_many_losses(0, HF_UNAVAILABLE, false);
    CHECK(script_renew.calls >= 3);
}

/* The time of the rest is over when the first of them have been asked for. */
TEST(many_locks_that_are_not_answered_for_are_lost)
{
    check_many_losses(60000, HF_UNKNOWN, true);
}

TEST(what_the_store_forgot_is_lost_with_a_callback)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take(client, "x", &options);
    const uint64_t token = hf_token(lock);
    struct pollfd fd = { .fd = hf_lost_fd(lock), .events = POLLIN };
    CHECK_INT(0, poll(&fd, 1, 0));
    script_set(&script_renew, SCRIPT_FOREVER, HF_LOST, false);
    gate_await(&lost, 1);
    CHECK_INT(1, poll(&fd, 1, 0));
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STR("the store no longer has it: it was broken, or ended or forgotten there", lost_why);
    /* A lock that was lost cannot be re-entered: the next acquire is a new one. */
    hf_lock *next = take(client, "x", &options);
    CHECK(hf_token(next) > token);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    hf_release(next, NULL);
    hf_close(client);
}

TEST(a_store_that_stays_silent_costs_the_lock_at_its_own_deadline)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    const int64_t sent = test_now_ns();
    hf_lock *lock = take(client, "x", &options);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    gate_await(&lost, 1);
    CHECK(atomic_load(&lost_at_ns) >= sent + TTL * HFI_MS - hfi_drift_ns(TTL));
    CHECK(script_renew.calls > 1); /* it did try */
    CHECK(strncmp(lost_why, "the store has been silent for ", 30) == 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

/* The exchange timeout is far longer than the lease: a stalled exchange must not delay the news of a loss. */
TEST(a_stalled_exchange_does_not_delay_the_news_of_a_loss)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(60000);
    hf_lock *lock = take(client, "x", &options);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNKNOWN, true);
    gate_await(&lost, 1); /* the test's own limit is shorter than the timeout */
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

/* A lock whose renewal hangs for as long as it can: until the end of its lease, which is far away. */
static hf_lock *take_and_hang(hf_client *client, int count)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = take_for(20 * TTL, client, "long", &options);
    script_set(&script_renew, count, HF_UNKNOWN, true);
    await_at_least(&script_renewing, 1);
    return lock;
}

TEST(what_is_taken_while_an_exchange_hangs_is_renewed)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(60000);
    hf_lock *slow = take_and_hang(client, 1);
    hf_lock *lock = take(client, "short", &options);
    await_at_least(&script_renewed, 5);
    CHECK_INT(1, script_renewing); /* the first one is still out */
    CHECK_INT(0, gate_count(&lost));
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    CHECK_STATUS(HF_OK, hf_release(slow, NULL), NULL);
    hf_close(client);
}

TEST(what_is_taken_while_an_exchange_hangs_is_lost_in_time)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(60000);
    hf_lock *slow = take_and_hang(client, SCRIPT_FOREVER);
    hf_lock *lock = take(client, "short", &options);
    gate_await(&lost, 1);
    CHECK(hf_remaining_ms(slow) > TTL); /* the other one has time, and its exchange too */
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_release(slow, NULL);
    hf_close(client);
}

/* Releases that hang do not take the time of renewals. */
TEST(releases_that_hang_leave_the_rest_to_be_renewed)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(2000);
    hf_lock *lock = take(client, "x", &options);
    hf_lock *left[8];
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "lock-%d", i);
        left[i] = take_for(60000, client, name, &options);
    }
    script_set(&script_release, 8, HF_UNAVAILABLE, false);
    for (int i = 0; i < 8; i++)
        CHECK_STATUS(HF_UNAVAILABLE, hf_release(left[i], NULL), NULL);
    script_set(&script_release, SCRIPT_FOREVER, HF_UNKNOWN, true);
    await_at_least(&script_release.calls, 10);
    const int renewed = script_renewed;
    await_at_least(&script_renewed, renewed + 10);
    CHECK_INT(0, gate_count(&lost));
    script_set(&script_release, 0, HF_OK, false);
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST(a_silence_shorter_than_the_lease_is_not_noticed)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take(client, "x", &options);
    script_set(&script_renew, 3, HF_UNAVAILABLE, false);
    await_at_least(&script_renewed, 4);
    CHECK_INT(0, gate_count(&lost));
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST(an_unknown_outcome_is_asked_again_and_found)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    script_set(&script_attempt, 2, HF_UNKNOWN, false);
    hf_lock *lock = take(client, "x", &options);
    CHECK_INT(3, script_attempt.calls); /* by the same owner, so that the store finds the first one */
    CHECK_INT(1, script_last_owner);
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST(an_unknown_outcome_is_undone_in_the_background)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_lock *lock = NULL;
    hf_client *client = scripted_client(0);
    script_set(&script_attempt, 1, HF_UNKNOWN, false);
    script_set(&script_release, 3, HF_UNKNOWN, false);
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, client, "x", &options, &err), &err);
    CHECK(lock == NULL);
    await_at_least(&script_release.calls, 4);
    hf_close(client);
    CHECK_INT(4, script_release.calls); /* answered at the fourth, and then left alone */
}

TEST(a_release_without_answer_is_finished_in_the_background)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take(client, "x", &options);
    script_set(&script_release, 2, HF_UNAVAILABLE, false);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, &err), &err);
    CHECK_INT(1, script_held);
    await_equal(&script_held, 0);
    CHECK_INT(3, script_release.calls);
    hf_close(client);
}

/* No descriptor for a connection, say. */
TEST(a_release_without_means_is_finished_in_the_background)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take(client, "x", &options);
    script_set(&script_release, 2, HF_NOMEM, false);
    CHECK_STATUS(HF_NOMEM, hf_release(lock, &err), &err);
    CHECK_INT(1, script_held);
    await_equal(&script_held, 0);
    CHECK_INT(3, script_release.calls);
    hf_close(client);
}

TEST(a_release_that_stays_unanswered_is_given_up_when_the_lease_has_ended)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take(client, "x", &options);
    script_set(&script_release, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, NULL), NULL);
    int calls = -1;
    while (calls != script_release.calls) { /* until a whole pause has passed without a call */
        calls = script_release.calls;
        poll(NULL, 0, 2200);
    }
    CHECK(calls > 3);
    CHECK(test_now_ns() - start > TTL * HFI_MS);
    hf_close(client);
}

/* The engine knows of them until its close(). */
TEST(what_was_not_released_is_there_until_the_store_is_closed)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *locks[300];
    options.ttl_ms = 600000; /* none is given up before */
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "lock-%d", i);
        REQUIRE_STATUS(HF_OK, hf_acquire(&locks[i], client, name, &options, NULL), NULL);
    }
    script_set(&script_release, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    for (int i = 0; i < 300; i++)
        CHECK_STATUS(HF_UNAVAILABLE, hf_release(locks[i], NULL), NULL);
    hf_close(client);
    CHECK_INT(0, script_held);
}

/* It fails after the client has begun to close: the engine knows of the lock still, and is asked once more. */
TEST(a_release_that_is_under_way_when_its_client_is_closed_is_made_again)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for(600000, client, "x", &options);
    script_set(&script_release, 2, HF_UNAVAILABLE, false);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, NULL), NULL);
    atomic_store(&script_release.delay_ns, 300 * HFI_MS);
    await_at_least(&script_release.calls, 2); /* by the keeper, which is still there */
    hf_close(client);
    CHECK_INT(3, atomic_load(&script_release.calls));
    CHECK_INT(0, script_held);
}

TEST(a_store_that_the_wait_outlasts_is_not_noticed)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    script_set(&script_attempt, 4, HF_UNAVAILABLE, false);
    hf_release(take(client, "x", &options), NULL);
    CHECK_INT(5, script_attempt.calls);
    hf_close(client);
}

TEST(a_store_that_stays_away_ends_the_wait)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_lock *lock = NULL;
    hf_client *client = scripted_client(0);
    options.ttl_ms = 300; /* waits for ever, but not for a store that is away for longer than this */
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    CHECK_STATUS(HF_UNAVAILABLE, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK_STR("so says the script", err.message);
    options.ttl_ms = 0;
    options.wait_ms = 100;
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK(test_now_ns() - start >= 100 * HFI_MS);
    hf_close(client);
}

/* A few milliseconds say nothing about a store: the wait is over, and what the store may have done is undone. */
TEST(a_wait_that_is_too_short_for_an_answer_is_over_and_nothing_else)
{
    const hf_status silent[] = { HF_UNKNOWN, HF_UNAVAILABLE };
    for (int i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT;
        hf_client *client = scripted_client(0);
        hf_lock *lock = NULL;
        hf_error err;
        options.wait_ms = 2;
        script_set(&script_attempt, 1, silent[i], true);
        script_set(&script_release, 1, HF_UNKNOWN, true);
        const int calls = script_release.calls;
        CHECK_STATUS(HF_TIMEOUT, hf_acquire(&lock, client, "x", &options, &err), &err);
        CHECK(lock == NULL);
        CHECK_STR("the wait of 2 ms was over before the store had answered", err.message);
        await_at_least(&script_release.calls, calls + 2);
        hf_close(client);
    }
}

TEST(a_wait_that_was_long_enough_for_an_answer_does_not_hide_trouble)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = NULL;
    hf_error err;
    options.wait_ms = 500;
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNKNOWN, true);
    CHECK_STATUS(HF_UNKNOWN, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK_STR("so says the script", err.message);
    hf_close(client);
}

static void *silence_after_an_answer(void *none)
{
    await_at_least(&script_attempt.calls, 2);
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNKNOWN, true);
    return none;
}

/* The last that was heard of the store is that somebody else has it. */
TEST(a_store_that_answered_and_is_silent_when_the_wait_ends_is_no_trouble)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = NULL;
    hf_error err;
    pthread_t thread;
    options.wait_ms = 900;
    script_set(&script_attempt, SCRIPT_FOREVER, HF_BUSY, false);
    REQUIRE_INT(0, pthread_create(&thread, NULL, silence_after_an_answer, NULL));
    CHECK_STATUS(HF_TIMEOUT, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK(lock == NULL);
    pthread_join(thread, NULL);
    hf_close(client);
}

TEST(an_answer_slower_than_the_lease_is_no_lock)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_lock *lock = NULL;
    hf_client *client = scripted_client(0);
    options.ttl_ms = 100;
    atomic_store(&script_attempt.delay_ns, 150 * HFI_MS);
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&lock, client, "x", &options, &err), &err);
    CHECK(lock == NULL);
    CHECK_INT(0, script_held); /* given back */
    hf_close(client);
}

TEST(refusals_are_passed_on_at_once)
{
    static const hf_status refusals[] = { HF_DENIED, HF_INVALID, HF_UNSUPPORTED, HF_NOMEM, HF_INTERNAL };
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_lock *lock = NULL;
    hf_client *client = scripted_client(0);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const int before = script_attempt.calls;
        script_set(&script_attempt, SCRIPT_FOREVER, refusals[i], false);
        CHECK_STATUS(refusals[i], hf_acquire(&lock, client, "x", &options, &err), &err);
        CHECK_INT(before + 1, script_attempt.calls);
    }
    hf_close(client);
}

TEST(an_engine_that_cannot_wait_is_asked_from_time_to_time)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_lock *lock = NULL;
    hf_client *client = scripted_client(0);
    script_set(&script_attempt, 5, HF_BUSY, false);
    hf_release(take(client, "x", &options), NULL);
    CHECK_INT(6, script_attempt.calls);
    script_set(&script_attempt, SCRIPT_FOREVER, HF_BUSY, false);
    options.wait_ms = 200;
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_TIMEOUT, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK(test_now_ns() - start >= 200 * HFI_MS);
    CHECK(script_attempt.calls < 30);
    hf_close(client);
}

TEST(renewing_by_hand)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_client *client = scripted_client(0);
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = take(client, "x", &options);
    CHECK(hf_remaining_ms(lock) <= (int64_t)TTL);
    CHECK_STATUS(HF_INVALID, hf_renew(lock, 1, &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(lock, 10000, &err), &err);
    CHECK(hf_remaining_ms(lock) > (int64_t)TTL);
    script_set(&script_renew, 1, HF_UNAVAILABLE, false);
    CHECK_STATUS(HF_UNAVAILABLE, hf_renew(lock, 0, &err), &err);
    CHECK(hf_remaining_ms(lock) > 0); /* what was granted before still counts */
    script_set(&script_renew, 1, HF_LOST, false);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_INT(1, gate_count(&lost));
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    hf_close(client);
}

TEST(closing_does_not_wait_longer_than_the_timeout_for_a_silent_store)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(200);
    hf_lock *locks[5];
    for (int i = 0; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        locks[i] = take(client, name, &options);
    }
    script_set(&script_release, SCRIPT_FOREVER, HF_UNKNOWN, true);
    hf_close(client);
    CHECK_INT(5, script_release.calls);
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
}

/* -------------------------------------------------------------------------------- the store may have changed --- */

/* Its renewal would be due in 20 s. */
static hf_lock *take_for_long(hf_client *client, hf_renew_mode renew)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    hf_error err;
    options.ttl_ms = 60000;
    options.renew = renew;
    options.on_lost = on_lost;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
    return lock;
}

TEST(a_recheck_renews_what_is_held_at_once)
{
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for_long(client, HF_RENEW_ON);
    hfi_keeper_recheck(client, 0);
    await_at_least(&script_renewed, 1);
    CHECK(hf_remaining_ms(lock) > 0);
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    CHECK_INT(0, gate_count(&lost));
    hf_close(client);
}

TEST(a_recheck_tells_at_once_of_what_is_gone)
{
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for_long(client, HF_RENEW_ON);
    script_set(&script_renew, SCRIPT_FOREVER, HF_LOST, false);
    hfi_keeper_recheck(client, 0);
    gate_await(&lost, 1);
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST(a_recheck_does_not_extend_a_lease_that_is_not_renewed)
{
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for_long(client, HF_RENEW_OFF);
    const int64_t end_ms = test_now_ns() / 1000000 + hf_remaining_ms(lock);
    hfi_keeper_recheck(client, 0);
    await_at_least(&script_renewed, 1);
    CHECK(test_now_ns() / 1000000 + hf_remaining_ms(lock) <= end_ms + 2);
    script_set(&script_renew, SCRIPT_FOREVER, HF_LOST, false);
    hfi_keeper_recheck(client, 0);
    gate_await(&lost, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

static void *renew_by_hand(void *lock)
{
    hf_renew(lock, 0, NULL);
    return NULL;
}

/* The answer to what was asked before the store changed says nothing about afterwards. */
TEST(a_recheck_during_a_renewal_by_hand_is_not_put_off)
{
    pthread_t thread;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for_long(client, HF_RENEW_ON);
    atomic_store(&script_renew.delay_ns, 100 * HFI_MS);
    REQUIRE_INT(0, pthread_create(&thread, NULL, renew_by_hand, lock));
    await_at_least(&script_renewing, 1);
    hfi_keeper_recheck(client, 0);
    pthread_join(thread, NULL);
    await_at_least(&script_renewed, 2);
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}
