/* SPDX-License-Identifier: MIT
 *
 * test_redis_module.c: clients on servers that have holdfast.so: they use its commands by themselves, share locks and
 * queues with clients that do not, and lose nothing when the module comes or goes, or is refused them.
 */
#include "findings.h"
#include "redis_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"

static const char *module_path(void)
{
    const char *path = getenv("TEST_NATIVE_MODULE");
    REQUIRE(path != NULL);
    return path;
}

static struct redis_server *serve_with_module(void)
{
    char arguments[600];
    snprintf(arguments, sizeof arguments, "--loadmodule %s --enable-module-command yes", module_path());
    return serve(arguments);
}

static int64_t scripts_run(struct redis_server *server)
{
    return redis_server_calls(server, "eval") + redis_server_calls(server, "evalsha");
}

static int count_lock(const hf_info *info, void *arg)
{
    CHECK_STR(NAME, info->name);
    ++*(int *)arg;
    return 0;
}

TEST(what_a_lock_needs_goes_by_the_module)
{
    struct redis_server *server = serve_with_module();
    struct waiter waiter;
    hf_error err = { 0 };
    int locks = 0;
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    check_busy(other, NAME);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_OK, hf_guard(client, "resource", hf_token(lock), &err), &err);
    CHECK_STATUS(HF_OK, hf_inspect(client, "", count_lock, &locks, &err), &err);
    CHECK_INT(1, locks);
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(server, NAME, 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    must_release(waiter.lock);
    CHECK_INT(0, scripts_run(server));
    CHECK(redis_server_calls(server, "hf.acquire") >= 3);
    CHECK_INT(2, redis_server_calls(server, "hf.release"));
    CHECK(redis_server_calls(server, "hf.renew") >= 1);
    CHECK_INT(1, redis_server_calls(server, "hf.look"));
    CHECK_INT(1, redis_server_calls(server, "hf.guard"));
    CHECK_INT(0, redis_server_calls(server, "publish")); /* the grant is pushed by the release itself */
    hf_close(other);
    hf_close(client);
}

TEST(a_pair_is_two_commands_and_finding_the_module_none)
{
    enum { PAIRS = 50 };
    struct redis_server *server = serve_with_module();
    hf_client *client = open_client();
    const int64_t before = redis_server_sent(server);
    for (int i = 0; i < PAIRS; i++)
        must_release(must_acquire(client, NAME, NULL));
    CHECK_INT(2 * PAIRS, redis_server_sent(server) - before);
    hf_close(client);
}

TEST(who_does_not_want_the_module_sends_scripts)
{
    struct redis_server *server = serve_with_module();
    hf_client *client = open_url("%s?module=no", server->url);
    must_release(must_acquire(client, NAME, NULL));
    CHECK_INT(0, redis_server_calls(server, "hf.acquire"));
    CHECK(scripts_run(server) > 0);
    hf_close(client);
    refuse_url(HF_INVALID, "module", "%s?module=perhaps", server->url);
}

/* ------------------------------------------------------------------------------------------- with and without --- */

#define CLIENTS 4
#define THREADS 8
#define ROUNDS 100

struct crowd {
    hf_client *clients[CLIENTS]; /* every other one with the module */
    struct witness witness;
};

static void compete(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    for (int i = 0; i < ROUNDS; i++) {
        hf_lock *lock = must_acquire(crowd->clients[index % CLIENTS], NAME, NULL);
        witness_visit(&crowd->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
}

TEST_LIMIT(clients_with_and_without_the_module_share_a_lock, 60)
{
    struct redis_server *server = serve_with_module();
    struct crowd *crowd = shared_new(sizeof *crowd);
    for (int i = 0; i < CLIENTS; i++)
        crowd->clients[i] = open_url("%s?module=%s", server->url, i % 2 ? "yes" : "no");
    run_threads(THREADS, compete, crowd);
    witness_check(&crowd->witness);
    CHECK_INT(THREADS * ROUNDS, crowd->witness.entries);
    CHECK(redis_server_calls(server, "hf.acquire") > 0);
    CHECK(scripts_run(server) > 0);
    for (int i = 0; i < CLIENTS; i++)
        hf_close(crowd->clients[i]);
}

TEST(the_queue_is_one_for_both)
{
    enum { WAITERS = 6 };
    struct redis_server *server = serve_with_module();
    struct waiter waiters[WAITERS];
    hf_client *with = open_url("%s?module=yes", server->url), *without = open_url("%s?module=no", server->url);
    hf_lock *lock = must_acquire(without, NAME, NULL);
    uint64_t token = hf_token(lock);
    for (int i = 0; i < WAITERS; i++) {
        waiter_start(&waiters[i], i % 2 ? without : with, NAME, NULL);
        await_queue(server, NAME, i + 1);
    }
    for (int i = 0; i < WAITERS; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
        CHECK(hf_token(lock) > token);
        token = hf_token(lock);
        CHECK_INT(WAITERS - 1 - i, server_waiters(server, NAME));
    }
    must_release(lock);
    hf_close(with);
    hf_close(without);
}

/* ------------------------------------------------------------------------------------------- when it is refused --- */

TEST(a_module_that_goes_and_comes_back_costs_nothing)
{
    struct redis_server *server = serve_with_module();
    hf_error err = { 0 };
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    redis_server_do(server, "MODULE UNLOAD holdfast");
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    lock = must_acquire(client, NAME, NULL);
    redis_server_do(server, "MODULE LOAD %s", module_path());
    must_release(lock);
    const int64_t before = redis_server_calls(server, "hf.acquire");
    hf_client *other = open_client();
    must_release(must_acquire(other, NAME, NULL));
    CHECK_INT(before + 1, redis_server_calls(server, "hf.acquire"));
    hf_close(other);
    hf_close(client);
}

/* The rule of holdfast-redis(7), which was made for scripts. */
#define SCRIPT_RULE                                                                                                    \
    "~hf:* resetchannels &hf:c:* -@all +ping +eval +evalsha +time +hget +hmget +hset +hdel +hincrby +pexpire +zadd "   \
    "+zrem +zrank +zcard +zpopmin +zrange +publish +subscribe +scan +get +set"

static hf_client *open_as_bob(struct redis_server *server, const char *rule)
{
    redis_server_do(server, "ACL SETUSER bob reset on >pw");
    char command[600];
    snprintf(command, sizeof command, "ACL SETUSER bob %s", rule);
    redis_server_do(server, command);
    return open_url("redis://bob:pw@127.0.0.1:%d", server->port);
}

TEST(a_user_who_may_only_run_scripts_runs_scripts)
{
    struct redis_server *server = serve_with_module();
    hf_client *client = open_as_bob(server, SCRIPT_RULE);
    for (int i = 0; i < 5; i++)
        must_release(must_acquire(client, NAME, NULL));
    redisReply *log = redis_server_command(server, "ACL LOG");
    CHECK_INT(1, log->elements); /* it has tried once, and no more */
    freeReplyObject(log);
    CHECK(scripts_run(server) >= 10);
    hf_close(client);
}

TEST(a_user_who_may_only_use_the_module_uses_that)
{
    struct redis_server *server = serve_with_module();
    struct waiter waiter;
    hf_error err = { 0 };
    hf_client *client = open_as_bob(server, "~hf:* resetchannels &hf:c:* -@all +ping +subscribe +hf.acquire "
                                            "+hf.release +hf.renew +hf.look +hf.guard");
    hf_client *other = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(server, NAME, 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    must_release(waiter.lock);
    CHECK_INT(0, scripts_run(server));
    hf_close(other);
    hf_close(client);
}

/* Else the locks that it holds would be renewed by scripts, which it has not. */
static void keep_a_lock_beside_what_is_denied(struct redis_server *server, const char *query)
{
    hf_error err = { 0 };
    redis_server_do(server,
                    "ACL SETUSER bob reset on >pw ~hf:{the-* resetchannels &hf:c:* -@all +ping +subscribe +wait "
                    "+hf.acquire +hf.release +hf.renew");
    hf_client *client = open_url("redis://bob:pw@127.0.0.1:%d%s", server->port, query);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    refuse_lock(client, "another", HF_DENIED, "NOPERM");
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_DENIED, hf_guard(client, "the-resource", hf_token(lock), &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    CHECK_INT(0, scripts_run(server));
    hf_close(client);
}

TEST_LIMIT(what_is_denied_does_not_cost_the_locks_that_are_held, 60)
{
    struct redis_server *server = serve_with_module();
    keep_a_lock_beside_what_is_denied(server, "");
    redis_server_start_replica(server);
    keep_a_lock_beside_what_is_denied(server, "?replicas=1"); /* each exchange has a connection of its own */
}

static int64_t rejected(struct redis_server *server, const char *command)
{
    char words[40];
    redisReply *reply = redis_server_command(server, "INFO commandstats");
    snprintf(words, sizeof words, "cmdstat_%s:", command);
    const char *line = strstr(reply->str, words);
    const char *count = line ? strstr(line, "rejected_calls=") : NULL;
    const int64_t calls = count ? strtoll(count + strlen("rejected_calls="), NULL, 10) : 0;
    freeReplyObject(reply);
    return calls;
}

/* In a cluster each lock has its own command, all in one write. */
TEST_LIMIT(refused_renewals_go_by_scripts_all_at_once, 60)
{
    enum { LOCKS = 30 };
    char arguments[700], name[16];
    hf_lock *locks[LOCKS];
    hf_options options = HF_OPTIONS_INIT;
    snprintf(arguments, sizeof arguments, "--loadmodule %s --cluster-enabled yes", module_path());
    struct redis_server *server = serve(arguments);
    redis_server_do(server, "CLUSTER ADDSLOTSRANGE 0 16383");
    for (bool ready = false; !ready;) {
        redisReply *reply = redis_server_command(server, "CLUSTER INFO");
        ready = strstr(reply->str, "cluster_state:ok") != NULL;
        freeReplyObject(reply);
        REQUIRE(test_now_ns() < test_deadline_ns());
    }
    hf_client *client = open_url("redis+cluster://127.0.0.1:%d", server->port);
    options.renew = HF_RENEW_ON;
    options.ttl_ms = 6000;
    for (int i = 0; i < LOCKS; i++) {
        snprintf(name, sizeof name, "lock-%d", i);
        locks[i] = must_acquire(client, name, &options);
    }
    redis_server_do(server, "CONFIG SET min-replicas-to-write 1");
    const int64_t before = redis_server_calls(server, "evalsha") + redis_server_calls(server, "eval");
    while (rejected(server, "hf.renew") < LOCKS)
        REQUIRE(test_now_ns() < test_deadline_ns());
    const int64_t refused = rejected(server, "hf.renew");
    const int64_t asked = redis_server_calls(server, "evalsha") + redis_server_calls(server, "eval") - before;
    CHECK(refused <= asked + LOCKS); /* each was refused once before its script was asked */
    redis_server_do(server, "CONFIG SET min-replicas-to-write 0");
    for (int i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    hf_close(client);
}

TEST(the_doctor_says_that_it_is_there_and_who_may_use_it)
{
    struct redis_server *server = serve_with_module();
    hf_client *client = open_client();
    must_find(find_with(client, 30000), HF_FINDING_OK, "module", "locks go by its commands");
    hf_client *bob = open_as_bob(server, SCRIPT_RULE);
    must_find(find_with(bob, 30000), HF_FINDING_NOTE, "module", "+hf.acquire");
    redis_server_do(server, "MODULE UNLOAD holdfast");
    const struct findings *without = find_with(client, 30000);
    for (int i = 0; i < without->count; i++)
        CHECK(strcmp(without->list[i].what, "module") != 0);
    hf_close(bob);
    hf_close(client);
}

/* What is stored is refused; what only has to be said, kept or given back is not. */
TEST(a_full_server_still_says_who_holds_and_takes_back)
{
    struct redis_server *server = serve_with_module();
    struct waiter waiter;
    hf_error err = { 0 };
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(server, NAME, 1);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    check_busy(other, NAME);
    refuse_lock(other, "another", HF_UNAVAILABLE, "maxmemory");
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    must_release(waiter.lock);
    redis_server_do(server, "CONFIG SET maxmemory 0");
    must_release(must_acquire(client, "another", NULL));
    hf_close(other);
    hf_close(client);
}
