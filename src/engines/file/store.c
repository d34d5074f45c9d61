/* SPDX-License-Identifier: MIT
 *
 * store.c: opening and closing the file engine, and what it hears: requests to break a lock.
 */
#include "store.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIDY_ONE_IN 16

/* "///dir", "//localhost/dir", "/dir" or "" (the default, *path NULL), with %XX. */
static hf_status parse_path(char *out, const char **path, const char *rest, hf_error *err)
{
    *path = NULL;
    if (strncmp(rest, "//localhost/", 12) == 0)
        rest += 11;
    else if (strncmp(rest, "///", 3) == 0)
        rest += 2;
    if (!*rest)
        return HF_OK;
    if (*rest != '/' || rest[1] == '/')
        return hfi_fail(err, HF_INVALID, 0, "a file URL is file: or file:///ABSOLUTE/DIRECTORY");
    size_t used = 0;
    for (; *rest; rest++) {
        char c = *rest;
        if (c == '?' || c == '#')
            return hfi_fail(err, HF_INVALID, 0, "a file URL takes no options; write %%%02X for '%c'", (unsigned)c, c);
        if (c == '%') {
            if (!isxdigit((unsigned char)rest[1]) || !isxdigit((unsigned char)rest[2]))
                return hfi_fail(err, HF_INVALID, 0, "%% must be followed by two hexadecimal digits in a URL");
            const char digits[3] = { rest[1], rest[2], 0 };
            c = (char)strtol(digits, NULL, 16);
            rest += 2;
        }
        if (!c || used + 1 >= PATH_MAX)
            return hfi_fail(err, HF_INVALID, 0, "the URL's directory is too long or contains %%00");
        out[used++] = c;
    }
    out[used] = 0;
    *path = out;
    return HF_OK;
}

static char *url_of(const char *path)
{
    const size_t room = 3 * strlen(path) + sizeof "file://";
    char *url = hfi_alloc(room);
    if (!url)
        return NULL;
    char *to = url + snprintf(url, room, "file://");
    for (; *path; path++) {
        if (strchr("%?#", *path) || (unsigned char)*path <= ' ')
            to += snprintf(to, 4, "%%%02X", (unsigned char)*path);
        else
            *to++ = *path;
    }
    return url;
}

hf_status hfi_file_store_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                              struct hfi_opened *opened, hf_error *err)
{
    struct file_store *store = memory;
    char buffer[PATH_MAX];
    const char *path;
    store->env = env;
    store->lifeline.fd = store->directory.fd = -1;
    pthread_mutex_init(&store->mutex, NULL);
    hf_status status = parse_path(buffer, &path, url->rest, err);
    if (status == HF_OK)
        status = hfi_file_directory_open(&store->directory, path, err);
    if (status != HF_OK)
        return status;
    /* Far above "in transit", and below the bytes that stand for the queue and the waiters. */
    store->id = (env->client & (((uint64_t)1 << 62) - 1)) | (uint64_t)1 << 32;
    store->pid = getpid();
    gethostname(store->host, sizeof store->host - 1);
    opened->shown = url_of(store->directory.path);
    return opened->shown ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

/* --- lock files that stay open --- */

int hfi_file_store_reopen(struct file_store *store, const char *name)
{
    int fd = -1;
    pthread_mutex_lock(&store->mutex);
    for (size_t i = 0; i < store->idle_count && fd < 0; i++) {
        if (strcmp(store->idle[i].name, name) == 0) {
            fd = store->idle[i].fd;
            store->idle[i] = store->idle[--store->idle_count];
        }
    }
    pthread_mutex_unlock(&store->mutex);
    return fd;
}

void hfi_file_store_keep_open(struct file_store *store, int fd, const char *name)
{
    int oldest = -1;
    pthread_mutex_lock(&store->mutex);
    struct file_idle *place = &store->idle[store->idle_count];
    if (store->idle_count == HFI_FILE_IDLE_MOST) {
        place = &store->idle[0];
        for (size_t i = 1; i < HFI_FILE_IDLE_MOST; i++) {
            if (store->idle[i].used < place->used)
                place = &store->idle[i];
        }
        oldest = place->fd;
    } else {
        store->idle_count++;
    }
    place->fd = fd;
    place->used = ++store->idle_used;
    memcpy(place->name, name, strlen(name) + 1);
    pthread_mutex_unlock(&store->mutex);
    hfi_fd_close(oldest);
}

void hfi_file_store_close_idle(struct file_store *store)
{
    pthread_mutex_lock(&store->mutex);
    while (store->idle_count > 0)
        hfi_fd_close(store->idle[--store->idle_count].fd);
    pthread_mutex_unlock(&store->mutex);
}

void hfi_file_store_close(void *memory)
{
    struct file_store *store = memory;
    hfi_file_let_go_of_all(store);
    hfi_file_store_close_idle(store);
    hfi_lifeline_close(&store->lifeline, store->directory.fd);
    hfi_file_directory_close(&store->directory);
    pthread_mutex_destroy(&store->mutex);
}

hf_status hfi_file_store_ready(struct file_store *store, hf_error *err)
{
    hf_status status = HF_OK;
    pthread_mutex_lock(&store->mutex);
    if (store->lifeline.fd < 0) {
        if (!hfi_lifeline_open(&store->lifeline, store->directory.fd, store->directory.mode, store->id))
            status = hfi_fail_errno(err, errno, "make a FIFO in", store->directory.path);
        /* Now and then, lest those who are killed every night fill the directory. */
        if (status == HF_OK && store->id % TIDY_ONE_IN == 0)
            hfi_file_tidy(&store->directory);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

int hfi_file_push_fd(void *memory)
{
    struct file_store *store = memory;
    pthread_mutex_lock(&store->mutex);
    const int fd = store->lifeline.fd;
    pthread_mutex_unlock(&store->mutex);
    return fd;
}

static void hear_break(struct file_store *store, const struct hfi_message *message, const char *by)
{
    struct hfi_owner owner = { 0 };
    char why[HFI_WHY_MAX];
    hfi_say_broken(why, by);
    pthread_mutex_lock(&store->mutex);
    for (struct file_lock *lock = store->held; lock; lock = lock->next) {
        if (lock->inode == message->inode && lock->token == message->number) {
            owner = lock->owner;
            lock->broken = true;
        }
    }
    pthread_mutex_unlock(&store->mutex);
    if (owner.serial)
        store->env->lost(store->env->core, owner, why);
}

/* Somebody waits: opens the door now, so that the release only has to knock. */
static void hear_door(struct file_store *store, const struct hfi_message *message)
{
    struct file_door door = { hfi_file_queue_door(&store->directory, message->number), message->number };
    pthread_mutex_lock(&store->mutex);
    for (struct file_lock *lock = store->held; lock; lock = lock->next) {
        if (lock->inode == message->inode) {
            const struct file_door other = lock->door;
            lock->door = door;
            door = other;
            break;
        }
    }
    pthread_mutex_unlock(&store->mutex);
    hfi_fd_close(door.fd);
}

void hfi_file_take_push(void *memory)
{
    struct file_store *store = memory;
    struct hfi_message message;
    char text[HFI_LIFELINE_TEXT_MAX + 1];
    while (hfi_lifeline_read(&store->lifeline, &message, text)) {
        if (message.kind == FILE_SAYS_BREAK)
            hear_break(store, &message, text);
        else
            hear_door(store, &message);
    }
}
