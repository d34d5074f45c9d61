/* SPDX-License-Identifier: MIT
 *
 * redis_group.h: real servers that belong together, for tests: behind Sentinels, as a cluster, as independent masters.
 *
 *     struct redis_group *group = redis_sentinel_start(NULL);
 *     hf_open(&client, group->url, NULL, &err);
 *     struct redis_server *old = redis_sentinel_master(group);
 *     redis_server_kill(old);
 *     struct redis_server *new = redis_sentinel_await_change(group, old);
 *     redis_server_restart(old, true, "");
 *     redis_sentinel_await_settled(group);
 *
 * Members are servers of redis_server.h: kill, pause, continue, restart and ask them with what is there. They keep
 * nothing on disk but their configuration and what they know of the group, unless the arguments say otherwise. Every
 * wait has a limit, and then fails the test and says what it waited for. Members that are killed or paused are not
 * asked and not waited for.
 */
#ifndef REDIS_GROUP_H
#define REDIS_GROUP_H

#include "netns.h"
#include "redis_server.h"

#define REDIS_GROUP_MOST 9
#define REDIS_GROUP_SENTINELS 3
#define REDIS_GROUP_SERVERS 3 /* behind Sentinels: a master and two replicas */
#define REDIS_CLUSTER_MASTERS 3
#define REDIS_CLUSTER_NODES 6
#define REDIS_CLUSTER_SLOTS 16384
#define REDIS_GROUP_NAME "mymaster"
/* After this long without an answer a member counts as down; longer in slow runs. */
#define REDIS_GROUP_DOWN_MS 800

struct redis_group_options {
    const char *binary;            /* NULL: the system's redis-server */
    const char *arguments;         /* more for each server, but not for Sentinels; NULL: none */
    const char *password;          /* of the servers; NULL: none */
    const char *sentinel_password; /* of the Sentinels; NULL: none */
    bool tls;                      /* members speak TLS among each other, and the ports in `hosts` are those of TLS */
    bool no_sharded_publish;       /* as before Redis 7: there is no SPUBLISH, no SSUBSCRIBE */
    uint32_t own_clocks;           /* bit I: redis_server_set_clock() works for server[I] */
    struct netns **places;         /* a host for each server, then one for each Sentinel; NULL: where the test is */
};

struct redis_group {
    int count;
    struct redis_server *server[REDIS_GROUP_MOST];
    int sentinel_count;
    struct redis_server *sentinel[REDIS_GROUP_SENTINELS];
    char id[REDIS_GROUP_MOST][41]; /* of a cluster's nodes */
    char hosts[300];               /* ADDRESS:PORT,ADDRESS:PORT,… of what a client is told: Sentinels, or servers */
    char url[400];                 /* redis+sentinel://HOSTS/mymaster, redis+cluster://HOSTS or redlock://HOSTS */
    struct redis_group_options options;
    struct redis_group *next;
};

/* Also happens by itself at the end of a test that does not abort. */
void redis_group_stop(struct redis_group *group);
/* The server that listens there; NULL: none does. */
struct redis_server *redis_group_find(struct redis_group *group, const char *address, int port);

/* ----------------------------------------------------------------------------------------------------- masters --- */

/* `count` servers that know nothing of each other. Restarted, they have forgotten everything, unless the arguments
 * say otherwise. `options` may be NULL, here and below. */
struct redis_group *redis_masters_start(int count, const struct redis_group_options *options);

/* --------------------------------------------------------------------------------------------------- Sentinels --- */

/* server[0] is the master, [1] and [2] are its replicas, in step with it; three Sentinels know them and each other. */
struct redis_group *redis_sentinel_start(const struct redis_group_options *options);
/* Whom the first Sentinel that runs names as the master. */
struct redis_server *redis_sentinel_master(struct redis_group *group);
/* SENTINEL FAILOVER: begins it, and does not wait for its end. */
void redis_sentinel_failover(struct redis_group *group);
/* Waits until all Sentinels name one master other than `old`, which says that it is one, and all other servers except
 * `old` replicate from it. Returns it. */
struct redis_server *redis_sentinel_await_change(struct redis_group *group, const struct redis_server *old);
/* The same, but any master, and no server is excepted: whoever came back has found his place. */
struct redis_server *redis_sentinel_await_settled(struct redis_group *group);

/* ----------------------------------------------------------------------------------------------------- cluster --- */

/* server[0] to [2] are masters of a third of the slots each, in order; server[I + 3] is the replica of server[I]. */
struct redis_group *redis_cluster_start(const struct redis_group_options *options);
int redis_cluster_slot(struct redis_group *group, const char *key);
/* The master of a slot, as `witness` sees it (NULL: the first that runs); NULL: none. */
struct redis_server *redis_cluster_owner(struct redis_group *group, struct redis_server *witness, int slot);
/* Waits until all nodes say that the cluster is well and agree about who has which slots and who replicates from whom,
 * and all replicas have a link to their master. */
void redis_cluster_await_settled(struct redis_group *group);
/* Waits until all nodes but `old` name another master than `old` for the slot. Returns it. */
struct redis_server *redis_cluster_await_change(struct redis_group *group, const struct redis_server *old, int slot);
/* CLUSTER FAILOVER, sent to a replica; the cluster must be settled, else it may be forgotten. `how`: "", "FORCE" or
 * "TAKEOVER". Does not wait; see await_change. */
void redis_cluster_failover(struct redis_server *replica, const char *how);

/* Moving a slot, step by step. After begin, `from` answers ASK for keys that it does not have. */
void redis_cluster_move_begin(struct redis_group *group, int slot, struct redis_server *to);
/* Moves at most `most` keys, returns how many. */
int redis_cluster_move_keys(struct redis_group *group, int slot, struct redis_server *to, int most);
/* `to` owns the slot now; waits until all nodes know. */
void redis_cluster_move_end(struct redis_group *group, int slot, struct redis_server *to);
/* All of it. */
void redis_cluster_move(struct redis_group *group, int slot, struct redis_server *to);

#endif
