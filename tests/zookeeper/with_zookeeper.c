/* SPDX-License-Identifier: MIT
 *
 * with_zookeeper.c: runs a program on ZooKeeper servers that are started for it and ended after it.
 *
 *     with_zookeeper [--options TEXT] alone|three PROGRAM [ARGUMENT…]    the URL goes in front of the arguments
 */
#include "test.h"
#include "zookeeper_server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
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
    fprintf(stderr, "with_zookeeper: cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

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
    const pid_t parent = getpid();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        run(url, argc - first - 1, argv + first + 1, parent);
    int status = 1;
    pid_t waited;
    do
        waited = waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
