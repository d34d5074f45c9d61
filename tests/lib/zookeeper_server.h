/* SPDX-License-Identifier: MIT
 *
 * zookeeper_server.h: real ZooKeeper servers for tests, one or an ensemble: on free ports of the loopback, with their
 * data in folders of their own below TEST_DIRECTORY, and gone when the test ends, however it ends. TEST_JAVA is the
 * program that runs them, TEST_ZOOKEEPER the jar.
 *
 *     struct zookeeper_server *server = zookeeper_server_start("");
 *     hf_open(&client, server->url, NULL, &err);
 *     CHECK_INT(1, zookeeper_server_number(server, "zk_ephemerals_count"));
 *
 *     struct zookeeper_server *three[3];
 *     zookeeper_servers_start(three, 3, NULL, "");
 *     hf_open(&client, three[0]->ensemble_url, NULL, &err);
 *     zookeeper_server_kill(zookeeper_leader(three, 3));
 *
 * A tick is 200 ms, so that sessions last from 400 ms to 4 s. Whatever goes wrong with a server ends the test. One
 * thread at a time.
 */
#ifndef ZOOKEEPER_SERVER_H
#define ZOOKEEPER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct netns;

#define ZOOKEEPER_SERVERS_MOST 5

struct zookeeper_server {
    int number; /* from 1 */
    int port, quorum_port, election_port;
    pid_t pid;              /* 0: it does not run */
    char address[20];       /* 127.0.0.1, or that of its host */
    char url[60];           /* zookeeper://ADDRESS:PORT */
    char ensemble_url[200]; /* of all */
    char directory[200];
    char properties[300]; /* more arguments for Java */
    struct netns *place;  /* NULL: where the test is */
};

/* Starts one that stands alone and waits until it serves. `settings`: more lines of zoo.cfg; words that begin with -D
 * are given to Java. */
struct zookeeper_server *zookeeper_server_start(const char *settings);
/* Starts an ensemble and waits until all of it serves. `places`: a host for each, see netns.h; NULL: the loopback. */
void zookeeper_servers_start(struct zookeeper_server **out, int count, struct netns **places, const char *settings);

/* Ends it and removes its data. Happens by itself at the end of a test that does not abort. */
void zookeeper_server_stop(struct zookeeper_server *server);
/* kill -9. */
void zookeeper_server_kill(struct zookeeper_server *server);
/* Starts it again with its data; waits until it serves, unless others must be started first. */
void zookeeper_server_restart(struct zookeeper_server *server);
void zookeeper_server_launch(struct zookeeper_server *server);
void zookeeper_server_await(struct zookeeper_server *server);
/* SIGSTOP, and waits until it stands still; SIGCONT. */
void zookeeper_server_pause(struct zookeeper_server *server);
void zookeeper_server_continue(struct zookeeper_server *server);

/* The answer to a four-letter word; false: none. */
bool zookeeper_server_ask(struct zookeeper_server *server, const char *word, char *answer, size_t size);
/* A number of "mntr": zk_packets_received, zk_ephemerals_count, zk_watch_count and so on. */
int64_t zookeeper_server_number(struct zookeeper_server *server, const char *name);
/* The one that leads; the test's limit ends the wait for it. */
struct zookeeper_server *zookeeper_leader(struct zookeeper_server **all, int count);

#endif
