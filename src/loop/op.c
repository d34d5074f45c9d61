/* SPDX-License-Identifier: MIT
 *
 * op.c: see op.h; and threads that sleep for an operation.
 */
#include "loop/await.h"
#include "loop/sleep.h"
#include <assert.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- lists --- */

void hfi_op_list_add(struct hfi_op_list *list, struct hfi_op *op)
{
    op->next = NULL;
    op->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = op;
    list->last = op;
}

void hfi_op_list_remove(struct hfi_op_list *list, struct hfi_op *op)
{
    *(op->prev ? &op->prev->next : &list->first) = op->next;
    *(op->next ? &op->next->prev : &list->last) = op->prev;
    op->next = op->prev = NULL;
}

/* --- awaits --- */

void hfi_op_park(struct hfi_op *op, struct hfi_source *source, hf_status (*withdraw)(struct hfi_op *op))
{
    assert(!op->withdraw && !op->finished && !op->over);
    op->withdraw = withdraw;
    if (op->done && source)
        source->unattended++;
    if (op->sleeper && op->source != source)
        hfi_sleeper_wake(op->loop, op->sleeper, HFI_MOVED);
    op->source = source;
    if (op->loop->on_await)
        op->loop->on_await(op);
}

/* Before its source may be gone. */
static void forget_source(struct hfi_op *op)
{
    if (!op->done || !op->source)
        return;
    op->source->unattended--;
    op->source = NULL;
}

void hfi_op_wake(struct hfi_op *op, hf_status how)
{
    assert(op->withdraw);
    forget_source(op);
    op->withdraw = NULL;
    op->woken = how;
    hfi_op_list_add(&op->loop->ready, op);
}

void hfi_op_interrupt(struct hfi_op *op)
{
    if (op->finished || op->over)
        return;
    op->over = true;
    if (!op->withdraw) /* its answer is there already */
        return;
    forget_source(op);
    hfi_op_wake(op, op->withdraw(op));
}

void hfi_op_limit(struct hfi_op *op, hfi_time deadline_ns)
{
    op->deadline_ns = deadline_ns;
    hfi_timers_set(&op->loop->timers, &op->timer, deadline_ns);
}

static void complete(struct hfi_op *op, hf_status status)
{
    assert(!op->finished && !op->withdraw);
    hfi_timers_set(&op->loop->timers, &op->timer, HFI_NEVER);
    op->loop->op_count--;
    op->status = status;
    op->finished = true;
    if (op->done)
        hfi_op_list_add(&op->loop->finished, op);
    else if (op->sleeper)
        hfi_sleeper_wake(op->loop, op->sleeper, HFI_FINISHED);
    else if (op->loop->driver == op)
        eventfd_write(op->loop->bell, 1);
}

static void go_on(struct hfi_op *op)
{
    const int result = op->run(op);
    if (result != HFI_AWAITING)
        complete(op, (hf_status)result);
}

void hfi_op_begin(struct hfi_loop *loop, struct hfi_op *op)
{
    op->loop = loop;
    op->line = 0;
    op->finished = op->over = false;
    op->woken = HF_OK;
    op->withdraw = NULL;
    op->sleeper = NULL;
    op->source = NULL;
    op->timer = (struct hfi_timer){ .at_ns = 0 };
    loop->op_count++;
    hfi_timers_set(&loop->timers, &op->timer, op->deadline_ns);
    go_on(op);
}

bool hfi_op_tell_finished(struct hfi_loop *loop)
{
    struct hfi_op *op, *next;
    if (!loop->finished.first || loop->tells)
        return false;
    loop->tells = true;
    while ((op = loop->finished.first) != NULL) {
        loop->finished = (struct hfi_op_list){ NULL, NULL };
        hfi_unlock_and_wake(loop);
        for (; op; op = next) {
            next = op->next;
            op->done(op);
        }
        pthread_mutex_lock(&loop->mutex);
    }
    loop->tells = false;
    return true;
}

void hfi_op_go_on_all(struct hfi_loop *loop)
{
    struct hfi_op *op;
    while ((op = loop->ready.first) != NULL) {
        hfi_op_list_remove(&loop->ready, op);
        go_on(op);
    }
}

void hfi_op_interrupt_due(struct hfi_loop *loop)
{
    const struct hfi_timer *first = hfi_timers_first(&loop->timers);
    const hfi_time now = first ? hfi_loop_now_ns() : 0;
    while ((first = hfi_timers_first(&loop->timers)) != NULL && first->at_ns <= now) {
        struct hfi_op *op = HFI_TIMER_OF(struct hfi_op, timer, first);
        hfi_timers_set(&loop->timers, &op->timer, HFI_NEVER);
        hfi_op_interrupt(op);
    }
}

/* --- threads that sleep --- */

static void lie_down(struct hfi_loop *loop, struct hfi_sleeper *sleeper)
{
    struct hfi_op *op = sleeper->op;
    struct hfi_sleepers *list = sleeper->list = op->source ? &op->source->sleepers : &loop->sleepers;
    sleeper->prev = list->last;
    *(sleeper->prev ? &sleeper->prev->next : &list->first) = sleeper;
    list->last = sleeper;
    op->sleeper = sleeper;
}

static void get_up(struct hfi_sleeper *sleeper)
{
    *(sleeper->prev ? &sleeper->prev->next : &sleeper->list->first) = sleeper->next;
    *(sleeper->next ? &sleeper->next->prev : &sleeper->list->last) = sleeper->prev;
    sleeper->op->sleeper = NULL;
}

void hfi_sleeper_wake(struct hfi_loop *loop, struct hfi_sleeper *sleeper, enum hfi_waking why)
{
    get_up(sleeper);
    sleeper->why = why;
    sleeper->next = loop->to_wake;
    loop->to_wake = sleeper;
}

void hfi_unlock_and_wake(struct hfi_loop *loop)
{
    struct hfi_sleeper *next, *sleeper = loop->to_wake;
    loop->to_wake = NULL;
    pthread_mutex_unlock(&loop->mutex);
    for (; sleeper; sleeper = next) {
        next = sleeper->next;
        atomic_store_explicit(&sleeper->woken, 1, memory_order_release); /* it may be gone from now on */
        syscall(SYS_futex, &sleeper->woken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

enum hfi_waking hfi_sleep_for(struct hfi_loop *loop, struct hfi_op *op)
{
    struct hfi_sleeper me = { .op = op };
    const hfi_time deadline = op->deadline_ns;
    bool over = false;
    lie_down(loop, &me);
    hfi_unlock_and_wake(loop);
    while (!atomic_load_explicit(&me.woken, memory_order_acquire)) {
        const hfi_time left = over || deadline == HFI_NEVER ? HFI_SECOND : deadline - hfi_loop_now_ns();
        const struct timespec time = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
        if (left > 0) {
            syscall(SYS_futex, &me.woken, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
            continue;
        }
        over = true; /* unless somebody is about to wake it */
        pthread_mutex_lock(&loop->mutex);
        const bool asleep = op->sleeper == &me;
        if (asleep)
            get_up(&me);
        pthread_mutex_unlock(&loop->mutex);
        if (asleep)
            return HFI_TIME_IS_OVER;
    }
    return me.why;
}
