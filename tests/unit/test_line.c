/* SPDX-License-Identifier: MIT
 *
 * test_line.c: threads of one client that wait for one name: in which order they are served, when the lock is passed on
 * without asking the store and when it is not, and how a wait in the line ends otherwise.
 */
#include "core.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONG_MS 60000 /* longer than a test */

static hf_client *line_client(int64_t handoff_ms)
{
    atomic_store(&script_reserves, true);
    return scripted_line_client(0, handoff_ms);
}

static hf_client *mem_client(int64_t handoff_ms)
{
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_error err;
    options.handoff_ms = handoff_ms;
    REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", &options, &err), &err);
    return client;
}

static size_t in_line(hf_client *client)
{
    size_t count = 0;
    hfi_client_lock(client);
    for (size_t i = 0; i < HFI_LINES; i++) {
        for (const struct hfi_turn *turn = client->lines[i]; turn; turn = turn->next)
            count++;
    }
    hfi_client_unlock(client);
    return count;
}

static void await_in_line(hf_client *client, size_t count)
{
    while (in_line(client) != count) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        await_a_moment();
    }
}

static void await_calls(const struct script *script, int count)
{
    while (atomic_load(&script->calls) < count) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        await_a_moment();
    }
}

/* --- threads --- */

struct member {
    pthread_t thread;
    hf_client *client;
    hf_options options;
    hf_status status;
    hf_error err;
    hf_lock *lock;
    struct gate ended, told;
};

static void *run(void *arg)
{
    struct member *member = arg;
    member->status = hf_acquire(&member->lock, member->client, "x", &member->options, &member->err);
    gate_pass(&member->ended);
    return NULL;
}

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct member *member = arg;
    (void)lock;
    (void)why;
    gate_pass(&member->told);
}

static void prepare(struct member *member, hf_client *client)
{
    const hf_options options = HF_OPTIONS_INIT;
    memset(member, 0, sizeof *member);
    member->client = client;
    member->options = options;
    member->options.owner = HF_OWNER_HANDLE;
    member->options.on_lost = note_loss;
    member->options.arg = member;
}

static void start(struct member *member)
{
    REQUIRE_INT(0, pthread_create(&member->thread, NULL, run, member));
}

/* Starts them one after the other, each once the one before stands in the line. */
static void line_up(struct member *members, size_t count)
{
    hf_client *client = members[0].client;
    const size_t before = in_line(client);
    for (size_t i = 0; i < count; i++) {
        start(&members[i]);
        await_in_line(client, before + i + 1);
    }
}

static void join_with(struct member *member, hf_status expected)
{
    gate_await(&member->ended, 1);
    REQUIRE_INT(0, pthread_join(member->thread, NULL));
    REQUIRE_STATUS(expected, member->status, &member->err);
    CHECK((member->lock != NULL) == (expected == HF_OK));
}

static hf_lock *hold(hf_client *client, const hf_options *options)
{
    hf_lock *lock = NULL;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", options, &err), &err);
    return lock;
}

static void give(hf_lock *lock)
{
    hf_error err;
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
}

/* The first takes it from the store, with a line behind it. */
static void serve_first(struct member *members, size_t count)
{
    hf_lock *lock = hold(members[0].client, NULL);
    line_up(members, count);
    give(lock);
    join_with(&members[0], HF_OK);
}

/* Whether the second of two had to ask the store. */
static void check_asks(struct member members[2], bool asks)
{
    serve_first(members, 2);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    const uint64_t token = hf_token(members[0].lock);
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK(hf_token(members[1].lock) > token);
    CHECK_INT(asks ? 3 : 2, atomic_load(&script_attempt.calls));
    give(members[1].lock);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(members[0].client);
}

static void prepare_two(struct member members[2], int64_t handoff_ms)
{
    hf_client *client = line_client(handoff_ms);
    prepare(&members[0], client);
    prepare(&members[1], client);
}

/* --- order, tokens, bounds --- */

TEST(it_is_passed_on_in_order_of_arrival_without_asking)
{
    enum { COUNT = 8 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    for (size_t i = 0; i < COUNT; i++)
        prepare(&members[i], client);
    serve_first(members, COUNT);
    for (size_t i = 1; i < COUNT; i++) {
        const uint64_t token = hf_token(members[i - 1].lock);
        give(members[i - 1].lock);
        join_with(&members[i], HF_OK);
        CHECK(hf_token(members[i].lock) > token);
        CHECK_INT(COUNT - 1 - i, in_line(client));
        CHECK_INT(1, atomic_load(&script_held));
    }
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    CHECK_INT(1, atomic_load(&script_release.calls));
    give(members[COUNT - 1].lock);
    CHECK_INT(2, atomic_load(&script_release.calls));
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(a_grant_serves_as_many_as_it_has_tokens)
{
    enum { COUNT = HFI_TOKENS_MOST + 2 };
    static struct member members[COUNT];
    uint64_t last = 0;
    hf_client *client = line_client(LONG_MS);
    for (size_t i = 0; i < COUNT; i++)
        prepare(&members[i], client);
    serve_first(members, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        if (i > 0)
            join_with(&members[i], HF_OK);
        CHECK(hf_token(members[i].lock) > last);
        last = hf_token(members[i].lock);
        CHECK_INT(i < HFI_TOKENS_MOST ? 2 : 3, atomic_load(&script_attempt.calls));
        give(members[i].lock);
    }
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(it_is_not_passed_on_after_its_time)
{
    struct member members[2];
    prepare_two(members, 1);
    serve_first(members, 2);
    const int64_t granted_ns = test_now_ns(); /* or before */
    while (test_now_ns() < granted_ns + 2 * HFI_MS)
        await_a_moment();
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    give(members[1].lock);
    hf_close(members[0].client);
}

TEST(it_is_passed_on_to_whoever_asks_for_the_same_time)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    members[0].options.ttl_ms = members[1].options.ttl_ms = 20000;
    check_asks(members, false);
}

TEST(it_is_not_passed_on_to_whoever_asks_for_another_time)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    members[1].options.ttl_ms = 20000;
    check_asks(members, true);
}

TEST(a_plain_lease_is_not_passed_on)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    members[0].options.renew = members[1].options.renew = HF_RENEW_OFF;
    check_asks(members, true);
}

TEST(whoever_asks_once_per_some_time_asks_the_store)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    members[1].options.once_per_ms = 1000;
    check_asks(members, true);
}

TEST(what_is_done_is_released_in_the_store)
{
    struct member members[2];
    hf_error err;
    prepare_two(members, LONG_MS);
    members[0].options.once_per_ms = LONG_MS;
    serve_first(members, 2);
    CHECK_STATUS(HF_OK, hf_release_done(members[0].lock, &err), &err);
    CHECK_INT(1, atomic_load(&script_done));
    join_with(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    give(members[1].lock);
    hf_close(members[0].client);
}

TEST(what_was_renewed_by_hand_is_not_passed_on)
{
    struct member members[2];
    hf_error err;
    prepare_two(members, LONG_MS);
    serve_first(members, 2);
    CHECK_STATUS(HF_OK, hf_renew(members[0].lock, 100, &err), &err);
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    CHECK(hf_remaining_ms(members[1].lock) > 1000);
    give(members[1].lock);
    hf_close(members[0].client);
}

TEST(what_could_not_be_renewed_is_not_passed_on)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    members[0].options.ttl_ms = members[1].options.ttl_ms = 3000;
    serve_first(members, 2);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    await_calls(&script_renew, 2); /* the first was answered */
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    give(members[1].lock);
    hf_close(members[0].client);
}

TEST(a_lock_that_nobody_waits_for_reserves_nothing)
{
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = hold(client, NULL);
    const uint64_t token = hf_token(lock);
    give(lock);
    lock = hold(client, NULL);
    CHECK_INT((int64_t)token + 1, (int64_t)hf_token(lock));
    give(lock);
    hf_close(client);
}

/* --- the options of whoever it is passed on to --- */

TEST(max_hold_ms_counts_from_the_pass)
{
    struct member members[3];
    hf_client *client = line_client(LONG_MS);
    for (size_t i = 0; i < 3; i++)
        prepare(&members[i], client);
    members[0].options.max_hold_ms = 10000;
    members[2].options.max_hold_ms = 200;
    serve_first(members, 3);
    CHECK(hf_remaining_ms(members[0].lock) <= 10000);
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK(hf_remaining_ms(members[1].lock) > 20000);
    const int64_t before_ns = test_now_ns();
    give(members[1].lock);
    join_with(&members[2], HF_OK);
    CHECK(hf_remaining_ms(members[2].lock) <= 200);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    gate_await(&members[2].told, 1);
    CHECK(test_now_ns() >= before_ns + 200 * HFI_MS);
    CHECK_STATUS(HF_LOST, hf_release(members[2].lock, NULL), NULL);
    CHECK_INT(0, gate_count(&members[1].told) + gate_count(&members[0].told));
    hf_close(client);
}

TEST(owners_of_one_name_re_enter_from_the_line)
{
    static const char *const texts[4] = { "a", "b", "a", "b" };
    struct member members[4];
    hf_client *client = line_client(LONG_MS);
    for (size_t i = 0; i < 4; i++) {
        prepare(&members[i], client);
        members[i].options.owner = HF_OWNER_TEXT;
        members[i].options.owner_text = texts[i];
    }
    serve_first(members, 4);
    join_with(&members[2], HF_OK); /* while the first has it */
    CHECK_INT(0, gate_count(&members[1].ended));
    CHECK_INT((int64_t)hf_token(members[0].lock), (int64_t)hf_token(members[2].lock));
    give(members[0].lock);
    CHECK_INT(0, gate_count(&members[1].ended));
    give(members[2].lock);
    join_with(&members[1], HF_OK); /* it was passed on to it */
    join_with(&members[3], HF_OK);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    give(members[1].lock);
    give(members[3].lock);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(it_can_be_re_entered_by_its_new_handle_alone)
{
    struct member members[2];
    hf_lock *again = NULL;
    hf_error err;
    prepare_two(members, LONG_MS);
    serve_first(members, 2);
    const int lost_fd = hf_lost_fd(members[0].lock);
    CHECK(lost_fd >= 0);
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    options.owner_handle = members[1].lock;
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&again, members[0].client, "x", &options, &err), &err);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    give(members[1].lock);
    CHECK_INT(1, atomic_load(&script_held));
    give(again);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(members[0].client);
}

/* --- other ends of a wait --- */

TEST(cancel_ends_the_waits_in_the_line)
{
    enum { COUNT = 3 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = hold(client, NULL);
    for (size_t i = 0; i < COUNT; i++)
        prepare(&members[i], client);
    line_up(members, COUNT);
    CHECK_STATUS(HF_OK, hf_cancel(client, "y"), NULL);
    CHECK_INT(COUNT, in_line(client));
    CHECK_STATUS(HF_OK, hf_cancel(client, "x"), NULL);
    for (size_t i = 0; i < COUNT; i++)
        join_with(&members[i], HF_CANCELED);
    CHECK_INT(0, in_line(client));
    give(lock);
    CHECK_INT(1, atomic_load(&script_attempt.calls));
    give(hold(client, NULL));
    hf_close(client);
}

TEST(close_ends_the_waits_in_the_line)
{
    enum { COUNT = 3 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = hold(client, NULL);
    for (size_t i = 0; i < COUNT; i++)
        prepare(&members[i], client);
    line_up(members, COUNT);
    hf_close(client);
    for (size_t i = 0; i < COUNT; i++)
        join_with(&members[i], HF_CANCELED);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    CHECK_INT(0, atomic_load(&script_held));
}

TEST(a_deadline_ends_one_wait_and_no_other)
{
    struct member members[3];
    hf_client *client = mem_client(LONG_MS);
    hf_lock *lock = hold(client, NULL);
    for (size_t i = 0; i < 3; i++)
        prepare(&members[i], client);
    members[1].options.wait_ms = 200;
    const int64_t before_ns = test_now_ns();
    start(&members[0]);
    await_in_line(client, 1);
    start(&members[1]);
    join_with(&members[1], HF_TIMEOUT);
    CHECK(test_now_ns() >= before_ns + 200 * HFI_MS);
    CHECK(strstr(members[1].err.message, "still held by another thread") != NULL);
    start(&members[2]);
    await_in_line(client, 2);
    give(lock);
    join_with(&members[0], HF_OK);
    give(members[0].lock);
    join_with(&members[2], HF_OK);
    give(members[2].lock);
    hf_close(client);
}

/* The store does not answer when the time of the one in the line is over: that is no news of who has the lock. */
TEST(a_deadline_in_trouble_is_a_deadline)
{
    struct member member;
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = hold(client, NULL);
    prepare(&member, client);
    member.options.wait_ms = 100;
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    start(&member);
    join_with(&member, HF_TIMEOUT);
    give(lock);
    hf_close(client);
}

TEST(whoever_is_called_and_leaves_has_the_next_one_called)
{
    enum { COUNT = 3, ROUNDS = 200 };
    for (size_t round = 0; round < ROUNDS; round++) {
        struct member members[COUNT];
        hf_client *client = line_client(LONG_MS);
        hf_lock *lock = hold(client, NULL);
        for (size_t i = 0; i < COUNT; i++)
            prepare(&members[i], client);
        members[0].options.wait_ms = 5;
        start(&members[0]); /* may stand in the line, be called, or be served when the lock comes free */
        start(&members[1]);
        start(&members[2]);
        while (in_line(client) < 2 && gate_count(&members[0].ended) == 0)
            await_a_moment();
        if (round % 2)
            gate_await_for(&members[0].ended, 1, 5);
        give(lock);
        gate_await(&members[0].ended, 1);
        REQUIRE_INT(0, pthread_join(members[0].thread, NULL));
        hf_release(members[0].lock, NULL);
        const size_t first = gate_await_for(&members[1].ended, 1, 5) ? 1 : 2;
        if (first == 2 && !gate_await_for(&members[2].ended, 1, 5)) {
            while (!gate_count(&members[1].ended) && !gate_count(&members[2].ended))
                await_a_moment();
        }
        const size_t served = gate_count(&members[1].ended) ? 1 : 2;
        join_with(&members[served], HF_OK);
        give(members[served].lock);
        join_with(&members[3 - served], HF_OK);
        give(members[3 - served].lock);
        hf_close(client);
    }
}

TEST(after_a_loss_the_next_one_asks)
{
    struct member members[2];
    hf_error err;
    prepare_two(members, LONG_MS);
    serve_first(members, 2);
    const uint64_t token = hf_token(members[0].lock);
    atomic_store(&script_forgotten, atomic_load(&script_last_owner));
    CHECK_STATUS(HF_LOST, hf_renew(members[0].lock, 0, &err), &err);
    CHECK_INT(1, gate_count(&members[0].told));
    join_with(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    CHECK(hf_token(members[1].lock) > token);
    CHECK_STATUS(HF_LOST, hf_release(members[0].lock, &err), &err);
    CHECK_INT(0, gate_count(&members[1].told));
    give(members[1].lock);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(members[0].client);
}

TEST(what_was_passed_on_is_lost_to_whoever_has_it)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    members[0].options.ttl_ms = members[1].options.ttl_ms = 1000;
    serve_first(members, 2);
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    atomic_store(&script_forgotten, atomic_load(&script_last_owner));
    gate_await(&members[1].told, 1); /* by a renewal in the background */
    CHECK_INT(0, gate_count(&members[0].told));
    CHECK_STATUS(HF_LOST, hf_release(members[1].lock, NULL), NULL);
    hf_close(members[0].client);
}

static size_t asking(hf_client *client)
{
    size_t count = 0;
    hfi_client_lock(client);
    for (const struct hfi_wait *wait = client->waits; wait; wait = wait->next)
        count++;
    hfi_client_unlock(client);
    return count;
}

/* Each has a patience of its own with a store in trouble, which must not begin when that of the one before ends. */
TEST(in_trouble_everybody_asks)
{
    enum { COUNT = 4 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = hold(client, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        prepare(&members[i], client);
        members[i].options.ttl_ms = i == 0 ? 100 : 20000;
    }
    line_up(members, COUNT);
    script_set(&script_attempt, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    give(lock);
    join_with(&members[0], HF_UNAVAILABLE);
    while (asking(client) != COUNT - 1) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        await_a_moment();
    }
    CHECK_INT(0, in_line(client));
    CHECK_STATUS(HF_OK, hf_cancel(client, "x"), NULL);
    for (size_t i = 1; i < COUNT; i++)
        join_with(&members[i], HF_CANCELED);
    script_set(&script_attempt, 0, HF_OK, false);
    give(hold(client, NULL));
    hf_close(client);
}

TEST(a_forked_child_has_no_part_in_the_line)
{
    struct member members[2];
    prepare_two(members, LONG_MS);
    serve_first(members, 2);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CHECK_STATUS(HF_LOST, hf_release(members[0].lock, NULL), NULL);
        hf_close(members[0].client);
        test_exit_child();
    }
    helper_join(child);
    CHECK_INT(0, gate_count(&members[1].ended));
    give(members[0].lock);
    join_with(&members[1], HF_OK);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    give(members[1].lock);
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
        hf_client *client = mem_client(handoff_ms);
        hf_lock *lock = hold(client, NULL);
        for (size_t i = 0; i < COUNT; i++) {
            prepare(&members[i], client);
            start(&members[i]);
            while (handoff_ms < 0 && waiters_in_the_store(client) < (int64_t)i + 1)
                await_a_moment();
            if (handoff_ms == 0)
                await_in_line(client, i + 1);
        }
        CHECK_INT(handoff_ms < 0 ? COUNT : 0, waiters_in_the_store(client));
        CHECK_INT(handoff_ms < 0 ? 0 : COUNT, in_line(client));
        give(lock);
        for (size_t i = 0; i < COUNT; i++) {
            join_with(&members[i], HF_OK);
            give(members[i].lock);
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
        give(lock);
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
    storm.client = mem_client(0);
    for (size_t i = 0; i < COUNT; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, weather, &storm));
    for (size_t i = 0; i < COUNT; i++)
        REQUIRE_INT(0, pthread_join(threads[i], NULL));
    witness_check(&storm.witness);
    CHECK_INT(atomic_load(&storm.served), atomic_load(&storm.witness.entries));
    CHECK_INT(0, in_line(storm.client));
    CHECK_INT(0, asking(storm.client));
    hf_lock *lock = NULL;
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, storm.client, "x", NULL, NULL), NULL);
    give(lock);
    hf_close(storm.client);
}
