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
 * Cannot promise:     exclusion, when the clock of a master jumps, or a master forgets the lock: then two may hold it.
 *                     Their tokens still differ, and never go backwards; see model/.
 */
#include "redlock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MOST HFI_SECOND
/* A guess must not be behind the clocks when it arrives, and not far ahead of them: a master that forgets everything
 * takes older tokens again until its clock has passed them. */
#define GUESS_AHEAD_US 2000
/* Numbers in Lua are exact up to here; a clock beyond is none. */
#define TOKEN_MOST (INT64_C(1) << 53)
#define NO_PLACE_PAUSE (50 * HFI_MS)
/* For so long after a lock was busy the usher is asked before the others. */
#define CONTENDED_FOR HFI_SECOND
/* Votes were split: the first in line asks again after a pause of about two round trips, and never much less. */
#define SPLIT_PAUSE (500 * 1000)
#define BATCH_MOST 128

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* --- open and close --- */

static bool two_are_up(const struct redlock_round *round)
{
    size_t answered = 0;
    for (size_t i = 0; i < round->store->count; i++)
        answered += round->legs[i].state == REDLOCK_ANSWERED;
    return answered >= round->store->quorum;
}

hf_status hfi_redlock_too_few(const struct redlock_round *round, size_t answered, hf_error *err)
{
    const hf_status why = round->trouble.status;
    const bool final = why == HF_DENIED || why == HF_INVALID || why == HF_UNSUPPORTED || why == HF_NOMEM;
    return hfi_fail(err, final ? why : HF_UNAVAILABLE, round->trouble.native,
                    "only %zu of %zu masters answered, %zu are needed: %.120s", answered, round->store->count,
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
    hfi_redlock_ask(&round, two_are_up, store->redis.env->now_ns() + store->redis.env->timeout_ns);
    for (size_t i = 0; i < store->count; i++)
        answered += round.legs[i].state == REDLOCK_ANSWERED;
    hfi_redlock_end(&round);
    return answered >= store->quorum ? HF_OK : hfi_redlock_too_few(&round, answered, err);
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
    hfi_redis_store_free(&store->redis);
}

static hfi_time answer_by(const struct redlock_store *store, uint32_t ttl_ms, hfi_time deadline_ns)
{
    hfi_time most = (hfi_time)ttl_ms * HFI_MS / 10;
    most = most < REDLOCK_ANSWER_LEAST ? REDLOCK_ANSWER_LEAST : earlier(most, ANSWER_MOST);
    if (store->redis.config.timeout_ns)
        most = store->redis.config.timeout_ns;
    return earlier(deadline_ns, hfi_redis_now_ns() + most);
}

/* --- the words of a question --- */

struct words {
    redis_keys keys;
    char base[HFI_REDIS_OWNER_MAX]; /* "client.serial" */
    char owner[HFI_REDIS_OWNER_MAX + 12];
    char info[256];
    char member[HFI_REDIS_OWNER_MAX + 256];
    char ttl[16];
    char number[24]; /* a token, or a score */
};

static void name_attempt(char out[HFI_REDIS_OWNER_MAX + 12], struct hfi_owner owner, unsigned attempt)
{
    char base[HFI_REDIS_OWNER_MAX];
    hfi_redis_owner(base, owner);
    snprintf(out, HFI_REDIS_OWNER_MAX + 12, "%s.%u", base, attempt);
}

static void set_words(struct words *words, const struct redlock_store *store, const struct redlock_lock *lock,
                      const struct hfi_request *request)
{
    const struct redis_store *redis = &store->redis;
    redis->config.dialect->keys(words->keys, redis, request->name, request->owner);
    hfi_redis_owner(words->base, request->owner);
    name_attempt(words->owner, request->owner, lock->attempts);
    snprintf(words->info, sizeof words->info, "%s %s", redis->who, request->note);
    snprintf(words->member, sizeof words->member, "%s %s", words->base, words->info);
    snprintf(words->ttl, sizeof words->ttl, "%u", request->ttl_ms);
}

static void add_keys(struct redis_command *command, const struct redlock_store *store, enum redlock_script_name script,
                     const struct words *words)
{
    hfi_redis_add_script(command, &store->scripts[script]);
    hfi_redis_add(command, "3");
    for (size_t i = 0; i < 3; i++)
        hfi_redis_add(command, words->keys[i]);
}

#define WORDS_MOST 12

/* --- clocks and tokens --- */

static int compare(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

/* A token that a majority will find just ahead of its clocks; 0: nothing is known yet. One clock that has jumped ahead
 * of the others is not followed. */
static int64_t guess_token(struct redlock_store *store)
{
    int64_t clocks[REDLOCK_MASTERS_MOST];
    size_t known = 0;
    const hfi_time now = store->redis.env->now_ns();
    pthread_mutex_lock(&store->redis.mutex);
    for (size_t i = 0; i < store->count; i++) {
        if (store->clocks[i].known)
            clocks[known++] = store->clocks[i].us + (now - store->clocks[i].sent_ns) / 1000;
    }
    const int64_t last = (int64_t)store->last_token;
    pthread_mutex_unlock(&store->redis.mutex);
    if (known < store->quorum)
        return 0;
    qsort(clocks, known, sizeof clocks[0], compare);
    const int64_t guess = clocks[store->quorum - 1] + GUESS_AHEAD_US;
    return guess > last ? guess : last + 1;
}

static void note_clock(struct redlock_store *store, size_t index, int64_t us, hfi_time sent_ns)
{
    pthread_mutex_lock(&store->redis.mutex);
    store->clocks[index] = (struct redlock_clock){ .known = us > 0 && us < TOKEN_MOST, .us = us, .sent_ns = sent_ns };
    pthread_mutex_unlock(&store->redis.mutex);
}

/* --- asking for it --- */

static bool is_granted(const struct redlock_leg *leg)
{
    return leg->state == REDLOCK_ANSWERED && hfi_redlock_number(leg->reply, 0) == 1 &&
           hfi_redlock_number(leg->reply, 2) > 0 && hfi_redlock_number(leg->reply, 2) < TOKEN_MOST;
}

/* A majority has granted it, or can no longer. */
static bool enough_votes(const struct redlock_round *round)
{
    size_t granted = 0, no = round->failed;
    for (size_t i = 0; i < round->store->count; i++) {
        const bool yes = is_granted(&round->legs[i]);
        granted += yes;
        no += round->legs[i].state == REDLOCK_ANSWERED && !yes;
    }
    return granted >= round->store->quorum || no > round->store->count - round->store->quorum;
}

/* What the masters said. */
struct tally {
    size_t granted, answered;
    uint32_t voters; /* bit I: master I has granted it */
    size_t exact;    /* granted, with the guess stored */
    int64_t largest; /* token */
    int64_t waiting; /* in the usher's queue */
    int64_t place;   /* ours in it; -1: none */
    size_t usher;    /* its index; the count: there is none */
};

static void count_votes(struct tally *tally, const struct redlock_round *round, struct redlock_lock *lock,
                        int64_t guess)
{
    struct redlock_store *store = round->store;
    *tally = (struct tally){ .place = -1, .usher = tally->usher };
    for (size_t i = 0; i < store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        if (leg->sent)
            lock->maybe |= 1u << i;
        if (leg->state != REDLOCK_ANSWERED)
            continue;
        tally->answered++;
        note_clock(store, i, hfi_redlock_number(leg->reply, 1), round->sent_ns);
        if (!is_granted(leg)) {
            if (i == tally->usher)
                tally->place = hfi_redlock_number(leg->reply, 3);
            continue;
        }
        const int64_t token = hfi_redlock_number(leg->reply, 2);
        tally->granted++;
        tally->voters |= 1u << i;
        tally->exact += token == guess;
        tally->largest = token > tally->largest ? token : tally->largest;
        if (i != tally->usher)
            continue;
        const redisReply *score = leg->reply->elements > 4 ? leg->reply->element[4] : NULL;
        tally->waiting = hfi_redlock_number(leg->reply, 3);
        lock->score = score && score->type == REDIS_REPLY_STRING ? strtoull(score->str, NULL, 10) : 0;
    }
}

/* Those that matter have answered. */
static bool enough_answers(const struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++) {
        const enum redlock_state state = round->legs[i].state;
        if (round->must & 1u << i && (state == REDLOCK_SENT || state == REDLOCK_CONNECTING))
            return false;
    }
    return true;
}

/* Gives back what masters may have given, everywhere, and stays in line at the usher's if there is one. Returns our
 * place there, -1 if there is none. */
static int64_t step_back(struct redlock_store *store, struct redlock_lock *lock, const struct hfi_request *request,
                         const struct words *words, const struct tally *tally, bool call)
{
    const size_t usher = tally->usher;
    struct redlock_round round = { .store = store, .must = tally->voters | (usher < store->count ? 1u << usher : 0) };
    struct redis_command commands[2] = { { REDIS_ROOM(WORDS_MOST) }, { REDIS_ROOM(WORDS_MOST) } };
    char score[24];
    int64_t place = -1;
    snprintf(score, sizeof score, "%llu", (unsigned long long)lock->score);
    for (size_t i = 0; i < 2; i++) {
        add_keys(&commands[i], store, REDLOCK_RELEASE, words);
        hfi_redis_add(&commands[i], words->owner);
        hfi_redis_add(&commands[i], words->member);
        hfi_redis_add(&commands[i], i ? score : "");
        hfi_redis_add(&commands[i], call ? "1" : "0");
    }
    for (size_t i = 0; i < store->count; i++) {
        if (lock->maybe & 1u << i || i == usher)
            round.legs[i].command = &commands[i == usher];
    }
    hfi_redlock_ask(&round, enough_answers, answer_by(store, request->ttl_ms, request->deadline_ns));
    for (size_t i = 0; i < store->count; i++) {
        if (round.legs[i].state != REDLOCK_ANSWERED)
            continue;
        lock->maybe &= ~(1u << i);
        if (i == usher) {
            place = hfi_redlock_number(round.legs[i].reply, 1);
            lock->maybe |= place >= 0 ? 1u << i : 0;
        }
    }
    hfi_redlock_end(&round);
    return place;
}

static bool enough_stored(const struct redlock_round *round)
{
    size_t stored = 0, no = round->failed;
    for (size_t i = 0; i < round->store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        const bool yes =
            leg->state == REDLOCK_ANSWERED && leg->reply->type == REDIS_REPLY_INTEGER && leg->reply->integer == 1;
        stored += yes;
        no += leg->state == REDLOCK_ANSWERED && !yes;
    }
    return stored >= round->store->quorum || no > round->store->count - round->store->quorum;
}

/* True: a majority has stored `token`, and had none as large. */
static bool write_back(struct redlock_store *store, const struct hfi_request *request, struct words *words,
                       int64_t token)
{
    struct redlock_round round = { .store = store };
    struct redis_command command = { REDIS_ROOM(WORDS_MOST) };
    size_t stored = 0;
    snprintf(words->number, sizeof words->number, "%lld", (long long)token);
    add_keys(&command, store, REDLOCK_WRITE_BACK, words);
    hfi_redis_add(&command, words->owner);
    hfi_redis_add(&command, words->info);
    hfi_redis_add(&command, words->ttl);
    hfi_redis_add(&command, words->number);
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = &command;
    hfi_redlock_ask(&round, enough_stored, answer_by(store, request->ttl_ms, request->deadline_ns));
    for (size_t i = 0; i < store->count; i++) {
        const struct redlock_leg *leg = &round.legs[i];
        stored += leg->state == REDLOCK_ANSWERED && leg->reply->type == REDIS_REPLY_INTEGER && leg->reply->integer == 1;
    }
    hfi_redlock_end(&round);
    return stored >= store->quorum;
}

/* Who has a majority, for people and for knowing when to ask again. */
static void take_busy(struct redlock_store *store, struct redlock_lock *lock, const struct redlock_round *round,
                      const struct tally *tally, struct hfi_grant *grant)
{
    int64_t left_ms = -2; /* nobody: the votes were split, or it has been released meanwhile */
    bool known = true;
    for (size_t i = 0; i < store->count && left_ms == -2; i++) {
        size_t same = 0;
        const redisReply *one = round->legs[i].reply;
        if (!one || one->elements != 6 || one->element[4]->type != REDIS_REPLY_STRING)
            continue;
        for (size_t j = 0; j < store->count; j++) {
            const redisReply *other = round->legs[j].reply;
            same += other && other->elements == 6 && other->element[4]->type == REDIS_REPLY_STRING &&
                    other->element[4]->len == one->element[4]->len &&
                    memcmp(other->element[4]->str, one->element[4]->str, one->element[4]->len) == 0;
        }
        if (same + store->count - tally->answered < store->quorum) /* those that did not answer may have it too */
            continue;
        char host[65] = "", pid[24] = "";
        left_ms = hfi_redlock_number(one, 2);
        known = one->element[5]->type == REDIS_REPLY_STRING && one->element[5]->len > 0;
        if (known && sscanf(one->element[5]->str, "%*s %*s %64s %23s", host, pid) == 2)
            snprintf(grant->holder, sizeof grant->holder, "%s:%s", host, pid);
    }
    grant->holder_left_ms = left_ms >= 0 ? left_ms : -1;
    lock->redis.queued =
        tally->place >= 0 && tally->usher < store->count && lock->redis.node == store->masters[tally->usher];
    hfi_redis_backstop(&store->redis, &lock->redis, known ? left_ms : -1, tally->place);
    const struct hfi_env *env = store->redis.env;
    if (left_ms == -2 && tally->place <= 0) {
        const uint64_t trip = (uint64_t)(env->now_ns() - round->sent_ns) + SPLIT_PAUSE;
        lock->redis.ask_again_ns = env->now_ns() + (hfi_time)(env->random() % (2 * trip));
    }
}

/* The master on which to line up: the first that is not down. The count: none, or nobody would hear it call. */
static size_t find_usher(struct redlock_store *store)
{
    size_t i = 0;
    while (i < store->count && hfi_redlock_is_down(store, store->masters[i]))
        i++;
    return i;
}

static hf_status take_majority(struct redlock_store *store, struct redlock_lock *lock,
                               const struct hfi_request *request, struct words *words, struct tally *tally,
                               int64_t guess, struct hfi_grant *grant)
{
    int64_t token = guess;
    bool stored = tally->exact >= store->quorum;
    /* Whoever comes while others wait goes behind them; but whoever waited long enough to ask again may take it. */
    const bool polite = lock->score == 0 && !lock->redis.queued && tally->waiting > 0;
    if (!stored && !polite) {
        token = tally->largest > guess ? tally->largest : guess + 1;
        stored = write_back(store, request, words, token);
    }
    if (!stored || polite) {
        tally->place = step_back(store, lock, request, words, tally, true);
        return HF_BUSY;
    }
    hfi_redis_expect_no_more(&store->redis, &lock->redis, REDIS_HELD);
    lock->redis.queued = false;
    lock->score = 0;
    grant->token = (uint64_t)token;
    pthread_mutex_lock(&store->redis.mutex);
    if (grant->token > store->last_token)
        store->last_token = grant->token;
    pthread_mutex_unlock(&store->redis.mutex);
    return HF_OK;
}

/* Whether somebody was in the way a moment ago. */
static bool is_contended(struct redlock_store *store, const char *name)
{
    pthread_mutex_lock(&store->redis.mutex);
    const bool so = store->contended_until_ns[hfi_name_hash(name) % REDLOCK_CONTENDED] > store->redis.env->now_ns();
    pthread_mutex_unlock(&store->redis.mutex);
    return so;
}

static void note_contention(struct redlock_store *store, const char *name)
{
    pthread_mutex_lock(&store->redis.mutex);
    store->contended_until_ns[hfi_name_hash(name) % REDLOCK_CONTENDED] = store->redis.env->now_ns() + CONTENDED_FOR;
    pthread_mutex_unlock(&store->redis.mutex);
}

static void add_acquire(struct redis_command *command, const struct redlock_store *store, const struct words *words,
                        const char *line_up)
{
    add_keys(command, store, REDLOCK_ACQUIRE, words);
    hfi_redis_add(command, words->owner);
    hfi_redis_add(command, words->info);
    hfi_redis_add(command, words->ttl);
    hfi_redis_add(command, line_up);
    hfi_redis_add(command, words->number);
    hfi_redis_add(command, words->base);
}

/* Asks all masters at once; but where others are in the way the usher first, so that those who wait do not take each
 * other's votes. */
static void ask_masters(struct redlock_round *round, struct redlock_lock *lock, const struct hfi_request *request,
                        const struct words *words, struct tally *tally, int64_t guess)
{
    struct redlock_store *store = round->store;
    struct redis_command commands[2] = { { REDIS_ROOM(WORDS_MOST) }, { REDIS_ROOM(WORDS_MOST) } };
    const hfi_time deadline = answer_by(store, request->ttl_ms, request->deadline_ns);
    const bool usher_first = tally->usher < store->count && is_contended(store, request->name);
    add_acquire(&commands[0], store, words, "0");
    add_acquire(&commands[1], store, words, usher_first ? "2" : "1");
    if (usher_first) {
        round->legs[tally->usher].command = &commands[1];
        hfi_redlock_ask(round, hfi_redlock_all_answered, deadline);
        count_votes(tally, round, lock, guess);
        if (tally->answered && !tally->granted) /* it says who is in the way */
            return;
    }
    for (size_t i = 0; i < store->count; i++)
        round->legs[i].command = &commands[i == tally->usher];
    hfi_redlock_ask(round, enough_votes, deadline);
    count_votes(tally, round, lock, guess);
}

/* The usher, if the caller is going to wait and can hear it call; else the count. Whoever lined up without being able
 * to hear would be taken for dead, and struck off. */
static size_t usher_for(struct redlock_store *store, struct redlock_lock *lock, const struct hfi_request *request)
{
    const size_t usher = find_usher(store);
    pthread_mutex_lock(&store->redis.mutex);
    if (lock->redis.state == REDIS_CALLED)
        lock->redis.state = REDIS_NEW; /* what comes from now on counts */
    pthread_mutex_unlock(&store->redis.mutex);
    if (request->queue && usher < store->count &&
        hfi_redis_expect(&store->redis, store->masters[usher], &lock->redis, request->owner))
        return usher;
    return store->count;
}

static hf_status redlock_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                                 struct hfi_grant *grant, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_lock *lock = lock_memory;
    struct redlock_round round = { .store = store };
    struct tally tally = { .place = -1, .usher = usher_for(store, lock, request) };
    struct words words;
    hf_status status;
    lock->attempts++;
    set_words(&words, store, lock, request);
    const int64_t guess = guess_token(store);
    snprintf(words.number, sizeof words.number, "%lld", (long long)guess);
    ask_masters(&round, lock, request, &words, &tally, guess);
    if (tally.granted >= store->quorum) {
        status = take_majority(store, lock, request, &words, &tally, guess, grant);
    } else {
        const bool usher_says_no = tally.place >= 0 && tally.granted == 0;
        const bool final = usher_says_no || tally.answered >= store->quorum;
        if (!usher_says_no && lock->maybe) {
            const int64_t place = step_back(store, lock, request, &words, &tally, false);
            tally.place = place >= 0 ? place : tally.place;
        }
        status = final ? HF_BUSY : hfi_redlock_too_few(&round, tally.answered, err);
    }
    if (status == HF_BUSY) {
        note_contention(store, request->name);
        take_busy(store, lock, &round, &tally, grant);
    }
    if (status == HF_OK)
        grant->counted_from_ns = round.sent_ns;
    hfi_redlock_end(&round);
    return status;
}

/* --- waiting --- */

static hf_status prepare_to_wait(struct redlock_store *store, struct redlock_lock *lock,
                                 const struct hfi_request *request, hf_error *err)
{
    const struct hfi_env *env = store->redis.env;
    const hfi_time deadline = earlier(env->now_ns() + env->timeout_ns, request->deadline_ns);
    const uint64_t asked_under = lock->redis.ear_number;
    struct redis_node *const asked = lock->redis.node;
    const size_t usher = find_usher(store);
    if (usher == store->count) { /* all of them failed a moment ago */
        hfi_waker_sleep(request->waker, NULL, 0, earlier(env->now_ns() + NO_PLACE_PAUSE, deadline));
        return HF_OK;
    }
    struct redis_node *node = store->masters[usher];
    const hf_status status = hfi_redis_subscribe(&store->redis, node, &lock->redis, request, deadline, err);
    if (status == HF_OK)
        hfi_redis_expect(&store->redis, node, &lock->redis, request->owner);
    else
        hfi_redlock_mark(store, node, true);
    if (status == HF_UNAVAILABLE) /* the next usher, or the end of the wait */
        return env->now_ns() >= request->deadline_ns ? HF_TIMEOUT : HF_OK;
    if (status == HF_OK && asked == node && lock->redis.ear_number == asked_under) /* no place: not in a loop */
        hfi_waker_sleep(request->waker, NULL, 0, earlier(env->now_ns() + NO_PLACE_PAUSE, deadline));
    return status;
}

static hf_status redlock_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_lock *lock = lock_memory;
    if (!lock->redis.queued)
        return prepare_to_wait(store, lock, request, err);
    const bool ask_again = lock->redis.ask_again_ns < request->deadline_ns;
    const bool news = hfi_redis_listen(&store->redis, &lock->redis, request->waker,
                                       ask_again ? lock->redis.ask_again_ns : request->deadline_ns);
    return news || ask_again ? HF_OK : HF_TIMEOUT;
}

/* --- giving back and keeping --- */

/* A majority has let go of it, and everybody else who may have it was told. */
static bool enough_released(const struct redlock_round *round)
{
    size_t gone = 0;
    bool told = true;
    for (size_t i = 0; i < round->store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        gone += leg->state == REDLOCK_ANSWERED && hfi_redlock_number(leg->reply, 0) == 1;
        told = told && !(leg->state == REDLOCK_CONNECTING && round->must & 1u << i);
    }
    return (gone >= round->store->quorum && told) || hfi_redlock_all_answered(round);
}

static hf_status redlock_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_lock *lock = lock_memory;
    struct redlock_round round = { .store = store, .must = lock->maybe };
    struct redis_command command = { REDIS_ROOM(WORDS_MOST) };
    struct words words;
    size_t gone = 0, kept = 0;
    pthread_mutex_lock(&store->redis.mutex);
    const bool was_held = lock->redis.state == REDIS_HELD;
    pthread_mutex_unlock(&store->redis.mutex);
    if (!was_held)
        hfi_redis_expect_no_more(&store->redis, &lock->redis, REDIS_NEW);
    if (!was_held && !lock->maybe)
        return HF_OK;
    set_words(&words, store, lock, request);
    add_keys(&command, store, REDLOCK_RELEASE, &words);
    hfi_redis_add(&command, words.owner);
    hfi_redis_add(&command, words.member);
    hfi_redis_add(&command, "");
    hfi_redis_add(&command, "1");
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = was_held || lock->maybe & 1u << i ? &command : NULL;
    hfi_redlock_ask(&round, was_held ? enough_released : hfi_redlock_all_answered,
                    answer_by(store, request->ttl_ms, request->deadline_ns));
    for (size_t i = 0; i < store->count; i++) {
        if (round.legs[i].state != REDLOCK_ANSWERED)
            continue;
        lock->maybe &= ~(1u << i);
        if (hfi_redlock_number(round.legs[i].reply, 0) == 1)
            gone++;
        else
            kept++;
    }
    hfi_redlock_end(&round);
    if (!was_held && lock->maybe)
        return hfi_redlock_too_few(&round, gone + kept, err);
    if (was_held && gone < store->quorum && kept <= store->count - store->quorum)
        return hfi_redlock_too_few(&round, gone + kept, err);
    lock->redis.state = REDIS_NEW;
    lock->redis.queued = false;
    lock->score = 0;
    if (was_held && gone < store->quorum)
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

static hf_status judge_renewal(const struct redlock_round *round, size_t index)
{
    size_t yes = 0, no = 0, sent = 0;
    for (size_t i = 0; i < round->store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        const int64_t answer = leg->reply ? hfi_redlock_number(leg->reply, index) : -1;
        yes += answer == 1;
        no += answer == 0;
        sent += leg->sent;
    }
    if (yes >= round->store->quorum)
        return HF_OK;
    if (no > round->store->count - round->store->quorum)
        return HF_LOST;
    return sent ? HF_UNKNOWN : HF_UNAVAILABLE;
}

static hf_status redlock_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                               hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_round round = { .store = store };
    struct redis_command command = { REDIS_ROOM(3 + 3 * BATCH_MOST) };
    char keys[BATCH_MOST][HFI_REDIS_KEY_MAX], owners[BATCH_MOST][HFI_REDIS_OWNER_MAX + 12], ttls[BATCH_MOST][16];
    char number[16];
    uint32_t shortest = UINT32_MAX;
    if (count > BATCH_MOST)
        return hfi_fail(err, HF_INTERNAL, 0, "a renewal of %zu locks is too large", count);
    snprintf(number, sizeof number, "%zu", count);
    hfi_redis_add_script(&command, &store->scripts[REDLOCK_RENEW]);
    hfi_redis_add(&command, number);
    for (size_t i = 0; i < count; i++) {
        const struct redlock_lock *lock = renewals[i].lock;
        snprintf(keys[i], sizeof keys[i], "%s%s", store->redis.config.prefix, renewals[i].name);
        name_attempt(owners[i], renewals[i].owner, lock->attempts);
        snprintf(ttls[i], sizeof ttls[i], "%u", renewals[i].ttl_ms);
        shortest = renewals[i].ttl_ms < shortest ? renewals[i].ttl_ms : shortest;
        hfi_redis_add(&command, keys[i]);
    }
    for (size_t i = 0; i < count; i++) {
        hfi_redis_add(&command, owners[i]);
        hfi_redis_add(&command, ttls[i]);
    }
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = &command;
    hfi_redlock_ask(&round, enough_renewed, answer_by(store, shortest, deadline_ns));
    for (size_t i = 0; i < count; i++) {
        renewals[i].status = judge_renewal(&round, i);
        renewals[i].counted_from_ns = round.sent_ns;
    }
    hfi_redlock_end(&round);
    return HF_OK;
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "redlock",
    .schemes = "redlock:",
    .summary = "machines that share several independent Redis or Valkey masters",
    .caps = HF_CAP_EXPIRY | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK,
    .store_size = sizeof(struct redlock_store),
    .lock_size = sizeof(struct redlock_lock),
    .open = redlock_open,
    .close = redlock_close,
    .attempt = redlock_attempt,
    .wait = redlock_wait,
    .renew = redlock_renew,
    .release = redlock_release,
    .inspect = hfi_redlock_inspect,
    .evict = hfi_redlock_evict,
};
