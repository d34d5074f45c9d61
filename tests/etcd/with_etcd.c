/* SPDX-License-Identifier: MIT
 *
 * with_etcd.c: runs a program on an etcd cluster that is started for it and ended after it.
 *
 *     with_etcd alone|three|tls|auth PROGRAM [ARGUMENT…]    see home_run_with_url()
 */
#include "etcd_server.h"
#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUICK "--unsafe-no-fsync"

/* A user that may touch the keys of locks, and nothing else. */
static void start_with_user(char *url, size_t size)
{
    /* Passwords that are checked as fast as can be: every client of every test logs in. */
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK " --bcrypt-cost 4");
    etcd_ctl(cluster, "user add root:keeper");
    etcd_ctl(cluster, "user grant-role root root");
    etcd_ctl(cluster, "user add guest:open-sesame");
    etcd_ctl(cluster, "role add locker");
    etcd_ctl(cluster, "role grant-permission locker --prefix=true readwrite holdfast/");
    etcd_ctl(cluster, "user grant-role guest locker");
    etcd_ctl(cluster, "auth enable");
    snprintf(url, size, "etcd://guest:open-sesame@%s", cluster->hosts);
}

static void start_with_tls(char *url, size_t size)
{
    const char *folder = getenv("TEST_CERTIFICATES");
    const struct etcd_cluster *cluster = etcd_cluster_start(1, "tls " QUICK);
    snprintf(url, size, "%s?cafile=%s/ca.pem&cert=%s/client.pem&key=%s/client.key", cluster->url, folder, folder,
             folder);
}

int main(int argc, char **argv)
{
    char url[1000];
    if (argc < 3) {
        fprintf(stderr, "usage: with_etcd alone|three|tls|auth PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    if (strcmp(argv[1], "auth") == 0)
        start_with_user(url, sizeof url);
    else if (strcmp(argv[1], "tls") == 0)
        start_with_tls(url, sizeof url);
    else
        snprintf(url, sizeof url, "%s", etcd_cluster_start(strcmp(argv[1], "three") == 0 ? 3 : 1, QUICK)->url);
    return home_run_with_url(url, argc - 2, argv + 2);
}
