/* SPDX-License-Identifier: MIT
 *
 * test_redis_redisson.c: dialect=redisson on a real server, against what Redisson's RLock writes, reads and publishes,
 * spelt out here. Redisson itself takes part in the interoperability tests.
 */
#include "redis_support.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"
#define CHANNEL "redisson_lock__channel:{" NAME "}"
#define THEIRS "6b9f1a52-2f4e-4a51-8a3c-5f0d8a1c2e3f:77"

static struct redis_server *serve_redisson(const char *arguments)
{
    char url[100];
    struct redis_server *server = serve(arguments);
    snprintf(url, sizeof url, "%s?dialect=redisson", server->url);
    use_url(url);
    return server;
}

static void take_as_redisson(struct redis_server *server, int count, uint32_t ttl_ms)
{
    redis_server_do(server, "HSET " NAME " " THEIRS " %d", count);
    if (ttl_ms)
        redis_server_do(server, "PEXPIRE " NAME " %u", ttl_ms);
}

/* Waits until `count` listen to the channel, one for each client. */
static void await_listeners(struct redis_server *server, const char *channel, int64_t count)
{
    for (int64_t there = -1; there != count;) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        redisReply *reply = redis_server_command(server, "PUBSUB NUMSUB %s", channel);
        REQUIRE_INT(2, reply->elements);
        there = reply->element[1]->integer;
        freeReplyObject(reply);
        pause_ms(1);
    }
}

/* Waits until nobody has sent anything for a while: whoever wants to wait does. */
static void await_quiet(struct redis_server *server)
{
    for (int64_t sent = -1; sent != redis_server_sent(server);) {
        sent = redis_server_sent(server);
        pause_ms(test_ms(150));
    }
}

/* ------------------------------------------------------------------------------------------------------- the format */

static void holder_of(struct redis_server *server, const char *key, char out[80])
{
    redisReply *reply = redis_server_command(server, "HGETALL %s", key);
    REQUIRE_INT(REDIS_REPLY_ARRAY, reply->type);
    REQUIRE_INT(2, reply->elements); /* one field, and no other */
    CHECK_STR("1", reply->element[1]->str);
    snprintf(out, 80, "%s", reply->element[0]->str);
    freeReplyObject(reply);
}

TEST(the_hash_is_as_redisson_writes_it)
{
    struct redis_server *server = serve_redisson("");
    regex_t form;
    char first[80], second[80], other[80];
    hf_client *client = open_client();
    hf_client *stranger_client = open_client();
    hf_options options = with_ttl(test_ms(20000));
    REQUIRE_INT(0, regcomp(&form, "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:[0-9]+$",
                           REG_EXTENDED | REG_NOSUB));
    hf_lock *lock = must_acquire(client, NAME, &options);
    hf_lock *again = must_acquire(client, NAME, &options); /* by the same thread */
    holder_of(server, NAME, first);
    CHECK_INT(0, regexec(&form, first, 0, NULL, 0));
    int64_t left = redis_server_number(server, "PTTL " NAME);
    CHECK(left > 0 && left <= test_ms(20000));
    CHECK_INT(HF_OK, hf_renew(lock, test_ms(60000), NULL));
    left = redis_server_number(server, "PTTL " NAME);
    CHECK(left > test_ms(20000) && left <= test_ms(60000));
    must_release(again);
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));

    hf_lock *here = must_acquire(client, "here", NULL);
    hf_lock *there = must_acquire(stranger_client, "there", NULL);
    holder_of(server, "here", second);
    holder_of(server, "there", other);
    CHECK_INT(0, regexec(&form, other, 0, NULL, 0));
    CHECK(strncmp(first, second, 37) == 0 && strcmp(first, second) != 0); /* one client: one uuid, another number */
    CHECK(strncmp(first, other, 36) != 0);
    must_release(here);
    must_release(there);
    regfree(&form);
    hf_close(stranger_client);
    hf_close(client);
}

/* The next thing that `spy` hears, as "channel payload"; "" if it hears nothing for a while. */
static void hear(redisContext *spy, char *out, size_t size, uint32_t patience_ms)
{
    const struct timeval limit = { .tv_sec = patience_ms / 1000, .tv_usec = patience_ms % 1000 * 1000L };
    void *got = NULL;
    *out = '\0';
    redisSetTimeout(spy, limit);
    if (redisGetReply(spy, &got) != REDIS_OK) {
        spy->err = 0;
        return;
    }
    const redisReply *reply = got;
    if (CHECK(reply->type == REDIS_REPLY_ARRAY && reply->elements == 4))
        snprintf(out, size, "%s %s", reply->element[2]->str, reply->element[3]->str);
    freeReplyObject(got);
}

TEST(each_release_is_published_once_on_the_right_channel)
{
    static const char *const names[][2] = { { NAME, CHANNEL " 0" },
                                            { "a b", "redisson_lock__channel:{a b} 0" },
                                            { "\xe9\x94\x81", "redisson_lock__channel:{\xe9\x94\x81} 0" },
                                            { "a{b}c", "redisson_lock__channel:a{b}c 0" },
                                            { "{x}", "redisson_lock__channel:{x} 0" },
                                            { "lone{", "redisson_lock__channel:lone{ 0" },
                                            { "lone}", "redisson_lock__channel:{lone}} 0" } };
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    redisContext *spy = redis_server_connect(server);
    char heard[200];
    freeReplyObject(redisCommand(spy, "PSUBSCRIBE *"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        must_release(must_acquire(client, names[i][0], NULL));
        hear(spy, heard, sizeof heard, 5000);
        CHECK_STR(names[i][1], heard);
    }
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK_INT(HF_OK, hf_break(client, NAME, NULL)); /* as forceUnlock(), after its holder was told */
    hear(spy, heard, sizeof heard, 5000);
    CHECK(strncmp(heard, "hf:c:", 5) == 0 && strstr(heard, ":b "));
    hear(spy, heard, sizeof heard, 5000);
    CHECK_STR(CHANNEL " 0", heard);
    CHECK_INT(HF_OK, hf_break(client, NAME, NULL));
    CHECK_INT(HF_LOST, hf_release(lock, NULL));
    hear(spy, heard, sizeof heard, 100);
    CHECK_STR("", heard); /* nothing was released, nothing is said */
    redisFree(spy);
    hf_close(client);
}

static int64_t latches(struct redis_server *server)
{
    return redis_server_number(server, "EVAL %s 0", "return #redis.call('keys', 'redisson_unlock_latch*')");
}

/* By itself it would go after twenty seconds. */
TEST(the_latch_goes_where_replicas_are_waited_for_too)
{
    struct redis_server *server = serve_redisson("");
    redis_server_start_replica(server);
    hf_client *client = open_url("%s?dialect=redisson&replicas=1", server->url);
    must_release(must_acquire(client, NAME, NULL));
    while (latches(server) != 0)
        await_a_moment();
    hf_close(client);
}

TEST(the_latch_is_set_and_goes)
{
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    const int64_t end = test_now_ns() + 15000000000LL; /* by itself it would go after twenty seconds */
    redis_server_do(server, "CONFIG SET notify-keyspace-events K$g");
    redisContext *spy = redis_server_connect(server);
    char heard[200] = "";
    regex_t form;
    REQUIRE_INT(0, regcomp(&form, "^__keyspace@0__:redisson_unlock_latch:[{]" NAME "[}]:[0-9a-f]{32} set$",
                           REG_EXTENDED | REG_NOSUB));
    freeReplyObject(redisCommand(spy, "PSUBSCRIBE __keyspace@0__:redisson_unlock_latch*"));
    must_release(must_acquire(client, NAME, NULL));
    while (latches(server) != 0 && test_now_ns() < end)
        pause_ms(1);
    CHECK_INT(0, latches(server));
    do /* what else happens to it */
        hear(spy, heard, sizeof heard, 1000);
    while (*heard && regexec(&form, heard, 0, NULL, 0) != 0);
    CHECK_INT(0, regexec(&form, heard, 0, NULL, 0));
    regfree(&form);
    redisFree(spy);
    hf_close(client);
}

/* The server does what it was told, and nobody hears the answer: the release is sent again, and disturbs nobody. */
TEST(a_release_that_is_sent_again_disturbs_nobody)
{
    struct redis_server *server = serve_redisson("");
    hf_client *client = NULL;
    hf_client_options limits = HF_CLIENT_OPTIONS_INIT;
    hf_options options = stranger(endless_ttl_ms());
    struct loss loss = { 0 };
    hf_error err = { 0 };
    char holder[80];
    limits.timeout_ms = test_ms(300);
    record_loss(&options, &loss);
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &limits, &err), &err);
    must_release(must_acquire(client, NAME, &options)); /* now the server knows the scripts */
    hf_lock *lock = must_acquire(client, NAME, &options);
    const int64_t published = redis_server_calls(server, "publish");
    const int64_t before = redis_server_sent(server);
    redis_server_pause(server);
    CHECK_STATUS(HF_UNKNOWN, hf_release(lock, &err), &err);
    redis_server_continue(server);
    while (redis_server_number(server, "EXISTS " NAME))
        pause_ms(1);
    take_as_redisson(server, 1, 600000);
    while (redis_server_sent(server) < before + 2 && test_now_ns() < test_deadline_ns())
        pause_ms(1);
    await_quiet(server);
    holder_of(server, NAME, holder);
    CHECK_STR(THEIRS, holder);
    CHECK_INT(1, redis_server_calls(server, "publish") - published);
    CHECK_INT(0, gate_count(&loss.told)); /* it was held until it was released */
    hf_close(client);
}

/* ----------------------------------------------------------------------------------------------------------- theirs */

static void check_wait_ends(hf_client *client)
{
    struct waiter waiter;
    hf_options options = stranger(0);
    options.wait_ms = test_ms(500);
    waiter_start(&waiter, client, NAME, &options);
    waiter_join(&waiter, HF_TIMEOUT);
}

TEST(a_lock_of_redisson_keeps_us_out_and_stays)
{
    static const char *const commands[] = { "HSET " NAME " " THEIRS " 2",
                                            "HSET " NAME " mode read " THEIRS " 1", /* a lock for reading and writing */
                                            "HSET " NAME " mode write " THEIRS ":write 1" };
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    for (size_t i = 0; i < 3; i++) {
        redis_server_do(server, commands[i]);
        redis_server_do(server, "PEXPIRE " NAME " 600000");
        redisReply *before = redis_server_command(server, "HGETALL " NAME);
        check_busy(client, NAME);
        check_wait_ends(client);
        redisReply *now = redis_server_command(server, "HGETALL " NAME);
        REQUIRE_INT(before->elements, now->elements);
        for (size_t j = 0; j < now->elements; j++)
            CHECK_STR(before->element[j]->str, now->element[j]->str);
        freeReplyObject(before);
        freeReplyObject(now);
        CHECK(redis_server_number(server, "PTTL " NAME) <= 600000);
        redis_server_do(server, "DEL " NAME);
        check_free(client, NAME);
    }
    hf_close(client);
}

TEST(a_key_that_is_no_hash_is_named_and_left_alone)
{
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    char value[16];
    redis_server_do(server, "SET " NAME " theirs");
    refuse_lock(client, NAME, HF_DENIED, "another type");
    CHECK_STATUS(HF_DENIED, hf_break(client, NAME, &err), &err);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    redis_server_do(server, "DEL " NAME);
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "SET " NAME " theirs"); /* what we had is gone, whatever came in its place */
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    redis_server_do(server, "DEL " NAME);
    lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "SET " NAME " theirs");
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    hf_close(client);
}

/* As their unlock(), their spin lock that says nothing, and their lock without an end. */
TEST(releases_of_every_kind_are_noticed)
{
    static const struct {
        uint32_t ttl_ms;
        bool publish;
    } kinds[] = { { 600000, true }, { 1500, false }, { 0, false }, { 0, true } };
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct waiter waiter;
        take_as_redisson(server, 1, kinds[i].ttl_ms);
        waiter_start(&waiter, client, NAME, NULL);
        await_listeners(server, CHANNEL, 1);
        if (kinds[i].ttl_ms != 1500)
            CHECK(!gate_await_for(&waiter.ended, 1, 300));
        redis_server_do(server, "DEL " NAME);
        if (kinds[i].publish)
            redis_server_do(server, "PUBLISH " CHANNEL " 0");
        waiter_finish(&waiter);
    }
    hf_close(client);
}

TEST_LIMIT(a_message_wakes_one_waiter_of_each_client, 40)
{
    enum { CLIENTS = 3, EACH = 4 };
    struct redis_server *server = serve_redisson("");
    struct waiter waiters[CLIENTS * EACH];
    hf_client *clients[CLIENTS];
    hf_options options = stranger(endless_ttl_ms());
    take_as_redisson(server, 1, 600000);
    for (int i = 0; i < CLIENTS * EACH; i++) {
        if (i < CLIENTS)
            clients[i] = open_client();
        waiter_start(&waiters[i], clients[i % CLIENTS], NAME, &options);
    }
    await_listeners(server, CHANNEL, CLIENTS);
    await_quiet(server);
    int64_t sent = redis_server_sent(server);
    redis_server_do(server, "PUBLISH " CHANNEL " 0");
    await_quiet(server);
    CHECK_INT(CLIENTS, redis_server_sent(server) - sent);
    sent = redis_server_sent(server);
    redis_server_do(server, "PUBLISH " CHANNEL " 1"); /* to all, as the end of a writer */
    await_quiet(server);
    CHECK_INT(CLIENTS * EACH, redis_server_sent(server) - sent);
    redis_server_do(server, "DEL " NAME);
    redis_server_do(server, "PUBLISH " CHANNEL " 0");
    for (int served = 0; served < CLIENTS * EACH; served++) { /* whoever it is */
        int i = -1;
        while (i < 0 || !waiters[i].client || !gate_count(&waiters[i].ended)) {
            REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
            i = (i + 1) % (CLIENTS * EACH);
            if (i == 0)
                pause_ms(1);
        }
        waiter_finish(&waiters[i]);
        waiters[i].client = NULL;
    }
    for (int i = 0; i < CLIENTS; i++)
        hf_close(clients[i]);
}

struct couple {
    struct gate ready, got;
};

static void wait_shortly(void *arg, uint32_t index)
{
    struct couple *couple = ((void **)arg)[0];
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = NULL;
    options.wait_ms = index == 0 ? 0 : test_ms(400);
    if (hf_acquire(&lock, ((void **)arg)[1], NAME, &options, NULL) == HF_OK && index == 0)
        gate_pass(&couple->got);
    hf_release(lock, NULL);
}

static void wait_as_a_couple(void *arg)
{
    void *both[2] = { arg, open_client() };
    gate_pass(&((struct couple *)arg)->ready);
    run_threads(6, wait_shortly, both);
    hf_close(both[1]);
}

/* Of one client's waiters one was called, and its time was over before it could ask: the call is for another one. */
TEST_LIMIT(a_waiter_that_was_called_and_leaves_passes_the_call_on, 60)
{
    struct redis_server *server = serve_redisson("");
    for (int round = 0; round < 3; round++) {
        struct couple *couple = shared_new(sizeof *couple);
        take_as_redisson(server, 1, 600000);
        const pid_t pid = helper_start(wait_as_a_couple, couple);
        await_listeners(server, CHANNEL, 1);
        await_quiet(server);
        helper_stop(pid);
        redis_server_do(server, "DEL " NAME);
        redis_server_do(server, "PUBLISH " CHANNEL " 0");
        pause_ms(test_ms(420));
        helper_continue(pid);
        gate_await(&couple->got, 1); /* long before the end that it was told of */
        helper_join(pid);
    }
}

/* --------------------------------------------------------------------------------------------------------- together */

TEST(a_release_needs_no_memory)
{
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, NAME, NULL);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    refuse_lock(client, "another", HF_UNAVAILABLE, "maxmemory");
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    hf_close(client);
}

struct crowd {
    hf_client *clients[8];
    struct witness witness;
};

static void visit(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    hf_options options = stranger(endless_ttl_ms());
    for (int i = 0; i < 6; i++) {
        hf_lock *lock = must_acquire(crowd->clients[index % 8], NAME, &options);
        witness_visit(&crowd->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
}

TEST_LIMIT(many_clients_take_turns, 60)
{
    serve_redisson("");
    struct crowd *crowd = shared_new(sizeof *crowd);
    for (int i = 0; i < 8; i++)
        crowd->clients[i] = open_client();
    run_threads(32, visit, crowd);
    witness_check(&crowd->witness);
    CHECK_INT(32 * 6, crowd->witness.entries);
    for (int i = 0; i < 8; i++)
        hf_close(crowd->clients[i]);
}

static int count_shown(const hf_info *info, void *arg)
{
    int *shown = arg;
    shown[0]++;
    shown[1] += info->token != 0;
    CHECK_STR(NAME, info->name);
    CHECK_STR(info->token ? "mine" : THEIRS, info->note);
    CHECK(info->remaining_ms > 0);
    return 0;
}

TEST(holders_of_both_kinds_are_shown)
{
    struct redis_server *server = serve_redisson("");
    hf_client *client = open_client();
    hf_options options = stranger(0);
    hf_error err = { 0 };
    int ours[2] = { 0 }, theirs[2] = { 0 };
    options.note = "mine";
    hf_lock *lock = must_acquire(client, NAME, &options);
    CHECK_STATUS(HF_OK, hf_inspect(client, "", count_shown, ours, &err), &err);
    CHECK(ours[0] == 1 && ours[1] == 1);
    must_release(lock);
    take_as_redisson(server, 2, 600000);
    CHECK_STATUS(HF_OK, hf_inspect(client, NAME, count_shown, theirs, &err), &err);
    CHECK(theirs[0] == 1 && theirs[1] == 0);
    hf_close(client);
}
