/* SPDX-License-Identifier: MIT
 *
 * redis_server.h: real Redis and Valkey servers for tests: on free ports of the loopback, with their data in a
 * folder of their own below TEST_DIRECTORY, and gone when the test ends, however it ends.
 *
 *     struct redis_server *server = redis_server_start(NULL, "--appendonly yes --appendfsync always");
 *     hf_open(&client, server->url, NULL, &err);
 *     redis_server_do(server, "FLUSHALL");
 *     CHECK_INT(1, redis_server_number(server, "ZCARD %s", key));
 *
 * The test's own commands go through the server's Unix socket: they need no password that is set later, and no TLS.
 * Whatever goes wrong with a server ends the test. One thread at a time.
 */
#ifndef REDIS_SERVER_H
#define REDIS_SERVER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct redis_server {
    int port, tls_port; /* tls_port is 0 without TLS */
    pid_t pid;          /* 0: it does not run */
    char url[64];       /* redis://127.0.0.1:PORT */
    char url6[64];      /* redis://[::1]:PORT */
    char unix_url[256]; /* redis+unix:///… */
    char tls_url[256];  /* rediss://localhost:PORT?cafile=… */
    char directory[200];
    char binary[200];
    char arguments[1000];
    redisContext *control;
    struct redis_server *next;
};

/* Starts a server and waits until it answers. `binary`: NULL for the system's redis-server. `arguments`: more of
 * them, between blanks; "" stands for an empty one. */
struct redis_server *redis_server_start(const char *binary, const char *arguments);
/* The same with a TLS port; certificates are those of TEST_CERTIFICATES, see tests/redis/certificates. */
struct redis_server *redis_server_start_tls(const char *binary, const char *arguments);
/* A replica of `master`, in step with it. */
struct redis_server *redis_server_start_replica(struct redis_server *master);

/* Ends it properly and removes its data. Happens by itself at the end of a test that does not abort. */
void redis_server_stop(struct redis_server *server);
/* kill -9. */
void redis_server_kill(struct redis_server *server);
/* Starts it again where it was, with `more` arguments for now, with or without the data that it has on disk. */
void redis_server_restart(struct redis_server *server, bool with_data, const char *more);
/* The same, without waiting until it answers. */
void redis_server_launch(struct redis_server *server, const char *more);
void redis_server_await(struct redis_server *server);
/* SIGSTOP, and waits until it is stopped; SIGCONT. */
void redis_server_pause(struct redis_server *server);
void redis_server_continue(struct redis_server *server);

/* --------------------------------------------------------------------------- commands, in the format of hiredis --- */

/* Any answer, errors included; freed by freeReplyObject(). */
redisReply *redis_server_command(struct redis_server *server, const char *format, ...);
/* The answer must not be an error. */
void redis_server_do(struct redis_server *server, const char *format, ...);
/* The answer must be a number, or a text that is one; nil is -1. */
int64_t redis_server_number(struct redis_server *server, const char *format, ...);
/* The answer must be a text; nil is "". */
void redis_server_text(struct redis_server *server, char *out, size_t size, const char *format, ...);

/* How often `command` was called since the start, by clients and by scripts, from INFO commandstats. */
int64_t redis_server_calls(struct redis_server *server, const char *command);
/* How many commands Holdfast's clients have sent: whatever it sends, but not what its scripts call. */
int64_t redis_server_sent(struct redis_server *server);

/* A connection of the test's own, beside the one for commands. */
redisContext *redis_server_connect(const struct redis_server *server);

#endif
