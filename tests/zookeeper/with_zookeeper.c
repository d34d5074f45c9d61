/* SPDX-License-Identifier: MIT
 *
 * with_zookeeper.c: runs a program on ZooKeeper servers that are started for it and ended after it.
 *
 *     with_zookeeper [--options TEXT] alone|three PROGRAM [ARGUMENT…]    see home_run_with_url()
 */
#include "server_home.h"
#include "zookeeper_server.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const bool options = argc > 2 && strcmp(argv[1], "--options") == 0;
    const int first = options ? 3 : 1;
    struct zookeeper_server *servers[3];
    char url[300];
    if (argc - first < 2) {
        fprintf(stderr, "usage: with_zookeeper [--options TEXT] alone|three PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    /* One that stands alone gives sessions as long a time-out as they want, the ensemble its twenty ticks. */
    const bool three = strcmp(argv[first], "three") == 0;
    zookeeper_servers_start(servers, three ? 3 : 1, NULL, three ? "" : "maxSessionTimeout=600000");
    snprintf(url, sizeof url, "%s%s%s", servers[0]->ensemble_url, options ? "?" : "", options ? argv[2] : "");
    return home_run_with_url(url, argc - first - 1, argv + first + 1);
}
