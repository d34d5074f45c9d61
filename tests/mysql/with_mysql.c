/* SPDX-License-Identifier: MIT
 *
 * with_mysql.c: runs a program on a MariaDB server that is started for it and ended after it.
 *
 *     with_mysql [--settings TEXT] tcp|unix STRATEGY PROGRAM [ARGUMENT…]    see home_run_with_url()
 */
#include "mysql_server.h"
#include "server_home.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const bool settings = argc > 2 && strcmp(argv[1], "--settings") == 0;
    const int first = settings ? 3 : 1;
    char url[500];
    if (argc - first < 3) {
        fprintf(stderr, "usage: with_mysql [--settings TEXT] tcp|unix STRATEGY PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    const struct mysql_server *server = mysql_server_start(settings ? argv[2] : "");
    if (strcmp(argv[first], "unix") == 0)
        snprintf(url, sizeof url, "%s&strategy=%s", server->unix_url, argv[first + 1]);
    else
        snprintf(url, sizeof url, "%s?strategy=%s", server->url, argv[first + 1]);
    return home_run_with_url(url, argc - first - 2, argv + first + 2);
}
