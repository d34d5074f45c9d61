/* SPDX-License-Identifier: MIT
 *
 * etcd.c: machines that share an etcd cluster (3.4 or newer), by the keys that its own clients lock with.
 *
 * What ends a grant:  release(); the end of the client's lease, which is kept alive for as long as the client lives.
 * Who counts time:    the leader of the cluster; the core keeps an earlier deadline of its own, from the sending of the
 *                     last keep-alive that was answered, together with proof that it was the leader who did.
 * Exchanges:          one transaction to acquire and one to release a lock that nobody else wants.
 * Waiting:            in order of the keys' revisions. Each waiter watches the one key before its own, all of them on
 *                     one stream per client; when that key is gone it reads again, its own key included, before it
 *                     believes.
 * Done:               a key of its own for the mark, tied to a lease that nobody keeps: it ends by itself.
 * Token:              the store's revision when the lock was seen to be ours. Our key is there in that revision, so
 *                     whoever comes later sees a greater one.
 * Cannot promise:     tokens that grow through a restore from a snapshot, unless it bumps the revision. Exclusion from
 *                     a holder that was paused for longer than its time-to-live and writes without looking: for that
 *                     there is the token.
 */
#include "etcd.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A holder that stays watches its own key from then on. Most are gone by then. */
#define OWN_WATCH_AFTER HFI_SECOND
/* How often an attempt may find that its key or its lease has gone, and start over. */
#define STARTS_MOST 3

/* --- open and close --- */

/* One read of what we are going to write to: whether there is a server, with a leader, that lets us. */
static hf_status look_around(struct etcd_store *store, hf_error *err)
{
    char key[HFI_ETCD_PREFIX_MAX + 2];
    Etcd__RangeRequest request = ETCD__RANGE_REQUEST__INIT;
    struct etcd_call call = { .path = "/etcdserverpb.KV/Range",
                              .request = &request.base,
                              .type = &etcd__range_response__descriptor };
    struct etcd_question question = { .calls = &call,
                                      .count = 1,
                                      .deadline_ns = store->env->now_ns() + store->env->timeout_ns };
    request.key.len = (size_t)snprintf(key, sizeof key, "%s/", store->config.prefix);
    request.key.data = (uint8_t *)key;
    request.keys_only = true;
    const hf_status status = hfi_etcd_ask(store, &question, err);
    if (status == HF_OK)
        hfi_etcd_answers_free(&question);
    return status;
}

static hf_status etcd_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                           struct hfi_opened *opened, hf_error *err)
{
    struct etcd_store *store = memory;
    char host[65] = "";
    (void)opened;
    store->env = env;
    store->push.epoll = store->push.timer = -1;
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->granted, NULL);
    if (!hfi_loop_open(&store->loop))
        return hfi_fail_errno(err, errno, "make", "a client");
    gethostname(host, sizeof host - 1);
    snprintf(store->who, sizeof store->who, "%s %d", host, (int)getpid());
    hf_status status = hfi_etcd_config_read(&store->config, url, err);
    if (status == HF_OK && store->config.tls)
        status = hfi_etcd_tls_new(&store->tls, &store->config, err);
    if (status == HF_OK)
        status = hfi_etcd_nodes_new(store, err);
    if (status == HF_OK)
        status = hfi_etcd_push_open(store, err);
    return status == HF_OK ? look_around(store, err) : status;
}

static void etcd_close(void *memory)
{
    struct etcd_store *store = memory;
    hfi_etcd_leases_close(store);
    hfi_etcd_push_close(store);
    hfi_etcd_nodes_free(store);
    hfi_loop_close(&store->loop);
    SSL_CTX_free(store->tls);
    hfi_free(store->token);
    hfi_etcd_config_free(&store->config);
    pthread_cond_destroy(&store->granted);
    pthread_mutex_destroy(&store->mutex);
}

/* --- asking --- */

static void start_lock(struct etcd_lock *lock, const struct hfi_request *request)
{
    if (lock->name)
        return;
    lock->name = request->name;
    lock->note = request->note;
    lock->hash = hfi_name_hash(request->name);
    lock->owner = request->owner;
}

/* The lock is ours: from when its time counts, and in a while its own key is watched. */
static void take_up(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                    const struct etcd_view *view, struct hfi_grant *grant)
{
    char key[HFI_ETCD_KEY_MAX + 1];
    const size_t length = hfi_etcd_key(key, store, lock->name, lock->lease->id);
    char *copy = hfi_strdup(key); /* without it, the loss is only noticed by the next renewal */
    grant->token = (uint64_t)view->revision;
    grant->counted_from_ns =
        hfi_etcd_lease_counts_from(store, lock->lease, request->ttl_ms, grant->counted_from_ns, &grant->valid_ms);
    pthread_mutex_lock(&store->mutex);
    lock->place = ETCD_HELD;
    lock->token = view->revision;
    lock->own_revision = view->own_revision;
    lock->seen_revision = view->revision;
    if (copy)
        hfi_etcd_watch(store, lock, copy, length, view->revision + 1, store->env->now_ns() + OWN_WATCH_AFTER);
    pthread_mutex_unlock(&store->mutex);
}

/* Somebody else comes first. Whoever waits watches the key before its own, and keeps a watch that it has on it. */
static void line_up(struct etcd_store *store, struct etcd_lock *lock, struct etcd_view *view)
{
    pthread_mutex_lock(&store->mutex);
    lock->place = view->placed ? ETCD_PLACED : ETCD_NOWHERE;
    lock->own_revision = view->own_revision;
    lock->seen_revision = view->revision;
    const bool same = view->before && lock->watched && lock->watched_length == view->before_length &&
                      memcmp(lock->watched, view->before, view->before_length) == 0;
    /* What is heard from after the moment of this answer on may come too late: then it is asked once more. A call that
     * came meanwhile stays one. */
    lock->called = lock->called || (same && lock->heard_from > view->revision);
    if (!view->placed) {
        hfi_etcd_unwatch(store, lock);
    } else if (view->before && !same) {
        hfi_etcd_watch(store, lock, view->before, view->before_length, 0, store->env->now_ns());
        view->before = NULL; /* the watch's now */
    }
    hfi_etcd_plan_backstop(store, lock);
    pthread_mutex_unlock(&store->mutex);
}

/* The work is done: what of ours is there is given back by release(). */
static void step_back(struct etcd_store *store, struct etcd_lock *lock, const struct etcd_view *view)
{
    pthread_mutex_lock(&store->mutex);
    lock->place = view->placed ? ETCD_PLACED : ETCD_NOWHERE;
    lock->own_revision = view->own_revision;
    pthread_mutex_unlock(&store->mutex);
}

static void note_unsure(struct etcd_store *store, struct etcd_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    if (lock->place == ETCD_NOWHERE)
        lock->place = ETCD_UNSURE;
    pthread_mutex_unlock(&store->mutex);
}

static void stop_watching(struct etcd_store *store, struct etcd_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    hfi_etcd_unwatch(store, lock);
    pthread_mutex_unlock(&store->mutex);
}

/* One question, whichever it is the time for. */
static hf_status ask(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                     struct etcd_view *view, hf_error *err)
{
    *view = (struct etcd_view){ .placed = false };
    if (lock->place == ETCD_PLACED)
        return hfi_etcd_ask_whose_turn(store, lock, request, view, err);
    const hf_status status = request->queue ? hfi_etcd_ask_to_line_up(store, lock, request, view, err)
                                            : hfi_etcd_ask_if_free(store, lock, request, view, err);
    if (status == HF_UNKNOWN || status == HF_INTERNAL || lock->crowded_out)
        note_unsure(store, lock);
    return status;
}

/* Asks, with a lease that lives; and what is left open by the first answer. */
static hf_status ask_all(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                         struct etcd_view *view, hf_error *err)
{
    hf_status status = HF_OK;
    if (hfi_etcd_lease_has_ended(store, lock->lease)) {
        stop_watching(store, lock);
        hfi_etcd_lease_drop(store, lock);
    }
    if (!lock->lease)
        status = hfi_etcd_lease_take(store, lock, request, err);
    if (status == HF_OK)
        status = ask(store, lock, request, view, err);
    if (status == HF_OK && view->placed && !view->first && !view->before && !view->done) {
        /* Found again after a lost answer, which does not say who is before it. */
        line_up(store, lock, view);
        status = ask(store, lock, request, view, err);
    }
    return status;
}

/* When the key went with its lease, or somebody deleted it, the place in the queue is lost, and a new one is taken. */
static hf_status ask_until_it_says(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                   struct etcd_view *view, hf_error *err)
{
    for (int starts = 0; starts < STARTS_MOST; starts++) {
        const hf_status status = ask_all(store, lock, request, view, err);
        const bool gone = lock->place == ETCD_PLACED && !view->placed;
        if (!hfi_etcd_lease_has_ended(store, lock->lease) && (status != HF_OK || !gone))
            return status;
        hfi_etcd_view_free(view);
        if (status == HF_OK && gone)
            line_up(store, lock, view); /* nowhere */
    }
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the lease ended again and again before the server had answered");
}

static hf_status etcd_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                              struct hfi_grant *grant, hf_error *err)
{
    struct etcd_store *store = memory;
    struct etcd_lock *lock = lock_memory;
    struct etcd_view view = { .placed = false };
    start_lock(lock, request);
    pthread_mutex_lock(&store->mutex);
    lock->called = false; /* what comes from now on is news */
    pthread_mutex_unlock(&store->mutex);
    hf_status status = ask_until_it_says(store, lock, request, &view, err);
    if (status == HF_OK && view.done) {
        step_back(store, lock, &view);
        hfi_etcd_say_done(store, &view, grant, request->deadline_ns);
        status = HF_DONE;
    } else if (status == HF_OK && view.first) {
        take_up(store, lock, request, &view, grant);
    } else if (status == HF_OK) {
        snprintf(grant->holder, sizeof grant->holder, "%s", view.holder);
        line_up(store, lock, &view);
        status = HF_BUSY;
    }
    hfi_etcd_view_free(&view);
    if (status == HF_BUSY && !request->queue && !lock->late) /* it left no trace, and needs no lease */
        hfi_etcd_lease_drop(store, lock);
    hfi_etcd_tell_losses(store);
    return status;
}

static hf_status etcd_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    (void)err;
    return hfi_etcd_await_turn(memory, lock_memory, request);
}

/* --- giving back --- */

static hf_status etcd_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct etcd_store *store = memory;
    struct etcd_lock *lock = lock_memory;
    stop_watching(store, lock);
    const bool was_held = lock->place == ETCD_HELD;
    hf_status status = HF_OK;
    if (was_held && request->done_ms)
        status = hfi_etcd_finish(store, lock, request, err);
    else if (lock->place != ETCD_NOWHERE || lock->late)
        status = hfi_etcd_ask_to_delete(store, lock, request, err);
    if (status != HF_OK && hfi_etcd_lease_has_ended(store, lock->lease)) /* and the key with it */
        status = hfi_fail(err, HF_LOST, 0, "the lease has ended");
    if (status == HF_UNAVAILABLE || status == HF_UNKNOWN)
        return status;
    if (status != HF_OK && status != HF_LOST) {
        hfi_etcd_lease_refuse(store, lock);
        return status;
    }
    hfi_etcd_lease_drop(store, lock);
    return status == HF_LOST && !was_held ? HF_OK : status;
}

static int etcd_push_fd(void *memory)
{
    const struct etcd_store *store = memory;
    return store->push.epoll;
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "etcd",
    .schemes = "etcd: etcds:",
    .summary = "machines that share an etcd cluster",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_ONCE,
    .parks = true,
    .lingers = true,
    .store_size = sizeof(struct etcd_store),
    .lock_size = sizeof(struct etcd_lock),
    .open = etcd_open,
    .close = etcd_close,
    .attempt = etcd_attempt,
    .wait = etcd_wait,
    .renew = hfi_etcd_renew,
    .release = etcd_release,
    .inspect = hfi_etcd_inspect,
    .inspect_one = hfi_etcd_inspect_one,
    .inspect_done = hfi_etcd_inspect_done,
    .forget_done = hfi_etcd_forget_done,
    .evict = hfi_etcd_evict,
    .examine = hfi_etcd_examine,
    .push_fd = etcd_push_fd,
    .take_push = hfi_etcd_take_push,
};
