/* SPDX-License-Identifier: MIT
 *
 * redis_group_cluster.c: a cluster of masters and replicas; see redis_group.h.
 */
#include "redis_group.h"
#include "redis_group_parts.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUS_OFFSET 10000
#define MIGRATE_MOST 50

static int first_slot(int master)
{
    return REDIS_CLUSTER_SLOTS * master / REDIS_CLUSTER_MASTERS;
}

/* What node `self` knows of the cluster when it starts: all of it. Nodes that have to meet first take seconds. */
static void write_nodes(const struct redis_group *group, int self)
{
    char path[256];
    snprintf(path, sizeof path, "%s/nodes.conf", group->server[self]->directory);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    for (int i = 0; i < group->count; i++) {
        const int master = i % REDIS_CLUSTER_MASTERS, port = redis_group_port(group, group->server[i]);
        fprintf(file, "%s %s:%d@%d %s%s %s 0 0 %d connected", group->id[i], group->server[i]->address, port,
                port + BUS_OFFSET, i == self ? "myself," : "", i == master ? "master" : "slave",
                i == master ? "-" : group->id[master], master + 1);
        if (i == master)
            fprintf(file, " %d-%d", first_slot(master), first_slot(master + 1) - 1);
        fputc('\n', file);
    }
    fprintf(file, "vars currentEpoch %d lastVoteEpoch 0\n", REDIS_CLUSTER_MASTERS);
    REQUIRE_INT(0, fclose(file));
}

static bool arrange(struct redis_group *group)
{
    for (int i = 0; i < group->count; i++) {
        redis_group_make_id(group->id[i], group->server[i]);
        redis_server_configure(group->server[i], "cluster-enabled yes\ncluster-config-file nodes.conf");
        redis_server_configure(group->server[i], "cluster-node-timeout %d", (int)test_ms(REDIS_GROUP_DOWN_MS));
        /* A replica always stands for election, however long its master has been silent; and it stays with it. */
        redis_server_configure(group->server[i], "cluster-replica-validity-factor 0\ncluster-migration-barrier 10");
        if (group->options.tls)
            redis_server_configure(group->server[i], "tls-cluster yes");
    }
    for (int i = 0; i < group->count; i++)
        write_nodes(group, i);
    redis_group_set_url(group, "redis+cluster", group->server, REDIS_CLUSTER_MASTERS, "");
    if (!redis_group_launch(group->server, group->count))
        return false;
    redis_cluster_await_settled(group);
    return true;
}

struct redis_group *redis_cluster_start(const struct redis_group_options *options)
{
    return redis_group_start(REDIS_CLUSTER_NODES, options, arrange);
}

/* ---------------------------------------------------------------------------------------------------- who owns what */

static int index_of(const struct redis_group *group, const char *id)
{
    for (int i = 0; i < group->count; i++)
        if (strcmp(group->id[i], id) == 0)
            return i;
    return -1;
}

static const char *id_of(const struct redis_group *group, const struct redis_server *server)
{
    for (int i = 0; i < group->count; i++)
        if (group->server[i] == server)
            return group->id[i];
    FAIL("this server is not of this cluster");
    test_abort();
}

static struct redis_server *first_node(struct redis_group *group)
{
    for (int i = 0; i < group->count; i++)
        if (redis_server_runs(group->server[i]))
            return group->server[i];
    FAIL("no node runs");
    test_abort();
}

/* Who has which slot, by index from 1; 0: nobody. False: no answer. */
static bool read_owners(struct redis_group *group, const struct redis_server *witness, char owners[REDIS_CLUSTER_SLOTS])
{
    redisReply *reply = redis_group_ask(witness, "CLUSTER SLOTS");
    const bool answered = reply && reply->type == REDIS_REPLY_ARRAY;
    memset(owners, 0, REDIS_CLUSTER_SLOTS);
    for (size_t i = 0; answered && i < reply->elements; i++) {
        redisReply **range = reply->element[i]->element;
        REQUIRE(reply->element[i]->elements >= 3 && range[1]->integer < REDIS_CLUSTER_SLOTS);
        for (long long slot = range[0]->integer; slot <= range[1]->integer; slot++)
            owners[slot] = (char)(1 + index_of(group, range[2]->element[2]->str));
    }
    freeReplyObject(reply);
    return answered;
}

int redis_cluster_slot(struct redis_group *group, const char *key)
{
    return (int)redis_server_number(first_node(group), "CLUSTER KEYSLOT %s", key);
}

struct redis_server *redis_cluster_owner(struct redis_group *group, struct redis_server *witness, int slot)
{
    char owners[REDIS_CLUSTER_SLOTS];
    REQUIRE(slot >= 0 && slot < REDIS_CLUSTER_SLOTS);
    if (!read_owners(group, witness ? witness : first_node(group), owners) || owners[slot] == 0)
        return NULL;
    return group->server[owners[slot] - 1];
}

/* A replica has a link to its master; a master has none to look at. */
static bool is_linked(const struct redis_server *server)
{
    return redis_group_info_is(server, "INFO replication", "role", "master") ||
           redis_group_info_is(server, "INFO replication", "master_link_status", "up");
}

/* One line of CLUSTER NODES: "ID ADDRESS FLAGS MASTER PING PONG EPOCH LINK SLOT SLOT…". Writes "MASTER SLOT SLOT…", and
 * nothing for a node that does not run. False: it should be well but is not. */
static bool summarize(const struct redis_group *group, char *line, char summary[][300])
{
    char *rest = NULL, *words[7] = { NULL };
    for (int i = 0; i < 8; i++) {
        char *word = strtok_r(i == 0 ? line : NULL, " ", &rest);
        if (!word)
            return false;
        if (i < 7)
            words[i] = word;
    }
    const int index = index_of(group, words[0]);
    if (index < 0 || !redis_server_runs(group->server[index]))
        return true;
    char *out = summary[index];
    int used = snprintf(out, 300, "%s", words[3]);
    for (char *slot = strtok_r(NULL, " ", &rest); slot; slot = strtok_r(NULL, " ", &rest))
        if (slot[0] != '[' && used < 300) /* a slot that is on its way: only its owner says so */
            used += snprintf(out + used, 300 - (size_t)used, " %s", slot);
    return !strstr(words[2], "fail") && !strstr(words[2], "handshake") && used < 300;
}

/* What a node thinks of all that run: whose replica each is, or which slots it has. */
static bool read_view(const struct redis_group *group, const struct redis_server *witness,
                      char summary[REDIS_GROUP_MOST][300])
{
    redisReply *reply = redis_group_ask(witness, "CLUSTER NODES");
    char *rest = NULL;
    bool well = reply && reply->str;
    memset(summary, 0, REDIS_GROUP_MOST * sizeof *summary);
    for (char *line = well ? strtok_r(reply->str, "\n", &rest) : NULL; well && line; line = strtok_r(NULL, "\n", &rest))
        well = summarize(group, line, summary);
    freeReplyObject(reply);
    return well;
}

static bool is_settled(struct redis_group *group)
{
    char first[REDIS_GROUP_MOST][300], view[REDIS_GROUP_MOST][300];
    if (!read_view(group, first_node(group), first))
        return false;
    for (int i = 0; i < group->count; i++) {
        const struct redis_server *server = group->server[i];
        if (redis_server_runs(server) &&
            (!redis_group_info_is(server, "CLUSTER INFO", "cluster_state", "ok") || !read_view(group, server, view) ||
             memcmp(first, view, sizeof first) != 0 || !is_linked(server)))
            return false;
    }
    return true;
}

void redis_cluster_await_settled(struct redis_group *group)
{
    const int64_t start_ns = test_now_ns();
    while (!is_settled(group))
        redis_group_wait(start_ns, "all nodes of the cluster agree");
}

/* The owner of a slot by the word of all nodes but `except`, or NULL. */
static struct redis_server *agreed(struct redis_group *group, const struct redis_server *except, int slot)
{
    struct redis_server *owner = NULL;
    for (int i = 0; i < group->count; i++) {
        struct redis_server *server = group->server[i];
        if (server == except || !redis_server_runs(server))
            continue;
        struct redis_server *named = redis_cluster_owner(group, server, slot);
        if (!named || named == except || (owner && named != owner) ||
            !redis_group_info_is(server, "CLUSTER INFO", "cluster_state", "ok"))
            return NULL;
        owner = named;
    }
    return owner;
}

struct redis_server *redis_cluster_await_change(struct redis_group *group, const struct redis_server *old, int slot)
{
    struct redis_server *owner;
    const int64_t start_ns = test_now_ns();
    while (!(owner = agreed(group, old, slot)))
        redis_group_wait(start_ns, "the slot has another owner");
    return owner;
}

void redis_cluster_failover(struct redis_server *replica, const char *how)
{
    if (*how)
        redis_server_do(replica, "CLUSTER FAILOVER %s", how);
    else
        redis_server_do(replica, "CLUSTER FAILOVER");
}

/* ----------------------------------------------------------------------------------------------------- moving slots */

static struct redis_server *owner_of(struct redis_group *group, int slot)
{
    struct redis_server *owner = redis_cluster_owner(group, NULL, slot);
    if (!owner) {
        FAIL("nobody has slot %d", slot);
        test_abort();
    }
    return owner;
}

void redis_cluster_move_begin(struct redis_group *group, int slot, struct redis_server *to)
{
    struct redis_server *from = owner_of(group, slot);
    REQUIRE(from != to);
    /* In this order: whoever is sent from one to the other must be let in. */
    redis_server_do(to, "CLUSTER SETSLOT %d IMPORTING %s", slot, id_of(group, from));
    redis_server_do(from, "CLUSTER SETSLOT %d MIGRATING %s", slot, id_of(group, to));
}

/* MIGRATE for the keys that are listed in `keys`. */
static void migrate(struct redis_group *group, struct redis_server *from, const struct redis_server *to,
                    const redisReply *keys)
{
    char port[16];
    const char *words[MIGRATE_MOST + 10] = { "MIGRATE", to->address, port, "", "0", "5000", "REPLACE" };
    size_t lengths[MIGRATE_MOST + 10];
    int count = 7;
    snprintf(port, sizeof port, "%d", redis_group_port(group, to));
    if (group->options.password) {
        words[count++] = "AUTH";
        words[count++] = group->options.password;
    }
    words[count++] = "KEYS";
    for (int i = 0; i < count; i++)
        lengths[i] = strlen(words[i]);
    for (size_t i = 0; i < keys->elements; i++) {
        lengths[count] = keys->element[i]->len;
        words[count++] = keys->element[i]->str;
    }
    redisContext *context = redis_server_connect(from);
    redisReply *reply = context ? redisCommandArgv(context, count, words, lengths) : NULL;
    if (!reply || reply->type == REDIS_REPLY_ERROR)
        FAIL("MIGRATE: %s", reply ? reply->str : "no answer");
    freeReplyObject(reply);
    if (context)
        redisFree(context);
}

int redis_cluster_move_keys(struct redis_group *group, int slot, struct redis_server *to, int most)
{
    struct redis_server *from = owner_of(group, slot);
    int moved = 0;
    while (moved < most) {
        const int wanted = most - moved < MIGRATE_MOST ? most - moved : MIGRATE_MOST;
        redisReply *keys = redis_server_command(from, "CLUSTER GETKEYSINSLOT %d %d", slot, wanted);
        REQUIRE_INT(REDIS_REPLY_ARRAY, keys->type);
        const int found = (int)keys->elements;
        if (found > 0)
            migrate(group, from, to, keys);
        freeReplyObject(keys);
        if (found == 0)
            break;
        moved += found;
    }
    return moved;
}

void redis_cluster_move_end(struct redis_group *group, int slot, struct redis_server *to)
{
    struct redis_server *from = owner_of(group, slot);
    const int64_t start_ns = test_now_ns();
    redis_server_do(to, "CLUSTER SETSLOT %d NODE %s", slot, id_of(group, to));
    redis_server_do(from, "CLUSTER SETSLOT %d NODE %s", slot, id_of(group, to));
    while (agreed(group, NULL, slot) != to)
        redis_group_wait(start_ns, "all nodes know where the slot is");
}

void redis_cluster_move(struct redis_group *group, int slot, struct redis_server *to)
{
    redis_cluster_move_begin(group, slot, to);
    redis_cluster_move_keys(group, slot, to, INT32_MAX);
    redis_cluster_move_end(group, slot, to);
}
