/* SPDX-License-Identifier: MIT
 *
 * test_postgres_faults.c: a server that crashes, connections that are ended, statements that are cut off, what others
 * have set, deadlocks, and a clock that is wrong, on every strategy.
 */
#include "postgres_support.h"
#include "scene.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OUR_BACKENDS "FROM pg_stat_activity WHERE application_name = 'holdfast'"

/* ------------------------------------------------------------------------------------------- the server goes away */

/* A lock that is bound to a connection ends with it, which is known at once, without any traffic of the user's. */
static void check_after(struct scene *scene)
{
    if (is_bound(scene->name))
        scene_check_lost(scene);
    else
        scene_check_kept(scene);
    scene_end(scene);
}

TEST_LIMIT(a_server_that_crashes_and_comes_back, 90)
{
    static struct scene all[STRATEGIES];
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        scene_begin(&all[i], strategy_names[i], endless_ttl_ms()); /* a name has one strategy */
    }
    postgres_server_kill(server);
    postgres_server_restart(server);
    for (size_t i = 0; i < STRATEGIES; i++)
        check_after(&all[i]);
}

/* ------------------------------------------------------------------------------------------- connections are ended */

static void check_terminate(struct postgres_server *server, const char *strategy)
{
    struct scene scene;
    use_strategy(server, strategy);
    scene_begin(&scene, strategy, 0);
    /* All of them, waiters too; of those that are bound to the lock only the holder's. */
    if (is_bound(strategy))
        postgres_server_do(server,
                           "SELECT pg_terminate_backend(backend, 5000) FROM holdfast_locks_grants"
                           " WHERE name = '%s'",
                           strategy);
    else
        postgres_server_do(server, "SELECT pg_terminate_backend(pid, 5000) " OUR_BACKENDS);
    check_after(&scene);
    postgres_server_await(server, 0, "SELECT count(*) " OUR_BACKENDS);
}

TEST_LIMIT(connections_that_are_terminated, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++)
        check_terminate(server, strategy_names[i]);
}

/* A lock whose connection has ended is given back behind others. (A release of advisory writes nothing, and so
 * waits for nobody.) */
TEST_LIMIT(a_connection_that_has_ended_costs_nothing_while_a_release_hangs, 60)
{
    static const char strategy[] = "for-update";
    struct postgres_server *server = start_store(strategy, "");
    hf_client *client = open_patient_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *ended = must_acquire(client, strategy, &options);
    const int64_t backend = postgres_server_number(server,
                                                   "SELECT backend FROM holdfast_locks_grants"
                                                   " WHERE name = '%s'",
                                                   strategy);
    options = (hf_options)HF_OPTIONS_INIT;
    options.max_hold_ms = test_ms(3000);
    hf_lock *hung = must_acquire(client, "hung", &options);
    postgres_server_do(server, "BEGIN");
    postgres_server_do(server, "LOCK TABLE holdfast_locks_grants IN SHARE MODE");
    postgres_server_await(server, 1, "SELECT count(*) FROM pg_locks WHERE NOT granted"); /* its release */
    postgres_server_do(server, "SELECT pg_terminate_backend(%lld)", (long long)backend);
    gate_await(&loss.told, 1);
    check_rests();
    CHECK_INT(1, postgres_server_number(server, "SELECT count(*) FROM pg_locks WHERE NOT granted"));
    postgres_server_do(server, "COMMIT");
    CHECK_STATUS(HF_LOST, hf_release(hung, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(ended, NULL), NULL);
    check_becomes_free(client, strategy);
    hf_close(client);
}

/* A holder that ends its wait leaves nothing behind in the server: neither a statement nor a lock. */
TEST_LIMIT(waits_that_are_given_up_leave_nothing_in_the_server, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client(), *other = open_client();
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL);
        for (int round = 0; round < 3; round++)
            must_wait_in_vain(other, strategy_names[i], 300);
        postgres_server_await(server, 0, "SELECT count(*) " OUR_BACKENDS " AND wait_event_type = 'Lock'");
        postgres_server_await(server, 0, "SELECT count(*) FROM holdfast_locks_waiters WHERE name <> ''");
        must_release(lock);
        hf_close(client);
        hf_close(other);
        postgres_server_await(server, 0, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
    }
}

/* ------------------------------------------------------------------------------------- killed within a statement */

/* The statement is at the server, held up by a row that somebody else has locked, and its client dies. Whatever the
 * server still does with it: the lock comes free. */
TEST_LIMIT(a_client_killed_within_its_statement, 60)
{
    struct postgres_server *server = start_store("lease", "");
    static const char *const rows[] = { "lease", "insert", "version" };
    for (size_t i = 0; i < 3; i++) {
        struct holder *doomed = holder_new(rows[i]);
        doomed->options.ttl_ms = short_ttl_ms();
        use_strategy(server, rows[i]);
        hf_client *own = open_client();
        must_release(must_acquire(own, doomed->name.text, NULL));
        postgres_server_do(server, "BEGIN");
        postgres_server_do(server, "LOCK TABLE holdfast_locks IN EXCLUSIVE MODE");
        pid_t pid = holder_launch(doomed);
        postgres_server_await(server, 1, "SELECT least(1, count(*)) FROM pg_locks WHERE NOT granted");
        helper_kill(pid);
        postgres_server_do(server, "COMMIT");
        check_becomes_free(own, doomed->name.text);
        hf_close(own);
    }
}

/* ------------------------------------------------------------------------------------------ a waiter stands still */

/* It was given the lock while it was stopped, and nobody else has asked for it until the claim was over. What it then
 * believes, the server must believe too. */
TEST_LIMIT(a_waiter_that_sleeps_through_its_claim, 60)
{
    static const char *const rows[] = { "lease", "insert", "version" };
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        struct holder *sleeper = holder_new(rows[i]);
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, sleeper->name.text, NULL);
        const pid_t pid = holder_launch(sleeper);
        await_waiters(client, sleeper->name.text, 1);
        helper_stop(pid);
        must_release(lock);
        postgres_server_await(server, 0, "SELECT count(*) FROM holdfast_locks WHERE expires > clock_timestamp()");
        helper_continue(pid);
        gate_await(&sleeper->held, 1);
        check_busy(client, sleeper->name.text);
        holder_finish(sleeper, pid, HF_OK);
        hf_close(client);
    }
}

/* A server that lets nobody in any more, while the connections that are there go on: the wait ends at its deadline. */
TEST_LIMIT(a_wait_ends_in_time_though_nobody_gets_in, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client(), *other = NULL;
        hf_client_options patient = HF_CLIENT_OPTIONS_INIT;
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL), *none = NULL;
        patient.timeout_ms = 600000; /* whoever waits for as long does not see the end of this test */
        REQUIRE_STATUS(HF_OK, hf_open(&other, store_url, &patient, NULL), NULL);
        options.wait_ms = 300;
        kill(server->pid, SIGSTOP);
        CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, other, strategy_names[i], &options, NULL), NULL);
        kill(server->pid, SIGCONT);
        must_release(lock);
        hf_close(client);
        hf_close(other);
    }
}

/* ------------------------------------------------------------------------------------------ what others have set */

static void visit(void *arg, uint32_t index)
{
    struct witness *witness = arg;
    hf_client *client = open_client();
    for (int i = 0; i < 10; i++) {
        hf_lock *lock = must_acquire(client, "counter", NULL);
        witness_visit(witness, index + 1, hf_token(lock));
        must_release(lock);
    }
    hf_close(client);
}

#define PATIENCE_MS 1000

/* Whatever ends statements, transactions and sessions of others: a lock is held and waited for longer than that. */
TEST_LIMIT(defaults_of_servers_and_roles_do_not_disturb, 90)
{
    static const char *const limits[] = { "statement_timeout", "lock_timeout", "idle_session_timeout",
                                          "idle_in_transaction_session_timeout" };
    char urls[STRATEGIES][300];
    struct waiter waiters[STRATEGIES];
    hf_client *clients[STRATEGIES];
    hf_lock *locks[STRATEGIES];
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    struct postgres_server *server = start_store("lease", "");
    postgres_server_do(server, "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest");
    postgres_server_do(server, "ALTER ROLE guest SET default_transaction_isolation = 'serializable'");
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        postgres_server_do(server, "ALTER ROLE guest SET %s = '%d ms'", limits[i], PATIENCE_MS);
    record_loss(&options, &loss);
    for (size_t i = 0; i < STRATEGIES; i++) {
        snprintf(urls[i], sizeof urls[i], "postgres://guest:open-sesame@127.0.0.1:%d/postgres?strategy=%s",
                 server->port, strategy_names[i]);
        store_url = urls[i];
        clients[i] = open_client();
        locks[i] = must_acquire(clients[i], strategy_names[i], &options);
        waiter_start(&waiters[i], clients[i], strategy_names[i], NULL);
    }
    CHECK(!gate_await_for(&loss.told, 1, 2 * PATIENCE_MS));
    for (size_t i = 0; i < STRATEGIES; i++) {
        must_release(locks[i]);
        waiter_finish(&waiters[i]);
        hf_close(clients[i]);
        store_url = urls[i];
        struct witness *witness = shared_new(sizeof *witness);
        run_processes(4, visit, witness);
        witness_check(witness);
        /* A name has one strategy. */
        postgres_server_do(server, "DELETE FROM holdfast_locks WHERE name = 'counter'");
        postgres_server_do(server, "DELETE FROM holdfast_locks_grants WHERE name = 'counter'");
    }
}

/* A user's transaction and ours want the same two things in different orders: the server ends ours, which begins
 * anew. */
TEST_LIMIT(a_deadlock_is_tried_again, 60)
{
    struct postgres_server *server = start_store("lease", "-c deadlock_timeout=50ms");
    hf_client *client = open_client(), *other = open_client();
    struct waiter waiter;
    hf_lock *lock = must_acquire(client, "x", NULL);
    postgres_server_do(server, "SET deadlock_timeout = '20s'"); /* it is not the one to find out */
    postgres_server_do(server, "BEGIN");
    postgres_server_do(server, "LOCK TABLE holdfast_locks_waiters IN EXCLUSIVE MODE");
    waiter_start(&waiter, other, "x", NULL);
    postgres_server_await(server, 1, "SELECT least(1, count(*)) FROM pg_locks WHERE NOT granted");
    postgres_server_do(server, "SELECT FROM holdfast_locks WHERE name = 'x' FOR UPDATE");
    postgres_server_do(server, "COMMIT");
    await_waiters(client, "x", 1);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(other);
    postgres_server_await(server, 1,
                          "SELECT least(1, deadlocks) FROM pg_stat_database"
                          " WHERE datname = current_database()");
}

/* ------------------------------------------------------------------------------------- a client with a wrong clock */

static int see(const hf_info *info, void *arg)
{
    (void)info;
    *(bool *)arg = true;
    return 0;
}

/* The command, with a clock that is wrong; its child reads from the pipe, so that it ends with it. */
static pid_t hold_with_clock(const char *offset_s, int *pipe_end)
{
    int ends[2];
    const char *command = getenv("TEST_COMMAND"), *wrong_clock = getenv("TEST_WRONG_CLOCK");
    if (!command || !wrong_clock) {
        FAIL("no TEST_COMMAND or TEST_WRONG_CLOCK in the environment");
        test_abort();
    }
    REQUIRE_INT(0, pipe2(ends, O_CLOEXEC));
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        setenv("LD_PRELOAD", wrong_clock, 1);
        setenv("WRONG_CLOCK_S", offset_s, 1);
        dup2(ends[0], STDIN_FILENO);
        execl(command, command, "-u", store_url, "run", "-t", "3s", "x", "--", "cat", (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    *pipe_end = ends[1];
    return pid;
}

TEST_LIMIT(a_client_whose_clock_is_wrong_by_an_hour, 60)
{
    int behind_end = -1, ahead_end = -1, status = -1;
    bool seen = false;
    start_store("lease", "");
    hf_client *client = open_client();
    const pid_t ahead = hold_with_clock("3600", &ahead_end);
    for (; !seen; hf_inspect(client, "x", see, &seen, NULL))
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    /* It renews, and nobody else gets it for longer than it lasts: neither we nor one whose clock says another hour. */
    const pid_t behind = hold_with_clock("-3600", &behind_end);
    await_waiters(client, "x", 1);
    for (const int64_t until = test_now_ns() + 3500000000LL; test_now_ns() < until; random_pause(20000))
        check_busy(client, "x");
    close(ahead_end);
    REQUIRE_INT(ahead, waitpid(ahead, &status, 0));
    CHECK_INT(0, status);
    check_busy(client, "x"); /* the other one's, which it was given in time */
    close(behind_end);
    REQUIRE_INT(behind, waitpid(behind, &status, 0));
    CHECK_INT(0, status);
    check_free(client, "x");
    hf_close(client);
}
