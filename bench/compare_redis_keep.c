/* SPDX-License-Identifier: MIT
 *
 * compare_redis_keep.c: 10,000 locks that one client holds, and its keeper thread renews, for a while: none may be
 * lost; what that takes of memory, processor time and traffic. In a process of its own, whose memory has nothing else
 * in it.
 */
#include "compare_redis.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define LOCKS 10000
#define MEMORY_BAR 15e6

/* What the child found. */
struct kept {
    _Atomic uint64_t lost;
    double resident, heap;
    double seconds, cpu_seconds, server_cpu_seconds;
    double commands, bytes;
};

static void count_loss(hf_lock *lock, const char *why, void *arg)
{
    struct kept *kept = arg;

    (void)lock;
    if (atomic_fetch_add(&kept->lost, 1) == 0)
        say("lost: %s\n", why);
}

static double server_cpu_seconds(struct server *server)
{
    return server_figure(server, "cpu", "used_cpu_user") + server_figure(server, "cpu", "used_cpu_sys");
}

static double server_bytes(struct server *server)
{
    return server_figure(server, "stats", "total_net_input_bytes") +
           server_figure(server, "stats", "total_net_output_bytes");
}

static void watch(struct server *server, struct kept *kept, int seconds)
{
    struct timespec duration = { .tv_sec = seconds };
    int64_t began = now_ns();
    double commands = server_commands(server);
    double bytes = server_bytes(server);
    double server_cpu = server_cpu_seconds(server);
    double cpu = cpu_seconds();

    nanosleep(&duration, NULL);
    kept->seconds = (double)(now_ns() - began) / 1e9;
    kept->cpu_seconds = cpu_seconds() - cpu;
    kept->server_cpu_seconds = server_cpu_seconds(server) - server_cpu;
    kept->bytes = server_bytes(server) - bytes;
    kept->commands = server_commands(server) - commands;
}

static void hold_all(const char *url, int port, struct kept *kept, int seconds)
{
    struct server server = { .port = port, .control = connect_raw(port) };
    hf_options options = HF_OPTIONS_INIT;
    static hf_lock *locks[LOCKS]; /* the caller's, but counted: 80 KB */
    double resident, heap;
    hf_client *client;
    hf_error err;

    options.on_lost = count_loss;
    options.arg = kept;
    /* In this order, because reading the second allocates. */
    resident = resident_bytes();
    heap = heap_in_use();
    client = open_client(url);
    for (int i = 0; i < LOCKS; i++) {
        char name[32];

        snprintf(name, sizeof name, "kept-%d", i);
        must(hf_acquire(&locks[i], client, name, &options, &err), &err, "acquire");
    }
    watch(&server, kept, seconds);
    kept->heap = heap_in_use() - heap;
    kept->resident = resident_bytes() - resident;
    /* A loss that nobody was told of would show here. */
    for (int i = 0; i < LOCKS; i++)
        must(hf_release(locks[i], &err), &err, "release of a lock that was kept");
    hf_close(client);
    redisFree(server.control);
}

static void add(struct results *results, const char *name, const char *unit, enum judged judged, double bar,
                double ours)
{
    results_add(results,
                (struct row){
                    .name = name, .against = "", .unit = unit, .judged = judged, .bar = bar, .ours = ours, .raw = -1 });
}

void compare_redis_keep(struct results *results, struct server *server, int seconds)
{
    struct kept *kept = shared_memory(sizeof *kept);
    int pid;

    say("redis: 10,000 locks for %d s ...\n", seconds);
    pin_to(-1);
    pin_process_to(server->pid, -1);
    pid = fork_child();
    if (pid == 0) {
        hold_all(results->url, server->port, kept, seconds);
        _exit(0);
    }
    reap_child(pid);
    add(results, "redis: 10,000 kept, lost", "locks", OURS_AT_MOST, 0, (double)atomic_load(&kept->lost));
    add(results, "redis: 10,000 kept, resident", "bytes", OURS_AT_MOST, MEMORY_BAR, kept->resident);
    add(results, "redis: 10,000 kept, heap", "bytes", OURS_AT_MOST, MEMORY_BAR, kept->heap);
    add(results, "redis: 10,000 kept, commands", "per s", NOT_JUDGED, 0, kept->commands / kept->seconds);
    add(results, "redis: 10,000 kept, traffic", "bytes/s", NOT_JUDGED, 0, kept->bytes / kept->seconds);
    add(results, "redis: 10,000 kept, client CPU", "% core", NOT_JUDGED, 0, 100 * kept->cpu_seconds / kept->seconds);
    add(results, "redis: 10,000 kept, server CPU", "% core", NOT_JUDGED, 0,
        100 * kept->server_cpu_seconds / kept->seconds);
}
