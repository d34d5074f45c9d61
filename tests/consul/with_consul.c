/* SPDX-License-Identifier: MIT
 *
 * with_consul.c: runs a program on Consul servers that are started for it and ended after it.
 *
 *     with_consul alone|three|tls|acl PROGRAM [ARGUMENT…]    the URL goes in front of the arguments
 */
#include "consul_server.h"
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
    fprintf(stderr, "with_consul: cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

/* Starts what is asked for; its URL. */
static void start(const char *what, char *url, size_t size)
{
    struct consul_server *servers[3];
    char settings[1000] = "";
    const char *certificates = getenv("TEST_CERTIFICATES");
    if (strcmp(what, "tls") == 0)
        snprintf(settings, sizeof settings,
                 ", \"ca_file\": \"%s/ca.pem\", \"cert_file\": \"%s/server.pem\", \"key_file\": \"%s/server.key\"",
                 certificates, certificates, certificates);
    else if (strcmp(what, "acl") == 0)
        snprintf(settings, sizeof settings,
                 ", \"acl\": {\"enabled\": true, \"default_policy\": \"deny\", \"tokens\": {\"master\": "
                 "\"0fb0ca55-0000-4000-8000-5e5a3e5e5a3e\"}}");
    consul_servers_start(servers, strcmp(what, "three") == 0 ? 3 : 1, NULL, settings);
    if (strcmp(what, "tls") == 0)
        snprintf(url, size, "%s?cafile=%s/ca.pem", servers[0]->tls_url, certificates);
    else
        snprintf(url, size, "%s", servers[0]->ensemble_url);
    if (*servers[0]->token)
        setenv("CONSUL_HTTP_TOKEN", servers[0]->token, 1);
}

int main(int argc, char **argv)
{
    char url[500];
    if (argc < 3) {
        fprintf(stderr, "usage: with_consul alone|three|tls|acl PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    start(argv[1], url, sizeof url);
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
