/* SPDX-License-Identifier: MIT
 *
 * lockfile.c: one file per lock: finding it, the kernel's lock on it, the record in it.
 *
 * The kernel's lock is an open-file-description lock (F_OFD_SETLK): it belongs to the descriptor, is passed on with it,
 * is not shared with other descriptors of this process, and is dropped by the kernel with the last copy of the
 * descriptor.
 *
 *     bytes 0 to id-1        the lock itself; id is the holder's lifeline, 1 while it changes hands
 *     byte 2^62              whoever sets up or removes the queue
 *     one byte above 2^62    each waiter
 */
#include "file.h"
#include "lockrecord.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define QUEUE_BYTE ((off_t)1 << 62)
#define WAITERS_START (QUEUE_BYTE + 1)
#define WAITERS_ROOM ((uint64_t)1 << 61)
#define OPEN_TRIES 16

/* --- its name --- */

void hfi_file_name(char *out, const char *name)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, name);
    const size_t length = strlen(encoded);
    if (length <= HFI_FILE_NAME_MAX) {
        memcpy(out, encoded, length + 1);
        return;
    }
    /* Too long with its %XX: the start of it and a hash. "%~" is never written by hfi_name_encode(). Should two names
     * ever meet in one file, the name in the record tells them apart and the second one is refused. */
    unsigned __int128 hash = ((unsigned __int128)0x6c62272e07bb0142u << 64) | 0x62b821756295c58du; /* FNV-1a */
    const unsigned __int128 prime = ((unsigned __int128)1 << 88) + 0x13b;
    for (const char *byte = name; *byte; byte++)
        hash = (hash ^ (unsigned char)*byte) * prime;
    snprintf(out, HFI_FILE_NAME_MAX + 1, "%.200s%%~%016llx%016llx", encoded, (unsigned long long)(hash >> 64),
             (unsigned long long)hash);
}

/* --- opening it --- */

/* Others may put things into a shared directory: links, FIFOs, files with a second name elsewhere. */
hf_status hfi_file_examine(int fd, struct stat *stat, const char *name, hf_error *err)
{
    if (fstat(fd, stat) != 0)
        return hfi_fail_errno(err, errno, "examine the lock file of", name);
    if (!S_ISREG(stat->st_mode))
        return hfi_fail(err, HF_DENIED, 0, "the lock file of %.180s is not a regular file", name);
    if (stat->st_nlink > 1)
        return hfi_fail(err, HF_DENIED, 0, "the lock file of %.150s has a second name elsewhere", name);
    return HF_OK;
}

static int open_or_make(const struct file_directory *directory, const char *file_name)
{
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        int fd = HFI_FD(openat(directory->fd, file_name, flags));
        if (fd >= 0 || errno != ENOENT)
            return fd;
        /* Never O_CREAT on what exists: fs.protected_regular refuses that for other users' files in sticky
         * directories. */
        fd = HFI_FD(openat(directory->fd, file_name, flags | O_CREAT | O_EXCL, 0600));
        if (fd >= 0 && fchmod(fd, directory->mode) != 0) {
            const int failure = errno;
            hfi_fd_close(fd);
            errno = failure;
            return -1;
        }
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

hf_status hfi_file_open(int *fd, const struct file_directory *directory, const char *name, hf_error *err)
{
    char file_name[HFI_FILE_NAME_MAX + 1];
    hfi_file_name(file_name, name);
    *fd = open_or_make(directory, file_name);
    if (*fd < 0 && errno == ELOOP)
        return hfi_fail(err, HF_DENIED, ELOOP, "the lock file of %.180s is a symbolic link", name);
    return *fd < 0 ? hfi_fail_errno(err, errno, "open lock file", file_name) : HF_OK;
}

int hfi_file_open_to_look(const struct file_directory *directory, const char *file_name, int access, struct stat *stat)
{
    const int fd = HFI_FD(openat(directory->fd, file_name, access | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0 && errno == ELOOP)
        errno = ENOENT; /* a link is no lock, and neither is anything but a regular file */
    if (fd < 0 || hfi_file_examine(fd, stat, file_name, NULL) == HF_OK)
        return fd;
    hfi_fd_close(fd);
    errno = ENOENT;
    return -1;
}

/* --- the kernel's lock --- */

static bool set_lock(int fd, short type, off_t start, off_t length)
{
    struct flock range = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
    int result;
    do
        result = fcntl(fd, F_OFD_SETLK, &range);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

bool hfi_file_lock(int fd, uint64_t id)
{
    const bool locked = set_lock(fd, F_WRLCK, 0, (off_t)id);
    if (!locked && errno == EACCES)
        errno = EAGAIN; /* both mean the same */
    return locked;
}

void hfi_file_unlock(int fd)
{
    set_lock(fd, F_UNLCK, 0, QUEUE_BYTE);
}

void hfi_file_lock_in_transit(int fd)
{
    set_lock(fd, F_UNLCK, HFI_FILE_IN_TRANSIT, QUEUE_BYTE - HFI_FILE_IN_TRANSIT);
}

/* The first lock that somebody else has within a range; false if there is none. */
static bool find_lock(int fd, off_t start, off_t length, struct flock *found)
{
    *found = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
    return fcntl(fd, F_OFD_GETLK, found) == 0 && found->l_type != F_UNLCK;
}

uint64_t hfi_file_holder(int fd)
{
    struct flock found;
    return find_lock(fd, 0, 1, &found) ? (uint64_t)found.l_len : HFI_FILE_NOBODY;
}

bool hfi_file_lock_queue(int fd)
{
    return set_lock(fd, F_WRLCK, QUEUE_BYTE, 1);
}

void hfi_file_unlock_queue(int fd)
{
    set_lock(fd, F_UNLCK, QUEUE_BYTE, 1);
}

void hfi_file_show_waiting(int fd, uint64_t random)
{
    set_lock(fd, F_RDLCK, WAITERS_START + (off_t)(random % WAITERS_ROOM), 1);
}

void hfi_file_hide_waiting(int fd)
{
    set_lock(fd, F_UNLCK, WAITERS_START, 0);
}

static int64_t count_between(int fd, off_t start, off_t end, int depth)
{
    struct flock found;
    if (start >= end || depth > 64 || !find_lock(fd, start, end - start, &found))
        return 0;
    return 1 + count_between(fd, start, found.l_start, depth + 1) +
           count_between(fd, found.l_start + found.l_len, end, depth + 1);
}

int64_t hfi_file_count_waiting(int fd)
{
    return count_between(fd, WAITERS_START, WAITERS_START + (off_t)WAITERS_ROOM, 0);
}

/* --- the record --- */

/* Nobody has written a record yet. The file may have a length all the same: whoever waits for its very first holder has
 * put the number of the queue behind the records. A first grant is on disk before it is given, so this is no loss. */
static bool is_blank(const struct lock_slots *slots, size_t length)
{
    const char *bytes = (const char *)slots;
    size_t at = 0;
    while (at < length && bytes[at] == 0)
        at++;
    return at == length;
}

hf_status hfi_file_read_record(int fd, struct file_record *record, const char *name, hf_error *err)
{
    struct lock_slots slots;
    const ssize_t length = pread(fd, &slots, sizeof slots, 0);
    if (length < 0)
        return hfi_fail_errno(err, errno, "read the lock file of", name);
    const struct lock_slot *slot = hfi_lockrecord_current(&slots, (size_t)length);
    memset(record, 0, sizeof *record);
    if (!slot && is_blank(&slots, (size_t)length))
        return HF_OK;
    if (!slot)
        return hfi_fail(err, HF_INTERNAL, 0, "the lock file of %.120s is damaged; remove it when nobody uses the lock",
                        name);
    record->token = slot->token;
    record->client = slot->client;
    record->queue = slot->queue;
    record->pid = slot->pid;
    record->since_ns = slot->since_ns;
    record->this_boot = hfi_lockrecord_this_boot(slot);
    memcpy(record->host, slot->host, sizeof record->host - 1);
    memcpy(record->note, slot->note, sizeof record->note - 1);
    memcpy(record->name, slot->name, sizeof record->name - 1);
    return HF_OK;
}

/* A new file must survive a power failure too, or its tokens would start again at 1. */
static int make_durable(int fd, const struct file_directory *directory, bool new_file)
{
    if (fdatasync(fd) != 0)
        return -1;
    return new_file ? fsync(directory->fd) : 0;
}

/* What the new record comes after: *last, or NULL. */
static hf_status find_last(const struct lock_slot **last, const struct lock_slots *slots, size_t length, uint64_t floor,
                           const char *name, hf_error *err)
{
    *last = hfi_lockrecord_current(slots, length);
    if (!*last && floor == 0 && !is_blank(slots, length))
        return hfi_fail(err, HF_INTERNAL, 0, "the lock file of %.120s is damaged; remove it when nobody uses the lock",
                        name);
    if (*last && strcmp((*last)->name, name) != 0)
        return hfi_fail(err, HF_INTERNAL, 0, "its lock file belongs to the lock %.120s", (*last)->name);
    return HF_OK;
}

hf_status hfi_file_write_record(int fd, const struct file_directory *directory, struct file_record *record,
                                hf_error *err)
{
    struct lock_slots slots = { 0 };
    const struct lock_slot *last;
    const ssize_t length = pread(fd, &slots, sizeof slots, 0);
    if (length < 0)
        return hfi_fail_errno(err, errno, "read the lock file of", record->name);
    const uint64_t floor = hfi_lockrecord_floor(&slots, (size_t)length);
    const hf_status status = find_last(&last, &slots, (size_t)length, floor, record->name, err);
    if (status != HF_OK)
        return status;

    struct lock_slot next;
    const bool must_sync = hfi_lockrecord_next(&next, last, floor, record);
    record->token = next.token;
    /* Over the older of the two, so that a write cut short by a power failure leaves the newer one. A new file gets
     * both at once: later writes then need no new block, and a full disk can refuse only the first. */
    const size_t index = last == &slots.slot[0] ? 1 : 0;
    slots.slot[index] = next;
    const size_t size = last ? sizeof next : sizeof slots;
    const off_t offset = last ? (off_t)(index * sizeof next) : 0;
    const void *from = last ? (const void *)&slots.slot[index] : (const void *)&slots;
    errno = ENOSPC; /* what a short write means */
    if (pwrite(fd, from, size, offset) != (ssize_t)size)
        return hfi_fail_errno(err, errno, "write the lock file of", record->name);
    if (must_sync && make_durable(fd, directory, !last) != 0) {
        const int failure = errno;
        hfi_lockrecord_unmark(&slots.slot[index]); /* or the next grant would believe that it is on disk */
        if (pwrite(fd, &slots.slot[index], sizeof next, (off_t)(index * sizeof next)) != (ssize_t)sizeof next &&
            ftruncate(fd, 0) != 0) /* if it cannot be taken back, refuse the file rather than its promise */
            return hfi_fail_errno(err, errno, "take back what was written to the lock file of", record->name);
        return hfi_fail_errno(err, failure, "write the lock file to disk of", record->name);
    }
    return HF_OK;
}
