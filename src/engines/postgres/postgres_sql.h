/* SPDX-License-Identifier: MIT
 *
 * postgres_sql.h: what is said to the server: the statements, the strategies that put them in order, and the URL, which
 * chooses the strategy and the names of the tables.
 */
#ifndef HFI_POSTGRES_SQL_H
#define HFI_POSTGRES_SQL_H

#include "engine.h"
#include <libpq-fe.h>

#define HFI_POSTGRES_SCHEMA_MAX 130 /* a name of the server's, quoted */
#define HFI_POSTGRES_TABLE_MAX 200  /* schema.table, quoted, with what is put behind it */

/* Whatever others have made in schemas of theirs, and wherever a role's path leads: statements mean what the server's
 * own catalogue says. The tables are named with their schema. */
#define HFI_POSTGRES_PATH "pg_catalog, pg_temp"
/* What is committed is on the disk of the server, at least: off would give away what a crash then undoes. Set also if
 * it is better already: a server that reads its files again must not take it away. Said before the path is set. */
#define HFI_POSTGRES_COMMIT "pg_catalog.current_setting('synchronous_commit')"
#define HFI_POSTGRES_WAIT_FOR_DISK(local)                                                                              \
    "pg_catalog.set_config('synchronous_commit', CASE WHEN " HFI_POSTGRES_COMMIT " OPERATOR(pg_catalog.=) 'off'"       \
    " THEN 'local' ELSE " HFI_POSTGRES_COMMIT " END, " local ")"
/* Around the text of a function that is made. */
#define HFI_POSTGRES_QUOTE "$holdfast$"

/* --- postgres_strategies.c --- */

enum postgres_statement {
    POSTGRES_END, /* of a sequence */
    POSTGRES_TAKE,
    POSTGRES_TAKE_ONCE, /* unless it is done */
    POSTGRES_COUNT,     /* gives a row that was just taken its token */
    POSTGRES_LOOK,
    POSTGRES_SWAP,
    POSTGRES_ADD,
    POSTGRES_LOCK,   /* the row that stands for the name, until the end of the sequence */
    POSTGRES_ENTER,  /* the line of those who wait */
    POSTGRES_SERVE,  /* the first of them */
    POSTGRES_FINISH, /* what is left of a release; if it serves nobody, the commit does not wait for the disk */
    POSTGRES_CLEAN,  /* up after those who do not live */
    POSTGRES_MEND,   /* an end that is too far away */
    POSTGRES_LEAVE,
    POSTGRES_RENEW,
    POSTGRES_FREE,
    POSTGRES_MARK,   /* says that it is done; row strategies: and frees it, if it was held */
    POSTGRES_DONE,   /* whether it is, and by whom */
    POSTGRES_HOLDER, /* whom a forced release ends, and nobody after */
    POSTGRES_EVICT,
    POSTGRES_BLAME,  /* writes down who did that … */
    POSTGRES_BROKEN, /* … for the holder */
    POSTGRES_INSPECT,
    POSTGRES_INSPECT_ONE,
    POSTGRES_INSPECT_DONE,
    POSTGRES_FORGET_DONE,
    POSTGRES_GUARD,
    POSTGRES_BEGIN,
    POSTGRES_BLOCK,   /* waits in the server */
    POSTGRES_GRANT,   /* writes down who was given the lock, and draws the token */
    POSTGRES_FLOOR,   /* makes the mark that tokens are above … */
    POSTGRES_CEILING, /* … and raises the one that they can be lost up to */
    POSTGRES_CLEAR,
    POSTGRES_CANCEL,
    POSTGRES_COMMIT,
    POSTGRES_ROLLBACK,
    POSTGRES_VOUCH, /* which sessions may write */
    POSTGRES_END_SESSION,
    POSTGRES_STATEMENTS
};

/* Parameters by a letter each, in the order $1, $2, …: name, client, serial, ttl (or for how long it is done), host,
 * pid, note (k), backend, version (or a token, or when a session lived), request (its number), the table of locks, the
 * ceiling of tokens (e). */
struct postgres_sql {
    /* {L} {W} {G} {F} {D} stand for the tables of locks, waiters, grants, fences and what is done, {H} for the guard */
    const char *text;
    const char *parameters;
};

#define POSTGRES_SEQUENCE_MAX 10
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
    postgres_sequence help; /* the lock is free, but others wait for it: they are served first; or it must be mended */
    postgres_sequence release;
    postgres_sequence mark; /* the same, and says that it is done */
    postgres_sequence leave;
    postgres_sequence evict;
};

/* What a session that listens says first, so that others can tell whether it lives: the lock is in a space of its own,
 * which no strategy uses. */
#define HFI_POSTGRES_LIVE_CLASS "1751346276"
#define HFI_POSTGRES_LIVE "SELECT pg_advisory_lock(" HFI_POSTGRES_LIVE_CLASS ", pg_backend_pid())"

const struct postgres_strategy *hfi_postgres_strategy(const char *name);

/* --- postgres_url.c --- */

struct postgres_names {
    char locks[HFI_POSTGRES_TABLE_MAX], waiters[HFI_POSTGRES_TABLE_MAX], grants[HFI_POSTGRES_TABLE_MAX],
        fences[HFI_POSTGRES_TABLE_MAX], done[HFI_POSTGRES_TABLE_MAX], guard[HFI_POSTGRES_TABLE_MAX]; /* quoted */
};

struct postgres_config {
    PQconninfoOption *options;                 /* for libpq, password included */
    const char *session_attributes, *gss_mode; /* instead of what they say, unless NULL */
    char *password;                            /* the same; they have none */
    const struct postgres_strategy *strategy;
    struct postgres_names names;
    char schema[HFI_POSTGRES_SCHEMA_MAX]; /* "": not known before the first connection */
    char table[52];
    bool create;         /* the tables, if they are missing */
    bool session_pooler; /* the user vouches that a pooler keeps sessions together */
    char where[160];     /* for messages */
    char remedy[300];    /* for messages: the command that makes the tables and lets this user use them */
    char *sql[POSTGRES_STATEMENTS];
    char prepared[POSTGRES_STATEMENTS][16]; /* their names */
};

hf_status hfi_postgres_config_read(struct postgres_config *config, const struct hfi_url *url, char **shown,
                                   hf_error *err);
/* Puts the names of the tables, which are in `schema`, into the statements. */
hf_status hfi_postgres_config_use_schema(struct postgres_config *config, const char *schema, hf_error *err);
void hfi_postgres_config_free(struct postgres_config *config);
/* What libpq is told for `keyword`; "" if nothing. */
const char *hfi_postgres_option(const struct postgres_config *config, const char *keyword);
/* `text` with the names put in; allocated. */
char *hfi_postgres_expand(const struct postgres_names *names, const char *text);

#endif
