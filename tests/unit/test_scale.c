/* SPDX-License-Identifier: MIT
 *
 * test_scale.c: very many locks of one client: what each takes of memory, and what it costs to renew them, to lose them
 * all at once and to close the client that holds them.
 */
#include "core.h"
#include "memory.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic int lost;
static char lost_why[240];

static void count_loss(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)arg;
    if (atomic_load(&lost) == 0)
        snprintf(lost_why, sizeof lost_why, "%s", why);
    atomic_fetch_add(&lost, 1);
}

static void await_at_least(_Atomic int *value, int wanted)
{
    while (atomic_load(value) < wanted)
        await_a_moment();
}

/* 16 bytes each with the byte behind it, and those of an empty note and of no owner's text. */
#define NAME "lock %07d ab"
#define NAME_SIZE 18

static hf_lock **take(hf_client *client, int count, uint32_t ttl_ms, hf_lost_fn on_lost)
{
    hf_lock **locks = calloc((size_t)count, sizeof(hf_lock *));
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    char name[32];
    options.ttl_ms = ttl_ms;
    options.on_lost = on_lost;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, NAME, i);
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&locks[i], client, name, &options, &err), &err);
    }
    return locks;
}

/* --- memory --- */

/* With all that malloc() needs for them; 0 where a sanitizer has its own. */
static double bytes_in_use(void)
{
    const struct mallinfo2 info = mallinfo2();
    return (double)info.uordblks + (double)info.hblkhd;
}

static void check_memory(hf_client *client)
{
    enum { COUNT = 16000 }; /* a table that has just grown would have half of its places empty */
    const double before = bytes_in_use();
    hf_lock **locks = take(client, COUNT, 60000, NULL);
    const double each = (bytes_in_use() - before) / COUNT - sizeof(hf_lock *) - NAME_SIZE;
    test_note("%.0f bytes each", each);
    CHECK(each <= 350);
    for (int i = 0; i < COUNT; i++)
        REQUIRE_STATUS(HF_OK, hf_release(locks[i], NULL), NULL);
    const double left = (bytes_in_use() - before) / COUNT - sizeof(hf_lock *);
    test_note("%.0f bytes each are left", left);
    CHECK(left <= 100); /* the tables */
    free(locks);
    hf_close(client);
}

TEST_LIMIT(a_held_lock_takes_little_memory, 60)
{
    check_memory(scripted_client(0));
}

TEST_LIMIT(a_held_lock_of_mem_takes_little_memory, 60)
{
    hf_client *client = NULL;
    REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", NULL, NULL), NULL);
    check_memory(client);
}

/* What is kept for the next lock may have been of one with a shorter name. */
TEST(names_of_any_length_follow_each_other)
{
    hf_client *client = scripted_client(0);
    char name[256];
    for (int turn = 0; turn < 1000; turn++) {
        const size_t length = 1 + (size_t)turn * 7919 % 255;
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL, *again = NULL;
        memset(name, 'a' + turn % 26, length);
        name[length] = 0;
        options.owner = HF_OWNER_TEXT;
        options.owner_text = name + length / 2;
        options.note = turn % 3 ? "a note" : NULL;
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, name, &options, NULL), NULL);
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&again, client, name, &options, NULL), NULL);
        REQUIRE_INT(hf_token(lock), hf_token(again)); /* entered again: the texts are what they were */
        REQUIRE_STATUS(HF_OK, hf_release(again, NULL), NULL);
        REQUIRE_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    }
    hf_close(client);
}

/* --- losses --- */

TEST(a_loss_is_told_though_there_is_no_memory_for_its_reason)
{
    hf_client *client = scripted_client(0);
    hf_lock **locks = take(client, 1, 60000, count_loss);
    hf_error err = { 0 };
    atomic_store(&script_forgotten, 1);
    hfi_alloc_set_fault(1);
    hfi_keeper_recheck(client, 0);
    await_at_least(&lost, 1);
    CHECK_STATUS(HF_LOST, hf_release(locks[0], &err), &err);
    hfi_alloc_set_fault(0);
    CHECK_STR("it was lost, and there was no memory to keep the reason in", lost_why);
    CHECK_STR(lost_why, err.message);
    free(locks);
    hf_close(client);
}

static int64_t processor_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

/* What it costs that `count` locks are lost at once, each of them told, given back and released; for each. */
static int64_t price_of_a_loss(int count)
{
    hf_client *client = scripted_client(600000);
    hf_lock **locks = take(client, count, 3600000, count_loss);
    const int before = atomic_load(&lost);
    const int64_t since_ns = processor_ns();
    script_set(&script_renew, SCRIPT_FOREVER, HF_LOST, false);
    hfi_keeper_recheck(client, 0);
    await_at_least(&lost, before + count);
    while (atomic_load(&script_held) > 0)
        await_a_moment();
    for (int i = 0; i < count; i++)
        REQUIRE_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    const int64_t used_ns = processor_ns() - since_ns;
    script_set(&script_renew, 0, HF_OK, false);
    free(locks);
    hf_close(client);
    return used_ns / count;
}

TEST_LIMIT(the_price_of_a_loss_does_not_grow_with_the_number_of_locks, 60)
{
    const int slow = test_slowness();
    const int64_t few = price_of_a_loss(2000 / slow), many = price_of_a_loss(50000 / slow);
    test_note("%lld ns each for few, %lld ns for 25 times as many", (long long)few, (long long)many);
    CHECK(many < 8 * few);
}

static int64_t price_of_closing(int count)
{
    hf_client *client = scripted_client(600000);
    hf_lock **locks = take(client, count, 3600000, NULL);
    const int64_t since_ns = processor_ns();
    hf_close(client);
    const int64_t used_ns = processor_ns() - since_ns;
    CHECK_INT(0, atomic_load(&script_held));
    for (int i = 0; i < count; i++)
        REQUIRE_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    free(locks);
    return used_ns / count;
}

TEST_LIMIT(the_price_of_closing_does_not_grow_with_the_number_of_locks, 60)
{
    const int slow = test_slowness();
    const int64_t few = price_of_closing(2000 / slow), many = price_of_closing(50000 / slow);
    test_note("%lld ns each for few, %lld ns for 25 times as many", (long long)few, (long long)many);
    CHECK(many < 8 * few);
}

/* --- falling behind --- */

/* Eight exchanges of 15 ms each are due at once. None of them hangs, and one after the other would do here; but whoever
 * holds a hundred times as many could not keep them like that. */
TEST(a_client_that_falls_behind_makes_several_exchanges_at_once)
{
    hf_client *client = scripted_client(0);
    hf_lock **locks = take(client, 1024, 6000, count_loss);
    atomic_store(&script_renew.delay_ns, 15 * HFI_MS);
    while (atomic_load(&script_renew_overlaps) < 1) {
        const int all = atomic_load(&script_renew.calls) + 8;
        hfi_keeper_recheck(client, 0); /* they are due at once, however a busy machine has spread them */
        while (atomic_load(&script_renew_overlaps) < 1 && atomic_load(&script_renew.calls) < all)
            await_a_moment();
    }
    atomic_store(&script_renew.delay_ns, 0);
    CHECK_INT(0, atomic_load(&lost));
    for (int i = 0; i < 1024; i++)
        CHECK_STATUS(HF_OK, hf_release(locks[i], NULL), NULL);
    free(locks);
    hf_close(client);
}
