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

void server_clock_set(const char *path, int64_t offset_ms)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0);
    REQUIRE_INT(0, fchmod(fd, 0644)); /* the server may be another user's */
    REQUIRE_INT(0, ftruncate(fd, sizeof(int64_t)));
    _Atomic int64_t *ahead_ns = mmap(NULL, sizeof *ahead_ns, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(ahead_ns != MAP_FAILED);
    atomic_store(ahead_ns, offset_ms * 1000000); /* the server reads it all the time, and must not find half of it */
    munmap(ahead_ns, sizeof *ahead_ns);
    close(fd);
}

void server_clock_follow(const char *path)
{
    setenv("LD_PRELOAD", CLOCK_SHIM, 1);
    setenv("SERVER_CLOCK", path, 1);
}
