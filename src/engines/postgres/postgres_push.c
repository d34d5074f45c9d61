/* SPDX-License-Identifier: MIT
 *
 * postgres_push.c: how a waiter hears that the lock was handed to it. One connection per client listens to a channel of
 * the client's own, on which the serial of the hold is sent that was served.
 *
 * One of the waiting threads is on duty: it listens for all of them, so that a notification goes from the socket to the
 * thread it is for without a detour; when it leaves, it wakes another one to take over.
 */
#include "postgres.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_PATIENCE (20 * HFI_MS)
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

hf_status hfi_postgres_listen(struct postgres_store *store, hfi_time deadline_ns, hf_error *err)
{
    struct postgres_connection *connection = NULL;
    pthread_mutex_lock(&store->mutex);
    const bool there = store->push.connection != NULL;
    pthread_mutex_unlock(&store->mutex);
    if (there)
        return HF_OK;
    hf_status status = hfi_postgres_connect(store, &connection, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = begin_to_listen(store, connection, deadline_ns, err);
    pthread_mutex_lock(&store->mutex);
    if (status == HF_OK && !store->push.connection) { /* else another thread was faster */
        store->push.connection = connection;
        store->push.number++;
        connection = NULL;
    }
    pthread_mutex_unlock(&store->mutex);
    hfi_postgres_disconnect(connection);
    return status;
}

void hfi_postgres_push_close(struct postgres_store *store)
{
    hfi_postgres_disconnect(store->push.connection);
    store->push.connection = NULL;
}

/* --- with the mutex --- */

static void unlink_lock(struct postgres_push *push, struct postgres_lock *lock)
{
    struct postgres_lock **link = &push->waiting;
    while (*link != lock)
        link = &(*link)->next;
    *link = lock->next;
    lock->waiting = false;
}

/* "serial token microseconds": it was given the lock. "serial": the same, but it must ask for the token.
 * "serial second": the one before it was, and should be looked after. */
static void call(const struct postgres_store *store, const struct postgres_lock *listener, const char *text, int sender)
{
    char *rest;
    const uint64_t serial = strtoull(text, &rest, 10);
    struct postgres_lock *lock = store->push.waiting;
    while (lock && lock->owner.serial != serial)
        lock = lock->next;
    if (!lock) /* it has left: its release() has given the lock back, or is going to */
        return;
    const hfi_time claim_over = store->env->now_ns() + HFI_POSTGRES_CLAIM_MS * HFI_MS + SECOND_PATIENCE;
    if (strcmp(rest, " second") != 0) {
        lock->state = POSTGRES_CALLED;
        lock->gift.token = strtoll(rest, &rest, 10);
        lock->gift.server_us = strtoll(rest, NULL, 10);
        lock->gift.sender = sender;
    } else if (claim_over < lock->ask_again_ns) {
        lock->ask_again_ns = claim_over;
    }
    if (lock->waker && lock != listener)
        hfi_waker_wake(lock->waker);
}

/* Whatever is missed from now on must be asked for. */
static void lose_push(struct postgres_store *store)
{
    hfi_postgres_push_close(store);
    for (struct postgres_lock *lock = store->push.waiting; lock; lock = lock->next) {
        if (lock->waker)
            hfi_waker_wake(lock->waker);
    }
}

static void hear(struct postgres_store *store, const struct postgres_lock *listener)
{
    PGconn *pq = store->push.connection->pq;
    const bool alive = PQconsumeInput(pq) == 1 && PQstatus(pq) == CONNECTION_OK;
    for (PGnotify *one; (one = PQnotifies(pq)) != NULL;) {
        call(store, listener, one->extra, one->be_pid);
        PQfreemem(one);
    }
    if (!alive)
        lose_push(store);
}

/* Somebody must go on listening. */
static void pass_duty_on(const struct postgres_push *push)
{
    const struct postgres_lock *lock = push->waiting;
    while (lock && !lock->waker)
        lock = lock->next;
    if (lock)
        hfi_waker_wake(lock->waker);
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
        lock->push_number = push->number;
        lock->owner = owner;
        lock->state = POSTGRES_NEW;
        *backend = push->connection->backend;
    }
    if (can_take_push && !lock->waiting) {
        lock->waiting = true;
        lock->next = push->waiting;
        push->waiting = lock;
    }
    pthread_mutex_unlock(&store->mutex);
    return can_take_push;
}

void hfi_postgres_expect_no_more(struct postgres_store *store, struct postgres_lock *lock, enum postgres_state state)
{
    pthread_mutex_lock(&store->mutex);
    if (lock->waiting)
        unlink_lock(&store->push, lock);
    lock->state = state;
    pthread_mutex_unlock(&store->mutex);
}

bool hfi_postgres_await_call(struct postgres_store *store, struct postgres_lock *lock, struct hfi_waker *waker,
                             hfi_time deadline_ns)
{
    bool in_time = true;
    struct postgres_push *push = &store->push;
    pthread_mutex_lock(&store->mutex);
    lock->waker = waker;
    while (in_time && lock->state == POSTGRES_NEW && push->connection && push->number == lock->push_number &&
           !hfi_waker_called_back(waker)) {
        const bool duty = !push->on_duty;
        const uint64_t number = push->number;
        const hfi_time until = lock->ask_again_ns < deadline_ns ? lock->ask_again_ns : deadline_ns;
        struct pollfd socket = { .fd = PQsocket(push->connection->pq), .events = POLLIN };
        push->on_duty = true;
        pthread_mutex_unlock(&store->mutex);
        in_time = hfi_waker_sleep(waker, &socket, duty ? 1 : 0, until);
        pthread_mutex_lock(&store->mutex);
        if (duty)
            push->on_duty = false;
        if (duty && socket.revents && push->connection && push->number == number)
            hear(store, lock);
    }
    lock->waker = NULL;
    if (!push->on_duty)
        pass_duty_on(push);
    const bool news = in_time || lock->state == POSTGRES_CALLED || lock->ask_again_ns < deadline_ns;
    if (!push->connection) /* listen anew, and then line up anew */
        lock->queued = false;
    pthread_mutex_unlock(&store->mutex);
    return news;
}
