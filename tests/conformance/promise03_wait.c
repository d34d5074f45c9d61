/* SPDX-License-Identifier: MIT
 *
 * Promise 3, waiting: a bounded wait ends at its deadline and not before, a wait for ever when the lock comes free, and
 * either when it is cancelled; in order of arrival where the store says so.
 */
#include "conformance.h"

PROMISE(p03_a_bounded_wait_ends_at_its_deadline_not_before, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    for (uint32_t wait_ms = 1; wait_ms <= 400; wait_ms += 133)
        must_wait_in_vain(other, name.text, wait_ms);
    must_release(lock);
    check_becomes_free(other, name.text);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p03_a_bounded_wait_is_served_before_its_deadline, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiter;
    options.wait_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    waiter_start(&waiter, other, name.text, &options);
    await_waiters(holder, name.text, 1);
    CHECK_INT(0, gate_count(&waiter.ended));
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p03_a_wait_for_ever_ends_when_the_holder_releases, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client_with_handoff(-1), *other = open_client();
    struct waiter own, foreign;
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    uint64_t token = hf_token(lock);
    waiter_start(&own, holder, name.text, NULL);
    waiter_start(&foreign, other, name.text, NULL);
    await_waiters(holder, name.text, 2);
    CHECK_INT(0, gate_count(&own.ended) + gate_count(&foreign.ended));
    must_release(lock);
    /* Whoever was served first must release before the other can be. */
    struct waiter *first = &own, *second = &foreign;
    while (!gate_await_for(&own.ended, 1, 5) && !gate_await_for(&foreign.ended, 1, 5))
        REQUIRE(test_now_ns() < test_deadline_ns());
    if (gate_count(&own.ended) == 0) {
        first = &foreign;
        second = &own;
    }
    waiter_join(first, HF_OK);
    CHECK_INT(0, gate_count(&second->ended));
    CHECK(first->token > token);
    must_release(first->lock);
    waiter_join(second, HF_OK);
    CHECK(second->token > first->token);
    must_release(second->lock);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p03_a_wait_ends_when_a_holder_in_another_process_releases, HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    struct waiter waiter;
    waiter_start(&waiter, client, holder->name.text, NULL);
    await_waiters(client, holder->name.text, 1);
    CHECK_INT(0, gate_count(&waiter.ended));
    holder_finish(holder, pid, HF_OK);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > atomic_load(&holder->token));
    must_release(waiter.lock);
    hf_close(client);
}

/* With HF_CAP_BOUND before the time-to-live, which is longer than this test; otherwise after it, which is short. */
PROMISE(p03_a_wait_for_ever_ends_when_the_holder_is_killed, HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    holder->options.ttl_ms = ttl_ms_of_the_doomed();
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    struct waiter waiter;
    waiter_start(&waiter, client, holder->name.text, NULL);
    await_waiters(client, holder->name.text, 1);
    helper_kill(pid);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > atomic_load(&holder->token));
    must_release(waiter.lock);
    hf_close(client);
}

/* --- cancel --- */

PROMISE(p03_cancel_ends_the_waits_for_that_name_and_no_other, 0)
{
    struct name name = unique_name("x"), other_name = unique_name("y");
    hf_client *holder = open_client(), *client = open_client_with_handoff(-1), *bystander = open_client();
    hf_lock *x = must_acquire(holder, name.text, NULL), *y = must_acquire(holder, other_name.text, NULL);
    struct waiter first, second, elsewhere, stranger;
    waiter_start(&first, client, name.text, NULL);
    waiter_start(&second, client, name.text, NULL);
    waiter_start(&elsewhere, client, other_name.text, NULL);
    waiter_start(&stranger, bystander, name.text, NULL);
    await_waiters(holder, name.text, 3);
    await_waiters(holder, other_name.text, 1);

    CHECK_STATUS(HF_OK, hf_cancel(client, name.text), NULL);
    waiter_join(&first, HF_CANCELED);
    waiter_join(&second, HF_CANCELED);
    CHECK(*first.err.message != '\0');
    CHECK(!gate_await_for(&elsewhere.ended, 1, 20));
    CHECK(!gate_await_for(&stranger.ended, 1, 20));

    must_release(x);
    waiter_join(&stranger, HF_OK);
    must_release(y);
    waiter_join(&elsewhere, HF_OK);
    must_release(stranger.lock);
    must_release(elsewhere.lock);
    hf_close(holder);
    hf_close(client);
    hf_close(bystander);
}

PROMISE(p03_cancel_without_waits_changes_nothing, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client_with_handoff(-1), *other = open_client();
    CHECK_STATUS(HF_OK, hf_cancel(client, name.text), NULL);
    hf_lock *lock = must_acquire(client, name.text, NULL);
    /* Neither what is held nor a later wait. */
    CHECK_STATUS(HF_OK, hf_cancel(client, name.text), NULL);
    check_busy(other, name.text);
    struct waiter waiter;
    waiter_start(&waiter, client, name.text, NULL);
    await_waiters(other, name.text, 1);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(other);
}

PROMISE(p03_a_bounded_wait_can_be_cancelled, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiter;
    options.wait_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    waiter_start(&waiter, client, name.text, &options);
    await_waiters(holder, name.text, 1);
    CHECK_STATUS(HF_OK, hf_cancel(client, name.text), NULL);
    waiter_join(&waiter, HF_CANCELED);
    must_release(lock);
    check_becomes_free(client, name.text);
    hf_close(holder);
    hf_close(client);
}

/* --- order --- */

PROMISE(p03_threads_are_served_in_order_of_arrival, HF_CAP_FAIR)
{
    enum { COUNT = 8 };
    struct name name = unique_name("x");
    hf_client *holder = open_client_with_handoff(-1), *client = open_client_with_handoff(-1);
    struct waiter waiters[COUNT];
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    uint64_t last = hf_token(lock);
    for (int i = 0; i < COUNT; i++) {
        waiter_start(&waiters[i], i % 2 ? client : holder, name.text, NULL);
        await_waiters(client, name.text, i + 1);
    }
    for (int i = 0; i < COUNT; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        CHECK(waiters[i].token > last);
        for (int later = i + 1; later < COUNT; later++)
            CHECK_INT(0, gate_count(&waiters[later].ended));
        last = waiters[i].token;
        lock = waiters[i].lock;
    }
    must_release(lock);
    hf_close(holder);
    hf_close(client);
}

PROMISE(p03_processes_are_served_in_order_of_arrival, HF_CAP_FAIR | HF_CAP_PROCESSES)
{
    enum { COUNT = 6 };
    struct holder *holders[COUNT];
    pid_t pids[COUNT];
    hf_client *client = open_client();
    struct name name = unique_name("x");
    hf_lock *lock = must_acquire(client, name.text, NULL);
    uint64_t last = hf_token(lock);
    for (int i = 0; i < COUNT; i++) {
        holders[i] = holder_new("x");
        pids[i] = holder_launch(holders[i]);
        await_waiters(client, name.text, i + 1);
    }
    must_release(lock);
    for (int i = 0; i < COUNT; i++) {
        gate_await(&holders[i]->held, 1);
        for (int later = i + 1; later < COUNT; later++)
            CHECK_INT(0, gate_count(&holders[later]->held));
        CHECK(atomic_load(&holders[i]->token) > last);
        last = atomic_load(&holders[i]->token);
        holder_finish(holders[i], pids[i], HF_OK);
    }
    hf_close(client);
}

/* The holder asks again in the moment of its release, before the waiter can have woken: it is the waiter's turn. */
PROMISE(p03_who_arrives_later_does_not_overtake, HF_CAP_FAIR)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client();
    for (int i = 0; i < 20; i++) {
        struct waiter waiter, again;
        hf_lock *lock = must_acquire(holder, name.text, NULL);
        waiter_start(&waiter, client, name.text, NULL);
        await_waiters(holder, name.text, 1);
        must_release(lock);
        check_busy(holder, name.text);
        waiter_start(&again, holder, name.text, NULL);
        waiter_join(&waiter, HF_OK);
        CHECK_INT(0, gate_count(&again.ended));
        must_release(waiter.lock);
        waiter_join(&again, HF_OK);
        CHECK(again.token > waiter.token);
        must_release(again.lock);
    }
    hf_close(holder);
    hf_close(client);
}

/* --- threads of one client that pass it on --- */

struct turns {
    hf_client *client;
    struct name name;
    struct witness *witness;
    struct gate *others_served; /* NULL: for so many rounds each */
    uint32_t rounds;
};

static void take_turns(void *arg, uint32_t index)
{
    struct turns *turns = arg;
    for (uint32_t i = 0; turns->others_served ? gate_count(turns->others_served) == 0 : i < turns->rounds; i++) {
        hf_lock *lock = must_acquire(turns->client, turns->name.text, NULL);
        witness_visit(turns->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
}

PROMISE(p03_threads_of_one_client_are_served_one_after_the_other, 0)
{
    enum { THREADS = 8, ROUNDS = 12 };
    struct turns turns = { open_client(), unique_name("x"), shared_new(sizeof(struct witness)), NULL, ROUNDS };
    run_threads(THREADS, take_turns, &turns);
    witness_check(turns.witness);
    CHECK_INT(THREADS * ROUNDS, atomic_load(&turns.witness->entries));
    check_becomes_free(turns.client, turns.name.text);
    hf_close(turns.client);
}

struct guest {
    struct name name;
    struct witness witness;
    struct gate served;
};

static void be_served(void *arg)
{
    enum { TIMES = 5, NUMBER = 100 };
    struct guest *guest = arg;
    hf_client *client = open_client();
    for (int i = 0; i < TIMES; i++) {
        hf_lock *lock = must_acquire(client, guest->name.text, NULL);
        witness_visit(&guest->witness, NUMBER, hf_token(lock));
        must_release(lock);
    }
    gate_pass(&guest->served);
    hf_close(client);
}

/* However long the threads of a client might pass it on by the clock: they go on until the other one was served. */
PROMISE(p03_another_process_is_served_while_threads_pass_it_on, HF_CAP_FAIR | HF_CAP_PROCESSES)
{
    enum { THREADS = 8 };
    struct guest *guest = shared_new(sizeof *guest);
    guest->name = unique_name("x");
    const pid_t pid = helper_start(be_served, guest);
    struct turns turns = { open_client_with_handoff(endless_ttl_ms()), guest->name, &guest->witness, &guest->served,
                           0 };
    run_threads(THREADS, take_turns, &turns);
    helper_join(pid);
    witness_check(&guest->witness);
    hf_close(turns.client);
}
