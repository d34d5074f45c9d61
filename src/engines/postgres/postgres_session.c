/* SPDX-License-Identifier: MIT
 *
 * postgres_session.c: what a connection is told, and asked, before it is used: one round trip.
 *
 * Whatever a server, a database or a role has as its defaults, a lock must not end or wait because of it, nor a grant
 * be forgotten.
 */
#include "postgres.h"
#include <stdio.h>
#include <string.h>

#define OLDEST_SERVER 110000

/* What is said on a connection at rest. Anything else than its end is ignored. */
static void take_notice(void *arg, const PGresult *result)
{
    hfi_postgres_note_end(arg, result);
}

struct setting {
    int since; /* PQserverVersion() */
    const char *name, *value;
};

static const struct setting settings[] = {
    { 0, "search_path", HFI_POSTGRES_PATH },
    { 0, "default_transaction_isolation", "read committed" },
    { 0, "statement_timeout", "0" },
    { 0, "idle_in_transaction_session_timeout", "0" },
    { 140000, "idle_session_timeout", "0" },
    { 170000, "transaction_timeout", "0" },
    { 120000, "plan_cache_mode", "force_generic_plan" }, /* a name's value makes no other plan */
    /* A client that is gone must not keep its connection, nor a statement that waits. */
    { 0, "tcp_keepalives_idle", "5" },
    { 0, "tcp_keepalives_interval", "2" },
    { 0, "tcp_keepalives_count", "3" },
    { 120000, "tcp_user_timeout", "10000" },
    { 140000, "client_connection_check_interval", "1000" },
};

/* Asks who and what the server is, and where the path of the user leads; and sets everything, unless there is a pooler:
 * through one it would be set for others. Until the path is set nothing may be looked up by it, not even an operator.
 * Bound strategies wait in the server, for as long as they like. */
static void compose(char *out, size_t size, const struct postgres_store *store, int version)
{
    const long long patience_ms = store->config.strategy->bound ? 0 : store->env->timeout_ns / HFI_MS + 1;
    int used = snprintf(
        out, size,
        "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),"
        " extract(epoch FROM pg_catalog.pg_postmaster_start_time()),"
        " (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,"
        " COALESCE((pg_catalog.pg_identify_object('pg_catalog.pg_class'::pg_catalog.regclass,"
        " pg_catalog.to_regclass($3::pg_catalog.text), 0)).schema, "
        "pg_catalog.quote_ident(pg_catalog.current_schema())),"
        " CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1::pg_catalog.int4 OR $2::pg_catalog.bool"
        " THEN pg_catalog.concat(pg_catalog.set_config('lock_timeout', '%lld', false), " HFI_POSTGRES_WAIT_FOR_DISK(
            "false"),
        patience_ms);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (version >= settings[i].since)
            used += snprintf(out + used, size - (size_t)used, ", pg_catalog.set_config('%s', '%s', false)",
                             settings[i].name, settings[i].value);
    }
    snprintf(out + used, size - (size_t)used, ") END");
}

/* Another server in the place of one, or the same after a crash, may have forgotten some of our locks. */
static void recognise(struct postgres_store *store, const char *started)
{
    pthread_mutex_lock(&store->mutex);
    const bool another = *store->started && strcmp(store->started, started) != 0;
    snprintf(store->started, sizeof store->started, "%s", started);
    pthread_mutex_unlock(&store->mutex);
    if (another)
        store->env->recheck(store->env->core, 0);
}

static hf_status judge(struct postgres_store *store, struct postgres_connection *connection, const PGresult *answer,
                       hf_error *err)
{
    const struct postgres_config *config = &store->config;
    if (PQgetvalue(answer, 0, 1)[0] == 't')
        return hfi_fail(err, HF_UNAVAILABLE, 0, "%s is a standby, on which nothing can be written", config->where);
    connection->backend = (int)hfi_postgres_number(answer, 0, 0, 0);
    connection->lived_us = hfi_postgres_number(answer, 0, 3, 0);
    snprintf(connection->started, sizeof connection->started, "%s", PQgetvalue(answer, 0, 2));
    connection->pooled = connection->backend != PQbackendPID(connection->pq) && !config->session_pooler;
    if (connection->pooled && config->strategy->bound)
        return hfi_fail(err, HF_UNSUPPORTED, 0,
                        "there is a pooler before %.60s, which may give a lock's connection to others; connect "
                        "directly, or say pooler=session if it keeps sessions together",
                        config->where);
    recognise(store, PQgetvalue(answer, 0, 2));
    return *config->names.locks ? HF_OK : hfi_postgres_config_use_schema(&store->config, PQgetvalue(answer, 0, 4), err);
}

hf_status hfi_postgres_set_up(struct postgres_store *store, struct postgres_connection *connection,
                              hfi_time deadline_ns, hf_error *err)
{
    char text[3000], backend[16], table[sizeof store->config.table + 2];
    PGresult *answer = NULL;
    const int version = PQserverVersion(connection->pq);
    if (version < OLDEST_SERVER)
        return hfi_fail(err, HF_UNSUPPORTED, version, "%s runs PostgreSQL %d; this engine needs 11 or newer",
                        store->config.where, version / 10000);
    PQsetNoticeReceiver(connection->pq, take_notice, connection);
    if (PQsetnonblocking(connection->pq, 1) != 0 || PQenterPipelineMode(connection->pq) != 1)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    compose(text, sizeof text, store, version);
    snprintf(backend, sizeof backend, "%d", PQbackendPID(connection->pq));
    snprintf(table, sizeof table, "\"%s\"", store->config.table);
    const char *const parameters[] = { backend, store->config.session_pooler ? "true" : "false", table };
    const struct postgres_text question = { .text = text, .parameters = parameters, .count = 3 };
    hf_status status = hfi_postgres_say(store, connection, &question, 1, &answer, deadline_ns, err);
    status = hfi_postgres_not_unknown(status, err);
    if (status == HF_OK)
        status = judge(store, connection, answer, err);
    PQclear(answer);
    return status;
}
