/* SPDX-License-Identifier: MIT
 *
 * etcd_connect.c: getting in: the socket and TLS, in steps that never wait, so that the keeper can take them too.
 */
#include "engines/tls.h"
#include "etcd.h"

/* --- the socket --- */

hf_status hfi_etcd_connect_begin(struct etcd_connection **out, const struct etcd_address *address, bool alone,
                                 hf_error *err)
{
    struct etcd_connection *connection = hfi_alloc(sizeof *connection);
    *out = NULL;
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->fd = -1;
    connection->wants = POLLIN | POLLOUT;
    connection->dial.alone = alone;
    hf_status status = hfi_dial_begin(&connection->dial, &connection->fd, address->host, address->port, err);
    if (status == HF_OK && !hfi_etcd_session_new(connection))
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    if (status != HF_OK)
        hfi_etcd_disconnect(connection);
    else
        *out = connection;
    return status;
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

/* When it is done OpenSSL has its bytes from memory, and not from the socket: one thread may read it while another one
 * writes. */
static hf_status step_shaking_hands(struct etcd_connection *connection, const struct etcd_address *address,
                                    SSL_CTX *tls, hf_error *err)
{
    const hf_status status =
        hfi_tls_shake_hands(&connection->tls, tls, connection->fd, address->host, &connection->wants, err);
    if (status != HF_OK)
        return status;
    BIO *inward = BIO_new(BIO_s_mem()), *outward = BIO_new(BIO_s_mem());
    if (!inward || !outward) {
        BIO_free(inward);
        BIO_free(outward);
        return hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
    }
    SSL_set_bio(connection->tls, inward, outward);
    return HF_OK;
}

/* --- all of it --- */

hf_status hfi_etcd_connect_step(struct etcd_connection *connection, const struct etcd_address *address, SSL_CTX *tls,
                                hf_error *err)
{
    hf_status status = HF_OK;
    if (connection->phase == ETCD_CONNECTING) {
        status = hfi_dial_step(&connection->dial, &connection->fd, address->host, address->port, err);
        if (status == HF_OK)
            connection->phase = ETCD_SHAKING_HANDS;
    }
    if (status == HF_OK && connection->phase == ETCD_SHAKING_HANDS && tls)
        status = step_shaking_hands(connection, address, tls, err);
    if (status == HF_OK) {
        connection->phase = ETCD_READY;
        connection->wants = POLLIN;
    }
    return status;
}

hf_status hfi_etcd_connect_late(const struct etcd_connection *connection, const struct etcd_address *address,
                                hf_error *err)
{
    if (connection->phase == ETCD_CONNECTING)
        return hfi_dial_late(&connection->dial, address->host, address->port, err);
    return hfi_fail(err, HF_UNAVAILABLE, 0, "no TLS with %.120s:%s: no answer in time", address->host, address->port);
}

void hfi_etcd_disconnect(struct etcd_connection *connection)
{
    if (!connection)
        return;
    hfi_dial_end(&connection->dial);
    SSL_free(connection->tls); /* without the farewell, which could block */
    hfi_fd_close(connection->fd);
    nghttp2_session_del(connection->session);
    hfi_free(connection->clear.data);
    hfi_free(connection->out.data);
    hfi_free(connection);
}
