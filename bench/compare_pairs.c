/* SPDX-License-Identifier: MIT
 *
 * compare_pairs.c: what a pair of acquire and release costs when nobody is in the way, and whether it leaves anything
 * on the heap.
 *
 * An idle thread stands by the whole time. Without one the C library knows that the process has a single thread and
 * leaves out the mutex's atomic instruction: a mutex that no program with threads ever gets.
 */
#include "compare.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define ROUNDS 401
#define MILLION 1000000
/* A batch is shorter than a turn of the scheduler, on both sides alike: a batch of many turns would always have been
 * interrupted on a busy machine, and one of a single turn hardly ever. */
#define BATCH_NS 400000
#define WARM_UP_PAIRS 1000

/* One side of a comparison: `pairs` pairs in a row. */
struct side {
    void (*pairs)(const struct side *side, int count);
    hf_client *client;
    const char *name;
    pthread_mutex_t *mutex;
    const char *path;
};

static void holdfast_pairs(const struct side *side, int count)
{
    hf_error err;

    for (int i = 0; i < count; i++) {
        hf_lock *lock;

        must(hf_acquire(&lock, side->client, side->name, NULL, &err), &err, "acquire");
        must(hf_release(lock, &err), &err, "release");
    }
}

static void flock_pairs(const struct side *side, int count)
{
    for (int i = 0; i < count; i++) {
        int fd = open(side->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

        if (fd < 0 || flock(fd, LOCK_EX) != 0)
            die("cannot lock %s", side->path);
        close(fd);
    }
}

static void mutex_pairs(const struct side *side, int count)
{
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(side->mutex);
        pthread_mutex_unlock(side->mutex);
    }
}

static double ns_per_pair(const struct side *side, int count)
{
    int64_t began = now_ns();

    side->pairs(side, count);
    return (double)(now_ns() - began) / count;
}

/* How many pairs make a batch; the best of a few tries, since an interrupted one would make the batch too short. */
static int batch_of(const struct side *side)
{
    double ns = ns_per_pair(side, WARM_UP_PAIRS);

    for (int i = 0; i < 4; i++) {
        double again = ns_per_pair(side, WARM_UP_PAIRS);

        ns = again < ns ? again : ns;
    }
    return BATCH_NS / ns < 1 ? 1 : (int)(BATCH_NS / ns);
}

/* By turns, so that whatever else the machine does hits both sides; the ratio is the median of the rounds' ratios. */
static void compare_sides(struct results *results, struct row row, const struct side *ours, const struct side *raw)
{
    double our_ns[ROUNDS], raw_ns[ROUNDS], ratio[ROUNDS];
    int our_batch = batch_of(ours);
    int raw_batch = batch_of(raw);

    say("%s ...\n", row.name);
    for (int i = 0; i < ROUNDS; i++) {
        raw_ns[i] = ns_per_pair(raw, raw_batch);
        our_ns[i] = ns_per_pair(ours, our_batch);
        ratio[i] = our_ns[i] / raw_ns[i];
    }
    row.ours = median(our_ns, ROUNDS);
    row.raw = median(raw_ns, ROUNDS);
    row.ratio = median(ratio, ROUNDS);
    row.unit = "ns";
    row.judged = RATIO_AT_MOST;
    results_add(results, row);
}

static void *stand_by(void *arg)
{
    sem_t *end = arg;

    while (sem_wait(end) != 0)
        continue;
    return NULL;
}

struct bystander {
    pthread_t thread;
    sem_t end;
};

static void bystander_start(struct bystander *bystander)
{
    sem_init(&bystander->end, 0, 0);
    if (pthread_create(&bystander->thread, NULL, stand_by, &bystander->end) != 0)
        die("cannot start a thread");
}

static void bystander_stop(struct bystander *bystander)
{
    sem_post(&bystander->end);
    pthread_join(bystander->thread, NULL);
    sem_destroy(&bystander->end);
}

static hf_client *open_store(const char *url)
{
    hf_client *client;
    hf_error err;

    must(hf_open(&client, url, NULL, &err), &err, url);
    return client;
}

void compare_pairs(struct results *results)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    struct bystander bystander;
    hf_client *file, *mem;
    hf_lock *outer;
    hf_error err;
    char path[600];

    pin_to(0);
    bystander_start(&bystander);
    file = open_store(results->url);
    mem = open_store("mem:");
    snprintf(path, sizeof path, "%s/raw.lock", results->directory);
    const struct side raw_file = { .pairs = flock_pairs, .path = path };
    const struct side raw_mutex = { .pairs = mutex_pairs, .mutex = &mutex };
    const struct side our_file = { .pairs = holdfast_pairs, .client = file, .name = "pair" };
    const struct side our_mem = { .pairs = holdfast_pairs, .client = mem, .name = "pair" };
    const struct side our_reentry = { .pairs = holdfast_pairs, .client = file, .name = "outer" };

    compare_sides(results, (struct row){ .name = "file: pair", .against = "open+flock+close", .bar = 4 }, &our_file,
                  &raw_file);
    must(hf_acquire(&outer, file, "outer", NULL, &err), &err, "acquire");
    compare_sides(results, (struct row){ .name = "re-entry pair", .against = "pthread_mutex pair", .bar = 10 },
                  &our_reentry, &raw_mutex);
    must(hf_release(outer, &err), &err, "release");
    compare_sides(results, (struct row){ .name = "mem: pair", .against = "pthread_mutex pair", .bar = 25 }, &our_mem,
                  &raw_mutex);
    hf_close(mem);
    hf_close(file);
    bystander_stop(&bystander);
}

/* --- heap --- */

/* The bar for what is resident is a few pages and not zero: a fault that happens to fall into the run is not growth. */
static void heap_over_a_million(struct results *results, const struct side *side, const char *heap_name,
                                const char *resident_name)
{
    double heap_before, resident_before;

    say("%s ...\n", heap_name);
    side->pairs(side, 1000);
    /* In this order, because reading the second allocates, and what it frees counts as in use while it waits for
     * re-use. */
    resident_before = resident_bytes();
    heap_before = heap_in_use();
    side->pairs(side, MILLION);
    results_add(results, (struct row){ .name = heap_name,
                                       .against = "",
                                       .unit = "bytes",
                                       .judged = OURS_AT_MOST,
                                       .bar = 0,
                                       .ours = heap_in_use() - heap_before,
                                       .raw = -1 });
    results_add(results, (struct row){ .name = resident_name,
                                       .against = "",
                                       .unit = "bytes",
                                       .judged = OURS_AT_MOST,
                                       .bar = 65536,
                                       .ours = resident_bytes() - resident_before,
                                       .raw = -1 });
}

void compare_heap(struct results *results)
{
    hf_client *file = open_store(results->url);
    hf_client *mem = open_store("mem:");
    const struct side our_file = { .pairs = holdfast_pairs, .client = file, .name = "pair" };
    const struct side our_mem = { .pairs = holdfast_pairs, .client = mem, .name = "pair" };

    pin_to(0);
    heap_over_a_million(results, &our_mem, "mem: heap growth, 1 M pairs", "mem: resident growth");
    heap_over_a_million(results, &our_file, "file: heap growth, 1 M pairs", "file: resident growth");
    hf_close(mem);
    hf_close(file);
}
