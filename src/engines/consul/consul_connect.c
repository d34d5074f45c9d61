/* SPDX-License-Identifier: MIT
 *
 * consul_connect.c: socket and TLS, in steps that never wait.
 */
#include "consul.h"
#include "engines/tls.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* A network that swallows everything is noticed after seconds, not hours. */
#define SILENCE_MOST_MS 10000

static hf_status unreachable(const struct consul_address *address, int number, hf_error *err)
{
    char reason[80];
    return hfi_fail(err, number == EMFILE || number == ENFILE ? HF_NOMEM : HF_UNAVAILABLE, number,
                    "cannot connect to %.120s:%s: %s", address->host, address->port,
                    strerror_r(number, reason, sizeof reason));
}

/* --- the socket --- */

static void watch_the_network(int fd)
{
    const struct {
        int level, option, value;
    } options[] = { { IPPROTO_TCP, TCP_NODELAY, 1 },  { SOL_SOCKET, SO_KEEPALIVE, 1 },
                    { IPPROTO_TCP, TCP_KEEPIDLE, 5 }, { IPPROTO_TCP, TCP_KEEPINTVL, 2 },
                    { IPPROTO_TCP, TCP_KEEPCNT, 3 },  { IPPROTO_TCP, TCP_USER_TIMEOUT, SILENCE_MOST_MS } };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof options[i].value);
}

/* Starts to connect. 0, or what went wrong. */
static int try_address(struct consul_connection *connection, const struct sockaddr *address, socklen_t length)
{
    connection->fd = HFI_FD(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connection->fd < 0)
        return errno;
    watch_the_network(connection->fd);
    if (connect(connection->fd, address, length) == 0 || errno == EINPROGRESS || errno == EINTR)
        return 0;
    const int number = errno;
    hfi_fd_close(connection->fd);
    connection->fd = -1;
    return number;
}

static int try_next(struct consul_connection *connection)
{
    int number = ECONNREFUSED;
    while (connection->fd < 0 && connection->untried) {
        const struct addrinfo *one = connection->untried;
        connection->untried = one->ai_next;
        number = try_address(connection, one->ai_addr, one->ai_addrlen);
    }
    return connection->fd >= 0 ? 0 : number;
}

static hf_status look_up(struct consul_connection *connection, const struct consul_address *address, hf_error *err)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    const int failure = getaddrinfo(address->host, address->port, &hints, &connection->addresses);
    if (failure)
        return hfi_fail(err, HF_UNAVAILABLE, failure, "cannot find host %.120s: %s", address->host,
                        gai_strerror(failure));
    connection->untried = connection->addresses;
    const int number = try_next(connection);
    return number ? unreachable(address, number, err) : HF_OK;
}

hf_status hfi_consul_connect(struct consul_store *store, size_t host, bool at_once, struct consul_connection **out,
                             hf_error *err)
{
    const struct consul_address *address = &store->config.addresses[host];
    struct consul_connection *connection = hfi_alloc(sizeof *connection);
    *out = connection;
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->host = host;
    connection->fd = -1;
    connection->wants = POLLOUT;
    hf_status status = HF_OK;
    if (!at_once) {
        status = look_up(connection, address, err);
    } else if (address->reached_length == 0) { /* the caller has the mutex */
        status = hfi_fail(err, HF_UNAVAILABLE, 0, "nobody has connected to %.120s yet", address->host);
    } else {
        const int number = try_address(connection, (const struct sockaddr *)&address->reached, address->reached_length);
        status = number ? unreachable(address, number, err) : HF_OK;
    }
    if (status != HF_OK) {
        hfi_consul_disconnect(connection);
        *out = NULL;
    }
    return status;
}

static hf_status step_connecting(struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    const struct consul_address *address = &store->config.addresses[connection->host];
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
    connection->phase = CONSUL_SHAKING_HANDS;
    return HF_OK;
}

/* --- TLS --- */

hf_status hfi_consul_tls_open(struct consul_store *store, hf_error *err)
{
    const struct consul_config *config = &store->config;
    const struct hfi_tls_files files = { .verify = config->verify,
                                         .ca_file = config->ca_file,
                                         .cert_file = config->cert_file,
                                         .key_file = config->key_file };
    return hfi_tls_open(&store->tls, &files, err);
}

static hf_status step_shaking_hands(struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    const char *host = store->config.addresses[connection->host].host;
    return store->tls ? hfi_tls_shake_hands(&connection->tls, store->tls, connection->fd, host, &connection->wants, err)
                      : HF_OK;
}

/* --- all of it --- */

/* Whoever has the mutex already was `at_once`, and has no list of addresses. */
static void remember_address(struct consul_store *store, struct consul_connection *connection)
{
    struct consul_address *address = &store->config.addresses[connection->host];
    if (!connection->addresses)
        return;
    pthread_mutex_lock(&store->mutex);
    address->reached_length = sizeof address->reached;
    if (getpeername(connection->fd, (struct sockaddr *)&address->reached, &address->reached_length) != 0)
        address->reached_length = 0;
    pthread_mutex_unlock(&store->mutex);
    freeaddrinfo(connection->addresses);
    connection->addresses = connection->untried = NULL;
}

hf_status hfi_consul_connect_step(struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    hf_status status = HF_OK;
    if (connection->phase == CONSUL_CONNECTING) {
        status = step_connecting(store, connection, err);
        if (status == HF_OK)
            remember_address(store, connection);
    }
    if (status == HF_OK && connection->phase == CONSUL_SHAKING_HANDS) {
        status = step_shaking_hands(store, connection, err);
        if (status == HF_OK)
            connection->phase = CONSUL_SENDING;
    }
    return status;
}

void hfi_consul_forget_request(struct consul_connection *connection)
{
    if (connection->out)
        explicit_bzero(connection->out, connection->out_length);
    hfi_free(connection->out);
    connection->out = NULL;
}

void hfi_consul_disconnect(struct consul_connection *connection)
{
    if (!connection)
        return;
    SSL_free(connection->tls); /* without the farewell, which could block */
    hfi_fd_close(connection->fd);
    if (connection->addresses)
        freeaddrinfo(connection->addresses);
    hfi_consul_forget_request(connection);
    hfi_free(connection->in);
    hfi_free(connection);
}

static ssize_t tls_result(struct consul_connection *connection, int result)
{
    if (result > 0)
        return result;
    const int error = SSL_get_error(connection->tls, result);
    if (error == SSL_ERROR_ZERO_RETURN)
        return 0;
    connection->wants = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
    return -1;
}

ssize_t hfi_consul_write(struct consul_connection *connection, const char *bytes, size_t length)
{
    if (connection->tls) {
        ERR_clear_error();
        return tls_result(connection, SSL_write(connection->tls, bytes, (int)length));
    }
    connection->wants = POLLOUT;
    return send(connection->fd, bytes, length, MSG_NOSIGNAL);
}

ssize_t hfi_consul_read(struct consul_connection *connection, char *bytes, size_t room)
{
    if (connection->tls) {
        ERR_clear_error();
        return tls_result(connection, SSL_read(connection->tls, bytes, (int)room));
    }
    connection->wants = POLLIN;
    return recv(connection->fd, bytes, room, 0);
}
