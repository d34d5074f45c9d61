/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_ensemble.c: three servers, of which some are killed, paused and started again. Whatever happens to a
 * holder, it knows before anybody else holds the lock, and tokens grow.
 */
#include "scene.h"
#include "storm.h"
#include "zookeeper_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL

/* Renewed until the servers answer again. */
static void await_renewal(hf_lock *lock)
{
    hf_error err = { 0 };
    while (hf_renew(lock, 0, &err) != HF_OK) {
        CHECK(err.status != HF_LOST);
        REQUIRE(err.status != HF_LOST && test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(20);
    }
}

/* On a machine so busy that the others are slow one call may not be enough to find the one that answers. */
static hf_client *open_in_trouble(void)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    while (hf_open(&client, store_url, NULL, &err) != HF_OK) {
        REQUIRE_STATUS(HF_UNAVAILABLE, err.status, &err);
        REQUIRE(test_now_ns() < test_deadline_ns() - SECOND_NS);
    }
    return client;
}

static void check_survives(void (*strike)(struct zookeeper_server **servers))
{
    struct zookeeper_server *servers[3];
    serve_three(servers, "maxSessionTimeout=60000");
    struct scene scene;
    scene_begin(&scene, "x", 30000);
    scene.in_trouble = true;
    strike(servers);
    await_renewal(scene.lock);
    scene_check_kept(&scene);
    scene_end(&scene);
}

static void kill_leader(struct zookeeper_server **servers)
{
    struct zookeeper_server *leader = zookeeper_leader(servers, 3);
    zookeeper_server_kill(leader);
}

TEST_LIMIT(the_death_of_the_leader_costs_no_lock, 90)
{
    check_survives(kill_leader);
}

static void restart_all(struct zookeeper_server **servers)
{
    for (int i = 0; i < 3; i++)
        zookeeper_server_kill(servers[i]);
    for (int i = 0; i < 3; i++)
        zookeeper_server_launch(servers[i]);
    for (int i = 0; i < 3; i++)
        zookeeper_server_await(servers[i]);
}

TEST_LIMIT(a_restart_of_everything_costs_no_lock, 90)
{
    check_survives(restart_all);
}

/* Whoever is connected to it goes to another one long before its session is over. Only one of them is ever missing:
 * without the first, the second would take the majority along. */
static void pause_followers(struct zookeeper_server **servers)
{
    struct zookeeper_server *leader = zookeeper_leader(servers, 3);
    for (int i = 0; i < 3; i++) {
        if (servers[i] == leader)
            continue;
        zookeeper_server_pause(servers[i]);
        for (int j = 0; j < 3; j++) { /* some of them try it first */
            hf_client *client = open_in_trouble();
            release_in_trouble(must_acquire(client, "y", NULL));
            hf_close(client);
        }
        zookeeper_server_continue(servers[i]);
        zookeeper_server_await(servers[i]);
        while (zookeeper_server_number(leader, "zk_synced_followers") < 2) {
            REQUIRE(test_now_ns() < test_deadline_ns() - SECOND_NS);
            pause_ms(20);
        }
    }
}

TEST_LIMIT(a_server_that_hangs_is_left, 120)
{
    check_survives(pause_followers);
}

/* The others notice after syncLimit, and elect another one. */
static void pause_leader(struct zookeeper_server **servers)
{
    struct zookeeper_server *leader = zookeeper_leader(servers, 3), *others[2];
    int count = 0;
    for (int i = 0; i < 3; i++) {
        if (servers[i] != leader)
            others[count++] = servers[i];
    }
    zookeeper_server_pause(leader);
    zookeeper_leader(others, 2);
    zookeeper_server_continue(leader);
}

TEST_LIMIT(a_leader_that_hangs_is_replaced, 120)
{
    check_survives(pause_leader);
}

/* ------------------------------------------------------------------------------------------------------------ storm */

#define CONTENDERS 16

/* For so long, one of three is killed every `period_s` and started again; how long the lock then stood still. */
static void check_storm(int seconds, int period_s)
{
    struct zookeeper_server *servers[3];
    struct storm *storm = shared_new(sizeof *storm);
    pid_t pids[CONTENDERS];
    int64_t longest_ms = 0;
    serve_three(servers, "");
    storm->ttl_ms = 3000;
    for (int i = 0; i < CONTENDERS; i++)
        pids[i] = helper_start(storm_compete, storm);
    storm_await(storm, 50);
    const int64_t end_ns = test_now_ns() + seconds * SECOND_NS;
    for (int i = 0; test_now_ns() < end_ns; i++) {
        const int64_t began_ns = test_now_ns();
        struct zookeeper_server *victim = i % 2 ? servers[random_below(3)] : zookeeper_leader(servers, 3);
        zookeeper_server_kill(victim);
        pause_ms(random_below(1000));
        zookeeper_server_restart(victim);
        const int64_t took_ms = storm_await(storm, 10);
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
        while (test_now_ns() < began_ns + period_s * SECOND_NS)
            pause_ms(10);
    }
    storm_end(storm, pids, CONTENDERS);
    test_note("ten more entries within %d ms of each recovery", (int)longest_ms);
    CHECK(longest_ms < 3000 * test_slowness());
}

TEST_LIMIT(sixteen_compete_while_servers_are_killed, 120)
{
    check_storm(4, 1);
}

TEST_LIMIT(soak_sixteen_compete_for_two_minutes_while_servers_are_killed, 300)
{
    check_storm(120, 5);
}

/* ------------------------------------------------------------------------------------------------------- slow disks */

#define SLOW_MS 300
#define STUCK_MS 60000

static char disk_speed[300]; /* the file that tells slow_disk.c */

/* How long everything takes that servers make sure of on their disks. */
static void slow_down(int ms)
{
    FILE *file = fopen(disk_speed, "we");
    REQUIRE(file != NULL);
    fprintf(file, "%d\n", ms);
    REQUIRE_INT(0, fclose(file));
}

static void serve_three_on_slow_disks(struct zookeeper_server **servers)
{
    const char *library = getenv("TEST_SLOW_DISK"), *folder = getenv("TEST_DIRECTORY");
    if (!library || !folder) {
        FAIL("no TEST_SLOW_DISK or TEST_DIRECTORY in the environment");
        test_abort();
    }
    snprintf(disk_speed, sizeof disk_speed, "%s/disk-speed-%d", folder, (int)getpid());
    slow_down(0);
    REQUIRE_INT(0, setenv("SLOW_DISK", disk_speed, 1));
    REQUIRE_INT(0, setenv("LD_PRELOAD", library, 1));
    serve_three(servers, "maxSessionTimeout=60000 -Dzookeeper.forceSync=yes");
    REQUIRE_INT(0, unsetenv("LD_PRELOAD"));
}

static void check_crowd_on_slow_disks(void)
{
    enum { CROWD = 4 };
    struct storm *storm = shared_new(sizeof *storm);
    pid_t pids[CROWD];
    storm->ttl_ms = 3000;
    for (int i = 0; i < CROWD; i++)
        pids[i] = helper_start(storm_compete, storm);
    storm_await(storm, 2 * CROWD);
    slow_down(SLOW_MS);
    storm_await(storm, CROWD);
    slow_down(0);
    storm_end(storm, pids, CROWD);
}

TEST_LIMIT(a_slow_disk_costs_time_and_a_stuck_one_the_lock_in_time, 90)
{
    struct zookeeper_server *servers[3];
    struct scene scene;
    serve_three_on_slow_disks(servers);
    check_crowd_on_slow_disks();
    scene_begin(&scene, "x", test_ms(4000));
    scene.in_trouble = true;
    slow_down(SLOW_MS);
    await_renewal(scene.lock);
    CHECK_INT(0, gate_count(&scene.loss.told));
    slow_down(STUCK_MS);
    gate_await(&scene.loss.told, 1);
    CHECK_INT(0, gate_count(&scene.waiter.ended));
    slow_down(0);
    scene_check_lost(&scene);
    scene_end(&scene);
    unlink(disk_speed);
}
