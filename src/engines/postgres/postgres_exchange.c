/* SPDX-License-Identifier: MIT
 *
 * postgres_exchange.c: statements go out together and come back in one round trip, in libpq's pipeline mode, without
 * waiting past the deadline. A statement is prepared with its first use, in the same round trip.
 *
 * Only the end of the pipeline says that the transaction was committed: an answer before it may still be undone.
 */
#include "postgres.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PARAMETERS_MOST 9
#define CONFLICTS_MOST 5

enum { TYPE_INT8 = 20, TYPE_INT4 = 23, TYPE_TEXT = 25 };

/* snprintf() would be a good part of what an exchange costs. */
void hfi_postgres_put(postgres_digits out, int64_t value)
{
    char digits[24];
    size_t count = 0;
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        digits[count++] = '-';
    for (size_t i = 0; i < count; i++)
        out[i] = digits[count - 1 - i];
    out[count] = 0;
}

void hfi_postgres_values(struct postgres_values *values, const struct hfi_request *request)
{
    values->name = request->name;
    values->note = request->note;
    hfi_postgres_put(values->client, (int64_t)request->owner.client);
    hfi_postgres_put(values->serial, (int64_t)request->owner.serial);
    hfi_postgres_put(values->ttl, request->ttl_ms);
    values->backend[0] = values->version[0] = values->request[0] = values->ceiling[0] = 0;
}

static Oid type_of(char letter)
{
    if (strchr("nhkl", letter))
        return TYPE_TEXT;
    return strchr("pb", letter) ? TYPE_INT4 : TYPE_INT8;
}

static const char *value_of(const struct postgres_store *store, const struct postgres_values *values, char letter)
{
    switch (letter) {
    case 'n':
        return values->name;
    case 'c':
        return values->client;
    case 's':
        return values->serial;
    case 't':
        return values->ttl;
    case 'h':
        return store->host;
    case 'p':
        return store->pid;
    case 'k':
        return values->note;
    case 'b':
        return values->backend;
    case 'r':
        return values->request;
    case 'l':
        return store->config.names.locks;
    case 'e':
        return values->ceiling;
    default:
        return values->version;
    }
}

static hf_status fail_sending(struct postgres_connection *connection, hf_error *err)
{
    connection->broken = true;
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection to the server broke");
}

/* --- sending --- */

static bool send_call(const struct postgres_store *store, struct postgres_connection *connection,
                      struct postgres_call *call)
{
    const char *letters = store->config.strategy->sql[call->statement].parameters;
    const char *text = store->config.sql[call->statement];
    const char *values[PARAMETERS_MOST];
    Oid types[PARAMETERS_MOST];
    const char *name = store->config.prepared[call->statement];
    const int count = (int)strlen(letters);
    for (int i = 0; i < count; i++) {
        values[i] = value_of(store, call->values, letters[i]);
        types[i] = type_of(letters[i]);
    }
    if (connection->pooled)
        return PQsendQueryParams(connection->pq, text, count, types, values, NULL, NULL, 0) == 1;
    if (call->prepares && PQsendPrepare(connection->pq, name, text, count, types) != 1)
        return false;
    return PQsendQueryPrepared(connection->pq, name, count, values, NULL, NULL, 0) == 1;
}

/* Through a pooler nothing can be set for a session, which is another's as well: it is set for one transaction. */
static bool send_settings(struct postgres_connection *connection)
{
    static const char text[] = "SELECT pg_catalog.set_config('search_path', '" HFI_POSTGRES_PATH
                               "', true), " HFI_POSTGRES_WAIT_FOR_DISK("true");
    return !connection->pooled || PQsendQueryParams(connection->pq, text, 0, NULL, NULL, NULL, NULL, 0) == 1;
}

static bool send_end(struct postgres_connection *connection)
{
    return PQpipelineSync(connection->pq) == 1 && PQflush(connection->pq) >= 0;
}

hf_status hfi_postgres_send(struct postgres_store *store, struct postgres_connection *connection,
                            struct postgres_call *calls, size_t count, hf_error *err)
{
    uint64_t prepared = connection->prepared;
    bool sent = send_settings(connection);
    for (size_t i = 0; i < count && sent; i++) {
        const uint64_t bit = UINT64_C(1) << calls[i].statement;
        calls[i].result = NULL;
        calls[i].prepares = !connection->pooled && !(prepared & bit);
        prepared |= bit; /* the next of its kind needs no other */
        sent = send_call(store, connection, &calls[i]);
    }
    return sent && send_end(connection) ? HF_OK : fail_sending(connection, err);
}

bool hfi_postgres_ping(struct postgres_store *store, struct postgres_connection *connection)
{
    connection->pinged = send_end(connection);
    connection->used_ns = store->env->now_ns();
    return connection->pinged;
}

/* --- receiving --- */

/* Waits until libpq has a whole answer, or the deadline. */
static bool await_answer(const struct postgres_store *store, struct postgres_connection *connection,
                         hfi_time deadline_ns)
{
    while (PQisBusy(connection->pq)) {
        const int unsent = PQflush(connection->pq);
        const hfi_time left = deadline_ns - store->env->now_ns();
        const struct timespec most = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
        struct pollfd one = { .fd = PQsocket(connection->pq), .events = unsent ? POLLIN | POLLOUT : POLLIN };
        if (unsent < 0 || left <= 0 || one.fd < 0)
            return false;
        if (ppoll(&one, 1, &most, NULL) > 0 && PQconsumeInput(connection->pq) != 1)
            return false;
    }
    return true;
}

/* One result and the end of its statement. NULL: the connection broke, or the deadline came. */
static PGresult *receive(const struct postgres_store *store, struct postgres_connection *connection,
                         hfi_time deadline_ns)
{
    PGresult *result = await_answer(store, connection, deadline_ns) ? PQgetResult(connection->pq) : NULL;
    const ExecStatusType kind = PQresultStatus(result);
    if (result && kind != PGRES_PIPELINE_SYNC) {
        PGresult *end = await_answer(store, connection, deadline_ns) ? PQgetResult(connection->pq) : result;
        if (end || PQstatus(connection->pq) != CONNECTION_OK) { /* in a pipeline each statement has one result */
            if (end && end != result)
                PQclear(end);
            hfi_postgres_note_end(connection, result);
            PQclear(result);
            result = NULL;
        }
    }
    return result;
}

static hf_status lost_answer(const struct postgres_store *store, struct postgres_connection *connection,
                             hfi_time deadline_ns, hf_error *err)
{
    const bool late = store->env->now_ns() >= deadline_ns;
    connection->broken = true;
    return hfi_fail(err, HF_UNKNOWN, 0, "%s %s", store->config.where,
                    late ? "did not answer in time" : "closed the connection before it had answered");
}

static void forget_results(struct postgres_call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        PQclear(calls[i].result);
        calls[i].result = NULL;
    }
}

/* Keeps the first refusal. What comes after it was not done, and what came before it was undone. */
static void take_result(const struct postgres_store *store, const PGresult *result, hf_status *refusal, hf_error *err)
{
    if (*refusal == HF_OK && PQresultStatus(result) != PGRES_PIPELINE_ABORTED)
        *refusal = hfi_postgres_refusal(store, result, err);
}

/* The end of the pipeline, after which all of it is done. */
static bool receive_end(const struct postgres_store *store, struct postgres_connection *connection,
                        hfi_time deadline_ns)
{
    PGresult *result = receive(store, connection, deadline_ns);
    const bool end = PQresultStatus(result) == PGRES_PIPELINE_SYNC;
    PQclear(result);
    return end;
}

/* What comes before the first answer: that to a ping, and that to the settings. False: no more will come. */
static bool receive_beginning(const struct postgres_store *store, struct postgres_connection *connection,
                              hf_status *refusal, hfi_time deadline_ns, hf_error *err)
{
    if (connection->pinged && !receive_end(store, connection, deadline_ns))
        return false;
    connection->pinged = false;
    if (!connection->pooled)
        return true;
    PGresult *result = receive(store, connection, deadline_ns);
    const bool whole = result != NULL;
    if (whole)
        take_result(store, result, refusal, err);
    PQclear(result);
    return whole;
}

static hf_status receive_all(struct postgres_store *store, struct postgres_connection *connection,
                             struct postgres_call *calls, size_t count, hfi_time deadline_ns, hf_error *err)
{
    hf_status refusal = HF_OK;
    bool whole = receive_beginning(store, connection, &refusal, deadline_ns, err);
    for (size_t i = 0; i < count && whole; i++) {
        if (calls[i].prepares) {
            PGresult *result = receive(store, connection, deadline_ns);
            whole = result != NULL;
            if (PQresultStatus(result) == PGRES_COMMAND_OK)
                connection->prepared |= UINT64_C(1) << calls[i].statement;
            if (whole)
                take_result(store, result, &refusal, err);
            PQclear(result);
        }
        calls[i].result = whole ? receive(store, connection, deadline_ns) : NULL;
        whole = calls[i].result != NULL;
        if (whole)
            take_result(store, calls[i].result, &refusal, err);
    }
    if (!whole || !receive_end(store, connection, deadline_ns)) {
        forget_results(calls, count);
        return lost_answer(store, connection, deadline_ns, err);
    }
    if (refusal != HF_OK)
        forget_results(calls, count);
    return refusal;
}

hf_status hfi_postgres_poll(struct postgres_store *store, struct postgres_connection *connection,
                            struct postgres_call *call, hf_error *err)
{
    if (PQconsumeInput(connection->pq) != 1)
        return lost_answer(store, connection, HFI_NEVER, err);
    if (PQisBusy(connection->pq))
        return HF_BUSY;
    return receive_all(store, connection, call, 1, store->env->now_ns() + store->env->timeout_ns, err);
}

hf_status hfi_postgres_await(struct postgres_store *store, struct postgres_connection *connection,
                             struct postgres_call *call, hfi_time deadline_ns, hf_error *err)
{
    return receive_all(store, connection, call, 1, deadline_ns, err);
}

/* --- whole exchanges --- */

hf_status hfi_postgres_exchange(struct postgres_store *store, struct postgres_connection *connection,
                                struct postgres_call *calls, size_t count, hfi_time deadline_ns, hf_error *err)
{
    const hf_status status = hfi_postgres_send(store, connection, calls, count, err);
    return status == HF_OK ? receive_all(store, connection, calls, count, deadline_ns, err) : status;
}

hf_status hfi_postgres_prepare(struct postgres_store *store, struct postgres_connection *connection,
                               enum postgres_statement statement, hfi_time deadline_ns, hf_error *err)
{
    if (connection->pooled || connection->prepared & UINT64_C(1) << statement)
        return HF_OK;
    const char *letters = store->config.strategy->sql[statement].parameters;
    Oid types[PARAMETERS_MOST];
    for (size_t i = 0; letters[i]; i++)
        types[i] = type_of(letters[i]);
    if (PQsendPrepare(connection->pq, store->config.prepared[statement], store->config.sql[statement],
                      (int)strlen(letters), types) != 1 ||
        !send_end(connection))
        return fail_sending(connection, err);
    PGresult *result = receive(store, connection, deadline_ns);
    hf_status refusal = HF_OK;
    if (result)
        take_result(store, result, &refusal, err);
    if (!result || !receive_end(store, connection, deadline_ns))
        refusal = lost_answer(store, connection, deadline_ns, err);
    else if (refusal == HF_OK)
        connection->prepared |= UINT64_C(1) << statement;
    PQclear(result);
    return refusal;
}

hf_status hfi_postgres_say(struct postgres_store *store, struct postgres_connection *connection,
                           const struct postgres_text *texts, size_t count, PGresult **result, hfi_time deadline_ns,
                           hf_error *err)
{
    hf_status refusal = HF_OK;
    PGresult *answer = NULL;
    bool sent = send_settings(connection);
    for (size_t i = 0; i < count && sent; i++)
        sent = PQsendQueryParams(connection->pq, texts[i].text, texts[i].count, NULL, texts[i].parameters, NULL, NULL,
                                 0) == 1;
    if (!sent || !send_end(connection))
        return fail_sending(connection, err);
    bool whole = receive_beginning(store, connection, &refusal, deadline_ns, err);
    for (size_t i = 0; i < count && whole; i++) {
        PQclear(answer);
        answer = receive(store, connection, deadline_ns);
        whole = answer != NULL;
        if (whole)
            take_result(store, answer, &refusal, err);
    }
    if (!whole || !receive_end(store, connection, deadline_ns))
        refusal = lost_answer(store, connection, deadline_ns, err);
    if (refusal == HF_OK && result)
        *result = answer;
    else
        PQclear(answer);
    return refusal;
}

/* The answer was no, and nothing was changed. True: what was wrong has been mended, and the connection is still good
 * or marked as broken. */
static bool mend(struct postgres_store *store, struct postgres_connection *connection, unsigned tries,
                 hf_status *status, hfi_time deadline_ns, hf_error *trouble)
{
    if (hfi_postgres_is_conflict(trouble))
        return tries < CONFLICTS_MOST;
    if (hfi_postgres_is_read_only(trouble)) { /* it was a primary: another one may be by now */
        connection->broken = true;
        return tries == 0;
    }
    if (tries > 0 || !hfi_postgres_is_missing(trouble))
        return false;
    /* Dropped; or it is another database, after a failover. */
    *status = hfi_postgres_prepare_tables(store, connection, deadline_ns, trouble);
    *status = hfi_postgres_not_unknown(*status, trouble);
    return *status == HF_OK;
}

/* Done later than the release that undoes it, it would take the lock for nobody. A renewal has a number, and all else
 * does no harm. */
static bool may_take(const struct postgres_call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const enum postgres_statement one = calls[i].statement;
        if (one == POSTGRES_TAKE || one == POSTGRES_TAKE_ONCE || one == POSTGRES_SWAP || one == POSTGRES_ENTER)
            return true;
    }
    return false;
}

hf_status hfi_postgres_ask(struct postgres_store *store, struct postgres_call *calls, size_t count,
                           hfi_time deadline_ns, hf_error *err)
{
    hf_error local = { .native = 0 };
    hf_error *trouble = err ? err : &local;
    for (unsigned tries = 0;; tries++) {
        struct postgres_connection *connection;
        hf_status status = hfi_postgres_borrow(store, &connection, deadline_ns, trouble);
        if (status != HF_OK)
            return status;
        status = hfi_postgres_exchange(store, connection, calls, count, deadline_ns, trouble);
        const bool again = status != HF_OK && mend(store, connection, tries, &status, deadline_ns, trouble);
        if (status == HF_UNKNOWN && may_take(calls, count))
            hfi_postgres_give_up(store, connection);
        else
            hfi_postgres_give_back(store, connection);
        if (!again)
            return status;
    }
}

hf_status hfi_postgres_run(struct postgres_store *store, const unsigned char *sequence,
                           const struct postgres_values *values, struct postgres_answer *answer, hfi_time deadline_ns,
                           hf_error *err)
{
    struct postgres_call calls[POSTGRES_SEQUENCE_MAX];
    size_t count = 0;
    for (; count < POSTGRES_SEQUENCE_MAX && sequence[count] != POSTGRES_END; count++)
        calls[count] = (struct postgres_call){ .statement = sequence[count], .values = values };
    const hf_status status = hfi_postgres_ask(store, calls, count, deadline_ns, err);
    answer->last = answer->vouched = answer->done = NULL;
    answer->changed = 0;
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        PGresult **kept = calls[i].statement == POSTGRES_VOUCH  ? &answer->vouched
                          : calls[i].statement == POSTGRES_DONE ? &answer->done
                                                                : &answer->last;
        if (calls[i].statement == answer->counted)
            answer->changed = strtol(PQcmdTuples(calls[i].result), NULL, 10);
        PQclear(*kept);
        *kept = calls[i].result;
    }
    return status;
}
