/* SPDX-License-Identifier: MIT
 *
 * disturb.h: what can happen to an operation at one of its awaits, for tests of connections that threads share.
 */
#ifndef DISTURB_H
#define DISTURB_H

#include "loop/loop.h"
#include <sys/socket.h>

enum disturbance { TIME_IS_OVER, BREAK, BOTH, DISTURBANCES };

static struct {
    unsigned at, awaits, times;
    enum disturbance what;
} plan;

static void disturb(struct hfi_op *op)
{
    if (++plan.awaits != plan.at)
        return;
    plan.times++;
    if (plan.what != TIME_IS_OVER)
        shutdown(op->loop->sources->fd, SHUT_RDWR); /* the one that was made last */
    if (plan.what != BREAK)
        hfi_op_limit(op, 1);
}

/* It happens at the await with this number, counted from 1, of all that come from now on. */
static inline void disturb_at(struct hfi_loop *loop, unsigned at, enum disturbance what)
{
    plan.at = at;
    plan.awaits = plan.times = 0;
    plan.what = what;
    loop->on_await = disturb;
}

#endif
