/* SPDX-License-Identifier: MIT
 *
 * module_support.c: see module_support.h.
 */
#include "module_support.h"

#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLACK_MS 20000

const char *module_path(void)
{
    return home_need("TEST_SERVER_MODULE");
}

int server_version(void)
{
    static int version;
    char command[300];
    char line[300] = "";
    if (version > 0)
        return version;
    snprintf(command, sizeof command, "'%s' --version", home_need("TEST_SERVER"));
    FILE *output = popen(command, "r");
    REQUIRE(output != NULL);
    REQUIRE(fgets(line, sizeof line, output) != NULL);
    pclose(output);
    const char *numbers = strstr(line, " v=");
    REQUIRE(numbers != NULL);
    char *rest = NULL;
    version = (int)strtol(numbers + 3, &rest, 10) * 100;
    REQUIRE(version >= 600 && *rest == '.');
    version += (int)strtol(rest + 1, NULL, 10);
    return version;
}

static struct redis_server *serve(const char *first, const char *second, const char *arguments)
{
    char all[900];
    /* Redis 6 always allows what these switch on, and does not know them. */
    const char *allowed = server_version() < 700 ? "" : "--enable-module-command yes --enable-debug-command yes";
    snprintf(all, sizeof all, "%s %s %s %s", first, second, allowed, arguments);
    return redis_server_start(home_need("TEST_SERVER"), all);
}

struct redis_server *serve_with_module(const char *arguments)
{
    return serve("--loadmodule", module_path(), arguments);
}

struct redis_server *serve_without_module(const char *arguments)
{
    return serve("", "", arguments);
}

int64_t server_now_ms(struct redis_server *server)
{
    redisReply *reply = redis_server_command(server, "TIME");
    REQUIRE_INT(2, reply->elements);
    const int64_t now_ms =
        strtoll(reply->element[0]->str, NULL, 10) * 1000 + strtoll(reply->element[1]->str, NULL, 10) / 1000;
    freeReplyObject(reply);
    return now_ms;
}

int64_t expiry_of(struct redis_server *server, const char *key)
{
    if (server_version() >= 700)
        return redis_server_number(server, "PEXPIRETIME %s", key);
    const int64_t left_ms = redis_server_number(server, "PTTL %s", key);
    return left_ms < 0 ? left_ms : left_ms + server_now_ms(server);
}

bool same_expiry(int64_t one, int64_t other)
{
    if (one < 0 || other < 0 || server_version() >= 700)
        return one == other;
    return llabs((long long)(one - other)) < SLACK_MS;
}

void check_error(const char *file, int line, const char *expected, redisReply *reply)
{
    if (test_check(reply->type == REDIS_REPLY_ERROR, file, line, "an error was expected: %s", expected))
        test_check_str(file, line, "the error", expected, reply->str);
    freeReplyObject(reply);
}

void check_error_kind(const char *file, int line, const char *expected, redisReply *reply)
{
    if (test_check(reply->type == REDIS_REPLY_ERROR, file, line, "an error was expected: %s", expected))
        test_check(strncmp(reply->str, expected, strlen(expected)) == 0, file, line, "expected %s, got %s", expected,
                   reply->str);
    freeReplyObject(reply);
}

void check_text(const char *file, int line, const char *expected, redisReply *reply)
{
    test_check_str(file, line, "the answer", expected, reply->type == REDIS_REPLY_NIL ? "" : reply->str);
    freeReplyObject(reply);
}
