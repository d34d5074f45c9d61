/* SPDX-License-Identifier: MIT
 *
 * test_mysql_waits.c: waiters that stand still, and settings that end more than a wait.
 */
#include "mysql_support.h"

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
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = must_acquire(client, "x", NULL), *none = NULL;
    options.wait_ms = 100;
    check_busy(other, "x");
    CHECK_STATUS(HF_OK, hf_guard(other, "r", 7, NULL), NULL);
    CHECK_INT(7, mysql_server_number(server, "SELECT token FROM holdfast_locks_fences WHERE resource = 'r'"));
    CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, other, "x", &options, NULL), NULL);
    CHECK_STATUS(HF_OK, hf_guard(other, "r", 8, NULL), NULL);
    CHECK_INT(8, mysql_server_number(server, "SELECT token FROM holdfast_locks_fences WHERE resource = 'r'"));
    must_release(lock);
    hf_close(client);
    hf_close(other);
}
