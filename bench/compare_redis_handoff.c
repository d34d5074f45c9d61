/* SPDX-License-Identifier: MIT
 *
 * compare_redis_handoff.c: from the holder's call to release until the waiter, another process that was blocked for
 * some milliseconds, is back with the lock. Beside it the fastest way that one client can wake another through the
 * server: RPUSH for one that is blocked in BLPOP.
 */
#include "compare_redis.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 200
#define WARM_UP_ROUNDS 10
/* As in compare_handoff.c: asleep for long, and never in step with a timer. */
#define IDLE_MIN_NS 3000000
#define IDLE_SPREAD_NS 6000000

struct table {
    sem_t turn[2]; /* [0] the holder's move, [1] the waiter's */
    _Atomic int64_t asked_ns;
    _Atomic int64_t got_ns;
};

/* What a process has of both sides. */
struct hand {
    hf_client *client;
    hf_lock *lock;
    redisContext *context;
};

static struct hand open_hand(const struct crowd *crowd)
{
    return (struct hand){ .client = open_client(crowd->url), .context = connect_raw(crowd->servers[0].port) };
}

static void close_hand(struct hand *hand)
{
    hf_close(hand->client);
    redisFree(hand->context);
}

static bool round_is_raw(int round)
{
    return round % 2 != 0;
}

static void take(struct hand *hand)
{
    hf_error err;

    must(hf_acquire(&hand->lock, hand->client, "handoff", NULL, &err), &err, "acquire");
}

static void give(struct hand *hand)
{
    hf_error err;

    must(hf_release(hand->lock, &err), &err, "release");
}

static void waiter(const struct crowd *crowd, struct table *table)
{
    struct hand hand = open_hand(crowd);

    for (int round = 0; round < 2 * (ROUNDS + WARM_UP_ROUNDS); round++) {
        bool raw = round_is_raw(round);

        sem_wait_or_die(&table->turn[1], "the holder");
        sem_post(&table->turn[0]);
        atomic_store(&table->asked_ns, now_ns());
        if (raw)
            freeReplyObject(ask_raw(hand.context, "BLPOP raw:handoff 30"));
        else
            take(&hand);
        atomic_store(&table->got_ns, now_ns());
        if (!raw)
            give(&hand);
        sem_post(&table->turn[0]);
    }
    close_hand(&hand);
}

/* One hand-off in microseconds; negative if the waiter asked too late and did not wait. */
static double hand_over(struct hand *hand, struct table *table, bool raw)
{
    struct timespec idle = { .tv_nsec = IDLE_MIN_NS + random() % IDLE_SPREAD_NS };
    int64_t released_ns;

    if (!raw)
        take(hand);
    sem_post(&table->turn[1]);
    sem_wait_or_die(&table->turn[0], "the waiter to ask");
    nanosleep(&idle, NULL);
    released_ns = now_ns();
    if (raw)
        freeReplyObject(ask_raw(hand->context, "RPUSH raw:handoff 0123456789abcdef0123456789abcdef"));
    else
        give(hand);
    sem_wait_or_die(&table->turn[0], "the waiter to return");
    if (atomic_load(&table->asked_ns) >= released_ns)
        return -1;
    return (double)(atomic_load(&table->got_ns) - released_ns) / 1e3;
}

void compare_handoff_placed(struct results *results, const struct crowd *crowd, double bar,
                            const struct placement *placement)
{
    struct table *table = shared_memory(sizeof *table);
    double us[2][ROUNDS];
    size_t count[2] = { 0, 0 };
    struct hand hand;
    int pid;

    say("%s: hand-off, %s ...\n", crowd->words, placement->words);
    pin_to(placement->client_core);
    pin_servers_to(crowd->servers, crowd->count, placement->server_core);
    sem_init(&table->turn[0], 1, 0);
    sem_init(&table->turn[1], 1, 0);
    pid = fork_child();
    if (pid == 0) {
        waiter(crowd, table);
        _exit(0);
    }
    hand = open_hand(crowd);
    for (int round = 0; round < 2 * (ROUNDS + WARM_UP_ROUNDS); round++) {
        bool raw = round_is_raw(round);
        double sample = hand_over(&hand, table, raw);

        if (sample >= 0 && round >= 2 * WARM_UP_ROUNDS)
            us[raw][count[raw]++] = sample;
    }
    close_hand(&hand);
    reap_child(pid);
    results_add(results, (struct row){ .name = name_of("%s: hand-off, %s", crowd->words, placement->words),
                                       .against = "BLPOP, RPUSH",
                                       .unit = "us",
                                       .judged = bar > 0 ? RATIO_AT_MOST : NOT_JUDGED,
                                       .bar = bar,
                                       .ours = median(us[0], count[0]),
                                       .raw = median(us[1], count[1]) });
}

void compare_redis_handoff(struct results *results, const struct crowd *crowd, double bar)
{
    for (int i = 0; i < results->cores; i++)
        compare_handoff_placed(results, crowd, bar, &placements[i]);
}
