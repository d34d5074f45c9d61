/* SPDX-License-Identifier: MIT
 *
 * Promise 5, expiry: a holder that dies at any instruction leaves a lock that ends by itself. Where the lock is bound
 * to the process it ends at once, and a holder that is only paused keeps it.
 */
#include "conformance.h"

PROMISE(p05_the_lock_of_a_killed_holder_ends, HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    holder->options.ttl_ms = ttl_ms_of_the_doomed();
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    check_busy(client, holder->name.text);
    helper_kill(pid);
    hf_lock *lock = must_acquire(client, holder->name.text, NULL);
    CHECK(hf_token(lock) > atomic_load(&holder->token));
    must_release(lock);
    hf_close(client);
}

struct reckless {
    struct name name;
    struct gate started;
    _Atomic uint64_t largest_token;
};

static void acquire_and_release_until_killed(void *arg)
{
    struct reckless *it = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms_of_the_doomed();
    hf_client *client = open_client();
    gate_pass(&it->started);
    for (;;) {
        hf_lock *lock = must_acquire(client, it->name.text, &options);
        atomic_store(&it->largest_token, hf_token(lock));
        must_release(lock);
    }
}

PROMISE_LIMIT(p05_death_at_any_instruction_leaves_nothing_locked, HF_CAP_PROCESSES, 40)
{
    struct reckless *it = shared_new(sizeof *it);
    it->name = unique_name("x");
    uint32_t rounds = store_can(HF_CAP_BOUND) ? 40 : 6;
    hf_client *client = open_client();
    for (uint32_t i = 1; i <= rounds; i++) {
        pid_t pid = helper_start(acquire_and_release_until_killed, it);
        gate_await(&it->started, i);
        random_pause(5000);
        helper_kill(pid);
        hf_lock *lock = must_acquire(client, it->name.text, NULL);
        CHECK(hf_token(lock) > atomic_load(&it->largest_token));
        must_release(lock);
    }
    hf_close(client);
}

static void open_and_acquire_once(void *arg)
{
    struct reckless *it = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms_of_the_doomed();
    gate_pass(&it->started);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, it->name.text, &options);
    (void)lock;
    /* Stays until it is killed. */
    gate_await(&it->started, UINT32_MAX);
}

PROMISE_LIMIT(p05_death_while_opening_leaves_nothing_locked, HF_CAP_PROCESSES, 40)
{
    struct reckless *it = shared_new(sizeof *it);
    it->name = unique_name("x");
    uint32_t rounds = store_can(HF_CAP_BOUND) ? 30 : 5;
    hf_client *client = open_client();
    for (uint32_t i = 1; i <= rounds; i++) {
        pid_t pid = helper_start(open_and_acquire_once, it);
        gate_await(&it->started, i);
        random_pause(3000);
        helper_kill(pid);
        check_becomes_free(client, it->name.text);
    }
    hf_close(client);
}

PROMISE(p05_a_lease_ends_and_the_next_one_is_served, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = short_ttl_ms();
    options.renew = HF_RENEW_OFF;
    int64_t asked_ns = test_now_ns();
    hf_lock *lock = must_acquire(holder, name.text, &options);
    CHECK(hf_remaining_ms(lock) <= options.ttl_ms);
    hf_lock *next = must_acquire(other, name.text, NULL);
    /* A lease is never cut short: what is taken off for drift is far less than half. */
    CHECK(test_now_ns() - asked_ns >= options.ttl_ms * 500000LL);
    CHECK(hf_token(next) > hf_token(lock));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(next);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p05_a_paused_holder_is_overtaken_and_fenced, HF_CAP_EXPIRY | HF_CAP_PROCESSES)
{
    struct fenced_register place = { 0 };
    struct holder *holder = holder_new("x");
    holder->options.ttl_ms = short_ttl_ms();
    pid_t pid = holder_start(holder);
    CHECK(fenced_write(&place, atomic_load(&holder->token)));
    helper_stop(pid);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, holder->name.text, NULL);
    CHECK(fenced_write(&place, hf_token(lock)));
    /* It finds out as soon as it wakes, and where it writes without looking, its token is refused. */
    gate_pass(&holder->go);
    helper_continue(pid);
    helper_join(pid);
    CHECK(atomic_load(&holder->remaining_ms) <= 0);
    CHECK_STATUS(HF_LOST, (hf_status)atomic_load(&holder->released), NULL);
    CHECK(!fenced_write(&place, atomic_load(&holder->token)));
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    hf_close(client);
}

PROMISE_WITHOUT(p05_a_paused_holder_keeps_what_is_bound_to_it, HF_CAP_BOUND | HF_CAP_PROCESSES, HF_CAP_EXPIRY)
{
    struct holder *holder = holder_new("x");
    holder->options.ttl_ms = 100;
    pid_t pid = holder_start(holder);
    helper_stop(pid);
    hf_client *client = open_client();
    must_wait_in_vain(client, holder->name.text, 500);
    helper_continue(pid);
    holder_finish(holder, pid, HF_OK);
    CHECK(atomic_load(&holder->remaining_ms) > 0);
    CHECK_INT(0, gate_count(&holder->told));
    check_becomes_free(client, holder->name.text);
    hf_close(client);
}

/* A waiter that was paused may be served while it sleeps, and must not believe it too late. */
PROMISE(p05_a_paused_waiter_does_not_believe_an_old_grant, HF_CAP_EXPIRY | HF_CAP_PROCESSES)
{
    struct holder *sleeper = holder_new("x");
    sleeper->options.ttl_ms = short_ttl_ms();
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, sleeper->name.text, NULL);
    pid_t pid = holder_launch(sleeper);
    await_waiters(client, sleeper->name.text, 1);
    helper_stop(pid);
    must_release(lock);
    /* Whether it was given to the sleeper or not: it comes free without it. */
    lock = must_acquire(client, sleeper->name.text, NULL);
    helper_continue(pid);
    CHECK(!gate_await_for(&sleeper->held, 1, test_ms(200)));
    CHECK(hf_remaining_ms(lock) > 0);
    uint64_t token = hf_token(lock);
    must_release(lock);
    gate_await(&sleeper->held, 1);
    CHECK(atomic_load(&sleeper->token) > token);
    holder_finish(sleeper, pid, HF_OK);
    hf_close(client);
}
