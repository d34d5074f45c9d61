/* SPDX-License-Identifier: MIT
 *
 * zookeeper_support.h: what the tests of the zookeeper: engine share beside what those of all engines do: a client
 * of ZooKeeper itself, and a valve between a client and its server.
 */
#ifndef ZOOKEEPER_SUPPORT_H
#define ZOOKEEPER_SUPPORT_H

#include "engine_support.h"
#include "zookeeper_server.h"

#include <zookeeper/zookeeper.h>

/* Starts a server that gives long sessions, and makes it the store. */
struct zookeeper_server *serve(const char *settings);
/* Starts an ensemble of three, and makes it the store. */
void serve_three(struct zookeeper_server **out, const char *settings);

/* Asks once for what must be refused with `status`; `words` must be in the sentence. */
void check_refused(hf_client *client, const char *name, hf_status status, const char *words);

/* --- a client of ZooKeeper itself; each call must be answered --- */

struct raw {
    zhandle_t *zh;
    bool connected, expired, done;
    int rc;
    struct Stat stat;
    int count;        /* of children */
    char text[20000]; /* data, a path, or the children's names, each followed by a blank */
};

/* A session of its own; with `session`, somebody else's. `credentials` may be NULL. */
struct raw *raw_open(const struct zookeeper_server *server, const clientid_t *session, const char *credentials);
void raw_close(struct raw *raw);
/* The library's codes. The path is made of the format. */
int raw_create(struct raw *raw, int mode, const char *data, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int raw_delete(struct raw *raw, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What anybody may do to a node: ZOO_PERM_ bits. */
int raw_permit(struct raw *raw, int permissions, const char *format, ...) __attribute__((format(printf, 3, 4)));
int raw_list(struct raw *raw, const char *format, ...) __attribute__((format(printf, 2, 3)));
int raw_get(struct raw *raw, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How many nodes /holdfast/NAME has; 0 if there is no such directory. */
int contenders(struct raw *raw, const char *name);
/* Waits until it has so many. */
void await_contenders(struct raw *raw, const char *name, int count);
/* Waits until somebody watches something. */
void await_watch(struct zookeeper_server *server);

/* --- a valve --- */

/* Renewals, and releases that leave a mark, are transactions. */
enum valve_request {
    VALVE_CREATE = 15,
    VALVE_DELETE = 2,
    VALVE_LIST = 8,
    VALVE_GET = 4,
    VALVE_CHECK = 14,
    VALVE_KINDS = 16
};

struct valve {
    char url[60];
    _Atomic int lose; /* the answer to the next request of this kind, and the connection with it; 0: none */
    _Atomic int lost; /* how often that happened */
    _Atomic int passed[VALVE_KINDS]; /* requests of each kind on their way to the server */
    _Atomic int delay_ms;            /* each answer comes so much later */
    _Atomic bool garbles;            /* it is not lost, but comes with the number of another request */
    pid_t pid;
    int listener, server_port;
};

/* A process that passes everything on to the server. Ends with the test. */
struct valve *valve_open(const struct zookeeper_server *server);

/* Ends the session of our node in /holdfast/NAME, the only one that is called as Curator calls them, as if it had
 * expired. Its owner is behind the valve, which is shut meanwhile: it would connect again at once, and the session be
 * no longer ours to end. */
void expire_session_of(const struct zookeeper_server *server, const struct valve *valve, const char *name);

#endif
