/* SPDX-License-Identifier: MIT
 *
 * redis_plain.c: the dialects `plain` and `tair`: a string under the lock's own name whose value is the holder's
 * secret, as redsync, redislock, node-redlock, redis-py and many others write it. Whoever finds it there is kept out,
 * whoever wrote it. What such a lock lacks is kept beside it, for Holdfast's own clients alone:
 *
 *   NAME         string   owner "client.serial", or whatever others write; ends by itself. "owner+N" after a renewal
 *                         that others may be behind
 *   hf:{NAME}:w  zset     "owner host pid note" by order of arrival: who waits
 *   hf:{NAME}:t  string   "token owner s us host pid note" of the last grant; stays for a day after its last use.
 *                         On a second line, if there are any, the marks: owners that nothing is granted to any more
 *
 * A release calls the first live waiter, who then asks; the queue decides on order only, never on who holds the lock.
 * Others do not call anybody: while the value is none of ours, the waiters ask from time to time.
 *
 * A release is one command where the server has one that compares and deletes, and the script that calls the next goes
 * behind it in the same write. `tair` renews by CAS and releases by CAD.
 */
#include "redis.h"
#include "redis_lua.h"
#include <stdio.h>
#include <string.h>

/* In a cluster with sharded publishing a waiter is called on a channel in the slot. */
#define TO_SLOT "'spublish', KEYS[2] .. ':c:' .. client"

/* clang-format off */

/* Whoever comes while others wait goes behind them; but whoever waited for long enough to ask again may take it. A SET
 * that is refused, for want of memory say, is an answer only if the lock is free. */
#define ACQUIRE(CHANNEL)                                                                                               \
    "local me, member = ARGV[1], ARGV[1] .. ' ' .. ARGV[2]\n"                                                          \
    LAST_GRANT CLOCK REFUSE_MARKED("marks")                                                                            \
    "if stale then marks = '' end\n"                                                                                   \
    "local waiting = redis.call('zcard', KEYS[2])\n"                                                                   \
    "local place = waiting > 0 and redis.call('zrank', KEYS[2], member)\n"                                             \
    "local behind = ARGV[4] == '1' and waiting > 0 and not place\n"                                                    \
    "if behind then\n"                                                                                                 \
    "  redis.call('zadd', KEYS[2], now, member)\n"                                                                     \
    "  if redis.call('exists', KEYS[1]) == 0 then\n"                                                                   \
    CALL_NEXT(CHANNEL, "nil")                                                                                          \
    "  end\n"                                                                                                          \
    "  place = redis.call('zrank', KEYS[2], member)\n"                                                                 \
    "  behind = place and place > 0\n"                                                                                 \
    "end\n"                                                                                                            \
    "local set = not behind and redis.pcall('set', KEYS[1], me, 'px', ARGV[3], 'nx')\n"                                \
    "if set and not set.err then\n"                                                                                    \
    NEW_GRANT                                                                                                          \
    "  if place then redis.call('zrem', KEYS[2], member) end\n"                                                        \
    "  return token\n"                                                                                                 \
    "end\n"                                                                                                            \
    "local value = redis.pcall('get', KEYS[1])\n"                                                                      \
    "if set and (not value or string.find(set.err, 'READONLY', 1, true)) then return set end\n"                        \
    "local holder = type(value) == 'string' and " HOLDER_OF("value") "\n"                                              \
    "if holder == me then\n"                                                                                           \
    "  redis.call('zrem', KEYS[2], member)\n"                                                                          \
    "  if value == me then redis.call('pexpire', KEYS[1], ARGV[3]) end\n"                                              \
    "  if owner == me then return last end\n"                                                                          \
    NEW_GRANT                                                                                                          \
    "  return token\n"                                                                                                 \
    "end\n"                                                                                                            \
    "if ARGV[4] == '1' and not place then\n"                                                                           \
    "  redis.call('zadd', KEYS[2], now, member)\n"                                                                     \
    "  place = 0\n"                                                                                                    \
    "end\n"                                                                                                            \
    "if ARGV[4] == '1' then redis.call('pexpire', KEYS[2], 86400000) end\n"                                            \
    "return { -1, now, redis.call('pttl', KEYS[1]), ARGV[4] == '1' and place or -1,\n"                            \
    "  holder == owner and info or '' }\n"

/* A waiter that was called and leaves passes the call on. */
#define RELEASE(CHANNEL)                                                                                               \
    LEAVE_MARK                                                                                                         \
    "local value = redis.pcall('get', KEYS[1])\n"                                                                      \
    "if type(value) == 'string' and " HOLDER_OF("value") " == ARGV[1] then\n"                                          \
    "  redis.call('del', KEYS[1])\n"                                                                                   \
    "elseif redis.call('zrem', KEYS[2], ARGV[1] .. ' ' .. ARGV[2]) == 0 then\n"                                        \
    "  return 0\n"                                                                                                     \
    "elseif redis.call('exists', KEYS[1]) == 1 then\n"                                                                 \
    "  return 1\n"                                                                                                     \
    "end\n"                                                                                                            \
    CALL_NEXT(CHANNEL, "nil")                                                                                          \
    "return 1\n"

/* The name of a lock is that of a key, whosever it is: GET fails on what is no lock, before it is deleted. */
#define EVICT(CHANNEL)                                                                                                 \
    "local value = redis.call('get', KEYS[1])\n"                                                                       \
    "if value then\n"                                                                                                  \
    ONLY_WHOM_WAS_SEEN("(string.gsub(value, '%+%d+$', ''))")                                                           \
    "  redis.call('del', KEYS[1])\n" TELL_HOLDER("value")                                                              \
    "end\n"                                                                                                            \
    CALL_NEXT(CHANNEL, "nil")                                                                                          \
    "return value and 1 or 0\n"

#define CALL(CHANNEL)                                                                                                  \
    "if redis.call('exists', KEYS[1]) == 0 then\n"                                                                     \
    CALL_NEXT(CHANNEL, "nil")                                                                                          \
    "end\n"                                                                                                            \
    "return 0\n"

#define HELD                                                                                                           \
    LAST_GRANT                                                                                                         \
    "local value = redis.pcall('get', KEYS[1])\n"                                                                      \
    "if type(value) == 'string' and " HOLDER_OF("value") " == me then\n"                                               \
    "  token = owner == me and string.format('%.0f', last) or '0'\n"                                                   \
    "end\n"

#define LOOK                                                                                                           \
    "local left = redis.call('pttl', KEYS[1])\n"                                                                       \
    "if left == -2 then return { 0 } end\n"                                                                            \
    LAST_GRANT CLOCK                                                                                                   \
    "local answer = { 1, 0, left, -1, '' }\n"                                                                          \
    "local s, us, who = string.match(info or '', '^(%d+) (%d+) (.*)$')\n"                                              \
    "local value = redis.pcall('get', KEYS[1])\n"                                                                      \
    "if s and type(value) == 'string' and " HOLDER_OF("value") " == owner then\n"                                      \
    "  answer = { 1, last, left, (now - s * 1000000 - us) / 1000, who }\n"                                             \
    "end\n"                                                                                                            \
    "for i, member in ipairs(redis.call('zrange', KEYS[2], 0, -1)) do answer[5 + i] = member end\n"                    \
    "return answer\n"
/* clang-format on */

/* --- names --- */

void hfi_redis_companion(char out[HFI_REDIS_KEY_MAX], const char *key, const char *suffix)
{
    snprintf(out, HFI_REDIS_KEY_MAX, hfi_redis_has_tag(key) ? "hf::%.*s:%s" : "hf:{%.*s}:%s", HFI_REDIS_KEY_MAX - 40,
             key, suffix);
}

static size_t keys_of(redis_keys keys, const struct redis_store *store, const char *name, struct hfi_owner owner)
{
    (void)owner;
    snprintf(keys[0], sizeof keys[0], "%s%s", store->config.prefix, name);
    hfi_redis_companion(keys[1], keys[0], "w");
    hfi_redis_companion(keys[2], keys[0], "t");
    return 3;
}

static void channel_of(char out[HFI_REDIS_KEY_MAX], const redis_keys keys, uint64_t client)
{
    snprintf(out, HFI_REDIS_KEY_MAX, "%.*s:c:%016llx", HFI_REDIS_KEY_MAX - 24, keys[1], (unsigned long long)client);
}

bool hfi_redis_companion_of(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key,
                            const char *suffix)
{
    const size_t prefix = strlen(store->config.prefix);
    const size_t length = strlen(key);
    char plain[HFI_REDIS_KEY_MAX], again[HFI_REDIS_KEY_MAX];
    if (length < 6 || length >= HFI_REDIS_KEY_MAX || strncmp(key, "hf:", 3) != 0)
        return false;
    const size_t from = 4;
    const size_t to = length - (key[3] == '{' ? 3 : 2);
    if (to <= from + prefix)
        return false;
    memcpy(plain, key + from, to - from);
    plain[to - from] = 0;
    hfi_redis_companion(again, plain, suffix);
    if (strcmp(again, key) != 0 || strncmp(plain, store->config.prefix, prefix) != 0)
        return false;
    memcpy(out, plain + prefix, to - from - prefix + 1);
    return true;
}

bool hfi_redis_companion_name(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key)
{
    return hfi_redis_companion_of(out, store, key, "t");
}

/* --- one command instead of a script --- */

static const char *const verbs[] = {
    [REDIS_BY_DELEX] = "DELEX", [REDIS_BY_DELIFEQ] = "DELIFEQ", [REDIS_BY_CAD] = "CAD"
};

#define ASKED_FOR 3

/* What COMMAND INFO says counts, not a version: proxies lie. */
static hf_status probe(struct redis_store *store, redisReply **out, hfi_time deadline_ns, hf_error *err)
{
    struct redis_command command = { REDIS_ROOM(2 + ASKED_FOR) };
    hfi_redis_add(&command, "COMMAND");
    hfi_redis_add(&command, "INFO");
    for (int verb = REDIS_BY_DELEX; verb <= REDIS_BY_CAD; verb++)
        hfi_redis_add(&command, verbs[verb]);
    struct redis_question question = { .key = "", .commands = &command, .count = 1, .deadline_ns = deadline_ns };
    return hfi_redis_only_read(hfi_redis_ask(store, &question, out, err), err);
}

static bool has(const redisReply *reply, size_t index)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == ASKED_FOR &&
           reply->element[index]->type == REDIS_REPLY_ARRAY && reply->element[index]->elements > 0;
}

/* What CAS and CAD say to a key that is not there. Refused for another reason than that it is unknown, a command may
 * still work at another time, and until then there is the script. */
static hf_status check_command(const redisReply *reply, hf_error *err)
{
    if (reply->type == REDIS_REPLY_INTEGER)
        return HF_OK;
    const hf_status status = hfi_redis_refusal(reply, "", err);
    if (status == HF_UNSUPPORTED && strstr(reply->str, "unknown command"))
        return hfi_fail(err, HF_UNSUPPORTED, 0,
                        "the server has no CAS and CAD; load Holdfast's module holdfast-cas.so, or use dialect=plain");
    return status == HF_UNAVAILABLE || status == HF_DENIED ? HF_OK : status;
}

/* `tair` speaks to servers with CAS and CAD; without them it would be another dialect than the one asked for. They are
 * tried: not every proxy that passes them on says so in COMMAND INFO. */
static hf_status try_cas_and_cad(struct redis_store *store, hfi_time deadline_ns, hf_error *err)
{
    struct redis_command commands[2] = { { REDIS_ROOM(6) }, { REDIS_ROOM(3) } };
    const char *const words[] = { "0", "0", "PX", "1" };
    redisReply *replies[2] = { NULL, NULL };
    char key[32];
    snprintf(key, sizeof key, "hf:p:%016llx", (unsigned long long)store->env->client);
    hfi_redis_add(&commands[0], "CAS");
    hfi_redis_add(&commands[1], "CAD");
    for (size_t i = 0; i < 2; i++)
        hfi_redis_add(&commands[i], key);
    for (size_t i = 0; i < 4; i++)
        hfi_redis_add(&commands[0], words[i]);
    hfi_redis_add(&commands[1], words[0]);
    struct redis_question question = { .key = key, .commands = commands, .count = 2, .deadline_ns = deadline_ns };
    hf_status status = hfi_redis_only_read(hfi_redis_ask(store, &question, replies, err), err);
    for (size_t i = 0; i < 2 && status == HF_OK; i++)
        status = check_command(replies[i], err);
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
    store->verb = REDIS_BY_CAD;
    return status;
}

hf_status hfi_redis_plain_open(struct redis_store *store, hfi_time deadline_ns, hf_error *err)
{
    redisReply *reply = NULL;
    if (store->config.dialect == &hfi_redis_tair)
        return try_cas_and_cad(store, deadline_ns, err);
    const hf_status status = probe(store, &reply, deadline_ns, err);
    if (status == HF_OK) {
        store->verb = REDIS_BY_SCRIPT; /* also where COMMAND is refused */
        for (int verb = REDIS_BY_CAD; verb >= REDIS_BY_DELEX; verb--) {
            if (has(reply, (size_t)(verb - REDIS_BY_DELEX)))
                store->verb = (enum redis_verb)verb;
        }
    }
    freeReplyObject(reply);
    return status;
}

/* The command that compares and deletes, and behind it the script that calls the next. */
hf_status hfi_redis_plain_release(struct redis_store *store, const struct hfi_request *request, redisReply **reply,
                                  hf_error *err)
{
    const enum redis_verb verb = store->verb;
    char owner[HFI_REDIS_OWNER_MAX];
    redis_keys keys;
    redisReply *replies[2] = { NULL, NULL };
    struct redis_command commands[2] = { { REDIS_ROOM(4) }, { REDIS_ROOM(6) } };
    keys_of(keys, store, request->name, request->owner);
    hfi_redis_owner(owner, request->owner);
    hfi_redis_add(&commands[0], verbs[verb]);
    hfi_redis_add(&commands[0], keys[0]);
    if (verb == REDIS_BY_DELEX)
        hfi_redis_add(&commands[0], "IFEQ");
    hfi_redis_add(&commands[0], owner);
    hfi_redis_add_script(&commands[1], &store->scripts[REDIS_CALL]);
    hfi_redis_add(&commands[1], "3");
    for (size_t i = 0; i < 3; i++)
        hfi_redis_add(&commands[1], keys[i]);
    struct redis_question question = {
        .key = keys[0], .commands = commands, .count = 2, .deadline_ns = request->deadline_ns
    };
    const hf_status status = hfi_redis_ask(store, &question, replies, err);
    *reply = NULL;
    if (status != HF_OK)
        return status;
    freeReplyObject(replies[1]); /* a call that fails delays a waiter, no more */
    /* No memory, not allowed (COMMAND INFO does not say so), gone after a failover, no string any more: the script
     * can do it, or says better why not. */
    if (replies[0]->type == REDIS_REPLY_ERROR) {
        freeReplyObject(replies[0]);
        return HF_OK;
    }
    *reply = replies[0];
    return HF_OK;
}

#define SCRIPTS(CHANNEL)                                                                                               \
    {                                                                                                                  \
        ACQUIRE(CHANNEL), RELEASE(CHANNEL), RENEW_STRINGS("#KEYS", ""), EVICT(CHANNEL), LOOK, CALL(CHANNEL),           \
            UNLESS_DONE ACQUIRE(CHANNEL), AND_RECORD_DONE(HELD, RELEASE(CHANNEL))                                      \
    }

/* Both keep the same lock; `tair` differs in the commands that renew and release it. */
#define AS_STRING(NAME)                                                                                                \
    {                                                                                                                  \
        .name = (NAME), .prefix = "", .caps = HF_CAP_WAKE_ONE, .strangers = true, .scripts = SCRIPTS(TO_CLIENT),       \
        .sharded_scripts = SCRIPTS(TO_SLOT), .keys = keys_of, .owner = hfi_redis_owner, .channel = channel_of,         \
        .key_type = "string", .name_of = hfi_redis_companion_name,                                                     \
    }

const struct redis_dialect hfi_redis_plain = AS_STRING("plain");
const struct redis_dialect hfi_redis_tair = AS_STRING("tair");
