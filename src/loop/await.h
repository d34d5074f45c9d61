/* SPDX-License-Identifier: MIT
 *
 * await.h: code that waits without a thread of its own: a function that can be left at an await and is called again to
 * go on there. What must live across an await is kept in the operation; local variables are lost.
 *
 *   static int ask(struct hfi_op *op)
 *   {
 *       BEGIN(op->line);
 *       AWAIT(start_ready(op));
 *       if (op->woken == HF_OK)
 *           AWAIT(start_call(op));
 *       END;
 *       return op->woken;
 *   }
 *
 * No await inside of a switch, and one for each line of the source: the compiler refuses others. A variable that is
 * given a value in front of BEGIN is const, and between BEGIN and END there is no return: tools/tidy looks.
 */
#ifndef HFI_AWAIT_H
#define HFI_AWAIT_H

#include "loop/op.h"

#define HFI_AWAITING (-1)

#define BEGIN(LINE)                                                                                                    \
    uint16_t *const goes_on_at = &(LINE);                                                                              \
    switch (*goes_on_at) {                                                                                             \
    case 0:

#define END                                                                                                            \
    break;                                                                                                             \
    default:                                                                                                           \
        __builtin_unreachable();                                                                                       \
        }                                                                                                              \
        *goes_on_at = 0

/* START parks the operation, or answers false: the await has ended at once. Then, see op->woken. */
#define AWAIT(START)                                                                                                   \
    do {                                                                                                               \
        *goes_on_at = __LINE__;                                                                                        \
        if (START)                                                                                                     \
            return HFI_AWAITING;                                                                                       \
        __attribute__((fallthrough));                                                                                  \
    case __LINE__:;                                                                                                    \
    } while (0)

#endif
