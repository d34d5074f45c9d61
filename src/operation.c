/* SPDX-License-Identifier: MIT
 *
 * operation.c: acquires and releases that nobody's thread waits for. An operation is started, is run by a runner, may
 * stand in its client's line for a name, and ends exactly once: with what came of it, or at once when it is cancelled.
 * What a runner gets for one that has ended is given back.
 */
#include "core.h"
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wake(struct hfi_waker *waker);

/* --- birth and death --- */

static char *put_text(char **room, const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy = memcpy(*room, text, size);
    *room += size;
    return copy;
}

/* With copies of all that `want` points to. */
static hf_op *make(hf_client *client, enum hfi_op_kind kind, const struct hfi_want *want, void *tag)
{
    const char *note = want->options.note ? want->options.note : "";
    hf_op *op = hfi_alloc(sizeof *op + strlen(want->name) + strlen(note) + strlen(want->key.text) + 3);
    if (!op)
        return NULL;
    char *room = op->texts;
    op->client = client;
    op->generation = hfi_generation;
    op->kind = (uint8_t)kind;
    op->event.op = op;
    op->event.tag = tag;
    op->parked.fd = -1;
    op->parked.woken = wake;
    op->want = *want;
    op->want.op = op;
    op->want.name = put_text(&room, want->name);
    op->want.options.note = put_text(&room, note);
    op->want.key.text = put_text(&room, want->key.text);
    return op;
}

void hfi_operation_settle(hf_op *op)
{
    hf_client *client = op->client;
    if (op->kept || op->active || op->event.queued)
        return;
    hfi_free(op->loss);
    hfi_free(op);
    client->references--;
}

static void end(hf_op *op, hf_status status, hf_lock *lock, const hf_error *error)
{
    op->lock = lock;
    if (status != HF_OK)
        op->error = *error;
    op->error.status = status;
    atomic_store(&op->ended, 1);
    if (op->waiters)
        syscall(SYS_futex, &op->ended, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    else if (!op->silent)
        hfi_event_queue(op->client, &op->event);
}

/* Without the mutex. Looks after the client's operations meanwhile: the keeper may be in the very callback that
 * waits. */
static void sleep_until(hf_op *op, hfi_time deadline_ns)
{
    while (!atomic_load(&op->ended)) {
        hfi_client_lock(op->client);
        const hfi_time look = hfi_operations_look(op->client);
        hfi_client_unlock(op->client);
        const hfi_time now = hfi_now_ns(), second = now + HFI_SECOND; /* others may have become due sooner */
        hfi_time until = look < deadline_ns ? look : deadline_ns;
        until = until < second ? until : second;
        const hfi_time left = until > now ? until - now : 0;
        const struct timespec time = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
        if (now >= deadline_ns)
            return;
        syscall(SYS_futex, &op->ended, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
    }
}

bool hfi_operation_await(hf_op *op, int64_t wait_ms)
{
    const hfi_time most = HFI_NEVER / 2 / HFI_MS;
    op->waiters++;
    pthread_mutex_unlock(&op->client->mutex);
    sleep_until(op, wait_ms < 0 || wait_ms > most ? HFI_NEVER : hfi_now_ns() + wait_ms * HFI_MS);
    pthread_mutex_lock(&op->client->mutex);
    op->waiters--;
    return atomic_load(&op->ended);
}

/* --- waiting without a thread --- */

/* For how long at least one that has something to tell, or to be told, may wait for a runner. */
#define RUN_PATIENCE (100 * HFI_MS)

static void say_canceled(const hf_op *op, hf_error *error)
{
    hfi_fail(error, HF_CANCELED, 0, op->client->closing ? "the client is being closed" : "it was cancelled");
}

/* It has something to wait for until its deadline, and its timer sees to that; at the least for so long. */
static void set_deadline(hf_op *op, hfi_time least_ns)
{
    const hfi_time deadline = op->want.deadline_ns, least = deadline == HFI_NEVER ? 0 : hfi_now_ns() + least_ns;
    hfi_timers_set(&op->client->op_timers, &op->timer, deadline > least ? deadline : least);
    if (deadline != HFI_NEVER)
        hfi_keeper_expect(op->client, op->timer.at_ns);
}

void hfi_operation_call(hf_op *op)
{
    if (op->to_run)
        return;
    set_deadline(op, RUN_PATIENCE);
    hfi_runner_submit(op); /* if there is no thread for it, there will be one */
}

void hfi_operation_give_up(hf_op *op, hf_status why)
{
    hf_error error;
    if (op->to_run)
        hfi_runner_withdraw(op);
    hfi_line_leave(op);
    op->active = false;
    if (why == HF_TIMEOUT)
        hfi_fail(&error, HF_TIMEOUT, 0, "others of this client still held it, or waited for it, after %u ms",
                 op->want.options.wait_ms);
    else
        say_canceled(op, &error);
    end(op, why, NULL, &error);
}

void hfi_operation_park(hf_op *op)
{
    op->is_parked = true;
    if (op->woken || op->wait->canceled) { /* meanwhile */
        hfi_operation_call(op);
        return;
    }
    hfi_timers_set(&op->client->op_timers, &op->timer, op->parked.until_ns);
    if (op->parked.until_ns != HFI_NEVER)
        hfi_keeper_expect(op->client, op->parked.until_ns);
}

/* By an engine, with its own mutex. */
static void wake(struct hfi_waker *waker)
{
    hf_op *op = (hf_op *)(void *)((char *)waker - offsetof(hf_op, parked));
    hf_client *client = op->client;
    hfi_client_lock(client);
    op->woken = true;
    if (op->is_parked)
        hfi_operation_call(op);
    hfi_client_unlock(client);
}

/* --- running --- */

/* The caller has never heard of it. */
static void give_back(hf_client *client, hf_lock *lock)
{
    hfi_event_forget_loss(lock);
    pthread_mutex_unlock(&client->mutex);
    hf_release(lock, NULL);
    pthread_mutex_lock(&client->mutex);
}

static hf_status run_release(hf_op *op, hf_error *err)
{
    hf_client *client = op->client;
    hf_lock *lock = op->lock;
    if (op->started)
        return hfi_release_go_on(op, err);
    op->lock = NULL;
    pthread_mutex_unlock(&client->mutex);
    const hf_status status = hfi_release(lock, op->kind == HFI_OP_RELEASE_DONE, op->want.thread, err);
    pthread_mutex_lock(&client->mutex);
    return status;
}

void hfi_operation_run(hf_op *op)
{
    hf_status status;
    hf_error error;
    hf_lock *lock = NULL;
    hfi_timers_set(&op->client->op_timers, &op->timer, HFI_NEVER);
    op->is_parked = op->woken = false;
    if (op->kind != HFI_OP_ACQUIRE)
        status = run_release(op, &error);
    else if (!hfi_acquire_run(op, &lock, &status, &error))
        return;
    if (lock)
        op->loss = NULL; /* it is the lock's */
    if (!atomic_load(&op->ended))
        end(op, status, lock, &error);
    else if (lock) /* nobody wants it any more */
        give_back(op->client, lock);
    op->active = false;
    hfi_operation_settle(op);
}

void hfi_operation_pass(hf_op *op, hf_lock *lock)
{
    if (op->to_run)
        hfi_runner_withdraw(op);
    op->loss = NULL;
    end(op, HF_OK, lock, NULL);
    op->active = false;
    hfi_operation_settle(op);
}

/* --- exchanges that no thread waits for --- */

/* So many at once: each takes some memory until it is answered. More of them are a runner's, who waits. */
#define UNDER_WAY_MOST 1024

bool hfi_operation_may_start(const hf_op *op)
{
    const hf_client *client = op->client;
    return client->starts && client->attended && !client->closing && client->under_way < UNDER_WAY_MOST;
}

/* What is granted, or given back, is so now. All else may have to be waited for, or told: a runner goes on with it, as
 * this thread may be the one that reads for all. So nothing may come in between, a cancel say: the mutex is kept. */
static bool ends_here(hf_op *op)
{
    hf_lock *lock = NULL;
    if (op->answer != HF_OK || atomic_load(&op->ended) || op->client->closing)
        return false;
    if (op->kind != HFI_OP_ACQUIRE) {
        hfi_operation_run(op);
        return true;
    }
    if (!hfi_contest_win(&lock, op))
        return false;
    hfi_operation_pass(op, lock);
    return true;
}

void hfi_operation_end_exchange(hf_client *client)
{
    client->under_way--;
    if (client->closing)
        pthread_cond_broadcast(&client->changed);
}

/* By an engine, on any thread, and not with the mutex. */
static void take_answer(struct hfi_exchange *exchange, hf_status status, const hf_error *err)
{
    hf_op *op = (hf_op *)(void *)((char *)exchange - offsetof(hf_op, exchange));
    hf_client *client = op->client;
    hfi_client_lock(client);
    op->answered = true;
    op->answer = status;
    if (status != HF_OK && !atomic_load(&op->ended))
        op->error = *err;
    if (!ends_here(op))
        hfi_operation_call(op);
    hfi_operation_end_exchange(client); /* last: until then hf_close() waits */
    hfi_client_unlock(client);
}

bool hfi_operation_start(hf_op *op, void *lock, const struct hfi_request *request, struct hfi_grant *grant)
{
    op->exchange = (struct hfi_exchange){ .lock = lock, .request = request, .grant = grant, .done = take_answer };
    return op->client->engine->start(op->client->store, &op->exchange);
}

/* On the thread that starts it. True: it is done by now, or goes on by itself. */
static bool start_here(hf_op *op)
{
    hf_client *client = op->client;
    if (!client->starts || !hfi_attendant_is_there(client))
        return false;
    hfi_client_enter(client);
    const bool started = op->kind == HFI_OP_ACQUIRE ? hfi_acquire_start(op) : hfi_release_start(op);
    hfi_client_leave(client);
    return started;
}

/* --- cancelling --- */

/* It ends now. Whoever runs it finds that out. */
static void end_early(hf_op *op, hf_status why, const hf_error *error)
{
    if (op->to_run && !op->contest) { /* it has not begun: there is nothing to give back */
        hfi_runner_withdraw(op);
        hfi_timers_set(&op->client->op_timers, &op->timer, HFI_NEVER);
        op->active = false;
    }
    if (op->wait)
        hfi_wait_cancel(op->wait);
    end(op, why, NULL, error);
}

static void cancel(hf_op *op)
{
    hf_error error;
    if (op->kind != HFI_OP_ACQUIRE || atomic_load(&op->ended))
        return;
    if (op->in_line) {
        hfi_operation_give_up(op, HF_CANCELED);
        hfi_line_call_first(op->client, op->want.name_hash, op->want.name); /* it may have been called */
        return;
    }
    say_canceled(op, &error);
    end_early(op, HF_CANCELED, &error);
}

void hf_op_cancel(hf_op *op)
{
    if (op->generation != hfi_generation)
        return;
    hfi_client_lock(op->client);
    cancel(op);
    hfi_client_unlock(op->client);
}

void hfi_operations_cancel(hf_client *client, const char *name)
{
    for (hf_op *op = client->to_run[1].first, *next; op; op = next) {
        next = op->next;
        if (name && (!op->want.may_wait || strcmp(op->want.name, name) != 0))
            continue;
        cancel(op);
        hfi_operation_settle(op);
    }
}

static void take_due(hf_op *op)
{
    hf_error error;
    if (op->in_line) {
        hfi_operation_give_up(op, HF_TIMEOUT);
        hfi_line_call_first(op->client, op->want.name_hash, op->want.name); /* it may have been called */
    } else if (!op->to_run) {
        hfi_operation_call(op);
    } else if (!atomic_load(&op->ended)) { /* no runner has taken it */
        hfi_fail(&error, HF_TIMEOUT, 0, "the wait of %u ms was over before the store could be asked",
                 op->want.options.wait_ms);
        end_early(op, HF_TIMEOUT, &error);
    }
    hfi_operation_settle(op);
}

hfi_time hfi_operations_look(hf_client *client)
{
    const hfi_time now = hfi_now_ns();
    struct hfi_timer *first;
    while ((first = hfi_timers_first(&client->op_timers)) != NULL && first->at_ns <= now) {
        hfi_timers_set(&client->op_timers, first, HFI_NEVER);
        take_due(HFI_TIMER_OF(struct hf_op, timer, first));
    }
    const hfi_time runners = hfi_runners_catch_up(client, now);
    return first && first->at_ns < runners ? first->at_ns : runners;
}

void hf_op_free(hf_op *op)
{
    if (!op || op->generation != hfi_generation)
        return;
    hf_client *client = op->client;
    hfi_client_lock(client);
    op->kept = false;
    op->silent = true;
    cancel(op);
    hfi_event_unqueue(client, &op->event);
    /* What it got, and the caller never heard of. */
    hf_lock *lock = atomic_load(&op->ended) && !op->delivered ? op->lock : NULL;
    if (lock)
        hfi_event_forget_loss(lock);
    if (lock && !client->closing) {
        op->kind = HFI_OP_RELEASE;
        op->want.thread = hfi_thread_number();
        op->active = true;
        if (hfi_runner_submit(op)) {
            lock = NULL;
        } else {
            hfi_runner_withdraw(op);
            op->active = false;
        }
    }
    hfi_operation_settle(op);
    hfi_client_unlock(client);
    hf_release(lock, NULL);
}

/* --- starting --- */

/* To its line, to the store, or to a runner; after the second it may be gone. */
static bool hand_over(hf_op *op)
{
    if (!hfi_runner_is_there(op->client))
        return false;
    if (op->kind == HFI_OP_ACQUIRE && hfi_acquire_line_up(op))
        return true;
    if (start_here(op))
        return true;
    if (!hfi_runner_submit(op)) {
        hfi_runner_withdraw(op);
        return false;
    }
    if (op->kind != HFI_OP_ACQUIRE)
        hfi_event_drop_loss(op->lock);
    if (op->want.deadline_ns != HFI_NEVER && hfi_keeper_start(op->client, NULL)) /* else the runner alone sees to it */
        set_deadline(op, 0);
    return true;
}

/* The operation is freed if it cannot be started. */
static hf_status submit(hf_op **out, hf_op *op, hf_error *err)
{
    hf_client *client = op->client;
    hf_status status = HF_OK;
    hfi_client_lock(client);
    client->references++;
    op->active = true;
    op->kept = out != NULL;
    if (out)
        *out = op;
    if (client->closing)
        status = hfi_fail(err, HF_CANCELED, 0, "the client is being closed");
    else if (!hand_over(op))
        status = hfi_fail(err, HF_NOMEM, 0, "no memory or no thread left for an operation");
    if (status != HF_OK) {
        op->active = op->kept = false;
        hfi_operation_settle(op);
        if (out)
            *out = NULL;
    }
    hfi_client_unlock(client);
    return status;
}

static hf_status start_acquire(hf_op **out, hf_client *client, const char *name, const hf_options *options,
                               bool may_wait, void *tag, hf_error *err)
{
    if (out)
        *out = NULL;
    if (client->generation != hfi_generation)
        return hfi_fail(err, HF_INVALID, 0, "the client was opened before a fork; open a new one in the child");
    struct hfi_want want = { .thread = hfi_thread_number(), .may_wait = may_wait, .deadline_ns = HFI_NEVER };
    const hf_status status = hfi_want_read(&want, client, name, options, err);
    if (status != HF_OK)
        return status;
    if (want.options.owner == HF_OWNER_THREAD) /* one thread may start many, which are strangers to each other */
        want.key = (struct hfi_owner_key){ .kind = HF_OWNER_HANDLE, .text = "" };
    if (may_wait && want.options.wait_ms)
        want.deadline_ns = hfi_now_ns() + want.options.wait_ms * HFI_MS;
    hf_op *op = make(client, HFI_OP_ACQUIRE, &want, tag);
    if (op && !want.options.on_lost) {
        op->loss = hfi_alloc(sizeof *op->loss);
        op->want.options.on_lost = hfi_event_lost;
        op->want.options.arg = op->loss;
    }
    if (!op || (!want.options.on_lost && !op->loss)) {
        hfi_free(op);
        return hfi_fail(err, HF_NOMEM, 0, "no memory for an operation");
    }
    if (op->loss)
        op->loss->tag = tag;
    return submit(out, op, err);
}

hf_status hf_start_acquire(hf_op **out, hf_client *client, const char *name, const hf_options *options, void *tag,
                           hf_error *err)
{
    return start_acquire(out, client, name, options, true, tag, err);
}

hf_status hf_start_try_acquire(hf_op **out, hf_client *client, const char *name, const hf_options *options, void *tag,
                               hf_error *err)
{
    return start_acquire(out, client, name, options, false, tag, err);
}

static hf_status start_release(hf_op **out, hf_lock *lock, enum hfi_op_kind kind, void *tag, hf_error *err)
{
    /* Whoever is inside of the lock's callback may wait for the end of this. */
    const struct hfi_want none = {
        .thread = hfi_thread_number(), .name = "", .key = { .text = "" }, .deadline_ns = HFI_NEVER
    };
    if (out)
        *out = NULL;
    if (!lock)
        return out ? hfi_fail(err, HF_INVALID, 0, "there is no lock to release") : HF_OK;
    if (lock->generation != hfi_generation)
        return hfi_fail(err, HF_LOST, 0, "the lock belongs to the process that forked this one");
    hf_op *op = make(lock->hold->client, kind, &none, tag);
    if (!op)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for an operation");
    op->lock = lock;
    op->silent = !out;
    return submit(out, op, err);
}

/* Whoever cannot be told must not be left with the lock. */
static hf_status release_at_any_rate(hf_lock *lock, enum hfi_op_kind kind, hf_error *err)
{
    const hf_status status = start_release(NULL, lock, kind, NULL, NULL);
    if (status == HF_OK)
        return HF_OK;
    return kind == HFI_OP_RELEASE ? hf_release(lock, err) : hf_release_done(lock, err);
}

hf_status hf_start_release(hf_op **out, hf_lock *lock, void *tag, hf_error *err)
{
    return out ? start_release(out, lock, HFI_OP_RELEASE, tag, err) : release_at_any_rate(lock, HFI_OP_RELEASE, err);
}

hf_status hf_start_release_done(hf_op **out, hf_lock *lock, void *tag, hf_error *err)
{
    return out ? start_release(out, lock, HFI_OP_RELEASE_DONE, tag, err)
               : release_at_any_rate(lock, HFI_OP_RELEASE_DONE, err);
}
