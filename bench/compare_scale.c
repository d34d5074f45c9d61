/* SPDX-License-Identifier: MIT
 *
 * compare_scale.c: very many locks that one client holds on a Redis server and its keeper renews: what each takes of
 * memory, what each renewal takes of processor time and whether that grows with their number, how many are lost, and
 * how long it takes to close the client. As with bench/compare the program ends with 0 whatever the figures, and says
 * "OVER" where a bar is not met.
 *
 *     compare_scale [--json] [--ttl MS] [--seconds S] PORT LOCKS...
 *
 * PORT is where a redis-server of our own listens on 127.0.0.1: its data is flushed. Each number of LOCKS is held in a
 * process of its own, whose memory has nothing else in it. S is for how long they are watched, two renewals by default.
 */
#include "compare_redis.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS 64
#define NAME_FORMAT "scale-%07d"
#define NAME_SIZE 14
#define MEMORY_BAR 350
#define CPU_BAR 25
#define GROWTH_BAR 1.3
/* With fewer the connections of 64 threads weigh more than the locks. */
#define JUDGED_FROM 100000

/* What the child found. */
struct found {
    double bytes, acquired_per_s, cpu, us_per_renewal, renewals_per_s, close_s;
    _Atomic int lost, over;
};

struct task {
    hf_client *client;
    hf_options options;
    hf_lock **locks;
    int count;
    _Atomic int next;
};

static void count_loss(hf_lock *lock, const char *why, void *arg)
{
    struct found *found = arg;

    (void)lock;
    if (atomic_fetch_add(&found->lost, 1) == 0)
        say("lost: %s\n", why);
}

static double seconds_since(int64_t began_ns)
{
    return (double)(now_ns() - began_ns) / 1e9;
}

/* The script of a renewal sets the time of each lock anew, and nothing else does so while no lock is taken. */
static double server_renewals(struct server *server)
{
    redisReply *reply = ask_raw(server->control, "INFO commandstats");
    const char *line = strstr(reply->str, "cmdstat_pexpire:calls=");
    const double calls = line != NULL ? strtod(strchr(line, '=') + 1, NULL) : 0;

    freeReplyObject(reply);
    return calls;
}

static void *take_some(void *arg)
{
    struct task *task = arg;
    hf_error err;

    for (int i; (i = atomic_fetch_add(&task->next, 1)) < task->count;) {
        char name[32];

        snprintf(name, sizeof name, NAME_FORMAT, i);
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

/* Once what is free has been given back to the system. */
static double memory_in_use(void)
{
    malloc_trim(0);
    return resident_bytes();
}

static void watch(struct server *server, struct found *found, int seconds)
{
    const struct timespec duration = { .tv_sec = seconds };
    const int64_t began = now_ns();
    const double renewals = server_renewals(server), cpu = cpu_seconds();

    nanosleep(&duration, NULL);
    const double used = cpu_seconds() - cpu, took = seconds_since(began), done = server_renewals(server) - renewals;
    found->cpu = 100 * used / took;
    found->us_per_renewal = 1e6 * used / done;
    found->renewals_per_s = done / took;
}

static void hold_all(const char *url, int port, struct found *found, int count, uint32_t ttl_ms, int seconds)
{
    struct server server = { .port = port, .control = connect_raw(port) };
    struct task task = { .options = HF_OPTIONS_INIT, .count = count };

    mallopt(M_ARENA_MAX, 1); /* threads that have ended leave theirs half empty: that is not the locks' memory */
    task.locks = malloc((size_t)count * sizeof(hf_lock *));
    if (task.locks == NULL)
        die("no memory");
    memset(task.locks, 1, (size_t)count * sizeof(hf_lock *)); /* resident from now on */
    task.options.ttl_ms = ttl_ms;
    task.options.on_lost = count_loss;
    task.options.arg = found;
    task.client = open_client(url);
    const double before = memory_in_use();
    found->acquired_per_s = count / take_all(&task);
    found->bytes = (memory_in_use() - before) / count - NAME_SIZE;
    watch(&server, found, seconds);
    for (int i = 0; i < count; i++) /* a loss that nobody was told of would show here */
        if (hf_remaining_ms(task.locks[i]) == 0)
            atomic_fetch_add(&found->over, 1);
    const int64_t closing = now_ns();
    hf_close(task.client);
    found->close_s = seconds_since(closing);
}

static void add(struct results *results, int count, const char *what, struct row row)
{
    row.name = name_of("redis: %d held, %s", count, what);
    row.against = "";
    results_add(results, row);
}

/* `few`: what was found with the first number of locks. */
static void add_all(struct results *results, int count, const struct found *found, const struct found *few)
{
    const bool judged = count >= JUDGED_FROM;

    add(results, count, "lost",
        (struct row){ .unit = "locks", .judged = OURS_AT_MOST, .ours = found->lost, .raw = -1 });
    add(results, count, "over",
        (struct row){ .unit = "locks", .judged = OURS_AT_MOST, .ours = found->over, .raw = -1 });
    add(results, count, "memory of each",
        (struct row){ .unit = "bytes",
                      .judged = judged ? OURS_AT_MOST : NOT_JUDGED,
                      .bar = MEMORY_BAR,
                      .ours = found->bytes,
                      .raw = -1 });
    add(results, count, "client CPU",
        (struct row){ .unit = "% core", .judged = OURS_AT_MOST, .bar = CPU_BAR, .ours = found->cpu, .raw = -1 });
    add(results, count, "CPU of a renewal",
        (struct row){ .unit = "us",
                      .judged = few != found ? RATIO_AT_MOST : NOT_JUDGED,
                      .bar = GROWTH_BAR,
                      .ours = found->us_per_renewal,
                      .raw = few->us_per_renewal });
    add(results, count, "renewals",
        (struct row){ .unit = "per s", .judged = NOT_JUDGED, .ours = found->renewals_per_s, .raw = -1 });
    add(results, count, "acquired",
        (struct row){ .unit = "per s", .judged = NOT_JUDGED, .ours = found->acquired_per_s, .raw = -1 });
    add(results, count, "close", (struct row){ .unit = "s", .judged = NOT_JUDGED, .ours = found->close_s, .raw = -1 });
}

static void compare_scale(struct results *results, struct server *server, int count, uint32_t ttl_ms, int seconds,
                          const struct found **few)
{
    struct found *found = shared_memory(sizeof *found);

    say("redis: %d locks for %d s ...\n", count, seconds);
    freeReplyObject(ask_raw(server->control, "FLUSHALL"));
    const int pid = fork_child();
    if (pid == 0) {
        hold_all(results->url, server->port, found, count, ttl_ms, seconds);
        _exit(0);
    }
    reap_child(pid);
    if (*few == NULL)
        *few = found;
    add_all(results, count, found, *few);
}

int main(int argc, char **argv)
{
    static struct results results;
    const struct found *few = NULL;
    struct server server;
    int ttl_ms = 30000, seconds = 0, i = 1;
    bool json = false;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--ttl") == 0 && i + 1 < argc)
            ttl_ms = number_or_die(argv[++i], 86400000);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = number_or_die(argv[++i], 86400);
        else
            argc = 0;
    }
    if (i + 1 >= argc) {
        fprintf(stderr, "usage: compare_scale [--json] [--ttl MS] [--seconds S] PORT LOCKS...\n");
        return 64;
    }
    open_server(&server, number_or_die(argv[i++], 65535));
    name_results(&results, &server);
    for (; i < argc; i++)
        compare_scale(&results, &server, number_or_die(argv[i], 10000000), (uint32_t)ttl_ms,
                      seconds != 0 ? seconds : 2 * ttl_ms / 3000, &few);
    redisFree(server.control);
    results_print(&results, json);
    return 0;
}
