/* SPDX-License-Identifier: MIT
 *
 * with_postgres.c: runs a program on a PostgreSQL server that is started for it and ended after it.
 *
 *     with_postgres [--settings TEXT] tcp|unix|tls STRATEGY PROGRAM [ARGUMENT…]    see home_run_with_url()
 */
#include "postgres_server.h"
#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const bool settings = argc > 2 && strcmp(argv[1], "--settings") == 0;
    const int first = settings ? 3 : 1;
    char url[500];
    if (argc - first < 3) {
        fprintf(stderr, "usage: with_postgres [--settings TEXT] tcp|unix|tls STRATEGY PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    struct postgres_server *server = postgres_server_start(settings ? argv[2] : "");
    const char *certificates = getenv("TEST_CERTIFICATES");
    if (strcmp(argv[first], "unix") == 0) {
        snprintf(url, sizeof url, "%s&strategy=%s", server->unix_url, argv[first + 1]);
    } else if (strcmp(argv[first], "tls") == 0) {
        postgres_server_use_tls(server, "server");
        snprintf(url, sizeof url, "%s?sslmode=verify-full&sslrootcert=%s/ca.pem&strategy=%s", server->url,
                 certificates ? certificates : "", argv[first + 1]);
    } else {
        snprintf(url, sizeof url, "%s?strategy=%s", server->url, argv[first + 1]);
    }
    return home_run_with_url(url, argc - first - 2, argv + first + 2);
}
