/* SPDX-License-Identifier: MIT
 *
 * redis.c: machines that share one Redis (6 or newer) or Valkey server, in Holdfast's own dialect.
 *
 * What ends a grant:  release(), or its time-to-live by the server's clock.
 * Who counts time:    the server; the core keeps an earlier deadline of its own.
 * Exchanges:          one script each, see redis_script.c: acquire, release, renew (many at once), evict, look.
 * Waiting:            the release script hands the lock to the first live waiter and publishes to its client.
 * Token:              the larger of last + 1 and the server's microseconds.
 * Cannot promise:     what the server forgets, by a crash without appendfsync always or by a failover; replicas=N
 *                     narrows the gap. A clock that is set forward ends locks early: exclusion is lost then, while the
 *                     tokens still grow.
 *
 * A gift is not an answer to a request: a waiter that was paused may read it long after it has ended. How far the gift
 * is to be trusted is reckoned from the last answered request, see is_fresh(); in doubt the waiter asks.
 */
#include "redis.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Two clocks may run apart by a hundredth; after a minute that is too much beside the claim time. */
#define TRUSTED_WAIT (60 * HFI_SECOND)
#define CLAIM_NS (HFI_REDIS_CLAIM_MS * HFI_MS)
/* When the holder's time is over its first waiter asks, and the others after it, should it be dead. */
#define BACKSTOP_FIRST (10 * HFI_MS)
#define BACKSTOP_STEP (20 * HFI_MS)

/* --- open and close --- */

static hf_status redis_open(void *memory, const struct hfi_url *url, const struct hfi_env *env, char **shown,
                            hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_connection *connection = NULL;
    char host[65] = "";
    (void)shown;
    store->env = env;
    pthread_mutex_init(&store->mutex, NULL);
    hfi_redis_scripts_init(&store->scripts);
    gethostname(host, sizeof host - 1);
    snprintf(store->who, sizeof store->who, "%s %d", host, (int)getpid());
    hf_status status = hfi_redis_config_read(&store->config, url, err);
    if (status == HF_OK && store->config.tls)
        status = hfi_redis_tls_new(&store->tls, &store->config, err);
    if (status == HF_OK)
        status = hfi_redis_borrow(store, &connection, env->now_ns() + env->timeout_ns, err);
    if (status == HF_OK) {
        connection->used_ns = env->now_ns();
        hfi_redis_give_back(store, connection);
    }
    return status;
}

static void redis_close(void *memory)
{
    struct redis_store *store = memory;
    hfi_redis_disconnect(store->ear);
    for (struct redis_connection *next; store->idle; store->idle = next) {
        next = store->idle->next;
        hfi_redis_disconnect(store->idle);
    }
    SSL_CTX_free(store->tls);
    hfi_redis_config_free(&store->config);
    pthread_mutex_destroy(&store->mutex);
}

/* --- asking --- */

/* The words of a request that its command points to. */
struct words {
    char key[HFI_REDIS_KEY_MAX], queue[HFI_REDIS_KEY_MAX + 2];
    char owner[40];
    char info[256];
    char ttl[16];
    char replicas[16], patience[16];
};

static void add_common(struct redis_command *command, struct words *words, const struct redis_store *store,
                       const struct hfi_request *request)
{
    command->count = 0;
    hfi_redis_keys(words->key, words->queue, store, request->name);
    hfi_redis_owner(words->owner, request->owner);
    snprintf(words->info, sizeof words->info, "%s %s", store->who, request->note);
    hfi_redis_add(command, "2");
    hfi_redis_add(command, words->key);
    hfi_redis_add(command, words->queue);
    hfi_redis_add(command, words->owner);
    hfi_redis_add(command, words->info);
}

/* WAIT or WAITAOF behind the script, in the same write; NULL if the URL asks for neither. */
static const struct redis_command *replication(struct redis_command *command, struct words *words,
                                               const struct redis_config *config)
{
    if (!config->replicas && !config->fsync)
        return NULL;
    command->count = 0;
    snprintf(words->replicas, sizeof words->replicas, "%d", config->replicas);
    snprintf(words->patience, sizeof words->patience, "%d", config->replica_ms);
    hfi_redis_add(command, config->fsync ? "WAITAOF" : "WAIT");
    if (config->fsync)
        hfi_redis_add(command, "1");
    hfi_redis_add(command, words->replicas);
    hfi_redis_add(command, words->patience);
    return command;
}

/* HF_OK: as many replicas as the URL asks for have it. */
static hf_status check_replication(const redisReply *reply, const struct redis_config *config, hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return hfi_redis_refusal(reply, "", err);
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer >= config->replicas)
        return HF_OK;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[0]->integer >= 1 &&
        reply->element[1]->integer >= config->replicas)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE, 0, "fewer than %d replicas, or no disk, confirmed the lock within %d ms",
                    config->replicas, config->replica_ms);
}

static hf_status take_busy(struct redis_store *store, struct redis_lock *lock, const redisReply *reply,
                           struct hfi_grant *grant, hf_error *err)
{
    static const int types[5] = { REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER,
                                  REDIS_REPLY_STRING };
    for (size_t i = 0; i < 5; i++) {
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 5 || reply->element[i]->type != types[i])
            return hfi_redis_refusal(reply, "", err);
    }
    const int64_t left_ms = reply->element[2]->integer;
    const int64_t place = reply->element[3]->integer;
    char host[65] = "", pid[24] = "";
    if (sscanf(reply->element[4]->str, "%*s %*s %64s %23s", host, pid) == 2) /* "s us host pid note" */
        snprintf(grant->holder, sizeof grant->holder, "%s:%s", host, pid);
    grant->holder_left_ms = left_ms;
    lock->queued = place >= 0;
    lock->server_us = reply->element[1]->integer;
    const hfi_time spread = BACKSTOP_FIRST + (place > 0 ? place : 0) * BACKSTOP_STEP;
    lock->ask_again_ns = store->env->now_ns() + (left_ms > 0 ? left_ms * HFI_MS : 0) + spread +
                         (hfi_time)(store->env->random() % (uint64_t)BACKSTOP_STEP);
    return HF_BUSY;
}

static hf_status redis_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);

static hf_status take_answer(struct redis_store *store, struct redis_lock *lock, redisReply **replies, bool waited,
                             struct hfi_grant *grant, hf_error *err)
{
    if (replies[0]->type != REDIS_REPLY_INTEGER)
        return take_busy(store, lock, replies[0], grant, err);
    hfi_redis_expect_no_more(store, lock, REDIS_HELD);
    lock->queued = false;
    grant->token = (uint64_t)replies[0]->integer;
    return waited ? check_replication(replies[1], &store->config, err) : HF_OK;
}

static hf_status ask(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                     bool line_up, struct hfi_grant *grant, hf_error *err)
{
    struct words words;
    struct redis_command command, behind_memory;
    redisReply *replies[2] = { NULL, NULL };
    add_common(&command, &words, store, request);
    snprintf(words.ttl, sizeof words.ttl, "%u", request->ttl_ms);
    hfi_redis_add(&command, words.ttl);
    hfi_redis_add(&command, line_up ? "1" : "0");
    const struct redis_command *behind = replication(&behind_memory, &words, &store->config);
    struct redis_question question = {
        .script = &store->scripts.acquire, .arguments = &command, .behind = behind, .deadline_ns = request->deadline_ns
    };
    hf_status status = hfi_redis_ask(store, &question, replies, err);
    if (status == HF_UNKNOWN)
        lock->unsure = true;
    if (status != HF_OK)
        return status;
    lock->unsure = false;
    lock->sent_ns = question.sent_ns;
    if (replies[0]->type == REDIS_REPLY_ERROR)
        status = hfi_redis_refusal(replies[0], words.key, err);
    else
        status = take_answer(store, lock, replies, behind != NULL, grant, err);
    if (status == HF_OK)
        grant->counted_from_ns = lock->sent_ns;
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
    if (status != HF_OK && lock->state == REDIS_HELD) /* too few replicas have it: nobody may rely on it */
        redis_release(store, lock, request, NULL);
    return status;
}

/* A gift made at server time G, of which we know that server time T was not before our time s: it lasts until
 * s + (G - T) + claim, less what clocks may run apart. If that is near, or cannot be reckoned, the waiter must ask. */
static bool is_fresh(const struct redis_store *store, const struct redis_lock *lock, struct hfi_grant *grant)
{
    const hfi_time now = store->env->now_ns();
    const hfi_time waited = now - lock->sent_ns;
    const hfi_time between = (lock->given_us - lock->server_us) * 1000;
    if (store->config.replicas || store->config.fsync || waited > TRUSTED_WAIT || between < 0 || between > waited)
        return false;
    grant->counted_from_ns = lock->sent_ns + between - between / 100;
    grant->valid_ms = HFI_REDIS_CLAIM_MS;
    grant->token = lock->token;
    return grant->counted_from_ns + CLAIM_NS / 2 > now;
}

static hf_status redis_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                               struct hfi_grant *grant, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_lock *lock = lock_memory;
    pthread_mutex_lock(&store->mutex);
    const bool given = lock->state == REDIS_GIVEN;
    pthread_mutex_unlock(&store->mutex);
    if (given && is_fresh(store, lock, grant)) {
        hfi_redis_expect_no_more(store, lock, REDIS_HELD);
        lock->queued = false;
        return HF_OK;
    }
    if (given) /* too old to be believed: only what comes from now on counts */
        hfi_redis_expect_no_more(store, lock, REDIS_NEW);
    grant->valid_ms = 0;
    /* Whoever lines up without being able to hear would be taken for dead, and skipped. */
    const bool line_up = request->queue && hfi_redis_expect(store, lock, request->owner);
    return ask(store, lock, request, line_up, grant, err);
}

static hf_status redis_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_lock *lock = lock_memory;
    if (!lock->queued) {
        uint64_t number;
        const hfi_time limit = store->env->now_ns() + store->env->timeout_ns;
        const hfi_time deadline = limit < request->deadline_ns ? limit : request->deadline_ns;
        const hf_status status = hfi_redis_subscribe(store, &number, deadline, err);
        /* Then ask again, for a place in the queue. A wait that was too short for that is over, and nothing else. */
        return status == HF_UNAVAILABLE && store->env->now_ns() >= request->deadline_ns ? HF_TIMEOUT : status;
    }
    const bool ask_again = lock->ask_again_ns < request->deadline_ns;
    const bool news =
        hfi_redis_listen(store, lock, request->waker, ask_again ? lock->ask_again_ns : request->deadline_ns);
    return news || ask_again ? HF_OK : HF_TIMEOUT;
}

/* --- giving back and keeping --- */

static hf_status redis_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_lock *lock = lock_memory;
    struct words words;
    struct redis_command command;
    redisReply *reply = NULL;
    const bool was_held = lock->state == REDIS_HELD;
    const bool known = was_held || lock->queued || lock->unsure;
    if (!was_held)
        hfi_redis_expect_no_more(store, lock, REDIS_NEW);
    if (!known)
        return HF_OK;
    add_common(&command, &words, store, request);
    struct redis_question question = { .script = &store->scripts.release,
                                       .arguments = &command,
                                       .deadline_ns = request->deadline_ns };
    hf_status status = hfi_redis_ask(store, &question, &reply, err);
    if (status != HF_OK)
        return status;
    if (reply->type != REDIS_REPLY_INTEGER)
        status = hfi_redis_refusal(reply, words.key, err);
    else if (reply->integer == 0 && was_held)
        status = hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    freeReplyObject(reply);
    if (status == HF_OK || status == HF_LOST) {
        lock->state = REDIS_NEW;
        lock->queued = lock->unsure = false;
    }
    return status;
}

static hf_status redis_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                             hf_error *err)
{
    enum { MOST = 128 };
    struct redis_store *store = memory;
    struct redis_command command = { .count = 0 };
    redisReply *reply = NULL;
    char keys[MOST][HFI_REDIS_KEY_MAX], owners[MOST][40], ttls[MOST][16];
    char queue[HFI_REDIS_KEY_MAX + 2], number[16];
    if (count > MOST)
        return hfi_fail(err, HF_INTERNAL, 0, "a renewal of %zu locks is too large", count);
    snprintf(number, sizeof number, "%zu", count);
    hfi_redis_add(&command, number);
    for (size_t i = 0; i < count; i++) {
        hfi_redis_keys(keys[i], queue, store, renewals[i].name);
        hfi_redis_add(&command, keys[i]);
    }
    for (size_t i = 0; i < count; i++) {
        hfi_redis_owner(owners[i], renewals[i].owner);
        snprintf(ttls[i], sizeof ttls[i], "%u", renewals[i].ttl_ms);
        hfi_redis_add(&command, owners[i]);
        hfi_redis_add(&command, ttls[i]);
    }
    struct redis_question question = { .script = &store->scripts.renew,
                                       .arguments = &command,
                                       .deadline_ns = deadline_ns };
    hf_status status = hfi_redis_ask(store, &question, &reply, err);
    if (status != HF_OK)
        return status;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != count)
        status = hfi_redis_refusal(reply, keys[0], err);
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        renewals[i].status = reply->element[i]->integer == 1 ? HF_OK : HF_LOST;
        renewals[i].counted_from_ns = question.sent_ns;
    }
    freeReplyObject(reply);
    return status;
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "redis",
    .schemes = "redis:, rediss:, redis+unix:",
    .summary = "machines that share a Redis or Valkey server",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK,
    .store_size = sizeof(struct redis_store),
    .lock_size = sizeof(struct redis_lock),
    .open = redis_open,
    .close = redis_close,
    .attempt = redis_attempt,
    .wait = redis_wait,
    .renew = redis_renew,
    .release = redis_release,
    .inspect = hfi_redis_inspect,
    .evict = hfi_redis_evict,
};
