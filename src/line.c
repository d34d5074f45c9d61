/* SPDX-License-Identifier: MIT
 *
 * line.c: threads and operations of one client that wait for the same name stand in one line; the first of them alone
 * asks the store, once nobody of this client holds the lock or asks for it. A release passes the lock on
 * to the first in the line without asking the store, within the bounds of may_pass(): each pass has a token of its own,
 * which the store has given in advance.
 *
 * All with the client's mutex held, except where said.
 */
#include "core.h"
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- lines --- */

/* What points to the first in the line for `name`, or would if there was one. */
static struct hfi_turn **find(hf_client *client, uint32_t name_hash, const char *name)
{
    struct hfi_turn **link = &client->lines[name_hash % HFI_LINES];
    while (*link && ((*link)->want->name_hash != name_hash || strcmp((*link)->want->name, name) != 0))
        link = &(*link)->next_line;
    return link;
}

struct hfi_turn *hfi_line_first(hf_client *client, uint32_t name_hash, const char *name)
{
    return *find(client, name_hash, name);
}

static void join(hf_client *client, struct hfi_turn *turn)
{
    struct hfi_turn **link = find(client, turn->want->name_hash, turn->want->name);
    struct hfi_turn *first = *link;
    client->turns++;
    turn->next = NULL;
    if (first) {
        turn->prev = first->last;
        first->last->next = turn;
        first->last = turn;
    } else {
        turn->last = turn;
        turn->next_line = NULL;
        *link = turn;
    }
}

static void leave_first(hf_client *client, struct hfi_turn **link)
{
    struct hfi_turn *first = *link, *second = first->next;
    client->turns--;
    if (second) {
        second->last = first->last;
        second->next_line = first->next_line;
    }
    *link = second ? second : first->next_line;
}

static void leave(hf_client *client, struct hfi_turn *turn)
{
    struct hfi_turn **link = find(client, turn->want->name_hash, turn->want->name);
    if (*link == turn) {
        leave_first(client, link);
        return;
    }
    client->turns--;
    turn->prev->next = turn->next;
    *(turn->next ? &turn->next->prev : &(*link)->last) = turn->prev;
}

/* --- sleeping and waking --- */

/* Without the mutex, too: of a turn that has ended meanwhile nothing but its address is used. */
void hfi_line_wake(struct hfi_turn *turn)
{
    syscall(SYS_futex, &turn->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* No mutex. False: the deadline has come. */
static bool sleep_while_waiting(struct hfi_turn *turn)
{
    const hfi_time deadline = turn->want->deadline_ns;
    while (atomic_load(&turn->state) == HFI_TURN_WAITS) {
        const hfi_time left = deadline == HFI_NEVER ? 0 : deadline - hfi_now_ns();
        if (left < 0 || (left == 0 && deadline != HFI_NEVER))
            return false;
        const struct timespec time = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
        syscall(SYS_futex, &turn->state, FUTEX_WAIT_PRIVATE, HFI_TURN_WAITS, deadline == HFI_NEVER ? NULL : &time, NULL,
                0);
    }
    return true;
}

static void call(struct hfi_turn *turn)
{
    atomic_store(&turn->state, HFI_TURN_CALLED);
    if (turn->want->op)
        hfi_operation_call(turn->want->op);
    else
        hfi_line_wake(turn);
}

void hfi_line_call_first(hf_client *client, uint32_t name_hash, const char *name)
{
    struct hfi_turn *first = hfi_line_first(client, name_hash, name);
    if (first && atomic_load(&first->state) == HFI_TURN_WAITS && !hfi_hold_of_name(client, name_hash, name))
        call(first);
}

void hfi_line_break_up(hf_client *client, uint32_t name_hash, const char *name)
{
    for (struct hfi_turn *turn = hfi_line_first(client, name_hash, name); turn; turn = turn->next) {
        turn->alone = true;
        call(turn);
    }
}

/* Operations leave now, threads when they are awake. */
static void cancel(struct hfi_turn *first)
{
    for (struct hfi_turn *turn = first, *next; turn; turn = next) {
        next = turn->next;
        turn->canceled = true;
        if (turn->want->op)
            hfi_operation_give_up(turn->want->op, HF_CANCELED);
        else
            call(turn);
    }
}

void hfi_line_cancel(hf_client *client, const char *name)
{
    cancel(hfi_line_first(client, (uint32_t)hfi_name_hash(name), name));
}

void hfi_line_cancel_all(hf_client *client)
{
    for (size_t i = 0; i < HFI_LINES; i++) {
        for (struct hfi_turn *first = client->lines[i], *next; first; first = next) {
            next = first->next_line;
            cancel(first);
        }
    }
}

void hfi_line_call_owner(struct hfi_hold *hold, const struct hfi_want *want)
{
    const struct hfi_owner_key key = hfi_hold_key(hold);
    if (key.kind == HF_OWNER_THREAD || (key.kind == HF_OWNER_HANDLE && want->key.number == 0))
        return; /* nobody else is, or can know yet that it is */
    for (struct hfi_turn *turn = hfi_line_first(hold->client, hold->name_hash, hfi_hold_name(hold)); turn;
         turn = turn->next) {
        if (hfi_same_owner(&turn->want->key, &key))
            call(turn);
    }
}

/* Whoever was called may have been late: then it sleeps on, in its place. */
static bool is_its_turn(hf_client *client, const struct hfi_turn *turn)
{
    const struct hfi_want *want = turn->want;
    return turn->alone || hfi_hold_find(client, want) || !hfi_hold_of_name(client, want->name_hash, want->name);
}

hf_status hfi_line_wait(hf_lock **out, hf_client *client, const struct hfi_want *want)
{
    struct hfi_turn turn = { .want = want };
    bool in_time;
    join(client, &turn);
    do {
        atomic_store(&turn.state, HFI_TURN_WAITS);
        pthread_mutex_unlock(&client->mutex);
        in_time = sleep_while_waiting(&turn);
        pthread_mutex_lock(&client->mutex);
        if (atomic_load(&turn.state) == HFI_TURN_PASSED) {
            *out = turn.lock;
            return HF_OK;
        }
    } while (in_time && !turn.canceled && !is_its_turn(client, &turn));
    leave(client, &turn);
    if (in_time && !turn.canceled)
        return HF_OK;
    hfi_line_call_first(client, want->name_hash, want->name); /* it may have been called, and the next one was not */
    return turn.canceled ? HF_CANCELED : HF_TIMEOUT;
}

/* --- operations: the same without a thread --- */

void hfi_line_join(hf_op *op)
{
    op->turn = (struct hfi_turn){ .want = &op->want };
    op->in_line = true;
    join(op->client, &op->turn);
    hfi_timers_set(&op->client->op_timers, &op->timer, op->want.deadline_ns);
    if (op->want.deadline_ns != HFI_NEVER)
        hfi_keeper_expect(op->client, op->want.deadline_ns);
}

static void stop_standing(hf_op *op)
{
    hfi_timers_set(&op->client->op_timers, &op->timer, HFI_NEVER);
    op->in_line = false;
}

void hfi_line_leave(hf_op *op)
{
    leave(op->client, &op->turn);
    stop_standing(op);
}

bool hfi_line_take_turn(hf_op *op)
{
    if (!is_its_turn(op->client, &op->turn)) {
        atomic_store(&op->turn.state, HFI_TURN_WAITS);
        hfi_timers_set(&op->client->op_timers, &op->timer, op->want.deadline_ns);
        return false;
    }
    hfi_line_leave(op);
    return true;
}

/* --- passing on --- */

static bool may_pass(const struct hfi_hold *hold, const struct hfi_want *next, hfi_time now_ns)
{
    const struct hfi_lease *lease = &hold->lease;
    const struct hfi_extra *extra = hold->extra;
    if (!extra || now_ns >= extra->pass_until_ns || now_ns >= lease->renew_at_ns) /* two thirds of its time are left */
        return false;
    if (hold->doubted || hold->renewing || extra->trouble_since_ns || hold->lost) /* perhaps it is not held */
        return false;
    return lease->terms.renew && next->options.renew == HF_RENEW_ON && next->options.ttl_ms == lease->terms.ttl_ms &&
           !next->options.once_per_ms && (!next->options.max_hold_ms || hold->client->keeper_runs);
}

bool hfi_line_pass(struct hfi_hold *hold, hf_lock *handle, struct hfi_turn **to_wake)
{
    hf_client *client = hold->client;
    struct hfi_turn **link = find(client, hold->name_hash, hfi_hold_name(hold));
    struct hfi_turn *turn = *link;
    const hfi_time now = turn ? hfi_now_ns() : 0, deadline = hold->lease.deadline_ns;
    if (!turn || turn->canceled || !may_pass(hold, turn->want, now) ||
        !hfi_hold_set_owner(hold, &turn->want->key, client->serial + 1))
        return false;
    client->serial++;
    leave_first(client, link);
    hold->spare_tokens--;
    hold->token++;
    hfi_fd_close(hold->extra->lost_fd);
    hold->extra->lost_fd = -1;
    hfi_lease_pass(&hold->lease, turn->want->options.max_hold_ms, now);
    if (hold->lease.deadline_ns != deadline) {
        hfi_hold_publish(hold);
        hfi_hold_schedule(hold);
        hfi_keeper_expect(client, hold->lease.deadline_ns);
    }
    hfi_handle_attach(handle, hold, &turn->want->options);
    turn->lock = handle;
    atomic_store(&turn->state, HFI_TURN_PASSED);
    hfi_line_call_owner(hold, turn->want);
    *to_wake = turn->want->op ? NULL : turn;
    if (turn->want->op) {
        stop_standing(turn->want->op);
        hfi_operation_pass(turn->want->op, handle); /* it may be gone from now on */
    }
    return true;
}
