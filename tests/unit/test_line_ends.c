/* SPDX-License-Identifier: MIT
 *
 * test_line_ends.c: how a wait in the line of a client ends otherwise than by being served; and clients without lines.
 */
#include "line_members.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- other ends of a wait --- */

TEST(cancel_ends_the_waits_in_the_line)
{
    enum { COUNT = 3 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = line_hold(client, NULL);
    for (size_t i = 0; i < COUNT; i++)
        member_prepare(&members[i], client);
    members_line_up(members, COUNT);
    CHECK_STATUS(HF_OK, hf_cancel(client, "y"), NULL);
    CHECK_INT(COUNT, line_length(client));
    CHECK_STATUS(HF_OK, hf_cancel(client, "x"), NULL);
    for (size_t i = 0; i < COUNT; i++)
        member_join(&members[i], HF_CANCELED);
    CHECK_INT(0, line_length(client));
    line_give(lock);
    CHECK_INT(1, atomic_load(&script_attempt.calls));
    line_give(line_hold(client, NULL));
    hf_close(client);
}

TEST(close_ends_the_waits_in_the_line)
{
    enum { COUNT = 3 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = line_hold(client, NULL);
    for (size_t i = 0; i < COUNT; i++)
        member_prepare(&members[i], client);
    members_line_up(members, COUNT);
    hf_close(client);
    for (size_t i = 0; i < COUNT; i++)
        member_join(&members[i], HF_CANCELED);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    CHECK_INT(0, atomic_load(&script_held));
}

TEST(a_deadline_ends_one_wait_and_no_other)
{
    struct member members[3];
    hf_client *client = line_mem_client(LONG_MS);
    hf_lock *lock = line_hold(client, NULL);
    for (size_t i = 0; i < 3; i++)
        member_prepare(&members[i], client);
    members[1].options.wait_ms = 200;
    const int64_t before_ns = test_now_ns();
    member_start(&members[0]);
    await_line_length(client, 1);
    member_start(&members[1]);
    member_join(&members[1], HF_TIMEOUT);
    CHECK(test_now_ns() >= before_ns + 200 * HFI_MS);
    CHECK(strstr(members[1].err.message, "still held by another thread") != NULL);
    member_start(&members[2]);
    await_line_length(client, 2);
    line_give(lock);
    member_join(&members[0], HF_OK);
    line_give(members[0].lock);
    member_join(&members[2], HF_OK);
    line_give(members[2].lock);
    hf_close(client);
}

/* The store does not answer when the time of the one in the line is over: that is no news of who has the lock. */
TEST(a_deadline_in_trouble_is_a_deadline)
{
    struct member member;
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = line_hold(client, NULL);
    member_prepare(&member, client);
    member.options.wait_ms = 100;
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    member_start(&member);
    member_join(&member, HF_TIMEOUT);
    line_give(lock);
    hf_close(client);
}

TEST(whoever_is_called_and_leaves_has_the_next_one_called)
{
    enum { COUNT = 3, ROUNDS = 200 };
    for (size_t round = 0; round < ROUNDS; round++) {
        struct member members[COUNT];
        hf_client *client = line_client(LONG_MS);
        hf_lock *lock = line_hold(client, NULL);
        for (size_t i = 0; i < COUNT; i++)
            member_prepare(&members[i], client);
        members[0].options.wait_ms = 5;
        member_start(&members[0]); /* may stand in the line, be called, or be served when the lock comes free */
        member_start(&members[1]);
        member_start(&members[2]);
        while (line_length(client) < 2 && gate_count(&members[0].ended) == 0)
            await_a_moment();
        if (round % 2)
            gate_await_for(&members[0].ended, 1, 5);
        line_give(lock);
        gate_await(&members[0].ended, 1);
        REQUIRE_INT(0, pthread_join(members[0].thread, NULL));
        hf_release(members[0].lock, NULL);
        const size_t first = gate_await_for(&members[1].ended, 1, 5) ? 1 : 2;
        if (first == 2 && !gate_await_for(&members[2].ended, 1, 5)) {
            while (!gate_count(&members[1].ended) && !gate_count(&members[2].ended))
                await_a_moment();
        }
        const size_t served = gate_count(&members[1].ended) ? 1 : 2;
        member_join(&members[served], HF_OK);
        line_give(members[served].lock);
        member_join(&members[3 - served], HF_OK);
        line_give(members[3 - served].lock);
        hf_close(client);
    }
}

TEST(after_a_loss_the_next_one_asks)
{
    struct member members[2];
    hf_error err;
    members_prepare_two(members, LONG_MS);
    members_serve_first(members, 2);
    const uint64_t token = hf_token(members[0].lock);
    atomic_store(&script_forgotten, atomic_load(&script_last_owner));
    CHECK_STATUS(HF_LOST, hf_renew(members[0].lock, 0, &err), &err);
    CHECK_INT(1, gate_count(&members[0].told));
    member_join(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    CHECK(hf_token(members[1].lock) > token);
    CHECK_STATUS(HF_LOST, hf_release(members[0].lock, &err), &err);
    CHECK_INT(0, gate_count(&members[1].told));
    line_give(members[1].lock);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(members[0].client);
}

TEST(what_was_passed_on_is_lost_to_whoever_has_it)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members[0].options.ttl_ms = members[1].options.ttl_ms = 1000;
    members_serve_first(members, 2);
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    atomic_store(&script_forgotten, atomic_load(&script_last_owner));
    gate_await(&members[1].told, 1); /* by a renewal in the background */
    CHECK_INT(0, gate_count(&members[0].told));
    CHECK_STATUS(HF_LOST, hf_release(members[1].lock, NULL), NULL);
    hf_close(members[0].client);
}

/* Whoever shows a handle need not keep it until it is served: here the next lock has taken its memory meanwhile. */
TEST(an_owner_is_the_same_when_the_handle_that_showed_it_is_gone)
{
    struct member member;
    hf_options by_text = HF_OPTIONS_INIT;
    hf_lock *again = NULL, *other = NULL;
    by_text.owner = HF_OWNER_TEXT;
    by_text.owner_text = "one";
    hf_client *client = line_client(LONG_MS);
    hf_lock *shown = line_hold(client, &by_text);
    hfi_keeper_lost(client, hfi_hold_owner(shown->hold), "broken");
    hf_lock *lock = line_hold(client, NULL);
    member_prepare(&member, client);
    member.options.owner_handle = shown;
    members_line_up(&member, 1);
    CHECK_STATUS(HF_LOST, hf_release(shown, NULL), NULL);
    by_text.owner_text = "two";
    REQUIRE_STATUS(HF_OK, hf_acquire(&other, client, "y", &by_text, NULL), NULL);
    line_give(lock);
    member_join(&member, HF_OK);
    by_text.owner_text = "one";
    CHECK_STATUS(HF_OK, hf_try_acquire(&again, client, "x", &by_text, NULL), NULL);
    CHECK(again && hf_token(again) == hf_token(member.lock));
    line_give(again);
    line_give(member.lock);
    line_give(other);
    hf_close(client);
}

/* Each has a patience of its own with a store in trouble, which must not begin when that of the one before ends. */
TEST(in_trouble_everybody_asks)
{
    enum { COUNT = 4 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = line_hold(client, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        member_prepare(&members[i], client);
        members[i].options.ttl_ms = i == 0 ? 100 : 20000;
    }
    members_line_up(members, COUNT);
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    line_give(lock);
    member_join(&members[0], HF_UNAVAILABLE);
    while (line_asking(client) != COUNT - 1) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        await_a_moment();
    }
    CHECK_INT(0, line_length(client));
    CHECK_STATUS(HF_OK, hf_cancel(client, "x"), NULL);
    for (size_t i = 1; i < COUNT; i++)
        member_join(&members[i], HF_CANCELED);
    script_set(&script_attempt, 0, HF_OK, false);
    line_give(line_hold(client, NULL));
    hf_close(client);
}

TEST(a_forked_child_has_no_part_in_the_line)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members_serve_first(members, 2);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CHECK_STATUS(HF_LOST, hf_release(members[0].lock, NULL), NULL);
        hf_close(members[0].client);
        test_exit_child();
    }
    helper_join(child);
    CHECK_INT(0, gate_count(&members[1].ended));
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    hf_close(members[0].client);
}

/* --- without lines --- */

static int note_waiters(const hf_info *info, void *arg)
{
    *(int64_t *)arg = info->waiters;
    return 0;
}

static int64_t waiters_in_the_store(hf_client *client)
{
    int64_t waiters = -1;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_inspect(client, "x", note_waiters, &waiters, &err), &err);
    return waiters;
}

TEST(the_option_has_every_waiter_stand_in_the_store)
{
    enum { COUNT = 3 };
    for (int64_t handoff_ms = -1; handoff_ms <= 0; handoff_ms++) {
        struct member members[COUNT];
        hf_client *client = line_mem_client(handoff_ms);
        hf_lock *lock = line_hold(client, NULL);
        for (size_t i = 0; i < COUNT; i++) {
            member_prepare(&members[i], client);
            member_start(&members[i]);
            while (handoff_ms < 0 && waiters_in_the_store(client) < (int64_t)i + 1)
                await_a_moment();
            if (handoff_ms == 0)
                await_line_length(client, i + 1);
        }
        CHECK_INT(handoff_ms < 0 ? COUNT : 0, waiters_in_the_store(client));
        CHECK_INT(handoff_ms < 0 ? 0 : COUNT, line_length(client));
        line_give(lock);
        for (size_t i = 0; i < COUNT; i++) {
            member_join(&members[i], HF_OK);
            line_give(members[i].lock);
        }
        hf_close(client);
    }
}

TEST(a_store_without_tokens_to_reserve_has_no_lines)
{
    hf_client *client = scripted_line_client(0, LONG_MS);
    CHECK_INT(0, client->handoff_ns);
    hf_close(client);
}

/* --- everything at once --- */

struct storm {
    hf_client *client;
    struct witness witness;
    atomic_bool over;
    _Atomic uint32_t number, served;
};

static void *weather(void *arg)
{
    struct storm *storm = arg;
    const uint32_t me = atomic_fetch_add(&storm->number, 1) + 1;
    unsigned seed = me;
    for (int i = 0; i < 400; i++) {
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL;
        options.owner = rand_r(&seed) % 2 ? HF_OWNER_THREAD : HF_OWNER_HANDLE;
        options.wait_ms = rand_r(&seed) % 4 ? 0 : 1;
        options.ttl_ms = rand_r(&seed) % 8 ? 30000 : 20000;
        options.once_per_ms = rand_r(&seed) % 8 ? 0 : 1000;
        const hf_status status = hf_acquire(&lock, storm->client, "x", &options, NULL);
        REQUIRE(status == HF_OK || status == HF_TIMEOUT || status == HF_CANCELED);
        REQUIRE((lock != NULL) == (status == HF_OK));
        if (status != HF_OK)
            continue;
        atomic_fetch_add(&storm->served, 1);
        witness_visit(&storm->witness, me, hf_token(lock));
        line_give(lock);
        if (rand_r(&seed) % 64 == 0)
            hf_cancel(storm->client, "x");
    }
    return NULL;
}

TEST_LIMIT(a_storm_of_ends_leaves_nothing, 60)
{
    enum { COUNT = 8 };
    static struct storm storm;
    pthread_t threads[COUNT];
    storm.client = line_mem_client(0);
    for (size_t i = 0; i < COUNT; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, weather, &storm));
    for (size_t i = 0; i < COUNT; i++)
        REQUIRE_INT(0, pthread_join(threads[i], NULL));
    witness_check(&storm.witness);
    CHECK_INT(atomic_load(&storm.served), atomic_load(&storm.witness.entries));
    CHECK_INT(0, line_length(storm.client));
    CHECK_INT(0, line_asking(storm.client));
    hf_lock *lock = NULL;
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, storm.client, "x", NULL, NULL), NULL);
    line_give(lock);
    hf_close(storm.client);
}
