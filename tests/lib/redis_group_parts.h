/* SPDX-License-Identifier: MIT
 *
 * redis_group_parts.h: what redis_group.c, redis_group_sentinel.c and redis_group_cluster.c have in common.
 */
#ifndef REDIS_GROUP_PARTS_H
#define REDIS_GROUP_PARTS_H

#include "redis_group.h"

/* Configures, launches and joins the servers of a group; false: one of them has ended at once. */
typedef bool (*redis_group_arrange)(struct redis_group *group);

/* Prepares `count` servers and calls `arrange`; does it anew with other ports if that returns false. */
struct redis_group *redis_group_start(int count, const struct redis_group_options *options,
                                      redis_group_arrange arrange);
/* Starts servers that are prepared, all at once; false: one of them has ended. */
bool redis_group_launch(struct redis_server **servers, int count);
/* The port by which members and clients reach it. */
int redis_group_port(const struct redis_group *group, const struct redis_server *server);
/* Writes what a client is told: SCHEME://HOSTS PATH. */
void redis_group_set_url(struct redis_group *group, const char *scheme, struct redis_server **servers, int count,
                         const char *path);
/* An identity for a member, of 40 digits, which no other group has. */
void redis_group_make_id(char *id, const struct redis_server *server);

/* Sleeps a little; ends the test if this goes on for too long since `start_ns`. */
void redis_group_wait(int64_t start_ns, const char *what);

/* The answer on a connection of its own, or NULL: for servers that may end, or close connections, at any time. */
redisReply *redis_group_ask(const struct redis_server *server, const char *format, ...);
/* "FIELD:VALUE" in the answer to an INFO command is VALUE; false: it is not, or there is no answer. */
bool redis_group_info_is(const struct redis_server *server, const char *command, const char *field, const char *value);

#endif
