/* SPDX-License-Identifier: MIT
 *
 * test_mysql_faults.c: a server that crashes, connections that are killed, clients that die within a statement,
 * on every strategy.
 */
#include "late_relay.h"
#include "mysql_support.h"
#include "scene.h"

#include <stdio.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------- the server goes away */

/* A lock that is bound to a connection ends with it, which is known at once, without any traffic of the user's. */
static void check_after(struct scene *scene, const char *strategy)
{
    if (is_bound(strategy))
        scene_check_lost(scene);
    else
        scene_check_kept(scene);
    scene_end(scene);
}

static void check_restart(const char *strategy)
{
    struct mysql_server *server = start_store(strategy, "");
    struct scene scene;
    scene_begin(&scene, "x", 20000);
    mysql_server_kill(server);
    mysql_server_restart(server);
    check_after(&scene, strategy);
}

#define RESTART(name_, strategy_)                                                                                      \
    TEST_LIMIT(restart_##name_, 60)                                                                                    \
    {                                                                                                                  \
        check_restart(strategy_);                                                                                      \
    }
RESTART(lease, "lease")
RESTART(insert, "insert")
RESTART(version, "version")
RESTART(for_update, "for-update")
RESTART(get_lock, "get-lock")

/* ------------------------------------------------------------------------------------------- connections are killed */

static void kill_connections(struct mysql_server *server, const char *which)
{
    for (int64_t id; (id = mysql_server_number(server, "SELECT MIN(ID) %s", which)) > 0;) {
        char why[200];
        char sql[40];
        snprintf(sql, sizeof sql, "KILL %lld", (long long)id);
        mysql_server_try(server, why, sizeof why, sql); /* it may have gone by itself */
    }
}

static void check_kill(struct mysql_server *server, const char *strategy)
{
    struct scene scene;
    use_strategy(server, strategy);
    scene_begin(&scene, strategy, 0);
    if (is_bound(strategy)) /* the holder's */
        mysql_server_do(server, "KILL %lld",
                        (long long)mysql_server_number(
                            server, "SELECT connection FROM holdfast_locks_grants WHERE name = '%s'", strategy));
    else /* all of them, the holder's bell and the waiter's place too */
        kill_connections(server, OUR_CONNECTIONS);
    check_after(&scene, strategy);
    mysql_server_await(server, 0, "SELECT COUNT(*) " OUR_CONNECTIONS);
}

TEST_LIMIT(connections_that_are_killed, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++)
        check_kill(server, strategy_names[i]);
}

/* A lock whose connection has ended is given back behind others. The relay does not tell of the end: a ping does. */
TEST_LIMIT(a_connection_that_has_ended_costs_nothing_while_a_release_hangs, 90)
{
    struct mysql_server *server = start_store("lease", "");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    char url[200];
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?strategy=get-lock", late_relay_port(relay));
    use_url(url);
    hf_client *client = open_patient_client();
    record_loss(&options, &loss);
    hf_lock *ended = must_acquire(client, "ended", &options);
    const int64_t connection = mysql_server_number(server, "SELECT IS_USED_LOCK('app:ended')");
    options = (hf_options)HF_OPTIONS_INIT;
    options.max_hold_ms = test_ms(3000);
    late_relay_catch(relay, "RELEASE_ALL_LOCKS", 1);
    hf_lock *hung = must_acquire(client, "hung", &options);
    late_relay_await(relay); /* its release */
    mysql_server_do(server, "KILL %lld", (long long)connection);
    gate_await(&loss.told, 1);
    check_rests();
    CHECK(mysql_server_number(server, "SELECT COALESCE(IS_USED_LOCK('app:hung'), 0)") > 0); /* or it tests nothing */
    late_relay_deliver(relay);
    CHECK_STATUS(HF_LOST, hf_release(hung, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(ended, NULL), NULL);
    check_becomes_free(client, "hung");
    hf_close(client);
}

/* Who ends its wait leaves nothing behind in the server: neither a statement nor a lock. */
TEST_LIMIT(waits_that_are_given_up_leave_nothing_in_the_server, 90)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client(), *other = open_client();
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL);
        for (int round = 0; round < 2; round++) {
            struct waiter waiter;
            waiter_start(&waiter, other, strategy_names[i], NULL);
            await_waiters(client, strategy_names[i], 1);
            hf_cancel(other, strategy_names[i]);
            waiter_join(&waiter, HF_CANCELED);
        }
        must_wait_in_vain(other, strategy_names[i], 300);
        mysql_server_await(server, 0, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
        must_release(lock);
        hf_lock *again = must_acquire(other, strategy_names[i], NULL);
        must_release(again);
        hf_close(client);
        hf_close(other);
        mysql_server_await(server, 0, "SELECT COUNT(*) " OUR_CONNECTIONS);
    }
}

/* ---------------------------------------------------------------------------------------- killed within a statement */

/* The statement is at the server, held up by a row that somebody else has locked, and its client dies. Whatever the
 * server still does with it: the lock comes free. */
TEST_LIMIT(a_client_killed_within_its_statement, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct holder *doomed = holder_new(strategy_names[i]);
        doomed->options.ttl_ms = short_ttl_ms();
        const char *name = doomed->name.text;
        use_strategy(server, strategy_names[i]);
        hf_client *own = open_client();
        must_release(must_acquire(own, name, NULL));
        mysql_server_do(server, "START TRANSACTION");
        mysql_server_do(server, "SELECT * FROM holdfast_locks WHERE name = '%s' FOR UPDATE", name);
        mysql_server_do(server, "SELECT * FROM holdfast_locks_grants WHERE name = '%s' FOR UPDATE", name);
        if (strcmp(strategy_names[i], "insert") == 0) /* its row is not there: as if somebody were inserting it */
            mysql_server_do(server, "INSERT INTO holdfast_locks (name) VALUES ('%s')", name);
        pid_t pid = holder_launch(doomed);
        mysql_server_await(server, 1, "SELECT LEAST(1, COUNT(*)) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
        helper_kill(pid);
        mysql_server_do(server, "ROLLBACK");
        check_becomes_free(own, name);
        hf_close(own);
        mysql_server_await(server, 0, "SELECT COUNT(*) " OUR_CONNECTIONS);
    }
}

/* What they wrote down of themselves is removed by the next client that comes to wait. */
TEST_LIMIT(waiters_that_died_are_not_shown_and_removed_in_the_end, 60)
{
    struct mysql_server *server = start_store("lease", "");
    struct holder *doomed = holder_new("x");
    doomed->options.ttl_ms = short_ttl_ms();
    const char *name = doomed->name.text;
    hf_client *holder = open_client(), *other = open_client();
    struct waiter waiter;
    hf_lock *lock = must_acquire(holder, name, NULL);
    for (int i = 0; i < 3; i++) {
        pid_t pid = holder_launch(doomed);
        await_waiters(holder, name, 1);
        helper_kill(pid);
        mysql_server_await(server, 0, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
    }
    CHECK_INT(3, mysql_server_number(server, "SELECT COUNT(*) FROM holdfast_locks_waiters"));
    mysql_server_do(server, "UPDATE holdfast_locks_waiters SET since = since - INTERVAL 1 HOUR");
    waiter_start(&waiter, other, name, NULL);
    await_waiters(holder, name, 1);
    CHECK_INT(1, mysql_server_number(server, "SELECT COUNT(*) FROM holdfast_locks_waiters"));
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(holder);
    hf_close(other);
}

/* First in line, in the server's queue, and dead. */
TEST_LIMIT(a_waiter_killed_in_the_servers_queue_holds_up_nobody, 90)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct holder *doomed = holder_new(strategy_names[i]);
        doomed->options.ttl_ms = short_ttl_ms();
        struct waiter second;
        use_strategy(server, strategy_names[i]);
        hf_client *holder = open_client(), *other = open_client();
        hf_lock *lock = must_acquire(holder, doomed->name.text, NULL);
        pid_t pid = holder_launch(doomed);
        mysql_server_await(server, 1, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
        waiter_start(&second, other, doomed->name.text, NULL);
        mysql_server_await(server, 2, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
        helper_kill(pid);
        must_release(lock);
        waiter_finish(&second);
        hf_close(holder);
        hf_close(other);
        mysql_server_await(server, 0, "SELECT COUNT(*) " OUR_CONNECTIONS);
    }
}
