/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_storm.c: eight processes compete for one lock while masters are killed, restarted and stopped, two
 * at most at a time, and the processes themselves are killed. Nobody is inside beside a holder whose own deadline has
 * not come, and tokens only grow. The masters keep their data: one that forgot would break exclusion, as the model
 * shows. And one that keeps standing still for a moment.
 */
#include "redlock_support.h"
#include "storm.h"

#include <unistd.h>

#define PROCESSES 8
#define MASTERS 5
#define DOWN_MOST 2

struct worker {
    struct storm *storm;
    uint64_t seed;
};

/* Mostly short, now and then long enough to be hit in the middle, or to need renewals. */
static uint32_t stay_us(const struct storm *storm, uint64_t *seed)
{
    if (chance(seed, 400) == 0)
        return storm->ttl_ms * 1000;
    return chance(seed, 20) ? chance(seed, 200) : chance(seed, 20000);
}

static void compete(void *arg)
{
    struct worker *worker = arg;
    struct storm *storm = worker->storm;
    const hf_options options = stranger(storm->ttl_ms);
    hf_client *client = open_client();
    while (!atomic_load(&storm->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, NAME, &options, &err);
        if (CHECK_STATUS(status == HF_UNAVAILABLE ? HF_UNAVAILABLE : HF_OK, status, &err) && lock)
            storm_visit(storm, lock, 0, stay_us(storm, &worker->seed));
        hf_release(lock, NULL);
    }
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------------ blows */

struct blows {
    struct storm *storm;
    struct redis_group *group;
    pid_t pids[PROCESSES];
    bool is_down[MASTERS];
    enum fault faults[MASTERS];
    int down, clients_killed, killed, paused;
};

static void start_worker(struct blows *blows, uint32_t index)
{
    struct worker worker = { .storm = blows->storm, .seed = random_below(1000000) };
    blows->pids[index] = helper_start(compete, &worker);
}

static void heal_master(struct blows *blows, int index)
{
    heal(blows->group, index, blows->faults[index]);
    blows->is_down[index] = false;
    blows->down--;
}

static void strike_master(struct blows *blows, int index)
{
    if (blows->is_down[index]) {
        heal_master(blows, index);
    } else if (blows->down < DOWN_MOST) {
        const enum fault fault = random_below(2) ? KILLED : PAUSED;
        strike(blows->group, index, fault);
        blows->is_down[index] = true;
        blows->faults[index] = fault;
        blows->down++;
        *(fault == KILLED ? &blows->killed : &blows->paused) += 1;
    }
}

static void strike_somebody(struct blows *blows)
{
    if (random_below(5) == 0) {
        const uint32_t victim = random_below(PROCESSES);
        helper_kill(blows->pids[victim]);
        blows->clients_killed++;
        start_worker(blows, victim);
    } else {
        strike_master(blows, (int)random_below(MASTERS));
    }
    random_pause(150000);
}

TEST_LIMIT(masters_and_clients_die_at_random, 60)
{
    struct storm *storm = shared_new(sizeof *storm);
    struct blows blows = { .storm = storm, .group = start_masters(MASTERS, DURABLE) };
    storm->ttl_ms = test_ms(1500);
    for (uint32_t i = 0; i < PROCESSES; i++)
        start_worker(&blows, i);
    storm_await(storm, 20);
    const int64_t end_ns = test_now_ns() + (TEST_SANITIZED ? 5 : 10) * SECOND_NS;
    while (test_now_ns() < end_ns)
        strike_somebody(&blows);
    storm_await(storm, 20); /* also with those that are down now */
    for (int i = 0; i < MASTERS; i++) {
        if (blows.is_down[i])
            heal_master(&blows, i);
    }
    storm_await(storm, 100);
    storm_end(storm, blows.pids, PROCESSES);
    test_note("masters: %d killed, %d paused; %d clients killed", blows.killed, blows.paused, blows.clients_killed);
    CHECK(blows.killed > 0);
    CHECK(blows.paused > 0);
    CHECK(blows.clients_killed > 0);
}

static void take_and_give_back(void *arg)
{
    struct gate *done = arg;
    const hf_options options = stranger(endless_ttl_ms());
    hf_client *client = open_client();
    for (int i = 0; i < 600; i++)
        must_release(must_acquire(client, NAME, &options));
    gate_pass(done);
    pause(); /* a client that is closed would wait a moment for what is on its way */
}

/* One that stands still again and again gets many questions before that is noticed. Each acquire among them is followed
 * by its release, and none of these may be lost with a connection. */
TEST(what_a_master_was_asked_while_it_stood_still_is_undone)
{
    struct redis_group *group = start_masters(3, NULL);
    struct gate *done = shared_new(sizeof *done);
    const pid_t pid = helper_start(take_and_give_back, done);
    while (!gate_await_for(done, 1, 1)) {
        redis_server_pause(group->server[2]);
        random_pause(30000);
        redis_server_continue(group->server[2]);
    }
    await_clean(group);
    helper_kill(pid);
}
