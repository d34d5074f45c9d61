/* SPDX-License-Identifier: MIT
 *
 * redis_sentinel.c: which server is the master now. Any Sentinel may say so; one of them is listened to, on the
 * keeper's thread, and tells of a failover at once. It is found by whoever asks something, since that can take time.
 * Its word is not trusted blindly: every new connection asks the server for its role.
 */
#include "redis.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Sentinels that cannot be reached are not tried more often. */
#define LISTEN_PAUSE HFI_SECOND
#define LISTEN_PATIENCE (500 * HFI_MS)
/* A Sentinel that has nothing to tell is asked to show that it is alive, not more often; and has so long to do that. */
#define SILENCE_LEAST HFI_SECOND
#define PONG_MOST (2 * HFI_SECOND)

/* With the mutex. `node` is the master; returns the one that it takes the place of, or NULL. */
static struct redis_node *set_master(struct redis_sentinel *sentinel, struct redis_node *node)
{
    struct redis_node *before = sentinel->known;
    sentinel->master = sentinel->known = node;
    return before == node ? NULL : before;
}

/* Whatever is held is looked after at the new master, at once. */
static void leave(struct redis_store *store, struct redis_node *before)
{
    if (!before)
        return;
    hfi_redis_drop_node(store, before);
    hfi_redis_lose_push(store, before);
    store->env->recheck(store->env->core, 0);
}

/* One command to a connection of its own; *out is not an error. */
static hf_status ask(struct redis_connection *connection, struct redis_command *command, redisReply **out,
                     hfi_time deadline_ns, hf_error *err)
{
    hf_status status = hfi_redis_send(connection, command, 1, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_redis_receive(connection, out, deadline_ns, err);
    if (status != HF_OK || !*out)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "a Sentinel did not answer");
    if ((*out)->type != REDIS_REPLY_ERROR)
        return HF_OK;
    status = hfi_redis_refusal(*out, "", err);
    freeReplyObject(*out);
    *out = NULL;
    return status;
}

/* What one Sentinel says. */
static hf_status ask_sentinel(struct redis_store *store, size_t index, struct redis_node **out, hfi_time deadline_ns,
                              hf_error *err)
{
    const struct redis_config *config = &store->config;
    struct redis_connection *connection;
    struct redis_command command = { REDIS_ROOM(3) };
    struct redis_address address;
    redisReply *reply = NULL;
    hfi_redis_add(&command, "SENTINEL");
    hfi_redis_add(&command, "GET-MASTER-ADDR-BY-NAME");
    hfi_redis_add(&command, config->master);
    hf_status status = hfi_redis_connect(&connection, &config->addresses[index], &config->sentinel, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = ask(connection, &command, &reply, deadline_ns, err);
    hfi_redis_disconnect(connection);
    if (status != HF_OK || !reply)
        return status;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING &&
        reply->element[1]->type == REDIS_REPLY_STRING &&
        hfi_redis_address_read(&address, reply->element[0]->str, reply->element[0]->len, reply->element[1]->str)) {
        *out = hfi_redis_node(store, &address);
        status = *out ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a server");
    } else if (reply->type == REDIS_REPLY_NIL) {
        status = hfi_fail(err, HF_INVALID, 0, "the Sentinel at %.100s:%s knows no master called %.60s",
                          config->addresses[index].host, config->addresses[index].port, config->master);
    } else {
        status = hfi_fail(err, HF_INTERNAL, 0, "the Sentinel answered in a way that makes no sense");
    }
    freeReplyObject(reply);
    return status;
}

/* Asks one after the other, the one that answered last first; each may take its share of the time that is left. If none
 * names a master, what one of them said tells more than that another did not answer. No answer counts if another
 * master became known while it was on its way: it may be the older of the two. */
static hf_status discover(struct redis_store *store, hfi_time deadline_ns, hf_error *err)
{
    const size_t count = store->config.address_count;
    pthread_mutex_lock(&store->mutex);
    const size_t first = store->sentinel.last;
    const struct redis_node *known = store->sentinel.known;
    pthread_mutex_unlock(&store->mutex);
    hf_status status = HF_UNAVAILABLE;
    for (size_t i = 0; i < count; i++) {
        struct redis_node *node = NULL;
        hf_error failure = { 0 };
        const size_t index = (first + i) % count;
        const hfi_time now = hfi_redis_now_ns();
        const hfi_time share = (deadline_ns - now) / (hfi_time)(count - i);
        const hf_status answer = ask_sentinel(store, index, &node, now + share, &failure);
        if (answer == HF_OK) {
            pthread_mutex_lock(&store->mutex);
            store->sentinel.last = index;
            struct redis_node *before = store->sentinel.known == known ? set_master(&store->sentinel, node) : NULL;
            pthread_mutex_unlock(&store->mutex);
            leave(store, before);
            return HF_OK;
        }
        if (status == HF_UNAVAILABLE) {
            status = answer;
            if (err)
                *err = failure;
        }
    }
    return status;
}

static void listen_to_some(struct redis_store *store, hfi_time deadline_ns);

hf_status hfi_redis_sentinel_find(struct redis_store *store, struct redis_node **out, hfi_time deadline_ns,
                                  hf_error *err)
{
    listen_to_some(store, deadline_ns);
    for (int tries = 0; tries < 2; tries++) {
        pthread_mutex_lock(&store->mutex);
        *out = store->sentinel.master;
        pthread_mutex_unlock(&store->mutex);
        if (*out)
            return HF_OK;
        const hf_status status = discover(store, deadline_ns, err);
        if (status != HF_OK)
            return status;
    }
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the master %.60s changes all the time", store->config.master);
}

bool hfi_redis_sentinel_replaced(struct redis_store *store, const struct redis_node *node)
{
    pthread_mutex_lock(&store->mutex);
    const bool replaced = store->sentinel.known != node;
    pthread_mutex_unlock(&store->mutex);
    return replaced;
}

enum redis_verdict hfi_redis_sentinel_judge(struct redis_store *store, struct redis_node *node, hf_status status,
                                            const redisReply *reply, hfi_time deadline_ns)
{
    const bool demoted = status == HF_OK && hfi_redis_is_replica(reply);
    struct redis_node *now;
    if (!demoted && status != HF_UNAVAILABLE && status != HF_UNKNOWN)
        return REDIS_FINAL;
    pthread_mutex_lock(&store->mutex);
    if (store->sentinel.master == node)
        store->sentinel.master = NULL; /* to be asked for */
    pthread_mutex_unlock(&store->mutex);
    if (demoted)
        hfi_redis_drop_node(store, node);
    if (status == HF_UNKNOWN) /* it may have been done */
        return REDIS_FINAL;
    return hfi_redis_sentinel_find(store, &now, deadline_ns, NULL) == HF_OK && now != node ? REDIS_MOVED : REDIS_FINAL;
}

/* --- listening --- */

static hf_status subscribe(struct redis_store *store, size_t index, struct redis_connection **out, hfi_time deadline_ns)
{
    struct redis_command command = { REDIS_ROOM(2) };
    redisReply *reply = NULL;
    hfi_redis_add(&command, "SUBSCRIBE");
    hfi_redis_add(&command, "+switch-master");
    hf_status status =
        hfi_redis_connect(out, &store->config.addresses[index], &store->config.sentinel, deadline_ns, NULL);
    if (status != HF_OK)
        return status;
    status = ask(*out, &command, &reply, deadline_ns, NULL);
    if (status != HF_OK)
        hfi_redis_disconnect(*out);
    freeReplyObject(reply);
    return status;
}

/* With the mutex. One that is given up is shut down only: the keeper finds that out, and listens to another one. */
static void look_after_push(struct redis_sentinel *sentinel, hfi_time now)
{
    struct redis_connection *connection = sentinel->connection;
    struct redis_command ping = { REDIS_ROOM(1) };
    hfi_redis_add(&ping, "PING");
    if (now - sentinel->pinged_ns < (sentinel->silent ? PONG_MOST : SILENCE_LEAST))
        return;
    if (sentinel->silent && hfi_redis_ready_by(connection->fd, POLLIN, now)) /* it is us who have not listened */
        return;
    if (sentinel->silent || hfi_redis_send(connection, &ping, 1, now, NULL) != HF_OK)
        shutdown(connection->fd, SHUT_RDWR);
    sentinel->pinged_ns = now;
    sentinel->silent = true;
}

void hfi_redis_sentinel_look_after(struct redis_store *store)
{
    pthread_mutex_lock(&store->mutex);
    if (store->sentinel.connection)
        look_after_push(&store->sentinel, hfi_redis_now_ns());
    pthread_mutex_unlock(&store->mutex);
}

/* With the mutex. Whether somebody is to be listened to, and it is time to try. */
static bool is_try_due(struct redis_store *store, hfi_time now)
{
    struct redis_sentinel *sentinel = &store->sentinel;
    if (sentinel->connection)
        return false;
    if (now >= sentinel->try_again_ns)
        sentinel->tries = 0;
    /* One that dies right after it was found is replaced at once: nobody else would tell of a failover. */
    if (sentinel->tries >= store->config.address_count)
        return false;
    if (sentinel->tries++ == 0)
        sentinel->try_again_ns = now + LISTEN_PAUSE;
    return true;
}

/* With the mutex. False: another thread was faster. */
static bool take_push(struct redis_sentinel *sentinel, struct redis_connection *connection, hfi_time now)
{
    if (sentinel->connection)
        return false;
    sentinel->connection = connection;
    sentinel->pinged_ns = now;
    sentinel->silent = false;
    return true;
}

/* Before a question, since Sentinels may take their time to answer: the keeper has none. It gets a part of the time
 * only, for the question does not depend on it. */
static void listen_to_some(struct redis_store *store, hfi_time deadline_ns)
{
    const size_t count = store->config.address_count;
    const hfi_time now = hfi_redis_now_ns();
    pthread_mutex_lock(&store->mutex);
    const bool wanted = is_try_due(store, now), again = store->sentinel.known != NULL;
    const size_t first = store->sentinel.last;
    pthread_mutex_unlock(&store->mutex);
    if (!wanted)
        return;
    const hfi_time part = (deadline_ns - now) / 4;
    deadline_ns = now + (part < LISTEN_PATIENCE ? part : LISTEN_PATIENCE);
    for (size_t i = 0; i < count; i++) {
        struct redis_connection *connection;
        const hfi_time begun = hfi_redis_now_ns();
        const hfi_time share = (deadline_ns - begun) / (hfi_time)(count - i);
        if (subscribe(store, (first + i) % count, &connection, begun + share) != HF_OK)
            continue;
        pthread_mutex_lock(&store->mutex);
        const bool taken = take_push(&store->sentinel, connection, begun);
        pthread_mutex_unlock(&store->mutex);
        if (!taken)
            hfi_redis_disconnect(connection);
        discover(store, deadline_ns, NULL); /* what happened before we listened */
        if (taken && again)                 /* the keeper, too, is to know where to listen */
            store->env->recheck(store->env->core, 0);
        return;
    }
}

/* "master old-host old-port new-host new-port" */
static void take_switch(struct redis_store *store, const char *text)
{
    char name[256], host[256], port[8];
    struct redis_address address;
    if (sscanf(text, "%255s %*s %*s %255s %7s", name, host, port) != 3 || strcmp(name, store->config.master) != 0 ||
        !hfi_redis_address_read(&address, host, strlen(host), port))
        return;
    struct redis_node *node = hfi_redis_node(store, &address);
    if (!node)
        return;
    pthread_mutex_lock(&store->mutex);
    struct redis_node *before = set_master(&store->sentinel, node);
    pthread_mutex_unlock(&store->mutex);
    leave(store, before);
}

/* The next reply; NULL: there is none. With the mutex, since somebody may be sending, who counts what is unanswered. */
static hf_status next_reply(struct redis_store *store, struct redis_connection *connection, redisReply **out)
{
    pthread_mutex_lock(&store->mutex);
    const hf_status status = hfi_redis_fetched(connection, out);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

void hfi_redis_sentinel_take_push(struct redis_store *store)
{
    redisReply *reply = NULL;
    pthread_mutex_lock(&store->mutex); /* somebody may be sending on it */
    struct redis_connection *connection = store->sentinel.connection;
    hf_status status = hfi_redis_fetch(connection);
    store->sentinel.silent = false;
    pthread_mutex_unlock(&store->mutex);
    while (status == HF_OK && (status = next_reply(store, connection, &reply)) == HF_OK && reply) {
        if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 && reply->element[2]->type == REDIS_REPLY_STRING)
            take_switch(store, reply->element[2]->str);
        freeReplyObject(reply);
    }
    if (status == HF_OK)
        return;
    pthread_mutex_lock(&store->mutex);
    store->sentinel.connection = NULL;
    struct redis_node *known = store->sentinel.known;
    pthread_mutex_unlock(&store->mutex);
    hfi_redis_disconnect(connection);
    /* It may have died together with the master. Whoever holds a lock or waits for one asks now, and before that finds
     * another Sentinel to listen to. */
    if (known)
        hfi_redis_call_all(store, known);
    store->env->recheck(store->env->core, 0);
}
