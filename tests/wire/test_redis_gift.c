/* SPDX-License-Identifier: MIT
 *
 * test_redis_gift.c: how far a gift is to be trusted, on the engine itself with a clock that the test sets forward, as
 * a process sees it that was stopped for a while.
 */
#include "wire.h"

#include "core.h"
#include "engines/redis/redis.h"

extern const struct hfi_engine hfi_module_engine;

static hfi_time ahead_ns; /* of the real clock */

static hfi_time now_ns(void)
{
    return test_now_ns() + ahead_ns;
}

static uint64_t no_random(void)
{
    return 0;
}

struct engine {
    struct wire wire;
    struct hfi_env env;
    void *store;
    struct redis_lock locks[2];
};

static struct hfi_request request(const struct engine *engine, int index, struct hfi_waker *waker)
{
    return (struct hfi_request){ .name = "job",
                                 .owner = { engine->env.client, (uint64_t)index + 1 },
                                 .ttl_ms = 20000,
                                 .deadline_ns = test_now_ns() + 5 * HFI_SECOND,
                                 .queue = true,
                                 .note = "",
                                 .waker = waker };
}

static hf_status attempt(struct engine *engine, int index, struct hfi_grant *grant, hf_error *err)
{
    const struct hfi_request one = request(engine, index, NULL);
    *grant = (struct hfi_grant){ .counted_from_ns = now_ns() };
    return hfi_module_engine.attempt(engine->store, &engine->locks[index], &one, grant, err);
}

/* Reads what was pushed: the second lock's thread is on duty until `ms` have passed. */
static void listen_for(struct engine *engine, uint32_t ms)
{
    struct hfi_waker *waker = hfi_waker_new();
    REQUIRE(waker != NULL);
    struct hfi_request one = request(engine, 1, waker);
    one.deadline_ns = test_now_ns() + ms * HFI_MS;
    CHECK_STATUS(HF_TIMEOUT, hfi_module_engine.wait(engine->store, &engine->locks[1], &one, NULL), NULL);
    hfi_waker_free(waker);
}

static void start(struct engine *engine)
{
    char rest[40];
    hf_error err = { 0 };
    ahead_ns = 0;
    engine->env = (struct hfi_env){
        .client = 0x1234567812345678, .timeout_ns = 5 * HFI_SECOND, .now_ns = now_ns, .random = no_random
    };
    engine->store = hfi_alloc(hfi_module_engine.store_size);
    snprintf(rest, sizeof rest, "//127.0.0.1:%d?module=no", script_port(engine->wire.server));
    const struct hfi_url url = { "redis", rest };
    struct hfi_opened opened = { 0 };
    REQUIRE_STATUS(HF_OK, hfi_module_engine.open(engine->store, &url, &engine->env, &opened, &err), &err);
}

/* Both locks in the queue: the first at server time 1000000. */
#define BOTH_LINED_UP                                                                                                  \
    "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"                         \
    "use main\nacquire 1 20000 1\nbusy 60000 0 1000000\nacquire 2 20000 1\nbusy 60000 1 1000000\n"

static void line_up(struct engine *engine)
{
    struct hfi_grant grant;
    hf_error err = { 0 };
    const struct hfi_request first = request(engine, 0, NULL);
    CHECK_STATUS(HF_BUSY, attempt(engine, 0, &grant, &err), &err);
    CHECK_STATUS(HF_OK, hfi_module_engine.wait(engine->store, &engine->locks[0], &first, &err), &err);
    CHECK_STATUS(HF_BUSY, attempt(engine, 0, &grant, &err), &err);
    CHECK_STATUS(HF_BUSY, attempt(engine, 1, &grant, &err), &err);
}

static void end(struct engine *engine)
{
    for (int i = 0; i < 2; i++)
        hfi_redis_expect_no_more(engine->store, &engine->locks[i], REDIS_NEW);
    hfi_module_engine.close(engine->store);
    hfi_free(engine->store);
    wire_end(&engine->wire);
}

TEST(a_gift_lasts_for_the_claim_time_less_what_passed)
{
    struct engine engine = { .env = { 0 } };
    struct hfi_grant grant;
    hf_error err = { 0 };
    wire_serve(&engine.wire, BOTH_LINED_UP "use push\npush 1 41 1 0\n");
    start(&engine);
    line_up(&engine);
    const hfi_time before = engine.locks[0].wait->sent_ns;
    listen_for(&engine, test_ms(100));
    ahead_ns += 500 * HFI_MS;
    CHECK_STATUS(HF_OK, attempt(&engine, 0, &grant, &err), &err);
    CHECK_INT(41, grant.token);
    CHECK_INT(HFI_REDIS_CLAIM_MS, grant.valid_ms);
    CHECK_INT(before, grant.counted_from_ns); /* given when it was asked for, at the earliest */
    end(&engine);
}

TEST(a_gift_that_was_read_too_late_is_asked_for)
{
    struct engine engine = { .env = { 0 } };
    struct hfi_grant grant;
    hf_error err = { 0 };
    wire_serve(&engine.wire, BOTH_LINED_UP "use push\npush 1 41 1 0\nuse main\nacquire 1 20000 1\n"
                                           "busy 60000 0 4000000\n");
    start(&engine);
    line_up(&engine);
    listen_for(&engine, test_ms(100));
    ahead_ns += 3 * HFI_SECOND;
    CHECK_STATUS(HF_BUSY, attempt(&engine, 0, &grant, &err), &err);
    end(&engine);
}

/* What ties the server's clock to ours is one answered request. A request whose answer was lost came later, and with
 * its time beside the older answer a gift would seem younger than it is by all that lies between. */
TEST(a_lost_answer_does_not_make_a_gift_younger)
{
    struct engine engine = { .env = { 0 } };
    struct hfi_grant grant;
    hf_error err = { 0 };
    wire_serve(&engine.wire, BOTH_LINED_UP "acquire 1 20000 1\ncut\nuse push\npush 1 41 11 500000\n"
                                           "hello main\nacquire 1 20000 1\nbusy 60000 0 22000000\n");
    start(&engine);
    line_up(&engine);
    ahead_ns += 10 * HFI_SECOND;
    CHECK_STATUS(HF_UNKNOWN, attempt(&engine, 0, &grant, &err), &err);
    listen_for(&engine, test_ms(100)); /* given half a second after that request */
    ahead_ns += 11 * HFI_SECOND;       /* and long over */
    CHECK_STATUS(HF_BUSY, attempt(&engine, 0, &grant, &err), &err);
    end(&engine);
}

/* The same for a request that was answered with an error, which says nothing about the server's time. */
TEST(an_error_does_not_make_a_gift_younger)
{
    struct engine engine = { .env = { 0 } };
    struct hfi_grant grant;
    hf_error err = { 0 };
    wire_serve(&engine.wire, BOTH_LINED_UP "acquire 1 20000 1\nsend -MISCONF x\\r\\n\nuse push\npush 1 41 11 500000\n"
                                           "use main\nacquire 1 20000 1\nbusy 60000 0 22000000\n");
    start(&engine);
    line_up(&engine);
    ahead_ns += 10 * HFI_SECOND;
    CHECK_STATUS(HF_UNAVAILABLE, attempt(&engine, 0, &grant, &err), &err);
    listen_for(&engine, test_ms(100));
    ahead_ns += 11 * HFI_SECOND;
    CHECK_STATUS(HF_BUSY, attempt(&engine, 0, &grant, &err), &err);
    end(&engine);
}
