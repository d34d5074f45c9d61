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
 * mark. So the mark also has a sector of its own, which is written with each new mark and at no other time.
 */
#ifndef HFI_LOCKRECORD_H
#define HFI_LOCKRECORD_H

#include "file.h"

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
    uint64_t queue;     /* the queue that the holder owns; 0: none */
    char reserved[456]; /* up to 1024 bytes */
};

struct lock_slots {
    struct lock_slot slot[2];
};

/* A copy of the last mark, at this offset of the file: behind the slots and the number of the queue, at the start of a
 * sector. */
#define HFI_LOCKRECORD_MARK_OFFSET ((off_t)2560)

struct lock_mark {
    char magic[8];
    uint64_t mark;
    uint64_t check; /* ~mark */
};

_Static_assert(sizeof(struct lock_slot) == 1024, "the layout of lock files is fixed");

/* The newest valid slot of the first `length` bytes; NULL if there is none. */
const struct lock_slot *hfi_lockrecord_current(const struct lock_slots *slots, size_t length);
/* True if `last`, which may be NULL, need not be the last: the copy of the mark must be looked at. */
bool hfi_lockrecord_doubts(const struct lock_slot *last);
/* What comes after `last` (NULL: the first ever, or none is left) and above `floor`, the copy of the mark where it had to
 * be looked at. True if it must be on disk before its token is given out, and the copy of its mark with it. */
bool hfi_lockrecord_next(struct lock_slot *next, const struct lock_slot *last, uint64_t floor,
                         const struct file_record *record);
struct lock_mark hfi_lockrecord_copy(const struct lock_slot *slot);
/* The mark; 0 if it is none. */
uint64_t hfi_lockrecord_read_copy(const struct lock_mark *copy);
/* The slot could not be written to disk: the next one must be. */
void hfi_lockrecord_unmark(struct lock_slot *slot);
/* True if the slot was written since the machine was started. */
bool hfi_lockrecord_this_boot(const struct lock_slot *slot);

#endif
