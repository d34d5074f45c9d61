/* SPDX-License-Identifier: MIT
 *
 * queue.c: the waiters of one lock are the backlog of a listening Unix socket, in the order in which they connected.
 * Its owner is the holder, or the first waiter while the holder took the lock before anybody waited. A release accepts
 * the first connection and sends the locked file and the listening socket itself over it (SCM_RIGHTS): the lock is
 * never free in between, one process wakes, and the rest of the queue moves on with it. A holder that does not own the
 * queue knocks on a FIFO beside it when it has let go.
 *
 * The kernel does the tidying: a waiter that died or gave up is a connection that cannot be sent to; a message to a
 * waiter that dies before it reads closes the descriptors in it; a holder that dies closes the socket, and its waiters,
 * who see their connections end, line up anew.
 */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SKIP_MOST 100000 /* dead waiters in one pass; more than any backlog */

#define SET_UP_FOR_S 60 /* a queue that does not answer yet may be just being set up */

enum { LOCK_AND_QUEUE = 'L', QUEUE_ONLY = 'Q' };

/* What goes with the descriptors. */
struct parcel {
    uint64_t number;
    uint64_t kind;
};

#define MOST 3 /* descriptors in a message: line, knocks, lock */

/* Where the lock file has the queue's number: behind the two slots of its record. */
#define NUMBER_OFFSET ((off_t)2048)

#define NUMBER_CHECK 0x686f6c6466617374u /* so that a file full of something else has no queue */

uint64_t hfi_file_queue_number(int lock_fd)
{
    uint64_t words[2];
    if (pread(lock_fd, words, sizeof words, NUMBER_OFFSET) != (ssize_t)sizeof words)
        return 0;
    return words[1] == (words[0] ^ NUMBER_CHECK) ? words[0] : 0;
}

static bool set_number(int lock_fd, uint64_t number)
{
    const uint64_t words[2] = { number, number ^ NUMBER_CHECK };
    errno = ENOSPC; /* what a short write means */
    return pwrite(lock_fd, words, sizeof words, NUMBER_OFFSET) == (ssize_t)sizeof words;
}

/* ".q-…" is the socket, ".k-…" the FIFO. Numbers are never used again: in a shared directory others cannot remove what
 * a dead user's process left behind, so it must not stand in anybody's way. */
static void queue_name(char out[32], char kind, uint64_t number)
{
    snprintf(out, 32, ".%c-%016llx", kind, (unsigned long long)number);
}

static int queue_socket(struct sockaddr_un *address, const struct file_directory *directory, uint64_t number, int type)
{
    char name[32];
    queue_name(name, 'q', number);
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    const size_t room = sizeof address->sun_path;
    /* sun_path is short: a long directory is reached through its descriptor. */
    if (snprintf(address->sun_path, room, "%s/%s", directory->path, name) >= (int)room)
        snprintf(address->sun_path, room, "/proc/self/fd/%d/%s", directory->fd, name);
    return HFI_FD(socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/* True if others may put something of theirs into the directory. */
static bool is_shared(const struct file_directory *directory)
{
    return directory->mode & 0066;
}

/* False with errno. connect(2) would follow a symbolic link. */
static bool connect_to(int fd, const struct sockaddr_un *address, const struct file_directory *directory,
                       uint64_t number)
{
    struct stat stat;
    char name[32];
    queue_name(name, 'q', number);
    if (is_shared(directory) &&
        (fstatat(directory->fd, name, &stat, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(stat.st_mode))) {
        errno = ENOENT;
        return false;
    }
    return connect(fd, (const struct sockaddr *)address, sizeof *address) == 0;
}

static int close_with(int fd, int number)
{
    hfi_fd_close(fd);
    errno = number;
    return -1;
}

static int join_number(const struct file_directory *directory, uint64_t number)
{
    struct sockaddr_un address;
    const int place = queue_socket(&address, directory, number, SOCK_SEQPACKET);
    if (place < 0)
        return -1;
    if (connect_to(place, &address, directory, number))
        return place;
    return close_with(place, errno == ECONNREFUSED ? ENOENT : errno);
}

int hfi_file_queue_join(const struct file_directory *directory, int lock_fd)
{
    const uint64_t number = hfi_file_queue_number(lock_fd);
    errno = ENOENT;
    return number ? join_number(directory, number) : -1;
}

/* --- setting up and removing --- */

/* With the queue's lock: true if a live queue is there. Asked with a socket of another kind, which a live one refuses:
 * a connection would stand in the line, and might be given the lock. */
static bool is_alive(const struct file_directory *directory, uint64_t number)
{
    struct sockaddr_un address;
    if (!number)
        return false;
    const int probe = queue_socket(&address, directory, number, SOCK_STREAM);
    const bool dead =
        probe >= 0 && !connect_to(probe, &address, directory, number) && (errno == ECONNREFUSED || errno == ENOENT);
    hfi_fd_close(probe);
    return !dead;
}

static void unlink_both(const struct file_directory *directory, uint64_t number)
{
    char name[32];
    queue_name(name, 'k', number);
    unlinkat(directory->fd, name, 0);
    queue_name(name, 'q', number);
    unlinkat(directory->fd, name, 0);
}

void hfi_file_queue_close(struct file_queue *queue)
{
    hfi_fd_close(queue->line);
    hfi_fd_close(queue->knocks);
    *queue = HFI_FILE_NO_QUEUE;
}

static bool set_up(struct file_queue *queue, const struct file_directory *directory, int lock_fd)
{
    char name[32];
    struct sockaddr_un address;
    queue_name(name, 'k', queue->number);
    if (mkfifoat(directory->fd, name, 0600) != 0)
        return false;
    queue->knocks = hfi_fifo_open(directory->fd, name, O_RDWR);
    if (queue->knocks < 0 || fchmod(queue->knocks, directory->mode) != 0)
        return false;
    queue_name(name, 'q', queue->number);
    queue->line = queue_socket(&address, directory, queue->number, SOCK_SEQPACKET);
    return queue->line >= 0 && bind(queue->line, (const struct sockaddr *)&address, sizeof address) == 0 &&
           fchmodat(directory->fd, name, directory->mode, is_shared(directory) ? AT_SYMLINK_NOFOLLOW : 0) == 0 &&
           listen(queue->line, SOMAXCONN) == 0 && set_number(lock_fd, queue->number);
}

bool hfi_file_queue_found(struct file_queue *queue, const struct file_directory *directory, int lock_fd,
                          uint64_t random)
{
    *queue = (struct file_queue){ -1, -1, random | 1 };
    int failure = EAGAIN;
    if (hfi_file_lock_queue(lock_fd) && !is_alive(directory, hfi_file_queue_number(lock_fd))) {
        unlink_both(directory, hfi_file_queue_number(lock_fd));
        failure = set_up(queue, directory, lock_fd) ? 0 : errno;
        if (failure)
            hfi_file_queue_dissolve(queue, directory, lock_fd);
    }
    hfi_file_unlock_queue(lock_fd);
    errno = failure;
    return failure == 0;
}

void hfi_file_queue_dissolve(struct file_queue *queue, const struct file_directory *directory, int lock_fd)
{
    if (hfi_file_queue_number(lock_fd) == queue->number) /* ours: a queue that answers is never replaced */
        set_number(lock_fd, 0);
    unlink_both(directory, queue->number);
    hfi_file_queue_close(queue);
}

bool hfi_file_queue_has_first(const struct file_directory *directory, int lock_fd, uint64_t owned)
{
    const uint64_t number = hfi_file_queue_number(lock_fd);
    return number && number != owned && is_alive(directory, number);
}

void hfi_file_queue_remove_dead(const struct file_directory *directory, int lock_fd)
{
    if (!hfi_file_lock_queue(lock_fd))
        return;
    const uint64_t number = hfi_file_queue_number(lock_fd);
    if (number && !is_alive(directory, number)) {
        set_number(lock_fd, 0);
        unlink_both(directory, number);
    }
    hfi_file_unlock_queue(lock_fd);
}

void hfi_file_queue_tidy(const struct file_directory *directory, const char *file_name)
{
    struct stat stat;
    struct timespec now;
    if ((strncmp(file_name, ".q-", 3) != 0 && strncmp(file_name, ".k-", 3) != 0) ||
        fstatat(directory->fd, file_name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    const uint64_t number = strtoull(file_name + 3, NULL, 16);
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec - stat.st_mtim.tv_sec > SET_UP_FOR_S && !is_alive(directory, number))
        unlink_both(directory, number);
}

/* --- knocking --- */

int hfi_file_queue_door(const struct file_directory *directory, uint64_t number)
{
    char name[32];
    queue_name(name, 'k', number);
    /* For reading too, so that a knock on the door of a dead queue raises no SIGPIPE. */
    return hfi_fifo_open(directory->fd, name, O_RDWR);
}

void hfi_file_queue_knock(int door)
{
    ssize_t sent;
    do
        sent = write(door, "", 1);
    while (sent < 0 && errno == EINTR); /* EAGAIN: a pipe full of knocks is knock enough */
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
    struct parcel parcel = { .number = queue->number, .kind = lock_fd >= 0 ? LOCK_AND_QUEUE : QUEUE_ONLY };
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MOST * sizeof(int))];
    } control = { .room = { 0 } };
    const int fds[MOST] = { queue->line, queue->knocks, lock_fd };
    const size_t size = (lock_fd >= 0 ? MOST : MOST - 1) * sizeof(int);
    struct iovec text = { .iov_base = &parcel, .iov_len = sizeof parcel };
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
    return sent == (ssize_t)sizeof parcel;
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
static int receive(int place, struct parcel *parcel, int fds[MOST])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MOST * sizeof(int))];
    } control;
    struct iovec text = { .iov_base = parcel, .iov_len = sizeof *parcel };
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = CMSG_LEN(MOST * sizeof(int))
    };
    int count = -1;
    ssize_t length;
    hfi_fd_begin();
    do
        length = recvmsg(place, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (length < 0 && errno == EINTR);
    const struct cmsghdr *rights = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
        /* Never more than asked for: the room is not rounded up, and the kernel closes what does not fit. */
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
    struct parcel parcel = { 0 };
    const int count = receive(place, &parcel, fds);
    if (count < 0)
        return false;
    if (count != (parcel.kind == LOCK_AND_QUEUE ? MOST : MOST - 1) || fds[0] < 0 || fds[1] < 0 ||
        (count == MOST && fds[2] < 0)) {
        for (int i = 0; i < MOST; i++)
            hfi_fd_close(fds[i]);
        errno = EMFILE; /* no room for them: the kernel has closed what did not fit */
        return false;
    }
    *queue = (struct file_queue){ .line = fds[0], .knocks = fds[1], .number = parcel.number };
    *lock_fd = fds[2];
    return true;
}
