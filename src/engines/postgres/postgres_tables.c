/* SPDX-License-Identifier: MIT
 *
 * postgres_tables.c: the three tables: checked when a client is opened, and made if they are missing and the user may.
 * The same statements are in sql/holdfast-postgres.sql.
 */
#include "postgres.h"
#include <stdio.h>
#include <string.h>

/* Are they there; and does a unique index on the name alone guard the first of them? Without one, two rows of a name
 * would be two locks. */
static const char check[] =
    "SELECT to_regclass($1) IS NOT NULL, to_regclass($2) IS NOT NULL AND to_regclass($3) IS NOT NULL,"
    " EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    " WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indnatts = 1"
    " AND i.indpred IS NULL AND a.attname = 'name')";

/* One after the other: two clients that make the same table at once would both be told that it exists. */
static const char *const create[] = {
    "BEGIN",
    "SELECT pg_advisory_xact_lock(x'686f6c6466617374'::bigint)",
    "CREATE TABLE IF NOT EXISTS {L} (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL DEFAULT 0,"
    " client bigint, serial bigint, since timestamptz, expires timestamptz, host text, pid int, note text,"
    " queued boolean NOT NULL DEFAULT false) WITH (fillfactor = 50)",
    "CREATE UNLOGGED TABLE IF NOT EXISTS {W} (name text COLLATE \"C\" NOT NULL,"
    " place bigint GENERATED ALWAYS AS IDENTITY, client bigint NOT NULL, serial bigint NOT NULL,"
    " backend int NOT NULL, host text, pid int, note text, PRIMARY KEY (name, place), UNIQUE (client, serial))",
    "CREATE TABLE IF NOT EXISTS {G} (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL DEFAULT 0,"
    " client bigint, serial bigint, backend int, since timestamptz, host text, pid int, note text)"
    " WITH (fillfactor = 50)",
    "COMMIT",
};

static hf_status make(struct postgres_store *store, struct postgres_connection *connection, hfi_time deadline_ns,
                      hf_error *err)
{
    hf_status status = HF_OK;
    for (size_t i = 0; i < sizeof create / sizeof create[0] && status == HF_OK; i++) {
        char *text = hfi_postgres_expand(&store->config, create[i]);
        if (!text)
            return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
        status = hfi_postgres_say(store, connection, text, NULL, 0, NULL, deadline_ns, err);
        hfi_free(text);
    }
    if (status != HF_OK && !connection->broken)
        hfi_postgres_say(store, connection, "ROLLBACK", NULL, 0, NULL, deadline_ns, NULL);
    return status;
}

static hf_status look(struct postgres_store *store, struct postgres_connection *connection, bool *there, bool *guarded,
                      hfi_time deadline_ns, hf_error *err)
{
    const struct postgres_config *config = &store->config;
    const char *const parameters[] = { config->locks, config->waiters, config->grants };
    PGresult *result = NULL;
    const hf_status status = hfi_postgres_say(store, connection, check, parameters, 3, &result, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const bool first = PQgetvalue(result, 0, 0)[0] == 't';
    *there = first && PQgetvalue(result, 0, 1)[0] == 't';
    *guarded = !first || PQgetvalue(result, 0, 2)[0] == 't';
    PQclear(result);
    return HF_OK;
}

static hf_status refuse_missing(const struct postgres_config *config, const char *why, hf_error *err)
{
    return hfi_fail(err, HF_INVALID, 0,
                    "the table %.60s or one of its companions is missing%s; have its owner run: psql -v table=%.60s -f "
                    "holdfast-postgres.sql",
                    config->table, why, config->table);
}

hf_status hfi_postgres_prepare_tables(struct postgres_store *store, struct postgres_connection *connection,
                                      hfi_time deadline_ns, hf_error *err)
{
    bool there = false, guarded = true;
    hf_status status = look(store, connection, &there, &guarded, deadline_ns, err);
    if (status == HF_OK && !there && guarded) {
        if (!store->config.create)
            return refuse_missing(&store->config, "", err);
        status = make(store, connection, deadline_ns, err);
        if (status == HF_DENIED)
            return refuse_missing(&store->config, " and this user may not create it", err);
    }
    if (status == HF_OK && !guarded)
        return hfi_fail(err, HF_INVALID, 0,
                        "the table %.60s has no unique index on its column name; without one it cannot hold locks",
                        store->config.table);
    return status;
}
