/* SPDX-License-Identifier: MIT
 *
 * redis_subscription.c: how a waiter hears that the lock was handed to it. One connection per client subscribes to the
 * client's own channel. One of the waiting threads is on duty: it listens for all of them, so that a message goes from
 * the socket to the thread it is for without a detour; when it leaves, it wakes another one to take over.
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True for { kind, channel, … }. */
static bool is_about(const redisReply *reply, const char *kind)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 && reply->element[0]->type == REDIS_REPLY_STRING &&
           strcmp(reply->element[0]->str, kind) == 0;
}

static hf_status open_ear(struct redis_store *store, struct redis_connection **out, hfi_time deadline_ns, hf_error *err)
{
    char channel[32];
    struct redis_command command = { 0 };
    const struct redis_command *const commands[1] = { &command };
    redisReply *reply = NULL;
    snprintf(channel, sizeof channel, "hf:c:%016llx", (unsigned long long)store->env->client);
    hfi_redis_add(&command, "SUBSCRIBE");
    hfi_redis_add(&command, channel);
    hf_status status = hfi_redis_connect(out, &store->config, store->tls, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = hfi_redis_send(*out, commands, 1, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_redis_receive(*out, &reply, deadline_ns, err);
    if (status == HF_OK && !is_about(reply, "subscribe")) {
        status = hfi_redis_refusal(reply, channel, err);
    } else if (status != HF_OK) {
        status = HF_UNAVAILABLE; /* nothing but a subscription is unknown */
        if (err)
            err->status = status;
    }
    freeReplyObject(reply);
    if (status != HF_OK) {
        hfi_redis_disconnect(*out);
        *out = NULL;
    }
    return status;
}

hf_status hfi_redis_subscribe(struct redis_store *store, uint64_t *number, hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *ear = NULL;
    pthread_mutex_lock(&store->mutex);
    const bool there = store->ear != NULL;
    *number = store->ear_number;
    pthread_mutex_unlock(&store->mutex);
    if (there)
        return HF_OK;
    const hf_status status = open_ear(store, &ear, deadline_ns, err);
    if (status != HF_OK)
        return status;
    pthread_mutex_lock(&store->mutex);
    if (!store->ear) { /* else another thread was faster */
        store->ear = ear;
        store->ear_number++;
        ear = NULL;
    }
    *number = store->ear_number;
    pthread_mutex_unlock(&store->mutex);
    hfi_redis_disconnect(ear);
    return HF_OK;
}

/* --- messages; with the mutex --- */

/* "serial token s us" for one of our waiting locks. */
static void take_message(struct redis_store *store, const struct redis_lock *listener, const char *text)
{
    char *end;
    const uint64_t serial = strtoull(text, &end, 10);
    const uint64_t token = strtoull(end, &end, 10);
    const int64_t seconds = strtoll(end, &end, 10);
    const int64_t microseconds = strtoll(end, &end, 10);
    struct redis_lock *lock = store->waiting;
    while (lock && lock->owner.serial != serial)
        lock = lock->next;
    /* It may have left: its release() has given the lock back, or is going to. And times beyond reason are no times. */
    if (!lock || *end || token == 0 || seconds <= 0 || seconds > INT32_MAX * 4LL || microseconds < 0 ||
        microseconds > 999999)
        return;
    lock->token = token;
    lock->given_us = seconds * 1000000 + microseconds;
    lock->state = REDIS_GIVEN;
    if (lock->waker && lock != listener)
        hfi_waker_wake(lock->waker);
}

/* Whatever is missed from now on must be asked for. */
static void lose_ear(struct redis_store *store)
{
    hfi_redis_disconnect(store->ear);
    store->ear = NULL;
    for (struct redis_lock *lock = store->waiting; lock; lock = lock->next) {
        if (lock->waker)
            hfi_waker_wake(lock->waker);
    }
}

/* Takes what has come, in one read as a rule. `listener` is awake. */
static void hear(struct redis_store *store, const struct redis_lock *listener)
{
    redisReply *reply = NULL;
    hf_status status = hfi_redis_fetch(store->ear);
    while (status == HF_OK && (status = hfi_redis_fetched(store->ear, &reply)) == HF_OK && reply) {
        if (is_about(reply, "message") && reply->element[2]->type == REDIS_REPLY_STRING)
            take_message(store, listener, reply->element[2]->str);
        freeReplyObject(reply);
    }
    if (status != HF_OK)
        lose_ear(store);
}

/* --- waiting --- */

bool hfi_redis_expect(struct redis_store *store, struct redis_lock *lock, struct hfi_owner owner)
{
    pthread_mutex_lock(&store->mutex);
    const bool can_hear = store->ear != NULL;
    lock->ear_number = store->ear_number;
    if (can_hear && !lock->expected) {
        lock->owner = owner;
        lock->expected = true;
        lock->next = store->waiting;
        store->waiting = lock;
    }
    pthread_mutex_unlock(&store->mutex);
    return can_hear;
}

void hfi_redis_expect_no_more(struct redis_store *store, struct redis_lock *lock, enum redis_state state)
{
    pthread_mutex_lock(&store->mutex);
    struct redis_lock **link = &store->waiting;
    while (lock->expected && *link != lock)
        link = &(*link)->next;
    if (lock->expected)
        *link = lock->next;
    lock->expected = false;
    lock->state = state;
    pthread_mutex_unlock(&store->mutex);
}

/* Somebody must go on listening. */
static void pass_duty_on(const struct redis_store *store)
{
    const struct redis_lock *lock = store->waiting;
    while (lock && !lock->waker)
        lock = lock->next;
    if (lock)
        hfi_waker_wake(lock->waker);
}

bool hfi_redis_listen(struct redis_store *store, struct redis_lock *lock, struct hfi_waker *waker, hfi_time deadline_ns)
{
    bool in_time = true;
    pthread_mutex_lock(&store->mutex);
    lock->waker = waker;
    while (in_time && lock->state != REDIS_GIVEN && store->ear && store->ear_number == lock->ear_number &&
           !hfi_waker_called_back(waker)) {
        const bool duty = !store->on_duty;
        struct pollfd ear = { .fd = store->ear->fd, .events = POLLIN };
        store->on_duty = true;
        pthread_mutex_unlock(&store->mutex);
        in_time = hfi_waker_sleep(waker, &ear, duty ? 1 : 0, deadline_ns);
        pthread_mutex_lock(&store->mutex);
        if (duty)
            store->on_duty = false;
        if (duty && ear.revents && store->ear && store->ear_number == lock->ear_number)
            hear(store, lock);
    }
    lock->waker = NULL;
    if (!store->on_duty)
        pass_duty_on(store);
    const bool given = lock->state == REDIS_GIVEN;
    pthread_mutex_unlock(&store->mutex);
    return in_time || given;
}
