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

static void call(struct etcd_lock *lock)
{
    lock->called = true;
    if (lock->waker)
        hfi_waker_wake(lock->waker);
}

static void plan_backstop(const struct etcd_store *store, struct etcd_lock *lock, hfi_time pause)
{
    lock->ask_again_ns = store->env->now_ns() + pause + (hfi_time)(store->env->random() % (uint64_t)pause);
}

static void send_create(struct etcd_store *store, struct etcd_lock *lock)
{
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;
    Etcd__WatchCreateRequest create = ETCD__WATCH_CREATE_REQUEST__INIT;
    Etcd__WatchCreateRequest__FilterType filter = ETCD__WATCH_CREATE_REQUEST__FILTER_TYPE__NOPUT;
    lock->watch = ++store->push.last_watch;
    lock->heard_from = -1;
    create.key = (ProtobufCBinaryData){ .len = lock->watched_length, .data = (uint8_t *)lock->watched };
    create.start_revision = lock->watch_from;
    create.filters = &filter;
    create.n_filters = 1;
    create.watch_id = lock->watch;
    request.request_case = ETCD__WATCH_REQUEST__REQUEST_CREATE;
    request.create = &create;
    hfi_etcd_push_say(store, &store->push.watch, &request.base);
}

static void send_cancel(struct etcd_store *store, int64_t watch)
{
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;
    Etcd__WatchCancelRequest cancel = ETCD__WATCH_CANCEL_REQUEST__INIT;
    cancel.watch_id = watch;
    request.request_case = ETCD__WATCH_REQUEST__REQUEST_CANCEL;
    request.cancel = &cancel;
    hfi_etcd_push_say(store, &store->push.watch, &request.base);
}

void hfi_etcd_unwatch(struct etcd_store *store, struct etcd_lock *lock)
{
    if (!lock->watched)
        return;
    *(lock->prev_watched ? &lock->prev_watched->next_watched : &store->push.watched) = lock->next_watched;
    if (lock->next_watched)
        lock->next_watched->prev_watched = lock->prev_watched;
    if (lock->watch && store->push.state == ETCD_PUSH_READY) {
        send_cancel(store, lock->watch);
        hfi_etcd_push_expect(store, store->env->now_ns()); /* whoever pumps next sends it */
    }
    hfi_free(lock->watched);
    lock->watched = NULL;
    lock->watch = 0;
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
    lock->prev_watched = NULL;
    lock->next_watched = store->push.watched;
    if (lock->next_watched)
        lock->next_watched->prev_watched = lock;
    store->push.watched = lock;
    hfi_etcd_push_expect(store, at_ns);
}

hfi_time hfi_etcd_watches_send(struct etcd_store *store, hfi_time now_ns)
{
    hfi_time due = HFI_NEVER;
    for (struct etcd_lock *lock = store->push.watched; lock; lock = lock->next_watched) {
        if (lock->watch)
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
    for (struct etcd_lock *lock = store->push.watched; lock; lock = lock->next_watched) {
        lock->watch = 0;
        lock->heard_from = -1;
        plan_backstop(store, lock, BACKSTOP_DEAF);
        if (lock->waker) /* it sleeps for longer than that */
            hfi_waker_wake(lock->waker);
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
    struct etcd_lock *lock = store->push.watched;
    /* Refused, without saying which: the token is too old, as a rule. A new connection has a new one. */
    if (response->canceled && response->created)
        store->push.refused = true;
    while (lock && lock->watch != response->watch_id)
        lock = lock->next_watched;
    if (!lock) /* it has left */
        return;
    if (response->canceled) { /* not by us: what we asked for is history. From now on, then. */
        lock->watch = 0;
        lock->watch_from = 0;
        lock->watch_at_ns = store->env->now_ns() + CANCELED_PAUSE;
        return;
    }
    store->push.failures = 0;
    if (response->created) {
        lock->heard_from = response->header ? response->header->revision : 0;
        plan_backstop(store, lock, BACKSTOP);
        if (lock->heard_from > lock->seen_revision && lock->place != ETCD_HELD)
            call(lock);
        if (lock->place == ETCD_HELD && lock->token != lock->own_revision)
            hfi_etcd_errand_tell(store, lock);
    }
    if (!is_deleted(response))
        return;
    if (lock->place == ETCD_HELD)
        lock->lost = store->push.losses = true;
    else
        call(lock);
}

/* Somebody must go on listening. */
static void pass_duty_on(const struct etcd_push *push)
{
    const struct etcd_lock *lock = push->watched;
    while (lock && !lock->waker)
        lock = lock->next_watched;
    if (lock)
        hfi_waker_wake(lock->waker);
}

/* --- without it --- */

hf_status hfi_etcd_await_turn(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request)
{
    struct etcd_push *push = &store->push;
    struct hfi_waker *waker = request->waker;
    bool in_time = true;
    hfi_time until = HFI_NEVER;
    pthread_mutex_lock(&store->mutex);
    lock->waker = waker;
    if (lock->heard_from < 0)
        plan_backstop(store, lock, BACKSTOP_DEAF);
    hfi_etcd_push_pump(store);
    while (in_time && !lock->called && !hfi_waker_called_back(waker)) {
        const bool duty = !push->on_duty;
        struct pollfd socket = { .fd = push->epoll, .events = POLLIN };
        until = earlier(lock->ask_again_ns, request->deadline_ns);
        push->on_duty = true;
        pthread_mutex_unlock(&store->mutex);
        in_time = hfi_waker_sleep(waker, &socket, duty ? 1 : 0, until);
        pthread_mutex_lock(&store->mutex);
        if (duty)
            push->on_duty = false;
        if (duty && socket.revents)
            hfi_etcd_push_pump(store);
        /* Whoever was on duty may have heard meanwhile that the watch has begun: then there is no need to ask yet. */
        in_time = in_time || earlier(lock->ask_again_ns, request->deadline_ns) > until;
    }
    lock->waker = NULL;
    if (!push->on_duty)
        pass_duty_on(push);
    /* Not by ask_again_ns: that may have moved since. */
    const bool news = in_time || lock->called || until < request->deadline_ns;
    pthread_mutex_unlock(&store->mutex);
    hfi_etcd_tell_losses(store);
    return news ? HF_OK : HF_TIMEOUT;
}
