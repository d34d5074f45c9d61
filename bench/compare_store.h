/* SPDX-License-Identifier: MIT
 *
 * compare_store.h: what the comparisons with a store's own client library share: our side of each.
 */
#ifndef BENCH_COMPARE_STORE_H
#define BENCH_COMPARE_STORE_H

#include "compare.h"

double now_us(void);
/* Ends the program unless it holds. Here, so that an analyser sees that it does. */
static inline void demand(bool good, const char *what)
{
    if (!good)
        die("%s", what);
}
/* Three milliseconds, in which a waiter's watch or long poll gets to the server, caches cool, processors slow down. */
void rest(void);

/* Takes a lock that nobody wants, and gives it back. */
double our_pair_us(hf_client *client);
/* From the release by one client to the end of the other's wait. */
double our_handoff_us(hf_client *holder, hf_client *other);

/* What takes and gives back something once, and how long that took. */
struct side {
    const char *name;
    double (*pair_us)(void *arg);
    void *arg;
};
/* All of them in batches by turns, so that they share what else the machine does. Prints one object of JSON: medians,
 * and the medians of the ratios to the first one's batches. */
void compare_sides(const struct side *sides, size_t count, size_t rounds);
/* A pair of ours as a side: `arg` is the client. */
double our_side_us(void *arg);

#endif
