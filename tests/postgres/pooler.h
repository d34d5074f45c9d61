/* SPDX-License-Identifier: MIT
 *
 * pooler.h: PgBouncer before a server of the tests. TEST_POOLER is the program.
 */
#ifndef POOLER_H
#define POOLER_H

#include "postgres_server.h"

struct pooler {
    pid_t pid;
    int port;
    char url[100]; /* of the same database, through it */
};

/* Starts one and waits until it answers. `mode`: "transaction" or "session". `size`: connections to the
 * server. */
struct pooler pooler_start(const struct postgres_server *server, const char *mode, int size);
void pooler_stop(const struct pooler *pooler);

#endif
