/* SPDX-License-Identifier: MIT
 *
 * scale.c: very many locks that one client holds and its keeper renews: what each takes of memory, what each renewal
 * takes of processor time, how many were lost, and how long it takes to close a client that holds all of them.
 *
 *     scale [--ttl MS] [--seconds S] URL LOCKS...
 *
 * One row for each number of locks, each in a process of its own, whose memory has nothing else in it. URL is of a
 * store of our own: its locks are called "scale-N". Ends with 0 whatever the figures, unless a call failed.
 */
#include "compare.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define THREADS 64

struct task {
    hf_client *client;
    hf_options options;
    hf_lock **locks;
    int count;
    _Atomic int next;
    _Atomic int lost;
};

static void count_loss(hf_lock *lock, const char *why, void *arg)
{
    struct task *task = arg;

    (void)lock;
    if (atomic_fetch_add(&task->lost, 1) == 0)
        say("lost: %s\n", why);
}

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double seconds_since(int64_t began_ns)
{
    return (double)(now_ns() - began_ns) / 1e9;
}

static void *take_some(void *arg)
{
    struct task *task = arg;
    hf_error err;

    for (int i; (i = atomic_fetch_add(&task->next, 1)) < task->count;) {
        char name[40];

        snprintf(name, sizeof name, "scale-%d-%07d", (int)getpid() % 100000, i);
        must(hf_try_acquire(&task->locks[i], task->client, name, &task->options, &err), &err, "acquire");
    }
    return NULL;
}

static double take_all(struct task *task)
{
    const int64_t began = now_ns();
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, take_some, task) != 0)
            die("cannot start a thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return seconds_since(began);
}

/* What the heap has of the system, once what is free has been given back to it: the threads' arenas too. */
static double memory_in_use(void)
{
    malloc_trim(0);
    return resident_bytes();
}

static void measure(const char *url, int count, uint32_t ttl_ms, int seconds)
{
    struct task task = { .options = HF_OPTIONS_INIT, .count = count };
    const struct timespec duration = { .tv_sec = seconds };
    hf_error err;

    mallopt(M_ARENA_MAX, 1); /* threads that have ended leave their arenas half empty: that is not the locks' memory */
    task.locks = calloc((size_t)count, sizeof(hf_lock *));
    if (task.locks == NULL)
        die("no memory");
    memset(task.locks, 1, (size_t)count * sizeof(hf_lock *)); /* resident from now on, and counted to nobody */
    task.options.ttl_ms = ttl_ms;
    task.options.on_lost = count_loss;
    task.options.arg = &task;
    must(hf_open(&task.client, url, NULL, &err), &err, url);
    const double before = memory_in_use();
    const double acquired_s = take_all(&task);
    const double bytes = (memory_in_use() - before) / count;

    const double renewals = (double)count * seconds * 3000 / ttl_ms;
    const int64_t began = now_ns();
    const double cpu = cpu_seconds();
    nanosleep(&duration, NULL);
    const double used = cpu_seconds() - cpu, took = seconds_since(began);
    const int lost = atomic_load(&task.lost);
    for (int i = 0; i < count; i++) /* a loss that nobody was told of would show here */
        if (hf_remaining_ms(task.locks[i]) == 0)
            atomic_fetch_add(&task.next, 1);
    const int64_t closing = now_ns();
    hf_close(task.client);
    printf("%9d %12.0f %12.0f %12.1f %12.2f %8d %8d %10.2f\n", count, bytes, count / acquired_s, 100 * used / took,
           1e6 * used / renewals, lost, atomic_load(&task.next) - count - THREADS, seconds_since(closing));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    uint32_t ttl_ms = 30000;
    int seconds = 30, i = 1;

    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (strcmp(argv[i], "--ttl") == 0)
            ttl_ms = (uint32_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = atoi(argv[i + 1]);
        else
            argc = 0;
    }
    if (i + 1 >= argc || ttl_ms == 0) {
        fprintf(stderr, "usage: scale [--ttl MS] [--seconds S] URL LOCKS...\n");
        return 64;
    }
    printf("%9s %12s %12s %12s %12s %8s %8s %10s\n", "locks", "bytes each", "acquired/s", "CPU, % core", "us/renewal",
           "lost", "over", "close, s");
    fflush(stdout);
    for (const char *url = argv[i++]; i < argc; i++) {
        const int pid = fork_child();
        if (pid == 0) {
            measure(url, atoi(argv[i]), ttl_ms, seconds);
            _exit(0);
        }
        reap_child(pid);
    }
    return 0;
}
