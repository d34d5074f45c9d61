/* SPDX-License-Identifier: MIT
 *
 * test_redis_replicas.c: locks that replicas, or a disk, must confirm before anybody may rely on them.
 */
#include "redis_support.h"

#define NAME "the-lock"
/* How long a missing replica is waited for: long enough for one that is only slow. */
#define PATIENCE "replica_timeout=500"

TEST(a_lock_is_on_the_replica_when_it_is_granted)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    hf_client *client = open_url("%s?replicas=1", server->url);
    for (unsigned i = 0; i < 20; i++) {
        const struct name name = numbered_name("lock", i);
        hf_lock *lock = must_acquire(client, name.text, NULL);
        CHECK(server_has_owner(replica, name.text));
        must_release(lock);
    }
    hf_close(client);
}

TEST(a_lock_that_no_replica_confirms_is_not_granted_and_not_kept)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    hf_client *client = open_url("%s?replicas=1&" PATIENCE, server->url);
    redis_server_pause(replica);
    refuse_lock(client, NAME, HF_UNAVAILABLE, "replicas");
    CHECK(!server_has_owner(server, NAME));
    redis_server_continue(replica);
    check_becomes_free(client, NAME); /* it works again */
    redis_server_kill(replica);
    refuse_lock(client, NAME, HF_UNAVAILABLE, "replicas");
    CHECK(!server_has_owner(server, NAME));
    hf_close(client);
}

TEST(more_replicas_than_there_are_is_refused)
{
    struct redis_server *server = serve("");
    redis_server_start_replica(server);
    hf_client *client = open_url("%s?replicas=2&replica_timeout=100", server->url);
    refuse_lock(client, NAME, HF_UNAVAILABLE, "2");
    CHECK(!server_has_owner(server, NAME));
    hf_close(client);
}

/* A lock that is handed over is a new one, and must be confirmed like any other. */
TEST(a_lock_that_was_handed_over_is_on_the_replica_too)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    struct waiter waiter;
    hf_client *client = open_url("%s?replicas=1&replica_timeout=5000", server->url);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, client, NAME, NULL);
    await_queue(server, NAME, 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK(server_has_owner(replica, NAME));
    CHECK_INT(waiter.token, redis_server_number(replica, "HGET hf:{%s} t", NAME));
    must_release(waiter.lock);
    hf_close(client);
}

TEST(a_lock_that_was_handed_over_and_not_confirmed_is_not_kept)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    struct waiter waiter;
    hf_client *client = open_url("%s?replicas=1&" PATIENCE, server->url);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    hf_options options = stranger(test_ms(2000)); /* which is also how long the waiter bears with it */
    waiter_start(&waiter, client, NAME, &options);
    await_queue(server, NAME, 1);
    redis_server_pause(replica);
    must_release(lock);
    waiter_join(&waiter, HF_UNAVAILABLE);
    check_words(&waiter.err, "replicas");
    CHECK(!server_has_owner(server, NAME)); /* it was given back, and has not just ended */
    CHECK_INT(0, server_waiters(server, NAME));
    redis_server_continue(replica);
    check_becomes_free(client, NAME);
    hf_close(client);
}

/* It waits for the replica as it would wait for a server. */
TEST(a_wait_outlasts_a_replica_that_comes_back)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    struct waiter waiter;
    hf_client *client = open_url("%s?replicas=1&replica_timeout=50", server->url);
    redis_server_pause(replica);
    waiter_start(&waiter, client, NAME, NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 300));
    redis_server_continue(replica);
    waiter_join(&waiter, HF_OK);
    CHECK(server_has_owner(replica, NAME));
    must_release(waiter.lock);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------------- disk */

/* Redis has WAITAOF since 7.2, and this is whatever Redis the system has. */
TEST(waiting_for_the_disk_works_or_is_refused_with_the_reason)
{
    struct redis_server *server = serve("--appendonly yes");
    redisReply *reply = redis_server_command(server, "WAITAOF 0 0 1");
    const bool has_it = reply->type != REDIS_REPLY_ERROR;
    freeReplyObject(reply);
    hf_client *client = open_url("%s?fsync=yes&replica_timeout=5000", server->url);
    if (has_it) {
        must_release(must_acquire(client, NAME, NULL));
    } else {
        refuse_lock(client, NAME, HF_UNSUPPORTED, "WAITAOF");
        CHECK(!server_has_owner(server, NAME));
    }
    hf_close(client);
}
