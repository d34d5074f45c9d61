/* SPDX-License-Identifier: MIT
 *
 * reach.c: file systems that several machines can share. There, locks on files reach one machine only, or are broken.
 */
#include "local.h"
#include <linux/magic.h>

/* Not in every <linux/magic.h>. */
#define CIFS_MAGIC 0xff534d42u
#define SMB2_MAGIC 0xfe534d42u
#define CEPH_MAGIC 0x00c36400u

bool hfi_is_network_file_system(uint32_t type)
{
    switch (type) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_MAGIC:
    case SMB2_MAGIC:
    case CEPH_MAGIC:
    case AFS_SUPER_MAGIC:
    case V9FS_MAGIC:
        return true;
    default:
        return false;
    }
}
