/* SPDX-License-Identifier: MIT
 *
 * redis_subscription.c: how a waiter hears that the lock was handed to it, or that it is worth asking again. One
 * connection per client and server subscribes to the client's own channel; or, where the dialect or a cluster's sharded
 * publishing asks for it, to one channel for each lock that is waited for. Who reads it: see push.h.
 *
 * A connection can die without a word while the server goes on taking us for its listener, and hands locks to nobody.
 * So one that was silent for as long as a holder would be before it renews is sent a PING, and given up if nothing
 * comes back. Where messages come, and where nobody waits, nothing is sent.
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_CHANNELS_MOST 64u
/* How long a connection may be silent: a third of the time-to-live that is waited with, but within these bounds. */
#define SILENCE_LEAST (100 * HFI_MS)
#define SILENCE_MOST (10 * HFI_SECOND)
/* As long again for the answer, but not less: together no more than the time-to-live and the claim time. */
#define PONG_LEAST (HFI_REDIS_CLAIM_MS * HFI_MS)

/* --- silence; with the mutex --- */

/* When a push connection that is silent has to be looked after. */
static hfi_time due(const struct redis_push *push)
{
    const hfi_time patience = push->silence < PONG_LEAST ? PONG_LEAST : push->silence;
    return push->pinged_ns ? push->pinged_ns + patience : push->heard_ns + push->silence;
}

/* Nobody has to wait for longer in vain than who waits with this time-to-live. */
static void limit_silence(struct redis_node *node, struct redis_lock *lock, uint32_t ttl_ms)
{
    const hfi_time third = ttl_ms * HFI_MS / 3;
    lock->wait->silence = third < SILENCE_LEAST ? SILENCE_LEAST : third < SILENCE_MOST ? third : SILENCE_MOST;
    if (lock->wait->silence >= node->push.silence)
        return;
    node->push.silence = lock->wait->silence;
    hfi_push_look_at(&node->push.shared, due(&node->push));
}

/* --- subscribing --- */

bool hfi_redis_is_about(const redisReply *reply, const char *kind)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return false;
    const char *text = reply->element[0]->str;
    return strcmp(text, kind) == 0 || (text[0] == 's' && strcmp(text + 1, kind) == 0);
}

/* To the channel on which all that is for this client is published. */
static hf_status subscribe_client(struct redis_store *store, struct redis_connection *push, hfi_time deadline_ns,
                                  hf_error *err)
{
    char channel[32];
    struct redis_command command = { REDIS_ROOM(2) };
    redisReply *reply = NULL;
    snprintf(channel, sizeof channel, "hf:c:%016llx", (unsigned long long)store->env->client);
    hfi_redis_add(&command, "SUBSCRIBE");
    hfi_redis_add(&command, channel);
    hf_status status = hfi_redis_send(push, &command, 1, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_redis_receive(push, &reply, deadline_ns, err);
    if (status == HF_OK && !hfi_redis_is_about(reply, "subscribe")) {
        status = hfi_redis_refusal(reply, channel, err);
    } else if (status != HF_OK) {
        status = HF_UNAVAILABLE; /* nothing but a subscription is unknown */
        if (err)
            err->status = status;
    }
    freeReplyObject(reply);
    return status;
}

/* A replica passes on what its master publishes, but the master does not count those who hear it there: it takes them
 * for dead. So after a demotion only a master is listened to, if we may ask for its role. */
static hf_status connect_push(struct redis_store *store, const struct redis_node *node, bool demoted,
                              struct redis_connection **out, hfi_time deadline_ns, hf_error *err)
{
    struct redis_access access = store->config.access;
    access.master = access.master || demoted;
    const hf_status status = hfi_redis_connect(out, &node->address, &access, deadline_ns, err);
    if ((status != HF_DENIED && status != HF_UNSUPPORTED) || !demoted)
        return status;
    return hfi_redis_connect(out, &node->address, &store->config.access, deadline_ns, err);
}

/* Nobody else does so now. */
static hf_status make_push(struct redis_store *store, struct redis_node *node, bool demoted, hfi_time deadline_ns,
                           hf_error *err)
{
    struct redis_connection *connection = NULL;
    hf_status status = connect_push(store, node, demoted, &connection, deadline_ns, err);
    if (status == HF_OK && !store->by_channels)
        status = subscribe_client(store, connection, deadline_ns, err);
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        return status;
    }
    pthread_mutex_lock(&store->mutex);
    node->push.connection = connection;
    node->demoted = false;
    node->push.heard_ns = store->env->now_ns();
    node->push.pinged_ns = 0;
    node->push.unsubscribed = 0;
    hfi_push_connected(&node->push.shared, connection->fd, due(&node->push));
    pthread_mutex_unlock(&store->mutex);
    return HF_OK;
}

static bool get_wait(struct redis_lock *lock)
{
    if (!lock->wait && (lock->wait = hfi_alloc(sizeof *lock->wait)) != NULL)
        lock->wait->lock = lock;
    return lock->wait;
}

/* Makes sure that there is a connection to listen to, or has it parked until there is. */
static hf_status open_push(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                           const struct hfi_request *request, hfi_time deadline_ns, hf_error *err)
{
    struct hfi_push *push = &node->push.shared;
    hf_error trouble = { .message = "" };
    hf_status status;
    pthread_mutex_lock(&store->mutex);
    if (!get_wait(lock)) {
        pthread_mutex_unlock(&store->mutex);
        return hfi_fail(err, HF_NOMEM, 0, "no memory to wait with");
    }
    const bool mine = hfi_push_open(push, &lock->wait->waiter, request, &status, err), demoted = node->demoted;
    pthread_mutex_unlock(&store->mutex);
    if (!mine)
        return status;
    trouble.status = status = make_push(store, node, demoted, deadline_ns, &trouble);
    /* Who had little time for it knows nothing. */
    const bool tells = status != HF_OK && deadline_ns < request->deadline_ns;
    pthread_mutex_lock(&store->mutex);
    hfi_push_opened(push, tells ? &trouble : NULL);
    pthread_mutex_unlock(&store->mutex);
    if (status != HF_OK && err)
        *err = trouble;
    return status;
}

/* With the mutex. A command of a word or two to a connection that has room for it; its answer comes as a message. */
static bool say(struct redis_connection *push, const char *verb, const char *channel)
{
    struct redis_command command = { REDIS_ROOM(2) };
    hfi_redis_add(&command, verb);
    if (channel)
        hfi_redis_add(&command, channel);
    return hfi_redis_send(push, &command, 1, hfi_redis_now_ns(), NULL) == HF_OK;
}

/* --- one channel for each lock; with the mutex --- */

static struct redis_channel **find_channel(struct redis_push *push, const char *name)
{
    struct redis_channel **link = &push->channels;
    while (*link && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    return link;
}

/* The channel `name`, subscribed to or on the way; NULL: no memory, or the push connection broke. */
static struct redis_channel *use_channel(const struct redis_store *store, struct redis_push *push, const char *name)
{
    struct redis_channel **link = find_channel(push, name);
    if (!*link) {
        struct redis_channel *channel = hfi_alloc(sizeof *channel + strlen(name) + 1);
        if (!channel || !push->connection ||
            !say(push->connection, store->sharded ? "SSUBSCRIBE" : "SUBSCRIBE", name)) {
            hfi_free(channel);
            return NULL;
        }
        memcpy(channel->name, name, strlen(name) + 1);
        *link = channel;
    }
    (*link)->users++;
    return *link;
}

/* A lock that is waited for now and then keeps its channel; of those that nobody uses any more, the oldest go. Only
 * those that were confirmed: one confirmation belongs to one subscription. */
static void leave_channel(const struct redis_store *store, struct redis_push *push, struct redis_channel *channel)
{
    unsigned idle = 0;
    channel->users--;
    for (const struct redis_channel *one = push->channels; one; one = one->next)
        idle += one->users == 0;
    struct redis_channel **link = &push->channels;
    while (idle > IDLE_CHANNELS_MOST && *link && ((*link)->users || !(*link)->confirmed))
        link = &(*link)->next;
    if (idle <= IDLE_CHANNELS_MOST || !*link)
        return;
    struct redis_channel *old = *link;
    if (push->connection && say(push->connection, store->sharded ? "SUNSUBSCRIBE" : "UNSUBSCRIBE", old->name))
        push->unsubscribed++;
    *link = old->next;
    hfi_free(old);
}

/* The lock that waits there. */
static struct redis_lock *lock_of(const struct hfi_waiter *waiter)
{
    return HFI_WAITER_OF(struct redis_wait, waiter, waiter)->lock;
}

static void stop_waiting(const struct redis_store *store, struct redis_lock *lock)
{
    struct redis_node *node = hfi_redis_node_of(lock);
    if (lock->wait->channel)
        leave_channel(store, &node->push, lock->wait->channel);
    lock->wait->channel = NULL;
    hfi_push_remove(&lock->wait->waiter);
}

static void lose_push(struct redis_node *node);

static hf_status subscribe_lock(const struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                                const struct hfi_request *request, hf_error *err)
{
    const struct redis_dialect *dialect = store->config.dialect;
    redis_keys keys;
    char channel[HFI_REDIS_KEY_MAX];
    if (hfi_redis_node_of(lock) && hfi_redis_node_of(lock) != node)
        stop_waiting(store, lock);
    if (lock->wait->channel && lock->wait->waiter.number == node->push.shared.number)
        return HF_OK;
    dialect->keys(keys, store, request->name, request->owner);
    dialect->channel(channel, keys, store->env->client);
    lock->wait->channel = use_channel(store, &node->push, channel);
    if (!lock->wait->channel) {
        lose_push(node); /* nobody may be listening who would notice, and everybody after us would fail like this */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection to listen to broke");
    }
    lock->wait->refused = false;
    hfi_push_add(&node->push.shared, &lock->wait->waiter, request->owner.serial);
    return HF_OK;
}

hf_status hfi_redis_subscribe(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                              const struct hfi_request *request, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = open_push(store, node, lock, request, deadline_ns, err);
    if (status != HF_OK || !store->by_channels)
        return status;
    pthread_mutex_lock(&store->mutex);
    status = subscribe_lock(store, node, lock, request, err);
    if (status == HF_OK && !lock->wait->channel->confirmed) { /* by the server */
        const struct hfi_request confirmation = { .waker = request->waker, .deadline_ns = deadline_ns };
        lock->wait->subscribes = true;
        lock->wait->waiter.ask_again_ns = HFI_NEVER;
        limit_silence(node, lock, request->ttl_ms);
        hfi_push_wait(&node->push.shared, &lock->wait->waiter, &confirmation);
        lock->wait->subscribes = false;
    }
    if (status == HF_OK && lock->wait->refused) {
        if (err)
            *err = node->push.refusal;
        status = node->push.refusal.status;
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

/* --- messages; with the mutex --- */

static void tell(struct redis_lock *lock, enum redis_state state)
{
    lock->state = state;
    hfi_push_call(lock->wait->waiter.push, &lock->wait->waiter);
}

/* Digits, and behind them a blank or the end. */
static bool read_number(const char **text, uint64_t *out)
{
    char *end;
    const bool digit = **text >= '0' && **text <= '9';
    *out = strtoull(*text, &end, 10);
    *text = *end == ' ' ? end + 1 : end;
    return digit && (*end == ' ' || *end == 0);
}

/* "serial token s us" for one of our waiting locks: a gift; and how many tokens are its own, if it is more than one.
 * Where there are no gifts, "serial": it is worth asking. */
static void take_message(const struct redis_node *node, const char *text)
{
    const bool gifts = node->store->config.dialect->gifts;
    uint64_t serial, token, seconds, microseconds, tokens = 1;
    if (!read_number(&text, &serial))
        return;
    const struct hfi_waiter *waiter = hfi_push_find(&node->push.shared, serial);
    if (!waiter) /* it has left: its release() has given the lock back, or is going to */
        return;
    struct redis_lock *lock = lock_of(waiter);
    if (!gifts && !*text && lock->state == REDIS_NEW)
        tell(lock, REDIS_CALLED);
    if (!gifts || !read_number(&text, &token) || !read_number(&text, &seconds) || !read_number(&text, &microseconds))
        return;
    if (*text && (!read_number(&text, &tokens) || tokens == 0 || tokens > HFI_TOKENS_MOST))
        return;
    if (*text || token == 0 || seconds == 0 || seconds > INT32_MAX * 4ULL || microseconds > 999999)
        return; /* times beyond reason are no times */
    lock->wait->token = token;
    lock->wait->tokens = (uint32_t)tokens;
    lock->wait->given_us = (int64_t)(seconds * 1000000 + microseconds);
    tell(lock, REDIS_GIVEN);
}

/* On a channel that others share: "0" is for one of us, whichever, and anything else for all. */
static void take_shared(const struct redis_node *node, const char *channel, const char *text)
{
    const bool one = strcmp(text, "0") == 0;
    for (const struct hfi_waiter *waiter = node->push.shared.first; waiter; waiter = waiter->next) {
        struct redis_lock *lock = lock_of(waiter);
        if (lock->state != REDIS_NEW || !lock->wait->channel || strcmp(lock->wait->channel->name, channel) != 0)
            continue;
        tell(lock, REDIS_CALLED);
        if (one)
            return;
    }
}

static void take_confirmation(struct redis_node *node, const char *name)
{
    struct redis_channel *channel = *find_channel(&node->push, name);
    if (channel)
        channel->confirmed = true;
    for (const struct hfi_waiter *waiter = node->push.shared.first; waiter; waiter = waiter->next) {
        if (channel && lock_of(waiter)->wait->channel == channel)
            hfi_push_call(&node->push.shared, waiter);
    }
}

static void forget_channels(struct redis_push *push)
{
    for (struct redis_channel *next; push->channels; push->channels = next) {
        next = push->channels->next;
        hfi_free(push->channels);
    }
}

static void lose_push(struct redis_node *node)
{
    hfi_redis_disconnect(node->push.connection);
    node->push.connection = NULL;
    forget_channels(&node->push);
    for (const struct hfi_waiter *waiter = node->push.shared.first; waiter; waiter = waiter->next)
        lock_of(waiter)->wait->channel = NULL;
    hfi_push_broken(&node->push.shared);
}

void hfi_redis_lose_push(struct redis_store *store, struct redis_node *node)
{
    pthread_mutex_lock(&store->mutex);
    lose_push(node);
    pthread_mutex_unlock(&store->mutex);
}

void hfi_redis_call_all(struct redis_store *store, struct redis_node *node)
{
    pthread_mutex_lock(&store->mutex);
    for (const struct hfi_waiter *waiter = node->push.shared.first; waiter; waiter = waiter->next) {
        if (lock_of(waiter)->state == REDIS_NEW)
            tell(lock_of(waiter), REDIS_CALLED);
    }
    pthread_mutex_unlock(&store->mutex);
}

static void take_refusal(struct redis_node *node, const redisReply *reply)
{
    hf_error *refusal = &node->push.refusal;
    if (hfi_redis_is_error(reply, "MOVED")) /* whoever asks next will be told where */
        hfi_fail(refusal, HF_UNAVAILABLE, 0, "the lock was moved to another server of the cluster");
    else
        hfi_redis_refusal(reply, "", refusal);
    for (const struct hfi_waiter *waiter = node->push.shared.first; waiter; waiter = waiter->next) {
        struct redis_wait *wait = lock_of(waiter)->wait;
        wait->refused = wait->channel && !wait->channel->confirmed;
    }
}

/* False: the push connection is of no use any more. */
static bool take(struct redis_node *node, const redisReply *reply)
{
    const struct redis_store *store = node->store;
    if (reply->type == REDIS_REPLY_ERROR && store->by_channels) {
        take_refusal(node, reply);
        return false;
    }
    if (hfi_redis_is_about(reply, "message") && reply->element[2]->type == REDIS_REPLY_STRING) {
        if (store->config.dialect->own_channels)
            take_shared(node, reply->element[1]->str, reply->element[2]->str);
        else
            take_message(node, reply->element[2]->str);
    } else if (hfi_redis_is_about(reply, "subscribe")) {
        take_confirmation(node, reply->element[1]->str);
    } else if (hfi_redis_is_about(reply, "unsubscribe") && store->by_channels) {
        if (node->push.unsubscribed == 0) /* not by us: the slot has moved */
            return false;
        node->push.unsubscribed--;
    }
    return true;
}

/* Takes what has come, in one read as a rule. */
static void take_all(struct redis_node *node)
{
    redisReply *reply = NULL;
    bool useful = true;
    hf_status status = hfi_redis_fetch(node->push.connection);
    while (useful && status == HF_OK && (status = hfi_redis_fetched(node->push.connection, &reply)) == HF_OK && reply) {
        node->push.heard_ns = node->store->env->now_ns();
        node->push.pinged_ns = 0;
        useful = take(node, reply);
        freeReplyObject(reply);
    }
    if (status != HF_OK || !useful)
        lose_push(node);
}

/* --- a connection that says nothing; with the mutex --- */

/* Those with the least patience may have left. */
static hfi_time least_silence(const struct redis_push *push)
{
    hfi_time least = SILENCE_MOST;
    for (const struct hfi_waiter *waiter = push->shared.first; waiter; waiter = waiter->next) {
        const hfi_time silence = lock_of(waiter)->wait->silence;
        least = silence && silence < least ? silence : least;
    }
    return least;
}

/* A server that has said nothing for too long is asked to, and given up when it does not answer. */
static void look_after_push(struct redis_node *node)
{
    struct redis_push *push = &node->push;
    const hfi_time now = node->store->env->now_ns();
    if (now >= due(push) && !push->pinged_ns)
        push->silence = least_silence(push);
    if (now >= due(push) && push->pinged_ns) {
        lose_push(node);
    } else if (now >= due(push)) {
        push->pinged_ns = now;
        if (!say(push->connection, "PING", NULL))
            lose_push(node);
    }
}

static void hear(struct hfi_push *shared)
{
    struct redis_node *node = hfi_redis_node_of_push(shared);
    take_all(node); /* before the server is blamed: it may be us who slept */
    if (node->push.connection)
        look_after_push(node);
    if (node->push.connection)
        hfi_push_look_at(shared, due(&node->push));
}

/* --- waiting --- */

static bool has_news(const struct hfi_waiter *waiter)
{
    const struct redis_wait *wait = HFI_WAITER_OF(struct redis_wait, waiter, waiter);
    if (hfi_redis_node_of_push(waiter->push)->store->by_channels && !wait->channel)
        return true;
    if (wait->subscribes)
        return wait->channel->confirmed;
    return wait->lock->state == REDIS_CALLED || wait->lock->state == REDIS_GIVEN;
}

void hfi_redis_push_init(struct redis_store *store, struct redis_node *node)
{
    node->store = store;
    node->push.silence = SILENCE_MOST;
    hfi_push_init(&node->push.shared, store->env, &store->mutex, -1, has_news, hear);
}

void hfi_redis_push_free(struct redis_node *node)
{
    hfi_redis_disconnect(node->push.connection);
    forget_channels(&node->push);
    hfi_push_free(&node->push.shared);
}

bool hfi_redis_expect(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                      struct hfi_owner owner)
{
    pthread_mutex_lock(&store->mutex);
    if (hfi_redis_node_of(lock) && hfi_redis_node_of(lock) != node)
        stop_waiting(store, lock);
    bool can_take_push = node->push.connection && get_wait(lock);
    if (store->by_channels)
        can_take_push = can_take_push && lock->wait->channel && lock->wait->channel->confirmed;
    if (can_take_push && !(store->by_channels && lock->wait->waiter.push))
        hfi_push_add(&node->push.shared, &lock->wait->waiter, owner.serial);
    pthread_mutex_unlock(&store->mutex);
    return can_take_push;
}

/* With the mutex. The channel may be gone with its last user. */
static void pass_call_on(const struct redis_node *node, const struct redis_channel *channel)
{
    const struct hfi_waiter *waiter = node->push.shared.first;
    while (waiter && (lock_of(waiter)->wait->channel != channel || lock_of(waiter)->state != REDIS_NEW))
        waiter = waiter->next;
    if (waiter)
        tell(lock_of(waiter), REDIS_CALLED);
}

void hfi_redis_expect_no_more(struct redis_store *store, struct redis_lock *lock, enum redis_state state)
{
    pthread_mutex_lock(&store->mutex);
    const struct redis_node *node = hfi_redis_node_of(lock);
    /* Called, and gone before it could ask: the call is for another one of us. */
    const struct redis_channel *channel =
        node && lock->wait && lock->state == REDIS_CALLED && state == REDIS_NEW && store->config.dialect->own_channels
            ? lock->wait->channel
            : NULL;
    if (node)
        stop_waiting(store, lock);
    else if (lock->wait)
        hfi_push_remove(&lock->wait->waiter);
    hfi_free(lock->wait);
    lock->wait = NULL;
    lock->state = state;
    if (channel)
        pass_call_on(node, channel);
    pthread_mutex_unlock(&store->mutex);
}

hf_status hfi_redis_listen(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request)
{
    hf_status status = HF_OK;
    pthread_mutex_lock(&store->mutex);
    struct redis_node *node = hfi_redis_node_of(lock);
    if (node) {
        limit_silence(node, lock, request->ttl_ms);
        status = hfi_push_wait(&node->push.shared, &lock->wait->waiter, request);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}
