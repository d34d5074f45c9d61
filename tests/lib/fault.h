/* SPDX-License-Identifier: MIT
 *
 * fault.h: makes the first allocation fail, then the second, and so on, until a run does not need the one that fails.
 */
#ifndef FAULT_H
#define FAULT_H

#include <holdfast.h>

/* `set_fault(n)` makes the n-th allocation from now and all later ones fail; 0 turns that off. `once` does the work,
 * tidies up, and returns HF_NOMEM or HF_OK; anything else fails the test. Returns how many runs ended with HF_NOMEM, so
 * that the caller can check that there was something to fail. */
long fault_each_allocation(void (*set_fault)(long after), hf_status (*once)(void *arg), void *arg);

#endif
