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
/* However long the holder's time, and however long the queue: should the first ten be dead, the rest ask together. */
#define BACKSTOP_MOST INT64_C(86400000)
#define PLACE_MOST INT64_C(10)

#define NO_PLACE_PAUSE (50 * HFI_MS)

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

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
    char replicas[16], patience[24];
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
                                               const struct redis_config *config, hfi_time left_ns)
{
    /* No longer than the request may take, less the way back: an answer that says too few is better than none. */
    const int64_t left_ms = left_ns / HFI_MS * 9 / 10;
    const int64_t patience_ms = left_ms < config->replica_ms ? (left_ms > 1 ? left_ms : 1) : config->replica_ms;
    if (!config->replicas && !config->fsync)
        return NULL;
    command->count = 0;
    snprintf(words->replicas, sizeof words->replicas, "%d", config->replicas);
    snprintf(words->patience, sizeof words->patience, "%lld", (long long)patience_ms);
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

static int64_t within(int64_t number, int64_t most)
{
    return number < 0 ? 0 : number < most ? number : most;
}

static hf_status take_busy(struct redis_store *store, struct redis_lock *lock, const redisReply *reply,
                           hfi_time sent_ns, struct hfi_grant *grant, hf_error *err)
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
    lock->sent_ns = sent_ns;
    const hfi_time spread = BACKSTOP_FIRST + within(place, PLACE_MOST) * BACKSTOP_STEP;
    lock->ask_again_ns = store->env->now_ns() + within(left_ms, BACKSTOP_MOST) * HFI_MS + spread +
                         (hfi_time)(store->env->random() % (uint64_t)BACKSTOP_STEP);
    return HF_BUSY;
}

static hf_status redis_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);

static hf_status take_answer(struct redis_store *store, struct redis_lock *lock, redisReply **replies, bool waited,
                             hfi_time sent_ns, struct hfi_grant *grant, hf_error *err)
{
    if (replies[0]->type != REDIS_REPLY_INTEGER || replies[0]->integer <= 0) /* a token is greater */
        return take_busy(store, lock, replies[0], sent_ns, grant, err);
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
    const struct redis_command *behind =
        replication(&behind_memory, &words, &store->config, request->deadline_ns - store->env->now_ns());
    struct redis_question question = {
        .script = &store->scripts.acquire, .arguments = &command, .behind = behind, .deadline_ns = request->deadline_ns
    };
    hf_status status = hfi_redis_ask(store, &question, replies, err);
    if (status == HF_UNKNOWN)
        lock->unsure = true;
    if (status != HF_OK)
        return status;
    /* Only an answer to a request for a place says whether there is one. */
    lock->unsure = !line_up && (lock->unsure || lock->queued);
    const bool error = replies[0]->type == REDIS_REPLY_ERROR;
    const bool held = replies[0]->type == REDIS_REPLY_INTEGER && replies[0]->integer > 0;
    if (error)
        status = hfi_redis_refusal(replies[0], words.key, err);
    else
        status = take_answer(store, lock, replies, behind != NULL, question.sent_ns, grant, err);
    if (status == HF_INTERNAL && !error) /* nonsense: who knows what it did */
        lock->unsure = true;
    if (status == HF_OK)
        grant->counted_from_ns = question.sent_ns;
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
    if (status != HF_OK && held) /* too few replicas have it: nobody may rely on it */
        redis_release(store, lock, request, NULL);
    return status;
}

/* With the mutex. A gift made at server time G, of which we know that server time T was not before our time s: it lasts
 * until s + (G - T) + claim, less what clocks may run apart. If that is near, or cannot be reckoned, the waiter must
 * ask. */
static bool is_fresh(const struct redis_store *store, const struct redis_lock *lock, struct hfi_grant *grant)
{
    const hfi_time now = store->env->now_ns();
    const hfi_time waited = now - lock->sent_ns;
    if (store->config.replicas || store->config.fsync || waited > TRUSTED_WAIT || lock->given_us < lock->server_us)
        return false;
    const uint64_t between_us = (uint64_t)lock->given_us - (uint64_t)lock->server_us; /* of any two numbers */
    if (between_us > (uint64_t)waited / 1000)
        return false;
    const hfi_time between = (hfi_time)between_us * 1000;
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
    const bool fresh = given && is_fresh(store, lock, grant);
    pthread_mutex_unlock(&store->mutex);
    if (fresh) {
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
        const uint64_t asked_under = lock->ear_number;
        uint64_t number;
        const hfi_time limit = store->env->now_ns() + store->env->timeout_ns;
        const hfi_time deadline = limit < request->deadline_ns ? limit : request->deadline_ns;
        const hf_status status = hfi_redis_subscribe(store, &number, deadline, err);
        /* Then ask again, for a place in the queue. A wait that was too short for that is over, and nothing else. */
        if (status == HF_UNAVAILABLE && store->env->now_ns() >= request->deadline_ns)
            return HF_TIMEOUT;
        if (status == HF_OK && lock->expected &&
            number == asked_under) /* a server that gives no place: not in a loop */
            hfi_waker_sleep(request->waker, NULL, 0, earlier(store->env->now_ns() + NO_PLACE_PAUSE, deadline));
        return status;
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
    pthread_mutex_lock(&store->mutex); /* a gift may be coming in */
    const bool was_held = lock->state == REDIS_HELD;
    pthread_mutex_unlock(&store->mutex);
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
        const redisReply *one = reply->element[i];
        if (one->type != REDIS_REPLY_INTEGER || one->integer < 0 || one->integer > 1)
            status = hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
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
    .schemes = "redis: rediss: redis+unix:",
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
