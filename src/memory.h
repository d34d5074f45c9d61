/* SPDX-License-Identifier: MIT
 *
 * memory.h: how tests make allocations fail.
 */
#ifndef HFI_MEMORY_H
#define HFI_MEMORY_H

/* From the `after`-th allocation on (1: the next) every allocation fails; 0: none does. */
void hfi_alloc_set_fault(long after);

#endif
