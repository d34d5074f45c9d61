/* SPDX-License-Identifier: MIT
 *
 * redis.c: machines that share one Redis (6 or newer) or Valkey server, behind Sentinels or in a cluster if need be, in
 * Holdfast's own dialect or in that of other programs.
 *
 * What ends a grant:  release(), or its time-to-live by the server's clock.
 * Who counts time:    the server; the core keeps an earlier deadline of its own.
 * Exchanges:          one script each: acquire, release, renew (many at once), evict, look: see the dialects; guard.
 * Waiting:            the release script hands the lock to the first live waiter and publishes to its client; in the
 *                     dialects of others it only calls the first waiter, who then asks.
 * Token:              the larger of last + 1 and the server's microseconds.
 * Cannot promise:     what the server forgets, by a crash without appendfsync always or by a failover; replicas=N
 *                     narrows the gap. A clock that is set forward ends locks early: exclusion is lost then, while the
 *                     tokens still grow.
 *
 * A gift is not an answer to a request: a waiter that was paused may read it long after it has ended. How far the gift
 * is to be trusted is reckoned from the last answered request, see is_fresh(); in doubt the waiter asks.
 */
#include "redis.h"
#include "redis_doctor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Two clocks may run apart by a hundredth; after a minute that is too much beside the claim time. */
#define TRUSTED_WAIT (60 * HFI_SECOND)
#define CLAIM_NS (HFI_REDIS_CLAIM_MS * HFI_MS)
#define NO_PLACE_PAUSE (50 * HFI_MS)

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* --- open and close --- */

/* The first connection, and what must be known before the first request. */
static hf_status connect_first(struct redis_store *store, hf_error *err)
{
    const hfi_time deadline = store->env->now_ns() + store->env->timeout_ns;
    struct redis_node *node = NULL;
    hf_status status = HF_OK;
    if (store->config.kind == REDIS_CLUSTER)
        status = hfi_redis_cluster_open(store, deadline, err);
    if (status == HF_OK)
        status = hfi_redis_find(store, "", &node, deadline, err);
    if (status == HF_OK)
        status = hfi_redis_ask_open(store, node, deadline, err);
    if (status == HF_OK && store->config.dialect->strangers)
        status = hfi_redis_plain_open(store, deadline, err);
    return status;
}

static hf_status redis_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                            struct hfi_opened *opened, hf_error *err)
{
    struct redis_store *store = memory;
    hf_status status = hfi_redis_store_init(store, url, env, err);
    if (status == HF_OK)
        status = connect_first(store, err);
    if (status != HF_OK)
        return status;
    const struct redis_dialect *dialect = store->config.dialect;
    opened->caps = (opened->caps & ~(HF_CAP_FAIR | HF_CAP_WAKE_ONE)) | dialect->caps;
    opened->reserves = dialect->reserves;
    opened->starts = hfi_redis_can_start(store);
    store->by_channels = dialect->own_channels || store->sharded;
    hfi_redis_scripts_init(store->scripts, dialect, store->sharded);
    return HF_OK;
}

static void redis_close(void *memory)
{
    struct redis_store *store = memory;
    hfi_redis_watch_close(store);
    hfi_redis_disconnect(store->sentinel.connection);
    hfi_redis_cluster_close(store);
    hfi_redis_store_free(store);
}

/* --- asking --- */

/* The words of a request that its command points to. */
struct words {
    redis_keys keys;
    char number[8];
    char owner[HFI_REDIS_OWNER_MAX];
    char info[256];
    char done_key[HFI_REDIS_KEY_MAX];
    char ttl[16];
    char done_ms[24];
    char reserve[16];
    char replicas[16], patience[24];
};

#define WORDS_MOST (2 + 1 + HFI_REDIS_KEYS_MOST + 1 + 5)

static bool wants_done_key(enum redis_script_name script)
{
    return script == REDIS_ACQUIRE_ONCE || script == REDIS_RELEASE_DONE;
}

static void add_common(struct redis_command *command, struct words *words, const struct redis_store *store,
                       enum redis_script_name script, const struct hfi_request *request)
{
    const struct redis_dialect *dialect = store->config.dialect;
    const size_t count = dialect->keys(words->keys, store, request->name, request->owner);
    dialect->owner(words->owner, request->owner);
    snprintf(words->info, sizeof words->info, "%s %s", store->who, request->note);
    const bool done = wants_done_key(script);
    words->number[0] = (char)('0' + count + done);
    words->number[1] = 0;
    hfi_redis_add_script(command, &store->scripts[script]);
    hfi_redis_add(command, words->number);
    for (size_t i = 0; i < count; i++)
        hfi_redis_add(command, words->keys[i]);
    if (done) {
        hfi_redis_done_key(words->done_key, store, request->name);
        hfi_redis_add(command, words->done_key);
    }
    hfi_redis_add(command, words->owner);
    hfi_redis_add(command, words->info);
}

static hf_status take_busy(struct redis_store *store, struct redis_lock *lock, const redisReply *reply,
                           const struct redis_question *question, struct hfi_grant *grant, hf_error *err)
{
    static const int types[5] = { REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER,
                                  REDIS_REPLY_STRING };
    for (size_t i = 0; i < 5; i++) {
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 5 || reply->element[i]->type != types[i])
            return hfi_redis_refusal(reply, "", err);
    }
    const int64_t left_ms = reply->element[2]->integer;
    const int64_t place = reply->element[3]->integer;
    const char *holder = reply->element[4]->str;
    char host[65] = "", pid[24] = "";
    if (sscanf(holder, "%*s %*s %64s %23s", host, pid) == 2) /* "s us host pid note" */
        snprintf(grant->holder, sizeof grant->holder, "%s:%s", host, pid);
    grant->holder_left_ms = left_ms >= 0 ? left_ms : -1;
    /* A place with a server that we do not listen to is none: it was moved there while we asked. */
    lock->queued = place >= 0 && hfi_redis_node_of(lock) == question->node;
    lock->unsure = lock->unsure || (place >= 0 && !lock->queued); /* but it must be given up there */
    if (!lock->wait)
        return HF_BUSY;
    lock->wait->server_us = reply->element[1]->integer;
    lock->wait->sent_ns = question->sent_ns;
    const bool stranger = store->config.dialect->strangers && !*holder && left_ms != -2;
    hfi_redis_backstop(store, lock->wait, stranger ? -1 : left_ms, place);
    return HF_BUSY;
}

static hf_status take_token(struct redis_store *store, struct redis_lock *lock, redisReply **replies,
                            const struct redis_question *question, struct hfi_grant *grant, hf_error *err)
{
    const hf_status status = question->count > 1 ? hfi_redis_check_replication(replies[1], &store->config, err) : HF_OK;
    hfi_redis_expect_no_more(store, lock, status == HF_OK ? REDIS_HELD : REDIS_NEW);
    lock->queued = false;
    lock->unsure = lock->unsure || status != HF_OK; /* too few have it to rely on it: the next attempt, or release() */
    grant->token = (uint64_t)replies[0]->integer;
    grant->counted_from_ns = question->sent_ns;
    return status;
}

static hf_status take_answer(struct redis_store *store, struct redis_lock *lock, redisReply **replies,
                             const struct redis_question *question, bool line_up, struct hfi_grant *grant,
                             hf_error *err)
{
    /* Only an answer to a request for a place says whether there is one. */
    lock->unsure = !line_up && (lock->unsure || lock->queued);
    if (replies[0]->type == REDIS_REPLY_ERROR)
        return hfi_redis_refusal(replies[0], question->key, err);
    if (replies[0]->type == REDIS_REPLY_INTEGER && replies[0]->integer > 0)
        return take_token(store, lock, replies, question, grant, err);
    const hf_status status = take_busy(store, lock, replies[0], question, grant, err);
    if (status == HF_INTERNAL) /* nonsense: who knows what it did */
        lock->unsure = true;
    return status;
}

/* One question about a lock, and its answer. Stays where it is while it is asked. */
struct inquiry {
    const char *texts[WORDS_MOST], *wait_texts[4];
    struct redis_command commands[2];
    redisReply *replies[2];
    struct redis_question question;
    bool line_up;                  /* attempt: for a place in the queue */
    struct hfi_exchange *exchange; /* if no thread waits for it */
    struct words words;            /* last: see pack() */
};

static void begin_inquiry(struct inquiry *inquiry, const struct hfi_request *request)
{
    inquiry->commands[0] = (struct redis_command){ .text = inquiry->texts, .room = WORDS_MOST };
    inquiry->commands[1] = (struct redis_command){ .text = inquiry->wait_texts, .room = 4 };
    inquiry->replies[0] = inquiry->replies[1] = NULL;
    inquiry->question = (struct redis_question){
        .key = inquiry->words.keys[0], .commands = inquiry->commands, .count = 1, .deadline_ns = request->deadline_ns
    };
}

static void write_attempt(struct inquiry *inquiry, const struct redis_store *store, const struct hfi_request *request)
{
    struct words *words = &inquiry->words;
    struct redis_command *command = inquiry->commands;
    begin_inquiry(inquiry, request);
    add_common(command, words, store, request->once ? REDIS_ACQUIRE_ONCE : REDIS_ACQUIRE, request);
    snprintf(words->ttl, sizeof words->ttl, "%u", request->ttl_ms);
    hfi_redis_add(command, words->ttl);
    hfi_redis_add(command, inquiry->line_up ? "1" : "0");
    if (request->reserve > 1) {
        snprintf(words->reserve, sizeof words->reserve, "%u", request->reserve - 1);
        hfi_redis_add(command, words->reserve);
    }
    if (hfi_redis_add_replication(&inquiry->commands[1], words->replicas, words->patience, &store->config,
                                  request->deadline_ns - store->env->now_ns()))
        inquiry->question.count = 2;
}

/* `status`: what became of the question. */
static hf_status take_attempt(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                              struct inquiry *inquiry, hf_status status, struct hfi_grant *grant, hf_error *err)
{
    redisReply **replies = inquiry->replies;
    if (status == HF_UNKNOWN) {
        lock->unsure = lock->astray = true;
        lock->unanswered++;
    }
    if (status != HF_OK)
        return status;
    const bool alone = request->reserve > 1 && replies[0]->type == REDIS_REPLY_INTEGER && replies[0]->integer < 0 &&
                       replies[0]->integer >= -INT64_MAX; /* a token, and none were reserved */
    if (alone)
        replies[0]->integer = -replies[0]->integer;
    if (!request->once || !hfi_redis_take_done(replies[0], request->name, grant, &status, err))
        status = take_answer(store, lock, replies, &inquiry->question, inquiry->line_up, grant, err);
    grant->tokens = alone ? 1 : request->reserve;
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
    return status;
}

/* With the mutex. A gift made at server time G, of which we know that server time T was not before our time s: it lasts
 * until s + (G - T) + claim, less what clocks may run apart. If that is near, or cannot be reckoned, the waiter must
 * ask. */
static bool is_fresh(const struct redis_store *store, const struct redis_wait *wait, struct hfi_grant *grant)
{
    const hfi_time now = store->env->now_ns();
    const hfi_time waited = now - wait->sent_ns;
    if (store->config.replicas || store->config.fsync || waited > TRUSTED_WAIT || wait->given_us < wait->server_us)
        return false;
    /* A message also comes by way of a server that is not asked any more, and whoever sent it counts those who hear it
     * at its own door alone: it has taken us for dead, and given the lock to the next. */
    if (store->config.kind != REDIS_ONE)
        return false;
    const uint64_t between_us = (uint64_t)wait->given_us - (uint64_t)wait->server_us; /* of any two numbers */
    if (between_us > (uint64_t)waited / 1000)
        return false;
    const hfi_time between = (hfi_time)between_us * 1000;
    grant->counted_from_ns = wait->sent_ns + between - between / 100;
    grant->valid_ms = HFI_REDIS_CLAIM_MS;
    grant->token = wait->token;
    grant->tokens = wait->tokens;
    return grant->counted_from_ns + CLAIM_NS / 2 > now;
}

/* True: it is granted without a question. Else, whether to ask for a place. */
static bool begin_attempt(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                          struct hfi_grant *grant, bool *line_up)
{
    pthread_mutex_lock(&store->mutex);
    /* Whoever gave it may have recorded that the work is done. */
    const bool fresh = lock->state == REDIS_GIVEN && !request->once && is_fresh(store, lock->wait, grant);
    if (lock->state == REDIS_HELD)
        lock->unsure = true; /* granted, but too late to be of use: the server may have it still */
    lock->state = REDIS_NEW; /* what was said is too old to be believed: only what comes from now on counts */
    struct redis_node *node = hfi_redis_node_of(lock);
    pthread_mutex_unlock(&store->mutex);
    if (fresh) {
        hfi_redis_expect_no_more(store, lock, REDIS_HELD);
        lock->queued = false;
        return true;
    }
    grant->valid_ms = 0;
    if (request->queue && !node && store->config.kind == REDIS_ONE)
        node = store->nodes; /* where we may listen already */
    /* Whoever lines up without being able to hear would be taken for dead, and skipped. */
    *line_up = request->queue && node && hfi_redis_expect(store, node, lock, request->owner);
    return false;
}

static hf_status redis_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                               struct hfi_grant *grant, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_lock *lock = lock_memory;
    struct inquiry inquiry;
    if (hfi_redis_check_name(store, request->name, err) != HF_OK)
        return HF_INVALID;
    if (begin_attempt(store, lock, request, grant, &inquiry.line_up))
        return HF_OK;
    write_attempt(&inquiry, store, request);
    hf_status status = hfi_redis_ask(store, &inquiry.question, inquiry.replies, err);
    status = take_attempt(store, lock, request, &inquiry, status, grant, err);
    if (status == HF_DONE) { /* it may have been called, and leaves: another one of us is to be called */
        pthread_mutex_lock(&store->mutex);
        lock->state = REDIS_CALLED;
        pthread_mutex_unlock(&store->mutex);
    }
    return status;
}

/* Not in the queue yet: sees to it that messages can come, so that the next attempt may ask for a place. */
static hf_status prepare_to_wait(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                                 hf_error *err)
{
    const hfi_time deadline = earlier(store->env->now_ns() + store->env->timeout_ns, request->deadline_ns);
    struct redis_node *const asked = hfi_redis_node_of(lock);
    const uint64_t asked_under = asked ? lock->wait->waiter.number : 0;
    struct redis_node *node;
    redis_keys keys;
    store->config.dialect->keys(keys, store, request->name, request->owner);
    hf_status status = hfi_redis_find(store, keys[0], &node, deadline, err);
    if (status == HF_OK)
        status = hfi_redis_subscribe(store, node, lock, request, deadline, err);
    if (status == HF_OK)
        hfi_redis_expect(store, node, lock, request->owner); /* the next attempt asks this one for a place */
    if (status == HF_OK && asked == node &&
        lock->wait->waiter.number == asked_under) /* it gives no place: not in a loop */
        hfi_waker_sleep(request->waker, NULL, 0, earlier(store->env->now_ns() + NO_PLACE_PAUSE, deadline));
    return status;
}

static hf_status redis_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_lock *lock = lock_memory;
    if (!lock->queued)
        return prepare_to_wait(store, lock, request, err);
    return hfi_redis_listen(store, lock, request);
}

/* --- giving back --- */

/* The answer to a release that needs no second one is in: the latch may go, and nobody waits for that. */
static void drop_latch(struct redis_store *store, struct redis_node *node, const char *latch)
{
    struct redis_command command = { REDIS_ROOM(2) };
    hfi_redis_add(&command, "DEL");
    hfi_redis_add(&command, latch);
    hfi_redis_tell(store, node, &command);
}

static void write_release(struct inquiry *inquiry, const struct redis_store *store, const struct hfi_request *request,
                          bool mark)
{
    struct words *words = &inquiry->words;
    begin_inquiry(inquiry, request);
    add_common(inquiry->commands, words, store, request->done_ms ? REDIS_RELEASE_DONE : REDIS_RELEASE, request);
    if (request->done_ms) {
        snprintf(words->done_ms, sizeof words->done_ms, "%" PRIu64, request->done_ms);
        hfi_redis_add(inquiry->commands, words->done_ms);
    }
    if (mark)
        hfi_redis_add(inquiry->commands, "1");
}

/* What is recorded as done must be as safe as a grant. */
static hf_status release_by_script(struct redis_store *store, const struct hfi_request *request, bool mark,
                                   redisReply **reply, hf_error *err)
{
    struct inquiry inquiry;
    bool confirmed = true;
    write_release(&inquiry, store, request, mark);
    hf_status status;
    if (request->done_ms)
        status = hfi_redis_ask_confirmed(store, &inquiry.question, reply, &confirmed, err);
    else
        status = hfi_redis_ask(store, &inquiry.question, reply, err);
    if (status == HF_OK && store->config.dialect->leaves_latch && (*reply)->type == REDIS_REPLY_INTEGER &&
        (*reply)->integer == 1)
        drop_latch(store, inquiry.question.node, inquiry.words.keys[3]);
    if (status == HF_OK && !confirmed && (*reply)->type == REDIS_REPLY_INTEGER && (*reply)->integer == 1) {
        freeReplyObject(*reply);
        *reply = NULL;
        return HF_UNKNOWN;
    }
    return status;
}

static hf_status read_release(const redisReply *reply, const struct hfi_request *request, bool was_held, hf_error *err)
{
    if (request->done_ms && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2) {
        hf_error why = { .message = "" };
        hfi_redis_refusal(reply->element[1], request->name, &why);
        return hfi_fail(err, HF_DENIED, 0, "it is released, but not recorded as done: %.180s", why.message);
    }
    if (reply->type != REDIS_REPLY_INTEGER)
        return hfi_redis_refusal(reply, request->name, err);
    if (reply->integer <= 0 && was_held)
        return hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    return HF_OK;
}

/* What a release answered, whose reply is freed. */
static hf_status take_release(struct redis_lock *lock, redisReply *reply, const struct hfi_request *request,
                              bool was_held, hf_error *err)
{
    const hf_status status = read_release(reply, request, was_held, err);
    freeReplyObject(reply);
    if (status == HF_OK || status == HF_LOST) {
        lock->state = REDIS_NEW;
        lock->queued = lock->unsure = lock->astray = false;
    }
    return status;
}

static hf_status redis_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_lock *lock = lock_memory;
    redisReply *reply = NULL;
    hf_status status = HF_OK;
    pthread_mutex_lock(&store->mutex); /* a gift may be coming in */
    const bool was_held = lock->state == REDIS_HELD;
    pthread_mutex_unlock(&store->mutex);
    const bool known = was_held || lock->queued || lock->unsure || lock->astray;
    if (!was_held)
        hfi_redis_expect_no_more(store, lock, REDIS_NEW);
    if (!known)
        return HF_OK;
    /* Else its value may be another one, or there is more to do. */
    if (was_held && store->verb != REDIS_BY_SCRIPT && lock->unanswered == 0 && !request->done_ms)
        status = hfi_redis_plain_release(store, request, &reply, err);
    if (status == HF_OK && !reply)
        status = release_by_script(store, request, lock->astray, &reply, err);
    if (status != HF_OK)
        return status;
    return take_release(lock, reply, request, was_held, err);
}

/* --- without a thread that waits --- */

/* A copy that takes no more room than it must: there may be very many under way. NULL: no memory. */
static struct inquiry *pack(const struct inquiry *inquiry, struct hfi_exchange *exchange)
{
    const struct redis_command *command = inquiry->commands;
    size_t size = offsetof(struct inquiry, words);
    for (int i = 2; i < command->count; i++) /* the script's name stays where it is */
        size += strlen(command->text[i]) + 1;
    struct inquiry *copy = hfi_alloc(size);
    if (!copy)
        return NULL;
    memcpy(copy, inquiry, offsetof(struct inquiry, words));
    char *room = (char *)copy + offsetof(struct inquiry, words);
    for (int i = 2; i < command->count; i++) {
        const size_t length = strlen(command->text[i]) + 1;
        copy->texts[i] = memcpy(room, command->text[i], length);
        room += length;
    }
    copy->commands[0].text = copy->texts;
    copy->question.commands = copy->commands;
    copy->question.key = copy->texts[3]; /* behind their number */
    copy->exchange = exchange;
    return copy;
}

static bool send_packed(struct redis_store *store, const struct inquiry *inquiry, struct hfi_exchange *exchange,
                        hfi_redis_answered_fn answered)
{
    struct inquiry *copy = pack(inquiry, exchange);
    if (!copy)
        return false;
    copy->question.answered = answered;
    const bool started = hfi_redis_ask_start(store, &copy->question, copy->replies);
    if (!started)
        hfi_free(copy);
    return started;
}

static struct inquiry *inquiry_of(struct redis_question *question)
{
    return (struct inquiry *)(void *)((char *)question - offsetof(struct inquiry, question));
}

static void attempt_answered(struct redis_store *store, struct redis_question *question, hf_status status,
                             const hf_error *err)
{
    struct inquiry *inquiry = inquiry_of(question);
    struct hfi_exchange *exchange = inquiry->exchange;
    hf_error trouble = *err;
    status = take_attempt(store, exchange->lock, exchange->request, inquiry, status, exchange->grant, &trouble);
    hfi_free(inquiry);
    exchange->done(exchange, status, &trouble);
}

static void release_answered(struct redis_store *store, struct redis_question *question, hf_status status,
                             const hf_error *err)
{
    struct inquiry *inquiry = inquiry_of(question);
    struct hfi_exchange *exchange = inquiry->exchange;
    hf_error trouble = *err;
    (void)store;
    if (status == HF_OK)
        status = take_release(exchange->lock, inquiry->replies[0], exchange->request, true, &trouble);
    hfi_free(inquiry);
    exchange->done(exchange, status, &trouble);
}

static bool start_attempt(struct redis_store *store, struct hfi_exchange *exchange)
{
    const struct hfi_request *request = exchange->request;
    struct inquiry inquiry;
    if (request->once)
        return false;
    if (begin_attempt(store, exchange->lock, request, exchange->grant, &inquiry.line_up)) {
        exchange->done(exchange, HF_OK, NULL);
        return true;
    }
    write_attempt(&inquiry, store, request);
    return send_packed(store, &inquiry, exchange, attempt_answered);
}

/* What is not known to be held may be a place in the queue, or anywhere: that is for release(). */
static bool start_release(struct redis_store *store, struct hfi_exchange *exchange)
{
    const struct redis_lock *lock = exchange->lock;
    struct inquiry inquiry;
    if (lock->state != REDIS_HELD || exchange->request->done_ms)
        return false;
    write_release(&inquiry, store, exchange->request, lock->astray);
    return send_packed(store, &inquiry, exchange, release_answered);
}

static bool redis_start(void *store, struct hfi_exchange *exchange)
{
    return exchange->grant ? start_attempt(store, exchange) : start_release(store, exchange);
}

static void redis_attend(void *memory)
{
    struct redis_store *store = memory;
    hfi_loop_attend(&store->loop);
}

static void redis_dismiss(void *memory)
{
    struct redis_store *store = memory;
    hfi_loop_dismiss(&store->loop);
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "redis",
    .schemes = "redis: rediss: redis+unix: redis+sentinel: redis+cluster:",
    .summary = "machines that share a Redis or Valkey server",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE,
    .parks = true,
    .store_size = sizeof(struct redis_store),
    .lock_size = sizeof(struct redis_lock),
    .open = redis_open,
    .close = redis_close,
    .attempt = redis_attempt,
    .wait = redis_wait,
    .renew = hfi_redis_renew,
    .release = redis_release,
    .start = redis_start,
    .attend = redis_attend,
    .dismiss = redis_dismiss,
    .inspect = hfi_redis_inspect,
    .inspect_one = hfi_redis_inspect_one,
    .inspect_done = hfi_redis_inspect_done,
    .forget_done = hfi_redis_forget_done,
    .evict = hfi_redis_evict,
    .guard = hfi_redis_guard,
    .examine = hfi_redis_examine,
    .push_fd = hfi_redis_push_fd,
    .take_push = hfi_redis_take_push,
};
