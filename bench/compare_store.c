/* SPDX-License-Identifier: MIT
 *
 * compare_store.c: see compare_store.h.
 */
#include "compare_store.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double now_us(void)
{
    return (double)now_ns() / 1e3;
}

void rest(void)
{
    const struct timespec pause = { .tv_nsec = 3000000 };
    nanosleep(&pause, NULL);
}

double our_pair_us(hf_client *client)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    const double start = now_us();
    demand(hf_acquire(&lock, client, "ours", NULL, &err) == HF_OK && hf_release(lock, &err) == HF_OK, err.message);
    return now_us() - start;
}

struct runner {
    hf_client *client;
    double got_us;
    hf_lock *lock;
};

static void *wait_in_thread(void *arg)
{
    struct runner *runner = arg;
    demand(hf_acquire(&runner->lock, runner->client, "handoff", NULL, NULL) == HF_OK, "no hand-off");
    runner->got_us = now_us();
    return NULL;
}

static int see_waiter(const hf_info *info, void *arg)
{
    *(int64_t *)arg = info->waiters;
    return 0;
}

double our_handoff_us(hf_client *holder, hf_client *other)
{
    struct runner runner = { .client = other };
    hf_lock *lock = NULL;
    pthread_t thread;
    int64_t waiters = 0;
    demand(hf_acquire(&lock, holder, "handoff", NULL, NULL) == HF_OK, "not free");
    demand(pthread_create(&thread, NULL, wait_in_thread, &runner) == 0, "no thread");
    while (waiters < 1)
        demand(hf_inspect(holder, "handoff", see_waiter, &waiters, NULL) == HF_OK, "cannot inspect");
    rest();
    const double start = now_us();
    hf_release(lock, NULL);
    pthread_join(thread, NULL);
    hf_release(runner.lock, NULL);
    return runner.got_us - start;
}

double our_side_us(void *arg)
{
    return our_pair_us(arg);
}

#define SIDE_BATCH 50

void compare_sides(const struct side *sides, size_t count, size_t rounds)
{
    const size_t batches = rounds / SIDE_BATCH;
    double *times = calloc(count * batches, sizeof *times), *ratios = calloc(batches, sizeof *ratios);
    demand(times && ratios && batches > 0, "no memory, or too few rounds");
    for (size_t i = 0; i < batches; i++) {
        for (size_t j = 0; j < count; j++) {
            double batch[SIDE_BATCH];
            for (size_t k = 0; k < SIDE_BATCH; k++)
                batch[k] = sides[j].pair_us(sides[j].arg);
            times[j * batches + i] = median(batch, SIDE_BATCH);
        }
    }
    for (size_t j = count; j-- > 0;) { /* median() sorts: the first one's last */
        for (size_t i = 0; i < batches; i++)
            ratios[i] = times[j * batches + i] / times[i];
        printf("%s\"%s_us\": %.1f, \"%s_ratio\": %.2f", j + 1 == count ? "{" : ", ", sides[j].name,
               median(times + j * batches, batches), sides[j].name, median(ratios, batches));
    }
    printf("}\n");
    free(times);
    free(ratios);
}
