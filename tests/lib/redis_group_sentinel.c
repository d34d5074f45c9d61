/* SPDX-License-Identifier: MIT
 *
 * redis_group_sentinel.c: a master with replicas behind Sentinels; see redis_group.h.
 */
#include "redis_group.h"
#include "redis_group_parts.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUORUM 2

static int slow_ms(int ms)
{
    return (int)test_ms((uint32_t)ms);
}

/* Sentinels find each other and the replicas by themselves, but that takes seconds: they are told. */
static void configure_sentinel(struct redis_group *group, int index, char ids[][41])
{
    const struct redis_server *sentinel = group->sentinel[index], *master = group->server[0];
    const char *const name = REDIS_GROUP_NAME;
    const struct redis_group_options *options = &group->options;
    redis_server_configure(sentinel, "sentinel myid %s", ids[index]);
    redis_server_configure(sentinel, "sentinel monitor %s %s %d %d", name, master->address,
                           redis_group_port(group, master), QUORUM);
    redis_server_configure(sentinel, "sentinel down-after-milliseconds %s %d", name, slow_ms(REDIS_GROUP_DOWN_MS));
    redis_server_configure(sentinel, "sentinel failover-timeout %s %d", name, slow_ms(4000));
    redis_server_configure(sentinel, "sentinel parallel-syncs %s %d", name, group->count);
    if (options->tls)
        redis_server_configure(sentinel, "tls-replication yes");
    if (options->password)
        redis_server_configure(sentinel, "sentinel auth-pass %s %s", name, options->password);
    if (options->sentinel_password)
        redis_server_configure(sentinel, "sentinel sentinel-pass %s", options->sentinel_password);
    for (int i = 1; i < group->count; i++)
        redis_server_configure(sentinel, "sentinel known-replica %s %s %d", name, group->server[i]->address,
                               redis_group_port(group, group->server[i]));
    for (int i = 0; i < group->sentinel_count; i++)
        if (i != index)
            redis_server_configure(sentinel, "sentinel known-sentinel %s %s %d %s", name, group->sentinel[i]->address,
                                   redis_group_port(group, group->sentinel[i]), ids[i]);
}

static void prepare_sentinels(struct redis_group *group)
{
    char ids[REDIS_GROUP_SENTINELS][41];
    const struct redis_group_options *options = &group->options;
    for (int i = 0; i < REDIS_GROUP_SENTINELS; i++) {
        const struct redis_server_setup setup = { .binary = options->binary,
                                                  .password = options->sentinel_password,
                                                  .tls = options->tls,
                                                  .sentinel = true,
                                                  .place = options->places ? options->places[group->count + i] : NULL };
        group->sentinel[group->sentinel_count++] = redis_server_prepare(&setup);
        redis_group_make_id(ids[i], group->sentinel[i]);
    }
    for (int i = 0; i < REDIS_GROUP_SENTINELS; i++)
        configure_sentinel(group, i, ids);
}

/* How often they look and talk, which decides how long a failover takes. Only since Redis 7: older ones are slower. */
static void hurry(struct redis_group *group)
{
    for (int i = 0; i < group->sentinel_count; i++)
        freeReplyObject(redis_group_ask(group->sentinel[i],
                                        "SENTINEL DEBUG INFO-PERIOD 300 PING-PERIOD 200 ASK-PERIOD 200 PUBLISH-PERIOD "
                                        "300 MIN-LINK-RECONNECT-PERIOD 200 TILT-PERIOD 2000 ELECTION-TIMEOUT 2000"));
}

static bool arrange(struct redis_group *group)
{
    struct redis_server *master = group->server[0];
    for (int i = 1; i < group->count; i++)
        redis_server_configure(group->server[i], "replicaof %s %d", master->address, redis_group_port(group, master));
    prepare_sentinels(group);
    redis_group_set_url(group, "redis+sentinel", group->sentinel, group->sentinel_count, "/" REDIS_GROUP_NAME);
    /* In this order: who finds nobody tries again only after a second. */
    if (!redis_group_launch(group->server, 1) || !redis_group_launch(group->server + 1, group->count - 1) ||
        !redis_group_launch(group->sentinel, group->sentinel_count))
        return false;
    hurry(group);
    redis_sentinel_await_settled(group);
    return true;
}

struct redis_group *redis_sentinel_start(const struct redis_group_options *options)
{
    return redis_group_start(REDIS_GROUP_SERVERS, options, arrange);
}

/* NULL: it does not answer, or names none of ours. */
static struct redis_server *named_by(struct redis_group *group, const struct redis_server *sentinel)
{
    struct redis_server *named = NULL;
    redisReply *reply = redis_group_ask(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME %s", REDIS_GROUP_NAME);
    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2)
        named = redis_group_find(group, reply->element[0]->str, (int)strtol(reply->element[1]->str, NULL, 10));
    freeReplyObject(reply);
    return named;
}

static struct redis_server *first_sentinel(struct redis_group *group)
{
    for (int i = 0; i < group->sentinel_count; i++)
        if (redis_server_runs(group->sentinel[i]))
            return group->sentinel[i];
    FAIL("no Sentinel runs");
    test_abort();
}

struct redis_server *redis_sentinel_master(struct redis_group *group)
{
    return named_by(group, first_sentinel(group));
}

void redis_sentinel_failover(struct redis_group *group)
{
    redis_server_do(first_sentinel(group), "SENTINEL FAILOVER %s", REDIS_GROUP_NAME);
}

static bool has_field(const redisReply *reply, const char *field, const char *value)
{
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        if (strcmp(reply->element[i]->str, field) == 0)
            return strcmp(reply->element[i + 1]->str, value) == 0;
    return false;
}

/* No failover is going on, and it knows everybody. */
static bool is_content(const struct redis_group *group, const struct redis_server *sentinel)
{
    char replicas[16], others[16];
    redisReply *reply = redis_group_ask(sentinel, "SENTINEL MASTER %s", REDIS_GROUP_NAME);
    snprintf(replicas, sizeof replicas, "%d", group->count - 1);
    snprintf(others, sizeof others, "%d", group->sentinel_count - 1);
    const bool content = reply && reply->type == REDIS_REPLY_ARRAY && has_field(reply, "flags", "master") &&
                         has_field(reply, "num-slaves", replicas) && has_field(reply, "num-other-sentinels", others);
    freeReplyObject(reply);
    return content;
}

/* It could make any replica the master: it has asked each how it is, which takes a while after the start. */
static bool has_candidates(const struct redis_group *group, const struct redis_server *sentinel)
{
    int expected = -1, found = 0;
    for (int i = 0; i < group->count; i++)
        expected += redis_server_runs(group->server[i]);
    redisReply *reply = redis_group_ask(sentinel, "SENTINEL REPLICAS %s", REDIS_GROUP_NAME);
    for (size_t i = 0; reply && reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        found +=
            has_field(reply->element[i], "flags", "slave") && has_field(reply->element[i], "master-link-status", "ok");
    freeReplyObject(reply);
    return found == expected;
}

static bool replicates(const struct redis_group *group, const struct redis_server *server,
                       const struct redis_server *master)
{
    char port[16];
    snprintf(port, sizeof port, "%d", redis_group_port(group, master));
    return redis_group_info_is(server, "INFO replication", "master_host", master->address) &&
           redis_group_info_is(server, "INFO replication", "master_port", port) &&
           redis_group_info_is(server, "INFO replication", "master_link_status", "up");
}

/* The master that everybody agrees about, or NULL. */
static struct redis_server *agreed(struct redis_group *group, const struct redis_server *except)
{
    struct redis_server *master = redis_sentinel_master(group);
    bool agree = master && master != except && redis_server_runs(master) &&
                 redis_group_info_is(master, "INFO replication", "role", "master");
    for (int i = 0; agree && i < group->sentinel_count; i++)
        if (redis_server_runs(group->sentinel[i]))
            agree = named_by(group, group->sentinel[i]) == master &&
                    (except || (is_content(group, group->sentinel[i]) && has_candidates(group, group->sentinel[i])));
    for (int i = 0; agree && i < group->count; i++)
        if (redis_server_runs(group->server[i]) && group->server[i] != master && group->server[i] != except)
            agree = replicates(group, group->server[i], master);
    return agree ? master : NULL;
}

struct redis_server *redis_sentinel_await_change(struct redis_group *group, const struct redis_server *old)
{
    struct redis_server *master;
    const int64_t start_ns = test_now_ns();
    while (!(master = agreed(group, old)))
        redis_group_wait(start_ns, "the Sentinels have made another server the master");
    return master;
}

struct redis_server *redis_sentinel_await_settled(struct redis_group *group)
{
    struct redis_server *master;
    const int64_t start_ns = test_now_ns();
    while (!(master = agreed(group, NULL)))
        redis_group_wait(start_ns, "the Sentinels and all servers agree about the master");
    return master;
}
