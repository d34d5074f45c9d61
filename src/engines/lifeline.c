/* SPDX-License-Identifier: MIT
 *
 * lifeline.c: how a waiter learns at once that a holder has died. Each client keeps a FIFO open for reading; whoever
 * waits for it opens the other end, and poll() reports POLLERR there when the kernel has closed the last reader: no
 * process id is involved, so it works across PID namespaces that share the folder. The FIFO also carries messages to
 * the client, in units of one size: those with a piece of text, if any, and then the message itself.
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

static const char magic[8] = "hftells", text_magic[8] = "hfwords";

struct text_unit {
    char magic[8];
    char text[24]; /* zeros behind its end */
};

_Static_assert(sizeof(struct text_unit) == sizeof(struct hfi_message),
               "clients of version 0.1 read units of this size");

#define TEXT_UNITS (HFI_LIFELINE_TEXT_MAX / sizeof((struct text_unit){ 0 }.text))

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

/* Puts the text and the message behind each other; returns their length. */
static size_t pack(char out[(TEXT_UNITS + 1) * sizeof(struct hfi_message)], const struct hfi_message *message,
                   const char *text)
{
    struct hfi_message last = *message;
    struct text_unit unit;
    size_t used = 0;
    for (size_t left = strlen(text); left > 0 && used < TEXT_UNITS * sizeof unit; used += sizeof unit) {
        const size_t length = left < sizeof unit.text ? left : sizeof unit.text;
        unit = (struct text_unit){ { 0 }, { 0 } };
        memcpy(unit.magic, text_magic, sizeof unit.magic);
        memcpy(unit.text, text, length);
        memcpy(out + used, &unit, sizeof unit);
        text += length;
        left -= length;
    }
    memcpy(last.magic, magic, sizeof last.magic);
    memcpy(out + used, &last, sizeof last);
    return used + sizeof last;
}

bool hfi_lifeline_tell(int folder, uint64_t id, const struct hfi_message *message, const char *text)
{
    char units[(TEXT_UNITS + 1) * sizeof *message];
    const size_t length = pack(units, message, text);
    const int fd = hfi_lifeline_watch(folder, id);
    if (fd < 0)
        return false;
    /* A client that dies now costs a SIGPIPE only if nobody reads: keep a reader until the write is done. */
    char name[32];
    lifeline_name(name, 'c', id);
    const int reader = hfi_fifo_open(folder, name, O_RDONLY);
    const bool sent = reader >= 0 && write(fd, units, length) == (ssize_t)length;
    hfi_fd_close(reader);
    hfi_fd_close(fd);
    return sent;
}

/* One unit. False: there is none. */
static bool read_unit(int fd, void *out)
{
    ssize_t length;
    do
        length = read(fd, out, sizeof(struct hfi_message));
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof(struct hfi_message);
}

bool hfi_lifeline_read(const struct hfi_lifeline *lifeline, struct hfi_message *message,
                       char text[HFI_LIFELINE_TEXT_MAX + 1])
{
    size_t used = 0;
    bool found = read_unit(lifeline->fd, message);
    while (found && used < HFI_LIFELINE_TEXT_MAX && memcmp(message->magic, text_magic, sizeof text_magic) == 0) {
        struct text_unit unit;
        memcpy(&unit, message, sizeof unit);
        memcpy(text + used, unit.text, sizeof unit.text);
        used += sizeof unit.text;
        found = read_unit(lifeline->fd, message);
    }
    text[used] = 0;
    for (char *c = text; *c; c++) { /* the writer may be anybody, and this is shown to people */
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    return found && memcmp(message->magic, magic, sizeof magic) == 0;
}
