/* SPDX-License-Identifier: MIT
 *
 * reach.c: file systems that several machines can share. There, locks on files reach one machine only, or are broken.
 */
#include "local.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FUSE 0x65735546u
#define MOUNTS_MOST 65536

/* Most are not in <linux/magic.h>. */
static const uint32_t shared[] = {
    0x00006969, /* NFS */
    0x0000517b, /* SMB */
    0xff534d42, /* CIFS */
    0xfe534d42, /* SMB 2 and 3 */
    0x0000564c, /* NCP */
    0x00c36400, /* Ceph */
    0x5346414f, /* AFS */
    0x6b414653, /* AFS, the kernel's own */
    0x73757245, /* Coda */
    0x01021997, /* 9p */
    FUSE,       /* GlusterFS, sshfs, S3, virtiofs… and others, see below */
    0x786f4256, /* VirtualBox */
    0xbacbacbc, /* VMware */
    0x7c7c6673, /* Parallels */
    0x0bd00bd0, /* Lustre */
    0x47504653, /* GPFS */
    0x7461636f, /* OCFS2 */
    0x01161970, /* GFS2 */
    0x19830326, /* BeeGFS */
    0x20030528, /* OrangeFS, PVFS2 */
    0xaad7aaea, /* PanFS */
    0xbeefdead, /* StorNext */
    0xa501fcf5, /* VxFS */
    0x61636673, /* ACFS */
    0x013111a8, /* IBRIX */
};

/* All mounts, a line each; NULL: they cannot be read. */
static char *read_mounts(void)
{
    char *text = hfi_alloc(MOUNTS_MOST);
    const int fd = text ? HFI_FD(open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC)) : -1;
    ssize_t length = fd >= 0 ? 1 : 0;
    for (size_t used = 0; length > 0 && used < MOUNTS_MOST - 1; used += (size_t)(length > 0 ? length : 0))
        length = read(fd, text + used, MOUNTS_MOST - 1 - used);
    hfi_fd_close(fd);
    return text;
}

/* Of all that comes by FUSE: what lies on a disk of this machine, and the folders of containers without root. */
static bool is_local_fuse(dev_t device)
{
    char number[32];
    bool local = false;
    char *const text = read_mounts();
    snprintf(number, sizeof number, " %u:%u ", major(device), minor(device));
    char *rest = NULL;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        const char *type = strstr(line, number) ? strstr(line, " - ") : NULL;
        local = local ||
                (type && (strncmp(type + 3, "fuseblk ", 8) == 0 || strncmp(type + 3, "fuse.fuse-overlayfs ", 20) == 0));
    }
    hfi_free(text);
    return local;
}

bool hfi_is_network_file_system(uint32_t type, dev_t device)
{
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        if (shared[i] == type)
            return type != FUSE || !is_local_fuse(device);
    }
    return false;
}
