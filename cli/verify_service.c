/* SPDX-License-Identifier: MIT
 *
 * verify_service.c: judges what there was between the holds: for how long somebody waited while nobody had the lock,
 * and how long it took from one hand to the next.
 */
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>

/* Who waits asks again after a moment: he was there all the time. */
#define HOLE_NS (300 * VERIFY_MS)

static int by_from(const void *one, const void *other)
{
    const struct verify_span *a = one, *b = other;
    return (a->from_ns > b->from_ns) - (a->from_ns < b->from_ns);
}

size_t verify_join_spans(struct verify_span *spans, size_t count, int64_t hole_ns)
{
    size_t last = 0;

    if (count == 0)
        return 0;
    qsort(spans, count, sizeof *spans, by_from);
    for (size_t i = 1; i < count; i++) {
        if (spans[i].from_ns > spans[last].to_ns + hole_ns)
            spans[++last] = spans[i];
        else if (spans[i].to_ns > spans[last].to_ns)
            spans[last].to_ns = spans[i].to_ns;
    }
    return last + 1;
}

/* ------------------------------------------------------------------------------------------------------- who waited */

/* When that process was killed; INT64_MAX: it was not. */
static int64_t killed_ns(const struct verify_history *history, uint32_t owner)
{
    for (size_t i = 0; i < history->events; i++)
        if (history->event[i].kind == VERIFY_KILLED && history->event[i].owner == owner)
            return history->event[i].from_ns;
    return INT64_MAX;
}

static int64_t earlier(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static int64_t later(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

/* Until when the record asked: its answer, its process' death, or the end of the window. */
static int64_t asked_until(const struct verify_history *history, const struct verify_record *record)
{
    const int64_t end_ns = earlier(history->end_ns, record->answered_ns != 0 ? record->answered_ns : INT64_MAX);

    return record->answered_ns != 0 ? end_ns : earlier(end_ns, killed_ns(history, record->owner));
}

/* The times in which a record waited and its process ran: one more for each pause within. */
static size_t waits_of(const struct verify_history *history, const struct verify_record *record,
                       struct verify_span *spans)
{
    const int64_t end_ns = asked_until(history, record);
    int64_t from_ns = record->asked_ns;
    size_t count = 0;

    for (size_t i = 0; i < history->events && from_ns < end_ns; i++) { /* in order */
        const struct verify_event *event = &history->event[i];
        if (event->kind != VERIFY_PAUSED || event->owner != record->owner || event->to_ns < from_ns)
            continue;
        if (event->from_ns > from_ns && event->from_ns < end_ns)
            spans[count++] = (struct verify_span){ from_ns, event->from_ns };
        from_ns = later(from_ns, event->to_ns);
    }
    if (from_ns < end_ns)
        spans[count++] = (struct verify_span){ from_ns, end_ns };
    return count;
}

/* When somebody waited for the lock. *out is to be freed. */
static bool find_waits(const struct verify_history *history, int lock, struct verify_span **out, size_t *count)
{
    size_t room = history->events + 1;

    for (size_t i = 0; i < history->records; i++)
        room += history->record[i].lock == lock && history->record[i].kind == VERIFY_WAIT;
    *out = calloc(room, sizeof **out);
    *count = 0;
    if (*out == NULL)
        return false;
    for (size_t i = 0; i < history->records; i++)
        if (history->record[i].lock == lock && history->record[i].kind == VERIFY_WAIT)
            *count += waits_of(history, &history->record[i], *out + *count);
    *count = verify_join_spans(*out, *count, HOLE_NS);
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- strikes */

enum victim { IDLE, WAITING, HOLDING };

/* What the process was at with that lock when it was struck. */
static enum victim victim_of(const struct verify_history *history, const struct verify_event *event, int lock)
{
    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *record = &history->record[i];
        if (record->owner != event->owner || record->lock != lock || record->kind == VERIFY_OPEN ||
            record->asked_ns > event->from_ns || (record->released_ns != 0 && record->released_ns < event->from_ns))
            continue;
        if (record->answered_ns == 0 || record->answered_ns > event->from_ns)
            return WAITING;
        if (record->status == HF_OK)
            return HOLDING;
    }
    return IDLE;
}

/* What struck this lock's workers, and how: one for each event. */
struct strikes {
    enum victim *victim;
    int64_t last_ns; /* of the gap that is looked at: the last one within, or the end of a trouble */
    bool by_kill, by_pause, of_waiter;
};

static void look_for_strikes(const struct verify_judge *judge, struct strikes *strikes, const struct verify_span *gap)
{
    const struct verify_history *history = judge->history;

    strikes->last_ns = gap->from_ns;
    strikes->by_kill = strikes->by_pause = strikes->of_waiter = false;
    for (size_t i = 0; i < history->events; i++) {
        const struct verify_event *event = &history->event[i];
        if (event->from_ns > gap->to_ns || event->to_ns < gap->from_ns - VERIFY_SLACK_NS)
            continue;
        if (event->kind == VERIFY_DURING)
            strikes->last_ns = later(strikes->last_ns, earlier(event->to_ns, gap->to_ns));
        if (strikes->victim[i] == IDLE)
            continue;
        strikes->by_kill |= event->kind == VERIFY_KILLED;
        strikes->by_pause |= event->kind == VERIFY_PAUSED;
        strikes->of_waiter |= strikes->victim[i] == WAITING;
        strikes->last_ns = later(strikes->last_ns, event->from_ns);
    }
    for (size_t i = 0; i < judge->troubles; i++)
        if (judge->trouble[i].from_ns <= gap->to_ns && judge->trouble[i].to_ns >= gap->from_ns)
            strikes->last_ns = later(strikes->last_ns, earlier(judge->trouble[i].to_ns, gap->to_ns));
}

/* ------------------------------------------------------------------------------------------------------------- gaps */

/* The gap is what the death of a holder has left. */
static void measure_end(struct verify_judge *judge, const struct strikes *strikes, const struct verify_span *gap)
{
    struct verify_figures *figures = &judge->result->figures;

    if (gap->to_ns - gap->from_ns <= figures->freed_ns)
        return;
    for (size_t i = 0; i < judge->history->events; i++) {
        const struct verify_event *event = &judge->history->event[i];
        if (event->kind == VERIFY_KILLED && strikes->victim[i] == HOLDING &&
            event->from_ns >= gap->from_ns - VERIFY_SLACK_NS && event->from_ns <= gap->to_ns)
            figures->freed_ns = later(figures->freed_ns, gap->to_ns - later(gap->from_ns, event->from_ns));
    }
}

static void judge_gap(struct verify_judge *judge, int lock, struct strikes *strikes, const struct verify_span *gap)
{
    const struct verify_history *history = judge->history;
    struct verify_figures *figures = &judge->result->figures;

    if (gap->to_ns - gap->from_ns > figures->gap_ns) {
        figures->gap_ns = gap->to_ns - gap->from_ns;
        figures->gap_from_ns = gap->from_ns;
        figures->gap_lock = (uint8_t)lock;
    }
    measure_end(judge, strikes, gap);
    if (gap->to_ns - gap->from_ns <= history->end_ms * VERIFY_MS + VERIFY_SLACK_NS)
        return;
    look_for_strikes(judge, strikes, gap);
    const uint32_t allowed_ms = history->end_ms + (strikes->of_waiter ? history->claim_ms : 0);
    if (gap->to_ns - strikes->last_ns <= allowed_ms * VERIFY_MS + VERIFY_SLACK_NS)
        return;
    verify_violate(judge,
                   strikes->by_pause  ? VERIFY_P5_PAUSED
                   : strikes->by_kill ? VERIFY_P5
                                      : VERIFY_P12,
                   gap->from_ns, SIZE_MAX, SIZE_MAX,
                   "for %" PRId64 " ms nobody was given lock %d, for which others waited; %u ms are what it may take",
                   (gap->to_ns - gap->from_ns) / VERIFY_MS, lock + 1, allowed_ms);
}

/* Where somebody waited, within a time in which nobody believed. */
static void judge_void(struct verify_judge *judge, int lock, struct strikes *strikes, const struct verify_span *wait,
                       size_t waits, int64_t from_ns, int64_t to_ns)
{
    size_t low = 0, high = waits;

    while (low < high) { /* the first that ends after from_ns */
        const size_t middle = low + (high - low) / 2;
        if (wait[middle].to_ns <= from_ns)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < waits && wait[low].from_ns < to_ns; low++) {
        const struct verify_span gap = { later(from_ns, wait[low].from_ns), earlier(to_ns, wait[low].to_ns) };
        judge_gap(judge, lock, strikes, &gap);
    }
}

static bool judge_gaps(struct verify_judge *judge, int lock, struct strikes *strikes)
{
    const struct verify_history *history = judge->history;
    struct verify_span *wait;
    size_t waits;
    int64_t until_ns = history->start_ns;

    if (!find_waits(history, lock, &wait, &waits))
        return false;
    for (size_t i = 0; i < judge->believed[lock]; i++) {
        const struct verify_record *record = &history->record[judge->order[lock][i]];
        if (record->granted_ns > until_ns)
            judge_void(judge, lock, strikes, wait, waits, until_ns, record->granted_ns);
        until_ns = later(until_ns, record->believed_ns);
    }
    if (until_ns < history->end_ns)
        judge_void(judge, lock, strikes, wait, waits, until_ns, history->end_ns);
    free(wait);
    return true;
}

/* ---------------------------------------------------------------------------------------------------- kills, pauses */

/* When the lock was next granted, to somebody who asked or waited after `from_ns`; 0: not any more. */
static int64_t next_grant(const struct verify_judge *judge, int lock, int64_t from_ns)
{
    size_t low = 0, high = judge->believed[lock];

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (judge->history->record[judge->order[lock][middle]].granted_ns < from_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low < judge->believed[lock] ? judge->history->record[judge->order[lock][low]].granted_ns : 0;
}

/* Counts those who held the lock when they were struck, and whose lock somebody else was given afterwards. */
static void count_strikes(struct verify_judge *judge, int lock, struct strikes *strikes)
{
    const struct verify_history *history = judge->history;
    struct verify_figures *figures = &judge->result->figures;

    for (size_t i = 0; i < history->events; i++) {
        const struct verify_event *event = &history->event[i];
        const bool kill = event->kind == VERIFY_KILLED;
        strikes->victim[i] = kill || event->kind == VERIFY_PAUSED ? victim_of(history, event, lock) : IDLE;
        if (strikes->victim[i] != HOLDING)
            continue;
        figures->killed_holding += kill;
        figures->paused_holding += !kill;
        const int64_t next_ns = next_grant(judge, lock, event->from_ns);
        if (next_ns != 0 && (kill || next_ns < event->to_ns))
            judge->result->verdict[kill ? VERIFY_P5 : VERIFY_P5_PAUSED].seen++;
    }
}

/* -------------------------------------------------------------------------------------------------------- hand-offs */

static int by_size(const void *one, const void *other)
{
    const int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* From the call of hf_release() to the return of hf_acquire(), where the next one had been waiting. */
static bool measure_handoffs(struct verify_judge *judge)
{
    const struct verify_record *record = judge->history->record;
    struct verify_figures *figures = &judge->result->figures;
    int64_t *took = calloc(judge->history->records + 1, sizeof *took);
    size_t count = 0;

    if (took == NULL)
        return false;
    for (int lock = 0; lock < VERIFY_PROBE; lock++) {
        for (size_t i = 1; i < judge->believed[lock]; i++) {
            const struct verify_record *from = &record[judge->order[lock][i - 1]], *to = &record[judge->order[lock][i]];
            if (from->worker != to->worker && from->released_ns != 0 && from->release_status == HF_OK &&
                to->asked_ns < from->releasing_ns && to->answered_ns > from->releasing_ns)
                took[count++] = to->answered_ns - from->releasing_ns;
        }
    }
    qsort(took, count, sizeof *took, by_size);
    figures->handoffs = count;
    if (count > 0) {
        figures->handoff_p50_ns = took[count / 2];
        figures->handoff_p99_ns = took[count * 99 / 100];
        figures->handoff_max_ns = took[count - 1];
    }
    free(took);
    return true;
}

bool verify_judge_service(struct verify_judge *judge)
{
    const struct verify_history *history = judge->history;
    struct strikes strikes = { .victim = calloc(history->events + 1, sizeof *strikes.victim) };
    bool enough = strikes.victim != NULL;

    for (int lock = 0; enough && lock < VERIFY_PROBE; lock++) {
        count_strikes(judge, lock, &strikes);
        enough = judge_gaps(judge, lock, &strikes);
    }
    for (size_t i = 0; i < history->events; i++) {
        judge->result->figures.killed += history->event[i].kind == VERIFY_KILLED;
        judge->result->figures.paused += history->event[i].kind == VERIFY_PAUSED;
    }
    free(strikes.victim);
    return enough && measure_handoffs(judge);
}
