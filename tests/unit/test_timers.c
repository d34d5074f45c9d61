/* SPDX-License-Identifier: MIT
 *
 * test_timers.c: the heap of timers against a list that is searched.
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
        if (timers[i].place && (!first || timers[i].at_ns < first->at_ns))
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
    struct hfi_timer timers[COUNT] = { { 0, 0 } };
    struct hfi_timers heap = { NULL, 0, 0 };
    REQUIRE(hfi_timers_reserve(&heap, 1));
    REQUIRE(hfi_timers_reserve(&heap, COUNT));
    check_first(&heap, timers);
    for (int turn = 0; turn < 100000; turn++) {
        struct hfi_timer *timer = &timers[chance() % COUNT];
        hfi_timers_set(&heap, timer, chance() % 3 == 0 ? HFI_NEVER : (hfi_time)(chance() % 1000));
        check_first(&heap, timers);
    }
    hfi_time last = -1;
    for (struct hfi_timer *first; (first = hfi_timers_first(&heap)) != NULL;) {
        REQUIRE(first->at_ns >= last);
        last = first->at_ns;
        hfi_timers_set(&heap, first, HFI_NEVER);
        REQUIRE_INT(0, first->place);
    }
    REQUIRE_INT(0, heap.count);
    hfi_timers_free(&heap);
}

TEST(the_heap_grows_with_what_is_in_it)
{
    enum { MANY = 5000 };
    struct hfi_timer *timers = calloc(MANY, sizeof *timers);
    struct hfi_timers heap = { NULL, 0, 0 };
    for (size_t i = 0; i < MANY; i++) {
        REQUIRE(hfi_timers_reserve(&heap, i + 1));
        hfi_timers_set(&heap, &timers[i], (hfi_time)(MANY - i));
        REQUIRE(hfi_timers_first(&heap) == &timers[i]);
    }
    for (size_t i = 0; i < MANY; i++) {
        REQUIRE(hfi_timers_first(&heap) == &timers[MANY - 1 - i]);
        hfi_timers_set(&heap, &timers[MANY - 1 - i], HFI_NEVER);
    }
    hfi_timers_free(&heap);
    free(timers);
}
