/* SPDX-License-Identifier: MIT
 *
 * compare_handoff.c: how long it takes from the holder's call to release until the waiter, a process that was blocked
 * for some milliseconds, is back from its call with the lock. Beside it, two processes that block in flock(2).
 */
#include "compare.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 250
#define WARM_UP_ROUNDS 10
/* Long enough for the waiter to be asleep, and never the same, so that it does not fall into step with a timer. */
#define IDLE_MIN_NS 3000000
#define IDLE_SPREAD_NS 6000000

struct table {
    sem_t turn[2]; /* [0] the holder's move, [1] the waiter's */
    _Atomic int64_t released_ns;
    _Atomic int64_t asked_ns;
    _Atomic int64_t got_ns;
};

/* What a process has of both sides. */
struct hand {
    hf_client *client;
    hf_lock *lock;
    int fd;
};

static struct hand open_hand(const struct results *results)
{
    struct hand hand = { .fd = open_raw_file(results) };
    hf_error err;

    must(hf_open(&hand.client, results->url, NULL, &err), &err, "open");
    return hand;
}

static void close_hand(struct hand *hand)
{
    hf_close(hand->client);
    close(hand->fd);
}

static void take(struct hand *hand, bool raw)
{
    hf_error err;

    if (!raw)
        must(hf_acquire(&hand->lock, hand->client, "handoff", NULL, &err), &err, "acquire");
    else if (flock(hand->fd, LOCK_EX) != 0)
        die("cannot lock: %s", strerror(errno));
}

static void give(struct hand *hand, bool raw)
{
    hf_error err;

    if (!raw)
        must(hf_release(hand->lock, &err), &err, "release");
    else if (flock(hand->fd, LOCK_UN) != 0)
        die("cannot unlock: %s", strerror(errno));
}

/* Raw and ours by turns: odd rounds are raw. Both processes count the same way. */
static bool round_is_raw(int round)
{
    return round % 2 != 0;
}

static void waiter(const struct results *results, struct table *table, int core)
{
    struct hand hand;

    pin_to(core);
    hand = open_hand(results);
    for (int round = 0; round < 2 * (ROUNDS + WARM_UP_ROUNDS); round++) {
        sem_wait_or_die(&table->turn[1], "the holder");
        sem_post(&table->turn[0]);
        atomic_store(&table->asked_ns, now_ns());
        take(&hand, round_is_raw(round));
        atomic_store(&table->got_ns, now_ns());
        give(&hand, round_is_raw(round));
        sem_post(&table->turn[0]);
    }
    close_hand(&hand);
}

/* One hand-off in microseconds; negative if the waiter asked too late and did not wait. */
static double hand_over(struct hand *hand, struct table *table, bool raw)
{
    struct timespec idle = { .tv_nsec = IDLE_MIN_NS + random() % IDLE_SPREAD_NS };
    int64_t released_ns;

    take(hand, raw);
    sem_post(&table->turn[1]);
    sem_wait_or_die(&table->turn[0], "the waiter to ask");
    nanosleep(&idle, NULL);
    released_ns = now_ns();
    give(hand, raw);
    sem_wait_or_die(&table->turn[0], "the waiter to return");
    if (atomic_load(&table->asked_ns) >= released_ns)
        return -1;
    return (double)(atomic_load(&table->got_ns) - released_ns) / 1e3;
}

static void holder(const struct results *results, struct table *table, double *us[2], size_t count[2], int core)
{
    struct hand hand;

    pin_to(core);
    hand = open_hand(results);
    for (int round = 0; round < 2 * (ROUNDS + WARM_UP_ROUNDS); round++) {
        bool raw = round_is_raw(round);
        double sample = hand_over(&hand, table, raw);

        if (sample >= 0 && round >= 2 * WARM_UP_ROUNDS)
            us[raw][count[raw]++] = sample;
    }
    close_hand(&hand);
}

static void compare_placed(struct results *results, const char *name, int waiter_core)
{
    struct table *table = shared_memory(sizeof *table);
    double ours[ROUNDS], raw[ROUNDS];
    double *us[2] = { ours, raw };
    size_t count[2] = { 0, 0 };
    int pid;

    say("%s ...\n", name);
    sem_init(&table->turn[0], 1, 0);
    sem_init(&table->turn[1], 1, 0);
    pid = fork_child();
    if (pid == 0) {
        waiter(results, table, waiter_core);
        _exit(0);
    }
    holder(results, table, us, count, 0);
    reap_child(pid);
    results_add(results, (struct row){ .name = name,
                                       .against = "two processes in flock(2)",
                                       .unit = "us",
                                       .judged = RATIO_AT_MOST,
                                       .bar = 2.5,
                                       .ours = median(ours, count[0]),
                                       .raw = median(raw, count[1]) });
}

void compare_handoff(struct results *results)
{
    compare_placed(results, "file: hand-off, one core", 0);
    if (results->cores > 1)
        compare_placed(results, "file: hand-off, two cores", 1);
}
