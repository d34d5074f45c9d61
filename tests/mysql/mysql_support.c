/* SPDX-License-Identifier: MIT
 *
 * mysql_support.c: see mysql_support.h.
 */
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

const char *const strategy_names[STRATEGIES] = { "lease", "insert", "version", "for-update", "get-lock" };

bool is_bound(const char *strategy)
{
    return strcmp(strategy, "for-update") == 0 || strcmp(strategy, "get-lock") == 0;
}

void use_strategy(const struct mysql_server *server, const char *strategy)
{
    char url[200];
    snprintf(url, sizeof url, "%s?strategy=%s", server->url, strategy);
    use_url(url);
}

struct mysql_server *start_store(const char *strategy, const char *settings)
{
    struct mysql_server *server = mysql_server_start(settings);
    use_strategy(server, strategy);
    return server;
}
