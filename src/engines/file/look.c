/* SPDX-License-Identifier: MIT
 *
 * look.c: who holds what in the directory, what is done, and asking a holder to let go.
 */
#include "store.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_AGAIN_MS 2
#define LOOKS_PER_REQUEST 25

static int show(struct file_store *store, int fd, const char *file_name, const char *prefix, hf_inspect_fn each,
                void *arg)
{
    char name[HFI_NAME_MAX + 1];
    struct file_record record = { 0 };
    const uint64_t holder = hfi_file_holder(fd);
    if (holder == HFI_FILE_NOBODY)
        return 0;
    const bool known = hfi_file_read_record(fd, &record, file_name, NULL) == HF_OK && record.name[0];
    if (!known && !hfi_name_decode(name, sizeof name, file_name))
        return 0;
    const bool mine =
        known && record.client == holder; /* else the last holder's: the new one has yet to write its own */
    const hf_info info = { .size = sizeof info,
                           .name = known ? record.name : name,
                           .host = mine ? record.host : "",
                           .pid = mine ? record.pid : 0,
                           .token = mine ? record.token : 0,
                           .held_ms = mine && record.this_boot ? (store->env->now_ns() - record.since_ns) / HFI_MS : -1,
                           .remaining_ms = -1,
                           .waiters = hfi_file_count_waiting(fd) +
                                      hfi_file_queue_has_first(&store->directory, fd, mine ? record.queue : 0),
                           .note = mine ? record.note : "" };
    return strncmp(info.name, prefix, strlen(prefix)) == 0 ? each(&info, arg) : 0;
}

static int show_done(struct file_store *store, int fd, const char *file_name, const char *prefix, hf_inspect_fn each,
                     void *arg)
{
    (void)store;
    struct file_done done;
    if (hfi_file_read_done(fd, &done, file_name, NULL) != HF_DONE || strncmp(done.name, prefix, strlen(prefix)) != 0)
        return 0;
    const hf_info info = { .size = sizeof info,
                           .name = done.name,
                           .host = done.host,
                           .pid = done.pid,
                           .token = done.token,
                           .held_ms = done.ago_ms,
                           .remaining_ms = done.left_ms,
                           .waiters = -1,
                           .note = done.note };
    return each(&info, arg);
}

/* The stream takes over its descriptor, so it is not on the list of those that a forked child closes. */
static DIR *list(const struct file_directory *directory)
{
    const int copy = openat(directory->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy >= 0 ? fdopendir(copy) : NULL;
    if (!stream && copy >= 0)
        close(copy);
    return stream;
}

static void tidy(const struct file_directory *directory, const char *file_name)
{
    hfi_lifeline_tidy(directory->fd, file_name);
    hfi_file_queue_tidy(directory, file_name);
}

void hfi_file_tidy(const struct file_directory *directory)
{
    DIR *stream = list(directory);
    for (const struct dirent *entry; stream && (entry = readdir(stream)) != NULL;)
        tidy(directory, entry->d_name);
    if (stream)
        closedir(stream);
}

typedef int show_fn(struct file_store *store, int fd, const char *file_name, const char *prefix, hf_inspect_fn each,
                    void *arg);

static hf_status show_all(struct file_store *store, show_fn *show_one, const char *prefix, hf_inspect_fn each,
                          void *arg, hf_error *err)
{
    DIR *stream = list(&store->directory);
    if (!stream)
        return hfi_fail_errno(err, errno, "list", store->directory.path);
    const struct dirent *entry;
    hf_status status = HF_OK;
    int stop = 0;
    while (!stop && (entry = readdir(stream)) != NULL) {
        struct stat stat;
        if (entry->d_name[0] == '.') {
            tidy(&store->directory, entry->d_name);
            continue;
        }
        const int fd = hfi_file_open_to_look(&store->directory, entry->d_name, O_RDONLY, &stat);
        if (fd < 0 && errno != ENOENT) {
            status = hfi_fail_errno(err, errno, "open lock file", entry->d_name);
            break;
        }
        if (fd >= 0)
            stop = show_one(store, fd, entry->d_name, prefix, each, arg);
        hfi_fd_close(fd);
    }
    closedir(stream);
    return status;
}

hf_status hfi_file_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                           hf_error *err)
{
    (void)deadline_ns;
    return show_all(memory, show, prefix, each, arg, err);
}

hf_status hfi_file_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err)
{
    (void)deadline_ns;
    return show_all(memory, show_done, prefix, each, arg, err);
}

hf_status hfi_file_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err)
{
    (void)deadline_ns;
    struct file_store *store = memory;
    char file_name[HFI_FILE_NAME_MAX + 1];
    struct stat stat;
    hfi_file_name(file_name, name);
    const int fd = hfi_file_open_to_look(&store->directory, file_name, O_RDONLY, &stat);
    if (fd < 0)
        return errno == ENOENT ? HF_OK : hfi_fail_errno(err, errno, "open the lock file of", name);
    show(store, fd, file_name, name, each, arg);
    hfi_fd_close(fd);
    return HF_OK;
}

hf_status hfi_file_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    (void)deadline_ns;
    struct file_store *store = memory;
    char file_name[HFI_FILE_NAME_MAX + 1];
    struct file_done done;
    struct stat stat;
    hfi_file_name(file_name, name);
    const int fd = hfi_file_open_to_look(&store->directory, file_name, O_RDWR, &stat);
    if (fd < 0)
        return errno == ENOENT ? HF_OK : hfi_fail_errno(err, errno, "open the lock file of", name);
    hf_status status = hfi_file_read_done(fd, &done, name, err);
    if (status == HF_DONE || status == HF_OK) /* also one that does not count: the clock may be set */
        status = strcmp(done.name, name) == 0 ? hfi_file_erase_done(fd, name, err) : HF_OK;
    hfi_fd_close(fd);
    return status;
}

/* --- break --- */

struct victim {
    const char *name;
    const char *by; /* who wants it */
    bool asked;
    unsigned looks;
    uint64_t holder;
    struct file_record record;
    hf_status status;
};

static hf_status say_deaf(const struct victim *victim, hf_error *err)
{
    const struct file_record *record = &victim->record;
    if (record->client != victim->holder) /* the record is the last holder's */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "%.120s is on its way to a process that does not run; end that one",
                        victim->name);
    return hfi_fail(
        err, HF_UNAVAILABLE, 0,
        "the holder of %.100s was asked and has not let go of it yet; if it does not, end process %lld on %s",
        victim->name, (long long)record->pid, record->host[0] ? record->host : "this machine");
}

/* One look and, from time to time, one request. True: it is free, or has changed hands. */
static bool is_over(struct file_store *store, int fd, const struct stat *stat, struct victim *victim, hf_error *err)
{
    struct file_record record;
    const uint64_t holder = hfi_file_holder(fd);
    if (holder == HFI_FILE_NOBODY)
        return true;
    victim->status = hfi_file_read_record(fd, &record, victim->name, err);
    if (victim->status != HF_OK)
        return true;
    if (victim->asked && (record.token != victim->record.token || holder != victim->holder))
        return true;
    victim->record = record;
    victim->holder = holder;
    /* Again and again: a holder that has just been granted the lock may not know of it yet. */
    if (record.client == holder && victim->looks++ % LOOKS_PER_REQUEST == 0) {
        const struct hfi_message message = { .kind = FILE_SAYS_BREAK, .inode = stat->st_ino, .number = record.token };
        victim->asked |= hfi_lifeline_tell(store->directory.fd, holder, &message, victim->by);
    }
    return false;
}

hf_status hfi_file_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct file_store *store = memory;
    char file_name[HFI_FILE_NAME_MAX + 1];
    struct stat stat;
    struct victim victim = { .name = name, .by = by, .status = HF_OK };
    hfi_file_name(file_name, name);
    const int fd = hfi_file_open_to_look(&store->directory, file_name, O_RDONLY, &stat);
    if (fd < 0)
        return errno == ENOENT ? HF_OK : hfi_fail_errno(err, errno, "open the lock file of", name);
    while (!is_over(store, fd, &stat, &victim, err)) {
        if (store->env->now_ns() >= deadline_ns) {
            victim.status = say_deaf(&victim, err);
            break;
        }
        poll(NULL, 0, LOOK_AGAIN_MS); /* an administrator's patience; nothing tells us when a stranger lets go */
    }
    hfi_fd_close(fd);
    return victim.status;
}
