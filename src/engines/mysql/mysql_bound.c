/* SPDX-License-Identifier: MIT
 *
 * mysql_bound.c: get-lock and for-update: the lock belongs to a connection, and each lock has one of its own, so that a
 * forced release ends one lock and no other. The server frees it when the connection ends, and the keeper watches all
 * of them for that.
 *
 * A waiter blocks in the server, with the very connection that is going to hold the lock. To give up it has the
 * statement killed by another connection; if that does not work, it closes its own. From time to time it looks, by
 * another connection, whether the server still has it in line: a proxy may keep open what the server has ended.
 */
#include "mysql_engine.h"
#include <stdio.h>
#include <string.h>

#define TRIES_MOST 3

static void drop(struct mysql_store *store, struct mysql_lock *lock)
{
    struct mysql_connection *connection = hfi_mysql_take_connection(store, lock);
    if (connection)
        connection->broken = true;
    hfi_mysql_disconnect(connection);
    lock->held = lock->calling = lock->got = lock->in_transaction = false;
}

static hf_status say(struct mysql_store *store, struct mysql_connection *connection, const char *text,
                     hfi_time deadline_ns, hf_error *err)
{
    const hf_status status = hfi_mysql_say(store, connection, text, NULL, deadline_ns, err);
    if (status != HF_OK)
        connection->broken = true;
    return status;
}

/* --- attempt --- */

static void say_who(struct mysql_store *store, const struct mysql_values *values, struct hfi_grant *grant,
                    hfi_time deadline_ns)
{
    struct mysql_answer answer = { .found = false };
    if (hfi_mysql_ask(store, SQL_LOOK, values, &answer, deadline_ns, NULL) == HF_OK && answer.found)
        snprintf(grant->holder, sizeof grant->holder, "%.100s:%.20s", answer.row.text[1], answer.row.text[2]);
}

/* GET_LOCK() and the token, by one statement. */
static hf_status try_lock(struct mysql_store *store, struct mysql_lock *lock, const struct mysql_values *values,
                          struct hfi_grant *grant, hfi_time deadline_ns, hf_error *err)
{
    struct mysql_answer answer = { .found = false };
    const enum mysql_sql statement = values->once ? SQL_TAKE_ONCE : SQL_TAKE;
    const hf_status status = hfi_mysql_ask_on(store, &lock->connection, statement, values, &answer, deadline_ns, err);
    if (status != HF_OK || hfi_mysql_is_done(values, &answer))
        return status == HF_OK ? HF_DONE : status;
    lock->got = answer.changed > 0;
    grant->token = lock->got ? answer.number : 0;
    return lock->got ? HF_OK : HF_BUSY;
}

/* A statement that ends by its time-out may have ended the transaction too: that depends on the server's settings, and
 * the answer does not tell. A new one ends what is left of the old. */
static hf_status begin(struct mysql_store *store, struct mysql_lock *lock, hfi_time deadline_ns, hf_error *err)
{
    if (!store->config.strategy->transaction || lock->in_transaction)
        return HF_OK;
    const hf_status status = say(store, lock->connection, "START TRANSACTION", deadline_ns, err);
    lock->in_transaction = status == HF_OK;
    return status;
}

/* The row is ours, but not the lock if its columns say that somebody else holds it. */
static hf_status judge_row(struct mysql_lock *lock, const struct mysql_answer *answer, hf_error *err)
{
    if (answer->row.text[2][0] == '1')
        return hfi_fail(err, HF_INVALID, 0,
                        "it is held with the strategy lease, insert or version; use the same one everywhere");
    lock->got = true;
    return HF_OK;
}

/* The row, in a transaction that stays open. It is made if it was never used. */
static hf_status try_row(struct mysql_store *store, struct mysql_lock *lock, const struct mysql_values *values,
                         hfi_time deadline_ns, hf_error *err)
{
    struct mysql_answer answer = { .found = false };
    hf_error local = { .native = 0 };
    hf_error *trouble = err ? err : &local;
    for (unsigned tries = 0; tries < TRIES_MOST; tries++) {
        hf_status status = begin(store, lock, deadline_ns, trouble);
        if (status == HF_OK)
            status = hfi_mysql_run(store, lock->connection, SQL_TAKE, values, &answer, deadline_ns, trouble);
        if (status == HF_OK && answer.found)
            return judge_row(lock, &answer, err);
        lock->in_transaction = lock->in_transaction && status == HF_OK;
        if (status != HF_OK && hfi_mysql_is_locked((unsigned)trouble->native))
            return HF_BUSY;
        if (status != HF_OK && !hfi_mysql_is_missing_table((unsigned)trouble->native))
            return status;
        status = say(store, lock->connection, "ROLLBACK", deadline_ns, trouble);
        lock->in_transaction = false;
        if (status == HF_OK)
            status = hfi_mysql_ask(store, SQL_ADD, values, &answer, deadline_ns, trouble);
        if (status != HF_OK)
            return status;
    }
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the row of the lock is deleted as soon as it is made");
}

static hf_status try_take(struct mysql_store *store, struct mysql_lock *lock, const struct mysql_values *values,
                          struct hfi_grant *grant, hfi_time deadline_ns, hf_error *err)
{
    const hf_status status = store->config.strategy->transaction
                                 ? try_row(store, lock, values, deadline_ns, err)
                                 : try_lock(store, lock, values, grant, deadline_ns, err);
    if (status == HF_BUSY)
        say_who(store, values, grant, deadline_ns);
    return status;
}

/* What has become of the statement that waits. HF_BUSY and not calling: it came to nothing. */
static hf_status look_at_wait(struct mysql_store *store, struct mysql_lock *lock, hf_error *err)
{
    struct mysql_answer answer = { .found = false };
    hf_error local = { .native = 0 };
    hf_error *trouble = err ? err : &local;
    const hf_status status = hfi_mysql_poll(store, lock->connection, &answer, trouble);
    if (status == HF_BUSY)
        return HF_BUSY;
    lock->calling = false;
    lock->in_transaction = lock->in_transaction && status == HF_OK;
    if (status == HF_OK && answer.found && store->config.strategy->transaction)
        return judge_row(lock, &answer, err);
    lock->got = status == HF_OK && answer.found && answer.row.text[1][0] == '1'; /* beside the sign that it waits */
    if (status == HF_OK)
        return lock->got ? HF_OK : HF_BUSY;
    return hfi_mysql_is_locked((unsigned)trouble->native) ? HF_BUSY : status;
}

/* The server gave the lock to the connection: writes down who holds it, and draws the token. With an open transaction
 * that takes another connection, or the token would be undone with the transaction. */
static hf_status draw_token(struct mysql_store *store, struct mysql_lock *lock, struct mysql_values *values,
                            uint64_t *token, hfi_time deadline_ns, hf_error *err)
{
    struct mysql_answer answer = { .number = 0 };
    const enum mysql_sql statement = values->once ? SQL_GRANT_ONCE : SQL_GRANT;
    values->connection = lock->connection->id;
    const hf_status status = store->config.strategy->transaction
                                 ? hfi_mysql_ask(store, statement, values, &answer, deadline_ns, err)
                                 : hfi_mysql_run(store, lock->connection, statement, values, &answer, deadline_ns, err);
    if (status == HF_OK && hfi_mysql_is_done(values, &answer))
        return HF_DONE;
    *token = answer.number;
    return status;
}

hf_status hfi_mysql_bound_attempt(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                  struct hfi_grant *grant, hf_error *err)
{
    struct mysql_values values;
    hf_status status = HF_OK;
    lock->owner = request->owner;
    hfi_mysql_values(&values, store, request);
    if (lock->held) /* a grant that came too late for the core: it is asked for again */
        drop(store, lock);
    if (!lock->connection)
        status = hfi_mysql_borrow(store, &lock->connection, request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    if (lock->calling)
        status = look_at_wait(store, lock, err);
    else
        status = HF_BUSY;
    if (status == HF_BUSY && !lock->calling)
        status = try_take(store, lock, &values, grant, request->deadline_ns, err);
    if (status == HF_OK && grant->token == 0)
        status = draw_token(store, lock, &values, &grant->token, request->deadline_ns, err);
    if (status == HF_DONE)
        hfi_mysql_look_at_mark(store, &values, grant, request->deadline_ns, NULL); /* it may have been taken back */
    else if (status == HF_BUSY && request->once)
        status = hfi_mysql_look_at_mark(store, &values, grant, request->deadline_ns, err);
    lock->held = status == HF_OK;
    if (lock->held)
        hfi_mysql_watch(store, lock);
    if (status != HF_OK && status != HF_BUSY && status != HF_DONE)
        drop(store, lock); /* whatever the server has done, it undoes */
    return status;
}

/* --- wait --- */

static hf_status start_calling(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                               hf_error *err)
{
    const hfi_time usual = store->env->now_ns() + store->env->timeout_ns;
    const hfi_time limit = usual < request->deadline_ns ? usual : request->deadline_ns;
    struct mysql_values values;
    hfi_mysql_values(&values, store, request);
    hfi_mysql_warm_pool(store, limit);
    hfi_mysql_enter_line(store, lock->connection, &values, limit);
    hf_status status = begin(store, lock, limit, err);
    if (status == HF_OK)
        status = hfi_mysql_send(store, lock->connection, SQL_CALL, &values, limit, err);
    lock->calling = status == HF_OK;
    if (status != HF_OK)
        drop(store, lock);
    return status;
}

hf_status hfi_mysql_bound_wait(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                               hf_error *err)
{
    hf_status status = HF_OK;
    if (!lock->connection)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection to the server broke");
    if (!lock->calling)
        status = start_calling(store, lock, request, err);
    hfi_time look_at = store->env->now_ns() + HFI_MYSQL_LOOK_PAUSE;
    while (status == HF_OK && lock->connection->wanted && !hfi_waker_called_back(request->waker)) {
        struct pollfd socket = { .fd = mysql_get_socket(lock->connection->client), .events = POLLIN };
        const bool last = request->deadline_ns <= look_at;
        const bool woken = hfi_waker_sleep(request->waker, &socket, 1, last ? request->deadline_ns : look_at);
        if (socket.revents)
            hfi_mysql_go_on(lock->connection);
        if (woken)
            continue;
        if (last)
            return HF_TIMEOUT;
        if (!hfi_mysql_is_in_line(store, lock, request->deadline_ns)) {
            drop(store, lock);
            return HF_OK; /* asks anew */
        }
        look_at = store->env->now_ns() + HFI_MYSQL_LOOK_PAUSE;
    }
    return status;
}

/* --- release --- */

/* Of what the connection did not get, or got in the very moment in which it gave up. */
static void undo(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns)
{
    if (!connection->broken && store->config.strategy->transaction) /* whether or not the server has ended it */
        say(store, connection, "ROLLBACK", deadline_ns, NULL);
    if (!connection->broken)
        hfi_mysql_let_go(store, connection, deadline_ns, NULL);
}

/* In its transaction, or before the lock is let go of. */
static hf_status mark(struct mysql_store *store, struct mysql_connection *connection, const struct mysql_values *values,
                      hfi_time deadline_ns, hf_error *err)
{
    struct mysql_answer answer = { .changed = 0 };
    const hf_status status = hfi_mysql_run(store, connection, SQL_MARK, values, &answer, deadline_ns, err);
    if (status == HF_OK && answer.changed == 0)
        return hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    return status;
}

/* Writes nothing but the mark, as a commit would wait for the disk: the row of grants goes on to name who held it last,
 * and whoever reads it looks whether that connection does. */
static hf_status unlock(struct mysql_store *store, struct mysql_connection *connection,
                        const struct hfi_request *request, hf_error *err)
{
    struct mysql_values values;
    struct mysql_answer answer = { .found = false };
    hfi_mysql_values(&values, store, request);
    const hf_status marked = request->done_ms ? mark(store, connection, &values, request->deadline_ns, err) : HF_OK;
    if (marked != HF_OK && marked != HF_LOST && !hfi_mysql_is_final(marked))
        return marked;
    hf_status status = hfi_mysql_run(store, connection, SQL_FREE, &values, &answer, request->deadline_ns, err);
    if (status == HF_OK && store->config.strategy->transaction)
        status = say(store, connection, request->done_ms ? "COMMIT" : "ROLLBACK", request->deadline_ns, err);
    else if (status == HF_OK && hfi_mysql_number(&answer.row, 0) == 0)
        status = hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    return status == HF_OK ? marked : status;
}

hf_status hfi_mysql_bound_release(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                  hf_error *err)
{
    const bool was_held = lock->held;
    struct mysql_connection *connection = hfi_mysql_take_connection(store, lock);
    hf_status status = HF_OK;
    if (!connection)
        return HF_OK;
    if (lock->calling && !hfi_mysql_cancel(store, connection, NULL, request->deadline_ns))
        connection->broken = true;
    if (was_held && hfi_mysql_is_alive(store, connection))
        status = unlock(store, connection, request, err);
    else if (was_held)
        connection->broken = true;
    else
        undo(store, connection, request->deadline_ns);
    lock->held = lock->calling = lock->got = lock->in_transaction = false;
    /* Without an answer by the deadline the lock may be held until the server notices. */
    const bool late = status == HF_UNKNOWN && store->env->now_ns() >= request->deadline_ns;
    const bool ended = connection->broken || (status != HF_OK && status != HF_LOST);
    if (ended)
        connection->broken = true; /* closed, and with it all that the server may still think */
    hfi_mysql_give_back(store, connection);
    if (!was_held || late)
        return was_held ? status : HF_OK;
    return ended && !hfi_mysql_is_final(status) ? hfi_fail(err, HF_LOST, 0, "its connection to the server has ended")
                                                : status;
}

hf_status hfi_mysql_bound_renew(struct mysql_store *store, struct hfi_renewal *renewals, size_t count)
{
    pthread_mutex_lock(&store->mutex);
    for (size_t i = 0; i < count; i++) {
        const struct mysql_lock *lock = renewals[i].lock;
        renewals[i].status = lock->watched && !hfi_mysql_has_ended(lock->connection) ? HF_OK : HF_LOST;
        if (lock->watched && renewals[i].status == HF_LOST)
            snprintf(renewals[i].why, sizeof renewals[i].why, "%s", hfi_mysql_why_ended(lock->connection));
    }
    pthread_mutex_unlock(&store->mutex);
    return HF_OK;
}
