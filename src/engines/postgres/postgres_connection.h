/* SPDX-License-Identifier: MIT
 *
 * postgres_connection.h: how things are said to the server: addresses, connections and the pool of idle ones, exchanges
 * of one round trip, and what the server's refusals mean.
 */
#ifndef HFI_POSTGRES_CONNECTION_H
#define HFI_POSTGRES_CONNECTION_H

#include "postgres_sql.h"

struct postgres_store;

/* --- postgres_address.c: where the server may be --- */

#define HFI_POSTGRES_ADDRESSES_MOST 32

struct postgres_address {
    char host[256];   /* or the folder of a socket file; "": libpq's default */
    char address[64]; /* "": it has none, or libpq finds it */
    char port[8];
};

struct postgres_addresses {
    struct postgres_address list[HFI_POSTGRES_ADDRESSES_MOST];
    size_t count; /* at least 1 */
    bool again;   /* there may be others later: should all of them fail, look them up again */
};

hf_status hfi_postgres_look_up(struct postgres_addresses *addresses, const struct postgres_config *config, bool again,
                               hfi_time deadline_ns, hf_error *err);

/* --- postgres_connect.c --- */

#define HFI_POSTGRES_WORDS_MAX 160

struct postgres_connection {
    PGconn *pq;
    int backend;       /* the server's process, … */
    int64_t lived_us;  /* … at this time: who has the same number and began later is another */
    char started[40];  /* when the server was: after a failover another one has the same numbers */
    bool pooled;       /* something between us and the server gives its connections to others */
    uint64_t prepared; /* bits by statement */
    bool broken;
    char last_words[HFI_POSTGRES_WORDS_MAX]; /* why the server has ended the session, if it said so */
    bool pinged;                             /* the answer to a ping comes before any other */
    hfi_time used_ns;                        /* when it was given back, or pinged */
    struct postgres_connection *next;        /* in the list of those that were given up */
};

/* To whichever of the addresses lets us write. */
hf_status hfi_postgres_connect(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                               hf_error *err);
void hfi_postgres_disconnect(struct postgres_connection *connection);

/* The pool. A connection that broke, or for which there is no room, is closed by give_back. */
hf_status hfi_postgres_borrow(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                              hf_error *err);
void hfi_postgres_give_back(struct postgres_store *store, struct postgres_connection *connection);

/* --- postgres_late.c: what was asked on a connection and never answered may still be done, much later --- */

/* Keeps it until its session has ended for certain. */
void hfi_postgres_give_up(struct postgres_store *store, struct postgres_connection *connection);
/* HF_OK: every session that was given up before this call has ended, and does nothing more. */
hf_status hfi_postgres_settle(struct postgres_store *store, hfi_time deadline_ns, hf_error *err);
bool hfi_postgres_must_settle(struct postgres_store *store); /* before yet another one is given up */
void hfi_postgres_forget_given_up(struct postgres_store *store);

/* --- postgres_session.c: what a connection is told first --- */

hf_status hfi_postgres_set_up(struct postgres_store *store, struct postgres_connection *connection,
                              hfi_time deadline_ns, hf_error *err);

/* --- postgres_exchange.c: HF_UNKNOWN if no answer came in time, or the connection broke before it --- */

typedef char postgres_digits[24];

struct postgres_values {
    const char *name, *note;
    postgres_digits client, serial, ttl, backend, version, request, ceiling;
};

struct postgres_call {
    enum postgres_statement statement;
    const struct postgres_values *values;
    PGresult *result; /* after HF_OK; freed by the caller */
    bool prepares;    /* set by send: an answer about its preparation comes first */
};

void hfi_postgres_put(postgres_digits out, int64_t value);
void hfi_postgres_values(struct postgres_values *values, const struct hfi_request *request);

/* One round trip: all calls in one transaction, unless they end it themselves. HF_OK: all were done. */
hf_status hfi_postgres_exchange(struct postgres_store *store, struct postgres_connection *connection,
                                struct postgres_call *calls, size_t count, hfi_time deadline_ns, hf_error *err);
/* The same on a connection of the pool, and again after a deadlock or a conflict; makes the tables if they are gone. */
hf_status hfi_postgres_ask(struct postgres_store *store, struct postgres_call *calls, size_t count,
                           hfi_time deadline_ns, hf_error *err);
/* A sequence with one set of values; tells how many rows the statement `counted` changed, and the results of
 * POSTGRES_VOUCH, of POSTGRES_DONE and of the last one of the others. */
struct postgres_answer {
    PGresult *last, *vouched, *done;
    enum postgres_statement counted;
    long changed;
};
hf_status hfi_postgres_run(struct postgres_store *store, const unsigned char *sequence,
                           const struct postgres_values *values, struct postgres_answer *answer, hfi_time deadline_ns,
                           hf_error *err);
/* Texts of our own, outside of the strategy's table, in one transaction; `result`, the last one's, may be NULL. */
struct postgres_text {
    const char *text;
    const char *const *parameters;
    int count;
};
hf_status hfi_postgres_say(struct postgres_store *store, struct postgres_connection *connection,
                           const struct postgres_text *texts, size_t count, PGresult **result, hfi_time deadline_ns,
                           hf_error *err);
/* Prepares a statement without running it. */
hf_status hfi_postgres_prepare(struct postgres_store *store, struct postgres_connection *connection,
                               enum postgres_statement statement, hfi_time deadline_ns, hf_error *err);
/* Asks for an answer, and no more. False: the connection broke. */
bool hfi_postgres_ping(struct postgres_store *store, struct postgres_connection *connection);
/* Sends calls without waiting for their answers. */
hf_status hfi_postgres_send(struct postgres_store *store, struct postgres_connection *connection,
                            struct postgres_call *calls, size_t count, hf_error *err);
/* The answer to one prepared call that was sent. HF_BUSY: it has not come yet. */
hf_status hfi_postgres_poll(struct postgres_store *store, struct postgres_connection *connection,
                            struct postgres_call *call, hf_error *err);
hf_status hfi_postgres_await(struct postgres_store *store, struct postgres_connection *connection,
                             struct postgres_call *call, hfi_time deadline_ns, hf_error *err);

/* --- postgres_answer.c --- */

/* HF_OK, or what the error in `result` stands for. */
hf_status hfi_postgres_refusal(const struct postgres_store *store, const PGresult *result, hf_error *err);
hf_status hfi_postgres_unreachable(const struct postgres_store *store, PGconn *pq, hf_error *err);
/* Keeps the words with which the server ends a session, if `result` is that. */
void hfi_postgres_note_end(struct postgres_connection *connection, const PGresult *result);
/* For what changes nothing but a session: a lost answer leaves nothing to be undone. */
hf_status hfi_postgres_not_unknown(hf_status status, hf_error *err);
bool hfi_postgres_is_missing(const hf_error *err); /* a table, or the guard */
bool hfi_postgres_is_conflict(const hf_error *err);
bool hfi_postgres_is_cancelled(const hf_error *err);
bool hfi_postgres_is_read_only(const hf_error *err);
long long hfi_postgres_number(const PGresult *result, int row, int column, long long otherwise);

#endif
