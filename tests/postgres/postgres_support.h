/* SPDX-License-Identifier: MIT
 *
 * postgres_support.h: what the tests of the postgres: engine share beside what those of all engines do.
 */
#ifndef POSTGRES_SUPPORT_H
#define POSTGRES_SUPPORT_H

#include "engine_support.h"
#include "postgres_server.h"

#define STRATEGIES 5
extern const char *const strategy_names[STRATEGIES]; /* the last two are bound to a connection */
bool is_bound(const char *strategy);

/* Starts a server and makes it the store of open_client(). */
struct postgres_server *start_store(const char *strategy, const char *settings);
/* Makes it the store with another strategy. */
void use_strategy(const struct postgres_server *server, const char *strategy);

#endif
