/* SPDX-License-Identifier: MIT
 *
 * scripted_engine.h: an engine whose store does what the test says, to drive the core into every kind of trouble. It
 * has HF_CAP_EXPIRY, so the core must renew.
 */
#ifndef SCRIPTED_ENGINE_H
#define SCRIPTED_ENGINE_H

#include "engine.h"
#include <stdatomic.h>

#define SCRIPT_FOREVER 1000000

/* The next `count` calls of one function answer `status`; then HF_OK again. */
struct script {
    _Atomic int count;
    _Atomic hf_status status;
    atomic_bool stalls;       /* such a call returns only at its deadline */
    _Atomic int calls;        /* made so far */
    _Atomic int64_t delay_ns; /* every call takes this long */
};

extern struct script script_attempt, script_renew, script_release;
/* Locks in renewals so far, and in the largest one; locks that the store believes to be held. */
extern _Atomic int script_renewed, script_largest_renewal, script_held;
extern _Atomic uint64_t script_last_owner;
/* The owner whose lock the store has forgotten when it is asked to renew it; 0: none. */
extern _Atomic uint64_t script_forgotten;
/* Who broke what the store does not have any more; NULL: it does not say. */
extern const char *_Atomic script_breaker;
/* So many grants are lost again before the core hears of them. */
extern _Atomic int script_lost_at_once;
/* Since when the store counts the time of what it grants, before now: a session's that it had already. */
extern _Atomic int64_t script_counted_ns;
/* Releases so far that were to leave a mark that the work is done. */
extern _Atomic int script_done;
/* Renewals under way, and how many began while another one was. */
extern _Atomic int script_renewing, script_renew_overlaps;

/* It gives tokens in advance: to be set before a client is opened. */
extern atomic_bool script_reserves;
/* Its locks last for as long as a connection, say: the same. */
extern atomic_bool script_endless;

/* Exchanges can be started without a thread that waits: the same. So many are refused; so many were started. */
extern atomic_bool script_starts;
extern _Atomic int script_refused, script_started;
/* Releases that were made by whoever told the core of an answer, in done(). */
extern _Atomic int script_kept_waiting;

void script_set(struct script *script, int count, hf_status status, bool stalls);
hf_client *scripted_client(uint32_t timeout_ms);
hf_client *scripted_line_client(uint32_t timeout_ms, int64_t handoff_ms);

#endif
