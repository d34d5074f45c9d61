/* SPDX-License-Identifier: MIT
 *
 * lock.c: what can be done with a lock that was taken.
 */
#include "core.h"
#include "waker.h"
#include <errno.h>
#include <sys/eventfd.h>

static void detach(struct hfi_hold *hold, hf_lock *handle)
{
    hf_lock **link = &hold->handles;
    while (*link != handle)
        link = &(*link)->next;
    *link = handle->next;
}

static bool is_over(const struct hfi_hold *hold)
{
    const hfi_time deadline = hold->lease.deadline_ns;
    return deadline != HFI_NEVER && hfi_now_ns() >= deadline;
}

/* A thread is inside of its callback, and not the one that asks for its release. */
static bool is_being_told(const hf_lock *handle, uint64_t thread)
{
    const struct hfi_telling *telling = handle->hold->client->tellings;
    while (telling && telling->handle != handle)
        telling = telling->next;
    return telling && telling->thread != thread;
}

static void wait_for_callback(const hf_lock *handle, uint64_t thread)
{
    hf_client *client = handle->hold->client;
    while (is_being_told(handle, thread))
        pthread_cond_wait(&client->changed, &client->mutex);
}

/* It was lost, and the keeper has not looked yet: all of its handles are told. */
static void end_by_loss(struct hfi_hold *hold)
{
    if (hold->lost)
        hfi_hold_lose(hold, hfi_hold_why(hold));
    else
        hfi_hold_lose_by_time(hold);
    hfi_hold_tell(hold);
    hfi_undo(hold, hold->client->timeout_ns, NULL);
}

/* Its release is the first to find out. */
static void tell_late(hf_lock *handle, const char *why)
{
    hfi_hold_mark_lost(handle->hold, why);
    atomic_store(&handle->hold->safe_until_ns, 0);
    hfi_handle_tell(handle);
}

/* The last handle of a hold that is held gives it back, and says whether its work is done. */
static void let_go(struct hfi_hold *hold, bool done)
{
    hold->done = done;
    hold->state = HFI_HOLD_ENDED;
    hfi_hold_forget(hold);
    hfi_hold_schedule(hold);
}

static hf_status release(hf_lock *lock, bool done, uint64_t thread, hf_error *err)
{
    if (!lock)
        return HF_OK;
    if (lock->generation != hfi_generation)
        return hfi_fail(err, HF_LOST, 0, "the lock belongs to the process that forked this one");
    struct hfi_hold *hold = lock->hold;
    hf_client *client = hold->client;
    struct hfi_turn *to_wake = NULL;
    bool passed = false;
    hf_status status = HF_OK;

    hf_error trouble;
    trouble.message[0] = 0;
    hfi_client_lock(client);
    hfi_client_enter(client);
    wait_for_callback(lock, thread);
    hfi_event_drop_loss(lock); /* whoever releases it is told by this call */
    if (hold->state == HFI_HOLD_HELD && (hold->lost || is_over(hold)))
        end_by_loss(hold);
    else if (hold->state == HFI_HOLD_ENDED && !client->closing) /* the keeper may have others to tell before this one */
        hfi_handle_tell(lock);
    detach(hold, lock);
    const bool held = hold->state == HFI_HOLD_HELD, last = held && !hold->handles;
    if (last && hold->spare_tokens && !done)
        passed = hfi_line_pass(hold, lock, &to_wake);
    if (last && !passed) {
        let_go(hold, done);
        status = hfi_undo(hold, client->timeout_ns, &trouble);
    } else if (!held)
        status = hfi_fail(&trouble, HF_LOST, 0, "%s", hfi_hold_why(hold));
    if (last && status == HF_LOST && !client->closing)
        tell_late(lock, trouble.message);
    if (!passed)
        hfi_handle_free(client, lock);
    hfi_hold_settle(hold);
    hfi_client_leave(client);
    hfi_client_unlock(client);
    if (to_wake)
        hfi_line_wake(to_wake);
    return hfi_pass_on(status, &trouble, err);
}

bool hfi_release_start(hf_op *op)
{
    hf_lock *lock = op->lock;
    struct hfi_hold *hold = lock->hold;
    hf_client *client = hold->client;
    const bool last = hold->state == HFI_HOLD_HELD && hold->handles == lock && !lock->next;
    if (op->kind != HFI_OP_RELEASE || !last || !hold->engaged || hold->lost || is_over(hold) || client->tellings ||
        (hold->spare_tokens && client->turns) || !hfi_operation_may_start(op))
        return false;
    hfi_event_drop_loss(lock);
    detach(hold, lock);
    let_go(hold, false);
    hold->pins++;
    op->started = true;
    op->request = hfi_hold_request(hold, hfi_now_ns() + client->timeout_ns);
    client->under_way++;
    pthread_mutex_unlock(&client->mutex);
    const bool started = hfi_operation_start(op, hold->engine_lock, &op->request, NULL);
    pthread_mutex_lock(&client->mutex);
    if (!started) {
        hfi_operation_call(op);
        hfi_operation_end_exchange(client); /* after that: hf_close() stops the runners when nothing is under way */
    }
    return true;
}

hf_status hfi_release_go_on(hf_op *op, hf_error *err)
{
    hf_lock *lock = op->lock;
    struct hfi_hold *hold = lock->hold;
    hf_client *client = hold->client;
    hf_status status = op->answer;
    if (op->answered) {
        if (status != HF_OK)
            *err = op->error;
    } else {
        pthread_mutex_unlock(&client->mutex);
        status = client->engine->release(client->store, hold->engine_lock, &op->request, err);
        pthread_mutex_lock(&client->mutex);
    }
    op->lock = NULL;
    hfi_hold_unpin(hold);
    hfi_undo_answered(hold, status);
    if (status == HF_LOST && !client->closing)
        tell_late(lock, err->message);
    hfi_handle_free(client, lock);
    hfi_hold_settle(hold);
    return status;
}

hf_status hfi_release(hf_lock *lock, bool done, uint64_t thread, hf_error *err)
{
    const bool may_be_done = !done || !lock || lock->generation != hfi_generation || lock->hold->once;
    const hf_status status = release(lock, done, thread, err);
    if (status == HF_OK && !may_be_done)
        return hfi_fail(err, HF_INVALID, 0,
                        "it is released, but not recorded as done: it was taken without once_per_ms");
    return status;
}

hf_status hf_release(hf_lock *lock, hf_error *err)
{
    return hfi_release(lock, false, hfi_thread_number(), err);
}

hf_status hf_release_done(hf_lock *lock, hf_error *err)
{
    return hfi_release(lock, true, hfi_thread_number(), err);
}

/* One exchange. The hold is pinned. Mutex held; let go of in between. */
static hf_status renew_now(struct hfi_hold *hold, struct hfi_renewal *renewal, hf_error *err)
{
    hf_client *client = hold->client;
    if (!client->engine->renew)
        return HF_OK; /* nothing but the core ends it */
    while (hold->renewing)
        pthread_cond_wait(&client->changed, &client->mutex);
    if (hold->state != HFI_HOLD_HELD || is_over(hold)) /* meanwhile */
        return HF_LOST;
    renewal->counted_from_ns = hfi_now_ns();
    /* No longer than the time that is asked for lasts: if it is not answered, it may count. */
    const hfi_time ttl_ns = renewal->ttl_ms * HFI_MS - hfi_drift_ns(renewal->ttl_ms);
    const hfi_time deadline = renewal->counted_from_ns + (ttl_ns < client->timeout_ns ? ttl_ns : client->timeout_ns);
    hold->renewing = true;
    hold->overdue = false;
    hfi_hold_schedule(hold);
    pthread_mutex_unlock(&client->mutex);
    const hf_status status = client->engine->renew(client->store, renewal, 1, deadline, err);
    pthread_mutex_lock(&client->mutex);
    hold->renewing = false;
    pthread_cond_broadcast(&client->changed);
    return status == HF_OK ? renewal->status : status;
}

hf_status hf_renew(hf_lock *lock, uint32_t ttl_ms, hf_error *err)
{
    if (lock->generation != hfi_generation)
        return hfi_fail(err, HF_LOST, 0, "the lock belongs to the process that forked this one");
    struct hfi_hold *hold = lock->hold;
    hf_client *client = hold->client;
    if (ttl_ms && ttl_ms < HFI_MIN_TTL_MS)
        return hfi_fail(err, HF_INVALID, 0, "ttl_ms is %u; the least is %u", ttl_ms, HFI_MIN_TTL_MS);
    hf_status status = HF_LOST;

    hfi_client_lock(client);
    hfi_client_enter(client);
    hold->pins++;           /* a callback may release the lock */
    hold->spare_tokens = 0; /* its time is no longer what the next one would ask for */
    struct hfi_renewal renewal = { .lock = hold->engine_lock,
                                   .name = hfi_hold_name(hold),
                                   .owner = hfi_hold_owner(hold),
                                   .ttl_ms = ttl_ms ? ttl_ms : hold->lease.terms.ttl_ms,
                                   .counted_from_ns = hfi_now_ns(),
                                   .status = HF_OK };
    hf_error trouble = { .message = "" };
    if (hold->state == HFI_HOLD_HELD && !is_over(hold))
        status = renew_now(hold, &renewal, &trouble);
    if ((status == HF_OK || status == HF_UNKNOWN) && hold->state == HFI_HOLD_HELD) {
        if (status == HF_OK)
            hfi_lease_renewed(&hold->lease, &renewal);
        else
            hfi_lease_unsure(&hold->lease, renewal.ttl_ms, renewal.counted_from_ns);
        hfi_hold_publish(hold);
    } else if (status == HF_LOST && hold->state == HFI_HOLD_HELD) {
        if (is_over(hold))
            hfi_hold_lose_by_time(hold);
        else
            hfi_hold_lose_in_store(hold, renewal.why);
        hfi_hold_tell(hold);
        hfi_undo(hold, client->timeout_ns, NULL);
    }
    hfi_hold_schedule(hold);
    /* What was due meanwhile was left to this exchange; and a shorter ttl than before is due sooner. */
    if (hold->state == HFI_HOLD_HELD)
        hfi_keeper_expect(client, hold->doubted ? HFI_AT_ONCE : hfi_lease_due(&hold->lease));
    else
        status = hfi_fail(&trouble, HF_LOST, 0, "%s",
                          hold->lost ? hfi_hold_why(hold) : "it had ended before it was renewed");
    hfi_hold_unpin(hold);
    hfi_hold_settle(hold);
    hfi_client_leave(client);
    hfi_client_unlock(client);
    return hfi_pass_on(status, &trouble, err);
}

uint64_t hf_token(const hf_lock *lock)
{
    return lock->hold->token;
}

int64_t hf_remaining_ms(const hf_lock *lock)
{
    if (lock->generation != hfi_generation)
        return 0;
    const hfi_time until = atomic_load(&lock->hold->safe_until_ns);
    if (until == HFI_NEVER)
        return INT64_MAX;
    const hfi_time left = until - hfi_now_ns();
    return left > 0 ? (left + HFI_MS - 1) / HFI_MS : 0; /* 0 means lost, so the last millisecond is 1 */
}

int hf_lost_fd(const hf_lock *lock)
{
    struct hfi_hold *hold = lock->hold;
    if (lock->generation != hfi_generation)
        return -1;
    hfi_client_lock(hold->client);
    struct hfi_extra *extra = hfi_hold_extra(hold);
    if (extra && extra->lost_fd < 0) {
        extra->lost_fd = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (extra->lost_fd >= 0 && hold->state == HFI_HOLD_ENDED)
            hfi_bell_ring(extra->lost_fd);
    }
    const int fd = extra ? extra->lost_fd : -1;
    hfi_client_unlock(hold->client);
    return fd;
}
