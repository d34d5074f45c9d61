/* SPDX-License-Identifier: MIT
 *
 * memory.c: the core's and the engines' memory, which tests can make fail.
 */
#include "memory.h"
#include "engine.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long fault_after; /* 0: no fault wanted; 1: every allocation from now on fails */

void hfi_alloc_set_fault(long after)
{
    atomic_store(&fault_after, after);
}

static bool fault(void)
{
    const long left = atomic_load_explicit(&fault_after, memory_order_relaxed);
    if (left == 0)
        return false;
    if (left > 1)
        atomic_fetch_sub(&fault_after, 1);
    return left == 1;
}

void *hfi_alloc(size_t size)
{
    return fault() ? NULL : calloc(1, size);
}

char *hfi_strdup(const char *text)
{
    return fault() ? NULL : strdup(text);
}

void hfi_free(void *memory)
{
    free(memory);
}
