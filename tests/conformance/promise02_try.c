/* SPDX-License-Identifier: MIT
 *
 * Promise 2, try: an answer at once, held or busy, and by whom. Where a try would wait, these tests would never end:
 * the holder releases only after the answer.
 */
#include "conformance.h"

#include <string.h>

PROMISE(p02_a_free_lock_is_given, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, name.text, NULL, &err), &err);
    CHECK(hf_token(lock) > 0);
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    check_free(client, name.text);
    hf_close(client);
}

static void check_busy_says_who(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_BUSY, hf_try_acquire(&lock, client, name, NULL, &err), &err);
    CHECK(lock == NULL);
    CHECK_STATUS(HF_BUSY, err.status, NULL);
    CHECK(*err.message != '\0' && memchr(err.message, '\0', sizeof err.message) != NULL);
    CHECK(strchr(err.message, '\n') == NULL);
    /* Nobody has to want the words. */
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&lock, client, name, NULL, NULL), NULL);
}

PROMISE(p02_a_held_lock_is_busy_and_says_who, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    check_busy_says_who(other, name.text);
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    check_free(other, name.text);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p02_a_lock_of_another_process_is_busy, HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    check_busy_says_who(client, holder->name.text);
    holder_finish(holder, pid, HF_OK);
    check_free(client, holder->name.text);
    hf_close(client);
}

PROMISE(p02_a_try_leaves_no_place_in_the_queue, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    for (int i = 0; i < 20; i++) {
        hf_lock *lock = must_acquire(holder, name.text, NULL);
        check_busy(other, name.text);
        check_busy(other, name.text);
        must_release(lock);
        /* Were the tries still queued, one of them would be given the lock now. */
        check_free(holder, name.text);
    }
    hf_close(holder);
    hf_close(other);
}

PROMISE(p02_a_try_does_not_disturb_who_waits, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    struct waiter waiter;
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    waiter_start(&waiter, other, name.text, NULL);
    await_waiters(holder, name.text, 1);
    check_busy(other, name.text);
    CHECK_INT(0, gate_count(&waiter.ended));
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    check_busy(holder, name.text);
    must_release(waiter.lock);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p02_different_names_do_not_meet, 0)
{
    struct name one = unique_name("one"), two = unique_name("two");
    hf_client *first = open_client(), *second = open_client();
    hf_lock *a = must_acquire(first, one.text, NULL);
    hf_lock *b = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&b, second, two.text, NULL, &err), &err);
    must_release(a);
    must_release(b);
    hf_close(first);
    hf_close(second);
}
