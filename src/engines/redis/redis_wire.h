/* SPDX-License-Identifier: MIT
 *
 * redis_wire.h: the connection to a server that all threads of a client share: their commands leave in one write when
 * they are in each other's way, and the answers come back in the same order.
 *
 * A connection on which an answer did not come in time is left: those who still wait for theirs may get them, but
 * nothing more is said on it, and it is reset when the last of them has gone. Not so with redlock:, where a majority
 * does not wait for the rest: see redlock_round.c.
 */
#ifndef HFI_REDIS_WIRE_H
#define HFI_REDIS_WIRE_H

#include "redis.h"

struct redis_call;

struct redis_wire {
    struct hfi_source source;
    struct redis_store *store;
    struct redis_node *node;
    struct redis_wire **slot; /* of the node, where those who come find it; until it is left */
    struct redis_connection *connection;
    struct hfi_op_list connecting; /* those who wait until it is ready */
    /* Who waits for which answer, in a ring of `room`, a power of two: numbers from `answered` to `said`. NULL: nobody
     * any more. */
    struct redis_call **calls;
    size_t room;
    uint64_t said, answered;
    unsigned waiting;       /* calls that wait for it to be ready, or for answers */
    hfi_time used_ns;       /* when something last came, or while it connects, when it got on with that */
    struct hfi_bytes plain; /* with TLS: what is to be encrypted */
    BIO *inward, *outward;  /* and where OpenSSL finds what was read and leaves what is to be sent */
    /* for redlock: */
    uint32_t scripts;     /* bit I: script I is known there */
    uint64_t judged_said; /* so much had been said … */
    hfi_time judged_ns;   /* … by then */
};

/* One question, on the stack of whoever asks. */
struct redis_call {
    struct hfi_op op;
    struct redis_store *store;
    struct redis_question *question; /* NULL: the connection is all that is wanted */
    bool asking;
    bool patient;  /* what is not answered in time says nothing about the connection */
    bool natively; /* it was last said where there is the module */
    redisReply **replies;
    size_t first;  /* of the question's commands that is sent: not 0 if it goes again with its text */
    size_t got;    /* replies that are there */
    uint64_t said; /* the number on its wire of the question's first command */
    size_t known;  /* commands whose scripts the server knows, or has been told */
    struct redis_node *node;
    struct redis_wire **slot; /* of the node */
    struct redis_wire *wire;  /* while it waits */
    hfi_time deadline_ns;
    hf_error *trouble; /* where to say what went wrong */
};

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

/* --- for operations that ask several servers; with the loop's mutex --- */

/* Awaits that there is a connection. */
bool hfi_redis_wire_start_ready(struct redis_call *call);
/* Awaits the answers to the question's commands from call->first on. */
bool hfi_redis_wire_start_call(struct redis_call *call);
/* Takes what has come, without waiting. */
void hfi_redis_wire_look(struct redis_wire *wire);
/* Nothing more is said on it. */
void hfi_redis_wire_leave(struct redis_wire *wire);

#endif
