/* SPDX-License-Identifier: MIT
 *
 * timers.c: see timers.h.
 */
#include "timers.h"
#include <string.h>

#define FIRST_ROOM 64

bool hfi_timers_reserve(struct hfi_timers *timers, size_t count)
{
    size_t room = timers->room ? timers->room : FIRST_ROOM;
    if (count <= timers->room)
        return true;
    while (room < count)
        room *= 2;
    struct hfi_timer **larger = hfi_alloc(room * sizeof(struct hfi_timer *));
    if (!larger)
        return false;
    if (timers->count)
        memcpy(larger, timers->heap, timers->count * sizeof(struct hfi_timer *));
    hfi_free(timers->heap);
    timers->heap = larger;
    timers->room = room;
    return true;
}

static void put(struct hfi_timers *timers, size_t place, struct hfi_timer *timer)
{
    timers->heap[place - 1] = timer;
    timer->place = place;
}

/* Puts the timer where it belongs, from a free `place` on: towards the first or away from it. */
static void sift(struct hfi_timers *timers, size_t place, struct hfi_timer *timer)
{
    while (place > 1 && timers->heap[place / 2 - 1]->at_ns > timer->at_ns) {
        put(timers, place, timers->heap[place / 2 - 1]);
        place /= 2;
    }
    for (size_t child; (child = 2 * place) <= timers->count; place = child) {
        if (child < timers->count && timers->heap[child]->at_ns < timers->heap[child - 1]->at_ns)
            child++;
        if (timers->heap[child - 1]->at_ns >= timer->at_ns)
            break;
        put(timers, place, timers->heap[child - 1]);
    }
    put(timers, place, timer);
}

static void take_out(struct hfi_timers *timers, struct hfi_timer *timer)
{
    struct hfi_timer *last = timers->heap[--timers->count];
    if (last != timer)
        sift(timers, timer->place, last);
    timer->place = 0;
}

void hfi_timers_move(struct hfi_timers *timers, struct hfi_timer *timer, hfi_time at_ns)
{
    timer->at_ns = at_ns;
    if (at_ns != HFI_NEVER)
        sift(timers, timer->place ? timer->place : ++timers->count, timer);
    else
        take_out(timers, timer);
}

struct hfi_timer *hfi_timers_first(const struct hfi_timers *timers)
{
    return timers->count ? timers->heap[0] : NULL;
}

void hfi_timers_free(struct hfi_timers *timers)
{
    hfi_free(timers->heap);
}
