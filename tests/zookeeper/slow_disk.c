/* SPDX-License-Identifier: MIT
 *
 * slow_disk.c: preloaded into a server, makes its disk slow: each fsync() and fdatasync() takes as many milliseconds as
 * the file SLOW_DISK says, and no longer, since they do nothing else. A number that gets smaller also ends those that
 * are under way.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define INSTEAD_OF(name) __asm__(name) __attribute__((visibility("default")))
#define SLICE_MS 10

int slow_fsync(int fd) INSTEAD_OF("fsync");
int slow_fdatasync(int fd) INSTEAD_OF("fdatasync");

static long wanted_ms(void)
{
    char text[20] = "";
    const char *path = getenv("SLOW_DISK");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? strtol(text, NULL, 10) : 0;
}

static void dawdle(void)
{
    const struct timespec slice = { .tv_nsec = SLICE_MS * 1000000L };
    for (long spent_ms = 0; spent_ms < wanted_ms(); spent_ms += SLICE_MS)
        nanosleep(&slice, NULL);
}

int slow_fsync(int fd)
{
    (void)fd;
    dawdle();
    return 0;
}

int slow_fdatasync(int fd)
{
    return slow_fsync(fd);
}
