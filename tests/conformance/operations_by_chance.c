/* SPDX-License-Identifier: MIT
 *
 * Operations that are started, cancelled, freed and told in any order: each ends once, and nothing is left.
 */
#include "conformance.h"

enum { STARTED = 120, NAMES = 2 };

struct errand {
    hf_op *op;
    uint32_t name;
    bool freed, canceled;
    int ends;
};

struct errands {
    hf_client *client;
    struct errand all[STARTED];
    uint32_t begun;
    hf_lock *held[NAMES];
};

static void take_events(struct errands *errands)
{
    hf_event events[4];
    const size_t count = hf_events(errands->client, events, 4, sizeof *events);
    for (size_t i = 0; i < count; i++) {
        struct errand *errand = events[i].tag;
        CHECK_INT(HF_EVENT_ENDED, events[i].kind);
        CHECK_INT(1, ++errand->ends);
        CHECK(!errand->freed);
        CHECK(events[i].status == HF_OK || (events[i].status == HF_CANCELED && errand->canceled));
        hf_op_free(errand->op);
        if (events[i].status != HF_OK)
            continue;
        CHECK(errands->held[errand->name] == NULL); /* whoever has it is alone */
        errands->held[errand->name] = events[i].lock;
    }
}

static void do_something(struct errands *errands, const struct name *names)
{
    struct errand *any = errands->begun ? &errands->all[random_below(errands->begun)] : NULL;
    const bool open = any && !any->freed && !any->ends;
    const uint32_t name = random_below(NAMES);
    switch (random_below(6)) {
    case 0:
    case 1:
        if (errands->begun == STARTED)
            break;
        any = &errands->all[errands->begun++];
        any->name = name;
        any->op = must_start(errands->client, names[name].text, NULL, any);
        break;
    case 2:
        if (open) {
            any->canceled = true;
            hf_op_cancel(any->op);
        }
        break;
    case 3:
        if (open) {
            any->freed = true;
            hf_op_free(any->op);
        }
        break;
    default:
        if (errands->held[name])
            CHECK_INT(HF_OK, hf_start_release(NULL, errands->held[name], NULL, NULL));
        errands->held[name] = NULL;
        if (has_events(errands->client, 1))
            take_events(errands);
    }
}

static bool all_have_ended(const struct errands *errands)
{
    for (uint32_t i = 0; i < errands->begun; i++) {
        if (!errands->all[i].freed && !errands->all[i].ends)
            return false;
    }
    return errands->begun == STARTED;
}

/* Starts, cancels, frees and takes events in any order: each ends once, and nothing is left. */
PROMISE_LIMIT(ops_by_chance, 0, 60)
{
    struct name names[NAMES] = { unique_name("x"), unique_name("y") };
    struct errands errands = { .client = open_client() };
    hf_client *other = open_client();
    while (!all_have_ended(&errands))
        do_something(&errands, names);
    for (uint32_t i = 0; i < NAMES; i++) {
        hf_release(errands.held[i], NULL);
        check_becomes_free(other, names[i].text);
    }
    check_no_event(errands.client);
    hf_close(errands.client);
    hf_close(other);
}
