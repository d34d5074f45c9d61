/* SPDX-License-Identifier: MIT
 *
 * tls.h: TLS for the engines that speak a protocol of their own over sockets of their own.
 */
#ifndef HFI_TLS_H
#define HFI_TLS_H

#include "engine.h"
#include <openssl/ssl.h>

struct hfi_tls_files {
    bool verify;
    const char *ca_file, *cert_file, *key_file; /* NULL: the system's; none; in the certificate's file */
};

/* *out is to be freed whatever is returned. */
hf_status hfi_tls_open(SSL_CTX **out, const struct hfi_tls_files *files, hf_error *err);

/* One step of the handshake on a socket that does not block; *tls is NULL before the first. HF_OK: it is done.
 * HF_TIMEOUT: again, when the socket is ready for `*wants`. */
hf_status hfi_tls_shake_hands(SSL **tls, SSL_CTX *context, int fd, const char *host, short *wants, hf_error *err);

#endif
