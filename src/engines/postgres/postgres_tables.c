/* SPDX-License-Identifier: MIT
 *
 * postgres_tables.c: the tables: checked when a client is opened, and made if they are missing and the user may. The
 * same statements are in sql/holdfast-postgres.sql.
 */
#include "postgres.h"
#include <stdio.h>
#include <string.h>

/* A unique index on the name alone, which is in force. Without one, two rows of a name would be two locks. */
#define HAS_INDEX(table)                                                                                               \
    "EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"         \
    " WHERE i.indrelid = to_regclass(" table ") AND i.indisunique AND i.indimmediate AND i.indisvalid"                 \
    " AND i.indnatts = 1 AND i.indpred IS NULL AND a.attname = 'name')"

/* What is there; a guard with a path of its own; what has its index, or is not there; the youngest column; the table of
 * what is done, unless this user may not make it anyway; and whether a crash leaves those who wait, and the floor. */
static const char check[] =
    "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL AND to_regclass($3) IS NOT NULL,"
    " to_regclass($4) IS NOT NULL AND EXISTS (SELECT FROM pg_proc WHERE oid = to_regprocedure($5 || '(text, bigint)')"
    " AND proconfig IS NOT NULL),"
    " to_regclass($1) IS NULL OR " HAS_INDEX("$1") ", to_regclass($3) IS NULL OR " HAS_INDEX(
        "$3") ", to_regclass($1) IS NULL OR EXISTS (SELECT FROM pg_attribute"
              " WHERE attrelid = to_regclass($1) AND attname = 'request' AND NOT attisdropped),"
              " to_regclass($6) IS NOT NULL OR NOT has_schema_privilege((SELECT relnamespace FROM pg_class"
              " WHERE oid = to_regclass($1)), 'CREATE'),"
              " EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($2) AND relpersistence = 'p')";

#define MAKE_DONE                                                                                                      \
    "CREATE TABLE IF NOT EXISTS {D} (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL,"                      \
    " host text, pid int, note text, done timestamptz NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)"

static const char *const make_tables[] = {
    HFI_POSTGRES_ONE_AT_A_TIME,
    "CREATE TABLE IF NOT EXISTS {L} (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL DEFAULT 0,"
    " client bigint, serial bigint, since timestamptz, expires timestamptz, ttl bigint, host text, pid int, note text,"
    " queued boolean NOT NULL DEFAULT false, request bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)",
    "CREATE UNLOGGED TABLE IF NOT EXISTS {W} (name text COLLATE \"C\" NOT NULL,"
    " place bigint GENERATED ALWAYS AS IDENTITY, client bigint NOT NULL, serial bigint NOT NULL,"
    " backend int NOT NULL, host text, pid int, note text, PRIMARY KEY (name, place), UNIQUE (client, serial))",
    "CREATE TABLE IF NOT EXISTS {G} (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL DEFAULT 0,"
    " client bigint, serial bigint, backend int, since timestamptz, host text, pid int, note text)"
    " WITH (fillfactor = 50)",
    MAKE_DONE,
    NULL,
};

/* Tables of an earlier version. */
static const char *const make_done[] = { HFI_POSTGRES_ONE_AT_A_TIME, MAKE_DONE, NULL };

/* A table of version 0.1. Whoever else uses it waits behind this while it waits for a long reader: not for long. */
static const char *const add_column[] = {
    HFI_POSTGRES_ONE_AT_A_TIME,
    "SELECT set_config('lock_timeout', '200', true)",
    "ALTER TABLE {L} ADD COLUMN IF NOT EXISTS request bigint NOT NULL DEFAULT 0",
    NULL,
};

#define STATEMENTS_MOST 5

/* All or nothing. */
static hf_status make(struct postgres_store *store, struct postgres_connection *connection,
                      const char *const *statements, hfi_time deadline_ns, hf_error *err)
{
    char *expanded[STATEMENTS_MOST] = { NULL };
    struct postgres_text texts[STATEMENTS_MOST] = { { .text = NULL } };
    size_t count = 0;
    hf_status status = HF_OK;
    for (; statements[count] && status == HF_OK; count++) {
        texts[count].text = expanded[count] = hfi_postgres_expand(&store->config.names, statements[count]);
        if (!expanded[count])
            status = hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    }
    if (status == HF_OK)
        status = hfi_postgres_say(store, connection, texts, count, NULL, deadline_ns, err);
    for (size_t i = 0; i < count; i++)
        hfi_free(expanded[i]);
    return status;
}

hf_status hfi_postgres_look_at_tables(struct postgres_store *store, struct postgres_connection *connection,
                                      struct postgres_tables *found, hfi_time deadline_ns, hf_error *err)
{
    const struct postgres_names *names = &store->config.names;
    const char *const parameters[] = { names->locks,  names->waiters, names->grants,
                                       names->fences, names->guard,   names->done };
    PGresult *result = NULL;
    const struct postgres_text text = { .text = check, .parameters = parameters, .count = 6 };
    const hf_status status = hfi_postgres_say(store, connection, &text, 1, &result, deadline_ns, err);
    if (status != HF_OK)
        return status;
    found->tables = PQgetvalue(result, 0, 0)[0] == 't';
    found->guard = PQgetvalue(result, 0, 1)[0] == 't';
    found->locks_index = PQgetvalue(result, 0, 2)[0] == 't';
    found->grants_index = PQgetvalue(result, 0, 3)[0] == 't';
    found->column = PQgetvalue(result, 0, 4)[0] == 't';
    found->done = PQgetvalue(result, 0, 5)[0] == 't';
    found->waiters_last = PQgetvalue(result, 0, 6)[0] == 't';
    PQclear(result);
    return HF_OK;
}

static hf_status refuse(const struct postgres_config *config, const char *why, hf_error *err)
{
    return hfi_fail(err, HF_INVALID, 0, "%.120s or one of its companions %s; have an administrator run: %s",
                    config->names.locks, why, config->remedy);
}

hf_status hfi_postgres_prepare_tables(struct postgres_store *store, struct postgres_connection *connection,
                                      hfi_time deadline_ns, hf_error *err)
{
    const struct postgres_config *config = &store->config;
    struct postgres_tables found;
    hf_status status = hfi_postgres_look_at_tables(store, connection, &found, deadline_ns, err);
    if (status == HF_DENIED)
        return refuse(config, "may not be seen by this user", err);
    if (status != HF_OK)
        return status;
    hfi_postgres_trust_floor(store, !found.waiters_last);
    if (!found.locks_index || !found.grants_index)
        return hfi_fail(err, HF_INVALID, 0,
                        "the table %.120s has no unique index on its column name; without one it cannot hold locks",
                        found.locks_index ? config->names.grants : config->names.locks);
    if (!found.tables && !config->create)
        return refuse(config, "is missing", err);
    if (!found.tables)
        status = make(store, connection, make_tables, deadline_ns, err);
    if (status == HF_DENIED)
        return refuse(config, "is missing and this user may not create it", err);
    if (status == HF_OK && !found.column && !config->strategy->bound)
        status = config->create ? make(store, connection, add_column, deadline_ns, err) : HF_DENIED;
    if (status == HF_DENIED)
        return refuse(config, "lacks the column request, which this user may not add", err);
    /* Locks work without these; whoever calls the guard, or asks for once, is told. */
    if (status == HF_OK && found.tables && !found.done && config->create)
        make(store, connection, make_done, deadline_ns, NULL);
    if (status == HF_OK && !found.guard && config->create)
        make(store, connection, hfi_postgres_make_guard, deadline_ns, NULL);
    return status;
}
