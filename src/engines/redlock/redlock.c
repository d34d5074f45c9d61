/* SPDX-License-Identifier: MIT
 *
 * redlock.c: machines that share N independent Redis or Valkey masters: whoever has a majority of them holds the lock.
 * The key is that of other Redlock clients (redsync, node-redlock, …), so that they exclude each other.
 *
 * What ends a grant:  release(), or its time-to-live by the clocks of the masters.
 * Who counts time:    each master; the core keeps an earlier deadline, counted from before the first was asked.
 * Exchanges:          all masters at once: acquire, perhaps write back, release, renew (many at once), evict, look.
 * Waiting:            in line on one master, the usher; a release calls the first in line, who then asks everybody.
 *                     The usher decides on order only, never on who holds the lock. Those whose votes were split step
 *                     back and line up too, so that one of them goes first.
 * Token:              guessed in advance, just ahead of the masters' clocks: if a majority stores the guess together
 *                     with the lock, one round trip is all. Else the largest proposal is written back to a majority
 *                     that has none as large, or the attempt starts over.
 * Breaking:           leaves on each master by whom, for the renewals of who held it; and a message has it ask at once.
 * Done:               a record on each master that let go of the lock: whoever asks a majority meets one that has it.
 * Cannot promise:     exclusion, when the clock of a master jumps, or a master forgets the lock: then two may hold it.
 *                     Their tokens still differ, and never go backwards; see model/.
 */
#include "redlock.h"
#include <stdio.h>
#include <string.h>

#define ANSWER_MOST HFI_SECOND
#define NO_PLACE_PAUSE (50 * HFI_MS)
#define BATCH_MOST 128
/* How long a release may wait for a connection to a master that may have our vote, though a majority has let go of it:
 * the vote would be in the way of others for its time-to-live. */
#define REACH_MOST (500 * HFI_MS)
#define LOOK_AFTER HFI_SECOND

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* --- open and close --- */

static bool majority_is_up(const struct redlock_round *round)
{
    size_t answered = 0;
    for (size_t i = 0; i < round->store->count; i++)
        answered += round->legs[i].state == REDLOCK_ANSWERED;
    return answered >= round->store->quorum;
}

hf_status hfi_redlock_too_few(const struct redlock_round *round, size_t count, const char *did, hf_error *err)
{
    const hf_status why = round->trouble.status;
    const bool final = why == HF_DENIED || why == HF_INVALID || why == HF_UNSUPPORTED || why == HF_NOMEM;
    return hfi_fail(err, final ? why : HF_UNAVAILABLE, round->trouble.native,
                    "only %zu of %zu masters %s, %zu are needed: %.120s", count, round->store->count, did,
                    round->store->quorum, round->trouble.message);
}

/* A majority must be there, and let us in: the script that releases nothing is as good as any. */
static hf_status connect_first(struct redlock_store *store, hf_error *err)
{
    struct redlock_round round = { .store = store };
    struct redis_command command = { REDIS_ROOM(10) };
    size_t answered = 0;
    hfi_redis_add_script(&command, &store->scripts[REDLOCK_RENEW]);
    hfi_redis_add(&command, "0");
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = &command;
    hfi_redlock_ask(&round, majority_is_up, store->redis.env->now_ns() + store->redis.env->timeout_ns);
    for (size_t i = 0; i < store->count; i++)
        answered += round.legs[i].state == REDLOCK_ANSWERED;
    hfi_redlock_end(&round);
    return answered >= store->quorum ? HF_OK : hfi_redlock_too_few(&round, answered, "answered", err);
}

static hf_status redlock_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                              struct hfi_opened *opened, hf_error *err)
{
    struct redlock_store *store = memory;
    (void)opened;
    const hf_status status = hfi_redis_store_init(&store->redis, url, env, err);
    if (status != HF_OK)
        return status;
    for (struct redis_node *node = store->redis.nodes; node; node = node->next)
        store->masters[store->count++] = node;
    store->quorum = store->count / 2 + 1;
    for (size_t i = 0; i < REDLOCK_SCRIPTS; i++)
        hfi_redis_script_init(&store->scripts[i], hfi_redlock_scripts[i]);
    return connect_first(store, err);
}

static void redlock_close(void *memory)
{
    struct redlock_store *store = memory;
    hfi_redlock_drain(store);
    hfi_redis_watch_close(&store->redis);
    hfi_redis_store_free(&store->redis);
}

/* --- the words of a question --- */

hfi_time hfi_redlock_answer_by(const struct redlock_store *store, uint32_t ttl_ms, hfi_time deadline_ns)
{
    hfi_time most = (hfi_time)ttl_ms * HFI_MS / 10;
    most = most < REDLOCK_ANSWER_LEAST ? REDLOCK_ANSWER_LEAST : earlier(most, ANSWER_MOST);
    if (store->redis.config.timeout_ns)
        most = store->redis.config.timeout_ns;
    return earlier(deadline_ns, hfi_redis_now_ns() + most);
}

void hfi_redlock_name(char out[HFI_REDIS_OWNER_MAX + 12], struct hfi_owner owner, unsigned attempt)
{
    char base[HFI_REDIS_OWNER_MAX];
    hfi_redis_owner(base, owner);
    snprintf(out, HFI_REDIS_OWNER_MAX + 12, "%s.%u", base, attempt);
}

void hfi_redlock_words(struct redlock_words *words, const struct redlock_store *store, const struct redlock_lock *lock,
                       const struct hfi_request *request)
{
    const struct redis_store *redis = &store->redis;
    redis->config.dialect->keys(words->keys, redis, request->name, request->owner);
    hfi_redis_owner(words->base, request->owner);
    hfi_redlock_name(words->owner, request->owner, lock->attempts);
    snprintf(words->info, sizeof words->info, "%s %s", redis->who, request->note);
    snprintf(words->member, sizeof words->member, "%s %s", words->base, words->info);
    snprintf(words->ttl, sizeof words->ttl, "%u", request->ttl_ms);
    if (request->once || request->done_ms)
        hfi_redis_done_key(words->keys[3], redis, request->name);
}

void hfi_redlock_add_keys(struct redis_command *command, const struct redlock_store *store,
                          enum redlock_script_name script, const struct redlock_words *words)
{
    const bool done = script == REDLOCK_ACQUIRE_ONCE || script == REDLOCK_RELEASE_DONE;
    hfi_redis_add_script(command, &store->scripts[script]);
    hfi_redis_add(command, done ? "4" : "3");
    for (size_t i = 0; i < (done ? 4 : 3); i++)
        hfi_redis_add(command, words->keys[i]);
}

void hfi_redlock_add_release(struct redis_command *command, const struct redlock_store *store,
                             const struct redlock_words *words, const char *score)
{
    hfi_redlock_add_keys(command, store, REDLOCK_RELEASE, words);
    hfi_redis_add(command, words->owner);
    hfi_redis_add(command, words->member);
    hfi_redis_add(command, score);
    hfi_redis_add(command, ""); /* or a mark: see redlock_round.c */
}

/* --- waiting --- */

static hf_status prepare_to_wait(struct redlock_store *store, struct redlock_lock *lock,
                                 const struct hfi_request *request, hf_error *err)
{
    const struct hfi_env *env = store->redis.env;
    const hfi_time deadline = earlier(env->now_ns() + env->timeout_ns, request->deadline_ns);
    struct redis_node *const asked = hfi_redis_node_of(&lock->redis);
    const uint64_t asked_under = asked ? lock->redis.wait->waiter.number : 0;
    const size_t usher = hfi_redlock_usher(store);
    if (usher == store->count) { /* all of them failed a moment ago */
        hfi_waker_sleep(request->waker, NULL, 0, earlier(env->now_ns() + NO_PLACE_PAUSE, deadline));
        return HF_OK;
    }
    struct redis_node *node = store->masters[usher];
    const hf_status status = hfi_redis_subscribe(&store->redis, node, &lock->redis, request,
                                                 hfi_redlock_answer_by(store, request->ttl_ms, deadline), err);
    if (status == HF_OK)
        hfi_redis_expect(&store->redis, node, &lock->redis, request->owner);
    else if (status != HF_TIMEOUT) /* that is ours: another one was about to listen */
        hfi_redlock_mark(store, node, true);
    if (status == HF_UNAVAILABLE) /* the next usher, or the end of the wait */
        return env->now_ns() >= request->deadline_ns ? HF_TIMEOUT : HF_OK;
    if (status == HF_OK && asked == node &&
        lock->redis.wait->waiter.number == asked_under) /* no place: not in a loop */
        hfi_waker_sleep(request->waker, NULL, 0, earlier(env->now_ns() + NO_PLACE_PAUSE, deadline));
    return status;
}

/* An usher that stands still, or was cut off, calls nobody and says nothing: one of those who wait has it show that it
 * is alive, now and then, and if it does not all of them line up on another one. */
static void look_after_usher(struct redlock_store *store, struct redis_node *node, hfi_time deadline_ns)
{
    struct redlock_round round = { .store = store };
    struct redis_command command = { REDIS_ROOM(3) };
    const hfi_time now = hfi_redis_now_ns();
    bool answered = false;
    pthread_mutex_lock(&store->redis.mutex);
    const bool due = now - store->looked_ns >= LOOK_AFTER;
    if (due)
        store->looked_ns = now;
    pthread_mutex_unlock(&store->redis.mutex);
    if (!due || !node)
        return;
    hfi_redis_add_script(&command, &store->scripts[REDLOCK_RENEW]);
    hfi_redis_add(&command, "0");
    for (size_t i = 0; i < store->count; i++) {
        round.legs[i].command = store->masters[i] == node ? &command : NULL;
        round.must |= store->masters[i] == node ? 1u << i : 0;
    }
    hfi_redlock_ask(&round, hfi_redlock_all_answered, earlier(deadline_ns, now + LOOK_AFTER));
    for (size_t i = 0; i < store->count; i++)
        answered = answered || round.legs[i].state == REDLOCK_ANSWERED;
    hfi_redlock_end(&round);
    if (!answered && hfi_redlock_is_down(store, node))
        hfi_redis_lose_push(&store->redis, node);
}

static hf_status redlock_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_lock *lock = lock_memory;
    if (!lock->redis.queued)
        return prepare_to_wait(store, lock, request, err);
    const struct hfi_env *env = store->redis.env;
    const hfi_time until = earlier(lock->redis.wait->waiter.ask_again_ns, request->deadline_ns);
    bool news = false;
    while (!news && env->now_ns() < until) {
        const hfi_time look = env->now_ns() + LOOK_AFTER;
        struct hfi_request listening = *request;
        listening.deadline_ns = earlier(look, until);
        news = hfi_redis_listen(&store->redis, &lock->redis, &listening) == HF_OK;
        if (!news && look < until) {
            look_after_usher(store, hfi_redis_node_of(&lock->redis), until);
            hfi_redlock_give_back_left(store, lock, request);
        }
    }
    return news || until < request->deadline_ns ? HF_OK : HF_TIMEOUT;
}

/* --- giving back and keeping --- */

/* How many masters have let go of it, how many did not have it, and how many have not answered and may have it. */
struct departure {
    size_t gone, kept, open;
};

static struct departure count_gone(const struct redlock_round *round)
{
    struct departure departure = { 0, 0, 0 };
    for (size_t i = 0; i < round->store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        const bool answered = leg->state == REDLOCK_ANSWERED;
        if (round->lock->freed & 1u << i || (answered && hfi_redlock_number(leg->reply, 0) == 1))
            departure.gone++;
        else if (answered)
            departure.kept++;
        else
            departure.open += round->must >> i & 1;
    }
    return departure;
}

/* A majority never had it, or has it no more. Also if not all of that majority are asked: one that was down when it was
 * granted cannot make up for one that has forgotten it. */
static bool is_lost(const struct redlock_store *store, struct departure departure)
{
    return departure.kept > store->count - store->quorum || departure.gone + departure.open < store->quorum;
}

/* A majority has let go of it, or none can any more. */
static bool release_is_decided(const struct redlock_round *round)
{
    const struct departure departure = count_gone(round);
    return departure.gone >= round->store->quorum || is_lost(round->store, departure);
}

/* A majority does not have it, and it was there until now: a master that does not answer may have been one of those
 * that granted it, while another one, which has never had it, was slow. */
static bool is_free(const struct redlock_store *store, struct departure departure)
{
    return departure.gone > 0 && departure.gone + departure.kept >= store->quorum;
}

static bool is_free_or_lost(const struct redlock_round *round)
{
    const struct departure departure = count_gone(round);
    return is_free(round->store, departure) || is_lost(round->store, departure);
}

/* … and everybody else who may have it was told. */
static bool enough_released(const struct redlock_round *round)
{
    bool told = true;
    for (size_t i = 0; i < round->store->count; i++)
        told = told && !(round->legs[i].state == REDLOCK_CONNECTING && round->must & 1u << i);
    return (told && release_is_decided(round)) || hfi_redlock_all_answered(round);
}

/* With a record that its work is done. */
static void add_release_done(struct redis_command *command, const struct redlock_store *store,
                             struct redlock_words *words, uint64_t token, uint64_t done_ms)
{
    snprintf(words->number, sizeof words->number, "%llu", (unsigned long long)token);
    snprintf(words->done_ms, sizeof words->done_ms, "%llu", (unsigned long long)done_ms);
    hfi_redlock_add_keys(command, store, REDLOCK_RELEASE_DONE, words);
    hfi_redis_add(command, words->owner);
    hfi_redis_add(command, words->member);
    hfi_redis_add(command, "");
    hfi_redis_add(command, words->number);
    hfi_redis_add(command, words->done_ms);
    hfi_redis_add(command, ""); /* or a mark: see redlock_round.c */
}

/* It was lost: a minority that still had it may have recorded that the work is done. */
static void take_back_record(struct redlock_store *store, const struct redlock_lock *lock,
                             const struct hfi_request *request)
{
    struct redlock_round round = { .store = store };
    hfi_redlock_forget(&round, request->name, lock->token,
                       hfi_redlock_answer_by(store, request->ttl_ms, request->deadline_ns));
    hfi_redlock_end(&round);
}

static hf_status redlock_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_lock *lock = lock_memory;
    struct redlock_round round = { .store = store, .lock = lock, .must = lock->maybe };
    struct redis_command command = { REDIS_ROOM(REDLOCK_WORDS_MOST) };
    struct redlock_words words;
    pthread_mutex_lock(&store->redis.mutex);
    const bool was_held = lock->redis.state == REDIS_HELD;
    pthread_mutex_unlock(&store->redis.mutex);
    if (!was_held)
        hfi_redis_expect_no_more(&store->redis, &lock->redis, REDIS_NEW);
    if (!was_held && !lock->maybe)
        return HF_OK;
    if (!was_held)
        lock->attempts++; /* it comes after all that the last attempt has sent */
    hfi_redlock_words(&words, store, lock, request);
    if (was_held && request->done_ms)
        add_release_done(&command, store, &words, lock->token, request->done_ms);
    else
        hfi_redlock_add_release(&command, store, &words, "");
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = was_held || lock->maybe & 1u << i ? &command : NULL;
    /* That its work is done must be known to a majority. */
    const bool marks = request->done_ms > 0;
    round.decided = !was_held ? NULL : marks ? release_is_decided : is_free_or_lost;
    hfi_redlock_ask(&round, was_held ? enough_released : hfi_redlock_all_answered,
                    hfi_redlock_answer_by(store, request->ttl_ms, request->deadline_ns));
    const struct departure departure = count_gone(&round);
    for (size_t i = 0; i < store->count; i++) {
        const bool answered = round.legs[i].state == REDLOCK_ANSWERED;
        lock->maybe &= answered ? ~(1u << i) : ~0u;
        lock->freed |= was_held && answered && hfi_redlock_number(round.legs[i].reply, 0) == 1 ? 1u << i : 0;
    }
    const bool lost = is_lost(store, departure), freed = !marks && is_free(store, departure);
    hfi_redlock_end(&round);
    hfi_redlock_reach(store, lock, &command, lock->maybe & hfi_redlock_untold(&round), REACH_MOST);
    if (!was_held && lock->maybe)
        return hfi_redlock_too_few(&round, departure.gone + departure.kept, "answered", err);
    if (was_held && departure.gone < store->quorum && !lost && !freed)
        return hfi_redlock_too_few(&round, departure.gone, "let go of it", err);
    lock->redis.state = REDIS_NEW;
    lock->redis.queued = false;
    lock->score = 0;
    lock->freed = 0;
    if (was_held && lost && marks)
        take_back_record(store, lock, request);
    if (was_held && lost)
        return hfi_fail(err, HF_LOST, 0, "a majority of the masters no longer had it");
    return HF_OK;
}

/* A majority has answered, and all of it has renewed every lock: the rest cannot change that. */
static bool enough_renewed(const struct redlock_round *round)
{
    size_t whole = 0;
    for (size_t i = 0; i < round->store->count; i++) {
        const redisReply *reply = round->legs[i].reply;
        bool all = reply && reply->type == REDIS_REPLY_ARRAY;
        for (size_t j = 0; all && j < reply->elements; j++)
            all = hfi_redlock_number(reply, j) == 1;
        whole += all;
    }
    return whole >= round->store->quorum || hfi_redlock_all_answered(round);
}

/* By whom it was broken, as this master has it; NULL: it does not say so. */
static const char *broken_by(const struct redlock_leg *leg, size_t index)
{
    const redisReply *reply = leg->reply;
    if (!reply || reply->type != REDIS_REPLY_ARRAY || index >= reply->elements ||
        reply->element[index]->type != REDIS_REPLY_STRING)
        return NULL;
    return reply->element[index]->str;
}

static hf_status judge_renewal(const struct redlock_round *round, size_t index, char why[HFI_WHY_MAX])
{
    size_t yes = 0, no = 0, sent = 0;
    const char *by = NULL;
    for (size_t i = 0; i < round->store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        const int64_t answer = leg->reply ? hfi_redlock_number(leg->reply, index) : -1;
        const char *here = broken_by(leg, index);
        by = here ? here : by;
        yes += answer == 1;
        no += answer == 0 || here;
        sent += leg->sent;
    }
    if (yes >= round->store->quorum)
        return HF_OK;
    if (no > round->store->count - round->store->quorum) {
        if (by)
            hfi_say_broken(why, by);
        return HF_LOST;
    }
    return sent ? HF_UNKNOWN : HF_UNAVAILABLE;
}

/* What was renewed so is known by this name from then on, and an earlier renewal does not find it any more. */
static void name_renewal(char out[HFI_REDIS_OWNER_MAX + 12], struct hfi_owner owner, const struct redlock_lock *lock)
{
    const unsigned number = lock->redis.unanswered;
    hfi_redlock_name(out, owner, lock->attempts);
    const size_t used = strlen(out);
    if (number)
        snprintf(out + used, HFI_REDIS_OWNER_MAX + 12 - used, "+%u", number);
}

struct renewal_words {
    char key[HFI_REDIS_KEY_MAX], broken[HFI_REDIS_KEY_MAX];
    char owner[HFI_REDIS_OWNER_MAX + 12];
    char ttl[16];
};

static void add_renewals(struct redis_command *command, struct renewal_words *words, const struct redlock_store *store,
                         const struct hfi_renewal *renewals, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        snprintf(words[i].key, sizeof words[i].key, "%s%s", store->redis.config.prefix, renewals[i].name);
        hfi_redis_companion(words[i].broken, words[i].key, "b");
        name_renewal(words[i].owner, renewals[i].owner, renewals[i].lock);
        snprintf(words[i].ttl, sizeof words[i].ttl, "%u", renewals[i].ttl_ms);
        hfi_redis_add(command, words[i].key);
    }
    for (size_t i = 0; i < count; i++)
        hfi_redis_add(command, words[i].broken);
    for (size_t i = 0; i < count; i++) {
        hfi_redis_add(command, words[i].owner);
        hfi_redis_add(command, words[i].ttl);
    }
}

/* Somebody who breaks a lock has all masters tell its holder: one of them is enough to listen to. */
static void watch(struct redlock_store *store)
{
    const size_t usher = hfi_redlock_usher(store);
    if (usher < store->count)
        hfi_redis_watch_node(&store->redis, store->masters[usher]);
}

static hf_status redlock_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                               hf_error *err)
{
    struct redlock_store *store = memory;
    /* All of them: what a master kept that is back ends, unless it is renewed in time. */
    struct redlock_round round = { .store = store, .renews = true, .must = (1u << store->count) - 1 };
    struct redis_command command = { REDIS_ROOM(3 + 4 * BATCH_MOST) };
    char number[16];
    uint32_t shortest = UINT32_MAX;
    bool any = false;
    if (count > BATCH_MOST)
        return hfi_fail(err, HF_INTERNAL, 0, "a renewal of %zu locks is too large", count);
    struct renewal_words *words = hfi_alloc(count * sizeof *words); /* a caller's stack may be small */
    if (!words)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a renewal");
    snprintf(number, sizeof number, "%zu", 2 * count);
    hfi_redis_add_script(&command, &store->scripts[REDLOCK_RENEW]);
    hfi_redis_add(&command, number);
    add_renewals(&command, words, store, renewals, count);
    for (size_t i = 0; i < count; i++)
        shortest = renewals[i].ttl_ms < shortest ? renewals[i].ttl_ms : shortest;
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = &command;
    hfi_redlock_ask(&round, enough_renewed, hfi_redlock_answer_by(store, shortest, deadline_ns));
    for (size_t i = 0; i < count; i++) {
        renewals[i].status = judge_renewal(&round, i, renewals[i].why);
        renewals[i].counted_from_ns = round.sent_ns;
        any = any || renewals[i].status == HF_OK;
        if (renewals[i].status == HF_UNAVAILABLE || renewals[i].status == HF_UNKNOWN)
            hfi_fail(err, renewals[i].status, round.trouble.native, "no majority of the masters renewed it: %.160s",
                     round.trouble.message);
    }
    /* What a master kept that has come back would end otherwise, and it would not count again. */
    hfi_redlock_reach(store, NULL, &command, hfi_redlock_untold(&round), REDLOCK_LET_IN);
    hfi_redlock_end(&round);
    hfi_free(words);
    for (size_t i = 0; i < count; i++) {
        struct redlock_lock *lock = renewals[i].lock;
        lock->redis.unanswered++; /* a majority is enough: some master may get it after the next */
    }
    if (any)
        watch(store);
    return HF_OK;
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "redlock",
    .schemes = "redlock:",
    .summary = "machines that share several independent Redis or Valkey masters",
    .caps = HF_CAP_EXPIRY | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_ONCE,
    .store_size = sizeof(struct redlock_store),
    .lock_size = sizeof(struct redlock_lock),
    .open = redlock_open,
    .close = redlock_close,
    .attempt = hfi_redlock_attempt,
    .wait = redlock_wait,
    .renew = redlock_renew,
    .release = redlock_release,
    .inspect = hfi_redlock_inspect,
    .inspect_one = hfi_redlock_inspect_one,
    .inspect_done = hfi_redlock_inspect_done,
    .forget_done = hfi_redlock_forget_done,
    .evict = hfi_redlock_evict,
    .examine = hfi_redlock_examine,
    .push_fd = hfi_redis_push_fd,
    .take_push = hfi_redis_take_push,
};
