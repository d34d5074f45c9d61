/* SPDX-License-Identifier: MIT
 *
 * verify_tokens.c: judges the tokens of a history: each grant's is greater than that of those before it, and a register
 * that has let a greater one pass lets no smaller one pass.
 */
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Something that has a token, and was there from one time to another. */
struct stamp {
    int64_t from_ns, to_ns;
    uint64_t token;
    size_t record;
};

static int by_from(const void *one, const void *other)
{
    const struct stamp *a = one, *b = other;
    return (a->from_ns > b->from_ns) - (a->from_ns < b->from_ns);
}

static int by_to(const void *one, const void *other)
{
    const struct stamp *a = one, *b = other;
    return (a->to_ns > b->to_ns) - (a->to_ns < b->to_ns);
}

/* Finds stamps that began when one with a greater token (`strictly`: or the same) was over. `ended` has room for as
 * many. */
static void judge_order(struct verify_judge *judge, struct stamp *stamp, struct stamp *ended, size_t count,
                        bool strictly, const char *what)
{
    const struct stamp *greatest = NULL;
    size_t next = 0;

    memcpy(ended, stamp, count * sizeof *stamp);
    qsort(stamp, count, sizeof *stamp, by_from);
    qsort(ended, count, sizeof *ended, by_to);
    for (size_t i = 0; i < count; i++) {
        for (; next < count && ended[next].to_ns < stamp[i].from_ns; next++)
            if (greatest == NULL || ended[next].token >= greatest->token)
                greatest = &ended[next];
        if (greatest != NULL && (greatest->token > stamp[i].token || (strictly && greatest->token == stamp[i].token)))
            verify_violate(judge, VERIFY_P9, stamp[i].to_ns, greatest->record, stamp[i].record,
                           "%s with token %" PRIu64 " after one with %" PRIu64, what, stamp[i].token, greatest->token);
    }
}

static bool is_grant(const struct verify_record *record)
{
    return record->kind != VERIFY_OPEN && record->answered_ns != 0 && record->status == HF_OK;
}

static bool is_write(const struct verify_write *write)
{
    return write->to_ns != 0 && write->status == HF_OK;
}

/* Its own write was refused, and after that it was still certain to be the holder. */
static void judge_refusals(struct verify_judge *judge, size_t i)
{
    const struct verify_record *record = &judge->history->record[i];
    struct verify_figures *figures = &judge->result->figures;

    for (int k = 0; k < 2; k++) {
        const struct verify_write *write = &record->write[k];
        figures->writes += write->to_ns != 0 && (write->status == HF_OK || write->status == HF_LOST);
        if (write->to_ns == 0 || write->status != HF_LOST)
            continue;
        if (record->believed_ns > write->to_ns)
            verify_violate(judge, VERIFY_P9, write->to_ns, i, SIZE_MAX,
                           "the register had a greater token than %" PRIu64 ", which worker %u believed to be the last",
                           record->token, record->worker);
        else
            figures->refused++;
    }
}

/* Grants of all kinds, in real time: who asked when another's grant was known has a greater token. Believers, too, who
 * came one after the other though they asked at the same time. And writes: none that is older than an accepted one. */
static void judge_lock(struct verify_judge *judge, struct stamp *stamp, struct stamp *room, int lock)
{
    const struct verify_history *history = judge->history;
    size_t count = 0;

    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *record = &history->record[i];
        if (record->lock == lock && is_grant(record))
            stamp[count++] = (struct stamp){ record->asked_ns, record->answered_ns, record->token, i };
    }
    judge->result->verdict[VERIFY_P9].seen += count;
    judge_order(judge, stamp, room, count, true, "a grant");
    if (judge->result->verdict[VERIFY_P9].broken == 0) {
        for (count = 0; count < judge->believed[lock]; count++) {
            const size_t i = judge->order[lock][count];
            stamp[count] = (struct stamp){ history->record[i].granted_ns, history->record[i].granted_ns,
                                           history->record[i].token, i };
        }
        judge_order(judge, stamp, room, count, true, "a grant");
    }
    count = 0;
    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *record = &history->record[i];
        for (int k = 0; record->lock == lock && k < 2; k++)
            if (is_write(&record->write[k]))
                stamp[count++] = (struct stamp){ record->write[k].from_ns, record->write[k].to_ns, record->token, i };
    }
    judge_order(judge, stamp, room, count, false, "the register let a stale write pass,");
}

bool verify_judge_tokens(struct verify_judge *judge)
{
    const size_t most = 2 * judge->history->records + 1;
    struct stamp *stamp = calloc(most, sizeof *stamp), *room = calloc(most, sizeof *room);
    const bool enough = stamp != NULL && room != NULL;

    for (size_t i = 0; enough && i < judge->history->records; i++)
        judge_refusals(judge, i);
    for (int lock = 0; enough && lock < VERIFY_LOCKS; lock++)
        judge_lock(judge, stamp, room, lock);
    free(stamp);
    free(room);
    return enough;
}
