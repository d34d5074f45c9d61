/* SPDX-License-Identifier: MIT
 *
 * lease.c: see lease.h.
 */
#include "lease.h"

#define BACKOFF_FIRST (25 * HFI_MS)
#define BACKOFF_MOST (2 * HFI_SECOND)

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

hfi_time hfi_drift_ns(uint32_t ttl_ms)
{
    return (hfi_time)ttl_ms * HFI_MS / 100 + 2 * HFI_MS;
}

static void count_from(struct hfi_lease *lease, uint32_t ttl_ms, hfi_time counted_from_ns)
{
    const hfi_time ttl_ns = (hfi_time)ttl_ms * HFI_MS;
    const bool ends = lease->terms.store_expires || !lease->terms.renew;

    lease->failures = 0;
    const hfi_time until = ends ? counted_from_ns + ttl_ns - hfi_drift_ns(ttl_ms) : HFI_NEVER;
    lease->deadline_ns = earlier(lease->end_by_ns, until);
    if (lease->terms.renew)
        lease->until_ns = until;
    else
        lease->whole_ns = 0;
    lease->renew_at_ns = HFI_NEVER;
    if (lease->terms.renew && lease->terms.store_expires)
        lease->renew_at_ns = counted_from_ns + ttl_ns / 3;
}

/* A store may grant less than was asked for. */
static uint32_t granted_ms(uint32_t ttl_ms, uint32_t valid_ms)
{
    return valid_ms && valid_ms < ttl_ms ? valid_ms : ttl_ms;
}

static void limit(struct hfi_lease *lease, uint32_t max_hold_ms, hfi_time from_ns)
{
    lease->end_by_ns = max_hold_ms ? from_ns + (hfi_time)max_hold_ms * HFI_MS : HFI_NEVER;
}

void hfi_lease_start(struct hfi_lease *lease, const struct hfi_terms *terms, uint32_t valid_ms, hfi_time granted_ns,
                     hfi_time asked_ns)
{
    lease->terms = *terms;
    limit(lease, terms->max_hold_ms, asked_ns);
    const uint32_t granted = granted_ms(terms->ttl_ms, valid_ms);
    count_from(lease, granted, granted_ns);
    if (granted < terms->ttl_ms) /* also without renewal: its first part is not the whole yet */
        lease->renew_at_ns = granted_ns + (hfi_time)granted * HFI_MS / 3;
}

enum hfi_step hfi_lease_step(const struct hfi_lease *lease, hfi_time now_ns, hfi_time early_ns)
{
    if (now_ns >= lease->deadline_ns)
        return HFI_STEP_END;
    if (lease->renew_at_ns != HFI_NEVER && now_ns >= lease->renew_at_ns - early_ns)
        return HFI_STEP_RENEW;
    return HFI_STEP_NONE;
}

hfi_time hfi_lease_due(const struct hfi_lease *lease)
{
    return earlier(lease->renew_at_ns, lease->deadline_ns);
}

uint32_t hfi_lease_ask_ms(const struct hfi_lease *lease, hfi_time now_ns)
{
    const hfi_time lengthened = lease->terms.renew ? 0 : lease->whole_ns;
    const bool ends = lengthened || lease->deadline_ns != HFI_NEVER;
    if ((lease->renew_at_ns != HFI_NEVER && !lengthened) || !ends) /* also a part that was not made whole yet */
        return lease->terms.ttl_ms;
    const hfi_time whole = lengthened ? lengthened : lease->deadline_ns + hfi_drift_ns(lease->terms.ttl_ms);
    const hfi_time left = whole - now_ns;
    return left < HFI_MS ? 1 : (uint32_t)(left / HFI_MS);
}

void hfi_lease_renewed(struct hfi_lease *lease, const struct hfi_renewal *renewal)
{
    const uint32_t granted = granted_ms(renewal->ttl_ms, renewal->valid_ms);
    count_from(lease, granted, renewal->counted_from_ns);
    if (granted < renewal->ttl_ms && !lease->terms.renew) { /* the rest of it later */
        lease->whole_ns = renewal->counted_from_ns + (hfi_time)renewal->ttl_ms * HFI_MS;
        lease->renew_at_ns = renewal->counted_from_ns + (hfi_time)granted * HFI_MS / 3;
    }
}

void hfi_lease_unsure(struct hfi_lease *lease, uint32_t ttl_ms, hfi_time sent_ns)
{
    if (lease->deadline_ns == HFI_NEVER)
        return;
    const hfi_time until = sent_ns + (hfi_time)ttl_ms * HFI_MS - hfi_drift_ns(ttl_ms);
    lease->deadline_ns = earlier(lease->deadline_ns, until);
    if (lease->terms.renew)
        lease->until_ns = earlier(lease->until_ns, until);
}

void hfi_lease_pass(struct hfi_lease *lease, uint32_t max_hold_ms, hfi_time now_ns)
{
    lease->terms.max_hold_ms = max_hold_ms;
    limit(lease, max_hold_ms, now_ns);
    lease->deadline_ns = earlier(lease->end_by_ns, lease->until_ns);
}

void hfi_lease_unanswered(struct hfi_lease *lease, hfi_time now_ns, uint64_t random)
{
    lease->failures++;
    /* A pause longer than a tenth of the lease would give a store that is back too few chances before the deadline. */
    const hfi_time most = (hfi_time)lease->terms.ttl_ms * HFI_MS / 10;
    lease->renew_at_ns = now_ns + earlier(hfi_backoff_ns(lease->failures, random), most);
}

hfi_time hfi_backoff_ns(unsigned failures, uint64_t random)
{
    hfi_time pause = BACKOFF_FIRST;
    for (unsigned i = 1; i < failures && pause < BACKOFF_MOST; i++)
        pause *= 2;
    pause = earlier(pause, BACKOFF_MOST);
    return pause / 2 + (hfi_time)(random % (uint64_t)(pause / 2));
}

bool hfi_trouble_again(struct hfi_trouble *trouble, hfi_time now_ns, hfi_time deadline_ns, hfi_time patience_ns,
                       uint64_t random, hfi_time *until_ns)
{
    if (trouble->failures++ == 0)
        trouble->since_ns = now_ns;
    if (now_ns >= deadline_ns || now_ns - trouble->since_ns >= patience_ns)
        return false;
    const hfi_time pause = hfi_backoff_ns(trouble->failures, random);
    *until_ns = earlier(now_ns + pause, deadline_ns);
    return true;
}
