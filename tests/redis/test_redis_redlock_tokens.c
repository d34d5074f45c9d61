/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_tokens.c: the tokens of redlock: grow from grant to grant, whichever masters forget, come back or
 * have clocks that jump; also where a jump breaks exclusion, which no Redlock can prevent. See model/README.md.
 */
#include "redlock_support.h"

#include <string.h>

#define HOUR_MS 3600000LL

static struct redis_group *start_masters_with_clocks(int count)
{
    struct redis_group *group =
        redis_masters_start(count, &(struct redis_group_options){ .own_clocks = (1u << count) - 1 });
    use_url(group->url);
    return group;
}

/* Takes it, and its token must be larger than the last. */
static hf_lock *take(hf_client *client, uint64_t *last, uint32_t ttl_ms)
{
    const hf_options options = stranger(ttl_ms);
    hf_lock *lock = must_acquire(client, NAME, &options);
    if (hf_token(lock) <= *last)
        FAIL("token %llu after %llu", (unsigned long long)hf_token(lock), (unsigned long long)*last);
    *last = hf_token(lock);
    return lock;
}

/* All masters have it. */
static hf_lock *take_on_all(struct redis_group *group, hf_client *client, uint64_t *last)
{
    const hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = acquire_on_all(group, client, &options, NULL);
    CHECK(hf_token(lock) > *last);
    *last = hf_token(lock);
    return lock;
}

static void take_often(hf_client *client, uint64_t *last, int times)
{
    for (int i = 0; i < times; i++)
        must_release(take(client, last, endless_ttl_ms()));
}

/* The last token that this master has stored. */
static uint64_t stored_at(struct redis_server *server)
{
    char text[400];
    redis_server_text(server, text, sizeof text, "GET hf:{%s}:t", NAME);
    return strtoull(text, NULL, 10);
}

/* ------------------------------------------------------------------------------------------- one round trip, or two */

/* Two masters of three run, so that both are asked, and waited for, each time. */
static struct redis_group *start_two_of_three(void)
{
    struct redis_group *group = start_masters(3, NULL);
    redis_server_kill(group->server[2]);
    hf_client *client = open_client();
    teach_masters(group, client);
    hf_close(client);
    return group;
}

static int64_t commands_of_a_pair(struct redis_group *group, hf_client *client, uint64_t *last)
{
    const int64_t before[2] = { redis_server_sent(group->server[0]), redis_server_sent(group->server[1]) };
    take_often(client, last, 1);
    const int64_t sent = redis_server_sent(group->server[0]) - before[0];
    CHECK_INT(sent, redis_server_sent(group->server[1]) - before[1]);
    return sent;
}

TEST(the_first_grant_of_a_client_takes_two_round_trips_and_the_others_one)
{
    struct redis_group *group = start_two_of_three();
    uint64_t last = 0;
    for (int i = 0; i < 5; i++) {
        hf_client *client = open_client();
        CHECK_INT(3, commands_of_a_pair(group, client, &last)); /* nothing to guess by: the token is written back */
        int64_t sent = 3;
        while (sent != 2) { /* when there was no processor for us, a guess can be late */
            CHECK_INT(3, sent);
            await_a_moment();
            sent = commands_of_a_pair(group, client, &last);
        }
        hf_close(client);
    }
}

/* Somebody whose clock was ahead has stored a larger token than anybody would guess. */
TEST(a_guess_that_is_too_small_is_replaced_and_written_back)
{
    struct redis_group *group = start_two_of_three();
    hf_client *client = open_client();
    uint64_t last = 0;
    take_often(client, &last, 3);
    for (int which = 0; which < 3; which++) { /* on one master, on the other, on both */
        const uint64_t ahead = (uint64_t)wall_clock_us() + (uint64_t)(which + 1) * 60000000;
        char text[80];
        snprintf(text, sizeof text, "%llu somebody 1 1 host 1 note", (unsigned long long)ahead);
        for (int i = 0; i < 2; i++) {
            if (which == i || which == 2)
                redis_server_do(group->server[i], "SET hf:{%s}:t %s PX 600000", NAME, text);
        }
        CHECK_INT(3, commands_of_a_pair(group, client, &last));
        CHECK(last > ahead);
        for (int i = 0; i < 2; i++)
            CHECK(stored_at(group->server[i]) == last);
    }
    take_often(client, &last, 3); /* and the next guess knows */
    hf_close(client);
}

TEST(tokens_grow_across_clients_and_masters)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *one = open_client(), *two = open_client();
    uint64_t last = 0;
    for (int i = 0; i < 60; i++) {
        take_often(i % 2 ? one : two, &last, 1 + i % 3);
        if (i % 10 == 0) {
            hf_client *fresh = open_client();
            take_often(fresh, &last, 2);
            hf_close(fresh);
        }
        if (i % 6 == 5) { /* another majority each time */
            redis_server_pause(group->server[i / 6 % 5]);
            redis_server_pause(group->server[(i / 6 + 2) % 5]);
            take_often(two, &last, 2);
            redis_server_continue(group->server[i / 6 % 5]);
            redis_server_continue(group->server[(i / 6 + 2) % 5]);
        }
    }
    hf_close(one);
    hf_close(two);
}

/* ---------------------------------------------------------------------------------------------- masters that forget */

TEST(tokens_grow_when_masters_forget)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *one = open_client(), *two = open_client();
    uint64_t last = 0;
    for (int i = 0; i < 12; i++) {
        take_often(one, &last, 2);
        redis_server_do(group->server[i % 3], "FLUSHALL");
        take_often(two, &last, 2);
        await_clean(group); /* one that was slow to give up the lock before would refuse it */
        hf_lock *lock = take_on_all(group, one, &last);
        redis_server_do(group->server[(i + 1) % 3], "FLUSHALL");
        must_release(lock);
    }
    await_clock(last);
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "FLUSHALL");
    take_often(two, &last, 2);
    hf_close(one);
    hf_close(two);
}

static void restart_all(const char *arguments, bool with_data)
{
    struct redis_group *group = start_masters(3, arguments);
    hf_client *one = open_client(), *two = open_client();
    uint64_t last = 0;
    take_often(one, &last, 3);
    for (int i = 0; i < 3; i++) {
        await_clean(group); /* a release that died with its master would leave the lock there, for its whole time */
        redis_server_kill(group->server[i]);
        take_often(i % 2 ? one : two, &last, 2);
        redis_server_restart(group->server[i], with_data, "");
        take_often(i % 2 ? two : one, &last, 2);
    }
    await_clock(last);
    await_clean(group);
    for (int i = 0; i < 3; i++)
        redis_server_kill(group->server[i]);
    for (int i = 0; i < 3; i++)
        redis_server_restart(group->server[i], with_data, "");
    take_often(two, &last, 2);
    take_often(one, &last, 2);
    hf_close(one);
    hf_close(two);
}

TEST(tokens_grow_when_masters_restart_empty)
{
    restart_all(NULL, false);
}

TEST(tokens_grow_when_masters_restart_with_their_data)
{
    restart_all(DURABLE, true);
}

/* ------------------------------------------------------------------------------------------------- clocks that jump */

/* One after the other jumps forwards and backwards by an hour, while it is free and while it is held. The holder keeps
 * it: the others are a majority. */
TEST_LIMIT(tokens_grow_while_a_clock_jumps, 30)
{
    struct redis_group *group = start_masters_with_clocks(3);
    hf_client *one = open_client(), *two = open_client();
    static const int64_t jumps_ms[] = { HOUR_MS, -HOUR_MS, 0 };
    uint64_t last = 0;
    teach_masters(group, one);
    for (int i = 0; i < 9; i++) {
        struct redis_server *jumper = group->server[i / 3];
        hf_error err = { 0 };
        hf_lock *lock = take_on_all(group, one, &last);
        redis_server_set_clock(jumper, jumps_ms[i % 3]);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
        check_busy(two, NAME);
        must_release(lock);
        await_clean(group); /* also where it would live for an hour more */
        take_often(two, &last, 3);
        take_often(one, &last, 3);
    }
    hf_close(one);
    hf_close(two);
}

/* Nobody but the one that jumped makes a majority with the other: its token is an hour ahead, and so are all later
 * ones, whoever asks and whichever masters answer. */
TEST(a_token_that_is_ahead_is_never_followed_by_a_smaller_one)
{
    struct redis_group *group = start_masters_with_clocks(3);
    hf_client *one = open_client(), *two = open_client();
    uint64_t last = 0;
    take_often(one, &last, 3);
    CHECK(last < (uint64_t)(wall_clock_us() + HOUR_MS * 500));
    redis_server_kill(group->server[2]);
    redis_server_set_clock(group->server[1], HOUR_MS);
    take_often(one, &last, 2);
    CHECK(last > (uint64_t)(wall_clock_us() + HOUR_MS * 500));
    redis_server_set_clock(group->server[1], 0);
    take_often(two, &last, 2);
    take_often(one, &last, 2);
    redis_server_restart(group->server[2], false, "");
    take_often(two, &last, 2);
    redis_server_kill(group->server[1]); /* the two that never jumped, one of which forgot */
    take_often(one, &last, 2);
    hf_client *fresh = open_client();
    take_often(fresh, &last, 3);
    redis_server_set_clock(group->server[0], -HOUR_MS);
    take_often(two, &last, 2);
    hf_close(fresh);
    hf_close(one);
    hf_close(two);
}

/* Whose holder died: the master that was set back keeps it for an hour, and is outvoted. */
TEST(a_lock_that_one_master_will_not_end_ends_by_majority)
{
    struct redis_group *group = start_masters_with_clocks(3);
    hf_client *client = open_client();
    struct holder *dead = holder_new("");
    snprintf(dead->name.text, sizeof dead->name.text, "%s", NAME);
    dead->options = stranger(test_ms(1000));
    teach_masters(group, client);
    const pid_t pid = holder_start(dead);
    redis_server_set_clock(group->server[1], -HOUR_MS);
    helper_kill(pid);
    uint64_t last = atomic_load(&dead->token);
    take_often(client, &last, 3);
    hf_close(client);
}

/* What the model's row excl-jump found, on real servers: two holders, each within its own deadline. The place that is
 * written to sees it by the tokens. */
TEST(a_clock_that_jumps_breaks_exclusion_but_not_the_order_of_tokens)
{
    struct redis_group *group = start_masters_with_clocks(3);
    struct fenced_register place = { 0 };
    struct held *first;
    redis_server_kill(group->server[2]);
    first = hold_lock(group, test_ms(6000)); /* by the first two masters */
    CHECK(fenced_write(&place, hf_token(first->lock)));
    redis_server_restart(group->server[2], false, "");
    redis_server_set_clock(group->server[1], HOUR_MS); /* where its time is over now */
    CHECK_INT(0, redis_server_number(group->server[1], "EXISTS %s", NAME));

    hf_client *other = open_client();
    const hf_options options = stranger(endless_ttl_ms());
    hf_lock *second = must_acquire(other, NAME, &options); /* by the last two */
    CHECK(hf_remaining_ms(first->lock) > 0);
    CHECK(hf_remaining_ms(second) > 0);
    CHECK(hf_token(second) > hf_token(first->lock));
    CHECK(fenced_write(&place, hf_token(second)));
    CHECK(!fenced_write(&place, hf_token(first->lock)));

    gate_await(&first->loss.told, 1); /* and the first learns of it, long before its time is over */
    CHECK(atomic_load(&first->loss.told_ns) < first->asked_ns + first->ttl_ms * 900000LL);
    const uint64_t broken = hf_token(second);
    finish(first, HF_LOST);
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_renew(second, 0, &err), &err);
    must_release(second);
    uint64_t last = broken;
    take_often(other, &last, 3);
    hf_close(other);
}
