/* SPDX-License-Identifier: MIT
 *
 * done.c: that the work of a lock is done, behind its record and the number of its queue in the lock file: what may be
 * done with the lock may be done with this, there is no further file to open, and in a directory of several users
 * nobody could replace the file of another.
 *
 * It is one sector, written in place: one that was cut short by a power failure is none, by its checksum. Nothing is
 * lost by that: who writes it has the lock, and was granted it because nothing was recorded, or was over.
 */
#include "file.h"
#include "lockrecord.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In the same block as the rest of the file, which is there already: a full disk is no hindrance. */
#define DONE_OFFSET ((off_t)2560)

static const char done_magic[8] = { 'h', 'o', 'l', 'd', 'd', 'o', 'n', 'e' };

struct done_sector {
    char magic[8];
    uint64_t checksum; /* of all that follows */
    uint64_t token;
    int64_t pid;
    int64_t done_ms;
    int64_t for_ms;
    char host[72];
    char note[128];
    char name[256];
    uint64_t reserved;
};

_Static_assert(sizeof(struct done_sector) == 512, "the layout of lock files is fixed");

static uint64_t checksum(const struct done_sector *sector)
{
    return hfi_lockrecord_checksum(&sector->token, sizeof *sector - offsetof(struct done_sector, token));
}

hf_status hfi_file_read_done(int fd, struct file_done *done, const char *name, hf_error *err)
{
    struct done_sector sector;
    const ssize_t length = pread(fd, &sector, sizeof sector, DONE_OFFSET);
    if (length < 0)
        return hfi_fail_errno(err, errno, "read the lock file of", name);
    memset(done, 0, sizeof *done);
    if (length != (ssize_t)sizeof sector || memcmp(sector.magic, done_magic, sizeof done_magic) != 0 ||
        sector.checksum != checksum(&sector))
        return HF_OK;
    const int64_t now_ms = hfi_wall_ms();
    done->token = sector.token;
    done->pid = sector.pid;
    done->done_ms = sector.done_ms;
    done->for_ms = sector.for_ms;
    done->left_ms = hfi_wall_done_left_ms(now_ms, sector.done_ms, sector.for_ms);
    done->ago_ms = done->left_ms && now_ms > sector.done_ms ? now_ms - sector.done_ms : 0;
    memcpy(done->host, sector.host, sizeof done->host - 1);
    memcpy(done->note, sector.note, sizeof done->note - 1);
    memcpy(done->name, sector.name, sizeof done->name - 1);
    return done->left_ms > 0 ? HF_DONE : HF_OK;
}

static hf_status put(int fd, const struct done_sector *sector, const char *name, hf_error *err)
{
    errno = ENOSPC; /* what a short write means */
    if (pwrite(fd, sector, sizeof *sector, DONE_OFFSET) != (ssize_t)sizeof *sector || fdatasync(fd) != 0)
        return hfi_fail_errno(err, errno, "record what is done in the lock file of", name);
    return HF_OK;
}

hf_status hfi_file_write_done(int fd, const struct file_done *done, hf_error *err)
{
    struct done_sector sector = {
        .token = done->token, .pid = done->pid, .done_ms = done->done_ms, .for_ms = done->for_ms
    };
    memcpy(sector.magic, done_magic, sizeof done_magic);
    snprintf(sector.host, sizeof sector.host, "%s", done->host);
    snprintf(sector.note, sizeof sector.note, "%s", done->note);
    snprintf(sector.name, sizeof sector.name, "%s", done->name);
    sector.checksum = checksum(&sector);
    return put(fd, &sector, done->name, err);
}

hf_status hfi_file_erase_done(int fd, const char *name, hf_error *err)
{
    static const struct done_sector nothing;
    return put(fd, &nothing, name, err);
}
