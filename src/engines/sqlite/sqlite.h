/* SPDX-License-Identifier: MIT
 *
 * sqlite.h: what the files of the sqlite: engine share.
 *
 *     sqlite.c             opening and closing; the table of functions
 *     sqlite_url.c         URL and options
 *     sqlite_connect.c     the connection, whose turn it is to use it, and fork()
 *     sqlite_ask.c         statements, transactions, and how long a locked file is waited for
 *     sqlite_answer.c      what SQLite's refusals mean
 *     sqlite_tables.c      the schema
 *     sqlite_strategies.c  the statements of each strategy
 *     sqlite_lock.c        attempt, wait, renew, release
 *     sqlite_queue.c       who is served next
 *     sqlite_push.c         how a waiter hears of it: a FIFO per client
 *     sqlite_done.c        what is done once per some time
 *     sqlite_look.c        inspect, break, guard
 *     sqlite_doctor.c      what in the file and around it could lose a lock
 */
#ifndef HFI_SQLITE_H
#define HFI_SQLITE_H

#include "engine.h"
#include "engines/local.h"
#include <limits.h>
#include <pthread.h>
#include <sqlite3.h>
#include <time.h>

#define HFI_SQLITE_TABLE_MAX 50
/* For so long a waiter that was handed the lock may take to ask for the whole of it. */
#define HFI_SQLITE_CLAIM (HFI_SECOND)

/* --- statements --- */

enum sqlite_statement {
    LITE_BEGIN,
    LITE_COMMIT,
    LITE_ROLLBACK,
    LITE_LOOK, /* who has it: the columns of struct sqlite_row */
    LITE_ADD,  /* a row for a name that has none */
    LITE_KEEP, /* the token of a row that is about to go, where it is not kept already */
    LITE_COUNT,
    LITE_TAKE,
    LITE_ENTER,
    LITE_QUEUE,
    LITE_STRIKE, /* those who were served, and the dead before them, off the queue */
    LITE_GIVE,
    LITE_LEAVE,
    LITE_RENEW,
    LITE_FREE_ALONE, /* nobody waits */
    LITE_FREE,
    LITE_EVICT,
    LITE_INSPECT,
    LITE_INSPECT_ONE,
    LITE_GUARD,
    LITE_DONE, /* the columns of struct sqlite_done */
    LITE_RECORD_DONE,
    LITE_FORGET_DONE,
    LITE_INSPECT_DONE,
    LITE_STATEMENTS
};

struct sqlite_strategy {
    const char *name;
    bool blind;                       /* takes without having looked */
    bool count;                       /* the token is in a table of its own, so taking is a transaction */
    const char *sql[LITE_STATEMENTS]; /* {L} {W} {G} {D}: the tables of locks, waiters, grants, what is done */
};

const struct sqlite_strategy *hfi_sqlite_strategy(const char *name);

/* The parameters of all statements: ?1 to ?10 in this order. */
struct sqlite_values {
    const char *name;
    int64_t client, serial;
    hfi_time now_ns, end_ns; /* what is done: milliseconds of the wall clock, when and for how long */
    int64_t boot;
    int64_t number; /* a version, a token, a place: see the statement */
    const char *host;
    int64_t pid;
    const char *note;
};

/* --- configuration --- */

struct sqlite_config {
    const struct sqlite_strategy *strategy;
    char path[PATH_MAX];
    char table[HFI_SQLITE_TABLE_MAX + 1];
    char journal[16], synchronous[16]; /* "": as it is */
    bool create;                       /* the file and the tables, if they are missing */
    char *sql[LITE_STATEMENTS];
};

hf_status hfi_sqlite_config_read(struct sqlite_config *config, const struct hfi_url *url, hf_error *err);
void hfi_sqlite_config_free(struct sqlite_config *config);
/* `text` with the names of the tables put in; allocated. */
char *hfi_sqlite_expand(const struct sqlite_config *config, const char *text);

/* --- the store --- */

enum sqlite_state { LITE_STATE_NEW, LITE_STATE_CALLED, LITE_STATE_HELD };

struct sqlite_lock {
    enum sqlite_state state; /* with the mutex while it waits */
    bool wants_place;        /* the next attempt asks for one */
    bool queued;             /* has a place */
    bool unsure;             /* an answer was lost */
    bool waiting;            /* is in the push connection's list */
    hfi_time ask_again_ns;
    uint64_t watched; /* first in line: the client that has it; else 0 */
    uint64_t dead;    /* a client after whose end we have asked */
    struct hfi_owner owner;
    struct hfi_waker *waker;
    struct sqlite_lock *next; /* in the list of those who wait */
};

struct sqlite_push {
    pthread_mutex_t mutex; /* guards all of it, and the locks that wait */
    int epoll;             /* what the keeper listens to: the lifeline, which may have to be made anew */
    int folder;            /* -1: none yet */
    struct hfi_lifeline lifeline;
    struct sqlite_lock *waiting;
};

/* A file that SQLite has beside the database, as it was found when it was first used; or the folder of both. */
struct sqlite_companion {
    char path[PATH_MAX + 8];
    bool there;
    dev_t device;
    ino_t inode;
    struct timespec changed;
};

/* One for a client: SQLite lets one writer at a time into a file, so that more would only wait for each other, and
 * without being told when to go on. */
struct sqlite_connection {
    sqlite3 *db; /* NULL: closed */
    struct sqlite_companion wal, shm, folder;
    sqlite3_stmt *prepared[LITE_STATEMENTS];
    hfi_time deadline_ns; /* of whoever uses it */
};

struct sqlite_store {
    const struct hfi_env *env;
    struct sqlite_config config;
    struct sqlite_connection connection;
    bool in_use;         /* with the process's mutex: */
    unsigned queue;      /* threads that wait for their turn */
    pthread_cond_t turn; /* it may be somebody's turn */
    struct sqlite_store *next;
    struct sqlite_push push;
    char host[65];
    int64_t pid;
    int64_t boot;
    hfi_time ahead_ns; /* so far is this process's CLOCK_BOOTTIME ahead of the kernel's own, by its time namespace */
};

/* --- sqlite_connect.c --- */

void hfi_sqlite_join_process(struct sqlite_store *store);
void hfi_sqlite_leave_process(struct sqlite_store *store);
/* The connection, opened if need be, for this thread alone until it is given back. */
hf_status hfi_sqlite_borrow(struct sqlite_store *store, hfi_time deadline_ns, hf_error *err);
void hfi_sqlite_give_back(struct sqlite_store *store);
/* Closes it: it is of no use any more. By whoever has it. */
void hfi_sqlite_disconnect(struct sqlite_connection *connection);
/* Somebody wants to fork: let go of the connection. */
bool hfi_sqlite_is_called_off(void);

/* --- sqlite_ask.c --- */

enum sqlite_kind { LITE_KIND_READ, LITE_KIND_WRITE, LITE_KIND_TRANSACTION };

/* Part of an exchange: returns SQLITE_OK or what went wrong, and may be called again from the beginning. */
typedef int (*sqlite_work)(struct sqlite_store *store, void *arg);
/* The whole of it: in a transaction, or as statements that each are one. Makes the tables if they are gone. */
hf_status hfi_sqlite_ask(struct sqlite_store *store, enum sqlite_kind kind, sqlite_work work, void *arg,
                         hfi_time deadline_ns, hf_error *err);

/* Within it. `each` is called for every row, and may be NULL; non-zero ends the statement there. */
typedef int (*sqlite_each)(sqlite3_stmt *row, void *arg);
int hfi_sqlite_run(struct sqlite_store *store, enum sqlite_statement statement, const struct sqlite_values *values,
                   sqlite_each each, void *arg);
/* A text of our own. */
int hfi_sqlite_say(struct sqlite_store *store, const char *text, sqlite_each each, void *arg);
/* SQLITE_READONLY_DBMOVED if the files that we have open, the database or its write-ahead log, are not those that
 * others would open: they were deleted or replaced, and what they say concerns nobody. */
int hfi_sqlite_check_file(struct sqlite_store *store);
/* Called by SQLite when the file is locked. */
int hfi_sqlite_be_patient(void *memory, int count);

void hfi_sqlite_values(const struct sqlite_store *store, struct sqlite_values *values,
                       const struct hfi_request *request);
/* The time of rows: what the kernel's own clock says, which is the same in all containers. */
hfi_time hfi_sqlite_now(const struct sqlite_store *store);
/* Reads that clock. */
void hfi_sqlite_set_end(const struct sqlite_store *store, struct sqlite_values *values, uint32_t ttl_ms);

/* --- sqlite_answer.c --- */

hf_status hfi_sqlite_refusal(const struct sqlite_store *store, int code, enum sqlite_kind kind, hf_error *err);

/* --- sqlite_tables.c --- */

/* Checks the tables, makes them if they are missing and that is allowed. */
hf_status hfi_sqlite_prepare_tables(struct sqlite_store *store, hfi_time deadline_ns, hf_error *err);

/* All of them are there; the first has its index; and the column that version 0.1 did not know. */
struct sqlite_tables {
    bool there, guarded, new;
};
/* Within an exchange; changes nothing. */
int hfi_sqlite_look_at_tables(struct sqlite_store *store, struct sqlite_tables *found);

/* --- sqlite_push.c --- */

hf_status hfi_sqlite_push_open(struct sqlite_store *store, hf_error *err);
void hfi_sqlite_push_close(struct sqlite_store *store);
/* Makes the lifeline if there is none, or if somebody has removed it. False: nobody can reach this client. */
bool hfi_sqlite_push_ready(struct sqlite_store *store);
int hfi_sqlite_push_fd(void *memory);
void hfi_sqlite_take_push(void *memory);
void hfi_sqlite_expect(struct sqlite_store *store, struct sqlite_lock *lock, struct hfi_owner owner);
void hfi_sqlite_expect_no_more(struct sqlite_store *store, struct sqlite_lock *lock, enum sqlite_state state);
/* True: it is worth asking. */
bool hfi_sqlite_await_call(struct sqlite_store *store, struct sqlite_lock *lock, struct hfi_waker *waker,
                           hfi_time deadline_ns);

enum sqlite_word {
    LITE_SAYS_SERVED = 1, /* the lock is yours; the number is the serial of who waits for it */
    LITE_SAYS_SECOND = 2, /* it was given to the one before you */
    LITE_SAYS_BROKEN = 3, /* it was taken from you; the number is the serial of who held it, the text who took it */
};

bool hfi_sqlite_is_alive(const struct sqlite_store *store, uint64_t client);
void hfi_sqlite_tell(const struct sqlite_store *store, struct hfi_owner owner, enum sqlite_word word, const char *text);

/* --- sqlite_queue.c --- */

struct sqlite_row {
    bool there, mine, free, waited;
    int64_t token, pid;
    hfi_time end_ns; /* 0: none */
    struct hfi_owner owner;
    char host[65];
};

/* Who is to be told after the transaction. A serial of 0: nobody. */
struct sqlite_heirs {
    struct hfi_owner first, second;
};

int hfi_sqlite_look(struct sqlite_store *store, const struct sqlite_values *values, struct sqlite_row *row);
/* Within a transaction, a lock that is free: gives it to the first who waits and lives. */
int hfi_sqlite_serve(struct sqlite_store *store, struct sqlite_values *values, struct sqlite_heirs *heirs);
void hfi_sqlite_tell_heirs(const struct sqlite_store *store, const struct sqlite_heirs *heirs);

/* --- sqlite_done.c --- */

struct sqlite_done {
    int64_t left_ms; /* 0: it does not count */
    int64_t ago_ms;
    struct hfi_owner owner; /* who did it */
    char who[160];
};

/* Within a transaction. All zeros: nothing is recorded. */
int hfi_sqlite_find_done(struct sqlite_store *store, const struct sqlite_values *values, struct sqlite_done *done);
/* Within the transaction that frees the lock, before it is freed; only if it is held. */
int hfi_sqlite_record_done(struct sqlite_store *store, const struct sqlite_values *values, uint64_t for_ms);

/* --- sqlite_done.c, sqlite_lock.c, sqlite_look.c: functions of the engine --- */

hf_status hfi_sqlite_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                             struct hfi_grant *grant, hf_error *err);
hf_status hfi_sqlite_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);
hf_status hfi_sqlite_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                           hf_error *err);
hf_status hfi_sqlite_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);
hf_status hfi_sqlite_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                             hf_error *err);
hf_status hfi_sqlite_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err);
hf_status hfi_sqlite_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err);
hf_status hfi_sqlite_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);
hf_status hfi_sqlite_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);
hf_status hfi_sqlite_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err);
hf_status hfi_sqlite_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                             hf_error *err);

#endif
