/* SPDX-License-Identifier: MIT
 *
 * silent_relay.h: a TCP relay on the loopback, in a process of its own, for what happens to single connections: some
 * die without a word, others lead to a server that is no longer the right one.
 */
#ifndef SILENT_RELAY_H
#define SILENT_RELAY_H

#include "shared.h"

struct relay {
    int port;                    /* where it listens */
    _Atomic int upstream;        /* the port that new connections lead to; the old ones stay where they are */
    _Atomic bool swallow_pushes; /* connections that have subscribed so far lose everything from now on, both ways */
    _Atomic bool swallow_all;    /* all connections that exist now do */
    _Atomic uint32_t swallowed;  /* how many do */
    _Atomic bool delay_new;      /* connections that come from now on carry nothing until this is taken back */
    _Atomic uint32_t delayed;    /* how many came */
    pid_t pid;
};

struct relay *relay_start(int upstream);
void relay_stop(struct relay *relay);

#endif
