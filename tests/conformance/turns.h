/* SPDX-License-Identifier: MIT
 *
 * turns.h: two threads of a client that take turns, so that somebody always stands in line, and the lock is never free
 * for a moment; or, with a rest, that leave room for others.
 */
#ifndef TURNS_H
#define TURNS_H

#include "conformance.h"

/* It lasts as long as the test. */
struct turns;
struct turns *turns_start(hf_client *client, const char *name, uint32_t ttl_ms, uint32_t rest_ms);
/* How many there were. */
uint32_t turns_stop(struct turns *turns);

#endif
