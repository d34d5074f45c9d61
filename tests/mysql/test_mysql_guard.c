/* SPDX-License-Identifier: MIT
 *
 * test_mysql_guard.c: fencing where the data lives: holdfast_guard() in the transaction of a user who writes to a
 * table. Whatever pauses whom: nothing is written with a token older than one that was shown.
 */
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

#define NAME "account"
#define TOO_OLD 1644 /* SIGNAL */

static MYSQL *connect_user(const struct mysql_server *server)
{
    MYSQL *user = mysql_init(NULL);
    REQUIRE(user != NULL);
    REQUIRE(mysql_real_connect(user, "127.0.0.1", "root", "", "app", (unsigned)server->port, NULL, 0) != NULL);
    return user;
}

static struct mysql_server *start_with_data(void)
{
    struct mysql_server *server = start_store("lease", "");
    mysql_server_do(server, "CREATE TABLE data (value BIGINT)");
    mysql_server_do(server, "INSERT INTO data VALUES (0)");
    return server;
}

/* Runs it and gives the error's number, 0 if all went well. */
static int run(MYSQL *user, const char *format, uint64_t token)
{
    char sql[200];
    snprintf(sql, sizeof sql, format, (unsigned long long)token);
    return mysql_query(user, sql) == 0 ? 0 : (int)mysql_errno(user);
}

#define BEGIN "START TRANSACTION -- %llu"
#define SHOW "CALL holdfast_guard('" NAME "', %llu)"
#define WRITE "UPDATE data SET value = %llu"
#define COMMIT "COMMIT -- %llu"
#define ROLLBACK "ROLLBACK -- %llu"

static void check_data(struct mysql_server *server, uint64_t expected)
{
    CHECK_INT(expected, mysql_server_number(server, "SELECT value FROM data"));
}

TEST_LIMIT(a_refusal_is_a_sentence, 60)
{
    struct mysql_server *server = start_with_data();
    MYSQL *user = connect_user(server);
    CHECK_INT(0, run(user, SHOW, 7));
    CHECK_INT(0, run(user, SHOW, 7));
    CHECK_INT(TOO_OLD, run(user, SHOW, 6));
    CHECK_STR("token 6 is too old: 7 was shown before", mysql_error(user));
    CHECK_STR("45000", mysql_sqlstate(user));
    /* The same rows as hf_guard(). */
    hf_client *client = open_client();
    CHECK_STATUS(HF_LOST, hf_guard(client, NAME, 6, NULL), NULL);
    CHECK_STATUS(HF_OK, hf_guard(client, NAME, 9, NULL), NULL);
    CHECK_INT(TOO_OLD, run(user, SHOW, 8));
    /* A transaction that is rolled back has shown nothing. */
    CHECK_INT(0, run(user, BEGIN, 0));
    CHECK_INT(0, run(user, SHOW, 20));
    CHECK_INT(0, run(user, ROLLBACK, 0));
    CHECK_INT(0, run(user, SHOW, 10));
    hf_close(client);
    mysql_close(user);
}

/* --- two tokens in both orders --- */

struct shower {
    const struct mysql_server *server;
    uint64_t token;
    int outcome;
    pthread_t thread;
};

static void *show_and_write(void *arg)
{
    struct shower *shower = arg;
    MYSQL *user = connect_user(shower->server);
    CHECK_INT(0, run(user, BEGIN, 0));
    shower->outcome = run(user, SHOW, shower->token);
    if (shower->outcome == 0) {
        CHECK_INT(0, run(user, WRITE, shower->token));
        CHECK_INT(0, run(user, COMMIT, 0));
    }
    mysql_close(user);
    return NULL;
}

/* Shows one token in a transaction, lets another user show `second` meanwhile, who has to wait, and then writes. */
static int show_in_turn(struct mysql_server *server, uint64_t first, uint64_t second)
{
    struct shower shower = { .server = server, .token = second };
    MYSQL *user = connect_user(server);
    CHECK_INT(0, run(user, BEGIN, 0));
    CHECK_INT(0, run(user, SHOW, first));
    REQUIRE_INT(0, pthread_create(&shower.thread, NULL, show_and_write, &shower));
    mysql_server_await(server, 1, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND = 'Query' AND TIME_MS > 100");
    CHECK_INT(0, run(user, WRITE, first));
    CHECK_INT(0, run(user, COMMIT, 0));
    REQUIRE_INT(0, pthread_join(shower.thread, NULL));
    mysql_close(user);
    return shower.outcome;
}

TEST_LIMIT(two_tokens_in_both_orders, 60)
{
    struct mysql_server *server = start_with_data();
    CHECK_INT(0, show_in_turn(server, 5, 6));
    check_data(server, 6);
    CHECK_INT(TOO_OLD, show_in_turn(server, 9, 8));
    check_data(server, 9);
}

/* --- paused --- */

struct writer {
    const struct mysql_server *server;
    struct gate held, go;
    _Atomic uint64_t token;
    int shown, written;
};

static void write_with_lock(void *arg)
{
    struct writer *writer = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = short_ttl_ms();
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, &options);
    const uint64_t token = hf_token(lock);
    MYSQL *user = connect_user(writer->server);
    atomic_store(&writer->token, token);
    gate_pass(&writer->held);
    gate_await(&writer->go, 1); /* paused here, and does not know it */
    CHECK_INT(0, run(user, BEGIN, 0));
    writer->shown = run(user, SHOW, token);
    writer->written = writer->shown == 0 ? run(user, WRITE, token) : -1;
    run(user, writer->shown == 0 ? COMMIT : ROLLBACK, 0);
    mysql_close(user);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}

TEST_LIMIT(a_paused_writer_is_refused, 60)
{
    struct mysql_server *server = start_with_data();
    struct writer *writer = shared_new(sizeof *writer);
    writer->server = server;
    pid_t pid = helper_start(write_with_lock, writer);
    gate_await(&writer->held, 1);
    helper_stop(pid);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    const uint64_t token = hf_token(lock);
    REQUIRE(token > atomic_load(&writer->token));
    MYSQL *user = connect_user(server);
    CHECK_INT(0, run(user, BEGIN, 0));
    CHECK_INT(0, run(user, SHOW, token));
    CHECK_INT(0, run(user, WRITE, token));
    CHECK_INT(0, run(user, COMMIT, 0));
    gate_pass(&writer->go);
    helper_continue(pid);
    helper_join(pid);
    CHECK_INT(TOO_OLD, writer->shown);
    CHECK_INT(-1, writer->written);
    check_data(server, token);
    must_release(lock);
    mysql_close(user);
    hf_close(client);
}

/* --- rights --- */

TEST_LIMIT(a_writer_needs_no_more_than_to_execute_it, 60)
{
    struct mysql_server *server = start_with_data();
    MYSQL *guest = mysql_init(NULL);
    REQUIRE(guest != NULL);
    mysql_server_do(server, "GRANT EXECUTE ON PROCEDURE app.holdfast_guard TO guest@'%%'");
    REQUIRE(mysql_real_connect(guest, "127.0.0.1", "guest", "open-sesame", "app", (unsigned)server->port, NULL, 0) !=
            NULL);
    CHECK_INT(0, run(guest, SHOW, 3));
    CHECK_INT(TOO_OLD, run(guest, SHOW, 2));
    CHECK(run(guest, "DELETE FROM holdfast_locks_fences -- %llu", 0) != 0);
    mysql_close(guest);
    /* A table of another name has a guard of another name. */
    check_open_at(HF_OK, "", "%s?table=jobs", server->url);
    mysql_server_do(server, "CALL jobs_guard('x', 1)");
    CHECK_INT(1, mysql_server_number(server, "SELECT token FROM jobs_fences WHERE resource = 'x'"));
}
