/* SPDX-License-Identifier: MIT
 *
 * test_calls.c: the corners of the calls that no engine has a part in: options of other sizes, callbacks that release,
 * owners that meet, closing.
 */
#include "core.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hf_client *mem_client(void)
{
    hf_client *client = NULL;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", NULL, &err), &err);
    return client;
}

TEST(options_of_an_older_and_of_a_newer_program)
{
    struct {
        hf_options known;
        char more[16];
    } newer = { .known = HF_OPTIONS_INIT };
    hf_client *client = mem_client();
    hf_lock *lock = NULL;
    hf_error err;
    newer.known.size = sizeof newer;
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, "x", &newer.known, &err), &err);
    hf_release(lock, NULL);
    newer.more[3] = 1; /* asks for what this library does not know */
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&lock, client, "x", &newer.known, &err), &err);
    CHECK(lock == NULL);
    hf_options older = HF_OPTIONS_INIT;
    older.size = offsetof(hf_options, owner);
    older.owner = (hf_owner_kind)77; /* beyond what the older program has: not read */
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, "x", &older, &err), &err);
    hf_release(lock, NULL);
    older.size = 0;
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&lock, client, "x", &older, &err), &err);
    hf_client_options client_options = { .size = 1 };
    hf_client *none;
    CHECK_STATUS(HF_INVALID, hf_open(&none, "mem:", &client_options, &err), &err);
    hf_close(client);
}

TEST(arguments_that_make_no_sense)
{
    hf_client *client = mem_client();
    hf_client *other = mem_client();
    hf_lock *lock = NULL, *none = NULL;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", NULL, &err), &err);
    const hf_options base = HF_OPTIONS_INIT;
    hf_options bad[8] = { base, base, base, base, base, base, base, base };
    char long_note[140];
    memset(long_note, 'n', sizeof long_note);
    long_note[139] = 0;
    bad[0].ttl_ms = 99;
    bad[1].renew = (hf_renew_mode)5;
    bad[2].owner = (hf_owner_kind)5;
    bad[3].owner = HF_OWNER_TEXT;
    bad[4].note = "two\nlines";
    bad[5].note = long_note;
    bad[6].owner = HF_OWNER_TEXT;
    bad[6].owner_text = "\x01";
    bad[7].owner = HF_OWNER_HANDLE; /* a handle of another name */
    bad[7].owner_handle = lock;
    for (size_t i = 0; i < 8; i++) {
        CHECK_STATUS(HF_INVALID, hf_try_acquire(&none, client, "y", &bad[i], &err), &err);
        CHECK(none == NULL && err.message[0]);
    }
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&none, other, "x", &bad[7], &err), &err); /* of another client */
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&none, client, NULL, NULL, &err), &err);
    CHECK_STATUS(HF_INVALID, hf_cancel(client, ""), NULL);
    CHECK_STATUS(HF_OK, hf_release(NULL, &err), &err);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    hf_close(other);
    hf_close(client);
}

static hf_lock *inner;

static void release_inside(hf_lock *lock, const char *why, void *arg)
{
    (void)why;
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_pass(arg);
}

TEST(a_callback_may_release_its_lock)
{
    struct gate told = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = mem_client();
    hf_error err;
    options.renew = HF_RENEW_OFF;
    options.ttl_ms = 100;
    options.on_lost = release_inside;
    options.arg = &told;
    hf_lock *outer;
    REQUIRE_STATUS(HF_OK, hf_acquire(&outer, client, "x", &options, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_acquire(&inner, client, "x", &options, &err), &err);
    gate_await(&told, 2); /* one for each handle */
    REQUIRE_STATUS(HF_OK, hf_acquire(&outer, client, "x", NULL, &err), &err);
    CHECK_STATUS(HF_OK, hf_release(outer, NULL), NULL);
    hf_close(client);
}

static void release_with_mutex(hf_lock *lock, const char *why, void *arg)
{
    static pthread_mutex_t mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    (void)why;
    CHECK_INT(0, pthread_mutex_lock(&mutex));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    pthread_mutex_unlock(&mutex);
    gate_pass(arg);
}

TEST(no_callback_runs_inside_of_another_one)
{
    struct gate told = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = mem_client();
    hf_lock *lock;
    options.renew = HF_RENEW_OFF;
    options.ttl_ms = 100;
    options.on_lost = release_with_mutex;
    options.arg = &told;
    for (int i = 0; i < 3; i++)
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, NULL), NULL);
    gate_await(&told, 3);
    hf_close(client);
}

struct slow_callback {
    struct gate entered, go_on;
    atomic_bool returned;
};

static void slow_callback(hf_lock *lock, const char *why, void *arg)
{
    struct slow_callback *slow = arg;
    (void)lock;
    (void)why;
    gate_pass(&slow->entered);
    gate_await(&slow->go_on, 1);
    atomic_store(&slow->returned, true);
}

static void *let_go_on(void *arg)
{
    struct slow_callback *slow = arg;
    poll(NULL, 0, 50); /* gives hf_release() time to do it wrong */
    gate_pass(&slow->go_on);
    return NULL;
}

TEST(release_waits_for_a_callback_on_another_thread)
{
    struct slow_callback slow = { .returned = false };
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = mem_client();
    hf_lock *lock;
    hf_error err;
    pthread_t helper;
    options.renew = HF_RENEW_OFF;
    options.ttl_ms = 100;
    options.on_lost = slow_callback;
    options.arg = &slow;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
    gate_await(&slow.entered, 1);
    pthread_create(&helper, NULL, let_go_on, &slow);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK(atomic_load(&slow.returned));
    pthread_join(helper, NULL);
    hf_close(client);
}

struct follower {
    hf_client *client;
    hf_options options;
    hf_status status;
    uint64_t token;
    hf_lock *lock;
    struct gate *started;
};

static void *acquire_in_thread(void *arg)
{
    struct follower *follower = arg;
    hf_error err;
    gate_pass(follower->started);
    follower->status = hf_acquire(&follower->lock, follower->client, "x", &follower->options, &err);
    follower->token = follower->lock ? hf_token(follower->lock) : 0;
    return NULL;
}

/* Several threads of one owner ask at once: one asks the store, the others share what it gets. */
TEST(threads_of_one_owner_share_one_grant)
{
    enum { N = 6 };
    struct gate started = { 0 };
    struct follower followers[N];
    pthread_t threads[N];
    hf_client *client = scripted_client(0);
    atomic_store(&script_attempt.delay_ns, 100 * HFI_MS);
    for (int i = 0; i < N; i++) {
        followers[i] = (struct follower){ .client = client, .options = HF_OPTIONS_INIT, .started = &started };
        followers[i].options.owner = HF_OWNER_TEXT;
        followers[i].options.owner_text = "the team";
        pthread_create(&threads[i], NULL, acquire_in_thread, &followers[i]);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(HF_OK, followers[i].status);
        CHECK_INT(followers[0].token, followers[i].token);
    }
    CHECK_INT(1, script_held);
    CHECK_INT(1, script_attempt.calls);
    for (int i = 0; i < N; i++) {
        CHECK_INT(1, script_held);
        CHECK_STATUS(HF_OK, hf_release(followers[i].lock, NULL), NULL);
    }
    CHECK_INT(0, script_held);
    hf_close(client);
}

TEST(a_follower_takes_over_when_the_first_gives_up)
{
    struct gate started = { 0 };
    struct follower first = { .options = HF_OPTIONS_INIT, .started = &started };
    struct follower second = { .options = HF_OPTIONS_INIT, .started = &started };
    pthread_t threads[2];
    hf_client *client = scripted_client(0);
    first.client = second.client = client;
    first.options.owner = second.options.owner = HF_OWNER_TEXT;
    first.options.owner_text = second.options.owner_text = "the team";
    first.options.wait_ms = 150;
    script_set(&script_attempt, SCRIPT_FOREVER, HF_BUSY, false);
    pthread_create(&threads[0], NULL, acquire_in_thread, &first);
    while (script_attempt.calls == 0)
        poll(NULL, 0, 1);
    pthread_create(&threads[1], NULL, acquire_in_thread, &second);
    pthread_join(threads[0], NULL);
    CHECK_INT(HF_TIMEOUT, first.status);
    script_set(&script_attempt, 0, HF_OK, false);
    pthread_join(threads[1], NULL);
    CHECK_INT(HF_OK, second.status);
    CHECK_STATUS(HF_OK, hf_release(second.lock, NULL), NULL);
    hf_close(client);
}

TEST(a_try_does_not_follow)
{
    struct gate started = { 0 };
    struct follower first = { .options = HF_OPTIONS_INIT, .started = &started };
    pthread_t thread;
    hf_error err;
    hf_lock *lock;
    hf_client *client = scripted_client(0);
    first.client = client;
    first.options.owner = HF_OWNER_TEXT;
    first.options.owner_text = "the team";
    script_set(&script_attempt, SCRIPT_FOREVER, HF_BUSY, false);
    pthread_create(&thread, NULL, acquire_in_thread, &first);
    while (script_attempt.calls == 0)
        poll(NULL, 0, 1);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&lock, client, "x", &first.options, &err), &err);
    /* hf_cancel() ends waits, not calls that have yet to begin waiting: repeat it until the thread is back. */
    while (pthread_tryjoin_np(thread, NULL) != 0) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        hf_cancel(client, "x");
        poll(NULL, 0, 1);
    }
    CHECK_INT(HF_CANCELED, first.status);
    hf_close(client);
}

TEST(locks_outlive_their_client_as_handles)
{
    hf_client *client = mem_client();
    hf_lock *lock;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", NULL, &err), &err);
    const uint64_t token = hf_token(lock);
    const int fd = hf_lost_fd(lock);
    hf_close(client);
    struct pollfd readable = { .fd = fd, .events = POLLIN };
    CHECK_INT(1, poll(&readable, 1, 0));
    CHECK_INT(token, hf_token(lock));
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
}

static void *release_in_thread(void *arg)
{
    struct follower *follower = arg;
    gate_pass(follower->started);
    follower->status = hf_release(follower->lock, NULL);
    return NULL;
}

/* Locks outlive their client as handles, so a release may come at any moment of hf_close(). */
static void close_beside_release(const char *store)
{
    for (int round = 0; round < 200; round++) {
        struct gate started = { 0 };
        struct follower follower = { .options = HF_OPTIONS_INIT, .started = &started };
        pthread_t thread;
        hf_error err;
        REQUIRE_STATUS(HF_OK, hf_open(&follower.client, store, NULL, &err), &err);
        REQUIRE_STATUS(HF_OK, hf_acquire(&follower.lock, follower.client, "x", NULL, &err), &err);
        pthread_create(&thread, NULL, release_in_thread, &follower);
        if (round % 2)
            gate_await(&started, 1);
        hf_close(follower.client);
        pthread_join(thread, NULL);
        CHECK(follower.status == HF_OK || follower.status == HF_LOST);
    }
}

TEST_LIMIT(closing_beside_a_release, 60)
{
    char store[600];
    const char *base = getenv("TEST_DIRECTORY");
    snprintf(store, sizeof store, "file://%s/closing", base ? base : "/tmp");
    close_beside_release("mem:");
    close_beside_release(store);
}

/* Answers that come in another order than the questions went out would leave a deadline that the store does not
 * keep. */
TEST(two_renewals_of_a_lock_never_overlap)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock;
    hf_error err;
    options.ttl_ms = 300;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
    atomic_store(&script_renew.delay_ns, 20 * HFI_MS);
    while (script_renew.calls < 40) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        CHECK_STATUS(HF_OK, hf_renew(lock, 300, &err), &err);
        poll(NULL, 0, 90); /* about when the keeper renews */
    }
    CHECK_INT(0, script_renew_overlaps);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    hf_close(client);
}

struct again {
    hf_client *client;
    hf_lock *lock;
    hf_status status;
    struct gate done;
};

static void take_anew(hf_lock *lock, const char *why, void *arg)
{
    struct again *again = arg;
    hf_options options = HF_OPTIONS_INIT;
    (void)lock;
    (void)why;
    options.wait_ms = 5000;
    options.owner = HF_OWNER_HANDLE;
    again->status = hf_acquire(&again->lock, again->client, "x", &options, NULL);
    gate_pass(&again->done);
}

TEST(a_callback_may_take_the_lock_anew)
{
    struct again again = { .client = mem_client() };
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock;
    hf_error err;
    options.max_hold_ms = 100;
    options.on_lost = take_anew;
    options.arg = &again;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, again.client, "x", &options, &err), &err);
    const uint64_t token = hf_token(lock);
    gate_await(&again.done, 1);
    CHECK_INT(HF_OK, again.status);
    REQUIRE(again.lock != NULL);
    CHECK(hf_token(again.lock) > token);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_STATUS(HF_OK, hf_release(again.lock, &err), &err);
    hf_close(again.client);
}

static void count_call(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)why;
    gate_pass(arg);
}

/* Whoever notices the loss first, the keeper or the release itself: one call for each handle, and none afterwards. */
TEST(a_loss_is_told_once_whoever_notices_it)
{
    hf_client *client = mem_client();
    for (int round = 0; round < 20; round++) {
        struct gate told = { 0 };
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock;
        hf_error err;
        options.renew = HF_RENEW_OFF;
        options.ttl_ms = 100;
        options.on_lost = count_call;
        options.arg = &told;
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
        while (hf_remaining_ms(lock) > 0)
            ;
        CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
        CHECK_INT(1, gate_count(&told));
    }
    hf_close(client);
}

TEST(a_loss_that_only_the_release_finds_is_called_back)
{
    struct gate told = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock;
    hf_error err;
    options.on_lost = count_call;
    options.arg = &told;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
    script_set(&script_release, 1, HF_LOST, false);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_INT(1, gate_count(&told));
    CHECK_STR("so says the script", err.message);
    hf_close(client);
}

TEST(an_error_is_written_only_for_a_failure)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client = scripted_client(0);
    hf_lock *lock;
    hf_error err = { .message = "untouched" };
    script_set(&script_attempt, 2, HF_UNAVAILABLE, false);
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK_STR("untouched", err.message);
    hf_release(lock, &err);
    CHECK_STR("untouched", err.message);
    hf_close(client);
}

static atomic_bool enough;

static void *recheck_all_the_time(void *client)
{
    while (!atomic_load(&enough))
        hfi_keeper_recheck(client, 0);
    return NULL;
}

/* What is only asked for has no lease that a recheck may look at; a build that watches threads sees it. */
TEST(a_recheck_beside_an_acquire)
{
    hf_client *client = scripted_client(0);
    hf_error err = { 0 };
    pthread_t thread;
    REQUIRE_INT(0, pthread_create(&thread, NULL, recheck_all_the_time, client));
    for (int i = 0; i < 300; i++) {
        hf_lock *lock;
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", NULL, &err), &err);
        CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    hf_close(client);
}
