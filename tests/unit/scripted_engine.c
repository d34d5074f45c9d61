/* SPDX-License-Identifier: MIT
 *
 * scripted_engine.c: see scripted_engine.h.
 */
#include "scripted_engine.h"
#include "core.h"
#include "test.h"
#include <pthread.h>
#include <time.h>

struct script script_attempt, script_renew, script_release;
_Atomic int script_renewed, script_largest_renewal, script_held;
_Atomic uint64_t script_last_owner, script_forgotten;
_Atomic int script_lost_at_once;
_Atomic int64_t script_counted_ns;
_Atomic int script_done;
atomic_bool script_reserves, script_endless, script_starts;
_Atomic int script_refused, script_started, script_kept_waiting;
static _Thread_local bool tells;
static _Atomic uint64_t token;

/* Those that are held are in a list of the store's, as in engines whose locks share a session. */
struct scripted_lock {
    bool held;
    struct scripted_lock *next, *prev;
};

struct started {
    struct started *next;
    struct hfi_exchange *exchange;
};

struct scripted_store {
    const struct hfi_env *env;
    pthread_mutex_t mutex;
    struct scripted_lock *held;
    struct started *first, *last; /* to be answered by whoever attends */
    pthread_cond_t changed;
    bool dismissed;
};

static void note_held(struct scripted_store *store, struct scripted_lock *lock, bool held)
{
    pthread_mutex_lock(&store->mutex);
    if (held) {
        lock->prev = NULL;
        lock->next = store->held;
        if (lock->next)
            lock->next->prev = lock;
        store->held = lock;
    } else {
        *(lock->prev ? &lock->prev->next : &store->held) = lock->next;
        if (lock->next)
            lock->next->prev = lock->prev;
    }
    lock->held = held;
    atomic_fetch_add(&script_held, held ? 1 : -1);
    pthread_mutex_unlock(&store->mutex);
}

void script_set(struct script *script, int count, hf_status status, bool stalls)
{
    atomic_store(&script->status, status);
    atomic_store(&script->stalls, stalls);
    atomic_store(&script->count, count);
}

static void sleep_until(hfi_time at_ns)
{
    const struct timespec at = { .tv_sec = at_ns / HFI_SECOND, .tv_nsec = at_ns % HFI_SECOND };
    clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &at, NULL);
}

static hf_status answer(struct script *script, hfi_time deadline_ns)
{
    atomic_fetch_add(&script->calls, 1);
    if (atomic_load(&script->delay_ns))
        sleep_until(hfi_now_ns() + atomic_load(&script->delay_ns));
    if (atomic_load(&script->count) <= 0)
        return HF_OK;
    atomic_fetch_sub(&script->count, 1);
    if (atomic_load(&script->stalls))
        sleep_until(deadline_ns);
    return atomic_load(&script->status);
}

static hf_status scripted_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                               struct hfi_opened *opened, hf_error *err)
{
    struct scripted_store *store = memory;
    (void)url;
    (void)err;
    opened->reserves = atomic_load(&script_reserves);
    opened->starts = atomic_load(&script_starts);
    if (atomic_load(&script_endless))
        opened->caps &= ~(uint32_t)HF_CAP_EXPIRY;
    store->env = env;
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->changed, NULL);
    return HF_OK;
}

static void scripted_close(void *memory)
{
    struct scripted_store *store = memory;
    while (store->held)
        note_held(store, store->held, false);
    CHECK(!store->first);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->mutex);
}

static hf_status scripted_attempt(void *memory_of_store, void *memory, const struct hfi_request *request,
                                  struct hfi_grant *grant, hf_error *err)
{
    struct scripted_store *store = memory_of_store;
    struct scripted_lock *lock = memory;
    const hf_status status = answer(&script_attempt, request->deadline_ns);
    atomic_store(&script_last_owner, request->owner.serial);
    if (status != HF_OK)
        return hfi_fail(err, status, 0, "so says the script");
    if (!lock->held)
        note_held(store, lock, true);
    grant->token = atomic_fetch_add(&token, request->reserve) + 1;
    grant->tokens = request->reserve;
    grant->counted_from_ns -= atomic_load(&script_counted_ns);
    if (atomic_load(&script_lost_at_once) > 0) {
        atomic_fetch_sub(&script_lost_at_once, 1);
        store->env->lost(store->env->core, request->owner, "it was lost at once");
    }
    return HF_OK;
}

_Atomic int script_renewing, script_renew_overlaps;
const char *_Atomic script_breaker;

static hf_status scripted_renew(void *store, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                                hf_error *err)
{
    (void)store;
    if (atomic_fetch_add(&script_renewing, 1) > 0)
        atomic_fetch_add(&script_renew_overlaps, 1);
    const hf_status status = answer(&script_renew, deadline_ns);
    atomic_fetch_sub(&script_renewing, 1);
    if ((int)count > atomic_load(&script_largest_renewal))
        atomic_store(&script_largest_renewal, (int)count);
    if (status != HF_OK && status != HF_LOST)
        return hfi_fail(err, status, 0, "so says the script");
    for (size_t i = 0; i < count; i++)
        renewals[i].status = renewals[i].owner.serial == atomic_load(&script_forgotten) ? HF_LOST : status;
    for (size_t i = 0; i < count && atomic_load(&script_breaker); i++) {
        if (renewals[i].status == HF_LOST)
            hfi_say_broken(renewals[i].why, atomic_load(&script_breaker));
    }
    atomic_fetch_add(&script_renewed, (int)count);
    return HF_OK;
}

static hf_status scripted_release(void *store, void *memory, const struct hfi_request *request, hf_error *err)
{
    struct scripted_lock *lock = memory;
    atomic_fetch_add(&script_kept_waiting, tells);
    const hf_status status = answer(&script_release, request->deadline_ns);
    atomic_fetch_add(&script_done, request->done_ms != 0);
    if (status == HF_OK && lock->held)
        note_held(store, lock, false);
    hfi_fail(err, status, 0, "so says the script"); /* also on the way to success */
    return status;
}

/* --- exchanges that no thread waits for --- */

static bool scripted_start(void *memory, struct hfi_exchange *exchange)
{
    struct scripted_store *store = memory;
    if (atomic_load(&script_refused) > 0) {
        atomic_fetch_sub(&script_refused, 1);
        return false;
    }
    struct started *started = hfi_alloc(sizeof *started);
    if (!started)
        return false;
    started->exchange = exchange;
    atomic_fetch_add(&script_started, 1);
    pthread_mutex_lock(&store->mutex);
    *(store->first ? &store->last->next : &store->first) = started;
    store->last = started;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->mutex);
    return true;
}

static void answer_started(struct scripted_store *store, struct hfi_exchange *exchange)
{
    hf_error err;
    hf_status status;
    if (exchange->grant)
        status = scripted_attempt(store, exchange->lock, exchange->request, exchange->grant, &err);
    else
        status = scripted_release(store, exchange->lock, exchange->request, &err);
    tells = true;
    exchange->done(exchange, status, &err);
    tells = false;
}

static void scripted_attend(void *memory)
{
    struct scripted_store *store = memory;
    pthread_mutex_lock(&store->mutex);
    while (!store->dismissed || store->first) {
        struct started *started = store->first;
        if (!started) {
            pthread_cond_wait(&store->changed, &store->mutex);
            continue;
        }
        store->first = started->next;
        pthread_mutex_unlock(&store->mutex);
        answer_started(store, started->exchange);
        hfi_free(started);
        pthread_mutex_lock(&store->mutex);
    }
    pthread_mutex_unlock(&store->mutex);
}

static void scripted_dismiss(void *memory)
{
    struct scripted_store *store = memory;
    pthread_mutex_lock(&store->mutex);
    store->dismissed = true;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->mutex);
}

static const struct hfi_engine engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "scripted",
    .schemes = "scripted:",
    .summary = "does what a test says",
    .caps = HF_CAP_EXPIRY | HF_CAP_ONCE,
    .store_size = sizeof(struct scripted_store),
    .lock_size = sizeof(struct scripted_lock) + 1, /* of no round size, as it may be */
    .open = scripted_open,
    .close = scripted_close,
    .attempt = scripted_attempt,
    .renew = scripted_renew,
    .release = scripted_release,
    .start = scripted_start,
    .attend = scripted_attend,
    .dismiss = scripted_dismiss,
};

hf_client *scripted_client(uint32_t timeout_ms)
{
    return scripted_line_client(timeout_ms, 0);
}

hf_client *scripted_line_client(uint32_t timeout_ms, int64_t handoff_ms)
{
    const struct hfi_url url = { "scripted", "" };
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_error err;
    options.timeout_ms = timeout_ms;
    options.handoff_ms = handoff_ms;
    REQUIRE_STATUS(HF_OK, hfi_open_engine(&client, &engine, &url, "scripted:", &options, &err), &err);
    return client;
}
