/* SPDX-License-Identifier: MIT
 *
 * mysql_server.h: real MariaDB servers for tests: on a free port of the loopback and a socket file, with their data in
 * a folder of their own, a copy of TEST_MYSQL_TEMPLATE, and gone when the test ends, however it ends. TEST_MYSQL is the
 * server's program.
 *
 *     struct mysql_server *server = mysql_server_start("");
 *     hf_open(&client, server->url, NULL, &err);
 *     mysql_server_do(server, "DROP TABLE holdfast_locks");
 *     CHECK_INT(1, mysql_server_number(server, "SELECT count(*) FROM holdfast_locks"));
 *
 * Whatever goes wrong with a server ends the test. One thread at a time.
 */
#ifndef MYSQL_SERVER_H
#define MYSQL_SERVER_H

#include <mysql.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct netns;

struct mysql_server {
    int port;
    pid_t pid;           /* 0: it does not run */
    char url[100];       /* mysql://root@127.0.0.1:PORT/app */
    char unix_url[300];  /* … by its socket file */
    char directory[200]; /* the socket is in it, the data in "data" */
    char settings[500];
    char clock[220];     /* the file that its wall clock follows; "": the machine's clock */
    struct netns *place; /* NULL: where the test is */
    MYSQL *control;
};

/* Starts a server and waits until it answers. `settings`: more of "--name=value", between blanks. It has an empty
 * database "app"; "root" needs no password, "guest" has the password "open-sesame" and no rights but to connect. */
struct mysql_server *mysql_server_start(const char *settings);
/* The same on a host of its own; see netns.h. */
struct mysql_server *mysql_server_start_at(struct netns *place, const char *settings);
/* Ends it and removes its data. Happens by itself at the end of a test that does not abort. */
void mysql_server_stop(struct mysql_server *server);
/* Ends it at once, as a crash does. */
void mysql_server_kill(struct mysql_server *server);
/* Starts it again with its data. */
void mysql_server_restart(struct mysql_server *server);

/* The same, and with a clock of its own from then on: see server_clock.h. */
void mysql_server_own_clock(struct mysql_server *server);

/* SQL as root in the database "app"; the format is that of printf. It must succeed. */
void mysql_server_do(struct mysql_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same; true if it succeeded, else the sentence goes to `why`. */
bool mysql_server_try(struct mysql_server *server, char *why, size_t size, const char *sql);
/* The first column of the first row; -1 if there is none. */
int64_t mysql_server_number(struct mysql_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Asks until the number is `expected`; the test's limit ends it. */
void mysql_server_await(struct mysql_server *server, int64_t expected, const char *sql);

#endif
