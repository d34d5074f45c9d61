/* SPDX-License-Identifier: MIT
 *
 * test_module_commands.c: CAS and CAD of the server's module: replies, options, errors, and what they leave alone.
 */
#include "module_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG_MS 1000000
#define SYNTAX "ERR syntax error"
#define WRONG_TYPE "WRONGTYPE Operation against a key holding the wrong kind of value"

/* ---------------------------------------------------------------------------------------------------------- replies */

TEST(cad_deletes_what_has_the_value_and_nothing_else)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "SET k mine");
    CHECK_ANSWER(0, server, "CAD k other");
    CHECK_ANSWER(0, server, "CAD k min");
    CHECK_ANSWER(0, server, "CAD k mine2");
    CHECK_ANSWER(0, server, "CAD k MINE");
    CHECK_TEXT("mine", server, "GET k");
    CHECK_ANSWER(1, server, "CAD k mine");
    CHECK_ANSWER(0, server, "EXISTS k");
    CHECK_ANSWER(-1, server, "CAD k mine");
    CHECK_ANSWER(-1, server, "CAD k %b", "", (size_t)0);
}

TEST(cas_sets_what_has_the_value_and_nothing_else)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "SET k one");
    CHECK_ANSWER(1, server, "CAS k one two");
    CHECK_TEXT("two", server, "GET k");
    CHECK_ANSWER(0, server, "CAS k one three");
    CHECK_ANSWER(0, server, "CAS k TWO three PX 1000");
    CHECK_TEXT("two", server, "GET k");
    CHECK_ANSWER(1, server, "CAS k two two");
    CHECK_TEXT("two", server, "GET k");
    CHECK_ANSWER(-1, server, "CAS none two three");
    CHECK_ANSWER(-1, server, "CAS none two three EX 10");
    CHECK_ANSWER(-1, server, "CAS none two three KEEPTTL");
    CHECK_ANSWER(0, server, "EXISTS none");
}

TEST(values_are_compared_byte_by_byte)
{
    static const struct {
        const char *bytes;
        size_t length;
    } values[] = { { "", 0 },     { "\0", 1 },       { "\0\0", 2 },     { "a\0b", 3 },   { "a\0c", 3 }, { "a", 1 },
                   { "\r\n", 2 }, { "\xff\xfe", 2 }, { "\xff\xfd", 2 }, { "10", 2 },     { "010", 3 },  { "+10", 3 },
                   { "10 ", 3 },  { "1e1", 3 },      { "%s", 2 },       { "KEEPTTL", 7 } };
    const size_t count = sizeof values / sizeof *values;
    struct redis_server *server = serve_with_module("");
    for (size_t there = 0; there < count; there++) {
        for (size_t asked = 0; asked < count; asked++) {
            redis_server_do(server, "SET k %b", values[there].bytes, values[there].length);
            CHECK_ANSWER(there == asked, server, "CAS k %b %b", values[asked].bytes, values[asked].length,
                         values[asked].bytes, values[asked].length);
            CHECK_ANSWER(values[there].length, server, "STRLEN k");
            CHECK_ANSWER(there == asked, server, "CAD k %b", values[asked].bytes, values[asked].length);
        }
    }
    redis_server_do(server, "SET k plain");
    CHECK_ANSWER(1, server, "CAS k plain %b", "a\0b", (size_t)3);
    redisReply *reply = redis_server_command(server, "GET k");
    REQUIRE_INT(3, reply->len);
    CHECK(memcmp(reply->str, "a\0b", 3) == 0);
    freeReplyObject(reply);
    CHECK_ANSWER(1, server, "CAS k %b %b", "a\0b", (size_t)3, "", (size_t)0);
    CHECK_ANSWER(0, server, "STRLEN k");
    CHECK_ANSWER(1, server, "EXISTS k");
}

TEST(keys_are_bytes_too_and_values_can_be_long)
{
    struct redis_server *server = serve_with_module("");
    const size_t length = 1 << 20;
    char *value = calloc(1, length);
    REQUIRE(value != NULL);
    redis_server_do(server, "SET %b %b", "k\0k", (size_t)3, value, length);
    redis_server_do(server, "SET k other");
    value[length - 1] = 1;
    CHECK_ANSWER(0, server, "CAD %b %b", "k\0k", (size_t)3, value, length);
    value[length - 1] = 0;
    CHECK_ANSWER(1, server, "CAD %b %b", "k\0k", (size_t)3, value, length);
    CHECK_TEXT("other", server, "GET k");
    free(value);
}

/* ----------------------------------------------------------------------------------------------------------- expiry */

static void fresh_lock(struct redis_server *server)
{
    redis_server_do(server, "SET k old PX %d", LONG_MS / 2);
}

TEST(a_relative_time_counts_from_now)
{
    static const char *const options[] = { "EX 1000", "ex 1000", "Ex 1000", "PX 1000000", "px 1000000" };
    struct redis_server *server = serve_with_module("");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char command[100];
        snprintf(command, sizeof command, "CAS k old new %s", options[i]);
        fresh_lock(server);
        const int64_t before_ms = server_now_ms(server);
        CHECK_ANSWER(1, server, command);
        const int64_t after_ms = server_now_ms(server);
        const int64_t expiry_ms = expiry_of(server, "k");
        CHECK_TEXT("new", server, "GET k");
        CHECK(expiry_ms >= before_ms + LONG_MS || same_expiry(expiry_ms, before_ms + LONG_MS));
        CHECK(expiry_ms <= after_ms + LONG_MS || same_expiry(expiry_ms, after_ms + LONG_MS));
    }
}

TEST(an_absolute_time_is_taken_as_it_is)
{
    struct redis_server *server = serve_with_module("");
    const int64_t at_s = server_now_ms(server) / 1000 + LONG_MS / 1000;
    static const char *const seconds[] = { "EXAT", "exat" };
    static const char *const milliseconds[] = { "PXAT", "pxat" };
    for (int i = 0; i < 2; i++) {
        fresh_lock(server);
        CHECK_ANSWER(1, server, "CAS k old new %s %lld", seconds[i], (long long)at_s);
        CHECK(same_expiry(at_s * 1000, expiry_of(server, "k")));
        fresh_lock(server);
        CHECK_ANSWER(1, server, "CAS k old new %s %lld", milliseconds[i], (long long)at_s * 1000 + 123);
        CHECK(same_expiry(at_s * 1000 + 123, expiry_of(server, "k")));
        CHECK_TEXT("new", server, "GET k");
    }
}

TEST(a_time_in_the_past_removes_the_key)
{
    struct redis_server *server = serve_with_module("");
    fresh_lock(server);
    CHECK_ANSWER(1, server, "CAS k old new PXAT 1");
    CHECK_ANSWER(0, server, "EXISTS k");
    fresh_lock(server);
    CHECK_ANSWER(1, server, "CAS k old new EXAT 1");
    CHECK_ANSWER(0, server, "EXISTS k");
}

TEST(without_an_option_the_expiry_is_removed)
{
    struct redis_server *server = serve_with_module("");
    fresh_lock(server);
    CHECK_ANSWER(1, server, "CAS k old new");
    CHECK_INT(-1, expiry_of(server, "k"));
}

TEST(keepttl_keeps_the_expiry)
{
    static const char *const words[] = { "KEEPTTL", "keepttl" };
    struct redis_server *server = serve_with_module("");
    for (int i = 0; i < 2; i++) {
        fresh_lock(server);
        const int64_t expiry_ms = expiry_of(server, "k");
        REQUIRE(expiry_ms > 0);
        CHECK_ANSWER(1, server, "CAS k old new %s", words[i]);
        CHECK_TEXT("new", server, "GET k");
        CHECK(same_expiry(expiry_ms, expiry_of(server, "k")));
    }
    redis_server_do(server, "SET k old");
    CHECK_ANSWER(1, server, "CAS k old new KEEPTTL");
    CHECK_INT(-1, expiry_of(server, "k"));
}

TEST(what_has_expired_is_not_there)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "DEBUG SET-ACTIVE-EXPIRE 0"); /* so that it is removed by who looks at it, or never */
    redis_server_do(server, "SET first old PX 1");
    redis_server_do(server, "SET second old PX 1");
    const int64_t expired_ms = server_now_ms(server) + 1;
    while (server_now_ms(server) <= expired_ms)
        REQUIRE(test_now_ns() < test_deadline_ns());
    CHECK_ANSWER(2, server, "DBSIZE");
    CHECK_ANSWER(-1, server, "CAD first old");
    CHECK_ANSWER(-1, server, "CAS second old new");
    CHECK_ANSWER(0, server, "DBSIZE");
}

/* ----------------------------------------------------------------------------------------------------------- errors */

TEST(options_that_make_no_sense_are_a_syntax_error)
{
    static const char *const commands[] = {
        "CAS k old new EX",
        "CAS k old new PX",
        "CAS k old new EXAT",
        "CAS k old new PXAT",
        "CAS k old new EX 0",
        "CAS k old new PX 0",
        "CAS k old new EXAT 0",
        "CAS k old new PXAT 0",
        "CAS k old new EX -1",
        "CAS k old new PX -1",
        "CAS k old new EXAT -1",
        "CAS k old new PXAT -1",
        "CAS k old new EX 1.5",
        "CAS k old new PX ten",
        "CAS k old new PX 10x",
        "CAS k old new PX 1e3",
        "CAS k old new NX",
        "CAS k old new XX",
        "CAS k old new GET",
        "CAS k old new 10",
        "CAS k old new EX 10 EX 5",
        "CAS k old new EX 10 PX 5",
        "CAS k old new PX 5 KEEPTTL",
        "CAS k old new KEEP",
        "CAS k old new PXX 10",
        "CAS k old new KEEPTTL PX 5",
        "CAS k old new KEEPTTL 5",
        "CAS k old new PERSIST",
        "CAS k old new PX 9223372036854775808",
    };
    struct redis_server *server = serve_with_module("");
    fresh_lock(server);
    const int64_t expiry_ms = expiry_of(server, "k");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        CHECK_ERROR(SYNTAX, server, commands[i]);
    CHECK_ERROR(SYNTAX, server, "CAS k old new %b 10", "PX\0", (size_t)3);
    CHECK_ERROR(SYNTAX, server, "CAS k old new PX %b", "10\0", (size_t)3);
    CHECK_ERROR(SYNTAX, server, "CAS k old new %b", "", (size_t)0);
    CHECK_ERROR(SYNTAX, server, "CAS k differs new EX 0");
    CHECK_ERROR(SYNTAX, server, "CAS none old new EX 0");
    CHECK_TEXT("old", server, "GET k");
    CHECK(same_expiry(expiry_ms, expiry_of(server, "k")));
}

TEST(a_time_that_no_clock_reaches_is_refused)
{
    struct redis_server *server = serve_with_module("");
    fresh_lock(server);
    const int64_t expiry_ms = expiry_of(server, "k");
    CHECK_ERROR("ERR invalid expire time in 'cas' command", server, "CAS k old new PX 9223372036854775807");
    CHECK_ERROR("ERR invalid expire time in 'cas' command", server, "CAS k old new EX 9223372036854775807");
    CHECK_ERROR("ERR invalid expire time in 'cas' command", server, "CAS k old new EX 9223372036854775");
    CHECK_ERROR("ERR invalid expire time in 'cas' command", server, "CAS k old new EXAT 9223372036854776");
    CHECK_TEXT("old", server, "GET k");
    CHECK(same_expiry(expiry_ms, expiry_of(server, "k")));
}

TEST(the_number_of_arguments_matters)
{
    static const char *const cad[] = { "CAD", "CAD k", "CAD k old more" };
    static const char *const cas[] = { "CAS", "CAS k", "CAS k old" };
    struct redis_server *server = serve_with_module("");
    fresh_lock(server);
    for (int i = 0; i < 3; i++) {
        CHECK_ERROR("ERR wrong number of arguments for 'cad' command", server, cad[i]);
        CHECK_ERROR("ERR wrong number of arguments for 'cas' command", server, cas[i]);
    }
    CHECK_TEXT("old", server, "GET k");
}

TEST(only_strings_can_be_compared)
{
    static const char *const others[] = { "HSET k f old", "RPUSH k old", "SADD k old", "ZADD k 1 old",
                                          "XADD k * f old" };
    struct redis_server *server = serve_with_module("");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        redis_server_do(server, "DEL k");
        redis_server_do(server, others[i]);
        CHECK_ERROR(WRONG_TYPE, server, "CAD k old");
        CHECK_ERROR(WRONG_TYPE, server, "CAS k old new");
        CHECK_ERROR(WRONG_TYPE, server, "CAS k old new PX 1000");
        CHECK_ERROR(SYNTAX, server, "CAS k old new PX 0");
        CHECK_ANSWER(1, server, "EXISTS k");
        CHECK_INT(-1, expiry_of(server, "k"));
    }
}

/* ------------------------------------------------------------------------------------------- leaving things alone */

TEST(a_comparison_that_fails_changes_nothing)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "SET number 12345 PX %d", LONG_MS);
    redis_server_do(server, "SET short mine");
    const int64_t expiry_ms = expiry_of(server, "number");
    CHECK_ANSWER(0, server, "CAD number 5432");
    CHECK_ANSWER(0, server, "CAS number 5432 1");
    CHECK_ANSWER(0, server, "CAS number 5432 1 PX 5");
    CHECK_ANSWER(0, server, "CAD short yours");
    CHECK_TEXT("int", server, "OBJECT ENCODING number"); /* nor is anything stored in another way */
    CHECK_TEXT("embstr", server, "OBJECT ENCODING short");
    CHECK_ANSWER(0, server, "CAD number 54321");
    CHECK_ANSWER(0, server, "CAS number 54321 1");
    CHECK_ANSWER(0, server, "CAS number 54321 1 PX 5");
    CHECK_ANSWER(0, server, "CAD short your");
    CHECK(same_expiry(expiry_ms, expiry_of(server, "number")));
    CHECK_ANSWER(12345, server, "GET number");
    CHECK_TEXT("mine", server, "GET short");
    CHECK_ANSWER(12346, server, "INCR number"); /* it is a number still */
    CHECK(same_expiry(expiry_ms, expiry_of(server, "number")));
}

static bool transaction_runs(redisContext *watcher)
{
    redisReply *reply;
    freeReplyObject(redisCommand(watcher, "MULTI"));
    freeReplyObject(redisCommand(watcher, "SET done 1"));
    reply = redisCommand(watcher, "EXEC");
    REQUIRE(reply != NULL);
    const bool ran = reply->type == REDIS_REPLY_ARRAY;
    freeReplyObject(reply);
    return ran;
}

TEST(only_a_change_breaks_a_watching_transaction)
{
    struct redis_server *server = serve_with_module("");
    redisContext *watcher = redis_server_connect(server);
    REQUIRE(watcher != NULL);
    redis_server_do(server, "SET k old");
    freeReplyObject(redisCommand(watcher, "WATCH k none"));
    CHECK_ANSWER(0, server, "CAD k other");
    CHECK_ANSWER(0, server, "CAS k other new");
    CHECK_ANSWER(-1, server, "CAD none other");
    CHECK(transaction_runs(watcher));
    freeReplyObject(redisCommand(watcher, "WATCH k"));
    CHECK_ANSWER(1, server, "CAS k old new");
    CHECK(!transaction_runs(watcher));
    freeReplyObject(redisCommand(watcher, "WATCH k"));
    CHECK_ANSWER(1, server, "CAD k new");
    CHECK(!transaction_runs(watcher));
    redisFree(watcher);
}

/* ------------------------------------------------------------------------------------- transactions and scripts */

TEST(they_work_in_a_transaction)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "SET k one");
    redis_server_do(server, "MULTI");
    redis_server_do(server, "CAS k one two PX %d", LONG_MS);
    redis_server_do(server, "CAS k one three");
    redis_server_do(server, "CAD k two");
    redis_server_do(server, "CAD k two");
    redisReply *reply = redis_server_command(server, "EXEC");
    static const int expected[] = { 1, 0, 1, -1 };
    REQUIRE_INT(4, reply->elements);
    for (size_t i = 0; i < reply->elements; i++)
        CHECK_INT(expected[i], reply->element[i]->integer);
    freeReplyObject(reply);
}

TEST(they_work_in_a_script)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "SET k one");
    CHECK_ANSWER(1, server, "EVAL %s 1 k one two", "return redis.call('CAS', KEYS[1], ARGV[1], ARGV[2], 'PX', 100000)");
    CHECK_TEXT("two", server, "GET k");
    CHECK(expiry_of(server, "k") > 0);
    CHECK_ANSWER(0, server, "EVAL %s 1 k one", "return redis.call('CAD', KEYS[1], ARGV[1])");
    CHECK_ANSWER(1, server, "EVAL %s 1 k two", "return redis.call('CAD', KEYS[1], ARGV[1])");
    CHECK_ANSWER(-1, server, "EVAL %s 1 k two", "return redis.call('CAD', KEYS[1], ARGV[1])");
    redis_server_do(server, "HSET h f v");
    CHECK_TEXT(WRONG_TYPE, server, "EVAL %s 1 h v", "return redis.pcall('CAD', KEYS[1], ARGV[1]).err");
}
