/* SPDX-License-Identifier: MIT
 *
 * fault.c: the countdown of allocation failure tests; see fault.h.
 */
#include "fault.h"

#include "test.h"

/* No operation of the library allocates nearly as often: a run that still fails here fails for another reason. */
#define MOST_ALLOCATIONS 10000

long fault_each_allocation(void (*set_fault)(long after), hf_status (*once)(void *arg), void *arg)
{
    for (long after = 1; after <= MOST_ALLOCATIONS; after++) {
        set_fault(after);
        hf_status status = once(arg);
        set_fault(0);
        if (status == HF_OK)
            return after - 1;
        if (!CHECK_STATUS(HF_NOMEM, status, NULL)) {
            test_note("with allocation %ld and all later ones failing", after);
            return after;
        }
    }
    FAIL("still HF_NOMEM after %d allocations", MOST_ALLOCATIONS);
    return MOST_ALLOCATIONS;
}
