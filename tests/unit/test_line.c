/* SPDX-License-Identifier: MIT
 *
 * test_line.c: threads of one client that wait for one name: in which order they are served, and when the lock is
 * passed on without asking the store and when it is not.
 */
#include "line_members.h"

/* --- order, tokens, bounds --- */

static void await_calls(const struct script *script, int count)
{
    while (atomic_load(&script->calls) < count) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        await_a_moment();
    }
}

/* Whether the second of two had to ask the store. */
static void check_asks(struct member members[2], bool asks)
{
    members_serve_first(members, 2);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    const uint64_t token = hf_token(members[0].lock);
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK(hf_token(members[1].lock) > token);
    CHECK_INT(asks ? 3 : 2, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(members[0].client);
}

TEST(it_is_passed_on_in_order_of_arrival_without_asking)
{
    enum { COUNT = 8 };
    struct member members[COUNT];
    hf_client *client = line_client(LONG_MS);
    for (size_t i = 0; i < COUNT; i++)
        member_prepare(&members[i], client);
    members_serve_first(members, COUNT);
    for (size_t i = 1; i < COUNT; i++) {
        const uint64_t token = hf_token(members[i - 1].lock);
        line_give(members[i - 1].lock);
        member_join(&members[i], HF_OK);
        CHECK(hf_token(members[i].lock) > token);
        CHECK_INT(COUNT - 1 - i, line_length(client));
        CHECK_INT(1, atomic_load(&script_held));
    }
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    CHECK_INT(1, atomic_load(&script_release.calls));
    line_give(members[COUNT - 1].lock);
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
        member_prepare(&members[i], client);
    members_serve_first(members, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        if (i > 0)
            member_join(&members[i], HF_OK);
        CHECK(hf_token(members[i].lock) > last);
        last = hf_token(members[i].lock);
        CHECK_INT(i < HFI_TOKENS_MOST ? 2 : 3, atomic_load(&script_attempt.calls));
        line_give(members[i].lock);
    }
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(it_is_not_passed_on_after_its_time)
{
    struct member members[2];
    members_prepare_two(members, 1);
    members_serve_first(members, 2);
    const int64_t granted_ns = test_now_ns(); /* or before */
    while (test_now_ns() < granted_ns + 2 * HFI_MS)
        await_a_moment();
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    hf_close(members[0].client);
}

TEST(it_is_passed_on_to_whoever_asks_for_the_same_time)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members[0].options.ttl_ms = members[1].options.ttl_ms = 20000;
    check_asks(members, false);
}

TEST(it_is_not_passed_on_to_whoever_asks_for_another_time)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members[1].options.ttl_ms = 20000;
    check_asks(members, true);
}

TEST(a_plain_lease_is_not_passed_on)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members[0].options.renew = members[1].options.renew = HF_RENEW_OFF;
    check_asks(members, true);
}

TEST(whoever_asks_once_per_some_time_asks_the_store)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members[1].options.once_per_ms = 1000;
    check_asks(members, true);
}

TEST(what_is_done_is_released_in_the_store)
{
    struct member members[2];
    hf_error err;
    members_prepare_two(members, LONG_MS);
    members[0].options.once_per_ms = LONG_MS;
    members_serve_first(members, 2);
    CHECK_STATUS(HF_OK, hf_release_done(members[0].lock, &err), &err);
    CHECK_INT(1, atomic_load(&script_done));
    member_join(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    hf_close(members[0].client);
}

TEST(what_was_renewed_by_hand_is_not_passed_on)
{
    struct member members[2];
    hf_error err;
    members_prepare_two(members, LONG_MS);
    members_serve_first(members, 2);
    CHECK_STATUS(HF_OK, hf_renew(members[0].lock, 100, &err), &err);
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    CHECK(hf_remaining_ms(members[1].lock) > 1000);
    line_give(members[1].lock);
    hf_close(members[0].client);
}

TEST(what_could_not_be_renewed_is_not_passed_on)
{
    struct member members[2];
    members_prepare_two(members, LONG_MS);
    members[0].options.ttl_ms = members[1].options.ttl_ms = 3000;
    members_serve_first(members, 2);
    script_set(&script_renew, SCRIPT_FOREVER, HF_UNAVAILABLE, false);
    await_calls(&script_renew, 2); /* the first was answered */
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK_INT(3, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    hf_close(members[0].client);
}

TEST(a_lock_that_nobody_waits_for_reserves_nothing)
{
    hf_client *client = line_client(LONG_MS);
    hf_lock *lock = line_hold(client, NULL);
    const uint64_t token = hf_token(lock);
    line_give(lock);
    lock = line_hold(client, NULL);
    CHECK_INT((int64_t)token + 1, (int64_t)hf_token(lock));
    line_give(lock);
    hf_close(client);
}

/* --- the options of whoever it is passed on to --- */

TEST(max_hold_ms_counts_from_the_pass)
{
    struct member members[3];
    hf_client *client = line_client(LONG_MS);
    for (size_t i = 0; i < 3; i++)
        member_prepare(&members[i], client);
    members[0].options.max_hold_ms = 10000;
    members[2].options.max_hold_ms = 200;
    members_serve_first(members, 3);
    CHECK(hf_remaining_ms(members[0].lock) <= 10000);
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    CHECK(hf_remaining_ms(members[1].lock) > 20000);
    const int64_t before_ns = test_now_ns();
    line_give(members[1].lock);
    member_join(&members[2], HF_OK);
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
        member_prepare(&members[i], client);
        members[i].options.owner = HF_OWNER_TEXT;
        members[i].options.owner_text = texts[i];
    }
    members_serve_first(members, 4);
    member_join(&members[2], HF_OK); /* while the first has it */
    CHECK_INT(0, gate_count(&members[1].ended));
    CHECK_INT((int64_t)hf_token(members[0].lock), (int64_t)hf_token(members[2].lock));
    line_give(members[0].lock);
    CHECK_INT(0, gate_count(&members[1].ended));
    line_give(members[2].lock);
    member_join(&members[1], HF_OK); /* it was passed on to it */
    member_join(&members[3], HF_OK);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    line_give(members[3].lock);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(client);
}

TEST(it_can_be_re_entered_by_its_new_handle_alone)
{
    struct member members[2];
    hf_lock *again = NULL;
    hf_error err;
    members_prepare_two(members, LONG_MS);
    members_serve_first(members, 2);
    const int lost_fd = hf_lost_fd(members[0].lock);
    CHECK(lost_fd >= 0);
    line_give(members[0].lock);
    member_join(&members[1], HF_OK);
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    options.owner_handle = members[1].lock;
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&again, members[0].client, "x", &options, &err), &err);
    CHECK_INT(2, atomic_load(&script_attempt.calls));
    line_give(members[1].lock);
    CHECK_INT(1, atomic_load(&script_held));
    line_give(again);
    CHECK_INT(0, atomic_load(&script_held));
    hf_close(members[0].client);
}
