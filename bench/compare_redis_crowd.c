/* SPDX-License-Identifier: MIT
 *
 * compare_redis_crowd.c: how many commands the servers get for each acquire with its release, by their own count: with
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
    _Atomic uint64_t handoffs; /* pairs of another process than the one before */
    atomic_int last;
    atomic_bool end;
};

struct figures {
    double commands, pairs, handoffs, ns;
};

static void pair(hf_client *client, struct table *table, int number)
{
    hf_lock *lock;
    hf_error err;

    must(hf_acquire(&lock, client, "crowd", NULL, &err), &err, "acquire");
    if (atomic_exchange(&table->last, number) != number)
        atomic_fetch_add(&table->handoffs, 1);
    must(hf_release(lock, &err), &err, "release");
    atomic_fetch_add(&table->pairs, 1);
}

static void member(const char *url, struct table *table, int number)
{
    hf_client *client = open_client(url);

    for (int i = 0; i < WARM_UP_PAIRS; i++)
        pair(client, table, number);
    sem_post(&table->warm);
    while (!atomic_load(&table->end))
        pair(client, table, number);
    hf_close(client);
}

static struct figures figures_now(const struct crowd *crowd, struct table *table)
{
    struct figures figures = { .ns = (double)now_ns() };

    figures.pairs = (double)atomic_load(&table->pairs);
    figures.handoffs = (double)atomic_load(&table->handoffs);
    for (int i = 0; i < crowd->count; i++)
        figures.commands += server_commands(&crowd->servers[i]);
    return figures;
}

static struct figures figures_since(struct figures before, const struct crowd *crowd, struct table *table)
{
    struct figures figures = figures_now(crowd, table);

    figures.commands -= before.commands;
    figures.pairs -= before.pairs;
    figures.handoffs -= before.handoffs;
    figures.ns -= before.ns;
    return figures;
}

/* Those that begin or end outside of the window are a few in thousands. */
static struct figures figures_of_window(const struct crowd *crowd, struct table *table)
{
    struct timespec window = { .tv_sec = WINDOW_NS / SECOND_NS, .tv_nsec = WINDOW_NS % SECOND_NS };
    struct figures figures = figures_now(crowd, table);

    nanosleep(&window, NULL);
    figures = figures_since(figures, crowd, table);
    if (figures.handoffs == 0)
        die("the lock changed hands not once");
    return figures;
}

static struct figures figures_of_crowd(const struct crowd *crowd, int waiters)
{
    struct table *table = shared_memory(sizeof *table);
    int pid[CROWD + 1];
    struct figures figures;

    say("%s: commands, %d wait ...\n", crowd->words, waiters);
    pin_to(-1);
    pin_servers_to(crowd->servers, crowd->count, -1);
    sem_init(&table->warm, 1, 0);
    for (int i = 0; i <= waiters; i++) {
        pid[i] = fork_child();
        if (pid[i] == 0) {
            member(crowd->url, table, i + 1);
            _exit(0);
        }
    }
    for (int i = 0; i <= waiters; i++)
        sem_wait_or_die(&table->warm, "the crowd to gather");
    figures = figures_of_window(crowd, table);
    atomic_store(&table->end, true);
    for (int i = 0; i <= waiters; i++)
        reap_child(pid[i]);
    return figures;
}

static double commands_alone(const struct crowd *crowd)
{
    static struct table table;
    hf_client *client = open_client(crowd->url);
    struct figures figures;

    for (int i = 0; i < WARM_UP_PAIRS; i++)
        pair(client, &table, 1);
    figures = figures_now(crowd, &table);
    for (int i = 0; i < ALONE_PAIRS; i++)
        pair(client, &table, 1);
    figures = figures_since(figures, crowd, &table);
    hf_close(client);
    return figures.commands / figures.pairs;
}

static void add(struct results *results, const char *name, const char *unit, double bar, double ours)
{
    results_add(results, (struct row){ .name = name,
                                       .against = "",
                                       .unit = unit,
                                       .judged = bar > 0 ? OURS_AT_MOST : NOT_JUDGED,
                                       .bar = bar,
                                       .ours = ours,
                                       .raw = -1 });
}

void compare_redis_commands(struct results *results, struct server *server)
{
    const struct crowd crowd = { "redis", results->url, server, 1 };
    struct figures four, many;

    add(results, "redis: commands, nobody waits", "per pair", 2, commands_alone(&crowd));
    four = figures_of_crowd(&crowd, 4);
    add(results, "redis: commands, 4 wait", "per pair", 3, four.commands / four.pairs);
    many = figures_of_crowd(&crowd, CROWD);
    add(results, "redis: commands, 64 wait", "per pair", 3, many.commands / many.pairs);
}

void compare_crowd_of(struct results *results, const struct crowd *crowd)
{
    static const int waiters[] = { 4, CROWD };

    add(results, name_of("%s: commands, nobody waits", crowd->words), "per pair", 0, commands_alone(crowd));
    for (size_t i = 0; i < sizeof waiters / sizeof *waiters; i++) {
        struct figures figures = figures_of_crowd(crowd, waiters[i]);

        add(results, name_of("%s: commands, %d wait", crowd->words, waiters[i]), "per pair", 0,
            figures.commands / figures.pairs);
        add(results, name_of("%s: commands, %d wait", crowd->words, waiters[i]), "per hand", 0,
            figures.commands / figures.handoffs);
        add(results, name_of("%s: between owners, %d wait", crowd->words, waiters[i]), "us", 0,
            figures.ns / figures.handoffs / 1e3);
    }
}
