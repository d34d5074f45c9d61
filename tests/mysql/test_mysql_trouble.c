/* SPDX-License-Identifier: MIT
 *
 * test_mysql_trouble.c: what can be wrong with a URL, a user, a table or a server has a status and a sentence, which
 * never holds a password.
 */
#include "mysql_support.h"
#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(urls_that_make_no_sense)
{
    check_open("mysql:here", HF_INVALID, "looks like this");
    check_open("mysql://h/", HF_INVALID, "no database");
    check_open("mysql://h:99999/d", HF_INVALID, "port");
    check_open("mysql://h:x/d", HF_INVALID, "port");
    check_open("mysql://[::1/d", HF_INVALID, "not closed");
    check_open("mysql://h/d?strategy=mutex", HF_INVALID, "for-update");
    check_open("mysql://h/d?strategy=", HF_INVALID, "strategy");
    check_open("mysql://h/d?table=a.b.c", HF_INVALID, "database.name");
    check_open("mysql://h/d?table=1a", HF_INVALID, "database.name");
    check_open("mysql://h/d?table=x%60y", HF_INVALID, "database.name");
    check_open("mysql://h/d?create=maybe", HF_INVALID, "yes or no");
    check_open("mysql://h/d?ssl=1", HF_INVALID, "yes or no");
    check_open("mysql://h/d?pooler=transaction", HF_INVALID, "pooler is session");
    check_open("mysql://h/d?colour=blue", HF_INVALID, "colour");
    check_open("mysql://h/d?password=open-sesame", HF_INVALID, "unknown option \"password\"");
    check_open("mysql://u:open-sesame%zz@h/d", HF_INVALID, "hexadecimal");
    check_open("mariadb://h/d?password-file=/nowhere/file", HF_UNAVAILABLE, "/nowhere/file");
}

TEST(servers_that_are_not_there)
{
    check_open("mysql://u:open-sesame@127.0.0.1:1/d", HF_UNAVAILABLE, "127.0.0.1:1");
    check_open("mysql://u:open-sesame@[::1]:1/d", HF_UNAVAILABLE, "::1");
    check_open("mysql://no-such-host.invalid/d", HF_UNAVAILABLE, "no-such-host.invalid");
    check_open("mysql:///d?socket=/nonexistent", HF_UNAVAILABLE, "/nonexistent");
}

TEST_LIMIT(users_and_databases, 60)
{
    char url[300];
    struct mysql_server *server = start_store("lease", "");
    check_open_at(HF_DENIED, "1045", "mysql://guest:sesame-street@127.0.0.1:%d/app", server->port);
    check_open_at(HF_DENIED, "1045", "mysql://guest@127.0.0.1:%d/app", server->port);
    check_open_at(HF_DENIED, "1044", "mysql://guest:open-sesame@127.0.0.1:%d/app", server->port);
    check_open_at(HF_INVALID, "1049", "mysql://root@127.0.0.1:%d/nowhere", server->port);
    /* Into the database, but without a right on the tables. */
    mysql_server_do(server, "CREATE TABLE other (x INT)");
    mysql_server_do(server, "GRANT SELECT ON app.other TO guest@'%%'");
    snprintf(url, sizeof url, "mysql://guest:open-sesame@127.0.0.1:%d/app", server->port);
    check_open(url, HF_INVALID, "may not create");
    mysql_server_do(server, "GRANT SELECT ON app.* TO guest@'%%'");
    hf_client *client = NULL;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, NULL, &err), &err);
    CHECK(strstr(hf_url(client), "sesame") == NULL && strstr(hf_url(client), "guest") != NULL);
    CHECK_STATUS(HF_DENIED, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    hf_close(client);
}

/* All that is needed, for everything. */
TEST_LIMIT(the_least_privileges, 60)
{
    char url[300];
    struct mysql_server *server = start_store("lease", "");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON app.holdfast_locks TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.holdfast_locks_grants TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, DELETE ON app.holdfast_locks_waiters TO guest@'%%'");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.holdfast_locks_fences TO guest@'%%'");
    for (size_t i = 0; i < STRATEGIES; i++) {
        snprintf(url, sizeof url, "mysql://guest:open-sesame@127.0.0.1:%d/app?strategy=%s", server->port,
                 strategy_names[i]);
        store_url = url;
        hf_client *client = open_client(), *other = open_client();
        hf_error err = { 0 };
        struct waiter waiter;
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL); /* a name has one strategy */
        waiter_start(&waiter, other, strategy_names[i], NULL);
        await_waiters(client, strategy_names[i], 1);
        CHECK_STATUS(HF_OK, hf_break(other, strategy_names[i], &err), &err);
        waiter_join(&waiter, HF_OK);
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        must_release(waiter.lock);
        CHECK_STATUS(HF_OK, hf_guard(client, strategy_names[i], 1, &err), &err);
        hf_close(client);
        hf_close(other);
    }
}

TEST_LIMIT(tables_that_are_missing, 60)
{
    char url[300];
    struct mysql_server *server = mysql_server_start("");
    snprintf(url, sizeof url, "%s?create=no", server->url);
    check_open(url, HF_INVALID, "holdfast-mysql.sql");
    check_open(server->url, HF_OK, "");
    check_open(url, HF_OK, "");
    /* Dropped under a client that is open: made anew. */
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client();
        must_release(must_acquire(client, "x", NULL));
        mysql_server_do(server, "DROP TABLE holdfast_locks, holdfast_locks_grants");
        must_release(must_acquire(client, "x", NULL));
        hf_close(client);
        mysql_server_do(server, "DROP TABLE holdfast_locks, holdfast_locks_grants"); /* a name has one strategy */
    }
}

static void read_from(const void *path)
{
    REQUIRE(freopen(path, "r", stdin) != NULL);
}

/* What the script makes is what the engine makes. */
TEST_LIMIT(the_script_for_those_who_may_not_create, 60)
{
    char command[700];
    struct mysql_server *server = start_store("lease", "");
    const struct home_program program = { .home = server->directory,
                                          .prepare = read_from,
                                          .arg = home_need("TEST_SQL") };
    mysql_server_do(server, "CREATE DATABASE elsewhere");
    snprintf(command, sizeof command, "%s --no-defaults -uroot --socket=%s/socket elsewhere",
             home_need("TEST_MYSQL_COMMAND"), server->directory);
    for (int round = 0; round < 2; round++) /* once more does no harm */
        home_run(&program, command);
    CHECK_INT(42, mysql_server_number(server, "SELECT COUNT(*) FROM information_schema.COLUMNS a"
                                              " JOIN information_schema.COLUMNS b USING (TABLE_NAME, COLUMN_NAME,"
                                              " ORDINAL_POSITION, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY)"
                                              " WHERE a.TABLE_SCHEMA = 'app' AND b.TABLE_SCHEMA = 'elsewhere' AND"
                                              " a.COLUMN_DEFAULT <=> b.COLUMN_DEFAULT"));
    CHECK_INT(42, mysql_server_number(server, "SELECT COUNT(*) FROM information_schema.COLUMNS"
                                              " WHERE TABLE_SCHEMA = 'elsewhere'"));
    CHECK_INT(1, mysql_server_number(server, "SELECT COUNT(DISTINCT REPLACE(REGEXP_REPLACE(ROUTINE_DEFINITION,"
                                             " '[[:space:]]+', ' '), '`', '')) FROM information_schema.ROUTINES"
                                             " WHERE ROUTINE_NAME = 'holdfast_guard'"));
    check_open_at(HF_OK, "", "mysql://root@127.0.0.1:%d/elsewhere?create=no", server->port);
}

TEST_LIMIT(tables_that_cannot_hold_locks_are_refused, 60)
{
    char url[300];
    struct mysql_server *server = mysql_server_start("");
    snprintf(url, sizeof url, "%s?table=mine", server->url);
    mysql_server_do(server, "CREATE TABLE mine (name VARBINARY(255), token BIGINT)");
    check_open(url, HF_INVALID, "unique index");
    mysql_server_do(server, "ALTER TABLE mine ADD UNIQUE (name, token)");
    check_open(url, HF_INVALID, "unique index");
    mysql_server_do(server, "ALTER TABLE mine ADD UNIQUE (name(10))");
    check_open(url, HF_INVALID, "unique index");
    mysql_server_do(server, "DROP TABLE mine");
    mysql_server_do(server, "CREATE TABLE mine (name VARCHAR(255) CHARACTER SET utf8mb4 PRIMARY KEY)");
    check_open(url, HF_INVALID, "VARBINARY(255)");
    mysql_server_do(server, "DROP TABLE mine");
    mysql_server_do(server, "CREATE TABLE mine (name VARBINARY(255) PRIMARY KEY) ENGINE=MyISAM");
    check_open(url, HF_INVALID, "InnoDB");
    mysql_server_do(server, "CREATE DATABASE elsewhere");
    check_open_at(HF_OK, "", "%s?table=elsewhere.others", server->url);
    CHECK_INT(1, mysql_server_number(server, "SELECT COUNT(*) FROM information_schema.TABLES"
                                             " WHERE TABLE_SCHEMA = 'elsewhere' AND TABLE_NAME = 'others_grants'"));
}

/* 'a' and 'a ', 'A' and 'a' are equal for most collations, and for user-level locks of MySQL. */
TEST_LIMIT(names_that_a_collation_would_mix_up, 60)
{
    static const char *const names[] = { "a", "a ", "A", "\xc3\xa4", "\xc3\x84", "ae", "a:b", "app:a" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        hf_lock *locks[sizeof names / sizeof names[0]];
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_client();
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
            locks[j] = must_acquire(client, names[j], NULL);
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
            must_release(locks[j]);
        hf_close(client);
        mysql_server_do(server, "DELETE FROM holdfast_locks");
        mysql_server_do(server, "DELETE FROM holdfast_locks_grants");
    }
}

TEST_LIMIT(a_server_that_may_only_be_read, 60)
{
    struct mysql_server *server = start_store("lease", "");
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL), *none = NULL;
    mysql_server_do(server, "SET GLOBAL read_only = 1");
    check_open(server->url, HF_UNAVAILABLE, "read-only");
    /* root may write all the same, and a connection that is there says so. */
    must_release(lock);
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE ON app.* TO guest@'%%'");
    mysql_server_do(server, "SET GLOBAL read_only = 0");
    char url[200];
    snprintf(url, sizeof url, "mysql://guest:open-sesame@127.0.0.1:%d/app", server->port);
    store_url = url;
    hf_client *guest = open_client();
    mysql_server_do(server, "SET GLOBAL read_only = 1");
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&none, guest, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "read-only") != NULL);
    mysql_server_do(server, "SET GLOBAL read_only = 0");
    must_release(must_acquire(guest, "x", NULL));
    hf_close(guest);
    hf_close(client);
}

/* Whatever a server has as its defaults, a lock does not end, wait or mean something else because of it. */
TEST_LIMIT(defaults_of_the_server_change_nothing, 90)
{
    static const char *const defaults[] = { "sql_select_limit = 1", "sql_select_limit = 0",
                                            "autocommit = 0",       "completion_type = 2",
                                            "tx_read_only = 1",     "max_join_size = 1",
                                            "sql_mode = ANSI",      "max_statement_time = 0.000001" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0] * STRATEGIES; i++) {
        const char *strategy = strategy_names[i % STRATEGIES];
        hf_options options = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        mysql_server_do(server, "SET GLOBAL %s", defaults[i / STRATEGIES]);
        use_strategy(server, strategy);
        hf_client *client = open_client(), *other = open_client();
        record_loss(&options, &loss);
        options.ttl_ms = endless_ttl_ms();
        hf_lock *lock = must_acquire(client, strategy, &options); /* a name has one strategy */
        hf_lock *second = must_acquire(client, numbered_name(strategy, 2).text, &options);
        struct waiter waiter;
        waiter_start(&waiter, other, strategy, NULL);
        await_waiters(client, strategy, 1);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        CHECK_INT(0, gate_count(&loss.told));
        must_release(lock);
        waiter_finish(&waiter);
        must_release(second);
        check_becomes_free(client, strategy);
        hf_close(client);
        hf_close(other);
        mysql_server_do(server, "SET GLOBAL %.*s = DEFAULT", (int)strcspn(defaults[i / STRATEGIES], " "),
                        defaults[i / STRATEGIES]);
    }
}

/* One of them is lost, and which one is asked for: the answer has many rows. */
TEST_LIMIT(a_limit_on_rows_loses_no_other_lock, 60)
{
    enum { COUNT = 5 };
    struct mysql_server *server = start_store("lease", "");
    hf_lock *locks[COUNT];
    static struct loss losses[COUNT];
    mysql_server_do(server, "SET GLOBAL sql_select_limit = 1");
    hf_client *client = open_client();
    for (unsigned i = 0; i < COUNT; i++) {
        hf_options options = HF_OPTIONS_INIT;
        options.ttl_ms = test_ms(3000);
        record_loss(&options, &losses[i]);
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
    }
    mysql_server_do(server, "UPDATE holdfast_locks SET owner = NULL WHERE name = '%s'", numbered_name("many", 0).text);
    gate_await(&losses[0].told, 1);
    CHECK_STATUS(HF_LOST, hf_release(locks[0], NULL), NULL);
    for (unsigned i = 1; i < COUNT; i++) {
        CHECK_INT(0, gate_count(&losses[i].told));
        must_release(locks[i]);
    }
    hf_close(client);
}

/* What version 0.1 made: it gets the columns that are missing; or there is a sentence that says what helps. */
TEST_LIMIT(tables_of_an_older_version, 60)
{
    struct mysql_server *server = start_store("lease", "");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO guest@'%%'");
    for (int round = 0; round < 3; round++) {
        mysql_server_do(server, "ALTER TABLE holdfast_locks DROP COLUMN request, DROP COLUMN undone");
        mysql_server_do(server, "ALTER TABLE holdfast_locks_grants DROP COLUMN undone");
        check_open_at(HF_INVALID, "holdfast-mysql.sql", "%s?create=no", server->url);
        check_open_at(HF_INVALID, "may not alter", "mysql://guest:open-sesame@127.0.0.1:%d/app", server->port);
        use_strategy(server, strategy_names[round]);
        hf_client *client = open_client();
        must_release(must_acquire(client, strategy_names[round], NULL));
        hf_close(client);
    }
}

/* Whoever brought them up to date has stopped anywhere: the engine and the script add what is left. */
TEST_LIMIT(tables_of_an_older_version_that_have_got_some_columns, 60)
{
    static const char *const drop[] = { "ALTER TABLE holdfast_locks DROP COLUMN request",
                                        "ALTER TABLE holdfast_locks DROP COLUMN undone",
                                        "ALTER TABLE holdfast_locks_grants DROP COLUMN undone" };
    char command[700], no[300];
    struct mysql_server *server = start_store("lease", "");
    const struct home_program script = { .home = server->directory,
                                         .prepare = read_from,
                                         .arg = home_need("TEST_SQL") };
    snprintf(command, sizeof command, "%s --no-defaults -uroot --socket=%s/socket app", home_need("TEST_MYSQL_COMMAND"),
             server->directory);
    snprintf(no, sizeof no, "%s?create=no", server->url);
    for (unsigned missing = 1; missing < 8; missing++) {
        for (unsigned round = 0; round < 2; round++) {
            for (unsigned i = 0; i < 3; i++) {
                if (missing & 1u << i)
                    mysql_server_do(server, "%s", drop[i]);
            }
            check_open(no, HF_INVALID, "holdfast-mysql.sql");
            if (round == 0)
                check_open(server->url, HF_OK, "");
            else
                home_run(&script, command);
            check_open(no, HF_OK, "");
        }
    }
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}

TEST_LIMIT(too_many_connections_are_a_passing_trouble, 60)
{
    struct mysql_server *server = start_store("get-lock", "--max-connections=10");
    hf_client *client = open_client();
    hf_lock *locks[30];
    hf_error err = { 0 };
    int held = 0;
    hf_status status = HF_OK;
    while (held < 30 && status == HF_OK) {
        status = hf_try_acquire(&locks[held], client, numbered_name("x", (unsigned)held).text, NULL, &err);
        held += status == HF_OK;
    }
    CHECK_STATUS(HF_UNAVAILABLE, status, &err);
    CHECK(held > 2 && strstr(err.message, "onnections") != NULL);
    for (int i = 0; i < held; i++)
        must_release(locks[i]);
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
    (void)server;
}

/* What is written to the log of a server that logs statements must be allowed to be written. */
TEST_LIMIT(every_format_of_the_binary_log, 90)
{
    static const char *const formats[] = { "STATEMENT", "MIXED", "ROW" };
    for (size_t i = 0; i < 3; i++) {
        char settings[100];
        snprintf(settings, sizeof settings, "--log-bin=binlog --server-id=1 --binlog-format=%s", formats[i]);
        struct mysql_server *server = start_store("lease", settings);
        CHECK_INT(1, mysql_server_number(server, "SELECT @@log_bin"));
        for (size_t j = 0; j < STRATEGIES; j++) {
            use_strategy(server, strategy_names[j]);
            hf_client *client = open_client(), *other = open_client();
            struct waiter waiter;
            hf_lock *lock = must_acquire(client, strategy_names[j], NULL);
            waiter_start(&waiter, other, strategy_names[j], NULL);
            await_waiters(client, strategy_names[j], 1);
            must_release(lock);
            waiter_finish(&waiter);
            hf_options once = HF_OPTIONS_INIT;
            once.once_per_ms = 60000;
            CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, strategy_names[j], &once), NULL), NULL);
            CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, other, strategy_names[j], &once, NULL), NULL);
            hf_close(client);
            hf_close(other);
        }
        mysql_server_stop(server);
    }
}
