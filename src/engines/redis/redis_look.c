/* SPDX-License-Identifier: MIT
 *
 * redis_look.c: who holds what on the server, and breaking a lock. SCAN, never KEYS.
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAITERS_FROM 5 /* in the answer of the script */

/* `text` for SCAN's MATCH, with its special characters taken literally. */
static size_t add_literal(char *out, size_t used, size_t room, const char *text)
{
    for (; *text && used + 3 < room; text++) {
        if (strchr("*?[]\\^", *text))
            out[used++] = '\\';
        out[used++] = *text;
    }
    out[used] = 0;
    return used;
}

/* Runs a script that takes the keys of `name`, and up to two arguments; NULL: none. */
static hf_status ask_about(struct redis_store *store, enum redis_script_name script, const char *name,
                           const char *const arguments[2], redisReply **reply, hfi_time deadline_ns, hf_error *err)
{
    struct redis_command command = { REDIS_ROOM(3 + HFI_REDIS_KEYS_MOST + 2) };
    redis_keys keys;
    const size_t count = store->config.dialect->keys(keys, store, name, (struct hfi_owner){ 0, 0 });
    const char number[2] = { (char)('0' + count), 0 };
    hfi_redis_add_script(&command, &store->scripts[script]);
    hfi_redis_add(&command, number);
    for (size_t i = 0; i < count; i++)
        hfi_redis_add(&command, keys[i]);
    for (size_t i = 0; i < 2 && arguments[i]; i++)
        hfi_redis_add(&command, arguments[i]);
    struct redis_question question = { .key = keys[0], .commands = &command, .count = 1, .deadline_ns = deadline_ns };
    return hfi_redis_ask(store, &question, reply, err);
}

/* { 0 }, or as the script says. */
static bool is_look(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 1 || reply->element[0]->type != REDIS_REPLY_INTEGER)
        return false;
    for (size_t i = 1; i < 4 && i < reply->elements; i++) {
        if (reply->element[i]->type != REDIS_REPLY_INTEGER)
            return false;
    }
    return reply->element[0]->integer == 0 || (reply->elements >= 5 && reply->element[4]->type == REDIS_REPLY_STRING);
}

#define WAITER_MOST 256

/* "owner host pid note" as "host:pid note". */
static void describe_waiter(char out[WAITER_MOST], const redisReply *member)
{
    char host[65] = "", pid[24] = "";
    int used = 0;
    if (member->type == REDIS_REPLY_STRING && sscanf(member->str, "%*s %64s %23s%n", host, pid, &used) == 2)
        snprintf(out, WAITER_MOST, "%s:%s%s", host, pid, member->str[used + 1] ? member->str + used : "");
}

/* The texts of all waiters, and pointers to them in front: one block, freed at once. NULL: no memory. */
static const char *const *describe_waiters(const redisReply *reply, size_t count)
{
    const char **pointers = hfi_alloc(count * (sizeof *pointers + WAITER_MOST) + 1);
    char *texts = pointers ? (char *)(pointers + count) : NULL;
    for (size_t i = 0; pointers && i < count; i++) {
        pointers[i] = texts + i * WAITER_MOST;
        describe_waiter(texts + i * WAITER_MOST, reply->element[WAITERS_FROM + i]);
    }
    return pointers;
}

int hfi_redis_show_lock(const redisReply *reply, const char *name, bool queue, hf_inspect_fn each, void *arg)
{
    char host[65] = "";
    long long pid = 0;
    int used = 0;
    const char *info = reply->element[4]->str;
    const bool known = sscanf(info, "%64s %lld%n", host, &pid, &used) == 2;
    const size_t waiters = reply->elements - WAITERS_FROM;
    const char *const *waiting = describe_waiters(reply, waiters);
    const hf_info one = { .size = sizeof one,
                          .name = name,
                          .host = known ? host : "",
                          .pid = known ? pid : 0,
                          .token = (uint64_t)reply->element[1]->integer,
                          .held_ms = reply->element[3]->integer,
                          .remaining_ms = reply->element[2]->integer,
                          .waiters = queue ? (int64_t)waiters : -1,
                          .note = !known              ? info
                                  : info[used] == ' ' ? info + used + 1
                                                      : "",
                          .waiting = waiting };
    const int stop = each(&one, arg);
    hfi_free((void *)(uintptr_t)waiting);
    return stop;
}

hf_status hfi_redis_show(const struct redis_store *store, const redisReply *reply, const char *name, hf_inspect_fn each,
                         void *arg, int *stop, hf_error *err)
{
    if (!is_look(reply))
        return hfi_redis_refusal(reply, name, err);
    if (reply->element[0]->integer) /* else it has ended since */
        *stop = hfi_redis_show_lock(reply, name, !store->config.dialect->own_channels, each, arg);
    return HF_OK;
}

/* --- all of them --- */

hf_status hfi_redis_scan(struct redis_store *store, struct redis_node *node, bool done, char cursor[24],
                         redisReply **out, hfi_time deadline_ns, hf_error *err)
{
    char pattern[2 * HFI_REDIS_KEY_MAX];
    const struct redis_dialect *dialect = store->config.dialect;
    /* Names with a {tag} of their own have no brace in front, so the pattern cannot be narrower than this. */
    const size_t used = add_literal(pattern, 0, sizeof pattern - 4, *dialect->prefix ? store->config.prefix : "hf:");
    snprintf(pattern + used, sizeof pattern - used, done ? "*:d" : "*");
    const char *const type = done ? "string" : dialect->key_type;
    const char *const words[] = { "SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", type };
    struct redis_command command = { REDIS_ROOM(8) };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hfi_redis_add(&command, words[i]);
    struct redis_question question = {
        .key = node ? NULL : "", .commands = &command, .count = 1, .deadline_ns = deadline_ns, .node = node
    };
    hf_status status = hfi_redis_only_read(hfi_redis_ask(store, &question, out, err), err);
    if (status != HF_OK)
        return status;
    const redisReply *reply = *out;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING &&
        reply->element[1]->type == REDIS_REPLY_ARRAY) {
        snprintf(cursor, 24, "%s", reply->element[0]->str);
        return HF_OK;
    }
    status = hfi_redis_refusal(reply, pattern, err);
    freeReplyObject(*out);
    return status;
}

struct inspection {
    struct redis_store *store;
    const char *prefix;
    bool done; /* records of what is done, not locks */
    hf_inspect_fn each;
    void *arg;
    hfi_time deadline_ns;
    int stop;
};

static hf_status inspect_lock(struct inspection *inspection, const char *name, hf_error *err)
{
    redisReply *reply = NULL;
    hf_status status =
        hfi_redis_only_read(ask_about(inspection->store, REDIS_LOOK, name, (const char *[2]){ NULL, NULL }, &reply,
                                      inspection->deadline_ns, err),
                            err);
    if (status == HF_OK)
        status =
            hfi_redis_show(inspection->store, reply, name, inspection->each, inspection->arg, &inspection->stop, err);
    freeReplyObject(reply);
    return status;
}

/* { seconds, microseconds } as TIME says it, in microseconds; -1: it is not that. */
static int64_t read_time(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return -1;
    return strtoll(reply->element[0]->str, NULL, 10) * 1000000 + strtoll(reply->element[1]->str, NULL, 10);
}

/* What is no record is another program's, and not shown. */
static hf_status inspect_record(struct inspection *inspection, const char *name, hf_error *err)
{
    struct redis_command commands[2] = { { REDIS_ROOM(2) }, { REDIS_ROOM(1) } };
    redisReply *replies[2] = { NULL, NULL };
    struct redis_done done;
    char key[HFI_REDIS_KEY_MAX];
    hfi_redis_done_key(key, inspection->store, name);
    hfi_redis_add(&commands[0], "GET");
    hfi_redis_add(&commands[0], key);
    hfi_redis_add(&commands[1], "TIME");
    struct redis_question question = {
        .key = key, .commands = commands, .count = 2, .deadline_ns = inspection->deadline_ns
    };
    hf_status status = hfi_redis_only_read(hfi_redis_ask(inspection->store, &question, replies, err), err);
    if (status != HF_OK)
        return status;
    const int64_t now_us = read_time(replies[1]);
    if (now_us < 0 || (replies[0]->type != REDIS_REPLY_STRING && replies[0]->type != REDIS_REPLY_NIL))
        status = hfi_redis_refusal(now_us < 0 ? replies[1] : replies[0], key, err);
    else if (replies[0]->type == REDIS_REPLY_STRING && hfi_redis_read_done(&done, replies[0]->str, now_us))
        inspection->stop = hfi_redis_show_done(&done, name, inspection->each, inspection->arg);
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
    return status;
}

static bool is_wanted(const struct inspection *inspection, char name[HFI_REDIS_KEY_MAX], const redisReply *key)
{
    const struct redis_store *store = inspection->store;
    return key->type == REDIS_REPLY_STRING && strlen(key->str) == key->len &&
           (inspection->done ? hfi_redis_done_name : store->config.dialect->name_of)(name, store, key->str) &&
           strncmp(name, inspection->prefix, strlen(inspection->prefix)) == 0;
}

/* All that is on one server. */
static hf_status inspect_node(struct inspection *inspection, struct redis_node *node, bool but_not_prefix,
                              hf_error *err)
{
    char cursor[24] = "0";
    hf_status status;
    do {
        redisReply *found = NULL;
        status =
            hfi_redis_scan(inspection->store, node, inspection->done, cursor, &found, inspection->deadline_ns, err);
        if (status != HF_OK)
            return status;
        const redisReply *keys = found->element[1];
        for (size_t i = 0; i < keys->elements && status == HF_OK && !inspection->stop; i++) {
            char name[HFI_REDIS_KEY_MAX] = "";
            if (is_wanted(inspection, name, keys->element[i]) &&
                !(but_not_prefix && strcmp(name, inspection->prefix) == 0))
                status = (inspection->done ? inspect_record : inspect_lock)(inspection, name, err);
        }
        freeReplyObject(found);
    } while (status == HF_OK && !inspection->stop && strcmp(cursor, "0") != 0);
    return status;
}

/* All that is on all of them. */
static hf_status inspect_nodes(struct inspection *inspection, bool but_not_prefix, hf_error *err)
{
    struct redis_store *store = inspection->store;
    struct redis_node *node = NULL;
    hf_status status = HF_OK;
    if (store->config.kind != REDIS_CLUSTER)
        return inspect_node(inspection, NULL, but_not_prefix, err);
    while (status == HF_OK && !inspection->stop && (node = hfi_redis_cluster_next(store, node)) != NULL)
        status = inspect_node(inspection, node, but_not_prefix, err);
    return status;
}

hf_status hfi_redis_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err)
{
    struct redis_store *store = memory;
    struct inspection inspection = {
        .store = store, .prefix = prefix, .each = each, .arg = arg, .deadline_ns = deadline_ns
    };
    hf_status status = HF_OK;
    /* In the dialects of others, a lock that Holdfast never took is found if it is asked for by its whole name. */
    const bool by_name =
        *prefix && !*store->config.dialect->prefix && hfi_redis_check_name(store, prefix, NULL) == HF_OK;
    if (by_name)
        status = inspect_lock(&inspection, prefix, err);
    return status == HF_OK && !inspection.stop ? inspect_nodes(&inspection, by_name, err) : status;
}

hf_status hfi_redis_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err)
{
    struct inspection inspection = {
        .store = memory, .prefix = prefix, .done = true, .each = each, .arg = arg, .deadline_ns = deadline_ns
    };
    return inspect_nodes(&inspection, false, err);
}

hf_status hfi_redis_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err)
{
    struct inspection inspection = { .store = memory, .each = each, .arg = arg, .deadline_ns = deadline_ns };
    if (hfi_redis_check_name(memory, name, err) != HF_OK)
        return HF_INVALID;
    return inspect_lock(&inspection, name, err);
}

/* Asks who holds it, and then for breaking that one: a request that was given up and arrives late must not break the
 * next holder. */
hf_status hfi_redis_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    redisReply *seen = NULL, *reply = NULL;
    if (hfi_redis_check_name(memory, name, err) != HF_OK)
        return HF_INVALID;
    hf_status status = hfi_redis_only_read(
        ask_about(memory, REDIS_EVICT, name, (const char *[2]){ "", NULL }, &seen, deadline_ns, err), err);
    if (status != HF_OK)
        return status;
    const bool held = seen->type == REDIS_REPLY_STRING;
    if (held)
        status = ask_about(memory, REDIS_EVICT, name, (const char *[2]){ seen->str, by }, &reply, deadline_ns, err);
    const redisReply *last = held ? reply : seen;
    if (status == HF_OK && last->type != REDIS_REPLY_INTEGER)
        status = hfi_redis_refusal(last, name, err);
    freeReplyObject(seen);
    freeReplyObject(reply);
    return status;
}
