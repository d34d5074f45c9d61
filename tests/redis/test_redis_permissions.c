/* SPDX-License-Identifier: MIT
 *
 * test_redis_permissions.c: users that the server allows less than everything. What is missing is named, and what is
 * named is enough.
 */
#include "redis_support.h"

#include <stdio.h>
#include <string.h>

#define NAME "the-lock"

static void allow(struct redis_server *server, const char *rules)
{
    redisReply *reply;
    char command[700];
    snprintf(command, sizeof command, "ACL SETUSER bob reset on >pw %s", rules);
    reply = redis_server_command(server, command);
    if (reply->type == REDIS_REPLY_ERROR)
        FAIL("%s: %s", command, reply->str);
    freeReplyObject(reply);
}

static hf_client *open_as_bob(const struct redis_server *server)
{
    return open_url("redis://bob:pw@127.0.0.1:%d", server->port);
}

TEST(a_user_who_may_not_run_scripts_is_told_what_is_needed)
{
    struct redis_server *server = serve("");
    allow(server, "~* &* +@all -evalsha -eval");
    hf_client *client = open_as_bob(server);
    refuse_lock(client, NAME, HF_DENIED, "+evalsha");
    CHECK(!server_has_keys(server, NAME));
    hf_close(client);
}

TEST(a_user_who_may_not_use_the_keys_is_told_what_is_needed)
{
    struct redis_server *server = serve("");
    allow(server, "~other:* &* +@all");
    hf_client *client = open_as_bob(server);
    refuse_lock(client, NAME, HF_DENIED, "~");
    CHECK(!server_has_keys(server, NAME));
    hf_close(client);
}

/* It can take a free lock, but not wait for one: nobody could tell it that its turn has come. */
TEST(a_user_who_may_not_listen_is_told_what_is_needed)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    allow(server, "~* resetchannels +@all");
    hf_client *bob = open_as_bob(server);
    check_free(bob, NAME);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, bob, NAME, NULL);
    waiter_join(&waiter, HF_DENIED);
    check_words(&waiter.err, "&hf:c:*");
    CHECK_INT(0, server_waiters(server, NAME));
    must_release(lock);
    hf_close(client);
    hf_close(bob);
}

/* One who may hold but not publish must not take the others' turn with it. */
TEST(a_holder_who_may_not_publish_does_not_strand_the_waiters)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    allow(server, "~* resetchannels +@all");
    hf_client *bob = open_as_bob(server);
    hf_client *client = open_client();
    hf_options options = stranger(short_ttl_ms());
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(bob, NAME, &options);
    waiter_start(&waiter, client, NAME, NULL);
    await_queue(server, NAME, 1);
    CHECK_STATUS(HF_DENIED, hf_release(lock, &err), &err);
    check_words(&err, "&hf:c:*");
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(bob);
}

/* The rules in the message, with PREFIX as the URL has it. */
static void rules_of_message(char *out, size_t size, const char *message)
{
    size_t used = 0;
    out[0] = 0;
    const char *word = strstr(message, "it needs ");
    if (!word) {
        FAIL("no rules in the message: %s", message);
        test_abort();
    }
    word += strlen("it needs ");
    while (*word && strchr("+~&", *word)) {
        const size_t length = strcspn(word, " ,;");
        if (strncmp(word, "~PREFIX", 7) == 0)
            used += (size_t)snprintf(out + used, size - used, "~hf:%.*s ", (int)length - 7, word + 7);
        else
            used += (size_t)snprintf(out + used, size - used, "%.*s ", (int)length, word);
        REQUIRE(used < size);
        word += length;
        word += strspn(word, " ");
    }
}

struct seen {
    int locks;
    int64_t waiters;
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->locks++;
    seen->waiters = info->waiters;
    return 0;
}

static void check_once(hf_client *client)
{
    hf_options options = stranger(0);
    hf_error err = { 0 };
    struct seen seen = { 0 };
    options.once_per_ms = 3600000;
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, NAME, &options), &err), &err);
    CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, see, &seen, &err), &err);
    CHECK_INT(1, seen.locks);
    CHECK_STATUS(HF_OK, hf_forget_done(client, NAME, &err), &err);
    must_release(must_acquire(client, NAME, &options));
}

TEST(the_rules_that_the_message_names_are_enough_for_everything)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    struct seen seen = { 0 };
    char rules[400];
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    allow(server, "+ping");
    hf_client *bob = open_as_bob(server);
    CHECK_STATUS(HF_DENIED, hf_try_acquire(&lock, bob, NAME, NULL, &err), &err);
    rules_of_message(rules, sizeof rules, err.message);
    test_note("rules: %s", rules);
    allow(server, rules); /* which closes bob's connections */
    hf_close(bob);
    bob = open_as_bob(server);
    lock = must_acquire(bob, NAME, NULL);
    waiter_start(&waiter, bob, NAME, NULL);
    await_queue(server, NAME, 1);
    CHECK_STATUS(HF_OK, hf_inspect(bob, NULL, see, &seen, &err), &err);
    CHECK_INT(1, seen.locks);
    CHECK_INT(1, seen.waiters);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, &err), &err);
    CHECK_STATUS(HF_OK, hf_break(bob, NAME, &err), &err);
    hf_release(waiter.lock, NULL);
    check_free(bob, NAME);
    CHECK_STATUS(HF_OK, hf_guard(bob, NAME, 1, &err), &err);
    check_once(bob);
    hf_close(bob);
}
