/* SPDX-License-Identifier: MIT
 *
 * redlock_round.c: one question to several masters at once. Nothing here waits for one of them alone: connecting, TLS
 * and the log-in go on side by side, and a majority that has answered need not wait for the rest.
 *
 * A round is an operation of the loop; its legs, one for each master, are others, which no thread runs. The threads of
 * a client share a connection to each master: what they ask at the same time leaves in one write, and one of them reads
 * the answers for all. Whoever does not wait for an answer any more leaves it to be thrown away when it comes.
 *
 * So what is sent for a lock arrives behind what was sent for it before, a release behind its acquire, as long as the
 * connection is the same. If it is not, what was unanswered is astray, and the next request says so: see
 * redlock_script.c. A connection is not given up because an answer is late, and not reset when it is: releases of other
 * locks may be on their way, too.
 */
#include "engines/redis/redis_wire.h"
#include "loop/await.h"
#include "redlock.h"
#include <string.h>

/* A master that failed is left alone for so long, and twice as long after each further failure. */
#define DOWN_FIRST (50 * HFI_MS)
#define DOWN_MOST (2 * HFI_SECOND)
/* A master that was given less to answer in is not to be blamed if it did not. */
#define FAIR_TIME (200 * HFI_MS)
/* One that is not up by then will never be. */
#define CONNECT_MOST (5 * HFI_SECOND)
/* A master that owes so many answers which nobody waits for is left alone for a while; one that owes so many has
 * stopped, and is sent nothing more: it would be kept here. */
#define OWED_MOST 512u
#define OWED_TOO_MUCH 4096u
/* The same for what a socket had no room for: a few hundred renewals of many locks would be as much. */
#define UNSENT_MOST ((size_t)1 << 20)
/* How long close() waits for those that are slower than the majority, unless the URL says what an answer may take. */
#define DRAIN_MOST HFI_SECOND

/* Each is the first in its struct. */
static struct redlock_leg *leg_of(struct hfi_op *op)
{
    return (struct redlock_leg *)op;
}

static struct redlock_round *round_of(struct hfi_op *op)
{
    return (struct redlock_round *)op;
}

void hfi_redlock_mark(struct redlock_store *store, struct redis_node *node, bool failed)
{
    hfi_time pause = DOWN_FIRST;
    const hfi_time now = hfi_redis_now_ns();
    pthread_mutex_lock(&store->redis.mutex);
    if (failed && node->try_again_ns > now) { /* that is known: all that was under way fails with its connection */
        pthread_mutex_unlock(&store->redis.mutex);
        return;
    }
    for (unsigned i = 0; i < node->failures && pause < DOWN_MOST; i++)
        pause *= 2;
    node->failures = failed ? node->failures + 1 : 0;
    node->try_again_ns = failed ? now + (pause < DOWN_MOST ? pause : DOWN_MOST) : 0;
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

/* There is news of a leg. */
static void tell(struct redlock_round *round)
{
    if (round->op.withdraw)
        hfi_op_wake(&round->op, HF_OK);
}

static size_t index_of(const struct redlock_leg *leg)
{
    return (size_t)(leg - leg->round->legs);
}

static void fail(struct redlock_leg *leg)
{
    struct redlock_round *round = leg->round;
    if (leg->sent)
        note_astray(round->lock, index_of(leg));
    leg->state = REDLOCK_FAILED;
    round->failed++;
    hfi_redlock_mark(round->store, round->store->masters[index_of(leg)], true);
}

/* --- one leg --- */

static bool is_pending(const struct redlock_leg *leg)
{
    return leg->state == REDLOCK_CONNECTING || leg->state == REDLOCK_SENT;
}

static uint32_t script_bit(const struct redlock_leg *leg)
{
    return 1u << (leg->command->script - leg->round->store->scripts);
}

/* The answers that nobody waits for any more. */
static uint64_t owed(const struct redis_wire *wire)
{
    return wire->said - wire->answered - wire->waiting;
}

static bool has_stopped(const struct redis_wire *wire)
{
    return owed(wire) >= OWED_TOO_MUCH || (owed(wire) && wire->source.out.used + wire->plain.used >= UNSENT_MOST);
}

static struct redis_wire **slot_for(const struct redlock_round *round, size_t index)
{
    struct redis_node *node = round->store->masters[index];
    const struct redis_wire *wire = node->wire;
    return round->renews && wire && wire->said != wire->answered ? &node->renewing : &node->wire;
}

/* It needs no more than to be sent, behind what it follows. With the loop's mutex. */
static bool is_behind(const struct redlock_store *store, const struct redlock_lock *lock, size_t index)
{
    const struct redis_wire *wire = store->masters[index]->wire;
    return lock && lock->late[index] && wire && wire->connection->number == lock->late[index];
}

static bool start_connecting(struct redlock_leg *leg)
{
    struct redis_wire *wire = *leg->call.slot;
    if (wire && !wire->source.connected && hfi_loop_now_ns() - wire->used_ns >= CONNECT_MOST) {
        hfi_redis_wire_leave(wire);
        wire = NULL;
    }
    /* What follows a question that nobody waits for must not be lost with its connection: a release, say. While others
     * wait for answers, somebody reads anyway. */
    if (wire && wire->source.connected && wire->waiting == 0 &&
        is_behind(leg->round->store, leg->round->lock, index_of(leg)))
        hfi_redis_wire_look(wire);
    return hfi_redis_wire_start_ready(&leg->call);
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
static void prepare_command(struct redlock_leg *leg, const struct redis_wire *wire)
{
    struct redlock_lock *lock = leg->round->lock;
    struct redis_command *command = leg->command;
    const size_t index = index_of(leg);
    const bool takes = takes_mark(leg->round->store, command);
    if (lock && lock->late[index] && lock->late[index] != wire->connection->number)
        note_astray(lock, index);
    leg->marked = takes && lock && lock->astray & 1u << index;
    if (takes)
        command->text[command->count - 1] = leg->marked ? "1" : "";
    const bool whole = !(wire->scripts & script_bit(leg));
    command->text[0] = whole ? "EVAL" : "EVALSHA";
    command->text[1] = whole ? command->script->text : command->script->hash;
}

static bool start_sending(struct redlock_leg *leg)
{
    struct redlock_round *round = leg->round;
    const struct redis_wire *wire = *leg->call.slot;
    if (leg->call.op.over || (wire && has_stopped(wire))) {
        leg->call.op.woken = hfi_fail(&round->trouble, HF_UNAVAILABLE, 0, "a master has stopped answering");
        return false;
    }
    if (wire)
        prepare_command(leg, wire);
    if (!hfi_redis_wire_start_call(&leg->call))
        return false;
    leg->sent = true;
    leg->state = REDLOCK_SENT;
    if (round->lock)
        round->lock->late[index_of(leg)] = leg->call.wire->connection->number;
    tell(round);
    return true;
}

/* The server was restarted, or its scripts flushed: nothing was done. */
static bool lacks_script(struct redlock_leg *leg)
{
    struct redis_wire *wire = *leg->call.slot;
    const bool lacks = hfi_redis_is_error(leg->reply, "NOSCRIPT");
    if (lacks && wire)
        wire->scripts &= ~script_bit(leg);
    return lacks;
}

/* Not if it was concluded before it could go on, and has no reply any more: see leave_leg(). */
static bool goes_again(struct redlock_leg *leg)
{
    if (!is_pending(leg) || leg->call.op.woken != HF_OK || !lacks_script(leg) || leg->call.op.over)
        return false;
    freeReplyObject(leg->reply);
    leg->reply = NULL;
    leg->call.got = 0;
    leg->sent = false;
    return true;
}

/* A master no more, or not yet: the address, a name say, may lead to another one by now. */
static void leave_if_no_master(struct redlock_leg *leg)
{
    if (*leg->call.slot && (hfi_redis_is_replica(leg->reply) || hfi_redis_is_error(leg->reply, "LOADING")))
        hfi_redis_wire_leave(*leg->call.slot);
}

/* What came of it, if that is open still. */
static void conclude(struct redlock_leg *leg)
{
    struct redlock_round *round = leg->round;
    const size_t index = index_of(leg);
    if (!is_pending(leg))
        return;
    if (!leg->reply || leg->reply->type == REDIS_REPLY_ERROR) {
        if (leg->reply) {
            hfi_redis_refusal(leg->reply, "", &round->trouble);
            leave_if_no_master(leg);
            leg->sent = !lacks_script(leg); /* it may be refused half-way */
            freeReplyObject(leg->reply);
            leg->reply = NULL;
        }
        fail(leg);
    } else {
        leg->state = REDLOCK_ANSWERED;
        if (leg->marked)
            round->lock->astray &= ~(1u << index);
        if (round->lock)
            round->lock->late[index] = 0;
        if (*leg->call.slot)
            (*leg->call.slot)->scripts |= script_bit(leg);
        hfi_redlock_mark(round->store, round->store->masters[index], false);
    }
    tell(round);
}

static int ask_master(struct hfi_op *op)
{
    struct redlock_leg *const leg = leg_of(op);
    BEGIN(op->line);
    AWAIT(start_connecting(leg));
    if (op->woken == HF_OK) {
        do
            AWAIT(start_sending(leg));
        while (goes_again(leg));
    }
    END;
    conclude(leg);
    return (int)op->woken;
}

static void start(struct redlock_round *round, size_t index)
{
    struct redlock_leg *leg = &round->legs[index];
    struct redis_store *redis = &round->store->redis;
    leg->round = round;
    leg->state = REDLOCK_CONNECTING;
    leg->question = (struct redis_question){ .commands = leg->command, .count = 1, .sent_ns = round->sent_ns };
    leg->call.op.run = ask_master;
    leg->call.op.deadline_ns = leg->call.deadline_ns = HFI_NEVER; /* the round's counts */
    leg->call.store = redis;
    leg->call.node = round->store->masters[index];
    leg->call.slot = slot_for(round, index);
    leg->call.question = &leg->question;
    leg->call.replies = &leg->reply;
    leg->call.patient = true;
    leg->call.trouble = &round->trouble;
    hfi_op_begin(&redis->loop, &leg->call.op);
}

/* --- all of them --- */

/* Those that are down only if `also_down`. */
static void start_all(struct redlock_round *round, bool also_down)
{
    struct redlock_store *store = round->store;
    bool down[REDLOCK_MASTERS_MOST] = { false };
    size_t up = 0;
    for (size_t i = 0; i < store->count; i++) {
        down[i] = hfi_redlock_is_down(store, store->masters[i]);
        up += !down[i];
    }
    /* The usher is the first of those that are up, and told last, as the loop sends first what was said last: whom a
     * release calls shall find the others free. */
    for (size_t i = 0; i < store->count; i++) {
        if (!round->legs[i].command || round->legs[i].state != REDLOCK_UNASKED)
            continue;
        if (down[i] && up >= store->quorum && !also_down && !is_behind(store, round->lock, i) &&
            !(round->must & 1u << i))
            continue;
        start(round, i);
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
static bool needs_the_rest(const struct redlock_round *round)
{
    size_t hopeful = 0;
    for (size_t i = 0; i < round->store->count; i++)
        hopeful += round->legs[i].state == REDLOCK_ANSWERED || is_pending(&round->legs[i]);
    return hopeful < round->store->quorum && spares_some(round);
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

bool hfi_redlock_all_answered(const struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++) {
        if (is_pending(&round->legs[i]))
            return false;
    }
    return true;
}

static bool is_over(const struct redlock_round *round)
{
    return round->enough(round) || (hfi_redlock_all_answered(round) && !needs_the_rest(round)) || waits_in_vain(round);
}

/* --- its end --- */

/* Also a majority that is faster each time must not hide that a master has stopped, or that it falls behind; nor may it
 * be asked ever more then. */
static bool is_to_blame(const struct redlock_leg *leg, hfi_time now)
{
    struct redis_wire *wire = leg->call.wire;
    if (leg->state == REDLOCK_CONNECTING)
        return now - wire->used_ns > FAIR_TIME;
    if (wire->answered >= wire->judged_said) { /* all that was older */
        wire->judged_said = wire->said;
        wire->judged_ns = now;
    }
    return now - leg->round->begun_ns > FAIR_TIME || now - wire->judged_ns > FAIR_TIME || owed(wire) >= OWED_MOST;
}

static void leave_leg(struct redlock_leg *leg, bool too_late, hfi_time now)
{
    struct redlock_round *round = leg->round;
    struct redis_node *node = round->store->masters[index_of(leg)];
    bool blamed = leg->call.wire && is_to_blame(leg, now);
    if ((blamed || too_late) && leg->call.wire && leg->state == REDLOCK_SENT) {
        hfi_redis_wire_look(leg->call.wire); /* nobody is blamed for our not listening */
        blamed = leg->call.wire && is_to_blame(leg, now);
    }
    if (leg->state == REDLOCK_SENT && !leg->call.op.withdraw) /* it has ended this very moment */
        conclude(leg);
    if (!is_pending(leg))
        return;
    if (too_late) {
        hfi_fail(&round->trouble, HF_UNAVAILABLE, 0, "%.100s:%s did not answer in time", node->address.host,
                 node->address.port);
        round->failed++;
    }
    if (blamed)
        hfi_redlock_mark(round->store, node, true);
    leg->state = REDLOCK_FAILED;
}

/* What is still to come is not waited for. */
static void leave_pending(struct redlock_round *round, bool too_late)
{
    const hfi_time now = hfi_redis_now_ns();
    for (size_t i = 0; i < round->store->count; i++) {
        struct redlock_leg *leg = &round->legs[i];
        if (!is_pending(leg))
            continue;
        leave_leg(leg, too_late, now);
        hfi_op_interrupt(&leg->call.op);
    }
}

/* --- the round --- */

static hf_status withdraw_from_waiting(struct hfi_op *op)
{
    (void)op;
    return HF_UNAVAILABLE;
}

static bool start_waiting(struct redlock_round *round)
{
    hfi_op_park(&round->op, NULL, withdraw_from_waiting);
    return true;
}

/* Those that are spared are asked after a while, if the others have not decided it by then. */
static void limit(struct redlock_round *round)
{
    const hfi_time fair = round->begun_ns + FAIR_TIME;
    hfi_op_limit(&round->op, spares_some(round) && fair < round->deadline_ns ? fair : round->deadline_ns);
}

static int ask(struct hfi_op *op)
{
    struct redlock_round *const round = round_of(op);
    BEGIN(op->line);
    start_all(round, round->also_down);
    limit(round);
    while (!is_over(round) && !op->over) {
        if (needs_the_rest(round)) {
            start_all(round, true);
            limit(round);
        } else {
            AWAIT(start_waiting(round));
        }
    }
    END;
    const bool over = is_over(round);
    round->ended = over || !spares_some(round) || hfi_redis_now_ns() >= round->deadline_ns;
    if (round->ended)
        leave_pending(round, !over);
    return HF_OK;
}

void hfi_redlock_ask(struct redlock_round *round, bool (*enough)(const struct redlock_round *round),
                     hfi_time deadline_ns)
{
    round->begun_ns = hfi_redis_now_ns();
    if (round->sent_ns == 0) { /* else some have been asked before */
        round->sent_ns = round->store->redis.env->now_ns();
        hfi_fail(&round->trouble, HF_UNAVAILABLE, 0, "a master was out of reach a moment ago");
    }
    round->op.run = ask;
    round->op.deadline_ns = round->deadline_ns = deadline_ns;
    round->enough = enough;
    round->also_down = round->ended = false;
    for (; !round->ended; round->also_down = true)
        hfi_loop_run(&round->store->redis.loop, &round->op);
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

bool hfi_redlock_is_behind(struct redlock_store *store, const struct redlock_lock *lock, size_t index)
{
    hfi_loop_enter(&store->redis.loop);
    const bool behind = is_behind(store, lock, index);
    hfi_loop_leave(&store->redis.loop);
    return behind;
}

static bool never(const struct redlock_round *round)
{
    (void)round;
    return false;
}

void hfi_redlock_drain(struct redlock_store *store)
{
    const hfi_time most = store->redis.config.timeout_ns ? store->redis.config.timeout_ns : DRAIN_MOST;
    struct redlock_round round = { .store = store, .must = (1u << store->count) - 1, .decided = never };
    struct redis_command command = { REDIS_ROOM(3) };
    hfi_redis_add_script(&command, &store->scripts[REDLOCK_RENEW]);
    hfi_redis_add(&command, "0");
    hfi_loop_enter(&store->redis.loop);
    for (size_t i = 0; i < store->count; i++) {
        /* Also one that was slow a moment ago: it is those that have not read the release yet. */
        const struct redis_wire *wire = store->masters[i]->wire;
        if (wire && wire->source.connected && wire->said != wire->answered)
            round.legs[i].command = &command;
    }
    hfi_loop_leave(&store->redis.loop);
    hfi_redlock_ask(&round, hfi_redlock_all_answered, hfi_redis_now_ns() + most);
    hfi_redlock_end(&round);
}

void hfi_redlock_end(struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++)
        freeReplyObject(round->legs[i].reply);
}
