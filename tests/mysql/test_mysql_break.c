/* SPDX-License-Identifier: MIT
 *
 * test_mysql_break.c: what a holder whose lock was broken is told.
 */
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

#define MARKS "SELECT count(*) FROM holdfast_locks_grants WHERE note LIKE 'token % broken by %'"

TEST_LIMIT(a_holder_is_told_who_breaks_its_lock, 90)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        use_strategy(server, strategy_names[i]);
        check_broken_is_told();
        check_broken_is_told_with_others(endless_ttl_ms()); /* its connection is ended, which has it ask at once */
    }
}

/* And of whom nothing else tells that it has it no more. */
TEST_LIMIT(a_holder_is_told_though_a_bound_strategy_had_the_name_before, 90)
{
    static const char *const bound[] = { "get-lock", "for-update" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        for (size_t b = 0; b < 2; b++) {
            char url[200];
            use_strategy(server, strategy_names[i]);
            snprintf(url, sizeof url, "%s?strategy=%s", server->url, bound[b]);
            check_broken_is_told_after(url, b == 1);
        }
    }
}

static int64_t notes(void *server)
{
    return mysql_server_number(server, "%s", MARKS);
}

static void remove_row(void *server, const char *name)
{
    mysql_server_do(server, "DELETE FROM holdfast_locks WHERE name = '%s'", name);
}

TEST_LIMIT(a_break_is_not_told_of_another_hold, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        use_strategy(server, strategy_names[i]);
        check_broken_is_not_told_of_others(strategy_names[i], server, notes, remove_row);
    }
}

/* Where nobody can write down who broke it, the next one is served all the same. */
TEST_LIMIT(a_break_waits_for_no_row_of_grants, 60)
{
    static const char *const names[] = { "lease", "version" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT, waits = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        struct waiter waiter;
        hf_error err = { 0 };
        use_strategy(server, names[i]);
        hf_client *client = open_client(), *other = open_client();
        record_loss(&options, &loss);
        options.ttl_ms = endless_ttl_ms();
        hf_lock *lock = must_acquire(client, names[i], &options);
        waits.wait_ms = test_ms(10000); /* sooner than it would look by itself */
        waiter_start(&waiter, other, names[i], &waits);
        await_waiters(other, names[i], 1);
        mysql_server_do(server, "BEGIN");
        mysql_server_do(server, "INSERT INTO holdfast_locks_grants (name) VALUES ('%s')", names[i]);
        CHECK_STATUS(HF_OK, hf_break(other, names[i], &err), &err);
        waiter_join(&waiter, HF_OK);
        gate_await(&loss.told, 1);
        mysql_server_do(server, "COMMIT");
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        must_release(waiter.lock);
        hf_close(client);
        hf_close(other);
    }
}

/* It closes the connection without a word. */
TEST_LIMIT(a_holder_is_told_that_its_connection_was_closed, 60)
{
    static const char *const bound[] = { "for-update", "get-lock" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        use_strategy(server, bound[i]);
        hf_client *client = open_client(), *other = open_client();
        record_loss(&options, &loss);
        hf_lock *lock = must_acquire(client, bound[i], &options);
        CHECK_STATUS(HF_OK, hf_break(other, bound[i], NULL), NULL);
        gate_await(&loss.told, 1);
        CHECK_STR("its connection to the server was closed: it was broken, or ended there", loss.why);
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        hf_close(client);
        hf_close(other);
    }
}
