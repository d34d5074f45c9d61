/* SPDX-License-Identifier: MIT
 *
 * clock_shim.c: preloaded into a server, gives it a wall clock of its own: the machine's plus the nanoseconds in the
 * file that SERVER_CLOCK names, or one that stands still, see server_clock.h. It calls neither malloc() nor the loader
 * when it is asked for the time: allocators ask for it while they start.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define INSTEAD_OF(name) __asm__(name) __attribute__((visibility("default")))
#define SECOND INT64_C(1000000000)
/* Deadlines of the monotonic clock are seconds since the machine started; those of the wall clock since 1970. */
#define WALL_CLOCK_SINCE 1000000000

int shim_clock_gettime(clockid_t clock, struct timespec *out) INSTEAD_OF("clock_gettime");
int shim_gettimeofday(struct timeval *out, void *zone) INSTEAD_OF("gettimeofday");
time_t shim_time(time_t *out) INSTEAD_OF("time");
int shim_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
    INSTEAD_OF("pthread_cond_timedwait");

/* In the file: how far it is ahead; and, unless it is 0, where it stands still. */
static const _Atomic int64_t *ahead;

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("SERVER_CLOCK");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
    if (found == MAP_FAILED)
        _exit(127); /* better no server than one with the machine's clock */
    close(fd);
    ahead = found;
}

static int64_t ahead_ns(void)
{
    return ahead ? atomic_load(ahead) : 0; /* others may be started before us */
}

static int64_t wall_ns(void)
{
    struct timespec real;
    const int64_t stands_ns = ahead ? atomic_load(ahead + 1) : 0;
    if (stands_ns)
        return stands_ns;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    return real.tv_sec * SECOND + real.tv_nsec + ahead_ns();
}

int shim_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, out);
    const int64_t now = wall_ns();
    *out = (struct timespec){ .tv_sec = now / SECOND, .tv_nsec = now % SECOND };
    return 0;
}

int shim_gettimeofday(struct timeval *out, void *zone)
{
    (void)zone;
    const int64_t now = wall_ns();
    *out = (struct timeval){ .tv_sec = now / SECOND, .tv_usec = now % SECOND / 1000 };
    return 0;
}

time_t shim_time(time_t *out)
{
    const time_t now = wall_ns() / SECOND;
    if (out)
        *out = now;
    return now;
}

/* The kernel counts deadlines by the machine's clock. */
int shim_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (until->tv_sec < WALL_CLOCK_SINCE)
        return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, until);
    const int64_t real = until->tv_sec * SECOND + until->tv_nsec - ahead_ns();
    if (real < 0)
        return ETIMEDOUT;
    const struct timespec by = { .tv_sec = real / SECOND, .tv_nsec = real % SECOND };
    return pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &by);
}
