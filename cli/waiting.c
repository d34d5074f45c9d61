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

#define FIRST_PAUSE_MS 25
#define LONGEST_PAUSE_MS 1000

/* --- for the store --- */

void hfc_patience_start(struct hfc_patience *patience, struct hfc_acquire *request, const struct hfc_signals *signals)
{
    *patience = (struct hfc_patience){ request, signals, hfc_now_ms() + request->options.wait_ms, 0 };
}

bool hfc_patience_again(void *arg, const hf_error *err)
{
    struct hfc_patience *patience = arg;
    const struct hfc_acquire *request = patience->request;
    struct pollfd fds[] = { { .fd = patience->signals->fd, .events = POLLIN },
                            { .fd = request->leash, .events = POLLIN } };
    const int64_t left = patience->until_ms - hfc_now_ms();
    int64_t pause = FIRST_PAUSE_MS << (patience->pauses < 8 ? patience->pauses : 8);

    if (!request->wait || request->options.wait_ms == 0 || left <= 0)
        return false;
    if (patience->pauses++ == 0 && !request->quiet && (request->verbose || isatty(STDERR_FILENO)))
        hfc_say("waiting for the store: %s", err->message);
    pause = pause > LONGEST_PAUSE_MS ? LONGEST_PAUSE_MS : pause;
    if (poll(fds, 2, (int)(pause < left ? pause : left)) <= 0)
        return true;
    int deadly = hfc_signals_next_deadly(patience->signals);
    if (fds[1].revents != 0 && deadly == 0)
        deadly = SIGTERM;
    if (deadly != 0)
        hfc_signals_die(deadly);
    return true;
}

void hfc_patience_end(const struct hfc_patience *patience)
{
    const int64_t left = patience->until_ms - hfc_now_ms();

    if (patience->pauses > 0)
        patience->request->options.wait_ms = left > 0 ? (uint32_t)left : 1; /* 0 would be for ever */
}

/* --- for the lock --- */

struct watcher {
    hf_client *client;
    const struct hfc_acquire *request;
    const struct hfc_signals *signals;
    struct hfc_progress progress;
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

    /* Each turn consumes at least one signal, shows who is waited for, or is the last. */
    for (;;) {
        const int ready = poll(fds, 3, hfc_progress_timeout(&watcher->progress));
        if (ready == 0)
            hfc_progress_show(&watcher->progress);
        if (ready <= 0)
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

    hfc_progress_start(&watcher->progress, watcher->client, request);
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
    hfc_progress_end(&watcher->progress);
    close(watcher->done_fd);
    return status;
}

hf_status hfc_acquire(hf_lock **out, hf_client *client, const struct hfc_acquire *request,
                      const struct hfc_signals *signals, int *deadly, hf_error *err)
{
    struct watcher watcher = { .client = client, .request = request, .signals = signals, .done_fd = -1 };

    /* The common case, a free lock, needs no thread. Trouble is worth a second look only to those who said they would
     * wait. */
    hf_status status = hf_try_acquire(out, client, request->name, &request->options, err);
    if (request->wait && (status == HF_BUSY || status == HF_UNAVAILABLE || status == HF_UNKNOWN))
        status = wait_for_lock(out, &watcher, err);
    /* A ^C that came before there is a child to get it is meant for us. */
    *deadly = watcher.deadly != 0 ? watcher.deadly : hfc_signals_next_deadly(signals);
    return status;
}
