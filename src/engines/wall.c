/* SPDX-License-Identifier: MIT
 *
 * wall.c: for how long work counts as done. That must outlast a reboot, so it is counted by the wall clock, which
 * anybody in charge of the machine can set.
 */
#include "local.h"
#include <time.h>

int64_t hfi_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t hfi_wall_done_left_ms(int64_t now_ms, int64_t done_ms, int64_t for_ms)
{
    int64_t ago_ms, left_ms;
    if (__builtin_sub_overflow(now_ms, done_ms, &ago_ms) || __builtin_sub_overflow(for_ms, ago_ms, &left_ms))
        return 0; /* nonsense that somebody has written there */
    return left_ms > 0 && ago_ms >= -for_ms ? left_ms : 0;
}
