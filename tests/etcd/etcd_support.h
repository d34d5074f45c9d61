/* SPDX-License-Identifier: MIT
 *
 * etcd_support.h: what the tests of the etcd: engine on real servers share beside what those of all engines do.
 */
#ifndef ETCD_SUPPORT_H
#define ETCD_SUPPORT_H

#include "engine_support.h"
#include "etcd_server.h"

/* For tests in which nothing must survive a crash of the machine. */
#define QUICK "--unsafe-no-fsync"

/* Starts a cluster and makes it the store of open_client(). */
struct etcd_cluster *start_store(int members, const char *options);
/* Waits until there are so many keys of locks, without the marks of what was undone. */
void await_keys(struct etcd_cluster *cluster, int count);
/* Waits until the server has so many watches. */
void await_watches(const struct etcd_server *server, int64_t count);
/* The lease that holds NAME, as etcdctl writes it. */
void find_lease(struct etcd_cluster *cluster, const char *name, char out[32]);

#endif
