/* SPDX-License-Identifier: MIT
 *
 * test_consul_three.c: three servers of which one dies, or two, or all; with a crowd that goes on.
 */
#include "consul_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "x"

static void start_three(struct consul_server **servers)
{
    consul_servers_start(servers, 3, NULL, "");
    use_url(servers[0]->ensemble_url);
}

/* A holder and a waiter, and somebody to ask. */
struct scene {
    hf_client *client, *other;
    hf_lock *lock;
    uint64_t token;
    struct loss loss;
    struct waiter waiter;
};

static void set_scene(struct scene *scene, uint32_t ttl_ms)
{
    hf_options options = stranger(ttl_ms);
    scene->client = open_client();
    scene->other = open_client();
    record_loss(&options, &scene->loss);
    scene->lock = must_acquire(scene->client, NAME, &options);
    scene->token = hf_token(scene->lock);
    waiter_start(&scene->waiter, scene->other, NAME, NULL);
    await_waiters(scene->other, NAME, 1);
}

/* The lock was kept: its release is what the waiter waits for. */
static void check_kept(struct scene *scene)
{
    CHECK_INT(0, gate_count(&scene->loss.told));
    CHECK_INT(0, gate_count(&scene->waiter.ended));
    must_release(scene->lock);
    waiter_join(&scene->waiter, HF_OK);
    CHECK(scene->waiter.token > scene->token);
    must_release(scene->waiter.lock);
    hf_close(scene->client);
    hf_close(scene->other);
}

TEST_LIMIT(a_lock_outlives_the_leader_and_then_all_servers, 120)
{
    struct consul_server *servers[3];
    struct scene scene = { 0 };
    start_three(servers);
    set_scene(&scene, 60000);
    struct consul_server *leader = consul_leader(servers, 3);
    consul_server_kill(leader);
    for (int i = 0; i < 3; i++) { /* until they know the new one, and it is ready */
        if (servers[i] != leader)
            consul_server_await(servers[i]);
    }
    check_kept(&scene);
    consul_server_restart(leader);

    memset(&scene, 0, sizeof scene);
    set_scene(&scene, 60000);
    for (int i = 0; i < 3; i++)
        consul_server_kill(servers[i]);
    for (int i = 0; i < 3; i++)
        consul_server_launch(servers[i]);
    for (int i = 0; i < 3; i++)
        consul_server_await(servers[i]);
    check_kept(&scene);
}

TEST_LIMIT(a_lock_is_lost_in_time_when_there_is_no_majority, 120)
{
    struct consul_server *servers[3];
    struct scene scene = { 0 };
    start_three(servers);
    set_scene(&scene, test_ms(2000));
    consul_server_kill(servers[1]);
    consul_server_kill(servers[2]);
    gate_await(&scene.loss.told, 1);
    CHECK_INT(0, gate_count(&scene.waiter.ended));
    CHECK(hf_remaining_ms(scene.lock) <= 0);
    consul_server_launch(servers[1]);
    consul_server_launch(servers[2]);
    waiter_join(&scene.waiter, HF_OK);
    CHECK(scene.waiter.token > scene.token);
    CHECK_STATUS(HF_LOST, hf_release(scene.lock, NULL), NULL);
    must_release(scene.waiter.lock);
    hf_close(scene.client);
    hf_close(scene.other);
}

/* --- a crowd --- */

#define CONTENDERS 16
#define SECOND_NS 1000000000LL

struct crowd {
    _Atomic bool over;
    _Atomic uint32_t inside;                  /* who is in, from 1; 0: nobody */
    _Atomic int64_t until_ns[CONTENDERS + 1]; /* for how long each is certain to be alone */
    _Atomic uint64_t largest;                 /* token */
    _Atomic uint32_t entries, overlaps, disorders;
    uint32_t ttl_ms;
};

static void visit(struct crowd *crowd, const hf_lock *lock, uint32_t who)
{
    const int64_t asked_ns = test_now_ns();
    const int64_t until_ns = asked_ns + (hf_remaining_ms(lock) - 1) * 1000000;
    atomic_store(&crowd->until_ns[who], until_ns);
    const uint32_t before = atomic_exchange(&crowd->inside, who);
    const int64_t now_ns = test_now_ns();
    if (now_ns >= until_ns) /* it was lost before it was used */
        return;
    if (before != 0 && before != who && now_ns < atomic_load(&crowd->until_ns[before]))
        atomic_fetch_add(&crowd->overlaps, 1);
    const uint64_t largest = atomic_exchange(&crowd->largest, hf_token(lock));
    if (largest >= hf_token(lock))
        atomic_fetch_add(&crowd->disorders, 1);
    atomic_fetch_add(&crowd->entries, 1);
    pause_ms(1);
    uint32_t expected = who;
    atomic_store(&crowd->until_ns[who], 0);
    atomic_compare_exchange_strong(&crowd->inside, &expected, 0);
}

static void compete(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    hf_client *client = open_client();
    const hf_options options = stranger(crowd->ttl_ms);
    while (!atomic_load(&crowd->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, NAME, &options, &err);
        if (status == HF_OK)
            visit(crowd, lock, index + 1);
        else if (status != HF_UNAVAILABLE)
            CHECK_STATUS(HF_UNKNOWN, status, &err);
        hf_release(lock, NULL);
    }
    hf_close(client);
}

static void await_entries(struct crowd *crowd, uint32_t more)
{
    const uint32_t wanted = atomic_load(&crowd->entries) + more;
    while (atomic_load(&crowd->entries) < wanted) {
        REQUIRE(test_now_ns() < test_deadline_ns() - SECOND_NS);
        pause_ms(2);
    }
}

/* One server is killed, in turn, and comes back; each time the crowd must go on. */
static void storm(int64_t seconds, int64_t period_ms)
{
    struct consul_server *servers[3];
    struct crowd *crowd = shared_new(sizeof *crowd);
    pid_t pids[CONTENDERS];
    int64_t slowest_ns = 0;
    int kills = 0;
    start_three(servers);
    crowd->ttl_ms = test_ms(5000);
    for (uint32_t i = 0; i < CONTENDERS; i++)
        pids[i] = start_process(compete, crowd, i);
    await_entries(crowd, 20);
    const int64_t end_ns = test_now_ns() + seconds * SECOND_NS;
    for (; test_now_ns() < end_ns; kills++) {
        const int64_t killed_ns = test_now_ns();
        struct consul_server *victim = servers[kills % 3];
        consul_server_kill(victim);
        pause_ms((uint32_t)period_ms / 2);
        consul_server_restart(victim);
        consul_leader(servers, 3);
        const int64_t recovered_ns = test_now_ns();
        await_entries(crowd, 5);
        const int64_t took_ns = test_now_ns() - recovered_ns;
        slowest_ns = took_ns > slowest_ns ? took_ns : slowest_ns;
        while (test_now_ns() < killed_ns + period_ms * 1000000)
            pause_ms(5);
    }
    atomic_store(&crowd->over, true);
    for (int i = 0; i < CONTENDERS; i++)
        helper_join(pids[i]);
    test_note("%d servers killed, %u entries; at most %d ms from a recovery to the next five", kills,
              atomic_load(&crowd->entries), (int)(slowest_ns / 1000000));
    CHECK_INT(0, atomic_load(&crowd->overlaps));
    CHECK_INT(0, atomic_load(&crowd->disorders));
}

TEST_LIMIT(a_crowd_goes_on_while_servers_are_killed, 240)
{
    const char *seconds = getenv("TEST_STORM_SECONDS");
    storm(seconds ? strtol(seconds, NULL, 10) : 12, 5000);
}
