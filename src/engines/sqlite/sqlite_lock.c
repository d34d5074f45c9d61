/* SPDX-License-Identifier: MIT
 *
 * sqlite_lock.c: attempt, wait, renew and release. The lock is a row with an owner and an end.
 *
 * A lock that nobody else wants is taken by one statement and freed by another. Who finds it held lines up in a table
 * of waiters, and is handed the lock by whoever frees it (sqlite_queue.c).
 */
#include "sqlite.h"
#include <stdio.h>

/* When the holder's time is over, its waiters ask by themselves. */
#define BACKSTOP_FIRST (10 * HFI_MS)
#define BACKSTOP_SPREAD (60 * HFI_MS)
#define BACKSTOP_MOST (3600 * HFI_SECOND)
/* A row that somebody else has inserted may be deleted by them at any time, and nobody is told. */
#define BACKSTOP_UNKNOWN (HFI_SECOND)
/* A client that nobody can reach asks from time to time. */
#define POLL_PAUSE (100 * HFI_MS)
#define LOOKS_MOST 4

/* --- taking it --- */

struct taking {
    struct sqlite_values values;
    uint32_t ttl_ms;
    bool once;               /* not if it is done */
    struct sqlite_done done; /* if it is, it was not even tried to take */
    struct sqlite_row row;   /* unless it was taken */
    int64_t token;           /* 0: not taken */
    bool first;              /* in line, nobody before us */
    struct sqlite_heirs heirs;
};

static int read_token(sqlite3_stmt *row, void *arg)
{
    *(int64_t *)arg = sqlite3_column_int64(row, 0);
    return 0;
}

/* It was looked at: takes it if it is ours, or free and nobody waits. */
static int take_what_was_seen(struct sqlite_store *store, struct taking *it)
{
    const struct sqlite_strategy *strategy = store->config.strategy;
    int code = SQLITE_OK;
    if (strategy->count && it->row.there) /* it may be another strategy's */
        code = hfi_sqlite_run(store, LITE_KEEP, &it->values, NULL, NULL);
    if (code != SQLITE_OK)
        return code;
    if (it->row.mine && !it->row.free) {
        code = hfi_sqlite_run(store, LITE_RENEW, &it->values, NULL, NULL);
        if (code == SQLITE_OK && sqlite3_changes(store->connection.db) > 0)
            it->token = it->row.token;
        return code;
    }
    it->values.number = it->row.token;
    if (strategy->count)
        code = hfi_sqlite_run(store, LITE_COUNT, &it->values, read_token, &it->values.number);
    return code == SQLITE_OK ? hfi_sqlite_run(store, LITE_TAKE, &it->values, read_token, &it->token) : code;
}

/* Looks first. A row that has changed in between is looked at again. */
static int look_and_take(struct sqlite_store *store, struct taking *it)
{
    int code = SQLITE_OK;
    for (unsigned looks = 0; code == SQLITE_OK && !it->token && looks < LOOKS_MOST; looks++) {
        code = hfi_sqlite_look(store, &it->values, &it->row);
        if (code == SQLITE_OK && !it->row.there && store->config.strategy->sql[LITE_ADD]) {
            code = hfi_sqlite_run(store, LITE_ADD, &it->values, NULL, NULL);
            continue;
        }
        const bool may_take = it->row.free ? !it->row.waited : it->row.mine;
        if (code != SQLITE_OK || !may_take)
            break;
        code = take_what_was_seen(store, it);
    }
    return code;
}

static int take(struct sqlite_store *store, void *arg)
{
    struct taking *it = arg;
    int code = SQLITE_OK;
    it->token = 0;
    hfi_sqlite_set_end(store, &it->values, it->ttl_ms);
    if (it->once)
        code = hfi_sqlite_find_done(store, &it->values, &it->done);
    if (code != SQLITE_OK)
        return code;
    if (it->done.left_ms > 0) {
        it->row = (struct sqlite_row){ .free = false };
    } else if (store->config.strategy->blind) {
        code = hfi_sqlite_run(store, LITE_TAKE, &it->values, read_token, &it->token);
        if (code == SQLITE_OK && !it->token)
            code = hfi_sqlite_look(store, &it->values, &it->row);
    } else {
        code = look_and_take(store, it);
    }
    return code == SQLITE_OK ? hfi_sqlite_check_file(store) : code;
}

/* The lock is free, but others wait for it: they are served first. */
static int serve_and_take(struct sqlite_store *store, void *arg)
{
    struct taking *it = arg;
    it->heirs = (struct sqlite_heirs){ .first = { .serial = 0 } };
    int code = take(store, it);
    if (code != SQLITE_OK || it->token || !it->row.free)
        return code;
    code = hfi_sqlite_serve(store, &it->values, &it->heirs);
    return code == SQLITE_OK ? take(store, it) : code;
}

static int read_first(sqlite3_stmt *row, void *arg)
{
    struct taking *it = arg;
    it->first = sqlite3_column_int64(row, 1) == it->values.client && sqlite3_column_int64(row, 2) == it->values.serial;
    return 1;
}

static int line_up_and_take(struct sqlite_store *store, void *arg)
{
    struct taking *it = arg;
    it->heirs = (struct sqlite_heirs){ .first = { .serial = 0 } };
    it->first = false;
    int code = take(store, it);
    if (code != SQLITE_OK || it->token || it->done.left_ms > 0)
        return code;
    code = hfi_sqlite_run(store, LITE_ENTER, &it->values, NULL, NULL);
    if (code != SQLITE_OK)
        return code;
    if (!it->row.free)
        return hfi_sqlite_run(store, LITE_QUEUE, &it->values, read_first, it);
    code = hfi_sqlite_serve(store, &it->values, &it->heirs);
    return code == SQLITE_OK ? take(store, it) : code;
}

/* --- attempt --- */

static hf_status ask(struct sqlite_store *store, struct taking *it, bool line_up, hfi_time deadline_ns, hf_error *err)
{
    const enum sqlite_kind kind = store->config.strategy->count || it->once ? LITE_KIND_TRANSACTION : LITE_KIND_WRITE;
    hf_status status;
    if (line_up) {
        status = hfi_sqlite_ask(store, LITE_KIND_TRANSACTION, line_up_and_take, it, deadline_ns, err);
    } else {
        status = hfi_sqlite_ask(store, kind, take, it, deadline_ns, err);
        if (status == HF_OK && !it->token && it->row.free)
            status = hfi_sqlite_ask(store, LITE_KIND_TRANSACTION, serve_and_take, it, deadline_ns, err);
    }
    if (status == HF_OK)
        hfi_sqlite_tell_heirs(store, &it->heirs);
    return status;
}

/* Busy: says who, and when to ask again. */
static void put_off(struct sqlite_store *store, struct sqlite_lock *lock, const struct taking *it,
                    struct hfi_grant *grant)
{
    const struct sqlite_row *row = &it->row;
    const hfi_time now = hfi_sqlite_now(store);
    const hfi_time left = row->end_ns > now ? row->end_ns - now : row->end_ns ? 0 : BACKSTOP_UNKNOWN;
    const hfi_time spread = (hfi_time)(store->env->random() % (uint64_t)BACKSTOP_SPREAD);
    if (*row->host)
        snprintf(grant->holder, sizeof grant->holder, "%s:%lld", row->host, (long long)row->pid);
    grant->holder_left_ms = row->end_ns ? left / HFI_MS : -1;
    const hfi_time at = now + store->ahead_ns + (left < BACKSTOP_MOST ? left : BACKSTOP_MOST) + BACKSTOP_FIRST + spread;
    pthread_mutex_lock(&store->push.mutex);
    if (at < lock->ask_again_ns) /* it may have been told, since it is in line, to look after the first */
        lock->ask_again_ns = at;
    pthread_mutex_unlock(&store->push.mutex);
    lock->watched = it->first ? row->owner.client : 0;
}

hf_status hfi_sqlite_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                             struct hfi_grant *grant, hf_error *err)
{
    struct sqlite_store *store = memory;
    struct sqlite_lock *lock = lock_memory;
    struct taking it = { .ttl_ms = request->ttl_ms, .once = request->once };
    hfi_sqlite_values(store, &it.values, request);
    pthread_mutex_lock(&store->push.mutex);
    const bool called = lock->state == LITE_STATE_CALLED;
    const bool deaf = store->push.lifeline.fd < 0;
    lock->ask_again_ns = HFI_NEVER;
    pthread_mutex_unlock(&store->push.mutex);
    const bool wants_place = request->queue && lock->wants_place && !called;
    /* Whoever lines up without being reachable would be struck off. Holders are told of a break. */
    const bool reachable = (deaf || wants_place) && hfi_sqlite_push_ready(store);
    const bool line_up = wants_place && reachable;
    if (line_up)
        hfi_sqlite_expect(store, lock, request->owner);
    const hf_status status = ask(store, &it, line_up, request->deadline_ns, err);
    if (status == HF_UNKNOWN)
        lock->unsure = true;
    if (status != HF_OK)
        return status;
    if (it.done.left_ms > 0) { /* a place, or what was given meanwhile, is given back by release() */
        snprintf(grant->holder, sizeof grant->holder, "%s", it.done.who);
        grant->holder_left_ms = it.done.left_ms;
        grant->done_ago_ms = it.done.ago_ms;
        return HF_DONE;
    }
    if (it.token) {
        hfi_sqlite_expect_no_more(store, lock, LITE_STATE_HELD);
        lock->queued = lock->unsure = false;
        grant->token = (uint64_t)it.token;
        grant->counted_from_ns =
            it.values.now_ns + store->ahead_ns; /* that is what the end in the row was counted from */
        return HF_OK;
    }
    lock->queued = line_up || (lock->queued && !called); /* a call that came to nothing used up the place */
    put_off(store, lock, &it, grant);
    if (called)
        hfi_sqlite_expect_no_more(store, lock, LITE_STATE_NEW);
    return HF_BUSY;
}

/* --- wait --- */

static hf_status poll_later(const struct sqlite_store *store, const struct hfi_request *request)
{
    const hfi_time pause = POLL_PAUSE / 2 + (hfi_time)(store->env->random() % (uint64_t)(POLL_PAUSE / 2));
    const hfi_time at = store->env->now_ns() + pause;
    const bool in_time = at < request->deadline_ns;
    hfi_waker_sleep(request->waker, NULL, 0, in_time ? at : request->deadline_ns);
    return in_time ? HF_OK : HF_TIMEOUT;
}

hf_status hfi_sqlite_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    (void)err;
    struct sqlite_store *store = memory;
    struct sqlite_lock *lock = lock_memory;
    if (lock->queued)
        return hfi_sqlite_await_call(store, lock, request->waker, request->deadline_ns) ? HF_OK : HF_TIMEOUT;
    if (lock->wants_place) /* and could not have one */
        return poll_later(store, request);
    lock->wants_place = true;
    return HF_OK;
}

/* --- renew --- */

struct renewing {
    struct hfi_renewal *renewals;
    size_t count;
};

static int renew_all(struct sqlite_store *store, void *arg)
{
    const struct renewing *it = arg;
    int code = SQLITE_OK;
    for (size_t i = 0; i < it->count && code == SQLITE_OK; i++) {
        struct hfi_renewal *one = &it->renewals[i];
        const struct hfi_request request = { .name = one->name, .owner = one->owner, .note = "" };
        struct sqlite_values values;
        hfi_sqlite_values(store, &values, &request);
        hfi_sqlite_set_end(store, &values, one->ttl_ms);
        code = hfi_sqlite_run(store, LITE_RENEW, &values, NULL, NULL);
        one->status = sqlite3_changes(store->connection.db) > 0 ? HF_OK : HF_LOST;
        one->counted_from_ns = values.now_ns + store->ahead_ns;
    }
    return code == SQLITE_OK ? hfi_sqlite_check_file(store) : code;
}

hf_status hfi_sqlite_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                           hf_error *err)
{
    struct renewing it = { renewals, count };
    return hfi_sqlite_ask(memory, count == 1 ? LITE_KIND_WRITE : LITE_KIND_TRANSACTION, renew_all, &it, deadline_ns,
                          err);
}

/* --- release --- */

struct releasing {
    struct sqlite_values values;
    uint64_t done_ms;
    bool freed;
    struct sqlite_heirs heirs;
};

static int free_alone(struct sqlite_store *store, void *arg)
{
    struct releasing *it = arg;
    const int code = hfi_sqlite_run(store, LITE_FREE_ALONE, &it->values, NULL, NULL);
    it->freed = code == SQLITE_OK && sqlite3_changes(store->connection.db) > 0;
    return code;
}

/* An earlier try may have succeeded without our knowing. And whoever says that it is recorded must know where. */
static int find_own_done(struct sqlite_store *store, struct releasing *it)
{
    struct sqlite_done done;
    const int code = hfi_sqlite_find_done(store, &it->values, &done);
    it->freed = it->freed || (done.owner.serial != 0 && done.owner.client == (uint64_t)it->values.client &&
                              done.owner.serial == (uint64_t)it->values.serial);
    return code == SQLITE_OK ? hfi_sqlite_check_file(store) : code;
}

static int free_and_serve(struct sqlite_store *store, void *arg)
{
    struct releasing *it = arg;
    struct sqlite_row row = { .free = false };
    it->heirs = (struct sqlite_heirs){ .first = { .serial = 0 } };
    it->values.now_ns = hfi_sqlite_now(store);
    int code = it->done_ms ? hfi_sqlite_record_done(store, &it->values, it->done_ms) : SQLITE_OK;
    if (code == SQLITE_OK)
        code = hfi_sqlite_run(store, LITE_FREE, &it->values, NULL, NULL);
    it->freed = code == SQLITE_OK && sqlite3_changes(store->connection.db) > 0;
    if (code == SQLITE_OK)
        code = hfi_sqlite_run(store, LITE_LEAVE, &it->values, NULL, NULL);
    if (code == SQLITE_OK)
        code = hfi_sqlite_look(store, &it->values, &row);
    if (code == SQLITE_OK && row.free && row.waited)
        code = hfi_sqlite_serve(store, &it->values, &it->heirs);
    return code == SQLITE_OK && it->done_ms ? find_own_done(store, it) : code;
}

hf_status hfi_sqlite_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct sqlite_store *store = memory;
    struct sqlite_lock *lock = lock_memory;
    struct releasing it = { .done_ms = request->done_ms };
    hf_status status = HF_OK;
    hfi_sqlite_values(store, &it.values, request);
    pthread_mutex_lock(&store->push.mutex);
    const bool was_held = lock->state == LITE_STATE_HELD;
    pthread_mutex_unlock(&store->push.mutex);
    if (!was_held)
        hfi_sqlite_expect_no_more(store, lock, LITE_STATE_NEW);
    if (!was_held && !lock->wants_place && !lock->unsure)
        return HF_OK;
    if (was_held && !lock->unsure && !request->done_ms)
        status = hfi_sqlite_ask(store, LITE_KIND_WRITE, free_alone, &it, request->deadline_ns, err);
    if (status == HF_OK && !it.freed)
        status = hfi_sqlite_ask(store, LITE_KIND_TRANSACTION, free_and_serve, &it, request->deadline_ns, err);
    if (status == HF_UNKNOWN)
        lock->unsure = true;
    if (status != HF_OK)
        return status;
    hfi_sqlite_tell_heirs(store, &it.heirs);
    if (was_held && !it.freed)
        status = hfi_fail(err, HF_LOST, 0, "the database no longer had it");
    lock->state = LITE_STATE_NEW;
    lock->queued = lock->unsure = lock->wants_place = false;
    return status;
}
