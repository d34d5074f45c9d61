/* SPDX-License-Identifier: MIT
 *
 * compare_redis.h: what the parts of bench/compare_redis, compare_dialects and compare_redlock share.
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
    bool sends_deletes; /* the dialect is one that sends a DEL after its script of release */
};

/* Where servers and clients run: on the same core, or on one each. */
struct placement {
    const char *words;
    int client_core, server_core;
};

/* The first `cores` of these. */
extern const struct placement placements[2];

/* A kind of lock, on one server or several. */
struct crowd {
    const char *words; /* "redis", the beginning of its rows' names */
    const char *url;
    struct server *servers; /* the raw side asks the first of them */
    int count;
};

/* --- compare_redis_keep.c, compare_redis_line.c, compare_redis_pairs.c: redis: alone --- */

void compare_redis_pairs(struct results *results, struct server *server);
void compare_redis_line(struct results *results, struct server *server);
void compare_redis_keep(struct results *results, struct server *server, int seconds);

/* --- compare_redis_handoff.c --- */

/* `bar`: 0 for none. */
void compare_handoff_placed(struct results *results, const struct crowd *crowd, double bar,
                            const struct placement *placement);
/* The same with each of the placements. */
void compare_redis_handoff(struct results *results, const struct crowd *crowd, double bar);

/* --- compare_redis_crowd.c --- */

/* Commands per pair with nobody, 4 and 64 waiting, each with its bar. */
void compare_redis_commands(struct results *results, struct server *server);
/* The same for any kind of lock, without a bar; per change of owner too, and how much time is between two. */
void compare_crowd_of(struct results *results, const struct crowd *crowd);

/* --- compare_redis_sides.c --- */

#define SIDE_ROUNDS 401
#define SIDES_MAX 6

/* One side of a comparison of pairs. */
struct side {
    void (*pair)(const struct side *side);
    hf_client *client;
    const char *name; /* of the lock */
    redisContext *context;
    const void *data;
    char hash[41]; /* of a script that compares and deletes */
};

struct side our_side(const char *url, const char *name);
/* SET NX PX, and a script that compares and deletes: the lock that most programs use. */
struct side plain_side(redisContext *context);
void close_side(struct side *side);
/* All sides by turns, in short batches: ns per pair. */
void measure_sides(const struct side *sides, int count, double ns[SIDES_MAX][SIDE_ROUNDS]);
/* The medians of sides `ours` and `raw`, and of the rounds' ratios. */
void add_sides(struct results *results, struct row row, double ns[SIDES_MAX][SIDE_ROUNDS], int ours, int raw);
/* The reply's number, -1 if it is none. */
long long exchange(redisContext *context, int count, const char **words);
/* The same for a release: one that removes nothing means that the lock was never had, and that something else is being
 * measured. */
void release_raw(redisContext *context, int count, const char **words);
void load_script(redisContext *context, const char *text, char hash[41]);

/* --- compare_redis_util.c --- */

redisContext *connect_raw(int port);
/* The reply to a command in printf's manner, or the end of the program. */
redisReply *ask_raw(redisContext *context, const char *format, ...);
/* Ends the program on a broken connection or an error reply. */
void check_reply(const redisContext *context, const redisReply *reply);
hf_client *open_client(const char *url);
void open_server(struct server *server, int port);
void pin_servers_to(struct server *servers, int count, int core);
/* A field of INFO `section`. */
double server_figure(struct server *server, const char *section, const char *field);
/* Of this process, all threads. */
double cpu_seconds(void);
/* How many commands clients have sent so far, INFO not counted. A DEL is a client's own if no PUBLISH came with it:
 * the scripts of those dialects that send one call both or neither. */
double server_commands(struct server *server);
/* Whose figures these are, and on how many cores. */
void name_results(struct results *results, struct server *server);
/* Keeps "NAME, one core" and the like for as long as the program runs. */
const char *name_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
int number_or_die(const char *text, long most);

#endif
