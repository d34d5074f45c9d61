/* SPDX-License-Identifier: MIT
 *
 * native_lock.c: taking a lock, giving it back, and handing it to the first who waits. The comments of the scripts in
 * redis_native.c say why each step is there; here only what is different is said.
 */
#include "native.h"

#include <stdio.h>
#include <string.h>

/* For a waiter whose client is going to pass the lock on to others of its own. */
#define RESERVED 64
#define CLIENT_LENGTH 16
#define MARK_S 3600
#define MARKS_MOST 1000
#define TTL_MOST INT64_C(1000000000000)
#define MORE_MOST INT64_C(1000000)

/* What an acquire asks for; and a release, as far as it does. */
struct request {
    struct rm_string *owner_string;
    struct text owner, who; /* who: "host pid note" */
    int64_t ttl_ms, more;
    bool lines_up;
    bool reserves; /* `more` tokens beside its own */
};

static int64_t next_token(const struct lock *lock, int64_t last)
{
    return last < lock->now_us ? lock->now_us : last + 1;
}

static bool is_new_hour(const struct lock *lock, int64_t last)
{
    return last < lock->now_us - lock->now_us % HOUR_US || last >= lock->now_us;
}

static struct rm_string *member_of(const struct lock *lock, const struct request *request)
{
    return join(lock->context, request->owner, request->who);
}

/* ------------------------------------------------------------------------------------------------------------ marks */

struct mark {
    struct text owner;
    int64_t until_s;
};

/* Takes the next of " owner s owner s" off. */
static bool next_mark(struct text *marks, struct mark *mark)
{
    struct text *const parts[] = { &mark->owner, &(struct text){ 0 } };
    for (int i = 0; i < 2; i++) {
        while (marks->length > 0 && *marks->bytes == ' ') {
            marks->bytes++;
            marks->length--;
        }
        const char *const end = marks->length > 0 ? memchr(marks->bytes, ' ', marks->length) : NULL;
        *parts[i] = (struct text){ marks->bytes, end ? (size_t)(end - marks->bytes) : marks->length };
        marks->bytes += parts[i]->length;
        marks->length -= parts[i]->length;
    }
    return read_number(*parts[1], &mark->until_s);
}

/* True: nothing is granted to `owner` any more. *stale: the time of all marks is over. */
static bool is_marked(const struct lock *lock, struct text owner, bool *stale)
{
    struct text marks = lock_field(lock, FIELD_MARKS);
    struct mark mark;
    *stale = false;
    while (marks.length > 0 && next_mark(&marks, &mark)) {
        if (same_text(mark.owner, owner))
            return true;
        *stale = mark.until_s < lock->now_us / 1000000; /* the last one's */
    }
    return false;
}

static bool is_kept(const struct lock *lock, const struct mark *mark, struct text owner)
{
    return !same_text(mark->owner, owner) && mark->until_s > lock->now_us / 1000000;
}

static void leave_mark(struct lock *lock, struct text owner)
{
    const struct text old = lock_field(lock, FIELD_MARKS);
    struct rm_string *const marks = api.create_string(lock->context, "", 0);
    struct mark mark;
    char number[32];
    int count = 0;
    for (struct text rest = old; rest.length > 0 && next_mark(&rest, &mark);)
        count += is_kept(lock, &mark, owner);
    for (struct text rest = old; rest.length > 0 && next_mark(&rest, &mark);) {
        if (!is_kept(lock, &mark, owner) || count-- >= MARKS_MOST)
            continue;
        const int length = snprintf(number, sizeof number, " %lld", (long long)mark.until_s);
        api.string_append_buffer(lock->context, marks, " ", 1);
        api.string_append_buffer(lock->context, marks, mark.owner.bytes, mark.owner.length);
        api.string_append_buffer(lock->context, marks, number, (size_t)length);
    }
    const int64_t until_s = lock->now_us / 1000000 + MARK_S;
    const int length = snprintf(number, sizeof number, " %lld", (long long)until_s);
    api.string_append_buffer(lock->context, marks, " ", 1);
    api.string_append_buffer(lock->context, marks, owner.bytes, owner.length);
    api.string_append_buffer(lock->context, marks, number, (size_t)length);
    lock_put(lock, FIELD_MARKS, marks);
    int64_t until_us;
    read_number(lock_field(lock, FIELD_UNTIL), &until_us);
    const int64_t left_us = until_us > lock->now_us ? until_us - lock->now_us : 0;
    const int64_t left_ms = left_us / 1000, rest_us = left_us % 1000; /* to the nearest, and halves as printf has it */
    lock_keep_for(lock, left_ms + (rest_us > 500 || (rest_us == 500 && left_ms % 2 == 1)) + DAY_MS);
}

/* ----------------------------------------------------------------------------------------------------- handing over */

/* "owner host pid note" of the queue. */
struct waiter {
    struct rm_string *member;
    struct text owner, client, serial, who;
    bool reserves;
};

/* False: it is none, but something that another program has put there. */
static bool read_waiter(struct waiter *waiter, double score)
{
    const struct text all = text_of(waiter->member);
    const char *const space = all.length > CLIENT_LENGTH + 1
                                  ? memchr(all.bytes + CLIENT_LENGTH + 1, ' ', all.length - CLIENT_LENGTH - 1)
                                  : NULL;
    if (!space)
        return false;
    waiter->owner = (struct text){ all.bytes, (size_t)(space - all.bytes) };
    waiter->client = (struct text){ all.bytes, CLIENT_LENGTH };
    waiter->serial = (struct text){ all.bytes + CLIENT_LENGTH + 1, waiter->owner.length - CLIENT_LENGTH - 1 };
    waiter->who = (struct text){ space + 1, all.length - waiter->owner.length - 1 };
    waiter->reserves = score > (double)(int64_t)score;
    return true;
}

/* True: somebody is there to hear it. */
static bool tell_waiter(const struct lock *lock, const struct waiter *waiter, int64_t token, bool reserves)
{
    char message[160];
    const int serial = (int)(waiter->serial.length < 40 ? waiter->serial.length : 40);
    int length =
        snprintf(message, sizeof message, "%.*s %lld %lld %lld%s", serial, waiter->serial.bytes, (long long)token,
                 (long long)(lock->now_us / 1000000), (long long)(lock->now_us % 1000000), reserves ? " 64" : "");
    if (lock_publish(lock, waiter->client, (struct text){ message, (size_t)length }))
        return true;
    length = snprintf(message, sizeof message, "%.*s %lld 1 0", serial, waiter->serial.bytes, (long long)token);
    lock_publish_elsewhere(lock, waiter->client, (struct text){ message, (size_t)length });
    return false;
}

struct heir {
    struct rm_string *owner; /* NULL: nobody; the lock is free */
    struct text who;
    int64_t token; /* the last that is its own, or would be */
};

/* `last`: token. `me`: who asks, and needs not be told; `silent`: a client that is passed over. Both may be none. */
static struct heir hand_over(struct lock *lock, int64_t last, struct text me, struct text silent)
{
    const int64_t token = next_token(lock, last);
    struct heir heir = { .token = token };
    while (!heir.owner) {
        double score = 0;
        struct waiter waiter = { .member = queue_pop(lock, &score) };
        if (!waiter.member) {
            lock_free(lock, true);
            return heir;
        }
        if (!read_waiter(&waiter, score))
            continue;
        const bool reserves = waiter.reserves && last < lock->now_us;
        if (!same_text(waiter.owner, me) &&
            (same_text(waiter.client, silent) || !tell_waiter(lock, &waiter, token, reserves)))
            continue;
        heir.owner = api.create_string(lock->context, waiter.owner.bytes, waiter.owner.length);
        heir.who = waiter.who;
        heir.token = reserves ? token + RESERVED - 1 : token;
        lock_put_grant(lock, heir.owner, heir.token, lock->now_us + CLAIM_US, waiter.who);
        if (is_new_hour(lock, last))
            lock_keep_for(lock, DAY_MS + CLAIM_US / 1000);
    }
    return heir;
}

/* ---------------------------------------------------------------------------------------------------------- acquire */

static int reply_token(const struct lock *lock, const struct request *request, bool reserves, int64_t token)
{
    return api.reply_with_long_long(lock->context, reserves || !request->reserves ? token : -token);
}

static int reply_busy(const struct lock *lock, int64_t left_ms, long long place, struct text info)
{
    struct rm_context *const context = lock->context;
    api.reply_with_array(context, 5);
    api.reply_with_long_long(context, -1);
    api.reply_with_long_long(context, lock->now_us);
    api.reply_with_long_long(context, left_ms);
    api.reply_with_long_long(context, place);
    return api.reply_with_string_buffer(context, info.bytes ? info.bytes : "", info.length);
}

static void grant(struct lock *lock, const struct request *request, bool reserves, int64_t token)
{
    lock_put_grant(lock, request->owner_string, token + (reserves ? request->more : 0),
                   lock->now_us + request->ttl_ms * 1000, request->who);
}

/* The client that had the last gift and let it lapse. */
static struct text silent_client(struct text owner, struct text info, int64_t until_us)
{
    const char *const space = info.bytes ? memchr(info.bytes, ' ', info.length) : NULL;
    int64_t s, us;
    if (!owner.bytes || !space || !read_number((struct text){ info.bytes, (size_t)(space - info.bytes) }, &s))
        return (struct text){ 0 };
    const size_t left = info.length - (size_t)(space + 1 - info.bytes);
    const char *const end = memchr(space + 1, ' ', left);
    if (!read_number((struct text){ space + 1, end ? (size_t)(end - space - 1) : left }, &us) ||
        until_us - s * 1000000 - us != CLAIM_US)
        return (struct text){ 0 };
    return (struct text){ owner.bytes, owner.length < CLIENT_LENGTH ? owner.length : CLIENT_LENGTH };
}

static long long line_up(struct lock *lock, const struct request *request)
{
    struct rm_string *const member = member_of(lock, request);
    long long place = queue_place(lock, member);
    if (place < 0) {
        int64_t arrivals;
        read_number(lock_field(lock, FIELD_ARRIVALS), &arrivals);
        place = (long long)api.value_length(lock->queue);
        lock_put(lock, FIELD_ARRIVALS, api.create_string_from_long_long(lock->context, arrivals + 1));
        queue_add(lock, member, arrivals + 1, request->reserves);
    }
    queue_keep(lock);
    return place;
}

static int take_anew(struct lock *lock, const struct request *request, bool reserves, int64_t last)
{
    const int64_t token = reserves ? last + 1 : last;
    grant(lock, request, reserves, token);
    lock_keep_for(lock, request->ttl_ms + DAY_MS);
    queue_remove(lock, member_of(lock, request));
    return reply_token(lock, request, reserves, token);
}

/* There is an owner, or somebody may wait. */
static int contend(struct lock *lock, const struct request *request, struct text owner, int64_t last)
{
    const bool reserves = request->reserves && last < lock->now_us;
    struct text info = lock_field(lock, FIELD_INFO);
    struct text number = lock_field(lock, FIELD_NUMBER);
    int64_t until_us;
    const bool ends = read_number(lock_field(lock, FIELD_UNTIL), &until_us);
    if (owner.bytes && !ends) /* another program's */
        return api.reply_with_error(lock->context, WRONG_TYPE);
    if (!lock_open_queue(lock))
        return RM_OK;
    if (!owner.bytes || until_us <= lock->now_us) {
        const struct heir heir = hand_over(lock, last, request->owner, silent_client(owner, info, until_us));
        owner = heir.owner ? text_of(heir.owner) : request->owner;
        info = heir.owner ? lock_field(lock, FIELD_INFO) : (struct text){ 0 };
        number = (struct text){ 0 };
        last = heir.token;
        until_us = lock->now_us + CLAIM_US;
    }
    if (!same_text(owner, request->owner))
        return reply_busy(lock, (until_us - lock->now_us + 999) / 1000, request->lines_up ? line_up(lock, request) : -1,
                          info);
    const char *const plus = number.bytes ? memchr(number.bytes, '+', number.length) : NULL;
    number.length = plus ? (size_t)(plus - number.bytes) : number.length;
    if (same_text(number, request->owner)) /* late: it was renewed since */
        return api.reply_with_long_long(lock->context, last);
    return take_anew(lock, request, reserves, last);
}

static int acquire(struct lock *lock, const struct request *request)
{
    const struct text owner = lock_field(lock, FIELD_OWNER);
    const struct text arrivals = lock_field(lock, FIELD_ARRIVALS);
    int64_t last, count;
    bool stale;
    read_number(lock_field(lock, FIELD_TOKEN), &last);
    if (is_marked(lock, request->owner, &stale))
        return reply_busy(lock, -1, -1, (struct text){ 0 });
    if (arrivals.bytes && !read_number(arrivals, &count)) /* another program's */
        return api.reply_with_error(lock->context, WRONG_TYPE);
    if (owner.bytes || arrivals.bytes)
        return contend(lock, request, owner, last);
    const bool reserves = request->reserves && last < lock->now_us;
    const int64_t token = next_token(lock, last);
    grant(lock, request, reserves, token);
    if (is_new_hour(lock, last) || request->ttl_ms > HOUR_US / 1000)
        lock_keep_for(lock, request->ttl_ms + DAY_MS);
    if (stale)
        lock_drop_marks(lock);
    return reply_token(lock, request, reserves, token);
}

/* hf.acquire 2 LOCK QUEUE OWNER "HOST PID NOTE" TTL LINE-UP [MORE] */
static int acquire_command(struct rm_context *context, struct rm_string **argv, int argc, bool sharded)
{
    int64_t keys, queue;
    if (argc < 8 || argc > 9)
        return api.reply_with_error(context, "ERR wrong number of arguments for 'hf.acquire' command");
    struct request request = { .owner_string = argv[4], .owner = text_of(argv[4]), .who = text_of(argv[5]) };
    request.reserves = argc > 8;
    if (!read_key_count(text_of(argv[1]), &keys) || keys != 2 || !read_number(text_of(argv[6]), &request.ttl_ms) ||
        request.ttl_ms > TTL_MOST || !read_number(text_of(argv[7]), &queue) ||
        (request.reserves && (!read_number(text_of(argv[8]), &request.more) || request.more > MORE_MOST)))
        return api.reply_with_error(context, NO_NUMBER);
    request.lines_up = queue == 1;
    struct lock lock = { .context = context, .name = argv[2], .queue_name = argv[3], .sharded = sharded };
    api.auto_memory(context);
    if (lock_open(&lock))
        acquire(&lock, &request);
    return RM_OK;
}

int hf_acquire(struct rm_context *context, struct rm_string **argv, int argc)
{
    return acquire_command(context, argv, argc, false);
}

int hf_sharded_acquire(struct rm_context *context, struct rm_string **argv, int argc)
{
    return acquire_command(context, argv, argc, true);
}

/* ---------------------------------------------------------------------------------------------------------- release */

static int release(struct lock *lock, const struct request *request, bool mark)
{
    const bool held = same_text(lock_field(lock, FIELD_OWNER), request->owner);
    const struct text arrivals = lock_field(lock, FIELD_ARRIVALS);
    if (held && !mark && !arrivals.bytes) {
        lock_free(lock, false);
        return api.reply_with_long_long(lock->context, 1);
    }
    if (!lock_open_queue(lock))
        return RM_OK;
    const bool waited = (mark || !held) && queue_remove(lock, member_of(lock, request));
    if (mark)
        leave_mark(lock, request->owner);
    if (!held)
        return api.reply_with_long_long(lock->context, waited);
    int64_t last;
    read_number(lock_field(lock, FIELD_TOKEN), &last);
    /* First: a server writes last to whom it had something to say first, and the next holder is not to wait for us. */
    api.reply_with_long_long(lock->context, 1);
    if (arrivals.bytes)
        hand_over(lock, last, (struct text){ 0 }, (struct text){ 0 });
    else
        lock_free(lock, false);
    return RM_OK;
}

/* hf.release 2 LOCK QUEUE OWNER "HOST PID NOTE" [MARK] */
static int release_command(struct rm_context *context, struct rm_string **argv, int argc, bool sharded)
{
    int64_t keys;
    if (argc < 6 || argc > 7)
        return api.reply_with_error(context, "ERR wrong number of arguments for 'hf.release' command");
    if (!read_key_count(text_of(argv[1]), &keys) || keys != 2)
        return api.reply_with_error(context, NO_NUMBER);
    const struct request request = { .owner_string = argv[4], .owner = text_of(argv[4]), .who = text_of(argv[5]) };
    struct lock lock = { .context = context, .name = argv[2], .queue_name = argv[3], .sharded = sharded };
    api.auto_memory(context);
    if (lock_open(&lock))
        release(&lock, &request, argc > 6);
    return RM_OK;
}

int hf_release(struct rm_context *context, struct rm_string **argv, int argc)
{
    return release_command(context, argv, argc, false);
}

int hf_sharded_release(struct rm_context *context, struct rm_string **argv, int argc)
{
    return release_command(context, argv, argc, true);
}
