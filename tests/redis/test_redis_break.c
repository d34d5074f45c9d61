/* SPDX-License-Identifier: MIT
 *
 * test_redis_break.c: that a holder hears at once that its lock was broken, and by whom; what it costs to listen, and
 * what becomes of messages that are late, lost or not allowed. Where no renewal is due while a test runs, the message
 * is what tells.
 */
#include "group_support.h"
#include "who.h"

#include <stdio.h>
#include <string.h>

#define NAME "the-lock"

/* Has the holder listen, as its first renewal does. */
static void renew(const struct held *held)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_renew(held->lock, 0, &err), &err);
}

static void await_listeners(struct redis_server *const *servers, int count, int64_t wanted)
{
    for (;;) {
        int64_t found = 0;
        for (int i = 0; i < count; i++)
            found += redis_server_listeners(servers[i]);
        if (found == wanted)
            return;
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(2);
    }
}

static void break_of(hf_client *client, const char *name)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_break(client, name, &err), &err);
}

static void check_break_is_told(struct redis_server *const *servers, int count, const char *url)
{
    hf_client *client = open_url("%s", url), *other = open_url("%s", url);
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    await_listeners(servers, count, 0); /* those of the client before may not be gone yet */
    renew(held);
    await_listeners(servers, count, 1);
    break_of(other, NAME);
    await_prompt_loss(held);
    check_we_broke_it(held->why);
    held_finish(held, HF_LOST);
    check_free(other, NAME);
    hf_close(client);
    hf_close(other);
}

/* --- at once --- */

TEST(a_break_is_told_at_once_and_by_whom)
{
    static const char *const options[] = { "", "?dialect=plain", "?dialect=redisson", "?prefix=app:" };
    struct redis_server *server = serve("");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char url[200];
        snprintf(url, sizeof url, "%s%s", server->url, options[i]);
        check_break_is_told(&server, 1, url);
    }
    check_break_is_told(&server, 1, server->unix_url);
}

TEST(a_break_is_told_at_once_by_tls)
{
    struct redis_server *server = redis_server_start_tls(NULL, "");
    check_break_is_told(&server, 1, server->tls_url);
}

TEST_LIMIT(a_break_is_told_at_once_behind_sentinels, 60)
{
    struct redis_group *group = redis_sentinel_start(NULL);
    struct redis_server *master = redis_sentinel_master(group);
    check_break_is_told(&master, 1, group->url);
}

TEST_LIMIT(a_break_is_told_at_once_in_a_cluster, 60)
{
    struct redis_group *group = redis_cluster_start(NULL);
    check_break_is_told(group->server, group->count, group->url);
}

/* It listens to one of the servers, whichever has the lock. */
TEST_LIMIT(a_break_at_any_server_of_a_cluster_is_told_at_once, 60)
{
    static const char *const names[] = { "a", "b", "c", "d", "e", "f" }; /* at all three, by their slots */
    struct redis_group *group = redis_cluster_start(NULL);
    hf_client *client = open_url("%s", group->url), *other = open_url("%s", group->url);
    struct held *held[6];
    for (size_t i = 0; i < 6; i++)
        held[i] = hold(client, names[i], LONG_TTL_MS);
    renew(held[0]);
    await_listeners(group->server, group->count, 1);
    for (size_t i = 0; i < 6; i++) {
        break_of(other, names[i]);
        await_prompt_loss(held[i]);
        check_we_broke_it(held[i]->why);
        held_finish(held[i], HF_LOST);
    }
    hf_close(client);
    hf_close(other);
}

/* Who listens for one lock hears of all, also of those that were taken a moment ago, and of each only its own. */
TEST(the_other_locks_of_a_client_stay)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client(), *other = open_client();
    struct held *first = hold(client, "first", LONG_TTL_MS);
    renew(first);
    await_listeners(&server, 1, 1);
    struct held *broken = hold(client, NAME, LONG_TTL_MS);
    struct held *last = hold(client, "last", LONG_TTL_MS);
    break_of(other, NAME);
    await_prompt_loss(broken);
    check_we_broke_it(broken->why);
    held_finish(broken, HF_LOST);
    held_finish(first, HF_OK);
    held_finish(last, HF_OK);
    hf_close(client);
    hf_close(other);
}

/* The waiters of a client are served by the break that its holder hears of. */
TEST(a_break_is_told_to_a_client_whose_threads_wait)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    struct waiter waiter;
    const hf_options options = stranger(LONG_TTL_MS);
    renew(held);
    waiter_start(&waiter, client, NAME, &options);
    await_queue(server, NAME, 1);
    await_listeners(&server, 1, 1);
    break_of(other, NAME);
    await_prompt_loss(held);
    waiter_join(&waiter, HF_OK);
    held_finish(held, HF_LOST);
    must_release(waiter.lock);
    hf_close(client);
    hf_close(other);
}

/* --- what it costs --- */

TEST(what_is_released_before_its_first_renewal_is_due_costs_nothing)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    for (int i = 0; i < 20; i++)
        check_free(client, NAME);
    CHECK_INT(0, redis_server_calls(server, "subscribe"));
    CHECK_INT(0, redis_server_listeners(server));
    hf_close(client);
}

TEST(the_first_renewal_has_the_client_listen_once)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, short_ttl_ms());
    struct held *another = hold(client, "another", short_ttl_ms());
    await_listeners(&server, 1, 1);
    for (int i = 0; i < 3; i++) {
        await_renewal(held);
        await_renewal(another);
    }
    CHECK_INT(1, redis_server_calls(server, "subscribe"));
    held_finish(held, HF_OK);
    held_finish(another, HF_OK);
    hf_close(client);
}

/* --- messages --- */

/* The lock was broken, released or lost long ago: its owner is nobody any more. What is no message is none. */
TEST(a_message_about_an_earlier_lock_does_nothing)
{
    static const char *const payloads[] = { "1 somebody", "2 somebody", "999 somebody", "3", "3 ", "x somebody", "" };
    struct redis_server *server = serve("");
    char channel[80], owner[60];
    hf_client *client = open_client();
    must_release(must_acquire(client, NAME, NULL));
    must_release(must_acquire(client, NAME, NULL));
    struct held *held = hold(client, NAME, LONG_TTL_MS); /* the third of this client */
    renew(held);
    await_listeners(&server, 1, 1);
    redis_server_text(server, owner, sizeof owner, "HGET hf:{" NAME "} o");
    snprintf(channel, sizeof channel, "hf:c:%.16s:b", owner);
    CHECK_STR(".3", owner + 16);
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++)
        CHECK_INT(1, redis_server_number(server, "PUBLISH %s %s", channel, payloads[i]));
    struct held *after = hold(client, "after", LONG_TTL_MS); /* the fourth: what is heard last shows that all was */
    CHECK_INT(1, redis_server_number(server, "PUBLISH %s %s", channel, "4 some\tbody"));
    CHECK_INT(1, redis_server_number(server, "PUBLISH %s %s", channel, "4 somebody"));
    gate_await(&after->loss.told, 1);
    CHECK_STR("it was broken by some?body", after->why);
    held_finish(after, HF_LOST);
    held_finish(held, HF_OK);
    hf_close(client);
}

/* The server refuses the break, for want of replicas: the lock stays, and its holder is told nothing. */
TEST(a_break_that_is_refused_is_not_told)
{
    static const char *const options[] = { "", "?dialect=plain", "?dialect=redisson" };
    struct redis_server *server = serve("");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        hf_client *client = open_url("%s%s", server->url, options[i]),
                  *other = open_url("%s%s", server->url, options[i]);
        hf_error err = { 0 };
        await_listeners(&server, 1, 0);
        struct held *held = hold(client, NAME, LONG_TTL_MS), *after = hold(client, "after", LONG_TTL_MS);
        renew(held);
        await_listeners(&server, 1, 1);
        redis_server_do(server, "CONFIG SET min-replicas-to-write 1");
        CHECK(hf_break(other, NAME, &err) != HF_OK);
        redis_server_do(server, "CONFIG SET min-replicas-to-write 0");
        break_of(other, "after"); /* what is heard last shows that all was */
        await_prompt_loss(after);
        held_finish(after, HF_LOST);
        held_finish(held, HF_OK);
        hf_close(client);
        hf_close(other);
    }
}

/* The connection breaks: the next renewal makes another one. */
TEST(who_cannot_hear_any_more_listens_anew)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    renew(held);
    await_listeners(&server, 1, 1);
    CHECK_INT(1, redis_server_number(server, "CLIENT KILL TYPE pubsub"));
    while (redis_server_listeners(server) == 0) { /* the keeper may not have noticed yet */
        renew(held);
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(2);
    }
    break_of(other, NAME);
    await_prompt_loss(held);
    held_finish(held, HF_LOST);
    hf_close(client);
    hf_close(other);
}

/* Without the right to listen the next renewal tells, and it is not asked for again and again. */
TEST(who_may_not_listen_learns_of_it_at_the_next_renewal)
{
    struct redis_server *server = serve("");
    redis_server_do(server, "ACL SETUSER bob reset on >pw ~* resetchannels +@all");
    hf_client *bob = open_url("redis://bob:pw@127.0.0.1:%d", server->port), *other = open_client();
    struct held *held = hold(bob, NAME, short_ttl_ms());
    for (int i = 0; i < 3; i++)
        await_renewal(held);
    break_of(other, NAME);
    gate_await(&held->loss.told, 1);
    CHECK(strstr(held->why, "the store no longer has it") != NULL);
    CHECK_INT(0, redis_server_listeners(server));
    held_finish(held, HF_LOST);
    hf_close(bob);
    hf_close(other);
}

/* A server, or a proxy, that has no such command is not asked for it at every renewal, on a new connection each. */
TEST(who_cannot_listen_does_not_connect_again_and_again)
{
    struct redis_server *server = redis_server_prepare(&(struct redis_server_setup){ .configuration = true });
    redis_server_configure(server, "rename-command SUBSCRIBE \"\"");
    redis_server_launch(server, "");
    REQUIRE(redis_server_started(server));
    hf_client *client = open_url("%s", server->url);
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    const int64_t before = redis_server_calls(server, "ping"); /* with which each connection begins */
    while (redis_server_calls(server, "ping") == before) {
        renew(held);
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(2);
    }
    for (int i = 0; i < 20; i++) {
        renew(held);
        pause_ms(10); /* for the keeper to hear the refusal, or there is nothing to be done again */
    }
    CHECK_INT(1, redis_server_calls(server, "ping") - before);
    held_finish(held, HF_OK);
    hf_close(client);
}
