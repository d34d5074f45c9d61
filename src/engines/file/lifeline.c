/* SPDX-License-Identifier: MIT
 *
 * lifeline.c: how a waiter learns at once that a holder has died. Each client keeps a FIFO open for reading; whoever waits for
 * it opens the other end, and poll() reports POLLERR there when the kernel has closed the last reader: no process id is
 * involved, so it works across PID namespaces that share the directory. The FIFO also carries requests to break a lock.
 */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "hfbreak";

static void lifeline_name(char out[32], char kind, uint64_t id)
{
    snprintf(out, 32, ".%c-%016llx", kind, (unsigned long long)id);
}

hf_status hfi_file_lifeline_open(struct file_lifeline *lifeline, const struct file_directory *directory, uint64_t id,
                                 hf_error *err)
{
    char name[32], hidden[32];
    lifeline_name(name, 'c', id);
    lifeline_name(hidden, 't', id);
    lifeline->id = id;
    /* Only an open FIFO may be seen: one without a reader means a dead client, and is removed. */
    if (mkfifoat(directory->fd, hidden, 0600) != 0)
        return hfi_fail_errno(err, errno, "make a FIFO in", directory->path);
    const int fd = HFI_FD(openat(directory->fd, hidden, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 || fchmod(fd, directory->mode) != 0 || renameat(directory->fd, hidden, directory->fd, name) != 0) {
        const int failure = errno;
        unlinkat(directory->fd, hidden, 0);
        hfi_fd_close(fd);
        return hfi_fail_errno(err, failure, "open a FIFO in", directory->path);
    }
    lifeline->fd = fd;
    return HF_OK;
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

bool hfi_file_lifeline_ask(const struct file_directory *directory, uint64_t id, const struct file_break *message)
{
    struct file_break copy = *message;
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

bool hfi_file_lifeline_hear(const struct file_lifeline *lifeline, struct file_break *message)
{
    ssize_t length;
    do
        length = read(lifeline->fd, message, sizeof *message);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof *message && memcmp(message->magic, magic, sizeof magic) == 0;
}
