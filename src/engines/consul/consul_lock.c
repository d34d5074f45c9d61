/* SPDX-License-Identifier: MIT
 *
 * consul_lock.c: taking, waiting and releasing. Each step is one transaction whose conditions say what it takes for
 * granted, so that it does nothing if anything has changed: the session is the same for all owners of a client, and
 * Consul would give a lock to it twice.
 *
 *   take     nobody has lined up, or nobody is left before us; nobody has the lock: it is ours
 *   join     we have a place in the queue; the marker tells newcomers that somebody waits
 *   settle   an answer was lost: whatever was sent before does nothing any more; this is how things are
 *   release  it is still ours: it is deleted, and our place with it, which wakes our successor
 *   leave    our place is deleted
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TRIES_MOST 6
/* Nobody announces the end of a lock-delay, nor of a long poll that could not be begun. */
#define ASK_AGAIN (200 * HFI_MS)

/* A transaction that is being put together, and its answer. */
struct work {
    struct consul_store *store;
    struct consul_lock *lock;
    const struct hfi_request *request;
    hf_error *err;
    struct consul_operation operations[HFI_CONSUL_OPERATIONS_MOST];
    size_t count;
    struct consul_answer answer;
    char key[HFI_CONSUL_KEY_MAX], place[HFI_CONSUL_KEY_MAX], marker[HFI_CONSUL_KEY_MAX], all[HFI_CONSUL_KEY_MAX];
    char fence[HFI_CONSUL_KEY_MAX], value[HFI_CONSUL_VALUE_MAX];
};

static void start_work(struct work *work, struct consul_store *store, struct consul_lock *lock,
                       const struct hfi_request *request, hf_error *err)
{
    work->store = store;
    work->lock = lock;
    work->request = request;
    work->err = err;
    hfi_consul_key(work->key, store, CONSUL_LOCK, request->name, request->owner);
    hfi_consul_key(work->place, store, CONSUL_PLACE, request->name, request->owner);
    hfi_consul_key(work->marker, store, CONSUL_MARKER, request->name, request->owner);
    hfi_consul_key(work->all, store, CONSUL_ALL, request->name, request->owner);
    hfi_consul_describe(work->value, store, request->owner, request->ttl_ms, 0, request->note);
}

static bool is_same(struct hfi_owner a, struct hfi_owner b)
{
    return a.client == b.client && a.serial == b.serial;
}

static struct consul_operation *add(struct work *work, const char *verb, const char *key)
{
    struct consul_operation *operation = &work->operations[work->count++];
    *operation = (struct consul_operation){ .verb = verb, .key = key };
    return operation;
}

static void add_if(struct work *work, const char *key, uint64_t index)
{
    if (index)
        add(work, "check-index", key)->index = index;
    else
        add(work, "check-not-exists", key);
}

static void add_lock(struct work *work, const char *key, uint64_t flags)
{
    struct consul_operation *lock = add(work, "lock", key);
    lock->session = work->lock->session->id;
    lock->value = work->value;
    lock->flags = flags;
}

/* The first condition of all that take something: nothing was settled since. */
#define FENCE_FAILED 1u
static void add_fence(struct work *work)
{
    hfi_consul_session_key(work->fence, work->store, work->lock->session->id);
    pthread_mutex_lock(&work->store->mutex);
    const uint64_t fence = work->lock->session->fence;
    pthread_mutex_unlock(&work->store->mutex);
    work->count = 0;
    add_if(work, work->fence, fence);
}

/* --- what is known --- */

/* Under the mutex, since renew() looks at it at any time. */
static void set_held(struct work *work, const struct consul_entry *entry)
{
    struct consul_lock *lock = work->lock;
    pthread_mutex_lock(&work->store->mutex);
    if (!lock->held) {
        lock->token = entry->holder.token ? entry->holder.token : entry->modified;
        if (lock->session->holds++ == 0)
            hfi_consul_ear_arm(work->store);
    }
    lock->held = true;
    lock->index = entry->modified;
    hfi_consul_follow(work->store, lock, entry->session);
    pthread_mutex_unlock(&work->store->mutex);
}

static void set_gone(struct work *work)
{
    pthread_mutex_lock(&work->store->mutex);
    if (work->lock->held)
        work->lock->session->holds--;
    work->lock->held = false;
    pthread_mutex_unlock(&work->store->mutex);
}

static void set_placed(struct work *work, const struct consul_entry *place)
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
static void set_left(struct work *work)
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
        if (other->waker && other->watch_place && is_same(other->watched, work->request->owner)) {
            other->news = true;
            hfi_waker_wake(other->waker);
        }
    }
    pthread_mutex_unlock(&work->store->mutex);
}

/* What a look at the lock means for one who wants it. */
static void consider(struct work *work, const struct consul_view *view)
{
    struct consul_lock *lock = work->lock;
    if (view->mine)
        set_held(work, &view->lock);
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

static void note_fence(struct work *work)
{
    struct consul_entry entry;
    struct consul_session *session = work->lock->session;
    pthread_mutex_lock(&work->store->mutex);
    if (hfi_consul_entry(&work->answer, 0, &entry) && entry.modified > session->fence)
        session->fence = entry.modified;
    pthread_mutex_unlock(&work->store->mutex);
}

static void take_in(struct work *work, enum consul_asked asked)
{
    struct consul_view view;
    struct consul_lock *lock = work->lock;
    if (work->answer.failed)
        return;
    hfi_consul_view(&view, &work->answer, work->store, work->request->name, work->request->owner);
    switch (asked) {
    case CONSUL_TAKE:
        if (view.lock.key)
            set_held(work, &view.lock);
        break;
    case CONSUL_SETTLE:
        note_fence(work);
        lock->unsure = false;
        set_gone(work);
        if (view.place.key && *view.place.session)
            set_placed(work, &view.place);
        else
            set_left(work);
        consider(work, &view);
        break;
    case CONSUL_JOIN:
        set_placed(work, &view.place);
        consider(work, &view);
        break;
    case CONSUL_RELEASE:
    case CONSUL_LEAVE:
        /* Whether we were the last one for whom the marker stands. */
        lock->stale = asked == CONSUL_LEAVE ? !view.waited : lock->placed && view.marker == lock->joined;
        lock->stale = lock->stale ? view.marker : 0;
        set_gone(work);
        set_left(work);
        break;
    case CONSUL_NOTHING:
        break;
    }
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
static hf_status await_answer(struct work *work)
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

static hf_status ask(struct work *work, enum consul_asked asked)
{
    const hf_status status =
        hfi_consul_txn_begin(work->store, &work->lock->exchange, work->operations, work->count, work->err);
    if (status != HF_OK)
        return status;
    work->lock->asked = asked;
    return await_answer(work);
}

/* The session is gone, and all that it had with it. */
static void drop_session(struct work *work)
{
    set_gone(work);
    set_left(work);
    work->lock->unsure = false;
    pthread_mutex_lock(&work->store->mutex);
    struct consul_session *session = work->lock->session;
    work->lock->session = NULL;
    pthread_mutex_unlock(&work->store->mutex);
    if (session)
        hfi_consul_session_put(work->store, session);
}

/* A condition did not hold that is not about the lock: the fence was moved by another thread, or the session is gone. */
static hf_status mend(struct work *work)
{
    const hf_status status =
        hfi_consul_session_check(work->store, work->lock->session, work->request->deadline_ns, work->err);
    if (status != HF_LOST)
        return status == HF_UNKNOWN ? hfi_fail(work->err, HF_UNAVAILABLE, 0, "the server did not answer") : status;
    drop_session(work);
    return HF_OK;
}

static hf_status settle(struct work *work)
{
    char fresh[HFI_CONSUL_VALUE_MAX];
    hfi_consul_session_key(work->fence, work->store, work->lock->session->id);
    /* Another value each time, or the server would leave everything as it is. */
    snprintf(fresh, sizeof fresh, "%016" PRIx64 " %s %d", work->store->env->random(), work->store->host,
             work->store->pid);
    work->count = 0;
    struct consul_operation *lock = add(work, "lock", work->fence);
    lock->session = work->lock->session->id;
    lock->value = fresh;
    add(work, "get-tree", work->all);
    const hf_status status = ask(work, CONSUL_SETTLE);
    if (status != HF_OK)
        return status;
    const bool gone = work->answer.no_session;
    hfi_consul_answer_free(&work->answer);
    if (gone)
        drop_session(work);
    return HF_OK;
}

/* Makes sure that all that was asked so far is known: by its answer, or by settling it. */
static hf_status catch_up(struct work *work)
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

/* --- taking --- */

/* The places of those who were before us when we last looked: none of them may be there any more. */
static char *add_ahead(struct work *work)
{
    const struct consul_lock *lock = work->lock;
    if (!lock->placed || lock->ahead_count == 0)
        return NULL;
    char *keys = hfi_alloc(lock->ahead_count * HFI_CONSUL_KEY_MAX);
    for (size_t i = 0; keys && i < lock->ahead_count; i++) {
        char *key = keys + i * HFI_CONSUL_KEY_MAX;
        hfi_consul_key(key, work->store, CONSUL_PLACE, work->request->name, lock->ahead[i]);
        add(work, "check-not-exists", key);
    }
    return keys;
}

/* The session may be about to end: it is renewed while the lock is asked for. */
static bool renew_meanwhile(struct work *work, struct consul_exchange *renewal)
{
    struct consul_session *session = work->lock->session;
    return !hfi_consul_session_is_fresh(work->store, session) &&
           hfi_consul_session_renew_begin(work->store, session, renewal, NULL) == HF_OK &&
           hfi_consul_step(work->store, renewal, NULL) == HF_TIMEOUT;
}

static hf_status take(struct work *work)
{
    struct consul_lock *lock = work->lock;
    struct consul_exchange renewal = { 0 };
    add_fence(work);
    if (lock->placed)
        add(work, "check-session", work->place)->session = lock->session->id;
    else if (lock->stale)
        add(work, "delete-cas", work->marker)->index = lock->stale;
    else
        add(work, "check-not-exists", work->marker);
    add_if(work, work->key, lock->left_behind);
    add_lock(work, work->key, HFI_CONSUL_LOCK_FLAGS);
    char *ahead = add_ahead(work);
    if (lock->placed && lock->ahead_count && !ahead)
        return hfi_fail(work->err, HF_NOMEM, 0, "no memory for a request");
    const bool renews = renew_meanwhile(work, &renewal);
    hf_status status = ask(work, CONSUL_TAKE);
    hfi_free(ahead);
    if (renews)
        hfi_consul_session_renew_end(work->store, lock->session, &renewal, work->request->deadline_ns, NULL);
    hfi_consul_end(work->store, &renewal);
    if (status != HF_OK)
        return status;
    const bool ailing = work->answer.no_session || work->answer.failed & FENCE_FAILED;
    lock->delayed = work->answer.delayed;
    hfi_consul_answer_free(&work->answer);
    return ailing ? mend(work) : HF_OK;
}

static hf_status join_queue(struct work *work)
{
    add_fence(work);
    add_lock(work, work->place, 0);
    add(work, "set", work->marker)->value = work->value;
    add(work, "get-tree", work->all);
    const hf_status status = ask(work, CONSUL_JOIN);
    if (status != HF_OK)
        return status;
    const bool failed = work->answer.failed;
    hfi_consul_answer_free(&work->answer);
    return failed ? mend(work) : HF_OK;
}

static hf_status look(struct work *work, struct consul_view *view)
{
    work->count = 0;
    add(work, "get-tree", work->all);
    const hf_status status = hfi_consul_txn(work->store, work->operations, work->count, &work->answer,
                                            work->request->deadline_ns, work->err);
    if (status == HF_UNKNOWN) /* it only reads */
        return hfi_fail(work->err, HF_UNAVAILABLE, 0, "the server did not answer in time");
    if (status == HF_OK)
        hfi_consul_view(view, &work->answer, work->store, work->request->name, work->request->owner);
    return status;
}

static hf_status look_and_consider(struct work *work)
{
    struct consul_view view;
    const hf_status status = look(work, &view);
    if (status != HF_OK)
        return status;
    consider(work, &view);
    if (work->lock->placed && !view.place.key) /* somebody has deleted it: line up again */
        set_left(work);
    hfi_consul_answer_free(&work->answer);
    return HF_OK;
}

/* Whoever waits for a lock that others wanted too when it last asked lines up first: asking for it would be in vain. */
static uint64_t *crowd_of(struct work *work, uint64_t *hash)
{
    *hash = hfi_name_hash(work->request->name);
    return &work->store->crowded[*hash % HFI_CONSUL_CROWDS];
}

static bool is_crowded(struct work *work)
{
    uint64_t hash;
    const uint64_t *crowd = crowd_of(work, &hash);
    pthread_mutex_lock(&work->store->mutex);
    const bool crowded = *crowd == hash;
    pthread_mutex_unlock(&work->store->mutex);
    return crowded;
}

static void note_crowd(struct work *work, bool crowded)
{
    uint64_t hash;
    uint64_t *crowd = crowd_of(work, &hash);
    pthread_mutex_lock(&work->store->mutex);
    if (crowded)
        *crowd = hash;
    else if (*crowd == hash)
        *crowd = 0;
    pthread_mutex_unlock(&work->store->mutex);
}

static hf_status contend(struct work *work)
{
    struct consul_lock *lock = work->lock;
    lock->delayed = false;
    if (work->request->queue && !lock->placed)
        lock->behind = is_crowded(work);
    for (unsigned tries = 0; tries < TRIES_MOST; tries++) {
        hf_status status = HF_OK;
        if (!lock->session) {
            lock->ahead_count = 0;
            status = hfi_consul_session_get(work->store, work->request->ttl_ms, &lock->session,
                                            work->request->deadline_ns, work->err);
        }
        if (status == HF_OK && !lock->behind)
            status = take(work);
        if (status != HF_OK || lock->held)
            return status;
        if (!lock->session) { /* it has just turned out to be gone, and our place with it */
            lock->behind = false;
            continue;
        }
        status = work->request->queue && !lock->placed ? join_queue(work) : look_and_consider(work);
        if (status != HF_OK || lock->held)
            return status;
        note_crowd(work, lock->behind);
        if (lock->foreign)
            return hfi_fail(work->err, HF_DENIED, 0, "another program uses the key %.120s for something else",
                            work->key);
        if (lock->delayed)
            snprintf(lock->busy, sizeof lock->busy, "a lock-delay");
        if (lock->session && (lock->behind || lock->delayed))
            return HF_BUSY;
    }
    return HF_BUSY;
}

hf_status hfi_consul_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                             struct hfi_grant *grant, hf_error *err)
{
    struct consul_store *store = memory;
    struct consul_lock *lock = lock_memory;
    struct work work;
    start_work(&work, store, lock, request, err);
    lock->note = request->note;
    hf_status status = catch_up(&work);
    if (status == HF_OK && !lock->held)
        status = contend(&work);
    if (status == HF_OK)
        status = hfi_consul_session_keep(store, lock->session, request->deadline_ns, err);
    if (status == HF_LOST) { /* gone in the meantime, and the lock with it */
        drop_session(&work);
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the session has ended");
    }
    if (status == HF_OK) {
        grant->token = lock->token;
        hfi_consul_session_count(store, lock->session, request->ttl_ms, &grant->counted_from_ns, &grant->valid_ms);
    } else if (status == HF_BUSY) {
        snprintf(grant->holder, sizeof grant->holder, "%s", lock->busy);
    }
    return status;
}

/* --- waiting --- */

/* A place of this client's own is given up here, and needs no long poll. False: it has been already. */
static bool is_placed(const struct consul_store *store, struct hfi_owner owner)
{
    const struct consul_lock *lock = store->placed;
    while (lock && !is_same(lock->owner, owner))
        lock = lock->next_placed;
    return lock != NULL;
}

/* False: only time helps. */
static bool start_watching(struct consul_store *store, struct consul_lock *lock, const struct hfi_request *request)
{
    char key[HFI_CONSUL_KEY_MAX];
    bool watching = !lock->delayed && lock->watch_index;
    hfi_consul_key(key, store, lock->watch_place ? CONSUL_PLACE : CONSUL_LOCK, request->name, lock->watched);
    pthread_mutex_lock(&store->mutex);
    lock->waker = request->waker;
    lock->news = lock->deaf = false;
    lock->watch.index = lock->watch_index;
    if (watching && lock->watch_place && lock->watched.client == store->env->client)
        lock->news = !is_placed(store, lock->watched);
    else if (watching)
        watching = hfi_consul_watch(store, lock, key);
    if (lock->news)
        hfi_waker_wake(request->waker);
    pthread_mutex_unlock(&store->mutex);
    return watching;
}

/* True: what was watched has changed. */
static bool stop_watching(struct consul_store *store, struct consul_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    hfi_consul_call_end(store, &lock->watch);
    lock->waker = NULL; /* it goes back to its client after this wait */
    const bool changed = lock->news && !lock->deaf;
    pthread_mutex_unlock(&store->mutex);
    return changed;
}

hf_status hfi_consul_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct consul_store *store = memory;
    struct consul_lock *lock = lock_memory;
    (void)err;
    const bool watching = start_watching(store, lock, request);
    if (watching)
        hfi_waker_sleep(request->waker, NULL, 0, request->deadline_ns);
    const bool changed = stop_watching(store, lock);
    hfi_time now = store->env->now_ns();
    if (!changed && now < request->deadline_ns && !hfi_waker_called_back(request->waker)) {
        const hfi_time pause = ASK_AGAIN / 2 + (hfi_time)(store->env->random() % (uint64_t)ASK_AGAIN);
        const hfi_time until = now + pause;
        hfi_waker_sleep(request->waker, NULL, 0, until < request->deadline_ns ? until : request->deadline_ns);
        now = store->env->now_ns();
    }
    /* Those who were before us are counted in the transaction, unless they are too many. */
    lock->behind = !lock->delayed && (!changed || lock->ahead_count > HFI_CONSUL_AHEAD_MOST);
    return changed || now < request->deadline_ns ? HF_OK : HF_TIMEOUT;
}

/* --- releasing --- */

static hf_status give_back(struct work *work)
{
    const struct consul_lock *lock = work->lock;
    work->count = 0;
    add(work, "check-index", work->key)->index = lock->index;
    add(work, "delete", work->key);
    if (lock->placed) {
        add(work, "delete", work->place);
        add(work, "get-tree", work->marker);
    }
    return ask(work, CONSUL_RELEASE);
}

static hf_status leave_queue(struct work *work)
{
    work->count = 0;
    add(work, "delete", work->place);
    add(work, "get-tree", work->all);
    return ask(work, CONSUL_LEAVE);
}

/* The entry is no longer as we left it. Whose is it? If somebody has only written another value, it is ours still. */
static hf_status look_whose(struct work *work)
{
    struct consul_view view;
    const hf_status status = look(work, &view);
    if (status != HF_OK)
        return status;
    const bool touched =
        view.lock.key && !view.lock.holder.owner.client && strcmp(view.lock.session, work->lock->session->id) == 0;
    if (view.mine || touched)
        set_held(work, &view.lock);
    else
        set_gone(work);
    hfi_consul_answer_free(&work->answer);
    return HF_OK;
}

static hf_status let_go(struct work *work, bool *lost)
{
    struct consul_lock *lock = work->lock;
    hf_status status = HF_OK;
    while (status == HF_OK && lock->session && (lock->held || lock->placed)) {
        pthread_mutex_lock(&work->store->mutex);
        const bool dead = lock->session->dead;
        pthread_mutex_unlock(&work->store->mutex);
        const bool held = lock->held;
        if (dead) {
            *lost = held;
            drop_session(work);
            break;
        }
        status = held ? give_back(work) : leave_queue(work);
        if (status != HF_OK)
            break;
        const bool failed = work->answer.failed;
        hfi_consul_answer_free(&work->answer);
        if (failed && !held)
            return hfi_fail(work->err, HF_UNAVAILABLE, 0, "the server refuses to delete %.120s", work->place);
        if (failed)
            status = look_whose(work);
        *lost = *lost || (failed && status == HF_OK && !lock->held);
    }
    return status;
}

hf_status hfi_consul_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct consul_store *store = memory;
    struct consul_lock *lock = lock_memory;
    struct work work;
    bool lost = false;
    start_work(&work, store, lock, request, err);
    lock->stale = 0;
    hf_status status = catch_up(&work);
    if (status == HF_OK)
        status = let_go(&work, &lost);
    if (status == HF_UNAVAILABLE || status == HF_UNKNOWN)
        return status;
    if (status == HF_OK && lock->stale) {
        /* So that newcomers need not look first; whether it is done or not does no harm. */
        const struct consul_operation sweep = { .verb = "delete-cas", .key = work.marker, .index = lock->stale };
        if (hfi_consul_txn(store, &sweep, 1, &work.answer, request->deadline_ns, NULL) == HF_OK)
            hfi_consul_answer_free(&work.answer);
    }
    hfi_consul_end(store, &lock->exchange);
    drop_session(&work);
    return status == HF_OK && lost ? hfi_fail(err, HF_LOST, 0, "the store no longer has it") : status;
}
