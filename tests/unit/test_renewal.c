/* SPDX-License-Identifier: MIT
 *
 * test_renewal.c: renewals by hand and in the background that meet, stores that do not answer them, and losses that are
 * known before the grant is.
 */
#include "core.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static struct gate lost;
static char lost_why[240];

static void on_lost(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)arg;
    snprintf(lost_why, sizeof lost_why, "%s", why);
    gate_pass(&lost);
}

static hf_lock *take_for(uint32_t ttl_ms, hf_client *client, hf_options *options)
{
    hf_lock *lock = NULL;
    hf_error err;
    options->ttl_ms = ttl_ms;
    options->on_lost = on_lost;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", options, &err), &err);
    return lock;
}

static void await_at_least(_Atomic int *value, int wanted)
{
    while (atomic_load(value) < wanted)
        await_a_moment();
}

/* What is due while a renewal by hand is under way is left to that one; which fails. */
TEST(a_renewal_by_hand_that_fails_does_not_end_those_in_the_background)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(900);
    hf_lock *lock = take_for(2400, client, &options);
    script_set(&script_renew, 1, HF_UNAVAILABLE, true); /* for 900 ms; the next one is due after 800 */
    CHECK_STATUS(HF_UNAVAILABLE, hf_renew(lock, 0, NULL), NULL);
    await_at_least(&script_renew.calls, 4);
    CHECK_INT(0, gate_count(&lost));
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST(what_is_lost_while_it_is_renewed_by_hand_is_given_back)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(1000);
    options.max_hold_ms = 300;
    hf_lock *lock = take_for(300, client, &options);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNAVAILABLE, true);
    CHECK(hf_renew(lock, 20000, NULL) != HF_OK);
    await_at_least(&script_release.calls, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

/* By the keeper, and by who renews it; without what would spoil a log. */
TEST(who_broke_a_lock_is_told_as_the_store_says_it)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for(6000, client, &options);
    atomic_store(&script_breaker, "joe\n\x1b@host:4711");
    script_set(&script_renew, SCRIPT_FOREVER, HF_LOST, false);
    gate_await(&lost, 1);
    CHECK_STR("it was broken by joe??@host:4711", lost_why);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    options.renew = HF_RENEW_OFF;
    lock = take_for(60000, client, &options);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), NULL);
    CHECK_STR("it was broken by joe??@host:4711", err.message);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

/* The renewal may have counted, and then it was for less than what is left. */
TEST(a_lease_that_an_unanswered_renewal_may_have_shortened_is_lost_in_time)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock = take_for(900, client, &options);
    CHECK_STATUS(HF_OK, hf_renew(lock, 9000, NULL), NULL);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNKNOWN, true);
    const int64_t start = test_now_ns();
    gate_await(&lost, 1);
    CHECK(test_now_ns() - start < 7000 * HFI_MS); /* 3000 until that renewal, and 900 */
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST(what_is_lost_before_the_grant_is_known_is_told)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    atomic_store(&script_lost_at_once, 1);
    hf_lock *lock = take_for(60000, client, &options);
    gate_await(&lost, 1);
    CHECK(hf_remaining_ms(lock) <= 0);
    hf_error err = { 0 };
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_STR("it was lost at once", err.message);
    await_at_least(&script_release.calls, 1);
    hf_close(client);
}

/* The store may have it still, so its release is repeated; but whoever has lost it cannot say that its work is done. */
TEST(a_release_of_what_was_lost_marks_nothing_however_often_it_is_repeated)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_error err = { 0 };
    options.once_per_ms = 3600000;
    hf_lock *lock = take_for(60000, client, &options);
    script_set(&script_renew, 1, HF_LOST, false);
    script_set(&script_release, 3, HF_UNAVAILABLE, false);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release_done(lock, &err), &err);
    await_at_least(&script_release.calls, 4);
    hf_close(client);
    CHECK_INT(0, script_done);
}

TEST(a_release_that_is_not_allowed_is_repeated_with_its_mark)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_error err = { 0 };
    options.once_per_ms = 3600000;
    hf_lock *lock = take_for(60000, client, &options);
    script_set(&script_release, 2, HF_DENIED, false);
    CHECK_STATUS(HF_DENIED, hf_release_done(lock, &err), &err);
    await_at_least(&script_done, 3);
    hf_close(client);
    CHECK_INT(0, script_held);
    CHECK_INT(3, script_release.calls);
}

/* The lock's time may be that of a session which was renewed a while ago; its work has only begun. */
TEST(work_is_done_from_its_grant_on_and_not_from_the_last_sign_of_life)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    options.once_per_ms = 60000;
    atomic_store(&script_counted_ns, 90 * HFI_SECOND);
    hf_lock *lock = take_for(300000, client, &options);
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    CHECK_INT(1, script_done);
    hf_close(client);
}

TEST(only_the_last_release_says_whether_the_work_is_done)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    options.once_per_ms = 3600000;
    hf_lock *lock = take_for(60000, client, &options), *again = take_for(60000, client, &options);
    CHECK_STATUS(HF_OK, hf_release_done(again, NULL), NULL);
    CHECK_INT(0, script_release.calls);
    script_set(&script_renew, 1, HF_LOST, false);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
    CHECK(script_release.calls > 0);
    CHECK_INT(0, script_done);
}

struct long_callback {
    struct gate entered, go_on;
};

static void take_long(hf_lock *lock, const char *why, void *arg)
{
    struct long_callback *callback = arg;
    (void)lock;
    (void)why;
    gate_pass(&callback->entered);
    gate_await(&callback->go_on, 1);
}

/* The answer for the second came with that for the first. */
TEST(a_callback_that_takes_long_costs_no_other_lock)
{
    struct long_callback callback = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *first, *second;
    options.ttl_ms = 2400;
    options.on_lost = take_long;
    options.arg = &callback;
    REQUIRE_STATUS(HF_OK, hf_acquire(&first, client, "first", &options, NULL), NULL);
    atomic_store(&script_forgotten, atomic_load(&script_last_owner));
    options.on_lost = on_lost;
    REQUIRE_STATUS(HF_OK, hf_acquire(&second, client, "second", &options, NULL), NULL);
    gate_await(&callback.entered, 1);
    await_at_least(&script_renew.calls, 4);
    CHECK_INT(0, gate_count(&lost));
    CHECK_STATUS(HF_OK, hf_release(second, NULL), NULL);
    gate_pass(&callback.go_on);
    CHECK_STATUS(HF_LOST, hf_release(first, NULL), NULL);
    hf_close(client);
}

/* In one exchange. */
static void lose_two(hf_lock *locks[2], hf_client *client, hf_lost_fn on_loss, void *arg)
{
    hf_options options = HF_OPTIONS_INIT;
    options.on_lost = on_loss;
    options.arg = arg;
    REQUIRE_STATUS(HF_OK, hf_acquire(&locks[0], client, "first", &options, NULL), NULL);
    REQUIRE_STATUS(HF_OK, hf_acquire(&locks[1], client, "second", &options, NULL), NULL);
    script_set(&script_renew, 2, HF_LOST, false);
    hfi_keeper_recheck(client, 0); /* both are due now */
}

/* What the store no longer has is not to be relied on until another lock's callback has returned. */
TEST(a_callback_that_takes_long_delays_the_news_of_no_other_loss)
{
    struct long_callback callback = { 0 };
    hf_client *client = scripted_client(0);
    hf_lock *locks[2];
    lose_two(locks, client, take_long, &callback);
    gate_await(&callback.entered, 1);
    CHECK(hf_remaining_ms(locks[0]) <= 0 && hf_remaining_ms(locks[1]) <= 0);
    gate_pass(&callback.go_on);
    for (int i = 0; i < 2; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    hf_close(client);
    CHECK_INT(1, script_renew.calls);
}

struct first_of_two {
    struct gate entered, go_on;
    hf_lock *_Atomic first;
    _Atomic int calls;
};

static void stop_the_first(hf_lock *lock, const char *why, void *arg)
{
    struct first_of_two *callback = arg;
    (void)why;
    if (atomic_fetch_add(&callback->calls, 1) > 0)
        return;
    atomic_store(&callback->first, lock);
    gate_pass(&callback->entered);
    gate_await(&callback->go_on, 1);
}

/* The keeper would tell it of the loss when the first one's callback has returned. */
TEST(a_release_that_finds_the_loss_before_the_keeper_tells_it_calls_back)
{
    struct first_of_two callback = { .calls = 0 };
    hf_client *client = scripted_client(0);
    hf_lock *locks[2];
    lose_two(locks, client, stop_the_first, &callback);
    gate_await(&callback.entered, 1);
    hf_lock *first = atomic_load(&callback.first);
    CHECK_STATUS(HF_LOST, hf_release(locks[first == locks[0]], NULL), NULL);
    CHECK_INT(2, atomic_load(&callback.calls));
    gate_pass(&callback.go_on);
    CHECK_STATUS(HF_LOST, hf_release(first, NULL), NULL);
    hf_close(client);
    CHECK_INT(2, atomic_load(&callback.calls));
}

static void release_at_once(hf_lock *lock, const char *why, void *arg)
{
    (void)why;
    (void)arg;
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
}

TEST(what_a_renewal_by_hand_finds_lost_and_its_callback_releases_is_forgotten)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock;
    options.on_lost = release_at_once;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, NULL), NULL);
    script_set(&script_renew, 1, HF_LOST, false);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    hfi_client_lock(client);
    CHECK_INT(0, client->hold_count);
    hfi_client_unlock(client);
    hf_close(client);
}

/* Its bell is closed by then, and the number of the descriptor may be that of another file. */
TEST(a_renewal_after_the_client_was_closed_writes_to_no_descriptor)
{
    int stranger[16];
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(300);
    hf_lock *lock = take_for(3000, client, &options);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNAVAILABLE, true);
    hfi_keeper_recheck(client, 0);
    await_at_least(&script_renew.calls, 1);
    hfi_keeper_recheck(client, 0); /* while the answer is waited for: to be renewed again after that */
    hf_close(client);
    for (int i = 0; i < 16; i++)
        stranger[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    for (int i = 0; i < 16; i++) {
        struct pollfd written = { .fd = stranger[i], .events = POLLIN };
        CHECK_INT(0, poll(&written, 1, 0));
        close(stranger[i]);
    }
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
}

/* As one that is bound to a connection: nothing is due for it but this. */
TEST(a_lock_without_an_end_is_asked_after_when_it_is_doubted)
{
    atomic_store(&script_endless, true);
    hf_client *client = scripted_client(0);
    hf_lock *lock;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", NULL, NULL), NULL);
    CHECK(hf_remaining_ms(lock) == INT64_MAX);
    hfi_client_lock(client);
    CHECK(hfi_keeper_start(client, NULL)); /* as it does for a store that can speak up */
    hfi_client_unlock(client);
    for (int i = 1; i <= 2; i++) {
        hfi_keeper_recheck(client, 0);
        await_at_least(&script_renew.calls, i);
    }
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}

/* A grant that comes too late to be of use is asked for again: what has become of the first does not matter. */
TEST(a_loss_of_a_grant_that_was_of_no_use_is_not_told)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(test_ms(900));
    atomic_store(&script_lost_at_once, 1);
    script_set(&script_attempt, 1, HF_OK, true);
    hf_lock *lock = take_for(test_ms(600), client, &options);
    await_at_least(&script_renew.calls, 2);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    CHECK_INT(0, gate_count(&lost));
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}

/* --- many locks --- */

static int64_t processor_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

/* What it costs to renew each of `count` locks once, in processor time per lock; the best of five. */
static int64_t price_of_a_renewal(int count)
{
    hf_client *client = scripted_client(600000);
    hf_lock **locks = calloc((size_t)count, sizeof(hf_lock *));
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    char name[32];
    int64_t best = INT64_MAX;
    options.ttl_ms = 3600000;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "lock %d", i);
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&locks[i], client, name, &options, &err), &err);
    }
    for (int turn = 0; turn < 5; turn++) {
        const int before = atomic_load(&script_renewed);
        const int64_t since_ns = processor_ns();
        hfi_keeper_recheck(client, 0); /* all of them are due now */
        await_at_least(&script_renewed, before + count);
        const int64_t used_ns = processor_ns() - since_ns;
        best = used_ns < best ? used_ns : best;
    }
    for (int i = count; i-- > 0;) /* the script's own list begins with the last */
        REQUIRE_STATUS(HF_OK, hf_release(locks[i], &err), &err);
    free(locks);
    hf_close(client);
    return best / count;
}

/* Whoever holds a hundred thousand would lose them all if each renewal looked at each of them. */
TEST_LIMIT(the_price_of_a_renewal_does_not_grow_with_the_number_of_locks, 60)
{
    const int slow = test_slowness();
    const int64_t few = price_of_a_renewal(4000 / slow), many = price_of_a_renewal(100000 / slow);
    test_note("%lld ns each for few, %lld ns for 25 times as many", (long long)few, (long long)many);
    CHECK(many < 8 * few); /* what does not fit into the caches costs more */
}

/* The two are the first and the second hold of their client. */
TEST(a_recheck_of_one_lock_asks_about_no_other)
{
    hf_client *client = scripted_client(0);
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *first = take_for(60000, client, &options), *second = NULL;
    REQUIRE_STATUS(HF_OK, hf_acquire(&second, client, "y", &options, NULL), NULL);
    atomic_store(&script_forgotten, 1);
    hfi_keeper_recheck(client, 3); /* of none */
    hfi_keeper_recheck(client, 2);
    await_at_least(&script_renewed, 1);
    CHECK_INT(0, gate_count(&lost));
    hfi_keeper_recheck(client, 1);
    gate_await(&lost, 1);
    CHECK_INT(2, atomic_load(&script_renewed));
    CHECK_STATUS(HF_LOST, hf_release(first, NULL), NULL);
    CHECK_STATUS(HF_OK, hf_release(second, NULL), NULL);
    hf_close(client);
}

static void *acquire_slowly(void *client)
{
    hf_options options = HF_OPTIONS_INIT;
    return take_for(60000, client, &options);
}

/* What is said of it while the store's answer is on its way is not forgotten. */
TEST(a_recheck_of_a_lock_that_is_asked_for_is_made_when_it_is_held)
{
    pthread_t thread;
    hf_client *client = scripted_client(0);
    void *lock = NULL;
    const int asked = atomic_load(&script_attempt.calls);
    atomic_store(&script_attempt.delay_ns, 100 * HFI_MS);
    REQUIRE_INT(0, pthread_create(&thread, NULL, acquire_slowly, client));
    await_at_least(&script_attempt.calls, asked + 1);
    hfi_keeper_recheck(client, 1);
    pthread_join(thread, &lock);
    await_at_least(&script_renewed, 1);
    CHECK_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    hf_close(client);
}
