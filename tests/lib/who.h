/* SPDX-License-Identifier: MIT
 *
 * who.h: this process, as it is named to the holder of a lock that it breaks.
 */
#ifndef WHO_H
#define WHO_H

#include <stddef.h>

/* user@host:pid */
void who_we_are(char *out, size_t size);
/* The sentence that a holder was told says that this process has broken its lock. */
void check_we_broke_it(const char *why);

#endif
