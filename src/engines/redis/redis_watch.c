/* SPDX-License-Identifier: MIT
 *
 * redis_watch.c: how a holder hears at once that its lock was broken, and by whom. Whoever breaks it publishes that to
 * a channel of the holder's client:
 *
 *   hf:c:CLIENT:b   "serial who"   CLIENT and serial: as the owner of a lock is written in the dialect
 *
 * The script that publishes has taken the lock away from this owner, and an owner is never used again: the message is
 * true whenever it comes, and however often. One that is missed costs the time until the next renewal. With redlock: no
 * master can tell by itself, so the message has the client ask all of them, and their answers say by whom.
 *
 * A client listens once it has renewed a lock, on a connection of its own: short holds cost nothing, and those who wait
 * do not share it, so that a hand-over wakes nobody else. The keeper makes it and reads it, in steps that never wait.
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Between two tries to listen, and for how long one may take. */
#define PAUSE (10 * HFI_SECOND)

enum event { SENTINEL, WATCH };

static void channel_of(char out[HFI_REDIS_OWNER_MAX + 16], const struct redis_store *store)
{
    char owner[HFI_REDIS_OWNER_MAX];
    store->config.dialect->owner(owner, (struct hfi_owner){ store->env->client, 0 });
    owner[strcspn(owner, ".:")] = 0;
    snprintf(out, HFI_REDIS_OWNER_MAX + 16, "hf:c:%s:b", owner);
}

/* --- connecting; with the mutex --- */

static void drop(struct redis_store *store)
{
    hfi_redis_disconnect(store->watch.connection);
    store->watch.connection = NULL;
}

static bool expect(const struct redis_store *store, const struct redis_connection *connection, short wants,
                   enum event kind)
{
    struct epoll_event event = { .events = (uint32_t)wants, .data = { .u32 = kind } };
    return epoll_ctl(store->watch.events, EPOLL_CTL_ADD, connection->fd, &event) == 0 ||
           epoll_ctl(store->watch.events, EPOLL_CTL_MOD, connection->fd, &event) == 0;
}

static bool subscribe(const struct redis_store *store, struct redis_connection *connection)
{
    struct redis_command command = { REDIS_ROOM(2) };
    char channel[HFI_REDIS_OWNER_MAX + 16];
    channel_of(channel, store);
    hfi_redis_add(&command, "SUBSCRIBE");
    hfi_redis_add(&command, channel);
    return hfi_redis_send(connection, &command, 1, hfi_redis_now_ns(), NULL) == HF_OK;
}

static void step(struct redis_store *store)
{
    struct redis_connection *connection = store->watch.connection;
    if (!connection)
        return;
    const hf_status status =
        hfi_redis_connect_step(connection, &store->watch.node->address, &store->config.access, NULL);
    const bool goes_on = status == HF_TIMEOUT || (status == HF_OK && subscribe(store, connection));
    if (!goes_on || !expect(store, connection, status == HF_OK ? POLLIN : connection->wants, WATCH))
        drop(store);
}

/* Who has `key`, as far as we know, without asking anybody. */
static struct redis_node *known(const struct redis_store *store, const char *key)
{
    if (store->config.kind == REDIS_SENTINEL)
        return store->sentinel.master;
    return store->config.kind == REDIS_CLUSTER ? hfi_redis_cluster_known(store, key) : store->nodes;
}

static void listen_to(struct redis_store *store, struct redis_node *node)
{
    struct redis_watch *watch = &store->watch;
    const hfi_time now = hfi_redis_now_ns();
    if (watch->connection && watch->connection->phase != REDIS_READY && now >= watch->try_again_ns)
        drop(store);
    if (!watch->connection && now >= watch->try_again_ns) {
        watch->try_again_ns = now + PAUSE;
        watch->node = node;
        if (watch->node &&
            hfi_redis_connect_begin(&watch->connection, &watch->node->address, &store->config.access, NULL) == HF_OK)
            step(store);
    }
}

void hfi_redis_watch(struct redis_store *store, const char *key)
{
    pthread_mutex_lock(&store->mutex);
    listen_to(store, known(store, key));
    pthread_mutex_unlock(&store->mutex);
}

void hfi_redis_watch_node(struct redis_store *store, struct redis_node *node)
{
    struct redis_watch *watch = &store->watch;
    pthread_mutex_lock(&store->mutex);
    if (watch->node != node) {
        drop(store);
        watch->try_again_ns = 0;
    }
    listen_to(store, node);
    pthread_mutex_unlock(&store->mutex);
}

void hfi_redis_watch_anew(struct redis_store *store, const struct redis_node *node)
{
    if (!store->watch.connection || store->watch.node != node)
        return;
    drop(store);
    store->watch.try_again_ns = 0;
}

/* --- listening, by the keeper --- */

/* What the server said: true and the owner's serial if it is that a lock was broken. */
static bool take(struct redis_store *store, const redisReply *reply, uint64_t *serial, char why[HFI_WHY_MAX])
{
    if (hfi_redis_is_about(reply, "subscribe"))
        store->watch.try_again_ns = 0; /* it works: so will another one when this one breaks */
    if (reply->type == REDIS_REPLY_ERROR) {
        drop(store);
        if (hfi_redis_refusal(reply, "", NULL) == HF_DENIED) /* the ACL does not change its mind every few seconds */
            store->watch.try_again_ns = HFI_NEVER;
    }
    if (!hfi_redis_is_about(reply, "message") || reply->element[2]->type != REDIS_REPLY_STRING)
        return false;
    char *by;
    *serial = strtoull(reply->element[2]->str, &by, 10);
    if (*by != ' ' || !by[1])
        return false;
    hfi_say_broken(why, by + 1);
    return true;
}

/* The next reply, if there is a whole one. */
static bool next_reply(struct redis_store *store, redisReply **out)
{
    *out = NULL;
    if (!store->watch.connection || store->watch.connection->phase != REDIS_READY)
        return false;
    if (hfi_redis_fetched(store->watch.connection, out) != HF_OK)
        drop(store);
    return *out != NULL;
}

static void hear(struct redis_store *store)
{
    redisReply *reply;
    bool more;
    pthread_mutex_lock(&store->mutex);
    if (store->watch.connection && store->watch.connection->phase != REDIS_READY)
        step(store);
    else if (store->watch.connection && hfi_redis_fetch(store->watch.connection) != HF_OK)
        drop(store);
    pthread_mutex_unlock(&store->mutex);
    do {
        struct hfi_owner owner = { .client = store->env->client };
        char why[HFI_WHY_MAX];
        pthread_mutex_lock(&store->mutex);
        more = next_reply(store, &reply);
        const bool lost = more && take(store, reply, &owner.serial, why);
        pthread_mutex_unlock(&store->mutex);
        freeReplyObject(reply);
        if (lost && store->config.kind == REDIS_REDLOCK)
            store->env->recheck(store->env->core, owner.serial);
        else if (lost)
            store->env->lost(store->env->core, owner, why);
    } while (more);
}

/* --- the descriptor for both: this, and the Sentinel that is listened to --- */

bool hfi_redis_watch_open(struct redis_store *store)
{
    store->watch.events = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    return store->watch.events >= 0;
}

void hfi_redis_watch_close(struct redis_store *store)
{
    hfi_redis_disconnect(store->watch.connection);
    hfi_fd_close(store->watch.events);
}

int hfi_redis_push_fd(void *memory)
{
    struct redis_store *store = memory;
    const struct redis_connection *sentinel;
    pthread_mutex_lock(&store->mutex);
    sentinel = store->sentinel.connection;
    if (sentinel && sentinel->number != store->watch.sentinel && expect(store, sentinel, POLLIN, SENTINEL))
        store->watch.sentinel = sentinel->number;
    pthread_mutex_unlock(&store->mutex);
    return store->watch.events;
}

void hfi_redis_take_push(void *memory)
{
    struct redis_store *store = memory;
    struct epoll_event events[2];
    const int count = epoll_wait(store->watch.events, events, 2, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == WATCH)
            hear(store);
        else
            hfi_redis_sentinel_take_push(store);
    }
}
