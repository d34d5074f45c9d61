/* SPDX-License-Identifier: MIT
 *
 * test_lease.c: leases in virtual time. The trace is the assertion: what happened, and when, in milliseconds.
 */
#include "lease.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

/* What the store does with a renewal that is sent at a time in [from, to). */
struct weather {
    long from_ms, to_ms;
    enum { ANSWERS, SILENT, FORGOT } answer;
    long delay_ms; /* how long the answer takes */
};

static char trace[4096];

static void note(long now_ms, const char *what)
{
    const size_t used = strlen(trace);
    snprintf(trace + used, sizeof trace - used, "%ld %s\n", now_ms, what);
}

static const struct weather *weather_at(const struct weather *all, long now_ms)
{
    while (all->to_ms && !(now_ms >= all->from_ms && now_ms < all->to_ms))
        all++;
    return all;
}

static void renewed(struct hfi_lease *lease, uint32_t ttl_ms, hfi_time counted_from_ns)
{
    hfi_lease_renewed(lease, &(struct hfi_renewal){ .ttl_ms = ttl_ms, .counted_from_ns = counted_from_ns });
}

/* Drives one lease as the keeper does until it ends or `until_ms`; random numbers are all 0. */
static void live(const struct hfi_terms *terms, const struct weather *weather, long until_ms)
{
    struct hfi_lease lease;
    long now = 0;
    trace[0] = 0;
    hfi_lease_start(&lease, terms, 0, 0, 0);
    for (int steps = 0; steps < 100 && now < until_ms; steps++) {
        switch (hfi_lease_step(&lease, now * HFI_MS, 0)) {
        case HFI_STEP_END:
            note(now, "lost");
            return;
        case HFI_STEP_RENEW: {
            const struct weather *today = weather_at(weather, now);
            const long sent = now;
            now += today->delay_ms;
            if (today->answer == FORGOT) {
                note(now, "gone");
                return;
            }
            note(sent, today->answer == ANSWERS ? "renewed" : "no answer");
            if (today->answer == ANSWERS)
                renewed(&lease, terms->ttl_ms, sent * HFI_MS);
            else
                hfi_lease_unanswered(&lease, now * HFI_MS, 0);
            break;
        }
        case HFI_STEP_NONE:
            break;
        }
        const hfi_time due = hfi_lease_due(&lease);
        if (due == HFI_NEVER) {
            note(now, "nothing due, ever");
            return;
        }
        if (due > now * HFI_MS)
            now = (long)((due + HFI_MS - 1) / HFI_MS);
    }
    note(now, "still held");
}

static const struct weather fine[] = { { 0, 0, ANSWERS, 0 } };

TEST(a_lease_is_renewed_at_a_third_of_its_time)
{
    live(&(struct hfi_terms){ .ttl_ms = 30000, .renew = true, .store_expires = true }, fine, 30000);
    CHECK_STR("10000 renewed\n20000 renewed\n30000 still held\n", trace);
}

TEST(without_renewal_it_ends_before_the_store_ends_it)
{
    live(&(struct hfi_terms){ .ttl_ms = 30000, .renew = false, .store_expires = true }, fine, 60000);
    CHECK_STR("29698 lost\n", trace); /* 30000 - 300 - 2 */
}

TEST(a_lock_that_only_death_ends_needs_nothing)
{
    live(&(struct hfi_terms){ .ttl_ms = 30000, .renew = true, .store_expires = false }, fine, 60000);
    CHECK_STR("0 nothing due, ever\n", trace);
}

TEST(a_plain_lease_ends_also_where_the_store_keeps_no_time)
{
    live(&(struct hfi_terms){ .ttl_ms = 1000, .renew = false, .store_expires = false }, fine, 60000);
    CHECK_STR("988 lost\n", trace);
}

TEST(max_hold_ends_a_lease_that_could_be_renewed)
{
    live(&(struct hfi_terms){ .ttl_ms = 3000, .max_hold_ms = 2500, .renew = true, .store_expires = true }, fine, 60000);
    CHECK_STR("1000 renewed\n2000 renewed\n2500 lost\n", trace);
    live(&(struct hfi_terms){ .ttl_ms = 3000, .max_hold_ms = 2500, .renew = true, .store_expires = false }, fine,
         60000);
    CHECK_STR("2500 lost\n", trace);
}

TEST(a_short_silence_is_survived)
{
    const struct weather weather[] = { { 900, 1500, SILENT, 20 }, { 0, 0, ANSWERS, 0 } };
    live(&(struct hfi_terms){ .ttl_ms = 3000, .renew = true, .store_expires = true }, weather, 3000);
    /* pauses of 12.5, 25, 50, 100, 200 ms, and then never more than a tenth of the ttl */
    CHECK_STR("1000 no answer\n1033 no answer\n1078 no answer\n1148 no answer\n1268 no answer\n1488 no answer\n"
              "1808 renewed\n2808 renewed\n3808 still held\n",
              trace);
}

TEST(a_long_silence_ends_it_at_its_own_deadline)
{
    const struct weather weather[] = { { 0, 999999, SILENT, 400 }, { 0, 0, ANSWERS, 0 } };
    live(&(struct hfi_terms){ .ttl_ms = 3000, .renew = true, .store_expires = true }, weather, 60000);
    CHECK_STR("1000 no answer\n1413 no answer\n1838 no answer\n2288 no answer\n2788 no answer\n3188 lost\n", trace);
}

TEST(what_the_store_forgot_is_gone_at_once)
{
    const struct weather weather[] = { { 1500, 999999, FORGOT, 1 }, { 0, 0, ANSWERS, 0 } };
    live(&(struct hfi_terms){ .ttl_ms = 3000, .renew = true, .store_expires = true }, weather, 60000);
    CHECK_STR("1000 renewed\n2001 gone\n", trace);
}

TEST(a_slow_answer_counts_from_when_the_question_was_sent)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 1000, .renew = true, .store_expires = true };
    hfi_lease_start(&lease, &terms, 0, 100 * HFI_MS, 100 * HFI_MS);
    CHECK_INT((100 + 988) * HFI_MS, lease.deadline_ns);
    CHECK_INT(HFI_STEP_RENEW, hfi_lease_step(&lease, 900 * HFI_MS, 0)); /* overdue already */
    renewed(&lease, 1000, 900 * HFI_MS);
    CHECK_INT((900 + 988) * HFI_MS, lease.deadline_ns);
}

/* A session that is shared was kept alive before the lock was asked for. */
TEST(the_longest_time_counts_from_the_question)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 30000, .max_hold_ms = 500, .renew = true, .store_expires = true };
    hfi_lease_start(&lease, &terms, 0, 1000 * HFI_MS, 3000 * HFI_MS);
    CHECK_INT(3500 * HFI_MS, lease.deadline_ns);
}

TEST(a_gift_is_made_whole_by_its_first_renewal)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 30000, .renew = false, .store_expires = true };
    hfi_lease_start(&lease, &terms, 2000, 0, 0);
    CHECK_INT(1978 * HFI_MS, lease.deadline_ns);
    CHECK_INT(2000 * HFI_MS / 3, hfi_lease_due(&lease)); /* though it is not to be renewed otherwise */
    renewed(&lease, 30000, 700 * HFI_MS);
    CHECK_INT((700 + 29698) * HFI_MS, hfi_lease_due(&lease));
    const struct hfi_terms shorter = { .ttl_ms = 1000, .renew = false, .store_expires = true };
    hfi_lease_start(&lease, &shorter, 2000, 0, 0);
    CHECK_INT(988 * HFI_MS, hfi_lease_due(&lease)); /* a short lease stays as short as it was asked for */
}

TEST(a_store_that_grants_less_than_was_asked_for_is_asked_sooner)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 60000, .renew = true, .store_expires = true };
    const struct hfi_renewal renewal = { .ttl_ms = 60000, .valid_ms = 3000, .counted_from_ns = 1000 * HFI_MS };
    hfi_lease_start(&lease, &terms, 3000, 0, 0);
    CHECK_INT(1000 * HFI_MS, hfi_lease_due(&lease));
    hfi_lease_renewed(&lease, &renewal);
    CHECK_INT(2000 * HFI_MS, hfi_lease_due(&lease));
    CHECK_INT((1000 + 2968) * HFI_MS, lease.deadline_ns);
}

TEST(a_lease_that_is_lengthened_in_parts_ends_when_it_should)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 1000, .renew = false, .store_expires = true };
    struct hfi_renewal renewal = { .ttl_ms = 5000, .valid_ms = 3000, .counted_from_ns = 0 };
    hfi_lease_start(&lease, &terms, 0, 0, 0);
    hfi_lease_renewed(&lease, &renewal);
    CHECK_INT(2968 * HFI_MS, lease.deadline_ns);
    CHECK_INT(1000 * HFI_MS, hfi_lease_due(&lease));
    CHECK_INT(4000, hfi_lease_ask_ms(&lease, 1000 * HFI_MS));
    renewal = (struct hfi_renewal){ .ttl_ms = 4000, .valid_ms = 3000, .counted_from_ns = 1000 * HFI_MS };
    hfi_lease_renewed(&lease, &renewal);
    CHECK_INT(2000 * HFI_MS, hfi_lease_due(&lease));
    renewal = (struct hfi_renewal){ .ttl_ms = 3000, .valid_ms = 3000, .counted_from_ns = 2000 * HFI_MS };
    hfi_lease_renewed(&lease, &renewal);
    CHECK_INT((2000 + 2968) * HFI_MS, hfi_lease_due(&lease)); /* the whole of it, and no more renewals */
}

TEST(an_unanswered_renewal_to_a_shorter_time_may_count)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 30000, .renew = true, .store_expires = true };
    hfi_lease_start(&lease, &terms, 0, 0, 0);
    hfi_lease_unsure(&lease, 60000, 0);
    CHECK_INT(29698 * HFI_MS, lease.deadline_ns); /* a longer one does not count unless it was answered */
    hfi_lease_unsure(&lease, 1000, 5000 * HFI_MS);
    CHECK_INT((5000 + 988) * HFI_MS, lease.deadline_ns);
}

TEST(renewals_that_are_nearly_due_share_an_exchange)
{
    struct hfi_lease lease;
    const struct hfi_terms terms = { .ttl_ms = 3000, .renew = true, .store_expires = true };
    hfi_lease_start(&lease, &terms, 0, 0, 0);
    CHECK_INT(HFI_STEP_NONE, hfi_lease_step(&lease, 950 * HFI_MS, 0));
    CHECK_INT(HFI_STEP_RENEW, hfi_lease_step(&lease, 950 * HFI_MS, 100 * HFI_MS));
}

TEST(pauses_double_up_to_two_seconds_and_are_half_chance)
{
    CHECK_INT(12500000, hfi_backoff_ns(1, 0));
    CHECK_INT(25 * HFI_MS, hfi_backoff_ns(2, 0));
    CHECK_INT(HFI_SECOND, hfi_backoff_ns(40, 0));
    for (unsigned failures = 1; failures < 50; failures++) {
        const hfi_time least = hfi_backoff_ns(failures, 0);
        const hfi_time most = hfi_backoff_ns(failures, (uint64_t)(least - 1));
        CHECK(most < 2 * least && most <= 2 * HFI_SECOND);
    }
}

TEST(trouble_is_borne_for_so_long_and_no_longer)
{
    struct hfi_trouble trouble = { 0 };
    hfi_time until;
    CHECK(hfi_trouble_again(&trouble, 0, HFI_NEVER, HFI_SECOND, 0, &until));
    CHECK_INT(12500000, until);
    CHECK(hfi_trouble_again(&trouble, until, HFI_NEVER, HFI_SECOND, 0, &until));
    CHECK_INT(12500000 + 25 * HFI_MS, until);
    CHECK(!hfi_trouble_again(&trouble, HFI_SECOND, HFI_NEVER, HFI_SECOND, 0, &until));

    struct hfi_trouble other = { 0 };
    CHECK(hfi_trouble_again(&other, 0, 5 * HFI_MS, HFI_SECOND, 0, &until));
    CHECK_INT(5 * HFI_MS, until); /* a wait ends at its deadline */
    CHECK(!hfi_trouble_again(&other, 5 * HFI_MS, 5 * HFI_MS, HFI_SECOND, 0, &until));
}
