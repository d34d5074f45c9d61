/* SPDX-License-Identifier: MIT
 *
 * postgres_guard.c: fencing where the data lives: a function that a user calls in the very transaction that writes, and
 * that refuses a token which is smaller than one it has seen.
 *
 * Its row of the table of fences stays locked until that transaction ends, so that a writer with an older token is
 * either through before a newer one comes, or refused. A transaction that is rolled back has shown nothing.
 */
#include "postgres.h"
#include <inttypes.h>

/* It means the same whatever path its caller has. The refusal undoes the row's change, too. The same text is in
 * sql/holdfast-postgres.sql. */
static const char make_function[] =
    "CREATE OR REPLACE FUNCTION {H}(resource text, token bigint) RETURNS void LANGUAGE plpgsql"
    " SET search_path = " HFI_POSTGRES_PATH " AS " HFI_POSTGRES_QUOTE "\n"
    "#variable_conflict use_column\n"
    "DECLARE\n"
    "    highest bigint;\n"
    "BEGIN\n"
    "    INSERT INTO {F} AS f (resource, token) VALUES ($1, $2)\n"
    "    ON CONFLICT (resource) DO UPDATE SET token = greatest(f.token, excluded.token) RETURNING f.token INTO "
    "highest;\n"
    "    IF highest > $2 THEN\n"
    "        RAISE EXCEPTION 'token % for % is too old: % was shown before', $2, $1, highest\n"
    "            USING ERRCODE = 'HF001', HINT = 'The lock was lost, and somebody else has had it since.';\n"
    "    END IF;\n"
    "END\n" HFI_POSTGRES_QUOTE;

const char *const hfi_postgres_make_guard[] = {
    HFI_POSTGRES_ONE_AT_A_TIME,
    "CREATE TABLE IF NOT EXISTS {F} (resource text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL)"
    " WITH (fillfactor = 50)",
    make_function,
    NULL,
};

hf_status hfi_postgres_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err)
{
    static const postgres_sequence show = { POSTGRES_GUARD };
    struct postgres_store *store = memory;
    struct postgres_values values = { .name = resource, .note = "" };
    struct postgres_answer answer = { .counted = POSTGRES_END };
    hf_error trouble = { .native = 0 };
    hfi_postgres_put(values.version, (int64_t)token);
    const hf_status status = hfi_postgres_run(store, show, &values, &answer, deadline_ns, &trouble);
    PQclear(answer.last);
    if (status == HF_LOST)
        return hfi_fail(err, HF_LOST, trouble.native, "a greater token than %" PRIu64 " was shown for %.120s", token,
                        resource);
    if (status != HF_OK && hfi_postgres_is_missing(&trouble))
        return hfi_fail(err, HF_INVALID, trouble.native,
                        "the function %.120s or its table is missing; have an administrator run: %s",
                        store->config.names.guard, store->config.remedy);
    if (status != HF_OK && err)
        *err = trouble;
    return status;
}
