/* SPDX-License-Identifier: MIT
 *
 * compare_redis_crowd.c: how many commands the server gets for each acquire with its release, by its own count: with
 * nobody waiting, with 4 waiting and with 64. A crowd that asks again and again, or is woken together, shows here.
 */
#include "compare_redis.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define ALONE_PAIRS 1000
#define WINDOW_NS (2 * SECOND_NS)
/* Every process has had the lock this often, so that its subscription stands, before anything is counted. */
#define WARM_UP_PAIRS 3

struct table {
    sem_t warm;
    _Atomic uint64_t pairs;
    atomic_bool end;
};

static void pair(hf_client *client)
{
    hf_lock *lock;
    hf_error err;

    must(hf_acquire(&lock, client, "crowd", NULL, &err), &err, "acquire");
    must(hf_release(lock, &err), &err, "release");
}

static void member(const struct results *results, struct table *table)
{
    hf_client *client = open_client(results);

    for (int i = 0; i < WARM_UP_PAIRS; i++)
        pair(client);
    sem_post(&table->warm);
    while (!atomic_load(&table->end)) {
        pair(client);
        atomic_fetch_add(&table->pairs, 1);
    }
    hf_close(client);
}

/* Those that begin or end outside of the window are a few in many thousands. */
static double commands_in_window(struct server *server, struct table *table)
{
    struct timespec window = { .tv_sec = WINDOW_NS / SECOND_NS, .tv_nsec = WINDOW_NS % SECOND_NS };
    double commands = server_commands(server);
    uint64_t pairs = atomic_load(&table->pairs);

    nanosleep(&window, NULL);
    commands = server_commands(server) - commands;
    pairs = atomic_load(&table->pairs) - pairs;
    if (pairs == 0)
        die("nobody got the lock");
    return commands / (double)pairs;
}

static double commands_of_crowd(const struct results *results, struct server *server, int waiters)
{
    struct table *table = shared_memory(sizeof *table);
    int pid[CROWD + 1];
    double commands;

    sem_init(&table->warm, 1, 0);
    for (int i = 0; i <= waiters; i++) {
        pid[i] = fork_child();
        if (pid[i] == 0) {
            member(results, table);
            _exit(0);
        }
    }
    for (int i = 0; i <= waiters; i++)
        sem_wait_or_die(&table->warm, "the crowd to gather");
    commands = commands_in_window(server, table);
    atomic_store(&table->end, true);
    for (int i = 0; i <= waiters; i++)
        reap_child(pid[i]);
    return commands;
}

static double commands_alone(const struct results *results, struct server *server)
{
    hf_client *client = open_client(results);
    double commands;

    pair(client);
    commands = server_commands(server);
    for (int i = 0; i < ALONE_PAIRS; i++)
        pair(client);
    commands = server_commands(server) - commands;
    hf_close(client);
    return commands / ALONE_PAIRS;
}

static void add(struct results *results, const char *name, double bar, double commands)
{
    results_add(results, (struct row){ .name = name,
                                       .against = "",
                                       .unit = "per pair",
                                       .judged = OURS_AT_MOST,
                                       .bar = bar,
                                       .ours = commands,
                                       .raw = -1 });
}

void compare_redis_commands(struct results *results, struct server *server)
{
    say("redis: commands per pair ...\n");
    pin_to(-1);
    pin_process_to(server->pid, -1);
    add(results, "redis: commands, nobody waits", 2, commands_alone(results, server));
    add(results, "redis: commands, 4 wait", 3, commands_of_crowd(results, server, 4));
    add(results, "redis: commands, 64 wait", 3, commands_of_crowd(results, server, 64));
}
