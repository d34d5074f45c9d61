/* SPDX-License-Identifier: MIT
 *
 * storm.h: many compete for one lock while somebody kills or stops them, or the servers. Each of them sees, when it is
 * let in, that nobody is inside beside it whose own deadline has not come, and that its token is a new one; and only a
 * writer that is late is refused by its token.
 */
#ifndef STORM_H
#define STORM_H

#include "conformance.h"

#define STORM_NAME "the-lock"
#define STORM_VISITS 65536 /* that are told apart */

/* In shared memory. */
struct storm {
    _Atomic bool over;
    _Atomic uint32_t visits;                   /* of all: gives each its number */
    _Atomic uint32_t inside;                   /* the number of whoever came in last and is still in; 0: nobody */
    _Atomic int64_t deadline_ns[STORM_VISITS]; /* until when a visit is certain to be alone */
    _Atomic uint32_t process[STORM_VISITS];    /* whose visit it is */
    _Atomic uint64_t last_token;               /* of the last one to come in */
    _Atomic uint32_t entries, overlaps, disorders;
    _Atomic uint32_t outlived; /* were still inside when their time was over: dead, or held up */
    _Atomic uint32_t refused;  /* writes */
    struct fenced_register place;
    uint32_t ttl_ms;
};

/* With the lock, inside for so long. */
void storm_visit(struct storm *storm, const hf_lock *lock, uint32_t process, uint32_t stay_us);
/* A helper's work: opens a client and competes, for a moment each time, until it is over. The servers may be in
 * trouble. */
void storm_compete(void *arg);
/* Waits until the lock has gone through so many more hands. Returns how long that took, in milliseconds. */
int64_t storm_await(const struct storm *storm, uint32_t more);
/* Ends it, and checks what was seen. */
void storm_end(struct storm *storm, const pid_t *pids, uint32_t count);

#endif
