/* SPDX-License-Identifier: MIT
 *
 * compare_redis_line.c: 64 threads of one client that all want one lock, all the time: how often it changes hands when
 * they pass it on among themselves, and when every one of them stands in the server's queue; and which share of the
 * time another process of the same kind has it.
 */
#include "compare_redis.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 3
#define LEAD_IN_NS (SECOND_NS * 3 / 10)
#define WINDOW_NS (SECOND_NS * 12 / 10)
#define PROCESSES_MOST 2

struct table {
    sem_t ready;
    atomic_bool counts, end;
    /* by whoever holds the lock */
    int64_t since_ns;
    int process;
    uint64_t changes;
    int64_t had_ns[PROCESSES_MOST];
};

struct party {
    struct table *table;
    hf_client *client;
    int process;
};

static void count(struct table *table, int process)
{
    const int64_t now = now_ns();

    if (table->since_ns) {
        table->changes++; /* nobody gets it twice in a row while others wait */
        table->had_ns[table->process] += now - table->since_ns;
    }
    table->since_ns = now;
    table->process = process;
}

static void *member(void *arg)
{
    const struct party *party = arg;
    struct table *table = party->table;
    hf_lock *lock;
    hf_error err;

    while (!atomic_load(&table->end)) {
        must(hf_acquire(&lock, party->client, "line", NULL, &err), &err, "acquire");
        if (atomic_load(&table->counts))
            count(table, party->process);
        must(hf_release(lock, &err), &err, "release");
    }
    return NULL;
}

static void process(const char *url, struct table *table, int number, int64_t handoff_ms)
{
    struct party party = { table, NULL, number };
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    pthread_t threads[CROWD];
    hf_error err;

    options.handoff_ms = handoff_ms;
    must(hf_open(&party.client, url, &options, &err), &err, "open");
    for (int i = 0; i < CROWD; i++) {
        if (pthread_create(&threads[i], NULL, member, &party) != 0)
            die("cannot start a thread");
    }
    sem_post(&table->ready);
    for (int i = 0; i < CROWD; i++)
        pthread_join(threads[i], NULL);
    hf_close(party.client);
}

static void rest(int64_t ns)
{
    const struct timespec time = { .tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS };

    nanosleep(&time, NULL);
}

/* Owner changes a second; *share: of the time, that the process with less of it has the lock. */
static double changes_of(const char *url, int processes, int64_t handoff_ms, double *share)
{
    struct table *table = shared_memory(sizeof *table);
    int pid[PROCESSES_MOST];

    sem_init(&table->ready, 1, 0);
    for (int i = 0; i < processes; i++) {
        pid[i] = fork_child();
        if (pid[i] == 0) {
            process(url, table, i, handoff_ms);
            _exit(0);
        }
    }
    for (int i = 0; i < processes; i++)
        sem_wait_or_die(&table->ready, "the threads to start");
    rest(LEAD_IN_NS);
    atomic_store(&table->counts, true);
    rest(WINDOW_NS);
    atomic_store(&table->counts, false);
    atomic_store(&table->end, true);
    for (int i = 0; i < processes; i++)
        reap_child(pid[i]);
    const double all_ns = (double)(table->had_ns[0] + table->had_ns[1]);
    const int64_t least_ns = table->had_ns[0] < table->had_ns[1] ? table->had_ns[0] : table->had_ns[1];

    *share = (double)least_ns / all_ns;
    return (double)table->changes / all_ns * 1e9;
}

void compare_redis_line(struct results *results, struct server *server)
{
    double on[ROUNDS], off[ROUNDS], two[ROUNDS], share[ROUNDS], none;

    pin_to(-1);
    pin_servers_to(server, 1, -1);
    for (int i = 0; i < ROUNDS; i++) {
        say("redis: 64 threads of one client, %d of %d ...\n", i + 1, ROUNDS);
        off[i] = changes_of(results->url, 1, -1, &none);
        on[i] = changes_of(results->url, 1, 0, &none);
        two[i] = changes_of(results->url, 2, 0, &share[i]);
    }
    results_add(results, (struct row){ .name = "redis: 64 threads of one client, owner changes",
                                       .against = "without hand-offs in the client",
                                       .unit = "per s",
                                       .judged = RATIO_AT_LEAST,
                                       .bar = 10,
                                       .ours = median(on, ROUNDS),
                                       .raw = median(off, ROUNDS) });
    results_add(results, (struct row){ .name = "redis: twice 64 threads, owner changes",
                                       .against = "",
                                       .unit = "per s",
                                       .judged = NOT_JUDGED,
                                       .ours = median(two, ROUNDS),
                                       .raw = -1 });
    results_add(results, (struct row){ .name = "redis: twice 64 threads, time of the lesser process",
                                       .against = "",
                                       .unit = "of 1",
                                       .judged = OURS_AT_LEAST,
                                       .bar = 0.4,
                                       .ours = median(share, ROUNDS),
                                       .raw = -1 });
}
