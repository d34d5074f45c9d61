/* SPDX-License-Identifier: MIT
 *
 * compare_redis.c: Holdfast on a Redis server beside raw hiredis on the same server, by turns in one run, as ratios.
 * As with bench/compare the program ends with 0 whatever the ratios, and says "OVER" where a bar is not met.
 *
 *     compare_redis [--json] [--keep SECONDS] PORT
 *
 * PORT is where a redis-server of our own listens on 127.0.0.1: its data is flushed, and it is moved from core to core.
 * SECONDS is for how long 10,000 locks are held and renewed; 0 leaves that out.
 */
#include "compare_redis.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP_SECONDS 30

const struct placement placements[2] = { { "one core", 0, 0 }, { "two cores", 0, 1 } };

/* What the scripts call inside the server is counted by INFO as well, although nobody sent it. None of these is sent by
 * Holdfast by itself. */
static const char *const inside[] = { "time",    "hmget",           "hget",   "hset",  "hdel", "hincrby", "pexpire",
                                      "publish", "zpopmin",         "zrange", "zrank", "zrem", "zadd",    "zcard",
                                      "info",    "config|resetstat" };

redisContext *connect_raw(int port)
{
    redisContext *context = redisConnect("127.0.0.1", port);

    if (context == NULL || context->err != 0)
        die("cannot connect to port %d: %s", port, context != NULL ? context->errstr : "no memory");
    return context;
}

void check_reply(const redisContext *context, const redisReply *reply)
{
    if (reply == NULL)
        die("the server is gone: %s", context->errstr);
    if (reply->type == REDIS_REPLY_ERROR)
        die("the server answered: %s", reply->str);
}

redisReply *ask_raw(redisContext *context, const char *format, ...)
{
    redisReply *reply;
    va_list args;

    va_start(args, format);
    reply = redisvCommand(context, format, args);
    va_end(args);
    check_reply(context, reply);
    return reply;
}

hf_client *open_client(const struct results *results)
{
    hf_client *client;
    hf_error err;

    must(hf_open(&client, results->url, NULL, &err), &err, results->url);
    return client;
}

static void server_text(struct server *server, const char *section, const char *field, char *text, size_t size)
{
    redisReply *reply = ask_raw(server->control, "INFO %s", section);
    size_t length = strlen(field);
    const char *line = reply->str;

    while (line != NULL && (strncmp(line, field, length) != 0 || line[length] != ':')) {
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    if (line == NULL)
        die("INFO %s has no %s", section, field);
    line += length + 1;
    snprintf(text, size, "%.*s", (int)strcspn(line, "\r\n"), line);
    freeReplyObject(reply);
}

double server_figure(struct server *server, const char *section, const char *field)
{
    char text[64];

    server_text(server, section, field, text, sizeof text);
    return strtod(text, NULL);
}

static bool runs_inside(const char *command)
{
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++)
        if (strcmp(inside[i], command) == 0)
            return true;
    return false;
}

double server_commands(struct server *server)
{
    redisReply *reply = ask_raw(server->control, "INFO commandstats");
    double sum = 0;
    char *rest = NULL;

    for (char *line = strtok_r(reply->str, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest)) {
        char command[64];
        double calls;

        if (sscanf(line, "cmdstat_%63[^:]:calls=%lf", command, &calls) == 2 && !runs_inside(command))
            sum += calls;
    }
    freeReplyObject(reply);
    return sum;
}

const char *name_of(const char *format, ...)
{
    char *name;
    va_list args;
    int length;

    va_start(args, format);
    length = vasprintf(&name, format, args);
    va_end(args);
    if (length < 0)
        die("no memory");
    return name;
}

static int number_or_die(const char *text, long most)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (*text == 0 || *end != 0 || number < 0 || number > most)
        die("%s is no number from 0 to %ld", text, most);
    return (int)number;
}

int main(int argc, char **argv)
{
    static struct results results;
    struct server server = { .port = 0 };
    char version[32];
    int keep_seconds = KEEP_SECONDS;
    bool json = false;
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
            keep_seconds = number_or_die(argv[++i], 86400);
        else
            argc = 0;
    }
    if (i + 1 != argc) {
        fprintf(stderr, "usage: compare_redis [--json] [--keep SECONDS] PORT\n");
        return 64;
    }
    server.port = number_or_die(argv[i], 65535);
    snprintf(results.url, sizeof results.url, "redis://127.0.0.1:%d", server.port);
    results.cores = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 2 : 1;
    server.control = connect_raw(server.port);
    server.pid = (int)server_figure(&server, "server", "process_id");
    server_text(&server, "server", "redis_version", version, sizeof version);
    snprintf(results.server, sizeof results.server, "Redis %s", version);
    freeReplyObject(ask_raw(server.control, "FLUSHALL"));
    /* First the parts that fork, while this process has no thread. */
    compare_redis_handoff(&results, &server);
    compare_redis_commands(&results, &server);
    if (keep_seconds > 0)
        compare_redis_keep(&results, &server, keep_seconds);
    compare_redis_pairs(&results, &server);
    redisFree(server.control);
    results_print(&results, json);
    return 0;
}
