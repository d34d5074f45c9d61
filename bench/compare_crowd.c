/* SPDX-License-Identifier: MIT
 *
 * compare_crowd.c: 64 processes that all want one lock, all the time. Who gets it how often, and how often it changes
 * hands; beside it the same 64 processes with bare flock(2).
 *
 * A process that takes back at once what it just released has made a pair but no change of owner. The first moments
 * are not counted, because whoever runs first has the lock for itself.
 */
#include "compare.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define ROUNDS 5
#define LEAD_IN_NS (SECOND_NS / 5)
#define WINDOW_NS (SECOND_NS * 4 / 5)

enum { OURS, RAW, SIDES };

/* A cache line each, so that the counting is not what is measured. */
struct tally {
    _Alignas(64) uint64_t pairs;
    uint64_t changes;
};

struct arena {
    sem_t ready;
    sem_t go;
    sem_t done;
    sem_t next; /* all have ended the window: without it a quick one could start on another's `go` */
    _Atomic int64_t start_ns;
    _Atomic int64_t end_ns;
    _Atomic int side;
    /* The witness: who holds the lock, and who had it last. */
    _Alignas(64) _Atomic int holder;
    _Atomic int last_owner;
    _Atomic uint64_t overlaps;
    struct tally tally[CROWD];
};

struct member {
    struct arena *arena;
    struct tally *tally;
    int me; /* from 1 */
    int fd;
    hf_client *client;
};

/* While the lock is held: one alone, and from whom. */
static bool witness(struct member *member)
{
    struct arena *arena = member->arena;
    bool changed = atomic_exchange(&arena->last_owner, member->me) != member->me;

    if (atomic_exchange(&arena->holder, member->me) != 0)
        atomic_fetch_add(&arena->overlaps, 1);
    if (atomic_exchange(&arena->holder, 0) != member->me)
        atomic_fetch_add(&arena->overlaps, 1);
    return changed;
}

static bool our_pair(struct member *member)
{
    hf_lock *lock;
    hf_error err;
    bool changed;

    must(hf_acquire(&lock, member->client, "crowd", NULL, &err), &err, "acquire");
    changed = witness(member);
    must(hf_release(lock, &err), &err, "release");
    return changed;
}

static bool raw_pair(struct member *member)
{
    bool changed;

    if (flock(member->fd, LOCK_EX) != 0)
        die("cannot lock: %s", strerror(errno));
    changed = witness(member);
    if (flock(member->fd, LOCK_UN) != 0)
        die("cannot unlock: %s", strerror(errno));
    return changed;
}

static void run_window(struct member *member)
{
    struct arena *arena = member->arena;
    int64_t start_ns = atomic_load(&arena->start_ns);
    int64_t end_ns = atomic_load(&arena->end_ns);
    bool raw = atomic_load(&arena->side) == RAW;

    for (int64_t now = now_ns(); now < end_ns; now = now_ns()) {
        bool changed = raw ? raw_pair(member) : our_pair(member);

        if (now < start_ns)
            continue;
        member->tally->pairs++;
        member->tally->changes += changed;
    }
}

static void member_main(const struct results *results, struct arena *arena, int index, int core)
{
    struct member member = { .arena = arena, .tally = &arena->tally[index], .me = index + 1 };
    hf_error err;

    pin_to(core);
    member.fd = open_raw_file(results);
    must(hf_open(&member.client, results->url, NULL, &err), &err, "open");
    sem_post(&arena->ready);
    for (int window = 0; window < ROUNDS * SIDES; window++) {
        sem_wait_or_die(&arena->go, "the start of a window");
        run_window(&member);
        sem_post(&arena->done);
        sem_wait_or_die(&arena->next, "the end of a window");
    }
    hf_close(member.client);
    close(member.fd);
}

struct window {
    double evenness; /* the smallest share over the largest */
    double changes_per_s;
};

static struct window one_window(struct arena *arena, int side, uint64_t share[CROWD])
{
    uint64_t least = UINT64_MAX, most = 0, changes = 0;

    memset(arena->tally, 0, sizeof arena->tally);
    atomic_store(&arena->last_owner, 0);
    atomic_store(&arena->side, side);
    atomic_store(&arena->start_ns, now_ns() + LEAD_IN_NS);
    atomic_store(&arena->end_ns, now_ns() + LEAD_IN_NS + WINDOW_NS);
    for (int i = 0; i < CROWD; i++)
        sem_post(&arena->go);
    for (int i = 0; i < CROWD; i++)
        sem_wait_or_die(&arena->done, "a process of the crowd");
    for (int i = 0; i < CROWD; i++) {
        const struct tally *tally = &arena->tally[i];

        share[i] = tally->pairs;
        changes += tally->changes;
        least = tally->pairs < least ? tally->pairs : least;
        most = tally->pairs > most ? tally->pairs : most;
    }
    for (int i = 0; i < CROWD; i++)
        sem_post(&arena->next);
    return (struct window){ .evenness = most > 0 ? (double)least / (double)most : 0,
                            .changes_per_s = (double)changes / ((double)WINDOW_NS / SECOND_NS) };
}

static void add_rows(struct results *results, const char *const name[2], double evenness[SIDES][ROUNDS],
                     double changes[SIDES][ROUNDS])
{
    double ratio[ROUNDS];

    for (int i = 0; i < ROUNDS; i++)
        ratio[i] = changes[RAW][i] > 0 ? changes[OURS][i] / changes[RAW][i] : 0;
    results_add(results, (struct row){ .name = name[0],
                                       .against = "64 processes in flock(2)",
                                       .unit = "min/max",
                                       .judged = OURS_AT_LEAST,
                                       .bar = 0.9,
                                       .ours = median(evenness[OURS], ROUNDS),
                                       .raw = median(evenness[RAW], ROUNDS) });
    results_add(results, (struct row){ .name = name[1],
                                       .against = "64 processes in flock(2)",
                                       .unit = "per s",
                                       .judged = RATIO_AT_LEAST,
                                       .bar = 1,
                                       .ours = median(changes[OURS], ROUNDS),
                                       .raw = median(changes[RAW], ROUNDS),
                                       .ratio = median(ratio, ROUNDS) });
}

static void compare_placed(struct results *results, const char *const name[2], int cores)
{
    struct arena *arena = shared_memory(sizeof *arena);
    double evenness[SIDES][ROUNDS], changes[SIDES][ROUNDS];
    int pid[CROWD];

    say("%s ...\n", name[0]);
    sem_init(&arena->ready, 1, 0);
    sem_init(&arena->go, 1, 0);
    sem_init(&arena->done, 1, 0);
    sem_init(&arena->next, 1, 0);
    for (int i = 0; i < CROWD; i++) {
        pid[i] = fork_child();
        if (pid[i] == 0) {
            member_main(results, arena, i, i % cores);
            _exit(0);
        }
    }
    for (int i = 0; i < CROWD; i++)
        sem_wait_or_die(&arena->ready, "the crowd to gather");
    for (int round = 0; round < ROUNDS; round++) {
        for (int side = RAW; side >= OURS; side--) {
            struct window window = one_window(arena, side, results->share[side]);

            evenness[side][round] = window.evenness;
            changes[side][round] = window.changes_per_s;
        }
    }
    for (int i = 0; i < CROWD; i++)
        reap_child(pid[i]);
    if (atomic_load(&arena->overlaps) > 0)
        die("OVERLAP: two processes held the lock at once, %llu times",
            (unsigned long long)atomic_load(&arena->overlaps));
    add_rows(results, name, evenness, changes);
}

void compare_crowd(struct results *results)
{
    static const char *const one[2] = { "file: shares of 64, one core", "file: owner changes, one core" };
    static const char *const two[2] = { "file: shares of 64, two cores", "file: owner changes, two cores" };

    compare_placed(results, one, 1);
    if (results->cores > 1)
        compare_placed(results, two, 2);
}
