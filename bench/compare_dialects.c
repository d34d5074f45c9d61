/* SPDX-License-Identifier: MIT
 *
 * compare_dialects.c: what the dialects of redis: cost beside the lock that most programs write by hand, and what it
 * costs to find the server through a cluster or Sentinels beside being told its address. Ratios, by turns in one run.
 *
 *     compare_dialects [--json] [--module PATH] DIRECTORY
 *
 * Servers are started for it, with their data below DIRECTORY. PATH is that of the server module with CAS and CAD:
 * without it, dialect=tair is left out.
 */
#include "compare_redis.h"

#include "redis_group.h"
#include <stdlib.h>
#include <string.h>

#define DIALECTS_MAX 3

/* Dialects on one server. */
struct dialects {
    int count;
    const char *names[DIALECTS_MAX];
    struct crowd crowd[DIALECTS_MAX];
    struct server server[DIALECTS_MAX]; /* always the same one, but counted in each dialect's own way */
};

static void open_dialects(struct dialects *dialects, const struct redis_server *started)
{
    for (int i = 0; i < dialects->count; i++) {
        const char *name = dialects->names[i];

        open_server(&dialects->server[i], started->port);
        dialects->server[i].sends_deletes = strcmp(name, "redisson") == 0;
        dialects->crowd[i] = (struct crowd){ .words = name,
                                             .url = name_of("%s?dialect=%s", started->url, name),
                                             .servers = &dialects->server[i],
                                             .count = 1 };
    }
}

static void compare_pairs_of(struct results *results, struct dialects *dialects)
{
    static double ns[SIDES_MAX][SIDE_ROUNDS];
    struct side side[DIALECTS_MAX + 1];
    const int raw = dialects->count;

    for (int i = 0; i < dialects->count; i++)
        side[i] = our_side(dialects->crowd[i].url, name_of("pair-%s", dialects->names[i]));
    side[raw] = plain_side(dialects->server[0].control);
    for (int i = 0; i < results->cores; i++) {
        say("dialects: pair, %s ...\n", placements[i].words);
        pin_to(placements[i].client_core);
        pin_process_to(dialects->server[0].pid, placements[i].server_core);
        measure_sides(side, raw + 1, ns);
        for (int j = 0; j < dialects->count; j++)
            add_sides(results,
                      (struct row){ .name = name_of("%s: pair, %s", dialects->names[j], placements[i].words),
                                    .against = "SET NX PX, compare-delete",
                                    .judged = NOT_JUDGED },
                      ns, j, raw);
    }
    for (int i = 0; i <= raw; i++)
        close_side(&side[i]);
}

/* `native` is there for its pair alone: bench/compare_redis has the rest. */
static void compare_dialects(struct results *results, struct dialects *dialects, const char *arguments)
{
    struct redis_server *started = redis_server_start(NULL, arguments);

    open_dialects(dialects, started);
    name_results(results, &dialects->server[0]);
    /* First the parts that fork, while this process has no thread. */
    for (int i = 0; i < dialects->count; i++) {
        if (strcmp(dialects->names[i], "native") == 0)
            continue;
        compare_redis_handoff(results, &dialects->crowd[i], 0);
        compare_crowd_of(results, &dialects->crowd[i]);
    }
    compare_pairs_of(results, dialects);
    for (int i = 0; i < dialects->count; i++)
        redisFree(dialects->server[i].control);
    redis_server_stop(started);
}

/* The same lock on the same server, which one client is told and the other must find. */
static void compare_found(struct results *results, const char *words, const char *url, const struct redis_server *there,
                          const char *name)
{
    static double ns[SIDES_MAX][SIDE_ROUNDS];
    struct side side[2] = { our_side(url, name), our_side(there->url, name) };

    for (int i = 0; i < results->cores; i++) {
        say("%s: pair, %s ...\n", words, placements[i].words);
        pin_to(placements[i].client_core);
        pin_process_to(there->pid, placements[i].server_core);
        measure_sides(side, 2, ns);
        add_sides(results,
                  (struct row){ .name = name_of("%s: pair, %s", words, placements[i].words),
                                .against = "redis: on that server",
                                .judged = RATIO_AT_MOST,
                                .bar = 1.05 },
                  ns, 0, 1);
    }
    close_side(&side[0]);
    close_side(&side[1]);
    pin_to(-1);
}

static void compare_cluster(struct results *results)
{
    struct redis_group *group = redis_cluster_start(NULL);
    const int slot = redis_cluster_slot(group, "hf:{pair}");

    compare_found(results, "redis+cluster", group->url, redis_cluster_owner(group, NULL, slot), "pair");
    redis_group_stop(group);
}

static void compare_sentinel(struct results *results)
{
    struct redis_group *group = redis_sentinel_start(NULL);

    compare_found(results, "redis+sentinel", group->url, redis_sentinel_master(group), "pair");
    redis_group_stop(group);
}

static void compare_all(struct results *results, const char *module)
{
    static struct dialects on_any = { .count = 3, .names = { "native", "plain", "redisson" } };
    static struct dialects on_tair = { .count = 1, .names = { "tair" } };

    compare_dialects(results, &on_any, "");
    if (*module != 0)
        compare_dialects(results, &on_tair, name_of("--loadmodule %s", module));
    compare_cluster(results);
    compare_sentinel(results);
}

int main(int argc, char **argv)
{
    static struct results results;
    const char *module = "";
    bool json = false;
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--module") == 0 && i + 1 < argc)
            module = argv[++i];
        else
            argc = 0;
    }
    if (i + 1 != argc) {
        fprintf(stderr, "usage: compare_dialects [--json] [--module PATH] DIRECTORY\n");
        return 64;
    }
    setenv("TEST_DIRECTORY", argv[i], 1);
    compare_all(&results, module);
    results_print(&results, json);
    return 0;
}
