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
#include <stdio.h>
#include <string.h>

#define TRIES_MOST 6
/* Nobody announces the end of a lock-delay, nor of a long poll that could not be begun. */
#define ASK_AGAIN (200 * HFI_MS)
/* The server adds up to a sixteenth to the time of a long poll; a silence that lasts longer is no answer. */
#define POLL_MOST ((HFI_CONSUL_POLL_S + HFI_CONSUL_POLL_S / 16 + 5) * HFI_SECOND)

/* --- conditions --- */

static void add_if(struct consul_work *work, const char *key, uint64_t index)
{
    if (index)
        hfi_consul_add(work, "check-index", key)->index = index;
    else
        hfi_consul_add(work, "check-not-exists", key);
}

static void add_lock(struct consul_work *work, const char *key, uint64_t flags)
{
    struct consul_operation *lock = hfi_consul_add(work, "lock", key);
    lock->session = work->lock->session->id;
    lock->value = work->value;
    lock->flags = flags;
}

/* The first condition of all that take something: nothing was settled since. */
#define FENCE_FAILED 1u
static void add_fence(struct consul_work *work)
{
    hfi_consul_session_key(work->fence, work->store, work->lock->session->id);
    pthread_mutex_lock(&work->store->mutex);
    const uint64_t fence = work->lock->session->fence;
    pthread_mutex_unlock(&work->store->mutex);
    work->count = 0;
    add_if(work, work->fence, fence);
}

/* A condition did not hold that is not about the lock: another thread has moved the fence, or the session is gone. */
static hf_status mend(struct consul_work *work)
{
    const hf_status status =
        hfi_consul_session_check(work->store, work->lock->session, work->request->deadline_ns, work->err);
    if (status != HF_LOST)
        return status == HF_UNKNOWN ? hfi_fail(work->err, HF_UNAVAILABLE, 0, "the server did not answer") : status;
    hfi_consul_drop_session(work);
    return HF_OK;
}

/* --- taking --- */

/* The places of those who were before us when we last looked: none of them may be there any more. */
static char *add_ahead(struct consul_work *work)
{
    const struct consul_lock *lock = work->lock;
    if (!lock->placed || lock->ahead_count == 0)
        return NULL;
    char *keys = hfi_alloc(lock->ahead_count * HFI_CONSUL_KEY_MAX);
    for (size_t i = 0; keys && i < lock->ahead_count; i++) {
        char *key = keys + i * HFI_CONSUL_KEY_MAX;
        hfi_consul_key(key, work->store, CONSUL_PLACE, work->request->name, lock->ahead[i]);
        hfi_consul_add(work, "check-not-exists", key);
    }
    return keys;
}

/* The session may be about to end: it is renewed while the lock is asked for. */
static bool renew_meanwhile(struct consul_work *work, struct consul_exchange *renewal)
{
    struct consul_session *session = work->lock->session;
    return !hfi_consul_session_is_fresh(work->store, session) &&
           hfi_consul_session_renew_begin(work->store, session, renewal, NULL) == HF_OK &&
           hfi_consul_step(work->store, renewal, NULL) == HF_TIMEOUT;
}

static hf_status take(struct consul_work *work)
{
    struct consul_lock *lock = work->lock;
    struct consul_exchange renewal = { 0 };
    add_fence(work);
    if (lock->placed)
        hfi_consul_add(work, "check-session", work->place)->session = lock->session->id;
    else if (lock->stale)
        hfi_consul_add(work, "delete-cas", work->marker)->index = lock->stale;
    else
        hfi_consul_add(work, "check-not-exists", work->marker);
    add_if(work, work->key, lock->left_behind);
    add_lock(work, work->key, HFI_CONSUL_LOCK_FLAGS);
    char *ahead = add_ahead(work);
    if (lock->placed && lock->ahead_count && !ahead)
        return hfi_fail(work->err, HF_NOMEM, 0, "no memory for a request");
    hfi_consul_add_done(work);
    const bool renews = renew_meanwhile(work, &renewal);
    hf_status status = hfi_consul_work_ask(work, CONSUL_TAKE);
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

static hf_status join_queue(struct consul_work *work)
{
    add_fence(work);
    add_lock(work, work->place, 0);
    hfi_consul_add(work, "set", work->marker)->value = work->value;
    hfi_consul_add(work, "get-tree", work->all);
    hfi_consul_add_done(work);
    const hf_status status = hfi_consul_work_ask(work, CONSUL_JOIN);
    if (status != HF_OK)
        return status;
    const bool failed = work->answer.failed;
    hfi_consul_answer_free(&work->answer);
    return failed ? mend(work) : HF_OK;
}

static hf_status look(struct consul_work *work, struct consul_view *view)
{
    work->count = 0;
    hfi_consul_add(work, "get-tree", work->all);
    hfi_consul_add_done(work);
    const hf_status status = hfi_consul_txn(work->store, work->operations, work->count, &work->answer,
                                            work->request->deadline_ns, work->err);
    if (status == HF_UNKNOWN) /* it only reads */
        return hfi_fail(work->err, HF_UNAVAILABLE, 0, "the server did not answer in time");
    if (status == HF_OK)
        hfi_consul_view(view, &work->answer, work->store, work->request->name, work->request->owner);
    return status;
}

static hf_status look_and_consider(struct consul_work *work)
{
    struct consul_view view = { .free = false };
    const hf_status status = look(work, &view);
    if (status != HF_OK)
        return status;
    hfi_consul_consider(work, &view);
    hfi_consul_note_done(work);
    if (work->lock->placed && !view.place.key) /* somebody has deleted it: line up again */
        hfi_consul_set_left(work);
    hfi_consul_answer_free(&work->answer);
    return HF_OK;
}

/* Whoever waits for a lock that others wanted too when it last asked lines up first: asking for it would be in vain. */
static uint64_t *crowd_of(struct consul_work *work, uint64_t *hash)
{
    *hash = hfi_name_hash(work->request->name);
    return &work->store->crowded[*hash % HFI_CONSUL_CROWDS];
}

static bool is_crowded(struct consul_work *work)
{
    uint64_t hash;
    const uint64_t *crowd = crowd_of(work, &hash);
    pthread_mutex_lock(&work->store->mutex);
    const bool crowded = *crowd == hash;
    pthread_mutex_unlock(&work->store->mutex);
    return crowded;
}

static void note_crowd(struct consul_work *work, bool crowded)
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

static hf_status contend(struct consul_work *work)
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
        if (status != HF_OK || lock->held || lock->done)
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
    struct consul_work work;
    lock->done = false;
    hfi_consul_work_start(&work, store, lock, request, err);
    hf_status status = hfi_consul_catch_up(&work);
    if (status == HF_OK && !lock->held && !lock->done)
        status = contend(&work);
    if (status == HF_OK && lock->done) { /* release() gives back what was taken while this was found out */
        snprintf(grant->holder, sizeof grant->holder, "%s", lock->busy);
        grant->holder_left_ms = lock->done_left_ms;
        grant->done_ago_ms = lock->done_ago_ms;
        return HF_DONE;
    }
    if (status == HF_OK)
        status = hfi_consul_session_keep(store, lock->session, request->deadline_ns, err);
    if (status == HF_LOST) { /* gone in the meantime, and the lock with it */
        hfi_consul_drop_session(&work);
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
    while (lock && !hfi_consul_same(lock->owner, owner))
        lock = lock->next_placed;
    return lock != NULL;
}

/* Until the thread of this client that is before us has given up its place. True: it has. */
static bool wait_for_neighbour(struct consul_store *store, struct consul_lock *lock, const struct hfi_request *request)
{
    pthread_mutex_lock(&store->mutex);
    lock->news = !is_placed(store, lock->watched);
    lock->waker = request->waker;
    bool news = lock->news;
    pthread_mutex_unlock(&store->mutex);
    if (!news)
        hfi_waker_sleep(request->waker, NULL, 0, request->deadline_ns);
    pthread_mutex_lock(&store->mutex);
    news = lock->news;
    lock->waker = NULL; /* it goes back to its client after this wait */
    pthread_mutex_unlock(&store->mutex);
    return news;
}

/* Until the key has changed, or the long poll has come to its end: once in a while everybody asks again. True: there
 * was an answer. */
static bool wait_for_server(struct consul_store *store, const struct consul_lock *lock,
                            const struct hfi_request *request)
{
    struct consul_exchange exchange = { .locked = false };
    char key[HFI_CONSUL_KEY_MAX];
    hfi_consul_key(key, store, lock->watch_place ? CONSUL_PLACE : CONSUL_LOCK, request->name, lock->watched);
    if (hfi_consul_poll(store, &exchange, key, lock->watch_index) != HF_OK)
        return false;
    const hfi_time give_up = exchange.begun_ns + POLL_MOST;
    const hfi_time until = give_up < request->deadline_ns ? give_up : request->deadline_ns;
    hf_status status;
    bool awake = true;
    while ((status = hfi_consul_step(store, &exchange, NULL)) == HF_TIMEOUT && awake) {
        struct pollfd answer = { .fd = exchange.connection->fd, .events = exchange.connection->wants };
        awake = hfi_waker_sleep(request->waker, &answer, 1, until) && !hfi_waker_called_back(request->waker);
    }
    const bool answered = status == HF_OK && (exchange.reply->status == 200 || exchange.reply->status == 404);
    hfi_consul_end(store, &exchange);
    return answered;
}

hf_status hfi_consul_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct consul_store *store = memory;
    struct consul_lock *lock = lock_memory;
    bool changed = false;
    (void)err;
    if (lock->watch_place && lock->watched.client == store->env->client && !lock->delayed)
        changed = wait_for_neighbour(store, lock, request);
    else if (lock->watch_index && !lock->delayed)
        changed = wait_for_server(store, lock, request);
    hfi_time now = store->env->now_ns();
    if (!changed && now < request->deadline_ns && !hfi_waker_called_back(request->waker)) {
        const hfi_time until = now + ASK_AGAIN / 2 + (hfi_time)(store->env->random() % (uint64_t)ASK_AGAIN);
        hfi_waker_sleep(request->waker, NULL, 0, until < request->deadline_ns ? until : request->deadline_ns);
        now = store->env->now_ns();
    }
    /* Those who were before us are counted in the transaction, unless they are too many. */
    lock->behind = !lock->delayed && (!changed || lock->ahead_count > HFI_CONSUL_AHEAD_MOST);
    return changed || now < request->deadline_ns ? HF_OK : HF_TIMEOUT;
}

/* --- releasing --- */

/* With request->done_ms the mark comes with it. */
static hf_status give_back(struct consul_work *work)
{
    const struct consul_lock *lock = work->lock;
    char mark[HFI_CONSUL_VALUE_MAX];
    const hf_status status = work->request->done_ms ? hfi_consul_describe_done(work, mark) : HF_OK;
    if (status != HF_OK)
        return status;
    work->count = 0;
    hfi_consul_add(work, "check-index", work->key)->index = lock->index;
    hfi_consul_add(work, "delete", work->key);
    if (work->request->done_ms)
        hfi_consul_add(work, "set", work->done)->value = mark;
    if (lock->placed) {
        hfi_consul_add(work, "delete", work->place);
        hfi_consul_add(work, "get-tree", work->marker);
    }
    return hfi_consul_work_ask(work, CONSUL_RELEASE);
}

static hf_status leave_queue(struct consul_work *work)
{
    work->count = 0;
    hfi_consul_add(work, "delete", work->place);
    hfi_consul_add(work, "get-tree", work->all);
    return hfi_consul_work_ask(work, CONSUL_LEAVE);
}

/* The entry is no longer as we left it. Whose is it? If somebody has only written another value, it is ours still. */
static hf_status look_whose(struct consul_work *work)
{
    struct consul_view view = { .free = false };
    const hf_status status = look(work, &view);
    if (status != HF_OK)
        return status;
    const bool touched =
        view.lock.key && !view.lock.holder.owner.client && strcmp(view.lock.session, work->lock->session->id) == 0;
    if (view.mine || touched)
        hfi_consul_set_held(work, &view.lock);
    else
        hfi_consul_set_gone(work);
    hfi_consul_answer_free(&work->answer);
    return HF_OK;
}

static hf_status let_go(struct consul_work *work, bool *lost)
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
            hfi_consul_drop_session(work);
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

/* The server does not let us delete the key. It is asked again, but the session is no longer kept for it, so that the
 * key goes with the session if no other lock needs that. True: that must have happened. */
static bool is_over_after_refusal(struct consul_work *work)
{
    struct consul_lock *lock = work->lock;
    struct consul_session *session = lock->session;
    if (!session)
        return true;
    pthread_mutex_lock(&work->store->mutex);
    if (!lock->refused) {
        lock->refused = true;
        session->users--;
        session->refused++;
    }
    const hfi_time age = work->store->env->now_ns() - session->renewed_ns;
    const bool over = session->users == 0 && age > 2 * session->ttl_ms * HFI_MS;
    pthread_mutex_unlock(&work->store->mutex);
    return over;
}

hf_status hfi_consul_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct consul_store *store = memory;
    struct consul_lock *lock = lock_memory;
    struct consul_work work;
    bool lost = false;
    hfi_consul_work_start(&work, store, lock, request, err);
    lock->stale = 0;
    hf_status status = hfi_consul_catch_up(&work);
    if (status == HF_OK)
        status = let_go(&work, &lost);
    if (status == HF_INTERNAL) { /* nobody knows what was done */
        status = HF_UNKNOWN;
        if (err)
            err->status = status;
    }
    if (status == HF_UNAVAILABLE || status == HF_UNKNOWN || (status != HF_OK && !is_over_after_refusal(&work)))
        return status;
    if (status == HF_OK && lock->stale) {
        /* So that newcomers need not look first; whether it is done or not does no harm. */
        const struct consul_operation sweep = { .verb = "delete-cas", .key = work.marker, .index = lock->stale };
        if (hfi_consul_txn(store, &sweep, 1, &work.answer, request->deadline_ns, NULL) == HF_OK)
            hfi_consul_answer_free(&work.answer);
    }
    hfi_consul_end(store, &lock->exchange);
    hfi_consul_drop_session(&work);
    return status == HF_OK && lost ? hfi_fail(err, HF_LOST, 0, "the store no longer has it") : status;
}
