/* SPDX-License-Identifier: MIT
 *
 * with_server.c: runs a program on a server that is started for it and ended after it.
 *
 *     with_server tcp|unix|tls SERVER PROGRAM [ARGUMENT…]    the server's URL goes in front of the arguments
 */
#include "redis_server.h"
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void run(const char *url, int count, char **words, pid_t parent)
{
    char *arguments[64] = { words[0], (char *)(uintptr_t)url };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || count > 60)
        _exit(1);
    for (int i = 1; i < count; i++)
        arguments[i + 1] = words[i];
    execv(arguments[0], arguments);
    fprintf(stderr, "with_server: cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: with_server tcp|unix|tls SERVER PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    const bool tls = strcmp(argv[1], "tls") == 0;
    struct redis_server *server = tls ? redis_server_start_tls(argv[2], "") : redis_server_start(argv[2], "");
    const char *url = tls ? server->tls_url : strcmp(argv[1], "unix") == 0 ? server->unix_url : server->url;
    const pid_t parent = getpid();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        run(url, argc - 3, argv + 3, parent);
    int status = 1;
    pid_t waited;
    do
        waited = waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
