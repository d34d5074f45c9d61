/* SPDX-License-Identifier: MIT
 *
 * dial.h: connecting a socket, in steps that never wait, for the engines that have sockets of their own. A host is
 * named by its port too; with the port "" the host is the path of a Unix socket.
 *
 * A host may have several addresses. They are tried one after the other, but without waiting for long: the next one is
 * tried beside those that have not answered, and the first that does is taken (RFC 8305).
 */
#ifndef HFI_DIAL_H
#define HFI_DIAL_H

#include "resolve.h"

struct hfi_dial {
    int silence_ms; /* a network that swallows everything is noticed after so long; 0: after hours */
    bool alone;     /* there is no other host to go to: if what is known of this one fails, wait for the resolver */
    /* Of the rest nobody else needs to know. */
    struct hfi_lookup lookup;
    int sockets[HFI_ADDRESSES_MOST]; /* one for each address; -1: none */
    size_t tried;
    bool gathered; /* there is more than one thing to wait for: the descriptor is an epoll of them, and of … */
    int timer;
    int failure; /* what went wrong with the last of the addresses that were known */
};

/* Starts to connect. After HF_OK *fd, which was -1, is to be waited for with POLLIN | POLLOUT. */
hf_status hfi_dial_begin(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err);
/* HF_OK: *fd is a connected socket that does not block. HF_TIMEOUT: again, when *fd, which may be another one now, is
 * ready. */
hf_status hfi_dial_step(struct hfi_dial *dial, int *fd, const char *host, const char *port, hf_error *err);
/* Before *fd is closed, connected or not. */
void hfi_dial_end(struct hfi_dial *dial);
/* The sentence and the status of what went wrong. */
hf_status hfi_dial_failed(const char *host, const char *port, int number, hf_error *err);
/* The same if the time was up. */
hf_status hfi_dial_late(const struct hfi_dial *dial, const char *host, const char *port, hf_error *err);
/* Before a socket with an unanswered request is closed; takes -1. Closing then resets the connection and throws away
 * what was not delivered yet, which would otherwise go on being sent and could arrive after a later request. */
void hfi_dial_reset(int fd);

#endif
