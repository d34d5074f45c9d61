/* SPDX-License-Identifier: MIT
 *
 * test_starting.c: operations on an engine that makes exchanges which no thread waits for: whatever the store answers,
 * and whenever, each ends once, and what nobody wants any more is given back.
 */
#include "core.h"
#include "fault.h"
#include "memory.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static hf_client *open_starting(uint32_t timeout_ms)
{
    atomic_store(&script_starts, true);
    return scripted_client(timeout_ms);
}

static hf_event await(hf_op *op)
{
    hf_event event;
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    hf_op_free(op);
    return event;
}

static hf_op *start(hf_client *client, const char *name, uint32_t wait_ms)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_op *op = NULL;
    hf_error err = { 0 };
    options.wait_ms = wait_ms;
    REQUIRE_STATUS(HF_OK, hf_start_acquire(&op, client, name, &options, NULL, &err), &err);
    return op;
}

static hf_status release(hf_lock *lock, hf_error *err)
{
    hf_op *op = NULL;
    REQUIRE(hf_start_release(&op, lock, NULL, err) == HF_OK);
    const hf_event event = await(op);
    *err = event.error;
    return event.status;
}

static void await_nothing_held(void)
{
    while (atomic_load(&script_held))
        await_a_moment();
}

TEST(a_pair_is_started_twice_and_nothing_else)
{
    hf_client *client = open_starting(1000);
    hf_error err;
    for (int i = 0; i < 10; i++) {
        const hf_event event = await(start(client, "x", 1000));
        REQUIRE_STATUS(HF_OK, event.status, &event.error);
        CHECK(hf_token(event.lock) > 0 && hf_remaining_ms(event.lock) > 0);
        CHECK_INT(HF_OK, release(event.lock, &err));
    }
    CHECK_INT(20, atomic_load(&script_started));
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(what_the_engine_does_not_start_a_thread_does)
{
    hf_client *client = open_starting(1000);
    hf_error err;
    for (int i = 0; i < 10; i++) {
        atomic_store(&script_refused, 2); /* the caller's thread tries first, and then a runner */
        const hf_event event = await(start(client, "x", 1000));
        REQUIRE_STATUS(HF_OK, event.status, &event.error);
        atomic_store(&script_refused, 2);
        CHECK_INT(HF_OK, release(event.lock, &err));
        atomic_store(&script_refused, 0);
    }
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(trouble_is_waited_out_and_the_same_owner_asks_again)
{
    static const hf_status troubles[] = { HF_BUSY, HF_UNAVAILABLE, HF_UNKNOWN };
    hf_client *client = open_starting(1000);
    hf_error err;
    for (int i = 0; i < 3; i++) {
        script_set(&script_attempt, 3, troubles[i], false);
        const hf_event event = await(start(client, "x", 20000));
        CHECK_STATUS(HF_OK, event.status, &event.error);
        CHECK_INT(0, atomic_load(&script_attempt.count));
        CHECK_INT(HF_OK, release(event.lock, &err));
    }
    hf_close(client);
}

TEST(a_final_answer_is_told_with_its_words)
{
    static const hf_status answers[] = { HF_BUSY, HF_UNAVAILABLE, HF_UNKNOWN, HF_DENIED, HF_NOMEM };
    hf_client *client = open_starting(1000);
    hf_op *op = NULL;
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        script_set(&script_attempt, 1, answers[i], false);
        REQUIRE(hf_start_try_acquire(&op, client, "x", NULL, NULL, NULL) == HF_OK);
        const hf_event event = await(op);
        CHECK_STATUS(answers[i], event.status, &event.error);
        CHECK(event.lock == NULL && event.error.message[0] != 0);
    }
    hf_close(client);
}

static void count_loss(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)why;
    atomic_fetch_add((_Atomic int *)arg, 1);
    await_a_moment(); /* it may take its time: others do not wait for it */
}

TEST(a_release_that_finds_its_lock_lost_tells_so)
{
    hf_client *client = open_starting(1000);
    hf_options options = HF_OPTIONS_INIT;
    _Atomic int losses = 0;
    hf_op *op = NULL;
    hf_error err;
    options.on_lost = count_loss;
    options.arg = &losses;
    REQUIRE(hf_start_acquire(&op, client, "x", &options, NULL, NULL) == HF_OK);
    const hf_event event = await(op);
    script_set(&script_release, 1, HF_LOST, false);
    CHECK_INT(HF_LOST, release(event.lock, &err));
    CHECK_INT(1, atomic_load(&losses));
    hf_close(client);
}

TEST(a_release_that_is_not_answered_is_made_again)
{
    hf_client *client = open_starting(1000);
    hf_error err;
    const hf_event event = await(start(client, "x", 1000));
    script_set(&script_release, 3, HF_UNKNOWN, false);
    CHECK_INT(HF_UNKNOWN, release(event.lock, &err));
    CHECK(err.message[0] != 0);
    await_nothing_held();
    hf_close(client);
}

TEST(what_is_granted_after_it_was_cancelled_is_given_back)
{
    hf_client *client = open_starting(1000);
    for (int i = 0; i < 3; i++) {
        atomic_store(&script_attempt.delay_ns, 50 * HFI_MS);
        hf_op *op = start(client, "x", 10000);
        if (i == 0)
            hf_op_cancel(op);
        else if (i == 1)
            CHECK_INT(HF_OK, hf_cancel(client, "x"));
        if (i < 2) {
            const hf_event event = await(op);
            CHECK_STATUS(HF_CANCELED, event.status, &event.error);
        } else {
            hf_op_free(op);
        }
        atomic_store(&script_attempt.delay_ns, 0);
        op = start(client, "x", 10000); /* which the first one is in the way of, until it is given back */
        const hf_event event = await(op);
        REQUIRE_STATUS(HF_OK, event.status, &event.error);
        CHECK_INT(HF_OK, hf_release(event.lock, NULL));
        await_nothing_held();
    }
    hf_close(client);
}

struct race {
    hf_client *client;
    hf_op *_Atomic op;
    _Atomic int calls; /* of the store, before that was started */
};

enum { RACES = 20000 };

static void start_one(struct race *race)
{
    hf_event event;
    atomic_store(&race->calls, atomic_load(&script_attempt.calls));
    hf_op *op = start(race->client, "x", 10000);
    atomic_store(&race->op, op);
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    CHECK(event.status == HF_OK || event.status == HF_CANCELED);
    while (atomic_load(&race->op))
        sched_yield();
    hf_op_free(op);
    hf_release(event.lock, NULL);
}

static void cancel_one(struct race *race, int patience)
{
    while (!atomic_load(&race->op))
        sched_yield();
    while (atomic_load(&script_attempt.calls) == atomic_load(&race->calls))
        ;
    for (volatile int i = 0; i < patience; i++)
        ;
    hf_op_cancel(atomic_load(&race->op));
    atomic_store(&race->op, NULL);
}

static void *cancel_all(void *arg)
{
    for (int i = 0; i < RACES; i++)
        cancel_one(arg, i % 4000);
    return NULL;
}

/* Nobody's cancel makes the thread that reads for all wait for the store. */
TEST_LIMIT(a_cancel_at_the_moment_of_the_grant_keeps_no_reader_waiting, 60)
{
    struct race race = { .client = open_starting(1000) };
    pthread_t canceller;
    REQUIRE(pthread_create(&canceller, NULL, cancel_all, &race) == 0);
    for (int i = 0; i < RACES; i++)
        start_one(&race);
    pthread_join(canceller, NULL);
    await_nothing_held();
    CHECK_INT(0, atomic_load(&script_kept_waiting));
    hf_close(race.client);
}

/* Whether they are cancelled, granted or released at that moment. */
TEST(a_client_can_be_closed_with_everything_under_way)
{
    hf_op *ops[8];
    hf_event event;
    hf_client *client = open_starting(300);
    const hf_event held = await(start(client, "held", 1000));
    atomic_store(&script_attempt.delay_ns, 20 * HFI_MS);
    atomic_store(&script_release.delay_ns, 20 * HFI_MS);
    REQUIRE(hf_start_release(&ops[0], held.lock, NULL, NULL) == HF_OK);
    for (int i = 1; i < 8; i++) {
        const char name[2] = { (char)('a' + i), 0 };
        ops[i] = start(client, name, 10000);
    }
    pid_t child = fork();
    if (child == 0) { /* it has nothing of all that */
        hf_op_cancel(ops[1]);
        hf_close(client);
        execl("/bin/true", "true", NULL); /* what was its parent's threads' would count as leaked here */
        _exit(1);
    }
    helper_join(child);
    hf_close(client);
    for (int i = 0; i < 8; i++) {
        REQUIRE(hf_op_wait(ops[i], 0, &event, sizeof event) == 1);
        CHECK(event.status == HF_OK || event.status == HF_CANCELED || event.status == HF_LOST);
        hf_release(event.lock, NULL);
        hf_op_free(ops[i]);
    }
    CHECK_INT(0, atomic_load(&script_held));
}

static hf_status open_and_use(void *arg)
{
    hf_client *client = arg;
    hf_error err = { 0 };
    hf_op *op = NULL;
    hf_status status = hf_start_acquire(&op, client, "x", NULL, NULL, &err);
    hf_event event = { .lock = NULL };
    if (status == HF_OK) {
        event = await(op);
        err = event.error;
        status = event.status;
    }
    if (status != HF_OK)
        CHECK(err.message[0] != 0);
    hf_start_release(NULL, event.lock, NULL, NULL);
    await_nothing_held();
    return status;
}

TEST_LIMIT(every_allocation_may_fail_on_the_way, 60)
{
    hf_client *client = open_starting(1000);
    fault_each_allocation(hfi_alloc_set_fault, open_and_use, client);
    CHECK_STATUS(HF_OK, open_and_use(client), NULL);
    hf_close(client);
}
