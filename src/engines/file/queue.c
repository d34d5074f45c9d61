/* SPDX-License-Identifier: MIT
 *
 * queue.c: the waiters of one lock are the backlog of a listening Unix socket, in the order in which they connected. Its
 * owner is the holder, or the first waiter while the holder took the lock before anybody waited. A release accepts the
 * first connection and sends the locked file and the listening socket itself over it (SCM_RIGHTS): the lock is never
 * free in between, one process wakes, and the rest of the queue moves on with it.
 *
 * The kernel does the tidying: a waiter that died or gave up is a connection that cannot be sent to; a message to a waiter
 * that dies before it reads closes the descriptors in it; a holder that dies closes the socket, and its waiters, who see
 * their connections end, line up anew.
 */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SKIP_MOST 100000 /* dead waiters in one pass; more than any backlog */

enum { LOCK_AND_QUEUE = 'L', QUEUE_ONLY = 'Q' };

static void queue_name(char out[32], ino_t inode)
{
    snprintf(out, 32, ".q-%llx", (unsigned long long)inode);
}

static int queue_socket(struct sockaddr_un *address, const struct file_directory *directory, ino_t inode)
{
    char name[32];
    queue_name(name, inode);
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    const size_t room = sizeof address->sun_path;
    /* sun_path is short: a long directory is reached through its descriptor. */
    if (snprintf(address->sun_path, room, "%s/%s", directory->path, name) >= (int)room)
        snprintf(address->sun_path, room, "/proc/self/fd/%d/%s", directory->fd, name);
    return HFI_FD(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

static int close_with(int fd, int number)
{
    hfi_fd_close(fd);
    errno = number;
    return -1;
}

bool hfi_file_queue_exists(const struct file_directory *directory, ino_t inode)
{
    char name[32];
    queue_name(name, inode);
    return faccessat(directory->fd, name, F_OK, 0) == 0;
}

int hfi_file_queue_join(const struct file_directory *directory, ino_t inode)
{
    struct sockaddr_un address;
    const int place = queue_socket(&address, directory, inode);
    if (place < 0)
        return -1;
    if (connect(place, (const struct sockaddr *)&address, sizeof address) == 0)
        return place;
    return close_with(place, errno == ECONNREFUSED ? ENOENT : errno);
}

/* --- setting up and removing --- */

/* With the queue's lock: true if a live queue is there after all. */
static bool is_alive(const struct file_directory *directory, ino_t inode)
{
    const int place = hfi_file_queue_join(directory, inode);
    const bool alive = place >= 0 || errno != ENOENT;
    hfi_fd_close(place);
    return alive;
}

int hfi_file_queue_found(const struct file_directory *directory, ino_t inode, int lock_fd)
{
    char name[32];
    struct sockaddr_un address;
    if (!hfi_file_lock_queue(lock_fd)) {
        errno = EAGAIN;
        return -1;
    }
    int queue = -1;
    int failure = EAGAIN;
    if (!is_alive(directory, inode)) {
        queue_name(name, inode);
        unlinkat(directory->fd, name, 0);
        queue = queue_socket(&address, directory, inode);
        if (queue < 0 || bind(queue, (const struct sockaddr *)&address, sizeof address) != 0 ||
            fchmodat(directory->fd, name, directory->mode, 0) != 0 || listen(queue, SOMAXCONN) != 0)
            failure = errno;
        else
            failure = 0;
    }
    hfi_file_unlock_queue(lock_fd);
    return failure ? close_with(queue, failure) : queue;
}

void hfi_file_queue_remove_dead(const struct file_directory *directory, ino_t inode, int lock_fd)
{
    char name[32];
    if (!hfi_file_lock_queue(lock_fd))
        return;
    if (!is_alive(directory, inode)) {
        queue_name(name, inode);
        unlinkat(directory->fd, name, 0);
    }
    hfi_file_unlock_queue(lock_fd);
}

void hfi_file_queue_dissolve(const struct file_directory *directory, ino_t inode, int queue)
{
    char name[32];
    queue_name(name, inode);
    unlinkat(directory->fd, name, 0); /* it is ours: a queue that answers is never replaced */
    hfi_fd_close(queue);
}

/* --- passing on --- */

static bool send_to(int place, int queue, int lock_fd)
{
    char kind = lock_fd >= 0 ? LOCK_AND_QUEUE : QUEUE_ONLY;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = { .room = { 0 } };
    const int fds[2] = { queue, lock_fd };
    const size_t size = (lock_fd >= 0 ? 2 : 1) * sizeof(int);
    struct iovec text = { .iov_base = &kind, .iov_len = 1 };
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = CMSG_SPACE(size)
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(rights), fds, size);
    ssize_t sent;
    do
        sent = sendmsg(place, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == 1;
}

bool hfi_file_queue_pass(int queue, int lock_fd)
{
    for (int tries = 0; tries < SKIP_MOST; tries++) {
        const int place = HFI_FD(accept4(queue, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (place < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (place < 0)
            return false;
        const bool sent = send_to(place, queue, lock_fd);
        hfi_fd_close(place);
        if (sent)
            return true;
    }
    return false;
}

/* Receives one message and registers what came with it, in one step as far as fork() is concerned. */
static ssize_t receive(int place, int fds[2])
{
    char kind = 0;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec text = { .iov_base = &kind, .iov_len = 1 };
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    fds[0] = fds[1] = -1;
    ssize_t length;
    hfi_fd_begin();
    do
        length = recvmsg(place, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (length < 0 && errno == EINTR);
    const struct cmsghdr *rights = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(rights), rights->cmsg_len - CMSG_LEN(0));
    fds[0] = hfi_fd_note(fds[0]);
    fds[1] = hfi_fd_end(fds[1]);
    const size_t wanted = kind == LOCK_AND_QUEUE ? 2 : 1;
    const size_t came = (size_t)(fds[0] >= 0) + (size_t)(fds[1] >= 0);
    if (length > 0 && came != wanted) { /* no descriptors left: the kernel has closed what did not fit */
        hfi_fd_close(fds[0]);
        hfi_fd_close(fds[1]);
        errno = EMFILE;
        return -1;
    }
    return length;
}

bool hfi_file_queue_take(int place, int *queue, int *lock_fd)
{
    int fds[2];
    const ssize_t length = receive(place, fds);
    if (length == 0)
        errno = ECONNRESET;
    if (length <= 0)
        return false;
    *queue = fds[0];
    *lock_fd = fds[1];
    return true;
}
