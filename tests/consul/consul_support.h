/* SPDX-License-Identifier: MIT
 *
 * consul_support.h: what the tests of the consul: engine share beside what those of all engines do.
 */
#ifndef CONSUL_SUPPORT_H
#define CONSUL_SUPPORT_H

#include "consul_server.h"
#include "engine_support.h"

/* Starts a server and makes it the store of open_client(). */
struct consul_server *start_store(const char *settings);
/* Waits until so many keys begin with `prefix`. */
void await_keys(struct consul_server *server, const char *prefix, int count);

/* --- a meddler between client and server --- */

enum meddling {
    MEDDLE_NOT,
    MEDDLE_LOSE_REPLY, /* the request is done, and the connection cut before the answer */
    MEDDLE_KEEP,       /* the connection is cut and the request kept, for meddler_deliver() */
    MEDDLE_DELAY,      /* the answer comes half a second late */
    MEDDLE_HALF,       /* half of the answer, and then the end */
    MEDDLE_DRIBBLE,    /* an answer in single bytes */
    MEDDLE_GARBAGE,    /* an answer that is no HTTP */
    MEDDLE_NONSENSE    /* an answer that is HTTP, but makes no sense */
};

struct meddler;

/* Starts one in front of the server; its URL. */
struct meddler *meddler_start(const struct consul_server *server);
const char *meddler_url(const struct meddler *meddler);
/* What to do to the transaction with this number, counted from 1 since the last call of this. */
void meddler_expect(struct meddler *meddler, unsigned number, enum meddling what);
/* How many there were since. */
unsigned meddler_count(struct meddler *meddler);
/* So many renewals of sessions are answered as by a leader that was just elected and does not know the session yet;
 * and how many of them are still to come. */
void meddler_forget(struct meddler *meddler, unsigned renewals);
unsigned meddler_forgets(struct meddler *meddler);
/* Sends what was kept, and gives the status that the server answers. */
int meddler_deliver(struct meddler *meddler);

#endif
