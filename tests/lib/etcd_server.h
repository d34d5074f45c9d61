/* SPDX-License-Identifier: MIT
 *
 * etcd_server.h: real etcd clusters for tests: of one or three members, on free ports of the loopback or on hosts of
 * the test's own network, with their data in a folder of their own below TEST_DIRECTORY, and gone when the test ends,
 * however it ends. TEST_ETCD is the server's program, "etcd" if it is not set; etcdctl is looked for in the PATH.
 *
 *     struct etcd_cluster *cluster = etcd_cluster_start(3, "");
 *     hf_open(&client, cluster->url, NULL, &err);
 *     etcd_server_kill(etcd_cluster_leader(cluster));
 *     etcd_ctl(cluster, "del --prefix holdfast/");
 *
 * Whatever goes wrong with a server ends the test. One thread at a time.
 */
#ifndef ETCD_SERVER_H
#define ETCD_SERVER_H

#include "netns.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ETCD_MEMBERS_MOST 3

struct etcd_cluster;

struct etcd_server {
    struct etcd_cluster *cluster;
    int number;                        /* from 1 */
    int port, peer_port, metrics_port; /* of clients, of members, and of the figures that it shows by plain HTTP */
    char address[20];
    const struct netns *place; /* NULL: where the test is */
    pid_t pid;                 /* 0: it does not run */
};

struct etcd_cluster {
    int count;
    struct etcd_server servers[ETCD_MEMBERS_MOST];
    char url[200];       /* etcd://HOST:PORT,HOST:PORT,HOST:PORT */
    char hosts[200];     /* the same without the scheme */
    char directory[200]; /* data and logs are below it */
    char options[600];
    bool tls;      /* with the certificates in TEST_CERTIFICATES */
    char ctl[300]; /* more options for etcdctl */
    char members[300];
};

/* Starts so many members and waits until all of them answer. `options`: more of "--name value", between blanks; the
 * first may be "tls". A lease is at least a second long. */
struct etcd_cluster *etcd_cluster_start(int count, const char *options);
/* The same, each member on a host of its own. */
struct etcd_cluster *etcd_cluster_start_at(struct netns *const *places, int count, const char *options);
/* Ends it and removes its data. Happens by itself at the end of a test that does not abort. */
void etcd_cluster_stop(struct etcd_cluster *cluster);
/* The member that leads; waits until there is one. */
struct etcd_server *etcd_cluster_leader(struct etcd_cluster *cluster);
/* Waits until all members that run answer, and some member leads. */
void etcd_cluster_await(struct etcd_cluster *cluster);

/* Ends it at once, as a crash does; and starts it again with its data, without waiting for it. */
void etcd_server_kill(struct etcd_server *server);
void etcd_server_restart(struct etcd_server *server);
/* SIGSTOP, and waits until it stands still; SIGCONT. */
void etcd_server_pause(const struct etcd_server *server);
void etcd_server_continue(const struct etcd_server *server);

/* Runs etcdctl, which must succeed; the format is that of printf, words end at blanks. */
void etcd_ctl(struct etcd_cluster *cluster, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, and what it says. */
void etcd_ctl_read(struct etcd_cluster *cluster, char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* How many keys start with `prefix`. */
int etcd_ctl_keys(struct etcd_cluster *cluster, const char *prefix);

/* The sum of a server's figures whose name, with labels, starts with `name` and contains `label`. */
int64_t etcd_server_figure(const struct etcd_server *server, const char *name, const char *label);

#endif
