/* SPDX-License-Identifier: MIT
 *
 * test_redis_late.c: requests that were given up and arrive all the same, after their successor: each request of each
 * exchange, in every dialect, on a real server behind a relay that keeps them back.
 */
#include "late_relay.h"
#include "redis_support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"

struct dialect {
    const char *name;
    const char *module;                      /* which variable says where the server's module is; NULL: it has none */
    const char *request, *renewal, *release; /* a word of it, as the server of the system has it */
    const char *queue;                       /* NULL: the server has none */
};

static const struct dialect dialects[] = {
    { "native", NULL, "EVAL", "EVAL", "EVAL", "hf:{" NAME "}:q" },
    { "native", "TEST_NATIVE_MODULE", "HF.", "HF.RENEW", "HF.RELEASE", "hf:{" NAME "}:q" },
    { "plain", NULL, "EVAL", "EVAL", "EVAL", "hf:{" NAME "}:w" },
    { "tair", "TEST_SERVER_MODULE", "EVAL", "CAS", "CAD", "hf:{" NAME "}:w" },
    { "redisson", NULL, "EVAL", "EVAL", "EVAL", NULL },
};

/* The oldest servers cannot load every module. */
static bool can_be_tested(const struct dialect *dialect)
{
    const char *path = dialect->module ? getenv(dialect->module) : NULL;
    return !dialect->module || (path && *path);
}

struct stage {
    const struct dialect *dialect;
    struct redis_server *server;
    struct late_relay *relay;
    hf_client *client; /* by way of the relay, and soon out of patience */
    hf_client *other;  /* who is not */
};

static bool is_native(const struct stage *stage)
{
    return strcmp(stage->dialect->name, "native") == 0;
}

static hf_client *open_hasty(const struct late_relay *relay, const char *query)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_client_options limits = HF_CLIENT_OPTIONS_INIT;
    limits.handoff_ms = -1;
    char url[300];
    limits.timeout_ms = test_ms(900);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d?%s", late_relay_port(relay), query);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &limits, &err), &err);
    return client;
}

/* What the server does not know is refused and sent again, and so is nothing that could be late. */
static void teach_scripts(hf_client *client)
{
    hf_options options = stranger(20000);
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, "warm-up", &options);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_OK, hf_break(client, "warm-up", &err), &err);
    hf_release(lock, NULL);
    must_release(must_acquire(client, "warm-up", &options));
}

static struct stage set_stage(const struct dialect *dialect, const char *query)
{
    char arguments[400] = "", whole[200];
    struct stage stage = { .dialect = dialect };
    test_note("%s%s", dialect->name, dialect->module ? " with a module" : "");
    if (dialect->module)
        snprintf(arguments, sizeof arguments, "--loadmodule %s", getenv(dialect->module));
    stage.server = redis_server_start(getenv("TEST_SERVER"), arguments);
    stage.relay = late_relay_start("127.0.0.1", stage.server->port);
    snprintf(whole, sizeof whole, "dialect=%s&%s", dialect->name, query);
    stage.other = open_url("%s?dialect=%s", stage.server->url, dialect->name);
    teach_scripts(stage.other);
    stage.client = open_hasty(stage.relay, whole);
    return stage;
}

static void clear_stage(struct stage *stage)
{
    hf_close(stage->client);
    hf_close(stage->other);
    redis_server_stop(stage->server);
}

static void in_every_dialect(void (*play)(struct stage *stage), const char *query)
{
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        if (!can_be_tested(&dialects[i]))
            continue;
        struct stage stage = set_stage(&dialects[i], query);
        play(&stage);
        clear_stage(&stage);
    }
}

/* How long the server is going to keep it for its holder; 0 or less: it is free. */
static int64_t left_ms(const struct stage *stage)
{
    if (!is_native(stage))
        return redis_server_number(stage->server, "PTTL " NAME);
    return redis_server_number(stage->server, "EVAL %s 1 hf:{" NAME "}",
                               "local h = redis.call('hmget', KEYS[1], 'o', 'u') local t = redis.call('time') "
                               "return h[1] and math.floor((h[2] - t[1] * 1000000 - t[2]) / 1000) or 0");
}

static int64_t scripts_run(const struct stage *stage)
{
    return redis_server_calls(stage->server, "evalsha") + redis_server_calls(stage->server, "hf.acquire") +
           redis_server_calls(stage->server, "hf.release") + redis_server_calls(stage->server, "hf.renew");
}

static void await_scripts(const struct stage *stage, int64_t count)
{
    while (scripts_run(stage) < count) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(1);
    }
}

static hf_status try_as(hf_client *client, hf_lock **lock, uint32_t ttl_ms, hf_error *err)
{
    hf_options options = stranger(ttl_ms);
    options.renew = HF_RENEW_OFF;
    return hf_try_acquire(lock, client, NAME, &options, err);
}

/* Waits, and bears with a request that is not answered. */
static hf_lock *take(hf_client *client, uint32_t ttl_ms)
{
    hf_options options = stranger(ttl_ms);
    options.renew = HF_RENEW_OFF;
    return must_acquire(client, NAME, &options);
}

/* ------------------------------------------------------------------------------------------------------- attempts */

static void lose_a_try(const struct stage *stage)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    const int64_t scripts = scripts_run(stage);
    late_relay_catch(stage->relay, stage->dialect->request, 1);
    CHECK_STATUS(HF_UNKNOWN, try_as(stage->client, &lock, test_ms(20000), &err), &err);
    await_scripts(stage, scripts + 1); /* it was given back */
}

/* The client has given it back before it was there. */
static void try_is_late(struct stage *stage)
{
    lose_a_try(stage);
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) <= 0);
    check_free(stage->other, NAME);
    must_release(take(stage->client, 2000)); /* others under the same client are not meant */
}

TEST_LIMIT(a_late_try_takes_the_lock_for_nobody, 60)
{
    in_every_dialect(try_is_late, "");
}

/* The first request of a wait: nobody listens yet. Then one that asks for a place, while somebody else holds it. */
static void wait_is_late(struct stage *stage)
{
    struct waiter before, waiter;
    hf_options options = stranger(test_ms(20000));
    hf_lock *lock = take(stage->other, 60000);
    waiter_start(&before, stage->client, NAME, &options); /* so that the client listens */
    await_waiters(stage->other, NAME, 1);
    options.wait_ms = test_ms(200);
    late_relay_catch(stage->relay, stage->dialect->request, 1);
    waiter_start(&waiter, stage->client, NAME, &options);
    late_relay_await(stage->relay);
    const int64_t scripts = scripts_run(stage);
    waiter_join(&waiter, HF_UNKNOWN);
    CHECK_STATUS(HF_OK, hf_cancel(stage->client, NAME), NULL);
    waiter_join(&before, HF_CANCELED);
    await_scripts(stage, scripts + 2); /* both have left */
    late_relay_deliver(stage->relay);
    if (stage->dialect->queue)
        CHECK_INT(0, redis_server_number(stage->server, "ZCARD %s", stage->dialect->queue));
    must_release(lock);
    CHECK(left_ms(stage) <= 0);
    check_free(stage->other, NAME);
}

TEST_LIMIT(a_late_request_of_a_wait_leaves_no_ghost_in_the_queue, 60)
{
    in_every_dialect(wait_is_late, "");
}

/* Asked again, granted, and kept for longer than was asked for at first. */
static void attempt_is_late_while_held(struct stage *stage)
{
    hf_error err = { 0 };
    late_relay_catch(stage->relay, stage->dialect->request, 1);
    hf_lock *lock = take(stage->client, test_ms(3000));
    CHECK_STATUS(HF_OK, hf_renew(lock, 60000, &err), &err);
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) > 30000);
    must_release(lock);
    CHECK(left_ms(stage) <= 0);
    check_free(stage->other, NAME);
}

TEST_LIMIT(a_late_attempt_does_not_cut_the_lease_of_a_lock_that_was_granted_since, 60)
{
    in_every_dialect(attempt_is_late_while_held, "");
}

/* Granted in answer to the second request, given back, and then the first arrives. */
static void attempt_is_late_after_the_hold(struct stage *stage)
{
    late_relay_catch(stage->relay, stage->dialect->request, 1);
    must_release(take(stage->client, test_ms(20000)));
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) <= 0);
    check_free(stage->other, NAME);
}

TEST_LIMIT(a_late_attempt_takes_nothing_after_the_release_of_what_was_granted_since, 60)
{
    in_every_dialect(attempt_is_late_after_the_hold, "");
}

/* ------------------------------------------------------------------------------------------- answers that are late */

#define SHORT_MS 200

struct trying {
    hf_client *client;
    hf_options options;
    hf_lock *lock;
    hf_status status;
    hf_error err;
};

static void *try_it(void *arg)
{
    struct trying *trying = arg;
    trying->status = hf_try_acquire(&trying->lock, trying->client, NAME, &trying->options, &trying->err);
    return NULL;
}

/* What was caught is granted when the lock could not be held any more, but is kept by the server for much longer. */
static void answer_late(struct stage *stage)
{
    late_relay_await(stage->relay);
    pause_ms(SHORT_MS + 50);
    late_relay_deliver(stage->relay);
}

static void grant_is_late(struct stage *stage)
{
    pthread_t thread;
    struct waiter waiter;
    struct trying trying = { .options = stranger(test_ms(20000)) };
    trying.options.max_hold_ms = SHORT_MS;
    trying.client = open_url("redis://127.0.0.1:%d?dialect=%s", late_relay_port(stage->relay), stage->dialect->name);
    late_relay_catch(stage->relay, stage->dialect->request, 1);
    REQUIRE_INT(0, pthread_create(&thread, NULL, try_it, &trying));
    answer_late(stage);
    pthread_join(thread, NULL);
    CHECK_STATUS(HF_UNAVAILABLE, trying.status, &trying.err);
    CHECK(trying.lock == NULL);
    check_words(&trying.err, "longer to answer");
    check_becomes_free(stage->other, NAME);
    CHECK(left_ms(stage) <= 0);

    late_relay_catch(stage->relay, stage->dialect->request, 1);
    waiter_start(&waiter, trying.client, NAME, &trying.options);
    answer_late(stage);
    waiter_join(&waiter, HF_OK);   /* asked again */
    hf_release(waiter.lock, NULL); /* which may be too late on a busy machine */
    check_becomes_free(stage->other, NAME);
    hf_close(trying.client);
}

TEST_LIMIT(a_grant_that_comes_too_late_is_given_back_or_asked_for_again, 60)
{
    in_every_dialect(grant_is_late, "");
}

/* ---------------------------------------------------------------------------------------------------------- marks */

static void set_marks(const struct stage *stage, const char *marks)
{
    if (is_native(stage))
        redis_server_do(stage->server, "HSET hf:{" NAME "} x %s", marks);
    else
        redis_server_do(stage->server, "SET hf:{" NAME "}:t %s%s PX 86400000", "0 - \n", marks);
}

static int64_t count_marks(const struct stage *stage)
{
    static const char count[] = "local text = KEYS[1] == 'hash' and redis.call('hget', KEYS[2], 'x') "
                                "or KEYS[1] ~= 'hash' and string.match(redis.call('get', KEYS[2]) or '', '\\n(.*)') "
                                "return select(2, string.gsub(text or '', ' %S+ %d+', ''))";
    if (is_native(stage))
        return redis_server_number(stage->server, "EVAL %s 2 hash hf:{" NAME "}", count);
    return redis_server_number(stage->server, "EVAL %s 2 string hf:{" NAME "}:t", count);
}

static void marks_are_few(struct stage *stage)
{
    enum { MANY = 1200 };
    static char many[MANY * 24];
    size_t used = 0;
    must_release(take(stage->client, 2000));
    CHECK_INT(0, count_marks(stage)); /* where everything is answered there are none */
    set_marks(stage, " somebody.1 1 somebody.2 99999999999");
    must_release(take(stage->client, 2000));
    CHECK_INT(2, count_marks(stage));
    lose_a_try(stage);
    CHECK_INT(2, count_marks(stage)); /* the first has had its time */
    late_relay_deliver(stage->relay);
    for (int i = 0; i < MANY; i++)
        used += (size_t)snprintf(many + used, sizeof many - used, " a.%d 99999999999", i);
    set_marks(stage, many);
    lose_a_try(stage);
    CHECK_INT(1000, count_marks(stage));
    late_relay_deliver(stage->relay);
    check_free(stage->other, NAME);
    set_marks(stage, " somebody.1 1");
    must_release(take(stage->client, 2000));
    CHECK_INT(0, count_marks(stage));
}

TEST_LIMIT(marks_are_forgotten_in_time_and_never_more_than_a_thousand, 60)
{
    in_every_dialect(marks_are_few, "");
}

/* What is given back, and renewed, when the server is out of memory. */
static void without_memory(struct stage *stage)
{
    hf_error err = { 0 };
    redis_server_do(stage->server, "CONFIG SET maxmemory 1");
    lose_a_try(stage);
    redis_server_do(stage->server, "CONFIG SET maxmemory 0");
    CHECK_INT(1, count_marks(stage));
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) <= 0);
    hf_lock *lock = take(stage->client, test_ms(20000));
    late_relay_catch(stage->relay, stage->dialect->renewal, 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, test_ms(10000), &err), &err);
    redis_server_do(stage->server, "CONFIG SET maxmemory 1");
    CHECK_STATUS(HF_OK, hf_renew(lock, 60000, &err), &err);
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) > 30000);
    must_release(lock);
    CHECK(left_ms(stage) <= 0);
}

TEST_LIMIT(marks_and_numbers_need_no_memory, 60)
{
    in_every_dialect(without_memory, "");
}

/* ------------------------------------------------------------------------------------------------------- renewals */

static void renewal_is_late(struct stage *stage, uint32_t first_ms, uint32_t second_ms, hf_lock **lock)
{
    hf_error err = { 0 };
    *lock = take(stage->client, test_ms(20000));
    late_relay_catch(stage->relay, stage->dialect->renewal, 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(*lock, first_ms, &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(*lock, second_ms, &err), &err);
    late_relay_deliver(stage->relay);
}

static void short_renewal_is_late(struct stage *stage)
{
    hf_lock *lock;
    hf_error err = { 0 };
    renewal_is_late(stage, test_ms(3000), 60000, &lock);
    CHECK(left_ms(stage) > 30000);
    CHECK(hf_remaining_ms(lock) > 30000);
    check_busy(stage->other, NAME);
    CHECK_STATUS(HF_OK, hf_renew(lock, 50000, &err), &err);
    CHECK(left_ms(stage) <= 50000);
    must_release(lock);
    check_free(stage->other, NAME);
}

TEST_LIMIT(a_late_renewal_to_a_shorter_time_does_not_cut_the_lease, 60)
{
    in_every_dialect(short_renewal_is_late, "");
}

static void long_renewal_is_late(struct stage *stage)
{
    hf_lock *lock;
    renewal_is_late(stage, 3600000, test_ms(20000), &lock);
    CHECK(left_ms(stage) <= test_ms(20000));
    must_release(lock);
    check_free(stage->other, NAME);
}

TEST_LIMIT(a_late_renewal_to_a_longer_time_does_not_make_it_longer, 60)
{
    in_every_dialect(long_renewal_is_late, "");
}

/* Two go unanswered, and arrive in the order in which they were sent; others see the lock as ever. */
static void two_renewals_are_late(struct stage *stage)
{
    hf_error err = { 0 };
    hf_lock *lock = take(stage->client, test_ms(20000));
    for (uint32_t i = 0; i < 2; i++) {
        /* After the first the client asks by script in every dialect. */
        late_relay_catch(stage->relay, i ? stage->dialect->request : stage->dialect->renewal, 1);
        CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, test_ms(10000) + i, &err), &err);
    }
    CHECK_STATUS(HF_OK, hf_renew(lock, 60000, &err), &err);
    late_relay_deliver(stage->relay);
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) > 30000);
    check_busy(stage->other, NAME);
    must_release(lock);
    CHECK(left_ms(stage) <= 0);
}

TEST_LIMIT(late_renewals_do_nothing_however_many_there_are, 60)
{
    in_every_dialect(two_renewals_are_late, "");
}

/* -------------------------------------------------------------------------------------------- releases and breaks */

static void release_is_late(struct stage *stage)
{
    hf_error err = { 0 };
    hf_lock *lock = take(stage->client, 60000);
    late_relay_catch(stage->relay, stage->dialect->release, 1);
    CHECK_STATUS(HF_UNKNOWN, hf_release(lock, &err), &err);
    lock = take(stage->client, 60000); /* the keeper has released it, and the same client takes it anew */
    late_relay_deliver(stage->relay);
    check_busy(stage->other, NAME);
    must_release(lock);
}

TEST_LIMIT(a_late_release_leaves_the_next_holder_alone, 60)
{
    in_every_dialect(release_is_late, "");
}

/* Somebody breaks a lock, hears nothing, does it again; and the first arrives when another one holds it. */
static void break_is_late(struct stage *stage, unsigned nth)
{
    hf_error err = { 0 };
    hf_lock *first = take(stage->other, 60000);
    late_relay_catch(stage->relay, "EVAL", nth);
    const hf_status status = hf_break(stage->client, NAME, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    CHECK_STATUS(HF_OK, hf_break(stage->client, NAME, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(first, &err), &err);
    hf_lock *second = take(stage->other, 60000);
    late_relay_deliver(stage->relay);
    CHECK(left_ms(stage) > 30000);
    must_release(second);
}

static void break_is_late_at_first(struct stage *stage)
{
    break_is_late(stage, 1);
}

static void break_is_late_at_last(struct stage *stage)
{
    break_is_late(stage, 2);
}

TEST_LIMIT(a_late_break_leaves_the_next_holder_alone, 60)
{
    in_every_dialect(break_is_late_at_first, "");
}

TEST_LIMIT(the_second_request_of_a_break_breaks_only_whom_the_first_has_seen, 60)
{
    in_every_dialect(break_is_late_at_last, "");
}

struct breaking {
    hf_client *client;
    hf_status status;
};

static void *break_it(void *argument)
{
    struct breaking *breaking = argument;
    breaking->status = hf_break(breaking->client, NAME, NULL);
    return NULL;
}

/* The holder gets another number between the two requests of a break, and is still the same holder. */
static void break_meets_a_renewal(struct stage *stage)
{
    hf_error err = { 0 };
    char query[40];
    struct late_relay *relay = late_relay_start("127.0.0.1", stage->server->port);
    pthread_t thread;
    snprintf(query, sizeof query, "dialect=%s", stage->dialect->name);
    struct breaking breaking = { .client = open_hasty(relay, query) };
    hf_lock *lock = take(stage->client, 60000);
    late_relay_catch(relay, "EVAL", 2);
    REQUIRE_INT(0, pthread_create(&thread, NULL, break_it, &breaking));
    late_relay_await(relay);
    late_relay_cut(stage->relay, stage->dialect->renewal, 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 60000, &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(lock, 60000, &err), &err);
    late_relay_deliver(relay);
    pthread_join(thread, NULL);
    CHECK(breaking.status == HF_OK || breaking.status == HF_UNKNOWN); /* this machine may have been too slow for it */
    CHECK(left_ms(stage) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    hf_close(breaking.client);
}

TEST_LIMIT(a_break_finds_the_holder_that_was_renewed_with_a_number_meanwhile, 60)
{
    in_every_dialect(break_meets_a_renewal, "");
}

/* ------------------------------------------------------------------------------------------------------- replicas */

/* Too few confirm it; whatever the client sends then is late, until a replica is there. Then it holds the lock, and
 * what arrives late must not take it away. */
TEST_LIMIT(with_replicas_nothing_that_is_late_frees_what_was_granted_since, 60)
{
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        if (!can_be_tested(&dialects[i]))
            continue;
        struct stage stage = set_stage(&dialects[i], "replicas=1&replica_timeout=50");
        struct redis_server *replica = redis_server_start_replica(stage.server);
        struct waiter waiter;
        hf_options options = stranger(60000);
        redis_server_pause(replica);
        late_relay_catch(stage.relay, stage.dialect->request, 2);
        waiter_start(&waiter, stage.client, NAME, &options);
        late_relay_await(stage.relay);
        redis_server_continue(replica);
        waiter_join(&waiter, HF_OK);
        late_relay_deliver(stage.relay);
        CHECK(left_ms(&stage) > 30000);
        check_busy(stage.other, NAME);
        must_release(waiter.lock);
        CHECK(left_ms(&stage) <= 0);
        redis_server_kill(replica);
        clear_stage(&stage);
    }
}
