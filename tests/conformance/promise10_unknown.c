/* SPDX-License-Identifier: MIT
 *
 * Promise 10, unknown is not no: whatever a caller is told is true. HF_OK: it holds the lock. Anything else: it does
 * not, and nothing of its attempt stays behind, also when the answer crossed with a cancel, a deadline or a release.
 * (Replies that are lost on the wire are tried with the scripted server, per engine.)
 */
#include "conformance.h"

#define ROUNDS 60

static void check_truth(hf_client *other, const char *name, hf_lock *lock, hf_status status)
{
    CHECK((lock != NULL) == (status == HF_OK));
    if (lock) {
        check_busy(other, name);
        must_release(lock);
    }
    check_becomes_free(other, name);
}

PROMISE_LIMIT(p10_a_cancel_that_crosses_with_a_grant, 0, 40)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client();
    for (int i = 0; i < ROUNDS; i++) {
        struct waiter waiter;
        hf_lock *lock = must_acquire(holder, name.text, NULL);
        waiter_start(&waiter, client, name.text, NULL);
        random_pause(300);
        must_release(lock);
        random_pause(60);
        /* A cancel before the wait has begun ends nothing, and then the grant comes. */
        CHECK_STATUS(HF_OK, hf_cancel(client, name.text), NULL);
        gate_await(&waiter.ended, 1);
        waiter_join(&waiter, waiter.status == HF_CANCELED ? HF_CANCELED : HF_OK);
        check_truth(holder, name.text, waiter.lock, waiter.status);
    }
    hf_close(holder);
    hf_close(client);
}

PROMISE_LIMIT(p10_a_deadline_that_crosses_with_a_grant, 0, 40)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    options.wait_ms = 2;
    for (int i = 0; i < ROUNDS; i++) {
        struct waiter waiter;
        hf_lock *lock = must_acquire(holder, name.text, NULL);
        waiter_start(&waiter, client, name.text, &options);
        random_pause(4000);
        must_release(lock);
        gate_await(&waiter.ended, 1);
        waiter_join(&waiter, waiter.status == HF_TIMEOUT ? HF_TIMEOUT : HF_OK);
        check_truth(holder, name.text, waiter.lock, waiter.status);
    }
    hf_close(holder);
    hf_close(client);
}

/* One exchange may take a millisecond: over a network some answers come too late, and the attempt must be undone. */
PROMISE_LIMIT(p10_a_client_in_a_hurry_is_told_the_truth, 0, 40)
{
    struct name name = unique_name("x");
    hf_client *patient = open_client(), *hasty = NULL;
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    hurry.timeout_ms = 1;
    for (int i = 0; i < ROUNDS; i++) {
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        options.ttl_ms = short_ttl_ms();
        options.wait_ms = 10;
        hf_status status = hasty ? HF_OK : hf_open(&hasty, store_url, &hurry, &err);
        if (status == HF_OK)
            status = hf_acquire(&lock, hasty, name.text, &options, &err);
        if (status != HF_OK && status != HF_TIMEOUT && status != HF_UNAVAILABLE)
            CHECK_STATUS(HF_UNKNOWN, status, &err);
        CHECK((lock != NULL) == (status == HF_OK));
        if (lock) {
            check_busy(patient, name.text);
            status = hf_release(lock, &err);
            /* Held until now; finished in the background if need be. */
            if (status != HF_OK && status != HF_UNAVAILABLE && status != HF_UNKNOWN)
                CHECK_STATUS(HF_LOST, status, &err);
        }
        check_becomes_free(patient, name.text);
    }
    hf_close(hasty);
    hf_close(patient);
}

PROMISE_LIMIT(p10_closing_a_client_while_it_is_granted, 0, 40)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client();
    for (int i = 0; i < ROUNDS / 3; i++) {
        struct waiter waiter;
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(holder, name.text, NULL);
        waiter_start(&waiter, client, name.text, NULL);
        await_waiters(holder, name.text, 1);
        must_release(lock);
        random_pause(100);
        hf_close(client);
        gate_await(&waiter.ended, 1);
        waiter_join(&waiter, waiter.status == HF_CANCELED ? HF_CANCELED : HF_OK);
        /* Either way the client has let go of it. */
        if (waiter.lock)
            CHECK_STATUS(HF_LOST, hf_release(waiter.lock, NULL), NULL);
        check_becomes_free(holder, name.text);
    }
    hf_close(holder);
}
