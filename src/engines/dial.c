/* SPDX-License-Identifier: MIT
 *
 * dial.c: see dial.h.
 */
#include "dial.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

hf_status hfi_dial_failed(const char *host, const char *port, int number, hf_error *err)
{
    char reason[80];
    return hfi_fail(err, number == EMFILE || number == ENFILE ? HF_NOMEM : HF_UNAVAILABLE, number,
                    "cannot connect to %.120s%s%s: %s", host, *port ? ":" : "", port,
                    number == EAGAIN ? "no answer in time" : strerror_r(number, reason, sizeof reason));
}

static hf_status find_unix(struct hfi_dial *dial, const char *path, hf_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s", path) >= (int)sizeof address.sun_path)
        return hfi_dial_failed(path, "", ENAMETOOLONG, err);
    memcpy(&dial->addresses[dial->count++], &address, sizeof address);
    return HF_OK;
}

hf_status hfi_dial_find(struct hfi_dial *dial, const char *host, const char *port, bool numeric, hf_error *err)
{
    struct addrinfo *found = NULL;
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0) };
    dial->count = dial->tried = 0;
    if (!*port)
        return find_unix(dial, host, err);
    errno = 0;
    const int failure = getaddrinfo(host, port, &hints, &found);
    if (failure == EAI_SYSTEM && (errno == EMFILE || errno == ENFILE))
        return hfi_fail(err, HF_NOMEM, errno, "no descriptor left to look up host %.120s", host);
    if (failure)
        return hfi_fail(err, HF_UNAVAILABLE, failure, "cannot find host %.120s: %s", host, gai_strerror(failure));
    for (const struct addrinfo *one = found; one && dial->count < HFI_DIAL_MOST; one = one->ai_next)
        memcpy(&dial->addresses[dial->count++], one->ai_addr, one->ai_addrlen);
    freeaddrinfo(found);
    return HF_OK;
}

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

/* The next of the addresses. 0, or what went wrong with the last one; `number` if there is none any more. */
static int try_next(struct hfi_dial *dial, int *fd, int number)
{
    while (*fd < 0 && dial->tried < dial->count)
        number = try_address(&dial->addresses[dial->tried++], dial->silence_ms, fd);
    return *fd >= 0 ? 0 : number;
}

hf_status hfi_dial_begin(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    dial->tried = 0;
    const int number = try_next(dial, fd, ECONNREFUSED);
    return number ? hfi_dial_failed(host, port, number, err) : HF_OK;
}

hf_status hfi_dial_step(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err)
{
    struct pollfd one = { .fd = *fd, .events = POLLOUT };
    int number = 0;
    socklen_t size = sizeof number;
    if (poll(&one, 1, 0) <= 0)
        return HF_TIMEOUT;
    if (getsockopt(*fd, SOL_SOCKET, SO_ERROR, &number, &size) != 0)
        number = errno;
    if (number == 0)
        return HF_OK;
    hfi_fd_close(*fd);
    *fd = -1;
    number = try_next(dial, fd, number);
    return number ? hfi_dial_failed(host, port, number, err) : HF_TIMEOUT;
}

void hfi_dial_reset(int fd)
{
    const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}
