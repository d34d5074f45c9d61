/* SPDX-License-Identifier: MIT
 *
 * lease.h: when a granted lock must be renewed, and when it is lost. Pure: no clock, no thread, no store; the time is
 * an argument, so that tests own it.
 *
 * The holder's own deadline is the moment the request was sent + ttl - drift. The store counted from a later moment, so
 * it ends the lock later, and the holder knows of the loss before anybody else can be granted the lock.
 */
#ifndef HFI_LEASE_H
#define HFI_LEASE_H

#include "engine.h"

struct hfi_terms {
    uint32_t ttl_ms;
    uint32_t max_hold_ms; /* 0: no limit */
    bool renew;           /* keep it alive in the background */
    bool store_expires;   /* the engine has HF_CAP_EXPIRY: not renewed means ended */
};

struct hfi_lease {
    struct hfi_terms terms;
    unsigned failures;    /* renewals in a row that the store did not answer */
    hfi_time deadline_ns; /* from then on it is lost; HFI_NEVER where only a release or the process's death ends it */
    hfi_time renew_at_ns; /* HFI_NEVER: not to be renewed */
    hfi_time end_by_ns;   /* max_hold_ms */
    union {
        hfi_time until_ns; /* with renewal: the deadline but for that */
        hfi_time whole_ns; /* without: how far it was lengthened, if the store grants that in parts; or 0 */
    };
};

enum hfi_step { HFI_STEP_NONE, HFI_STEP_RENEW, HFI_STEP_END };

/* What is taken off a time-to-live for clocks that run at different speeds: a hundredth and 2 ms. */
hfi_time hfi_drift_ns(uint32_t ttl_ms);

/* A grant whose time the store counts from `granted_ns` or later, and max_hold_ms from `asked_ns`: where locks share a
 * session, the first may be long before the second. valid_ms: see struct hfi_grant. */
void hfi_lease_start(struct hfi_lease *lease, const struct hfi_terms *terms, uint32_t valid_ms, hfi_time granted_ns,
                     hfi_time asked_ns);

/* What is due at `now_ns`. A renewal that is due within `early_ns` counts as due, so that many share one exchange. */
enum hfi_step hfi_lease_step(const struct hfi_lease *lease, hfi_time now_ns, hfi_time early_ns);

/* When hfi_lease_step() will next ask for something; HFI_NEVER: never. */
hfi_time hfi_lease_due(const struct hfi_lease *lease);

/* What to ask for when the store must be asked now, due or not: the time-to-live; or, without renewal, what is left of
 * it, which changes nothing. */
uint32_t hfi_lease_ask_ms(const struct hfi_lease *lease, hfi_time now_ns);

/* The store renewed it for its ttl_ms, or for its valid_ms if that is less, counted from its counted_from_ns or later.
 */
void hfi_lease_renewed(struct hfi_lease *lease, const struct hfi_renewal *renewal);

/* A renewal for `ttl_ms` was sent at `sent_ns` and its answer lost: if it was for a shorter time, it may count. */
void hfi_lease_unsure(struct hfi_lease *lease, uint32_t ttl_ms, hfi_time sent_ns);

/* The store did not answer: try again after a pause that grows. `random` spreads many clients out. */
void hfi_lease_unanswered(struct hfi_lease *lease, hfi_time now_ns, uint64_t random);

/* Whoever it is passed on to has this max_hold_ms, from now on. */
void hfi_lease_pass(struct hfi_lease *lease, uint32_t max_hold_ms, hfi_time now_ns);

/* --- backoff: pauses between tries against a store in trouble --- */

/* The pause after `failures` (1, 2, …) failures in a row: doubles from 25 ms to 2 s, half of it random. */
hfi_time hfi_backoff_ns(unsigned failures, uint64_t random);

/* Waiting for a store that is in trouble: whether to go on, and until when to pause. */
struct hfi_trouble {
    unsigned failures;
    hfi_time since_ns;
};

/* Counts a failure at `now_ns`. True: pause until *until_ns and ask again. False: `patience_ns` in trouble, or the
 * deadline, is over. */
bool hfi_trouble_again(struct hfi_trouble *trouble, hfi_time now_ns, hfi_time deadline_ns, hfi_time patience_ns,
                       uint64_t random, hfi_time *until_ns);

#endif
