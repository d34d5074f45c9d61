/* SPDX-License-Identifier: MIT
 *
 * bench_worker.c: what one worker of `holdfast bench` does, be it a thread or a process.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* The waiter of a hand-off is left alone for 3 to 9 ms, long enough to be asleep in whatever way it sleeps. The time
 * varies so that it does not fall into step with a timer. */
#define IDLE_MIN_NS 3000000
#define IDLE_SPREAD_NS 6000000

int64_t bench_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * BENCH_SECOND_NS + now.tv_nsec;
}

bool bench_sem_wait(sem_t *semaphore, int64_t deadline_ns)
{
    struct timespec deadline = { .tv_sec = deadline_ns / BENCH_SECOND_NS, .tv_nsec = deadline_ns % BENCH_SECOND_NS };

    while (sem_clockwait(semaphore, CLOCK_MONOTONIC, &deadline) != 0)
        if (errno != EINTR)
            return false;
    return true;
}

double bench_cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* One worker at work. */
struct worker {
    const struct bench_run *run;
    struct bench_board *board;
    struct bench_slot *slot;
    hf_client *client;
    uint32_t index;
    char name[48];
    hf_options options;
    int64_t start_ns;
    int64_t end_ns;
};

/* Whoever sleeps in a hand-off must hear of it too, hence the posts. */
static void stop_all(struct worker *worker)
{
    atomic_store(&worker->board->stop, true);
    sem_post(&worker->board->turn[0]);
    sem_post(&worker->board->turn[1]);
}

static bool fail(struct worker *worker, const hf_error *err)
{
    worker->slot->error = *err;
    worker->slot->failed = true;
    stop_all(worker);
    return false;
}

static bool fail_missing_partner(struct worker *worker)
{
    hf_error err = { .status = HF_INTERNAL };

    snprintf(err.message, sizeof err.message, "the other worker of the hand-off has not answered for 30 s");
    return fail(worker, &err);
}

static bool acquire(struct worker *worker, hf_lock **lock)
{
    hf_error err = { 0 };

    return hf_acquire(lock, worker->client, worker->name, &worker->options, &err) == HF_OK || fail(worker, &err);
}

static bool release(struct worker *worker, hf_lock *lock)
{
    hf_error err = { 0 };

    return hf_release(lock, &err) == HF_OK || fail(worker, &err);
}

static void witness_enter(struct worker *worker)
{
    if (atomic_exchange(&worker->board->holder, worker->index + 1) != 0)
        atomic_fetch_add(&worker->board->overlaps, 1);
}

static void witness_leave(struct worker *worker)
{
    uint32_t me = worker->index + 1;

    if (!atomic_compare_exchange_strong(&worker->board->holder, &me, 0))
        atomic_fetch_add(&worker->board->overlaps, 1);
}

/* Counts a pair whose acquire began in the window and ended in it. A wait that was still open at the end counts for the
 * maximum alone: leaving it out would hide whoever starved. */
static void count_pair(struct worker *worker, int64_t asked, int64_t got, int64_t releasing, int64_t released)
{
    struct bench_slot *slot = worker->slot;

    if (asked < worker->start_ns)
        return;
    if (got > worker->end_ns) {
        uint64_t open_ns = asked < worker->end_ns ? (uint64_t)(worker->end_ns - asked) : 0;

        if (slot->wait.max_ns < open_ns && worker->run->mode == BENCH_CONTEND)
            slot->wait.max_ns = open_ns;
        return;
    }
    bench_histogram_add(&slot->acquire, got - asked);
    bench_histogram_add(&slot->release, released - releasing);
    atomic_fetch_add_explicit(&slot->pairs, 1, memory_order_relaxed);
}

/* The lock came from another worker: how long we waited for it, and how long it was on its way. Called while holding
 * it. */
static void count_change(struct worker *worker, int64_t asked, int64_t got)
{
    struct bench_board *board = worker->board;
    uint32_t last = atomic_exchange(&board->last_owner, worker->index + 1);

    if (last == worker->index + 1 || last == 0 || asked < worker->start_ns || got > worker->end_ns)
        return;
    worker->slot->changes++;
    bench_histogram_add(&worker->slot->wait, got - asked);
    bench_histogram_add(&worker->slot->handoff, got - atomic_load(&board->released_ns));
}

static bool one_pair(struct worker *worker)
{
    bool contend = worker->run->mode == BENCH_CONTEND;
    int64_t asked = bench_now();
    int64_t got, releasing;
    hf_lock *lock;

    if (!acquire(worker, &lock))
        return false;
    got = bench_now();
    if (contend) {
        witness_enter(worker);
        count_change(worker, asked, got);
        witness_leave(worker);
        releasing = bench_now();
        atomic_store(&worker->board->released_ns, releasing);
    } else {
        releasing = got;
    }
    if (!release(worker, lock))
        return false;
    count_pair(worker, asked, got, releasing, bench_now());
    return true;
}

static void work_in_pairs(struct worker *worker)
{
    while (bench_now() < worker->end_ns && !atomic_load_explicit(&worker->board->stop, memory_order_relaxed))
        if (!one_pair(worker))
            return;
}

/* True: it is our move. False: the show is over, or the other one is gone. */
static bool take_turn(struct worker *worker, int side)
{
    if (!bench_sem_wait(&worker->board->turn[side], bench_now() + BENCH_PATIENCE_NS))
        return fail_missing_partner(worker);
    return !atomic_load(&worker->board->stop);
}

/* Holder: take the lock, let the waiter queue up and fall asleep, release. */
static bool hand_over(struct worker *worker)
{
    struct bench_board *board = worker->board;
    struct timespec idle = { .tv_nsec = IDLE_MIN_NS + random() % IDLE_SPREAD_NS };
    int64_t asked = bench_now();
    int64_t got, releasing, released;
    hf_lock *lock;

    if (!acquire(worker, &lock))
        return false;
    got = bench_now();
    sem_post(&board->turn[1]);
    if (!take_turn(worker, 0)) {
        hf_release(lock, NULL);
        return false;
    }
    nanosleep(&idle, NULL);
    releasing = bench_now();
    atomic_store(&board->released_ns, releasing);
    if (!release(worker, lock))
        return false;
    released = bench_now();
    if (asked >= worker->start_ns) {
        bench_histogram_add(&worker->slot->acquire, got - asked);
        bench_histogram_add(&worker->slot->release, released - releasing);
    }
    return take_turn(worker, 0);
}

/* Waiter: say that we are about to ask, ask, and see how long after the release we have it. */
static bool take_over(struct worker *worker)
{
    struct bench_board *board = worker->board;
    struct bench_slot *slot = worker->slot;
    int64_t asked, got, released_ns;
    hf_lock *lock;

    if (!take_turn(worker, 1))
        return false;
    sem_post(&board->turn[0]);
    asked = bench_now();
    if (!acquire(worker, &lock))
        return false;
    got = bench_now();
    released_ns = atomic_load(&board->released_ns);
    /* A waiter that the scheduler kept from asking in time did not wait: no sample. */
    if (asked >= worker->start_ns && got <= worker->end_ns && asked < released_ns) {
        slot->changes++;
        bench_histogram_add(&slot->wait, got - asked);
        bench_histogram_add(&slot->handoff, got - released_ns);
        atomic_fetch_add_explicit(&slot->pairs, 1, memory_order_relaxed);
    }
    if (!release(worker, lock))
        return false;
    sem_post(&board->turn[0]);
    return true;
}

static void work_in_turns(struct worker *worker)
{
    bool holder = worker->index == 0;
    bool going = true;

    while (going && !(holder && bench_now() >= worker->end_ns))
        going = holder ? hand_over(worker) : take_over(worker);
    stop_all(worker);
}

static void measure(struct worker *worker)
{
    struct bench_board *board = worker->board;
    double cpu_before = bench_cpu_seconds();
    int64_t began = bench_now();

    worker->start_ns = atomic_load(&board->start_ns);
    worker->end_ns = atomic_load(&board->end_ns);
    if (worker->run->mode == BENCH_HANDOFF)
        work_in_turns(worker);
    else
        work_in_pairs(worker);
    worker->slot->cpu_pct = 100.0 * (bench_cpu_seconds() - cpu_before) / ((double)(bench_now() - began) / 1e9);
}

void bench_work(const struct bench_run *run, uint32_t index, hf_client *client)
{
    struct bench_board *board = run->board;
    struct worker worker = {
        .run = run, .board = board, .slot = &board->slot[index], .client = client, .index = index
    };
    hf_client *own = NULL;
    hf_error err = { 0 };

    worker.options = (hf_options)HF_OPTIONS_INIT;
    worker.options.wait_ms = run->window_ms + (uint32_t)(BENCH_PATIENCE_NS / 1000000);
    snprintf(worker.name, sizeof worker.name, "holdfast-bench-%u", run->mode == BENCH_THROUGHPUT ? index : 0);
    if (client == NULL && hf_open(&own, run->globals.url, NULL, &err) != HF_OK)
        fail(&worker, &err);
    else if (client == NULL)
        worker.client = own;
    sem_post(&board->ready);
    /* The parent posts this whatever happens, so that nobody is left behind. */
    if (bench_sem_wait(&board->go, bench_now() + 2 * BENCH_PATIENCE_NS) && !atomic_load(&board->stop))
        measure(&worker);
    hf_close(own);
    sem_post(&board->done);
}
