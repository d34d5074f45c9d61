/* SPDX-License-Identifier: MIT
 *
 * postgres_support.c: see postgres_support.h.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

const char *const strategy_names[STRATEGIES] = { "lease", "insert", "version", "for-update", "advisory" };

bool is_bound(const char *strategy)
{
    return strcmp(strategy, "for-update") == 0 || strcmp(strategy, "advisory") == 0;
}

void use_strategy(const struct postgres_server *server, const char *strategy)
{
    char url[200];
    snprintf(url, sizeof url, "%s?strategy=%s", server->url, strategy);
    use_url(url);
}

struct postgres_server *start_store(const char *strategy, const char *settings)
{
    struct postgres_server *server = postgres_server_start(settings);
    use_strategy(server, strategy);
    return server;
}
