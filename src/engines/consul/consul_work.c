/* SPDX-License-Identifier: MIT
 *
 * consul_work.c: what is known of a lock, and how it is learnt: a transaction is put together and sent, and its answer
 * taken in; if that comes late, by the next call for the same lock; if it never comes, by settling the matter.
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void hfi_consul_work_start(struct consul_work *work, struct consul_store *store, struct consul_lock *lock,
                           const struct hfi_request *request, hf_error *err)
{
    work->store = store;
    work->lock = lock;
    work->request = request;
    work->answer = (struct consul_answer){ .root = NULL };
    work->err = err;
    hfi_consul_key(work->key, store, CONSUL_LOCK, request->name, request->owner);
    hfi_consul_key(work->place, store, CONSUL_PLACE, request->name, request->owner);
    hfi_consul_key(work->marker, store, CONSUL_MARKER, request->name, request->owner);
    hfi_consul_key(work->all, store, CONSUL_ALL, request->name, request->owner);
    if (request->once)
        hfi_consul_done_key(work->done, store, request->name);
    hfi_consul_describe(work->value, store, request->owner, request->ttl_ms, request->note);
}

bool hfi_consul_same(struct hfi_owner a, struct hfi_owner b)
{
    return a.client == b.client && a.serial == b.serial;
}

struct consul_operation *hfi_consul_add(struct consul_work *work, const char *verb, const char *key)
{
    struct consul_operation *operation = &work->operations[work->count++];
    *operation = (struct consul_operation){ .verb = verb, .key = key };
    return operation;
}

/* --- what is known --- */

/* Under the mutex, since renew() looks at it at any time. */
void hfi_consul_set_held(struct consul_work *work, const struct consul_entry *entry)
{
    struct consul_lock *lock = work->lock;
    pthread_mutex_lock(&work->store->mutex);
    if (!lock->held) {
        lock->token = entry->modified;
        if (lock->session->holds++ == 0)
            hfi_consul_push_arm(work->store);
    }
    lock->held = true;
    lock->index = entry->modified;
    pthread_mutex_unlock(&work->store->mutex);
}

void hfi_consul_set_gone(struct consul_work *work)
{
    pthread_mutex_lock(&work->store->mutex);
    if (work->lock->held)
        work->lock->session->holds--;
    work->lock->held = false;
    pthread_mutex_unlock(&work->store->mutex);
}

static void set_placed(struct consul_work *work, const struct consul_entry *place)
{
    struct consul_lock *lock = work->lock;
    pthread_mutex_lock(&work->store->mutex);
    if (!lock->placed) {
        lock->owner = work->request->owner;
        lock->next_placed = work->store->placed;
        work->store->placed = lock;
    }
    lock->placed = true;
    lock->joined = place->created;
    pthread_mutex_unlock(&work->store->mutex);
}

/* Wakes our successor, if it is a thread of this client: it has no long poll. */
void hfi_consul_set_left(struct consul_work *work)
{
    struct consul_lock *lock = work->lock;
    pthread_mutex_lock(&work->store->mutex);
    for (struct consul_lock **link = &work->store->placed; lock->placed; link = &(*link)->next_placed) {
        if (*link != lock)
            continue;
        *link = lock->next_placed;
        lock->placed = false;
        break;
    }
    for (struct consul_lock *other = work->store->placed; other; other = other->next_placed) {
        if (other->waker && other->watch_place && hfi_consul_same(other->watched, work->request->owner)) {
            other->news = true;
            hfi_waker_wake(other->waker);
        }
    }
    pthread_mutex_unlock(&work->store->mutex);
}

void hfi_consul_consider(struct consul_work *work, const struct consul_view *view)
{
    struct consul_lock *lock = work->lock;
    if (view->mine)
        hfi_consul_set_held(work, &view->lock);
    lock->foreign = view->foreign;
    lock->behind = !view->free || view->foreign || view->ahead_count > 0;
    lock->left_behind = view->lock.key && view->free ? view->lock.modified : 0;
    lock->stale = view->waited ? 0 : view->marker;
    lock->ahead_count = view->ahead_count;
    memcpy(lock->ahead, view->ahead, sizeof lock->ahead);
    lock->watch_place = view->last.key != NULL;
    lock->watched = view->last.holder.owner;
    lock->watch_index = view->last.key ? view->last.modified : view->lock.modified;
    hfi_consul_say_who(lock->busy, &view->lock);
}

/* --- questions and answers --- */

static void note_fence(struct consul_work *work)
{
    struct consul_entry entry;
    struct consul_session *session = work->lock->session;
    pthread_mutex_lock(&work->store->mutex);
    if (hfi_consul_entry(&work->answer, 0, &entry) && entry.modified > session->fence)
        session->fence = entry.modified;
    pthread_mutex_unlock(&work->store->mutex);
}

static void take_in(struct consul_work *work, enum consul_asked asked)
{
    struct consul_view view;
    struct consul_lock *lock = work->lock;
    if (work->answer.failed)
        return;
    hfi_consul_view(&view, &work->answer, work->store, work->request->name, work->request->owner);
    switch (asked) {
    case CONSUL_TAKE:
        if (view.lock.key)
            hfi_consul_set_held(work, &view.lock);
        break;
    case CONSUL_SETTLE:
        note_fence(work);
        lock->unsure = false;
        hfi_consul_set_gone(work);
        if (view.place.key && *view.place.session)
            set_placed(work, &view.place);
        else
            hfi_consul_set_left(work);
        hfi_consul_consider(work, &view);
        break;
    case CONSUL_JOIN:
        set_placed(work, &view.place);
        hfi_consul_consider(work, &view);
        break;
    case CONSUL_RELEASE:
    case CONSUL_LEAVE:
        /* Whether we were the last one for whom the marker stands. */
        lock->stale = asked == CONSUL_LEAVE ? !view.waited : lock->placed && view.marker == lock->joined;
        lock->stale = lock->stale ? view.marker : 0;
        hfi_consul_set_gone(work);
        hfi_consul_set_left(work);
        break;
    case CONSUL_NOTHING:
        break;
    }
    hfi_consul_note_done(work);
}

/* A question that was not answered yet stays on its connection. The store knows of it, should nobody come back. */
static void put_off(struct consul_store *store, struct consul_connection *connection)
{
    pthread_mutex_lock(&store->mutex);
    connection->next = store->late;
    store->late = connection;
    pthread_mutex_unlock(&store->mutex);
}

static void pick_up(struct consul_store *store, struct consul_connection *connection)
{
    pthread_mutex_lock(&store->mutex);
    struct consul_connection **link = &store->late;
    while (*link != connection)
        link = &(*link)->next;
    *link = connection->next;
    pthread_mutex_unlock(&store->mutex);
}

/* Waits for the answer to what was asked. HF_UNKNOWN: it has not come, or never will. */
static hf_status await_answer(struct consul_work *work)
{
    struct consul_lock *lock = work->lock;
    const enum consul_asked asked = lock->asked;
    const hf_status status =
        hfi_consul_txn_end(work->store, &lock->exchange, &work->answer, work->request->deadline_ns, work->err);
    if (status == HF_TIMEOUT) {
        put_off(work->store, lock->exchange.connection);
        return hfi_fail(work->err, HF_UNKNOWN, 0, "the server did not answer in time");
    }
    lock->asked = CONSUL_NOTHING;
    if (status == HF_OK)
        take_in(work, asked);
    else if (status == HF_UNKNOWN || status == HF_INTERNAL)
        lock->unsure = lock->unsure || asked == CONSUL_TAKE || asked == CONSUL_JOIN;
    return status;
}

hf_status hfi_consul_work_ask(struct consul_work *work, enum consul_asked asked)
{
    const hf_status status =
        hfi_consul_txn_begin(work->store, &work->lock->exchange, work->operations, work->count, work->err);
    if (status != HF_OK)
        return status;
    work->lock->asked = asked;
    return await_answer(work);
}

void hfi_consul_drop_session(struct consul_work *work)
{
    hfi_consul_set_gone(work);
    hfi_consul_set_left(work);
    work->lock->unsure = false;
    pthread_mutex_lock(&work->store->mutex);
    struct consul_session *session = work->lock->session;
    if (session) {
        session->users -= !work->lock->refused;
        session->refused -= work->lock->refused;
    }
    work->lock->session = NULL;
    work->lock->refused = false;
    pthread_mutex_unlock(&work->store->mutex);
}

static hf_status settle(struct consul_work *work)
{
    char fresh[HFI_CONSUL_VALUE_MAX];
    hfi_consul_session_key(work->fence, work->store, work->lock->session->id);
    /* Another value each time, or the server would leave everything as it is. */
    snprintf(fresh, sizeof fresh, "%016" PRIx64 " %s %d", work->store->env->random(), work->store->host,
             work->store->pid);
    work->count = 0;
    struct consul_operation *lock = hfi_consul_add(work, "lock", work->fence);
    lock->session = work->lock->session->id;
    lock->value = fresh;
    hfi_consul_add(work, "get-tree", work->all);
    hfi_consul_add_done(work);
    const hf_status status = hfi_consul_work_ask(work, CONSUL_SETTLE);
    if (status != HF_OK)
        return status;
    const bool gone = work->answer.no_session;
    hfi_consul_answer_free(&work->answer);
    if (gone)
        hfi_consul_drop_session(work);
    return HF_OK;
}

hf_status hfi_consul_catch_up(struct consul_work *work)
{
    struct consul_lock *lock = work->lock;
    hf_status status = HF_OK;
    if (lock->asked != CONSUL_NOTHING) {
        pick_up(work->store, lock->exchange.connection);
        status = await_answer(work);
        if (status == HF_OK)
            hfi_consul_answer_free(&work->answer);
    }
    if (lock->asked == CONSUL_NOTHING && lock->unsure)
        status = settle(work);
    if (status == HF_UNAVAILABLE && lock->unsure && work->err)
        work->err->status = HF_UNKNOWN;
    return status == HF_UNAVAILABLE && lock->unsure ? HF_UNKNOWN : status;
}
