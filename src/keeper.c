/* SPDX-License-Identifier: MIT
 *
 * keeper.c: one thread per client that renews, notices losses, hears what the store says by itself and finishes
 * releases whose answer was lost. It is started by the first lock that needs it.
 */
#include "core.h"
#include "waker.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BATCH 128

struct batch {
    struct hfi_hold *holds[BATCH];
    size_t count;
};

/* --- what is due --- */

/* `early`: what is due within half of the time between two renewals goes along with what is due now. Locks that were
 * taken at different times so end up in one exchange or two, instead of keeping one each for ever. */
static bool is_due(const struct hfi_hold *hold, enum hfi_step step, hfi_time now_ns, bool early)
{
    const hfi_time window = early ? hold->lease.terms.ttl_ms * HFI_MS / 6 : 0;
    if (hold->state != HFI_HOLD_HELD || (step == HFI_STEP_RENEW && (hold->renewing || hold->had_turn)))
        return false;
    const enum hfi_step due = hfi_lease_step(&hold->lease, now_ns, window);
    return due == step || (due == HFI_STEP_NONE && step == HFI_STEP_RENEW && hold->doubted);
}

static bool undo_is_due(const struct hfi_hold *hold, hfi_time now_ns)
{
    return hold->undoing && hold->pins == 0 && now_ns >= hold->undo_at_ns;
}

/* Fills the batch with holds for which `step` is due (HFI_STEP_NONE: a release to be tried again), and pins them. */
static void collect(hf_client *client, struct batch *batch, enum hfi_step step, hfi_time now_ns, bool early)
{
    batch->count = 0;
    for (struct hfi_hold *hold = client->holds; hold && batch->count < BATCH; hold = hold->next) {
        const bool wanted = step == HFI_STEP_NONE ? undo_is_due(hold, now_ns) : is_due(hold, step, now_ns, early);
        if (wanted) {
            hold->pins++;
            batch->holds[batch->count++] = hold;
        }
    }
}

static void unpin(struct hfi_hold *hold)
{
    hold->pins--;
    pthread_cond_broadcast(&hold->client->changed);
    hfi_hold_settle(hold);
}

/* How long an exchange may take before the next deadline of any lock must be looked at: a store that does not answer
 * must not keep a holder from learning of its loss. */
static hfi_time patience(const hf_client *client, hfi_time now_ns)
{
    hfi_time end = now_ns + client->timeout_ns;
    for (const struct hfi_hold *hold = client->holds; hold; hold = hold->next) {
        if (hold->state == HFI_HOLD_HELD && hold->lease.deadline_ns < end)
            end = hold->lease.deadline_ns;
    }
    return end > now_ns ? end - now_ns : 0;
}

/* The same for a release: where a store is several servers, one that hangs must leave the time to renew what is held
 * on the others. */
static hfi_time undo_patience(const hf_client *client)
{
    return patience(client, hfi_now_ns()) / 2;
}

/* --- the three jobs --- */

static void lose(struct hfi_hold *hold, const char *why)
{
    if (hold->state != HFI_HOLD_HELD)
        return;
    hfi_hold_lose(hold, why);
    hfi_hold_tell(hold); /* before the store is told, so that the holder knows first */
    hfi_undo(hold, undo_patience(hold->client), NULL);
}

static const char *why_ended(const struct hfi_hold *hold)
{
    if (hold->lease.deadline_ns == hold->lease.end_by_ns)
        return "it was held for as long as max_hold_ms allows";
    return hold->lease.terms.renew ? "it could not be renewed in time" : "its time-to-live has passed";
}

static void renew_what_is_due(hf_client *client);

static void end_what_is_over(hf_client *client)
{
    struct batch batch;
    do {
        collect(client, &batch, HFI_STEP_END, hfi_now_ns(), false);
        for (size_t i = 0; i < batch.count; i++) {
            lose(batch.holds[i], why_ended(batch.holds[i]));
            unpin(batch.holds[i]);
            renew_what_is_due(client); /* telling the store may have taken a while */
        }
    } while (batch.count == BATCH);
}

static void finish_releases(hf_client *client)
{
    struct batch batch;
    const hfi_time started = hfi_now_ns(); /* so that each gets one turn: what fails is due again soon */
    do {
        collect(client, &batch, HFI_STEP_NONE, started, false);
        for (size_t i = 0; i < batch.count; i++) {
            hfi_undo(batch.holds[i], undo_patience(client), NULL);
            unpin(batch.holds[i]);
            end_what_is_over(client); /* what may have become due meanwhile */
            renew_what_is_due(client);
        }
    } while (batch.count == BATCH && !client->keeper_stops);
}

static void take_answer(struct hfi_hold *hold, hf_status status, const struct hfi_renewal *renewal)
{
    if (hold->state != HFI_HOLD_HELD)
        return;
    if (status == HF_LOST) {
        lose(hold, "the store no longer has it");
        return;
    }
    if (status == HF_UNKNOWN) /* a gift's first renewal may have made its time shorter */
        hfi_lease_unsure(&hold->lease, renewal->ttl_ms, renewal->counted_from_ns);
    if (hold->lease.renew_at_ns == HFI_NEVER) /* it was only looked at */
        return;
    if (status == HF_OK)
        hfi_lease_renewed(&hold->lease, renewal);
    else
        hfi_lease_unanswered(&hold->lease, hfi_now_ns(), hold->client->env.random());
    hfi_hold_publish(hold);
}

static bool renewal_is_due(hf_client *client, hfi_time now_ns)
{
    for (struct hfi_hold *hold = client->holds; hold; hold = hold->next) {
        if (is_due(hold, HFI_STEP_RENEW, now_ns, false))
            return true;
    }
    return false;
}

/* Each gets one turn: what fails is due again soon, and would keep those behind it from theirs. */
static void renew_what_is_due(hf_client *client)
{
    struct batch batch;
    struct hfi_renewal renewals[BATCH];
    const hfi_time started = hfi_now_ns();
    for (struct hfi_hold *hold = client->holds; hold; hold = hold->next)
        hold->had_turn = false;
    while (!client->keeper_stops && renewal_is_due(client, started)) {
        const hfi_time now = hfi_now_ns();
        collect(client, &batch, HFI_STEP_RENEW, now, true);
        if (batch.count == 0) /* the time of what was due is over by now */
            break;
        for (size_t i = 0; i < batch.count; i++) {
            struct hfi_hold *hold = batch.holds[i];
            hold->renewing = hold->had_turn = true;
            hold->doubted = false;
            renewals[i] = (struct hfi_renewal){ .lock = batch.holds[i]->engine_lock,
                                                .name = hold->name,
                                                .owner = hold->owner,
                                                .ttl_ms = hfi_lease_ask_ms(&hold->lease, now),
                                                .counted_from_ns = now };
        }
        const hfi_time deadline = now + patience(client, now);
        pthread_mutex_unlock(&client->mutex);
        const hf_status status = client->engine->renew(client->store, renewals, batch.count, deadline, NULL);
        pthread_mutex_lock(&client->mutex);
        for (size_t i = 0; i < batch.count; i++)
            batch.holds[i]->renewing = false; /* all before the first callback, which may renew another one */
        for (size_t i = 0; i < batch.count; i++) {
            take_answer(batch.holds[i], status == HF_OK ? renewals[i].status : status, &renewals[i]);
            unpin(batch.holds[i]);
        }
    }
}

void hfi_keeper_lost(void *core, struct hfi_owner owner, const char *why)
{
    hf_client *client = core;
    hfi_client_lock(client);
    struct hfi_hold *hold = client->holds;
    while (hold && hold->owner.serial != owner.serial)
        hold = hold->next;
    if (hold && owner.client == client->env.client) {
        hold->pins++;
        lose(hold, why);
        unpin(hold);
    }
    hfi_client_unlock(client);
}

void hfi_keeper_recheck(void *core)
{
    hf_client *client = core;
    hfi_client_lock(client);
    for (struct hfi_hold *hold = client->holds; hold; hold = hold->next)
        hold->doubted = hold->state == HFI_HOLD_HELD && client->engine->renew;
    if (client->keeper_runs)
        hfi_bell_ring(client->keeper_bell);
    hfi_client_unlock(client);
}

/* --- the thread --- */

static hfi_time next_due(const hf_client *client)
{
    hfi_time due = HFI_NEVER;
    for (const struct hfi_hold *hold = client->holds; hold; hold = hold->next) {
        hfi_time mine = HFI_NEVER;
        if (hold->state == HFI_HOLD_HELD)
            mine = hold->doubted && !hold->renewing ? HFI_AT_ONCE : hfi_lease_due(&hold->lease);
        else if (hold->undoing)
            mine = hold->undo_at_ns;
        if (mine < due)
            due = mine;
    }
    return due;
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
                             { .fd = client->engine->ear ? client->engine->ear(client->store) : -1,
                               .events = POLLIN } };
    int ready;
    do
        ready = poll(fds, 3, -1);
    while (ready < 0 && errno == EINTR);
    if (fds[0].revents)
        hfi_bell_hush(client->keeper_bell);
    if (fds[2].revents)
        client->engine->hear(client->store);
}

static void *keep(void *argument)
{
    hf_client *client = argument;
    pthread_mutex_lock(&client->mutex);
    while (!client->keeper_stops) {
        end_what_is_over(client);
        finish_releases(client);
        renew_what_is_due(client);
        if (client->keeper_stops)
            break;
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
    if (client->keeper_runs)
        return true;
    if (client->closing)
        return false;
    client->keeper_bell = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    client->keeper_timer = HFI_FD(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
    int failure = client->keeper_bell < 0 || client->keeper_timer < 0 ? errno : 0;
    if (!failure) {
        /* The user's signals are for the user's threads. */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failure = pthread_create(&client->keeper, NULL, keep, client);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (failure) {
        hfi_fd_close(client->keeper_bell);
        hfi_fd_close(client->keeper_timer);
        hfi_fail_errno(err, failure, "start", "the keeper thread");
        return false;
    }
    client->keeper_due_ns = HFI_NEVER;
    client->keeper_runs = true;
    return true;
}

void hfi_keeper_expect(hf_client *client, hfi_time due_ns)
{
    if (due_ns >= client->keeper_due_ns)
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
    pthread_mutex_unlock(&client->mutex);
    pthread_join(client->keeper, NULL);
    pthread_mutex_lock(&client->mutex);
    client->keeper_runs = false;
    hfi_fd_close(client->keeper_bell);
    hfi_fd_close(client->keeper_timer);
}
