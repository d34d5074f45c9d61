/* SPDX-License-Identifier: MIT
 *
 * acquire.c: taking a lock: re-entry, standing in line, and asking the store, which is contest.c's.
 */
#include "core.h"
#include <string.h>

hf_status hf_cancel(hf_client *client, const char *name)
{
    if (client->generation != hfi_generation || !hfi_name_check(name))
        return HF_INVALID;
    hfi_client_lock(client);
    for (struct hfi_wait *wait = client->waits; wait; wait = wait->next) {
        if (strcmp(wait->name, name) == 0)
            hfi_wait_cancel(wait);
    }
    hfi_line_cancel(client, name);
    hfi_operations_cancel(client, name);
    hfi_client_unlock(client);
    return HF_OK;
}

/* --- what the owner of a lock does --- */

/* Another thread is taking the lock for the same owner: sleeps until it has it or has given up. */
static hf_status follow(hf_client *client, struct hfi_hold *hold, const struct hfi_want *want, hf_error *err)
{
    struct hfi_wait wait;
    if (!want->may_wait)
        return hfi_fail(err, HF_BUSY, 0, "another thread of the same owner is taking it");
    if (hfi_now_ns() >= want->deadline_ns)
        return hfi_fail(err, HF_TIMEOUT, 0, "another thread of the same owner was still taking it after %u ms",
                        want->options.wait_ms);
    hfi_wait_begin(client, &wait, want, hold);
    if (!hfi_wait_get_waker(client, &wait)) {
        hfi_wait_end(client, &wait);
        return hfi_fail(err, HF_NOMEM, 0, "no memory or no descriptor left to wait with");
    }
    pthread_mutex_unlock(&client->mutex);
    hfi_runner_begins_to_wait(client, want);
    hfi_waker_sleep(wait.waker, NULL, 0, want->deadline_ns);
    hfi_runner_stops_to_wait(client, want);
    pthread_mutex_lock(&client->mutex);
    const bool called_back = hfi_waker_called_back(wait.waker);
    hfi_wait_end(client, &wait);
    return called_back ? hfi_fail(err, HF_CANCELED, 0, "the wait was cancelled") : HF_OK;
}

/* A callback that tells of a loss may take the lock anew: what it has lost must be given back first, or it would wait
 * for itself. */
static void give_back_what_is_being_told(hf_client *client, const struct hfi_want *want)
{
    const struct hfi_telling *telling = client->tellings;
    while (telling && !(telling->thread == want->thread && strcmp(hfi_hold_name(telling->hold), want->name) == 0))
        telling = telling->next;
    if (telling)
        hfi_undo(telling->hold, client->timeout_ns, NULL);
}

/* --- the calls --- */

/* Somebody of this client holds it, asks for it or waits for its turn: whoever comes later stands in the line. */
static bool must_line_up(hf_client *client, const struct hfi_want *want)
{
    const bool anybody = client->hold_count || client->turns; /* of any name */
    return anybody && want->may_wait && client->handoff_ns &&
           (hfi_hold_of_name(client, want->name_hash, want->name) || hfi_line_is_there(client, want));
}

/* An operation stands in the line without a thread, unless there is nobody to tell it when its time is over. */
static bool line_up_alone(hf_client *client, const struct hfi_want *want)
{
    if (want->deadline_ns != HFI_NEVER && !hfi_keeper_start(client, NULL))
        return false;
    hfi_line_join(want->op);
    return true;
}

static hf_status line_up(hf_lock **out, hf_client *client, const struct hfi_want *want, hf_error *err)
{
    if (want->op)
        return line_up_alone(client, want) ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no thread left to wait with");
    const hf_status status = hfi_line_wait(out, client, want);
    return status == HF_CANCELED ? hfi_fail(err, HF_CANCELED, 0, "the wait was cancelled") : status;
}

static struct hfi_hold *find_own(hf_client *client, const struct hfi_want *want)
{
    const bool can_be_found = want->key.kind != HF_OWNER_HANDLE || want->key.number != 0;
    return can_be_found ? hfi_hold_find(client, want) : NULL;
}

bool hfi_acquire_line_up(hf_op *op)
{
    hf_client *client = op->client;
    return !client->tellings && !find_own(client, &op->want) && must_line_up(client, &op->want) &&
           line_up_alone(client, &op->want);
}

bool hfi_acquire_start(hf_op *op)
{
    hf_client *client = op->client;
    return !client->tellings && !find_own(client, &op->want) && !must_line_up(client, &op->want) &&
           hfi_operation_may_start(op) && hfi_contest_start(op);
}

/* `its_turn`: it comes out of a line. */
static hf_status acquire_locked(hf_lock **out, hf_client *client, const struct hfi_want *want, bool its_turn,
                                hf_error *err)
{
    bool late = false;
    if (client->tellings)
        give_back_what_is_being_told(client, want);
    for (;;) {
        if (client->closing || hfi_want_is_over(want)) {
            if (its_turn) /* and it does not take it */
                hfi_line_call_first(client, want->name_hash, want->name);
            return hfi_fail(err, HF_CANCELED, 0, "the client is being closed");
        }
        struct hfi_hold *hold = find_own(client, want);
        if (hold && hold->state == HFI_HOLD_HELD) {
            const hfi_time deadline = hold->lease.deadline_ns;
            if (deadline == HFI_NEVER || hfi_now_ns() < deadline)
                return hfi_hold_enter(out, hold, want, err);
            hfi_hold_forget(hold); /* lost; the keeper is about to say so */
            hold = NULL;
        }
        if (!hold && (its_turn || !must_line_up(client, want)))
            return hfi_contest_take(out, client, want, late, err);
        const hf_status status = hold ? follow(client, hold, want, err) : line_up(out, client, want, err);
        late = status == HF_TIMEOUT && !hold;
        if ((status != HF_OK && !late) || *out || (want->op && want->op->in_line))
            return status;
        its_turn = !hold;
    }
}

bool hfi_acquire_run(hf_op *op, hf_lock **lock, hf_status *status, hf_error *err)
{
    hf_client *client = op->client;
    const bool its_turn = op->in_line;
    if (its_turn && !hfi_line_take_turn(op))
        return false;
    hfi_client_enter(client);
    *status = op->contest ? hfi_contest_go_on(lock, op->contest, err)
                          : acquire_locked(lock, client, &op->want, its_turn, err);
    hfi_client_leave(client);
    return *status != HFI_UNDER_WAY && *status != HFI_PARKED && !op->in_line;
}

static hf_status acquire(hf_lock **out, hf_client *client, const char *name, const hf_options *options, bool may_wait,
                         hf_error *err)
{
    *out = NULL;
    if (client->generation != hfi_generation)
        return hfi_fail(err, HF_INVALID, 0, "the client was opened before a fork; open a new one in the child");
    struct hfi_want want = { .thread = hfi_thread_number(), .may_wait = may_wait, .deadline_ns = HFI_NEVER };
    hf_status status = hfi_want_read(&want, client, name, options, err);
    if (status != HF_OK)
        return status;
    char text[HFI_NAME_MAX + 1]; /* whoever shows a handle may release it while this call waits */
    if (want.options.owner == HF_OWNER_HANDLE && *want.key.text)
        want.key.text = memcpy(text, want.key.text, strlen(want.key.text) + 1);
    if (may_wait && want.options.wait_ms)
        want.deadline_ns = hfi_now_ns() + want.options.wait_ms * HFI_MS;
    hf_error trouble;
    hfi_client_lock(client);
    hfi_client_enter(client);
    status = acquire_locked(out, client, &want, false, &trouble);
    hfi_client_leave(client);
    hfi_client_unlock(client);
    return hfi_pass_on(status, &trouble, err);
}

hf_status hf_acquire(hf_lock **out, hf_client *client, const char *name, const hf_options *options, hf_error *err)
{
    return acquire(out, client, name, options, true, err);
}

hf_status hf_try_acquire(hf_lock **out, hf_client *client, const char *name, const hf_options *options, hf_error *err)
{
    return acquire(out, client, name, options, false, err);
}
