/* SPDX-License-Identifier: MIT
 *
 * etcd_connect.c: getting in: the socket and TLS, in steps that never wait, so that the keeper can take them too.
 */
#include "engines/tls.h"
#include "etcd.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

static hf_status unreachable(const struct etcd_address *address, int number, hf_error *err)
{
    char reason[80];
    return hfi_fail(err, number == EMFILE || number == ENFILE ? HF_NOMEM : HF_UNAVAILABLE, number,
                    "cannot connect to %.120s:%s: %s", address->host, address->port,
                    strerror_r(number, reason, sizeof reason));
}

/* --- the socket --- */

hf_status hfi_etcd_resolve(struct sockaddr_storage out[HFI_ETCD_ADDRESSES_MOST], size_t *count,
                           const struct etcd_address *address, bool numeric, hf_error *err)
{
    struct addrinfo *found = NULL;
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0) };
    *count = 0;
    errno = 0;
    const int failure = getaddrinfo(address->host, address->port, &hints, &found);
    if (failure == EAI_SYSTEM && (errno == EMFILE || errno == ENFILE))
        return hfi_fail(err, HF_NOMEM, errno, "no descriptor left to look up host %.120s", address->host);
    if (failure)
        return hfi_fail(err, HF_UNAVAILABLE, failure, "cannot find host %.120s: %s", address->host,
                        gai_strerror(failure));
    for (const struct addrinfo *one = found; one && *count < HFI_ETCD_ADDRESSES_MOST; one = one->ai_next)
        memcpy(&out[(*count)++], one->ai_addr, one->ai_addrlen);
    freeaddrinfo(found);
    return HF_OK;
}

/* Starts to connect. 0, or what went wrong. */
static int try_address(struct etcd_connection *connection, const struct sockaddr_storage *address)
{
    const socklen_t length = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    connection->fd = HFI_FD(socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connection->fd < 0)
        return errno;
    if (connect(connection->fd, (const struct sockaddr *)address, length) == 0 || errno == EINPROGRESS ||
        errno == EINTR)
        return 0;
    const int number = errno;
    hfi_fd_close(connection->fd);
    connection->fd = -1;
    return number;
}

/* The next of the addresses that the host has. 0, or what went wrong with the last one. */
static int try_next(struct etcd_connection *connection)
{
    int number = ECONNREFUSED;
    while (connection->fd < 0 && connection->tried < connection->address_count)
        number = try_address(connection, &connection->addresses[connection->tried++]);
    return connection->fd >= 0 ? 0 : number;
}

hf_status hfi_etcd_connect_begin(struct etcd_connection **out, const struct etcd_address *address,
                                 const struct sockaddr_storage *addresses, size_t count, hf_error *err)
{
    struct etcd_connection *connection = hfi_alloc(sizeof *connection);
    *out = NULL;
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->fd = -1;
    connection->wants = POLLOUT;
    connection->address_count = count;
    memcpy(connection->addresses, addresses, count * sizeof *addresses);
    hf_status status = HF_OK;
    const int number = try_next(connection);
    if (number)
        status = unreachable(address, number, err);
    else if (!hfi_etcd_session_new(connection))
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    if (status != HF_OK)
        hfi_etcd_disconnect(connection);
    else
        *out = connection;
    return status;
}

/* HF_OK: connected. */
static hf_status step_connecting(struct etcd_connection *connection, const struct etcd_address *address, hf_error *err)
{
    struct pollfd one = { .fd = connection->fd, .events = POLLOUT };
    int number = 0;
    socklen_t size = sizeof number;
    if (poll(&one, 1, 0) <= 0)
        return HF_TIMEOUT;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &number, &size) != 0)
        number = errno;
    if (number) {
        hfi_fd_close(connection->fd);
        connection->fd = -1;
        return try_next(connection) == 0 ? HF_TIMEOUT : unreachable(address, number, err);
    }
    const int yes = 1;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(connection->fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    connection->phase = ETCD_SHAKING_HANDS;
    return HF_OK;
}

/* --- TLS --- */

hf_status hfi_etcd_tls_new(SSL_CTX **out, const struct etcd_config *config, hf_error *err)
{
    static const unsigned char only_http2[] = "\x02h2";
    const struct hfi_tls_files files = { .verify = config->verify,
                                         .ca_file = config->ca_file,
                                         .cert_file = config->cert_file,
                                         .key_file = config->key_file };
    const hf_status status = hfi_tls_open(out, &files, err);
    if (status == HF_OK && SSL_CTX_set_alpn_protos(*out, only_http2, sizeof only_http2 - 1) != 0)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
    return status;
}

static hf_status step_shaking_hands(struct etcd_connection *connection, const struct etcd_address *address,
                                    SSL_CTX *tls, hf_error *err)
{
    return tls ? hfi_tls_shake_hands(&connection->tls, tls, connection->fd, address->host, &connection->wants, err)
               : HF_OK;
}

/* --- all of it --- */

hf_status hfi_etcd_connect_step(struct etcd_connection *connection, const struct etcd_address *address, SSL_CTX *tls,
                                hf_error *err)
{
    hf_status status = HF_OK;
    if (connection->phase == ETCD_CONNECTING)
        status = step_connecting(connection, address, err);
    if (status == HF_OK && connection->phase == ETCD_SHAKING_HANDS)
        status = step_shaking_hands(connection, address, tls, err);
    if (status == HF_OK) {
        connection->phase = ETCD_READY;
        connection->wants = POLLIN;
    }
    return status;
}

void hfi_etcd_disconnect(struct etcd_connection *connection)
{
    if (!connection)
        return;
    SSL_free(connection->tls); /* without the farewell, which could block */
    hfi_fd_close(connection->fd);
    nghttp2_session_del(connection->session);
    hfi_free(connection->out.data);
    hfi_free(connection);
}
