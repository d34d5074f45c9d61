/* SPDX-License-Identifier: MIT
 *
 * native_key.c: the two keys of a lock. Each change is made here, sent to replicas and to the log on disk as the plain
 * command that makes the same one there, and told to who listens for events.
 */
#include "native.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

#define DIGITS_MOST 18

static struct rm_string *fields[FIELDS];

void native_prepare(void)
{
    static const char *const names[FIELDS] = {
        [FIELD_OWNER] = "o",    [FIELD_TOKEN] = "t",  [FIELD_UNTIL] = "u", [FIELD_INFO] = "i",
        [FIELD_ARRIVALS] = "a", [FIELD_NUMBER] = "n", [FIELD_MARKS] = "x",
    };
    for (int i = 0; i < FIELDS; i++)
        fields[i] = api.create_string(NULL, names[i], 1);
}

/* As the server's own TIME. */
int64_t native_now_us(void)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    return (int64_t)now.tv_sec * 1000000 + now.tv_usec;
}

/* ------------------------------------------------------------------------------------------------------------ texts */

bool same_text(struct text one, struct text other)
{
    return one.bytes && other.bytes && one.length == other.length && memcmp(one.bytes, other.bytes, one.length) == 0;
}

bool read_number(struct text text, int64_t *number)
{
    *number = 0;
    if (!text.bytes || text.length == 0 || text.length > DIGITS_MOST)
        return false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
        *number = *number * 10 + (text.bytes[i] - '0');
    }
    return true;
}

bool read_key_count(struct text text, int64_t *count)
{
    return read_number(text, count) && *text.bytes != '0';
}

struct rm_string *join(struct rm_context *context, struct text one, struct text other)
{
    char bytes[512];
    const size_t length = one.length + 1 + other.length;
    struct rm_string *string = NULL;
    if (length <= sizeof bytes) { /* as good as always */
        memcpy(bytes, one.bytes, one.length);
        bytes[one.length] = ' ';
        memcpy(bytes + one.length + 1, other.bytes, other.length);
        string = api.create_string(context, bytes, length);
    } else {
        string = api.create_string(context, one.bytes, one.length);
        api.string_append_buffer(context, string, " ", 1);
        api.string_append_buffer(context, string, other.bytes, other.length);
    }
    /* cppcheck-suppress returnDanglingLifetime; the server has copied the bytes */
    return string;
}

/* ------------------------------------------------------------------------------------------------------------- keys */

static bool open_key(struct rm_context *context, struct rm_string *name, int type, struct rm_key **key)
{
    *key = api.open_key(context, name, RM_READ | RM_WRITE);
    const int found = api.key_type(*key);
    if (found == RM_KEY_EMPTY || found == type)
        return true;
    api.reply_with_error(context, WRONG_TYPE);
    return false;
}

bool lock_open(struct lock *lock)
{
    lock->now_us = native_now_us();
    return open_key(lock->context, lock->name, RM_KEY_HASH, &lock->key);
}

bool lock_open_queue(struct lock *lock)
{
    return lock->queue || open_key(lock->context, lock->queue_name, RM_KEY_ZSET, &lock->queue);
}

static void tell(const struct lock *lock, struct rm_string *name, int kind, const char *event)
{
    api.notify_keyspace_event(lock->context, kind, event, name);
}

static void changed(struct lock *lock, int kind, const char *event)
{
    if (!lock->changed)
        api.signal_modified_key(lock->context, lock->name);
    lock->changed = true;
    tell(lock, lock->name, kind, event);
}

/* ------------------------------------------------------------------------------------------------------------- hash */

struct text lock_field(const struct lock *lock, enum field field)
{
    struct rm_string *value = NULL;
    api.hash_get(lock->key, RM_HASH_NONE, fields[field], &value, NULL);
    return text_of(value);
}

void lock_put(struct lock *lock, enum field field, struct rm_string *value)
{
    api.hash_set(lock->key, RM_HASH_NONE, fields[field], value, NULL);
    api.replicate(lock->context, "HSET", "sss", lock->name, fields[field], value);
    changed(lock, RM_NOTIFY_HASH, field == FIELD_ARRIVALS ? "hincrby" : "hset"); /* as the script has it */
}

static struct rm_string *info_of(const struct lock *lock, struct text host_pid_note)
{
    char since[48];
    const int length = snprintf(since, sizeof since, "%lld %lld", (long long)(lock->now_us / 1000000),
                                (long long)(lock->now_us % 1000000));
    return join(lock->context, (struct text){ since, (size_t)length }, host_pid_note);
}

void lock_put_grant(struct lock *lock, struct rm_string *owner, int64_t token, int64_t until_us,
                    struct text host_pid_note)
{
    struct rm_context *const context = lock->context;
    struct rm_string *const t = api.create_string_from_long_long(context, token);
    struct rm_string *const u = api.create_string_from_long_long(context, until_us);
    struct rm_string *const i = info_of(lock, host_pid_note);
    api.hash_set(lock->key, RM_HASH_NONE, fields[FIELD_OWNER], owner, fields[FIELD_TOKEN], t, fields[FIELD_UNTIL], u,
                 fields[FIELD_INFO], i, NULL);
    api.replicate(context, "HSET", "sssssssss", lock->name, fields[FIELD_OWNER], owner, fields[FIELD_TOKEN], t,
                  fields[FIELD_UNTIL], u, fields[FIELD_INFO], i);
    changed(lock, RM_NOTIFY_HASH, "hset");
}

void lock_free(struct lock *lock, bool nobody_waits)
{
    if (nobody_waits) {
        api.hash_set(lock->key, RM_HASH_NONE, fields[FIELD_OWNER], RM_HASH_DELETE, fields[FIELD_ARRIVALS],
                     RM_HASH_DELETE, NULL);
        api.replicate(lock->context, "HDEL", "sss", lock->name, fields[FIELD_OWNER], fields[FIELD_ARRIVALS]);
    } else {
        api.hash_set(lock->key, RM_HASH_NONE, fields[FIELD_OWNER], RM_HASH_DELETE, NULL);
        api.replicate(lock->context, "HDEL", "ss", lock->name, fields[FIELD_OWNER]);
    }
    changed(lock, RM_NOTIFY_HASH, "hdel");
}

void lock_drop_marks(struct lock *lock)
{
    api.hash_set(lock->key, RM_HASH_NONE, fields[FIELD_MARKS], RM_HASH_DELETE, NULL);
    api.replicate(lock->context, "HDEL", "ss", lock->name, fields[FIELD_MARKS]);
    changed(lock, RM_NOTIFY_HASH, "hdel");
}

void lock_keep_for(struct lock *lock, int64_t ms)
{
    const long long at_ms = lock->now_us / 1000 + ms;
    api.set_abs_expire(lock->key, at_ms);
    api.replicate(lock->context, "PEXPIREAT", "sl", lock->name, at_ms);
    changed(lock, RM_NOTIFY_GENERIC, "expire");
}

/* ------------------------------------------------------------------------------------------------------------ queue */

static void remove_member(struct lock *lock, struct rm_string *member, const char *event)
{
    api.signal_modified_key(lock->context, lock->queue_name); /* before it may be gone: Redis 8 looks for it */
    api.zset_rem(lock->queue, member, NULL);
    api.replicate(lock->context, "ZREM", "ss", lock->queue_name, member);
    tell(lock, lock->queue_name, RM_NOTIFY_ZSET, event);
    if (api.key_type(lock->queue) == RM_KEY_EMPTY)
        tell(lock, lock->queue_name, RM_NOTIFY_GENERIC, "del");
}

struct rm_string *queue_pop(struct lock *lock, double *score)
{
    if (api.key_type(lock->queue) == RM_KEY_EMPTY ||
        api.zset_first_in_score_range(lock->queue, -INFINITY, INFINITY, 0, 0) != RM_OK)
        return NULL;
    struct rm_string *const first = api.zset_range_current_element(lock->queue, score);
    api.zset_range_stop(lock->queue);
    if (first)
        remove_member(lock, first, "zpopmin");
    return first;
}

static bool has_member(const struct lock *lock, struct rm_string *member)
{
    double score;
    return api.key_type(lock->queue) != RM_KEY_EMPTY && api.zset_score(lock->queue, member, &score) == RM_OK;
}

long long queue_place(const struct lock *lock, struct rm_string *member)
{
    if (!has_member(lock, member))
        return -1;
    /* The functions for keys know no rank; and whoever asks again is seldom. */
    struct rm_reply *const reply = api.call(lock->context, "ZRANK", "ss", lock->queue_name, member);
    return reply && api.call_reply_type(reply) == RM_REPLY_INTEGER ? api.call_reply_integer(reply) : -1;
}

void queue_add(struct lock *lock, struct rm_string *member, int64_t arrival, bool reserves)
{
    char score[32];
    snprintf(score, sizeof score, reserves ? "%lld.5" : "%lld", (long long)arrival);
    api.zset_add(lock->queue, (double)arrival + (reserves ? 0.5 : 0), member, NULL);
    api.replicate(lock->context, "ZADD", "scs", lock->queue_name, score, member);
    api.signal_modified_key(lock->context, lock->queue_name);
    tell(lock, lock->queue_name, RM_NOTIFY_ZSET, "zadd");
}

bool queue_remove(struct lock *lock, struct rm_string *member)
{
    const bool there = has_member(lock, member);
    if (there)
        remove_member(lock, member, "zrem");
    return there;
}

void queue_keep(struct lock *lock)
{
    const long long at_ms = lock->now_us / 1000 + DAY_MS;
    api.set_abs_expire(lock->queue, at_ms);
    api.replicate(lock->context, "PEXPIREAT", "sl", lock->queue_name, at_ms);
    api.signal_modified_key(lock->context, lock->queue_name);
    tell(lock, lock->queue_name, RM_NOTIFY_GENERIC, "expire");
}

/* --------------------------------------------------------------------------------------------------------- messages */

static struct rm_string *channel_of(const struct lock *lock, struct text client)
{
    const struct text name = text_of(lock->name);
    struct rm_string *channel =
        api.create_string(lock->context, lock->sharded ? name.bytes : "hf:c:", lock->sharded ? name.length : 5);
    if (lock->sharded)
        api.string_append_buffer(lock->context, channel, ":c:", 3);
    api.string_append_buffer(lock->context, channel, client.bytes, client.length);
    return channel;
}

static int publish(const struct lock *lock, struct rm_string *channel, struct text message)
{
    struct rm_string *const text = api.create_string(lock->context, message.bytes, message.length);
    return (lock->sharded ? api.publish_message_shard : api.publish_message)(lock->context, channel, text);
}

bool lock_publish(const struct lock *lock, struct text client, struct text message)
{
    return publish(lock, channel_of(lock, client), message) > 0;
}

void lock_publish_elsewhere(const struct lock *lock, struct text client, struct text message)
{
    struct rm_string *const channel = channel_of(lock, client);
    if (api.get_context_flags(lock->context) & RM_CONTEXT_CLUSTER) /* where it is passed on by itself */
        publish(lock, channel, message);
    else
        api.replicate(lock->context, lock->sharded ? "SPUBLISH" : "PUBLISH", "Asb", channel, message.bytes,
                      message.length); /* A: not to the disk */
}
