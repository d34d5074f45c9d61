/* SPDX-License-Identifier: MIT
 *
 * wrong_clock.c: with LD_PRELOAD, a wall clock that is wrong by WRONG_CLOCK seconds. Other clocks are left as they are:
 * libfaketime moves CLOCK_BOOTTIME along, but not the timers that are set on it.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

static time_t error_s(void)
{
    const char *text = getenv("WRONG_CLOCK");
    return text ? (time_t)strtol(text, NULL, 10) : 0;
}

VISIBLE int clock_gettime(clockid_t clock, struct timespec *at)
{
    const int outcome = (int)syscall(SYS_clock_gettime, clock, at);
    if (outcome == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += error_s();
    return outcome;
}

VISIBLE time_t time(time_t *out)
{
    struct timespec at = { .tv_sec = 0 };
    clock_gettime(CLOCK_REALTIME, &at);
    if (out)
        *out = at.tv_sec;
    return at.tv_sec;
}

VISIBLE int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec at = { .tv_sec = 0 };
    (void)zone;
    const int outcome = clock_gettime(CLOCK_REALTIME, &at);
    *out = (struct timeval){ .tv_sec = at.tv_sec, .tv_usec = at.tv_nsec / 1000 };
    return outcome;
}
