/* SPDX-License-Identifier: MIT
 *
 * test_mysql_traffic.c: how often the server is asked. Every statement of the engine is one round trip, and the server
 * counts them.
 */
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

#define CLIENTS 4
#define EXECUTED "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_STMT_EXECUTE'"
/* All that clients asked, but for preparing: what the test itself asks is a question, too. */
#define ASKED "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'"
#define IN_LINE "SELECT COUNT(*) " OUR_CONNECTIONS " AND STATE = 'User lock'"

static void pairs(unsigned count)
{
    hf_client *client = open_client();
    must_release(must_acquire(client, "pair", NULL)); /* the row is made */
    for (unsigned i = 0; i < count; i++)
        must_release(must_acquire(client, "pair", NULL));
    hf_close(client);
}

static int64_t measure(struct mysql_server *server, const char *what, void (*work)(unsigned count), unsigned count)
{
    const int64_t before = mysql_server_number(server, "%s", what);
    work(count);
    return mysql_server_number(server, "%s", what) - before;
}

TEST_LIMIT(a_pair_is_two_round_trips, 60)
{
    struct mysql_server *server = start_store("lease", "");
    pairs(1);
    const int64_t few = measure(server, ASKED, pairs, 100), many = measure(server, ASKED, pairs, 600);
    CHECK(many - few >= 995 && many - few <= 1005); /* a farewell may come late */
    const int64_t executed = measure(server, EXECUTED, pairs, 100);
    CHECK_INT(1000, measure(server, EXECUTED, pairs, 600) - executed);
}

/* What the others cost, for comparison: two more statements each. */
TEST_LIMIT(pairs_of_the_other_strategies, 60)
{
    static const struct {
        const char *strategy;
        int statements;
    } expected[] = { { "version", 3 }, { "insert", 4 }, { "get-lock", 2 } };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        use_strategy(server, expected[i].strategy);
        mysql_server_do(server, "DELETE FROM holdfast_locks");
        pairs(1);
        const int64_t few = measure(server, EXECUTED, pairs, 100), many = measure(server, EXECUTED, pairs, 200);
        CHECK_INT(100 * expected[i].statements, many - few);
    }
}

#define SYNCED "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'INNODB_DATA_FSYNCS'"

/* The grant does, for its token. */
TEST_LIMIT(a_release_of_a_bound_lock_does_not_wait_for_the_disk, 90)
{
    static const char *const bound[] = { "get-lock", "for-update" };
    struct mysql_server *server =
        start_store("lease", "--innodb-flush-log-at-trx-commit=1 --innodb-flush-method=fsync");
    for (size_t i = 0; i < 2; i++) {
        use_strategy(server, bound[i]);
        pairs(1);
        const int64_t synced = measure(server, SYNCED, pairs, 200);
        test_note("%s: 200 pairs, %d times", bound[i], (int)synced);
        CHECK(synced >= 200 && synced < 300); /* the server's own are few */
    }
}

static struct mysql_server *crowded; /* for queue(), which waits until all are in line */

static void queue(unsigned count)
{
    hf_client *clients[CLIENTS], *holder = open_client();
    struct waiter waiters[32];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = open_client();
    hf_lock *lock = must_acquire(holder, "queue", NULL);
    for (unsigned i = 0; i < count; i++) {
        waiter_start(&waiters[i], clients[i % CLIENTS], "queue", NULL);
        mysql_server_await(crowded, i + 1, IN_LINE);
    }
    for (unsigned i = 0; i < count; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
        CHECK_INT(count - i - 1, mysql_server_number(crowded, IN_LINE)); /* the others sleep on */
    }
    must_release(lock);
    for (int i = 0; i < CLIENTS; i++)
        hf_close(clients[i]);
    hf_close(holder);
}

TEST_LIMIT(a_hand_off_does_not_cost_more_with_more_waiters, 90)
{
    static const char *const strategies[] = { "lease", "insert", "version" };
    /* For each waiter: it asks, looks who has it, says that it waits, lines up, asks when it is its turn, and frees
     * it. */
    static const int statements[] = { 6, 9, 6 };
    crowded = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(crowded, strategies[i]);
        mysql_server_do(crowded, "DELETE FROM holdfast_locks");
        queue(1);
        const int64_t few = measure(crowded, EXECUTED, queue, 4), many = measure(crowded, EXECUTED, queue, 32);
        CHECK_INT(28 * statements[i], many - few);
    }
}

TEST_LIMIT(who_waits_does_not_ask, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *holder = open_client(), *other = open_client();
        struct waiter waiters[4];
        hf_lock *lock = must_acquire(holder, strategy_names[i], NULL);
        for (int j = 0; j < 4; j++)
            waiter_start(&waiters[j], other, strategy_names[i], NULL);
        mysql_server_await(server, 4, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep' AND TIME_MS > 100");
        const int64_t before = mysql_server_number(server, EXECUTED);
        CHECK(!gate_await_for(&waiters[0].ended, 1, 700));
        /* With for-update each of them asks anew after five seconds, which may be over by chance. */
        const int64_t asked = mysql_server_number(server, EXECUTED) - before;
        CHECK(asked == 0 || (asked <= 12 && strcmp(strategy_names[i], "for-update") == 0));
        hf_cancel(other, strategy_names[i]);
        for (int j = 0; j < 4; j++)
            waiter_join(&waiters[j], HF_CANCELED);
        must_release(lock);
        hf_close(holder);
        hf_close(other);
    }
}

/* Sixty locks are renewed by one statement, not by sixty. */
TEST_LIMIT(many_locks_are_renewed_by_few_statements, 60)
{
    enum { COUNT = 60 };
    struct mysql_server *server = start_store("lease", "");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *locks[COUNT];
    options.ttl_ms = 3000;
    for (unsigned i = 0; i < COUNT; i++)
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
    const int64_t before = mysql_server_number(server, EXECUTED);
    const int64_t then = mysql_server_number(server, "SELECT UNIX_TIMESTAMP(MAX(expires)) FROM holdfast_locks");
    char sql[120];
    snprintf(sql, sizeof sql, "SELECT COUNT(*) FROM holdfast_locks WHERE expires > FROM_UNIXTIME(%lld)",
             (long long)then + 3);
    mysql_server_await(server, COUNT, sql);
    const int64_t renewals = mysql_server_number(server, EXECUTED) - before;
    if (renewals > 40) /* a third of the time-to-live is a second, for a few seconds */
        FAIL("%lld statements to renew %d locks", (long long)renewals, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        must_release(locks[i]);
    hf_close(client);
}
