/* SPDX-License-Identifier: MIT
 *
 * memcached_server.h: real memcached servers for tests: on free ports of the loopback, or on a Unix socket, and gone
 * when the test ends, however it ends. TEST_MEMCACHED is the program. Whatever goes wrong with a server ends the test.
 */
#ifndef MEMCACHED_SERVER_H
#define MEMCACHED_SERVER_H

#include <stddef.h>
#include <sys/types.h>

struct memcached_server {
    int port;
    pid_t pid; /* 0: it does not run */
    char url[64];
    char unix_url[260]; /* of one that was started on a socket, which has no port */
    char directory[200];
    char arguments[300];
};

/* `arguments`: more of them, between blanks. */
struct memcached_server *memcached_server_start(const char *arguments);
struct memcached_server *memcached_server_start_unix(void);
void memcached_server_kill(struct memcached_server *server);
/* After a kill: on the same port, and empty. */
void memcached_server_restart(struct memcached_server *server);
void memcached_server_pause(struct memcached_server *server);
void memcached_server_continue(struct memcached_server *server);
/* Kills it and removes its folder. */
void memcached_server_stop(struct memcached_server *server);

/* Sends a line, or several, and gives the whole answer. */
void memcached_server_ask(struct memcached_server *server, const char *text, char *answer, size_t size);
/* One of its statistics. */
long long memcached_server_statistic(struct memcached_server *server, const char *name);

#endif
