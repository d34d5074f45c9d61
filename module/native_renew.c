/* SPDX-License-Identifier: MIT
 *
 * native_renew.c: keeping locks, looking at one, and the guard of a resource.
 */
#include "native.h"

#include <math.h>
#include <string.h>

#define BATCH_MOST 1024
#define TTL_MOST INT64_C(1000000000000)

/* ------------------------------------------------------------------------------------------------------------ renew */

/* "owner", or "owner+N" */
struct sender {
    struct text owner;
    int64_t number;
    bool numbered;
};

static struct sender read_sender(struct text text)
{
    struct sender sender = { .owner = text };
    const char *const plus = text.bytes ? memchr(text.bytes, '+', text.length) : NULL;
    if (plus) {
        sender.owner.length = (size_t)(plus - text.bytes);
        sender.numbered = read_number((struct text){ plus + 1, text.length - sender.owner.length - 1 }, &sender.number);
    }
    return sender;
}

/* Both are of one hold, and `one` was sent later. */
static bool is_later(const struct sender *one, const struct sender *other)
{
    return one->numbered && same_text(one->owner, other->owner) && one->number > other->number;
}

static bool renew(struct lock *lock, struct rm_string *me, int64_t ttl_ms)
{
    const struct sender sender = read_sender(text_of(me));
    const struct sender last = read_sender(lock_field(lock, FIELD_NUMBER));
    int64_t until_us;
    if (!same_text(lock_field(lock, FIELD_OWNER), sender.owner) ||
        !read_number(lock_field(lock, FIELD_UNTIL), &until_us) || until_us <= lock->now_us || is_later(&last, &sender))
        return false;
    lock_keep_for(lock, ttl_ms + DAY_MS);
    lock_put(lock, FIELD_UNTIL, api.create_string_from_long_long(lock->context, lock->now_us + ttl_ms * 1000));
    if (sender.owner.length != text_of(me).length)
        lock_put(lock, FIELD_NUMBER, me);
    return true;
}

/* hf.renew N LOCK… OWNER TTL… */
int hf_renew(struct rm_context *context, struct rm_string **argv, int argc)
{
    int64_t count = 0, ttl_ms;
    bool answers[BATCH_MOST];
    const bool makes_sense =
        argc >= 5 && read_key_count(text_of(argv[1]), &count) && count <= BATCH_MOST && argc == 2 + 3 * count;
    if (api.is_keys_position_request(context)) {
        for (int64_t i = 0; i < count && makes_sense; i++)
            api.key_at_pos(context, (int)(2 + i));
        return RM_OK;
    }
    if (!makes_sense)
        return api.reply_with_error(context, "ERR wrong number of arguments for 'hf.renew' command");
    for (int64_t i = 0; i < count; i++) {
        if (!read_number(text_of(argv[3 + count + 2 * i]), &ttl_ms) || ttl_ms > TTL_MOST)
            return api.reply_with_error(context, NO_NUMBER);
    }
    api.auto_memory(context);
    for (int64_t i = 0; i < count; i++) {
        struct lock lock = { .context = context, .name = argv[2 + i] };
        if (!lock_open(&lock))
            return RM_OK;
        read_number(text_of(argv[3 + count + 2 * i]), &ttl_ms);
        answers[i] = renew(&lock, argv[2 + count + 2 * i], ttl_ms);
        api.close_key(lock.key);
    }
    api.reply_with_array(context, (long)count);
    for (int64_t i = 0; i < count; i++)
        api.reply_with_long_long(context, answers[i]);
    return RM_OK;
}

/* ------------------------------------------------------------------------------------------------------------- look */

/* "s us rest": the rest, and how long ago that was. False: it is not that. */
static bool read_info(struct text info, int64_t now_us, int64_t *held_ms, struct text *rest)
{
    int64_t numbers[2];
    *rest = info;
    for (int i = 0; i < 2; i++) {
        const char *const space = rest->bytes ? memchr(rest->bytes, ' ', rest->length) : NULL;
        if (!space || !read_number((struct text){ rest->bytes, (size_t)(space - rest->bytes) }, &numbers[i]))
            return false;
        rest->length -= (size_t)(space + 1 - rest->bytes);
        rest->bytes = space + 1;
    }
    *held_ms = (now_us - numbers[0] * 1000000 - numbers[1]) / 1000;
    return true;
}

static void reply_waiters(struct rm_context *context, struct rm_key *queue)
{
    if (!queue || api.zset_first_in_score_range(queue, -INFINITY, INFINITY, 0, 0) != RM_OK)
        return;
    struct rm_string *member;
    while ((member = api.zset_range_current_element(queue, NULL)) != NULL) {
        api.reply_with_string(context, member);
        api.free_string(context, member);
        if (!api.zset_range_next(queue))
            break;
    }
    api.zset_range_stop(queue);
}

static bool is_other_type(struct rm_key *key, int type)
{
    return key && api.key_type(key) != type; /* NULL: there is none */
}

/* hf.look 2 LOCK QUEUE */
int hf_look(struct rm_context *context, struct rm_string **argv, int argc)
{
    int64_t keys, until_us = 0, token, held_ms;
    struct text rest;
    if (argc != 4 || !read_key_count(text_of(argv[1]), &keys) || keys != 2)
        return api.reply_with_error(context, "ERR wrong number of arguments for 'hf.look' command");
    api.auto_memory(context);
    const struct lock lock = { .context = context,
                               .key = api.open_key(context, argv[2], RM_READ),
                               .now_us = native_now_us() };
    struct rm_key *const queue = api.open_key(context, argv[3], RM_READ);
    if (is_other_type(lock.key, RM_KEY_HASH) || is_other_type(queue, RM_KEY_ZSET))
        return api.reply_with_error(context, WRONG_TYPE);
    if (!lock.key || !lock_field(&lock, FIELD_OWNER).bytes || !read_number(lock_field(&lock, FIELD_UNTIL), &until_us) ||
        until_us <= lock.now_us || !read_info(lock_field(&lock, FIELD_INFO), lock.now_us, &held_ms, &rest)) {
        api.reply_with_array(context, 1);
        return api.reply_with_long_long(context, 0);
    }
    read_number(lock_field(&lock, FIELD_TOKEN), &token);
    api.reply_with_array(context, 5 + (queue ? (long)api.value_length(queue) : 0));
    api.reply_with_long_long(context, 1);
    api.reply_with_long_long(context, token);
    api.reply_with_long_long(context, (until_us - lock.now_us + 999) / 1000);
    api.reply_with_long_long(context, held_ms);
    api.reply_with_string_buffer(context, rest.bytes, rest.length);
    reply_waiters(context, queue);
    return RM_OK;
}

/* ------------------------------------------------------------------------------------------------------------ guard */

static bool is_token(struct text text)
{
    for (size_t i = 0; i < text.length; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
    }
    return text.length > 0 && text.bytes[0] != '0';
}

/* Tokens have up to 20 digits: the longer one is the larger. */
static bool is_larger(struct text one, struct text other)
{
    return one.length > other.length || (one.length == other.length && memcmp(one.bytes, other.bytes, one.length) > 0);
}

/* hf.guard 1 KEY TOKEN */
int hf_guard(struct rm_context *context, struct rm_string **argv, int argc)
{
    int64_t keys;
    if (argc != 4 || !read_key_count(text_of(argv[1]), &keys) || keys != 1)
        return api.reply_with_error(context, "ERR wrong number of arguments for 'hf.guard' command");
    const struct text token = text_of(argv[3]);
    if (!is_token(token))
        return api.reply_with_error(context, NO_NUMBER);
    api.auto_memory(context);
    struct rm_key *const key = api.open_key(context, argv[2], RM_READ | RM_WRITE);
    const int type = api.key_type(key);
    if (type != RM_KEY_EMPTY && type != RM_KEY_STRING)
        return api.reply_with_error(context, WRONG_TYPE);
    if (type == RM_KEY_STRING) {
        struct text seen = { 0 };
        seen.bytes = api.string_dma(key, &seen.length, RM_READ);
        if (!is_token(seen))
            return api.reply_with_error(context, "WRONGTYPE no token");
        if (is_larger(seen, token))
            return api.reply_with_string_buffer(context, seen.bytes, seen.length);
    }
    api.string_set(key, argv[3]);
    api.signal_modified_key(context, argv[2]);
    api.replicate(context, "SET", "ss", argv[2], argv[3]);
    api.notify_keyspace_event(context, RM_NOTIFY_STRING, "set", argv[2]);
    return api.reply_with_long_long(context, 1);
}
