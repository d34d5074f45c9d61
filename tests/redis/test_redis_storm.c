/* SPDX-License-Identifier: MIT
 *
 * test_redis_storm.c: eight processes of eight threads compete for one lock while they are killed and stopped at
 * random. Nobody is inside beside a holder whose own deadline has not come, a late writer is refused by its token,
 * and the lock is never idle for longer than a lease and the claim time.
 *
 * One blow at a time: the next falls when the lock is being passed on again, so that the longest gap is what one
 * blow costs.
 */
#include "redis_support.h"
#include "storm.h"

#define PROCESSES 8
#define THREADS 8
#define SECOND_NS 1000000000LL

struct worker {
    struct storm *storm;
    hf_client *client;
    uint32_t process;
    uint64_t seed;
};

static void compete(void *arg, uint32_t index)
{
    const struct worker *worker = arg;
    struct storm *storm = worker->storm;
    uint64_t seed = worker->seed + index;
    const hf_options options = stranger(storm->ttl_ms);
    while (!atomic_load(&storm->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, worker->client, STORM_NAME, &options, &err);
        if (status == HF_OK) /* mostly short, now and then long enough to be hit in the middle */
            storm_visit(storm, lock, worker->process, chance(&seed, 20) ? chance(&seed, 200) : chance(&seed, 20000));
        else if (status != HF_UNAVAILABLE && status != HF_UNKNOWN) /* which a long pause looks like */
            FAIL("hf_acquire: %s: %s", hf_status_name(status), err.message);
        hf_release(lock, NULL);
    }
}

static void work(void *arg)
{
    struct worker *worker = arg;
    worker->client = open_client();
    run_threads(THREADS, compete, worker);
    hf_close(worker->client);
}

/* ------------------------------------------------------------------------------------------------------------ blows */

struct blows {
    struct storm *storm;
    pid_t pids[PROCESSES];
    int kills, stops;
    uint32_t seen;   /* entries, when last looked at */
    int64_t seen_ns; /* when there was a new one */
    int64_t longest_gap_ns;
};

static void start_worker(struct blows *blows, uint32_t index)
{
    struct worker worker = { .storm = blows->storm, .process = index, .seed = random_below(1000000) };
    blows->pids[index] = helper_start(work, &worker);
}

/* Every other time whoever is inside. */
static uint32_t choose_victim(const struct storm *storm)
{
    for (int i = 0; i < 1000 && random_below(2) == 0; i++) {
        const uint32_t number = atomic_load(&storm->inside);
        if (number != 0)
            return atomic_load(&storm->process[number]);
    }
    return random_below(PROCESSES);
}

/* Watches until `ms` have passed and then the lock has gone through `hands` more. */
static void watch(struct blows *blows, uint32_t ms, uint32_t hands)
{
    struct storm *storm = blows->storm;
    const int64_t least_ns = test_now_ns() + ms * 1000000LL;
    uint32_t passed = 0;
    int64_t now_ns = test_now_ns();
    while (now_ns < least_ns || passed < hands) {
        const uint32_t entries = atomic_load(&storm->entries);
        pause_ms(1);
        now_ns = test_now_ns();
        if (entries != blows->seen) {
            passed += now_ns >= least_ns ? entries - blows->seen : 0;
            blows->seen = entries;
            blows->seen_ns = now_ns;
        } else if (now_ns - blows->seen_ns > blows->longest_gap_ns) {
            blows->longest_gap_ns = now_ns - blows->seen_ns;
        }
        REQUIRE(now_ns < test_deadline_ns() - SECOND_NS);
    }
}

static void strike(struct blows *blows)
{
    const uint32_t victim = choose_victim(blows->storm);
    if (blows->kills <= blows->stops) {
        helper_kill(blows->pids[victim]);
        blows->kills++;
        watch(blows, random_below(100), 20);
        start_worker(blows, victim);
    } else {
        helper_stop(blows->pids[victim]);
        blows->stops++;
        watch(blows, random_below(3) ? random_below(200) : random_below(4 * blows->storm->ttl_ms), 0);
        helper_continue(blows->pids[victim]);
    }
    watch(blows, random_below(50), 20);
}

TEST_LIMIT(eight_processes_are_killed_and_stopped_at_random, 100)
{
    serve("");
    struct storm *storm = shared_new(sizeof *storm);
    struct blows blows = { .storm = storm };
    storm->ttl_ms = test_ms(1000);
    const int64_t end_ns = test_now_ns() + (TEST_SANITIZED ? 5 : 10) * SECOND_NS;
    for (uint32_t i = 0; i < PROCESSES; i++)
        start_worker(&blows, i);
    watch(&blows, 100, 20);
    blows.longest_gap_ns = 0; /* starting is not a stall */
    while (test_now_ns() < end_ns)
        strike(&blows);
    storm_end(storm, blows.pids, PROCESSES);
    test_note("%d kills, %d stops, longest gap %d ms", blows.kills, blows.stops, (int)(blows.longest_gap_ns / 1000000));
    CHECK(blows.kills > 0);
    CHECK(blows.stops > 0);
    CHECK(blows.longest_gap_ns / 1000000 <= storm->ttl_ms + CLAIM_MS + test_ms(1000));
}
