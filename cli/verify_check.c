/* SPDX-License-Identifier: MIT
 *
 * verify_check.c: judges a history. It knows nothing of stores and processes: what it is given may as well be made up,
 * and is, in its tests. What it says is broken was broken; where the history does not tell, it holds its tongue.
 */
#include "verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *number, *words;
} promises[VERIFY_PROMISES] = {
    [VERIFY_P1] = { "1", "at most one holder" },
    [VERIFY_P2] = { "2", "a try answers at once" },
    [VERIFY_P3] = { "3", "waits end in time" },
    [VERIFY_P4] = { "4", "only the owner releases" },
    [VERIFY_P5] = { "5", "the lock of the dead ends" },
    [VERIFY_P5_PAUSED] = { "5", "... of a paused holder, too" },
    [VERIFY_P6] = { "6", "what is held is kept" },
    [VERIFY_P7] = { "7", "a loss is known first" },
    [VERIFY_P8] = { "8", "re-entry" },
    [VERIFY_P9] = { "9", "each token is greater" },
    [VERIFY_P10] = { "10", "unknown is not held" },
    [VERIFY_P12] = { "12", "nothing is left behind" },
};

const char *verify_number(enum verify_promise promise)
{
    return promises[promise].number;
}

const char *verify_words(enum verify_promise promise)
{
    return promises[promise].words;
}

const char *verify_outcome_name(enum verify_outcome outcome)
{
    static const char *const names[] = { "kept", "broken", "not claimed", "not seen" };

    return names[outcome];
}

void verify_violate(struct verify_judge *judge, enum verify_promise promise, int64_t at_ns, size_t one, size_t other,
                    const char *format, ...)
{
    struct verify_result *result = judge->result;
    struct verify_verdict *verdict = &result->verdict[promise];
    va_list args;

    if (verdict->broken++ >= VERIFY_SHOWN)
        return;
    struct verify_violation *violation = &result->violation[result->violations++];
    *violation = (struct verify_violation){ .promise = promise, .at_ns = at_ns, .one = one, .other = other };
    va_start(args, format);
    vsnprintf(violation->text, sizeof violation->text, format, args);
    va_end(args);
}

/* ---------------------------------------------------------------------------------------------------------- trouble */

static bool is_trouble(int32_t status)
{
    return status == HF_UNAVAILABLE || status == HF_UNKNOWN;
}

static int64_t ttl_ns(const struct verify_judge *judge)
{
    return judge->history->ttl_ms * VERIFY_MS;
}

/* The process was stopped or killed by us within that time. */
static bool was_struck(const struct verify_judge *judge, uint32_t owner, int64_t from_ns, int64_t to_ns)
{
    for (size_t i = 0; i < judge->history->events; i++) {
        const struct verify_event *event = &judge->history->event[i];
        if ((event->kind == VERIFY_KILLED || event->kind == VERIFY_PAUSED) && event->owner == owner &&
            event->from_ns <= to_ns && event->to_ns >= from_ns)
            return true;
    }
    return false;
}

/* This machine did not let anybody run. */
static bool was_stalled(const struct verify_judge *judge, int64_t from_ns, int64_t to_ns)
{
    for (size_t i = 0; i < judge->history->events; i++) {
        const struct verify_event *event = &judge->history->event[i];
        if (event->kind == VERIFY_STALLED && event->from_ns <= to_ns && event->to_ns >= from_ns)
            return true;
    }
    return false;
}

/* A process that was stopped in the middle of an exchange says nothing of the store. */
static bool was_in_trouble(const struct verify_judge *judge, const struct verify_record *record, int32_t status,
                           int64_t from_ns, int64_t to_ns)
{
    return is_trouble(status) && !was_struck(judge, record->owner, from_ns, to_ns);
}

#define TROUBLES_MOST 4 /* asked, released, and two writes */

/* What the record says of times at which the store did not answer. */
static size_t troubles_of(const struct verify_judge *judge, const struct verify_record *record,
                          struct verify_span spans[TROUBLES_MOST])
{
    const bool probe = record->worker == judge->history->workers;
    const int64_t slow_ns = ttl_ns(judge) / 4;
    const int64_t end_ns = judge->history->over_ns;
    size_t count = 0;

    /* The probe does nothing but ask: what takes it long is the store, or this machine. */
    if (probe && record->answered_ns == 0 && end_ns - record->asked_ns > slow_ns)
        spans[count++] = (struct verify_span){ record->asked_ns, end_ns };
    else if (record->answered_ns != 0 &&
             (was_in_trouble(judge, record, record->status, record->asked_ns, record->answered_ns) ||
              (probe && record->answered_ns - record->asked_ns > slow_ns)))
        spans[count++] = (struct verify_span){ record->asked_ns, record->answered_ns };
    if (record->released_ns != 0 &&
        (was_in_trouble(judge, record, record->release_status, record->releasing_ns, record->released_ns) ||
         (probe && record->released_ns - record->releasing_ns > slow_ns)))
        spans[count++] = (struct verify_span){ record->releasing_ns, record->released_ns };
    for (int i = 0; i < 2; i++) {
        const struct verify_write *write = &record->write[i];
        if (write->to_ns != 0 && was_in_trouble(judge, record, write->status, write->from_ns, write->to_ns))
            spans[count++] = (struct verify_span){ write->from_ns, write->to_ns };
    }
    return count;
}

static bool find_troubles(struct verify_judge *judge)
{
    const struct verify_history *history = judge->history;
    struct verify_span spans[TROUBLES_MOST];
    size_t count = 0;

    for (size_t i = 0; i < history->records; i++)
        count += troubles_of(judge, &history->record[i], spans);
    judge->trouble = calloc(count + history->events + 1, sizeof *judge->trouble);
    if (judge->trouble == NULL)
        return false;
    count = 0;
    for (size_t i = 0; i < history->records; i++) {
        const size_t more = troubles_of(judge, &history->record[i], spans);
        memcpy(judge->trouble + count, spans, more * sizeof *spans);
        count += more;
    }
    for (size_t i = 0; i < history->events; i++)
        if (history->event[i].kind == VERIFY_STALLED)
            judge->trouble[count++] = (struct verify_span){ history->event[i].from_ns, history->event[i].to_ns };
    judge->troubles = verify_join_spans(judge->trouble, count, 0);
    return true;
}

bool verify_in_trouble(const struct verify_judge *judge, int64_t from_ns, int64_t to_ns)
{
    size_t low = 0, high = judge->troubles;

    while (low < high) { /* the first that ends at from_ns or later */
        const size_t middle = low + (high - low) / 2;
        if (judge->trouble[middle].to_ns < from_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low < judge->troubles && judge->trouble[low].from_ns <= to_ns;
}

static bool is_answered(const struct verify_record *record)
{
    return record->answered_ns != 0 && record->kind != VERIFY_OPEN;
}

/* --------------------------------------------------------------------------------------- 2, 3, 8, 10: one by itself */

static void judge_wait(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    const int64_t due_ns = record->asked_ns + record->wait_ms * VERIFY_MS;
    const int64_t until_ns = record->answered_ns != 0 ? record->answered_ns : judge->history->over_ns;
    struct verify_figures *figures = &judge->result->figures;

    if (was_struck(judge, record->owner, record->asked_ns, until_ns) || was_stalled(judge, record->asked_ns, until_ns))
        return;
    judge->result->verdict[VERIFY_P3].seen++;
    if (until_ns - due_ns > figures->late_ns)
        figures->late_ns = until_ns - due_ns;
    if (record->answered_ns == 0 && until_ns - due_ns > VERIFY_SLACK_NS)
        verify_violate(judge, VERIFY_P3, until_ns, i, SIZE_MAX, "a wait of %u ms had not ended after %" PRId64 " ms",
                       record->wait_ms, (until_ns - record->asked_ns) / VERIFY_MS);
    else if (until_ns - due_ns > VERIFY_SLACK_NS)
        verify_violate(judge, VERIFY_P3, until_ns, i, SIZE_MAX, "a wait of %u ms ended after %" PRId64 " ms",
                       record->wait_ms, (until_ns - record->asked_ns) / VERIFY_MS);
    else if (record->answered_ns != 0 && record->status == HF_TIMEOUT && until_ns < due_ns - VERIFY_MS)
        verify_violate(judge, VERIFY_P3, until_ns, i, SIZE_MAX, "a wait of %u ms was given up after %" PRId64 " ms",
                       record->wait_ms, (until_ns - record->asked_ns) / VERIFY_MS);
}

static void judge_try(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    const int64_t took_ns = record->answered_ns - record->asked_ns;
    const bool late = took_ns > VERIFY_SLACK_NS;

    if (!is_answered(record) || was_struck(judge, record->owner, record->asked_ns, record->answered_ns) ||
        is_trouble(record->status) || (late && verify_in_trouble(judge, record->asked_ns, record->answered_ns)))
        return;
    judge->result->verdict[VERIFY_P2].seen++;
    if (late)
        verify_violate(judge, VERIFY_P2, record->answered_ns, i, SIZE_MAX, "a try was answered after %" PRId64 " ms",
                       took_ns / VERIFY_MS);
}

static void judge_alone(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    struct verify_result *result = judge->result;

    if (record->kind == VERIFY_WAIT)
        judge_wait(judge, i);
    else if (record->kind == VERIFY_TRY)
        judge_try(judge, i);
    if (record->flags & VERIFY_REENTERED) {
        result->verdict[VERIFY_P8].seen++;
        if (record->flags & VERIFY_REENTRY_WRONG)
            verify_violate(judge, VERIFY_P8, record->granted_ns, i, SIZE_MAX,
                           "its holder was refused, or got another token than %" PRIu64, record->token);
    }
    if (record->kind != VERIFY_OPEN && is_trouble(record->status))
        result->verdict[VERIFY_P10].seen++;
    if (record->flags & VERIFY_GIVEN_A_NO)
        verify_violate(judge, VERIFY_P10, record->answered_ns, i, SIZE_MAX, "a handle came with %s",
                       hf_status_name((hf_status)record->status));
}

/* ---------------------------------------------------------------------------------------- 1, 4, 6, 7: what was held */

static bool is_lost(const struct verify_record *record)
{
    return atomic_load(&record->told_ns) != 0 || record->over_ns != 0 ||
           (record->released_ns != 0 && record->release_status == HF_LOST);
}

/* When the loss was noticed, one way or another. */
static int64_t lost_ns(const struct verify_record *record)
{
    const int64_t told_ns = atomic_load(&record->told_ns);
    int64_t first_ns = record->released_ns != 0 ? record->released_ns : INT64_MAX;

    if (record->over_ns != 0 && record->over_ns < first_ns)
        first_ns = record->over_ns;
    return told_ns != 0 && told_ns < first_ns ? told_ns : first_ns;
}

/* Of a lock that is bound to a connection, the server may serve the next one in the moment in which that breaks: its
 * holder knows of the loss at once, and not before. */
static bool knows_late(const struct verify_judge *judge)
{
    return !(judge->history->caps & HF_CAP_EXPIRY) && (judge->history->caps & HF_CAP_MACHINES);
}

static void judge_overlap(struct verify_judge *judge, size_t first, size_t second)
{
    const struct verify_record *one = &judge->history->record[first], *other = &judge->history->record[second];
    const int64_t until_ns = one->believed_ns < other->believed_ns ? one->believed_ns : other->believed_ns;

    if (!is_lost(one) || !knows_late(judge))
        verify_violate(judge, VERIFY_P1, other->granted_ns, first, second,
                       "workers %u and %u both believed to hold it for %.3f ms, with tokens %" PRIu64 " and %" PRIu64,
                       one->worker, other->worker, (double)(until_ns - other->granted_ns) / 1e6, one->token,
                       other->token);
    if (is_lost(one))
        verify_violate(judge, VERIFY_P7, other->granted_ns, first, second,
                       "worker %u knew of its loss %.3f ms after worker %u had been granted the lock", one->worker,
                       (double)(lost_ns(one) - other->granted_ns) / 1e6, other->worker);
}

/* Two processes at least have asked for it. */
static bool has_rivals(const struct verify_judge *judge, int lock)
{
    uint32_t first = 0; /* owners count from 1 */

    for (size_t i = 0; i < judge->history->records; i++) {
        const struct verify_record *record = &judge->history->record[i];
        if (record->lock != lock || record->kind == VERIFY_OPEN || record->owner == first)
            continue;
        if (first != 0)
            return true;
        first = record->owner;
    }
    return false;
}

/* Each believer against those who came before it. */
static void judge_believers(struct verify_judge *judge, int lock)
{
    const struct verify_record *record = judge->history->record;
    size_t last = SIZE_MAX; /* of those so far, the one that believed for longest */

    if (has_rivals(judge, lock)) /* or it could not have been broken */
        judge->result->verdict[VERIFY_P1].seen += judge->believed[lock];
    for (size_t i = 0; i < judge->believed[lock]; i++) {
        const size_t now = judge->order[lock][i];
        if (last != SIZE_MAX && record[now].granted_ns < record[last].believed_ns)
            judge_overlap(judge, last, now);
        /* It had stopped to believe, the next one had the lock, and then its release said that it had been its own. */
        if (last != SIZE_MAX && record[last].believed_ns < record[now].granted_ns && record[last].released_ns != 0 &&
            record[now].granted_ns < record[last].releasing_ns) {
            judge->result->verdict[VERIFY_P4].seen++;
            if (record[last].release_status == HF_OK)
                verify_violate(judge, VERIFY_P4, record[last].released_ns, last, now,
                               "worker %u released as its own, with token %" PRIu64
                               ", what worker %u had with %" PRIu64,
                               record[last].worker, record[last].token, record[now].worker, record[now].token);
        }
        if (last == SIZE_MAX || record[now].believed_ns > record[last].believed_ns)
            last = now;
    }
}

/* A release that was late and came while the lock was another's: it may have cost that one the lock. */
static size_t late_release_within(const struct verify_judge *judge, const struct verify_record *loser)
{
    const struct verify_history *history = judge->history;

    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *late = &history->record[i];
        if (late != loser && late->lock == loser->lock && late->released_ns != 0 && late->release_status == HF_LOST &&
            late->releasing_ns >= loser->granted_ns && late->released_ns <= lost_ns(loser))
            return i;
    }
    return SIZE_MAX;
}

static bool faults_were_tried(const struct verify_judge *judge)
{
    for (size_t i = 0; i < judge->history->events; i++)
        if (judge->history->event[i].kind == VERIFY_DURING)
            return true;
    return false;
}

/* The store had the time-to-live that it had promised, and gave the lock up before that was over. */
static void judge_early_loss(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    const int64_t left_ns = record->until_ns - lost_ns(record);
    size_t late;

    verify_violate(judge, VERIFY_P6, lost_ns(record), i, SIZE_MAX,
                   "the store gave up what worker %u held with token %" PRIu64 ", %" PRId64
                   " ms before the time-to-live was over",
                   record->worker, record->token, left_ns / VERIFY_MS);
    /* With a fault of the user's own, that is the nearer reason. */
    if (judge->result->verdict[VERIFY_P6].broken <= VERIFY_SHOWN && !faults_were_tried(judge) &&
        (late = late_release_within(judge, record)) != SIZE_MAX)
        verify_violate(judge, VERIFY_P4, lost_ns(record), late, i,
                       "a late release of worker %u may have cost worker %u its lock",
                       judge->history->record[late].worker, record->worker);
}

static void judge_loss(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    const int64_t at_ns = lost_ns(record);
    const bool excused = was_struck(judge, record->owner, record->asked_ns, at_ns) ||
                         (record->flags & VERIFY_STARVED) ||
                         verify_in_trouble(judge, record->believed_ns - ttl_ns(judge), at_ns + VERIFY_SLACK_NS);

    judge->result->verdict[VERIFY_P7].seen++;
    if (record->until_ns != INT64_MAX && record->until_ns > at_ns + VERIFY_MS)
        judge_early_loss(judge, i);
    else if ((record->flags & VERIFY_RENEWED) && !excused)
        verify_violate(judge, VERIFY_P6, at_ns, i, SIZE_MAX,
                       "worker %u lost what it held with token %" PRIu64
                       ", though it ran and the store could be reached",
                       record->worker, record->token);
    if (record->released_ns == 0)
        return;
    if (record->over_ns != 0 && record->release_status == HF_OK)
        verify_violate(judge, VERIFY_P7, record->released_ns, i, SIZE_MAX,
                       "worker %u saw no time left, and its release said that it had held the lock until then",
                       record->worker);
    else if (record->release_status == HF_LOST && atomic_load(&record->told_ns) == 0)
        verify_violate(judge, VERIFY_P7, record->released_ns, i, SIZE_MAX, "worker %u was not told of its loss",
                       record->worker);
}

static void judge_hold(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    const bool needs_renewal = judge->history->caps & HF_CAP_EXPIRY;

    if ((record->flags & VERIFY_RENEWED) &&
        record->believed_ns - record->granted_ns > (needs_renewal ? ttl_ns(judge) : 0))
        judge->result->verdict[VERIFY_P6].seen++;
    if (is_lost(record))
        judge_loss(judge, i);
}

/* -------------------------------------------------------------------------------------------------------------- all */

static void count_record(struct verify_figures *figures, const struct verify_record *record)
{
    figures->asked += record->kind != VERIFY_OPEN;
    figures->granted += is_answered(record) && record->status == HF_OK;
    figures->busy += is_answered(record) && record->status == HF_BUSY;
    figures->timeouts += is_answered(record) && record->status == HF_TIMEOUT;
    figures->troubles += record->answered_ns != 0 && is_trouble(record->status);
    figures->losses += is_lost(record);
}

static const struct verify_record *sorted;

static int by_granted(const void *one, const void *other)
{
    const struct verify_record *a = &sorted[*(const uint32_t *)one], *b = &sorted[*(const uint32_t *)other];
    return (a->granted_ns > b->granted_ns) - (a->granted_ns < b->granted_ns);
}

static bool put_in_order(struct verify_judge *judge)
{
    const struct verify_history *history = judge->history;

    for (int lock = 0; lock < VERIFY_LOCKS; lock++) {
        judge->order[lock] = calloc(history->records + 1, sizeof *judge->order[lock]);
        if (judge->order[lock] == NULL)
            return false;
        for (size_t i = 0; i < history->records; i++)
            if (history->record[i].lock == lock && history->record[i].granted_ns != 0)
                judge->order[lock][judge->believed[lock]++] = (uint32_t)i;
        sorted = history->record;
        qsort(judge->order[lock], judge->believed[lock], sizeof *judge->order[lock], by_granted);
    }
    return true;
}

static void judge_what_is_left(struct verify_judge *judge)
{
    for (int lock = 0; lock < VERIFY_LOCKS; lock++) {
        const struct verify_left *left = &judge->history->left[lock];
        if (left->status != HF_OK && left->status != HF_BUSY && left->status != HF_TIMEOUT)
            continue; /* the store has not answered, or not this question */
        judge->result->verdict[VERIFY_P12].seen++;
        if (left->status != HF_OK)
            verify_violate(judge, VERIFY_P12, judge->history->over_ns, SIZE_MAX, SIZE_MAX,
                           "when all had gone, nobody could take lock %d: %s", lock + 1,
                           hf_status_name((hf_status)left->status));
        else if (left->listed)
            verify_violate(judge, VERIFY_P12, judge->history->over_ns, SIZE_MAX, SIZE_MAX,
                           "when all had gone, lock %d was still shown as held", lock + 1);
    }
}

static void settle(struct verify_judge *judge)
{
    const uint32_t caps = judge->history->caps;
    struct verify_verdict *verdict = judge->result->verdict;

    for (int i = 0; i < VERIFY_PROMISES; i++)
        verdict[i].claimed = true;
    verdict[VERIFY_P5].claimed = caps & (HF_CAP_EXPIRY | HF_CAP_BOUND);
    verdict[VERIFY_P5_PAUSED].claimed = caps & HF_CAP_EXPIRY;
    verdict[VERIFY_P7].claimed = !knows_late(judge);
    for (int i = 0; i < VERIFY_PROMISES; i++) {
        const uint64_t enough = i == VERIFY_P12 ? VERIFY_LOCKS : 1; /* what was not looked at may be left behind */
        if (!verdict[i].claimed)
            verdict[i].outcome = VERIFY_NOT_CLAIMED;
        else if (verdict[i].broken > 0)
            verdict[i].outcome = VERIFY_BROKEN;
        else
            verdict[i].outcome = verdict[i].seen >= enough ? VERIFY_KEPT : VERIFY_NOT_SEEN;
    }
    judge->result->figures.losses_in_time =
        judge->result->figures.losses - (verdict[VERIFY_P7].broken < judge->result->figures.losses
                                             ? verdict[VERIFY_P7].broken
                                             : judge->result->figures.losses);
}

static bool judge_all(struct verify_judge *judge)
{
    const struct verify_history *history = judge->history;

    if (!find_troubles(judge) || !put_in_order(judge))
        return false;
    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *record = &history->record[i];
        if (record->worker < history->workers)
            count_record(&judge->result->figures, record);
        judge_alone(judge, i);
        if (record->granted_ns != 0)
            judge_hold(judge, i);
    }
    for (int lock = 0; lock < VERIFY_LOCKS; lock++)
        judge_believers(judge, lock);
    return verify_judge_tokens(judge) && verify_judge_service(judge);
}

/* What is not claimed is counted, and that is all. */
static void drop_unclaimed(struct verify_result *result)
{
    size_t kept = 0;

    for (size_t i = 0; i < result->violations; i++)
        if (result->verdict[result->violation[i].promise].claimed)
            result->violation[kept++] = result->violation[i];
    result->violations = kept;
}

static int by_time(const void *one, const void *other)
{
    const struct verify_violation *a = one, *b = other;
    return (a->at_ns > b->at_ns) - (a->at_ns < b->at_ns);
}

bool verify_check(const struct verify_history *history, struct verify_result *result)
{
    struct verify_judge judge = { .history = history, .result = result };

    *result = (struct verify_result){ .violation =
                                          calloc((size_t)VERIFY_PROMISES * VERIFY_SHOWN, sizeof *result->violation) };
    const bool enough = result->violation != NULL && judge_all(&judge);
    if (enough) {
        judge_what_is_left(&judge);
        settle(&judge);
        drop_unclaimed(result);
        qsort(result->violation, result->violations, sizeof *result->violation, by_time);
    }
    free(judge.trouble);
    for (int lock = 0; lock < VERIFY_LOCKS; lock++)
        free(judge.order[lock]);
    if (!enough)
        verify_result_free(result);
    return enough;
}

void verify_result_free(struct verify_result *result)
{
    free(result->violation);
    *result = (struct verify_result){ 0 };
}
