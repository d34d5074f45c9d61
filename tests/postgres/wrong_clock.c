/* SPDX-License-Identifier: MIT
 *
 * wrong_clock.c: preloaded into a client, sets its wall clock off by WRONG_CLOCK_S seconds. (libfaketime also moves timers
 * that have nothing to do with the wall clock.)
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

static time_t offset_s(void)
{
    const char *text = getenv("WRONG_CLOCK_S");
    return text ? (time_t)strtol(text, NULL, 10) : 0;
}

PUBLIC int clock_gettime(clockid_t clock, struct timespec *at)
{
    const long failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        at->tv_sec += offset_s();
    return (int)failed;
}

PUBLIC int gettimeofday(struct timeval *at, void *zone)
{
    struct timespec now;
    (void)zone;
    const int failed = clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){ .tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000 };
    return failed;
}

PUBLIC time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
