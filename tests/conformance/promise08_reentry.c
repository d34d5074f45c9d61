/* SPDX-License-Identifier: MIT
 *
 * Promise 8, re-entry: the same owner, be it a thread, a handle or a text, may take the lock again; the last release
 * frees it; a lost lock cannot be re-entered.
 */
#include "conformance.h"

#define DEPTH 5

/* Takes the lock DEPTH times and gives it back in the order of `order`: busy for a stranger until the last. */
static void nest(hf_client *client, const hf_options *options, const int *order)
{
    struct name name = unique_name("nested");
    hf_client *other = open_client();
    hf_lock *locks[DEPTH];
    for (int i = 0; i < DEPTH; i++)
        locks[i] = must_acquire(client, name.text, options);
    for (int i = 0; i < DEPTH; i++) {
        CHECK(i == 0 || locks[i] != locks[i - 1]);
        CHECK_INT(hf_token(locks[0]), hf_token(locks[i]));
    }
    for (int i = 0; i < DEPTH; i++) {
        check_busy(other, name.text);
        check_busy(client, name.text);
        must_release(locks[order[i]]);
    }
    check_free(other, name.text);
    hf_close(other);
}

static const int orders[][DEPTH] = { { 0, 1, 2, 3, 4 }, { 4, 3, 2, 1, 0 }, { 2, 0, 4, 1, 3 } };

PROMISE(p08_a_thread_re_enters_and_releases_in_any_order, 0)
{
    hf_client *client = open_client();
    for (int i = 0; i < 3; i++)
        nest(client, NULL, orders[i]);
    hf_close(client);
}

PROMISE(p08_a_text_re_enters_and_releases_in_any_order, 0)
{
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_TEXT;
    options.owner_text = "job 42";
    for (int i = 0; i < 3; i++)
        nest(client, &options, orders[i]);
    hf_close(client);
}

PROMISE(p08_a_handle_re_enters_and_releases_in_any_order, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    for (int order = 0; order < 3; order++) {
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *locks[DEPTH];
        options.owner = HF_OWNER_HANDLE;
        for (int i = 0; i < DEPTH; i++) {
            locks[i] = must_acquire(client, name.text, &options);
            /* Each handle is as good as the first. */
            options.owner_handle = locks[i];
            CHECK_INT(hf_token(locks[0]), hf_token(locks[i]));
        }
        for (int i = 0; i < DEPTH; i++) {
            check_busy(client, name.text);
            must_release(locks[orders[order][i]]);
        }
        check_free(client, name.text);
    }
    hf_close(client);
}

/* --- who is another --- */

static void check_strange(void *arg, uint32_t index)
{
    struct waiter *asked = arg;
    (void)index;
    asked->status = hf_try_acquire(&asked->lock, asked->client, asked->name, &asked->options, &asked->err);
}

/* Asks from another thread. */
static void check_busy_in_thread(hf_client *client, const char *name, const hf_options *options)
{
    struct waiter asked = { .client = client, .name = name, .options = *options };
    run_threads(1, check_strange, &asked);
    CHECK_STATUS(HF_BUSY, asked.status, &asked.err);
    CHECK(asked.lock == NULL);
}

PROMISE(p08_another_thread_does_not_re_enter, 0)
{
    struct name name = unique_name("x");
    const hf_options options = HF_OPTIONS_INIT;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, name.text, NULL);
    check_busy_in_thread(client, name.text, &options);
    must_release(lock);
    hf_close(client);
}

PROMISE(p08_another_client_does_not_re_enter, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options by_text = HF_OPTIONS_INIT;
    by_text.owner = HF_OWNER_TEXT;
    by_text.owner_text = "the same";
    hf_lock *lock = must_acquire(client, name.text, &by_text), *none = NULL;
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, other, name.text, &by_text, NULL), NULL);
    must_release(lock);
    lock = must_acquire(client, name.text, NULL);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, other, name.text, NULL, NULL), NULL);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

PROMISE(p08_another_kind_of_owner_does_not_re_enter, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options by_text = HF_OPTIONS_INIT, by_handle = HF_OPTIONS_INIT;
    hf_lock *none = NULL;
    by_text.owner = HF_OWNER_TEXT;
    by_text.owner_text = "one";
    by_handle.owner = HF_OWNER_HANDLE;
    hf_lock *lock = must_acquire(client, name.text, &by_text);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, client, name.text, NULL, NULL), NULL);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, client, name.text, &by_handle, NULL), NULL);
    by_text.owner_text = "one more";
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, client, name.text, &by_text, NULL), NULL);
    must_release(lock);
    /* A lock taken for nobody is re-entered by nobody, not even in the same thread. */
    lock = must_acquire(client, name.text, &by_handle);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, client, name.text, &by_handle, NULL), NULL);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, client, name.text, NULL, NULL), NULL);
    must_release(lock);
    hf_close(client);
}

/* --- threads --- */

static void release_in_thread(void *arg, uint32_t index)
{
    hf_lock **locks = arg;
    must_release(locks[index]);
}

PROMISE(p08_any_thread_may_release, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_lock *locks[DEPTH];
    for (int i = 0; i < DEPTH; i++)
        locks[i] = must_acquire(client, name.text, NULL);
    run_threads(DEPTH, release_in_thread, locks);
    check_free(client, name.text);
    hf_close(client);
}

struct meeting {
    struct name name;
    hf_client *client;
    hf_options options;
    struct gate inside;
    uint32_t members;
    _Atomic uint64_t token;
};

/* All must be inside at the same time before any leaves. */
static void meet(void *arg, uint32_t index)
{
    struct meeting *meeting = arg;
    (void)index;
    hf_lock *lock = must_acquire(meeting->client, meeting->name.text, &meeting->options);
    uint64_t none = 0;
    if (!atomic_compare_exchange_strong(&meeting->token, &none, hf_token(lock)))
        CHECK_INT(none, hf_token(lock));
    gate_pass(&meeting->inside);
    gate_await(&meeting->inside, meeting->members);
    must_release(lock);
}

PROMISE(p08_threads_of_one_text_enter_together, 0)
{
    for (int round = 0; round < 5; round++) {
        struct meeting meeting = { .name = unique_name("x"), .client = open_client(), .members = 8 };
        const hf_options options = HF_OPTIONS_INIT;
        meeting.options = options;
        meeting.options.owner = HF_OWNER_TEXT;
        meeting.options.owner_text = "all of us";
        run_threads(meeting.members, meet, &meeting);
        check_free(meeting.client, meeting.name.text);
        hf_close(meeting.client);
    }
}

PROMISE(p08_threads_of_one_text_wait_together, 0)
{
    struct meeting meeting = { .name = unique_name("x"), .client = open_client(), .members = 4 };
    hf_client *holder = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiters[4];
    options.owner = HF_OWNER_TEXT;
    options.owner_text = "all of us";
    hf_lock *lock = must_acquire(holder, meeting.name.text, NULL);
    for (int i = 0; i < 4; i++)
        waiter_start(&waiters[i], meeting.client, meeting.name.text, &options);
    await_waiters(holder, meeting.name.text, 1);
    must_release(lock);
    for (int i = 0; i < 4; i++) {
        waiter_join(&waiters[i], HF_OK);
        CHECK_INT(waiters[0].token, waiters[i].token);
    }
    for (int i = 0; i < 4; i++)
        must_release(waiters[i].lock);
    check_free(holder, meeting.name.text);
    hf_close(holder);
    hf_close(meeting.client);
}

/* --- loss --- */

PROMISE(p08_a_lost_lock_is_not_re_entered, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 150;
    options.renew = HF_RENEW_OFF;
    hf_lock *lost = must_acquire(client, name.text, &options);
    await_lost_fd(lost);
    hf_lock *again = must_acquire(client, name.text, NULL);
    CHECK(hf_token(again) > hf_token(lost));
    CHECK(hf_remaining_ms(again) > 0);
    CHECK(hf_remaining_ms(lost) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(lost, NULL), NULL);
    check_busy(other, name.text);
    must_release(again);
    check_free(other, name.text);
    hf_close(client);
    hf_close(other);
}

PROMISE(p08_a_lost_handle_opens_nothing, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *none = NULL;
    options.ttl_ms = 150;
    options.renew = HF_RENEW_OFF;
    options.owner = HF_OWNER_HANDLE;
    hf_lock *lost = must_acquire(client, name.text, &options);
    hf_lock *held = must_acquire(other, name.text, NULL);
    options.owner_handle = lost;
    CHECK(hf_try_acquire(&none, client, name.text, &options, NULL) != HF_OK);
    CHECK(none == NULL);
    CHECK_STATUS(HF_LOST, hf_release(lost, NULL), NULL);
    must_release(held);
    hf_close(client);
    hf_close(other);
}
