/* SPDX-License-Identifier: MIT
 *
 * sqlite_tables.c: the tables: checked when a client is opened, and made if they are missing and that is allowed. The
 * same statements are in sql/holdfast-sqlite.sql. Nothing else in the database is looked at or changed.
 */
#include "sqlite.h"
#include <string.h>

/* Are they there; does a unique index on the name alone, which tells 'a' from 'A', guard the first of them (without
 * one, two rows of a name would be two locks); and has it the column that version 0.1 did not know? */
static const char check[] =
    "SELECT (SELECT count(*) FROM sqlite_master WHERE name IN"
    " ('{L}', '{W}', '{G}', '{D}', 'holdfast_fences', 'holdfast_guard', 'holdfast_guard_insert')) = 7,"
    " NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '{L}') OR EXISTS ("
    "SELECT 1 FROM pragma_index_list('{L}') i WHERE i.\"unique\" AND NOT i.partial AND"
    " (SELECT group_concat(x.name || ' ' || x.coll) FROM pragma_index_xinfo(i.name) x WHERE x.key) = 'name BINARY'),"
    " NOT EXISTS (SELECT 1 FROM pragma_table_info('{L}') WHERE name = 'expires') OR"
    " EXISTS (SELECT 1 FROM pragma_table_info('{L}') WHERE name = 'renewed')";

/* To a table that version 0.1 made. It can go on using it. */
static const char alter[] = "ALTER TABLE {L} ADD COLUMN renewed INTEGER";

static const char *const create[] = {
    "CREATE TABLE IF NOT EXISTS {L} (name TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL DEFAULT 0, client INTEGER,"
    " serial INTEGER, boot INTEGER, since INTEGER, expires INTEGER, host TEXT, pid INTEGER, note TEXT,"
    " renewed INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS {W} (place INTEGER PRIMARY KEY, name TEXT NOT NULL, client INTEGER NOT NULL,"
    " serial INTEGER NOT NULL, host TEXT, pid INTEGER, note TEXT, UNIQUE (client, serial), UNIQUE (name, place))",
    "CREATE TABLE IF NOT EXISTS {G} (name TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, boot INTEGER)"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS {D} (name TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, client INTEGER,"
    " serial INTEGER, done INTEGER NOT NULL, lasts INTEGER NOT NULL, host TEXT, pid INTEGER, note TEXT) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS holdfast_fences (resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "CREATE VIEW IF NOT EXISTS holdfast_guard AS SELECT resource, token FROM holdfast_fences",
    "CREATE TRIGGER IF NOT EXISTS holdfast_guard_insert INSTEAD OF INSERT ON holdfast_guard BEGIN"
    " SELECT RAISE(ROLLBACK, 'holdfast_guard: a token is a number')"
    " WHERE typeof(NEW.resource) <> 'text' OR typeof(NEW.token) <> 'integer';"
    " SELECT RAISE(ROLLBACK, 'holdfast_guard: a larger token was shown before')"
    " FROM holdfast_fences WHERE resource = NEW.resource AND token > NEW.token;"
    " INSERT INTO holdfast_fences (resource, token) VALUES (NEW.resource, NEW.token)"
    " ON CONFLICT (resource) DO UPDATE SET token = excluded.token; END",
};

static int read_verdict(sqlite3_stmt *row, void *arg)
{
    struct sqlite_tables *verdict = arg;
    verdict->there = sqlite3_column_int(row, 0);
    verdict->guarded = sqlite3_column_int(row, 1);
    verdict->new = sqlite3_column_int(row, 2);
    return 0;
}

static int say(struct sqlite_store *store, const char *text, sqlite_each each, void *arg)
{
    char *expanded = hfi_sqlite_expand(&store->config, text);
    const int code = expanded ? hfi_sqlite_say(store, expanded, each, arg) : SQLITE_NOMEM;
    hfi_free(expanded);
    return code;
}

static int look(struct sqlite_store *store, void *arg)
{
    return say(store, check, read_verdict, arg);
}

int hfi_sqlite_look_at_tables(struct sqlite_store *store, struct sqlite_tables *found)
{
    return look(store, found);
}

static int make(struct sqlite_store *store, void *arg)
{
    struct sqlite_tables *verdict = arg;
    int code = look(store, verdict); /* somebody else may have been faster */
    for (size_t i = 0; i < sizeof create / sizeof create[0] && code == SQLITE_OK; i++)
        code = say(store, create[i], NULL, NULL);
    return code == SQLITE_OK && !verdict->new ? say(store, alter, NULL, NULL) : code;
}

hf_status hfi_sqlite_prepare_tables(struct sqlite_store *store, hfi_time deadline_ns, hf_error *err)
{
    struct sqlite_tables verdict = { .there = false, .guarded = true };
    const char *table = store->config.table;
    hf_status status = hfi_sqlite_ask(store, LITE_KIND_READ, look, &verdict, deadline_ns, err);
    if (status == HF_OK && !verdict.guarded)
        return hfi_fail(err, HF_INVALID, 0,
                        "the table %s has no unique index on its column name that tells small letters from capitals; "
                        "without one it cannot hold locks",
                        table);
    if (status != HF_OK || (verdict.there && verdict.new))
        return status;
    if (!store->config.create && verdict.there)
        return hfi_fail(err, HF_INVALID, 0,
                        "the table %s was made by an older version; have its owner run: sqlite3 %.80s 'ALTER TABLE %s "
                        "ADD COLUMN renewed INTEGER'",
                        table, store->config.path, table);
    if (!store->config.create) {
        char script[HFI_DATA_FILE_MAX];
        hfi_data_file(script, "holdfast-sqlite.sql");
        return hfi_fail(err, HF_INVALID, 0,
                        "the table %s or one of its companions is missing; have its owner run: sqlite3 %.80s < %s",
                        table, store->config.path, script);
    }
    status = hfi_sqlite_ask(store, LITE_KIND_TRANSACTION, make, &verdict, deadline_ns, err);
    if (status == HF_UNKNOWN) { /* nothing but tables is unknown */
        status = HF_UNAVAILABLE;
        if (err)
            err->status = status;
    }
    return status;
}
