/* SPDX-License-Identifier: MIT
 *
 * etcd_watch.c: who watches what. A waiter watches the one key right before its own, so that a release wakes one of
 * them; a holder, after a while, its own, so that it learns at once if somebody takes the lock away.
 *
 * A waiter's watch begins "now", not with the revision that it knows: a server serves a watch that lies behind, by one
 * revision only, every 100 ms. So it may be too late; but the server says from when on it tells, and a waiter that saw
 * the key before that moment asks again.
 */
#include "etcd.h"

/* However sure a watch is, it is asked now and then; and sooner while there is none. */
#define BACKSTOP (30 * HFI_SECOND)
#define BACKSTOP_DEAF HFI_SECOND
/* Should a server cancel a watch each time, not in a loop. */
#define CANCELED_PAUSE (100 * HFI_MS)

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* --- with the mutex --- */

static struct etcd_lock *lock_of(struct hfi_waiter *waiter)
{
    return HFI_WAITER_OF(struct etcd_lock, waiter, waiter);
}

static void call(const struct etcd_store *store, struct etcd_lock *lock)
{
    lock->called = true;
    hfi_push_call(&store->push.shared, &lock->waiter);
}

void hfi_etcd_plan_backstop(const struct etcd_store *store, struct etcd_lock *lock)
{
    const hfi_time pause = lock->heard_from < 0 ? BACKSTOP_DEAF : BACKSTOP;
    lock->waiter.ask_again_ns = store->env->now_ns() + pause + (hfi_time)(store->env->random() % (uint64_t)pause);
}

static void send_create(struct etcd_store *store, struct etcd_lock *lock)
{
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;
    Etcd__WatchCreateRequest create = ETCD__WATCH_CREATE_REQUEST__INIT;
    Etcd__WatchCreateRequest__FilterType filter = ETCD__WATCH_CREATE_REQUEST__FILTER_TYPE__NOPUT;
    hfi_push_address(&lock->waiter, (uint64_t)++store->push.last_watch);
    lock->heard_from = -1;
    create.key = (ProtobufCBinaryData){ .len = lock->watched_length, .data = (uint8_t *)lock->watched };
    create.start_revision = lock->watch_from;
    create.filters = &filter;
    create.n_filters = 1;
    create.watch_id = store->push.last_watch;
    request.request_case = ETCD__WATCH_REQUEST__REQUEST_CREATE;
    request.create = &create;
    hfi_etcd_push_say(store, &store->push.watch, &request.base);
}

static void send_cancel(struct etcd_store *store, uint64_t watch)
{
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;
    Etcd__WatchCancelRequest cancel = ETCD__WATCH_CANCEL_REQUEST__INIT;
    cancel.watch_id = (int64_t)watch;
    request.request_case = ETCD__WATCH_REQUEST__REQUEST_CANCEL;
    request.cancel = &cancel;
    hfi_etcd_push_say(store, &store->push.watch, &request.base);
}

void hfi_etcd_unwatch(struct etcd_store *store, struct etcd_lock *lock)
{
    if (!lock->watched)
        return;
    if (lock->waiter.id && store->push.state == ETCD_PUSH_READY) {
        send_cancel(store, lock->waiter.id);
        hfi_etcd_push_expect(store, store->env->now_ns()); /* whoever pumps next sends it */
    }
    hfi_push_remove(&lock->waiter);
    hfi_free(lock->watched);
    lock->watched = NULL;
}

void hfi_etcd_watch(struct etcd_store *store, struct etcd_lock *lock, char *key, size_t length, int64_t from_revision,
                    hfi_time at_ns)
{
    hfi_etcd_unwatch(store, lock);
    lock->watched = key;
    lock->watched_length = length;
    lock->watch_from = from_revision;
    lock->watch_at_ns = at_ns;
    lock->heard_from = -1;
    hfi_push_add(&store->push.shared, &lock->waiter, 0);
    hfi_etcd_push_expect(store, at_ns);
}

hfi_time hfi_etcd_watches_send(struct etcd_store *store, hfi_time now_ns)
{
    hfi_time due = HFI_NEVER;
    for (struct hfi_waiter *waiter = store->push.shared.first; waiter; waiter = waiter->next) {
        struct etcd_lock *lock = lock_of(waiter);
        if (waiter->id)
            continue;
        if (now_ns >= lock->watch_at_ns && store->push.state == ETCD_PUSH_READY)
            send_create(store, lock);
        else
            due = earlier(due, lock->watch_at_ns);
    }
    return due;
}

void hfi_etcd_watches_broken(struct etcd_store *store)
{
    for (struct hfi_waiter *waiter = store->push.shared.first; waiter; waiter = waiter->next) {
        hfi_push_address(waiter, 0);
        lock_of(waiter)->heard_from = -1;
        hfi_etcd_plan_backstop(store, lock_of(waiter));
        hfi_push_call(&store->push.shared, waiter); /* it sleeps for longer than that */
    }
}

static bool is_deleted(const Etcd__WatchResponse *response)
{
    for (size_t i = 0; i < response->n_events; i++) {
        if (response->events[i]->type == ETCD__EVENT__EVENT_TYPE__DELETE)
            return true;
    }
    return false;
}

void hfi_etcd_watch_take(struct etcd_store *store, const Etcd__WatchResponse *response)
{
    struct hfi_waiter *waiter = hfi_push_find(&store->push.shared, (uint64_t)response->watch_id);
    /* Refused, without saying which: the token is too old, as a rule. A new connection has a new one. */
    if (response->canceled && response->created)
        store->push.refused = true;
    if (!waiter) /* it has left */
        return;
    struct etcd_lock *lock = lock_of(waiter);
    if (response->canceled) { /* not by us: what we asked for is history. From now on, then. */
        hfi_push_address(waiter, 0);
        lock->watch_from = 0;
        lock->watch_at_ns = store->env->now_ns() + CANCELED_PAUSE;
        return;
    }
    store->push.failures = 0;
    if (response->created) {
        lock->heard_from = response->header ? response->header->revision : 0;
        hfi_etcd_plan_backstop(store, lock);
        if (lock->heard_from > lock->seen_revision && lock->place != ETCD_HELD)
            call(store, lock);
        if (lock->place == ETCD_HELD && lock->token != lock->own_revision)
            hfi_etcd_errand_tell(store, lock);
    }
    if (!is_deleted(response))
        return;
    if (lock->place == ETCD_HELD)
        lock->lost = store->push.losses = true;
    else
        call(store, lock);
}

/* --- waiting --- */

static bool has_news(const struct hfi_waiter *waiter)
{
    return HFI_WAITER_OF(struct etcd_lock, waiter, waiter)->called;
}

/* A thread that waits for one lock may be the one that reads of the loss of another. */
static void hear(struct hfi_push *push)
{
    struct etcd_store *store = HFI_WAITER_OF(struct etcd_store, push.shared, push);
    hfi_etcd_push_pump(store);
    if (!store->push.losses)
        return;
    store->push.losses = false;
    store->env->recheck(store->env->core, 0);
}

void hfi_etcd_watches_open(struct etcd_store *store)
{
    hfi_push_init(&store->push.shared, store->env, &store->mutex, store->push.epoll, has_news, hear);
}

hf_status hfi_etcd_await_turn(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request)
{
    pthread_mutex_lock(&store->mutex);
    hfi_etcd_push_pump(store);
    const hf_status status = hfi_push_wait(&store->push.shared, &lock->waiter, request);
    pthread_mutex_unlock(&store->mutex);
    hfi_etcd_tell_losses(store);
    return status;
}
