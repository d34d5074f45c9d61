/* SPDX-License-Identifier: MIT
 *
 * timers.h: what is due when. Most timers are set in the order in which they will be due, as locks with the same
 * time-to-live are renewed: those stand in a few lists, each in order, and setting one costs the same however many
 * there are. What fits at the end of none of them goes into a pairing heap: O(log n). Finding the first costs nothing.
 * Pure: no clock and no thread; and no memory of its own, so that setting a timer cannot fail.
 */
#ifndef HFI_TIMERS_H
#define HFI_TIMERS_H

#include "engine.h"

/* Part of what it is for. Zeroed: not set. */
struct hfi_timer {
    hfi_time at_ns; /* 0: not set */
    struct hfi_timer *next;
    struct hfi_timer *prev;  /* in the heap, of the first child: its parent */
    struct hfi_timer *child; /* in the heap; in a list: itself */
};

#define HFI_TIMER_LISTS 6

/* Zeroed: empty. */
struct hfi_timers {
    struct {
        struct hfi_timer *first, *last;
    } lists[HFI_TIMER_LISTS];
    struct hfi_timer *heap;
};

/* Takes it out if it is in, and puts it in unless `at_ns` is HFI_NEVER. */
void hfi_timers_set(struct hfi_timers *timers, struct hfi_timer *timer, hfi_time at_ns);
/* The one that is due first; NULL: there is none. */
struct hfi_timer *hfi_timers_first(const struct hfi_timers *timers);

/* The struct of this type whose `member` the timer is. */
#define HFI_TIMER_OF(type, member, timer) ((type *)(void *)((char *)(timer)-offsetof(type, member)))

#endif
