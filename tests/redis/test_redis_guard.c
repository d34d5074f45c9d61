/* SPDX-License-Identifier: MIT
 *
 * test_redis_guard.c: what hf_guard() leaves on a real server, how long, and that scripts/holdfast-guard.lua, which
 * programs run beside their own data, does the same with the same key.
 */
#include "group_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESOURCE "stock"
#define KEY "hf:{stock}:g"

static void check_guard(hf_status expected, hf_client *client, uint64_t token)
{
    hf_error err = { 0 };
    CHECK_STATUS(expected, hf_guard(client, RESOURCE, token, &err), &err);
}

/* --- the key --- */

TEST(the_key_holds_the_largest_token_and_has_no_end)
{
    static const char *const same_key[] = { "", "?dialect=plain", "?dialect=redisson" };
    struct redis_server *server = serve("");
    char seen[32];
    for (unsigned i = 0; i < sizeof same_key / sizeof *same_key; i++) {
        hf_client *client = open_url("%s%s", server->url, same_key[i]);
        check_guard(HF_OK, client, UINT64_C(9007199254740993) + i);
        check_guard(HF_LOST, client, UINT64_C(9007199254740992) + i);
        redis_server_text(server, seen, sizeof seen, "GET " KEY);
        CHECK_INT(UINT64_C(9007199254740993) + i, strtoull(seen, NULL, 10));
        CHECK_INT(-1, redis_server_number(server, "PTTL " KEY));
        hf_close(client);
    }
    CHECK_INT(1, redis_server_number(server, "DBSIZE"));
}

TEST(the_key_follows_prefix_and_tag)
{
    static const struct {
        const char *options, *resource, *key;
    } all[] = {
        { "", "shop{eu}", "hf:shop{eu}::g" },
        { "?prefix=app:", "stock", "app:{stock}:g" },
        { "?dialect=plain", "shop{eu}", "hf::shop{eu}:g" },
        { "?dialect=plain&prefix=app:", "stock", "hf:{app:stock}:g" },
        { "", "}", "hf:{-}};:g" },
    };
    struct redis_server *server = serve("");
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        hf_error err = { 0 };
        hf_client *client = open_url("%s%s", server->url, all[i].options);
        CHECK_STATUS(HF_OK, hf_guard(client, all[i].resource, 7, &err), &err);
        if (!CHECK_INT(7, redis_server_number(server, "GET %s", all[i].key)))
            test_note("for %s", all[i].key);
        hf_close(client);
    }
}

TEST(one_command_is_one_exchange)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    check_guard(HF_OK, client, 1); /* which makes the script known */
    const int64_t before = redis_server_sent(server);
    for (uint64_t token = 2; token <= 11; token++)
        check_guard(HF_OK, client, token);
    CHECK_INT(10, redis_server_sent(server) - before);
    hf_close(client);
}

TEST(what_was_seen_outlasts_the_server)
{
    struct redis_server *server = serve("--appendonly yes --appendfsync always");
    hf_client *client = open_client();
    check_guard(HF_OK, client, 40);
    redis_server_kill(server);
    redis_server_restart(server, true, "");
    hf_close(client);
    client = open_client();
    check_guard(HF_LOST, client, 39);
    check_guard(HF_OK, client, 40);
    hf_close(client);
}

/* --- refusals --- */

TEST(what_is_no_token_is_not_overwritten)
{
    static const char *const others[] = { "SET " KEY " hello", "SET " KEY " 0", "SET " KEY " 1.5", "SET " KEY " -1",
                                          "LPUSH " KEY " 1" };
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        hf_error err = { 0 };
        redis_server_do(server, others[i]);
        if (!CHECK_STATUS(HF_DENIED, hf_guard(client, RESOURCE, 7, &err), &err))
            test_note("after %s", others[i]);
        check_words(&err, KEY);
        redis_server_do(server, "DEL " KEY);
    }
    check_guard(HF_OK, client, 7);
    hf_close(client);
}

TEST(without_memory_or_rights_no_token_passes)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_error err = { 0 };
    check_guard(HF_OK, client, 5);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    CHECK_STATUS(HF_UNAVAILABLE, hf_guard(client, RESOURCE, 6, &err), &err);
    check_words(&err, "maxmemory");
    check_guard(HF_LOST, client, 4); /* to say so needs no memory */
    redis_server_do(server, "CONFIG SET maxmemory 0");
    check_guard(HF_OK, client, 5); /* 6 has not come in */
    redis_server_do(server, "ACL SETUSER default -set");
    CHECK_STATUS(HF_DENIED, hf_guard(client, RESOURCE, 6, &err), &err);
    check_words(&err, "+set");
    redis_server_do(server, "ACL SETUSER default +@all");
    check_guard(HF_OK, client, 5);
    hf_close(client);
}

/* --- replicas --- */

/* Else a failover could bring back the time before it. An equal token that another connection has shown counts no more
 * than a new one. */
TEST(a_token_that_no_replica_has_does_not_pass)
{
    struct redis_server *server = serve("");
    struct redis_server *replica = redis_server_start_replica(server);
    hf_client *client = open_url("%s?replicas=1&replica_timeout=5000", server->url);
    hf_client *impatient = open_url("%s?replicas=1&replica_timeout=200", server->url);
    hf_client *careless = open_client();
    hf_error err = { 0 };
    check_guard(HF_OK, client, 5);
    CHECK_INT(5, redis_server_number(replica, "GET " KEY));
    redis_server_pause(replica);
    check_guard(HF_OK, careless, 6);
    CHECK_STATUS(HF_UNKNOWN, hf_guard(impatient, RESOURCE, 6, &err), &err);
    CHECK_INT(HF_UNKNOWN, err.status);
    check_words(&err, "replicas");
    check_guard(HF_LOST, impatient, 4); /* nobody need confirm that */
    redis_server_continue(replica);
    check_guard(HF_OK, client, 6);
    CHECK_INT(6, redis_server_number(replica, "GET " KEY));
    hf_close(careless);
    hf_close(impatient);
    hf_close(client);
}

TEST_LIMIT(what_was_seen_outlasts_a_master, 60)
{
    struct redis_group *group = redis_sentinel_start(NULL);
    hf_client *client = open_url("%s?replicas=1&replica_timeout=5000", group->url);
    struct redis_server *old = redis_sentinel_master(group);
    check_guard(HF_OK, client, 40);
    redis_server_kill(old);
    redis_sentinel_await_change(group, old);
    hf_error err = { 0 };
    hf_status status;
    do { /* until the new master is known to everybody */
        pause_ms(5);
        status = hf_guard(client, RESOURCE, 39, &err);
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    } while (status == HF_UNAVAILABLE || status == HF_UNKNOWN);
    CHECK_STATUS(HF_LOST, status, &err);
    hf_close(client);
}

/* --- the script for programs --- */

static const char *script(void)
{
    static char text[8000];
    FILE *file = fopen(getenv("TEST_GUARD_SCRIPT"), "re");
    REQUIRE(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    REQUIRE(feof(file));
    REQUIRE_INT(0, fclose(file));
    return text;
}

/* SET `to` `value` with `token`: the first word of the answer. */
static void check_write(struct redis_server *server, const char *token, const char *value, const char *expected)
{
    char first[32] = "";
    redisReply *reply =
        redis_server_command(server, "EVAL %s 2 " KEY " count:{stock} %s SET count:{stock} %s", script(), token, value);
    REQUIRE(reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_ERROR);
    sscanf(reply->str, "%31s", first);
    if (!CHECK_STR(expected, first))
        test_note("with token %s: %s", token, reply->str);
    freeReplyObject(reply);
}

TEST(the_script_writes_for_the_last_holder_alone)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    check_write(server, "9007199254740992", "1", "OK");
    check_write(server, "9007199254740993", "2", "OK");
    check_write(server, "9007199254740993", "3", "OK");
    check_write(server, "9007199254740992", "4", "FENCED");
    check_write(server, "999", "4", "FENCED");
    CHECK_INT(3, redis_server_number(server, "GET count:{stock}"));
    check_guard(HF_LOST, client, UINT64_C(9007199254740992)); /* they share the key, each way */
    check_guard(HF_OK, client, UINT64_C(9007199254740994));
    check_write(server, "9007199254740993", "5", "FENCED");
    check_write(server, "9223372036854775807", "6", "OK");
    check_guard(HF_LOST, client, INT64_MAX - 1);
    CHECK_INT(6, redis_server_number(server, "GET count:{stock}"));
    hf_close(client);
}

TEST(the_script_takes_nothing_else_for_a_token)
{
    static const char *const none[] = {
        "0", "01", "-1", "1.5", "1e3", "x", "9223372036854775808", "10000000000000000000"
    };
    struct redis_server *server = serve("");
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++)
        check_write(server, none[i], "1", "ERR");
    CHECK_INT(0, redis_server_number(server, "DBSIZE"));
    redis_server_do(server, "SET " KEY " hello");
    check_write(server, "1", "1", "WRONGTYPE");
    redis_server_do(server, "DEL " KEY);
    redis_server_do(server, "CONFIG SET maxmemory 1");
    check_write(server, "1", "1", "OOM");
    CHECK_INT(0, redis_server_number(server, "DBSIZE"));
}

TEST(the_script_answers_what_the_command_answers)
{
    struct redis_server *server = serve("");
    CHECK_INT(1, redis_server_number(server, "EVAL %s 1 " KEY " 5", script())); /* checks, and no more */
    CHECK_INT(-1, redis_server_number(server, "EVAL %s 2 " KEY " none:{stock} 5 GET none:{stock}", script()));
    CHECK_INT(3, redis_server_number(server, "EVAL %s 2 " KEY " list:{stock} 5 RPUSH list:{stock} a b c", script()));
    redisReply *reply = redis_server_command(server, "EVAL %s 2 " KEY " list:{stock} 5 INCR list:{stock}", script());
    CHECK(reply->type == REDIS_REPLY_ERROR && strstr(reply->str, "WRONGTYPE"));
    freeReplyObject(reply);
}
