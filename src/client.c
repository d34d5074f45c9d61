/* SPDX-License-Identifier: MIT
 *
 * client.c: opening and closing a client.
 */
#include "core.h"
#include "waker.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* More than any lease lasts, and little enough to reckon with. */
#define HANDOFF_MOST_MS INT64_C(86400000)

void hfi_client_lock(hf_client *client)
{
    pthread_mutex_lock(&client->mutex);
}

void hfi_client_enter(hf_client *client)
{
    client->busy++;
}

void hfi_client_leave(hf_client *client)
{
    if (--client->busy == 0 && client->closing)
        pthread_cond_broadcast(&client->changed);
}

static void destroy(hf_client *client)
{
    for (struct hfi_hold *hold = client->free_holds, *next; hold; hold = next) {
        next = hold->next_in_bucket;
        hfi_free(hold);
    }
    for (hf_lock *handle = client->free_locks, *next; handle; handle = next) {
        next = handle->next;
        hfi_free(handle);
    }
    pthread_cond_destroy(&client->work);
    pthread_cond_destroy(&client->exchange);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->mutex);
    hfi_free(client->last_trouble); /* nobody else has them any more */
    hfi_free(client->last_why);
    hfi_free(client->serials);
    hfi_free(client->buckets);
    hfi_free(client->url);
    hfi_free(client);
}

void hfi_client_unlock(hf_client *client)
{
    const bool last = client->references == 0;
    pthread_mutex_unlock(&client->mutex);
    if (last)
        destroy(client);
}

/* --- open --- */

static hf_status open_store(hf_client *client, const struct hfi_url *split, const char *url, hf_error *err)
{
    client->store = hfi_alloc(client->engine->store_size);
    if (!client->store)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    struct hfi_opened opened = { .caps = client->engine->caps };
    hf_error trouble = { .message = "" };
    hf_status status = client->engine->open(client->store, split, &client->env, &opened, &trouble);
    hfi_pass_on(status, &trouble, err);
    client->url = opened.shown;
    client->caps = opened.caps;
    client->starts = opened.starts;
    if (!opened.reserves)
        client->handoff_ns = 0;
    if (status == HF_OK && !client->url)
        client->url = hfi_url_without_password(url);
    if (status == HF_OK && !client->url)
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    if (status != HF_OK) {
        client->engine->close(client->store);
        hfi_free(client->store);
    }
    return status;
}

static hf_status read_options(hf_client_options *out, const hf_client_options *in, hf_error *err)
{
    const hf_client_options defaults = HF_CLIENT_OPTIONS_INIT;
    *out = defaults;
    if (!in)
        return HF_OK;
    if (!hfi_options_copy(out, sizeof *out, in, in->size))
        return hfi_fail(err, HF_INVALID, 0,
                        "the client options are not from HF_CLIENT_OPTIONS_INIT, or newer than this library");
    return HF_OK;
}

hf_status hfi_open_engine(hf_client **out, const struct hfi_engine *engine, const struct hfi_url *split,
                          const char *url, const hf_client_options *user_options, hf_error *err)
{
    hf_client_options options;
    hf_status status = read_options(&options, user_options, err);
    if (status != HF_OK)
        return status;
    hf_client *client = hfi_alloc(sizeof *client);
    if (!client)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    client->engine = engine;
    client->generation = hfi_generation;
    client->references = 1;
    client->timeout_ns = (options.timeout_ms ? options.timeout_ms : HFI_DEFAULT_TIMEOUT_MS) * HFI_MS;
    const int64_t handoff_ms = options.handoff_ms ? options.handoff_ms : HFI_DEFAULT_HANDOFF_MS;
    client->handoff_ns = handoff_ms < 0 ? 0 : (handoff_ms < HANDOFF_MOST_MS ? handoff_ms : HANDOFF_MOST_MS) * HFI_MS;
    client->env = (struct hfi_env){
        .client = hfi_random(),
        .timeout_ns = client->timeout_ns,
        .now_ns = hfi_now_ns,
        .random = hfi_random,
        .lost = hfi_keeper_lost,
        .recheck = hfi_keeper_recheck,
        .core = client,
    };
    pthread_mutex_init(&client->mutex, NULL);
    pthread_cond_init(&client->changed, NULL);
    pthread_cond_init(&client->exchange, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&client->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    client->events_fd = -1;
    status = open_store(client, split, url, err);
    if (status != HF_OK) {
        destroy(client);
        return status;
    }
    *out = client;
    return HF_OK;
}

hf_status hf_open(hf_client **out, const char *url, const hf_client_options *options, hf_error *err)
{
    char scheme[32];
    struct hfi_url split = { .scheme = scheme };
    const struct hfi_engine *engine;
    *out = NULL;
    const char *named = secure_getenv("HOLDFAST_URL");
    if (!url)
        url = named ? named : "file:";
    /* Most likely an unset variable of a script: the default store would be the wrong one. */
    if (!*url)
        return hfi_fail(err, HF_INVALID, 0, "%s is empty", url == named ? "HOLDFAST_URL" : "the URL");
    hf_status status = hfi_url_split(scheme, &split.rest, url, err);
    if (status == HF_OK)
        status = hfi_registry_find(&engine, scheme, err);
    return status == HF_OK ? hfi_open_engine(out, engine, &split, url, options, err) : status;
}

/* --- close --- */

/* From now on no call begins to use the store, and those that do are waited for. */
static void shut(hf_client *client)
{
    client->closing = true;
    client->close_by_ns = hfi_now_ns() + client->timeout_ns;
    /* A hf_release() that comes now finds its lock ended, and keeps its hands off the engine. */
    for (struct hfi_hold *hold = hfi_hold_after(client, NULL); hold; hold = hfi_hold_after(client, hold)) {
        if (hold->state == HFI_HOLD_HELD)
            hfi_hold_lose(hold, "its client was closed");
    }
    for (struct hfi_wait *wait = client->waits; wait; wait = wait->next)
        hfi_wait_cancel(wait);
    hfi_line_cancel_all(client);
    hfi_operations_cancel(client, NULL);
    while (client->under_way > 0) /* they end by their deadlines; runners may have to go on with them */
        pthread_cond_wait(&client->changed, &client->mutex);
    hfi_runners_stop(client);
    while (client->busy > 0)
        pthread_cond_wait(&client->changed, &client->mutex);
    hfi_attendant_stop(client);
}

/* Pins all of them: while the mutex is let go they must stay in the list; and until its close() an engine may know of
 * those whose release has failed. */
static void release_all(hf_client *client)
{
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    for (struct hfi_hold *hold = hfi_hold_after(client, NULL); hold; hold = hfi_hold_after(client, hold))
        hold->pins++;
    for (struct hfi_hold *hold = hfi_hold_after(client, NULL); hold; hold = hfi_hold_after(client, hold)) {
        const hfi_time left = deadline - hfi_now_ns();
        hfi_undo(hold, left > 0 ? left : 0, NULL);
    }
}

static void settle_all(hf_client *client)
{
    for (struct hfi_hold *hold = hfi_hold_after(client, NULL), *next; hold; hold = next) {
        next = hfi_hold_after(client, hold);
        hfi_undo_end(hold);
        hfi_hold_unpin(hold);
        hfi_hold_settle(hold);
    }
}

void hf_close(hf_client *client)
{
    /* In a forked child the threads, connections and locks are the parent's: hands off. */
    if (!client || client->generation != hfi_generation)
        return;
    hfi_client_lock(client);
    shut(client);
    hfi_keeper_stop(client);
    release_all(client);
    pthread_mutex_unlock(&client->mutex); /* operations are woken with an engine's mutex: never the other way round */
    client->engine->close(client->store);
    pthread_mutex_lock(&client->mutex);
    hfi_free(client->store);
    settle_all(client);
    hfi_events_close(client);
    for (struct hfi_waker *waker; (waker = client->free_wakers) != NULL;) {
        client->free_wakers = waker->next;
        hfi_waker_free(waker);
    }
    client->references--;
    hfi_client_unlock(client);
}

uint32_t hf_capabilities(const hf_client *client)
{
    return client->caps;
}

const char *hf_url(const hf_client *client)
{
    return client->url;
}
