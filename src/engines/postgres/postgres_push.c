/* SPDX-License-Identifier: MIT
 *
 * postgres_push.c: how a waiter hears that the lock was handed to it. One connection per client listens to a channel of
 * the client's own, on which the serial of the hold is sent that was served. Who reads it: see push.h.
 *
 * A proxy may keep it open when its other half has ended. Its waiters would then be deaf, and never served as long as
 * somebody else stands in line: so one that says nothing is pinged, and left for another if it does not answer.
 */
#include "postgres.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_PATIENCE (20 * HFI_MS)
/* For so long it may say nothing; and then a ping may go unanswered. */
#define QUIET (8 * HFI_SECOND)
#define PING_PATIENCE (4 * HFI_SECOND)
/* For so long the number of a process that has ended goes to no other: a server would have to start thousands of them
 * every second. */
#define VOUCHED (10 * HFI_SECOND)

/* A session that listens holds an advisory lock for as long as it lives: that is how others tell. */
static hf_status begin_to_listen(struct postgres_store *store, struct postgres_connection *connection,
                                 hfi_time deadline_ns, hf_error *err)
{
    char channel[48];
    const struct postgres_text texts[] = { { .text = HFI_POSTGRES_LIVE }, { .text = channel } };
    snprintf(channel, sizeof channel, "LISTEN holdfast_%016llx", (unsigned long long)store->env->client);
    const hf_status status = hfi_postgres_say(store, connection, texts, 2, NULL, deadline_ns, err);
    return hfi_postgres_not_unknown(status, err);
}

/* Nobody else does so now. */
static hf_status make_push(struct postgres_store *store, hfi_time deadline_ns, hf_error *err)
{
    struct postgres_connection *connection = NULL;
    hf_status status = hfi_postgres_connect(store, &connection, deadline_ns, err);
    if (status == HF_OK)
        status = begin_to_listen(store, connection, deadline_ns, err);
    if (status != HF_OK) {
        hfi_postgres_disconnect(connection);
        return status;
    }
    pthread_mutex_lock(&store->mutex);
    store->push.connection = connection;
    hfi_push_connected(&store->push.shared, PQsocket(connection->pq), store->env->now_ns() + QUIET);
    pthread_mutex_unlock(&store->mutex);
    return HF_OK;
}

hf_status hfi_postgres_listen(struct postgres_store *store, struct postgres_lock *lock,
                              const struct hfi_request *request, hf_error *err)
{
    const hfi_time limit = store->env->now_ns() + store->env->timeout_ns;
    const bool hurried = request->deadline_ns <= limit;
    struct hfi_push *push = &store->push.shared;
    hf_error trouble = { .message = "" };
    hf_status status;
    pthread_mutex_lock(&store->mutex);
    const bool mine = hfi_push_open(push, &lock->waiter, request, &status, err);
    pthread_mutex_unlock(&store->mutex);
    if (!mine)
        return status;
    trouble.status = status = make_push(store, hurried ? request->deadline_ns : limit, &trouble);
    pthread_mutex_lock(&store->mutex);
    hfi_push_opened(push, status == HF_OK || hurried ? NULL : &trouble); /* who had little time knows nothing */
    pthread_mutex_unlock(&store->mutex);
    if (status != HF_OK && err)
        *err = trouble;
    return status;
}

/* --- with the mutex --- */

/* "serial token microseconds": it was given the lock. "serial": the same, but it must ask for the token.
 * "serial second": the one before it was, and should be looked after. */
static void call(const struct postgres_store *store, const char *text, int sender)
{
    char *rest;
    const uint64_t serial = strtoull(text, &rest, 10);
    struct hfi_waiter *waiter = hfi_push_find(&store->push.shared, serial);
    if (!waiter) /* it has left: its release() has given the lock back, or is going to */
        return;
    struct postgres_lock *lock = HFI_WAITER_OF(struct postgres_lock, waiter, waiter);
    const hfi_time claim_over = store->env->now_ns() + HFI_POSTGRES_CLAIM_MS * HFI_MS + SECOND_PATIENCE;
    if (strcmp(rest, " second") != 0) {
        lock->state = POSTGRES_CALLED;
        lock->gift.token = strtoll(rest, &rest, 10);
        lock->gift.server_us = strtoll(rest, NULL, 10);
        lock->gift.sender = sender;
    } else if (claim_over < waiter->ask_again_ns) {
        waiter->ask_again_ns = claim_over;
    }
    hfi_push_call(&store->push.shared, waiter);
}

static bool has_news(const struct hfi_waiter *waiter)
{
    return HFI_WAITER_OF(struct postgres_lock, waiter, waiter)->state != POSTGRES_NEW;
}

/* False: it has not answered for too long. `heard`: it has just said something. */
static bool look_after(struct postgres_store *store, struct postgres_connection *connection, bool heard)
{
    struct hfi_push *push = &store->push.shared;
    const hfi_time now = store->env->now_ns();
    if (connection->pinged && !PQisBusy(connection->pq)) {
        PQclear(PQgetResult(connection->pq));
        connection->pinged = false;
        heard = true;
    }
    if (heard && !connection->pinged)
        hfi_push_look_at(push, now + QUIET);
    if (now < push->look_ns)
        return true;
    hfi_push_look_at(push, now + PING_PATIENCE);
    return !connection->pinged && hfi_postgres_ping(store, connection);
}

static void hear(struct hfi_push *push)
{
    struct postgres_store *store = HFI_WAITER_OF(struct postgres_store, push.shared, push);
    struct postgres_connection *connection = store->push.connection;
    const bool open = PQconsumeInput(connection->pq) == 1 && PQstatus(connection->pq) == CONNECTION_OK;
    bool heard = false;
    for (PGnotify *one; (one = PQnotifies(connection->pq)) != NULL; heard = true) {
        call(store, one->extra, one->be_pid);
        PQfreemem(one);
    }
    if (open && look_after(store, connection, heard))
        return;
    connection->broken = true;
    hfi_postgres_disconnect(connection);
    store->push.connection = NULL;
    hfi_push_broken(push);
}

bool hfi_postgres_may_write(const struct postgres_store *store, int backend)
{
    const struct postgres_writers *writers = &store->writers;
    if (store->env->now_ns() >= writers->until_ns)
        return false;
    bool found = backend == 0;
    for (size_t i = 0; i < writers->count && !found; i++)
        found = writers->backends[i] == backend;
    return found;
}

/* --- without it --- */

void hfi_postgres_push_open(struct postgres_store *store)
{
    hfi_push_init(&store->push.shared, store->env, &store->mutex, -1, has_news, hear);
}

void hfi_postgres_push_close(struct postgres_store *store)
{
    hfi_postgres_disconnect(store->push.connection);
    hfi_push_free(&store->push.shared);
}

void hfi_postgres_learn_writers(struct postgres_store *store, const PGresult *result, hfi_time asked_ns)
{
    const char *text = PQntuples(result) > 0 ? PQgetvalue(result, 0, 0) : "";
    int *backends = hfi_alloc((strlen(text) / 2 + 1) * sizeof *backends); /* a digit and a blank each, at least */
    size_t count = 0;
    for (char *end; backends && *text; text = *end ? end + 1 : end)
        backends[count++] = (int)strtol(text, &end, 10);
    pthread_mutex_lock(&store->mutex);
    int *before = store->writers.backends;
    store->writers = (struct postgres_writers){ .backends = backends, .count = count, .until_ns = asked_ns + VOUCHED };
    pthread_mutex_unlock(&store->mutex);
    hfi_free(before);
}

bool hfi_postgres_expect(struct postgres_store *store, struct postgres_lock *lock, struct hfi_owner owner, int *backend)
{
    pthread_mutex_lock(&store->mutex);
    struct postgres_push *push = &store->push;
    const bool can_take_push = push->connection != NULL;
    if (can_take_push) {
        lock->state = POSTGRES_NEW;
        *backend = push->connection->backend;
        hfi_push_add(&push->shared, &lock->waiter, owner.serial);
    }
    pthread_mutex_unlock(&store->mutex);
    return can_take_push;
}

void hfi_postgres_expect_no_more(struct postgres_store *store, struct postgres_lock *lock, enum postgres_state state)
{
    pthread_mutex_lock(&store->mutex);
    hfi_push_remove(&lock->waiter);
    lock->state = state;
    pthread_mutex_unlock(&store->mutex);
}

hf_status hfi_postgres_await_call(struct postgres_store *store, struct postgres_lock *lock,
                                  const struct hfi_request *request)
{
    pthread_mutex_lock(&store->mutex);
    const hf_status status = hfi_push_wait(&store->push.shared, &lock->waiter, request);
    if (!store->push.connection) /* listen anew, and then line up anew */
        lock->queued = false;
    pthread_mutex_unlock(&store->mutex);
    return status;
}
