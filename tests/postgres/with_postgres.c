/* SPDX-License-Identifier: MIT
 *
 * with_postgres.c: runs a program on a PostgreSQL server that is started for it and ended after it.
 *
 *     with_postgres [--settings TEXT] tcp|unix|tls STRATEGY PROGRAM [ARGUMENT…]
 *
 * The URL goes in front of the arguments.
 */
#include "postgres_server.h"
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void run(char *url, int count, char **words, pid_t parent)
{
    char *arguments[64] = { words[0], url };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || count > 60)
        _exit(1);
    for (int i = 1; i < count; i++)
        arguments[i + 1] = words[i];
    execv(arguments[0], arguments);
    fprintf(stderr, "with_postgres: cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

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
    const pid_t parent = getpid();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        run(url, argc - first - 2, argv + first + 2, parent);
    int status = 1;
    pid_t waited;
    do
        waited = waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
