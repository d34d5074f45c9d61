/* SPDX-License-Identifier: MIT
 *
 * test_timers.c: timers against a list that is searched, and what they cost when there are many.
 */
#include "test.h"
#include "timers.h"
#include <stdlib.h>

#define COUNT 200

static uint32_t chance(void)
{
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static const struct hfi_timer *earliest(const struct hfi_timer *timers)
{
    const struct hfi_timer *first = NULL;
    for (int i = 0; i < COUNT; i++) {
        if (timers[i].at_ns && (!first || timers[i].at_ns < first->at_ns))
            first = &timers[i];
    }
    return first;
}

static void check_first(const struct hfi_timers *heap, const struct hfi_timer *timers)
{
    const struct hfi_timer *first = hfi_timers_first(heap), *expected = earliest(timers);
    REQUIRE((first == NULL) == (expected == NULL));
    if (first)
        REQUIRE_INT(expected->at_ns, first->at_ns);
}

TEST(the_first_is_the_earliest_whatever_was_set_moved_and_taken_out)
{
    struct hfi_timer timers[COUNT] = { { 0 } };
    struct hfi_timers heap = { 0 };
    check_first(&heap, timers);
    for (int turn = 0; turn < 100000; turn++) {
        struct hfi_timer *timer = &timers[chance() % COUNT];
        hfi_timers_set(&heap, timer, chance() % 3 == 0 ? HFI_NEVER : (hfi_time)(1 + chance() % 1000));
        check_first(&heap, timers);
    }
    hfi_time last = -1;
    for (struct hfi_timer *first; (first = hfi_timers_first(&heap)) != NULL;) {
        REQUIRE(first->at_ns >= last);
        last = first->at_ns;
        hfi_timers_set(&heap, first, HFI_NEVER);
        REQUIRE_INT(0, first->at_ns);
    }
    check_first(&heap, timers);
}

/* Those that are due in the order in which they are set, with a few different times to go, need no heap. */
TEST(what_is_set_in_order_stays_out_of_the_heap)
{
    enum { MANY = 10000, KINDS = 5 };
    static const hfi_time spans[KINDS] = { 10, 33, 100, 5000, 40 };
    struct hfi_timer *timers = calloc(MANY, sizeof *timers);
    struct hfi_timers all = { 0 };
    hfi_time now = 1, last = 0;
    for (int i = 0; i < MANY; i++)
        hfi_timers_set(&all, &timers[i], now++ + spans[chance() % KINDS]);
    for (int turn = 0; turn < 10 * MANY; turn++) { /* each is set anew when it is due, as renewals are */
        struct hfi_timer *first = hfi_timers_first(&all);
        REQUIRE(first->at_ns >= last);
        last = first->at_ns;
        hfi_timers_set(&all, first, ++now + spans[(first - timers) % KINDS]);
        REQUIRE(all.heap == NULL || turn < MANY); /* each has kept to one span from then on */
    }
    free(timers);
}

/* In the opposite order they all go there, but for a few. */
TEST(many_that_are_set_out_of_order_are_found_in_order)
{
    enum { MANY = 50000 };
    struct hfi_timer *timers = calloc(MANY, sizeof *timers);
    struct hfi_timers all = { 0 };
    for (size_t i = 0; i < MANY; i++) {
        hfi_timers_set(&all, &timers[i], (hfi_time)(MANY - i));
        REQUIRE(hfi_timers_first(&all) == &timers[i]);
    }
    for (size_t i = 0; i < MANY; i++) {
        REQUIRE(hfi_timers_first(&all) == &timers[MANY - 1 - i]);
        hfi_timers_set(&all, &timers[MANY - 1 - i], HFI_NEVER);
    }
    REQUIRE(hfi_timers_first(&all) == NULL);
    free(timers);
}
