/* SPDX-License-Identifier: MIT
 *
 * redis_subscription.c: how a waiter hears that the lock was handed to it, or that it is worth asking again. One
 * connection per client and server subscribes to the client's own channel; or, where the dialect or a cluster's sharded
 * publishing asks for it, to one channel for each lock that is waited for.
 *
 * One of the waiting threads is on duty: it listens for all of them, so that a message goes from the socket to the
 * thread it is for without a detour; when it leaves, it wakes another one to take over.
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

/* Makes sure that there is a connection to listen to. */
static hf_status open_push(struct redis_store *store, struct redis_node *node, hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *connection = NULL;
    pthread_mutex_lock(&store->mutex);
    const bool there = node->push.connection != NULL, demoted = node->demoted;
    pthread_mutex_unlock(&store->mutex);
    if (there)
        return HF_OK;
    hf_status status = connect_push(store, node, demoted, &connection, deadline_ns, err);
    if (status == HF_OK && !store->by_channels)
        status = subscribe_client(store, connection, deadline_ns, err);
    pthread_mutex_lock(&store->mutex);
    if (status == HF_OK && !node->push.connection) { /* else another thread was faster */
        node->push.connection = connection;
        node->demoted = false;
        node->push.number++;
        node->push.heard_ns = store->env->now_ns();
        node->push.pinged_ns = 0;
        node->push.unsubscribed = 0;
        connection = NULL;
    }
    pthread_mutex_unlock(&store->mutex);
    hfi_redis_disconnect(connection);
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

static bool get_wait(struct redis_lock *lock)
{
    if (!lock->wait)
        lock->wait = hfi_alloc(sizeof *lock->wait);
    return lock->wait;
}

static void link_lock(struct redis_node *node, struct redis_lock *lock, struct hfi_owner owner)
{
    lock->wait->serial = owner.serial;
    lock->wait->node = node;
    lock->wait->push_number = node->push.number;
    struct redis_push *push = &node->push;
    lock->wait->next = NULL;
    lock->wait->prev = push->last_waiting;
    *(push->last_waiting ? &push->last_waiting->wait->next : &push->waiting) = lock;
    push->last_waiting = lock;
}

static void unlink_lock(const struct redis_store *store, struct redis_lock *lock)
{
    struct redis_push *push = &lock->wait->node->push;
    struct redis_wait *wait = lock->wait;
    *(wait->prev ? &wait->prev->wait->next : &push->waiting) = wait->next;
    *(wait->next ? &wait->next->wait->prev : &push->last_waiting) = wait->prev;
    if (!push->waiting)
        push->silence = 0;
    lock->wait->node = NULL;
    if (lock->wait->channel)
        leave_channel(store, push, lock->wait->channel);
    lock->wait->channel = NULL;
}

static void lose_push(struct redis_node *node);

static hf_status subscribe_lock(const struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                                const struct hfi_request *request, hf_error *err)
{
    const struct redis_dialect *dialect = store->config.dialect;
    redis_keys keys;
    char channel[HFI_REDIS_KEY_MAX];
    if (!get_wait(lock))
        return hfi_fail(err, HF_NOMEM, 0, "no memory to wait with");
    if (lock->wait->node && lock->wait->node != node)
        unlink_lock(store, lock);
    if (lock->wait->channel && lock->wait->push_number == node->push.number)
        return HF_OK;
    dialect->keys(keys, store, request->name, request->owner);
    dialect->channel(channel, keys, store->env->client);
    lock->wait->channel = use_channel(store, &node->push, channel);
    if (!lock->wait->channel) {
        lose_push(node); /* nobody may be listening who would notice, and everybody after us would fail like this */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection to listen to broke");
    }
    lock->wait->refused = false;
    lock->wait->push_number = node->push.number;
    if (!lock->wait->node)
        link_lock(node, lock, request->owner);
    return HF_OK;
}

static bool listen_for(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                       hfi_time deadline_ns, bool confirmation);

hf_status hfi_redis_subscribe(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                              const struct hfi_request *request, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = open_push(store, node, deadline_ns, err);
    if (status != HF_OK || !store->by_channels)
        return status;
    pthread_mutex_lock(&store->mutex);
    status = subscribe_lock(store, node, lock, request, err);
    const bool confirmed = status == HF_OK && lock->wait->channel->confirmed;
    pthread_mutex_unlock(&store->mutex);
    if (status != HF_OK || confirmed)
        return status;
    listen_for(store, lock, request, deadline_ns, true); /* until the server has confirmed it */
    pthread_mutex_lock(&store->mutex);
    if (lock->wait->refused) {
        if (err)
            *err = node->push.refusal;
        status = node->push.refusal.status;
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

/* --- messages; with the mutex --- */

static void tell(struct redis_lock *lock, const struct redis_lock *listener, enum redis_state state)
{
    lock->state = state;
    if (lock->wait->waker && lock != listener)
        hfi_waker_wake(lock->wait->waker);
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
static void take_message(const struct redis_store *store, const struct redis_node *node,
                         const struct redis_lock *listener, const char *text)
{
    const bool gifts = store->config.dialect->gifts;
    uint64_t serial, token, seconds, microseconds, tokens = 1;
    if (!read_number(&text, &serial))
        return;
    struct redis_lock *lock = node->push.waiting;
    while (lock && lock->wait->serial != serial)
        lock = lock->wait->next;
    if (!lock) /* it has left: its release() has given the lock back, or is going to */
        return;
    if (!gifts && !*text && lock->state == REDIS_NEW)
        tell(lock, listener, REDIS_CALLED);
    if (!gifts || !read_number(&text, &token) || !read_number(&text, &seconds) || !read_number(&text, &microseconds))
        return;
    if (*text && (!read_number(&text, &tokens) || tokens == 0 || tokens > HFI_TOKENS_MOST))
        return;
    if (*text || token == 0 || seconds == 0 || seconds > INT32_MAX * 4ULL || microseconds > 999999)
        return; /* times beyond reason are no times */
    lock->wait->token = token;
    lock->wait->tokens = (uint32_t)tokens;
    lock->wait->given_us = (int64_t)(seconds * 1000000 + microseconds);
    tell(lock, listener, REDIS_GIVEN);
}

/* On a channel that others share: "0" is for one of us, whichever, and anything else for all. */
static void take_shared(const struct redis_node *node, const struct redis_lock *listener, const char *channel,
                        const char *text)
{
    const bool one = strcmp(text, "0") == 0;
    for (struct redis_lock *lock = node->push.waiting; lock; lock = lock->wait->next) {
        if (lock->state != REDIS_NEW || !lock->wait->channel || strcmp(lock->wait->channel->name, channel) != 0)
            continue;
        tell(lock, listener, REDIS_CALLED);
        if (one)
            return;
    }
}

static void take_confirmation(struct redis_node *node, const struct redis_lock *listener, const char *name)
{
    struct redis_channel *channel = *find_channel(&node->push, name);
    if (channel)
        channel->confirmed = true;
    for (struct redis_lock *lock = node->push.waiting; lock; lock = lock->wait->next) {
        if (channel && lock->wait->channel == channel && lock->wait->waker && lock != listener)
            hfi_waker_wake(lock->wait->waker);
    }
}

void hfi_redis_forget_channels(struct redis_push *push)
{
    for (struct redis_channel *next; push->channels; push->channels = next) {
        next = push->channels->next;
        hfi_free(push->channels);
    }
}

/* Whatever is missed from now on must be asked for. */
static void lose_push(struct redis_node *node)
{
    hfi_redis_disconnect(node->push.connection);
    node->push.connection = NULL;
    hfi_redis_forget_channels(&node->push);
    for (struct redis_lock *lock = node->push.waiting; lock; lock = lock->wait->next) {
        lock->wait->channel = NULL;
        if (lock->wait->waker)
            hfi_waker_wake(lock->wait->waker);
    }
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
    for (struct redis_lock *lock = node->push.waiting; lock; lock = lock->wait->next) {
        if (lock->state != REDIS_NEW)
            continue;
        lock->state = REDIS_CALLED;
        if (lock->wait->waker)
            hfi_waker_wake(lock->wait->waker);
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
    for (struct redis_lock *lock = node->push.waiting; lock; lock = lock->wait->next)
        lock->wait->refused = lock->wait->channel && !lock->wait->channel->confirmed;
}

/* False: the push connection is of no use any more. */
static bool take(const struct redis_store *store, struct redis_node *node, const struct redis_lock *listener,
                 const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR && store->by_channels) {
        take_refusal(node, reply);
        return false;
    }
    if (hfi_redis_is_about(reply, "message") && reply->element[2]->type == REDIS_REPLY_STRING) {
        if (store->config.dialect->own_channels)
            take_shared(node, listener, reply->element[1]->str, reply->element[2]->str);
        else
            take_message(store, node, listener, reply->element[2]->str);
    } else if (hfi_redis_is_about(reply, "subscribe")) {
        take_confirmation(node, listener, reply->element[1]->str);
    } else if (hfi_redis_is_about(reply, "unsubscribe") && store->by_channels) {
        if (node->push.unsubscribed == 0) /* not by us: the slot has moved */
            return false;
        node->push.unsubscribed--;
    }
    return true;
}

/* Takes what has come, in one read as a rule. `listener` is awake. */
static void hear(const struct redis_store *store, struct redis_node *node, const struct redis_lock *listener)
{
    redisReply *reply = NULL;
    bool useful = true;
    hf_status status = hfi_redis_fetch(node->push.connection);
    while (useful && status == HF_OK && (status = hfi_redis_fetched(node->push.connection, &reply)) == HF_OK && reply) {
        node->push.heard_ns = store->env->now_ns();
        node->push.pinged_ns = 0;
        useful = take(store, node, listener, reply);
        freeReplyObject(reply);
    }
    if (status != HF_OK || !useful)
        lose_push(node);
}

/* --- waiting --- */

bool hfi_redis_expect(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                      struct hfi_owner owner)
{
    pthread_mutex_lock(&store->mutex);
    if (hfi_redis_node_of(lock) && lock->wait->node != node)
        unlink_lock(store, lock);
    bool can_take_push = node->push.connection && get_wait(lock);
    if (store->by_channels)
        can_take_push = can_take_push && lock->wait->channel && lock->wait->channel->confirmed;
    else if (lock->wait)
        lock->wait->push_number = node->push.number;
    if (can_take_push && !lock->wait->node)
        link_lock(node, lock, owner);
    pthread_mutex_unlock(&store->mutex);
    return can_take_push;
}

/* With the mutex. The channel may be gone with its last user. */
static void pass_call_on(const struct redis_node *node, const struct redis_channel *channel)
{
    struct redis_lock *lock = node->push.waiting;
    while (lock && (lock->wait->channel != channel || lock->state != REDIS_NEW))
        lock = lock->wait->next;
    if (!lock)
        return;
    lock->state = REDIS_CALLED;
    if (lock->wait->waker)
        hfi_waker_wake(lock->wait->waker);
}

/* Somebody must go on listening: a thread that sleeps, rather than an operation, which needs one first. */
static void pass_duty_on(const struct redis_node *node)
{
    const bool threads = node->push.sleeping > 0;
    const struct redis_lock *lock = node->push.waiting;
    while (lock && (!lock->wait->waker || (threads && lock->wait->parked)))
        lock = lock->wait->next;
    if (lock)
        hfi_waker_wake(lock->wait->waker);
}

void hfi_redis_expect_no_more(struct redis_store *store, struct redis_lock *lock, enum redis_state state)
{
    pthread_mutex_lock(&store->mutex);
    struct redis_node *node = hfi_redis_node_of(lock);
    const bool parked = node && lock->wait->waker; /* it may have been called to listen, and does not come */
    /* Called, and gone before it could ask: the call is for another one of us. */
    const struct redis_channel *channel =
        node && lock->state == REDIS_CALLED && state == REDIS_NEW && store->config.dialect->own_channels
            ? lock->wait->channel
            : NULL;
    if (node)
        unlink_lock(store, lock);
    hfi_free(lock->wait);
    lock->wait = NULL;
    lock->state = state;
    if (channel)
        pass_call_on(node, channel);
    if (parked && !node->push.on_duty)
        pass_duty_on(node);
    pthread_mutex_unlock(&store->mutex);
}

/* With the mutex. Whether there is still something to wait for. */
static bool no_news(const struct redis_store *store, const struct redis_lock *lock, const struct redis_node *node)
{
    return (lock->state == REDIS_NEW || lock->state == REDIS_HELD) && node->push.connection &&
           node->push.number == lock->wait->push_number && (lock->wait->channel || !store->by_channels);
}

static hfi_time silence_of(const struct hfi_request *request)
{
    const hfi_time third = request->ttl_ms * HFI_MS / 3;
    return third < SILENCE_LEAST ? SILENCE_LEAST : third < SILENCE_MOST ? third : SILENCE_MOST;
}

/* Its own, or of those that leave it to the listener. */
static hfi_time shortest_silence(const struct redis_push *push, const struct hfi_request *request)
{
    const hfi_time own = silence_of(request);
    return push->silence && push->silence < own ? push->silence : own;
}

/* When a push connection that is silent has to be looked after. */
static hfi_time due(const struct redis_push *push, hfi_time silence)
{
    return push->pinged_ns ? push->pinged_ns + (silence < PONG_LEAST ? PONG_LEAST : silence) : push->heard_ns + silence;
}

/* With the mutex. Any waiter does this, on duty or not, by its own measure. */
static void look_after_push(const struct redis_store *store, struct redis_node *node, const struct redis_lock *listener,
                            hfi_time silence)
{
    struct redis_push *push = &node->push;
    const hfi_time now = store->env->now_ns();
    if (!push->connection || now < due(push, silence))
        return;
    hear(store, node, listener); /* it may be us who slept */
    if (!push->connection || now < due(push, silence))
        return;
    if (push->pinged_ns || !say(push->connection, "PING", NULL))
        lose_push(node);
    else
        push->pinged_ns = now;
}

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* `confirmation`: only for that of its channel, which another thread may have heard already. */
static bool listen_for(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                       hfi_time deadline_ns, bool confirmation)
{
    struct hfi_waker *const waker = request->waker;
    bool in_time = true;
    pthread_mutex_lock(&store->mutex);
    struct redis_node *node = hfi_redis_node_of(lock);
    if (node) {
        lock->wait->waker = waker;
        lock->wait->parked = false;
        node->push.sleeping++;
    }
    while (in_time && node && !hfi_waker_called_back(waker) &&
           (confirmation ? lock->wait->channel && !lock->wait->channel->confirmed : no_news(store, lock, node))) {
        const bool duty = !node->push.on_duty;
        const uint64_t number = node->push.number;
        const hfi_time silence = shortest_silence(&node->push, request), look = due(&node->push, silence);
        struct pollfd push = { .fd = node->push.connection->fd, .events = POLLIN };
        node->push.on_duty = true;
        if (duty)
            node->push.listener = waker;
        pthread_mutex_unlock(&store->mutex);
        in_time = hfi_waker_sleep(waker, &push, duty ? 1 : 0, earlier(look, deadline_ns)) || look < deadline_ns;
        pthread_mutex_lock(&store->mutex);
        if (duty)
            node->push.on_duty = false;
        if (duty && push.revents && node->push.connection && node->push.number == number)
            hear(store, node, lock);
        if (node->push.number == number)
            look_after_push(store, node, lock, silence);
    }
    if (node) {
        lock->wait->waker = NULL;
        node->push.sleeping--;
    }
    if (node && !node->push.on_duty)
        pass_duty_on(node);
    const bool news = lock->state == REDIS_GIVEN || lock->state == REDIS_CALLED;
    pthread_mutex_unlock(&store->mutex);
    return in_time || news;
}

bool hfi_redis_listen(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                      hfi_time deadline_ns)
{
    return listen_for(store, lock, request, deadline_ns, false);
}

bool hfi_redis_leave_to_listener(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request,
                                 hfi_time until_ns)
{
    pthread_mutex_lock(&store->mutex);
    struct redis_node *node = hfi_redis_node_of(lock);
    const bool leaves = node && node->push.on_duty && no_news(store, lock, node) &&
                        !hfi_waker_called_back(request->waker) && store->env->now_ns() < until_ns;
    if (leaves) {
        const hfi_time silence = silence_of(request);
        lock->wait->waker = request->parked;
        lock->wait->parked = true;
        if (!node->push.silence || silence < node->push.silence) {
            node->push.silence = silence;
            hfi_waker_wake(node->push.listener); /* which may look less often */
        }
    }
    pthread_mutex_unlock(&store->mutex);
    return leaves;
}
