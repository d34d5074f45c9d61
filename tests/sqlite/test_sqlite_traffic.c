/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_traffic.c: how often the file is written, and who is woken. SQLite counts, in the file's header, the
 * transactions that have changed it.
 */
#include "sqlite_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_WAITERS 32

struct count {
    const char *path;
    _Atomic uint32_t transactions;
};

/* In a process of its own: to close the file here would drop SQLite's locks on it. */
static void read_count(void *arg)
{
    struct count *count = arg;
    unsigned char bytes[4];
    const int fd = open(count->path, O_RDONLY | O_CLOEXEC);
    REQUIRE_INT(4, pread(fd, bytes, 4, 24));
    atomic_store(&count->transactions,
                 (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3]);
    close(fd);
}

static uint32_t transactions(const char *path)
{
    struct count *count = shared_new(sizeof *count);
    count->path = path;
    helper_join(helper_start(read_count, count));
    return atomic_load(&count->transactions);
}

static void check_pairs(const char *strategy, uint32_t expected)
{
    char label[40], options[60];
    snprintf(label, sizeof label, "pairs-%s", strategy);
    snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy);
    const char *path = new_store(label, options);
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    const uint32_t before = transactions(path);
    for (int i = 0; i < 100; i++)
        must_release(must_acquire(client, "x", NULL));
    CHECK_INT(100 * expected, transactions(path) - before);
    /* Looking, and asking for what is held, changes nothing. */
    hf_lock *lock = must_acquire(client, "x", NULL);
    const uint32_t held = transactions(path);
    for (int i = 0; i < 10; i++)
        check_busy(client, "x");
    await_waiters(client, "x", 0);
    CHECK_INT(0, transactions(path) - held);
    must_release(lock);
    hf_close(client);
}

TEST(a_pair_is_two_transactions)
{
    for (size_t i = 0; i < STRATEGIES; i++)
        check_pairs(strategy_names[i], 2);
}

/* Whether it is done is read and written in the transactions that take and free the lock. */
static void check_once(const char *strategy)
{
    char label[40], url_options[60];
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    snprintf(label, sizeof label, "once-%s", strategy);
    snprintf(url_options, sizeof url_options, "synchronous=off&strategy=%s", strategy);
    const char *path = new_store(label, url_options);
    hf_client *client = open_client();
    options.once_per_ms = 3600000;
    must_release(must_acquire(client, "x", &options));
    uint32_t before = transactions(path);
    lock = must_acquire(client, "x", &options);
    CHECK_INT(1, transactions(path) - before);
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    CHECK_INT(2, transactions(path) - before);
    before = transactions(path);
    for (int i = 0; i < 10; i++)
        CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, client, "x", &options, NULL), NULL);
    CHECK_INT(0, transactions(path) - before);
    hf_close(client);
}

TEST(once_is_the_same_number_of_transactions)
{
    for (size_t i = 0; i < STRATEGIES; i++)
        check_once(strategy_names[i]);
}

TEST(many_locks_are_renewed_in_one_transaction)
{
    enum { COUNT = 50 };
    const char *path = new_store("renewals", "synchronous=off");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *locks[COUNT];
    options.ttl_ms = 3000;
    for (unsigned i = 0; i < COUNT; i++)
        locks[i] = must_acquire(client, numbered_name("x", i).text, &options);
    const uint32_t before = transactions(path);
    const int64_t since = test_now_ns();
    const int64_t renewed = since + 2 * 1000000000LL;
    while (raw_number(path, "SELECT count(*) FROM holdfast_locks WHERE expires > %lld",
                      (long long)(renewed + 1500000000LL)) < COUNT)
        REQUIRE(test_now_ns() < test_deadline_ns());
    /* One for every third of the time-to-live, and one more for each whose time was not near enough. */
    const int64_t thirds = (test_now_ns() - since) / 1000000000LL + 1;
    CHECK(transactions(path) - before <= 3 * thirds);
    for (unsigned i = 0; i < COUNT; i++)
        must_release(locks[i]);
    hf_close(client);
}

/* --- waiters --- */

static void check_queue(unsigned count)
{
    const char *path = new_store("queue", "synchronous=off");
    hf_client *clients[4], *holder = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiters[MOST_WAITERS];
    options.ttl_ms = endless_ttl_ms();
    options.owner = HF_OWNER_HANDLE;
    for (int i = 0; i < 4; i++)
        clients[i] = open_client();
    hf_lock *lock = must_acquire(holder, "x", &options);
    const uint32_t before = transactions(path);
    for (unsigned i = 0; i < count; i++) {
        waiter_start(&waiters[i], clients[i % 4], "x", &options);
        await_waiters(holder, "x", i + 1);
    }
    for (unsigned i = 0; i < count; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
    }
    /* Each lines up, is given the lock by the release of the one before, and takes it. */
    CHECK_INT(3 * count, transactions(path) - before);
    must_release(lock);
    for (int i = 0; i < 4; i++)
        hf_close(clients[i]);
    hf_close(holder);
}

TEST(a_hand_off_costs_the_same_with_more_waiters)
{
    check_queue(2);
    check_queue(MOST_WAITERS);
}

struct sleeper {
    long thread, sleeps;
};

/* How often the threads of this process have gone to sleep; returns how many there are. */
static unsigned read_sleeps(struct sleeper sleepers[], unsigned most)
{
    unsigned count = 0;
    DIR *list = opendir("/proc/self/task");
    REQUIRE(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL && count < most;) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = *entry->d_name != '.' ? fopen(path, "re") : NULL;
        while (file && fgets(line, sizeof line, file)) {
            if (strncmp(line, "voluntary_ctxt_switches:", 24) == 0)
                sleepers[count++] = (struct sleeper){ strtol(entry->d_name, NULL, 10), strtol(line + 24, NULL, 10) };
        }
        if (file)
            fclose(file);
    }
    closedir(list);
    return count;
}

/* How many have woken since, or have ended. */
static unsigned count_woken(const struct sleeper before[], unsigned count, const struct sleeper after[],
                            unsigned count_after)
{
    unsigned woken = count;
    for (unsigned i = 0; i < count; i++) {
        for (unsigned j = 0; j < count_after; j++)
            woken -= after[j].thread == before[i].thread && after[j].sleeps == before[i].sleeps;
    }
    return woken;
}

TEST(a_release_wakes_one_waiter)
{
    enum { COUNT = MOST_WAITERS, MOST = 4 * COUNT };
    new_store("wakes", "synchronous=off");
    hf_client *clients[COUNT], *holder = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiters[COUNT];
    struct sleeper before[MOST] = { { 0 } }, after[MOST] = { { 0 } };
    options.ttl_ms = endless_ttl_ms();
    options.owner = HF_OWNER_HANDLE;
    hf_lock *lock = must_acquire(holder, "x", &options);
    for (unsigned i = 0; i < COUNT; i++) {
        clients[i] = open_client();
        waiter_start(&waiters[i], clients[i], "x", &options);
        await_waiters(holder, "x", i + 1);
    }
    CHECK(!gate_await_for(&waiters[0].ended, 1, 100)); /* all are asleep now */
    const unsigned threads = read_sleeps(before, MOST);
    CHECK(threads > 2 * COUNT); /* each client has a waiter and a keeper */
    must_release(lock);
    gate_await(&waiters[0].ended, 1);
    const unsigned woken = count_woken(before, threads, after, read_sleeps(after, MOST));
    /* The first and its keeper; the second and its keeper, who look after it; this thread and its keeper. */
    CHECK(woken <= 6);
    test_note("%u of %u threads woke", woken, threads);
    for (unsigned i = 0; i < COUNT; i++) {
        waiter_finish(&waiters[i]);
    }
    for (unsigned i = 0; i < COUNT; i++)
        hf_close(clients[i]);
    hf_close(holder);
}
