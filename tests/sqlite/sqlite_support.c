/* SPDX-License-Identifier: MIT
 *
 * sqlite_support.c: see sqlite_support.h.
 */
#include "sqlite_support.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *const strategy_names[STRATEGIES] = { "lease", "insert", "version" };

/* --- databases --- */

const char *new_path(const char *label)
{
    static char path[400];
    static const char *const companions[] = { "", "-journal", "-wal", "-shm" };
    char command[500];
    snprintf(path, sizeof path, "%s/%s.db", getenv("TEST_DIRECTORY"), label);
    for (size_t i = 0; i < sizeof companions / sizeof companions[0]; i++) {
        snprintf(command, sizeof command, "%s%s", path, companions[i]);
        unlink(command);
    }
    return path;
}

const char *new_store(const char *label, const char *options)
{
    char url[500];
    const char *path = new_path(label);
    snprintf(url, sizeof url, "sqlite://%s?%s", path, options);
    use_url(url);
    return path;
}

void check_open_path(const char *path, const char *options, hf_status status, const char *words)
{
    check_open_at(status, words, "sqlite://%s?%s", path, options);
}

/* --- SQL of our own --- */

static int64_t run(const char *path, const char *format, va_list arguments)
{
    int64_t number = -1;
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    char *text = sqlite3_vmprintf(format, arguments);
    const char *rest = text;
    REQUIRE_INT(SQLITE_OK, sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL));
    sqlite3_busy_timeout(db, 10000);
    while (rest && *rest) {
        int code = sqlite3_prepare_v2(db, rest, -1, &statement, &rest);
        while (code == SQLITE_OK && (code = sqlite3_step(statement)) == SQLITE_ROW) {
            number = sqlite3_column_int64(statement, 0);
            code = SQLITE_OK;
        }
        if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_MISUSE)
            FAIL("%s: %s", text, sqlite3_errmsg(db));
        sqlite3_finalize(statement);
    }
    sqlite3_free(text);
    sqlite3_close(db);
    return number;
}

void raw_do(const char *path, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    run(path, format, arguments);
    va_end(arguments);
}

int64_t raw_number(const char *path, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int64_t number = run(path, format, arguments);
    va_end(arguments);
    return number;
}

void check_intact(const char *path)
{
    CHECK_INT(1, raw_number(path, "SELECT integrity_check = 'ok' FROM pragma_integrity_check LIMIT 1"));
}
