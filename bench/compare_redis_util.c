/* SPDX-License-Identifier: MIT
 *
 * compare_redis_util.c: talking to a server without Holdfast, and asking it for its own figures.
 */
#include "compare_redis.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

const struct placement placements[2] = { { "one core", 0, 0 }, { "two cores", 0, 1 } };

/* What the scripts call inside the server is counted by INFO as well, although nobody sent it. None of these is sent by
 * Holdfast by itself, but for the DEL that server_commands() speaks of. */
static const char *const inside[] = { "time",    "hmget",   "hget",   "hset",   "hdel",    "hincrby",
                                      "hexists", "get",     "set",    "del",    "pttl",    "pexpire",
                                      "exists",  "publish", "zadd",   "zrange", "zpopmin", "zrem",
                                      "zrank",   "zcard",   "zscore", "info",   "ping",    "config|resetstat" };

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

hf_client *open_client(const char *url)
{
    hf_client *client;
    hf_error err;

    must(hf_open(&client, url, NULL, &err), &err, url);
    return client;
}

void open_server(struct server *server, int port)
{
    *server = (struct server){ .port = port, .control = connect_raw(port) };
    server->pid = (int)server_figure(server, "server", "process_id");
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
    double sum = 0, deletes = 0, publishes = 0;
    char *rest = NULL;

    for (char *line = strtok_r(reply->str, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest)) {
        char command[64];
        double calls;

        if (sscanf(line, "cmdstat_%63[^:]:calls=%lf", command, &calls) != 2)
            continue;
        if (!runs_inside(command))
            sum += calls;
        deletes += strcmp(command, "del") == 0 ? calls : 0;
        publishes += strcmp(command, "publish") == 0 ? calls : 0;
    }
    freeReplyObject(reply);
    return sum + (server->sends_deletes ? deletes - publishes : 0);
}

void name_results(struct results *results, struct server *server)
{
    char version[32];

    server_text(server, "server", "redis_version", version, sizeof version);
    snprintf(results->server, sizeof results->server, "Redis %s", version);
    snprintf(results->url, sizeof results->url, "redis://127.0.0.1:%d", server->port);
    results->cores = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 2 : 1;
}

void pin_servers_to(struct server *servers, int count, int core)
{
    for (int i = 0; i < count; i++)
        pin_process_to(servers[i].pid, core);
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

int number_or_die(const char *text, long most)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (*text == 0 || *end != 0 || number < 0 || number > most)
        die("%s is no number from 0 to %ld", text, most);
    return (int)number;
}

double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
