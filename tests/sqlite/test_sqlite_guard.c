/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_guard.c: a resource's fence, by hf_guard() and by any program that speaks SQL.
 */
#include "sqlite_support.h"

#include <string.h>

static int run(sqlite3 *db, const char *text)
{
    return sqlite3_exec(db, text, NULL, NULL, NULL);
}

TEST(a_smaller_token_is_refused)
{
    new_store("guard", "synchronous=off");
    hf_client *client = open_client();
    hf_error err = { 0 };
    CHECK(store_can(HF_CAP_GUARD));
    CHECK_STATUS(HF_OK, hf_guard(client, "stock", 41, &err), &err);
    CHECK_STATUS(HF_OK, hf_guard(client, "stock", 42, &err), &err);
    CHECK_STATUS(HF_OK, hf_guard(client, "stock", 42, &err), &err);
    CHECK_STATUS(HF_LOST, hf_guard(client, "stock", 41, &err), &err);
    CHECK(strstr(err.message, "41") != NULL && strstr(err.message, "stock") != NULL);
    CHECK_STATUS(HF_OK, hf_guard(client, "Stock", 1, &err), &err); /* another resource */
    CHECK_STATUS(HF_INVALID, hf_guard(client, "stock", UINT64_MAX, &err), &err);
    hf_close(client);
}

/* The writer holds the lock, is paused, another takes over; then the first goes on in its own transaction. */
TEST(a_paused_writer_is_refused)
{
    const char *path = new_store("paused", "synchronous=off");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    sqlite3 *db = NULL;
    char *text;
    options.owner = HF_OWNER_HANDLE;
    options.ttl_ms = short_ttl_ms();
    options.renew = HF_RENEW_OFF;
    hf_lock *paused = must_acquire(client, "stock", &options), *other = must_acquire(client, "stock", NULL);
    raw_do(path, "CREATE TABLE stock (count INTEGER); INSERT INTO stock VALUES (10)");
    raw_do(path, "BEGIN; INSERT INTO holdfast_guard VALUES ('stock', %lld); UPDATE stock SET count = 9; COMMIT",
           (long long)hf_token(other));
    REQUIRE_INT(SQLITE_OK, sqlite3_open(path, &db));
    CHECK_INT(SQLITE_OK, run(db, "BEGIN; UPDATE stock SET count = 0"));
    text = sqlite3_mprintf("INSERT INTO holdfast_guard VALUES ('stock', %lld)", (long long)hf_token(paused));
    CHECK_INT(SQLITE_CONSTRAINT, run(db, text));
    CHECK(strstr(sqlite3_errmsg(db), "a larger token was shown before") != NULL);
    CHECK(run(db, "COMMIT") != SQLITE_OK); /* all of it was undone, also for a program that does not look */
    sqlite3_free(text);
    sqlite3_close(db);
    CHECK_INT(9, raw_number(path, "SELECT count FROM stock"));
    hf_release(paused, NULL);
    must_release(other);
    hf_close(client);
}

TEST(what_is_rolled_back_was_not_shown)
{
    const char *path = new_store("rollback", "synchronous=off");
    sqlite3 *db = NULL;
    hf_client *client = open_client();
    hf_error err = { 0 };
    REQUIRE_INT(SQLITE_OK, sqlite3_open(path, &db));
    CHECK_INT(SQLITE_OK, run(db, "BEGIN; INSERT INTO holdfast_guard VALUES ('stock', 100); ROLLBACK"));
    CHECK_STATUS(HF_OK, hf_guard(client, "stock", 99, &err), &err);
    CHECK_INT(SQLITE_CONSTRAINT, run(db, "INSERT INTO holdfast_guard VALUES ('stock', 98)"));
    CHECK_INT(SQLITE_CONSTRAINT, run(db, "INSERT INTO holdfast_guard VALUES ('stock', 'high')"));
    CHECK_INT(SQLITE_CONSTRAINT, run(db, "INSERT INTO holdfast_guard VALUES ('stock', NULL)"));
    CHECK_INT(SQLITE_CONSTRAINT, run(db, "INSERT INTO holdfast_guard VALUES (NULL, 100)"));
    CHECK_INT(SQLITE_OK, run(db, "INSERT INTO holdfast_guard VALUES ('stock', 99)"));
    sqlite3_close(db);
    hf_close(client);
}
