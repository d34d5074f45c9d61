/* SPDX-License-Identifier: MIT
 *
 * sqlite_support.h: what the tests of the sqlite: engine share beside what those of all engines do.
 *
 * Tests speak to the database by connections of their own, which never stay open: nothing of SQLite may cross fork().
 */
#ifndef SQLITE_SUPPORT_H
#define SQLITE_SUPPORT_H

#include "engine_support.h"

#include <sqlite3.h>

#define STRATEGIES 3
extern const char *const strategy_names[STRATEGIES];

/* A database that is not there yet, in TEST_DIRECTORY. Nothing of an earlier run is left of it. */
const char *new_path(const char *label);
/* The same, and the store of open_client(), with options of the URL. Returns the path. */
const char *new_store(const char *label, const char *options);
/* check_open() for a path and options. */
void check_open_path(const char *path, const char *options, hf_status status, const char *words);

/* SQL of the test's own; the second returns one number, -1 if there is none. */
void raw_do(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t raw_number(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* PRAGMA integrity_check says "ok". */
void check_intact(const char *path);

#endif
