/* SPDX-License-Identifier: MIT
 *
 * postgres_late.c: what was asked on a connection and never answered may still be done, much later: it waits in the
 * server behind somebody's lock, or on its way. A lock that is taken after its release was answered would be nobody's.
 * So the session that owes the answer is ended before that release, and it is waited until the server has it no more.
 *
 * The connection stays open until then: a pooler would give the session of one that was closed to another client.
 */
#include "postgres.h"
#include <poll.h>
#include <string.h>

/* More are not left to themselves while a lock is asked for again and again. */
#define GIVEN_UP_MOST 16
/* How often it is looked whether a session that was told to end has done so. */
#define END_PAUSE_MS 5

void hfi_postgres_give_up(struct postgres_store *store, struct postgres_connection *connection)
{
    connection->broken = true;
    if (connection->pooled) { /* whose sessions it had nobody can say */
        hfi_postgres_disconnect(connection);
        return;
    }
    pthread_mutex_lock(&store->mutex);
    connection->next = store->given_up;
    store->given_up = connection;
    store->given_up_count++;
    pthread_mutex_unlock(&store->mutex);
}

bool hfi_postgres_must_settle(struct postgres_store *store)
{
    pthread_mutex_lock(&store->mutex);
    const bool many = store->given_up_count >= GIVEN_UP_MOST;
    pthread_mutex_unlock(&store->mutex);
    return many;
}

/* One of them, which another thread may be about to end as well. */
struct session {
    int backend;
    int64_t lived_us;
    char started[sizeof((struct postgres_connection *)0)->started];
};

static bool find_one(struct postgres_store *store, struct session *session)
{
    pthread_mutex_lock(&store->mutex);
    const struct postgres_connection *one = store->given_up;
    if (one) {
        *session = (struct session){ .backend = one->backend, .lived_us = one->lived_us };
        memcpy(session->started, one->started, sizeof session->started);
    }
    pthread_mutex_unlock(&store->mutex);
    return one != NULL;
}

static void forget(struct postgres_store *store, const struct session *session)
{
    pthread_mutex_lock(&store->mutex);
    struct postgres_connection **link = &store->given_up, *found;
    while (*link && ((*link)->backend != session->backend || (*link)->lived_us != session->lived_us ||
                     strcmp((*link)->started, session->started) != 0))
        link = &(*link)->next;
    found = *link;
    if (found) {
        *link = found->next;
        store->given_up_count--;
    }
    pthread_mutex_unlock(&store->mutex);
    hfi_postgres_disconnect(found);
}

static hf_status end_session(struct postgres_store *store, const struct session *session, hfi_time deadline_ns,
                             hf_error *err)
{
    struct postgres_values values = { .name = "", .note = session->started };
    hfi_postgres_put(values.backend, session->backend);
    hfi_postgres_put(values.version, session->lived_us);
    for (;;) {
        struct postgres_call call = { .statement = POSTGRES_END_SESSION, .values = &values };
        const hf_status status = hfi_postgres_ask(store, &call, 1, deadline_ns, err);
        if (status != HF_OK)
            return hfi_postgres_not_unknown(status, err);
        const bool gone = PQntuples(call.result) == 0;
        PQclear(call.result);
        if (gone)
            return HF_OK;
        if (store->env->now_ns() >= deadline_ns)
            return hfi_fail(err, HF_UNAVAILABLE, 0, "process %d of %s has not answered, and does not end",
                            session->backend, store->config.where);
        poll(NULL, 0, END_PAUSE_MS);
    }
}

hf_status hfi_postgres_settle(struct postgres_store *store, hfi_time deadline_ns, hf_error *err)
{
    struct session session;
    hf_status status = HF_OK;
    while (status == HF_OK && find_one(store, &session)) {
        status = end_session(store, &session, deadline_ns, err);
        if (status == HF_OK)
            forget(store, &session);
    }
    return status;
}

void hfi_postgres_forget_given_up(struct postgres_store *store)
{
    for (struct session session; find_one(store, &session);)
        forget(store, &session);
}
