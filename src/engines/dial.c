/* SPDX-License-Identifier: MIT
 *
 * dial.c: see dial.h.
 */
#include "dial.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/un.h>

/* An address that has not answered by then may be one that swallows everything. */
#define STAGGER_MS 250

hf_status hfi_dial_failed(const char *host, const char *port, int number, hf_error *err)
{
    char reason[80];
    return hfi_fail(err, number == EMFILE || number == ENFILE ? HF_NOMEM : HF_UNAVAILABLE, number,
                    "cannot connect to %.120s%s%s: %s", host, *port ? ":" : "", port,
                    number == EAGAIN ? "no answer in time" : strerror_r(number, reason, sizeof reason));
}

hf_status hfi_dial_late(const struct hfi_dial *dial, const char *host, const char *port, hf_error *err)
{
    if (dial->failure)
        return hfi_dial_failed(host, port, dial->failure, err);
    if (dial->gathered && dial->lookup.bell >= 0)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s: no answer in time", host);
    return hfi_dial_failed(host, port, EAGAIN, err);
}

/* --- several things to wait for --- */

static void set_timer(const struct hfi_dial *dial, long ms)
{
    const struct itimerspec once = { .it_value = { .tv_nsec = ms * 1000000 } };
    timerfd_settime(dial->timer, 0, &once, NULL); /* it is unreadable again, too */
}

static bool add(int epoll, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events };
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* 0, or what went wrong. The descriptor from now on is one for all that is under way. */
static int gather(struct hfi_dial *dial, int *fd)
{
    const int epoll = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    dial->timer = epoll >= 0 ? HFI_FD(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) : -1;
    bool good = dial->timer >= 0 && add(epoll, dial->timer, EPOLLIN);
    if (good && dial->lookup.bell >= 0)
        good = add(epoll, dial->lookup.bell, EPOLLIN);
    if (good && *fd >= 0)
        good = add(epoll, *fd, EPOLLOUT);
    if (!good) {
        const int number = errno;
        hfi_fd_close(dial->timer);
        hfi_fd_close(epoll);
        return number;
    }
    dial->gathered = true;
    *fd = epoll;
    return 0;
}

/* --- one address --- */

static socklen_t length_of(const struct sockaddr_storage *address)
{
    switch (address->ss_family) {
    case AF_INET:
        return sizeof(struct sockaddr_in);
    case AF_INET6:
        return sizeof(struct sockaddr_in6);
    default:
        return sizeof(struct sockaddr_un);
    }
}

static void set_options(int fd, int silence_ms)
{
    const struct {
        int level, option, value;
    } options[] = { { IPPROTO_TCP, TCP_NODELAY, 1 },  { SOL_SOCKET, SO_KEEPALIVE, 1 },
                    { IPPROTO_TCP, TCP_KEEPIDLE, 5 }, { IPPROTO_TCP, TCP_KEEPINTVL, 2 },
                    { IPPROTO_TCP, TCP_KEEPCNT, 3 },  { IPPROTO_TCP, TCP_USER_TIMEOUT, silence_ms } };
    const size_t count = silence_ms ? sizeof options / sizeof options[0] : 2;
    for (size_t i = 0; i < count; i++)
        setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof options[i].value);
}

/* 0, or what went wrong. */
static int try_address(const struct sockaddr_storage *address, int silence_ms, int *fd)
{
    *fd = HFI_FD(socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (*fd < 0)
        return errno;
    if (address->ss_family != AF_UNIX)
        set_options(*fd, silence_ms);
    if (connect(*fd, (const struct sockaddr *)address, length_of(address)) == 0 || errno == EINPROGRESS ||
        errno == EINTR)
        return 0;
    const int number = errno;
    hfi_fd_close(*fd);
    *fd = -1;
    return number;
}

/* --- all of them --- */

/* The next of the addresses that can be tried. 0, or what went wrong with the last one; `number` if there is none. */
static int try_next(struct hfi_dial *dial, int *fd, int number)
{
    while (dial->tried < dial->lookup.found.count) {
        int *next = &dial->sockets[dial->tried];
        number = try_address(&dial->lookup.found.list[dial->tried++], dial->silence_ms, next);
        if (number)
            continue;
        if (!dial->gathered) {
            *fd = *next;
            return 0;
        }
        set_timer(dial, dial->tried < dial->lookup.found.count ? STAGGER_MS : 0);
        return add(*fd, *next, EPOLLOUT) ? 0 : errno;
    }
    if (dial->gathered)
        set_timer(dial, 0); /* there is nothing left that it could call for */
    return number;
}

/* What the resolver does not know of. */
static void set_ports(struct hfi_addresses *addresses, const char *port)
{
    const in_port_t number = htons((uint16_t)strtoul(port, NULL, 10));
    for (size_t i = 0; i < addresses->count; i++) {
        struct sockaddr_storage *one = &addresses->list[i];
        if (one->ss_family == AF_INET)
            ((struct sockaddr_in *)one)->sin_port = number;
        else
            ((struct sockaddr_in6 *)one)->sin6_port = number;
    }
}

/* HF_OK: the resolver is waited for; what is known is tried again then, or after a moment. */
static hf_status await_lookup(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    int number = 0;
    if (!dial->gathered)
        number = gather(dial, fd);
    else if (!add(*fd, dial->lookup.bell, EPOLLIN))
        number = errno;
    if (number) {
        hfi_lookup_end(&dial->lookup);
        return hfi_dial_failed(host, port, number, err);
    }
    set_timer(dial, HFI_RESOLVE_PATIENCE_MS);
    return HF_OK;
}

static void drop_sockets(struct hfi_dial *dial)
{
    while (dial->tried > 0) {
        int *last = &dial->sockets[--dial->tried];
        hfi_fd_close(*last);
        *last = -1;
    }
}

/* All addresses have failed. HF_OK: there may be others. */
static hf_status fail(struct hfi_dial *dial, int *fd, const char *host, const char *port, int number, hf_error *err)
{
    if (!dial->alone || !dial->lookup.found.pending)
        return hfi_dial_failed(host, port, number, err);
    dial->failure = number;
    drop_sockets(dial);
    if (hfi_lookup_begin(&dial->lookup, host, true, NULL) != HF_TIMEOUT) /* nobody is there to look it up any more */
        return hfi_dial_failed(host, port, number, err);
    return await_lookup(dial, fd, host, port, err);
}

static hf_status begin_connecting(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    if (*port)
        set_ports(&dial->lookup.found, port);
    dial->failure = 0;
    int number = try_next(dial, fd, ECONNREFUSED);
    if (!number && !dial->gathered && dial->tried < dial->lookup.found.count && !(number = gather(dial, fd)))
        set_timer(dial, STAGGER_MS);
    return number ? fail(dial, fd, host, port, number, err) : HF_OK;
}

static hf_status find_unix(struct hfi_dial *dial, const char *path, hf_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s", path) >= (int)sizeof address.sun_path)
        return hfi_dial_failed(path, "", ENAMETOOLONG, err);
    memcpy(&dial->lookup.found.list[0], &address, sizeof address);
    dial->lookup.found.count = 1;
    return HF_OK;
}

hf_status hfi_dial_begin(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    *dial = (struct hfi_dial){
        .silence_ms = dial->silence_ms, .alone = dial->alone, .lookup = { .bell = -1 }, .timer = -1
    };
    for (size_t i = 0; i < HFI_ADDRESSES_MOST; i++)
        dial->sockets[i] = -1;
    const hf_status status = *port ? hfi_lookup_begin(&dial->lookup, host, false, err) : find_unix(dial, host, err);
    if (status == HF_OK)
        return begin_connecting(dial, fd, host, port, err);
    return status == HF_TIMEOUT ? await_lookup(dial, fd, host, port, err) : status;
}

/* The socket that is connected, or -1. Those that failed are closed; *number: what went wrong with one of them. */
static int take_connected(struct hfi_dial *dial, int *number)
{
    for (size_t i = 0; i < dial->tried; i++) {
        struct pollfd one = { .fd = dial->sockets[i], .events = POLLOUT };
        int error = 0;
        socklen_t size = sizeof error;
        if (one.fd < 0 || poll(&one, 1, 0) <= 0)
            continue;
        if (getsockopt(one.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
        if (error == 0)
            return (int)i;
        *number = error;
        hfi_fd_close(one.fd);
        dial->sockets[i] = -1;
    }
    return -1;
}

static bool is_waiting(const struct hfi_dial *dial)
{
    for (size_t i = 0; i < dial->tried; i++) {
        if (dial->sockets[i] >= 0)
            return true;
    }
    return false;
}

static void win(struct hfi_dial *dial, int *fd, size_t winner)
{
    const int connected = dial->sockets[winner];
    dial->sockets[winner] = -1;
    if (dial->gathered) {
        hfi_dial_end(dial);
        hfi_fd_close(*fd);
    }
    *fd = connected;
}

static bool is_time(const struct hfi_dial *dial)
{
    struct pollfd timer = { .fd = dial->timer, .events = POLLIN };
    return dial->gathered && poll(&timer, 1, 0) > 0;
}

static hf_status step_connecting(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    int number = 0;
    const int winner = take_connected(dial, &number);
    if (winner >= 0) {
        win(dial, fd, (size_t)winner);
        return HF_OK;
    }
    if (!dial->gathered && !is_waiting(dial))
        *fd = -1;
    const bool more = dial->tried < dial->lookup.found.count;
    int trouble = 0;
    if (more && is_waiting(dial) && !dial->gathered) {
        trouble = gather(dial, fd);
        if (!trouble)
            set_timer(dial, STAGGER_MS);
    } else if (more && (number || is_time(dial))) {
        trouble = try_next(dial, fd, number);
    }
    if (is_waiting(dial))
        return HF_TIMEOUT;
    const hf_status status = fail(dial, fd, host, port, trouble ? trouble : number, err);
    return status == HF_OK ? HF_TIMEOUT : status;
}

hf_status hfi_dial_step(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    if (dial->gathered && dial->lookup.bell >= 0) {
        hf_status status = hfi_lookup_step(&dial->lookup, host, false, err);
        if (status == HF_TIMEOUT && is_time(dial))
            set_timer(dial, 0);
        if (status == HF_OK)
            status = begin_connecting(dial, fd, host, port, err);
        if (status != HF_OK)
            return status;
        if (dial->lookup.bell >= 0)
            return HF_TIMEOUT;
    }
    return step_connecting(dial, fd, host, port, err);
}

void hfi_dial_end(struct hfi_dial *dial)
{
    if (!dial->gathered)
        return;
    drop_sockets(dial);
    hfi_fd_close(dial->timer);
    hfi_lookup_end(&dial->lookup);
    dial->gathered = false;
}

void hfi_dial_reset(int fd)
{
    const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}
