/* SPDX-License-Identifier: MIT
 *
 * file.c: processes of one machine. The kernel keeps the lock: on a file of its own in a directory that they share.
 *
 * What ends a grant:  release(), or the kernel when the holder's process ends, at whatever instruction. The core ends
 *                     leases that are not renewed.
 * Who counts time:    nobody; there is no HF_CAP_EXPIRY.
 * Order:              first come, first served, unless a holder crashes with waiters behind it: those line up anew.
 * Token:              in the file, see lockrecord.h.
 * Done:               in the file, see done.c; counted by the machine's wall clock.
 * Cannot promise:     anything beyond one kernel; so network file systems are refused.
 *
 * Taking a free lock is: open the file, lock it, look at it and whether it has a queue, read and write its record;
 * releasing it: unlock it and look again. The file stays open for a while. Only a lock that somebody waits for costs
 * more. A waiter is in one of two places:
 *
 *   IN_QUEUE  It has connected to the queue (queue.c) and sleeps until lock and queue are sent to it.
 *   FIRST     There was no queue, because the holder took a free lock; it has set one up, behind which the others
 *             stand, and sleeps until the holder's lifeline breaks or somebody who let go of the lock knocks on the
 *             queue.
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
#include <sys/socket.h>
#include <unistd.h>

/* Between the end of a holder's lifeline and the end of its lock, and while a lock changes hands, there is nothing to
 * wait for but the kernel: look again soon. */
#define SOON_FIRST (50 * (HFI_MS / 1000))
#define SOON_MOST (10 * HFI_MS)
/* A knock can fail to come: from a process that is stopped just before it, or has no descriptor left. */
#define BACKSTOP (2 * HFI_SECOND)

/* --- holding and letting go --- */

static void remember(struct file_store *store, struct file_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    lock->broken = false;
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

static bool was_broken(struct file_store *store, const struct file_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    const bool broken = lock->broken;
    pthread_mutex_unlock(&store->mutex);
    return broken;
}

static void close_all(struct file_lock *lock)
{
    hfi_fd_close(lock->fd); /* first: while we have a copy, the death of whoever has the lock now does not free it */
    hfi_file_queue_close(&lock->queue);
    hfi_fd_close(lock->place);
    hfi_fd_close(lock->watch);
    hfi_fd_close(lock->door.fd);
    lock->door = HFI_FILE_NO_DOOR;
    lock->fd = lock->place = lock->watch = -1;
    lock->state = FILE_NEW;
}

/* Knocks on the queue that the lock has now, if any. False: no descriptor left to do it with. */
static bool knock(const struct file_store *store, const struct file_lock *lock, uint64_t number)
{
    if (number == 0)
        return true;
    const bool open = lock->door.fd >= 0 && lock->door.number == number;
    const int door = open ? lock->door.fd : hfi_file_queue_door(&store->directory, number);
    if (door < 0)
        return errno != EMFILE && errno != ENFILE;
    hfi_file_queue_knock(door);
    if (!open)
        hfi_fd_close(door);
    return true;
}

/* Gives the kernel's lock to the first waiter, or frees it. */
static void let_go(struct file_store *store, struct file_lock *lock, const char *name)
{
    if (lock->queue.line >= 0) {
        hfi_file_lock_in_transit(lock->fd);
        if (hfi_file_queue_pass(&lock->queue, lock->fd)) {
            close_all(lock);
            return;
        }
        hfi_file_queue_dissolve(&lock->queue, &store->directory, lock->fd);
    }
    /* Closing would not do: a process that is being forked right now may still have a copy, and the lock would become
     * free when that is closed, after the knock. */
    hfi_file_unlock(lock->fd);
    const uint64_t number = hfi_file_queue_number(lock->fd);
    const bool knocked = knock(store, lock, number);
    hfi_file_store_keep_open(store, lock->fd, name);
    lock->fd = -1;
    close_all(lock);
    if (!knocked) { /* a process that has no other descriptor left gives up those */
        hfi_file_store_close_idle(store);
        knock(store, lock, number);
    }
}

/* HF_OK: nothing is recorded as done, or nobody asks. */
static hf_status look_whether_done(const struct file_lock *lock, const struct hfi_request *request,
                                   struct hfi_grant *grant, hf_error *err)
{
    struct file_done done;
    const hf_status status = request->once ? hfi_file_read_done(lock->fd, &done, request->name, err) : HF_OK;
    if (status != HF_DONE)
        return status;
    if (strcmp(done.name, request->name) != 0)
        return HF_OK; /* then so is the record, and the lock is refused */
    snprintf(grant->holder, sizeof grant->holder, "%s:%lld%s%.80s", done.host, (long long)done.pid,
             done.note[0] ? " " : "", done.note);
    grant->holder_left_ms = done.left_ms;
    grant->done_ago_ms = done.ago_ms;
    return HF_DONE;
}

/* The kernel's lock is ours: writes who we are and takes the token. */
static hf_status enter(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                       struct hfi_grant *grant, hf_error *err)
{
    lock->state = FILE_GIVEN;
    hf_status status = look_whether_done(lock, request, grant, err);
    if (status != HF_OK)
        return status;
    struct file_record record = {
        .client = store->id, .queue = lock->queue.number, .pid = store->pid, .since_ns = grant->counted_from_ns
    };
    memcpy(record.host, store->host, sizeof record.host);
    snprintf(record.note, sizeof record.note, "%s", request->note);
    snprintf(record.name, sizeof record.name, "%s", request->name);
    status = hfi_file_write_record(lock->fd, &store->directory, &record, err);
    if (status != HF_OK) {
        let_go(store, lock, request->name);
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
    /* Whoever has the lock may have yet to write its record: the one that is there is then the last holder's. */
    if (hfi_file_read_record(lock->fd, &record, request->name, NULL) == HF_OK && record.host[0] &&
        record.client == hfi_file_holder(lock->fd))
        snprintf(grant->holder, sizeof grant->holder, "%s:%lld%s%.80s", record.host, (long long)record.pid,
                 record.note[0] ? " " : "", record.note);
    return HF_BUSY;
}

/* After HF_BUSY a caller that will not wait keeps nothing. */
static hf_status busy(struct file_lock *lock, const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    const hf_status status = look_whether_done(lock, request, grant, err);
    if (status != HF_OK)
        return status;
    describe_holder(lock, request, grant);
    if (!request->queue)
        close_all(lock);
    return HF_BUSY;
}

/* The lock was free. If others stand in a queue it is theirs: lets go and lines up. True: it is ours to keep. */
static bool nobody_waits(struct file_store *store, struct file_lock *lock, const struct hfi_request *request)
{
    const uint64_t number = hfi_file_queue_number(lock->fd);
    if (!number)
        return true;
    hfi_file_unlock(lock->fd); /* before the knock */
    knock(store, lock, number);
    const int place = hfi_file_queue_join(&store->directory, lock->fd);
    if (place >= 0 && request->queue) {
        hfi_file_show_waiting(lock->fd, store->env->random());
        lock->place = place;
        lock->state = FILE_IN_QUEUE;
        return false;
    }
    hfi_fd_close(place);
    if (place >= 0 || errno != ENOENT)
        return false;
    hfi_file_queue_remove_dead(&store->directory, lock->fd);
    return hfi_file_lock(lock->fd, store->id);
}

static hf_status prepare(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                         hf_error *err)
{
    hf_status status = hfi_file_store_ready(store, err);
    if (status != HF_OK || lock->state != FILE_NEW)
        return status;
    lock->queue = HFI_FILE_NO_QUEUE;
    lock->door = HFI_FILE_NO_DOOR;
    lock->place = lock->watch = -1;
    lock->fd = hfi_file_store_reopen(store, request->name);
    if (lock->fd < 0)
        status = hfi_file_open(&lock->fd, &store->directory, request->name, err);
    lock->state = status == HF_OK ? FILE_OPEN : FILE_NEW;
    return status;
}

/* HF_OK: the kernel's lock is ours and nobody else's turn. HF_BUSY with *again: try once more. */
static hf_status take_free(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                           bool *again, hf_error *err)
{
    struct stat stat;
    const bool locked = hfi_file_lock(lock->fd, store->id);
    const int failure = locked ? EAGAIN : errno;
    hf_status status = hfi_file_examine(lock->fd, &stat, request->name, err);
    if (status == HF_OK && failure != EAGAIN)
        status = hfi_fail_errno(err, failure, "lock the file of", request->name);
    *again = false;
    if (status != HF_OK) {
        close_all(lock);
        return status;
    }
    lock->inode = stat.st_ino;
    lock->device = stat.st_dev;
    if (stat.st_nlink == 0) { /* removed between our open and our lock: it is no lock any more */
        close_all(lock);
        *again = true;
        return HF_BUSY;
    }
    return locked && nobody_waits(store, lock, request) ? HF_OK : HF_BUSY;
}

static hf_status file_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                              struct hfi_grant *grant, hf_error *err)
{
    struct file_store *store = memory;
    struct file_lock *lock = lock_memory;
    bool again = true;
    for (int tries = 0; again && tries < 16; tries++) {
        hf_status status = prepare(store, lock, request, err);
        if (status != HF_OK)
            return status;
        if (lock->state == FILE_HELD) {
            grant->token = lock->token;
            return HF_OK;
        }
        if (lock->state == FILE_GIVEN)
            return enter(store, lock, request, grant, err);
        if (lock->state != FILE_OPEN)
            return busy(lock, request, grant, err);
        status = take_free(store, lock, request, &again, err);
        if (status == HF_OK)
            return enter(store, lock, request, grant, err);
        if (status != HF_BUSY)
            return status;
    }
    if (!again)
        return busy(lock, request, grant, err);
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

static bool take_as_first(struct file_store *store, struct file_lock *lock)
{
    if (!hfi_file_lock(lock->fd, store->id))
        return false;
    lock->state = FILE_GIVEN;
    return true;
}

static hf_status wait_as_first(struct file_store *store, struct file_lock *lock, const struct hfi_request *request)
{
    hfi_file_queue_hush(&lock->queue); /* before the lock is tried, so that no later knock is missed */
    if (take_as_first(store, lock))
        return HF_OK;
    const uint64_t holder = hfi_file_holder(lock->fd);
    if (holder != lock->watched || lock->watch < 0) {
        hfi_fd_close(lock->watch);
        lock->watched = holder;
        lock->watch = holder > HFI_FILE_IN_TRANSIT ? hfi_lifeline_watch(store->directory.fd, holder) : -1;
        const struct hfi_message message = { .kind = FILE_SAYS_DOOR,
                                             .inode = lock->inode,
                                             .number = lock->queue.number };
        if (lock->watch >= 0)
            hfi_lifeline_tell(store->directory.fd, holder, &message, ""); /* it knocks anyway, but faster */
    }
    if (lock->watch < 0)
        return sleep_soon(store, lock, request) ? HF_OK : HF_TIMEOUT;
    lock->soon_ns = 0;
    struct pollfd fds[2] = { { .fd = lock->queue.knocks, .events = POLLIN }, { .fd = lock->watch } };
    const hfi_time backstop = store->env->now_ns() + BACKSTOP + (hfi_time)(store->env->random() % (uint64_t)BACKSTOP);
    const bool soon = backstop < request->deadline_ns;
    if (!hfi_waker_sleep(request->waker, fds, 2, soon ? backstop : request->deadline_ns))
        return soon ? HF_OK : HF_TIMEOUT;
    if (fds[0].revents)
        take_as_first(store, lock); /* as a rule the lock is free now, and nothing else needs to be done first */
    if (fds[1].revents) {
        hfi_fd_close(lock->watch);
        lock->watch = -1;
    }
    return HF_OK;
}

/* The lock arrived by the queue; the old holder's descriptor becomes ours. */
static hf_status receive_lock(struct file_store *store, struct file_lock *lock, int lock_fd, hf_error *err)
{
    struct stat stat;
    hfi_fd_close(lock->fd); /* and with it our presence among the waiters */
    lock->fd = lock_fd;
    /* The sender may be another user's process: believe the kernel, not the message. */
    if (fstat(lock_fd, &stat) == 0 && stat.st_ino == lock->inode && stat.st_dev == lock->device &&
        hfi_file_lock(lock_fd, store->id)) {
        lock->state = FILE_GIVEN;
        return HF_OK;
    }
    close_all(lock);
    return hfi_fail(err, HF_INTERNAL, 0, "a lock that was handed over turned out not to be one");
}

static hf_status wait_in_queue(struct file_store *store, struct file_lock *lock, const struct hfi_request *request,
                               hf_error *err)
{
    struct pollfd place = { .fd = lock->place, .events = POLLIN };
    int lock_fd;
    if (!hfi_waker_sleep(request->waker, &place, 1, request->deadline_ns))
        return HF_TIMEOUT;
    if (!place.revents)
        return HF_OK;
    if (hfi_file_queue_take(lock->place, &lock->queue, &lock_fd)) {
        hfi_fd_close(lock->place);
        lock->place = -1;
        lock->state = FILE_FIRST;
        if (lock_fd < 0)
            hfi_file_hide_waiting(lock->fd);
        return lock_fd >= 0 ? receive_lock(store, lock, lock_fd, err) : HF_OK;
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
    lock->place = hfi_file_queue_join(&store->directory, lock->fd);
    int failure = lock->place < 0 ? errno : 0;
    bool first = false;
    if (failure == ENOENT) {
        first = hfi_file_queue_found(&lock->queue, &store->directory, lock->fd, store->env->random());
        failure = first ? 0 : errno;
    }
    if (failure == EAGAIN) /* a full queue, or one that is just being set up */
        return sleep_soon(store, lock, request) ? HF_OK : HF_TIMEOUT;
    if (failure)
        return hfi_fail_errno(err, failure, "line up in", store->directory.path);
    lock->soon_ns = 0;
    lock->state = first ? FILE_FIRST : FILE_IN_QUEUE;
    if (!first)
        hfi_file_show_waiting(lock->fd, store->env->random());
    return HF_OK;
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

/* The first waiter gives up: the next one becomes the first. */
static void leave_as_first(struct file_store *store, struct file_lock *lock)
{
    if (!hfi_file_queue_pass(&lock->queue, -1))
        hfi_file_queue_dissolve(&lock->queue, &store->directory, lock->fd);
    close_all(lock);
}

/* Gives up a place in the queue. What was sent to it in the meantime is passed on. */
static void leave_queue(struct file_store *store, struct file_lock *lock, const char *name)
{
    int lock_fd;
    shutdown(lock->place, SHUT_RD); /* from here on nothing can be sent to us any more */
    if (!hfi_file_queue_take(lock->place, &lock->queue, &lock_fd)) {
        close_all(lock);
    } else if (lock_fd >= 0) {
        hfi_fd_close(lock->fd);
        lock->fd = lock_fd;
        let_go(store, lock, name);
    } else {
        leave_as_first(store, lock);
    }
}

/* Records that the work is done, while the lock is ours. */
static hf_status record_done(struct file_store *store, const struct file_lock *lock, const struct hfi_request *request,
                             hf_error *err)
{
    struct stat stat;
    struct file_done done = {
        .token = lock->token, .pid = store->pid, .done_ms = hfi_wall_ms(), .for_ms = (int64_t)request->done_ms
    };
    const hf_status status = hfi_file_examine(lock->fd, &stat, request->name, err);
    if (status != HF_OK)
        return status;
    if (stat.st_nlink == 0)
        return hfi_fail(err, HF_LOST, 0, "its lock file was removed");
    if (was_broken(store, lock)) /* perhaps because it could not be recorded before */
        return hfi_fail(err, HF_LOST, 0, "it was broken");
    memcpy(done.host, store->host, sizeof done.host);
    snprintf(done.note, sizeof done.note, "%s", request->note);
    snprintf(done.name, sizeof done.name, "%s", request->name);
    return hfi_file_write_done(lock->fd, &done, err);
}

void hfi_file_let_go_of_all(struct file_store *store)
{
    while (store->held) {
        struct file_lock *lock = store->held;
        store->held = lock->next;
        let_go(store, lock, "");
    }
}

/* The core asks again after these: nobody may do the work before it is recorded. */
static bool is_passing(hf_status status)
{
    return status == HF_UNAVAILABLE || status == HF_NOMEM;
}

static hf_status file_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct file_store *store = memory;
    struct file_lock *lock = lock_memory;
    hf_status status = HF_OK;
    if (lock->state == FILE_HELD && request->done_ms)
        status = record_done(store, lock, request, err);
    if (is_passing(status))
        return status;
    switch (lock->state) {
    case FILE_NEW:
        break;
    case FILE_OPEN:
        close_all(lock);
        break;
    case FILE_IN_QUEUE:
        leave_queue(store, lock, request->name);
        break;
    case FILE_FIRST:
        leave_as_first(store, lock);
        break;
    case FILE_HELD:
        forget(store, lock);
        let_go(store, lock, request->name);
        break;
    case FILE_GIVEN:
        let_go(store, lock, request->name);
        break;
    }
    return status;
}

const struct hfi_engine hfi_engine_file = {
    .abi = HFI_ENGINE_ABI,
    .name = "file",
    .schemes = "file:",
    .summary = "processes of one machine; the kernel keeps the lock on a file",
    .caps = HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_BOUND | HF_CAP_PROCESSES | HF_CAP_DURABLE_TOKEN | HF_CAP_INSPECT |
            HF_CAP_BREAK | HF_CAP_ONCE,
    .immediate = true,
    .store_size = sizeof(struct file_store),
    .lock_size = sizeof(struct file_lock),
    .open = hfi_file_store_open,
    .close = hfi_file_store_close,
    .attempt = file_attempt,
    .wait = file_wait,
    .release = file_release,
    .inspect = hfi_file_inspect,
    .inspect_one = hfi_file_inspect_one,
    .inspect_done = hfi_file_inspect_done,
    .forget_done = hfi_file_forget_done,
    .evict = hfi_file_evict,
    .examine = hfi_file_examine_store,
    .push_fd = hfi_file_push_fd,
    .take_push = hfi_file_take_push,
};
