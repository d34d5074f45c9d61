/* SPDX-License-Identifier: MIT
 *
 * netns.h: hosts on a network of the test's own, which can be cut, for tests of partitions. A host is a network
 * namespace with one address; all of them hang on one switch. Servers are started on a host (see redis_server.h),
 * clients run there as helper processes.
 *
 *     struct netns *left = netns_new(), *right = netns_new();
 *     pid_t client = netns_helper_start(left, run_client, memory);
 *     netns_cut(right);
 *
 * What is cut loses packets without a word: no carrier is lost, nobody is told "unreachable", connections stay open.
 * Namespaces and links have no names outside the test and live as long as its processes: nothing is left behind,
 * however it ends. Needs root, or a system that lets its users make namespaces; where neither is given the test is not
 * run. One thread at a time, and before the test starts threads.
 */
#ifndef NETNS_H
#define NETNS_H

#include "shared.h"

#include <sys/types.h>

struct netns {
    int number;       /* from 1 */
    int fd;           /* of the namespace */
    char address[20]; /* 10.99.0.NUMBER */
};

#define NETNS_MOST 40
#define NETNS_SIDES 8

/* A new host that all others reach; exists until the test ends. */
struct netns *netns_new(void);

/* This process goes there; what it starts is there too. */
void netns_enter(const struct netns *host);
/* helper_start() on the host; helper_join() and the others work as for every helper. */
pid_t netns_helper_start(struct netns *host, helper_fn run, void *arg);

/* Hosts reach those that are on the same side. All begin on side 0. */
void netns_move(const struct netns *host, int side);
/* Nobody reaches it, and it reaches nobody but itself. */
void netns_cut(const struct netns *host);
/* Back to side 0. */
void netns_heal(const struct netns *host);
/* What `from` sends to `to` is lost, and nothing else: for links that fail in one direction, or between two only. */
void netns_cut_way(const struct netns *from, const struct netns *to);
void netns_heal_way(const struct netns *from, const struct netns *to);

#endif
