/* SPDX-License-Identifier: MIT
 *
 * test_etcd_crowd.c: many processes on one lock, while members of the cluster are killed and come back. With
 * HOLDFAST_TEST_SOAK=SECONDS for so long, else for a few blows.
 */
#include "etcd_support.h"
#include "storm.h"

#include <stdlib.h>

#define CONTENDERS 16
#define PAUSE_S 5

TEST_LIMIT(a_crowd_while_members_are_killed, 300)
{
    const char *soak = getenv("HOLDFAST_TEST_SOAK");
    const int blows = soak ? (int)strtol(soak, NULL, 10) / PAUSE_S : 3;
    struct etcd_cluster *cluster = start_store(3, QUICK);
    struct storm *storm = shared_new(sizeof *storm);
    pid_t pids[CONTENDERS];
    int64_t slowest_ms = 0;
    storm->ttl_ms = 4000;
    for (int i = 0; i < CONTENDERS; i++)
        pids[i] = helper_start(storm_compete, storm);
    for (int blow = 0; blow < blows; blow++) {
        storm_await(storm, 3);
        /* The leader as often as not. */
        struct etcd_server *victim = blow % 2 ? &cluster->servers[random_below(3)] : etcd_cluster_leader(cluster);
        etcd_server_kill(victim);
        if (soak)
            pause_ms(PAUSE_S * 1000 / 2);
        storm_await(storm, 3);
        etcd_server_restart(victim);
        etcd_cluster_await(cluster);
        const int64_t took_ms = storm_await(storm, 3);
        slowest_ms = took_ms > slowest_ms ? took_ms : slowest_ms;
        if (soak)
            pause_ms(PAUSE_S * 1000 / 2);
    }
    storm_end(storm, pids, CONTENDERS);
    CHECK(slowest_ms < 3000 * test_slowness());
    test_note("%d ms until the third entry after a recovery at the worst", (int)slowest_ms);
}
