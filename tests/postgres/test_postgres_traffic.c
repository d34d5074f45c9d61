/* SPDX-License-Identifier: MIT
 *
 * test_postgres_traffic.c: how often the server is asked, counted in transactions: every exchange of the engine is one.
 */
#include "postgres_support.h"

#include <stdio.h>

#define CLIENTS 4

/* What a session counted is added up when it has ended. */
static int64_t transactions(struct postgres_server *server)
{
    postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    postgres_server_do(server, "SELECT pg_stat_clear_snapshot()");
    return postgres_server_number(server,
                                  "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()");
}

/* What the test's own questions, and opening and closing clients, come to is measured the same way and taken off. */
static int64_t measure(struct postgres_server *server, void (*work)(unsigned count), unsigned count)
{
    const int64_t before = transactions(server);
    work(count);
    return transactions(server) - before;
}

static void pairs(unsigned count)
{
    hf_client *client = open_client();
    for (unsigned i = 0; i < count; i++)
        must_release(must_acquire(client, "pair", NULL));
    hf_close(client);
}

TEST_LIMIT(a_pair_is_two_exchanges, 90)
{
    struct postgres_server *server = start_store("lease", "-c autovacuum=off");
    for (size_t i = 0; i < 2; i++) {
        use_strategy(server, i == 0 ? "lease" : "insert");
        const int64_t few = measure(server, pairs, 100), many = measure(server, pairs, 600);
        /* The test's own questions vary by a few. */
        const int64_t each_hundred = (many - few) / 5;
        if (each_hundred < 195 || each_hundred > 210)
            FAIL("%d transactions for a hundred pairs", (int)each_hundred);
        postgres_server_do(server, "DELETE FROM holdfast_locks");
    }
}

static void queue(unsigned count)
{
    hf_client *clients[CLIENTS], *holder = open_client();
    struct waiter waiters[32];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = open_client();
    hf_lock *lock = must_acquire(holder, "queue", NULL);
    for (unsigned i = 0; i < count; i++)
        waiter_start(&waiters[i], clients[i % CLIENTS], "queue", NULL);
    await_waiters(holder, "queue", count);
    must_release(lock);
    /* In order of arrival, which with this many at once is anybody's guess: whoever has it gives it on. */
    for (unsigned served = 0; served < count;) {
        for (unsigned i = 0; i < count; i++) {
            if (!waiters[i].client || !gate_await_for(&waiters[i].ended, 1, 1))
                continue;
            waiter_join(&waiters[i], HF_OK);
            must_release(waiters[i].lock);
            waiters[i].client = NULL;
            served++;
        }
    }
    for (int i = 0; i < CLIENTS; i++)
        hf_close(clients[i]);
    hf_close(holder);
}

/* The holder counts its waiters while they line up, which costs exchanges too: not of the hand-off. */
static int64_t handed(struct postgres_server *server)
{
    return postgres_server_number(server, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'holdfast_locks'");
}

TEST_LIMIT(a_hand_off_does_not_cost_more_with_more_waiters, 90)
{
    struct postgres_server *server = start_store("lease", "-c autovacuum=off");
    int64_t updates[2];
    static const unsigned counts[2] = { 4, 32 };
    queue(4);
    for (int i = 0; i < 2; i++) {
        transactions(server);
        const int64_t before = handed(server);
        queue(counts[i]);
        transactions(server);
        updates[i] = handed(server) - before;
        test_note("%u waiters: %d changes of the row", counts[i], (int)updates[i]);
    }
    /* For each waiter: it lines up, is given the lock, takes it, frees it. */
    CHECK(updates[0] <= 5 * 4 + 4);
    CHECK(updates[1] <= 5 * 32 + 4);
}
