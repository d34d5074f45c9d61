/* SPDX-License-Identifier: MIT
 *
 * native.h: what the files of holdfast.so share. holdfast.c opens with what it is.
 *
 *   holdfast.c       its commands, and how the server gets to know them
 *   native_key.c     a lock's two keys: reading and changing them, and telling replicas
 *   native_lock.c    acquire, release, and handing over
 *   native_renew.c   renew, look, guard
 *
 * What the keys hold, and what each command answers, is that of the scripts in src/engines/redis/redis_native.c, to the
 * letter: the two are used side by side on the same locks.
 */
#ifndef NATIVE_H
#define NATIVE_H

#include "server_api.h"

#define WRONG_TYPE "WRONGTYPE Operation against a key holding the wrong kind of value"
#define NO_NUMBER "ERR an argument that must be a number is none"

/* How long a lock that was handed over stays its own unless it is confirmed. */
#define CLAIM_US INT64_C(2000000)
#define DAY_MS INT64_C(86400000)
#define HOUR_US INT64_C(3600000000)

extern struct server_api api;

/* bytes: NULL if there is none. */
struct text {
    const char *bytes;
    size_t length;
};

static inline struct text text_of(const struct rm_string *string)
{
    struct text text = { 0 };
    if (string)
        text.bytes = api.string_ptr_len(string, &text.length);
    return text;
}

/* False also if there is neither. */
bool same_text(struct text one, struct text other);
/* A number without a sign, of 18 digits at the most. */
bool read_number(struct text text, int64_t *number);
/* How many keys follow, as the server reads it: where it looks for keys by their number, "02" hides them from it, and
 * it asks neither whether the user may have them nor whether they are of its slots. */
bool read_key_count(struct text text, int64_t *count);

/* The fields of the hash: see redis_native.c. */
enum field { FIELD_OWNER, FIELD_TOKEN, FIELD_UNTIL, FIELD_INFO, FIELD_ARRIVALS, FIELD_NUMBER, FIELD_MARKS, FIELDS };

/* A lock during one command. Changes go to the keys, to replicas and to the log on disk at once. */
struct lock {
    struct rm_context *context;
    struct rm_string *name, *queue_name; /* queue_name: NULL where it is not needed */
    struct rm_key *key, *queue;          /* queue: NULL until lock_open_queue() */
    int64_t now_us;
    bool sharded; /* waiters listen to a channel in the lock's slot */
    bool changed; /* who watches the lock's key was told */
};

/* Makes the names of the fields. */
void native_prepare(void);
int64_t native_now_us(void);

/* False: it is of another type, and the command is answered. */
bool lock_open(struct lock *lock);
bool lock_open_queue(struct lock *lock);

struct text lock_field(const struct lock *lock, enum field field);
void lock_put(struct lock *lock, enum field field, struct rm_string *value);
/* `host_pid_note`: of the holder; in the lock they follow upon the time. */
void lock_put_grant(struct lock *lock, struct rm_string *owner, int64_t token, int64_t until_us,
                    struct text host_pid_note);
/* The owner goes, and the arrivals too if nobody waits any more. */
void lock_free(struct lock *lock, bool nobody_waits);
void lock_drop_marks(struct lock *lock);
/* The server is to know the name for so long still. */
void lock_keep_for(struct lock *lock, int64_t ms);

/* In the queue, which is open. */
struct rm_string *queue_pop(struct lock *lock, double *score);
/* The place, from 0; -1: it is not there. */
long long queue_place(const struct lock *lock, struct rm_string *member);
/* Behind all others; and a half behind if it is to have tokens for others. */
void queue_add(struct lock *lock, struct rm_string *member, int64_t arrival, bool reserves);
bool queue_remove(struct lock *lock, struct rm_string *member);
void queue_keep(struct lock *lock);

/* How many heard it. It is for those who listen here; `elsewhere`, to the replicas alone. */
bool lock_publish(const struct lock *lock, struct text client, struct text message);
void lock_publish_elsewhere(const struct lock *lock, struct text client, struct text message);

/* "one other" */
struct rm_string *join(struct rm_context *context, struct text one, struct text other);

int hf_acquire(struct rm_context *context, struct rm_string **argv, int argc);
int hf_release(struct rm_context *context, struct rm_string **argv, int argc);
int hf_sharded_acquire(struct rm_context *context, struct rm_string **argv, int argc);
int hf_sharded_release(struct rm_context *context, struct rm_string **argv, int argc);
int hf_renew(struct rm_context *context, struct rm_string **argv, int argc);
int hf_look(struct rm_context *context, struct rm_string **argv, int argc);
int hf_guard(struct rm_context *context, struct rm_string **argv, int argc);

#endif
