/* SPDX-License-Identifier: MIT
 *
 * test_redis_plain.c: dialect=plain on a real server: a lock that is shared with programs which know nothing of
 * Holdfast. The other program is played by the commands that it would send. For releases see test_redis_ladder.c.
 */
#include "redis_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"
#define LINE "hf:{" NAME "}:w" /* who waits, among Holdfast's clients */

static struct redis_server *serve_plain(const char *arguments)
{
    char url[100];
    struct redis_server *server = serve(arguments);
    snprintf(url, sizeof url, "%s?dialect=plain", server->url);
    use_url(url);
    return server;
}

static void await_line(struct redis_server *server, int64_t count)
{
    while (redis_server_number(server, "ZCARD " LINE) != count)
        await_a_moment();
}

/* What the server has at `key`, value and type, in its own packing. */
static redisReply *packed(struct redis_server *server, const char *key)
{
    return redis_server_command(server, "DUMP %s", key);
}

static void check_packed(struct redis_server *server, const char *key, redisReply *before)
{
    redisReply *now = packed(server, key);
    CHECK_INT(REDIS_REPLY_STRING, before->type);
    if (CHECK_INT(before->type, now->type) && CHECK_INT(before->len, now->len))
        CHECK(memcmp(before->str, now->str, before->len) == 0);
    freeReplyObject(before);
    freeReplyObject(now);
}

static void check_wait_ends(hf_client *client, const char *name, uint32_t wait_ms)
{
    struct waiter waiter;
    hf_options options = stranger(0);
    options.wait_ms = wait_ms;
    waiter_start(&waiter, client, name, &options);
    waiter_join(&waiter, HF_TIMEOUT);
}

/* ------------------------------------------------------------------------------------------------------- the format */

TEST(the_key_is_the_name_and_the_value_a_secret)
{
    static const char *const names[] = { NAME, "a b", "\xe9\x94\x81", "x{t}y", "{t}", "t", "}", "a:b", "hf:{x}" };
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    char last[80] = "", value[80], type[16];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hf_options options = stranger(test_ms(20000));
        hf_lock *lock = must_acquire(client, names[i], &options);
        redis_server_text(server, type, sizeof type, "TYPE %s", names[i]);
        CHECK_STR("string", type);
        redis_server_text(server, value, sizeof value, "GET %s", names[i]);
        CHECK(strlen(value) >= 16 && strcmp(value, last) != 0);
        memcpy(last, value, sizeof last);
        const int64_t left = redis_server_number(server, "PTTL %s", names[i]);
        CHECK(left > 0 && left <= test_ms(20000));
        must_release(lock);
        CHECK_INT(0, redis_server_number(server, "EXISTS %s", names[i]));
    }
    hf_close(client);
    client = open_url("%s&prefix=app:", store_url);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK_INT(1, redis_server_number(server, "EXISTS app:" NAME));
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    must_release(lock);
    hf_close(client);
}

/* Whatever stands beside a lock belongs to this lock alone. */
TEST(locks_whose_names_differ_by_braces_share_nothing)
{
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    hf_options options = stranger(0);
    hf_lock *bare = must_acquire(client, "t", &options);
    const int64_t companions = redis_server_number(server, "DBSIZE");
    hf_lock *braces = must_acquire(client, "{t}", &options);
    CHECK_INT(2 * companions, redis_server_number(server, "DBSIZE"));
    must_release(bare);
    must_release(braces);
    hf_close(client);
}

TEST(tokens_grow_whatever_happens_in_between)
{
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    hf_options options = stranger(100);
    uint64_t last = 0;
    options.renew = HF_RENEW_OFF;
    for (int i = 0; i < 8; i++) {
        hf_lock *lock = must_acquire(client, NAME, &options);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        if (i == 1) /* its time ends */
            await_lost_fd(lock);
        if (i == 3)
            redis_server_do(server, "FLUSHALL");
        if (i == 4) /* somebody else comes, takes it, and it ends */
            redis_server_do(server, "SET " NAME " theirs PX 30");
        if (i == 5) /* held by the same value all along */
            CHECK_INT(HF_OK, hf_break(client, NAME, NULL));
        hf_release(lock, NULL);
    }
    /* A server whose clock was ahead. */
    redis_server_do(server, "SET hf:{" NAME "}:t %s", "9000000000000000 x 1 1 host 1 ");
    hf_lock *lock = must_acquire(client, NAME, &options);
    CHECK(hf_token(lock) > 9000000000000000);
    must_release(lock);
    hf_close(client);
}

/* -------------------------------------------------------------------------------------------------- other programs' */

TEST(values_of_every_kind_keep_us_out_and_stay)
{
    static const struct {
        const char *bytes;
        size_t size;
    } values[] = {
#define BYTES(text) { text, sizeof(text) - 1 }
        BYTES("kfVb0cEKMy7rXQJeNs3zOw=="),               /* redsync */
        BYTES("kfVb0cEKMy7rXQJeNs3zOw{\"host\":\"a\"}"), /* redislock with metadata */
        BYTES("8d1f7ce0b2ae4e7f9f0e1f2a3b4c5d6e"),       /* node-redlock, redis-py */
        BYTES("2f1c6b1e-6f0c-4f0e-9a44-0d8a3f6b7c1d"),   /* redlock-rb */
        BYTES("\x00\xff\x01\r\n\x80 binary\x00"),        /* rslock */
        BYTES(""),
        BYTES("0000000000000001.1"), /* as if it were ours */
#undef BYTES
    };
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        redis_server_do(server, "SET " NAME " %b PX 600000", values[i].bytes, values[i].size);
        redisReply *before = packed(server, NAME);
        check_busy(client, NAME);
        check_wait_ends(client, NAME, 60);
        check_packed(server, NAME, before);
        CHECK(redis_server_number(server, "PTTL " NAME) <= 600000);
        redis_server_do(server, "DEL " NAME);
        check_free(client, NAME);
    }
    hf_close(client);
}

TEST(data_of_every_type_keeps_us_out_and_stays)
{
    static const char *const commands[] = { "HSET " NAME " uuid:1 2", "RPUSH " NAME " a b", "ZADD " NAME " 1 token",
                                            "SADD " NAME " a", "XADD " NAME " * a b" };
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        hf_error err = { 0 };
        redis_server_do(server, commands[i]);
        redisReply *before = packed(server, NAME);
        check_busy(client, NAME);
        check_wait_ends(client, NAME, 60);
        /* The name of a lock is the name of a key: to break it must not destroy what was never a lock. */
        CHECK_STATUS(HF_DENIED, hf_break(client, NAME, &err), &err);
        check_packed(server, NAME, before);
        redis_server_do(server, "DEL " NAME);
        check_free(client, NAME);
    }
    hf_close(client);
}

TEST(companions_of_another_type_are_named_and_left_alone)
{
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    redis_server_do(server, "RPUSH hf:{" NAME "}:t theirs");
    refuse_lock(client, NAME, HF_DENIED, "another type");
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    CHECK_INT(1, redis_server_number(server, "LLEN hf:{" NAME "}:t"));
    redis_server_do(server, "DEL hf:{" NAME "}:t");
    redis_server_do(server, "SET " LINE " theirs");
    refuse_lock(client, NAME, HF_DENIED, "another type");
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    redis_server_do(server, "DEL " LINE);
    check_free(client, NAME);
    hf_close(client);
}

TEST(a_late_release_leaves_the_next_holder_alone)
{
    struct redis_server *server = serve_plain("");
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "SET " NAME " theirs PX 600000"); /* as if it had ended, and they had taken it */
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    char value[16];
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    redis_server_do(server, "DEL " NAME);
    lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "SET " NAME " theirs PX 600000");
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK(redis_server_number(server, "PTTL " NAME) <= 600000);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    hf_close(client);
}

TEST(a_holder_without_an_end_is_waited_for)
{
    struct redis_server *server = serve_plain("");
    struct waiter waiter;
    hf_client *client = open_client();
    redis_server_do(server, "SET " NAME " theirs");
    check_busy(client, NAME);
    waiter_start(&waiter, client, NAME, NULL);
    await_line(server, 1);
    CHECK_INT(-1, redis_server_number(server, "PTTL " NAME)); /* waiting for it gives it no end */
    CHECK(!gate_await_for(&waiter.ended, 1, 200));
    redis_server_do(server, "DEL " NAME);
    waiter_finish(&waiter);
    hf_close(client);
}

/* -------------------------------------------------------------------------------------------------------- who waits */

/* How often each of `count` waiters, told apart by their notes "w0" …, asks in the next `ms`. */
static void count_asking(struct redis_server *server, unsigned *asked, unsigned count, uint32_t ms)
{
    redisContext *spy = redis_server_connect(server);
    void *reply = NULL;
    const int64_t end = test_now_ns() + ms * 1000000LL;
    const struct timeval moment = { .tv_usec = 20000 };
    REQUIRE(redisAppendCommand(spy, "MONITOR") == REDIS_OK && redisGetReply(spy, &reply) == REDIS_OK);
    freeReplyObject(reply);
    redisSetTimeout(spy, moment);
    while (test_now_ns() < end) {
        if (redisGetReply(spy, &reply) != REDIS_OK) {
            spy->err = 0; /* nothing came within a moment */
            continue;
        }
        const char *text = ((redisReply *)reply)->str;
        for (unsigned i = 0; i < count && strstr(text, "\"EVALSHA\""); i++) {
            char note[16];
            snprintf(note, sizeof note, " w%u\"", i);
            asked[i] += strstr(text, note) != NULL;
        }
        freeReplyObject(reply);
    }
    redisFree(spy);
}

/* A holder that will not say when it is done is asked after, but with less and less hope; those further behind more
 * seldom still. */
TEST_LIMIT(strangers_are_asked_after_more_and_more_seldom, 30)
{
    enum { WAITERS = 5, WINDOW_MS = 4000 };
    struct redis_server *server = serve_plain("");
    struct waiter waiters[WAITERS];
    char notes[WAITERS][8];
    unsigned early[WAITERS] = { 0 }, late[WAITERS] = { 0 };
    hf_client *client = open_client();
    redis_server_do(server, "SET " NAME " theirs PX 600000");
    for (int i = 0; i < WAITERS; i++) {
        hf_options options = stranger(0);
        snprintf(notes[i], sizeof notes[i], "w%d", i);
        options.note = notes[i];
        waiter_start(&waiters[i], client, NAME, &options);
        await_line(server, i + 1);
    }
    count_asking(server, early, WAITERS, 1000); /* until the pauses have grown */
    count_asking(server, late, WAITERS, WINDOW_MS);
    test_note("asked %u %u %u %u %u times", late[0], late[1], late[2], late[3], late[4]);
    CHECK(late[0] > 0);
    CHECK(late[0] <= WINDOW_MS / 160 + 1); /* the shortest pause that it has come to */
    for (int i = 1; i < WAITERS; i++)
        CHECK(late[i] < late[0]);
    CHECK(late[WAITERS - 1] <= WINDOW_MS / (160 * WAITERS) + 1);
    redis_server_do(server, "DEL " NAME); /* without a word */
    for (int served = 0; served < WAITERS; served++) {
        int next = 0; /* whoever asks first has it */
        while (gate_count(&waiters[next].ended) == 0 || !waiters[next].lock) {
            REQUIRE(test_now_ns() < test_deadline_ns());
            next = (next + 1) % WAITERS;
        }
        waiter_finish(&waiters[next]);
        waiters[next].lock = NULL;
    }
    hf_close(client);
}

TEST_LIMIT(behind_one_of_us_nobody_sends_anything_until_called, 30)
{
    enum { WAITERS = 6 };
    struct redis_server *server = serve_plain("");
    struct waiter waiters[WAITERS];
    hf_client *client = open_client();
    hf_client *others = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    for (int i = 0; i < WAITERS; i++) {
        waiter_start(&waiters[i], others, NAME, &options);
        await_line(server, i + 1);
    }
    pause_ms(100); /* the last one's answer */
    int64_t sent = redis_server_sent(server);
    pause_ms(2000);
    CHECK_INT(0, redis_server_sent(server) - sent);
    for (int i = 0; i < WAITERS; i++) {
        sent = redis_server_sent(server);
        const int64_t published = redis_server_calls(server, "publish");
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
        CHECK_INT(1, redis_server_calls(server, "publish") - published);
        /* A release and an answer to the call; the first release is not known by its hash. */
        CHECK(redis_server_sent(server) - sent <= (i == 0 ? 3 : 2));
        for (int later = i + 1; later < WAITERS; later++)
            CHECK_INT(0, gate_count(&waiters[later].ended));
    }
    must_release(lock);
    hf_close(others);
    hf_close(client);
}

TEST(the_end_of_a_silent_holder_of_ours_is_noticed)
{
    struct redis_server *server = serve_plain("");
    struct waiter waiter;
    hf_client *client = open_client();
    hf_options options = stranger(test_ms(800));
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, client, NAME, NULL);
    await_line(server, 1);
    waiter_join(&waiter, HF_OK);
    CHECK(hf_remaining_ms(lock) <= 0); /* not before it knew */
    CHECK_INT(HF_LOST, hf_release(lock, NULL));
    must_release(waiter.lock);
    hf_close(client);
}

TEST_LIMIT(waiters_are_served_in_order, 30)
{
    enum { WAITERS = 16 };
    struct redis_server *server = serve_plain("");
    struct waiter waiters[WAITERS];
    hf_client *clients[4];
    uint64_t last;
    for (int i = 0; i < 4; i++)
        clients[i] = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(clients[0], NAME, &options);
    for (int i = 0; i < WAITERS; i++) {
        waiter_start(&waiters[i], clients[i % 4], NAME, &options);
        await_line(server, i + 1);
    }
    last = hf_token(lock);
    for (int i = 0; i < WAITERS; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
    }
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " LINE));
    for (int i = 0; i < 4; i++)
        hf_close(clients[i]);
}

/* ------------------------------------------------------------------------------------------ the dead and the silent */

struct queuer {
    uint32_t wait_ms;
    struct gate ready, got;
};

static void queue_in_process(void *arg)
{
    struct queuer *queuer = arg;
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = NULL;
    options.wait_ms = queuer->wait_ms;
    gate_pass(&queuer->ready);
    if (hf_acquire(&lock, client, NAME, &options, NULL) == HF_OK)
        gate_pass(&queuer->got);
    hf_release(lock, NULL);
    hf_close(client);
}

static struct queuer *queuer_new(uint32_t wait_ms)
{
    struct queuer *queuer = shared_new(sizeof *queuer);
    queuer->wait_ms = wait_ms;
    return queuer;
}

TEST(a_dead_waiter_is_struck_off)
{
    struct redis_server *server = serve_plain("");
    struct waiter waiter;
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    const pid_t dead = helper_start(queue_in_process, queuer_new(0));
    await_line(server, 1);
    waiter_start(&waiter, client, NAME, &options);
    await_line(server, 2);
    helper_kill(dead);
    while (redis_server_number(server, "EVAL %s 0",
                               "return redis.call('pubsub', 'numpat') + "
                               "#redis.call('pubsub', 'channels', 'hf:c:*')") > 1)
        pause_ms(1); /* until the server knows that it has gone */
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(0, redis_server_number(server, "ZCARD " LINE));
    must_release(waiter.lock);
    hf_close(client);
}

/* The first in line was called while it could not hear, and its time is over when it can: the next one is called. */
TEST(a_waiter_that_was_called_and_leaves_passes_the_call_on)
{
    struct redis_server *server = serve_plain("");
    struct waiter waiter;
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    struct queuer *queuer = queuer_new(test_ms(600));
    hf_lock *lock = must_acquire(client, NAME, &options);
    const pid_t silent = helper_start(queue_in_process, queuer);
    await_line(server, 1);
    helper_stop(silent);
    waiter_start(&waiter, client, NAME, &options);
    await_line(server, 2);
    must_release(lock);
    CHECK(!gate_await_for(&waiter.ended, 1, test_ms(700)));
    helper_continue(silent);
    waiter_finish(&waiter); /* long before the end that it was told of */
    helper_join(silent);
    CHECK_INT(0, redis_server_number(server, "EXISTS " LINE));
    hf_close(client);
}

TEST(a_newcomer_gives_way_and_a_try_does_not)
{
    struct redis_server *server = serve_plain("");
    struct waiter waiter;
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, client, NAME, &options); /* from now on the client can be called */
    await_line(server, 1);
    CHECK_STATUS(HF_OK, hf_cancel(client, NAME), NULL);
    waiter_join(&waiter, HF_CANCELED);

    const pid_t silent = helper_start(queue_in_process, queuer_new(0));
    await_line(server, 1);
    helper_stop(silent);
    must_release(lock); /* it is free, and the one who was called sleeps */
    check_free(client, NAME);
    const int64_t published = redis_server_calls(server, "publish");
    const int64_t sent = redis_server_sent(server);
    lock = must_acquire(client, NAME, &options);
    CHECK(redis_server_sent(server) - sent >= 2);                  /* not at the first asking … */
    CHECK(redis_server_calls(server, "publish") - published >= 1); /* … but after the other was called once more */
    must_release(lock);
    helper_kill(silent);
    hf_close(client);
}

/* ----------------------------------------------------------------------------------------- looking and breaking --- */

struct seen {
    int count;
    char name[300], host[100], note[130];
    uint64_t token;
    int64_t held_ms, remaining_ms, waiters;
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    snprintf(seen->name, sizeof seen->name, "%s", info->name);
    snprintf(seen->host, sizeof seen->host, "%s", info->host);
    snprintf(seen->note, sizeof seen->note, "%s", info->note);
    seen->token = info->token;
    seen->held_ms = info->held_ms;
    seen->remaining_ms = info->remaining_ms;
    seen->waiters = info->waiters;
    return 0;
}

static struct seen inspect(hf_client *client, const char *prefix)
{
    struct seen seen = { 0 };
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_inspect(client, prefix, see, &seen, &err), &err);
    return seen;
}

TEST(holders_of_both_kinds_are_shown_and_can_be_broken)
{
    struct redis_server *server = serve_plain("");
    struct waiter waiter;
    struct loss loss = { 0 };
    hf_client *client = open_client();
    hf_options options = stranger(test_ms(3000));
    options.note = "mine";
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "SET elsewhere theirs PX 600000");
    struct seen seen = inspect(client, "");
    CHECK_INT(1, seen.count); /* a string under any name may be anything: only what we know of is listed */
    CHECK_STR(NAME, seen.name);
    CHECK_STR("mine", seen.note);
    CHECK_INT(hf_token(lock), seen.token);
    CHECK(seen.held_ms >= 0 && seen.remaining_ms > 0 && *seen.host);
    CHECK_INT(HF_OK, hf_break(client, NAME, NULL));
    gate_await(&loss.told, 1);
    CHECK_INT(HF_LOST, hf_release(lock, NULL));

    redis_server_do(server, "SET " NAME " theirs PX 600000"); /* what is known of the last grant is not about them */
    waiter_start(&waiter, client, NAME, NULL);
    await_line(server, 1);
    CHECK_INT(1, inspect(client, "elsewhere").count);
    seen = inspect(client, NAME);
    CHECK_INT(1, seen.count);
    CHECK_INT(0, seen.token);
    CHECK_INT(-1, seen.held_ms);
    CHECK_INT(1, seen.waiters);
    CHECK_STR("", seen.host);
    CHECK_STR("", seen.note);
    CHECK(seen.remaining_ms > 0 && seen.remaining_ms <= 600000);
    CHECK_INT(HF_OK, hf_break(client, NAME, NULL));
    waiter_finish(&waiter);
    CHECK_INT(0, inspect(client, NAME).count);
    hf_close(client);
}

/* --------------------------------------------------------------------------------------------------------- replicas */

TEST(replicas_are_waited_for)
{
    struct redis_server *server = serve_plain("");
    struct redis_server *replica = redis_server_start_replica(server);
    hf_client *client = open_url("%s&replicas=1&replica_timeout=%u", store_url, test_ms(500));
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK_INT(1, redis_server_number(replica, "EXISTS " NAME));
    must_release(lock);
    redis_server_pause(replica);
    refuse_lock(client, NAME, HF_UNAVAILABLE, "replicas");
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    redis_server_continue(replica);
    check_becomes_free(client, NAME);
    hf_close(client);
}
