/* SPDX-License-Identifier: MIT
 *
 * relay.h: makes servers on this machine answer as if they were far away. On the loopback a round trip is all work of
 * the processor, which several servers on a few cores cannot do at once; between machines it is mostly waiting, which
 * they can. A process of its own listens on a port for each server and passes everything on, later.
 */
#ifndef BENCH_RELAY_H
#define BENCH_RELAY_H

#include <stdint.h>

#define RELAY_SERVERS 9

struct relay {
    int pid;
    int port[RELAY_SERVERS]; /* on 127.0.0.1, in place of each server's own */
};

/* Each byte arrives `delay_ns` after it was sent, both ways. */
void relay_start(struct relay *relay, const int *server_ports, int count, int64_t delay_ns);
void relay_stop(struct relay *relay);

#endif
