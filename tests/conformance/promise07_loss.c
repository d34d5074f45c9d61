/* SPDX-License-Identifier: MIT
 *
 * Promise 7, loss is known in time: callback, descriptor, remaining time and status all say so, and the holder knows
 * before anybody else is granted the lock. Moments of different processes are compared on CLOCK_BOOTTIME.
 */
#include "conformance.h"

#include <poll.h>

/* Two ways in which a lock ends before its release. */
static void lease_without_renewal(hf_options *options)
{
    options->ttl_ms = short_ttl_ms();
    options->renew = HF_RENEW_OFF;
}

static void longest_time(hf_options *options)
{
    options->ttl_ms = endless_ttl_ms();
    options->max_hold_ms = short_ttl_ms();
}

static void check_loss_is_told(void (*how)(hf_options *options))
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    hf_error err = { 0 };
    how(&options);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, name.text, &options);
    struct pollfd one = { .fd = hf_lost_fd(lock), .events = POLLIN };
    REQUIRE(one.fd >= 0);
    CHECK_INT(one.fd, hf_lost_fd(lock));
    int readable = poll(&one, 1, 0);
    /* Not before the end; looked at in this order because the end may come in between. */
    if (hf_remaining_ms(lock) > 0) {
        CHECK_INT(0, readable);
        CHECK_INT(0, gate_count(&loss.told));
    }
    await_lost_fd(lock);
    CHECK(hf_remaining_ms(lock) <= 0);
    gate_await(&loss.told, 1);

    check_becomes_free(other, name.text);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK(*err.message != '\0');
    CHECK_INT(1, gate_count(&loss.told));
    hf_close(client);
    hf_close(other);
    CHECK_INT(1, gate_count(&loss.told));
}

PROMISE(p07_the_end_of_a_lease_is_told_in_every_way, 0)
{
    check_loss_is_told(lease_without_renewal);
}

PROMISE(p07_the_end_of_the_longest_time_is_told_in_every_way, 0)
{
    check_loss_is_told(longest_time);
}

PROMISE(p07_a_descriptor_asked_for_after_the_loss_is_readable, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    lease_without_renewal(&options);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, name.text, &options);
    gate_await(&loss.told, 1);
    await_lost_fd(lock);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

static void release_when_lost(hf_lock *lock, const char *why, void *arg)
{
    struct gate *released = arg;
    (void)why;
    CHECK(hf_token(lock) > 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_pass(released);
}

PROMISE(p07_the_callback_may_release_the_lock, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct gate released = { 0 };
    lease_without_renewal(&options);
    options.on_lost = release_when_lost;
    options.arg = &released;
    must_acquire(client, name.text, &options);
    gate_await(&released, 1);
    check_becomes_free(client, name.text);
    hf_close(client);
    CHECK_INT(1, gate_count(&released));
}

PROMISE(p07_every_handle_of_a_lost_lock_is_told_once, 0)
{
    enum { COUNT = 3 };
    struct name name = unique_name("x");
    hf_client *client = open_client();
    struct loss losses[COUNT] = { 0 };
    hf_lock *locks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        hf_options options = HF_OPTIONS_INIT;
        lease_without_renewal(&options);
        record_loss(&options, &losses[i]);
        locks[i] = must_acquire(client, name.text, &options);
    }
    for (int i = 0; i < COUNT; i++)
        gate_await(&losses[i].told, 1);
    for (int i = 0; i < COUNT; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    hf_close(client);
    for (int i = 0; i < COUNT; i++)
        CHECK_INT(1, gate_count(&losses[i].told));
}

PROMISE(p07_a_released_lock_is_not_told_of_a_loss, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    lease_without_renewal(&options);
    record_loss(&options, &loss);
    must_release(must_acquire(client, name.text, &options));
    CHECK(!gate_await_for(&loss.told, 1, 2 * options.ttl_ms));
    hf_close(client);
    CHECK_INT(0, gate_count(&loss.told));
}

/* --- before anybody else has it --- */

static void check_known_before_next_grant_to_threads(void (*how)(hf_options *options))
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    for (int i = 0; i < 3; i++) {
        hf_options options = HF_OPTIONS_INIT;
        how(&options);
        hf_lock *lock = must_acquire(client, name.text, &options);
        hf_lock *next = must_acquire(other, name.text, NULL);
        CHECK(hf_remaining_ms(lock) <= 0);
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        must_release(next);
    }
    hf_close(client);
    hf_close(other);
}

PROMISE(p07_the_end_of_a_lease_is_known_before_the_next_grant, 0)
{
    check_known_before_next_grant_to_threads(lease_without_renewal);
}

PROMISE(p07_the_end_of_the_longest_time_is_known_before_the_next_grant, 0)
{
    check_known_before_next_grant_to_threads(longest_time);
}

static void check_known_before_next_grant_to_processes(void (*how)(hf_options *options))
{
    struct holder *holder = holder_new("x");
    how(&holder->options);
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, holder->name.text, NULL);
    int64_t granted_ns = test_now_ns();
    gate_await(&holder->told, 1);
    holder_finish(holder, pid, HF_LOST);
    /* The last moment at which the first one could still believe that it holds. */
    CHECK(atomic_load(&holder->believed_ns) > 0);
    CHECK(atomic_load(&holder->believed_ns) <= granted_ns);
    /* Ended by the library itself, which tells first and then lets go. (A store that counts for itself does not wait
     * for the callback's thread to be scheduled: there the remaining time, above, is what a careful holder looks
     * at.) */
    if (holder->options.max_hold_ms || !store_can(HF_CAP_EXPIRY))
        CHECK(atomic_load(&holder->told_ns) <= granted_ns);
    CHECK_INT(1, gate_count(&holder->told));
    must_release(lock);
    hf_close(client);
}

PROMISE(p07_another_process_is_granted_a_lease_only_after_its_end_is_known, HF_CAP_PROCESSES)
{
    check_known_before_next_grant_to_processes(lease_without_renewal);
}

PROMISE(p07_another_process_is_granted_it_only_after_the_longest_time_is_known_over, HF_CAP_PROCESSES)
{
    check_known_before_next_grant_to_processes(longest_time);
}
