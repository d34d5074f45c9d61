/* SPDX-License-Identifier: MIT
 *
 * wrong_clock.c: preloaded into a client, sets its wall clock off by WRONG_CLOCK_S seconds. (libfaketime also moves
 * timers that have nothing to do with the wall clock.)
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define INSTEAD_OF(name) __asm__(name) __attribute__((visibility("default")))

int wrong_gettime(clockid_t clock, struct timespec *at) INSTEAD_OF("clock_gettime");
int wrong_timeofday(struct timeval *at, void *zone) INSTEAD_OF("gettimeofday");
time_t wrong_time(time_t *at) INSTEAD_OF("time");

int wrong_gettime(clockid_t clock, struct timespec *at)
{
    const char *offset_s = getenv("WRONG_CLOCK_S");
    const long failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        at->tv_sec += (time_t)strtol(offset_s, NULL, 10);
    return (int)failed;
}

int wrong_timeofday(struct timeval *at, void *zone)
{
    struct timespec now;
    (void)zone;
    const int failed = wrong_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){ .tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000 };
    return failed;
}

time_t wrong_time(time_t *at)
{
    struct timespec now;
    wrong_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
