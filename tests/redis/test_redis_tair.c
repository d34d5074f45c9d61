/* SPDX-License-Identifier: MIT
 *
 * test_redis_tair.c: dialect=tair on real servers with CAS and CAD: those of our own module, and others that the server
 * refuses when it is out of memory.
 */
#include "redis_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"

static struct redis_server *serve_tair(const char *module_variable)
{
    char arguments[400], url[100];
    const char *module = getenv(module_variable);
    if (!module) {
        FAIL("%s is not in the environment", module_variable);
        test_abort();
    }
    snprintf(arguments, sizeof arguments, "--loadmodule %s", module);
    struct redis_server *server = redis_server_start(NULL, arguments);
    snprintf(url, sizeof url, "%s?dialect=tair", server->url);
    use_url(url);
    return server;
}

static int64_t cas_calls(struct redis_server *server)
{
    return redis_server_calls(server, "cas");
}

TEST(a_lock_is_set_renewed_by_cas_and_released_by_cad)
{
    struct redis_server *server = serve_tair("TEST_SERVER_MODULE");
    hf_client *client = open_client();
    hf_options options = stranger(test_ms(3000));
    hf_error err = { 0 };
    char type[16];
    const int64_t tried = cas_calls(server); /* when it was opened, and CAD as often */
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_text(server, type, sizeof type, "TYPE " NAME);
    CHECK_STR("string", type);
    for (int i = 0; i < 20; i++) {
        CHECK_STATUS(HF_OK, hf_renew(lock, test_ms(20000), &err), &err);
        const int64_t left = redis_server_number(server, "PTTL " NAME);
        CHECK(left > test_ms(3000) && left <= test_ms(20000)); /* -1 would be a lock without an end */
    }
    CHECK_INT(tried + 20, cas_calls(server));
    must_release(lock);
    CHECK_INT(tried + 1, redis_server_calls(server, "cad"));
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    hf_close(client);
}

TEST(the_keeper_never_takes_the_end_away)
{
    struct redis_server *server = serve_tair("TEST_SERVER_MODULE");
    hf_client *client = open_client();
    hf_options options = stranger(300);
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    while (cas_calls(server) < 10 && gate_count(&loss.told) == 0) {
        const int64_t left = redis_server_number(server, "PTTL " NAME);
        CHECK(left != -1 && left <= 300);
        pause_ms(5);
    }
    CHECK(cas_calls(server) >= 10 || test_slowness() > 1);
    hf_release(lock, NULL);
    hf_close(client);
}

TEST(a_lock_that_others_took_is_neither_renewed_nor_released)
{
    struct redis_server *server = serve_tair("TEST_SERVER_MODULE");
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    char value[16];
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "SET " NAME " theirs PX 600000");
    check_busy(client, NAME);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    redis_server_do(server, "DEL " NAME);
    lock = must_acquire(client, NAME, &options); /* and where there is nothing any more */
    redis_server_do(server, "DEL " NAME);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME)); /* nothing was created anew */
    hf_close(client);
}

/* How many packets the server has read from clients. */
static int64_t reads(struct redis_server *server)
{
    char text[8000];
    redis_server_text(server, text, sizeof text, "INFO stats");
    const char *place = strstr(text, "total_reads_processed:");
    REQUIRE(place != NULL);
    return strtoll(place + strlen("total_reads_processed:"), NULL, 10);
}

/* Many are renewed three times, `share` of them or more with each write. */
static void check_few_writes(struct redis_server *server, int64_t (*renewals)(struct redis_server *), int64_t share,
                             bool has_memory)
{
    enum { LOCKS = 130 };
    hf_client *client = open_client();
    hf_lock *locks[LOCKS];
    struct loss loss = { 0 };
    hf_options options = stranger(test_ms(3000));
    record_loss(&options, &loss);
    for (unsigned i = 0; i < LOCKS; i++)
        locks[i] = must_acquire(client, numbered_name(NAME, i).text, &options);
    redis_server_do(server, "CONFIG SET maxmemory %d", has_memory ? 0 : 1);
    const int64_t before = renewals(server);
    int64_t asked = reads(server), own = 1;
    while (renewals(server) - before < (int64_t)3 * LOCKS) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        own++;
        pause_ms(20);
    }
    const int64_t renewed = renewals(server) - before;
    asked = reads(server) - asked - own - 2; /* less what the test has asked itself */
    test_note("%lld renewals in %lld reads", (long long)renewed, (long long)asked);
    CHECK(asked < renewed / share);
    CHECK_INT(0, gate_count(&loss.told));
    for (unsigned i = 0; i < LOCKS; i++) {
        CHECK(redis_server_number(server, "PTTL %s", numbered_name(NAME, i).text) > 0);
        must_release(locks[i]);
    }
    hf_close(client);
}

TEST_LIMIT(many_locks_are_renewed_in_few_writes, 40)
{
    check_few_writes(serve_tair("TEST_SERVER_MODULE"), cas_calls, 10, true);
}

/* --------------------------------------------------------------------------------------------------------- refusals */

TEST(a_release_that_is_refused_for_want_of_memory_is_done_by_script)
{
    struct redis_server *server = serve_tair("TEST_FRUGAL_MODULE");
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    struct waiter waiter;
    hf_error err = { 0 };
    char value[16];
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, client, NAME, &options);
    while (redis_server_number(server, "ZCARD hf:{" NAME "}:w") != 1)
        pause_ms(1);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    redisReply *refused = redis_server_command(server, "CAD " NAME " x");
    CHECK(refused->type == REDIS_REPLY_ERROR && strncmp(refused->str, "OOM", 3) == 0);
    freeReplyObject(refused);
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    redis_server_do(server, "CONFIG SET maxmemory 0");
    waiter_join(&waiter, HF_OK); /* it was called, and had to wait until there was memory */
    redis_server_do(server, "SET " NAME " theirs PX 600000");
    redis_server_do(server, "CONFIG SET maxmemory 1");
    CHECK_STATUS(HF_LOST, hf_release(waiter.lock, &err), &err);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    hf_close(client);
}

/* CAS needs memory, as any SET does; a lock that is held must not be lost for that. */
TEST(locks_are_kept_when_cas_is_refused_for_want_of_memory)
{
    struct redis_server *server = serve_tair("TEST_SERVER_MODULE");
    hf_client *client = open_client();
    hf_options options = stranger(test_ms(3000));
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    CHECK_STATUS(HF_OK, hf_renew(lock, test_ms(20000), &err), &err);
    CHECK(redis_server_number(server, "PTTL " NAME) > test_ms(3000));
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    hf_close(client);
}

static int64_t pexpire_calls(struct redis_server *server)
{
    return redis_server_calls(server, "pexpire");
}

/* One write for those that CAS was refused for: a round trip for each would cost the last ones, far from the server. */
TEST_LIMIT(many_locks_are_kept_in_few_writes_when_cas_is_refused, 40)
{
    check_few_writes(serve_tair("TEST_SERVER_MODULE"), pexpire_calls, 5, false);
}

/* What is held is busy; only what is free needs memory to be taken. */
TEST(a_held_lock_is_busy_though_there_is_no_memory)
{
    static const char *const dialects[] = { "tair", "plain", "redisson", "native" };
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        struct redis_server *server = serve_tair("TEST_SERVER_MODULE");
        hf_client *client = open_url("%s?dialect=%s", server->url, dialects[i]);
        const hf_options options = stranger(endless_ttl_ms());
        test_note("%s", dialects[i]);
        hf_lock *lock = must_acquire(client, NAME, &options);
        redis_server_do(server, "CONFIG SET maxmemory 1");
        check_busy(client, NAME);
        refuse_lock(client, "another-lock", HF_UNAVAILABLE, "maxmemory");
        must_release(lock);
        hf_close(client);
    }
}

TEST(a_server_without_the_commands_is_refused_in_words)
{
    struct redis_server *server = serve("");
    hf_error err = refuse_url(HF_UNSUPPORTED, "CAS and CAD", "%s?dialect=tair", server->url);
    check_words(&err, "holdfast-cas.so");
    check_words(&err, "dialect=plain");
    /* CAD alone is not enough: the lock could be taken, but not kept. */
    server = serve_tair("TEST_RIVAL_MODULE");
    refuse_url(HF_UNSUPPORTED, "CAS and CAD", "%s?dialect=tair", server->url);
}

/* As behind a proxy that passes the commands on and does not know them. */
TEST(commands_that_may_not_be_asked_for_are_tried)
{
    struct redis_server *server = serve_tair("TEST_SERVER_MODULE");
    hf_error err = { 0 };
    redis_server_do(server, "ACL SETUSER bob on >pw ~* &* +@all -command");
    hf_client *client = open_url("redis://bob:pw@127.0.0.1:%d?dialect=tair", server->port);
    CHECK_INT(0, redis_server_number(server, "DBSIZE")); /* trying leaves nothing */
    const int64_t before = cas_calls(server);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK_INT(1, cas_calls(server) - before);
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    hf_close(client);
}
