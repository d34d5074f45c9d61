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
    struct redis_question question = { .script = &store->scripts.look,
                                       .arguments = &command,
                                       .deadline_ns = deadline_ns };
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

static int show(const redisReply *reply, const char *name, hf_inspect_fn each, void *arg)
{
    char host[65] = "";
    long long pid = 0;
    int used = 0;
    if (reply->element[0]->integer == 0) /* it has ended since */
        return 0;
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
                          .waiters = (int64_t)waiters,
                          .note = known && info[used] == ' ' ? info + used + 1 : "",
                          .waiting = waiting };
    const int stop = each(&one, arg);
    hfi_free((void *)(uintptr_t)waiting);
    return stop;
}

struct inspection {
    struct redis_store *store;
    const char *prefix;
    hf_inspect_fn each;
    void *arg;
    hfi_time deadline_ns;
    char pattern[2 * HFI_REDIS_KEY_MAX];
    char cursor[24];
    int stop;
};

/* One command that changes nothing, on an idle connection. */
static hf_status ask_plainly(struct redis_store *store, const struct redis_command *command, redisReply **out,
                             hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *connection;
    hf_status status = hfi_redis_borrow(store, &connection, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = hfi_redis_send(connection, &command, 1, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_redis_receive(connection, out, deadline_ns, err);
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        if (err)
            err->status = HF_UNAVAILABLE;
        return HF_UNAVAILABLE;
    }
    connection->used_ns = store->env->now_ns();
    hfi_redis_give_back(store, connection);
    return HF_OK;
}

/* One step of SCAN; the cursor is "0" after the last. */
static hf_status scan(struct inspection *inspection, redisReply **out, hf_error *err)
{
    const char *const words[] = { "SCAN", inspection->cursor, "MATCH", inspection->pattern, "COUNT", "1000", "TYPE",
                                  "hash" };
    struct redis_command command = { .count = 0 };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hfi_redis_add(&command, words[i]);
    hf_status status = ask_plainly(inspection->store, &command, out, inspection->deadline_ns, err);
    if (status != HF_OK)
        return status;
    const redisReply *reply = *out;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING &&
        reply->element[1]->type == REDIS_REPLY_ARRAY) {
        snprintf(inspection->cursor, sizeof inspection->cursor, "%s", reply->element[0]->str);
        return HF_OK;
    }
    status = hfi_redis_refusal(reply, inspection->pattern, err);
    freeReplyObject(*out);
    return status;
}

static hf_status inspect_found(struct inspection *inspection, const redisReply *keys, hf_error *err)
{
    struct redis_store *store = inspection->store;
    for (size_t i = 0; i < keys->elements && !inspection->stop; i++) {
        char name[HFI_REDIS_KEY_MAX];
        redisReply *reply = NULL;
        if (!name_of(name, sizeof name, store, keys->element[i]) ||
            strncmp(name, inspection->prefix, strlen(inspection->prefix)) != 0)
            continue;
        hf_status status = look_at(store, name, &reply, inspection->deadline_ns, err);
        if (status == HF_UNKNOWN) { /* nothing was to be changed */
            status = HF_UNAVAILABLE;
            if (err)
                err->status = status;
        }
        if (status != HF_OK)
            return status;
        if (is_look(reply))
            inspection->stop = show(reply, name, inspection->each, inspection->arg);
        else
            status = hfi_redis_refusal(reply, name, err);
        freeReplyObject(reply);
        if (status != HF_OK)
            return status;
    }
    return HF_OK;
}

hf_status hfi_redis_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err)
{
    struct inspection inspection = {
        .store = memory, .prefix = prefix, .each = each, .arg = arg, .deadline_ns = deadline_ns, .cursor = "0"
    };
    hf_status status;
    /* Names with a {tag} of their own have no brace in front, so the pattern cannot be narrower than the prefix of
     * all. */
    const size_t used =
        add_literal(inspection.pattern, 0, sizeof inspection.pattern - 2, inspection.store->config.prefix);
    inspection.pattern[used] = '*';
    inspection.pattern[used + 1] = 0;
    do {
        redisReply *found = NULL;
        status = scan(&inspection, &found, err);
        if (status != HF_OK)
            break;
        status = inspect_found(&inspection, found->element[1], err);
        freeReplyObject(found);
    } while (status == HF_OK && !inspection.stop && strcmp(inspection.cursor, "0") != 0);
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
    struct redis_question question = { .script = &store->scripts.evict,
                                       .arguments = &command,
                                       .deadline_ns = deadline_ns };
    hf_status status = hfi_redis_ask(store, &question, &reply, err);
    if (status != HF_OK)
        return status;
    if (reply->type != REDIS_REPLY_INTEGER)
        status = hfi_redis_refusal(reply, key, err);
    freeReplyObject(reply);
    return status;
}
