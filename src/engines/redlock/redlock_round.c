/* SPDX-License-Identifier: MIT
 *
 * redlock_round.c: one question to several masters at once. Nothing here waits for one of them alone: connecting, TLS
 * and the log-in go on side by side, and a majority that has answered need not wait for the rest.
 *
 * A connection on which an answer is still to come is kept for the lock: what is sent on it next, a release say, then
 * arrives behind what was sent before, and not in front of it. If it breaks, what was sent is astray, and the next
 * request says so: see redlock_script.c. It is not reset: releases of other locks may be on their way, too.
 */
#include "redlock.h"
#include <poll.h>
#include <string.h>

/* A master that failed is left alone for so long, and twice as long after each further failure. */
#define DOWN_FIRST (50 * HFI_MS)
#define DOWN_MOST (2 * HFI_SECOND)
/* A master that was given less to answer in is not to be blamed if it did not. */
#define FAIR_TIME (200 * HFI_MS)
/* A connection that was idle for longer is looked at before it is used. */
#define TRUSTED_FOR (200 * HFI_MS)
/* One that is not up by then will never be. */
#define CONNECT_MOST (5 * HFI_SECOND)
#define SHARED_OWED_MOST 16u
/* How long close() waits for those that are slower than the majority, unless the URL says what an answer may take. */
#define DRAIN_MOST HFI_SECOND

void hfi_redlock_mark(struct redlock_store *store, struct redis_node *node, bool failed)
{
    hfi_time pause = DOWN_FIRST;
    pthread_mutex_lock(&store->redis.mutex);
    for (unsigned i = 0; i < node->failures && pause < DOWN_MOST; i++)
        pause *= 2;
    node->failures = failed ? node->failures + 1 : 0;
    node->try_again_ns = failed ? hfi_redis_now_ns() + (pause < DOWN_MOST ? pause : DOWN_MOST) : 0;
    pthread_mutex_unlock(&store->redis.mutex);
}

bool hfi_redlock_is_down(struct redlock_store *store, const struct redis_node *node)
{
    pthread_mutex_lock(&store->redis.mutex);
    const bool down = node->try_again_ns > hfi_redis_now_ns();
    pthread_mutex_unlock(&store->redis.mutex);
    return down;
}

int64_t hfi_redlock_number(const redisReply *reply, size_t index)
{
    if (reply->type != REDIS_REPLY_ARRAY || index >= reply->elements ||
        reply->element[index]->type != REDIS_REPLY_INTEGER)
        return -1;
    return reply->element[index]->integer;
}

static void note_astray(struct redlock_lock *lock, size_t index)
{
    if (lock)
        lock->astray |= 1u << index;
}

static void fail(struct redlock_round *round, size_t index)
{
    struct redlock_leg *leg = &round->legs[index];
    if (leg->sent)
        note_astray(round->lock, index);
    hfi_redis_disconnect(leg->connection);
    leg->connection = NULL;
    leg->state = REDLOCK_FAILED;
    round->failed++;
    hfi_redlock_mark(round->store, round->store->masters[index], true);
}

/* --- one leg --- */

static uint32_t script_bit(const struct redlock_store *store, const struct redis_command *command)
{
    return 1u << (command->script - store->scripts);
}

/* An idle connection that still stands, or the beginning of a new one. */
static void start(struct redlock_round *round, size_t index)
{
    struct redis_store *redis = &round->store->redis;
    struct redis_node *node = round->store->masters[index];
    struct redlock_leg *leg = &round->legs[index];
    const hfi_time now = hfi_redis_now_ns();
    leg->state = REDLOCK_CONNECTING;
    if (round->lock && round->lock->late[index]) {
        leg->connection = round->lock->late[index];
        round->lock->late[index] = NULL;
        if (hfi_redis_is_alive(leg->connection)) /* it may have been a long time */
            return;
        note_astray(round->lock, index);
        hfi_redis_disconnect(leg->connection);
    }
    if (round->lock && round->lock->shared[index]) {
        leg->connection = hfi_redis_idle_one(redis, node, round->lock->shared[index]);
        round->lock->shared[index] = 0;
        if (leg->connection && leg->connection->phase == REDIS_READY && hfi_redis_is_alive(leg->connection))
            return;
        note_astray(round->lock, index); /* others may be using it */
        hfi_redis_disconnect(leg->connection);
    }
    while ((leg->connection = hfi_redis_idle(redis, node)) != NULL) {
        const hfi_time idle = now - leg->connection->used_ns;
        const bool ready = leg->connection->phase == REDIS_READY;
        if (ready ? idle < TRUSTED_FOR || hfi_redis_is_alive(leg->connection) : idle < CONNECT_MOST)
            break;
        hfi_redis_disconnect(leg->connection);
    }
    if (leg->connection)
        return;
    atomic_store(&round->store->loaded[index], 0); /* it may have been restarted */
    if (hfi_redis_connect_begin(&leg->connection, &node->address, &redis->config.access, &round->trouble) != HF_OK)
        fail(round, index);
    else
        leg->connection->used_ns = now;
}

/* Its last word says whether to leave one. */
static bool takes_mark(const struct redlock_store *store, const struct redis_command *command)
{
    static const enum redlock_script_name takers[] = { REDLOCK_ACQUIRE, REDLOCK_ACQUIRE_ONCE, REDLOCK_RELEASE,
                                                       REDLOCK_RELEASE_DONE };
    bool takes = false;
    for (size_t i = 0; i < sizeof takers / sizeof takers[0]; i++)
        takes = takes || command->script == &store->scripts[takers[i]];
    return takes;
}

/* A script goes by its hash only to a master that is known to have it: what it answers may never be read, if the others
 * were faster, and a release that it could not run would be lost. */
static bool send_command(struct redlock_round *round, size_t index)
{
    struct redlock_leg *leg = &round->legs[index];
    struct redis_command *command = leg->command;
    leg->marked = round->lock && round->lock->astray & 1u << index && takes_mark(round->store, command);
    if (takes_mark(round->store, command))
        command->text[command->count - 1] = leg->marked ? "1" : "";
    const bool whole = !(atomic_load(&round->store->loaded[index]) & script_bit(round->store, command));
    command->text[0] = whole ? "EVAL" : "EVALSHA";
    command->text[1] = whole ? command->script->text : command->script->hash;
    leg->sent = true;
    /* There is room for it, or the master has stopped. */
    return hfi_redis_send(leg->connection, command, 1, hfi_redis_now_ns(), &round->trouble) == HF_OK;
}

/* The server was restarted, or its scripts flushed: nothing was done. */
static void send_again(struct redlock_round *round, size_t index)
{
    struct redlock_leg *leg = &round->legs[index];
    atomic_fetch_and(&round->store->loaded[index], ~script_bit(round->store, leg->command));
    leg->sent = false;
    if (!send_command(round, index))
        fail(round, index);
}

/* What has come from a master that was asked. */
static void read_answer(struct redlock_round *round, size_t index)
{
    struct redlock_leg *leg = &round->legs[index];
    redisReply *reply = NULL;
    if (hfi_redis_fetch(leg->connection) != HF_OK || hfi_redis_fetched(leg->connection, &reply) != HF_OK) {
        hfi_fail(&round->trouble, HF_UNAVAILABLE, 0, "a master closed the connection before it answered");
        fail(round, index);
    } else if (reply && hfi_redis_is_error(reply, "NOSCRIPT")) {
        freeReplyObject(reply);
        send_again(round, index);
    } else if (reply && reply->type == REDIS_REPLY_ERROR) {
        hfi_redis_refusal(reply, "", &round->trouble);
        freeReplyObject(reply);
        fail(round, index); /* a script may be refused half-way: `sent` stays */
    } else if (reply) {
        leg->reply = reply;
        leg->state = REDLOCK_ANSWERED;
        if (leg->marked)
            round->lock->astray &= ~(1u << index);
        atomic_fetch_or(&round->store->loaded[index], script_bit(round->store, leg->command));
        leg->connection->used_ns = hfi_redis_now_ns();
        hfi_redis_give_back(&round->store->redis, round->store->masters[index], leg->connection);
        leg->connection = NULL;
        hfi_redlock_mark(round->store, round->store->masters[index], false);
    }
}

/* As far as it goes without waiting. */
static void advance(struct redlock_round *round, size_t index)
{
    struct redlock_leg *leg = &round->legs[index];
    const struct redis_node *node = round->store->masters[index];
    if (leg->state == REDLOCK_CONNECTING) {
        hf_status status = HF_OK;
        const enum redis_phase phase = leg->connection->phase;
        if (phase != REDIS_READY)
            status = hfi_redis_connect_step(leg->connection, &node->address, &round->store->redis.config.access,
                                            &round->trouble);
        if (leg->connection->phase != phase)
            leg->connection->used_ns = hfi_redis_now_ns();
        if (status == HF_TIMEOUT)
            return;
        leg->state = REDLOCK_SENT;
        if (status != HF_OK || !send_command(round, index))
            fail(round, index);
        return; /* there can be no answer yet */
    }
    read_answer(round, index);
}

/* --- all of them --- */

static bool is_pending(const struct redlock_leg *leg)
{
    return leg->state == REDLOCK_CONNECTING || leg->state == REDLOCK_SENT;
}

/* Those that are down only if `also_down`. */
static void start_all(struct redlock_round *round, bool also_down)
{
    struct redlock_store *store = round->store;
    bool down[REDLOCK_MASTERS_MOST];
    size_t up = 0;
    for (size_t i = 0; i < store->count; i++) {
        down[i] = hfi_redlock_is_down(store, store->masters[i]);
        up += !down[i];
    }
    /* The usher is the first of those that are up, and asked last: whom a release calls shall find the others free. */
    for (size_t i = store->count; i-- > 0;) {
        struct redlock_leg *leg = &round->legs[i];
        if (!leg->command || leg->state != REDLOCK_UNASKED)
            continue;
        const bool behind = round->lock && round->lock->late[i]; /* it needs no more than to be sent */
        if (down[i] && up >= store->quorum && !also_down && !behind && !(round->must & 1u << i))
            continue;
        start(round, i);
        if (is_pending(leg))
            advance(round, i);
    }
}

/* Some are not asked because they were down a moment ago. */
static bool spares_some(const struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++) {
        if (round->legs[i].command && round->legs[i].state == REDLOCK_UNASKED)
            return true;
    }
    return false;
}

/* There may be no majority without them: the others are down now. */
static bool needs_the_rest(const struct redlock_round *round, hfi_time fair_ns)
{
    size_t hopeful = 0;
    for (size_t i = 0; i < round->store->count; i++)
        hopeful += round->legs[i].state == REDLOCK_ANSWERED || is_pending(&round->legs[i]);
    return spares_some(round) && (hopeful < round->store->quorum || hfi_redis_now_ns() >= fair_ns);
}

/* It is decided, and nobody is left to wait for but those that failed the last time. */
static bool waits_in_vain(const struct redlock_round *round)
{
    struct redlock_store *store = round->store;
    size_t answered = 0, hopeful = 0;
    pthread_mutex_lock(&store->redis.mutex);
    for (size_t i = 0; i < store->count; i++) {
        answered += round->legs[i].state == REDLOCK_ANSWERED;
        hopeful += is_pending(&round->legs[i]) && store->masters[i]->failures == 0;
    }
    pthread_mutex_unlock(&store->redis.mutex);
    return hopeful == 0 && (round->decided ? round->decided(round) : answered >= store->quorum);
}

/* Sleeps until one of those that are pending has something. False: the deadline came, or nobody is pending. */
static bool wait_for_any(struct redlock_round *round, hfi_time deadline_ns)
{
    struct pollfd fds[REDLOCK_MASTERS_MOST];
    size_t index[REDLOCK_MASTERS_MOST];
    nfds_t count = 0;
    for (size_t i = 0; i < round->store->count; i++) {
        const struct redlock_leg *leg = &round->legs[i];
        if (!is_pending(leg))
            continue;
        index[count] = i;
        fds[count].fd = leg->connection->fd;
        fds[count++].events = leg->state == REDLOCK_SENT ? POLLIN : leg->connection->wants;
    }
    const hfi_time left = deadline_ns - hfi_redis_now_ns();
    if (count == 0 || left <= 0)
        return false;
    const struct timespec time = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
    if (ppoll(fds, count, &time, NULL) <= 0)
        return true; /* interrupted, or the deadline, which is noticed next */
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].revents)
            advance(round, index[i]);
    }
    return true;
}

/* Connections that are still busy are kept for the next round. */
static void leave_pending(struct redlock_round *round, bool too_late, hfi_time begun)
{
    const hfi_time now = hfi_redis_now_ns();
    for (size_t i = 0; i < round->store->count; i++) {
        struct redlock_leg *leg = &round->legs[i];
        struct redis_node *node = round->store->masters[i];
        if (leg->state == REDLOCK_CONNECTING || (leg->state == REDLOCK_SENT && leg->connection->owed))
            advance(round, i); /* with what came in the meantime: nobody is blamed for our not listening */
        if (!is_pending(leg))
            continue;
        /* Also a majority that is faster each time must not hide that a master has stopped. */
        const hfi_time silent_since = leg->state == REDLOCK_CONNECTING ? leg->connection->used_ns
                                      : leg->connection->owed          ? leg->connection->owed_ns
                                                                       : begun;
        if (too_late) {
            hfi_fail(&round->trouble, HF_UNAVAILABLE, 0, "%.100s:%s did not answer in time", node->address.host,
                     node->address.port);
            round->failed++;
        }
        const bool late = leg->state == REDLOCK_SENT;
        if (late && leg->connection->owed++ == 0)
            leg->connection->owed_ns = begun;
        /* … nor may it be asked ever more: its connection would be given up, and with it the releases on their way. */
        if (now - silent_since > FAIR_TIME || leg->connection->owed > SHARED_OWED_MOST)
            hfi_redlock_mark(round->store, node, true);
        leg->state = REDLOCK_FAILED;
        if (late && round->lock)
            round->lock->late[i] = leg->connection;
        else
            hfi_redis_give_back(&round->store->redis, node, leg->connection);
        leg->connection = NULL;
    }
}

void hfi_redlock_ask(struct redlock_round *round, bool (*enough)(const struct redlock_round *round),
                     hfi_time deadline_ns)
{
    const hfi_time begun = hfi_redis_now_ns();
    if (round->sent_ns == 0) { /* else some have been asked before */
        round->sent_ns = round->store->redis.env->now_ns();
        hfi_fail(&round->trouble, HF_UNAVAILABLE, 0, "a master was out of reach a moment ago");
    }
    const hfi_time fair = begun + FAIR_TIME < deadline_ns ? begun + FAIR_TIME : deadline_ns;
    start_all(round, false);
    bool more = true;
    while (!enough(round) && more && !waits_in_vain(round)) {
        if (needs_the_rest(round, fair))
            start_all(round, true);
        const bool spared = spares_some(round);
        more = wait_for_any(round, spared ? fair : deadline_ns) || (spared && !hfi_redlock_all_answered(round));
    }
    leave_pending(round, !more, begun);
}

static bool nobody_is_connecting(const struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++) {
        if (round->legs[i].state == REDLOCK_CONNECTING)
            return false;
    }
    return true;
}

void hfi_redlock_reach(struct redlock_store *store, struct redlock_lock *lock, struct redis_command *command,
                       uint32_t masters, hfi_time most)
{
    struct redlock_round round = { .store = store, .lock = lock, .must = masters };
    for (size_t i = 0; i < store->count; i++)
        round.legs[i].command = masters & 1u << i ? command : NULL;
    hfi_redlock_ask(&round, nobody_is_connecting, hfi_redis_now_ns() + most);
    for (size_t i = 0; lock && i < store->count; i++)
        lock->maybe &= round.legs[i].state == REDLOCK_ANSWERED ? ~(1u << i) : ~0u;
    hfi_redlock_end(&round);
}

uint32_t hfi_redlock_untold(const struct redlock_round *round)
{
    uint32_t masters = 0;
    for (size_t i = 0; i < round->store->count; i++)
        masters |= round->legs[i].command && !round->legs[i].sent ? 1u << i : 0;
    return masters;
}

bool hfi_redlock_all_answered(const struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++) {
        if (is_pending(&round->legs[i]))
            return false;
    }
    return true;
}

void hfi_redlock_share(struct redlock_store *store, struct redlock_lock *lock)
{
    for (size_t i = 0; i < store->count; i++) {
        struct redis_connection *late = lock->late[i];
        if (!late || late->owed > SHARED_OWED_MOST)
            continue;
        lock->shared[i] = late->number;
        lock->late[i] = NULL;
        hfi_redis_give_back(&store->redis, store->masters[i], late);
    }
}

void hfi_redlock_settle(struct redlock_store *store, struct redlock_lock *lock)
{
    for (size_t i = 0; i < store->count; i++) {
        if (!lock->late[i])
            continue;
        note_astray(lock, i); /* if it is released once more, on another one */
        hfi_redis_give_back(&store->redis, store->masters[i], lock->late[i]);
        lock->late[i] = NULL;
    }
}

void hfi_redlock_drain(struct redlock_store *store)
{
    const hfi_time most = store->redis.config.timeout_ns ? store->redis.config.timeout_ns : DRAIN_MOST;
    const hfi_time deadline = hfi_redis_now_ns() + most;
    for (size_t i = 0; i < store->count; i++) {
        /* Also one that was slow a moment ago: it is those that have not read the release yet. */
        for (struct redis_connection *one = store->masters[i]->idle; one; one = one->next) {
            redisReply *reply = NULL;
            while (one->owed && hfi_redis_ready_by(one->fd, POLLIN, deadline) && hfi_redis_fetch(one) == HF_OK &&
                   hfi_redis_fetched(one, &reply) == HF_OK)
                freeReplyObject(reply);
        }
    }
}

void hfi_redlock_end(struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++)
        freeReplyObject(round->legs[i].reply);
}
