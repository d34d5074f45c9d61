/* SPDX-License-Identifier: MIT
 *
 * redis_look.c: who holds what on the server, and breaking a lock. SCAN, never KEYS.
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The name that a key stands for; false if it is not a lock's. */
static bool name_of(char *out, size_t size, const struct redis_store *store, const redisReply *key)
{
    const size_t prefix = strlen(store->config.prefix);
    char again[HFI_REDIS_KEY_MAX], queue[HFI_REDIS_KEY_MAX + 2];
    if (key->type != REDIS_REPLY_STRING || key->len <= prefix + 1 || key->len - prefix >= size ||
        memcmp(key->str, store->config.prefix, prefix) != 0)
        return false;
    const bool braces = key->str[prefix] == '{' && key->str[key->len - 1] == '}';
    const size_t skip = braces ? 1 : 0;
    const size_t length = key->len - prefix - skip - 1;
    memcpy(out, key->str + prefix + skip, length);
    out[length] = 0;
    hfi_redis_keys(again, queue, store, out);
    return strlen(out) == length && strcmp(again, key->str) == 0;
}

static hf_status look_at(struct redis_store *store, const char *name, redisReply **reply, hfi_time deadline_ns,
                         hf_error *err)
{
    char key[HFI_REDIS_KEY_MAX], queue[HFI_REDIS_KEY_MAX + 2];
    struct redis_command command = { .count = 0 };
    hfi_redis_keys(key, queue, store, name);
    hfi_redis_add(&command, "2");
    hfi_redis_add(&command, key);
    hfi_redis_add(&command, queue);
    return hfi_redis_ask(store, &store->scripts.look, &command, NULL, reply, deadline_ns, NULL, err);
}

static int show(const redisReply *reply, const char *name, hf_inspect_fn each, void *arg)
{
    char host[65] = "";
    long long pid = 0;
    int used = 0;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 5 || reply->element[0]->integer != 1 ||
        reply->element[4]->type != REDIS_REPLY_STRING)
        return 0;
    const char *info = reply->element[4]->str;
    const bool known = sscanf(info, "%64s %lld%n", host, &pid, &used) == 2;
    const hf_info one = { .size = sizeof one,
                          .name = name,
                          .host = known ? host : "",
                          .pid = known ? pid : 0,
                          .token = (uint64_t)reply->element[1]->integer,
                          .held_ms = reply->element[3]->integer,
                          .remaining_ms = reply->element[2]->integer,
                          .waiters = (int64_t)reply->elements - 5,
                          .note = known && info[used] == ' ' ? info + used + 1 : "" };
    return each(&one, arg);
}

/* One step of SCAN; *cursor "0" afterwards: it was the last. */
static hf_status scan(struct redis_store *store, char cursor[24], const char *pattern, redisReply **out,
                      hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *connection;
    struct redis_command command = { .count = 0 };
    const struct redis_command *const commands[1] = { &command };
    hf_error own;
    hf_error *words = err ? err : &own;
    static const char *const rest[] = { "COUNT", "1000", "TYPE", "hash" };
    hfi_redis_add(&command, "SCAN");
    hfi_redis_add(&command, cursor);
    hfi_redis_add(&command, "MATCH");
    hfi_redis_add(&command, pattern);
    for (size_t i = 0; i < 4; i++)
        hfi_redis_add(&command, rest[i]);
    hf_status status = hfi_redis_borrow(store, &connection, deadline_ns, words);
    if (status != HF_OK)
        return status;
    status = hfi_redis_send(connection, commands, 1, deadline_ns, words);
    if (status == HF_OK)
        status = hfi_redis_receive(connection, out, deadline_ns, words);
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        words->status = HF_UNAVAILABLE; /* nothing was to be changed */
        return HF_UNAVAILABLE;
    }
    connection->used_ns = store->env->now_ns();
    hfi_redis_give_back(store, connection);
    if ((*out)->type == REDIS_REPLY_ARRAY && (*out)->elements == 2 && (*out)->element[0]->type == REDIS_REPLY_STRING &&
        (*out)->element[1]->type == REDIS_REPLY_ARRAY) {
        snprintf(cursor, 24, "%s", (*out)->element[0]->str);
        return HF_OK;
    }
    status = hfi_redis_refusal(*out, pattern, words);
    freeReplyObject(*out);
    return status;
}

static hf_status inspect_found(struct redis_store *store, const redisReply *keys, const char *prefix,
                               hf_inspect_fn each, void *arg, int *stop, hfi_time deadline_ns, hf_error *err)
{
    for (size_t i = 0; i < keys->elements && !*stop; i++) {
        char name[HFI_REDIS_KEY_MAX];
        redisReply *reply = NULL;
        if (!name_of(name, sizeof name, store, keys->element[i]) || strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        const hf_status status = look_at(store, name, &reply, deadline_ns, err);
        if (status != HF_OK)
            return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
        *stop = show(reply, name, each, arg);
        freeReplyObject(reply);
    }
    return HF_OK;
}

hf_status hfi_redis_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err)
{
    struct redis_store *store = memory;
    char pattern[2 * HFI_REDIS_KEY_MAX];
    char cursor[24] = "0";
    int stop = 0;
    hf_status status;
    /* Names with a {tag} of their own have no brace in front, so the pattern cannot be narrower than the prefix of all. */
    const size_t used = add_literal(pattern, 0, sizeof pattern - 2, store->config.prefix);
    pattern[used] = '*';
    pattern[used + 1] = 0;
    do {
        redisReply *found = NULL;
        status = scan(store, cursor, pattern, &found, deadline_ns, err);
        if (status != HF_OK)
            break;
        status = inspect_found(store, found->element[1], prefix, each, arg, &stop, deadline_ns, err);
        freeReplyObject(found);
    } while (status == HF_OK && !stop && strcmp(cursor, "0") != 0);
    return status;
}

hf_status hfi_redis_evict(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct redis_store *store = memory;
    char key[HFI_REDIS_KEY_MAX], queue[HFI_REDIS_KEY_MAX + 2];
    struct redis_command command = { .count = 0 };
    redisReply *reply = NULL;
    hfi_redis_keys(key, queue, store, name);
    hfi_redis_add(&command, "2");
    hfi_redis_add(&command, key);
    hfi_redis_add(&command, queue);
    hf_status status = hfi_redis_ask(store, &store->scripts.evict, &command, NULL, &reply, deadline_ns, NULL, err);
    if (status != HF_OK)
        return status;
    if (reply->type != REDIS_REPLY_INTEGER)
        status = hfi_redis_refusal(reply, key, err);
    freeReplyObject(reply);
    return status;
}
