/* SPDX-License-Identifier: MIT
 *
 * compare_redis_pairs.c: what a pair of acquire and release costs when nobody is in the way: beside raw hiredis with
 * the very same commands, which is what the library itself adds, and beside the plain lock that most programs use,
 * SET NX PX and a script that compares and deletes, which is what tokens and a queue cost.
 */
#include "compare_redis.h"

#include "engines/redis/redis.h"
#include <unistd.h>

#define SIDES 3

/* What the raw side sends. */
struct same_commands {
    struct redis_script scripts[REDIS_SCRIPTS];
    char info[96];
};

/* What Holdfast sends, word for word but for the lock's name, which is as long. */
static void same_commands_pair(const struct side *side)
{
    const struct same_commands *same = side->data;
    const char *acquire[] = { "EVALSHA",
                              same->scripts[REDIS_ACQUIRE].hash,
                              "2",
                              "hf:{same}",
                              "hf:{same}:q",
                              "0123456789abcdef.123456",
                              same->info,
                              "30000",
                              "0" };
    const char *release[] = { "EVALSHA",     same->scripts[REDIS_RELEASE].hash, "2",       "hf:{same}",
                              "hf:{same}:q", "0123456789abcdef.123456",         same->info };

    exchange(side->context, 9, acquire);
    release_raw(side->context, 7, release);
}

static void load_same_commands(struct same_commands *same, redisContext *context)
{
    char host[65] = "";

    hfi_redis_scripts_init(same->scripts, &hfi_redis_native, false);
    load_script(context, same->scripts[REDIS_ACQUIRE].text, same->scripts[REDIS_ACQUIRE].hash);
    load_script(context, same->scripts[REDIS_RELEASE].text, same->scripts[REDIS_RELEASE].hash);
    gethostname(host, sizeof host - 1);
    snprintf(same->info, sizeof same->info, "%s %d ", host, (int)getpid());
}

static void compare_placed(struct results *results, const struct side side[SIDES], const struct placement *placement)
{
    static double ns[SIDES_MAX][SIDE_ROUNDS];

    say("redis: pair, %s ...\n", placement->words);
    measure_sides(side, SIDES, ns);
    add_sides(results,
              (struct row){ .name = name_of("redis: pair, %s", placement->words),
                            .against = "hiredis, same commands",
                            .judged = RATIO_AT_MOST,
                            .bar = 1.10 },
              ns, 0, 1);
    add_sides(results,
              (struct row){ .name = name_of("redis: pair over plain, %s", placement->words),
                            .against = "SET NX PX, compare-delete",
                            .judged = RATIO_AT_MOST,
                            .bar = 1.25 },
              ns, 0, 2);
}

static void count_reentry(struct results *results, struct server *server, const struct side *ours)
{
    hf_lock *outer;
    hf_error err;
    double before;

    must(hf_acquire(&outer, ours->client, ours->name, NULL, &err), &err, "acquire");
    before = server_commands(server);
    for (int i = 0; i < 1000; i++)
        ours->pair(ours);
    results_add(results, (struct row){ .name = "redis: commands, re-entry",
                                       .against = "",
                                       .unit = "per pair",
                                       .judged = OURS_AT_MOST,
                                       .bar = 0,
                                       .ours = (server_commands(server) - before) / 1000,
                                       .raw = -1 });
    must(hf_release(outer, &err), &err, "release");
}

void compare_redis_pairs(struct results *results, struct server *server)
{
    static struct same_commands same;
    redisContext *context = connect_raw(server->port);
    struct side side[SIDES] = { our_side(results->url, "pair"),
                                { .pair = same_commands_pair, .context = context, .data = &same },
                                plain_side(context) };

    load_same_commands(&same, context);
    for (int i = 0; i < results->cores; i++) {
        pin_to(placements[i].client_core);
        pin_process_to(server->pid, placements[i].server_core);
        compare_placed(results, side, &placements[i]);
    }
    count_reentry(results, server, &side[0]);
    close_side(&side[0]);
    redisFree(context);
}
