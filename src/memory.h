/* SPDX-License-Identifier: MIT
 *
 * memory.h: how tests make allocations and threads fail.
 */
#ifndef HFI_MEMORY_H
#define HFI_MEMORY_H

#include <stdbool.h>

/* No thread can be started, or it can be again. */
void hfi_thread_set_fault(bool fault);
/* From the `after`-th allocation on (1: the next) every allocation fails; 0: none does. */
void hfi_alloc_set_fault(long after);

#endif
