/* SPDX-License-Identifier: MIT
 *
 * sqlite.c: processes of one machine that share an SQLite file (3.35 or newer), by one of three strategies.
 *
 * What ends a grant:  release(), or its time-to-live, or a reboot.
 * Who counts time:    the kernel's CLOCK_BOOTTIME, which is the same in all processes of a machine once the offset of
 *                     their time namespace is taken off; the core keeps an earlier deadline of its own. A row that was
 *                     renewed at a time which has not come yet is of another boot, and nobody's.
 * Exchanges:          one statement each to acquire and to release a lease that nobody else wants.
 * Waiting:            by a FIFO per client: whoever frees the lock hands it to the first of a table of waiters, and
 *                     writes to that client's FIFO.
 * Token:              one more than the last, kept in the row, for as long as the file is kept.
 * Done:               a row beside it, counted by the machine's wall clock.
 * Cannot promise:     anything beyond this machine, or across a file that was deleted, or restored from a copy.
 *
 * The database may be somebody's application's. Our tables are ours; everything else is neither read nor changed, no
 * transaction stays open, and its journal mode stays what it is unless the URL asks for another.
 */
#include "sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define OLDEST_LIBRARY 3035000

/* 64 of the random bits by which the kernel names this boot. Containers may have one of their own, so that another one
 * does not mean another kernel; the same one means the same kernel. */
static hf_status read_boot(struct sqlite_store *store, hf_error *err)
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    char text[40] = "", digits[17] = "";
    size_t used = 0;
    const int fd = HFI_FD(open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    const int failure = errno;
    hfi_fd_close(fd);
    for (ssize_t i = 0; i < length && used < sizeof digits - 1; i++) {
        if (text[i] != '-')
            digits[used++] = text[i];
    }
    store->boot = (int64_t)strtoull(digits, NULL, 16);
    return store->boot ? HF_OK : hfi_fail_errno(err, length < 0 ? failure : EOPNOTSUPP, "read", path);
}

static bool same_link(const char *a, const char *b)
{
    char first[64] = "", second[64] = "";
    const ssize_t length = readlink(a, first, sizeof first - 1);
    return length == readlink(b, second, sizeof second - 1) && strcmp(first, second) == 0;
}

/* What is written there is of the namespace that children will be in: this process's own, unless it has just made
 * another for them. A kernel without time namespaces has neither. */
static hf_status read_clock(struct sqlite_store *store, hf_error *err)
{
    char text[256] = "";
    long long seconds = 0, nanoseconds = 0;
    const int fd = HFI_FD(open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC));
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    hfi_fd_close(fd);
    const char *line = length > 0 ? strstr(text, "boottime") : NULL;
    if (line && !same_link("/proc/self/ns/time", "/proc/self/ns/time_for_children"))
        return hfi_fail(err, HF_UNSUPPORTED, 0, "this process has made a time namespace which it is not in");
    if (line && sscanf(line, "boottime %lld %lld", &seconds, &nanoseconds) != 2)
        return hfi_fail(err, HF_UNSUPPORTED, 0, "cannot understand /proc/self/timens_offsets");
    store->ahead_ns = seconds * HFI_SECOND + nanoseconds;
    return HF_OK;
}

static hf_status check_file_system(const struct sqlite_config *config, hf_error *err)
{
    struct statfs fs;
    struct stat found;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", config->path);
    strrchr(folder, '/')[1] = 0;
    const char *path = stat(config->path, &found) == 0 ? config->path : folder;
    if (statfs(path, &fs) != 0 || stat(path, &found) != 0)
        return hfi_fail_errno(err, errno, "open", config->path);
    if (!hfi_is_network_file_system((uint32_t)fs.f_type, found.st_dev))
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, 0,
                    "%.100s is on a network file system, where SQLite files are not safe and clocks differ; use an "
                    "engine with a server",
                    config->path);
}

/* Whoever comes by another link must find the same FIFOs. */
static void follow_links(struct sqlite_config *config)
{
    char absolute[PATH_MAX];
    if (realpath(config->path, absolute) && strlen(absolute) + 10 < sizeof config->path)
        snprintf(config->path, sizeof config->path, "%s", absolute);
}

static hf_status sqlite_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                             struct hfi_opened *opened, hf_error *err)
{
    (void)opened;
    struct sqlite_store *store = memory;
    store->env = env;
    store->push.epoll = store->push.folder = store->push.lifeline.fd = -1;
    store->pid = getpid();
    gethostname(store->host, sizeof store->host - 1);
    pthread_mutex_init(&store->push.mutex, NULL);
    hfi_sqlite_join_process(store);
    if (sqlite3_libversion_number() < OLDEST_LIBRARY || !sqlite3_threadsafe())
        return hfi_fail(err, HF_UNSUPPORTED, 0, "this is SQLite %s%s; the engine needs 3.35 or newer, with threads",
                        sqlite3_libversion(), sqlite3_threadsafe() ? "" : " without threads");
    hf_status status = hfi_sqlite_config_read(&store->config, url, err);
    if (status == HF_OK)
        status = read_boot(store, err);
    if (status == HF_OK)
        status = read_clock(store, err);
    if (status == HF_OK)
        status = check_file_system(&store->config, err);
    if (status == HF_OK)
        status = hfi_sqlite_push_open(store, err);
    follow_links(&store->config);
    if (status == HF_OK)
        status = hfi_sqlite_prepare_tables(store, env->now_ns() + env->timeout_ns, err);
    follow_links(&store->config); /* of a file that was not there before */
    return status;
}

static void sqlite_close(void *memory)
{
    struct sqlite_store *store = memory;
    hfi_sqlite_leave_process(store);
    hfi_sqlite_push_close(store);
    hfi_sqlite_config_free(&store->config);
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "sqlite",
    .schemes = "sqlite:",
    .summary = "processes that share an SQLite file",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_DURABLE_TOKEN | HF_CAP_INSPECT |
            HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE,
    .store_size = sizeof(struct sqlite_store),
    .lock_size = sizeof(struct sqlite_lock),
    .open = sqlite_open,
    .close = sqlite_close,
    .attempt = hfi_sqlite_attempt,
    .wait = hfi_sqlite_wait,
    .renew = hfi_sqlite_renew,
    .release = hfi_sqlite_release,
    .inspect = hfi_sqlite_inspect,
    .inspect_one = hfi_sqlite_inspect_one,
    .inspect_done = hfi_sqlite_inspect_done,
    .forget_done = hfi_sqlite_forget_done,
    .evict = hfi_sqlite_evict,
    .guard = hfi_sqlite_guard,
    .examine = hfi_sqlite_examine,
    .push_fd = hfi_sqlite_push_fd,
    .take_push = hfi_sqlite_take_push,
};
