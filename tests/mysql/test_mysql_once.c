/* SPDX-License-Identifier: MIT
 *
 * test_mysql_once.c: the marks that the work of a lock is done, on every strategy: what they cost, what they survive,
 * and that nobody is granted the lock who could have seen one. test_mysql_clock.c has the clock by which they end.
 */
#include "late_relay.h"
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

#define HOUR_MS 3600000u
#define EXECUTED "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_STMT_EXECUTE'"
#define MARKS "SELECT COUNT(*) FROM holdfast_locks_done WHERE name = '%s'"
#define WAITS "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep' AND TIME_MS > 100"

static hf_options once(void)
{
    hf_options options = HF_OPTIONS_INIT;
    options.once_per_ms = HOUR_MS;
    options.owner = HF_OWNER_HANDLE;
    options.ttl_ms = endless_ttl_ms();
    return options;
}

static void do_it(hf_client *client, const char *name)
{
    const hf_options options = once();
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, name, &options), &err), &err);
}

static void check_asked(hf_client *client, const char *name, hf_status expected, const char *words)
{
    const hf_options options = once();
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    const hf_status status = hf_try_acquire(&lock, client, name, &options, &err);
    CHECK_STATUS(expected, status, &err);
    CHECK(status == HF_OK || strstr(err.message, words) != NULL);
    hf_release(lock, NULL);
}

/* --------------------------------------------------------------------------------------------------- what it costs */

static int64_t executed(struct mysql_server *server)
{
    return mysql_server_number(server, EXECUTED);
}

/* A lock that is free is asked for by as many statements as ever; a mark is one more when it is released. */
TEST_LIMIT(a_mark_costs_one_statement_when_it_is_left, 60)
{
    static const int pair[STRATEGIES] = { 2, 4, 3, 3, 2 };
    struct mysql_server *server = start_store("lease", "");
    const hf_options options = once();
    for (size_t i = 0; i < STRATEGIES; i++) {
        const char *name = strategy_names[i];
        use_strategy(server, name);
        hf_client *client = open_client();
        do_it(client, name); /* the row is made, and statements are prepared */
        CHECK_STATUS(HF_OK, hf_forget_done(client, name, NULL), NULL);
        int64_t before = executed(server);
        must_release(must_acquire(client, name, NULL));
        CHECK_INT(pair[i], executed(server) - before);
        before = executed(server);
        must_release(must_acquire(client, name, &options));
        CHECK_INT(pair[i], executed(server) - before);
        before = executed(server);
        do_it(client, name);
        CHECK_INT(pair[i] + 1, executed(server) - before);
        hf_close(client);
    }
}

/* --------------------------------------------------------------------------------------------- what it survives */

TEST_LIMIT(a_mark_survives_a_crash_of_the_server, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client();
        do_it(client, strategy_names[i]);
        hf_close(client);
    }
    mysql_server_kill(server);
    mysql_server_restart(server);
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client();
        check_asked(client, strategy_names[i], HF_DONE, "done by ");
        hf_close(client);
    }
}

/* ------------------------------------------------------------------------------------------- late and lost answers */

/* Asks from time to time, as the bell is stuck with the connection that was given up. */
static void await_free(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    while (hf_try_acquire(&lock, client, name, NULL, NULL) != HF_OK)
        pause_ms(20); /* the test's limit ends it */
    must_release(lock);
}

/* The n-th statement of a release is not answered: it is said again, and there is one mark. What arrives after that
 * leaves none. */
static void check_late_mark(struct mysql_server *server, const char *strategy, unsigned nth)
{
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client_options client_options = HF_CLIENT_OPTIONS_INIT;
    const hf_options options = once();
    hf_client *client = NULL, *other = open_client();
    hf_error err = { 0 };
    char url[200], name[60];
    snprintf(name, sizeof name, "%s-late-%u", strategy, nth);
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?strategy=%s", late_relay_port(relay), strategy);
    client_options.timeout_ms = test_ms(2500);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &client_options, &err), &err);
    do_it(client, name); /* statements are prepared */
    CHECK_STATUS(HF_OK, hf_forget_done(other, name, NULL), NULL);
    hf_lock *lock = must_acquire(client, name, &options);
    late_relay_cut(relay, name, nth);
    const hf_status status = hf_release_done(lock, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    late_relay_await(relay);
    await_free(other, name); /* the release is finished in the background */
    CHECK_INT(1, mysql_server_number(server, MARKS, name));
    check_asked(other, name, HF_DONE, "done by ");
    CHECK_STATUS(HF_OK, hf_forget_done(other, name, NULL), NULL);
    late_relay_deliver(relay);
    CHECK_INT(0, mysql_server_number(server, MARKS, name));
    check_asked(other, name, HF_OK, "");
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_release_that_is_not_answered_leaves_one_mark, 120)
{
    static const struct {
        const char *strategy;
        unsigned statements;
    } releases[] = { { "lease", 2 }, { "version", 2 }, { "insert", 3 } };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < sizeof releases / sizeof releases[0]; i++) {
        use_strategy(server, releases[i].strategy);
        for (unsigned nth = 1; nth <= releases[i].statements; nth++)
            check_late_mark(server, releases[i].strategy, nth);
    }
}

/* What is taken back late is not what was done since. */
TEST_LIMIT(a_mark_is_not_taken_back_late, 60)
{
    struct mysql_server *server = start_store("lease", "");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client_options client_options = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL, *other = open_client();
    hf_error err = { 0 };
    char url[200];
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app", late_relay_port(relay));
    client_options.timeout_ms = test_ms(2500);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &client_options, &err), &err);
    do_it(other, "x-late");
    CHECK_STATUS(HF_OK, hf_forget_done(client, "x-late", NULL), NULL); /* statements are prepared */
    do_it(other, "x-late");
    late_relay_cut(relay, "x-late", 2); /* the first looks what is there */
    CHECK_STATUS(HF_UNKNOWN, hf_forget_done(client, "x-late", &err), &err);
    late_relay_await(relay);
    CHECK_STATUS(HF_OK, hf_forget_done(client, "x-late", NULL), NULL);
    do_it(other, "x-late");
    late_relay_deliver(relay);
    CHECK_INT(1, mysql_server_number(server, MARKS, "x-late"));
    check_asked(other, "x-late", HF_DONE, "done by ");
    hf_close(client);
    hf_close(other);
}

/* --------------------------------------------------------------------------------------------- looked at in time */

/* Somebody has what a strategy waits for, leaves a mark, and gives it up. */
static const struct {
    const char *strategy, *take, *give_up;
} holders[] = {
    { "lease", "SELECT 1 FROM holdfast_locks WHERE name = 'lease' FOR UPDATE", "COMMIT" },
    { "version", "SELECT 1 FROM holdfast_locks WHERE name = 'version' FOR UPDATE", "COMMIT" },
    { "insert", "SELECT 1 FROM holdfast_locks_grants WHERE name = 'insert' FOR UPDATE", "COMMIT" },
    { "for-update", "SELECT 1 FROM holdfast_locks WHERE name = 'for-update' FOR UPDATE", "COMMIT" },
    { "get-lock", "SELECT GET_LOCK('app:get-lock', 0)", "SELECT RELEASE_ALL_LOCKS()" },
};

/* An attempt that began before the mark was there, and comes through after it, finds it. */
TEST_LIMIT(a_mark_is_looked_for_when_the_lock_is_had, 60)
{
    struct mysql_server *server = start_store("lease", "");
    const hf_options options = once();
    for (size_t i = 0; i < sizeof holders / sizeof holders[0]; i++) {
        const char *name = holders[i].strategy;
        use_strategy(server, name);
        hf_client *client = open_client();
        struct waiter waiter;
        must_release(must_acquire(client, name, &options));
        if (strcmp(name, "get-lock") != 0)
            mysql_server_do(server, "START TRANSACTION");
        CHECK_INT(1, mysql_server_number(server, "%s", holders[i].take));
        waiter_start(&waiter, client, name, &options);
        mysql_server_await(server, 1, WAITS);
        mysql_server_do(server,
                        "INSERT INTO holdfast_locks_done VALUES ('%s', 1, UTC_TIMESTAMP(6), '2100-01-01', 'h', 7, '')",
                        name);
        mysql_server_do(server, "%s", holders[i].give_up);
        waiter_join(&waiter, HF_DONE);
        CHECK(strstr(waiter.err.message, "done by h:7 ") != NULL);
        check_free(client, name);
        hf_close(client);
    }
}

/* Both come at the same moment, hundreds of times, and the work takes no time at all. */
#define NIGHTS 100

struct nights {
    _Atomic int runs[STRATEGIES][NIGHTS];
    struct gate ready[STRATEGIES][NIGHTS];
    char urls[STRATEGIES][200];
};

static void come_every_night(void *arg, uint32_t index)
{
    struct nights *nights = arg;
    const hf_options options = once();
    (void)index;
    for (size_t i = 0; i < STRATEGIES; i++) {
        store_url = nights->urls[i];
        hf_client *client = open_patient_client();
        for (unsigned j = 0; j < NIGHTS; j++) {
            char name[60];
            hf_error err = { 0 };
            hf_lock *lock = NULL;
            hf_status status = HF_BUSY;
            snprintf(name, sizeof name, "%s-%u", strategy_names[i], j);
            gate_pass(&nights->ready[i][j]);
            gate_await(&nights->ready[i][j], 3);
            while (status == HF_BUSY)
                status = hf_try_acquire(&lock, client, name, &options, &err);
            if (status == HF_OK) {
                atomic_fetch_add(&nights->runs[i][j], 1);
                status = hf_release_done(lock, &err);
            }
            CHECK(status == HF_OK || status == HF_DONE);
        }
        hf_close(client);
    }
}

TEST_LIMIT(nobody_does_it_again_in_the_moment_of_the_release, 120)
{
    struct mysql_server *server = start_store("lease", "");
    struct nights *nights = shared_new(sizeof *nights);
    for (size_t i = 0; i < STRATEGIES; i++)
        snprintf(nights->urls[i], sizeof nights->urls[i], "%s?strategy=%s", server->url, strategy_names[i]);
    hf_close(open_client()); /* the tables are made */
    run_processes(3, come_every_night, nights);
    for (size_t i = 0; i < STRATEGIES; i++) {
        for (unsigned j = 0; j < NIGHTS; j++)
            CHECK_INT(1, atomic_load(&nights->runs[i][j]));
    }
}

/* ------------------------------------------------------------------------------------------------------- the table */

/* An installation without the table of marks goes on as it was, and whoever asks for once is told what is missing. */
TEST_LIMIT(who_does_not_ask_for_once_needs_no_table_of_marks, 60)
{
    struct mysql_server *server = start_store("lease", "");
    hf_close(open_client());
    mysql_server_do(server, "DROP TABLE holdfast_locks_done");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON app.holdfast_locks TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.holdfast_locks_grants TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, DELETE ON app.holdfast_locks_waiters TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.holdfast_locks_fences TO guest@'%%'");
    for (size_t i = 0; i < STRATEGIES; i++) {
        const char *name = strategy_names[i];
        char url[200];
        snprintf(url, sizeof url, "mysql://guest:open-sesame@127.0.0.1:%d/app?strategy=%s", server->port, name);
        store_url = url;
        hf_client *client = open_client();
        must_release(must_acquire(client, name, NULL));
        check_asked(client, name, HF_DENIED, "holdfast_locks_done");
        check_becomes_free(client, name); /* with its connection */
        snprintf(url, sizeof url, "%s?create=no&strategy=%s", server->url, name);
        hf_client *other = open_client();
        check_asked(other, name, HF_INVALID, "holdfast-mysql.sql");
        check_becomes_free(other, name);
        hf_close(client);
        hf_close(other);
    }
    use_strategy(server, "lease");
    hf_client *client = open_client();
    do_it(client, "x"); /* whoever may makes it */
    check_asked(client, "x", HF_DONE, "done by ");
    hf_close(client);
}

/* Whoever may look for marks and not leave one is told so, and the lock is free all the same. */
TEST_LIMIT(a_mark_that_is_refused_is_told_and_the_lock_is_free, 60)
{
    struct mysql_server *server = start_store("lease", "");
    const hf_options options = once();
    hf_client *root = open_client();
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON app.holdfast_locks TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.holdfast_locks_grants TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, UPDATE ON app.holdfast_locks_done TO guest@'%%'");
    for (size_t i = 0; i < STRATEGIES; i++) {
        const char *name = strategy_names[i];
        hf_error err = { 0 };
        char url[200];
        snprintf(url, sizeof url, "mysql://guest:open-sesame@127.0.0.1:%d/app?strategy=%s", server->port, name);
        mysql_server_do(server, "GRANT SELECT, INSERT, DELETE ON app.holdfast_locks_waiters TO guest@'%%'");
        mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.holdfast_locks_fences TO guest@'%%'");
        store_url = url;
        hf_client *client = open_client();
        CHECK_STATUS(HF_DENIED, hf_release_done(must_acquire(client, name, &options), &err), &err);
        CHECK(strstr(err.message, "holdfast_locks_done") != NULL);
        check_becomes_free(client, name); /* its bell is let go of with its connection */
        CHECK_INT(0, mysql_server_number(server, MARKS, name));
        hf_close(client);
    }
    hf_close(root);
}
