/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_strategies.c: clients that use different strategies for the same names of a file exclude each other, wait
 * for each other, and their tokens grow: a URL that was changed on one host only costs nothing.
 */
#include "sqlite_support.h"

#include <stdio.h>
#include <string.h>

struct pair {
    const char *path;
    hf_client *one, *other;
    uint64_t last_token;
};

static struct pair open_pair(const char *label, int one, int other)
{
    struct pair pair = { .path = new_path(label) };
    hf_client **clients[2] = { &pair.one, &pair.other };
    for (int i = 0; i < 2; i++) {
        char url[600];
        snprintf(url, sizeof url, "sqlite://%s?synchronous=off&strategy=%s", pair.path,
                 strategy_names[i == 0 ? one : other]);
        use_url(url);
        *clients[i] = open_client();
    }
    return pair;
}

static void close_pair(const struct pair *pair)
{
    check_intact(pair->path);
    hf_close(pair->one);
    hf_close(pair->other);
}

static hf_options handle_options(void)
{
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    options.ttl_ms = endless_ttl_ms();
    return options;
}

static void check_grows(struct pair *pair, const hf_lock *lock)
{
    CHECK(hf_token(lock) > pair->last_token);
    pair->last_token = hf_token(lock);
}

static hf_lock *take(struct pair *pair, hf_client *client)
{
    const hf_options options = handle_options();
    hf_lock *lock = must_acquire(client, "x", &options);
    check_grows(pair, lock);
    return lock;
}

static int count(const hf_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return 0;
}

/* Both say the same of it. */
static void check_seen(const struct pair *pair, int held)
{
    int one = 0, other = 0;
    CHECK_STATUS(HF_OK, hf_inspect_one(pair->one, "x", count, &one, NULL), NULL);
    CHECK_STATUS(HF_OK, hf_inspect(pair->other, "x", count, &other, NULL), NULL);
    CHECK_INT(held, one);
    CHECK_INT(held, other);
}

/* `first` holds it, lets go, and `second` takes it. */
static void check_turn(struct pair *pair, hf_client *first, hf_client *second)
{
    hf_lock *lock = take(pair, first);
    check_busy(second, "x");
    check_seen(pair, 1);
    must_release(lock);
    check_seen(pair, 0);
    must_release(take(pair, second));
    check_seen(pair, 0);
}

static void check_turns(int one, int other)
{
    struct pair pair = open_pair("turns", one, other);
    for (int i = 0; i < 3; i++) {
        check_turn(&pair, pair.one, pair.other);
        check_turn(&pair, pair.other, pair.one);
        check_turn(&pair, pair.one, pair.one);
    }
    close_pair(&pair);
}

/* The lock goes from one to the other and back, without being free in between. */
static void check_hand_offs(int one, int other)
{
    const hf_options options = handle_options();
    struct pair pair = open_pair("hand-offs", one, other);
    hf_lock *lock = take(&pair, pair.one);
    for (int i = 0; i < 6; i++) {
        struct waiter waiter;
        waiter_start(&waiter, i % 2 ? pair.one : pair.other, "x", &options);
        await_waiters(pair.one, "x", 1);
        must_release(lock);
        waiter_join(&waiter, HF_OK);
        lock = waiter.lock;
        check_grows(&pair, lock);
        check_seen(&pair, 1);
    }
    must_release(lock);
    check_turn(&pair, pair.other, pair.one);
    close_pair(&pair);
}

static void check_breaks(int one, int other)
{
    struct pair pair = open_pair("breaks", one, other);
    for (int i = 0; i < 4; i++) {
        hf_client *holder = i % 2 ? pair.one : pair.other, *breaker = i % 2 ? pair.other : pair.one;
        hf_lock *lock = take(&pair, holder);
        CHECK_STATUS(HF_OK, hf_break(breaker, "x", NULL), NULL);
        check_seen(&pair, 0);
        must_release(take(&pair, i < 2 ? holder : breaker));
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    }
    close_pair(&pair);
}

/* As if the holder had died, and its time were over. */
static void check_ends(int one, int other)
{
    struct pair pair = open_pair("ends", one, other);
    for (int i = 0; i < 4; i++) {
        hf_client *holder = i % 2 ? pair.one : pair.other, *next = i % 2 ? pair.other : pair.one;
        hf_lock *lock = take(&pair, holder);
        raw_do(pair.path, "UPDATE holdfast_locks SET expires = 1, renewed = 1, since = 1");
        check_seen(&pair, 0);
        must_release(take(&pair, next));
        hf_release(lock, NULL); /* HF_LOST, or found by now */
    }
    close_pair(&pair);
}

static void with_each_pair(void (*check)(int one, int other))
{
    for (int one = 0; one < STRATEGIES; one++) {
        for (int other = 0; other < STRATEGIES; other++) {
            test_note("%s and %s", strategy_names[one], strategy_names[other]);
            check(one, other);
        }
    }
}

TEST_LIMIT(strategies_take_turns, 60)
{
    with_each_pair(check_turns);
}

TEST_LIMIT(strategies_hand_the_lock_to_each_other, 60)
{
    with_each_pair(check_hand_offs);
}

TEST_LIMIT(strategies_break_each_others_locks, 60)
{
    with_each_pair(check_breaks);
}

TEST_LIMIT(strategies_take_over_from_each_others_dead, 60)
{
    with_each_pair(check_ends);
}

static void check_done(int one, int other)
{
    struct pair pair = open_pair("done", one, other);
    hf_options options = handle_options();
    hf_lock *lock = NULL;
    options.once_per_ms = 3600000;
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(pair.one, "x", &options), NULL), NULL);
    CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, pair.other, "x", &options, NULL), NULL);
    CHECK_STATUS(HF_OK, hf_forget_done(pair.other, "x", NULL), NULL);
    must_release(must_acquire(pair.one, "x", &options));
    close_pair(&pair);
}

TEST_LIMIT(strategies_share_what_is_done, 60)
{
    with_each_pair(check_done);
}

/* What another program has inserted is held for those who use that strategy, as ever: no lease has left it. */
TEST(a_row_of_another_program_is_still_a_lock)
{
    const char *path = new_store("foreign", "synchronous=off&strategy=insert");
    hf_client *client = open_client();
    must_release(must_acquire(client, "y", NULL));
    raw_do(path, "INSERT INTO holdfast_locks (name) VALUES ('x')");
    check_busy(client, "x");
    raw_do(path, "DELETE FROM holdfast_locks WHERE name = 'x'");
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}
