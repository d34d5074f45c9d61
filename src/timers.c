/* SPDX-License-Identifier: MIT
 *
 * timers.c: see timers.h.
 */
#include "timers.h"

/* --- the heap: each is due no later than its children --- */

/* One of two trees; either may be NULL. The root's `next` and `prev` are garbage. */
static struct hfi_timer *meld(struct hfi_timer *a, struct hfi_timer *b)
{
    if (!a || !b)
        return a ? a : b;
    struct hfi_timer *root = b->at_ns < a->at_ns ? b : a, *child = root == a ? b : a;
    child->next = root->child;
    if (child->next)
        child->next->prev = child;
    child->prev = root;
    root->child = child;
    return root;
}

/* One of all that stand beside each other: in pairs, and then from the last pair to the first, which is what makes the
 * price logarithmic. */
static struct hfi_timer *meld_all(struct hfi_timer *timer)
{
    struct hfi_timer *pairs = NULL, *root = NULL;
    while (timer) {
        struct hfi_timer *second = timer->next, *rest = second ? second->next : NULL;
        struct hfi_timer *pair = meld(timer, second);
        pair->next = pairs;
        pairs = pair;
        timer = rest;
    }
    while (pairs) {
        struct hfi_timer *pair = pairs;
        pairs = pair->next;
        root = meld(root, pair);
    }
    return root;
}

static void take_out_of_heap(struct hfi_timers *timers, struct hfi_timer *timer)
{
    if (timer == timers->heap) {
        timers->heap = meld_all(timer->child);
        return;
    }
    *(timer->prev->child == timer ? &timer->prev->child : &timer->prev->next) = timer->next;
    if (timer->next)
        timer->next->prev = timer->prev;
    timers->heap = meld(timers->heap, meld_all(timer->child));
}

/* --- the lists --- */

static void take_out_of_list(struct hfi_timers *timers, struct hfi_timer *timer)
{
    if (timer->next)
        timer->next->prev = timer->prev;
    if (timer->prev)
        timer->prev->next = timer->next;
    for (int i = 0; i < HFI_TIMER_LISTS && (!timer->next || !timer->prev); i++) {
        if (timers->lists[i].first == timer)
            timers->lists[i].first = timer->next;
        if (timers->lists[i].last == timer)
            timers->lists[i].last = timer->prev;
    }
}

/* The list at whose end it fits best, or an empty one; -1: none. */
static int find_list(const struct hfi_timers *timers, hfi_time at_ns)
{
    int found = -1;
    hfi_time best = -1;
    for (int i = 0; i < HFI_TIMER_LISTS; i++) {
        const struct hfi_timer *last = timers->lists[i].last;
        const hfi_time at = last ? last->at_ns : 0;
        if (at <= at_ns && at > best) {
            best = at;
            found = i;
        }
    }
    return found;
}

static void put_in(struct hfi_timers *timers, struct hfi_timer *timer)
{
    const int list = find_list(timers, timer->at_ns);
    if (list < 0) {
        timer->child = NULL;
        timers->heap = meld(timers->heap, timer);
        return;
    }
    timer->child = timer;
    timer->next = NULL;
    timer->prev = timers->lists[list].last;
    *(timer->prev ? &timer->prev->next : &timers->lists[list].first) = timer;
    timers->lists[list].last = timer;
}

void hfi_timers_set(struct hfi_timers *timers, struct hfi_timer *timer, hfi_time at_ns)
{
    if (timer->at_ns && timer->child == timer)
        take_out_of_list(timers, timer);
    else if (timer->at_ns)
        take_out_of_heap(timers, timer);
    timer->at_ns = at_ns == HFI_NEVER ? 0 : at_ns;
    if (timer->at_ns)
        put_in(timers, timer);
}

struct hfi_timer *hfi_timers_first(const struct hfi_timers *timers)
{
    struct hfi_timer *first = timers->heap;
    for (int i = 0; i < HFI_TIMER_LISTS; i++) {
        struct hfi_timer *timer = timers->lists[i].first;
        if (timer && (!first || timer->at_ns < first->at_ns))
            first = timer;
    }
    return first;
}
