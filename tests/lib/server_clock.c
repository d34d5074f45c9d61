/* SPDX-License-Identifier: MIT
 *
 * server_clock.c: see server_clock.h.
 */
#include "server_clock.h"

#include "test.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The server reads it all the time, and must not find half of a number. */
static void write_clock(const char *path, size_t place, int64_t ns)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0);
    REQUIRE_INT(0, fchmod(fd, 0644)); /* the server may be another user's */
    REQUIRE_INT(0, ftruncate(fd, 2 * sizeof(int64_t)));
    _Atomic int64_t *numbers = mmap(NULL, 2 * sizeof *numbers, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(numbers != MAP_FAILED);
    atomic_store(numbers + place, ns);
    munmap(numbers, 2 * sizeof *numbers);
    close(fd);
}

void server_clock_set(const char *path, int64_t offset_ms)
{
    write_clock(path, 0, offset_ms * 1000000);
}

void server_clock_stop(const char *path, int64_t at_us)
{
    write_clock(path, 1, at_us * 1000);
}

void server_clock_follow(const char *path)
{
    setenv("LD_PRELOAD", CLOCK_SHIM, 1);
    setenv("SERVER_CLOCK", path, 1);
}
