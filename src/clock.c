/* SPDX-License-Identifier: MIT
 *
 * clock.c: the core's only clock and only source of chance.
 */
#include "core.h"
#include <sys/random.h>
#include <time.h>

hfi_time hfi_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * HFI_SECOND + now.tv_nsec;
}

uint64_t hfi_random(void)
{
    uint64_t number;
    /* Cannot fail for so few bytes once the machine has booted; before that, the time and a stack address still differ
     * between any two processes that could meet. */
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        number = (uint64_t)hfi_now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)&number;
    return number;
}
