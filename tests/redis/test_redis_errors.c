/* SPDX-License-Identifier: MIT
 *
 * test_redis_errors.c: every refusal that a real server can be brought to, as a status and a sentence, with nothing
 * left behind and nothing lost that was held before.
 */
#include "redis_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "the-lock"
#define OTHER "the-other-lock"

/* ---------------------------------------------------------------------------------------------------- out of memory */

TEST(out_of_memory_refuses_new_locks_and_keeps_the_old_ones_working)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    struct loss loss = { 0 };
    hf_client *client = open_client();
    hf_client *late = open_client();
    hf_options options = with_ttl(test_ms(5000));
    hf_error err = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    hf_options waiting = stranger(test_ms(5000));
    waiter_start(&waiter, client, NAME, &waiting);
    await_queue(server, NAME, 1);

    redis_server_do(server, "CONFIG SET maxmemory 1");
    refuse_lock(late, OTHER, HF_UNAVAILABLE, "maxmemory");
    CHECK(!server_has_keys(server, OTHER));
    check_busy(late, NAME); /* to say so needs no memory */
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK(hf_remaining_ms(lock) > test_ms(4000));
    must_release(lock);
    waiter_join(&waiter, HF_OK); /* handed over … */
    CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, &err), &err);
    CHECK(hf_remaining_ms(waiter.lock) > CLAIM_MS); /* … and confirmed */
    must_release(waiter.lock);
    CHECK_INT(0, gate_count(&loss.told));
    CHECK(!server_has_owner(server, NAME));

    redis_server_do(server, "CONFIG SET maxmemory 0");
    check_free(late, OTHER);
    hf_close(late);
    hf_close(client);
}

/* Waiting needs a place in the queue, which needs memory: the wait is refused, or goes on until there is some. */
TEST(a_wait_outlasts_a_lack_of_memory)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    hf_options options = stranger(0);
    options.wait_ms = 200;
    waiter_start(&waiter, client, NAME, &options);
    waiter_join(&waiter, HF_UNAVAILABLE);
    check_words(&waiter.err, "maxmemory");
    CHECK_INT(0, server_waiters(server, NAME));
    waiter_start(&waiter, client, NAME, NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 100));
    redis_server_do(server, "CONFIG SET maxmemory 0");
    await_queue(server, NAME, 1);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------- other keys */

TEST(a_key_of_another_program_is_left_alone)
{
    struct redis_server *server = serve("");
    char value[16];
    hf_client *client = open_client();
    redis_server_do(server, "SET hf:{%s} theirs", NAME);
    refuse_lock(client, NAME, HF_DENIED, "hf:{" NAME "}");
    redis_server_text(server, value, sizeof value, "GET hf:{%s}", NAME);
    CHECK_STR("theirs", value);
    redis_server_do(server, "DEL hf:{%s}", NAME);
    check_free(client, NAME);
    hf_close(client);
}

TEST(a_queue_of_another_program_is_left_alone)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    char value[16];
    hf_client *client = open_client();
    redis_server_do(server, "SET hf:{%s}:q theirs", NAME);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, client, NAME, NULL);
    waiter_join(&waiter, HF_DENIED);
    must_release(lock);
    redis_server_text(server, value, sizeof value, "GET hf:{%s}:q", NAME);
    CHECK_STR("theirs", value);
    check_free(client, NAME);
    hf_close(client);
}

/* ----------------------------------------------------------------------------------------------- replicas and disks */

TEST(a_replica_is_named_as_such)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    hf_client *client = open_url("%s", replica->url);
    refuse_lock(client, NAME, HF_UNAVAILABLE, "replica");
    CHECK(!server_has_keys(server, NAME));
    hf_close(client);
}

TEST(too_few_replicas_to_write_is_named)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_options options = with_ttl(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    hf_error err = { 0 };
    redis_server_do(server, "CONFIG SET min-replicas-to-write 1");
    refuse_lock(client, OTHER, HF_UNAVAILABLE, "min-replicas-to-write");
    CHECK(!server_has_keys(server, OTHER));
    /* A release that is refused is finished in the background. */
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, &err), &err);
    check_words(&err, "min-replicas-to-write");
    redis_server_do(server, "CONFIG SET min-replicas-to-write 0");
    check_becomes_free(client, NAME);
    hf_close(client);
}

TEST(a_disk_that_cannot_be_written_is_named)
{
    struct redis_server *server = serve("--enable-protected-configs yes");
    char folder[300], info[4000];
    hf_client *client = open_client();
    hf_options options = with_ttl(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    hf_error err = { 0 };
    /* Root may write everywhere, but not in a folder that is gone. */
    snprintf(folder, sizeof folder, "%s/gone", server->directory);
    REQUIRE_INT(0, mkdir(folder, 0700));
    redis_server_do(server, "CONFIG SET save %s", "3600 1");
    redis_server_do(server, "CONFIG SET dir %s", folder);
    REQUIRE_INT(0, rmdir(folder));
    redis_server_do(server, "BGSAVE");
    do {
        await_a_moment();
        redis_server_text(server, info, sizeof info, "INFO persistence");
    } while (!strstr(info, "rdb_last_bgsave_status:err"));
    refuse_lock(client, OTHER, HF_UNAVAILABLE, "stop-writes-on-bgsave-error");
    CHECK(!server_has_keys(server, OTHER));
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, &err), &err);
    redis_server_do(server, "CONFIG SET stop-writes-on-bgsave-error no");
    check_becomes_free(client, NAME);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------- busy and loading */

static void await_reply(struct redis_server *server, const char *code)
{
    bool there = false;
    while (!there) {
        redisReply *reply = redis_server_command(server, "PING");
        there = strncmp(reply->str, code, strlen(code)) == 0;
        freeReplyObject(reply);
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    }
}

TEST(a_script_that_does_not_end_is_named_and_outlasted)
{
    struct redis_server *server = serve("--busy-reply-threshold 20");
    struct waiter waiter;
    struct loss loss = { 0 };
    int done = 0;
    hf_client *client = open_client();
    hf_options options = with_ttl(test_ms(4000));
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    redisContext *guilty = redis_server_connect(server);
    REQUIRE(guilty != NULL);
    redisAppendCommand(guilty, "EVAL %s 0", "while true do end");
    do
        REQUIRE_INT(REDIS_OK, redisBufferWrite(guilty, &done));
    while (!done);
    await_reply(server, "BUSY");
    refuse_lock(client, OTHER, HF_UNAVAILABLE, "SCRIPT KILL");
    refuse_url(HF_UNAVAILABLE, "SCRIPT KILL", "%s", server->url);
    waiter_start(&waiter, client, OTHER, NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 100));
    redis_server_do(server, "SCRIPT KILL");
    waiter_finish(&waiter);
    must_release(lock);
    CHECK_INT(0, gate_count(&loss.told));
    redisFree(guilty);
    hf_close(client);
}

TEST_LIMIT(a_server_that_is_loading_is_named_and_outlasted, 40)
{
    struct redis_server *server = serve("--save 3600 1");
    struct waiter waiter;
    hf_client *client = open_client();
    redis_server_do(server, "EVAL %s 0", "for i = 1, 2000 do redis.call('set', 'key' .. i, string.rep('x', 100)) end");
    redis_server_do(server, "SAVE");
    redis_server_kill(server);
    /* A millisecond for each key, and a look at the network every kilobyte: two seconds of loading at least. */
    redis_server_launch(server, "--key-load-delay 1000 --loading-process-events-interval-bytes 1024");
    hf_error err = { 0 };
    for (;;) {
        hf_client *early = NULL;
        CHECK_STATUS(HF_UNAVAILABLE, hf_open(&early, server->url, NULL, &err), &err);
        REQUIRE(early == NULL);
        if (strstr(err.message, "loading"))
            break;
        pause_ms(2); /* it does not listen yet */
    }
    waiter_start(&waiter, client, NAME, NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 100));
    redis_server_await(server);
    waiter_finish(&waiter);
    hf_close(client);
}

/* A replica that begins anew, or an administrator's doing: connections stay, and nothing on them is done. */
TEST_LIMIT(a_server_that_loads_while_it_is_used_is_named_and_outlasted, 40)
{
    struct redis_server *server = serve("--save 3600 1 --enable-debug-command yes --key-load-delay 1000 "
                                        "--loading-process-events-interval-bytes 1024");
    struct waiter waiter;
    int done = 0;
    hf_client *client = open_client();
    must_release(must_acquire(client, NAME, NULL));
    redis_server_do(server, "EVAL %s 0", "for i = 1, 2000 do redis.call('set', 'key' .. i, string.rep('x', 100)) end");
    redisContext *guilty = redis_server_connect(server);
    REQUIRE(guilty != NULL);
    redisAppendCommand(guilty, "DEBUG RELOAD");
    do
        REQUIRE_INT(REDIS_OK, redisBufferWrite(guilty, &done));
    while (!done);
    await_reply(server, "LOADING");
    refuse_lock(client, NAME, HF_UNAVAILABLE, "loading");
    waiter_start(&waiter, client, NAME, NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 100));
    waiter_finish(&waiter);
    redisFree(guilty);
    hf_close(client);
}

/* What it says of a lock is what it last heard from its master. */
TEST(a_replica_is_not_believed_that_a_lock_of_the_plain_dialect_is_busy)
{
    struct redis_server *server = serve("");
    hf_client *client = open_url("%s?dialect=plain", server->url);
    redis_server_do(server, "SET the-lock somebody PX %u", endless_ttl_ms());
    check_busy(client, "the-lock");
    redis_server_do(server, "REPLICAOF 127.0.0.1 1");
    refuse_lock(client, "the-lock", HF_UNAVAILABLE, "replica");
    hf_close(client);
}

/* After a demotion only a master is listened to; where nobody can be asked for the role, whoever is there. */
TEST_LIMIT(a_server_without_the_command_ROLE_that_was_a_replica_for_a_while_is_listened_to_again, 40)
{
    struct redis_server *server = redis_server_prepare(&(struct redis_server_setup){ .configuration = true });
    redis_server_configure(server, "rename-command ROLE \"\"");
    redis_server_launch(server, "");
    REQUIRE(redis_server_started(server));
    hf_client *client = open_url("%s", server->url), *other = open_url("%s", server->url);
    const hf_options options = stranger(endless_ttl_ms());
    struct waiter waiter;
    hf_lock *lock = must_acquire(other, "the-lock", &options);
    redis_server_do(server, "REPLICAOF 127.0.0.1 1");
    refuse_lock(client, "another-lock", HF_UNAVAILABLE, "replica");
    redis_server_do(server, "REPLICAOF NO ONE");
    waiter_start(&waiter, client, "the-lock", &options);
    await_queue(server, "the-lock", 1);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(other);
    hf_close(client);
}
