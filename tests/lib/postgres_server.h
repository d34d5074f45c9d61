/* SPDX-License-Identifier: MIT
 *
 * postgres_server.h: real PostgreSQL servers for tests: on a free port of the loopback and a Unix socket, with their
 * data in a folder of their own below TEST_DIRECTORY, and gone when the test ends, however it ends. TEST_POSTGRES is
 * the folder of the server's programs. Root cannot run PostgreSQL, so root's tests run it as another user.
 *
 *     struct postgres_server *server = postgres_server_start("");
 *     hf_open(&client, server->url, NULL, &err);
 *     postgres_server_do(server, "DROP TABLE holdfast_locks");
 *     CHECK_INT(1, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks"));
 *
 * Whatever goes wrong with a server ends the test. One thread at a time.
 */
#ifndef POSTGRES_SERVER_H
#define POSTGRES_SERVER_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct netns;

struct postgres_server {
    int port;
    pid_t pid;           /* 0: it does not run */
    char url[100];       /* postgres://postgres@127.0.0.1:PORT/postgres */
    char unix_url[300];  /* … by its socket file */
    char directory[200]; /* the socket is in it, the data in "data" */
    char settings[500];
    char clock[220];     /* the file that its wall clock follows; "": the machine's clock */
    struct netns *place; /* NULL: where the test is */
    PGconn *control;
};

/* Starts a server and waits until it answers. `settings`: more of "-c name=value", between blanks. The role "guest"
 * must give the password "open-sesame" over TCP, all others are trusted. */
struct postgres_server *postgres_server_start(const char *settings);
/* The same on a host of its own; see netns.h. */
struct postgres_server *postgres_server_start_at(struct netns *place, const char *settings);
/* A streaming standby of `primary`, in step with it. */
struct postgres_server *postgres_server_start_standby(struct postgres_server *primary);
/* Ends it and removes its data. Happens by itself at the end of a test that does not abort. */
void postgres_server_stop(struct postgres_server *server);
/* Ends it at once, as a crash does. */
void postgres_server_kill(struct postgres_server *server);
/* Starts it again with its data. */
void postgres_server_restart(struct postgres_server *server);
/* The same, and with a clock of its own from then on: see server_clock.h. */
void postgres_server_own_clock(struct postgres_server *server);
/* SIGSTOP to the process of one connection, and SIGCONT. */
void postgres_server_pause_backend(pid_t backend);
void postgres_server_continue_backend(pid_t backend);

/* From now on it speaks TLS, with the certificate NAME.pem of the folder TEST_CERTIFICATES. */
void postgres_server_use_tls(struct postgres_server *server, const char *name);
/* Starts a program of PostgreSQL, or one with a path, as the server's user, in its folder and on its host; what it says
 * goes to the server's log. It ends with the test. */
pid_t postgres_server_launch(const struct postgres_server *server, const char *command);
/* The same, and waits until it has done what it should. */
void postgres_server_run(const struct postgres_server *server, const char *command);
/* A port that nobody uses, and that the kernel does not give to outgoing connections. */
int postgres_server_free_port(void);

/* SQL as the superuser; the format is that of printf. It must succeed. */
void postgres_server_do(struct postgres_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The first column of the first row; -1 if there is none. */
int64_t postgres_server_number(struct postgres_server *server, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Asks until the number is `expected`; the test's limit ends it. */
void postgres_server_await(struct postgres_server *server, int64_t expected, const char *sql);

#endif
