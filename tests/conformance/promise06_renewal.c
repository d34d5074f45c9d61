/* SPDX-License-Identifier: MIT
 *
 * Promise 6, renewal: a lock that is held stays held for as many times-to-live as it takes, unless it is a plain lease
 * or was given a longest time.
 */
#include "conformance.h"

#include <stdio.h>

#define LIVES 4

/* --- a machine, or a store, that stood still --- */

#define TRIES 5

/* A process that takes and releases another lock all the time, to see how long that takes at the most. A machine that
 * is so busy that a process or the store does not run for long loses short leases, rightly: such a try shows nothing.
 * No thread: the test forks, and a library that another thread is just starting up would stay half started there. */
struct pulse {
    struct gate begun, end;
    _Atomic int64_t longest_ns;
};

static void take_pulse(void *arg)
{
    struct pulse *pulse = arg;
    const struct name name = unique_name("pulse");
    hf_client *client = open_client();
    int64_t last_ns = test_now_ns(), longest_ns = 0;
    gate_pass(&pulse->begun);
    do {
        hf_lock *lock = NULL;
        if (hf_acquire(&lock, client, name.text, NULL, NULL) == HF_OK)
            hf_release(lock, NULL);
        const int64_t now_ns = test_now_ns();
        longest_ns = now_ns - last_ns > longest_ns ? now_ns - last_ns : longest_ns;
        last_ns = now_ns;
    } while (!gate_await_for(&pulse->end, 1, 5));
    atomic_store(&pulse->longest_ns, longest_ns);
    hf_close(client);
}

/* Runs one try with a pulse beside it. True if it, or the store, stood still for a third of the time-to-live. */
static bool stood_still_during(bool (*attempt)(unsigned try), unsigned try, bool *kept)
{
    struct pulse *pulse = shared_new(sizeof *pulse);
    const pid_t pid = helper_start(take_pulse, pulse);
    gate_await(&pulse->begun, 1);
    *kept = attempt(try);
    gate_pass(&pulse->end);
    helper_join(pid);
    const int64_t longest_ns = atomic_load(&pulse->longest_ns);
    test_note("the longest pause was %lld ms", (long long)(longest_ns / 1000000));
    return longest_ns > short_ttl_ms() * INT64_C(1000000) / 3;
}

/* Whether a lock is kept for four times its time-to-live. */
static bool is_kept(unsigned try)
{
    const struct name name = numbered_name("x", try);
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT, patience = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    hf_lock *next = NULL;
    options.ttl_ms = short_ttl_ms();
    record_loss(&options, &loss);
    patience.wait_ms = LIVES * options.ttl_ms;
    hf_lock *lock = must_acquire(holder, name.text, &options);
    const bool kept = hf_acquire(&next, other, name.text, &patience, NULL) == HF_TIMEOUT;
    CHECK(kept || gate_count(&loss.told) == 1); /* who has lost it knows */
    const bool held = hf_remaining_ms(lock) > 0;
    CHECK((hf_release(lock, NULL) == HF_OK) == held);
    hf_release(next, NULL);
    check_becomes_free(other, name.text);
    hf_close(holder);
    hf_close(other);
    return kept && held && gate_count(&loss.told) == 0;
}

static void check_is_kept(bool (*attempt)(unsigned try))
{
    bool kept = false, stood_still = true;
    for (unsigned i = 0; i < TRIES && !kept && stood_still; i++)
        stood_still = stood_still_during(attempt, i, &kept);
    CHECK(kept);
}

PROMISE_LIMIT(p06_a_renewed_lock_outlives_its_time, 0, 60)
{
    check_is_kept(is_kept);
}

/* Whether fifty locks of one client are kept for two times their time-to-live. */
static bool many_are_kept(unsigned try)
{
    enum { COUNT = 50 };
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT, patience = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    hf_lock *locks[COUNT], *next = NULL;
    options.ttl_ms = 2 * short_ttl_ms();
    record_loss(&options, &loss);
    for (unsigned i = 0; i < COUNT; i++)
        locks[i] = must_acquire(holder, numbered_name("many", try * COUNT + i).text, &options);
    patience.wait_ms = 2 * options.ttl_ms;
    const struct name first = numbered_name("many", try * COUNT);
    bool kept = hf_acquire(&next, other, first.text, &patience, NULL) == HF_TIMEOUT;
    hf_release(next, NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        hf_lock *taken = NULL;
        kept &= hf_try_acquire(&taken, other, numbered_name("many", try * COUNT + i).text, NULL, NULL) == HF_BUSY;
        hf_release(taken, NULL);
    }
    for (unsigned i = 0; i < COUNT; i++)
        kept &= hf_remaining_ms(locks[i]) > 0;
    CHECK(kept || gate_count(&loss.told) > 0); /* who has lost one knows */
    kept &= gate_count(&loss.told) == 0;
    for (unsigned i = 0; i < COUNT; i++)
        kept &= hf_release(locks[i], NULL) == HF_OK;
    hf_close(holder);
    hf_close(other);
    return kept;
}

PROMISE_LIMIT(p06_many_locks_are_renewed_together, 0, 60)
{
    check_is_kept(many_are_kept);
}

/* A column, a clock or a multiplication of 32 bits somewhere on the way would show. */
PROMISE(p06_the_longest_time_to_live_that_can_be_asked_for, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = UINT32_MAX;
    hf_lock *lock = must_acquire(client, name.text, &options);
    const int64_t before_ms = hf_remaining_ms(lock);
    CHECK(before_ms > 3000); /* all of it, or as long as a session may be, which the servers of tests keep short */
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
    CHECK(hf_remaining_ms(lock) > before_ms / 2);
    must_release(lock);
    check_becomes_free(client, name.text);
    hf_close(client);
}

/* Whether a lease lives as long as it is renewed by hand; and no longer. */
static bool lives_while_renewed_by_hand(unsigned try)
{
    const struct name name = numbered_name("x", try);
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT, patience = HF_OPTIONS_INIT;
    hf_lock *next = NULL;
    hf_error err = { 0 };
    bool kept = true;
    options.ttl_ms = 2 * short_ttl_ms();
    options.renew = HF_RENEW_OFF;
    patience.wait_ms = short_ttl_ms() / 2;
    hf_lock *lock = must_acquire(holder, name.text, &options);
    for (int i = 0; i < 2 * LIVES && kept; i++) {
        kept = hf_acquire(&next, other, name.text, &patience, NULL) == HF_TIMEOUT;
        kept = kept && hf_renew(lock, 0, &err) == HF_OK && hf_remaining_ms(lock) > 0;
        CHECK(hf_remaining_ms(lock) <= options.ttl_ms);
    }
    if (!next)
        next = must_acquire(other, name.text, NULL);
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    must_release(next);
    hf_close(holder);
    hf_close(other);
    return kept;
}

PROMISE_LIMIT(p06_a_lease_lives_as_long_as_it_is_renewed_by_hand, 0, 60)
{
    check_is_kept(lives_while_renewed_by_hand);
}

PROMISE(p06_renewing_by_hand_can_lengthen_a_lease, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    options.ttl_ms = short_ttl_ms();
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = must_acquire(holder, name.text, &options);
    REQUIRE_STATUS(HF_OK, hf_renew(lock, endless_ttl_ms(), &err), &err);
    /* A store whose sessions have a time-out gives it in parts: what is certain now may be less. */
    CHECK(hf_remaining_ms(lock) > 0);
    must_wait_in_vain(other, name.text, 2 * options.ttl_ms);
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    check_becomes_free(other, name.text);
    hf_close(holder);
    hf_close(other);
}

/* Whether a lock that is renewed is kept for its longest time, which is two times-to-live. It ends then in any case. */
static bool is_kept_for_its_longest_time(unsigned try)
{
    const struct name name = numbered_name("x", try);
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    options.ttl_ms = short_ttl_ms();
    options.max_hold_ms = 2 * short_ttl_ms();
    record_loss(&options, &loss);
    int64_t asked_ns = test_now_ns();
    hf_lock *lock = must_acquire(holder, name.text, &options);
    CHECK(hf_remaining_ms(lock) <= options.max_hold_ms);
    hf_lock *next = must_acquire(other, name.text, NULL);
    const bool kept = test_now_ns() - asked_ns >= options.max_hold_ms * 900000LL; /* less what drift takes off */
    CHECK_INT(1, gate_count(&loss.told));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(next);
    hf_close(holder);
    hf_close(other);
    return kept;
}

PROMISE_LIMIT(p06_a_longest_time_ends_a_lock_that_is_renewed, 0, 60)
{
    check_is_kept(is_kept_for_its_longest_time);
}

PROMISE(p06_renewal_by_hand_does_not_pass_the_longest_time, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    options.max_hold_ms = short_ttl_ms();
    hf_lock *lock = must_acquire(holder, name.text, &options);
    REQUIRE_STATUS(HF_OK, hf_renew(lock, endless_ttl_ms(), &err), &err);
    CHECK(hf_remaining_ms(lock) <= options.max_hold_ms);
    await_lost_fd(lock);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(holder);
}

/* Whether a holder in another process keeps its lock for three times its time-to-live. */
static bool another_process_keeps_it(unsigned try)
{
    char text[16];
    snprintf(text, sizeof text, "x%u", try);
    struct holder *holder = holder_new(text);
    hf_options patience = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    holder->options.ttl_ms = short_ttl_ms();
    patience.wait_ms = 3 * short_ttl_ms();
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    const bool kept = hf_acquire(&lock, client, holder->name.text, &patience, NULL) == HF_TIMEOUT;
    hf_release(lock, NULL);
    gate_pass(&holder->go);
    helper_join(pid);
    hf_close(client);
    const bool told = gate_count(&holder->told) > 0;
    CHECK_STATUS(told ? HF_LOST : HF_OK, (hf_status)atomic_load(&holder->released), NULL);
    CHECK(kept || told); /* who has lost it knows */
    return kept && !told;
}

PROMISE_LIMIT(p06_a_process_renews_while_it_does_something_else, HF_CAP_PROCESSES, 60)
{
    check_is_kept(another_process_keeps_it);
}
