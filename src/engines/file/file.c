/* SPDX-License-Identifier: MIT
 *
 * file.c: processes of one machine. The kernel keeps the lock: on a file of its own in a directory that they share.
 *
 * What ends a grant:  release(), or the kernel when the holder's process ends, at whatever instruction. The core ends leases
 *                     that are not renewed.
 * Who counts time:    nobody; there is no HF_CAP_EXPIRY.
 * Order:              first come, first served, as long as no holder crashes with waiters behind it; those line up anew.
 * Token:              in the file, see lockrecord.h.
 * Cannot promise:     anything beyond one kernel; so network file systems are refused.
 *
 * Taking a free lock is: open the file, lock it, read and write its record, and look whether a queue exists; releasing it:
 * close the file and look again. Only a lock that somebody waits for costs more. A waiter is in one of two places:
 *
 *   IN_QUEUE  It has connected to the queue (queue.c) and sleeps until lock and queue are sent to it.
 *   FIRST     There was no queue, because the holder took a free lock; it has set one up, behind which the others stand,
 *             and sleeps until the holder's lifeline breaks or somebody who let go of the lock knocks on the queue.
 *
 * Whoever lets go of a lock that has a queue knocks after it has let go, and FIRST tries the lock after each knock: no
 * wake-up can fall between. Whoever finds a free lock that has a queue lets go and lines up, so that nobody overtakes.
 */
#include "file.h"
#include "registry.h"
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Between the end of a holder's lifeline and the end of its lock, and while a lock changes hands, there is nothing to wait
 * for but the kernel: look again soon. */
#define SOON_FIRST (50 * (HFI_MS / 1000))
#define SOON_MOST (10 * HFI_MS)

/* --- holding and letting go --- */

static void remember(struct file_store *store, struct file_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    lock->next = store->held;
    store->held = lock;
    pthread_mutex_unlock(&store->mutex);
}

static void forget(struct file_store *store, const struct file_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    for (struct file_lock **link = &store->held; *link; link = &(*link)->next) {
        if (*link == lock) {
            *link = lock->next;
            break;
        }
    }
    pthread_mutex_unlock(&store->mutex);
}

static void close_all(struct file_lock *lock)
{
    hfi_fd_close(lock->place);
    hfi_fd_close(lock->knocks);
    hfi_fd_close(lock->watch);
    hfi_fd_close(lock->fd);
    lock->fd = lock->queue = lock->place = lock->knocks = lock->watch = -1;
    lock->state = FILE_NEW;
}

/* Gives the kernel's lock to the first waiter, or frees it. */
static void let_go(struct file_store *store, struct file_lock *lock)
{
    const ino_t inode = lock->inode;
    if (lock->queue >= 0) {
        hfi_file_lock_in_transit(lock->fd);
        if (hfi_file_queue_pass(lock->queue, lock->fd)) {
            hfi_fd_close(lock->queue);
            close_all(lock);
            return;
        }
        hfi_file_queue_dissolve(&store->directory, inode, lock->queue);
    }
    close_all(lock);
    /* Somebody may have set up a queue since we, or it, last looked: knock. */
    if (hfi_file_queue_exists(&store->directory, inode))
        hfi_fd_close(hfi_file_queue_join(&store->directory, inode));
}

/* The kernel's lock is ours: writes who we are and takes the token. */
static hf_status enter(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                       struct hfi_grant *grant, hf_error *err)
{
    struct file_record record = { .client = store->id, .pid = getpid(), .since_ns = store->env->now_ns() };
    memcpy(record.host, store->host, sizeof record.host);
    snprintf(record.note, sizeof record.note, "%s", request->note);
    snprintf(record.name, sizeof record.name, "%s", request->name);
    const hf_status status = hfi_file_write_record(lock->fd, &store->directory, &record, err);
    if (status != HF_OK) {
        let_go(store, lock);
        return status;
    }
    lock->state = FILE_HELD;
    lock->owner = request->owner;
    lock->token = grant->token = record.token;
    remember(store, lock);
    return HF_OK;
}

/* --- attempt --- */

static hf_status describe_holder(const struct file_lock *lock, const struct hfi_request *request,
                                 struct hfi_grant *grant)
{
    struct file_record record;
    if (hfi_file_read_record(lock->fd, &record, request->name, NULL) == HF_OK && record.host[0])
        snprintf(grant->holder, sizeof grant->holder, "%s:%lld%s%.80s", record.host, (long long)record.pid,
                 record.note[0] ? " " : "", record.note);
    return HF_BUSY;
}

/* After HF_BUSY a caller that will not wait keeps nothing. */
static hf_status busy(struct file_lock *lock, const struct hfi_request *request, struct hfi_grant *grant)
{
    describe_holder(lock, request, grant);
    if (!request->queue)
        close_all(lock);
    return HF_BUSY;
}

static bool is_unlinked(int fd)
{
    struct stat stat;
    return fstat(fd, &stat) != 0 || stat.st_nlink == 0;
}

/* The lock was free. If others stand in a queue it is theirs: lets go and lines up. True: it is ours to keep. */
static bool nobody_waits(struct file_store *store, struct file_lock *lock, const struct hfi_request *request)
{
    if (!hfi_file_queue_exists(&store->directory, lock->inode))
        return true;
    hfi_file_unlock(lock->fd); /* before the knock that comes with lining up */
    const int place = hfi_file_queue_join(&store->directory, lock->inode);
    if (place >= 0 && request->queue) {
        hfi_file_show_waiting(lock->fd, store->env->random());
        lock->place = place;
        lock->state = FILE_IN_QUEUE;
        return false;
    }
    hfi_fd_close(place);
    if (place >= 0 || errno != ENOENT)
        return false;
    hfi_file_queue_remove_dead(&store->directory, lock->inode, lock->fd);
    return hfi_file_lock(lock->fd, store->id);
}

static hf_status prepare(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                         hf_error *err)
{
    struct stat stat;
    hf_status status = hfi_file_store_ready(store, err);
    if (status != HF_OK || lock->state != FILE_NEW)
        return status;
    lock->fd = lock->queue = lock->place = lock->knocks = lock->watch = -1;
    status = hfi_file_open(&lock->fd, &stat, &store->directory, request->name, err);
    lock->inode = stat.st_ino;
    lock->state = status == HF_OK ? FILE_OPEN : FILE_NEW;
    return status;
}

static hf_status file_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                              struct hfi_grant *grant, hf_error *err)
{
    struct file_store *store = memory;
    struct file_lock *lock = lock_memory;
    for (int tries = 0; tries < 16; tries++) {
        const hf_status status = prepare(store, lock, request, err);
        if (status != HF_OK)
            return status;
        if (lock->state == FILE_GIVEN)
            return enter(store, lock, request, grant, err);
        if (lock->state != FILE_OPEN || !hfi_file_lock(lock->fd, store->id))
            return busy(lock, request, grant);
        if (is_unlinked(
                lock->fd)) { /* somebody removed the file between our open and our lock: it is no lock any more */
            close_all(lock);
            continue;
        }
        if (!nobody_waits(store, lock, request))
            return busy(lock, request, grant);
        return enter(store, lock, request, grant, err);
    }
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the lock file of %.120s is removed again and again", request->name);
}

/* --- wait --- */

static bool sleep_soon(struct file_store *store, struct file_lock *lock, const struct hfi_request *request)
{
    lock->soon_ns = lock->soon_ns ? 2 * lock->soon_ns : SOON_FIRST;
    if (lock->soon_ns > SOON_MOST)
        lock->soon_ns = SOON_MOST;
    const hfi_time at = store->env->now_ns() + lock->soon_ns;
    hfi_waker_sleep(request->waker, NULL, 0, at < request->deadline_ns ? at : request->deadline_ns);
    return store->env->now_ns() < request->deadline_ns;
}

/* From now on this waiter owns the queue and is its first. */
static hf_status become_first(struct file_lock *lock, int queue, hf_error *err)
{
    struct epoll_event knock = { .events = EPOLLIN | EPOLLET };
    lock->queue = queue;
    lock->state = FILE_FIRST;
    lock->knocks = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    if (lock->knocks >= 0 && epoll_ctl(lock->knocks, EPOLL_CTL_ADD, queue, &knock) == 0)
        return HF_OK;
    return hfi_fail_errno(err, errno, "watch", "the queue");
}

/* The holder is gone, or has just let go: whoever is FIRST takes over. */
static void given(struct file_lock *lock)
{
    hfi_file_stop_waiting(lock->fd);
    hfi_fd_close(lock->watch);
    hfi_fd_close(lock->knocks);
    lock->watch = lock->knocks = -1;
    lock->state = FILE_GIVEN;
}

static hf_status wait_as_first(struct file_store *store, struct file_lock *lock, const struct hfi_request *request)
{
    if (hfi_file_lock(lock->fd, store->id)) {
        given(lock);
        return HF_OK;
    }
    const uint64_t holder = hfi_file_holder(lock->fd);
    if (holder != lock->watched || lock->watch < 0) {
        hfi_fd_close(lock->watch);
        lock->watched = holder;
        lock->watch = holder > HFI_FILE_IN_TRANSIT ? hfi_file_lifeline_watch(&store->directory, holder) : -1;
    }
    if (lock->watch < 0)
        return sleep_soon(store, lock, request) ? HF_OK : HF_TIMEOUT;
    lock->soon_ns = 0;
    struct pollfd fds[2] = { { .fd = lock->knocks, .events = POLLIN }, { .fd = lock->watch } };
    const bool news = hfi_waker_sleep(request->waker, fds, 2, request->deadline_ns);
    if (fds[0].revents) {
        struct epoll_event ignored;
        epoll_wait(lock->knocks, &ignored, 1, 0); /* so that the next knock is heard again */
    }
    if (fds[1].revents) {
        hfi_fd_close(lock->watch);
        lock->watch = -1;
    }
    return news ? HF_OK : HF_TIMEOUT;
}

/* The lock arrived by the queue; the old holder's descriptor becomes ours. */
static hf_status receive_lock(struct file_store *store, struct file_lock *lock, int lock_fd, int queue, hf_error *err)
{
    struct stat stat;
    hfi_fd_close(lock->place);
    hfi_fd_close(lock->fd); /* and with it our presence among the waiters */
    lock->place = -1;
    lock->fd = lock_fd;
    lock->queue = queue;
    /* The sender may be another user's process: believe the kernel, not the message. */
    if (fstat(lock_fd, &stat) == 0 && stat.st_ino == lock->inode && hfi_file_lock(lock_fd, store->id)) {
        lock->state = FILE_GIVEN;
        return HF_OK;
    }
    hfi_fd_close(queue);
    close_all(lock);
    return hfi_fail(err, HF_INTERNAL, 0, "a lock that was handed over turned out not to be one");
}

static hf_status wait_in_queue(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                               hf_error *err)
{
    struct pollfd place = { .fd = lock->place, .events = POLLIN };
    int queue, lock_fd;
    if (!hfi_waker_sleep(request->waker, &place, 1, request->deadline_ns))
        return HF_TIMEOUT;
    if (!place.revents)
        return HF_OK;
    if (hfi_file_queue_take(lock->place, &queue, &lock_fd)) {
        if (lock_fd >= 0)
            return receive_lock(store, lock, lock_fd, queue, err);
        hfi_fd_close(lock->place);
        lock->place = -1;
        return become_first(lock, queue, err);
    }
    if (errno == EAGAIN)
        return HF_OK;
    const int failure = errno;
    close_all(lock); /* the queue is gone: start over */
    return failure == EMFILE ? hfi_fail_errno(err, failure, "receive", "the lock") : HF_OK;
}

static hf_status line_up(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                         hf_error *err)
{
    lock->place = hfi_file_queue_join(&store->directory, lock->inode);
    int failure = lock->place < 0 ? errno : 0;
    int queue = -1;
    if (failure == ENOENT) {
        queue = hfi_file_queue_found(&store->directory, lock->inode, lock->fd);
        failure = queue < 0 ? errno : 0;
    }
    if (failure == EAGAIN) /* a full queue, or one that is just being set up */
        return sleep_soon(store, lock, request) ? HF_OK : HF_TIMEOUT;
    if (failure)
        return hfi_fail_errno(err, failure, "line up in", store->directory.path);
    lock->soon_ns = 0;
    lock->state = FILE_IN_QUEUE;
    hfi_file_show_waiting(lock->fd, store->env->random());
    return queue >= 0 ? become_first(lock, queue, err) : HF_OK;
}

static hf_status file_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct file_store *store = memory;
    struct file_lock *lock = lock_memory;
    hf_status status = HF_OK;
    /* One step a turn; only the core, which is asked in between, may ask for another question. */
    while (status == HF_OK && !hfi_waker_called_back(request->waker)) {
        switch (lock->state) {
        case FILE_NEW:
        case FILE_GIVEN:
        case FILE_HELD:
            return HF_OK;
        case FILE_OPEN:
            status = line_up(store, lock, request, err);
            break;
        case FILE_IN_QUEUE:
            status = wait_in_queue(store, lock, request, err);
            break;
        case FILE_FIRST:
            status = wait_as_first(store, lock, request);
            break;
        }
    }
    return status;
}

/* --- release --- */

/* Gives up a place in the queue. What was sent to it in the meantime is passed on. */
static void leave_queue(struct file_store *store, struct file_lock *lock)
{
    int queue, lock_fd;
    shutdown(lock->place, SHUT_RD); /* from here on nothing can be sent to us any more */
    if (!hfi_file_queue_take(lock->place, &queue, &lock_fd)) {
        close_all(lock);
        return;
    }
    hfi_fd_close(lock->place);
    lock->place = -1;
    lock->queue = queue;
    if (lock_fd >= 0) {
        hfi_fd_close(lock->fd);
        lock->fd = lock_fd;
    }
    let_go(store, lock);
}

/* The first waiter gives up: the next one becomes the first. */
static void leave_as_first(struct file_store *store, struct file_lock *lock)
{
    if (hfi_file_queue_pass(lock->queue, -1))
        hfi_fd_close(lock->queue);
    else
        hfi_file_queue_dissolve(&store->directory, lock->inode, lock->queue);
    close_all(lock);
}

static hf_status file_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    (void)request;
    (void)err;
    struct file_store *store = memory;
    struct file_lock *lock = lock_memory;
    switch (lock->state) {
    case FILE_NEW:
        break;
    case FILE_OPEN:
        close_all(lock);
        break;
    case FILE_IN_QUEUE:
        leave_queue(store, lock);
        break;
    case FILE_FIRST:
        leave_as_first(store, lock);
        break;
    case FILE_HELD:
        forget(store, lock);
        let_go(store, lock);
        break;
    case FILE_GIVEN:
        let_go(store, lock);
        break;
    }
    return HF_OK;
}

const struct hfi_engine hfi_engine_file = {
    .abi = HFI_ENGINE_ABI,
    .name = "file",
    .schemes = "file:",
    .summary = "processes of one machine; the kernel keeps the lock on a file",
    .caps = HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_BOUND | HF_CAP_PROCESSES | HF_CAP_DURABLE_TOKEN | HF_CAP_INSPECT |
            HF_CAP_BREAK,
    .store_size = sizeof(struct file_store),
    .lock_size = sizeof(struct file_lock),
    .open = hfi_file_store_open,
    .close = hfi_file_store_close,
    .attempt = file_attempt,
    .wait = file_wait,
    .release = file_release,
    .inspect = hfi_file_inspect,
    .evict = hfi_file_evict,
    .ear = hfi_file_ear,
    .hear = hfi_file_hear,
};
