/* SPDX-License-Identifier: MIT
 *
 * fork.c: a forked child closes every descriptor of the library and knows that it is a child.
 *
 * Without this a child that never heard of Holdfast would keep a lock file open, and with it the lock, after its parent
 * died.
 */
#include "core.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned hfi_generation = 1;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int *descriptors;
static size_t count, room;

static void before_fork(void)
{
    hfi_resolve_before_fork();
    pthread_mutex_lock(&mutex);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&mutex);
    hfi_resolve_after_fork(false);
}

static void after_fork_in_child(void)
{
    for (size_t i = 0; i < count; i++)
        close(descriptors[i]);
    count = 0;
    hfi_generation++;
    pthread_mutex_unlock(&mutex);
    hfi_resolve_after_fork(true);
}

static void install(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void hfi_fd_begin(void)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&mutex);
}

static bool make_room(void)
{
    if (count < room)
        return true;
    const size_t more = room ? 2 * room : 32;
    int *larger = hfi_alloc(more * sizeof *larger);
    if (!larger)
        return false;
    if (count)
        memcpy(larger, descriptors, count * sizeof *larger);
    hfi_free(descriptors);
    descriptors = larger;
    room = more;
    return true;
}

int hfi_fd_note(int fd)
{
    if (fd < 0)
        return fd;
    if (!make_room()) {
        close(fd); /* one that a child could keep is worse than none */
        errno = ENOMEM;
        return -1;
    }
    descriptors[count++] = fd;
    return fd;
}

int hfi_fd_end(int fd)
{
    fd = hfi_fd_note(fd);
    const int saved = errno;
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return fd;
}

void hfi_fd_forget(int fd)
{
    for (size_t i = count; i-- > 0;) {
        if (descriptors[i] == fd) {
            descriptors[i] = descriptors[--count];
            break;
        }
    }
}

void hfi_fd_close(int fd)
{
    if (fd < 0)
        return;
    pthread_mutex_lock(&mutex);
    hfi_fd_forget(fd);
    close(fd);
    pthread_mutex_unlock(&mutex);
}
