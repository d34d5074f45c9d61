/* SPDX-License-Identifier: MIT
 *
 * memcached.h: what the parts of the engine share: memcached.c takes, renews and gives back, memcached_record.c knows
 * how a lock is written down, memcached_doctor.c looks at the server.
 */
#ifndef HFI_MEMCACHED_H
#define HFI_MEMCACHED_H

#include "engines/talk.h"

/* A record ends up to so much later than its time-to-live says: the server's time is that of a timer, which comes once
 * a second, if not late. */
#define MEMCACHED_BEHIND (3 * HFI_SECOND)

/* --- memcached_record.c --- */

#define MEMCACHED_KEY_MAX 251 /* with the 0 behind it: the server's limit */
#define MEMCACHED_VALUE_MAX 500

/* What is under a lock's key. One that is free, as good as none, has no owner any more. */
struct memcached_record {
    bool is_there, is_held;
    struct hfi_owner owner; /* also of one that is free: from whom it was taken */
    uint64_t cas;
    int64_t left_s;
    char name[HFI_NAME_MAX + 1]; /* keys are cut */
    char text[160];              /* who has it, or who took it away */
};

/* Without blanks. Those that are cut have a "%-", which is in no other. */
void hfi_memcached_make_key(char out[MEMCACHED_KEY_MAX], const char *name);
/* Word, owner, name and text, between tabs, which no name has in it; returns its length. */
int hfi_memcached_make_value(char out[MEMCACHED_VALUE_MAX], const char *word, struct hfi_owner owner, const char *name,
                             const char *text);
/* "EN", or "VA SIZE cCAS tLEFT" with a value. False: it is neither. All of it is there. */
bool hfi_memcached_read_record(struct memcached_record *record, const char *at);
/* For struct hfi_talks. Values have their length in the first line, and statistics an "END". */
const char *hfi_memcached_end_of(const char *at, const char *limit);

/* --- memcached_doctor.c --- */

/* The engine's examine(), for a store that begins with a struct hfi_talks. */
hf_status hfi_memcached_examine(void *store, const struct hfi_examination *examination, hfi_time deadline_ns,
                                hf_error *err);

#endif
