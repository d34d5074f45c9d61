/* SPDX-License-Identifier: MIT
 *
 * tls.c: see tls.h.
 */
/* The interface of OpenSSL 3.0: later ones call the BIO_meth_get functions deprecated, with nothing in their place. */
#define OPENSSL_API_COMPAT 30000
#include "tls.h"
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <sys/socket.h>

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

static BIO_METHOD *quiet_socket; /* for as long as the process lives, as OpenSSL's own are */

static void make_quiet_socket(void)
{
    const BIO_METHOD *usual = BIO_s_socket();
    BIO_METHOD *quiet = BIO_meth_new(BIO_TYPE_SOCKET, "socket");
    if (quiet && BIO_meth_set_write(quiet, write_quietly) && BIO_meth_set_read(quiet, BIO_meth_get_read(usual)) &&
        BIO_meth_set_puts(quiet, BIO_meth_get_puts(usual)) && BIO_meth_set_ctrl(quiet, BIO_meth_get_ctrl(usual)) &&
        BIO_meth_set_create(quiet, BIO_meth_get_create(usual)) &&
        BIO_meth_set_destroy(quiet, BIO_meth_get_destroy(usual)))
        quiet_socket = quiet;
    else
        BIO_meth_free(quiet);
}

hf_status hfi_tls_open(SSL_CTX **out, const struct hfi_tls_files *files, hf_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    SSL_CTX *context = *out = SSL_CTX_new(TLS_client_method());
    pthread_once(&once, make_quiet_socket);
    if (!context || !quiet_socket)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    /* What could not be written is offered again from a buffer that may have moved. */
    SSL_CTX_set_mode(context,
                     SSL_MODE_AUTO_RETRY | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context, files->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (files->ca_file && SSL_CTX_load_verify_locations(context, files->ca_file, NULL) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read certificates from %.160s", files->ca_file);
    if (!files->ca_file)
        SSL_CTX_set_default_verify_paths(context);
    if (files->cert_file && SSL_CTX_use_certificate_chain_file(context, files->cert_file) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read a certificate from %.160s", files->cert_file);
    const char *key = files->key_file ? files->key_file : files->cert_file;
    if (key && SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read a private key from %.160s", key);
    return HF_OK;
}

static hf_status start(SSL **out, SSL_CTX *context, int fd, const char *host, hf_error *err)
{
    BIO *socket = BIO_new(quiet_socket);
    SSL *tls = *out = SSL_new(context);
    if (!tls || !socket) {
        BIO_free(socket);
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a TLS connection");
    }
    BIO_set_fd(socket, fd, BIO_NOCLOSE);
    SSL_set_bio(tls, socket, socket); /* which is the connection's from now on */
    /* A number, as clusters name their servers, is looked for in the certificate as such. */
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host) == 1)
        return HF_OK;
    SSL_set_tlsext_host_name(tls, host);
    return SSL_set1_host(tls, host) == 1 ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
}

hf_status hfi_tls_shake_hands(SSL **tls, SSL_CTX *context, int fd, const char *host, short *wants, hf_error *err)
{
    const hf_status status = *tls ? HF_OK : start(tls, context, fd, host, err);
    if (status != HF_OK)
        return status;
    ERR_clear_error();
    const int done = SSL_connect(*tls);
    if (done == 1)
        return HF_OK;
    const int error = SSL_get_error(*tls, done);
    *wants = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return HF_TIMEOUT;
    const long verified = SSL_get_verify_result(*tls);
    if (verified != X509_V_OK)
        return hfi_fail(err, HF_DENIED, (int)verified, "the certificate of %.100s is not to be trusted: %s", host,
                        X509_verify_cert_error_string(verified));
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return hfi_fail(err, HF_UNAVAILABLE, 0, "no TLS with %.100s: %s", host,
                    reason ? reason : "the connection was closed");
}
