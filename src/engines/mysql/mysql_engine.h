/* SPDX-License-Identifier: MIT
 *
 * mysql_engine.h: what the files of the mysql: engine share.
 *
 *     mysql.c              the engine's table of functions, opening and closing
 *     mysql_url.c          the URL
 *     mysql_connect.c      getting in, and the pool
 *     mysql_exchange.c     one statement, one answer, by the deadline
 *     mysql_answer.c       what refusals mean
 *     mysql_tables.c       the tables
 *     mysql_strategies.c   the statements
 *     mysql_rows.c         lease, insert, version: a row with an end, and the bell on which others wait for it
 *     mysql_bound.c        for-update, get-lock: a lock that belongs to a connection
 *     mysql_watch.c        the connections that hold something
 *     mysql_look.c         who holds what, forced release, fencing
 *     mysql_doctor.c       what in the way the server is set up could lose a lock
 */
#ifndef HFI_MYSQL_ENGINE_H
#define HFI_MYSQL_ENGINE_H

#include "engine.h"
#include "engines/sql/sql_common.h"
#include <mysql.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* A database or a table: what MySQL allows, less what is put behind it. */
#define HFI_MYSQL_IDENTIFIER_MAX 50
/* How many locks are renewed by one statement. */
#define HFI_MYSQL_MANY 64
/* GET_LOCK() takes a name of up to 64 characters. */
#define HFI_MYSQL_KEY_MAX 64

/* --- statements --- */

enum mysql_sql {
    SQL_ADD, /* the row of a name that was never used */
    SQL_TAKE,
    SQL_TAKE_ONCE, /* unless there is a mark that its work is done */
    SQL_COUNT,     /* gives a row that was just taken its token */
    SQL_LOOK,
    SQL_MEND,  /* an end that is too far away */
    SQL_ENTER, /* writes down who waits */
    SQL_TIDY,  /* removes those that wait no more */
    SQL_CALL,  /* waits for the bell, or in the server for the lock itself */
    SQL_WAITS, /* whether a connection does so */
    SQL_GRANT,
    SQL_GRANT_ONCE,
    SQL_RENEW,
    SQL_RENEW_MANY,
    SQL_ALIVE_MANY,
    SQL_REFUSE, /* what this owner has asked for, and arrives from now on, is refused */
    SQL_CLAIM,
    SQL_FREE,
    SQL_RINGER, /* the connection that must end with a forced release, its user-level lock, the owner and the token */
    SQL_EVICT,
    SQL_BLAME,  /* writes down who did that … */
    SQL_BROKEN, /* … for the holder */
    SQL_INSPECT,
    SQL_INSPECT_ONE,
    SQL_GUARD,
    SQL_MARK, /* that its work is done, by whoever holds it */
    SQL_MARKS,
    SQL_LOOK_AT_MARK,
    SQL_FORGET,
    SQL_STATEMENTS
};

/* Parameters by a letter each, in order: name, owner, ttl, host, pid, note (k), bell (l), key of GET_LOCK() (x),
 * connection (b), number of the request (r), for how long a mark counts (d), version; N and O: HFI_MYSQL_MANY names and
 * owners. */
struct mysql_text {
    const char
        *text; /* {L} {G} {W} {F} {N}: the tables; {D} {T}: their database and name as SQL strings; {M}: many "?" */
    const char *parameters;
};

struct mysql_strategy {
    const char *name;
    uint32_t caps;
    bool bound;       /* to a connection of its own */
    bool transaction; /* … in which a transaction stays open */
    bool looks_first; /* then compares and sets */
    struct mysql_text sql[SQL_STATEMENTS];
};

const struct mysql_strategy *hfi_mysql_strategy(const char *name);

/* --- configuration --- */

enum mysql_setting {
    SET_SOCKET,
    SET_DEFAULT_FILE,
    SET_GROUP,
    SET_PASSWORD_FILE,
    SET_SSL,
    SET_SSL_VERIFY,
    SET_SSL_CA,
    SET_SSL_CAPATH,
    SET_SSL_CERT,
    SET_SSL_KEY,
    SET_SSL_CRL,
    SET_SSL_CIPHER,
    SET_TLS_VERSION,
    SET_STRATEGY,
    SET_TABLE,
    SET_CREATE,
    SET_POOLER,
    MYSQL_SETTINGS
};

struct mysql_config {
    char *user, *password, *host, *database; /* NULL: not given */
    unsigned port;
    char *settings[MYSQL_SETTINGS];
    const struct mysql_strategy *strategy;
    /* Quoted, for statements. */
    char locks[2 * HFI_MYSQL_IDENTIFIER_MAX + 30], grants[2 * HFI_MYSQL_IDENTIFIER_MAX + 30],
        waiters[2 * HFI_MYSQL_IDENTIFIER_MAX + 30], fences[2 * HFI_MYSQL_IDENTIFIER_MAX + 30],
        marks[2 * HFI_MYSQL_IDENTIFIER_MAX + 30], guard[2 * HFI_MYSQL_IDENTIFIER_MAX + 30];
    char schema[HFI_MYSQL_IDENTIFIER_MAX + 16]; /* an SQL expression: 'name' or DATABASE() */
    char table[HFI_MYSQL_IDENTIFIER_MAX + 1];
    bool create;         /* the tables, if they are missing */
    bool session_pooler; /* the user vouches that a pooler keeps sessions together */
    bool tls;            /* nothing goes out in clear */
    bool by_name;        /* the server's certificate is checked against the name of the host */
    char where[160];     /* for messages */
    char *sql[SQL_STATEMENTS];
};

hf_status hfi_mysql_config_read(struct mysql_config *config, const struct hfi_url *url, hf_error *err);
void hfi_mysql_config_free(struct mysql_config *config);
/* `text` with the names of the tables put in; allocated. */
char *hfi_mysql_expand(const struct mysql_config *config, const char *text);

/* --- connections --- */

#define MYSQL_COLUMNS 9
#define MYSQL_COLUMN_SIZE 264

struct mysql_row {
    char text[MYSQL_COLUMNS][MYSQL_COLUMN_SIZE]; /* "" for NULL */
    my_bool null[MYSQL_COLUMNS];
    unsigned long length[MYSQL_COLUMNS];
};

/* What libmariadb is in the middle of. */
enum mysql_step { STEP_NONE, STEP_CONNECT, STEP_QUERY, STEP_RESULT, STEP_PREPARE, STEP_EXECUTE, STEP_STORE, STEP_PING };

struct mysql_connection {
    MYSQL *client;
    MYSQL_STMT *prepared[SQL_STATEMENTS];
    unsigned long long id; /* the server's number of it */
    enum mysql_step step;
    int wanted; /* MYSQL_WAIT_ bits of what the step waits for; 0: it is over */
    int failed; /* how it ended */
    MYSQL *connected;
    MYSQL_RES *result;
    MYSQL_STMT *statement; /* whose turn it is */
    bool tls;
    bool broken;
    bool silent;        /* it was broken since a ping was not answered */
    bool told;          /* of its end */
    hfi_time used_ns;   /* when it was given back */
    hfi_time pinged_ns; /* when it was last asked for a sign of life */
    uint64_t number;    /* our own, unique within the store */
    uint64_t ends;      /* the store's count of them when it was last listened to */
    struct mysql_row row;
};

struct mysql_store;

hf_status hfi_mysql_connect(struct mysql_store *store, struct mysql_connection **out, hfi_time deadline_ns,
                            hf_error *err);
void hfi_mysql_disconnect(struct mysql_connection *connection); /* takes NULL */
/* Around every step of connecting, which may close a socket and open another. */
void hfi_mysql_connecting_begin(struct mysql_connection *connection);
void hfi_mysql_connecting_end(struct mysql_connection *connection);

/* The pool. A connection that broke, or for which there is no room, is closed by give_back, which takes NULL. */
hf_status hfi_mysql_borrow(struct mysql_store *store, struct mysql_connection **out, hfi_time deadline_ns,
                           hf_error *err);
void hfi_mysql_give_back(struct mysql_store *store, struct mysql_connection *connection);
/* Sees to it that there is an idle one: the end of a wait is no time to connect. */
void hfi_mysql_warm_pool(struct mysql_store *store, hfi_time deadline_ns);
/* False: the server has ended it, or said something that nobody asked for. */
bool hfi_mysql_is_alive(const struct mysql_store *store, const struct mysql_connection *connection);

/* --- exchanges --- */

struct mysql_many {
    const char *names[HFI_MYSQL_MANY];
    char owners[HFI_MYSQL_MANY][33];
};

struct mysql_values {
    const char *name, *note, *bell;
    char owner[33];
    char key[HFI_MYSQL_KEY_MAX + 1]; /* "": the server computes it */
    uint64_t ttl_ms, connection, version, done_ms;
    uint64_t request; /* each of a client's has a greater one: what arrives after a later one does nothing */
    bool once;        /* not if there is a mark */
    const struct mysql_many *many;
    hfi_time sent_ns; /* when the row was last asked for: not before that does the server count */
};

struct mysql_answer {
    uint64_t changed; /* rows that were found and, if need be, changed */
    uint64_t number;  /* what the statement gave to LAST_INSERT_ID() */
    bool found;       /* there is a row: */
    struct mysql_row row;
};

void hfi_mysql_owner_text(char *out, struct hfi_owner owner); /* 33 bytes */
void hfi_mysql_values(struct mysql_values *values, const struct mysql_store *store, const struct hfi_request *request);

/* With TLS, libmariadb writes to a socket that may be closed without saying that it wants no signal. Around every call
 * that may write. */
struct mysql_hush {
    bool needed;
    sigset_t before;
};

struct mysql_hush hfi_mysql_hush_begin(const struct mysql_connection *connection);
void hfi_mysql_hush_end(const struct mysql_hush *hush);
/* Ends what is under a connection: what was sent and not delivered yet does not go on being sent, and the other side
 * hears of it at once. libmariadb, whose socket it is, finds it dead. */
void hfi_mysql_reset(int fd);
/* Lets libmariadb go on with its step as far as it can without waiting. */
void hfi_mysql_go_on(struct mysql_connection *connection);
/* Whatever libmariadb is in the middle of comes to its end at once, and frees what it has; the connection is broken
 * then. */
void hfi_mysql_abandon(struct mysql_connection *connection);
/* Until the step is over. False: the deadline came first; the connection is broken then. */
bool hfi_mysql_finish_step(const struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns);

/* Sends a statement without waiting for its answer. */
hf_status hfi_mysql_send(struct mysql_store *store, struct mysql_connection *connection, enum mysql_sql statement,
                         const struct mysql_values *values, hfi_time deadline_ns, hf_error *err);
/* The answer to what was sent. HF_BUSY: it has not come yet. */
hf_status hfi_mysql_poll(struct mysql_store *store, struct mysql_connection *connection, struct mysql_answer *answer,
                         hf_error *err);
hf_status hfi_mysql_await(struct mysql_store *store, struct mysql_connection *connection, struct mysql_answer *answer,
                          hfi_time deadline_ns, hf_error *err);
/* The next row of the same answer. */
bool hfi_mysql_next_row(struct mysql_connection *connection);
/* Both of them. */
hf_status hfi_mysql_run(struct mysql_store *store, struct mysql_connection *connection, enum mysql_sql statement,
                        const struct mysql_values *values, struct mysql_answer *answer, hfi_time deadline_ns,
                        hf_error *err);
/* The same, again after a deadlock, and with tables that are made if they are gone. `*connection` NULL: one of the
 * pool; it may be another one afterwards, and is the caller's. */
hf_status hfi_mysql_ask_on(struct mysql_store *store, struct mysql_connection **connection, enum mysql_sql statement,
                           const struct mysql_values *values, struct mysql_answer *answer, hfi_time deadline_ns,
                           hf_error *err);
/* The same on a connection of the pool. */
hf_status hfi_mysql_ask(struct mysql_store *store, enum mysql_sql statement, const struct mysql_values *values,
                        struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err);
/* A text of our own, without parameters; `answer` may be NULL. */
hf_status hfi_mysql_say(struct mysql_store *store, struct mysql_connection *connection, const char *text,
                        struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err);
/* Ends the statement that the connection is waiting for, by means of another one. False: it could not be done in time;
 * the connection is broken then. What was granted at the last moment is in `answer`. */
bool hfi_mysql_cancel(struct mysql_store *store, struct mysql_connection *connection, struct mysql_answer *answer,
                      hfi_time deadline_ns);
/* Asks for a sign of life, unless it was asked already, without waiting for it. */
void hfi_mysql_ping(struct mysql_connection *connection, hfi_time now_ns);
/* Gives up all user-level locks of the connection. */
hf_status hfi_mysql_let_go(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                           hf_error *err);

/* Writes down that the connection is going to wait, for people. It waits all the same if that cannot be done, unless
 * the connection broke over it. */
void hfi_mysql_enter_line(struct mysql_store *store, struct mysql_connection *connection,
                          const struct mysql_values *values, hfi_time deadline_ns);

uint64_t hfi_mysql_number(const struct mysql_row *row, int column);
/* What SQL_TAKE_ONCE or SQL_GRANT_ONCE has answered: there is a mark. */
bool hfi_mysql_is_done(const struct mysql_values *values, const struct mysql_answer *answer);

/* --- refusals --- */

hf_status hfi_mysql_refusal(const struct mysql_store *store, unsigned number, const char *text, hf_error *err);
bool hfi_mysql_is_final(hf_status status);   /* to try again would not help */
bool hfi_mysql_is_lost(unsigned number);     /* the connection, not the statement, failed */
bool hfi_mysql_is_conflict(unsigned number); /* worth another try at once */
bool hfi_mysql_is_missing_table(unsigned number);
bool hfi_mysql_is_there_already(unsigned number); /* the column that was to be added */
bool hfi_mysql_is_locked(unsigned number);        /* somebody else has the row */

/* --- the tables --- */

/* Checks them, makes them if they are missing and that is allowed. That of marks may be missing, unless it is
 * `wanted`. */
hf_status hfi_mysql_prepare_tables(struct mysql_store *store, struct mysql_connection *connection, bool wanted,
                                   hfi_time deadline_ns, hf_error *err);

/* What of them is there, without changing anything. */
struct mysql_tables {
    bool there, newer; /* all without which there are no locks; with the columns that version 0.1 did not know */
    bool usable;       /* false: because of `why` */
    hf_error why;
};
hf_status hfi_mysql_look_at_tables(struct mysql_store *store, struct mysql_connection *connection,
                                   struct mysql_tables *found, hfi_time deadline_ns, hf_error *err);

/* --- locks --- */

struct mysql_lock {
    struct mysql_connection *connection; /* that waits for the bell or the lock, or has it */
    struct hfi_owner owner;
    bool held;
    bool calling; /* SQL_CALL was sent and not answered yet */
    bool got;     /* rows: first in line, the bell is its own; bound: the server gave the lock to the connection */
    bool in_transaction;
    bool unsure;     /* an attempt went wrong: it may be held all the same */
    bool unanswered; /* some attempt had no answer: it may still arrive, whatever was answered to others since */
    bool watched;
    uint64_t token; /* of a row that is held */
    char bell[HFI_MYSQL_KEY_MAX + 1];
    hfi_time ask_again_ns;
    hfi_time look_at_ns;     /* rows: when to see whether the server knows that it is called */
    struct mysql_lock *next; /* in the list of those that are watched */
};

struct mysql_store {
    const struct hfi_env *env;
    struct mysql_config config;
    pthread_mutex_t mutex; /* guards all below */
    struct hfi_sql_pool pool;
    size_t address; /* where the last connection was made */
    struct mysql_lock *watched;
    size_t watched_count;
    uint64_t connections;      /* how many there were */
    uint64_t ends;             /* how many of them ended while they held nothing */
    int watch, heart;          /* epoll over all connections, and its timer */
    _Atomic uint64_t requests; /* how many there were that take or renew */
    _Atomic bool tidied;       /* it has removed those that wait no more: once is enough, as every client does */
    char host[65];
    uint64_t pid;
    char database[HFI_MYSQL_KEY_MAX + 1]; /* where the tables are; "" until the first connection */
};

hf_status hfi_mysql_watch_open(struct mysql_store *store, hf_error *err);
/* From now on its end is heard of. */
hf_status hfi_mysql_watch_connection(struct mysql_store *store, struct mysql_connection *connection, hf_error *err);
/* From now on the lock is told of the end of its connection. */
void hfi_mysql_watch(struct mysql_store *store, struct mysql_lock *lock);
/* From now on the connection is the caller's alone. */
struct mysql_connection *hfi_mysql_take_connection(struct mysql_store *store, struct mysql_lock *lock);
/* With the mutex. */
bool hfi_mysql_has_ended(struct mysql_connection *connection);
/* Why a lock is lost whose connection has ended. */
const char *hfi_mysql_why_ended(const struct mysql_connection *connection);
void hfi_mysql_take_push(void *memory);

/* --- the two families, and administration --- */

hf_status hfi_mysql_row_attempt(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                struct hfi_grant *grant, hf_error *err);
hf_status hfi_mysql_row_wait(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                             hf_error *err);
hf_status hfi_mysql_row_release(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                hf_error *err);
hf_status hfi_mysql_row_renew(struct mysql_store *store, struct hfi_renewal *renewals, size_t count,
                              hfi_time deadline_ns, hf_error *err);

hf_status hfi_mysql_bound_attempt(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                  struct hfi_grant *grant, hf_error *err);
hf_status hfi_mysql_bound_wait(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                               hf_error *err);
hf_status hfi_mysql_bound_release(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                  hf_error *err);
hf_status hfi_mysql_bound_renew(struct mysql_store *store, struct hfi_renewal *renewals, size_t count);

/* Whether the server knows that the lock's connection waits. A statement that waits for a row would have ended long
 * ago; one that waits for a user-level lock has another that says so. In doubt it does. */
bool hfi_mysql_is_in_line(struct mysql_store *store, const struct mysql_lock *lock, hfi_time deadline_ns);
/* How often that is looked at. Longer than the server lets a statement wait for a row. */
#define HFI_MYSQL_LOOK_PAUSE (10 * HFI_SECOND)

hf_status hfi_mysql_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err);
hf_status hfi_mysql_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err);
hf_status hfi_mysql_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err);
hf_status hfi_mysql_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);
/* HF_DONE: there is a mark; who has left it is in `grant`. HF_BUSY: there is none, or its time is over. */
hf_status hfi_mysql_look_at_mark(struct mysql_store *store, const struct mysql_values *values, struct hfi_grant *grant,
                                 hfi_time deadline_ns, hf_error *err);
hf_status hfi_mysql_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);
hf_status hfi_mysql_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err);
hf_status hfi_mysql_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                            hf_error *err);

#endif
