/* SPDX-License-Identifier: MIT
 *
 * lockrecord.h: the bytes in a lock file, and how tokens grow. Pure but for the boot's name.
 *
 * Two slots are written in turn. Each carries a `mark` above every token that was given out, and a mark is on disk
 * before the first token that it covers is given out. After a reboot, when the newest slots may have been lost, tokens
 * go on from the mark; so they never fall, at the price of one fdatasync() per lock and boot (and one per million
 * grants).
 *
 * A power failure may leave any mix of old and new sectors, and so neither slot, or one that is older than the last
 * mark. So the mark is in both sectors of a slot: whichever version of the second one is on disk, its copy of the mark
 * is the one that was synced last, or a later one.
 */
#ifndef HFI_LOCKRECORD_H
#define HFI_LOCKRECORD_H

#include "file.h"
#include <stddef.h>

/* Says by itself whether it is one, when the rest of its slot is of another time. */
struct lock_mark {
    char magic[8];
    uint64_t mark;
    uint64_t check; /* ~mark */
};

struct lock_slot {
    char magic[8];
    uint64_t checksum; /* of all that follows */
    uint64_t sequence;
    uint64_t token;
    uint64_t mark;
    char boot[40];
    uint64_t client;
    int64_t pid;
    int64_t since_ns;
    char host[72];
    char note[128];
    char name[256];
    uint64_t queue; /* the queue that the holder owns; 0: none */
    struct lock_mark copy;
    char reserved[432]; /* up to 1024 bytes */
};

struct lock_slots {
    struct lock_slot slot[2];
};

_Static_assert(sizeof(struct lock_slot) == 1024 && offsetof(struct lock_slot, copy) >= 512,
               "the layout of lock files is fixed");

/* The newest valid slot of the first `length` bytes; NULL if there is none. */
const struct lock_slot *hfi_lockrecord_current(const struct lock_slots *slots, size_t length);
/* The largest mark in the slots, good or not; 0: none. */
uint64_t hfi_lockrecord_floor(const struct lock_slots *slots, size_t length);
/* What comes after `last` (NULL: the first ever, or none is left), and above `floor` if `last` need not be the last one
 * that was written. True if it must be on disk before its token is given out. */
bool hfi_lockrecord_next(struct lock_slot *next, const struct lock_slot *last, uint64_t floor,
                         const struct file_record *record);
/* The slot could not be written to disk: the next one must be. */
void hfi_lockrecord_unmark(struct lock_slot *slot);
/* Of a record of words; `from` need not be aligned. */
uint64_t hfi_lockrecord_checksum(const void *from, size_t size);
/* True if the slot was written since the machine was started. */
bool hfi_lockrecord_this_boot(const struct lock_slot *slot);

#endif
