/* SPDX-License-Identifier: MIT
 *
 * test_consul_three.c: three servers of which one dies, or two, or all; with a crowd that goes on.
 */
#include "consul_support.h"
#include "scene.h"
#include "storm.h"

#include <stdlib.h>

#define NAME "x"

static void start_three(struct consul_server **servers)
{
    consul_servers_start(servers, 3, NULL, "");
    use_url(servers[0]->ensemble_url);
}

TEST_LIMIT(a_lock_outlives_the_leader_and_then_all_servers, 120)
{
    struct consul_server *servers[3];
    struct scene scene;
    start_three(servers);
    scene_begin(&scene, NAME, 60000);
    struct consul_server *leader = consul_leader(servers, 3);
    consul_server_kill(leader);
    for (int i = 0; i < 3; i++) { /* until they know the new one, and it is ready */
        if (servers[i] != leader)
            consul_server_await(servers[i]);
    }
    scene_check_kept(&scene);
    scene_end(&scene);
    consul_server_restart(leader);

    scene_begin(&scene, NAME, 60000);
    for (int i = 0; i < 3; i++)
        consul_server_kill(servers[i]);
    for (int i = 0; i < 3; i++)
        consul_server_launch(servers[i]);
    for (int i = 0; i < 3; i++)
        consul_server_await(servers[i]);
    scene_check_kept(&scene);
    scene_end(&scene);
}

TEST_LIMIT(a_lock_is_lost_in_time_when_there_is_no_majority, 120)
{
    struct consul_server *servers[3];
    struct scene scene;
    start_three(servers);
    scene_begin(&scene, NAME, test_ms(2000));
    consul_server_kill(servers[1]);
    consul_server_kill(servers[2]);
    gate_await(&scene.loss.told, 1);
    CHECK_INT(0, gate_count(&scene.waiter.ended));
    consul_server_launch(servers[1]);
    consul_server_launch(servers[2]);
    scene_check_lost(&scene);
    scene_end(&scene);
}

/* --- a crowd --- */

#define CONTENDERS 16
#define SECOND_NS 1000000000LL

/* One server is killed, in turn, and comes back; each time the crowd must go on. */
static void check_storm(int64_t seconds, int64_t period_ms)
{
    struct consul_server *servers[3];
    struct storm *storm = shared_new(sizeof *storm);
    pid_t pids[CONTENDERS];
    int64_t slowest_ms = 0;
    int kills = 0;
    start_three(servers);
    storm->ttl_ms = test_ms(5000);
    for (uint32_t i = 0; i < CONTENDERS; i++)
        pids[i] = helper_start(storm_compete, storm);
    storm_await(storm, 20);
    const int64_t end_ns = test_now_ns() + seconds * SECOND_NS;
    for (; test_now_ns() < end_ns; kills++) {
        const int64_t killed_ns = test_now_ns();
        struct consul_server *victim = servers[kills % 3];
        consul_server_kill(victim);
        pause_ms((uint32_t)period_ms / 2);
        consul_server_restart(victim);
        consul_leader(servers, 3);
        const int64_t took_ms = storm_await(storm, 5);
        slowest_ms = took_ms > slowest_ms ? took_ms : slowest_ms;
        while (test_now_ns() < killed_ns + period_ms * 1000000)
            pause_ms(5);
    }
    storm_end(storm, pids, CONTENDERS);
    test_note("%d servers killed; at most %d ms from a recovery to the next five entries", kills, (int)slowest_ms);
}

TEST_LIMIT(a_crowd_goes_on_while_servers_are_killed, 240)
{
    const char *seconds = getenv("TEST_STORM_SECONDS");
    check_storm(seconds ? strtol(seconds, NULL, 10) : 12, 5000);
}
