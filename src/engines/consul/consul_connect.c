/* SPDX-License-Identifier: MIT
 *
 * consul_connect.c: socket and TLS, in steps that never wait.
 */
#include "consul.h"
#include "engines/tls.h"
#include <errno.h>
#include <openssl/err.h>
#include <string.h>

/* A network that swallows everything is noticed after seconds, not hours. */
#define SILENCE_MOST_MS 10000

/* --- the socket --- */

hf_status hfi_consul_connect(const struct consul_store *store, size_t host, struct consul_connection **out,
                             hf_error *err)
{
    const struct consul_address *address = &store->config.addresses[host];
    struct consul_connection *connection = hfi_alloc(sizeof *connection);
    *out = connection;
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->host = host;
    connection->fd = -1;
    connection->wants = POLLIN | POLLOUT;
    connection->dial.silence_ms = SILENCE_MOST_MS;
    connection->dial.alone = store->config.address_count == 1;
    const hf_status status = hfi_dial_begin(&connection->dial, &connection->fd, address->host, address->port, err);
    if (status != HF_OK) {
        hfi_consul_disconnect(connection);
        *out = NULL;
    }
    return status;
}

static hf_status step_connecting(const struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    const struct consul_address *address = &store->config.addresses[connection->host];
    const hf_status status = hfi_dial_step(&connection->dial, &connection->fd, address->host, address->port, err);
    if (status != HF_OK)
        return status;
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

static hf_status step_shaking_hands(const struct consul_store *store, struct consul_connection *connection,
                                    hf_error *err)
{
    const char *host = store->config.addresses[connection->host].host;
    return store->tls ? hfi_tls_shake_hands(&connection->tls, store->tls, connection->fd, host, &connection->wants, err)
                      : HF_OK;
}

/* --- all of it --- */

hf_status hfi_consul_connect_step(const struct consul_store *store, struct consul_connection *connection, hf_error *err)
{
    hf_status status = HF_OK;
    if (connection->phase == CONSUL_CONNECTING)
        status = step_connecting(store, connection, err);
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
    if (connection->phase == CONSUL_SENDING || connection->phase == CONSUL_RECEIVING)
        hfi_dial_reset(connection->fd); /* its request was not answered */
    hfi_dial_end(&connection->dial);
    SSL_free(connection->tls); /* without the farewell, which could block */
    hfi_fd_close(connection->fd);
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
