/* SPDX-License-Identifier: MIT
 *
 * bench.h: what the parts of `holdfast bench` share. cmd_bench.c reads the options and runs the show, bench_worker.c
 * is what each worker does, bench_report.c counts and prints.
 */
#ifndef HFC_BENCH_H
#define HFC_BENCH_H

#include "cli.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#define BENCH_WORKERS_MAX 1024
#define BENCH_SECOND_NS INT64_C(1000000000)
/* Not counted: the first worker to run would have the lock for itself, and caches and lock files are still cold. */
#define BENCH_WARM_UP_NS (BENCH_SECOND_NS / 5)
/* A worker that waits for longer than this after the end of the window is not waiting any more: something is broken. */
#define BENCH_PATIENCE_NS (30 * BENCH_SECOND_NS)

enum bench_mode {
    BENCH_PAIR,       /* one worker, nobody in its way */
    BENCH_THROUGHPUT, /* each worker its own lock */
    BENCH_CONTEND,    /* all workers on one lock */
    BENCH_HANDOFF     /* worker 0 releases, worker 1 has been waiting */
};

/* Durations in buckets that grow with them, 64 to the octave: no figure is off by more than 1.6 percent, and the
 * memory does not grow with the length of the run. */
#define BENCH_SUB_BITS 6
#define BENCH_BUCKETS ((64 - BENCH_SUB_BITS + 1) << BENCH_SUB_BITS)

struct bench_histogram {
    uint64_t count;
    uint64_t max_ns;
    uint32_t bucket[BENCH_BUCKETS];
};

/* What one worker counts. Only the worker writes it; the others read once it has ended (pairs: at any time). */
struct bench_slot {
    struct bench_histogram acquire;
    struct bench_histogram release;
    struct bench_histogram wait;    /* those acquires that got the lock from another worker */
    struct bench_histogram handoff; /* from that worker's call of hf_release() to our return from hf_acquire() */
    _Atomic uint64_t pairs;
    uint64_t changes;
    double cpu_pct; /* of a worker that is a process */
    bool failed;
    hf_error error;
};

/* Memory that all workers share, processes included. */
struct bench_board {
    sem_t ready;   /* posted by each worker that could start, or could not */
    sem_t go;      /* posted for each worker */
    sem_t done;    /* posted by each worker that has ended */
    sem_t turn[2]; /* BENCH_HANDOFF: whose move it is */
    _Atomic int64_t start_ns;
    _Atomic int64_t end_ns;
    atomic_bool stop;
    /* The witness: who holds the lock, kept without the lock's help. Two at once is an overlap. */
    _Atomic uint32_t holder;
    _Atomic uint64_t overlaps;
    _Atomic uint32_t last_owner;
    _Atomic int64_t released_ns;
    struct bench_slot slot[];
};

struct bench_run {
    enum bench_mode mode;
    const char *mode_name;
    struct hfc_globals globals;
    char url[512]; /* as the library shows it */
    uint32_t workers;
    bool procs;
    bool json;
    uint32_t window_ms;
    struct bench_board *board;
    double cpu_pct; /* of this process during the run */
};

/* Nanoseconds on CLOCK_MONOTONIC, which is the same in all processes. */
int64_t bench_now(void);
/* False: `deadline_ns` came first. */
bool bench_sem_wait(sem_t *semaphore, int64_t deadline_ns);
/* The processor time of this process, user and system. */
double bench_cpu_seconds(void);

/* What worker `index` does from go to the end of the window. Posts ready and done, and leaves trouble in its slot.
 * `client` NULL: opens its own. */
void bench_work(const struct bench_run *run, uint32_t index, hf_client *client);

void bench_histogram_add(struct bench_histogram *histogram, int64_t ns);
/* Prints what was measured, as a table or as JSON. */
void bench_report(const struct bench_run *run, FILE *out);

#endif
