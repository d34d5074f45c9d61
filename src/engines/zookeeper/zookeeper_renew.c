/* SPDX-License-Identifier: MIT
 *
 * zookeeper_renew.c: many locks in one exchange. A transaction that only checks that the nodes are there changes
 * nothing, but goes through the leader and a majority like every write: its answer proves that the session lives. A
 * read would not, see zookeeper_session.c.
 */
#include "zookeeper.h"
#include <string.h>

/* The locks of one session that are asked for together. */
struct group {
    struct zookeeper_session *session;
    struct zookeeper_call *call;
    struct hfi_renewal *renewals[HFI_ZOOKEEPER_BATCH];
    size_t count;
};

static void settle(struct group *group, hf_status status)
{
    for (size_t i = 0; i < group->count; i++) {
        struct hfi_renewal *renewal = group->renewals[i];
        renewal->status = status;
        if (status != HF_OK)
            continue;
        renewal->valid_ms = hfi_zookeeper_session_valid_ms(group->session, renewal->counted_from_ns, renewal->ttl_ms);
        if (renewal->valid_ms == 0) /* which would mean all of it */
            renewal->valid_ms = 1;
    }
    group->count = 0;
}

static bool send_group(const struct zookeeper_store *store, struct group *group)
{
    const char *paths[HFI_ZOOKEEPER_BATCH];
    char *text = hfi_alloc(group->count * HFI_ZOOKEEPER_PATH_MAX);
    if (!text)
        return false;
    for (size_t i = 0; i < group->count; i++) {
        const struct zookeeper_lock *lock = group->renewals[i]->lock;
        hfi_zookeeper_path(text + i * HFI_ZOOKEEPER_PATH_MAX, &store->config, group->renewals[i]->name, lock->node);
        paths[i] = text + i * HFI_ZOOKEEPER_PATH_MAX;
    }
    group->call = hfi_zookeeper_check(group->session, paths, group->count);
    hfi_free(text);
    return group->call != NULL;
}

/* Takes those out whose node is gone. One that fails is enough for the whole transaction to fail, and hides whether
 * those behind it are there: the rest is asked for again. */
static void take_answer(struct group *group)
{
    const struct zookeeper_call *call = group->call;
    size_t kept = 0;
    if (call->rc == ZOK) {
        settle(group, HF_OK);
    } else if (hfi_zookeeper_is_lost(call->rc)) {
        settle(group, group->session->dead ? HF_LOST : HF_UNKNOWN);
    } else if (call->rc != ZNONODE) {
        settle(group, hfi_zookeeper_refusal(group->session->store, call->rc, "check nodes", NULL));
    } else {
        for (size_t i = 0; i < group->count; i++) {
            if (call->results[i].err == ZNONODE)
                group->renewals[i]->status = HF_LOST;
            else
                group->renewals[kept++] = group->renewals[i];
        }
        if (kept == group->count) /* it says that one is gone, and not which */
            settle(group, HF_INTERNAL);
        else
            group->count = kept;
    }
}

/* Puts each lock to those of the same session. A lock that is being released is in none. */
static size_t sort_by_session(struct group *groups, struct hfi_renewal *renewals, size_t count)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const struct zookeeper_lock *lock = renewals[i].lock;
        struct zookeeper_session *session = lock->session;
        renewals[i].status = HF_LOST;
        if (!session || session->dead || lock->state != ZOOKEEPER_HELD)
            continue;
        size_t place = 0;
        while (place < used && groups[place].session != session)
            place++;
        if (place == used) {
            groups[used++] = (struct group){ .session = session };
            session->users++;
        }
        groups[place].renewals[groups[place].count++] = &renewals[i];
    }
    return used;
}

static void renew_groups(struct zookeeper_store *store, struct group *groups, size_t used, hfi_time deadline_ns)
{
    bool more = true;
    while (more) {
        struct zookeeper_call *calls[HFI_ZOOKEEPER_SESSIONS_MOST];
        for (size_t i = 0; i < used; i++) {
            groups[i].call = NULL;
            const bool away = groups[i].count && !groups[i].session->connected;
            store->look_up_again = store->look_up_again || (away && !groups[i].session->dead); /* elsewhere, perhaps */
            if (away)
                settle(&groups[i], groups[i].session->dead ? HF_LOST : HF_UNAVAILABLE);
            else if (groups[i].count && !send_group(store, &groups[i]))
                settle(&groups[i], HF_NOMEM);
            calls[i] = groups[i].call;
        }
        hfi_zookeeper_await_calls(store, calls, used, deadline_ns);
        more = false;
        for (size_t i = 0; i < used; i++) {
            if (groups[i].call)
                take_answer(&groups[i]);
            hfi_zookeeper_call_free(groups[i].call);
            more = more || groups[i].count > 0;
        }
    }
}

/* Of those whose node is gone. Others were renewed with them, whose time may end at the deadline: half of what is left
 * until then at most. */
static void ask_who_broke(struct zookeeper_store *store, struct hfi_renewal *renewals, size_t count,
                          hfi_time deadline_ns)
{
    struct zookeeper_call *calls[HFI_ZOOKEEPER_BATCH] = { NULL };
    const hfi_time now = store->env->now_ns(), half = (deadline_ns - now) / 2;
    const hfi_time until = now + (half < HFI_ZOOKEEPER_BREAKER_MOST ? half : HFI_ZOOKEEPER_BREAKER_MOST);
    for (size_t i = 0; i < count; i++) {
        const struct zookeeper_lock *lock = renewals[i].lock;
        if (renewals[i].status == HF_LOST && lock->session && lock->session->connected && lock->state == ZOOKEEPER_HELD)
            calls[i] = hfi_zookeeper_ask_breaker(lock);
    }
    hfi_zookeeper_await_calls(store, calls, count, until);
    for (size_t i = 0; i < count; i++) {
        const char *by = hfi_zookeeper_breaker_of(calls[i], renewals[i].lock);
        if (by)
            hfi_say_broken(renewals[i].why, by);
        hfi_zookeeper_call_free(calls[i]);
    }
}

hf_status hfi_zookeeper_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                              hf_error *err)
{
    struct zookeeper_store *store = memory;
    struct group *groups = hfi_alloc(HFI_ZOOKEEPER_SESSIONS_MOST * sizeof *groups);
    if (!groups)
        return hfi_zookeeper_no_memory(err);
    hfi_zookeeper_enter(store);
    for (size_t done = 0; done < count; done += HFI_ZOOKEEPER_BATCH) {
        const size_t left = count - done, some = left < HFI_ZOOKEEPER_BATCH ? left : HFI_ZOOKEEPER_BATCH;
        const size_t used = sort_by_session(groups, renewals + done, some);
        renew_groups(store, groups, used, deadline_ns);
        ask_who_broke(store, renewals + done, some, deadline_ns);
        for (size_t i = 0; i < used; i++)
            hfi_zookeeper_session_give_back(groups[i].session);
    }
    pthread_mutex_unlock(&store->mutex);
    hfi_free(groups);
    return HF_OK;
}
