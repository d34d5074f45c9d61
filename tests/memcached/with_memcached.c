/* SPDX-License-Identifier: MIT
 *
 * with_memcached.c: runs a program on a memcached server that is started for it and ended after it.
 *
 *     with_memcached tcp|unix PROGRAM [ARGUMENT…]    see home_run_with_url()
 */
#include "memcached_server.h"
#include "server_home.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: with_memcached tcp|unix PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    const bool is_unix = strcmp(argv[1], "unix") == 0;
    const struct memcached_server *server = is_unix ? memcached_server_start_unix() : memcached_server_start("");
    return home_run_with_url(is_unix ? server->unix_url : server->url, argc - 2, argv + 2);
}
