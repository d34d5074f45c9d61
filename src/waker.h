/* SPDX-License-Identifier: MIT
 *
 * waker.h: a waker is an eventfd and a flag; or, of a wait that no thread sleeps for, a function and a time.
 */
#ifndef HFI_WAKER_H
#define HFI_WAKER_H

#include "engine.h"
#include <stdatomic.h>

struct hfi_waker {
    struct hfi_waker *next; /* in the client's list of unused ones */
    int fd;
    atomic_bool called_back;
    void (*woken)(struct hfi_waker *waker); /* NULL: a thread sleeps on the descriptor */
    hfi_time until_ns;                      /* else: the wait is gone on with at this time, woken or not */
};

/* An eventfd becomes readable, and stops being so. */
void hfi_bell_ring(int fd);
void hfi_bell_hush(int fd);

#endif
