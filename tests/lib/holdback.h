/* SPDX-License-Identifier: MIT
 *
 * holdback.h: a relay between clients and a server that holds one request back, as a network does that delivers late:
 * whoever sent it has given up and asked again on another connection, and then it arrives.
 */
#ifndef HOLDBACK_H
#define HOLDBACK_H

#include "shared.h"

#define HOLDBACK_TEXT_MAX 200

struct holdback {
    int port; /* clients connect to it */
    int server_port, listener;
    pid_t pid;
    char text[HOLDBACK_TEXT_MAX]; /* what a request is known by */
    _Atomic bool armed, deliver;
    _Atomic int calls; /* how many clients have connected */
    struct gate kept, done;
};

/* A process of its own on 127.0.0.1. */
struct holdback *holdback_open(int server_port);
void holdback_close(const struct holdback *relay);
/* The next piece that a client sends and that has `text` in it is held back, and all that follows on that connection.
 * The connection to the server stays open though the client may hang up. */
void holdback_arm(struct holdback *relay, const char *text);
/* Waits until it has come. */
void holdback_await(struct holdback *relay);
/* Sends it to the server, and waits until that has said something, or shown that it no longer listens. A client that is
 * still there gets the answer. */
void holdback_deliver(struct holdback *relay);

#endif
