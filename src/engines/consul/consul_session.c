/* SPDX-License-Identifier: MIT
 *
 * consul_session.c: sessions. All locks of a client that have the same time-to-live share one; it ends when it is not
 * renewed, and everything that it holds is deleted with it.
 *
 * A session has a key of its own, P/.holdfast/ID. Every transaction that takes something checks its index, so that once
 * the key was written anew, requests that were sent before can do nothing any more, however late they arrive: that is
 * how a lost answer is settled. It is also what the client listens to: the key goes with the session, and whoever
 * breaks a lock touches it.
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What Consul has for session_ttl_min if nobody has changed it, and the most that it takes. */
#define USUAL_LEAST_TTL_MS 10000
#define MOST_TTL_MS 86400000
/* How long close() waits for a server that has answered so far; the session ends without it too. */
#define FAREWELL (500 * HFI_MS)

void hfi_consul_session_key(char out[HFI_CONSUL_KEY_MAX], const struct consul_store *store, const char *id)
{
    snprintf(out, HFI_CONSUL_KEY_MAX, "%s/.holdfast/%s", store->config.prefix, id);
}

/* --- renewal --- */

/* A session lasts an eighth longer than its locks: one that was renewed within that eighth gives a lock all of its time
 * without another exchange. */
static uint32_t session_ttl_ms(const struct consul_store *store, uint32_t ttl_ms)
{
    const uint32_t longer = ttl_ms > MOST_TTL_MS ? MOST_TTL_MS : ttl_ms + ttl_ms / 8;
    const uint32_t most = longer > MOST_TTL_MS ? MOST_TTL_MS : longer;
    return most < store->least_ttl_ms ? store->least_ttl_ms : most;
}

/* At a quarter: the core asks at a third, and is answered from here. */
void hfi_consul_session_renewed(struct consul_store *store, struct consul_session *session, hfi_time sent_ns)
{
    if (sent_ns > session->renewed_ns)
        session->renewed_ns = sent_ns;
    session->suspect = false;
    session->renew_at_ns = session->renewed_ns + session->ttl_ms * HFI_MS / 4;
    hfi_consul_push_arm(store);
}

void hfi_consul_session_suspect(struct consul_store *store, struct consul_session *session)
{
    session->suspect = true;
    store->doubt = store->doubt || session->users > 0;
    hfi_consul_push_arm(store);
}

static void set_dead(struct consul_store *store, struct consul_session *session)
{
    if (!session->dead)
        hfi_consul_session_suspect(store, session);
    session->dead = true;
}

bool hfi_consul_session_is_fresh(struct consul_store *store, const struct consul_session *session)
{
    pthread_mutex_lock(&store->mutex);
    const hfi_time age = store->env->now_ns() - session->renewed_ns;
    const bool fresh = !session->suspect && age < session->ttl_ms * HFI_MS / 9;
    pthread_mutex_unlock(&store->mutex);
    return fresh;
}

hf_status hfi_consul_session_renew_begin(struct consul_store *store, struct consul_session *session,
                                         struct consul_exchange *exchange, hf_error *err)
{
    char path[80];
    snprintf(path, sizeof path, "/v1/session/renew/%s", session->id);
    const struct consul_request request = { .method = "PUT", .path = path };
    return hfi_consul_begin(store, exchange, &request, err);
}

hf_status hfi_consul_session_renew_end(struct consul_store *store, struct consul_session *session,
                                       struct consul_exchange *exchange, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = hfi_consul_finish(store, exchange, deadline_ns, err);
    if (status == HF_TIMEOUT || status == HF_UNKNOWN)
        status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server did not answer when a session was renewed");
    const bool unknown = status == HF_OK && exchange->reply->status == 404;
    if (unknown)
        status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server does not know the session");
    else if (status == HF_OK && exchange->reply->status != 200)
        status = hfi_consul_refusal(store, exchange->reply, false, err);
    const hfi_time sent_ns = exchange->begun_ns;
    hfi_consul_end(store, exchange);
    if (status == HF_OK) {
        pthread_mutex_lock(&store->mutex);
        hfi_consul_session_renewed(store, session, sent_ns);
        pthread_mutex_unlock(&store->mutex);
    }
    /* A leader that was just elected may not know it yet, and it would go on to hold what nobody would release. */
    if (unknown && hfi_consul_session_check(store, session, deadline_ns, NULL) == HF_LOST)
        status = hfi_fail(err, HF_LOST, 0, "the session has ended");
    return status;
}

hf_status hfi_consul_session_keep(struct consul_store *store, struct consul_session *session, hfi_time deadline_ns,
                                  hf_error *err)
{
    struct consul_exchange exchange = { 0 };
    pthread_mutex_lock(&store->mutex);
    const bool dead = session->dead;
    pthread_mutex_unlock(&store->mutex);
    if (dead)
        return hfi_fail(err, HF_LOST, 0, "the session has ended");
    if (hfi_consul_session_is_fresh(store, session))
        return HF_OK;
    const hf_status status = hfi_consul_session_renew_begin(store, session, &exchange, err);
    return status == HF_OK ? hfi_consul_session_renew_end(store, session, &exchange, deadline_ns, err) : status;
}

void hfi_consul_session_count(struct consul_store *store, const struct consul_session *session, uint32_t ttl_ms,
                              hfi_time *counted_from_ns, uint32_t *valid_ms)
{
    pthread_mutex_lock(&store->mutex);
    hfi_time latest = session->renewed_ns;
    pthread_mutex_unlock(&store->mutex);
    if (ttl_ms > session->ttl_ms)
        *valid_ms = session->ttl_ms;
    else
        latest += (session->ttl_ms - ttl_ms) * HFI_MS;
    if (latest < *counted_from_ns)
        *counted_from_ns = latest;
}

/* --- making one --- */

uint32_t hfi_consul_read_duration_ms(const char *text)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = { { "ms", 1 }, { "h", 3600000 }, { "m", 60000 }, { "s", 1000 } };
    double sum = 0;
    while (*text >= '0' && *text <= '9') {
        char *end;
        const double number = strtod(text, &end);
        size_t i = 0;
        while (i < 4 && strncmp(end, units[i].unit, strlen(units[i].unit)) != 0)
            i++;
        if (i == 4)
            break;
        sum += number * units[i].ms;
        text = end + strlen(units[i].unit);
    }
    return sum < MOST_TTL_MS ? (uint32_t)sum : MOST_TTL_MS;
}

/* "Invalid Session TTL '100000000', must be between [10s=24h0m0s]" */
static uint32_t least_ttl_ms(const struct consul_reply *reply)
{
    const char *words = reply->status >= 400 ? strstr(reply->body, "Invalid Session TTL") : NULL;
    const char *bracket = words ? strchr(words, '[') : NULL;
    if (!words)
        return 0;
    const uint32_t least = bracket ? hfi_consul_read_duration_ms(bracket + 1) : 0;
    return least ? least : USUAL_LEAST_TTL_MS;
}

/* HF_INVALID: the time-to-live was too short for the server; *least_ms is how long it must be. */
static hf_status create(struct consul_store *store, struct consul_session *session, uint32_t *least_ms,
                        hfi_time deadline_ns, hf_error *err)
{
    struct consul_exchange exchange = { 0 };
    char body[300];
    /* No checks: they would end the session before its time, and nobody could tell its holder so in time. */
    snprintf(body, sizeof body,
             "{\"Name\":\"holdfast %s:%d\",\"TTL\":\"%" PRIu32 "ms\",\"LockDelay\":\"%" PRIu32
             "ms\",\"Behavior\":\"delete\",\"NodeChecks\":[],\"Checks\":[]}",
             store->host, store->pid, session->ttl_ms, store->config.lock_delay_ms);
    const struct consul_request request = { .method = "PUT", .path = "/v1/session/create", .body = body };
    hf_status status = hfi_consul_ask(store, &exchange, &request, deadline_ns, err);
    if (status == HF_UNKNOWN) /* nothing but a session that nobody uses, and that ends by itself */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the server did not answer when a session was made");
    if (status != HF_OK)
        return status;
    *least_ms = least_ttl_ms(exchange.reply);
    if (*least_ms) {
        status = HF_INVALID;
    } else if (exchange.reply->status != 200) {
        status = hfi_consul_refusal(store, exchange.reply, false, err);
    } else {
        json_t *root = json_loadb(exchange.reply->body, exchange.reply->length, 0, NULL);
        const char *id = json_string_value(json_object_get(root, "ID"));
        if (id && strlen(id) < sizeof session->id)
            memcpy(session->id, id, strlen(id));
        else
            status = hfi_fail(err, HF_INTERNAL, 0, "the server made a session without a name");
        json_decref(root);
    }
    session->renewed_ns = exchange.begun_ns;
    hfi_consul_end(store, &exchange);
    return status;
}

/* Writes the session's own key anew; HF_LOST: the session is gone. */
static hf_status write_key(struct consul_store *store, struct consul_session *session, hfi_time deadline_ns,
                           hf_error *err)
{
    char key[HFI_CONSUL_KEY_MAX], value[HFI_CONSUL_VALUE_MAX];
    struct consul_answer answer;
    struct consul_entry entry = { .modified = 0 };
    hfi_consul_session_key(key, store, session->id);
    /* Another value each time, or the server would leave everything as it is. */
    snprintf(value, sizeof value, "%016" PRIx64 " %s %d", store->env->random(), store->host, store->pid);
    const struct consul_operation lock = { .verb = "lock", .key = key, .session = session->id, .value = value };
    hf_status status = hfi_consul_txn(store, &lock, 1, &answer, deadline_ns, err);
    if (status != HF_OK) {
        if (status == HF_UNKNOWN && err)
            err->status = HF_UNAVAILABLE;
        return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
    }
    if (answer.no_session)
        status = hfi_fail(err, HF_LOST, 0, "the session has ended");
    else if (answer.failed || !hfi_consul_entry(&answer, 0, &entry))
        status = hfi_fail(err, HF_UNAVAILABLE, 0, "another program has taken the key %.120s", key);
    pthread_mutex_lock(&store->mutex);
    if (status == HF_OK && entry.modified > session->fence)
        session->fence = entry.modified;
    if (status == HF_OK && session->listen_at_ns == HFI_NEVER && !session->listener.exchange.connection)
        session->listen_at_ns = 0; /* it was gone, and nobody listened to it any more */
    if (status == HF_LOST)
        set_dead(store, session);
    pthread_mutex_unlock(&store->mutex);
    hfi_consul_answer_free(&answer);
    return status;
}

/* Until it is there, nobody but its maker uses it. */
static hf_status make(struct consul_store *store, struct consul_session *session, hfi_time deadline_ns, hf_error *err)
{
    uint32_t least_ms = 0;
    hf_status status = create(store, session, &least_ms, deadline_ns, err);
    if (status == HF_INVALID && least_ms > session->ttl_ms) {
        pthread_mutex_lock(&store->mutex);
        session->ttl_ms = least_ms;
        store->least_ttl_ms = least_ms;
        pthread_mutex_unlock(&store->mutex);
        status = create(store, session, &least_ms, deadline_ns, err);
    }
    if (status == HF_INVALID)
        status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server takes no session with a time-to-live of %" PRIu32 " ms",
                          session->ttl_ms);
    if (status == HF_OK)
        status = write_key(store, session, deadline_ns, err);
    return status == HF_LOST ? hfi_fail(err, HF_UNAVAILABLE, 0, "the session has ended") : status;
}

/* --- the list --- */

/* Out of the list and freed; with the mutex. */
static void forget(struct consul_store *store, struct consul_session **link)
{
    struct consul_session *session = *link;
    *link = session->next;
    hfi_consul_call_end(store, &session->renewal);
    hfi_consul_call_end(store, &session->listener);
    hfi_free(session);
}

/* The one for this time-to-live, or NULL; on the way, forgets those that have ended and that nobody uses. */
static struct consul_session *find(struct consul_store *store, uint32_t ttl_ms)
{
    struct consul_session *found = NULL;
    const hfi_time now = store->env->now_ns();
    for (struct consul_session **link = &store->sessions; *link;) {
        struct consul_session *session = *link;
        const bool unused = session->users == 0 && session->refused == 0;
        if (unused && (session->dead || now - session->renewed_ns > 2 * session->ttl_ms * HFI_MS)) {
            forget(store, link);
            continue;
        }
        if (session->ttl_ms == ttl_ms && !session->dead && session->refused == 0)
            found = session;
        link = &session->next;
    }
    return found;
}

/* Waits until another thread has made what it makes. False: the deadline. With the mutex. */
static bool await_change(struct consul_store *store, hfi_time deadline_ns)
{
    struct timespec until;
    const hfi_time left = deadline_ns - store->env->now_ns();
    if (left <= 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const hfi_time at = until.tv_sec * HFI_SECOND + until.tv_nsec + left;
    until = (struct timespec){ .tv_sec = at / HFI_SECOND, .tv_nsec = at % HFI_SECOND };
    pthread_cond_clockwait(&store->changed, &store->mutex, CLOCK_MONOTONIC, &until);
    return true;
}

static hf_status make_listed(struct consul_store *store, uint32_t ttl_ms, struct consul_session **out,
                             hfi_time deadline_ns, hf_error *err)
{
    struct consul_session *session = hfi_alloc(sizeof *session);
    if (!session)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a session");
    session->ttl_ms = ttl_ms;
    session->users = 1;
    session->making = true;
    session->next = store->sessions;
    store->sessions = session;
    pthread_mutex_unlock(&store->mutex);
    const hf_status status = make(store, session, deadline_ns, err);
    pthread_mutex_lock(&store->mutex);
    session->making = false;
    pthread_cond_broadcast(&store->changed);
    if (status == HF_OK) {
        hfi_consul_session_renewed(store, session, session->renewed_ns);
        *out = session;
        return HF_OK;
    }
    struct consul_session **link = &store->sessions;
    while (*link != session)
        link = &(*link)->next;
    forget(store, link);
    return status;
}

hf_status hfi_consul_session_get(struct consul_store *store, uint32_t ttl_ms, struct consul_session **out,
                                 hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_TIMEOUT;
    pthread_mutex_lock(&store->mutex);
    do {
        const uint32_t wanted = session_ttl_ms(store, ttl_ms);
        struct consul_session *session = find(store, wanted);
        if (!session) {
            status = make_listed(store, wanted, out, deadline_ns, err);
        } else if (!session->making) {
            if (session->users++ == 0) /* it was not renewed as long as nobody needed it */
                hfi_consul_push_arm(store);
            *out = session;
            status = HF_OK;
        } else if (!await_change(store, deadline_ns)) {
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server did not answer when a session was made");
        }
    } while (status == HF_TIMEOUT);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

void hfi_consul_session_put(struct consul_store *store, struct consul_session *session)
{
    pthread_mutex_lock(&store->mutex);
    session->users--;
    pthread_mutex_unlock(&store->mutex);
}

/* --- when a fence does not hold --- */

hf_status hfi_consul_session_check(struct consul_store *store, struct consul_session *session, hfi_time deadline_ns,
                                   hf_error *err)
{
    char key[HFI_CONSUL_KEY_MAX];
    struct consul_answer answer;
    struct consul_entry entry;
    hfi_consul_session_key(key, store, session->id);
    const struct consul_operation look = { .verb = "get-tree", .key = key };
    hf_status status = hfi_consul_txn(store, &look, 1, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const bool there = hfi_consul_entries(&answer) == 1 && hfi_consul_entry(&answer, 0, &entry) &&
                       strcmp(entry.session, session->id) == 0;
    if (there) { /* it was written anew by another thread, or by whoever broke a lock */
        pthread_mutex_lock(&store->mutex);
        if (entry.modified > session->fence)
            session->fence = entry.modified;
        pthread_mutex_unlock(&store->mutex);
    }
    hfi_consul_answer_free(&answer);
    return there ? HF_OK : write_key(store, session, deadline_ns, err);
}

/* --- the end --- */

static void destroy(struct consul_store *store, const struct consul_session *session)
{
    char path[80];
    struct consul_exchange exchange = { 0 };
    snprintf(path, sizeof path, "/v1/session/destroy/%s", session->id);
    const struct consul_request request = { .method = "PUT", .path = path };
    if (hfi_consul_ask(store, &exchange, &request, store->env->now_ns() + FAREWELL, NULL) == HF_OK)
        hfi_consul_end(store, &exchange);
}

void hfi_consul_sessions_close(struct consul_store *store)
{
    while (store->sessions) {
        /* A server that does not answer is not asked: the session ends by its time-to-live. */
        if (!store->sessions->dead && store->answers)
            destroy(store, store->sessions);
        pthread_mutex_lock(&store->mutex);
        forget(store, &store->sessions);
        pthread_mutex_unlock(&store->mutex);
    }
}
