/* SPDX-License-Identifier: MIT
 *
 * sql_common.h: the little that engines for SQL servers have in common, whose client libraries have nothing in common.
 */
#ifndef HFI_SQL_COMMON_H
#define HFI_SQL_COMMON_H

#include "engine.h"
#include <pthread.h>

/* A name that may stand in a statement: up to 50 letters, digits and _, and no digit first. */
bool hfi_sql_is_identifier(const char *text, size_t length);

/* HF_NOMEM if a client library that opens a connection, and files for it, would find too few descriptors left: such a
 * library says that a file is not there when it cannot be opened, and then that a password is missing. */
hf_status hfi_sql_check_descriptors(hf_error *err);

/* For the keeper: an epoll set, to which connections are added, and in it a timer that calls every `seconds` for them
 * to be pinged. Both are -1 before, and the caller's to close. */
#define HFI_SQL_HEART 0 /* the timer's number in the set; no connection, and no hold, has it */
hf_status hfi_sql_watch_open(int *watch, int *heart, int seconds, hf_error *err);

/* What a break leaves in the row of grants of the name, in the place of a holder's note: which hold it has ended, and
 * who asked for it. A holder who finds its lock lost looks there. Bytes that a database might refuse are question
 * marks. */
#define HFI_SQL_BROKEN_MAX 200
void hfi_sql_write_broken(char out[HFI_SQL_BROKEN_MAX], uint64_t token, const char *by);
/* Says so in `why`, if `note` is that and the token one's own. */
void hfi_sql_read_broken(char why[HFI_WHY_MAX], const char *note, uint64_t token);
/* Until when a loss that is known waits to be explained: for a second at most, and half of what is left until the
 * deadline, since other locks were renewed with it, whose time may end then. */
hfi_time hfi_sql_patience(hfi_time now_ns, hfi_time deadline_ns);

/* Connections that nobody uses at the moment, under the mutex of their store. The one that was used last comes first:
 * it is the least likely to have been ended by the server. */
#define HFI_SQL_IDLE_MOST 16
struct hfi_sql_pool {
    pthread_mutex_t *mutex;
    void *idle[HFI_SQL_IDLE_MOST];
    size_t count;
};

void *hfi_sql_pool_take(struct hfi_sql_pool *pool);                 /* NULL: there is none */
bool hfi_sql_pool_put(struct hfi_sql_pool *pool, void *connection); /* false: no room */

#endif
