/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_break.c: that a holder of redlock: hears at once that its lock was broken, and by whom; and that
 * it learns by whom at its next renewal where it cannot hear. Where no renewal is due while a test runs, the message is
 * what has the holder ask.
 */
#include "group_support.h"
#include "who.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"

static struct redis_group *start_masters(int count)
{
    struct redis_group *group = redis_masters_start(count, &(struct redis_group_options){ .arguments = "" });
    use_url(group->url);
    return group;
}

/* Has the holder listen, as its first renewal does. */
static void renew(const struct held *held)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_renew(held->lock, 0, &err), &err);
}

static void break_of(hf_client *client, const char *name)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_break(client, name, &err), &err);
}

static int64_t all_listeners(struct redis_group *group)
{
    int64_t count = 0;
    for (int i = 0; i < group->count; i++)
        count += redis_server_runs(group->server[i]) ? redis_server_listeners(group->server[i]) : 0;
    return count;
}

static void await_listeners(struct redis_group *group, int64_t wanted)
{
    while (all_listeners(group) != wanted)
        await_a_moment();
}

/* All masters have it. A majority does not wait for one that is slow: in that case it is taken once more. */
static struct held *hold_on_all(struct redis_group *group, hf_client *client)
{
    for (;;) {
        struct held *held = hold(client, NAME, LONG_TTL_MS);
        for (int i = 0; i < 100; i++) {
            int votes = 0;
            for (int j = 0; j < group->count; j++)
                votes += redis_server_number(group->server[j], "EXISTS " NAME) == 1;
            if (votes == group->count)
                return held;
            await_a_moment();
        }
        held_finish(held, HF_OK);
    }
}

/* How many masters have words about a break of NAME. */
static int words_left(struct redis_group *group)
{
    int count = 0;
    for (int i = 0; i < group->count; i++)
        count += redis_server_number(group->server[i], "EXISTS hf:{%s}:b", NAME) == 1;
    return count;
}

/* The channel on which the holder of NAME listens; all masters have it. */
static void channel_of(struct redis_group *group, char *channel, size_t size)
{
    char owner[80];
    redis_server_text(group->server[0], owner, sizeof owner, "GET " NAME);
    snprintf(channel, size, "hf:c:%.16s:b", owner);
}

/* --- at once --- */

/* It is broken, which its holder is told at once, and by whom. */
static void check_told_at_once(struct held *held, hf_client *other)
{
    break_of(other, NAME);
    await_prompt_loss(held);
    check_we_broke_it(held->why);
    held_finish(held, HF_LOST);
}

static void check_break_is_told(struct redis_group *group, const char *options, const char *name)
{
    hf_client *client = open_url("%s%s", group->url, options), *other = open_url("%s%s", group->url, options);
    await_listeners(group, 0); /* those of the client before may not be gone yet */
    struct held *held = hold(client, name, LONG_TTL_MS);
    renew(held);
    await_listeners(group, 1);
    break_of(other, name);
    await_prompt_loss(held);
    check_we_broke_it(held->why);
    held_finish(held, HF_LOST);
    check_usable(other, name);
    hf_close(client);
    hf_close(other);
}

TEST(a_break_is_told_at_once_and_by_whom)
{
    struct redis_group *group = start_masters(3);
    check_break_is_told(group, "", NAME);
    check_break_is_told(group, "?prefix=app:", NAME);
    check_break_is_told(group, "", "with {a tag} of its own");
}

TEST(a_break_is_told_at_once_on_five_masters_of_which_two_are_gone)
{
    struct redis_group *group = start_masters(5);
    redis_server_kill(group->server[0]);
    redis_server_kill(group->server[3]);
    check_break_is_told(group, "", NAME);
}

/* The breaker reaches one of the two that have voted for it, and one that came back empty: enough to free it, and the
 * next one has it. */
TEST(a_break_that_reaches_few_who_had_voted_is_told_at_once)
{
    struct redis_group *group = start_masters(3);
    redis_server_kill(group->server[2]);
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    renew(held);
    while (redis_server_listeners(group->server[0]) == 0)
        await_a_moment();
    redis_server_restart(group->server[2], false, "");
    redis_server_kill(group->server[1]);
    check_told_at_once(held, other);
    hf_close(client);
    hf_close(other);
}

/* The one to which it listened dies: the next renewal has it listen to another. */
TEST(who_cannot_hear_any_more_listens_to_another_master)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold_on_all(group, client);
    renew(held);
    await_listeners(group, 1);
    CHECK_INT(1, redis_server_listeners(group->server[0]));
    redis_server_kill(group->server[0]);
    while (all_listeners(group) == 0) {
        renew(held);
        await_a_moment();
    }
    check_told_at_once(held, other);
    hf_close(client);
    hf_close(other);
}

/* The other locks of the client stay, and are not asked about. */
TEST(the_other_locks_of_a_client_stay)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client(), *other = open_client();
    struct held *first = hold(client, "first", LONG_TTL_MS);
    renew(first);
    await_listeners(group, 1);
    struct held *broken = hold(client, NAME, LONG_TTL_MS), *last = hold(client, "last", LONG_TTL_MS);
    check_told_at_once(broken, other);
    held_finish(first, HF_OK);
    held_finish(last, HF_OK);
    hf_close(client);
    hf_close(other);
}

/* --- at the next renewal --- */

TEST(who_may_not_listen_learns_by_whom_at_the_next_renewal)
{
    struct redis_group *group = start_masters(3);
    char url[300];
    int used = snprintf(url, sizeof url, "redlock://bob:pw@");
    for (int i = 0; i < 3; i++) {
        redis_server_do(group->server[i], "ACL SETUSER bob reset on >pw ~* resetchannels +@all");
        used += snprintf(url + used, sizeof url - (size_t)used, "%s127.0.0.1:%d", i ? "," : "", group->server[i]->port);
    }
    hf_client *bob = open_url("%s", url), *other = open_client();
    struct held *held = hold(bob, NAME, short_ttl_ms());
    for (int i = 0; i < 3; i++)
        await_renewal(held);
    break_of(other, NAME);
    gate_await(&held->loss.told, 1);
    check_we_broke_it(held->why);
    CHECK_INT(0, all_listeners(group));
    held_finish(held, HF_LOST);
    hf_close(bob);
    hf_close(other);
}

/* It asks by itself before it has ever listened. */
TEST(a_renewal_that_finds_the_lock_broken_says_by_whom)
{
    start_masters(3);
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    hf_error err = { 0 };
    break_of(other, NAME);
    CHECK_STATUS(HF_LOST, hf_renew(held->lock, 0, &err), &err);
    gate_await(&held->loss.told, 1);
    check_we_broke_it(held->why);
    CHECK_STR(held->why, err.message);
    held_finish(held, HF_LOST);
    hf_close(client);
    hf_close(other);
}

/* What is said of the one before is still there. */
TEST(a_break_is_not_told_of_the_next_holder)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client(), *other = open_client();
    struct held *first = hold_on_all(group, client);
    hf_error err = { 0 };
    break_of(other, NAME);
    CHECK_STATUS(HF_LOST, hf_renew(first->lock, 0, &err), &err);
    held_finish(first, HF_LOST);
    struct held *next = hold_on_all(group, client);
    CHECK_INT(3, words_left(group));
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "DEL " NAME);
    CHECK_STATUS(HF_LOST, hf_renew(next->lock, 0, &err), &err);
    gate_await(&next->loss.told, 1);
    CHECK(strstr(next->why, "the store no longer has it") != NULL);
    held_finish(next, HF_LOST);
    hf_close(client);
    hf_close(other);
}

/* --- what it leaves and costs --- */

static void *renew_in_thread(void *held)
{
    renew(held);
    return NULL;
}

/* Programs may have threads with small ones. */
TEST(a_renewal_needs_little_of_the_stack)
{
    start_masters(3);
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    pthread_attr_t small;
    pthread_t thread;
    REQUIRE_INT(0, pthread_attr_init(&small));
    REQUIRE_INT(0, pthread_attr_setstacksize(&small, TEST_SANITIZED ? 512 << 10 : 96 << 10));
    REQUIRE_INT(0, pthread_create(&thread, &small, renew_in_thread, held));
    REQUIRE_INT(0, pthread_join(thread, NULL));
    REQUIRE_INT(0, pthread_attr_destroy(&small));
    held_finish(held, HF_OK);
    hf_close(client);
}

/* As long as the holder may believe, and no longer; for nobody else. */
TEST(the_words_end_with_the_time_of_the_broken_lock)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold_on_all(group, client);
    char owner[80], words[300];
    redis_server_text(group->server[1], owner, sizeof owner, "GET " NAME);
    break_of(other, NAME);
    CHECK_INT(3, words_left(group));
    redis_server_text(group->server[1], words, sizeof words, "GET hf:{" NAME "}:b");
    CHECK(strncmp(words, owner, strlen(owner)) == 0 && words[strlen(owner)] == ' ' && strchr(words, '@') != NULL);
    const int64_t left = redis_server_number(group->server[1], "PTTL hf:{" NAME "}:b");
    CHECK(left > 0 && left <= LONG_TTL_MS);
    struct held *next = hold(other, NAME, LONG_TTL_MS); /* while they are there */
    for (int i = 0; i < 3; i++)
        renew(next);
    CHECK_INT(3, words_left(group));
    held_finish(next, HF_OK);
    hf_error err = { 0 };
    CHECK_STATUS(HF_LOST, hf_renew(held->lock, 0, &err), &err);
    held_finish(held, HF_LOST);
    hf_close(client);
    hf_close(other);
}

/* What others write is theirs: it is freed, and nobody is to be told. */
TEST(the_lock_of_another_program_is_broken_without_words)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client();
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "SET " NAME " c29tZWJvZHkgZWxzZQ== PX 600000");
    break_of(client, NAME);
    for (int i = 0; i < 3; i++)
        CHECK_INT(0, redis_server_number(group->server[i], "EXISTS " NAME));
    CHECK_INT(0, words_left(group));
    check_usable(client, NAME);
    hf_close(client);
}

/* Masters without memory break it, and tell. */
TEST(a_break_is_told_by_masters_that_are_out_of_memory)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold_on_all(group, client);
    renew(held);
    await_listeners(group, 1);
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "CONFIG SET maxmemory 1");
    break_of(other, NAME);
    await_prompt_loss(held);
    check_we_broke_it(held->why);
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "CONFIG SET maxmemory 0");
    held_finish(held, HF_LOST);
    hf_close(client);
    hf_close(other);
}

TEST(what_is_released_before_its_first_renewal_is_due_costs_nothing)
{
    struct redis_group *group = start_masters(3);
    hf_client *client = open_client();
    for (int i = 0; i < 20; i++)
        check_usable(client, NAME);
    for (int i = 0; i < 3; i++)
        CHECK_INT(0, redis_server_calls(group->server[i], "subscribe"));
    hf_close(client);
}

/* --- messages --- */

/* As a master would tell that the lock that is held now was broken. */
static void message_of(struct redis_group *group, char *message, size_t size)
{
    char owner[80];
    redis_server_text(group->server[1], owner, sizeof owner, "GET " NAME);
    const char *serial = strchr(owner, '.');
    REQUIRE(serial != NULL);
    snprintf(message, size, "%lld somebody", strtoll(serial + 1, NULL, 10));
}

/* Returns when the client has asked the first master once more. */
static void publish_and_await_question(struct redis_group *group, const char *channel, const char *message)
{
    const int64_t before = redis_server_sent(group->server[0]);
    CHECK_INT(1, redis_server_number(group->server[0], "PUBLISH %s %s", channel, message));
    while (redis_server_sent(group->server[0]) == before)
        await_a_moment();
}

/* A message only has the holder ask: one that is late, or not true, takes nothing from anybody. */
TEST(a_message_about_a_lock_that_is_still_there_does_nothing)
{
    struct redis_group *group = start_masters(3);
    char channel[80], message[80], late[80];
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold_on_all(group, client);
    renew(held);
    await_listeners(group, 1);
    channel_of(group, channel, sizeof channel);
    message_of(group, late, sizeof late);
    for (int i = 0; i < 5; i++)
        publish_and_await_question(group, channel, late);
    CHECK_INT(0, gate_count(&held->loss.told));
    break_of(other, NAME);
    await_prompt_loss(held);
    held_finish(held, HF_LOST);
    struct held *next = hold_on_all(group, client);
    message_of(group, message, sizeof message);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(1, redis_server_number(group->server[0], "PUBLISH %s %s", channel, late));
        publish_and_await_question(group, channel, message);
    }
    held_finish(next, HF_OK);
    hf_close(client);
    hf_close(other);
}
