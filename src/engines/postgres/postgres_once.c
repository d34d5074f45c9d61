/* SPDX-License-Identifier: MIT
 *
 * postgres_once.c: that the work of a lock is done: a row for each name, which the next one of that name overwrites,
 * and which counts until its end by the server's clock. Its table is made with the others, or by
 * sql/holdfast-postgres.sql; nothing touches it but what asks for once.
 */
#include "postgres.h"
#include <stdio.h>
#include <string.h>

void hfi_postgres_instead(postgres_sequence out, const unsigned char *sequence, enum postgres_statement of,
                          enum postgres_statement by, enum postgres_statement last)
{
    size_t count = 0;
    for (; count < POSTGRES_SEQUENCE_MAX - 2 && sequence[count] != POSTGRES_END; count++)
        out[count] = (unsigned char)(sequence[count] == of ? by : sequence[count]);
    out[count++] = (unsigned char)last;
    out[count] = POSTGRES_END;
}

bool hfi_postgres_is_done(const PGresult *result, struct hfi_grant *grant)
{
    if (PQntuples(result) == 0)
        return false;
    const char *note = PQgetvalue(result, 0, 2);
    snprintf(grant->holder, sizeof grant->holder, "%.65s:%lld%s%.80s", PQgetvalue(result, 0, 0),
             hfi_postgres_number(result, 0, 1, 0), *note ? " " : "", note);
    grant->holder_left_ms = hfi_postgres_number(result, 0, 3, -1);
    grant->done_ago_ms = hfi_postgres_number(result, 0, 4, -1);
    return true;
}

hf_status hfi_postgres_explain_once(const struct postgres_store *store, hf_status status, hf_error *err)
{
    if (!hfi_postgres_cannot_mark(status) || !err || !strstr(err->message, "_done"))
        return status;
    return hfi_fail(err, status, err->native, "%.120s %s; have an administrator run: %s", store->config.names.done,
                    status == HF_DENIED ? "may not be used by this user" : "is missing", store->config.remedy);
}

bool hfi_postgres_cannot_mark(hf_status status)
{
    return status == HF_DENIED || status == HF_INVALID;
}

hf_status hfi_postgres_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg,
                                    hfi_time deadline_ns, hf_error *err)
{
    static const postgres_sequence inspect = { POSTGRES_INSPECT_DONE };
    return hfi_postgres_explain_once(memory, hfi_postgres_show(memory, inspect, prefix, each, arg, deadline_ns, err),
                                     err);
}

/* Only the mark that was seen: a request that comes late must not take back what was done since. */
hf_status hfi_postgres_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    static const postgres_sequence look = { POSTGRES_DONE }, forget = { POSTGRES_FORGET_DONE };
    struct postgres_values values = { .name = name, .note = "" };
    struct postgres_answer answer = { .counted = POSTGRES_END };
    hf_status status = hfi_postgres_run(memory, look, &values, &answer, deadline_ns, err);
    const bool there = PQntuples(answer.done) > 0;
    hfi_postgres_put(values.version, hfi_postgres_number(answer.done, 0, 5, 0));
    PQclear(answer.done);
    if (there) {
        status = hfi_postgres_run(memory, forget, &values, &answer, deadline_ns, err);
        PQclear(answer.last);
    }
    return hfi_postgres_explain_once(memory, status, err);
}
