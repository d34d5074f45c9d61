/* SPDX-License-Identifier: MIT
 *
 * test_operations.c: what operations cost, and what becomes of them when memory or threads are short. What they promise
 * is in the conformance suite.
 */
#include "core.h"
#include "fault.h"
#include "memory.h"
#include "shared.h"
#include "test.h"
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>

static int count_entries(const char *directory)
{
    int count = 0;
    DIR *folder = opendir(directory);
    REQUIRE(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static double bytes_in_use(void)
{
    const struct mallinfo2 info = mallinfo2();
    return (double)info.uordblks + (double)info.hblkhd;
}

static hf_client *open_mem(void)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", NULL, &err), &err);
    return client;
}

/* All of them were started with the address of their number. */
static int serve(hf_client *client, const int *numbers, int served, uint64_t *last)
{
    hf_event events[16];
    struct pollfd fd = { .fd = hf_events_fd(client), .events = POLLIN };
    poll(&fd, 1, 1000);
    const size_t count = hf_events(client, events, 16, sizeof *events);
    CHECK(count <= 1); /* the others wait for this one's release */
    for (size_t i = 0; i < count; i++) {
        CHECK_STATUS(HF_OK, events[i].status, &events[i].error);
        CHECK(events[i].tag == &numbers[served]); /* in order of arrival */
        CHECK(hf_token(events[i].lock) > *last);
        *last = hf_token(events[i].lock);
        CHECK_INT(HF_OK, hf_start_release(NULL, events[i].lock, NULL, NULL));
    }
    return (int)count;
}

TEST_LIMIT(ten_thousand_waits_for_one_lock_take_no_thread_and_no_descriptor, 120)
{
    enum { WAITS = 10000 };
    static int numbers[WAITS];
    hf_client *client = open_mem();
    hf_lock *lock = NULL;
    uint64_t last = 0;
    REQUIRE(hf_events_fd(client) >= 0);
    REQUIRE(hf_acquire(&lock, client, "x", NULL, NULL) == HF_OK);
    const int threads = count_entries("/proc/self/task"), descriptors = count_entries("/proc/self/fd");
    const double before = bytes_in_use();
    for (int i = 0; i < WAITS; i++)
        REQUIRE(hf_start_acquire(NULL, client, "x", NULL, &numbers[i], NULL) == HF_OK);
    const double each = (bytes_in_use() - before) / WAITS;
    test_note("%.0f bytes each", each);
    CHECK(each <= 2048);
    CHECK(count_entries("/proc/self/task") <= threads + 2);
    CHECK_INT(descriptors, count_entries("/proc/self/fd"));
    REQUIRE(hf_release(lock, NULL) == HF_OK);
    for (int served = 0; served < WAITS;)
        served += serve(client, numbers, served, &last);
    hf_close(client);
}

/* Each in the queue of the store itself: the locks belong to another client. */
TEST_LIMIT(ten_thousand_waits_in_the_store_take_no_thread_each, 120)
{
    enum { WAITS = 10000 };
    static hf_lock *locks[WAITS];
    hf_client *client = open_mem(), *holder = open_mem();
    char name[32];
    hf_event event;
    for (int i = 0; i < WAITS; i++) {
        snprintf(name, sizeof name, "many %d", i);
        REQUIRE(hf_acquire(&locks[i], holder, name, NULL, NULL) == HF_OK);
        REQUIRE(hf_start_acquire(NULL, client, name, NULL, NULL, NULL) == HF_OK);
    }
    /* Until all of them wait. */
    for (unsigned parked = 0; parked < WAITS; await_a_moment()) {
        hfi_client_lock(client);
        parked = 0;
        for (const struct hfi_wait *wait = client->waits; wait; wait = wait->next)
            parked += wait->op->is_parked;
        hfi_client_unlock(client);
    }
    CHECK(count_entries("/proc/self/task") <= 300);
    for (int i = 0; i < WAITS; i++)
        REQUIRE(hf_release(locks[i], NULL) == HF_OK);
    for (int served = 0; served < WAITS;) {
        if (hf_events(client, &event, 1, sizeof event) == 0) {
            await_a_moment();
            continue;
        }
        CHECK_STATUS(HF_OK, event.status, &event.error);
        CHECK_INT(HF_OK, hf_release(event.lock, NULL));
        served++;
    }
    hf_close(holder);
    hf_close(client);
}

TEST_LIMIT(ten_thousand_deadlines_take_no_thread, 120)
{
    enum { WAITS = 10000 };
    hf_client *client = open_mem();
    hf_lock *lock = NULL;
    hf_options options = HF_OPTIONS_INIT;
    hf_event event;
    options.wait_ms = 300;
    REQUIRE(hf_acquire(&lock, client, "x", NULL, NULL) == HF_OK);
    const int threads = count_entries("/proc/self/task");
    for (int i = 0; i < WAITS; i++)
        REQUIRE(hf_start_acquire(NULL, client, "x", &options, NULL, NULL) == HF_OK);
    for (int ended = 0; ended < WAITS;) {
        if (hf_events(client, &event, 1, sizeof event) == 0) {
            await_a_moment();
            continue;
        }
        CHECK_STATUS(HF_TIMEOUT, event.status, &event.error);
        CHECK(event.error.message[0] != 0);
        ended++;
    }
    CHECK(count_entries("/proc/self/task") <= threads + 2); /* the keeper and a runner */
    CHECK_INT(HF_OK, hf_release(lock, NULL));
    hf_close(client);
}

static unsigned runners_of(hf_client *client)
{
    hfi_client_lock(client);
    const unsigned runners = client->runners;
    hfi_client_unlock(client);
    return runners;
}

/* Something comes due all the time, for which one of them is enough. */
TEST_LIMIT(threads_with_nothing_to_do_end_though_deadlines_come, 120)
{
    enum { WAITS = 2000, MANY = 200 };
    hf_client *client = open_mem();
    hf_lock *lock = NULL;
    hf_op *last = NULL;
    hf_options options = HF_OPTIONS_INIT;
    char name[32];
    unsigned most = 0;
    REQUIRE(hf_acquire(&lock, client, "x", NULL, NULL) == HF_OK);
    for (uint32_t i = 1; i <= WAITS; i++) {
        options.wait_ms = 10 * i;
        REQUIRE(hf_start_acquire(i < WAITS ? NULL : &last, client, "x", &options, NULL, NULL) == HF_OK);
    }
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "many %d", i);
        REQUIRE(hf_start_acquire(NULL, client, name, NULL, NULL, NULL) == HF_OK);
        most = runners_of(client) > most ? runners_of(client) : most;
    }
    test_note("%u threads at most", most);
    while (runners_of(client) > 2)
        await_a_moment();
    CHECK(!atomic_load(&last->ended));
    hf_op_free(last);
    CHECK_INT(HF_OK, hf_release(lock, NULL));
    hf_close(client);
}

TEST_LIMIT(ten_thousand_waits_that_are_cancelled_leave_nothing, 120)
{
    enum { WAITS = 10000 };
    static hf_op *ops[WAITS];
    hf_client *client = open_mem();
    hf_lock *lock = NULL;
    hf_event event;
    REQUIRE(hf_acquire(&lock, client, "x", NULL, NULL) == HF_OK);
    for (int i = 0; i < WAITS; i++)
        REQUIRE(hf_start_acquire(&ops[i], client, "x", NULL, NULL, NULL) == HF_OK);
    for (int i = WAITS - 1; i >= 0; i--) { /* the last first: none of them has to be looked for */
        hf_op_cancel(ops[i]);
        CHECK_INT(1, hf_op_wait(ops[i], 0, &event, sizeof event));
        CHECK_INT(HF_CANCELED, event.status);
        hf_op_free(ops[i]);
    }
    CHECK_INT(0, client->turns);
    CHECK_INT(HF_OK, hf_release(lock, NULL));
    CHECK_INT(HF_OK, hf_try_acquire(&lock, client, "x", NULL, NULL));
    CHECK_INT(HF_OK, hf_release(lock, NULL));
    hf_close(client);
}

/* Operations of one owner follow the first of them, on threads: more of those than exchanges are made at once. */
TEST_LIMIT(those_that_follow_do_not_keep_the_first_from_going_on, 60)
{
    enum { FOLLOWERS = 80 };
    hf_client *client = open_mem(), *holder = open_mem();
    hf_lock *lock = NULL, *first = NULL;
    hf_op *ops[1 + FOLLOWERS];
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_TEXT;
    options.owner_text = "one";
    REQUIRE(hf_acquire(&lock, holder, "x", NULL, NULL) == HF_OK);
    for (int i = 0; i <= FOLLOWERS; i++)
        REQUIRE(hf_start_acquire(&ops[i], client, "x", &options, NULL, NULL) == HF_OK);
    while (atomic_load(&client->waiting_runners) < FOLLOWERS)
        await_a_moment();
    CHECK_INT(HF_OK, hf_release(lock, NULL));
    for (int i = 0; i <= FOLLOWERS; i++) {
        hf_event event;
        REQUIRE_INT(1, hf_op_wait(ops[i], -1, &event, sizeof event));
        CHECK_STATUS(HF_OK, event.status, &event.error);
        CHECK(!first || hf_token(event.lock) == hf_token(first));
        first = first ? first : event.lock;
        if (event.lock != first)
            CHECK_INT(HF_OK, hf_release(event.lock, NULL));
        hf_op_free(ops[i]);
    }
    CHECK_INT(HF_OK, hf_release(first, NULL));
    hf_close(holder);
    hf_close(client);
}

/* --- losses --- */

/* The end of the operation, which nobody was told of, and the loss of its lock. */
static hf_op *lose_untold(hf_client *client)
{
    hf_op *op = NULL;
    bool both = false;
    REQUIRE(hf_start_acquire(&op, client, "x", NULL, NULL, NULL) == HF_OK);
    while (!atomic_load(&op->ended))
        await_a_moment();
    REQUIRE(hf_break(client, "x", NULL) == HF_OK);
    for (; !both; await_a_moment()) {
        hfi_client_lock(client);
        both = client->first_event && client->first_event->next;
        hfi_client_unlock(client);
    }
    return op;
}

TEST(a_loss_is_not_told_to_whoever_never_had_the_lock)
{
    hf_client *client = open_mem();
    hf_event event;
    hf_op_free(lose_untold(client));
    CHECK_INT(0, (int)hf_events(client, &event, 1, sizeof event));
    hf_close(client);
}

TEST(what_an_event_has_told_is_not_handed_out_again)
{
    hf_client *client = open_mem();
    hf_op *op = lose_untold(client);
    hf_event events[2], again;
    CHECK_INT(2, (int)hf_events(client, events, 2, sizeof *events));
    CHECK(events[0].kind == HF_EVENT_ENDED && events[1].kind == HF_EVENT_LOST);
    CHECK(events[0].lock == events[1].lock);
    CHECK_INT(1, hf_op_wait(op, 0, &again, sizeof again));
    CHECK(again.status == HF_OK && again.lock == NULL);
    CHECK_INT(HF_LOST, hf_release(events[0].lock, NULL));
    hf_op_free(op);
    hf_close(client);
}

struct from_callback {
    hf_client *client;
    struct gate done;
    hf_status status;
};

static void wait_for_what_is_held(hf_lock *lock, const char *why, void *arg)
{
    struct from_callback *it = arg;
    hf_options options = HF_OPTIONS_INIT;
    hf_op *op = NULL;
    hf_event event = { .status = HF_INTERNAL };
    (void)lock;
    (void)why;
    options.wait_ms = 100;
    CHECK_INT(HF_OK, hf_start_acquire(&op, it->client, "held", &options, NULL, NULL));
    CHECK_INT(1, hf_op_wait(op, 15000, &event, sizeof event));
    it->status = event.status;
    hf_op_free(op);
    gate_pass(&it->done);
}

/* The keeper, who looks after deadlines, is inside of the callback. */
TEST(a_callback_may_wait_for_an_operation_with_a_deadline)
{
    struct from_callback it = { .client = open_mem() };
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *held = NULL, *lost = NULL;
    options.max_hold_ms = 100;
    options.on_lost = wait_for_what_is_held;
    options.arg = &it;
    REQUIRE(hf_acquire(&held, it.client, "held", NULL, NULL) == HF_OK);
    REQUIRE(hf_acquire(&lost, it.client, "lost", &options, NULL) == HF_OK);
    gate_await(&it.done, 1);
    CHECK_INT(HF_TIMEOUT, it.status);
    CHECK_INT(HF_LOST, hf_release(lost, NULL));
    CHECK_INT(HF_OK, hf_release(held, NULL));
    hf_close(it.client);
}

static void wait_for_its_release(hf_lock *lock, const char *why, void *arg)
{
    struct from_callback *it = arg;
    hf_op *op = NULL;
    hf_event event = { .status = HF_INTERNAL };
    (void)why;
    CHECK_INT(HF_OK, hf_start_release(&op, lock, NULL, NULL));
    CHECK_INT(1, hf_op_wait(op, 15000, &event, sizeof event));
    it->status = event.status;
    hf_op_free(op);
    gate_pass(&it->done);
}

/* A release waits for callbacks of its lock to return, but not for the one that has started it. */
TEST(a_callback_may_wait_for_the_release_of_the_lock_that_is_lost)
{
    struct from_callback it = { .client = open_mem() };
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lost = NULL;
    options.max_hold_ms = 100;
    options.on_lost = wait_for_its_release;
    options.arg = &it;
    REQUIRE(hf_acquire(&lost, it.client, "lost", &options, NULL) == HF_OK);
    gate_await(&it.done, 1);
    CHECK_INT(HF_LOST, it.status);
    hf_close(it.client);
}

/* --- when there is too little of something --- */

static hf_status use(hf_client *client, hf_error *err)
{
    hf_op *ops[3] = { NULL, NULL, NULL };
    hf_event event = { .lock = NULL };
    hf_lock *lock = NULL;
    hf_status status = HF_OK;
    for (int i = 0; i < 3 && status == HF_OK; i++)
        status = hf_start_acquire(&ops[i], client, "x", NULL, NULL, err);
    if (status == HF_OK) {
        while (!hf_op_wait(ops[0], 1000, &event, sizeof event))
            ;
        *err = event.error;
        status = event.status;
        lock = event.lock;
    }
    for (int i = 2; i >= 0; i--)
        hf_op_free(ops[i]);
    hf_start_release(NULL, lock, NULL, NULL);
    return status;
}

static hf_status open_and_use(void *url)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_status status = hf_open(&client, url, NULL, &err);
    if (status == HF_OK)
        status = use(client, &err);
    hf_close(client);
    if (status != HF_OK)
        CHECK(err.message[0] != 0);
    return status;
}

TEST_LIMIT(every_allocation_may_fail, 60)
{
    CHECK(fault_each_allocation(hfi_alloc_set_fault, open_and_use, (char *)"mem:") > 4);
    CHECK_STATUS(HF_OK, open_and_use((char *)"mem:"), NULL);
}

/* A finalizer has nobody to tell. */
TEST(a_release_that_cannot_be_started_is_made_at_once)
{
    hf_client *client = open_mem();
    hf_lock *lock = NULL;
    hf_op *op = NULL;
    hf_error err = { 0 };
    REQUIRE(hf_acquire(&lock, client, "x", NULL, NULL) == HF_OK);
    hfi_alloc_set_fault(1);
    CHECK_STATUS(HF_NOMEM, hf_start_release(&op, lock, NULL, &err), &err);
    CHECK(op == NULL && hf_remaining_ms(lock) > 0); /* it is still the caller's */
    CHECK_STATUS(HF_OK, hf_start_release(NULL, lock, NULL, &err), &err);
    hfi_alloc_set_fault(0);
    CHECK_INT(HF_OK, hf_try_acquire(&lock, client, "x", NULL, NULL));
    CHECK_INT(HF_OK, hf_release(lock, NULL));
    hf_close(client);
}

TEST(without_threads_nothing_is_started)
{
    hf_client *client = open_mem();
    hf_lock *lock = NULL;
    hf_op *op = NULL;
    hf_event event;
    hf_error err = { 0 };
    REQUIRE(hf_acquire(&lock, client, "y", NULL, NULL) == HF_OK);
    hfi_thread_set_fault(true);
    CHECK_STATUS(HF_NOMEM, hf_start_acquire(&op, client, "x", NULL, NULL, &err), &err);
    CHECK(op == NULL && err.message[0] != 0);
    CHECK_STATUS(HF_NOMEM, hf_start_release(&op, lock, NULL, &err), &err);
    CHECK(op == NULL && hf_remaining_ms(lock) > 0);
    CHECK_STATUS(HF_OK, hf_start_release(NULL, lock, NULL, &err), &err); /* by the call itself */
    hfi_thread_set_fault(false);
    CHECK_STATUS(HF_OK, hf_start_acquire(&op, client, "y", NULL, NULL, &err), &err);
    CHECK_INT(1, hf_op_wait(op, -1, &event, sizeof event));
    CHECK_STATUS(HF_OK, event.status, &event.error);
    hf_op_free(op);
    CHECK_INT(HF_OK, hf_release(event.lock, NULL));
    hf_close(client);
}
