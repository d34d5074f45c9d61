/* SPDX-License-Identifier: MIT
 *
 * waker.c: a place where one thread sleeps until somebody wakes it: the one way in which this library waits.
 */
#include "waker.h"
#include "core.h"
#include <assert.h>
#include <errno.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MOST_FDS 8

struct hfi_waker *hfi_waker_new(void)
{
    struct hfi_waker *waker = hfi_alloc(sizeof *waker);
    if (!waker)
        return NULL;
    waker->fd = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (waker->fd < 0) {
        hfi_free(waker);
        return NULL;
    }
    return waker;
}

void hfi_waker_free(struct hfi_waker *waker)
{
    if (waker)
        hfi_fd_close(waker->fd);
    hfi_free(waker);
}

void hfi_waker_wake(struct hfi_waker *waker)
{
    if (waker->woken)
        waker->woken(waker);
    else
        hfi_bell_ring(waker->fd);
}

hf_status hfi_waker_park(struct hfi_waker *waker, hfi_time until_ns)
{
    waker->until_ns = until_ns;
    return HFI_PARKED;
}

void hfi_waker_call_back(struct hfi_waker *waker)
{
    atomic_store(&waker->called_back, true);
    hfi_bell_ring(waker->fd);
}

bool hfi_waker_called_back(const struct hfi_waker *waker)
{
    return atomic_load(&waker->called_back);
}

void hfi_waker_reset(struct hfi_waker *waker)
{
    atomic_store(&waker->called_back, false);
    hfi_bell_hush(waker->fd);
}

bool hfi_waker_sleep(struct hfi_waker *waker, struct pollfd *fds, size_t count, hfi_time deadline_ns)
{
    assert(count <= MOST_FDS);
    struct pollfd all[1 + MOST_FDS] = { { .fd = waker->fd, .events = POLLIN } };
    for (size_t i = 0; i < count; i++)
        all[1 + i] = fds[i];
    int ready;
    do {
        const hfi_time left = deadline_ns == HFI_NEVER ? 0 : deadline_ns - hfi_now_ns();
        const struct timespec time = { .tv_sec = left > 0 ? left / HFI_SECOND : 0,
                                       .tv_nsec = left > 0 ? left % HFI_SECOND : 0 };
        ready = ppoll(all, 1 + count, deadline_ns == HFI_NEVER ? NULL : &time, NULL);
    } while (ready < 0 && errno == EINTR);
    if (all[0].revents)
        hfi_bell_hush(waker->fd);
    for (size_t i = 0; i < count; i++)
        fds[i].revents = all[1 + i].revents;
    return ready > 0;
}

void hfi_bell_ring(int fd)
{
    const uint64_t one = 1;
    ssize_t done;
    do
        done = write(fd, &one, sizeof one);
    while (done < 0 && errno == EINTR);
}

void hfi_bell_hush(int fd)
{
    uint64_t count;
    ssize_t done;
    do
        done = read(fd, &count, sizeof count);
    while (done < 0 && errno == EINTR);
}
