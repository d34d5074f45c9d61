/* SPDX-License-Identifier: MIT
 *
 * with_consul.c: runs a program on Consul servers that are started for it and ended after it.
 *
 *     with_consul alone|three|tls|acl PROGRAM [ARGUMENT…]    see home_run_with_url()
 */
#include "consul_server.h"
#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    return home_run_with_url(url, argc - 2, argv + 2);
}
