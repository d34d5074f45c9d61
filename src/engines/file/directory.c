/* SPDX-License-Identifier: MIT
 *
 * directory.c: finding the directory that locks live in, and refusing one in which they would not be safe.
 */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool home(char *out, size_t size)
{
    const char *directory = secure_getenv("HOME");
    struct passwd user, *found = NULL;
    char buffer[4096];
    if (!directory || *directory != '/') {
        const int failure = getpwuid_r(geteuid(), &user, buffer, sizeof buffer, &found);
        directory = !failure && found ? user.pw_dir : NULL;
    }
    return directory && snprintf(out, size, "%s", directory) < (int)size;
}

static hf_status default_path(char *out, size_t size, hf_error *err)
{
    const char *state = secure_getenv("XDG_STATE_HOME");
    char mine[PATH_MAX];
    int length;
    if (geteuid() == 0)
        length = snprintf(out, size, "/var/lib/holdfast");
    else if (state && *state == '/')
        length = snprintf(out, size, "%s/holdfast", state);
    else if (home(mine, sizeof mine))
        length = snprintf(out, size, "%s/.local/state/holdfast", mine);
    else
        return hfi_fail(err, HF_INVALID, 0, "there is no home directory for lock files; name one as file:///DIRECTORY");
    return length < (int)size ? HF_OK
                              : hfi_fail(err, HF_INVALID, ENAMETOOLONG, "the home directory's path is too long");
}

/* --- the way to it --- */

#define LINKS_MOST 40 /* as the kernel */

struct way {
    int at;              /* how far we have come; -1 */
    char rest[PATH_MAX]; /* where to go from there; from the root if it starts with a slash */
    int links;           /* followed so far */
};

static bool go_to(struct way *way, int fd)
{
    const int failure = errno;
    hfi_fd_close(way->at);
    way->at = fd;
    errno = failure;
    return fd >= 0;
}

/* What the symbolic link `fd` leads to; its length is returned. -1 with EPERM if it is somebody else's, who could
 * change it at any time; with ENOTDIR if it is no link. */
static ssize_t read_link(int fd, char *out, size_t size)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        return -1;
    errno = !S_ISLNK(stat.st_mode) ? ENOTDIR : EPERM;
    if (!S_ISLNK(stat.st_mode) || (stat.st_uid != geteuid() && stat.st_uid != 0))
        return -1;
    return readlinkat(fd, "", out, size);
}

/* `name` is a symbolic link, or no directory: puts what it leads to in front of `rest`. It is opened once: another one
 * could take its place between looking and reading. */
static bool follow_link(struct way *way, const char *name, const char *rest)
{
    char longer[PATH_MAX];
    const int fd = HFI_FD(openat(way->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
    const ssize_t length = fd >= 0 ? read_link(fd, longer, sizeof longer) : -1;
    const int failure = errno;
    hfi_fd_close(fd);
    errno = failure;
    if (length < 0)
        return false;
    errno = ++way->links > LINKS_MOST ? ELOOP : ENAMETOOLONG;
    const size_t room = sizeof longer - (size_t)length;
    if (way->links > LINKS_MOST || snprintf(longer + length, room, "/%s", rest) >= (int)room)
        return false;
    memcpy(way->rest, longer, sizeof longer);
    return true;
}

/* One part of the path further. */
static bool step(struct way *way)
{
    char name[NAME_MAX + 1];
    if (way->rest[0] == '/' && !go_to(way, HFI_FD(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC))))
        return false;
    const char *start = way->rest + strspn(way->rest, "/");
    const size_t length = strcspn(start, "/");
    errno = ENAMETOOLONG;
    if (length >= sizeof name)
        return false;
    memcpy(name, start, length);
    name[length] = 0;
    const char *rest = start + length + strspn(start + length, "/");
    const int fd = HFI_FD(openat(way->at, length ? name : ".", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) /* a link may be either */
        return follow_link(way, name, rest);
    memmove(way->rest, rest, strlen(rest) + 1);
    return go_to(way, fd);
}

/* Opens a directory as open(2) does, but follows no symbolic link of another user: -1 with EPERM. */
static int open_path(const char *path)
{
    struct way way = { .at = -1 };
    snprintf(way.rest, sizeof way.rest, "%s", path);
    bool good = true;
    do
        good = step(&way);
    while (good && way.rest[0]);
    const int fd = good ? HFI_FD(openat(way.at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) : -1;
    go_to(&way, -1);
    return fd;
}

/* Makes the directory; with `parents`, those above it too. Failures show when it is opened. */
static void make(char *path, bool parents)
{
    for (char *slash = parents ? strchr(path + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0700);
}

static hf_status check_owner(const struct stat *stat, const char *path, hf_error *err)
{
    if (stat->st_uid != geteuid() && stat->st_uid != 0)
        return hfi_fail(err, HF_DENIED, 0, "directory %s belongs to user %u: lock files in it could be swapped", path,
                        (unsigned)stat->st_uid);
    if ((stat->st_mode & S_IWOTH) && !(stat->st_mode & S_ISVTX))
        return hfi_fail(err, HF_DENIED, 0, "anybody could swap the lock files in %s: run chmod +t or chmod o-w on it",
                        path);
    return HF_OK;
}

static hf_status check_file_system(int fd, dev_t device, const char *path, hf_error *err)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return hfi_fail_errno(err, errno, "examine", path);
    if (!hfi_is_network_file_system((uint32_t)fs.f_type, device))
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, 0,
                    "%s is on a network file system, where file locks reach one machine only; "
                    "use an engine with a server",
                    path);
}

hf_status hfi_file_directory_open(struct file_directory *directory, const char *path, hf_error *err)
{
    char buffer[PATH_MAX];
    struct stat stat;
    hf_status status = HF_OK;
    directory->fd = -1;
    if (!path)
        status = default_path(buffer, sizeof buffer, err);
    else if (snprintf(buffer, sizeof buffer, "%s", path) >= (int)sizeof buffer)
        status = hfi_fail(err, HF_INVALID, ENAMETOOLONG, "the directory's path is too long");
    if (status != HF_OK)
        return status;
    directory->fd = open_path(buffer);
    if (directory->fd < 0 && errno == ENOENT) {
        make(buffer, !path);
        directory->fd = open_path(buffer);
    }
    if (directory->fd < 0 && errno == EPERM)
        return hfi_fail(err, HF_DENIED, EPERM, "a symbolic link on the way to directory %s belongs to another user",
                        buffer);
    if (directory->fd < 0 || fstat(directory->fd, &stat) != 0)
        return hfi_fail_errno(err, errno, "open directory", buffer);
    status = check_owner(&stat, buffer, err);
    if (status == HF_OK)
        status = check_file_system(directory->fd, stat.st_dev, buffer, err);
    if (status != HF_OK)
        return status;
    directory->mode = 0600 | (stat.st_mode & S_IWGRP ? 0060 : 0) | (stat.st_mode & S_IWOTH ? 0006 : 0);
    char absolute[PATH_MAX];
    directory->path = hfi_strdup(realpath(buffer, absolute) ? absolute : buffer);
    return directory->path ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

void hfi_file_directory_close(struct file_directory *directory)
{
    hfi_fd_close(directory->fd);
    hfi_free(directory->path);
}
