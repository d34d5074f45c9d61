/* SPDX-License-Identifier: MIT
 *
 * compare.h: what the parts of bench/compare share. Each part measures Holdfast and the bare system calls or the
 * mutex that would do the same job, by turns in one run, and adds rows to one list.
 */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include <holdfast.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CROWD 64
#define SECOND_NS INT64_C(1000000000)

/* What the bar is laid against. */
enum judged {
    RATIO_AT_MOST,  /* ours / raw */
    RATIO_AT_LEAST, /* ours / raw */
    OURS_AT_MOST,   /* ours alone; raw, if there is any, stands beside it */
    OURS_AT_LEAST,
    NOT_JUDGED /* worth knowing, without a bar */
};

struct row {
    const char *name;
    const char *against; /* what the raw side is */
    const char *unit;
    enum judged judged;
    double bar;
    double ours;
    double raw;   /* negative: there is no raw side */
    double ratio; /* ours / raw; 0 without a raw side */
};

#define ROWS_MAX 64

struct results {
    struct row row[ROWS_MAX];
    size_t rows;
    /* How many pairs each of the 64 processes had in the last window, all cores; [0] ours, [1] bare flock. */
    uint64_t share[2][CROWD];
    bool has_shares;
    const char *directory; /* for lock files, ours and raw */
    char url[512];         /* file://directory */
    int cores;             /* 1 or 2: how many are used */
    char server[64];       /* whose figures these are; "" without a server */
};

/* ours / raw is computed here unless `ratio` is given (median of the ratios of the rounds). */
void results_add(struct results *results, struct row row);
bool row_within_bar(const struct row *row);
void results_print(const struct results *results, bool json);

void compare_pairs(struct results *results);
void compare_heap(struct results *results);
void compare_handoff(struct results *results);
void compare_crowd(struct results *results);

/* --- small things --- */

/* Ends the program with a sentence: a benchmark that goes on after a failed call measures the failure. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void must(hf_status status, const hf_error *err, const char *what);
int64_t now_ns(void);
/* The calling thread, and what it starts, on one core. -1: on any. */
void pin_to(int core);
/* Another process's first thread, which is the one that serves in redis-server. */
void pin_process_to(int pid, int core);
/* Sorts `values`. */
double median(double *values, size_t count);
/* Waits for at most 30 s, then ends the program. */
void sem_wait_or_die(sem_t *semaphore, const char *what);
/* Memory that forked children share, zeroed. */
void *shared_memory(size_t size);
/* Opens, creating it if need be, the file that the raw side locks. */
int open_raw_file(const struct results *results);
/* Forks a child that dies with this process. */
int fork_child(void);
/* Waits for the child; ends the program unless the child ended well. */
void reap_child(int pid);
/* Bytes on the heap that are in use. */
double heap_in_use(void);
double resident_bytes(void);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
