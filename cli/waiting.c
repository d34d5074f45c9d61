/* SPDX-License-Identifier: MIT
 *
 * waiting.c: waiting for a lock in such a way that ^C ends the wait and leaves nothing in the store.
 */
#include "run.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct watcher {
    hf_client *client;
    const struct hfc_acquire *request;
    const struct hfc_signals *signals;
    int done_fd; /* readable once the wait is over */
    int deadly;
};

/* hf_cancel() ends the waits that there are; a signal may come just before the wait begins, so it is called until the
 * wait has ended. */
static void cancel_until_done(struct watcher *watcher)
{
    struct pollfd done = { .fd = watcher->done_fd, .events = POLLIN };

    do
        hf_cancel(watcher->client, watcher->request->name);
    while (poll(&done, 1, 20) <= 0);
}

static void *watch(void *arg)
{
    struct watcher *watcher = arg;
    struct pollfd fds[] = { { .fd = watcher->done_fd, .events = POLLIN },
                            { .fd = watcher->signals->fd, .events = POLLIN },
                            { .fd = watcher->request->leash, .events = POLLIN } };

    /* Each turn consumes at least one signal, or is the last. */
    for (;;) {
        if (poll(fds, 3, -1) < 0)
            continue;
        if (fds[0].revents != 0)
            return NULL;
        watcher->deadly = hfc_signals_next_deadly(watcher->signals);
        if (fds[2].revents != 0 && watcher->deadly == 0)
            watcher->deadly = SIGTERM;
        if (watcher->deadly != 0) {
            cancel_until_done(watcher);
            return NULL;
        }
    }
}

static hf_status wait_for_lock(hf_lock **out, struct watcher *watcher, hf_error *err)
{
    const struct hfc_acquire *request = watcher->request;
    pthread_t thread = 0;
    uint64_t one = 1;
    int trouble = 0;

    watcher->done_fd = eventfd(0, EFD_CLOEXEC);
    if (watcher->done_fd < 0)
        trouble = errno;
    else
        trouble = pthread_create(&thread, NULL, watch, watcher);
    if (trouble != 0) {
        err->status = HF_NOMEM;
        snprintf(err->message, sizeof err->message, "cannot watch for signals: %s", strerror(trouble));
        if (watcher->done_fd >= 0)
            close(watcher->done_fd);
        return HF_NOMEM;
    }
    hf_status status = hf_acquire(out, watcher->client, request->name, &request->options, err);
    /* Cannot fail: an eventfd takes far more than one. */
    if (write(watcher->done_fd, &one, sizeof one) < 0)
        hfc_say("cannot end the watch for signals: %s", strerror(errno));
    pthread_join(thread, NULL);
    close(watcher->done_fd);
    return status;
}

hf_status hfc_acquire(hf_lock **out, hf_client *client, const struct hfc_acquire *request,
                      const struct hfc_signals *signals, int *deadly, hf_error *err)
{
    struct watcher watcher = { client, request, signals, -1, 0 };

    /* The common case, a free lock, needs no thread. Trouble is worth a second look only to those who said they would
     * wait. */
    hf_status status = hf_try_acquire(out, client, request->name, &request->options, err);
    if (request->wait && (status == HF_BUSY || status == HF_UNAVAILABLE || status == HF_UNKNOWN))
        status = wait_for_lock(out, &watcher, err);
    /* A ^C that came before there is a child to get it is meant for us. */
    *deadly = watcher.deadly != 0 ? watcher.deadly : hfc_signals_next_deadly(signals);
    return status;
}
