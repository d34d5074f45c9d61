/* SPDX-License-Identifier: MIT
 *
 * postgres_answer.c: what the server's refusals mean to the caller, in one sentence.
 *
 * hf_error.native is the SQLSTATE, its five characters read as digits of base 36.
 */
#include "postgres.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int state_number(const char *state)
{
    char copy[6];
    snprintf(copy, sizeof copy, "%s", state);
    return (int)strtol(copy, NULL, 36);
}

static bool is_class(const char *state, const char *class)
{
    return strncmp(state, class, strlen(class)) == 0;
}

static hf_status status_of(const char *state)
{
    static const struct {
        const char *class;
        hf_status status;
    } known[] = {
        { "HF001", HF_LOST },        /* the guard's own */
        { "28", HF_DENIED },         /* wrong password, unknown role */
        { "42501", HF_DENIED },      /* insufficient privilege */
        { "3D000", HF_INVALID },     /* no such database */
        { "42P01", HF_INVALID },     /* no such table */
        { "42", HF_INVALID },        /* a table of another shape */
        { "22", HF_INVALID },        /* a name that the database's encoding cannot hold */
        { "3F", HF_INVALID },        /* no such schema */
        { "23", HF_INVALID },        /* a constraint that is not ours */
        { "40", HF_UNAVAILABLE },    /* deadlock, serialization */
        { "53", HF_UNAVAILABLE },    /* too many connections, disk full, out of memory */
        { "55P03", HF_UNAVAILABLE }, /* lock_timeout */
        { "57", HF_UNAVAILABLE },    /* cancelled, shutting down, starting up */
        { "25006", HF_UNAVAILABLE }, /* read-only: a standby, or a disk that filled up */
        { "08", HF_UNAVAILABLE },    /* connection trouble */
        { "0A", HF_UNSUPPORTED },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (is_class(state, known[i].class))
            return known[i].status;
    }
    return HF_INTERNAL;
}

static void first_line(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%.*s", (int)strcspn(text, "\r\n"), text);
}

hf_status hfi_postgres_refusal(const struct postgres_store *store, const PGresult *result, hf_error *err)
{
    const ExecStatusType kind = PQresultStatus(result);
    char words[160];
    if (kind == PGRES_COMMAND_OK || kind == PGRES_TUPLES_OK)
        return HF_OK;
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    if (!state)
        return hfi_fail(err, HF_INTERNAL, 0, "%s gave an answer that makes no sense", store->config.where);
    first_line(words, sizeof words, primary ? primary : "no reason given");
    const bool locked = is_class(state, "55P03");
    return hfi_fail(err, status_of(state), state_number(state), "%s refused: %s (%s)%s", store->config.where, words,
                    state, locked ? "; a transaction keeps the row locked, as strategy=for-update does" : "");
}

void hfi_postgres_note_end(struct postgres_connection *connection, const PGresult *result)
{
    char words[HFI_POSTGRES_WORDS_MAX - 10];
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    if (!severity || strcmp(severity, "FATAL") != 0 || !state || !primary)
        return;
    first_line(words, sizeof words, primary);
    snprintf(connection->last_words, sizeof connection->last_words, "%s (%.5s)", words, state);
}

/* In "FATAL:  28P01: password authentication failed": the five characters. */
static const char *find_state(const char *text)
{
    for (const char *at = strstr(text, ":  "); at; at = strstr(at + 1, ":  ")) {
        size_t length = 0;
        while (length < 5 && (isdigit((unsigned char)at[3 + length]) || isupper((unsigned char)at[3 + length])))
            length++;
        if (length == 5 && at[8] == ':')
            return at + 3;
    }
    return NULL;
}

/* What libpq itself, or TLS, does not like has no number. */
static hf_status status_of_words(const char *text)
{
    const bool certificate = strstr(text, "certificate") != NULL;
    if (strstr(text, "invalid") || (certificate && (strstr(text, "does not exist") || strstr(text, "could not"))))
        return HF_INVALID; /* an option, or a file of ours */
    return certificate ? HF_DENIED : HF_UNAVAILABLE;
}

hf_status hfi_postgres_unreachable(const struct postgres_store *store, PGconn *pq, hf_error *err)
{
    char words[160];
    const char *text = PQerrorMessage(pq);
    const char *state = find_state(text);
    if (state) {
        first_line(words, sizeof words, strncmp(state + 5, ": ", 2) == 0 ? state + 7 : state);
        return hfi_fail(err, status_of(state), state_number(state), "%s refused: %s (%.5s)", store->config.where, words,
                        state);
    }
    first_line(words, sizeof words, text);
    if (PQconnectionNeedsPassword(pq))
        return hfi_fail(err, HF_DENIED, 0, "%s wants a password", store->config.where);
    return hfi_fail(err, status_of_words(words), 0, "cannot connect to %.60s: %s", store->config.where, words);
}

hf_status hfi_postgres_not_unknown(hf_status status, hf_error *err)
{
    if (status != HF_UNKNOWN)
        return status;
    if (err)
        err->status = HF_UNAVAILABLE;
    return HF_UNAVAILABLE;
}

bool hfi_postgres_is_missing(const hf_error *err)
{
    return err->native == state_number("42P01") || err->native == state_number("42883") ||
           err->native == state_number("42703"); /* a column: the table is of an earlier version */
}

bool hfi_postgres_is_read_only(const hf_error *err)
{
    return err->native == state_number("25006");
}

bool hfi_postgres_is_conflict(const hf_error *err)
{
    return err->native == state_number("40001") || err->native == state_number("40P01");
}

bool hfi_postgres_is_cancelled(const hf_error *err)
{
    return err->native == state_number("57014");
}

long long hfi_postgres_number(const PGresult *result, int row, int column, long long otherwise)
{
    if (row >= PQntuples(result) || column >= PQnfields(result) || PQgetisnull(result, row, column))
        return otherwise;
    return strtoll(PQgetvalue(result, row, column), NULL, 10);
}
