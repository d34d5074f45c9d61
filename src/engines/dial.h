/* SPDX-License-Identifier: MIT
 *
 * dial.h: connecting a socket, in steps that never wait, for the engines that have sockets of their own. A host is
 * named by its port too; with the port "" the host is the path of a Unix socket.
 */
#ifndef HFI_DIAL_H
#define HFI_DIAL_H

#include "engine.h"
#include <sys/socket.h>

#define HFI_DIAL_MOST 8

/* The addresses of a host, which are tried one after the other. */
struct hfi_dial {
    struct sockaddr_storage addresses[HFI_DIAL_MOST];
    size_t count, tried;
    int silence_ms; /* a network that swallows everything is noticed after so long; 0: after hours */
};

/* Looks the host up. `numeric`: without asking anybody, which could take a while. */
hf_status hfi_dial_find(struct hfi_dial *dial, const char *host, const char *port, bool numeric, hf_error *err);
/* Starts to connect. After HF_OK *fd, which was -1, is a socket that does not block. */
hf_status hfi_dial_begin(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err);
/* HF_OK: connected. HF_TIMEOUT: again, when the socket, which may be another one now, can be written to. */
hf_status hfi_dial_step(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err);
/* The sentence and the status of what went wrong; EAGAIN: the time was up. */
hf_status hfi_dial_failed(const char *host, const char *port, int number, hf_error *err);
/* Before a connection is closed on which something is unanswered: it is reset then, and the system stops sending what
 * is still on its way. */
void hfi_dial_reset(int fd);

#endif
