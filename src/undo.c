/* SPDX-License-Identifier: MIT
 *
 * undo.c: giving back what the store may have given. A release whose answer is lost, or that the store does not allow,
 * is sent again by the keeper until the store has done it or must have ended the lock by itself; where locks linger,
 * also one that fails in any other way.
 */
#include "core.h"

static void finish_later(struct hfi_hold *hold, hfi_time at_ns)
{
    hf_client *client = hold->client;
    if (!hold->undoing) {
        hold->undoing = true;
        const bool ends = client->caps & HF_CAP_EXPIRY && !client->engine->lingers;
        hold->lease.deadline_ns = ends ? hfi_now_ns() + hold->lease.terms.ttl_ms * HFI_MS : HFI_NEVER;
    }
    hold->lease.renew_at_ns = at_ns;
    hfi_hold_schedule(hold);
    /* Without a keeper it is tried once more by hf_close(). */
    hfi_keeper_start(client, NULL);
    hfi_keeper_expect(client, at_ns);
}

/* What is refused today, for want of rights, may be done tomorrow; and what was done without being certain of it, since
 * it is not allowed to end a session that owes an answer, must be done again after that session. A lock that lingers
 * would be held by nobody, and in everybody's way, for as long as this client lives. */
static bool is_unfinished(const hf_client *client, hf_status status)
{
    if (client->engine->lingers)
        return status != HF_OK && status != HF_LOST;
    return status == HF_UNAVAILABLE || status == HF_UNKNOWN || status == HF_NOMEM || status == HF_DENIED;
}

void hfi_undo_end(struct hfi_hold *hold)
{
    hold->engaged = false;
    if (hold->undoing) {
        hold->undoing = false;
        hfi_hold_schedule(hold);
    }
}

/* A client that is being closed keeps what is unfinished: hf_close() tries it once more, and until the store is closed
 * the engine may know of it. */
void hfi_undo_answered(struct hfi_hold *hold, hf_status status)
{
    const hf_client *client = hold->client;
    struct hfi_lease *lease = &hold->lease;
    if (!is_unfinished(client, status) || (hold->undoing && hfi_now_ns() >= lease->deadline_ns)) {
        hfi_undo_end(hold);
    } else if (!client->closing) {
        lease->failures = hold->undoing ? lease->failures + 1 : 1;
        finish_later(hold, hfi_now_ns() + hfi_backoff_ns(lease->failures, client->env.random()));
    }
}

hf_status hfi_undo(struct hfi_hold *hold, hfi_time patience_ns, hf_error *err)
{
    hf_client *client = hold->client;
    if (!hold->engaged)
        return HF_OK;
    hold->pins++;
    const hfi_time deadline = client->engine->immediate ? HFI_NEVER : hfi_now_ns() + patience_ns;
    const struct hfi_request request = hfi_hold_request(hold, deadline);
    pthread_mutex_unlock(&client->mutex);
    const hf_status status = client->engine->release(client->store, hold->engine_lock, &request, err);
    pthread_mutex_lock(&client->mutex);
    hfi_hold_unpin(hold);
    hfi_undo_answered(hold, status);
    return status;
}

void hfi_undo_soon(struct hfi_hold *hold)
{
    if (hold->client->engine->immediate)
        hfi_undo(hold, 0, NULL);
    else if (hold->engaged && !hold->undoing)
        finish_later(hold, HFI_AT_ONCE);
}
