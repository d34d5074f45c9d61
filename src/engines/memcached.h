/* SPDX-License-Identifier: MIT
 *
 * memcached.h: what the engine and its doctor share.
 */
#ifndef HFI_MEMCACHED_H
#define HFI_MEMCACHED_H

#include "engines/talk.h"

/* A record ends up to so much later than its time-to-live says: the server's time is that of a timer, which comes once
 * a second, if not late. */
#define MEMCACHED_BEHIND (3 * HFI_SECOND)

/* Asks on a connection of `talks`, for the engine's examine(). */
hf_status hfi_memcached_examine(struct hfi_talks *talks, const struct hfi_examination *examination,
                                hfi_time deadline_ns, hf_error *err);

#endif
