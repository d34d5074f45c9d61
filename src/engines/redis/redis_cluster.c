/* SPDX-License-Identifier: MIT
 *
 * redis_cluster.c: which server of a cluster has a key. Keys fall into 16384 slots; any server can say who has which;
 * and a server that is asked for a key of another one says whose it is (MOVED), or will be in a moment (ASK).
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 16384u
/* The map is not asked for more often, however many answers make it doubtful. */
#define REFRESH_PAUSE (100 * HFI_MS)

struct redis_cluster {
    struct redis_node *owner[SLOTS]; /* NULL: nobody, as far as we know */
    bool doubtful;
    hfi_time refreshed_ns;
};

/* --- slots --- */

/* CRC-16/XMODEM, four bits at a time. */
static unsigned crc16(const char *text, size_t length)
{
    static const unsigned short table[16] = { 0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
                                              0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef };
    unsigned crc = 0;
    for (size_t i = 0; i < length; i++) {
        const unsigned byte = (unsigned char)text[i];
        crc = (crc << 4 & 0xffff) ^ table[crc >> 12 ^ byte >> 4];
        crc = (crc << 4 & 0xffff) ^ table[crc >> 12 ^ (byte & 15)];
    }
    return crc;
}

bool hfi_redis_has_tag(const char *key)
{
    const char *open = strchr(key, '{');
    const char *close = open ? strchr(open, '}') : NULL;
    return close && close > open + 1;
}

unsigned hfi_redis_slot(const char *key)
{
    if (!hfi_redis_has_tag(key))
        return crc16(key, strlen(key)) % SLOTS;
    const char *tag = strchr(key, '{') + 1;
    return crc16(tag, strcspn(tag, "}")) % SLOTS;
}

/* --- the map --- */

static struct redis_node *node_at(struct redis_store *store, const struct redis_node *teller, const redisReply *server)
{
    struct redis_address address;
    char port[16];
    if (server->type != REDIS_REPLY_ARRAY || server->elements < 2 || server->element[1]->type != REDIS_REPLY_INTEGER)
        return NULL;
    const redisReply *host = server->element[0];
    const bool named = host->type == REDIS_REPLY_STRING && host->len > 0 && strcmp(host->str, "?") != 0;
    snprintf(port, sizeof port, "%lld", server->element[1]->integer);
    const char *text = named ? host->str : teller->address.host; /* one that does not know its own name */
    return hfi_redis_address_read(&address, text, strlen(text), port) ? hfi_redis_node(store, &address) : NULL;
}

/* Takes over what CLUSTER SLOTS says; *changed: some slot has another owner than before. */
static hf_status take_map(struct redis_store *store, const struct redis_node *teller, const redisReply *reply,
                          bool *changed, hf_error *err)
{
    struct redis_cluster *cluster = store->cluster;
    *changed = false;
    if (reply->type != REDIS_REPLY_ARRAY)
        return hfi_redis_refusal(reply, "", err);
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || range->element[0]->type != REDIS_REPLY_INTEGER ||
            range->element[1]->type != REDIS_REPLY_INTEGER || range->element[0]->integer < 0 ||
            range->element[1]->integer >= SLOTS)
            return hfi_fail(err, HF_INTERNAL, 0, "the cluster describes itself in a way that makes no sense");
        struct redis_node *node = node_at(store, teller, range->element[2]);
        for (size_t replica = 3; replica < range->elements; replica++)
            node_at(store, teller, range->element[replica]); /* it may be asked for the map when the others are gone */
        pthread_mutex_lock(&store->mutex);
        for (long long slot = range->element[0]->integer; slot <= range->element[1]->integer; slot++) {
            *changed = *changed || (cluster->owner[slot] && cluster->owner[slot] != node);
            cluster->owner[slot] = node;
        }
        pthread_mutex_unlock(&store->mutex);
    }
    pthread_mutex_lock(&store->mutex);
    cluster->doubtful = false;
    cluster->refreshed_ns = store->env->now_ns();
    pthread_mutex_unlock(&store->mutex);
    return HF_OK;
}

static hf_status ask_for_map(struct redis_store *store, struct redis_node *node, bool *changed, hfi_time deadline_ns,
                             hf_error *err)
{
    struct redis_command command = { REDIS_ROOM(2) };
    redisReply *reply = NULL;
    hfi_redis_add(&command, "CLUSTER");
    hfi_redis_add(&command, "SLOTS");
    struct redis_question question = { .commands = &command, .count = 1, .deadline_ns = deadline_ns, .node = node };
    hf_status status = hfi_redis_only_read(hfi_redis_ask(store, &question, &reply, err), err);
    if (status == HF_OK)
        status = take_map(store, node, reply, changed, err);
    freeReplyObject(reply);
    return status;
}

/* Asks every server that we know of, `avoided` last, until one answers. */
static hf_status refresh(struct redis_store *store, const struct redis_node *avoided, bool *changed,
                         hfi_time deadline_ns, hf_error *err)
{
    size_t left = 0;
    hf_status status = HF_UNAVAILABLE;
    pthread_mutex_lock(&store->mutex);
    struct redis_node *const first = store->nodes; /* nodes are never taken away */
    for (const struct redis_node *node = first; node; node = node->next)
        left++;
    pthread_mutex_unlock(&store->mutex);
    for (int round = 0; round < 2; round++) {
        struct redis_node *node = first;
        while (node) {
            const hfi_time now = hfi_redis_now_ns();
            if ((node == avoided) == (round == 1)) {
                const hfi_time share = left ? (deadline_ns - now) / (hfi_time)left-- : 0;
                status = ask_for_map(store, node, changed, now + share, err);
            }
            if (status == HF_OK)
                return status;
            pthread_mutex_lock(&store->mutex);
            node = node->next;
            pthread_mutex_unlock(&store->mutex);
        }
    }
    return status;
}

hf_status hfi_redis_cluster_find(struct redis_store *store, const char *key, struct redis_node **out,
                                 hfi_time deadline_ns, hf_error *err)
{
    struct redis_cluster *cluster = store->cluster;
    const unsigned slot = hfi_redis_slot(key);
    bool changed;
    pthread_mutex_lock(&store->mutex);
    *out = cluster->owner[slot];
    const bool old = store->env->now_ns() - cluster->refreshed_ns > REFRESH_PAUSE;
    const bool ask = old && (!*out || cluster->doubtful);
    pthread_mutex_unlock(&store->mutex);
    if (ask) {
        const hf_status status = refresh(store, NULL, &changed, deadline_ns, err);
        if (status != HF_OK)
            return status;
        if (changed)
            store->env->recheck(store->env->core, 0); /* a replica may have taken somebody's place */
        pthread_mutex_lock(&store->mutex);
        *out = cluster->owner[slot];
        pthread_mutex_unlock(&store->mutex);
    }
    return *out ? HF_OK : hfi_fail(err, HF_UNAVAILABLE, 0, "no server of the cluster has slot %u", slot);
}

struct redis_node *hfi_redis_cluster_known(const struct redis_store *store, const char *key)
{
    return store->cluster->owner[hfi_redis_slot(key)];
}

/* --- redirections --- */

/* "MOVED slot host:port", "ASK slot host:port" */
static struct redis_node *node_named(struct redis_store *store, const struct redis_node *teller, const char *text,
                                     unsigned *slot)
{
    struct redis_address address;
    const char *number = strchr(text, ' ');
    const char *host = number ? strchr(number + 1, ' ') : NULL;
    const char *colon = host ? strrchr(host, ':') : NULL; /* the last one: an IPv6 address has more */
    if (!colon)
        return NULL;
    *slot = (unsigned)strtoul(number, NULL, 10) % SLOTS;
    host++;
    const bool named = colon > host;
    const char *name = named ? host : teller->address.host;
    const size_t length = named ? (size_t)(colon - host) : strlen(name);
    return hfi_redis_address_read(&address, name, length, colon + 1) ? hfi_redis_node(store, &address) : NULL;
}

static enum redis_verdict judge_trouble(struct redis_store *store, const struct redis_node *node, hf_status status,
                                        hfi_time deadline_ns)
{
    bool changed = false;
    pthread_mutex_lock(&store->mutex);
    store->cluster->doubtful = true;
    const hfi_time now = store->env->now_ns();
    const bool old = now - store->cluster->refreshed_ns > REFRESH_PAUSE;
    pthread_mutex_unlock(&store->mutex);
    /* Without time to wait for an answer, asking would only cost connections; whoever comes next asks. */
    if (!old || now >= deadline_ns || refresh(store, node, &changed, deadline_ns, NULL) != HF_OK || !changed)
        return REDIS_FINAL;
    /* A replica has taken the place of a server: what it does not know of is lost. */
    store->env->recheck(store->env->core, 0);
    return status == HF_UNAVAILABLE ? REDIS_MOVED : REDIS_FINAL; /* else it may have been done */
}

enum redis_verdict hfi_redis_cluster_judge(struct redis_store *store, struct redis_node *node, hf_status status,
                                           const redisReply *reply, struct redis_node **asked, hfi_time deadline_ns)
{
    static const char *const doubts[] = { "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING" };
    struct redis_cluster *cluster = store->cluster;
    unsigned slot;
    if (status == HF_UNAVAILABLE || status == HF_UNKNOWN)
        return judge_trouble(store, node, status, deadline_ns);
    if (status != HF_OK || reply->type != REDIS_REPLY_ERROR)
        return REDIS_FINAL;
    if (hfi_redis_is_error(reply, "TRYAGAIN"))
        return REDIS_LATER;
    const bool moved = hfi_redis_is_error(reply, "MOVED");
    if (moved || hfi_redis_is_error(reply, "ASK")) {
        struct redis_node *other = node_named(store, node, reply->str, &slot);
        if (!other)
            return REDIS_FINAL;
        if (!moved) {
            *asked = other;
            return REDIS_MOVED;
        }
        pthread_mutex_lock(&store->mutex);
        cluster->owner[slot] = other;
        cluster->doubtful = true;
        cluster->refreshed_ns = store->env->now_ns(); /* this much is certain; the rest can wait */
        pthread_mutex_unlock(&store->mutex);
        return REDIS_MOVED;
    }
    for (size_t i = 0; i < sizeof doubts / sizeof doubts[0]; i++) {
        if (hfi_redis_is_error(reply, doubts[i])) {
            pthread_mutex_lock(&store->mutex);
            cluster->doubtful = true;
            pthread_mutex_unlock(&store->mutex);
        }
    }
    return REDIS_FINAL;
}

struct redis_node *hfi_redis_cluster_next(struct redis_store *store, const struct redis_node *node)
{
    struct redis_node *found = NULL;
    pthread_mutex_lock(&store->mutex);
    for (struct redis_node *one = node ? node->next : store->nodes; one && !found; one = one->next) {
        for (unsigned slot = 0; slot < SLOTS && !found; slot++)
            found = store->cluster->owner[slot] == one ? one : NULL;
    }
    pthread_mutex_unlock(&store->mutex);
    return found;
}

/* --- open and close --- */

/* Sharded publishing came with Redis 7; without it a message goes to every server of the cluster. */
static hf_status probe_sharding(struct redis_store *store, hfi_time deadline_ns, hf_error *err)
{
    struct redis_command command = { REDIS_ROOM(3) };
    redisReply *reply = NULL;
    hfi_redis_add(&command, "COMMAND");
    hfi_redis_add(&command, "INFO");
    hfi_redis_add(&command, "SPUBLISH");
    struct redis_question question = { .key = "", .commands = &command, .count = 1, .deadline_ns = deadline_ns };
    const hf_status status = hfi_redis_only_read(hfi_redis_ask(store, &question, &reply, err), err);
    if (status == HF_OK)
        store->sharded =
            reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 && reply->element[0]->type == REDIS_REPLY_ARRAY;
    freeReplyObject(reply);
    return status;
}

hf_status hfi_redis_cluster_open(struct redis_store *store, hfi_time deadline_ns, hf_error *err)
{
    bool changed;
    store->cluster = hfi_alloc(sizeof *store->cluster);
    if (!store->cluster)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    const hf_status status = refresh(store, NULL, &changed, deadline_ns, err);
    return status == HF_OK ? probe_sharding(store, deadline_ns, err) : status;
}

void hfi_redis_cluster_close(struct redis_store *store)
{
    hfi_free(store->cluster);
}
