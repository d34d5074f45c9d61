/* SPDX-License-Identifier: MIT
 *
 * consul_server.h: real Consul servers for tests, one or several that elect a leader: on free ports of the loopback,
 * with their files in folders of their own below TEST_DIRECTORY, and gone when the test ends, however it ends.
 * TEST_CONSUL is the program.
 *
 *     struct consul_server *server = consul_server_start("");
 *     hf_open(&client, server->url, NULL, &err);
 *     CHECK_INT(0, consul_server_keys(server, "holdfast/"));
 *
 *     struct consul_server *three[3];
 *     consul_servers_start(three, 3, NULL, "");
 *     hf_open(&client, three[0]->ensemble_url, NULL, &err);
 *     consul_server_kill(consul_leader(three, 3));
 *
 * Sessions may be as short as 200 ms. Whatever goes wrong with a server ends the test. One thread at a time.
 */
#ifndef CONSUL_SERVER_H
#define CONSUL_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct netns;

#define CONSUL_SERVERS_MOST 5

struct consul_server {
    int number; /* from 1 */
    int port, tls_port, raft_port, gossip_port;
    pid_t pid;        /* 0: it does not run */
    char address[20]; /* 127.0.0.1, or that of its host */
    char url[60];     /* consul://ADDRESS:PORT */
    char tls_url[60]; /* consuls://ADDRESS:PORT */
    char ensemble_url[200];
    char directory[200]; /* settings and log */
    char data[200];
    char token[60];      /* the test's own ACL token, "" if there are none */
    struct netns *place; /* NULL: where the test is */
};

/* Starts one that stands alone and waits until it serves. `settings`: more of its configuration, JSON without the outer
 * braces, beginning with a comma. */
struct consul_server *consul_server_start(const char *settings);
/* Starts several and waits until all of them serve. `places`: a host for each, see netns.h; NULL: the loopback. */
void consul_servers_start(struct consul_server **out, int count, struct netns **places, const char *settings);

/* Ends it and removes its files. Happens by itself at the end of a test that does not abort. */
void consul_server_stop(struct consul_server *server);
/* kill -9. */
void consul_server_kill(struct consul_server *server);
/* Starts it again with its data; waits until it serves, unless others must be started first. */
void consul_server_restart(struct consul_server *server);
void consul_server_launch(struct consul_server *server);
void consul_server_await(struct consul_server *server);
/* SIGSTOP, and waits until it stands still; SIGCONT. */
void consul_server_pause(struct consul_server *server);
void consul_server_continue(struct consul_server *server);

/* One exchange: the status, with the body in `answer`; 0: nobody answered. */
int consul_server_ask(struct consul_server *server, const char *method, const char *path, const char *body,
                      char *answer, size_t size);
/* The same, of which only a success will do; `answer` may be NULL. */
void consul_server_do(struct consul_server *server, const char *method, const char *path, const char *body,
                      char *answer, size_t size);
/* How many keys begin with `prefix`, which is encoded for a URL. */
int consul_server_keys(struct consul_server *server, const char *prefix);
/* Sessions that there are, and the end of all of them. */
int consul_server_sessions(struct consul_server *server);
void consul_server_destroy_sessions(struct consul_server *server);
/* How many lines of its log hold both words. It logs every request once it is answered, with ,"log_level":"debug". */
int consul_server_logged(struct consul_server *server, const char *word, const char *other);
/* The one that leads; the test's limit ends the wait for it. */
struct consul_server *consul_leader(struct consul_server **all, int count);

#endif
