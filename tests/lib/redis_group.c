/* SPDX-License-Identifier: MIT
 *
 * redis_group.c: what all groups of servers have in common, and independent masters; see redis_group.h.
 */
#include "redis_group.h"

#include "redis_group_parts.h"
#include "test.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define START_TRIES 5
/* Failovers take seconds, and some of their steps are repeated when a machine is busy. */
#define WAIT_S 40

/* Their servers end by themselves with the test; this is why their memory counts as in use until then. */
static struct redis_group *groups;

void redis_group_stop(struct redis_group *group)
{
    struct redis_group **link = &groups;
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_stop(group->sentinel[i]);
    for (int i = 0; i < group->count; i++)
        redis_server_stop(group->server[i]);
    while (*link && *link != group)
        link = &(*link)->next;
    if (*link)
        *link = group->next;
    free(group);
}

static struct redis_group *prepare(int count, const struct redis_group_options *options)
{
    struct redis_group *group = calloc(1, sizeof *group);
    REQUIRE(group != NULL);
    group->next = groups;
    groups = group;
    if (options)
        group->options = *options;
    options = &group->options;
    for (int i = 0; i < count; i++) {
        const struct redis_server_setup setup = { .binary = options->binary,
                                                  .arguments = options->arguments,
                                                  .password = options->password,
                                                  .tls = options->tls,
                                                  .configuration = true,
                                                  .own_clock = options->own_clocks >> i & 1,
                                                  .place = options->places ? options->places[i] : NULL };
        struct redis_server *server = group->server[group->count++] = redis_server_prepare(&setup);
        if (options->tls)
            redis_server_configure(server, "tls-replication yes");
        if (options->no_sharded_publish)
            redis_server_configure(server, "rename-command SPUBLISH \"\"\nrename-command SSUBSCRIBE \"\"");
    }
    return group;
}

struct redis_group *redis_group_start(int count, const struct redis_group_options *options, redis_group_arrange arrange)
{
    REQUIRE(count > 0 && count <= REDIS_GROUP_MOST);
    for (int try = 0; try < START_TRIES; try++) {
        struct redis_group *group = prepare(count, options);
        if (arrange(group))
            return group;
        redis_group_stop(group);
    }
    FAIL("a group of %d servers does not start", count);
    test_abort();
}

bool redis_group_launch(struct redis_server **servers, int count)
{
    bool all = true;
    for (int i = 0; i < count; i++)
        redis_server_launch(servers[i], "");
    for (int i = 0; i < count; i++)
        all &= redis_server_started(servers[i]);
    return all;
}

int redis_group_port(const struct redis_group *group, const struct redis_server *server)
{
    return group->options.tls ? server->tls_port : server->port;
}

struct redis_server *redis_group_find(struct redis_group *group, const char *address, int port)
{
    for (int i = 0; i < group->count; i++)
        if (strcmp(group->server[i]->address, address) == 0 && redis_group_port(group, group->server[i]) == port)
            return group->server[i];
    return NULL;
}

void redis_group_set_url(struct redis_group *group, const char *scheme, struct redis_server **servers, int count,
                         const char *path)
{
    for (int i = 0; i < count; i++) {
        const size_t used = strlen(group->hosts);
        snprintf(group->hosts + used, sizeof group->hosts - used, "%s%s:%d", i > 0 ? "," : "", servers[i]->address,
                 redis_group_port(group, servers[i]));
    }
    snprintf(group->url, sizeof group->url, "%s://%s%s", scheme, group->hosts, path);
}

void redis_group_make_id(char *id, const struct redis_server *server)
{
    snprintf(id, 41, "%016" PRIx64 "%012x%012x", (uint64_t)test_now_ns(), (unsigned)getpid(), (unsigned)server->port);
}

void redis_group_wait(int64_t start_ns, const char *what)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    if (test_now_ns() - start_ns > WAIT_S * 1000000000LL * test_slowness()) {
        FAIL("waited in vain until %s", what);
        test_abort();
    }
    nanosleep(&pause, NULL);
}

redisReply *redis_group_ask(const struct redis_server *server, const char *format, ...)
{
    va_list args;
    redisContext *context = redis_server_connect(server);
    va_start(args, format);
    redisReply *reply = context ? redisvCommand(context, format, args) : NULL;
    va_end(args);
    if (context)
        redisFree(context);
    return reply;
}

bool redis_group_info_is(const struct redis_server *server, const char *command, const char *field, const char *value)
{
    char wanted[200], text[5000];
    redisReply *reply = redis_group_ask(server, command);
    snprintf(wanted, sizeof wanted, "\n%s:%s\r\n", field, value);
    snprintf(text, sizeof text, "\n%s",
             reply && reply->str ? reply->str : ""); /* the first line begins like the others */
    freeReplyObject(reply);
    return strstr(text, wanted) != NULL;
}

/* ---------------------------------------------------------------------------------------------------------- masters */

static bool arrange_masters(struct redis_group *group)
{
    redis_group_set_url(group, "redlock", group->server, group->count, "");
    return redis_group_launch(group->server, group->count);
}

struct redis_group *redis_masters_start(int count, const struct redis_group_options *options)
{
    return redis_group_start(count, options, arrange_masters);
}
