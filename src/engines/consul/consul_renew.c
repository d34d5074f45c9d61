/* SPDX-License-Identifier: MIT
 *
 * consul_renew.c: keeping locks. What lives is the session: one renewal is good for all locks that have it, and most of
 * the time the keeper has sent it already. What is asked here is whether the locks are still there.
 *
 * A lock keeps its session, and its key is not written to: whoever checks the key's index against the token would shut
 * the holder out. For longer than the session lasts it is therefore renewed in parts.
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A lock as it was when we looked; its session is pinned. */
struct kept {
    struct consul_session *session; /* NULL: not held any more */
    uint64_t index;
    bool dead;
};

static void pin(struct consul_store *store, const struct consul_lock *lock, struct kept *kept)
{
    pthread_mutex_lock(&store->mutex);
    *kept = (struct kept){ .session = lock->held ? lock->session : NULL };
    if (kept->session) {
        kept->session->users++;
        kept->index = lock->index;
        kept->dead = kept->session->dead;
    }
    pthread_mutex_unlock(&store->mutex);
}

/* --- whether they are still there --- */

/* Says who broke the lock, if the session's key does, the last entry. */
static void explain(struct hfi_renewal *renewal, const struct consul_answer *answer)
{
    char text[HFI_CONSUL_VALUE_MAX] = "";
    struct hfi_owner broken = { 0, 0 };
    int used = 0;
    const size_t count = hfi_consul_entries(answer);
    if (count)
        hfi_consul_text(text, answer, count - 1);
    const bool says =
        sscanf(text, "%*16[0-9a-f] %16" SCNx64 ".%" SCNu64 " %n", &broken.client, &broken.serial, &used) == 2 && used;
    if (says && hfi_consul_same(broken, renewal->owner))
        hfi_say_broken(renewal->why, text + used);
}

/* One that is no longer as we left it. */
static hf_status look_after(struct consul_store *store, const struct consul_session *session,
                            struct hfi_renewal *renewal, hfi_time deadline_ns, hf_error *err)
{
    char all[HFI_CONSUL_KEY_MAX], told[HFI_CONSUL_KEY_MAX];
    struct consul_lock *lock = renewal->lock;
    struct consul_answer answer;
    struct consul_view view;
    hfi_consul_key(all, store, CONSUL_LOCK, renewal->name, renewal->owner);
    hfi_consul_session_key(told, store, session->id);
    const struct consul_operation looks[] = { { .verb = "get-tree", .key = all }, { .verb = "get-tree", .key = told } };
    const hf_status status = hfi_consul_txn(store, looks, 2, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    hfi_consul_view(&view, &answer, store, renewal->name, renewal->owner);
    pthread_mutex_lock(&store->mutex);
    /* Somebody may have written another value; then the session tells. */
    const bool touched = lock->session && view.lock.key && !view.lock.holder.owner.client &&
                         strcmp(view.lock.session, lock->session->id) == 0;
    renewal->status = view.mine || touched ? HF_OK : HF_LOST;
    if (renewal->status == HF_OK && lock->held)
        lock->index = view.lock.modified;
    pthread_mutex_unlock(&store->mutex);
    if (renewal->status == HF_LOST)
        explain(renewal, &answer);
    hfi_consul_answer_free(&answer);
    return HF_OK;
}

static hf_status check_some(struct consul_store *store, struct hfi_renewal *renewals, const struct kept *kept,
                            size_t count, hfi_time deadline_ns, hf_error *err)
{
    struct consul_operation operations[HFI_CONSUL_OPERATIONS_MOST];
    size_t of[HFI_CONSUL_OPERATIONS_MOST], used = 0;
    struct consul_answer answer;
    char *keys = hfi_alloc(count * HFI_CONSUL_KEY_MAX);
    if (!keys)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a renewal");
    for (size_t i = 0; i < count; i++) {
        if (renewals[i].status != HF_OK)
            continue;
        char *key = keys + used * HFI_CONSUL_KEY_MAX;
        hfi_consul_key(key, store, CONSUL_LOCK, renewals[i].name, renewals[i].owner);
        operations[used] = (struct consul_operation){ .verb = "check-index", .key = key, .index = kept[i].index };
        of[used++] = i;
    }
    hf_status status = used ? hfi_consul_txn(store, operations, used, &answer, deadline_ns, err) : HF_OK;
    if (used && status == HF_OK) {
        const uint64_t failed = answer.failed;
        hfi_consul_answer_free(&answer);
        for (size_t i = 0; i < used && status == HF_OK; i++) {
            if (failed >> i & 1)
                status = look_after(store, kept[of[i]].session, &renewals[of[i]], deadline_ns, err);
        }
    }
    hfi_free(keys);
    return status;
}

/* --- all of it --- */

static hf_status renew_some(struct consul_store *store, struct hfi_renewal *renewals, const struct kept *kept,
                            size_t count, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_OK;
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        renewals[i].status = kept[i].session && !kept[i].dead ? HF_OK : HF_LOST;
        if (renewals[i].status != HF_OK)
            continue;
        status = hfi_consul_session_keep(store, kept[i].session, deadline_ns, err);
        if (status == HF_LOST) {
            renewals[i].status = HF_LOST;
            status = HF_OK;
        }
    }
    if (status == HF_OK)
        status = check_some(store, renewals, kept, count, deadline_ns, err);
    for (size_t i = 0; i < count; i++) {
        if (status == HF_OK && renewals[i].status == HF_OK)
            hfi_consul_session_count(store, kept[i].session, renewals[i].ttl_ms, &renewals[i].counted_from_ns,
                                     &renewals[i].valid_ms);
    }
    return status;
}

hf_status hfi_consul_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                           hf_error *err)
{
    struct consul_store *store = memory;
    hf_status status = HF_OK;
    for (size_t from = 0; from < count && status == HF_OK; from += HFI_CONSUL_OPERATIONS_MOST) {
        struct kept kept[HFI_CONSUL_OPERATIONS_MOST] = { { 0 } };
        const size_t left = count - from;
        const size_t some = left < HFI_CONSUL_OPERATIONS_MOST ? left : HFI_CONSUL_OPERATIONS_MOST;
        for (size_t i = 0; i < some; i++)
            pin(store, renewals[from + i].lock, &kept[i]);
        status = renew_some(store, renewals + from, kept, some, deadline_ns, err);
        for (size_t i = 0; i < some; i++) {
            if (kept[i].session)
                hfi_consul_session_put(store, kept[i].session);
        }
    }
    if (status == HF_UNKNOWN && err) /* nothing was made shorter */
        err->status = HF_UNAVAILABLE;
    return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
}
