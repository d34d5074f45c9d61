/* SPDX-License-Identifier: MIT
 *
 * redis_wire.h: the connection to a server that all threads of a client share: their commands leave in one write when
 * they are in each other's way, and the answers come back in the same order.
 *
 * A connection on which an answer did not come in time is left: those who still wait for theirs may get them, but
 * nothing more is said on it, and it is reset when the last of them has gone.
 */
#ifndef HFI_REDIS_WIRE_H
#define HFI_REDIS_WIRE_H

#include "redis.h"

/* The first use of a client's server makes the connection. HF_OK: it is there. */
hf_status hfi_redis_wire_open(struct redis_store *store, struct redis_node *node, hfi_time deadline_ns, hf_error *err);
/* As hfi_redis_ask(), of question->node, with ASKING before it if `asking`. */
hf_status hfi_redis_wire_ask(struct redis_store *store, struct redis_question *question, bool asking,
                             redisReply **replies, hfi_time deadline_ns, hf_error *err);
/* The same without waiting: `answered` is called once, on any thread, by hfi_loop_attend() if not before; the question
 * and its replies are in use until then. False: no memory. */
bool hfi_redis_wire_start(struct redis_store *store, struct redis_question *question, redisReply **replies,
                          hfi_time deadline_ns, hfi_redis_answered_fn answered);
/* Sends a command whose answer nobody waits for, if there is a connection. */
void hfi_redis_wire_tell(struct redis_store *store, struct redis_node *node, const struct redis_command *command);
/* Some answer is waited for on it. */
bool hfi_redis_wire_is_busy(struct redis_store *store, const struct redis_node *node);
/* Nothing that was said is of use any more: whoever waits for an answer is told that there will be none. */
void hfi_redis_wire_break(struct redis_store *store, struct redis_node *node);
/* A request on another connection to `node` was lost: one that was idle for as long may be as dead. */
void hfi_redis_wire_drop_old(struct redis_store *store, struct redis_node *node);

#endif
