/* SPDX-License-Identifier: MIT
 *
 * sleep.h: what loop.c needs of op.c, and nobody else: operations from their begin to their end, and threads that sleep
 * for theirs while others read or drive.
 */
#ifndef HFI_SLEEP_H
#define HFI_SLEEP_H

#include "loop/loop.h"
#include <stdatomic.h>

/* Why a thread is awake again. HFI_MOVED: it is its turn to read or to drive, or its operation awaits another thing. */
enum hfi_waking { HFI_TIME_IS_OVER, HFI_FINISHED, HFI_MOVED };

struct hfi_sleeper {
    struct hfi_sleeper *next, *prev; /* in its list; `next` also in that of those that are to be woken */
    struct hfi_sleepers *list;
    struct hfi_op *op;
    enum hfi_waking why;
    _Atomic uint32_t woken;
};

/* All but hfi_sleep_for() with the mutex, and go on having it. */
void hfi_op_go_on_all(struct hfi_loop *loop);     /* those that can */
void hfi_op_interrupt_due(struct hfi_loop *loop); /* those whose time is */
/* Calls done() of those that are finished, one thread at a time; lets go of the mutex meanwhile. True: there were some,
 * and things may have changed. */
bool hfi_op_tell_finished(struct hfi_loop *loop);
/* Is woken when the mutex is let go of: it need not wait for that. */
void hfi_sleeper_wake(struct hfi_loop *loop, struct hfi_sleeper *sleeper, enum hfi_waking why);
void hfi_unlock_and_wake(struct hfi_loop *loop);
/* Gives up the mutex, which it comes back without. If the operation is done it may be gone. */
enum hfi_waking hfi_sleep_for(struct hfi_loop *loop, struct hfi_op *op);

#endif
