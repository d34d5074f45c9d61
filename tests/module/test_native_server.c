/* SPDX-License-Identifier: MIT
 *
 * test_native_server.c: the commands of holdfast.so as a part of the server: what they refuse, memory, replicas, access
 * control, transactions, scripts, loading and unloading. That they do what the scripts do is in test_native_same.c.
 */
#include "native_support.h"

#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK "hf:{a} hf:{a}:q"
#define ME "00000000000000aa.1"
#define YOU "00000000000000bb.1"
#define TAKE(WHO, QUEUE) "HF.ACQUIRE 2 " LOCK " " WHO " host-1-note 30000 " QUEUE
#define GIVE(WHO) "HF.RELEASE 2 " LOCK " " WHO " host-1-note"
#define KEEP(WHO) "HF.RENEW 1 hf:{a} " WHO " 30000"

static bool is_too_old(void)
{
    if (server_version() >= 700)
        return false;
    struct redis_server *server = serve_without_module("");
    CHECK_ERROR_KIND("ERR Error loading the extension", server, "MODULE LOAD %s", home_need("TEST_NATIVE_MODULE"));
    return true;
}

static int64_t first_of(struct redis_server *server, const char *command)
{
    redisReply *reply = redis_server_command(server, command);
    REQUIRE_INT(REDIS_REPLY_ARRAY, reply->type);
    const int64_t first = reply->element[0]->integer;
    freeReplyObject(reply);
    return first;
}

/* A client that listens, as a waiter does. */
static redisContext *listen_as(struct redis_server *server, const char *client)
{
    redisContext *context = redis_server_connect(server);
    REQUIRE(context != NULL);
    freeReplyObject(redisCommand(context, "SUBSCRIBE hf:c:%s", client));
    return context;
}

TEST(a_lock_is_taken_kept_handed_over_and_given_back)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redisContext *you = listen_as(server, "00000000000000bb");
    redisReply *message = NULL;
    const int64_t token = redis_server_number(server, TAKE(ME, "0"));
    CHECK(token > INT64_C(1000000000000000));
    CHECK_INT(token, redis_server_number(server, TAKE(ME, "0")));
    CHECK_INT(-1, first_of(server, TAKE(YOU, "1")));
    CHECK_INT(1, first_of(server, KEEP(ME)));
    CHECK_INT(0, first_of(server, KEEP(YOU)));
    CHECK_INT(1, first_of(server, "HF.LOOK 2 " LOCK));
    CHECK_ANSWER(1, server, GIVE(ME));
    REQUIRE_INT(REDIS_OK, redisGetReply(you, (void **)&message));
    CHECK_STR("hf:c:00000000000000bb", message->element[1]->str);
    char *rest = NULL;
    CHECK_INT(1, strtoll(message->element[2]->str, &rest, 10));
    CHECK(strtoll(rest, NULL, 10) > token);
    freeReplyObject(message);
    CHECK_ANSWER(0, server, GIVE(ME));
    CHECK_TEXT(YOU, server, "HGET hf:{a} o");
    CHECK_ANSWER(1, server, GIVE(YOU));
    CHECK_INT(0, first_of(server, "HF.LOOK 2 " LOCK));
    redisFree(you);
}

TEST(a_waiter_who_is_not_there_is_passed_over)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redis_server_do(server, TAKE(ME, "0"));
    CHECK_INT(-1, first_of(server, TAKE(YOU, "1")));
    CHECK_ANSWER(1, server, "ZCARD hf:{a}:q");
    CHECK_ANSWER(1, server, GIVE(ME));
    CHECK_ANSWER(0, server, "EXISTS hf:{a}:q");
    CHECK_ANSWER(0, server, "HEXISTS hf:{a} o");
}

TEST(what_makes_no_sense_is_refused)
{
    static const char *const arity[] = { "HF.ACQUIRE",
                                         "HF.ACQUIRE 2 a b o w 1",
                                         "HF.ACQUIRE 2 a b o w 1 0 1 1",
                                         "HF.RELEASE 2 a b o",
                                         "HF.RELEASE 2 a b o w 1 1",
                                         "HF.RENEW 1 a o",
                                         "HF.LOOK 2 a",
                                         "HF.GUARD 1 a" };
    static const char *const numbers[] = { "HF.ACQUIRE 2 a b o w x 0",
                                           "HF.ACQUIRE 2 a b o w -1 0",
                                           "HF.ACQUIRE 2 a b o w 9999999999999999 0",
                                           "HF.ACQUIRE 2 a b o w 1 yes",
                                           "HF.ACQUIRE 2 a b o w 1 0 many",
                                           "HF.RENEW 1 a o x",
                                           "HF.GUARD 1 a token",
                                           "HF.GUARD 1 a 01",
                                           "HF.GUARD 1 a -1" };
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    for (size_t i = 0; i < sizeof arity / sizeof *arity; i++)
        CHECK_ERROR_KIND("ERR wrong number of arguments", server, arity[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK_ERROR_KIND("ERR an argument that must be a number is none", server, numbers[i]);
    CHECK_ERROR_KIND("ERR ", server, "HF.RENEW 2 a o 1 o 1");
    CHECK_ERROR_KIND("ERR ", server, "HF.RENEW 0 a o 1");
    CHECK_ANSWER(0, server, "DBSIZE");
}

TEST(what_belongs_to_others_is_refused_and_stays)
{
    static const char *const theirs[] = { "SET hf:{a} x", "RPUSH hf:{a} x", "HSET hf:{a} o someone",
                                          "HSET hf:{a} o someone u soon i x", "HSET hf:{a} a many" };
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
        char before[200], after[200];
        redis_server_do(server, "DEL hf:{a}");
        redis_server_do(server, theirs[i]);
        redis_server_text(server, before, sizeof before, "DEBUG OBJECT hf:{a}");
        CHECK_ERROR_KIND("WRONGTYPE", server, TAKE(ME, "1"));
        CHECK_ANSWER(0, server, "EXISTS hf:{a}:q");
        redis_server_text(server, after, sizeof after, "DEBUG OBJECT hf:{a}");
        const char *const used = strstr(before, " lru:"); /* when it was used, which is looked at now */
        REQUIRE(used != NULL);
        CHECK_INT(0, strncmp(before, after, (size_t)(used - before)));
    }
    redis_server_do(server, "DEL hf:{a}");
    redis_server_do(server, TAKE(ME, "0"));
    redis_server_do(server, "SET hf:{a}:q x");
    CHECK_ERROR_KIND("WRONGTYPE", server, TAKE(YOU, "1"));
    CHECK_ERROR_KIND("WRONGTYPE", server, GIVE(YOU));
    CHECK_ERROR_KIND("WRONGTYPE", server, "HF.LOOK 2 " LOCK);
    CHECK_ANSWER(1, server, GIVE(ME)); /* nobody has lined up: it is not looked at */
    redis_server_do(server, "SET hf:{a}:g 12x");
    CHECK_ERROR_KIND("WRONGTYPE", server, "HF.GUARD 1 hf:{a}:g 13");
    CHECK_TEXT("12x", server, "GET hf:{a}:g");
}

TEST(without_memory_locks_are_kept_and_given_back)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redisContext *you = listen_as(server, "00000000000000bb");
    redis_server_do(server, TAKE(ME, "0"));
    redis_server_do(server, TAKE(YOU, "1"));
    redis_server_do(server, "CONFIG SET maxmemory 1");
    CHECK_ERROR_KIND("OOM ", server, TAKE(YOU, "1"));
    CHECK_ERROR_KIND("OOM ", server, "HF.GUARD 1 hf:{a}:g 13");
    CHECK_INT(1, first_of(server, KEEP(ME)));
    CHECK_ANSWER(1, server, GIVE(ME));
    CHECK_TEXT(YOU, server, "HGET hf:{a} o");
    CHECK_ANSWER(1, server, GIVE(YOU));
    redisFree(you);
}

TEST_LIMIT(a_replica_without_the_module_has_the_same, 60)
{
    static const char *const looks[] = { "HGETALL hf:{a}", "ZRANGE hf:{a}:q 0 -1 WITHSCORES", "GET hf:{a}:g" };
    if (is_too_old())
        return;
    struct redis_server *master = serve_natively("");
    struct redis_server *replica = redis_server_start_replica(master);
    redisContext *you = listen_as(master, "00000000000000bb");
    redis_server_do(master, TAKE(ME, "0"));
    redis_server_do(master, TAKE(YOU, "1"));
    redis_server_do(master, TAKE("00000000000000cc.1", "1") " 5");
    redis_server_do(master, GIVE(ME) " 1"); /* with a mark */
    redis_server_do(master, KEEP(YOU "+2"));
    redis_server_do(master, "HF.GUARD 1 hf:{a}:g 13");
    REQUIRE_INT(1, redis_server_number(master, "WAIT 1 20000"));
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        redisReply *here = redis_server_command(master, looks[i]), *there = redis_server_command(replica, looks[i]);
        REQUIRE_INT(here->type, there->type);
        REQUIRE_INT(here->elements, there->elements);
        CHECK(here->elements > 0 || here->len == 2);
        for (size_t k = 0; k < here->elements; k++)
            CHECK_STR(here->element[k]->str, there->element[k]->str);
        freeReplyObject(here);
        freeReplyObject(there);
    }
    CHECK_INT(redis_server_number(master, "PEXPIRETIME hf:{a}"), redis_server_number(replica, "PEXPIRETIME hf:{a}"));
    CHECK_ERROR_KIND("ERR unknown command", replica, "HF.LOOK 2 a b");
    redisFree(you);
}

static bool transaction_runs(redisContext *watcher)
{
    freeReplyObject(redisCommand(watcher, "MULTI"));
    freeReplyObject(redisCommand(watcher, "SET done 1"));
    redisReply *reply = redisCommand(watcher, "EXEC");
    REQUIRE(reply != NULL);
    const bool ran = reply->type == REDIS_REPLY_ARRAY;
    freeReplyObject(reply);
    return ran;
}

TEST(only_a_change_breaks_a_watching_transaction)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redisContext *watcher = redis_server_connect(server);
    REQUIRE(watcher != NULL);
    redis_server_do(server, TAKE(ME, "0"));
    freeReplyObject(redisCommand(watcher, "WATCH hf:{a} hf:{a}:q"));
    CHECK_INT(-1, first_of(server, TAKE(YOU, "0")));
    CHECK_ANSWER(0, server, GIVE(YOU));
    CHECK_INT(0, first_of(server, KEEP(YOU)));
    CHECK_INT(1, first_of(server, "HF.LOOK 2 " LOCK));
    CHECK(transaction_runs(watcher));
    freeReplyObject(redisCommand(watcher, "WATCH hf:{a}:q"));
    CHECK_INT(-1, first_of(server, TAKE(YOU, "1")));
    CHECK(!transaction_runs(watcher));
    freeReplyObject(redisCommand(watcher, "WATCH hf:{a}"));
    CHECK_INT(1, first_of(server, KEEP(ME)));
    CHECK(!transaction_runs(watcher));
    redisFree(watcher);
}

TEST(they_work_in_transactions_and_in_scripts)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redis_server_do(server, "MULTI");
    redis_server_do(server, TAKE(ME, "0"));
    redis_server_do(server, GIVE(ME));
    redis_server_do(server, GIVE(ME));
    redisReply *reply = redis_server_command(server, "EXEC");
    REQUIRE_INT(3, reply->elements);
    CHECK(reply->element[0]->integer > 0);
    CHECK_INT(1, reply->element[1]->integer);
    CHECK_INT(0, reply->element[2]->integer);
    freeReplyObject(reply);
    CHECK(redis_server_number(server, "EVAL %s 2 " LOCK " " ME,
                              "return redis.call('HF.ACQUIRE', 2, KEYS[1], KEYS[2], ARGV[1], 'h 1 ', 30000, 0)") > 0);
    CHECK_ANSWER(1, server, GIVE(ME));
}

TEST(the_server_knows_their_keys_and_who_may_use_them)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redisReply *reply = redis_server_command(server, "COMMAND GETKEYS HF.RENEW 2 one other o 1 o 1");
    REQUIRE_INT(2, reply->elements);
    CHECK_STR("one", reply->element[0]->str);
    CHECK_STR("other", reply->element[1]->str);
    freeReplyObject(reply);
    redis_server_do(server, "ACL SETUSER locker on nopass ~hf:* -@all +auth +hf.acquire +hf.release");
    redisContext *client = redis_server_connect(server);
    REQUIRE(client != NULL);
    freeReplyObject(redisCommand(client, "AUTH locker any"));
    freeReplyObject(redisCommand(client, TAKE(ME, "0")));
    check_error_kind(__FILE__, __LINE__, "NOPERM", redisCommand(client, KEEP(ME)));
    check_error_kind(__FILE__, __LINE__, "NOPERM", redisCommand(client, "HF.RELEASE 2 a hf:{a}:q " ME " w"));
    check_error_kind(__FILE__, __LINE__, "NOPERM", redisCommand(client, "HF.RELEASE 2 hf:{a} b " ME " w"));
    CHECK_TEXT(ME, server, "HGET hf:{a} o");
    freeReplyObject(redisCommand(client, GIVE(ME)));
    CHECK_ANSWER(0, server, "HEXISTS hf:{a} o");
    redisFree(client);
}

/* Slots that are served here, that are not, and two at once. */
TEST_LIMIT(in_a_cluster_the_keys_decide_where, 60)
{
    static const char *const commands[] = { "HF.ACQUIRE 2 hf:{%s} hf:{%s}:q " ME " w 30000 0",
                                            "HF.SACQUIRE 2 hf:{%s} hf:{%s}:q " ME " w 30000 0",
                                            "HF.RENEW 2 hf:{%s} hf:{%s} " ME " 30000 " ME " 30000",
                                            "HF.LOOK 2 hf:{%s} hf:{%s}:q",
                                            "HF.RELEASE 2 hf:{%s} hf:{%s}:q " ME " w",
                                            "HF.SRELEASE 2 hf:{%s} hf:{%s}:q " ME " w" };
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("--cluster-enabled yes --cluster-require-full-coverage no");
    redis_server_do(server, "CLUSTER ADDSLOTS %d", (int)redis_server_number(server, "CLUSTER KEYSLOT a"));
    bool ready = false;
    while (!ready) {
        redisReply *reply = redis_server_command(server, "CLUSTER INFO");
        ready = strstr(reply->str, "cluster_state:ok") != NULL;
        freeReplyObject(reply);
        REQUIRE(test_now_ns() < test_deadline_ns());
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        redis_server_do(server, commands[i], "a", "a"); /* NOLINT: a table of formats */
        CHECK_ERROR_KIND("CLUSTERDOWN Hash slot not served", server, commands[i], "b", "b");
        CHECK_ERROR_KIND("CROSSSLOT", server, commands[i], "a", "b");
    }
    CHECK_ERROR_KIND("CLUSTERDOWN Hash slot not served", server, "HF.RENEW 1 hf:{b} " ME " 30000");
    CHECK_ERROR_KIND("CLUSTERDOWN Hash slot not served", server, "HF.GUARD 1 hf:{b}:g 12");
    CHECK_ANSWER(1, server, "HF.GUARD 1 hf:{a}:g 12");
}

/* The server looks for the keys by a number that it reads more strictly than others do. */
TEST(no_way_of_writing_their_number_hides_the_keys)
{
    static const char *const numbers[] = {
        "02", "002", "+2", " 2", "2 ", "2.0", "0x2", "-2", "2147483650", "4294967298"
    };
    static const char *const single[] = {
        "01", "001", "+1", " 1", "1 ", "1.0", "0x1", "-1", "2147483649", "4294967297"
    };
    enum { REQUESTS = 5 };
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    redis_server_do(server, "ACL SETUSER locker on nopass ~hf:* -@all +auth +hf.acquire +hf.release +hf.renew +hf.look "
                            "+hf.guard");
    redis_server_do(server, "HSET other:t o " ME " u 9999999999999999 t 7");
    redis_server_do(server, "SET other 5");
    redisContext *client = redis_server_connect(server);
    REQUIRE(client != NULL);
    freeReplyObject(redisCommand(client, "AUTH locker any"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        test_note("'%s' and '%s'", numbers[i], single[i]);
        redisReply *replies[REQUESTS] = {
            redisCommand(client, "HF.ACQUIRE %s mine mine:q " ME " w 1000 0", numbers[i]),
            redisCommand(client, "HF.RELEASE %s other:t mine:q " ME " w", numbers[i]),
            redisCommand(client, "HF.LOOK %s other:t mine:q", numbers[i]),
            redisCommand(client, "HF.GUARD %s other 17", single[i]),
            redisCommand(client, "HF.RENEW %s other:t " ME " 1000", single[i]),
        };
        for (size_t k = 0; k < REQUESTS; k++) {
            REQUIRE(replies[k] != NULL);
            CHECK_INT(REDIS_REPLY_ERROR, replies[k]->type);
            freeReplyObject(replies[k]);
        }
    }
    CHECK_ANSWER(0, server, "EXISTS mine");
    CHECK_TEXT(ME, server, "HGET other:t o");
    CHECK_TEXT("9999999999999999", server, "HGET other:t u");
    CHECK_TEXT("5", server, "GET other");
    redisFree(client);
}

TEST(it_is_loaded_once_and_can_be_taken_away)
{
    if (is_too_old())
        return;
    struct redis_server *server = serve_natively("");
    CHECK_ERROR_KIND("ERR Error loading the extension", server, "MODULE LOAD %s", home_need("TEST_NATIVE_MODULE"));
    redis_server_do(server, TAKE(ME, "0"));
    redis_server_do(server, "MODULE UNLOAD holdfast");
    CHECK_ERROR_KIND("ERR unknown command", server, GIVE(ME));
    CHECK_TEXT(ME, server, "HGET hf:{a} o");
    redis_server_do(server, "MODULE LOAD %s", home_need("TEST_NATIVE_MODULE"));
    CHECK_ANSWER(1, server, GIVE(ME));
    redis_server_do(server, "MODULE LOAD %s", home_need("TEST_SERVER_MODULE")); /* beside CAS and CAD */
    CHECK_ANSWER(-1, server, "CAD none x");
}
