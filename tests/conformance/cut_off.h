/* SPDX-License-Identifier: MIT
 *
 * cut_off.h: two sides of a network that is cut: a holder that is cut off, and knows of its loss before anybody on the
 * other side is given the lock. Each is a helper process on a host of its own; see netns.h.
 */
#ifndef CUT_OFF_H
#define CUT_OFF_H

#include "conformance.h"

/* One of them, in shared memory. */
struct cut_off {
    char url[200];
    const char *name;
    uint32_t ttl_ms;  /* 0: the default */
    bool stays_away;  /* once it has lost the lock: its server may need long to find the others again */
    struct gate asks; /* it begins to */
    struct gate held, told, healed;
    _Atomic int64_t believed_ns; /* the last moment at which there was time left */
    _Atomic int64_t told_ns;
    _Atomic int64_t granted_ns; /* to the successor */
    _Atomic uint64_t token;     /* of the last grant */
};

/* Holds the lock until it is lost, and has it once more when all is healed. */
void cut_off_holder(void *arg);
/* Waits for it on the other side, and holds it until all is healed. */
void cut_off_successor(void *arg);

/* Waits until the one has lost it and the other has it, and compares what they saw. */
void cut_off_check(struct cut_off *holder, struct cut_off *successor);
/* When all is healed: ends both. */
void cut_off_end(struct cut_off *holder, pid_t holder_pid, struct cut_off *successor, pid_t successor_pid);

#endif
