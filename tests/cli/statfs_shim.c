/* SPDX-License-Identifier: MIT
 *
 * statfs_shim.c: preloaded into the command, has everything lie on a file system of the type that FILE_SYSTEM_TYPE is,
 * in hexadecimal. That is what a network file system looks like to a program, and the tests have no server of one.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define INSTEAD_OF(name) __asm__(name) __attribute__((visibility("default")))

/* Where a long has 64 bits both names mean the same. */
int shim_statfs(const char *path, struct statfs *out) INSTEAD_OF("statfs");
int shim_statfs64(const char *path, struct statfs *out) INSTEAD_OF("statfs64");
int shim_fstatfs(int fd, struct statfs *out) INSTEAD_OF("fstatfs");
int shim_fstatfs64(int fd, struct statfs *out) INSTEAD_OF("fstatfs64");

static int changed(long result, struct statfs *out)
{
    const char *type = getenv("FILE_SYSTEM_TYPE");

    if (result == 0 && type != NULL)
        out->f_type = strtol(type, NULL, 16);
    return (int)result;
}

int shim_statfs(const char *path, struct statfs *out)
{
    return changed(syscall(SYS_statfs, path, out), out);
}

int shim_statfs64(const char *path, struct statfs *out)
{
    return shim_statfs(path, out);
}

int shim_fstatfs(int fd, struct statfs *out)
{
    return changed(syscall(SYS_fstatfs, fd, out), out);
}

int shim_fstatfs64(int fd, struct statfs *out)
{
    return shim_fstatfs(fd, out);
}
