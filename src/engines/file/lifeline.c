/* SPDX-License-Identifier: MIT
 *
 * lifeline.c: how a waiter learns at once that a holder has died. Each client keeps a FIFO open for reading; whoever
 * waits for it opens the other end, and poll() reports POLLERR there when the kernel has closed the last reader: no
 * process id is involved, so it works across PID namespaces that share the directory. The FIFO also carries requests to
 * break a lock.
 */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNNAMED_FOR_S 60

static const char magic[8] = "hftells";

static void lifeline_name(char out[32], char kind, uint64_t id)
{
    snprintf(out, 32, ".%c-%016llx", kind, (unsigned long long)id);
}

/* -1 with errno; ENOENT if somebody tidied it away before it was open. */
static int make(const struct file_directory *directory, const char *hidden, const char *name)
{
    /* Only an open FIFO may be seen: one without a reader means a dead client, and is removed. */
    if (mkfifoat(directory->fd, hidden, 0600) != 0)
        return -1;
    const int fd = HFI_FD(openat(directory->fd, hidden, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (fd >= 0 && fchmod(fd, directory->mode) == 0 && renameat(directory->fd, hidden, directory->fd, name) == 0)
        return fd;
    const int failure = errno;
    unlinkat(directory->fd, hidden, 0);
    hfi_fd_close(fd);
    errno = failure;
    return -1;
}

hf_status hfi_file_lifeline_open(struct file_lifeline *lifeline, const struct file_directory *directory, uint64_t id,
                                 hf_error *err)
{
    char name[32], hidden[32];
    lifeline_name(name, 'c', id);
    lifeline_name(hidden, 't', id);
    lifeline->id = id;
    for (int tries = 0; tries < 8; tries++) {
        lifeline->fd = make(directory, hidden, name);
        if (lifeline->fd >= 0)
            return HF_OK;
        if (errno != ENOENT)
            break;
    }
    return hfi_fail_errno(err, errno, "make a FIFO in", directory->path);
}

void hfi_file_lifeline_tidy(const struct file_directory *directory, const char *file_name)
{
    struct stat stat;
    struct timespec now;
    if (strncmp(file_name, ".c-", 3) == 0)
        hfi_fd_close(hfi_file_lifeline_watch(directory, strtoull(file_name + 3, NULL, 16)));
    if (strncmp(file_name, ".t-", 3) != 0 || fstatat(directory->fd, file_name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    /* One that never got its name: its client died in between, or is at it right now. */
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec - stat.st_mtim.tv_sec > UNNAMED_FOR_S)
        unlinkat(directory->fd, file_name, 0);
}

void hfi_file_lifeline_close(struct file_lifeline *lifeline, const struct file_directory *directory)
{
    if (lifeline->fd < 0)
        return;
    char name[32];
    lifeline_name(name, 'c', lifeline->id);
    unlinkat(directory->fd, name, 0);
    hfi_fd_close(lifeline->fd);
    lifeline->fd = -1;
}

int hfi_file_lifeline_watch(const struct file_directory *directory, uint64_t id)
{
    char name[32];
    lifeline_name(name, 'c', id);
    const int fd = HFI_FD(openat(directory->fd, name, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 && errno == ENXIO)
        unlinkat(directory->fd, name, 0); /* nobody reads: its client is dead, and no other will ever have this name */
    return fd;
}

bool hfi_file_lifeline_tell(const struct file_directory *directory, uint64_t id, const struct file_message *message)
{
    struct file_message copy = *message;
    memcpy(copy.magic, magic, sizeof copy.magic);
    const int fd = hfi_file_lifeline_watch(directory, id);
    if (fd < 0)
        return false;
    /* A client that dies now costs a SIGPIPE only if nobody reads: keep a reader until the write is done. */
    char name[32];
    lifeline_name(name, 'c', id);
    const int reader = HFI_FD(openat(directory->fd, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    const bool sent = reader >= 0 && write(fd, &copy, sizeof copy) == (ssize_t)sizeof copy;
    hfi_fd_close(reader);
    hfi_fd_close(fd);
    return sent;
}

bool hfi_file_lifeline_hear(const struct file_lifeline *lifeline, struct file_message *message)
{
    ssize_t length;
    do
        length = read(lifeline->fd, message, sizeof *message);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof *message && memcmp(message->magic, magic, sizeof magic) == 0;
}
