/* SPDX-License-Identifier: MIT
 *
 * file_doctor.c: the directory that the locks are in: who else may change it, whether there is room, and whether those
 * who use it see the same clock and the same kernel.
 */
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A lock is a file of one block at the most. */
#define FILES_LEAST 100
#define BYTES_LEAST (FILES_LEAST * INT64_C(4096))

/* For people; what is not here is shown as a number. */
static const struct {
    uint32_t type;
    const char *name;
} kinds[] = {
    { 0x0000ef53, "ext4" },  { 0x58465342, "xfs" },   { 0x9123683e, "btrfs" },
    { 0x01021994, "tmpfs" }, { 0x858458f6, "ramfs" }, { 0x794c7630, "overlay" },
    { 0x2fc12fc1, "zfs" },   { 0xf2f52010, "f2fs" },  { 0x65735546, "fuse" },
};

#define TMPFS 0x01021994u
#define RAMFS 0x858458f6u
#define OVERLAY 0x794c7630u

static void look_at_file_system(const struct file_store *store, const struct hfi_examination *examination)
{
    struct statfs fs;
    char name[24];
    if (fstatfs(store->directory.fd, &fs) != 0)
        return;
    const uint32_t type = (uint32_t)fs.f_type;
    snprintf(name, sizeof name, "0x%08" PRIx32, type);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].type == type)
            snprintf(name, sizeof name, "%s", kinds[i].name);
    }
    if (type == OVERLAY)
        hfi_finding(examination, HF_FINDING_NOTE, "file system",
                    "it is a container's own: other containers do not see these locks, and a new one begins with "
                    "none\n%.200s is on %s (stat -f -c %%T)\n"
                    "if several containers share locks, mount a directory of the host there",
                    store->directory.path, name);
    else if (type == TMPFS || type == RAMFS)
        hfi_finding(examination, HF_FINDING_NOTE, "file system",
                    "it is in memory: after a reboot tokens begin anew, and what was done once is forgotten\n"
                    "%.200s is on %s (stat -f -c %%T)\n"
                    "if tokens guard data that outlasts a reboot, a directory on a disk",
                    store->directory.path, name);
    else
        hfi_finding(examination, HF_FINDING_OK, "file system",
                    "it is this machine's own, and outlasts a reboot\n%.200s is on %s (stat -f -c %%T)",
                    store->directory.path, name);
}

/* Whoever may write to the directory may take, hold and, without the sticky bit, remove its locks. */
static void look_at_writers(const struct file_store *store, const struct hfi_examination *examination)
{
    struct stat stat;
    if (fstat(store->directory.fd, &stat) != 0)
        return;
    const unsigned mode = stat.st_mode & 07777, user = stat.st_uid, group = stat.st_gid;
    const char *path = store->directory.path;
    if (faccessat(store->directory.fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        hfi_finding(examination, HF_FINDING_BROKEN, "permissions",
                    "we may not write to it, and can take no lock\n"
                    "%.200s has mode %04o and belongs to %u:%u (stat)\nchmod u+rwx, chown, or another directory",
                    path, mode, user, group);
    else if ((mode & (S_IWGRP | S_IWOTH)) && !(mode & S_ISVTX))
        hfi_finding(examination, HF_FINDING_RISK, "permissions",
                    "%s may remove the file of a lock that is held, and the next is granted it\n"
                    "%.200s has mode %04o, group %u (stat)\nchmod +t %.200s",
                    mode & S_IWOTH ? "everybody" : "every member of its group", path, mode, group, path);
    else if (mode & S_IWOTH)
        hfi_finding(examination, HF_FINDING_NOTE, "permissions",
                    "everybody on this machine may take these locks, and hold them for ever\n"
                    "%.200s has mode %04o (stat)\nif that is not meant: chmod o-w %.200s",
                    path, mode, path);
    else
        hfi_finding(examination, HF_FINDING_OK, "permissions", "%s may use these locks\n%.200s has mode %04o (stat)",
                    mode & S_IWGRP ? "its owner and its group" : "its owner alone", path, mode);
}

static void look_at_room(const struct file_store *store, const struct hfi_examination *examination)
{
    struct statvfs fs;
    if (fstatvfs(store->directory.fd, &fs) != 0)
        return;
    const uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    const uint64_t inodes = fs.f_favail;
    const bool counts = fs.f_files > 0; /* some file systems make them as they go */
    if (fs.f_flag & ST_RDONLY)
        hfi_finding(examination, HF_FINDING_BROKEN, "room",
                    "the file system is read-only, and no lock can be taken\n%.200s (findmnt -T)\n"
                    "mount -o remount,rw, after a look at why the kernel did that (dmesg)",
                    store->directory.path);
    else if (bytes < BYTES_LEAST || (counts && inodes < FILES_LEAST))
        hfi_finding(examination, HF_FINDING_RISK, "room",
                    "it is nearly full: soon no lock can be taken that has no file yet\n"
                    "%" PRIu64 " KiB and %" PRIu64 " inodes are free for %.200s (df, df -i)\nmake room",
                    bytes / 1024, inodes, store->directory.path);
    else
        hfi_finding(examination, HF_FINDING_OK, "room",
                    "there is room\n%" PRIu64 " KiB and %" PRIu64 " inodes are free (df, df -i)", bytes / 1024, inodes);
}

/* Those who are in another time namespace than the machine has another CLOCK_BOOTTIME: since when a lock is held would
 * be wrong. The first line says "monotonic 0 0". */
static void look_at_time(const struct hfi_examination *examination)
{
    char text[128] = "";
    const int fd = HFI_FD(open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC));
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    hfi_fd_close(fd);
    const char *boot = length > 0 ? strstr(text, "boottime") : NULL;
    char *rest = NULL;
    const long long seconds = boot ? strtoll(boot + 8, &rest, 10) : 0;
    const long long nanoseconds = boot ? strtoll(rest, NULL, 10) : 0;
    if (seconds || nanoseconds)
        hfi_finding(examination, HF_FINDING_NOTE, "time",
                    "we have a time namespace of our own: `ls` is wrong by that about how long locks of others are "
                    "held; exclusion does not depend on it\nboottime is off by %lld s (/proc/self/timens_offsets)\n"
                    "unshare no time for programs that share locks",
                    seconds);
    else
        hfi_finding(examination, HF_FINDING_OK, "time",
                    "our clock is the machine's\nno time namespace (/proc/self/timens_offsets)");
}

hf_status hfi_file_examine_store(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                                 hf_error *err)
{
    (void)deadline_ns;
    (void)err;
    const struct file_store *store = memory;
    look_at_file_system(store, examination);
    look_at_writers(store, examination);
    look_at_room(store, examination);
    look_at_time(examination);
    return HF_OK;
}
