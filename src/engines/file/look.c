/* SPDX-License-Identifier: MIT
 *
 * look.c: who holds what in the directory, and asking a holder to let go.
 */
#include "store.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ASK_AGAIN_MS 2

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
                           .waiters = hfi_file_count_waiting(fd),
                           .note = mine ? record.note : "" };
    return strncmp(info.name, prefix, strlen(prefix)) == 0 ? each(&info, arg) : 0;
}

hf_status hfi_file_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                           hf_error *err)
{
    (void)deadline_ns;
    struct file_store *store = memory;
    /* The stream takes over its descriptor, so it is not on the list of those that a forked child closes. */
    const int copy = openat(store->directory.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy >= 0 ? fdopendir(copy) : NULL;
    if (!stream) {
        const hf_status status = hfi_fail_errno(err, errno, "list", store->directory.path);
        if (copy >= 0)
            close(copy);
        return status;
    }
    const struct dirent *entry;
    int stop = 0;
    while (!stop && (entry = readdir(stream)) != NULL) {
        struct stat stat;
        if (entry->d_name[0] == '.') {
            hfi_file_lifeline_tidy(&store->directory, entry->d_name);
            continue;
        }
        const int fd = hfi_file_open_to_look(&store->directory, entry->d_name, &stat);
        if (fd >= 0)
            stop = show(store, fd, entry->d_name, prefix, each, arg);
        hfi_fd_close(fd);
    }
    closedir(stream);
    return HF_OK;
}

/* --- break --- */

static hf_status say_deaf(const struct file_record *record, const char *name, hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the holder of %.100s does not answer; end process %lld on %s to free it",
                    name, (long long)record->pid, record->host[0] ? record->host : "this machine");
}

hf_status hfi_file_evict(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct file_store *store = memory;
    char file_name[HFI_FILE_NAME_MAX + 1];
    struct stat stat;
    struct file_record first = { 0 };
    hfi_file_name(file_name, name);
    const int fd = hfi_file_open_to_look(&store->directory, file_name, &stat);
    if (fd < 0)
        return errno == EACCES ? hfi_fail_errno(err, errno, "open the lock file of", name) : HF_OK;
    hf_status status = HF_OK;
    bool asked = false;
    for (;;) {
        struct file_record record;
        const uint64_t holder = hfi_file_holder(fd);
        if (holder == HFI_FILE_NOBODY)
            break;
        status = hfi_file_read_record(fd, &record, name, err);
        const bool changed_hands = status == HF_OK && asked && record.token != first.token;
        if (status != HF_OK || changed_hands)
            break;
        if (!asked && record.client == holder) {
            const struct file_break message = { .inode = stat.st_ino, .token = record.token };
            asked = hfi_file_lifeline_ask(&store->directory, holder, &message);
            first = record;
        }
        if (store->env->now_ns() >= deadline_ns) {
            status = say_deaf(&record, name, err);
            break;
        }
        poll(NULL, 0, ASK_AGAIN_MS); /* an administrator's patience; nothing tells us when a stranger lets go */
    }
    hfi_fd_close(fd);
    return status;
}
