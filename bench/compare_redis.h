/* SPDX-License-Identifier: MIT
 *
 * compare_redis.h: what the parts of bench/compare_redis share.
 */
#ifndef BENCH_COMPARE_REDIS_H
#define BENCH_COMPARE_REDIS_H

#include "compare.h"

#include <hiredis/hiredis.h>

/* A server of our own on the loopback. A process that forks opens its own. */
struct server {
    redisContext *control; /* for INFO */
    int port;
    int pid;
};

/* Where the server and its clients run: on the same core, or on one each. */
struct placement {
    const char *words;
    int client_core, server_core;
};

void compare_redis_pairs(struct results *results, struct server *server);
void compare_redis_handoff(struct results *results, struct server *server);
void compare_redis_commands(struct results *results, struct server *server);
void compare_redis_keep(struct results *results, struct server *server, int seconds);

redisContext *connect_raw(int port);
/* The reply to a command in printf's manner, or the end of the program. */
redisReply *ask_raw(redisContext *context, const char *format, ...);
/* Ends the program on a broken connection or an error reply. */
void check_reply(const redisContext *context, const redisReply *reply);
hf_client *open_client(const struct results *results);
/* A field of INFO `section`. */
double server_figure(struct server *server, const char *section, const char *field);
/* How many commands clients have sent so far, INFO not counted. */
double server_commands(struct server *server);
/* Keeps "NAME, one core" and the like for as long as the program runs. */
const char *name_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The first `cores` of these. */
extern const struct placement placements[2];

#endif
