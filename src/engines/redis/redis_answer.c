/* SPDX-License-Identifier: MIT
 *
 * redis_answer.c: what the server's error replies mean, and what mends them.
 */
#include "redis.h"
#include <stdio.h>
#include <string.h>

bool hfi_redis_is_error(const redisReply *reply, const char *code)
{
    const size_t length = strlen(code);
    return reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, code, length) == 0 &&
           (reply->str[length] == ' ' || reply->str[length] == 0);
}

/* The script may be allowed what the command is not; and one that has nothing to store is not refused for want of
 * memory, disk or replicas. */
static bool is_refused_natively(const redisReply *reply)
{
    static const char *const refusals[] = { "ERR unknown command", "NOPERM", "OOM", "MISCONF", "NOREPLICAS" };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        if (hfi_redis_is_error(reply, refusals[i]))
            return true;
    }
    return false;
}

static bool goes_by_script(struct redis_command *command, const redisReply *reply)
{
    if (!command->script || !command->script->native || command->by_script || !is_refused_natively(reply))
        return false;
    command->denied = hfi_redis_is_error(reply, "NOPERM");
    command->by_script = true;
    return true;
}

/* What was denied may be this command, or one of its keys, to a user who has the module's commands and no scripts: they
 * are given up only where a script is let through. */
enum redis_again hfi_redis_again(const struct redis_question *question, redisReply *const *replies, size_t i,
                                 bool natively, bool *gone)
{
    struct redis_command *command = &question->commands[i];
    const redisReply *reply = replies[i];
    const bool unknown = hfi_redis_is_error(reply, "NOSCRIPT");
    *gone = command->denied && (unknown || reply->type != REDIS_REPLY_ERROR);
    if (!command->script || reply->type != REDIS_REPLY_ERROR)
        return REDIS_ANSWERED;
    if (natively && goes_by_script(command, reply)) {
        *gone = hfi_redis_is_error(reply, "ERR unknown command");
        while (++i < question->count) /* not one after the other: each time all that are left go again */
            goes_by_script(&question->commands[i], replies[i]);
        return REDIS_BY_HASH;
    }
    if (!unknown)
        return REDIS_ANSWERED;
    command->text[0] = "EVAL";
    command->text[1] = command->script->text;
    return REDIS_BY_TEXT;
}

static bool is_text(const redisReply *reply, const char *text)
{
    return (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS) && strcmp(reply->str, text) == 0;
}

/* What follows upon `name` in a list of names and values; NULL: nothing. */
static const redisReply *find_value(const redisReply *list, const char *name)
{
    for (size_t i = 0; list->type == REDIS_REPLY_ARRAY && i + 1 < list->elements; i += 2) {
        if (is_text(list->element[i], name))
            return list->element[i + 1];
    }
    return NULL;
}

/* Later versions have all commands of the first. */
bool hfi_redis_names_module(const redisReply *reply)
{
    const redisReply *modules = find_value(reply, "modules");
    for (size_t i = 0; modules && modules->type == REDIS_REPLY_ARRAY && i < modules->elements; i++) {
        const redisReply *name = find_value(modules->element[i], "name");
        if (name && is_text(name, "holdfast"))
            return true;
    }
    return false;
}

/* An error inside of a script comes wrapped: "ERR Error running script … -OOM command not allowed …" on old servers. */
static const char *find_code(const char *text, const char *code)
{
    const char *place = strstr(text, code);
    return place && (place == text || strchr(" -@", place[-1])) ? place : NULL;
}

/* Inside of a script the code does not come first. */
bool hfi_redis_is_replica(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ERROR &&
           (find_code(reply->str, "READONLY") || find_code(reply->str, "MASTERDOWN"));
}

/* Commands that a script calls are checked too. This is the rule of the native dialect; holdfast-redis(7) has those of
 * the others, which do not fit into a message. */
#define NEEDED_RULE                                                                                                    \
    "the ACL user may not do this; it needs +ping +eval +evalsha +time +hget +hmget +hset +hdel +hincrby +pexpire "    \
    "+zadd +zrem +zrank +zcard +zpopmin +zrange +publish +subscribe +scan +get +set ~PREFIX* &hf:c:*"

static const struct {
    const char *code;
    hf_status status;
    const char *words; /* %.60s: the key */
} meanings[] = {
    { "LOADING", HF_UNAVAILABLE, "the server is still loading its data" },
    { "BUSY ", HF_UNAVAILABLE, "the server is busy with a script that does not end (SCRIPT KILL)" },
    { "MASTERDOWN", HF_UNAVAILABLE, "the server is a replica that has lost its master" },
    { "CLUSTERDOWN", HF_UNAVAILABLE, "the cluster is down" },
    { "TRYAGAIN", HF_UNAVAILABLE, "the keys are just being moved to another node" },
    { "READONLY", HF_UNAVAILABLE, "the server is a read-only replica; the URL must name its master" },
    { "MISCONF", HF_UNAVAILABLE, "the server cannot save to disk and refuses writes (stop-writes-on-bgsave-error)" },
    { "NOREPLICAS", HF_UNAVAILABLE, "the server has too few good replicas to accept writes (min-replicas-to-write)" },
    { "OOM", HF_UNAVAILABLE, "the server is out of memory (maxmemory)" },
    { "NOPERM", HF_DENIED, NEEDED_RULE },
    { "ACL failure in script", HF_DENIED, NEEDED_RULE },
    { "can't run this command", HF_DENIED, NEEDED_RULE },
    { "can't publish to the channel", HF_DENIED, NEEDED_RULE },
    { "DB index is out of range", HF_INVALID, "the server has no such database" },
    { "WAITAOF cannot be used", HF_UNSUPPORTED, "fsync=yes needs appendonly yes on the server" },
    { "'WAITAOF'", HF_UNSUPPORTED, "fsync=yes needs Redis 7.2 or newer" },
    { "`WAITAOF`", HF_UNSUPPORTED, "fsync=yes needs Redis 7.2 or newer" },
    { "NOAUTH", HF_DENIED, "the server wants a password (URL, HOLDFAST_PASSWORD or password_file)" },
    { "WRONGPASS", HF_DENIED, "the server refuses the user name or password" },
    { "WRONGTYPE", HF_DENIED, "another program uses the key for data of another type" },
    { "MOVED", HF_UNSUPPORTED, "the server is part of a cluster; use redis+cluster://" },
    { "ASK ", HF_UNSUPPORTED, "the server is part of a cluster; use redis+cluster://" },
    { "CROSSSLOT", HF_UNSUPPORTED,
      "the server is part of a cluster: use redis+cluster://, and in this dialect a name without a lone brace" },
    { "cluster support disabled", HF_INVALID, "the server is not part of a cluster; use redis://" },
    { "unknown command", HF_UNSUPPORTED, "the server lacks a command (renamed, or too old: Redis 6 is needed)" },
    { "max number of clients", HF_UNAVAILABLE, "the server has no room for another connection (maxclients)" },
    { "invalid password", HF_DENIED, "the server refuses the password" },
    { "without any password configured", HF_DENIED, "the URL has a password, but the server wants none" },
};

hf_status hfi_redis_refusal(const redisReply *reply, const char *key, hf_error *err)
{
    if (reply->type != REDIS_REPLY_ERROR)
        return hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (find_code(reply->str, meanings[i].code) && !key)
            return hfi_fail(err, meanings[i].status, 0, "%s", meanings[i].words);
        if (find_code(reply->str, meanings[i].code))
            return hfi_fail(err, meanings[i].status, 0, "%s%s%.60s: %.80s", meanings[i].words, *key ? ", key " : "",
                            key, reply->str);
    }
    if (!key)
        return hfi_fail(err, HF_INTERNAL, 0, "the server refuses the log-in and does not say why in words known here");
    return hfi_fail(err, HF_INTERNAL, 0, "the server answered: %.180s", reply->str);
}
