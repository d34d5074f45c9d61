/* SPDX-License-Identifier: MIT
 *
 * waker.h: a waker is an eventfd and a flag.
 */
#ifndef HFI_WAKER_H
#define HFI_WAKER_H

#include <stdatomic.h>
#include <stdbool.h>

struct hfi_waker {
    struct hfi_waker *next; /* in the client's list of unused ones */
    int fd;
    atomic_bool called_back;
};

/* An eventfd becomes readable, and stops being so. */
void hfi_bell_ring(int fd);
void hfi_bell_hush(int fd);

#endif
