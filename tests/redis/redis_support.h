/* SPDX-License-Identifier: MIT
 *
 * redis_support.h: what the tests of the redis: engine share, beside what the conformance suite's support offers.
 * They look at the server itself, so they know its keys: a lock NAME is the hash hf:{NAME}, its queue the sorted set
 * hf:{NAME}:q.
 */
#ifndef REDIS_SUPPORT_H
#define REDIS_SUPPORT_H

#include "conformance.h"
#include "redis_server.h"

/* How long a gift waits to be confirmed: HFI_REDIS_CLAIM_MS of the engine, which is part of what it promises. */
#define CLAIM_MS 2000

/* Starts the system's redis-server with these arguments and makes it the one that open_client() opens. */
struct redis_server *serve(const char *arguments);
/* Makes `url` the one that open_client() opens. */
void use_url(const char *url);

/* Opens what must open. */
hf_client *open_url(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Opens what must be refused with `expected`; `words`, if not NULL, must be in the message. */
hf_error refuse_url(hf_status expected, const char *words, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Asks once for what must be refused with `expected`; `words` must be in the message. */
void refuse_lock(hf_client *client, const char *name, hf_status expected, const char *words);
void check_words(const hf_error *err, const char *words);
void check_no_words(const hf_error *err, const char *words);

/* ---------------------------------------------------------------------------------------- looking at the server --- */

/* True if somebody holds it by what the server knows, its time aside. */
bool server_has_owner(struct redis_server *server, const char *name);
int64_t server_waiters(struct redis_server *server, const char *name);
/* Waits until so many stand in the queue. */
void await_queue(struct redis_server *server, const char *name, int64_t count);
/* Whether the server has any key of this lock. */
bool server_has_keys(struct redis_server *server, const char *name);

#endif
