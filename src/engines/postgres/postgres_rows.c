/* SPDX-License-Identifier: MIT
 *
 * postgres_rows.c: lease, insert and version: the lock is a row with an owner and an end.
 *
 * Who finds the lock held lines up in a table; who frees it hands it to the first in line, in the same transaction, for
 * a short claim time, and notifies that one client. The first renewal makes the time whole.
 *
 * A notification is not an answer to a request: a waiter that was paused may read it long after the claim has ended,
 * and anybody may send one. It is believed if it comes from a session that may write the row; how long is reckoned from
 * the last answered request, see is_fresh(). In doubt the waiter asks.
 */
#include "postgres.h"
#include <stdio.h>
#include <string.h>

/* When the holder's time is over, its waiters ask by themselves. */
#define BACKSTOP_FIRST (10 * HFI_MS)
#define BACKSTOP_SPREAD (60 * HFI_MS)
#define BACKSTOP_MOST INT64_C(86400000)
/* Behind a pooler nothing can be heard. */
#define POLL_PAUSE (100 * HFI_MS)
#define SWAPS_MOST 4
/* Two clocks may run apart by a hundredth; after half a minute that is too much beside the claim time. */
#define TRUSTED_WAIT (30 * HFI_SECOND)
#define CLAIM_NS (HFI_POSTGRES_CLAIM_MS * HFI_MS)

/* The columns of the statement that tells who has it. */
enum {
    COLUMN_TOKEN,
    COLUMN_HOST,
    COLUMN_PID,
    COLUMN_LEFT,
    COLUMN_FREE,
    COLUMN_AHEAD,
    COLUMN_CLOCK,
    COLUMN_VERSION,
    COLUMN_QUEUED
};

static bool is_true(const PGresult *result, int column)
{
    return PQntuples(result) > 0 && column < PQnfields(result) && PQgetvalue(result, 0, column)[0] == 't';
}

static void set_backstop(struct postgres_store *store, struct postgres_lock *lock, int64_t left_ms)
{
    const int64_t left = left_ms < 0 ? 0 : left_ms < BACKSTOP_MOST ? left_ms : BACKSTOP_MOST;
    const hfi_time pause = store->deaf ? POLL_PAUSE / 2 : left * HFI_MS + BACKSTOP_FIRST;
    const hfi_time spread = store->deaf ? POLL_PAUSE / 2 : BACKSTOP_SPREAD;
    const hfi_time at = store->env->now_ns() + pause + (hfi_time)(store->env->random() % (uint64_t)spread);
    pthread_mutex_lock(&store->mutex);
    if (at < lock->waiter.ask_again_ns) /* it may have been told, since it is in line, to look after the first */
        lock->waiter.ask_again_ns = at;
    pthread_mutex_unlock(&store->mutex);
}

/* --- compare and set --- */

/* `found->last` says what the row looked like: takes it if it is free and nobody waits. A row that has changed since is
 * looked at again. */
static hf_status swap(struct postgres_store *store, struct postgres_values *values, bool once,
                      struct postgres_answer *found, hfi_time deadline_ns, hf_error *err)
{
    static const postgres_sequence add = { POSTGRES_ADD, POSTGRES_LOOK }, swap_once = { POSTGRES_SWAP, POSTGRES_DONE },
                                   swap_any = { POSTGRES_SWAP }, look = { POSTGRES_LOOK },
                                   extend = { POSTGRES_RENEW, POSTGRES_LOOK };
    const unsigned char *compare_and_set = once ? swap_once : swap_any;
    PGresult **result = &found->last;
    hf_status status = HF_OK;
    for (unsigned tries = 0; status == HF_OK && tries < SWAPS_MOST; tries++) {
        const long long version = hfi_postgres_number(*result, 0, COLUMN_VERSION, -1);
        const bool mine = hfi_postgres_number(*result, 0, COLUMN_TOKEN, 0) > 0;
        const bool free = is_true(*result, COLUMN_FREE);
        struct postgres_answer answer = { .counted = mine ? POSTGRES_RENEW : POSTGRES_END };
        if (version >= 0 && !mine && (!free || is_true(*result, COLUMN_QUEUED)))
            break;
        PQclear(*result);
        *result = NULL;
        hfi_postgres_put(values->version, version);
        const unsigned char *sequence = version < 0 ? add : mine ? extend : compare_and_set;
        status = hfi_postgres_run(store, sequence, values, &answer, deadline_ns, err);
        const bool swapped = status == HF_OK && sequence == compare_and_set && PQntuples(answer.last) > 0;
        *result = answer.last;
        if (answer.done) {
            PQclear(found->done);
            found->done = answer.done;
        }
        if (swapped || (mine && answer.changed > 0))
            break;
        if (status == HF_OK && sequence == compare_and_set) {
            PQclear(*result);
            status = hfi_postgres_run(store, look, values, &answer, deadline_ns, err);
            *result = answer.last;
        }
    }
    return status;
}

/* --- attempt --- */

/* Who may be told something asks, in the same exchange, whom to believe; once in a while. */
static void vouch_first(postgres_sequence out, const unsigned char *sequence)
{
    size_t count = 0;
    out[count++] = POSTGRES_VOUCH;
    while (count < POSTGRES_SEQUENCE_MAX && (out[count] = sequence[count - 1]) != POSTGRES_END)
        count++;
}

/* HF_DONE: it is; whether the lock is ours all the same, `*result` says. */
static hf_status ask(struct postgres_store *store, const unsigned char *sequence, struct postgres_values *values,
                     const struct hfi_request *request, struct hfi_grant *grant, PGresult **result, hf_error *err)
{
    struct postgres_answer answer = { .counted = POSTGRES_END };
    const hfi_time asked_ns = store->env->now_ns();
    postgres_sequence once;
    if (request->once) {
        hfi_postgres_instead(once, sequence, POSTGRES_TAKE, POSTGRES_TAKE_ONCE, POSTGRES_DONE);
        sequence = once;
    }
    hf_status status = hfi_postgres_run(store, sequence, values, &answer, request->deadline_ns, err);
    if (answer.vouched)
        hfi_postgres_learn_writers(store, answer.vouched, asked_ns);
    PQclear(answer.vouched);
    if (status == HF_OK && store->config.strategy->swap && PQntuples(answer.done) == 0)
        status = swap(store, values, request->once, &answer, request->deadline_ns, err);
    if (status == HF_OK && hfi_postgres_is_done(answer.done, grant))
        status = HF_DONE;
    PQclear(answer.done);
    if (status != HF_OK && status != HF_DONE) {
        PQclear(answer.last);
        answer.last = NULL;
    }
    *result = answer.last;
    return status;
}

/* With the mutex. A gift made at server time G, of which we know that server time T was not before our time s: it lasts
 * until s + (G - T) + claim, less what clocks may run apart. If that is near, or cannot be reckoned, the waiter must
 * ask. */
static bool is_fresh(const struct postgres_store *store, const struct postgres_lock *lock, struct hfi_grant *grant)
{
    const hfi_time now = store->env->now_ns(), waited = now - lock->sent_ns;
    const struct postgres_gift *gift = &lock->gift;
    /* With several servers a message may come from one that is not asked any more. */
    if (gift->token <= 0 || !hfi_postgres_may_write(store, gift->sender) || lock->server_us < 0 ||
        gift->server_us < lock->server_us || waited > TRUSTED_WAIT || store->config.session_attributes)
        return false;
    if (gift->server_us - lock->server_us > waited / 1000) /* the server's clock was set */
        return false;
    const hfi_time between = (gift->server_us - lock->server_us) * 1000;
    grant->counted_from_ns = lock->sent_ns + between - between / 100;
    grant->valid_ms = HFI_POSTGRES_CLAIM_MS;
    grant->token = (uint64_t)gift->token;
    return grant->counted_from_ns + CLAIM_NS / 2 > now;
}

static void take_up(struct postgres_store *store, struct postgres_lock *lock, const struct hfi_grant *grant)
{
    lock->token = (int64_t)grant->token;
    hfi_postgres_expect_no_more(store, lock, POSTGRES_HELD);
    lock->queued = false;
}

static void stay_outside(struct postgres_store *store, struct postgres_lock *lock, const PGresult *result, bool called,
                         struct hfi_grant *grant)
{
    const long long left = hfi_postgres_number(result, 0, COLUMN_LEFT, -1);
    const char *host = PQntuples(result) > 0 ? PQgetvalue(result, 0, COLUMN_HOST) : "";
    if (*host)
        snprintf(grant->holder, sizeof grant->holder, "%.100s:%lld", host,
                 hfi_postgres_number(result, 0, COLUMN_PID, 0));
    grant->holder_left_ms = left < 0 ? -1 : left;
    lock->server_us = hfi_postgres_number(result, 0, COLUMN_CLOCK, -1);
    /* A client of version 0.1 that hands the row over leaves the number of a holder that died: ours must be greater. */
    if (lock->server_us > atomic_load(&lock->requests))
        atomic_store(&lock->requests, lock->server_us);
    set_backstop(store, lock, left);
    if (called)
        hfi_postgres_expect_no_more(store, lock, POSTGRES_NEW);
}

hf_status hfi_postgres_row_attempt(struct postgres_store *store, struct postgres_lock *lock,
                                   const struct hfi_request *request, struct hfi_grant *grant, hf_error *err)
{
    const struct postgres_strategy *strategy = store->config.strategy;
    struct postgres_values values;
    postgres_sequence vouched;
    PGresult *result = NULL;
    int backend = 0;
    pthread_mutex_lock(&store->mutex);
    const bool called = lock->state == POSTGRES_CALLED;
    /* Whoever gave it may have said in the same step that it is done. */
    const bool given = called && !request->once && is_fresh(store, lock, grant);
    const bool knows = hfi_postgres_may_write(store, called ? lock->gift.sender : 0);
    lock->waiter.ask_again_ns = HFI_NEVER;
    pthread_mutex_unlock(&store->mutex);
    if (given) {
        take_up(store, lock, grant);
        return HF_OK;
    }
    if (lock->unsure && hfi_postgres_must_settle(store)) {
        const hf_status settled = hfi_postgres_settle(store, request->deadline_ns, err);
        if (settled != HF_OK)
            return settled;
    }
    grant->valid_ms = 0;
    hfi_postgres_values(&values, request);
    hfi_postgres_put(values.request, atomic_fetch_add(&lock->requests, 1) + 1);
    /* Whoever lines up without being able to hear would be handed a lock that it never takes. */
    const bool line_up =
        request->queue && lock->wants_place && !called && hfi_postgres_expect(store, lock, request->owner, &backend);
    hfi_postgres_put(values.backend, backend);
    const unsigned char *sequence = line_up ? strategy->line_up : strategy->attempt;
    if ((line_up || called) && !knows) {
        vouch_first(vouched, sequence);
        sequence = vouched;
    }
    hfi_time sent_ns = store->env->now_ns();
    hf_status status = ask(store, sequence, &values, request, grant, &result, err);
    if (status == HF_OK && hfi_postgres_number(result, 0, COLUMN_TOKEN, 0) == 0 &&
        (is_true(result, COLUMN_FREE) || is_true(result, COLUMN_AHEAD))) {
        PQclear(result);
        sent_ns = store->env->now_ns();
        status = ask(store, strategy->help, &values, request, grant, &result, err);
    }
    if (status == HF_UNKNOWN)
        lock->unsure = true;
    if (status != HF_OK && status != HF_DONE)
        return status;
    grant->token = (uint64_t)hfi_postgres_number(result, 0, COLUMN_TOKEN, 0);
    grant->counted_from_ns = sent_ns;
    if (grant->token > 0) {
        take_up(store, lock, grant);
    } else if (status == HF_OK) {
        status = HF_BUSY;
        lock->queued = line_up || (lock->queued && !called); /* a call that came to nothing used up the place */
        lock->sent_ns = sent_ns;
        stay_outside(store, lock, result, called, grant);
    }
    PQclear(result);
    return status;
}

/* --- wait --- */

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static hf_status poll_later(const struct postgres_store *store, const struct postgres_lock *lock,
                            const struct hfi_request *request)
{
    const hfi_time until = earlier(lock->waiter.ask_again_ns, request->deadline_ns);
    if (request->parked && store->env->now_ns() < until)
        return hfi_waker_park(request->parked, until);
    hfi_waker_sleep(request->waker, NULL, 0, until);
    return until < request->deadline_ns ? HF_OK : HF_TIMEOUT;
}

hf_status hfi_postgres_row_wait(struct postgres_store *store, struct postgres_lock *lock,
                                const struct hfi_request *request, hf_error *err)
{
    if (store->deaf)
        return poll_later(store, lock, request);
    if (!lock->queued) {
        const hf_status status = hfi_postgres_listen(store, lock, request, err);
        lock->wants_place = true;
        /* A wait that was too short for that is over, and nothing else. */
        return status == HF_UNAVAILABLE && store->env->now_ns() >= request->deadline_ns ? HF_TIMEOUT : status;
    }
    return hfi_postgres_await_call(store, lock, request);
}

/* --- who broke it --- */

/* Of those that are lost, in one exchange: a hold that was broken has left that in the row of grants. Whatever becomes
 * of this, they are lost. */
static void find_breakers(struct postgres_store *store, struct hfi_renewal *renewals, size_t count,
                          hfi_time deadline_ns)
{
    const hfi_time until = hfi_sql_patience(store->env->now_ns(), deadline_ns);
    struct postgres_values *values = hfi_alloc(count * sizeof *values);
    struct postgres_call *calls = hfi_alloc(count * sizeof *calls);
    size_t lost = 0;
    for (size_t i = 0; i < count && values && calls; i++) {
        values[i] = (struct postgres_values){ .name = renewals[i].name, .note = "" };
        if (renewals[i].status == HF_LOST)
            calls[lost++] = (struct postgres_call){ .statement = POSTGRES_BROKEN, .values = &values[i] };
    }
    const bool told = lost > 0 && hfi_postgres_ask(store, calls, lost, until, NULL) == HF_OK;
    for (size_t i = 0, next = 0; i < count && told; i++) {
        const struct postgres_lock *lock = renewals[i].lock;
        if (renewals[i].status != HF_LOST)
            continue;
        PGresult *result = calls[next++].result;
        if (PQntuples(result) > 0)
            hfi_sql_read_broken(renewals[i].why, PQgetvalue(result, 0, 0), (uint64_t)lock->token);
        PQclear(result);
    }
    hfi_free(values);
    hfi_free(calls);
}

/* A release that finds it gone. Whoever does not want to know why is not kept waiting. */
static hf_status fail_lost(struct postgres_store *store, struct postgres_lock *lock, const struct hfi_request *request,
                           hf_error *err)
{
    struct hfi_renewal lost = { .lock = lock, .name = request->name, .status = HF_LOST };
    if (err)
        find_breakers(store, &lost, 1, request->deadline_ns);
    return hfi_fail(err, HF_LOST, 0, "%s", *lost.why ? lost.why : "the server no longer had it");
}

/* --- release and renew --- */

/* `*changed`: it was ours until now. If it cannot be said that it is done, it is freed all the same. `plain`: nothing
 * was asked that was not answered. */
static hf_status free_row(struct postgres_store *store, bool plain, const struct hfi_request *request, bool *changed,
                          hf_error *err)
{
    const struct postgres_strategy *strategy = store->config.strategy;
    const unsigned char *freeing = plain ? strategy->release : strategy->leave;
    const bool done = request->done_ms > 0;
    struct postgres_values values;
    struct postgres_answer answer = { .counted = done ? POSTGRES_MARK : POSTGRES_FREE };
    postgres_sequence leaving;
    hfi_postgres_values(&values, request);
    if (done) {
        hfi_postgres_put(values.ttl, (int64_t)request->done_ms);
        hfi_postgres_instead(leaving, strategy->leave, POSTGRES_FREE, POSTGRES_MARK, POSTGRES_END);
    }
    const unsigned char *marking = plain ? strategy->mark : leaving;
    hf_status status = hfi_postgres_run(store, done ? marking : freeing, &values, &answer, request->deadline_ns, err);
    *changed = answer.changed > 0;
    PQclear(answer.last);
    if (done && hfi_postgres_cannot_mark(status)) {
        hfi_postgres_run(store, freeing, &values, &answer, request->deadline_ns, NULL);
        PQclear(answer.last);
    }
    return status;
}

hf_status hfi_postgres_row_release(struct postgres_store *store, struct postgres_lock *lock,
                                   const struct hfi_request *request, hf_error *err)
{
    bool changed = false;
    pthread_mutex_lock(&store->mutex);
    const bool was_held = lock->state == POSTGRES_HELD;
    pthread_mutex_unlock(&store->mutex);
    if (!was_held)
        hfi_postgres_expect_no_more(store, lock, POSTGRES_NEW);
    if (!was_held && !lock->wants_place && !lock->unsure)
        return HF_OK;
    /* What was asked for and not answered must not be done after this. Where it cannot be had for certain at once, the
     * lock is freed all the same, and again later. */
    const hfi_time now = store->env->now_ns();
    const hf_status settled =
        lock->unsure ? hfi_postgres_settle(store, now + (request->deadline_ns - now) / 2, err) : HF_OK;
    const bool plain = was_held && !lock->unsure;
    hf_status status = free_row(store, plain, request, &changed, settled == HF_OK ? err : NULL);
    if (status == HF_UNKNOWN)
        lock->unsure = true;
    if (settled != HF_OK)
        return settled;
    if (status != HF_OK)
        return status;
    if (was_held && !changed)
        status = fail_lost(store, lock, request, err);
    lock->state = POSTGRES_NEW;
    lock->queued = lock->unsure = lock->wants_place = false;
    return status;
}

hf_status hfi_postgres_row_renew(struct postgres_store *store, struct hfi_renewal *renewals, size_t count,
                                 hfi_time deadline_ns, hf_error *err)
{
    struct postgres_values *values = hfi_alloc(count * sizeof *values);
    struct postgres_call *calls = hfi_alloc(count * sizeof *calls);
    hf_status status = values && calls ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a renewal");
    for (size_t i = 0; i < count && values && calls; i++) {
        const struct hfi_request request = {
            .name = renewals[i].name, .owner = renewals[i].owner, .ttl_ms = renewals[i].ttl_ms, .note = ""
        };
        struct postgres_lock *lock = renewals[i].lock;
        hfi_postgres_values(&values[i], &request);
        hfi_postgres_put(values[i].request, atomic_fetch_add(&lock->requests, 1) + 1);
        calls[i] = (struct postgres_call){ .statement = POSTGRES_RENEW, .values = &values[i] };
    }
    if (status == HF_OK)
        status = hfi_postgres_ask(store, calls, count, deadline_ns, err);
    bool lost = false;
    for (size_t i = 0; i < count && calls && status == HF_OK; i++) {
        renewals[i].status = strcmp(PQcmdTuples(calls[i].result), "1") == 0 ? HF_OK : HF_LOST;
        lost |= renewals[i].status == HF_LOST;
        PQclear(calls[i].result);
    }
    if (lost)
        find_breakers(store, renewals, count, deadline_ns);
    hfi_free(values);
    hfi_free(calls);
    return status;
}
