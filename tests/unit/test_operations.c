/* SPDX-License-Identifier: MIT
 *
 * test_operations.c: what operations cost, and what becomes of them when memory or threads are short. What they promise
 * is in the conformance suite.
 */
#include "core.h"
#include "fault.h"
#include "memory.h"
#include "test.h"
#include <dirent.h>
#include <malloc.h>
#include <poll.h>

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
    for (int i = 0; i < WAITS; i++) {
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
