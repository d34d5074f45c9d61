/* SPDX-License-Identifier: MIT
 *
 * keeper.c: one thread per client, the keeper, that notices losses and hears what the store says by itself. It is
 * started by the first lock that needs it. It keeps time and makes no exchange, since one can hang: that is for the
 * helpers, threads that renew and that finish releases whose answer was lost. As a rule there is one; while its
 * exchange hangs, or there is more to renew than it can, others take care of what is due.
 */
#include "core.h"
#include "memory.h"
#include "waker.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BATCH 128

/* An exchange that takes longer than this may hang: what is due is not left to its helper. Less than the time between
 * two renewals of the shortest lease that there is. */
#define HANG (HFI_MIN_TTL_MS * HFI_MS / 4)

/* So many helpers are started because others seem to hang: whatever they hang in, more would. */
#define HANGING_MOST 4

/* While helpers are at work, the keeper looks no more often than this for what has become overdue. */
#define GLANCE (2 * HFI_MS)

struct batch {
    hfi_time round_ns; /* of renewals: when it began; each lock gets one turn in it */
    struct hfi_hold *holds[BATCH];
    size_t count;
};

/* --- what is due --- */

/* Those whose renewal is due by now are overdue until somebody begins with it. */
static void find_overdue(const hf_client *client, hfi_time now_ns)
{
    struct hfi_hold *hold;
    while ((hold = hfi_hold_first(client, HFI_DUE_RENEWAL)) != NULL && hold->timer.at_ns <= now_ns) {
        hold->overdue = true;
        hfi_hold_schedule(hold);
    }
}

/* The first whose time is over by now. */
static struct hfi_hold *next_over(const hf_client *client)
{
    const hfi_time now = hfi_now_ns();
    find_overdue(client, now);
    struct hfi_hold *hold = hfi_hold_first(client, HFI_DUE_END);
    if (!hold || hold->timer.at_ns > now)
        hold = hfi_hold_first(client, HFI_DUE_OVERDUE);
    return hold && hold->timer.at_ns <= now ? hold : NULL;
}

/* The one that must be renewed first. One whose time is over waits for the keeper alone. */
static struct hfi_hold *next_overdue(const hf_client *client, hfi_time now_ns)
{
    struct hfi_hold *hold;
    find_overdue(client, now_ns);
    while ((hold = hfi_hold_first(client, HFI_DUE_OVERDUE)) != NULL && hold->timer.at_ns <= now_ns)
        hfi_hold_set_timer(hold, HFI_DUE_END, hold->timer.at_ns);
    return hold;
}

/* The one whose release is to be finished first. One that is in somebody's hands is set anew when it is unpinned. */
static struct hfi_hold *next_to_undo(const hf_client *client)
{
    struct hfi_hold *hold;
    while ((hold = hfi_hold_first(client, HFI_DUE_UNDO)) != NULL && hold->pins)
        hfi_hold_schedule(hold);
    return hold;
}

/* Fills the batch with holds to be renewed, and pins them. What is due within half of the time between two renewals
 * goes along with what is due now: locks that were taken at different times so end up in one exchange or two, instead
 * of keeping one each for ever. */
static void collect(const hf_client *client, struct batch *batch, hfi_time now_ns)
{
    batch->count = 0;
    while (batch->count < BATCH) {
        struct hfi_hold *hold = next_overdue(client, now_ns);
        if (!hold)
            hold = hfi_hold_first(client, HFI_DUE_RENEWAL);
        if (!hold || hold->asked_ns >= batch->round_ns ||
            (!hold->overdue && hold->timer.at_ns - hold->lease.terms.ttl_ms * HFI_MS / 6 > now_ns))
            return;
        hold->pins++;
        hold->renewing = true;
        hold->overdue = false;
        hfi_hold_schedule(hold);
        batch->holds[batch->count++] = hold;
    }
}

static void unpin(struct hfi_hold *hold)
{
    hfi_hold_unpin(hold);
    pthread_cond_broadcast(&hold->client->changed);
    hfi_hold_settle(hold);
}

/* --- losses: by whoever learns of them --- */

static void tell(struct hfi_hold *hold)
{
    hfi_hold_tell(hold); /* before the store is told, so that the holder knows first */
    hfi_undo_soon(hold);
}

/* `why` NULL: its time is over. */
static void lose(struct hfi_hold *hold, const char *why)
{
    if (hold->state != HFI_HOLD_HELD)
        return;
    if (why)
        hfi_hold_lose(hold, why);
    else
        hfi_hold_lose_by_time(hold);
    tell(hold);
}

static void end_what_is_over(hf_client *client)
{
    struct hfi_hold *hold;
    while ((hold = next_over(client)) != NULL) {
        hold->pins++;
        lose(hold, hold->lost ? hfi_hold_why(hold) : NULL);
        unpin(hold);
    }
}

/* --- exchanges: by the helpers --- */

/* For the sentence that says why it was lost, if it comes to that. */
static void note_trouble(struct hfi_hold *hold, hf_status status, const char *message)
{
    if (status == HF_OK) {
        if (hold->extra)
            hold->extra->trouble_since_ns = 0;
        return;
    }
    struct hfi_extra *extra = hfi_hold_extra(hold);
    if (!extra)
        return;
    if (!extra->trouble_since_ns)
        extra->trouble_since_ns = hold->asked_ns;
    extra->trouble = status;
    hfi_text_set(&extra->trouble_text, &hold->client->last_trouble, message);
}

static void take_answer(struct hfi_hold *hold, hf_status status, const struct hfi_renewal *renewal, const char *message)
{
    if (hold->state != HFI_HOLD_HELD)
        return;
    note_trouble(hold, status, message);
    if (status == HF_UNKNOWN) /* a gift's first renewal may have made its time shorter */
        hfi_lease_unsure(&hold->lease, renewal->ttl_ms, renewal->counted_from_ns);
    if (hold->lease.renew_at_ns != HFI_NEVER) { /* else it was only looked at */
        if (status == HF_OK)
            hfi_lease_renewed(&hold->lease, renewal);
        else
            hfi_lease_unanswered(&hold->lease, hfi_now_ns(), hold->client->env.random());
    }
    hfi_hold_publish(hold);
    hfi_hold_schedule(hold);
    hfi_keeper_expect(hold->client, hfi_lease_due(&hold->lease)); /* it may have become shorter */
}

/* All before the first callback, which may take long, or renew another one. */
static void take_answers(struct batch *batch, const struct hfi_renewal *renewals, hf_status status, const char *message)
{
    size_t lost = 0;
    for (size_t i = 0; i < batch->count; i++) {
        struct hfi_hold *hold = batch->holds[i];
        const hf_status mine = status == HF_OK ? renewals[i].status : status;
        hold->renewing = false;
        if (mine == HF_LOST && hold->state == HFI_HOLD_HELD) {
            hfi_hold_lose_in_store(hold, renewals[i].why);
            batch->holds[lost++] = hold;
        } else {
            take_answer(hold, mine, &renewals[i], message);
            unpin(hold);
        }
    }
    for (size_t i = 0; i < lost; i++) {
        tell(batch->holds[i]);
        unpin(batch->holds[i]);
    }
}

/* The longest that an exchange for these locks is worth waiting for: until the first of them is lost. */
static hfi_time exchange_deadline(const hf_client *client, const struct batch *batch,
                                  const struct hfi_renewal *renewals, hfi_time now_ns)
{
    hfi_time end = now_ns + client->timeout_ns;
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->holds[i]->lease.deadline_ns < end)
            end = batch->holds[i]->lease.deadline_ns;
        const hfi_time ttl_ns = renewals[i].ttl_ms * HFI_MS - hfi_drift_ns(renewals[i].ttl_ms);
        if (batch->holds[i]->lease.deadline_ns != HFI_NEVER && now_ns + ttl_ns < end)
            end = now_ns + ttl_ns; /* if it is not answered, it may have made its time shorter */
    }
    return end;
}

static void renew_batch(hf_client *client, struct batch *batch, hfi_time now_ns)
{
    struct hfi_renewal renewals[BATCH];
    for (size_t i = 0; i < batch->count; i++) {
        struct hfi_hold *hold = batch->holds[i];
        hold->asked_ns = now_ns;
        hold->doubted = false;
        renewals[i] = (struct hfi_renewal){ .lock = hold->engine_lock,
                                            .name = hfi_hold_name(hold),
                                            .owner = hfi_hold_owner(hold),
                                            .ttl_ms = hfi_lease_ask_ms(&hold->lease, now_ns),
                                            .counted_from_ns = now_ns };
    }
    const hfi_time deadline = exchange_deadline(client, batch, renewals, now_ns);
    client->hangs_at_ns = now_ns + HANG;
    pthread_mutex_unlock(&client->mutex);
    hf_error err = { .message = "" };
    const hf_status status = client->engine->renew(client->store, renewals, batch->count, deadline, &err);
    pthread_mutex_lock(&client->mutex);
    take_answers(batch, renewals, status, err.message);
}

static int start_helper(hf_client *client);

/* There is more to renew than one exchange after the other can do: another helper makes one beside this one. */
static void call_for_help(hf_client *client, hfi_time now_ns)
{
    const struct hfi_hold *first = hfi_hold_first(client, HFI_DUE_OVERDUE);
    if (!first || now_ns < first->lease.renew_at_ns + HANG)
        return;
    if (client->idle_helpers > 0)
        pthread_cond_signal(&client->exchange);
    else if (client->helper_count < HFI_HELPERS)
        start_helper(client); /* if that fails, then without it */
}

/* Each gets one turn: what fails is due again soon, and would keep those behind it from theirs. Not for long: there may
 * always be something due, and releases must have their turn, too. */
static void renew_what_is_due(hf_client *client)
{
    hfi_time now = hfi_now_ns();
    struct batch batch = { .round_ns = now };
    while (!client->keeper_stops && now < batch.round_ns + HANG && next_overdue(client, now)) {
        collect(client, &batch, now);
        if (batch.count == 0) /* what is due had its turn */
            break;
        call_for_help(client, now);
        renew_batch(client, &batch, now);
        now = hfi_now_ns();
    }
}

/* By one helper at a time: releases that hang must not keep all of them from renewing. */
static void finish_releases(hf_client *client)
{
    const hfi_time started = hfi_now_ns(); /* so that each gets one turn: what fails is due again soon */
    struct hfi_hold *hold;
    if (client->undo_runs)
        return;
    client->undo_runs = true;
    while (!client->keeper_stops && (hold = next_to_undo(client)) != NULL && hold->timer.at_ns <= started) {
        hold->pins++;
        client->hangs_at_ns = hfi_now_ns() + HANG;
        hfi_undo(hold, client->timeout_ns / 2, NULL);
        unpin(hold);
        renew_what_is_due(client); /* what may have become due meanwhile */
    }
    client->undo_runs = false;
}

void hfi_keeper_lost(void *core, struct hfi_owner owner, const char *why)
{
    hf_client *client = core;
    hfi_client_lock(client);
    struct hfi_hold *hold = hfi_hold_of_serial(client, owner.serial);
    if (hold && owner.client == client->env.client) {
        hold->pins++;
        if (hold->state == HFI_HOLD_PENDING) /* granted a moment ago: told as soon as somebody holds it */
            hfi_hold_mark_lost(hold, why);
        lose(hold, why);
        unpin(hold);
    }
    hfi_client_unlock(client);
}

/* The lease of one that is asked for belongs to whoever asks, who looks at `doubted` when it is granted. */
static void doubt(struct hfi_hold *hold)
{
    hold->doubted = true;
    if (hold->state == HFI_HOLD_HELD)
        hfi_hold_schedule(hold);
}

void hfi_keeper_recheck(void *core, uint64_t serial)
{
    hf_client *client = core;
    hfi_client_lock(client);
    const bool renews = client->engine->renew;
    struct hfi_hold *one = renews && serial ? hfi_hold_of_serial(client, serial) : NULL;
    if (one)
        doubt(one);
    struct hfi_hold *all = renews && !serial ? hfi_hold_after(client, NULL) : NULL;
    for (struct hfi_hold *hold = all; hold; hold = hfi_hold_after(client, hold)) {
        if (hold->state == HFI_HOLD_HELD)
            doubt(hold);
    }
    if (client->keeper_runs)
        hfi_bell_ring(client->keeper_bell);
    hfi_client_unlock(client);
}

/* --- the helpers --- */

/* The first moment at which an exchange is due for what nobody is taking care of. */
static hfi_time exchange_due(hf_client *client, hfi_time now_ns)
{
    if (next_overdue(client, now_ns))
        return HFI_AT_ONCE;
    const struct hfi_hold *renewal = hfi_hold_first(client, HFI_DUE_RENEWAL);
    const struct hfi_hold *undo = client->undo_runs ? NULL : next_to_undo(client);
    const hfi_time due = renewal ? renewal->timer.at_ns : HFI_NEVER;
    return undo && undo->timer.at_ns < due ? undo->timer.at_ns : due;
}

static void *help(void *argument)
{
    hf_client *client = argument;
    pthread_mutex_lock(&client->mutex);
    while (!client->keeper_stops) {
        renew_what_is_due(client);
        finish_releases(client);
        const hfi_time now = hfi_now_ns(), due = exchange_due(client, now);
        if (client->keeper_stops || due <= now)
            continue;
        hfi_keeper_expect(client, due);
        client->idle_helpers++;
        pthread_cond_wait(&client->exchange, &client->mutex);
        client->idle_helpers--;
    }
    pthread_mutex_unlock(&client->mutex);
    return NULL;
}

static atomic_bool thread_fault;

void hfi_thread_set_fault(bool fault)
{
    atomic_store(&thread_fault, fault);
}

/* The user's signals are for the user's threads. */
int hfi_thread_start(pthread_t *thread, void *(*body)(void *), void *argument)
{
    sigset_t all, before;
    if (atomic_load(&thread_fault))
        return EAGAIN;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failure = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static int start_helper(hf_client *client)
{
    const int failure = hfi_thread_start(&client->helpers[client->helper_count], help, client);
    client->helper_count += failure == 0;
    return failure;
}

/* Has what is due done by a helper that is idle; or by a new one, if those at work seem to hang. Returns when to look
 * again whether somebody takes care of it; HFI_NEVER: whoever is at work does so before it is idle. */
static hfi_time call_helper(hf_client *client, hfi_time now_ns)
{
    if (client->idle_helpers > 0)
        pthread_cond_signal(&client->exchange);
    else if (now_ns < client->hangs_at_ns)
        return client->hangs_at_ns;
    else if (client->helper_count >= HANGING_MOST)
        return HFI_NEVER;
    else
        start_helper(client); /* if that fails, then later */
    return now_ns + HANG;
}

/* --- the keeper --- */

/* When the keeper must look again: no later than the end of any lease. */
static hfi_time next_due(hf_client *client)
{
    const hfi_time now = hfi_now_ns();
    hfi_time due = exchange_due(client, now);
    if (due <= now)
        due = call_helper(client, now);
    for (enum hfi_due kind = HFI_DUE_RENEWAL; kind <= HFI_DUE_END; kind++) {
        const struct hfi_hold *first = hfi_hold_first(client, kind);
        hfi_time at = first ? first->timer.at_ns : HFI_NEVER;
        if (kind == HFI_DUE_RENEWAL && at < now + GLANCE) /* its end may be near, but there may be many of them */
            at = now + GLANCE;
        due = at < due ? at : due;
    }
    const hfi_time operations = hfi_operations_look(client);
    return operations < due ? operations : due;
}

/* Sleeps until the timer, the bell or the store; without the mutex. */
static void sleep_until(hf_client *client, hfi_time due_ns)
{
    struct itimerspec at = { .it_value = { .tv_nsec = 0 } };
    if (due_ns != HFI_NEVER) {
        at.it_value.tv_sec = due_ns / HFI_SECOND;
        at.it_value.tv_nsec = due_ns % HFI_SECOND;
    }
    timerfd_settime(client->keeper_timer, TFD_TIMER_ABSTIME, &at, NULL);

    struct pollfd fds[3] = { { .fd = client->keeper_bell, .events = POLLIN },
                             { .fd = client->keeper_timer, .events = POLLIN },
                             { .fd = client->engine->push_fd ? client->engine->push_fd(client->store) : -1,
                               .events = POLLIN } };
    int ready;
    do
        ready = poll(fds, 3, -1);
    while (ready < 0 && errno == EINTR);
    if (fds[0].revents)
        hfi_bell_hush(client->keeper_bell);
    if (fds[2].revents)
        client->engine->take_push(client->store);
}

static void *keep(void *argument)
{
    hf_client *client = argument;
    pthread_mutex_lock(&client->mutex);
    while (!client->keeper_stops) {
        end_what_is_over(client);
        const hfi_time due = next_due(client);
        client->keeper_due_ns = due;
        pthread_mutex_unlock(&client->mutex);
        sleep_until(client, due);
        pthread_mutex_lock(&client->mutex);
    }
    pthread_mutex_unlock(&client->mutex);
    return NULL;
}

bool hfi_keeper_start(hf_client *client, hf_error *err)
{
    int failure = 0;
    if (!client->keeper_runs) {
        if (client->closing)
            return false;
        client->keeper_due_ns = HFI_NEVER;
        client->keeper_bell = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        client->keeper_timer = HFI_FD(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
        failure = client->keeper_bell < 0 || client->keeper_timer < 0 ? errno : 0;
        if (!failure)
            failure = hfi_thread_start(&client->keeper, keep, client);
        client->keeper_runs = !failure;
        if (failure) {
            hfi_fd_close(client->keeper_bell);
            hfi_fd_close(client->keeper_timer);
        }
    }
    if (!failure && !client->engine->immediate && client->helper_count == 0)
        failure = start_helper(client);
    if (failure)
        hfi_fail_errno(err, failure, "start", "the keeper thread");
    return !failure;
}

void hfi_keeper_expect(hf_client *client, hfi_time due_ns)
{
    if (!client->keeper_runs || due_ns >= client->keeper_due_ns)
        return;
    client->keeper_due_ns = due_ns;
    hfi_bell_ring(client->keeper_bell);
}

void hfi_keeper_stop(hf_client *client)
{
    if (!client->keeper_runs)
        return;
    client->keeper_stops = true;
    hfi_bell_ring(client->keeper_bell);
    pthread_cond_broadcast(&client->exchange);
    pthread_mutex_unlock(&client->mutex);
    pthread_join(client->keeper, NULL); /* first: it may start helpers */
    for (unsigned i = 0; i < client->helper_count; i++)
        pthread_join(client->helpers[i], NULL);
    pthread_mutex_lock(&client->mutex);
    client->keeper_runs = false;
    hfi_fd_close(client->keeper_bell);
    hfi_fd_close(client->keeper_timer);
}
