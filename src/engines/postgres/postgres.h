/* SPDX-License-Identifier: MIT
 *
 * postgres.h: what the files of the postgres: engine share. postgres.c opens with how it works.
 *
 *   postgres.c             the engine: what the core asks for, by whichever strategy
 *   postgres_rows.c        lease, insert, version: the lock is a row with an end; postgres_push.c: hand-offs are heard
 *   postgres_bound.c       for-update, advisory: the lock is bound to a connection of its own
 *   postgres_tokens.c      how tokens of advisory grow though a grant does not wait for the disk
 *   postgres_look.c        who holds what, and forced release; postgres_guard.c: fencing; postgres_once.c: what is done
 *   postgres_doctor.c      what in the way the server is set up could lose a lock
 *   postgres_strategies.c  the strategies, each a table of statements; postgres_tables.c: what the database must have
 *   postgres_exchange.c    statements out, answers in, one round trip; postgres_answer.c: what a refusal means
 *   postgres_late.c        what was asked and never answered
 *   postgres_connect.c     getting in, and the pool; postgres_session.c: what a session is told first
 *   postgres_url.c, postgres_address.c
 */
#ifndef HFI_POSTGRES_H
#define HFI_POSTGRES_H

#include "engines/push.h"
#include "engines/sql/sql_common.h"
#include "postgres_connection.h"
#include <pthread.h>
#include <stdatomic.h>

/* For so long a lock that was handed to a waiter stays its own unless it is renewed. The statements know it too. */
#define HFI_POSTGRES_CLAIM_MS 1000

enum postgres_state { POSTGRES_NEW, POSTGRES_CALLED, POSTGRES_HELD };

/* What a notification says of the grant, and whose it is, as the server says; no token: it is worth asking. */
struct postgres_gift {
    int64_t token, server_us;
    int sender; /* the server's process */
};

struct postgres_lock {
    /* row strategies */
    enum postgres_state state; /* with the store's mutex while it waits */
    bool queued;               /* has a place */
    bool wants_place;          /* the next attempt asks for one */
    bool unsure;               /* an answer was lost, and what was asked may be done later */
    _Atomic int64_t requests;  /* the number of the last one */
    struct hfi_waiter waiter;  /* on the push connection */
    hfi_time sent_ns;          /* a request, which was answered … */
    int64_t server_us;         /* … at this time of the server; -1 if it does not say */
    struct postgres_gift gift;
    /* bound strategies */
    struct postgres_lock *next; /* in the list of those that are watched */
    struct postgres_connection *connection;
    bool blocking; /* a statement that waits was sent and not answered yet */
    bool got;      /* the server gave the lock to the connection */
    int64_t token; /* of that, if it was written down; rows: of the grant */
    bool in_transaction;
    bool watched;  /* in the list of those whose connection is watched */
    uint64_t beat; /* when it was looked at last */
    struct hfi_owner owner;
};

struct postgres_push {
    struct hfi_push shared; /* by all that wait */
    struct postgres_connection *connection;
};

/* Anybody may notify, also who may only read the tables: believed are those whose sessions may write them. */
struct postgres_writers {
    int *backends;
    size_t count;
    hfi_time until_ns;
};

/* What is known of the ceiling on one server. */
struct postgres_tokens {
    char started[40];               /* which server that is */
    int64_t ceiling, last;          /* the greatest token that was drawn there */
    hfi_time raised_ns, granted_ns; /* when that was asked for */
    bool raising;                   /* somebody is at it */
    bool floor_lasts;               /* so that it does not tell of a crash */
};

struct postgres_store {
    const struct hfi_env *env;
    struct postgres_config config;
    pthread_mutex_t mutex; /* guards all below */
    struct hfi_sql_pool pool;
    size_t address;   /* where the last connection was made */
    char started[40]; /* since when that server runs: another value is another server, or the same after a crash */
    struct postgres_push push;
    struct postgres_writers writers;
    struct postgres_connection *given_up; /* the latest first */
    size_t given_up_count;
    struct postgres_tokens tokens;
    struct postgres_lock *watched;
    uint64_t beats;   /* how often those were looked at */
    int watch, heart; /* epoll and the timer of pings, for bound strategies; else -1 */
    bool deaf;        /* notifications do not come through a pooler */
    char host[65], pid[16];
};

/* --- postgres_tables.c, postgres_guard.c --- */

/* Checks the tables, makes them if they are missing and that is allowed; and the guard, as far as it is. */
hf_status hfi_postgres_prepare_tables(struct postgres_store *store, struct postgres_connection *connection,
                                      hfi_time deadline_ns, hf_error *err);
/* What of them is there: without the column no row strategy works, without the last two guard and once do not. */
struct postgres_tables {
    bool tables, guard, locks_index, grants_index, column, done;
    bool waiters_last; /* through a crash, as they should not: see postgres_tokens.c */
};
hf_status hfi_postgres_look_at_tables(struct postgres_store *store, struct postgres_connection *connection,
                                      struct postgres_tables *found, hfi_time deadline_ns, hf_error *err);
/* One client after the other: of two that make the same table at once one would be told that it exists. */
#define HFI_POSTGRES_ONE_AT_A_TIME "SELECT pg_advisory_xact_lock(x'686f6c6466617374'::bigint)"
/* The statements that make the guard, ended by NULL. */
extern const char *const hfi_postgres_make_guard[];
hf_status hfi_postgres_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err);

/* --- postgres_push.c --- */

/* Sees to it that there is a connection to listen to; or as an engine's wait(), while another one does so. */
hf_status hfi_postgres_listen(struct postgres_store *store, struct postgres_lock *lock,
                              const struct hfi_request *request, hf_error *err);
void hfi_postgres_push_open(struct postgres_store *store);
void hfi_postgres_push_close(struct postgres_store *store);
/* False: nothing can be heard now. Else `backend` is the process that listens. */
bool hfi_postgres_expect(struct postgres_store *store, struct postgres_lock *lock, struct hfi_owner owner,
                         int *backend);
void hfi_postgres_expect_no_more(struct postgres_store *store, struct postgres_lock *lock, enum postgres_state state);
/* With the mutex: whether it is known that the session of `backend` may write who holds what. 0: whether it is known of
 * any. */
bool hfi_postgres_may_write(const struct postgres_store *store, int backend);
/* Without it. */
void hfi_postgres_learn_writers(struct postgres_store *store, const PGresult *result, hfi_time asked_ns);
/* As the engine's wait(), for whoever has a place. */
hf_status hfi_postgres_await_call(struct postgres_store *store, struct postgres_lock *lock,
                                  const struct hfi_request *request);

/* --- postgres_rows.c --- */

hf_status hfi_postgres_row_attempt(struct postgres_store *store, struct postgres_lock *lock,
                                   const struct hfi_request *request, struct hfi_grant *grant, hf_error *err);
hf_status hfi_postgres_row_wait(struct postgres_store *store, struct postgres_lock *lock,
                                const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_row_release(struct postgres_store *store, struct postgres_lock *lock,
                                   const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_row_renew(struct postgres_store *store, struct hfi_renewal *renewals, size_t count,
                                 hfi_time deadline_ns, hf_error *err);

/* --- postgres_bound.c --- */

hf_status hfi_postgres_bound_open(struct postgres_store *store, hf_error *err);
hf_status hfi_postgres_bound_attempt(struct postgres_store *store, struct postgres_lock *lock,
                                     const struct hfi_request *request, struct hfi_grant *grant, hf_error *err);
hf_status hfi_postgres_bound_wait(struct postgres_store *store, struct postgres_lock *lock,
                                  const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_bound_release(struct postgres_store *store, struct postgres_lock *lock,
                                     const struct hfi_request *request, hf_error *err);
hf_status hfi_postgres_bound_renew(struct postgres_store *store, struct hfi_renewal *renewals, size_t count);
void hfi_postgres_bound_take_push(struct postgres_store *store);

/* --- postgres_tokens.c --- */

/* One that grants: `calls[1]` draws a token, and `calls[0]`, which is counted too, is left free. */
hf_status hfi_postgres_exchange_grant(struct postgres_store *store, struct postgres_connection *connection,
                                      struct postgres_call *calls, size_t count, struct postgres_values *values,
                                      hfi_time deadline_ns, hf_error *err);
/* False: all grants wait for the disk. */
void hfi_postgres_trust_floor(struct postgres_store *store, bool trust);
/* After one that had no floor to go by. */
hf_status hfi_postgres_make_floor(struct postgres_store *store, struct postgres_connection *connection,
                                  hfi_time deadline_ns, hf_error *err);

/* --- postgres_once.c --- */

/* `sequence` with a statement in the place of another, and one more at its end. */
void hfi_postgres_instead(postgres_sequence out, const unsigned char *sequence, enum postgres_statement of,
                          enum postgres_statement by, enum postgres_statement last);
/* What POSTGRES_DONE says; NULL: nothing. */
bool hfi_postgres_is_done(const PGresult *result, struct hfi_grant *grant);
/* The table is missing, or forbidden. */
bool hfi_postgres_cannot_mark(hf_status status);
hf_status hfi_postgres_explain_once(const struct postgres_store *store, hf_status status, hf_error *err);
hf_status hfi_postgres_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg,
                                    hfi_time deadline_ns, hf_error *err);
hf_status hfi_postgres_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);

/* --- postgres_look.c --- */

hf_status hfi_postgres_show(struct postgres_store *store, const postgres_sequence inspect, const char *text,
                            hf_inspect_fn each, void *arg, hfi_time deadline_ns, hf_error *err);

hf_status hfi_postgres_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err);
hf_status hfi_postgres_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                   hf_error *err);
hf_status hfi_postgres_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);

/* --- postgres_doctor.c --- */

hf_status hfi_postgres_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                               hf_error *err);

#endif
