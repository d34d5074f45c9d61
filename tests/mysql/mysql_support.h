/* SPDX-License-Identifier: MIT
 *
 * mysql_support.h: what the tests of the mysql: engine share beside what those of all engines do.
 */
#ifndef MYSQL_SUPPORT_H
#define MYSQL_SUPPORT_H

#include "engine_support.h"
#include "mysql_server.h"

#define STRATEGIES 5
extern const char *const strategy_names[STRATEGIES]; /* the last two are bound to a connection */
bool is_bound(const char *strategy);

/* The server's connections that are not the test's own. */
#define OUR_CONNECTIONS "FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER IN ('root', 'guest')"

/* Starts a server and makes it the store of open_client(). */
struct mysql_server *start_store(const char *strategy, const char *settings);
/* Makes it the store with another strategy. */
void use_strategy(const struct mysql_server *server, const char *strategy);

#endif
