/* SPDX-License-Identifier: MIT
 *
 * test_mysql_waits.c: waiters that stand still, whose turn it is, and settings that end more than a wait.
 */
#include "late_relay.h"
#include "mysql_support.h"
#include "turns.h"

#include <stdio.h>

#define DEADLOCKS "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'INNODB_DEADLOCKS'"

/* It was woken while it was stopped, and nobody else has asked until its claim was over. What it then believes, the
 * server must believe too. */
TEST_LIMIT(a_waiter_that_sleeps_through_its_claim, 60)
{
    static const char *const rows[] = { "lease", "insert", "version" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        struct holder *sleeper = holder_new(rows[i]);
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, sleeper->name.text, NULL);
        const pid_t pid = holder_launch(sleeper);
        mysql_server_await(server, 1, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
        helper_stop(pid);
        must_release(lock);
        mysql_server_await(server, 0, "SELECT COUNT(*) FROM holdfast_locks WHERE expires > UTC_TIMESTAMP(6)");
        mysql_server_await(server, 0, "SELECT COUNT(*) FROM holdfast_locks_grants WHERE claim > UTC_TIMESTAMP(6)");
        helper_continue(pid);
        gate_await(&sleeper->held, 1);
        check_busy(client, sleeper->name.text);
        holder_finish(sleeper, pid, HF_OK);
        hf_close(client);
    }
}

/* Who stands still with the bell costs the others seconds, and not the time-to-live of the holder before it. */
TEST_LIMIT(a_waiter_that_stands_still_does_not_cost_a_lease, 60)
{
    struct mysql_server *server = start_store("lease", "");
    struct holder *sleeper = holder_new("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter second;
    options.ttl_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(client, sleeper->name.text, &options);
    const pid_t pid = holder_launch(sleeper);
    await_waiters(client, sleeper->name.text, 1);
    waiter_start(&second, other, sleeper->name.text, NULL);
    await_waiters(client, sleeper->name.text, 2);
    helper_stop(pid);
    must_release(lock);
    waiter_join(&second, HF_OK);
    helper_continue(pid);
    must_release(second.lock);
    gate_await(&sleeper->held, 1);
    holder_finish(sleeper, pid, HF_OK);
    CHECK_INT(0, mysql_server_number(server, "SELECT COUNT(*) FROM holdfast_locks WHERE owner IS NOT NULL"));
    hf_close(client);
    hf_close(other);
}

/* The server ends the connection that waits, and a proxy does not say so. In a crowd that is well the waiter would
 * never find the lock free. All strategies at once. */
TEST_LIMIT(a_waiter_for_a_row_whose_connection_ends_behind_a_proxy_lines_up_anew, 120)
{
    enum { ROWS = 3 };
    struct mysql_server *server = start_store("lease", "");
    hf_client *deaf[ROWS], *others[ROWS];
    struct waiter waiters[ROWS];
    struct turns *turns[ROWS];
    hf_options options = HF_OPTIONS_INIT;
    options.wait_ms = test_ms(60000);
    for (size_t i = 0; i < ROWS; i++) {
        const char *strategy = strategy_names[i];
        char url[120], there[120];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        use_strategy(server, strategy);
        others[i] = open_client();
        snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?strategy=%s", late_relay_port(relay), strategy);
        use_url(url);
        deaf[i] = open_client();
        hf_lock *lock = must_acquire(others[i], strategy, NULL);
        waiter_start(&waiters[i], deaf[i], strategy, &options);
        await_waiters(others[i], strategy, 1);
        const int64_t connection =
            mysql_server_number(server, "SELECT connection FROM holdfast_locks_waiters WHERE name = '%s'", strategy);
        mysql_server_do(server, "KILL %lld", (long long)connection);
        snprintf(there, sizeof there, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %lld",
                 (long long)connection);
        mysql_server_await(server, 0, there);
        turns[i] = turns_start(others[i], strategy, 30000, 0);
        must_release(lock);
    }
    for (size_t i = 0; i < ROWS; i++) {
        waiter_finish(&waiters[i]);
        test_note("%u grants to others meanwhile", turns_stop(turns[i]));
        hf_close(deaf[i]);
        hf_close(others[i]);
    }
}

/* --- the turn --- */

/* A release says whose turn it is before it frees the lock. Who asks in between waits for that to be said. */
TEST_LIMIT(who_asks_during_a_release_sees_whose_turn_it_is, 60)
{
    struct mysql_server *server = start_store("insert", "");
    hf_client *client = open_client();
    struct waiter waiter;
    must_release(must_acquire(client, "x", NULL));
    mysql_server_do(server, "START TRANSACTION");
    mysql_server_do(server, "UPDATE holdfast_locks_grants SET claim = claim + INTERVAL 1 SECOND WHERE name = 'x'");
    waiter_start(&waiter, client, "x", NULL);
    mysql_server_await(server, 1, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep' AND TIME_MS > 100");
    CHECK_INT(0, mysql_server_number(server, "SELECT COUNT(*) FROM holdfast_locks"));
    mysql_server_do(server, "COMMIT");
    waiter_finish(&waiter);
    hf_close(client);
}

/* The first in line has the bell, since the holder's connection was killed, and asks. Its statement is in the way of
 * another transaction, and is the one that is undone. */
TEST_LIMIT(who_loses_a_deadlock_keeps_its_turn, 60)
{
    struct mysql_server *server = start_store("insert", "");
    hf_client *holder = open_client(), *client = open_client();
    struct waiter first, second;
    hf_lock *lock = must_acquire(holder, "x", NULL);
    waiter_start(&first, client, "x", NULL);
    await_waiters(client, "x", 1);
    waiter_start(&second, client, "x", NULL);
    await_waiters(client, "x", 2);
    mysql_server_do(server, "START TRANSACTION");
    for (int i = 0; i < 20; i++) /* the smaller transaction is undone */
        mysql_server_do(server, "INSERT INTO holdfast_locks_fences VALUES ('%d', 1)", i);
    mysql_server_do(server, "SELECT * FROM holdfast_locks WHERE name = 'x' FOR UPDATE");
    mysql_server_do(server, "KILL %lld",
                    (long long)mysql_server_number(server, "SELECT bell FROM holdfast_locks_grants WHERE name = 'x'"));
    mysql_server_await(server, 1, "SELECT COUNT(*) " OUR_CONNECTIONS " AND INFO LIKE 'INSERT%' AND TIME_MS > 100");
    const int64_t deadlocks = mysql_server_number(server, DEADLOCKS);
    mysql_server_do(server, "UPDATE holdfast_locks_grants SET claim = claim WHERE name = 'x'");
    CHECK_INT(deadlocks + 1, mysql_server_number(server, DEADLOCKS));
    mysql_server_do(server, "ROLLBACK");
    must_release(lock);
    waiter_join(&first, HF_OK);
    CHECK_INT(0, gate_count(&second.ended));
    must_release(first.lock);
    waiter_finish(&second);
    hf_close(holder);
    hf_close(client);
}

/* A forced release by somebody who may not end the holder's connection leaves the bell there, and the next holder has a
 * new one. Who then gets the old one takes nobody's time with it. */
TEST_LIMIT(the_bell_of_an_earlier_time_is_let_go, 60)
{
    struct mysql_server *server = start_store("lease", "");
    hf_client *holder = open_client(), *client = open_client();
    struct waiter waiters[2];
    hf_lock *old = must_acquire(holder, "x", NULL);
    const int64_t connection = mysql_server_number(server, "SELECT bell FROM holdfast_locks");
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], client, "x", NULL);
        await_waiters(client, "x", i + 1);
    }
    mysql_server_do(server, "UPDATE holdfast_locks SET owner = NULL, expires = UTC_TIMESTAMP(6)");
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    hf_lock *lock = must_acquire(holder, "x", &options);
    CHECK(connection != mysql_server_number(server, "SELECT bell FROM holdfast_locks"));
    mysql_server_do(server, "KILL %lld", (long long)connection);
    mysql_server_await(server, 1,
                       "SELECT IS_USED_LOCK(CONCAT('holdfast:', LEFT(SHA2('app.holdfast_locks.x', 256), 32), ':0')) IS "
                       "NULL");
    await_waiters(client, "x", 2);
    must_release(lock);
    while (!gate_await_for(&waiters[0].ended, 1, 5) && !gate_await_for(&waiters[1].ended, 1, 5))
        REQUIRE(test_now_ns() < test_deadline_ns());
    const int first = gate_count(&waiters[0].ended) > 0 ? 0 : 1;
    waiter_finish(&waiters[first]);
    waiter_finish(&waiters[1 - first]);
    CHECK_STATUS(HF_LOST, hf_release(old, NULL), NULL);
    hf_close(holder);
    hf_close(client);
}

/* It is not Holdfast's, and nobody rings when it is deleted. */
TEST_LIMIT(who_waits_for_a_row_of_somebody_else_is_counted, 60)
{
    struct mysql_server *server = start_store("insert", "");
    hf_client *client = open_client();
    struct waiter waiters[2];
    mysql_server_do(server, "INSERT INTO holdfast_locks (name) VALUES ('x')");
    await_waiters(client, "x", 0);
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], client, "x", NULL);
        await_waiters(client, "x", i + 1);
    }
    mysql_server_do(server, "DELETE FROM holdfast_locks");
    for (int i = 0; i < 2; i++) {
        waiter_finish(&waiters[i]);
    }
    hf_close(client);
}

/* --- settings --- */

/* Where a statement that has waited for too long ends its whole transaction, a row would be locked for no longer than
 * the next statement takes. */
TEST_LIMIT(a_row_stays_locked_where_time_outs_end_transactions, 60)
{
    start_store("for-update", "--innodb-rollback-on-timeout=1");
    hf_client *client = open_client(), *other = open_client();
    struct waiter waiter;
    hf_lock *lock = must_acquire(client, "x", NULL);
    waiter_start(&waiter, other, "x", NULL);
    await_waiters(client, "x", 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    check_busy(client, "x");
    must_release(waiter.lock);
    check_free(client, "x");
    hf_close(client);
    hf_close(other);
}

/* A connection that goes back to the pool takes no transaction with it, in which others would then write. */
TEST_LIMIT(nothing_is_left_open_by_who_was_refused, 60)
{
    struct mysql_server *server = start_store("for-update", "");
    hf_client *client = open_client(), *other = open_client();
    struct waiter waiter;
    hf_lock *lock = must_acquire(client, "x", NULL);
    check_busy(other, "x");
    CHECK_STATUS(HF_OK, hf_guard(other, "r", 7, NULL), NULL);
    CHECK_INT(7, mysql_server_number(server, "SELECT token FROM holdfast_locks_fences WHERE resource = 'r'"));
    waiter_start(&waiter, other, "x", NULL);
    await_waiters(client, "x", 1);
    hf_cancel(other, "x");
    waiter_join(&waiter, HF_CANCELED);
    CHECK_STATUS(HF_OK, hf_guard(other, "r", 8, NULL), NULL);
    CHECK_INT(8, mysql_server_number(server, "SELECT token FROM holdfast_locks_fences WHERE resource = 'r'"));
    must_release(lock);
    hf_close(client);
    hf_close(other);
}
