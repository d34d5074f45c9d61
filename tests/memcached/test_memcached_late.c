/* SPDX-License-Identifier: MIT
 *
 * test_memcached_late.c: requests that were given up and arrive all the same, after their successor, on a real server
 * behind a relay that keeps them back.
 */
#include "engine_support.h"
#include "late_relay.h"
#include "memcached_server.h"

#include <stdio.h>
#include <string.h>

#define NAME "the-lock"

struct stage {
    struct memcached_server *server;
    struct late_relay *relay;
    hf_client *client; /* by way of the relay, and soon out of patience */
    hf_client *other;  /* who is not */
};

static struct stage set_stage(void)
{
    struct stage stage = { .server = memcached_server_start("") };
    hf_client_options limits = HF_CLIENT_OPTIONS_INIT;
    hf_error err = { 0 };
    char url[100];
    use_url(stage.server->url);
    stage.other = open_client();
    stage.relay = late_relay_start("127.0.0.1", stage.server->port);
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d", late_relay_port(stage.relay));
    limits.timeout_ms = test_ms(700);
    limits.handoff_ms = -1;
    REQUIRE_STATUS(HF_OK, hf_open(&stage.client, url, &limits, &err), &err);
    return stage;
}

static void clear_stage(struct stage *stage)
{
    hf_close(stage->client);
    hf_close(stage->other);
    memcached_server_stop(stage->server);
}

/* What the server has under the lock's key. */
static void look(const struct stage *stage, char answer[1000])
{
    memcached_server_ask(stage->server, "mg holdfast:" NAME " t v", answer, 1000);
}

static void await_nothing(const struct stage *stage)
{
    char answer[1000];
    for (look(stage, answer); strncmp(answer, "EN", 2) != 0; look(stage, answer)) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        await_a_moment();
    }
}

static hf_lock *take(hf_client *client, uint32_t ttl_ms)
{
    hf_options options = stranger(ttl_ms);
    options.renew = HF_RENEW_OFF;
    return must_acquire(client, NAME, &options);
}

static void lose_a_try(const struct stage *stage, const char *request)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    hf_options options = stranger(test_ms(20000));
    late_relay_catch(stage->relay, request, 1);
    const hf_status status = hf_try_acquire(&lock, stage->client, NAME, &options, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    CHECK(lock == NULL);
    late_relay_await(stage->relay);
}

TEST_LIMIT(a_try_that_comes_late_takes_nothing, 30)
{
    struct stage stage = set_stage();
    lose_a_try(&stage, "cas ");
    await_nothing(&stage);                      /* it was given back */
    CHECK(late_relay_resets(stage.relay) >= 1); /* by whoever gave it up */
    late_relay_deliver_if_open(stage.relay);
    check_free(stage.other, NAME);
    clear_stage(&stage);
}

TEST_LIMIT(a_free_record_that_comes_late_is_in_nobodys_way, 30)
{
    struct stage stage = set_stage();
    lose_a_try(&stage, "add ");
    late_relay_deliver_if_open(stage.relay);
    check_free(stage.other, NAME);
    clear_stage(&stage);
}

TEST_LIMIT(a_try_that_comes_late_disturbs_no_later_holder, 30)
{
    struct stage stage = set_stage();
    char answer[1000];
    lose_a_try(&stage, "cas ");
    await_nothing(&stage);
    must_release(take(stage.other, 60000));
    hf_lock *lock = take(stage.other, 60000);
    late_relay_deliver_if_open(stage.relay);
    look(&stage, answer);
    CHECK(strstr(answer, "held") != NULL);
    must_release(lock);
    await_nothing(&stage);
    clear_stage(&stage);
}

/* Asked again, granted, kept for longer; and given back before the first arrives. */
TEST_LIMIT(an_attempt_that_comes_late_changes_nothing_of_what_was_granted_since, 30)
{
    struct stage stage = set_stage();
    hf_error err = { 0 };
    char answer[1000];
    long left_s = 0;
    late_relay_catch(stage.relay, "cas ", 1);
    hf_lock *lock = take(stage.client, test_ms(3000));
    CHECK_STATUS(HF_OK, hf_renew(lock, 60000, &err), &err);
    late_relay_deliver_if_open(stage.relay);
    look(&stage, answer);
    CHECK(sscanf(answer, "VA %*d t%ld", &left_s) == 1 && left_s > 30);
    must_release(lock);
    await_nothing(&stage);
    clear_stage(&stage);
}

TEST_LIMIT(a_renewal_that_comes_late_does_not_shorten_what_a_later_one_gave, 30)
{
    struct stage stage = set_stage();
    hf_error err = { 0 };
    char answer[1000];
    long left_s = 0;
    hf_lock *lock = take(stage.client, 20000);
    late_relay_catch(stage.relay, "cas ", 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 3000, &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(lock, 60000, &err), &err);
    late_relay_deliver_if_open(stage.relay);
    look(&stage, answer);
    CHECK(sscanf(answer, "VA %*d t%ld", &left_s) == 1 && left_s > 30);
    must_release(lock);
    clear_stage(&stage);
}

TEST_LIMIT(a_renewal_that_comes_after_the_release_brings_nothing_back, 30)
{
    struct stage stage = set_stage();
    hf_error err = { 0 };
    hf_lock *lock = take(stage.client, 20000);
    late_relay_catch(stage.relay, "cas ", 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 60000, &err), &err);
    must_release(lock);
    late_relay_deliver_if_open(stage.relay);
    await_nothing(&stage);
    clear_stage(&stage);
}

TEST_LIMIT(a_release_that_comes_late_frees_nobody_elses_lock, 30)
{
    struct stage stage = set_stage();
    hf_error err = { 0 };
    char answer[1000];
    hf_lock *lock = take(stage.client, 20000);
    late_relay_catch(stage.relay, "md ", 1);
    CHECK_STATUS(HF_UNKNOWN, hf_release(lock, &err), &err);
    hf_lock *next = take(stage.other, 60000); /* once it was released again */
    late_relay_deliver_if_open(stage.relay);
    look(&stage, answer);
    CHECK(strstr(answer, "held") != NULL);
    must_release(next);
    clear_stage(&stage);
}

TEST_LIMIT(a_break_that_comes_late_breaks_nobody_else, 30)
{
    struct stage stage = set_stage();
    hf_error err = { 0 };
    char answer[1000];
    hf_lock *lock = take(stage.other, 20000);
    late_relay_catch(stage.relay, "cas ", 1);
    const hf_status status = hf_break(stage.client, NAME, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    must_release(lock);
    lock = take(stage.other, 20000);
    late_relay_deliver_if_open(stage.relay);
    look(&stage, answer);
    CHECK(strstr(answer, "held") != NULL);
    must_release(lock);
    clear_stage(&stage);
}
