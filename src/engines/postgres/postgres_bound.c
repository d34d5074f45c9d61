/* SPDX-License-Identifier: MIT
 *
 * postgres_bound.c: advisory and for-update: the lock belongs to a connection, and each lock has one of its own, so
 * that a forced release ends one lock and no other. The server frees it when the connection ends, and the keeper
 * watches all of them for that. What stands between us and the server may keep a connection open whose other half has
 * ended: so they are pinged, and whoever does not answer is taken to be gone, before the server can think so of us.
 *
 * A waiter blocks in the server, with the very connection that is going to hold the lock. To give up it has the
 * statement cancelled by another connection; if that does not work, it closes its own.
 */
#include "postgres.h"
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define WATCHED_AT_ONCE 16
/* The server gives up after nine seconds or more: keepalives come after five without a word, three of them, two seconds
 * apart, and the last ping was two seconds before. */
#define BEAT_S 2
#define PING_PATIENCE (6 * HFI_SECOND)
#define TRIES_MOST 3

hf_status hfi_postgres_bound_open(struct postgres_store *store, hf_error *err)
{
    return hfi_sql_watch_open(&store->watch, &store->heart, BEAT_S, err);
}

/* --- watching --- */

static hf_status watch(struct postgres_store *store, struct postgres_lock *lock, hf_error *err)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.u64 = lock->owner.serial };
    if (epoll_ctl(store->watch, EPOLL_CTL_ADD, PQsocket(lock->connection->pq), &event) != 0)
        return hfi_fail_errno(err, errno, "watch", "a connection");
    pthread_mutex_lock(&store->mutex);
    lock->state = POSTGRES_HELD;
    lock->watched = true;
    lock->next = store->watched;
    store->watched = lock;
    pthread_mutex_unlock(&store->mutex);
    return HF_OK;
}

/* From now on the connection is the caller's alone. */
static struct postgres_connection *take_connection(struct postgres_store *store, struct postgres_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    struct postgres_connection *connection = lock->connection;
    if (lock->watched) {
        struct postgres_lock **link = &store->watched;
        while (*link != lock)
            link = &(*link)->next;
        *link = lock->next;
        lock->watched = false;
        epoll_ctl(store->watch, EPOLL_CTL_DEL, PQsocket(connection->pq), NULL);
    }
    lock->connection = NULL;
    pthread_mutex_unlock(&store->mutex);
    return connection;
}

/* Why a lock is lost whose connection has ended. */
static void say_why(char out[HFI_WHY_MAX], const struct postgres_connection *connection)
{
    if (*connection->last_words)
        snprintf(out, HFI_WHY_MAX, "the server has ended its session: %s", connection->last_words);
    else
        snprintf(out, HFI_WHY_MAX, "its connection to the server has ended");
}

/* With the mutex. Nothing comes on a connection at rest but its end, a changed setting, or the answer to a ping. */
static bool has_ended(const struct postgres_store *store, const struct postgres_lock *lock)
{
    struct postgres_connection *connection = lock->connection;
    PGconn *pq = connection->pq;
    struct pollfd one = { .fd = PQsocket(pq), .events = POLLIN };
    if (one.fd < 0 || poll(&one, 1, 0) != 0)
        connection->broken |= PQconsumeInput(pq) != 1 || PQstatus(pq) != CONNECTION_OK;
    if (!PQisBusy(pq) && connection->pinged) { /* also where nothing was asked: what has come is looked at */
        PGresult *result = PQgetResult(pq);
        hfi_postgres_note_end(connection, result);
        PQclear(result);
        connection->pinged = false;
    }
    if (*connection->last_words)
        connection->broken = true;
    if (connection->pinged && store->env->now_ns() - connection->used_ns >= PING_PATIENCE)
        connection->broken = true;
    return connection->broken;
}

struct ended {
    struct hfi_owner owner;
    char why[HFI_WHY_MAX];
};

/* With the mutex. */
static void note_ended(struct ended *ended, const struct postgres_lock *lock)
{
    ended->owner = lock->owner;
    say_why(ended->why, lock->connection);
}

/* With the mutex. Those of this beat that have ended, as many as there is room for, and pings for the others. */
static size_t look_at_all(struct postgres_store *store, struct ended ended[WATCHED_AT_ONCE])
{
    size_t count = 0;
    for (struct postgres_lock *lock = store->watched; lock && count < WATCHED_AT_ONCE; lock = lock->next) {
        struct postgres_connection *connection = lock->connection;
        if (lock->beat == store->beats)
            continue;
        lock->beat = store->beats;
        const bool pings = has_ended(store, lock) || connection->pinged;
        connection->broken |= !pings && !hfi_postgres_ping(store, connection);
        if (connection->broken)
            note_ended(&ended[count++], lock);
    }
    return count;
}

static void tell(const struct postgres_store *store, const struct ended *ended, size_t count)
{
    for (size_t i = 0; i < count; i++)
        store->env->lost(store->env->core, ended[i].owner, ended[i].why);
}

static void beat(struct postgres_store *store)
{
    struct ended ended[WATCHED_AT_ONCE];
    uint64_t times;
    size_t count;
    if (read(store->heart, &times, sizeof times) != sizeof times)
        return;
    pthread_mutex_lock(&store->mutex);
    store->beats++;
    do {
        count = look_at_all(store, ended);
        pthread_mutex_unlock(&store->mutex);
        tell(store, ended, count);
        pthread_mutex_lock(&store->mutex);
    } while (count == WATCHED_AT_ONCE);
    pthread_mutex_unlock(&store->mutex);
}

void hfi_postgres_bound_take_push(struct postgres_store *store)
{
    struct epoll_event events[WATCHED_AT_ONCE];
    struct ended ended[WATCHED_AT_ONCE];
    size_t count = 0;
    bool beats = false;
    pthread_mutex_lock(&store->mutex);
    const int ready = epoll_wait(store->watch, events, WATCHED_AT_ONCE, 0);
    for (int i = 0; i < ready; i++) {
        const struct postgres_lock *lock = store->watched;
        while (lock && lock->owner.serial != events[i].data.u64)
            lock = lock->next;
        if (events[i].data.u64 == HFI_SQL_HEART)
            beats = true;
        else if (lock && has_ended(store, lock))
            note_ended(&ended[count++], lock);
    }
    pthread_mutex_unlock(&store->mutex);
    tell(store, ended, count);
    if (beats)
        beat(store);
}

hf_status hfi_postgres_bound_renew(struct postgres_store *store, struct hfi_renewal *renewals, size_t count)
{
    pthread_mutex_lock(&store->mutex);
    for (size_t i = 0; i < count; i++) {
        const struct postgres_lock *lock = renewals[i].lock;
        renewals[i].status = lock->watched && !has_ended(store, lock) ? HF_OK : HF_LOST;
        if (lock->watched && renewals[i].status == HF_LOST)
            say_why(renewals[i].why, lock->connection);
    }
    pthread_mutex_unlock(&store->mutex);
    return HF_OK;
}

/* --- attempt --- */

/* Whatever the server has done or still does, it undoes when the session has ended. One that hangs, or what is between,
 * keeps it until it is told otherwise: release() sees to that. */
static void part_with(struct postgres_store *store, struct postgres_lock *lock, struct postgres_connection *connection)
{
    connection->broken = true;
    if (PQstatus(connection->pq) != CONNECTION_OK) {
        hfi_postgres_give_back(store, connection);
    } else {
        hfi_postgres_give_up(store, connection);
        lock->unsure = true;
    }
}

static void drop(struct postgres_store *store, struct postgres_lock *lock)
{
    part_with(store, lock, take_connection(store, lock));
    lock->state = POSTGRES_NEW;
    lock->blocking = lock->got = lock->in_transaction = false;
}

/* The server gave the lock to the connection: writes down who holds it, and draws the token. With an open transaction
 * that takes another connection, or the token would be undone with the transaction. */
static hf_status draw_token(struct postgres_store *store, struct postgres_lock *lock, struct postgres_values *values,
                            const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    struct postgres_call calls[3] = { { .result = NULL },
                                      { .statement = POSTGRES_GRANT, .values = values },
                                      { .statement = POSTGRES_DONE, .values = values } };
    const size_t count = request->once ? 3 : 2;
    hf_status status =
        store->config.strategy->transaction
            ? hfi_postgres_ask(store, calls + 1, count - 1, request->deadline_ns, err)
            : hfi_postgres_exchange_grant(store, lock->connection, calls, count, values, request->deadline_ns, err);
    if (status == HF_OK) {
        grant->token = (uint64_t)hfi_postgres_number(calls[1].result, 0, 0, 0);
        status = hfi_postgres_is_done(calls[2].result, grant) ? HF_DONE : HF_OK;
    }
    for (size_t i = 0; i < 3; i++)
        PQclear(calls[i].result);
    return status;
}

static hf_status fail_emptied(hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the table of those who wait is emptied again and again");
}

/* With the floor, should it be missing. */
static hf_status draw_first_token(struct postgres_store *store, struct postgres_lock *lock,
                                  struct postgres_values *values, const struct hfi_request *request,
                                  struct hfi_grant *grant, hf_error *err)
{
    hf_status status = draw_token(store, lock, values, request, grant, err);
    if (status != HF_OK || grant->token > 0)
        return status;
    status = hfi_postgres_make_floor(store, lock->connection, request->deadline_ns, err);
    if (status == HF_OK)
        status = draw_token(store, lock, values, request, grant, err);
    return status == HF_OK && grant->token == 0 ? fail_emptied(err) : status;
}

/* Column `column` of the answer about a row: whether another strategy holds it, which this one could not wait for. */
static hf_status check_row(const PGresult *result, int column, hf_error *err)
{
    if (PQntuples(result) == 0 || column >= PQnfields(result) || PQgetvalue(result, 0, column)[0] != 't')
        return HF_OK;
    return hfi_fail(err, HF_INVALID, 0,
                    "held with strategy=lease, insert or version; use the same strategy everywhere");
}

static void say_holder(struct hfi_grant *grant, const PGresult *result, int column)
{
    const char *host = PQntuples(result) > 0 ? PQgetvalue(result, 0, column) : "";
    if (*host)
        snprintf(grant->holder, sizeof grant->holder, "%.100s:%lld", host,
                 hfi_postgres_number(result, 0, column + 1, 0));
}

/* The lock of the session, and the token with it. */
static hf_status try_lock(struct postgres_store *store, struct postgres_lock *lock, struct postgres_values *values,
                          const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    struct postgres_call calls[3] = { { .result = NULL },
                                      { .statement = request->once ? POSTGRES_TAKE_ONCE : POSTGRES_TAKE,
                                        .values = values },
                                      { .statement = POSTGRES_DONE, .values = values } };
    hf_status status = hfi_postgres_exchange_grant(store, lock->connection, calls, request->once ? 3 : 2, values,
                                                   request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    grant->token = (uint64_t)hfi_postgres_number(calls[1].result, 0, 0, 0);
    lock->got = grant->token > 0;
    status = hfi_postgres_is_done(calls[2].result, grant) ? HF_DONE : HF_OK;
    for (size_t i = 0; i < 3; i++)
        PQclear(calls[i].result);
    return status == HF_OK && !lock->got ? HF_BUSY : status;
}

/* Why a try came to nothing. HF_BUSY: somebody has it, who is named if that is known. HF_OK: nobody does, by now: it
 * was given back since, or the floor was missing, which then is made here or was by another one. */
static hf_status look_why(struct postgres_store *store, struct postgres_lock *lock, struct postgres_values *values,
                          const struct hfi_request *request, bool *floor, struct hfi_grant *grant, hf_error *err)
{
    struct postgres_call look = { .statement = POSTGRES_LOOK, .values = values };
    hf_status status = hfi_postgres_exchange(store, lock->connection, &look, 1, request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    *floor = PQgetvalue(look.result, 0, 0)[0] == 't';
    if (PQgetvalue(look.result, 0, 3)[0] == 't') {
        say_holder(grant, look.result, 1);
        status = HF_BUSY;
    }
    PQclear(look.result);
    return status == HF_OK && !*floor ? hfi_postgres_make_floor(store, lock->connection, request->deadline_ns, err)
                                      : status;
}

/* Until it is ours, or somebody is seen to have it; or it goes from hand to hand while we ask, and so is not free. */
static hf_status take_lock(struct postgres_store *store, struct postgres_lock *lock, struct postgres_values *values,
                           const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    bool floor = true;
    hf_status status = HF_OK;
    for (int tries = 0; tries < TRIES_MOST && status == HF_OK; tries++) {
        status = try_lock(store, lock, values, request, grant, err);
        if (status != HF_BUSY)
            return status;
        status = look_why(store, lock, values, request, &floor, grant, err);
    }
    if (status != HF_OK)
        return status;
    return floor ? HF_BUSY : fail_emptied(err);
}

/* The row, in a transaction that stays open. */
static hf_status try_row(struct postgres_store *store, struct postgres_lock *lock, struct postgres_values *values,
                         const struct hfi_request *request, bool *missing, struct hfi_grant *grant, hf_error *err)
{
    struct postgres_call calls[3] = { { .statement = POSTGRES_BEGIN, .values = values },
                                      { .statement = request->once ? POSTGRES_TAKE_ONCE : POSTGRES_TAKE,
                                        .values = values },
                                      { .statement = POSTGRES_DONE, .values = values } };
    const size_t begin = lock->in_transaction ? 1 : 0;
    const size_t count = (request->once ? 3 : 2) - begin;
    hf_status status = hfi_postgres_exchange(store, lock->connection, calls + begin, count, request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    const PGresult *result = calls[1].result;
    lock->in_transaction = true;
    lock->got = hfi_postgres_number(result, 0, 0, 0) > 0;
    *missing = PQntuples(result) > 0 && PQgetvalue(result, 0, 4)[0] == 't';
    say_holder(grant, result, 1);
    status = hfi_postgres_is_done(calls[2].result, grant) ? HF_DONE : check_row(result, 5, err);
    for (size_t i = 0; i < 3; i++)
        PQclear(calls[i].result);
    return status == HF_OK && !lock->got ? HF_BUSY : status;
}

static hf_status try_take(struct postgres_store *store, struct postgres_lock *lock, struct postgres_values *values,
                          const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    struct postgres_call add = { .statement = POSTGRES_ADD, .values = values };
    bool missing = false;
    hf_status status;
    if (!store->config.strategy->transaction)
        return take_lock(store, lock, values, request, grant, err);
    status = try_row(store, lock, values, request, &missing, grant, err);
    if (status != HF_BUSY || !missing)
        return status;
    status = hfi_postgres_ask(store, &add, 1, request->deadline_ns, err);
    PQclear(add.result);
    return status == HF_OK ? try_row(store, lock, values, request, &missing, grant, err) : status;
}

/* What has become of the statement that waits. */
static hf_status look_at_wait(struct postgres_store *store, struct postgres_lock *lock, hf_error *err)
{
    struct postgres_call call = { .statement = POSTGRES_BLOCK };
    hf_status status = hfi_postgres_poll(store, lock->connection, &call, err);
    if (status == HF_BUSY)
        return HF_BUSY;
    lock->blocking = false;
    if (status == HF_OK && store->config.strategy->transaction && PQntuples(call.result) == 0)
        status = HF_BUSY; /* the row was deleted: it is made anew */
    if (status == HF_OK)
        status = check_row(call.result, 0, err);
    lock->got = status == HF_OK;
    PQclear(call.result);
    return status;
}

hf_status hfi_postgres_bound_attempt(struct postgres_store *store, struct postgres_lock *lock,
                                     const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    struct postgres_values values;
    hf_status status = HF_OK;
    lock->owner = request->owner;
    if (lock->watched) /* a grant that came too late for the core: it is asked for anew, and is ours still */
        lock->connection = take_connection(store, lock);
    hfi_postgres_values(&values, request);
    if (lock->unsure && hfi_postgres_must_settle(store))
        status = hfi_postgres_settle(store, request->deadline_ns, err);
    if (status == HF_OK && !lock->connection)
        status = hfi_postgres_borrow(store, &lock->connection, request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    hfi_postgres_put(values.backend, lock->connection->backend);
    if (lock->blocking)
        status = look_at_wait(store, lock, err);
    else if (!lock->got)
        status = try_take(store, lock, &values, request, grant, err);
    if (status == HF_OK && grant->token == 0)
        status = draw_first_token(store, lock, &values, request, grant, err);
    lock->token = (int64_t)grant->token;
    if (status == HF_OK)
        status = watch(store, lock, err);
    if (status != HF_OK && status != HF_BUSY && status != HF_DONE)
        drop(store, lock);
    return status;
}

/* --- wait --- */

/* The end of a wait is no time to connect: drawing the token, or the cancel, finds a connection that is there. */
static void warm_pool(struct postgres_store *store, hfi_time deadline_ns)
{
    struct postgres_connection *spare = NULL;
    if (hfi_postgres_borrow(store, &spare, deadline_ns, NULL) == HF_OK)
        hfi_postgres_give_back(store, spare);
}

static hf_status start_blocking(struct postgres_store *store, struct postgres_lock *lock,
                                const struct hfi_request *request, hf_error *err)
{
    const hfi_time most = store->env->now_ns() + store->env->timeout_ns;
    const hfi_time limit = most < request->deadline_ns ? most : request->deadline_ns;
    struct postgres_values values;
    struct postgres_call call = { .statement = POSTGRES_BLOCK, .values = &values };
    hfi_postgres_values(&values, request);
    if (store->config.strategy->transaction || request->deadline_ns != HFI_NEVER)
        warm_pool(store, limit);
    hf_status status = hfi_postgres_prepare(store, lock->connection, POSTGRES_BLOCK, limit, err);
    if (status == HF_OK)
        status = hfi_postgres_send(store, lock->connection, &call, 1, err);
    lock->blocking = status == HF_OK;
    if (status != HF_OK)
        drop(store, lock);
    /* A wait that was too short for that is over, and nothing else. */
    if (status == HF_UNKNOWN && store->env->now_ns() >= request->deadline_ns)
        return HF_TIMEOUT;
    return hfi_postgres_not_unknown(status, err);
}

hf_status hfi_postgres_bound_wait(struct postgres_store *store, struct postgres_lock *lock,
                                  const struct hfi_request *request, hf_error *err)
{
    hf_status status = HF_OK;
    if (!lock->connection)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection to the server broke");
    if (!lock->blocking)
        status = start_blocking(store, lock, request, err);
    while (status == HF_OK && !hfi_waker_called_back(request->waker)) {
        PGconn *pq = lock->connection->pq;
        struct pollfd socket = { .fd = PQsocket(pq), .events = PQflush(pq) == 1 ? POLLIN | POLLOUT : POLLIN };
        if (!hfi_waker_sleep(request->waker, &socket, 1, request->deadline_ns))
            status = HF_TIMEOUT;
        else if (socket.revents && (PQconsumeInput(pq) != 1 || !PQisBusy(pq)))
            break;
    }
    return status;
}

/* --- release --- */

/* Ends a statement that waits. True: the connection is at rest; `got` tells whether it may have been given the lock. */
static bool stop_blocking(struct postgres_store *store, struct postgres_connection *connection, bool *got,
                          hfi_time deadline_ns)
{
    struct postgres_values values = { .name = "", .note = "" };
    struct postgres_call cancel = { .statement = POSTGRES_CANCEL, .values = &values };
    struct postgres_call block = { .statement = POSTGRES_BLOCK };
    hf_error answer = { .native = 0 };
    hfi_postgres_put(values.backend, connection->backend);
    hf_status status = hfi_postgres_poll(store, connection, &block, &answer);
    if (status == HF_BUSY) {
        status = hfi_postgres_ask(store, &cancel, 1, deadline_ns, NULL);
        PQclear(cancel.result);
        if (status == HF_OK)
            status = hfi_postgres_await(store, connection, &block, deadline_ns, &answer);
    }
    /* A session lock may have been granted at the very moment of the cancel, and then stays in spite of the error. */
    *got = status == HF_OK || !store->config.strategy->transaction;
    PQclear(block.result);
    return status != HF_BUSY && !connection->broken && (status == HF_OK || hfi_postgres_is_cancelled(&answer));
}

static size_t list(struct postgres_call *calls, const unsigned char *sequence, const struct postgres_values *values)
{
    size_t count = 0;
    for (; sequence[count] != POSTGRES_END; count++)
        calls[count] = (struct postgres_call){ .statement = sequence[count], .values = values };
    return count;
}

static hf_status unlock(struct postgres_store *store, struct postgres_connection *connection,
                        const struct postgres_lock *lock, bool got, const struct hfi_request *request, hf_error *err)
{
    static const postgres_sequence roll_back = { POSTGRES_ROLLBACK };
    const struct postgres_strategy *strategy = store->config.strategy;
    struct postgres_values values;
    struct postgres_call calls[POSTGRES_SEQUENCE_MAX];
    const bool done = request->done_ms > 0 && lock->state == POSTGRES_HELD;
    if (!got && !lock->in_transaction)
        return HF_OK;
    hfi_postgres_values(&values, request);
    hfi_postgres_put(values.version, lock->token);
    if (done)
        hfi_postgres_put(values.ttl, (int64_t)request->done_ms);
    const size_t count = list(calls, !got ? roll_back : done ? strategy->mark : strategy->release, &values);
    hf_status status = hfi_postgres_exchange(store, connection, calls, count, request->deadline_ns, err);
    if (status == HF_OK && got && !strategy->transaction && PQgetvalue(calls[count - 1].result, 0, 0)[0] != 't')
        status = hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    for (size_t i = 0; i < count; i++)
        PQclear(calls[i].result);
    return status;
}

static hf_status let_go(struct postgres_store *store, struct postgres_lock *lock,
                        struct postgres_connection *connection, const struct hfi_request *request, hf_error *err)
{
    const bool was_held = lock->state == POSTGRES_HELD;
    bool got = lock->got;
    hf_status status = HF_LOST;
    char why[HFI_WHY_MAX];
    if (lock->blocking && !stop_blocking(store, connection, &got, request->deadline_ns))
        connection->broken = true;
    if (!connection->broken)
        status = unlock(store, connection, lock, got, request, was_held ? err : NULL);
    lock->state = POSTGRES_NEW;
    lock->blocking = lock->got = lock->in_transaction = false;
    if (status != HF_OK && (was_held || status != HF_LOST))
        connection->broken = true;
    say_why(why, connection);
    if (connection->broken)
        part_with(store, lock, connection);
    else
        hfi_postgres_give_back(store, connection);
    if (!was_held)
        return HF_OK;
    if (request->done_ms > 0 && hfi_postgres_cannot_mark(status)) /* the end of the connection frees it all the same */
        return status;
    /* Without an answer by the deadline the lock may be held until the session has ended. */
    const bool late = status == HF_UNKNOWN && store->env->now_ns() >= request->deadline_ns;
    if (status != HF_OK && !late)
        return hfi_fail(err, HF_LOST, 0, "%s", why);
    return status;
}

hf_status hfi_postgres_bound_release(struct postgres_store *store, struct postgres_lock *lock,
                                     const struct hfi_request *request, hf_error *err)
{
    struct postgres_connection *connection = take_connection(store, lock);
    const hf_status status = connection ? let_go(store, lock, connection, request, err) : HF_OK;
    if (status == HF_UNKNOWN || !lock->unsure)
        return status;
    hf_error trouble = { .status = HF_OK };
    const hf_status settled = hfi_postgres_settle(store, request->deadline_ns, &trouble);
    lock->unsure = settled != HF_OK;
    if (settled != HF_OK && err)
        *err = trouble;
    return settled == HF_OK ? status : settled;
}
