/* SPDX-License-Identifier: MIT
 *
 * sqlite_push.c: how a waiter hears that the lock was handed to it: SQLite tells nobody anything, so each client has a
 * FIFO in a folder beside the database, from which its keeper reads.
 *
 * What is heard by a waiter is never believed by itself: it asks the database. A holder is told of a break when that
 * was done.
 */
#include "sqlite.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_SUFFIX "-holdfast"
#define TIDY_ONE_IN 16
#define TRIES_MOST 4
#define SECOND_PATIENCE (20 * HFI_MS)

/* --- the folder --- */

/* Whoever may write to the database may use what is in the folder, and nobody else. */
static mode_t mode_of(const struct stat *database)
{
    return 0600 | (database->st_mode & S_IWGRP ? 0060 : 0) | (database->st_mode & S_IWOTH ? 0006 : 0);
}

static mode_t folder_mode(const struct stat *database)
{
    const mode_t mode = mode_of(database);
    /* FIFOs inherit the folder's group; where anybody may add one, nobody may remove another's. */
    return mode | (mode & 0222) >> 1 | S_ISGID | (mode & S_IWOTH ? S_ISVTX : 0);
}

struct folder_path {
    char text[PATH_MAX + sizeof FOLDER_SUFFIX];
};

static struct folder_path folder_path(const struct sqlite_store *store)
{
    struct folder_path path;
    snprintf(path.text, sizeof path.text, "%s" FOLDER_SUFFIX, store->config.path);
    return path;
}

/* -1 with errno. */
static int open_folder(const struct sqlite_store *store, int flags)
{
    const struct folder_path path = folder_path(store);
    return HFI_FD(open(path.text, flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

static int open_or_make_folder(const struct sqlite_store *store, const struct stat *database)
{
    const struct folder_path path = folder_path(store);
    int fd = open_folder(store, O_RDONLY);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    const bool made = mkdir(path.text, 0700) == 0;
    fd = open_folder(store, O_RDONLY);
    if (!made || fd < 0)
        return fd;
    /* Whether it can be given to others is up to the system. If not, they ask from time to time. */
    if (fchown(fd, geteuid() == 0 ? database->st_uid : (uid_t)-1, database->st_gid) == 0)
        fchmod(fd, folder_mode(database));
    return fd;
}

/* FIFOs that dead clients left behind. */
static void tidy(int folder)
{
    const int fd = HFI_FD(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *entry; list && (entry = readdir(list)) != NULL;)
        hfi_lifeline_tidy(folder, entry->d_name);
    hfi_fd_begin();
    hfi_fd_forget(fd);
    if (list)
        closedir(list);
    else if (fd >= 0)
        close(fd);
    hfi_fd_end(-1);
}

/* --- the lifeline --- */

hf_status hfi_sqlite_push_open(struct sqlite_store *store, hf_error *err)
{
    store->push.epoll = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    return store->push.epoll >= 0 ? HF_OK : hfi_fail_errno(err, errno, "make", "a client");
}

static void forget_lifeline(struct sqlite_push *push)
{
    hfi_lifeline_close(&push->lifeline, push->folder);
    hfi_fd_close(push->folder);
    push->folder = -1;
}

void hfi_sqlite_push_close(struct sqlite_store *store)
{
    const bool used = store->push.folder >= 0;
    forget_lifeline(&store->push);
    const struct folder_path path = folder_path(store);
    if (used)
        rmdir(path.text); /* if it is empty: nothing of ours stays but the tables */
    hfi_fd_close(store->push.epoll);
    pthread_mutex_destroy(&store->push.mutex);
}

/* With the mutex. False with errno: ENOENT if somebody has just removed the folder. */
static bool make_lifeline(struct sqlite_store *store)
{
    struct sqlite_push *push = &store->push;
    struct epoll_event event = { .events = EPOLLIN };
    struct stat database;
    if (stat(store->config.path, &database) != 0)
        return false;
    push->folder = open_or_make_folder(store, &database);
    if (push->folder < 0)
        return false;
    if (!hfi_lifeline_open(&push->lifeline, push->folder, mode_of(&database), store->env->client) ||
        epoll_ctl(push->epoll, EPOLL_CTL_ADD, push->lifeline.fd, &event) != 0) {
        const int failure = errno;
        forget_lifeline(push);
        errno = failure;
        return false;
    }
    /* Root's as the database: its owner must be able to write to it. */
    if (geteuid() == 0 && fchown(push->lifeline.fd, database.st_uid, (gid_t)-1) != 0)
        errno = 0; /* then it asks from time to time */
    if (store->env->random() % TIDY_ONE_IN == 0)
        tidy(push->folder);
    return true;
}

bool hfi_sqlite_push_ready(struct sqlite_store *store)
{
    struct sqlite_push *push = &store->push;
    struct stat found;
    pthread_mutex_lock(&push->mutex);
    if (push->lifeline.fd >= 0 && (fstat(push->lifeline.fd, &found) != 0 || found.st_nlink == 0))
        forget_lifeline(push);
    bool ready = push->lifeline.fd >= 0;
    for (unsigned tries = 0; !ready && tries < TRIES_MOST; tries++) {
        ready = make_lifeline(store);
        if (!ready && errno != ENOENT)
            break;
    }
    pthread_mutex_unlock(&push->mutex);
    return ready;
}

int hfi_sqlite_push_fd(void *memory)
{
    const struct sqlite_store *store = memory;
    return store->push.epoll;
}

/* --- hearing --- */

/* With the mutex. */
static void call(const struct sqlite_store *store, const struct hfi_message *message)
{
    struct sqlite_lock *lock = store->push.waiting;
    while (lock && lock->owner.serial != message->number)
        lock = lock->next;
    if (!lock) /* it has left: its release() has given the lock back, or is going to */
        return;
    const hfi_time claim_over = store->env->now_ns() + HFI_SQLITE_CLAIM + SECOND_PATIENCE;
    if (message->kind == LITE_SAYS_SERVED)
        lock->state = LITE_STATE_CALLED;
    else if (claim_over < lock->ask_again_ns)
        lock->ask_again_ns = claim_over;
    if (lock->waker)
        hfi_waker_wake(lock->waker);
}

/* The next message, with the mutex; false: none. */
static bool hear_one(struct sqlite_store *store, struct hfi_message *message, char text[HFI_LIFELINE_TEXT_MAX + 1])
{
    pthread_mutex_lock(&store->push.mutex);
    const bool heard = store->push.lifeline.fd >= 0 && hfi_lifeline_read(&store->push.lifeline, message, text);
    if (heard && message->kind != LITE_SAYS_BROKEN)
        call(store, message);
    pthread_mutex_unlock(&store->push.mutex);
    return heard;
}

void hfi_sqlite_take_push(void *memory)
{
    struct sqlite_store *store = memory;
    struct hfi_message message;
    char by[HFI_LIFELINE_TEXT_MAX + 1], why[HFI_WHY_MAX];
    while (hear_one(store, &message, by)) {
        if (message.kind != LITE_SAYS_BROKEN)
            continue;
        /* Who was given it, and took it anew in the meantime, loses it for nothing: that is safe, and rare. */
        hfi_say_broken(why, by);
        store->env->lost(store->env->core, (struct hfi_owner){ store->env->client, message.number }, why);
    }
}

/* --- waiting --- */

void hfi_sqlite_expect(struct sqlite_store *store, struct sqlite_lock *lock, struct hfi_owner owner)
{
    pthread_mutex_lock(&store->push.mutex);
    lock->owner = owner;
    if (!lock->waiting) {
        lock->state = LITE_STATE_NEW;
        lock->waiting = true;
        lock->next = store->push.waiting;
        store->push.waiting = lock;
    }
    pthread_mutex_unlock(&store->push.mutex);
}

void hfi_sqlite_expect_no_more(struct sqlite_store *store, struct sqlite_lock *lock, enum sqlite_state state)
{
    pthread_mutex_lock(&store->push.mutex);
    struct sqlite_lock **link = &store->push.waiting;
    while (lock->waiting && *link != lock)
        link = &(*link)->next;
    if (lock->waiting)
        *link = lock->next;
    lock->waiting = false;
    lock->state = state;
    pthread_mutex_unlock(&store->push.mutex);
}

/* `end` tells of the end of whoever has the lock: it may give it to us and die before it can say so, and nothing else
 * would tell us. False: it is dead already, which is worth asking, once. */
static bool watch_holder(const struct sqlite_store *store, struct sqlite_lock *lock, struct pollfd *end)
{
    if (lock->watched == 0 || lock->watched == store->env->client || lock->watched == lock->dead)
        return true;
    const int folder = open_folder(store, O_PATH);
    end->fd = folder >= 0 ? hfi_lifeline_watch(folder, lock->watched) : -1;
    const bool dead = end->fd < 0 && (errno == ENXIO || errno == ENOENT);
    hfi_fd_close(folder);
    if (dead)
        lock->dead = lock->watched;
    return !dead;
}

bool hfi_sqlite_await_call(struct sqlite_store *store, struct sqlite_lock *lock, struct hfi_waker *waker,
                           hfi_time deadline_ns)
{
    struct pollfd end = { .fd = -1 };
    bool in_time = true;
    if (!watch_holder(store, lock, &end))
        return true;
    pthread_mutex_lock(&store->push.mutex);
    lock->waker = waker;
    while (in_time && !end.revents && lock->state == LITE_STATE_NEW && !hfi_waker_called_back(waker)) {
        const hfi_time until = lock->ask_again_ns < deadline_ns ? lock->ask_again_ns : deadline_ns;
        pthread_mutex_unlock(&store->push.mutex);
        in_time = hfi_waker_sleep(waker, &end, 1, until);
        pthread_mutex_lock(&store->push.mutex);
    }
    if (end.revents)
        lock->dead = lock->watched;
    lock->waker = NULL;
    const bool news = in_time || lock->state == LITE_STATE_CALLED || lock->ask_again_ns < deadline_ns;
    pthread_mutex_unlock(&store->push.mutex);
    hfi_fd_close(end.fd);
    return news;
}

/* --- telling --- */

/* In the folder that is there now: it may have been removed, and made anew by others. */

bool hfi_sqlite_is_alive(const struct sqlite_store *store, uint64_t client)
{
    const int folder = open_folder(store, O_PATH);
    const int fd = folder >= 0 ? hfi_lifeline_watch(folder, client) : -1;
    /* Out of descriptors: whoever it is may live, and then asks by itself. */
    const bool alive = fd >= 0 || errno == EMFILE || errno == ENFILE;
    hfi_fd_close(fd);
    hfi_fd_close(folder);
    return alive;
}

void hfi_sqlite_tell(const struct sqlite_store *store, struct hfi_owner owner, enum sqlite_word word, const char *text)
{
    const struct hfi_message message = { .kind = word, .number = owner.serial };
    const int folder = owner.serial ? open_folder(store, O_PATH) : -1;
    if (folder >= 0)
        hfi_lifeline_tell(folder, owner.client, &message, text);
    hfi_fd_close(folder);
}
