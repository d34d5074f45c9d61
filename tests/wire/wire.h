/* SPDX-License-Identifier: MIT
 *
 * wire.h: scripts in the words of the redis engine, and the faults that every exchange must survive.
 *
 * A script here is one for script_server.h in which these lines are spelt out:
 *
 *     hello [NAME]                a connection, its PING and the PONG
 *     hello-native [NAME]         the same with a client that asks for modules, and a server that has Holdfast's
 *     acquire SERIAL TTL QUEUE    expects the script for the lock "job" by the client's hold number SERIAL; the
 * client's own
 *     eval-acquire …              number is taken from the first of them and must be the same in all others
 *     release SERIAL              likewise; eval-release, too
 *     undo SERIAL                 the release that leaves a mark, because an attempt was not answered
 *     renew SERIAL TTL            likewise; eval-renew; SERIAL+N after N requests that were not answered
 *     evict [SEEN], look          likewise; eval-look
 *     guard TOKEN, eval-guard     the script for the resource "job"
 *     native-acquire …            the same by the module's command; native-release, -undo, -renew, -look, -guard
 *     scan CURSOR                 SCAN for the prefix "hf:"
 *     subscribe                   SUBSCRIBE to the client's channel
 *     granted TOKEN               sends the answer to an acquire: held
 *     busy LEFT PLACE US          sends the other answer, at server time US: held for LEFT ms by alpha:77
 *     subscribed                  sends the answer to SUBSCRIBE
 *     push TEXT                   sends TEXT as a message to the client's channel
 *
 * and, for other dialects than Holdfast's own, which `dialect NAME` chooses for the lines that follow:
 *
 *     probe                       COMMAND INFO for the commands that compare
 *     has VERBS                   sends the answer to it: those of "delex delifeq cad cas" that are named
 *     delex, delifeq, cad SERIAL  the release by that command, and the script that calls the next
 *     cas SERIAL TTL              the renewal by CAS
 *     drop-latch SERIAL           the DEL of a release's latch, in `redisson`
 *
 * and for Sentinels and clusters, where the server is all of them and tells its own port:
 *
 *     port                        at the beginning, if the script needs it; \5\5\5\5\5 stands for it from then on
 *     sentinel-push [NAME]        a connection that subscribes to +switch-master, and the answer
 *     sentinel-subscribe          only what is expected of it
 *     find-master                 expects the question for the master "m"
 *     address                     sends the answer: this very server
 *     greet-master [NAME]         a connection that sends PING and ROLE
 *     is-master                   sends the answers to both
 *     cluster-slots, slots        expects the question for the map; sends the answer: this server has all
 *     ask-sharded, sharded YESNO  likewise for SPUBLISH; from the answer yes on, scripts and channels are sharded
 */
#ifndef WIRE_H
#define WIRE_H

#include "script_server.h"
#include "shared.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

struct wire {
    struct script_server *server;
    hf_client *client;
    int descriptors; /* open before it began */
    uint32_t timeout_ms;
};

/* Starts the server with a script, which may have printf's directives. */
void wire_serve(struct wire *wire, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Opens a client of that server; `query` follows "redis://127.0.0.1:PORT", and "module=no" follows that: only
 * test_redis_commands.c and test_redis_open.c have clients that ask for the server's modules. */
hf_status wire_open(struct wire *wire, const char *query, uint32_t timeout_ms, hf_error *err);
/* The same with any URL, in which %d stands for the port; if it says "module=", that is left as it is. */
hf_status wire_open_url(struct wire *wire, const char *format, uint32_t timeout_ms, hf_error *err);
/* Waits for the script's end, closes the client, and checks that all went as the script says and that no descriptor
 * stays open. */
void wire_end(struct wire *wire);

/* Waits until more than `ms` are left to the lock: the answer to its renewal was read, and its connection is free. */
void wire_await_remaining(const hf_lock *lock, int64_t ms);

/* Words about `status` that are fit to be shown: one line, and err->status is what was returned. */
void wire_check_words(hf_status status, const hf_error *err);

/* --- whole calls: of a client of `url`, in which %d stands for the port, for the lock "job" --- */

/* For 20 s, without renewal. 0: does not wait. */
hf_options wire_options(uint32_t wait_ms);
/* Opening it must fail so, in time. */
void wire_refuse(const char *url, hf_status expected, uint32_t timeout_ms, const char *script);
/* The lock, which must be had. */
hf_lock *wire_hold(struct wire *wire, const char *url, uint32_t wait_ms, uint32_t timeout_ms, const char *script);
/* Gives it back, which must end so, in time, and ends all. */
void wire_release(struct wire *wire, hf_lock *lock, hf_status expected);
/* The lock must be refused so, in time. */
void wire_miss(const char *url, hf_status expected, uint32_t wait_ms, uint32_t timeout_ms, const char *script);

/* --- faults --- */

struct wire_fault {
    const char *name;
    const char *before; /* script lines, or NULL: the first half of the right reply */
    const char *after;  /* script lines that follow */
    bool slow;          /* the client learns of it by its own deadline */
};

/* No answer came, or none that is Redis protocol. */
extern const struct wire_fault wire_faults[];
extern const size_t wire_fault_count;

/* What the server does instead of answering: `first_half` is how a right answer begins, in the script's spelling. */
void wire_fault_lines(char *out, size_t size, const struct wire_fault *fault, const char *first_half);

struct wire_refusal {
    const char *reply; /* without "-" and the end of line */
    hf_status status;
    const char *words; /* that the message must contain */
};

/* Error replies of every class. */
extern const struct wire_refusal wire_refusals[];
extern const size_t wire_refusal_count;
/* What comes before the next request: a server that is no master is left for whoever is at its address then. */
const char *wire_after(const char *refusal);

/* The request that gives it back, by a client which may come again and again: first cut off, then answered. */
#define WIRE_GIVE_BACK(request)                                                                                        \
    "retry\nhello\n" request "\ncut\ndone\n"                                                                           \
    "retry\nhello undo\n" request "\nsend :1\\r\\n\ndone\n"

/* How long a call of the client may take beyond its own limit before that counts as not kept: what a loaded machine
 * needs. */
#define WIRE_SLACK_MS 3000

#endif
