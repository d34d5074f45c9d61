/* SPDX-License-Identifier: MIT
 *
 * timers.h: what is due when: a binary heap. Setting, moving and taking out cost O(log n), finding the first nothing.
 * Pure: no clock and no thread.
 */
#ifndef HFI_TIMERS_H
#define HFI_TIMERS_H

#include "engine.h"

/* Part of what it is for. Zeroed: not set. */
struct hfi_timer {
    hfi_time at_ns;
    size_t place; /* 1: the first of the heap; 0: not in it */
};

struct hfi_timers {
    struct hfi_timer **heap;
    size_t count, room;
};

/* Room for `count` timers in all: setting one then cannot fail. False: no memory. */
bool hfi_timers_reserve(struct hfi_timers *timers, size_t count);
void hfi_timers_move(struct hfi_timers *timers, struct hfi_timer *timer, hfi_time at_ns);
/* HFI_NEVER takes it out. Most often nothing changes. */
static inline void hfi_timers_set(struct hfi_timers *timers, struct hfi_timer *timer, hfi_time at_ns)
{
    if (at_ns == HFI_NEVER ? timer->place != 0 : timer->place == 0 || timer->at_ns != at_ns)
        hfi_timers_move(timers, timer, at_ns);
}
/* The one that is due first; NULL: there is none. */
struct hfi_timer *hfi_timers_first(const struct hfi_timers *timers);
void hfi_timers_free(struct hfi_timers *timers);

/* The struct of this type whose `member` the timer is. */
#define HFI_TIMER_OF(type, member, timer) ((type *)(void *)((char *)(timer)-offsetof(type, member)))

#endif
