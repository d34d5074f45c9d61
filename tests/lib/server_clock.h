/* SPDX-License-Identifier: MIT
 *
 * server_clock.h: a wall clock of a server's own, by clock_shim.c: it follows a file, and can be set at any time. The
 * monotonic clock of the server stays the machine's.
 */
#ifndef SERVER_CLOCK_H
#define SERVER_CLOCK_H

#include <stdint.h>

/* Whoever follows `path` has a wall clock that is `offset_ms` ahead of the machine's from now on (behind, if
 * negative). */
void server_clock_set(const char *path, int64_t offset_ms);
/* It stands still at so many microseconds since 1970, until it is stopped elsewhere; 0: it goes on. */
void server_clock_stop(const char *path, int64_t at_us);
/* For a child that is going to become a server: it will follow `path`. */
void server_clock_follow(const char *path);

#endif
