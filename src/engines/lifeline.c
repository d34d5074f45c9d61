/* SPDX-License-Identifier: MIT
 *
 * lifeline.c: how a waiter learns at once that a holder has died. Each client keeps a FIFO open for reading; whoever
 * waits for it opens the other end, and poll() reports POLLERR there when the kernel has closed the last reader: no
 * process id is involved, so it works across PID namespaces that share the folder. The FIFO also carries messages to
 * the client.
 */
#include "local.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define UNNAMED_FOR_S 60

static const char magic[8] = "hftells";

static void lifeline_name(char out[32], char kind, uint64_t id)
{
    snprintf(out, 32, ".%c-%016llx", kind, (unsigned long long)id);
}

int hfi_fifo_open(int folder, const char *name, int access)
{
    struct stat stat;
    const int fd = HFI_FD(openat(folder, name, access | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 || (fstat(fd, &stat) == 0 && S_ISFIFO(stat.st_mode) && stat.st_nlink <= 1))
        return fd;
    hfi_fd_close(fd);
    errno = ENOENT;
    return -1;
}

/* -1 with errno; ENOENT if somebody tidied it away before it was open. */
static int make(int folder, mode_t mode, const char *hidden, const char *name)
{
    /* Only an open FIFO may be seen: one without a reader means a dead client, and is removed. */
    if (mkfifoat(folder, hidden, 0600) != 0)
        return -1;
    const int fd = hfi_fifo_open(folder, hidden, O_RDWR);
    if (fd >= 0 && fchmod(fd, mode) == 0 && renameat(folder, hidden, folder, name) == 0)
        return fd;
    const int failure = errno;
    unlinkat(folder, hidden, 0);
    hfi_fd_close(fd);
    errno = failure;
    return -1;
}

bool hfi_lifeline_open(struct hfi_lifeline *lifeline, int folder, mode_t mode, uint64_t id)
{
    char name[32], hidden[32];
    lifeline_name(name, 'c', id);
    lifeline_name(hidden, 't', id);
    lifeline->id = id;
    for (int tries = 0; tries < 8; tries++) {
        lifeline->fd = make(folder, mode, hidden, name);
        if (lifeline->fd >= 0)
            return true;
        if (errno != ENOENT)
            break;
    }
    return false;
}

void hfi_lifeline_tidy(int folder, const char *file_name)
{
    struct stat stat;
    struct timespec now;
    if (strncmp(file_name, ".c-", 3) == 0)
        hfi_fd_close(hfi_lifeline_watch(folder, strtoull(file_name + 3, NULL, 16)));
    if (strncmp(file_name, ".t-", 3) != 0 || fstatat(folder, file_name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    /* One that never got its name: its client died in between, or is at it right now. */
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec - stat.st_mtim.tv_sec > UNNAMED_FOR_S)
        unlinkat(folder, file_name, 0);
}

void hfi_lifeline_close(struct hfi_lifeline *lifeline, int folder)
{
    if (lifeline->fd < 0)
        return;
    char name[32];
    lifeline_name(name, 'c', lifeline->id);
    unlinkat(folder, name, 0);
    hfi_fd_close(lifeline->fd);
    lifeline->fd = -1;
}

int hfi_lifeline_watch(int folder, uint64_t id)
{
    char name[32];
    lifeline_name(name, 'c', id);
    const int fd = hfi_fifo_open(folder, name, O_WRONLY);
    if (fd < 0 && errno == ENXIO) {
        unlinkat(folder, name, 0); /* nobody reads: its client is dead, and no other will ever have this name */
        errno = ENXIO;             /* also if we may not remove it */
    }
    return fd;
}

bool hfi_lifeline_tell(int folder, uint64_t id, const struct hfi_message *message)
{
    struct hfi_message copy = *message;
    memcpy(copy.magic, magic, sizeof copy.magic);
    const int fd = hfi_lifeline_watch(folder, id);
    if (fd < 0)
        return false;
    /* A client that dies now costs a SIGPIPE only if nobody reads: keep a reader until the write is done. */
    char name[32];
    lifeline_name(name, 'c', id);
    const int reader = hfi_fifo_open(folder, name, O_RDONLY);
    const bool sent = reader >= 0 && write(fd, &copy, sizeof copy) == (ssize_t)sizeof copy;
    hfi_fd_close(reader);
    hfi_fd_close(fd);
    return sent;
}

bool hfi_lifeline_hear(const struct hfi_lifeline *lifeline, struct hfi_message *message)
{
    ssize_t length;
    do
        length = read(lifeline->fd, message, sizeof *message);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof *message && memcmp(message->magic, magic, sizeof magic) == 0;
}
