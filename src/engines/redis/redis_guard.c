/* SPDX-License-Identifier: MIT
 *
 * redis_guard.c: fencing. The largest token that was shown for a resource is kept beside the user's data, in one key
 * for each resource, which all dialects share:
 *
 *   hf:{RESOURCE}:g   string   the token in decimal
 *
 * It has no expiry: once it was forgotten, every old token would pass. scripts/holdfast-guard.lua does the same and the
 * user's write in one step.
 */
#include "redis.h"
#include <inttypes.h>
#include <stdio.h>

/* ARGV token. 1: it is noted. Else the larger one. Tokens have 63 bits and Lua's numbers 53, so they are compared as
 * texts. An equal one is written again, as WAIT only waits for what this connection has written. */
const char hfi_redis_guard_script[] =
    "local token, seen = ARGV[1], redis.call('get', KEYS[1])\n"
    "if seen and not string.find(seen, '^[1-9]%d*$') then return redis.error_reply('WRONGTYPE no token') end\n"
    "if seen and (#seen > #token or #seen == #token and seen > token) then return seen end\n"
    "redis.call('set', KEYS[1], token)\n"
    "return 1\n";

static void key_of(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *resource)
{
    const struct redis_dialect *dialect = store->config.dialect;
    redis_keys keys;
    dialect->keys(keys, store, resource, (struct hfi_owner){ 0, 0 });
    if (dialect == &hfi_redis_native)
        snprintf(out, HFI_REDIS_KEY_MAX, "%.*s:g", HFI_REDIS_KEY_MAX - 3, keys[0]);
    else
        hfi_redis_companion(out, keys[0], "g");
}

static hf_status take_answer(const redisReply *reply, const char *key, const char *resource, const char *token,
                             hf_error *err)
{
    if (reply->type == REDIS_REPLY_STRING)
        return hfi_fail(err, HF_LOST, 0, "token %s is too old for %.80s, which has seen %.20s", token, resource,
                        reply->str);
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 1)
        return HF_OK;
    return hfi_redis_refusal(reply, key, err);
}

hf_status hfi_redis_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err)
{
    struct redis_store *store = memory;
    struct redis_command command = { REDIS_ROOM(5) };
    redisReply *reply = NULL;
    char key[HFI_REDIS_KEY_MAX], number[24];
    bool confirmed;
    key_of(key, store, resource);
    snprintf(number, sizeof number, "%" PRIu64, token);
    hfi_redis_add_script(&command, &store->scripts[REDIS_GUARD]);
    hfi_redis_add(&command, "1");
    hfi_redis_add(&command, key);
    hfi_redis_add(&command, number);
    struct redis_question question = { .key = key, .commands = &command, .count = 1, .deadline_ns = deadline_ns };
    hf_status status = hfi_redis_ask_confirmed(store, &question, &reply, &confirmed, err);
    if (status != HF_OK)
        return status;
    status = take_answer(reply, key, resource, number, err);
    if (status == HF_OK && !confirmed)
        status = HF_UNKNOWN;
    freeReplyObject(reply);
    return status;
}
