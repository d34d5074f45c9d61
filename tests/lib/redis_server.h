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
 * The test's own commands go through the server's Unix socket: they need no password that is set later, and no TLS, and
 * they reach a server whose network is cut. Whatever goes wrong with a server ends the test. One thread at a time.
 * Groups of servers: see redis_group.h. TEST_EVERY_SERVER_LOADS: a module that all of them load, but for Sentinels.
 */
#ifndef REDIS_SERVER_H
#define REDIS_SERVER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct netns;

struct redis_server {
    int port, tls_port; /* tls_port is 0 without TLS */
    pid_t pid;          /* 0: it does not run */
    bool paused;
    bool sentinel;
    char url[64];       /* redis://127.0.0.1:PORT, or the address in its network namespace */
    char url6[64];      /* redis://[::1]:PORT */
    char unix_url[256]; /* redis+unix:///… */
    char tls_url[256];  /* rediss://localhost:PORT?cafile=… */
    char directory[200];
    char binary[200];
    char arguments[1000];
    char address[20];
    char password[64];       /* of its default user, "" for none */
    char configuration[210]; /* the file that it starts from and rewrites; "": all is on the command line */
    char clock[210];         /* the file that its wall clock follows; "": the machine's clock */
    struct netns *place;     /* NULL: where the test is */
    redisContext *control;
};

/* Starts a server and waits until it answers. `binary`: NULL for the system's redis-server. `arguments`: more of
 * them, between blanks; "" stands for an empty one. */
struct redis_server *redis_server_start(const char *binary, const char *arguments);
/* The same with a TLS port; certificates are those of TEST_CERTIFICATES, see tests/redis/certificates. */
struct redis_server *redis_server_start_tls(const char *binary, const char *arguments);
/* A replica of `master`, in step with it. */
struct redis_server *redis_server_start_replica(struct redis_server *master);

/* For what these three do not offer, and for starting several at once. */
struct redis_server_setup {
    const char *binary;    /* NULL: the system's redis-server */
    const char *arguments; /* NULL: none */
    const char *password;  /* NULL: none */
    bool tls;
    bool sentinel;       /* runs as a Sentinel; has a file of configuration too */
    bool configuration;  /* with a file, so that what it is told later (CONFIG REWRITE) outlasts a restart */
    bool own_clock;      /* see redis_server_set_clock(); only the system's redis-server can stand it */
    struct netns *place; /* see netns.h; NULL: where the test is */
};
/* Not started yet: redis_server_launch() and redis_server_started() do that. */
struct redis_server *redis_server_prepare(const struct redis_server_setup *setup);
/* Adds a line to the file of its configuration. */
void redis_server_configure(const struct redis_server *server, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Waits until it answers. False: it has ended, most likely because somebody else got the port. */
bool redis_server_started(struct redis_server *server);
/* It was started, and was neither killed nor paused. */
bool redis_server_runs(const struct redis_server *server);

/* Its wall clock is `offset_ms` ahead of the machine's from now on (behind, if negative); its monotonic clock stays. */
void redis_server_set_clock(const struct redis_server *server, int64_t offset_ms);
/* What it answers to TIME, less what this machine's clock says, in milliseconds. */
int64_t redis_server_clock_offset_ms(struct redis_server *server);

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
/* How many clients listen for breaks of their locks: from their first renewal on, a moment later. */
int64_t redis_server_listeners(struct redis_server *server);

/* A connection of the test's own, beside the one for commands. */
redisContext *redis_server_connect(const struct redis_server *server);

#endif
