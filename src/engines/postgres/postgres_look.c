/* SPDX-License-Identifier: MIT
 *
 * postgres_look.c: who holds what, and forced release.
 */
#include "postgres.h"
#include <poll.h>
#include <string.h>

/* How often it is looked whether a backend that was told to end has done so. */
#define END_PAUSE_MS 5

/* Who waits, one to a line of `text`, which is cut up. NULL: nobody, or no memory. */
static const char *const *cut_up(char *text, int64_t count)
{
    const char **lines = *text ? hfi_alloc((size_t)count * sizeof *lines) : NULL;
    for (int64_t i = 0; lines && i < count; i++) {
        char *end = strchrnul(text, '\n');
        lines[i] = text;
        text = *end ? end + 1 : end;
        *end = 0;
    }
    return lines;
}

static int show(const PGresult *result, int row, hf_inspect_fn each, void *arg)
{
    const int64_t waiters = hfi_postgres_number(result, row, 6, -1);
    const bool told = waiters > 0 && PQnfields(result) > 8;
    const char *const *waiting = told ? cut_up(PQgetvalue(result, row, 8), waiters) : NULL;
    const hf_info info = { .size = sizeof info,
                           .name = PQgetvalue(result, row, 0),
                           .host = PQgetvalue(result, row, 1),
                           .pid = (pid_t)hfi_postgres_number(result, row, 2, 0),
                           .token = (uint64_t)hfi_postgres_number(result, row, 3, 0),
                           .held_ms = hfi_postgres_number(result, row, 4, 0),
                           .remaining_ms = hfi_postgres_number(result, row, 5, -1),
                           .waiters = waiters,
                           .note = PQgetvalue(result, row, 7),
                           .waiting = waiting };
    const int stop = each(&info, arg);
    hfi_free((void *)(uintptr_t)waiting);
    return stop;
}

hf_status hfi_postgres_show(struct postgres_store *store, const postgres_sequence inspect, const char *text,
                            hf_inspect_fn each, void *arg, hfi_time deadline_ns, hf_error *err)
{
    const struct postgres_values values = { .name = text, .note = "" };
    struct postgres_answer answer = { .counted = POSTGRES_END };
    const hf_status status = hfi_postgres_run(store, inspect, &values, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    for (int row = 0, stop = 0; row < PQntuples(answer.last) && !stop; row++)
        stop = show(answer.last, row, each, arg);
    PQclear(answer.last);
    return HF_OK;
}

hf_status hfi_postgres_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err)
{
    static const postgres_sequence inspect = { POSTGRES_INSPECT };
    return hfi_postgres_show(memory, inspect, prefix, each, arg, deadline_ns, err);
}

hf_status hfi_postgres_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                   hf_error *err)
{
    static const postgres_sequence inspect_one = { POSTGRES_INSPECT_ONE };
    return hfi_postgres_show(memory, inspect_one, name, each, arg, deadline_ns, err);
}

/* A lock that is bound to a connection ends with its connection: until the backend that has it now has it no more. */
static hf_status end_holder(struct postgres_store *store, const struct postgres_values *values, hfi_time deadline_ns,
                            hf_error *err)
{
    static const postgres_sequence evict = { POSTGRES_EVICT };
    for (;;) {
        struct postgres_answer answer = { .counted = POSTGRES_END };
        const hf_status status = hfi_postgres_run(store, evict, values, &answer, deadline_ns, err);
        if (status != HF_OK)
            return status;
        const bool gone = PQntuples(answer.last) == 0;
        PQclear(answer.last);
        if (gone)
            return HF_OK;
        if (store->env->now_ns() >= deadline_ns)
            return hfi_fail(err, HF_UNAVAILABLE, 0, "the holder of %.100s does not end", values->name);
        poll(NULL, 0, END_PAUSE_MS);
    }
}

/* After it was freed, so that nobody is blamed for what was not done. If it cannot be done, or not soon, the holder is
 * told less. */
static void blame(struct postgres_store *store, struct postgres_values *values, int64_t token, const char *by,
                  hfi_time deadline_ns)
{
    static const postgres_sequence write_down = { POSTGRES_BLAME };
    struct postgres_answer answer = { .counted = POSTGRES_END };
    char broken[HFI_SQL_BROKEN_MAX];
    const hfi_time until = hfi_sql_patience(store->env->now_ns(), deadline_ns);
    hfi_sql_write_broken(broken, (uint64_t)token, by);
    values->note = broken;
    hfi_postgres_run(store, write_down, values, &answer, until, NULL);
    PQclear(answer.last);
    values->note = "";
}

/* Looks first, and ends that one hold: a request that arrives late must not end the next holder's. */
hf_status hfi_postgres_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    static const postgres_sequence look = { POSTGRES_HOLDER };
    struct postgres_store *store = memory;
    struct postgres_values values = { .name = name, .note = "" };
    struct postgres_answer answer = { .counted = POSTGRES_EVICT };
    hf_status status = hfi_postgres_run(store, look, &values, &answer, deadline_ns, err);
    const bool held = status == HF_OK && PQntuples(answer.last) > 0;
    const int64_t token = hfi_postgres_number(answer.last, 0, 1, 0);
    hfi_postgres_put(values.backend, hfi_postgres_number(answer.last, 0, 0, 0));
    hfi_postgres_put(values.version, token);
    PQclear(answer.last);
    if (!held)
        return hfi_postgres_not_unknown(status, err);
    if (store->config.strategy->bound)
        return end_holder(store, &values, deadline_ns, err);
    status = hfi_postgres_run(store, store->config.strategy->evict, &values, &answer, deadline_ns, err);
    PQclear(answer.last);
    if (status == HF_OK && answer.changed > 0)
        blame(store, &values, token, by, deadline_ns);
    return status;
}
