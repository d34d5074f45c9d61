/* SPDX-License-Identifier: MIT
 *
 * postgres.h: what the files of the postgres: engine share.
 *
 * One engine for all strategies: a strategy (postgres_strategies.c) is a table of statements, and the order in which
 * each request sends them. Row strategies keep the lock in a row with an end (postgres_rows.c); bound ones keep it in a
 * connection of its own (postgres_bound.c).
 */
#ifndef HFI_POSTGRES_H
#define HFI_POSTGRES_H

#include "engine.h"
#include <libpq-fe.h>
#include <pthread.h>

#define HFI_POSTGRES_TABLE_MAX 130
/* For so long a waiter that was handed the lock may take to ask for the whole of it. */
#define HFI_POSTGRES_CLAIM_MS 1000

/* --- statements --- */

enum postgres_statement {
    POSTGRES_END, /* of a sequence */
    POSTGRES_TAKE,
    POSTGRES_COUNT, /* gives a row that was just taken its token */
    POSTGRES_LOOK,
    POSTGRES_SWAP,
    POSTGRES_ADD,
    POSTGRES_LOCK,
    POSTGRES_ENTER,
    POSTGRES_SERVE,
    POSTGRES_LEAVE,
    POSTGRES_RENEW,
    POSTGRES_FREE,
    POSTGRES_EVICT,
    POSTGRES_INSPECT,
    POSTGRES_BEGIN,
    POSTGRES_BLOCK,
    POSTGRES_GRANT,
    POSTGRES_CLEAR,
    POSTGRES_CANCEL,
    POSTGRES_COMMIT,
    POSTGRES_ROLLBACK,
    POSTGRES_STATEMENTS
};

/* Parameters by a letter each, in the order $1, $2, …: name, client, serial, ttl, host, pid, note (k), backend,
 * version. */
struct postgres_sql {
    const char *text; /* {L} {W} {G} stand for the tables of locks, waiters and grants */
    const char *parameters;
};

#define POSTGRES_SEQUENCE_MAX 8
typedef unsigned char postgres_sequence[POSTGRES_SEQUENCE_MAX];

struct postgres_strategy {
    const char *name;
    uint32_t caps;
    bool bound;       /* to a connection of its own */
    bool transaction; /* … in which a transaction stays open */
    bool swap;        /* looks first, then compares and sets */
    struct postgres_sql sql[POSTGRES_STATEMENTS];
    postgres_sequence attempt; /* row strategies: the last statement tells who has it */
    postgres_sequence line_up;
    postgres_sequence help; /* the lock is free, but others wait for it: they are served first */
    postgres_sequence release;
    postgres_sequence leave;
    postgres_sequence evict;
};

const struct postgres_strategy *hfi_postgres_strategy(const char *name);

/* --- configuration --- */

struct postgres_config {
    PQconninfoOption *options; /* for libpq, password included */
    const struct postgres_strategy *strategy;
    char locks[HFI_POSTGRES_TABLE_MAX + 20], waiters[HFI_POSTGRES_TABLE_MAX + 20], grants[HFI_POSTGRES_TABLE_MAX + 20];
    char table[HFI_POSTGRES_TABLE_MAX]; /* as the user wrote it */
    bool create;                        /* the tables, if they are missing */
    bool session_pooler;                /* the user vouches that a pooler keeps sessions together */
    char where[160];                    /* for messages */
    char *sql[POSTGRES_STATEMENTS];
};

hf_status hfi_postgres_config_read(struct postgres_config *config, const struct hfi_url *url, char **shown,
                                   hf_error *err);
void hfi_postgres_config_free(struct postgres_config *config);
/* `text` with the names of the tables put in; allocated. */
char *hfi_postgres_expand(const struct postgres_config *config, const char *text);

/* --- connections --- */

struct postgres_connection {
    PGconn *pq;
    int backend;       /* the server's process */
    bool pooled;       /* something between us and the server gives its connections to others */
    bool recovering;   /* a standby */
    uint32_t prepared; /* bits by statement */
    bool broken;
    hfi_time used_ns; /* when it was given back */
    struct postgres_connection *next;
};

struct postgres_store;

hf_status hfi_postgres_connect(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                               hf_error *err);
void hfi_postgres_disconnect(struct postgres_connection *connection);

/* The pool. A connection that broke, or for which there is no room, is closed by give_back. */
hf_status hfi_postgres_borrow(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                              hf_error *err);
void hfi_postgres_give_back(struct postgres_store *store, struct postgres_connection *connection);

/* --- exchanges --- */

struct postgres_values {
    const char *name, *note;
    char client[24], serial[24], ttl[16], backend[16], version[24];
};

struct postgres_call {
    enum postgres_statement statement;
    const struct postgres_values *values;
    PGresult *result; /* after HF_OK; freed by the caller */
    bool prepares;    /* set by send: an answer about its preparation comes first */
};

void hfi_postgres_values(struct postgres_values *values, const struct hfi_request *request);

/* One round trip: all calls in one transaction, unless they end it themselves. HF_OK: all were done. */
hf_status hfi_postgres_exchange(struct postgres_store *store, struct postgres_connection *connection,
                                struct postgres_call *calls, size_t count, hfi_time deadline_ns, hf_error *err);
/* The same on a connection of the pool, and again after a deadlock or a conflict; makes the tables if they are gone. */
hf_status hfi_postgres_ask(struct postgres_store *store, struct postgres_call *calls, size_t count,
                           hfi_time deadline_ns, hf_error *err);
/* A sequence with one set of values; tells how many rows the statement `counted` changed, and the last one's result. */
struct postgres_answer {
    PGresult *last;
    enum postgres_statement counted;
    long changed;
};
hf_status hfi_postgres_run(struct postgres_store *store, const unsigned char *sequence,
                           const struct postgres_values *values, struct postgres_answer *answer, hfi_time deadline_ns,
                           hf_error *err);
/* A text of our own, outside of the strategy's table; `result` may be NULL. */
hf_status hfi_postgres_say(struct postgres_store *store, struct postgres_connection *connection, const char *text,
                           const char *const *parameters, int count, PGresult **result, hfi_time deadline_ns,
                           hf_error *err);
/* Prepares a statement without running it. */
hf_status hfi_postgres_prepare(struct postgres_store *store, struct postgres_connection *connection,
                               enum postgres_statement statement, hfi_time deadline_ns, hf_error *err);
/* Sends calls without waiting for their answers. */
hf_status hfi_postgres_send(struct postgres_store *store, struct postgres_connection *connection,
                            struct postgres_call *calls, size_t count, hf_error *err);
/* The answer to one prepared call that was sent. HF_BUSY: it has not come yet. */
hf_status hfi_postgres_poll(struct postgres_store *store, struct postgres_connection *connection,
                            struct postgres_call *call, hf_error *err);
hf_status hfi_postgres_await(struct postgres_store *store, struct postgres_connection *connection,
                             struct postgres_call *call, hfi_time deadline_ns, hf_error *err);

/* HF_OK, or what the error in `result` stands for. */
hf_status hfi_postgres_refusal(const struct postgres_store *store, const PGresult *result, hf_error *err);
hf_status hfi_postgres_unreachable(const struct postgres_store *store, PGconn *pq, hf_error *err);
bool hfi_postgres_is_missing_table(const hf_error *err);
bool hfi_postgres_is_conflict(const hf_error *err);
bool hfi_postgres_is_cancelled(const hf_error *err);

/* One line of what libpq or the server says. */
void hfi_postgres_first_line(char *out, size_t size, const char *text);
long long hfi_postgres_number(const PGresult *result, int row, int column, long long otherwise);

/* --- the tables --- */

/* Checks them, makes them if they are missing and that is allowed. */
hf_status hfi_postgres_prepare_tables(struct postgres_store *store, struct postgres_connection *connection,
                                      hfi_time deadline_ns, hf_error *err);

/* --- waiting --- */

enum postgres_state { POSTGRES_NEW, POSTGRES_CALLED, POSTGRES_HELD };

struct postgres_lock {
    /* row strategies */
    enum postgres_state state; /* with the store's mutex while it waits */
    bool queued;               /* has a place */
    bool wants_place;          /* the next attempt asks for one */
    bool unsure;               /* an answer was lost */
    bool waiting;              /* is in the ear's list */
    uint64_t ear_number;
    hfi_time ask_again_ns;
    struct hfi_waker *waker;
    struct postgres_lock *next; /* in the list of those who wait, or who are bound */
    /* bound strategies */
    struct postgres_connection *connection;
    bool blocking; /* a statement that waits was sent and not answered yet */
    bool got;      /* the server gave the lock to the connection */
    bool in_transaction;
    bool watched; /* in the list of those whose connection is watched */
    struct hfi_owner owner;
};

struct postgres_ear {
    struct postgres_connection *connection;
    uint64_t number;
    bool on_duty;
    struct postgres_lock *waiting;
};

struct postgres_store {
    const struct hfi_env *env;
    struct postgres_config config;
    pthread_mutex_t mutex; /* guards all below */
    struct postgres_connection *idle;
    size_t idle_count;
    struct postgres_ear ear;
    struct postgres_lock *watched;
    int watch; /* epoll, for bound strategies; else -1 */
    bool deaf; /* notifications do not come through a pooler */
    char host[65], pid[16];
};

hf_status hfi_postgres_listen(struct postgres_store *store, hfi_time deadline_ns, hf_error *err);
void hfi_postgres_ear_close(struct postgres_store *store);
/* False: nothing can be heard now. Else `backend` is the process that listens. */
bool hfi_postgres_expect(struct postgres_store *store, struct postgres_lock *lock, struct hfi_owner owner,
                         int *backend);
void hfi_postgres_expect_no_more(struct postgres_store *store, struct postgres_lock *lock, enum postgres_state state);
bool hfi_postgres_await_call(struct postgres_store *store, struct postgres_lock *lock, struct hfi_waker *waker,
                             hfi_time deadline_ns);

/* --- the two families, and administration --- */

hf_status hfi_postgres_row_attempt(struct postgres_store *store, struct postgres_lock *lock,
                                   const struct hfi_request *request, struct hfi_grant *grant, hf_error *err);
hf_status hfi_postgres_row_wait(struct postgres_store *store, struct postgres_lock *lock,
                                const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_row_release(struct postgres_store *store, struct postgres_lock *lock,
                                   const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_row_renew(struct postgres_store *store, struct hfi_renewal *renewals, size_t count,
                                 hfi_time deadline_ns, hf_error *err);

hf_status hfi_postgres_bound_open(struct postgres_store *store, hf_error *err);
hf_status hfi_postgres_bound_attempt(struct postgres_store *store, struct postgres_lock *lock,
                                     const struct hfi_request *request, struct hfi_grant *grant, hf_error *err);
hf_status hfi_postgres_bound_wait(struct postgres_store *store, struct postgres_lock *lock,
                                  const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_bound_release(struct postgres_store *store, struct postgres_lock *lock,
                                     const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_bound_renew(struct postgres_store *store, struct hfi_renewal *renewals, size_t count);
void hfi_postgres_bound_hear(struct postgres_store *store);

hf_status hfi_postgres_inspect(void *store, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err);
hf_status hfi_postgres_evict(void *store, const char *name, hfi_time deadline_ns, hf_error *err);

#endif
