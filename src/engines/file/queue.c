/* SPDX-License-Identifier: MIT
 *
 * queue.c: the waiters of one lock are the backlog of a listening Unix socket, in the order in which they connected. Its
 * owner is the holder, or the first waiter while the holder took the lock before anybody waited. A release accepts the
 * first connection and sends the locked file and the listening socket itself over it (SCM_RIGHTS): the lock is never
 * free in between, one process wakes, and the rest of the queue moves on with it. A holder that does not own the queue
 * knocks on a FIFO beside it when it has let go.
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

#define MOST 3 /* descriptors in a message: line, knocks, lock */

/* ".q-…" is the socket, ".k-…" the FIFO. */
static void queue_name(char out[32], char kind, ino_t inode)
{
    snprintf(out, 32, ".%c-%llx", kind, (unsigned long long)inode);
}

static int queue_socket(struct sockaddr_un *address, const struct file_directory *directory, ino_t inode)
{
    char name[32];
    queue_name(name, 'q', inode);
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

/* With the queue's lock: true if a live queue is there. */
static bool is_alive(const struct file_directory *directory, ino_t inode)
{
    const int place = hfi_file_queue_join(directory, inode);
    const bool alive = place >= 0 || errno != ENOENT;
    hfi_fd_close(place);
    return alive;
}

static void unlink_both(const struct file_directory *directory, ino_t inode)
{
    char name[32];
    queue_name(name, 'k', inode);
    unlinkat(directory->fd, name, 0);
    queue_name(name, 'q', inode);
    unlinkat(directory->fd, name, 0);
}

void hfi_file_queue_close(struct file_queue *queue)
{
    hfi_fd_close(queue->line);
    hfi_fd_close(queue->knocks);
    *queue = HFI_FILE_NO_QUEUE;
}

/* With the queue's lock, and nothing in the way. */
static bool set_up(struct file_queue *queue, const struct file_directory *directory, ino_t inode)
{
    char name[32];
    struct sockaddr_un address;
    queue_name(name, 'k', inode);
    if (mkfifoat(directory->fd, name, 0600) != 0)
        return false;
    queue->knocks = HFI_FD(openat(directory->fd, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (queue->knocks < 0 || fchmod(queue->knocks, directory->mode) != 0)
        return false;
    queue_name(name, 'q', inode);
    queue->line = queue_socket(&address, directory, inode);
    return queue->line >= 0 && bind(queue->line, (const struct sockaddr *)&address, sizeof address) == 0 &&
           fchmodat(directory->fd, name, directory->mode, 0) == 0 && listen(queue->line, SOMAXCONN) == 0;
}

bool hfi_file_queue_found(struct file_queue *queue, const struct file_directory *directory, ino_t inode, int lock_fd)
{
    *queue = HFI_FILE_NO_QUEUE;
    int failure = EAGAIN;
    if (hfi_file_lock_queue(lock_fd) && !is_alive(directory, inode)) {
        unlink_both(directory, inode);
        failure = set_up(queue, directory, inode) ? 0 : errno;
        if (failure) {
            unlink_both(directory, inode);
            hfi_file_queue_close(queue);
        }
    }
    hfi_file_unlock_queue(lock_fd);
    errno = failure;
    return failure == 0;
}

void hfi_file_queue_dissolve(struct file_queue *queue, const struct file_directory *directory, ino_t inode)
{
    unlink_both(directory, inode); /* they are ours: a queue that answers is never replaced */
    hfi_file_queue_close(queue);
}

void hfi_file_queue_remove_dead(const struct file_directory *directory, ino_t inode, int lock_fd)
{
    if (!hfi_file_lock_queue(lock_fd))
        return;
    if (!is_alive(directory, inode))
        unlink_both(directory, inode);
    hfi_file_unlock_queue(lock_fd);
}

/* --- knocking --- */

bool hfi_file_queue_exists(const struct file_directory *directory, ino_t inode)
{
    char name[32];
    queue_name(name, 'k', inode);
    return faccessat(directory->fd, name, F_OK, 0) == 0;
}

void hfi_file_queue_knock(const struct file_directory *directory, ino_t inode)
{
    char name[32];
    queue_name(name, 'k', inode);
    /* For reading too, so that a knock on the door of a dead queue raises no SIGPIPE. */
    const int door = HFI_FD(openat(directory->fd, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (door < 0)
        return;
    ssize_t sent;
    do
        sent = write(door, "", 1);
    while (sent < 0 && errno == EINTR); /* EAGAIN: a pipe full of knocks is knock enough */
    hfi_fd_close(door);
}

void hfi_file_queue_hush(const struct file_queue *queue)
{
    char knocks[512];
    ssize_t length;
    do
        length = read(queue->knocks, knocks, sizeof knocks);
    while (length == (ssize_t)sizeof knocks || (length < 0 && errno == EINTR));
}

/* --- passing on --- */

static bool send_to(int place, const struct file_queue *queue, int lock_fd)
{
    char kind = lock_fd >= 0 ? LOCK_AND_QUEUE : QUEUE_ONLY;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MOST * sizeof(int))];
    } control = { .room = { 0 } };
    const int fds[MOST] = { queue->line, queue->knocks, lock_fd };
    const size_t size = (lock_fd >= 0 ? MOST : MOST - 1) * sizeof(int);
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

bool hfi_file_queue_pass(const struct file_queue *queue, int lock_fd)
{
    for (int tries = 0; tries < SKIP_MOST; tries++) {
        const int place = HFI_FD(accept4(queue->line, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
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

/* Receives one message and registers what came with it, in one step as far as fork() is concerned. How many descriptors
 * came; -1 with errno, ECONNRESET if the queue is gone. */
static int receive(int place, char *kind, int fds[MOST])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MOST * sizeof(int))];
    } control;
    struct iovec text = { .iov_base = kind, .iov_len = 1 };
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    int count = -1;
    ssize_t length;
    hfi_fd_begin();
    do
        length = recvmsg(place, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (length < 0 && errno == EINTR);
    const struct cmsghdr *rights = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
        count = (int)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(rights), (size_t)count * sizeof(int));
        for (int i = 0; i < count; i++)
            fds[i] = hfi_fd_note(fds[i]);
    } else if (length >= 0) {
        errno = length == 0 ? ECONNRESET : EMFILE;
    }
    hfi_fd_end(-1);
    return count;
}

bool hfi_file_queue_take(int place, struct file_queue *queue, int *lock_fd)
{
    int fds[MOST] = { -1, -1, -1 };
    char kind = 0;
    const int count = receive(place, &kind, fds);
    if (count < 0)
        return false;
    if (count != (kind == LOCK_AND_QUEUE ? MOST : MOST - 1) || fds[0] < 0 || fds[1] < 0 ||
        (count == MOST && fds[2] < 0)) {
        for (int i = 0; i < MOST; i++)
            hfi_fd_close(fds[i]);
        errno = EMFILE; /* no room for them: the kernel has closed what did not fit */
        return false;
    }
    *queue = (struct file_queue){ .line = fds[0], .knocks = fds[1] };
    *lock_fd = fds[2];
    return true;
}
