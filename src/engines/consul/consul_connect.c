/* SPDX-License-Identifier: MIT
 *
 * consul_connect.c: socket and TLS, in steps that never wait.
 */
#include "consul.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
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

/* OpenSSL's own writes raise SIGPIPE when the server has gone, and a library has no business to ignore a signal. */
static int write_quietly(BIO *bio, const char *bytes, int length)
{
    int fd = -1;
    BIO_get_fd(bio, &fd);
    const int sent = (int)send(fd, bytes, (size_t)length, MSG_NOSIGNAL);
    BIO_clear_retry_flags(bio);
    if (sent <= 0 && BIO_sock_should_retry(sent))
        BIO_set_retry_write(bio);
    return sent;
}

static BIO_METHOD *quiet_socket(void)
{
    const BIO_METHOD *usual = BIO_s_socket();
    BIO_METHOD *quiet = BIO_meth_new(BIO_TYPE_SOCKET, "socket");
    if (quiet && BIO_meth_set_write(quiet, write_quietly) && BIO_meth_set_read(quiet, BIO_meth_get_read(usual)) &&
        BIO_meth_set_puts(quiet, BIO_meth_get_puts(usual)) && BIO_meth_set_ctrl(quiet, BIO_meth_get_ctrl(usual)) &&
        BIO_meth_set_create(quiet, BIO_meth_get_create(usual)) &&
        BIO_meth_set_destroy(quiet, BIO_meth_get_destroy(usual)))
        return quiet;
    BIO_meth_free(quiet);
    return NULL;
}

hf_status hfi_consul_tls_open(struct consul_store *store, hf_error *err)
{
    const struct consul_config *config = &store->config;
    SSL_CTX *context = store->tls = SSL_CTX_new(TLS_client_method());
    store->quiet = quiet_socket();
    if (!context || !store->quiet)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_AUTO_RETRY | SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_verify(context, config->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (config->ca_file && SSL_CTX_load_verify_locations(context, config->ca_file, NULL) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read certificates from %.160s", config->ca_file);
    if (!config->ca_file)
        SSL_CTX_set_default_verify_paths(context);
    if (config->cert_file && SSL_CTX_use_certificate_chain_file(context, config->cert_file) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read a certificate from %.160s", config->cert_file);
    const char *key = config->key_file ? config->key_file : config->cert_file;
    if (key && SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read a private key from %.160s", key);
    return HF_OK;
}

static hf_status start_tls(struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    const char *host = store->config.addresses[connection->host].host;
    BIO *socket = BIO_new(store->quiet);
    connection->tls = SSL_new(store->tls);
    if (!connection->tls || !socket) {
        BIO_free(socket);
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a TLS connection");
    }
    BIO_set_fd(socket, connection->fd, BIO_NOCLOSE);
    SSL_set_bio(connection->tls, socket, socket); /* which is the connection's from now on */
    /* A number is looked for in the certificate as such. */
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection->tls), host) == 1)
        return HF_OK;
    SSL_set_tlsext_host_name(connection->tls, host);
    return SSL_set1_host(connection->tls, host) == 1 ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
}

/* What OpenSSL wants before it can go on; false: it failed. */
static bool tls_wants(struct consul_connection *connection, int result)
{
    const int error = SSL_get_error(connection->tls, result);
    connection->wants = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

static hf_status step_shaking_hands(struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    if (!store->tls)
        return HF_OK;
    const char *host = store->config.addresses[connection->host].host;
    const hf_status status = connection->tls ? HF_OK : start_tls(store, connection, err);
    if (status != HF_OK)
        return status;
    ERR_clear_error();
    const int done = SSL_connect(connection->tls);
    if (done == 1)
        return HF_OK;
    if (tls_wants(connection, done))
        return HF_TIMEOUT;
    const long verified = SSL_get_verify_result(connection->tls);
    if (verified != X509_V_OK)
        return hfi_fail(err, HF_DENIED, (int)verified, "the certificate of %.100s is not to be trusted: %s", host,
                        X509_verify_cert_error_string(verified));
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return hfi_fail(err, HF_UNAVAILABLE, 0, "no TLS with %.100s: %s", host,
                    reason ? reason : "the connection was closed");
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
    if (SSL_get_error(connection->tls, result) == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = tls_wants(connection, result) ? EAGAIN : ECONNRESET;
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
