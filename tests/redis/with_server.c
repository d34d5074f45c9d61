/* SPDX-License-Identifier: MIT
 *
 * with_server.c: runs a program on servers that are started for it and ended after it.
 *
 *     with_server [OPTION…] KIND SERVER PROGRAM [ARGUMENT…]    see home_run_with_url()
 *
 *     tcp, unix, tls         one server, and the way to it
 *     sentinel               a master and two replicas behind three Sentinels
 *     cluster                three masters with a replica each
 *     redlock3 … redlock7    independent masters
 *
 *     --url-options TEXT     goes to the end of the URL, as in "dialect=plain&replicas=1"
 *     --server-options TEXT  more arguments for each server, between blanks
 *     --module PATH          each server loads it
 */
#include "redis_group.h"
#include "redis_server.h"
#include "server_home.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: with_server [--url-options TEXT] [--server-options TEXT] [--module PATH]\n"
                    "                   tcp|unix|tls|sentinel|cluster|redlockN SERVER PROGRAM [ARGUMENT...]\n");
    exit(64);
}

/* Starts what `kind` names and returns its URL. */
static const char *start(const char *kind, const char *binary, const char *arguments)
{
    const struct redis_group_options options = { .binary = binary, .arguments = arguments };
    if (strcmp(kind, "tls") == 0)
        return redis_server_start_tls(binary, arguments)->tls_url;
    if (strcmp(kind, "unix") == 0)
        return redis_server_start(binary, arguments)->unix_url;
    if (strcmp(kind, "tcp") == 0)
        return redis_server_start(binary, arguments)->url;
    if (strcmp(kind, "sentinel") == 0)
        return redis_sentinel_start(&options)->url;
    if (strcmp(kind, "cluster") == 0)
        return redis_cluster_start(&options)->url;
    if (strncmp(kind, "redlock", 7) == 0 && kind[7] >= '1' && kind[7] <= '9' && kind[8] == '\0')
        return redis_masters_start(kind[7] - '0', &options)->url;
    usage();
}

int main(int argc, char **argv)
{
    static const struct option known[] = { { "url-options", required_argument, NULL, 'u' },
                                           { "server-options", required_argument, NULL, 's' },
                                           { "module", required_argument, NULL, 'm' },
                                           { NULL, 0, NULL, 0 } };
    const char *url_options = "", *server_options = "", *module = "";
    int option;
    /* '+': what comes after PROGRAM is not for us. */
    while ((option = getopt_long(argc, argv, "+", known, NULL)) != -1) {
        if (option == 'u')
            url_options = optarg;
        else if (option == 's')
            server_options = optarg;
        else if (option == 'm')
            module = optarg;
        else
            usage();
    }
    if (argc - optind < 3)
        usage();

    char arguments[600], url[1000];
    snprintf(arguments, sizeof arguments, "%s %s %s", server_options, *module ? "--loadmodule" : "", module);
    const char *started = start(argv[optind], argv[optind + 1], arguments);
    snprintf(url, sizeof url, "%s%s%s", started, !*url_options ? "" : strchr(started, '?') ? "&" : "?", url_options);
    return home_run_with_url(url, argc - optind - 2, argv + optind + 2);
}
