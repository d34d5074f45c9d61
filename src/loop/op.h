/* SPDX-License-Identifier: MIT
 *
 * op.h: an operation: one question to a store, and its one completion.
 *
 * The engine's code for it is a function that can be left at an await and is called again to go on there: see await.h.
 * Nothing else can happen to it than that this await ends, in one of these ways:
 *
 *   HF_OK           what it waited for is there
 *   HF_UNKNOWN      its request was handed to a connection, and there will be no answer
 *   HF_UNAVAILABLE  the connection is gone, or the time is over, and nothing was sent
 *   HF_NOMEM        the same for want of memory
 *
 * An operation whose time is over is told so by every await from then on, at once: what is left to do is to end.
 * Everything here needs the loop's mutex.
 */
#ifndef HFI_OP_H
#define HFI_OP_H

#include "timers.h"

struct hfi_loop;
struct hfi_source;
struct hfi_sleeper;

struct hfi_op {
    struct hfi_loop *loop;
    /* Begins, or goes on with, the operation: HFI_AWAITING, or the status that it ends with. */
    int (*run)(struct hfi_op *op);
    hfi_time deadline_ns;
    hf_status status; /* once it is finished */
    bool finished;
    /* NULL: a thread waits for it. Else it was started, and this is called once it is finished, without the mutex, by
     * whichever thread brought that about: it must not wait for anything, and may free the operation. */
    void (*done)(struct hfi_op *op);

    /* what it awaits */
    struct hfi_source *source; /* an answer from it; NULL: something that only the loop brings about */
    /* in the list that it awaits its turn in, of those that can go on, or of those that are finished */
    struct hfi_op *next, *prev;
    struct hfi_timer timer;                   /* its deadline */
    struct hfi_sleeper *sleeper;              /* the thread that sleeps until it is done; NULL: none does */
    hf_status (*withdraw)(struct hfi_op *op); /* its time is over: how the await ends. NULL: it awaits nothing */
    hf_status woken;                          /* how the last await ended */
    bool over;                                /* its time is: all further ones end at once */
    uint16_t line;                            /* where `run` goes on: see await.h */
};

struct hfi_op_list {
    struct hfi_op *first, *last;
};

void hfi_op_list_add(struct hfi_op_list *list, struct hfi_op *op);
void hfi_op_list_remove(struct hfi_op_list *list, struct hfi_op *op);

/* Begins an operation that no thread runs: others drive it, and whoever began it is told by its own code when it ends.
 */
void hfi_op_begin(struct hfi_loop *loop, struct hfi_op *op);
/* Its time is over. It ends in this turn of the loop. */
void hfi_op_interrupt(struct hfi_op *op);

/* Begins an await, of an operation whose time is not over. `source` NULL: the loop brings it about. */
void hfi_op_park(struct hfi_op *op, struct hfi_source *source, hf_status (*withdraw)(struct hfi_op *op));
/* Ends it: the operation goes on in this turn of the loop. */
void hfi_op_wake(struct hfi_op *op, hf_status how);
/* Changes by when it must end. */
void hfi_op_limit(struct hfi_op *op, hfi_time deadline_ns);

#endif
