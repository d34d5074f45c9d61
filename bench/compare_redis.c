/* SPDX-License-Identifier: MIT
 *
 * compare_redis.c: Holdfast on a Redis server beside raw hiredis on the same server, by turns in one run, as ratios.
 * As with bench/compare the program ends with 0 whatever the ratios, and says "OVER" where a bar is not met.
 *
 *     compare_redis [--json] [--line] [--keep SECONDS] PORT
 *
 * PORT is where a redis-server of our own listens on 127.0.0.1: its data is flushed, and it is moved from core to core.
 * SECONDS is for how long 10,000 locks are held and renewed; 0 leaves that out. --line: threads
 * of one client alone.
 */
#include "compare_redis.h"

#include <string.h>

#define KEEP_SECONDS 30

int main(int argc, char **argv)
{
    static struct results results;
    struct server server;
    int keep_seconds = KEEP_SECONDS;
    bool json = false, line_alone = false;
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--line") == 0)
            line_alone = true;
        else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
            keep_seconds = number_or_die(argv[++i], 86400);
        else
            argc = 0;
    }
    if (i + 1 != argc) {
        fprintf(stderr, "usage: compare_redis [--json] [--line] [--keep SECONDS] PORT\n");
        return 64;
    }
    open_server(&server, number_or_die(argv[i], 65535));
    name_results(&results, &server);
    freeReplyObject(ask_raw(server.control, "FLUSHALL"));
    /* First the parts that fork, while this process has no thread. */
    compare_redis_line(&results, &server);
    if (line_alone) {
        redisFree(server.control);
        results_print(&results, json);
        return 0;
    }
    compare_redis_handoff(&results, &(struct crowd){ "redis", results.url, &server, 1 }, 1.5);
    compare_redis_commands(&results, &server);
    if (keep_seconds > 0)
        compare_redis_keep(&results, &server, keep_seconds);
    compare_redis_pairs(&results, &server);
    redisFree(server.control);
    results_print(&results, json);
    return 0;
}
