/* SPDX-License-Identifier: MIT
 *
 * test_postgres_traffic.c: how often the server is asked, counted by itself: in transactions, since every exchange of
 * the engine is one, and in statements.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

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

static void fresh_pairs(unsigned count, uint64_t once_per_ms)
{
    static unsigned number;
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.once_per_ms = once_per_ms;
    for (unsigned i = 0; i < count; i++) {
        char name[30];
        snprintf(name, sizeof name, "pair %u", number++);
        hf_lock *lock = must_acquire(client, name, &options);
        hf_error err = { 0 };
        CHECK_STATUS(HF_OK, once_per_ms ? hf_release_done(lock, &err) : hf_release(lock, &err), &err);
    }
    hf_close(client);
}

static void any_pairs(unsigned count)
{
    fresh_pairs(count, 0);
}

static void once_pairs(unsigned count)
{
    fresh_pairs(count, 3600000);
}

/* advisory has a transaction more, in the same exchange: the mark is committed before the lock is let go. */
TEST_LIMIT(once_takes_no_exchange_more, 90)
{
    struct postgres_server *server = start_store("lease", "-c autovacuum=off");
    hf_close(open_client());
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        const int64_t any = measure(server, any_pairs, 200), once = measure(server, once_pairs, 200);
        const int64_t more = once - any - (strcmp(strategy_names[i], "advisory") == 0 ? 200 : 0);
        if (more < -100 || more > 100) /* the test's own questions vary */
            FAIL("%s: %d transactions for 200 pairs, %d with once", strategy_names[i], (int)any, (int)once);
    }
}

/* ------------------------------------------------------------------------------------------------------- hand-offs */

#define STATEMENTS "-c shared_preload_libraries=pg_stat_statements"

static void begin_to_count(struct postgres_server *server)
{
    postgres_server_do(server, "SELECT pg_stat_statements_reset()");
}

/* Statements of ours, but those of the test itself: it looks who waits. */
static int64_t statements(struct postgres_server *server)
{
    return postgres_server_number(server, "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE"
                                          " '%%holdfast_locks%%' AND query NOT LIKE '%%starts_with%%'"
                                          " AND query NOT LIKE '%%pg_stat_statements%%'");
}

/* What it costs to hand the lock from the holder through all who wait. */
static int64_t count_hand_offs(struct postgres_server *server, unsigned count)
{
    hf_client *clients[CLIENTS], *holder = open_client();
    struct waiter waiters[32];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = open_client();
    hf_lock *lock = must_acquire(holder, "queue", NULL);
    for (unsigned i = 0; i < count; i++)
        waiter_start(&waiters[i], clients[i % CLIENTS], "queue", NULL);
    await_waiters(holder, "queue", count);
    begin_to_count(server);
    must_release(lock);
    /* In order of arrival, which with this many at once is anybody's guess: whoever has it gives it on. */
    for (unsigned served = 0; served < count;) {
        for (unsigned i = 0; i < count; i++) {
            if (!waiters[i].client || !gate_await_for(&waiters[i].ended, 1, 1))
                continue;
            waiter_finish(&waiters[i]);
            waiters[i].client = NULL;
            served++;
        }
    }
    const int64_t counted = statements(server);
    for (int i = 0; i < CLIENTS; i++)
        hf_close(clients[i]);
    hf_close(holder);
    return counted;
}

/* One exchange of two statements frees the lock and hands it over. In doubt the next one asks, with one; and as nobody
 * holds it for long here, a renewal is as rare. */
TEST_LIMIT(a_hand_off_does_not_cost_more_with_more_waiters, 90)
{
    struct postgres_server *server = start_store("lease", STATEMENTS);
    postgres_server_do(server, "CREATE EXTENSION pg_stat_statements");
    const int64_t few = count_hand_offs(server, 4), many = count_hand_offs(server, 32);
    test_note("4 waiters: %d statements, 32 waiters: %d", (int)few, (int)many);
    CHECK(few >= 2 * (4 + 1) && few <= 4 * (4 + 1));
    CHECK(many >= 2 * (32 + 1) && many <= 4 * (32 + 1));
}

/* Who gives up while the lock is held, and who has died in line, leave nothing for which the next ones would have to
 * ask twice. */
TEST_LIMIT(nothing_is_left_of_those_who_do_not_wait_any_more, 60)
{
    static const char dead[] = "INSERT INTO holdfast_locks_waiters (name, client, serial, backend, host, pid, note)"
                               " VALUES ('x', 1, %d, 0, '', 0, '')";
    struct postgres_server *server = start_store("lease", "");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = must_acquire(client, "x", NULL), *none = NULL;
    struct waiter waiter;
    options.wait_ms = test_ms(700);
    CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, other, "x", &options, NULL), NULL);
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks_waiters"));
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks WHERE queued"));
    postgres_server_do(server, dead, 1);
    waiter_start(&waiter, other, "x", NULL);
    await_waiters(client, "x", 2);
    postgres_server_do(server, dead, 2);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks_waiters"));
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks WHERE queued"));
    must_release(waiter.lock);
    hf_close(client);
    hf_close(other);
}

/* Between the statement that serves and the one that cleans up. (The trigger fires for each DELETE: of lining up, which
 * serves; of leaving; of serving; of cleaning up.) */
TEST_LIMIT(a_lock_that_ends_while_somebody_leaves_is_for_the_next_in_line, 60)
{
    struct postgres_server *server = start_store("lease", "");
    hf_client *client = open_client(), *other = open_client(), *late = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = must_acquire(client, "x", NULL), *none = NULL;
    struct waiter first;
    waiter_start(&first, other, "x", NULL);
    await_waiters(client, "x", 1);
    postgres_server_do(server, "CREATE SEQUENCE deletes");
    postgres_server_do(server,
                       "CREATE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                       " IF nextval('public.deletes') = 3 THEN"
                       " UPDATE public.holdfast_locks SET expires = clock_timestamp(); END IF; RETURN NULL; END $$");
    postgres_server_do(server, "CREATE TRIGGER end_it AFTER DELETE ON holdfast_locks_waiters"
                               " FOR EACH STATEMENT EXECUTE FUNCTION end_it()");
    options.wait_ms = test_ms(700);
    CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, late, "x", &options, NULL), NULL);
    /* A server that is slow is left in the background. */
    while (postgres_server_number(server, "SELECT count(*) FROM holdfast_locks WHERE expires < now()") == 0 ||
           postgres_server_number(server, "SELECT count(*) FROM holdfast_locks_waiters") != 1)
        await_a_moment();
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, late, "x", NULL, NULL), NULL);
    waiter_finish(&first);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
    hf_close(other);
    hf_close(late);
}

TEST_LIMIT(an_uncontended_pair_is_three_statements, 60)
{
    struct postgres_server *server = start_store("lease", STATEMENTS);
    postgres_server_do(server, "CREATE EXTENSION pg_stat_statements");
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    begin_to_count(server);
    for (int i = 0; i < 50; i++)
        must_release(must_acquire(client, "x", NULL));
    CHECK_INT(50 * 3, statements(server)); /* take; free, serve */
    hf_close(client);
}
