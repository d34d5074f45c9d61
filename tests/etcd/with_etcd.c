/* SPDX-License-Identifier: MIT
 *
 * with_etcd.c: runs a program on an etcd cluster that is started for it and ended after it.
 *
 *     with_etcd alone|three|tls|auth PROGRAM [ARGUMENT…]    the URL goes in front of the arguments
 */
#include "etcd_server.h"
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define QUICK "--unsafe-no-fsync"

static _Noreturn void run(char *url, int count, char **words, pid_t parent)
{
    char *arguments[64] = { words[0], url };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || count > 60)
        _exit(1);
    for (int i = 1; i < count; i++)
        arguments[i + 1] = words[i];
    execv(arguments[0], arguments);
    fprintf(stderr, "with_etcd: cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

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
    const pid_t parent = getpid();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        run(url, argc - 2, argv + 2, parent);
    int status = 1;
    pid_t waited;
    do
        waited = waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
