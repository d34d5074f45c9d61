/* SPDX-License-Identifier: MIT
 *
 * redlock_attempt.c: asking for a lock: the guess, the votes, the token that is written back, and stepping back when
 * there is no majority.
 */
#include "redlock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A guess must not be behind the clocks when it arrives, and not far ahead of them: a master that forgets everything
 * takes older tokens again until its clock has passed them. */
#define GUESS_AHEAD_US 2000
/* Numbers in Lua are exact up to here; a clock beyond is none. */
#define TOKEN_MOST (INT64_C(1) << 53)
/* For so long after a lock was busy the usher is asked before the others. */
#define CONTENDED_FOR HFI_SECOND
/* Votes were split: the first in line asks again after a pause of about two round trips, and never much less. The pause
 * is doubled so many times; but until it is this long if somebody else has a majority. */
#define SPLIT_PAUSE (500 * 1000)
#define SPLITS_MOST 6u
#define SPLITS_MOST_HELD 10u
#define SPLIT_PAUSE_MOST (500 * HFI_MS)

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

/* It showed `us` at some moment between `sent_ns` and now, so it is ahead of ours by `us - sent_ns` at most. The least
 * that was ever seen is nearest to the truth: an answer that took long would make tokens run ahead of clocks. Unless
 * the clock was set forward since, and is ahead by more than that at least. */
static void note_clock(struct redlock_store *store, size_t index, int64_t us, hfi_time sent_ns)
{
    struct redlock_clock *clock = &store->clocks[index];
    const hfi_time now = store->redis.env->now_ns();
    pthread_mutex_lock(&store->redis.mutex);
    const bool ahead = us - clock->us > (now - clock->sent_ns) / 1000;
    const bool nearer = us - clock->us <= (sent_ns - clock->sent_ns) / 1000;
    if (!clock->known || ahead || nearer)
        *clock = (struct redlock_clock){ .known = us > 0 && us < TOKEN_MOST, .us = us, .sent_ns = sent_ns };
    pthread_mutex_unlock(&store->redis.mutex);
}

/* --- asking for it --- */

static bool is_granted(const struct redlock_leg *leg)
{
    return leg->state == REDLOCK_ANSWERED && hfi_redlock_number(leg->reply, 0) == 1 &&
           hfi_redlock_number(leg->reply, 2) > 0 && hfi_redlock_number(leg->reply, 2) < TOKEN_MOST;
}

/* A majority has granted it; or can no longer, and a majority has said why: busy is not the same as out of reach. Or
 * somebody says that it is done, and a majority has answered: what the others may have granted must be given back. */
static bool enough_votes(const struct redlock_round *round)
{
    size_t granted = 0, answered = 0;
    bool done = false;
    for (size_t i = 0; i < round->store->count; i++) {
        granted += is_granted(&round->legs[i]);
        answered += round->legs[i].state == REDLOCK_ANSWERED;
        done = done || hfi_redlock_says_done(&round->legs[i]);
    }
    if (done && answered >= round->store->quorum)
        return true;
    const size_t no = round->failed + answered - granted;
    return granted >= round->store->quorum ||
           (answered >= round->store->quorum && no > round->store->count - round->store->quorum);
}

/* What the masters said. */
struct tally {
    size_t granted, answered;
    uint32_t voters; /* bit I: master I has granted it */
    size_t exact;    /* granted, with the guess stored */
    int64_t largest; /* token */
    int64_t waiting; /* in the usher's queue */
    int64_t place;   /* ours in it; -1: none */
    bool free;       /* the usher has it for nobody, since we stepped back */
    size_t usher;    /* its index; the count: there is none */
    uint32_t before; /* bit I: master I may have had it, or our place, before this attempt */
};

static void count_votes(struct tally *tally, const struct redlock_round *round, struct redlock_lock *lock,
                        int64_t guess)
{
    struct redlock_store *store = round->store;
    *tally = (struct tally){ .place = -1, .usher = tally->usher, .before = tally->before };
    for (size_t i = 0; i < store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        if (leg->sent)
            lock->maybe |= 1u << i;
        if (leg->state != REDLOCK_ANSWERED)
            continue;
        tally->answered++;
        note_clock(store, i, hfi_redlock_number(leg->reply, 1), round->sent_ns);
        if (!is_granted(leg)) {
            if (hfi_redlock_says_done(leg))
                lock->maybe &= tally->before | ~(1u << i); /* nothing was changed there */
            else if (i == tally->usher)
                tally->place = hfi_redlock_number(leg->reply, 3);
            else
                lock->maybe &= ~(1u << i); /* neither a vote nor a place */
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

/* Gives back what masters may have given, everywhere, and stays in line at the usher's if there is one. */
static void step_back(struct redlock_store *store, struct redlock_lock *lock, const struct hfi_request *request,
                      const struct redlock_words *words, struct tally *tally)
{
    const size_t usher = tally->usher;
    struct redlock_round round = { .store = store,
                                   .lock = lock,
                                   .must = tally->voters | (usher < store->count ? 1u << usher : 0) };
    struct redis_command commands[2] = { { REDIS_ROOM(REDLOCK_WORDS_MOST) }, { REDIS_ROOM(REDLOCK_WORDS_MOST) } };
    char score[24];
    tally->place = -1;
    snprintf(score, sizeof score, "%llu", (unsigned long long)lock->score);
    hfi_redlock_add_release(&commands[0], store, words, "");
    hfi_redlock_add_release(&commands[1], store, words, score);
    for (size_t i = 0; i < store->count; i++) {
        if (lock->maybe & 1u << i || i == usher)
            round.legs[i].command = &commands[i == usher];
    }
    hfi_redlock_ask(&round, enough_answers, hfi_redlock_answer_by(store, request->ttl_ms, request->deadline_ns));
    for (size_t i = 0; i < store->count; i++) {
        if (round.legs[i].state != REDLOCK_ANSWERED)
            continue;
        lock->maybe &= ~(1u << i);
        if (i == usher) {
            tally->place = hfi_redlock_number(round.legs[i].reply, 1);
            tally->free = hfi_redlock_number(round.legs[i].reply, 2) == 1;
            lock->maybe |= tally->place >= 0 ? 1u << i : 0;
        }
    }
    hfi_redlock_end(&round);
}

/* The usher says no, but where no answer has come yet the lock may be free: a vote that is given there later would be
 * in everybody's way while we wait. It goes back at once, behind it, and nobody waits for that. */
static void give_back_strays(const struct redlock_round *asked, const struct hfi_request *request,
                             const struct redlock_words *words)
{
    struct redlock_store *store = asked->store;
    struct redlock_round round = { .store = store, .lock = asked->lock };
    struct redis_command command = { REDIS_ROOM(REDLOCK_WORDS_MOST) };
    hfi_redlock_add_release(&command, store, words, "");
    for (size_t i = 0; i < store->count; i++) {
        if (asked->legs[i].sent && asked->legs[i].state != REDLOCK_ANSWERED)
            round.legs[i].command = &command;
    }
    hfi_redlock_ask(&round, enough_answers, request->deadline_ns); /* `must` is empty: it only sends */
    hfi_redlock_end(&round);
}

void hfi_redlock_give_back_left(struct redlock_store *store, struct redlock_lock *lock,
                                const struct hfi_request *request)
{
    struct redis_command command = { REDIS_ROOM(REDLOCK_WORDS_MOST) };
    struct redlock_words words;
    uint32_t left = lock->maybe;
    for (size_t i = 0; i < store->count; i++) {
        if (store->masters[i] == lock->line || hfi_redlock_is_behind(store, lock, i) ||
            hfi_redlock_is_down(store, store->masters[i]))
            left &= ~(1u << i); /* our place; told; or not now */
    }
    if (!left)
        return;
    hfi_redlock_words(&words, store, lock, request);
    hfi_redlock_add_release(&command, store, &words, "");
    hfi_redlock_reach(store, lock, &command, left, REDLOCK_LET_IN);
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
static bool write_back(struct redlock_store *store, struct redlock_lock *lock, const struct hfi_request *request,
                       struct redlock_words *words, int64_t token)
{
    struct redlock_round round = { .store = store, .lock = lock };
    struct redis_command command = { REDIS_ROOM(REDLOCK_WORDS_MOST) };
    size_t stored = 0;
    snprintf(words->number, sizeof words->number, "%lld", (long long)token);
    hfi_redlock_add_keys(&command, store, REDLOCK_WRITE_BACK, words);
    hfi_redis_add(&command, words->owner);
    hfi_redis_add(&command, words->info);
    hfi_redis_add(&command, words->ttl);
    hfi_redis_add(&command, words->number);
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = &command;
    hfi_redlock_ask(&round, enough_stored, hfi_redlock_answer_by(store, request->ttl_ms, request->deadline_ns));
    for (size_t i = 0; i < store->count; i++) {
        const struct redlock_leg *leg = &round.legs[i];
        stored += leg->state == REDLOCK_ANSWERED && leg->reply->type == REDIS_REPLY_INTEGER && leg->reply->integer == 1;
    }
    hfi_redlock_end(&round);
    return stored >= store->quorum;
}

/* After a pause of about two round trips, at random; longer and longer while that does not help. */
static void ask_soon(const struct redlock_store *store, struct redlock_lock *lock, hfi_time sent_ns, unsigned most)
{
    const struct hfi_env *env = store->redis.env;
    const hfi_time now = env->now_ns();
    hfi_time pause = (now - sent_ns + SPLIT_PAUSE) << lock->splits;
    pause = pause < SPLIT_PAUSE_MOST ? pause : SPLIT_PAUSE_MOST;
    lock->splits = lock->splits < most ? lock->splits + 1 : most;
    if (lock->redis.wait)
        lock->redis.wait->waiter.ask_again_ns = now + (hfi_time)(env->random() % (2 * (uint64_t)pause));
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
    lock->redis.queued = tally->place >= 0 && tally->usher < store->count &&
                         hfi_redis_node_of(&lock->redis) == store->masters[tally->usher];
    lock->line = lock->redis.queued ? hfi_redis_node_of(&lock->redis) : NULL;
    /* Nobody has it; or somebody who has let go of it at the usher, which will call nobody for that any more: the first
     * in line goes on asking. */
    const bool split = left_ms == -2 || tally->free;
    if (split && tally->place <= 0) {
        ask_soon(store, lock, round->sent_ns, left_ms == -2 ? SPLITS_MOST : SPLITS_MOST_HELD);
    } else {
        lock->splits = 0;
        if (lock->redis.wait)
            hfi_redis_backstop(&store->redis, lock->redis.wait, known ? left_ms : -1, tally->place);
    }
}

size_t hfi_redlock_usher(struct redlock_store *store)
{
    size_t up = store->count;
    pthread_mutex_lock(&store->redis.mutex);
    for (size_t i = store->count; i > 0; i--) {
        const struct redis_node *node = store->masters[i - 1];
        if (node->failures == 0 ||
            (node->try_again_ns <= hfi_redis_now_ns() && (up == store->count || store->masters[up]->failures > 0)))
            up = i - 1;
    }
    pthread_mutex_unlock(&store->redis.mutex);
    return up;
}

static hf_status take_majority(struct redlock_store *store, struct redlock_lock *lock,
                               const struct hfi_request *request, struct redlock_words *words, struct tally *tally,
                               int64_t guess, struct hfi_grant *grant)
{
    int64_t token = guess;
    bool stored = tally->exact >= store->quorum;
    /* Whoever comes while others wait goes behind them; but whoever waited long enough to ask again may take it. */
    const bool polite = lock->score == 0 && !lock->redis.queued && tally->waiting > 0;
    if (!stored && !polite) {
        token = tally->largest > guess ? tally->largest : guess + 1;
        stored = write_back(store, lock, request, words, token);
    }
    if (!stored || polite) {
        step_back(store, lock, request, words, tally);
        return HF_BUSY;
    }
    hfi_redis_expect_no_more(&store->redis, &lock->redis, REDIS_HELD);
    lock->redis.queued = false;
    lock->score = 0;
    grant->token = lock->token = (uint64_t)token;
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

static void add_acquire(struct redis_command *command, const struct redlock_store *store,
                        const struct redlock_words *words, bool once, const char *line_up)
{
    hfi_redlock_add_keys(command, store, once ? REDLOCK_ACQUIRE_ONCE : REDLOCK_ACQUIRE, words);
    hfi_redis_add(command, words->owner);
    hfi_redis_add(command, words->info);
    hfi_redis_add(command, words->ttl);
    hfi_redis_add(command, line_up);
    hfi_redis_add(command, words->number);
    hfi_redis_add(command, words->base);
    hfi_redis_add(command, ""); /* or a mark: see redlock_round.c */
}

/* It is held there by another program, which calls nobody, and may have it nowhere else any more. */
static bool says_stranger(const struct redlock_leg *leg)
{
    return leg->reply->elements == 6 && leg->reply->element[5]->type == REDIS_REPLY_STRING &&
           leg->reply->element[5]->len == 0;
}

/* Asks all masters at once; but where others are in the way the usher first, so that those who wait do not take each
 * other's votes. */
static void ask_masters(struct redlock_round *round, struct redlock_lock *lock, const struct hfi_request *request,
                        const struct redlock_words *words, struct tally *tally, int64_t guess)
{
    struct redlock_store *store = round->store;
    struct redis_command commands[2] = { { REDIS_ROOM(REDLOCK_WORDS_MOST) }, { REDIS_ROOM(REDLOCK_WORDS_MOST) } };
    const hfi_time deadline = hfi_redlock_answer_by(store, request->ttl_ms, request->deadline_ns);
    /* A place in another line must be given up, for which all are asked. */
    const bool usher_first = tally->usher < store->count && is_contended(store, request->name) &&
                             (!lock->line || lock->line == store->masters[tally->usher]);
    add_acquire(&commands[0], store, words, request->once, "0");
    add_acquire(&commands[1], store, words, request->once, usher_first ? "2" : "1");
    if (usher_first) {
        round->legs[tally->usher].command = &commands[1];
        hfi_redlock_ask(round, hfi_redlock_all_answered, deadline);
        count_votes(tally, round, lock, guess);
        if (tally->answered && !tally->granted && !says_stranger(&round->legs[tally->usher]))
            return; /* it says who is in the way */
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
    const size_t usher = hfi_redlock_usher(store);
    pthread_mutex_lock(&store->redis.mutex);
    if (lock->redis.state == REDIS_CALLED) {
        lock->redis.state = REDIS_NEW; /* what comes from now on counts */
        if (lock->splits > SPLITS_MOST)
            lock->splits = 0; /* what it waited for has happened */
    }
    if (lock->redis.state == REDIS_HELD)
        lock->redis.state = REDIS_NEW; /* granted, but too late to be of use: it is asked for again */
    pthread_mutex_unlock(&store->redis.mutex);
    if (request->queue && usher < store->count &&
        hfi_redis_expect(&store->redis, store->masters[usher], &lock->redis, request->owner))
        return usher;
    return store->count;
}

hf_status hfi_redlock_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                              struct hfi_grant *grant, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_lock *lock = lock_memory;
    struct redlock_round round = { .store = store, .lock = lock };
    struct tally tally = { .place = -1, .usher = usher_for(store, lock, request), .before = lock->maybe };
    struct redlock_words words;
    hf_status status = hfi_redis_check_name(&store->redis, request->name, err);
    if (status != HF_OK)
        return status;
    lock->attempts++;
    hfi_redlock_words(&words, store, lock, request);
    const int64_t guess = guess_token(store);
    snprintf(words.number, sizeof words.number, "%lld", (long long)guess);
    ask_masters(&round, lock, request, &words, &tally, guess);
    if (request->once)
        status = hfi_redlock_take_done(&round, request->name, grant, err);
    if (status != HF_OK) {
        /* release() gives back what it was granted or had */
    } else if (tally.granted >= store->quorum) {
        status = take_majority(store, lock, request, &words, &tally, guess, grant);
    } else {
        const bool usher_says_no = tally.place >= 0 && tally.granted == 0;
        const bool final = usher_says_no || tally.answered >= store->quorum;
        if (!usher_says_no && lock->maybe)
            step_back(store, lock, request, &words, &tally);
        if (usher_says_no)
            give_back_strays(&round, request, &words);
        status = final ? HF_BUSY : hfi_redlock_too_few(&round, tally.answered, "answered", err);
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
