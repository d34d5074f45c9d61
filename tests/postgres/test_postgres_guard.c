/* SPDX-License-Identifier: MIT
 *
 * test_postgres_guard.c: fencing where the data lives: hf_guard(), and holdfast_guard() in the transaction of a user
 * who writes to a table. Whatever pauses or kills whom: nothing is written with a token older than one that was shown.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

#define NAME "account"

/* ------------------------------------------------------------------------------------------------ a user who writes */

static PGconn *connect_user(const struct postgres_server *server)
{
    PGconn *user = PQconnectdb(server->url);
    REQUIRE_INT(CONNECTION_OK, PQstatus(user));
    return user;
}

static struct postgres_server *start_with_data(void)
{
    struct postgres_server *server = start_store("lease", "");
    postgres_server_do(server, "CREATE TABLE data (value bigint)");
    postgres_server_do(server, "INSERT INTO data VALUES (0)");
    return server;
}

/* Runs it and gives the SQLSTATE, "" if all went well. */
static const char *run(PGconn *user, const char *format, int64_t token)
{
    static char state[6];
    char sql[300];
    snprintf(sql, sizeof sql, format, (long long)token);
    PGresult *result = PQexec(user, sql);
    const char *found = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    snprintf(state, sizeof state, "%s", found ? found : PQstatus(user) == CONNECTION_OK ? "" : "lost");
    PQclear(result);
    return state;
}

#define BEGIN "BEGIN -- %lld"
#define SHOW "SELECT holdfast_guard('" NAME "', %lld)"
#define WRITE "UPDATE data SET value = %lld"
#define COMMIT "COMMIT -- %lld"
#define ROLLBACK "ROLLBACK -- %lld"

static void check_data(struct postgres_server *server, int64_t expected)
{
    CHECK_INT(expected, postgres_server_number(server, "SELECT value FROM data"));
}

/* Sends it, and waits until the server has it wait for somebody else. */
static void begin_to_show(struct postgres_server *server, PGconn *user, int64_t token)
{
    char sql[100], waits[200];
    snprintf(sql, sizeof sql, SHOW, (long long)token);
    REQUIRE_INT(1, PQsendQuery(user, sql));
    snprintf(waits, sizeof waits, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event_type = 'Lock'",
             PQbackendPID(user));
    postgres_server_await(server, 1, waits);
}

static void check_shown(PGconn *user, const char *expected)
{
    PGresult *result = PQgetResult(user);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    CHECK_STR(expected, state ? state : "");
    PQclear(result);
    CHECK(PQgetResult(user) == NULL);
}

/* ------------------------------------------------------------------------------------------------------- hf_guard() */

TEST_LIMIT(a_smaller_token_than_was_shown_is_refused, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        CHECK(store_can(HF_CAP_GUARD));
        hf_client *client = open_client(), *other = open_client();
        const char *resource = strategy_names[i];
        hf_error err = { 0 };
        CHECK_STATUS(HF_OK, hf_guard(client, resource, 10, &err), &err);
        CHECK_STATUS(HF_OK, hf_guard(other, resource, 10, &err), &err);
        CHECK_STATUS(HF_OK, hf_guard(other, resource, INT64_MAX - 1, &err), &err);
        CHECK_STATUS(HF_LOST, hf_guard(client, resource, 11, &err), &err);
        CHECK(strstr(err.message, resource) != NULL && err.status == HF_LOST);
        CHECK_STATUS(HF_OK, hf_guard(client, "'; DROP TABLE x; --", 1, &err), &err);
        /* A grant's token passes, and the next one's, in order. */
        hf_lock *lock = must_acquire(client, NAME, NULL);
        const uint64_t token = hf_token(lock);
        must_release(lock);
        lock = must_acquire(other, NAME, NULL);
        CHECK_STATUS(HF_OK, hf_guard(other, NAME, hf_token(lock), &err), &err);
        CHECK_STATUS(HF_LOST, hf_guard(client, NAME, token, &err), &err);
        must_release(lock);
        hf_close(client);
        hf_close(other);
        postgres_server_do(server, "TRUNCATE holdfast_locks, holdfast_locks_grants, holdfast_locks_fences");
    }
}

/* ---------------------------------------------------------------------------------------- two tokens in both orders */

TEST_LIMIT(the_older_one_first, 60)
{
    struct postgres_server *server = start_with_data();
    PGconn *older = connect_user(server), *newer = connect_user(server);
    CHECK_STR("", run(older, BEGIN, 0));
    CHECK_STR("", run(older, SHOW, 5));
    CHECK_STR("", run(newer, BEGIN, 0));
    begin_to_show(server, newer, 6); /* must not be done before the older one is through */
    CHECK_STR("", run(older, WRITE, 5));
    CHECK_STR("", run(older, COMMIT, 0));
    check_shown(newer, "");
    CHECK_STR("", run(newer, WRITE, 6));
    CHECK_STR("", run(newer, COMMIT, 0));
    check_data(server, 6);
    CHECK_STR("HF001", run(older, SHOW, 5));
    PQfinish(older);
    PQfinish(newer);
}

TEST_LIMIT(the_newer_one_first, 60)
{
    struct postgres_server *server = start_with_data();
    PGconn *older = connect_user(server), *newer = connect_user(server);
    CHECK_STR("", run(newer, BEGIN, 0));
    CHECK_STR("", run(newer, SHOW, 6));
    CHECK_STR("", run(newer, WRITE, 6));
    CHECK_STR("", run(older, BEGIN, 0));
    begin_to_show(server, older, 5);
    CHECK_STR("", run(newer, COMMIT, 0));
    check_shown(older, "HF001");
    CHECK_STR("25P02", run(older, WRITE, 5)); /* its transaction is over */
    CHECK_STR("", run(older, COMMIT, 0));
    check_data(server, 6);
    PQfinish(older);
    PQfinish(newer);
}

TEST_LIMIT(what_is_rolled_back_was_not_shown, 60)
{
    struct postgres_server *server = start_with_data();
    PGconn *older = connect_user(server), *newer = connect_user(server);
    CHECK_STR("", run(newer, BEGIN, 0));
    CHECK_STR("", run(newer, SHOW, 6));
    CHECK_STR("", run(older, BEGIN, 0));
    begin_to_show(server, older, 5);
    CHECK_STR("", run(newer, ROLLBACK, 0));
    check_shown(older, "");
    CHECK_STR("", run(older, WRITE, 5));
    CHECK_STR("", run(older, COMMIT, 0));
    check_data(server, 5);
    PQfinish(older);
    PQfinish(newer);
}

/* The user's transaction may see the past: it is then told to start again, and refused when it does. */
TEST_LIMIT(isolation_levels_make_no_hole, 60)
{
    static const char *const levels[] = { "REPEATABLE READ", "SERIALIZABLE" };
    struct postgres_server *server = start_with_data();
    PGconn *older = connect_user(server), *newer = connect_user(server);
    for (int i = 0; i < 2; i++) {
        char begin[100];
        snprintf(begin, sizeof begin, "BEGIN ISOLATION LEVEL %s -- %%lld", levels[i]);
        CHECK_STR("", run(newer, SHOW, 10 * i + 1));
        CHECK_STR("", run(older, begin, 0));
        CHECK_STR("", run(older, "SELECT value + %lld FROM data", 0)); /* from now on it sees this moment */
        CHECK_STR("", run(newer, SHOW, 10 * i + 6));
        CHECK_STR("40001", run(older, SHOW, 10 * i + 5));
        CHECK_STR("", run(older, ROLLBACK, 0));
        CHECK_STR("", run(older, begin, 0));
        CHECK_STR("HF001", run(older, SHOW, 10 * i + 5));
        CHECK_STR("", run(older, ROLLBACK, 0));
    }
    CHECK_STR("23502", run(older, "SELECT holdfast_guard('" NAME "', NULL) -- %lld", 0));
    PQfinish(older);
    PQfinish(newer);
}

/* --------------------------------------------------------------------------------------------------- paused writers */

struct writer {
    const struct postgres_server *server;
    struct gate held, go;
    _Atomic uint64_t token;
    char shown[6], written[6], committed[6];
    bool pauses_within; /* its transaction; else before it */
};

static void write_with_lock(void *arg)
{
    struct writer *writer = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = short_ttl_ms();
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, &options);
    const int64_t token = (int64_t)hf_token(lock);
    PGconn *user = connect_user(writer->server);
    atomic_store(&writer->token, hf_token(lock));
    if (writer->pauses_within) {
        CHECK_STR("", run(user, BEGIN, 0));
        CHECK_STR("", run(user, SHOW, token));
    }
    gate_pass(&writer->held);
    gate_await(&writer->go, 1); /* here it is stopped; it does not look whether it still has the lock */
    if (!writer->pauses_within) {
        CHECK_STR("", run(user, BEGIN, 0));
        snprintf(writer->shown, sizeof writer->shown, "%s", run(user, SHOW, token));
    }
    snprintf(writer->written, sizeof writer->written, "%s", run(user, WRITE, token));
    snprintf(writer->committed, sizeof writer->committed, "%s", run(user, COMMIT, 0));
    PQfinish(user);
    hf_release(lock, NULL);
    hf_close(client);
}

/* The lock is somebody else's by now, who has not written yet. */
static hf_lock *overtake(hf_client *client, const struct writer *writer)
{
    hf_lock *lock = must_acquire(client, NAME, NULL);
    REQUIRE(hf_token(lock) > atomic_load(&writer->token));
    return lock;
}

TEST_LIMIT(a_writer_paused_before_its_transaction_is_refused, 60)
{
    struct postgres_server *server = start_with_data();
    struct writer *writer = shared_new(sizeof *writer);
    writer->server = server;
    pid_t pid = helper_start(write_with_lock, writer);
    gate_await(&writer->held, 1);
    helper_stop(pid);
    hf_client *client = open_client();
    hf_lock *lock = overtake(client, writer);
    const int64_t token = (int64_t)hf_token(lock);
    PGconn *user = connect_user(server);
    CHECK_STR("", run(user, BEGIN, 0));
    CHECK_STR("", run(user, SHOW, token));
    CHECK_STR("", run(user, WRITE, token));
    CHECK_STR("", run(user, COMMIT, 0));
    gate_pass(&writer->go);
    helper_continue(pid);
    helper_join(pid);
    CHECK_STR("HF001", writer->shown);
    CHECK_STR("25P02", writer->written);
    check_data(server, token);
    must_release(lock);
    PQfinish(user);
    hf_close(client);
}

/* It has shown its token already, so that the next one has to wait for the end of its transaction: a server that ends
 * it (idle_in_transaction_session_timeout, or an administrator) lets the next one go on, and nothing of it is left. */
TEST_LIMIT(a_writer_paused_within_its_transaction_holds_up_the_next_until_it_is_ended, 60)
{
    struct postgres_server *server = start_with_data();
    struct writer *writer = shared_new(sizeof *writer);
    writer->server = server;
    writer->pauses_within = true;
    pid_t pid = helper_start(write_with_lock, writer);
    gate_await(&writer->held, 1);
    helper_stop(pid);
    hf_client *client = open_client();
    hf_lock *lock = overtake(client, writer);
    const int64_t token = (int64_t)hf_token(lock);
    PGconn *user = connect_user(server);
    CHECK_STR("", run(user, BEGIN, 0));
    begin_to_show(server, user, token);
    postgres_server_do(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                               " WHERE state = 'idle in transaction' AND query LIKE '%%holdfast_guard%%'");
    check_shown(user, "");
    CHECK_STR("", run(user, WRITE, token));
    CHECK_STR("", run(user, COMMIT, 0));
    gate_pass(&writer->go);
    helper_continue(pid);
    helper_join(pid);
    CHECK(strcmp(writer->written, "") != 0 && strcmp(writer->committed, "") != 0);
    check_data(server, token);
    must_release(lock);
    PQfinish(user);
    hf_close(client);
}

/* ----------------------------------------------------------------------------------------------------------- rights */

TEST_LIMIT(a_guard_needs_rights_on_its_table_alone, 60)
{
    char url[200];
    struct postgres_server *server = start_store("lease", "");
    hf_client *client = NULL;
    hf_error err = { 0 };
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, NULL, &err), &err);
    CHECK_STATUS(HF_DENIED, hf_guard(client, NAME, 1, &err), &err);
    CHECK(strstr(err.message, "holdfast_locks_fences") != NULL);
    postgres_server_do(server, "GRANT SELECT, INSERT, UPDATE ON holdfast_locks_fences TO guest");
    CHECK_STATUS(HF_OK, hf_guard(client, NAME, 2, &err), &err);
    CHECK_STATUS(HF_LOST, hf_guard(client, NAME, 1, &err), &err);
    /* Gone, and this role cannot make it; the owner of the tables can, and the next call does. */
    postgres_server_do(server, "DROP FUNCTION holdfast_guard");
    CHECK_STATUS(HF_INVALID, hf_guard(client, NAME, 3, &err), &err);
    CHECK(strstr(err.message, "psql -v table=holdfast_locks -v role=guest -f holdfast-postgres.sql") != NULL);
    hf_client *owner = open_client();
    CHECK_STATUS(HF_OK, hf_guard(owner, NAME, 3, &err), &err);
    postgres_server_do(server, "DROP TABLE holdfast_locks_fences");
    CHECK_STATUS(HF_OK, hf_guard(owner, NAME, 1, &err), &err);
    hf_close(client);
    hf_close(owner);
}
