/* SPDX-License-Identifier: MIT
 *
 * clock_jumps.h: what happens to leases when the clock of the server that counts them is set, for stores that can be
 * given one.
 */
#ifndef CLOCK_JUMPS_H
#define CLOCK_JUMPS_H

#include <stddef.h>
#include <stdint.h>

struct clock_jumps {
    const char *clock;            /* of the server: see server_clock.h */
    int64_t (*seconds)(void);     /* what the server says it is, since 1970 */
    const char *const *leases;    /* strategies whose locks end by that clock; each is tested with names of its own */
    size_t count;                 /* … 4 at most */
    void (*use)(const char *one); /* makes it the store of open_client() */
};

/* Forward by an hour: another one gets the lock early, which nobody can prevent. Its token is greater, the loser's
 * renewal and release say so, and the guard refuses the loser. */
void check_clock_set_forward(const struct clock_jumps *jumps);
/* Back by an hour: nobody waits for that hour, though the holder is dead; and one that lives keeps its lock. */
void check_clock_set_back(const struct clock_jumps *jumps);
/* For the store in use, whose locks end in another way: neither does them anything. */
void check_clock_does_not_matter(const struct clock_jumps *jumps);

#endif
