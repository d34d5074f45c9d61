/* SPDX-License-Identifier: MIT
 *
 * verify_worker.c: what one worker of `holdfast verify` does: asks, waits, holds, writes with its token, releases, and
 * writes down what it believed when. It is stopped and killed at any instruction, so each line is written to shared
 * memory as it happens.
 */
#include "verify.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEP_NS (5 * VERIFY_MS) /* how often a holder looks whether it still is one */
#define PROBE_REST_US 50000
#define OPEN_REST_NS (200 * VERIFY_MS)

struct worker {
    const struct verify_run *run;
    struct verify_board *board;
    struct verify_row *row;
    struct verify_record *records;
    uint32_t index, owner;
    uint64_t seed;
    uint32_t long_holds;
    hf_client *client;
};

int64_t verify_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * VERIFY_SECOND + now.tv_nsec;
}

/* xorshift64*: to spread a load, not to be secret. */
uint32_t verify_chance(uint64_t *seed, uint32_t limit)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return limit == 0 ? 0 : (uint32_t)((*seed * UINT64_C(2685821657736338717)) >> 33) % limit;
}

static bool is_over(const struct worker *worker)
{
    return atomic_load_explicit(&worker->board->stop, memory_order_relaxed);
}

static void rest(int64_t ns)
{
    const struct timespec time = { .tv_sec = ns / VERIFY_SECOND, .tv_nsec = ns % VERIFY_SECOND };

    nanosleep(&time, NULL);
}

/* The next line of the history; NULL: it is full. */
static struct verify_record *begin(struct worker *worker, enum verify_kind kind, uint8_t lock)
{
    const uint64_t count = atomic_load(&worker->row->count);
    struct verify_record *record = &worker->records[count];

    if (count >= worker->run->room)
        return NULL;
    record->worker = worker->index;
    record->owner = worker->owner;
    record->kind = kind;
    record->lock = lock;
    record->asked_ns = verify_now();
    atomic_store(&record->stage, VERIFY_ASKED);
    atomic_store(&worker->row->count, count + 1);
    return record;
}

/* ------------------------------------------------------------------------------------------------------------ holds */

static void told(hf_lock *lock, const char *why, void *arg)
{
    struct verify_record *record = arg;

    (void)lock, (void)why;
    atomic_store(&record->told_ns, verify_now());
}

/* Looks whether the lock is ours, and notes it. The clock is read first: see verify_record. */
static bool believe(struct verify_record *record, const hf_lock *lock)
{
    const int64_t now = verify_now();
    const int64_t left_ms = hf_remaining_ms(lock);

    if (left_ms <= 0) {
        record->over_ns = record->over_ns != 0 ? record->over_ns : now;
        return false;
    }
    record->believed_ns = now;
    record->until_ns = left_ms > INT32_MAX ? INT64_MAX : now + (left_ms - 1) * VERIFY_MS;
    if (record->granted_ns == 0)
        record->granted_ns = now;
    return true;
}

/* The register of the witness, which lets no token pass that is smaller than one that has passed. */
static int32_t write_here(_Atomic uint64_t *largest, uint64_t token)
{
    uint64_t seen = atomic_load(largest);

    while (seen < token && !atomic_compare_exchange_weak(largest, &seen, token))
        continue;
    return seen > token ? HF_LOST : HF_OK;
}

/* As somebody who does not look whether the lock is still there: that is what fencing is for. */
static void write_fenced(struct worker *worker, struct verify_record *record, struct verify_write *write)
{
    write->from_ns = verify_now();
    write->status = worker->run->guard
                        ? (int32_t)hf_guard(worker->client, worker->run->name[record->lock], record->token, NULL)
                        : write_here(&worker->board->largest[record->lock], record->token);
    write->to_ns = verify_now();
}

/* A lock that was lost before or meanwhile is not re-entered, and what comes then says nothing. */
static void enter_again(struct worker *worker, struct verify_record *record, const hf_lock *lock)
{
    hf_lock *again = NULL;
    const hf_status status = hf_try_acquire(&again, worker->client, worker->run->name[record->lock], NULL, NULL);
    const bool right = status == HF_OK && hf_token(again) == record->token;

    hf_release(again, NULL);
    if (!believe(record, lock))
        return;
    record->flags |= VERIFY_REENTERED;
    if (!right)
        record->flags |= VERIFY_REENTRY_WRONG;
}

/* Holds it until `until_ns`, or it is over. */
static void stay(struct worker *worker, struct verify_record *record, const hf_lock *lock, int64_t until_ns)
{
    const int64_t starved_ns = worker->run->history.ttl_ms * VERIFY_MS / 4;

    while (believe(record, lock) && !is_over(worker)) {
        const int64_t now = verify_now();
        const int64_t step_ns = until_ns - now < STEP_NS ? until_ns - now : STEP_NS;
        if (step_ns <= 0)
            return;
        rest(step_ns);
        if (verify_now() - now > step_ns + starved_ns)
            record->flags |= VERIFY_STARVED;
    }
}

/* How long to hold it, as a part of the time-to-live in percent; 0: for some milliseconds. */
static uint32_t plan(struct worker *worker, struct verify_record *record, hf_options *options)
{
    record->flags = VERIFY_RENEWED;
    if (record->lock != VERIFY_LONG)
        return 0;
    switch ((worker->long_holds++ + worker->index) % 4) {
    case 0: /* it would end if it were not renewed */
        return 110 + verify_chance(&worker->seed, 50);
    case 2: /* it ends, and is released late */
        record->flags = 0;
        options->renew = HF_RENEW_OFF;
        return 110 + verify_chance(&worker->seed, 50);
    default:
        return 0;
    }
}

static void hold(struct worker *worker, struct verify_record *record, hf_lock *lock, uint32_t percent)
{
    const int64_t ttl_ns = worker->run->history.ttl_ms * VERIFY_MS;
    int64_t stay_ns = (int64_t)percent * ttl_ns / 100;

    if (percent == 0 && record->lock != VERIFY_PROBE)
        stay_ns =
            (1 + (int64_t)verify_chance(&worker->seed, verify_chance(&worker->seed, 4) == 0 ? 20000 : 3000)) * 1000;
    believe(record, lock);
    atomic_store(&record->stage, VERIFY_HELD);
    atomic_fetch_add_explicit(&worker->board->grants, record->lock != VERIFY_PROBE, memory_order_relaxed);
    if (record->lock != VERIFY_PROBE) {
        write_fenced(worker, record, &record->write[0]);
        if (verify_chance(&worker->seed, 8) == 0 && believe(record, lock))
            enter_again(worker, record, lock);
        stay(worker, record, lock, verify_now() + stay_ns);
        /* A lease has ended by now: time for somebody else to have it before we come with our write and our release. */
        if (!(record->flags & VERIFY_RENEWED) && !is_over(worker))
            rest(verify_chance(&worker->seed, 100) * VERIFY_MS);
        write_fenced(worker, record, &record->write[1]);
    }
    believe(record, lock);
    record->releasing_ns = verify_now();
    atomic_store(&record->stage, VERIFY_RELEASING);
    record->release_status = (int32_t)hf_release(lock, NULL);
    record->released_ns = verify_now();
    atomic_store(&record->stage, VERIFY_ENDED);
}

/* ----------------------------------------------------------------------------------------------------------- rounds */

/* What trying again does not help against; the first of all is shown. */
static void report(struct verify_board *board, const hf_error *err)
{
    if (!atomic_exchange(&board->refused, true))
        board->why = *err;
}

static void ask(struct worker *worker, enum verify_kind kind, uint8_t lock, uint32_t wait_ms)
{
    struct verify_record *record = begin(worker, kind, lock);
    hf_options options = HF_OPTIONS_INIT;
    const char *name = worker->run->name[lock];
    hf_lock *got = NULL;
    hf_error err = { 0 };

    if (record == NULL)
        return;
    options.ttl_ms = worker->run->history.ttl_ms;
    options.on_lost = told;
    options.arg = record;
    options.note = "holdfast verify";
    options.wait_ms = record->wait_ms = wait_ms;
    const uint32_t percent = plan(worker, record, &options);
    const hf_status status = kind == VERIFY_TRY ? hf_try_acquire(&got, worker->client, name, &options, &err)
                                                : hf_acquire(&got, worker->client, name, &options, &err);
    record->answered_ns = verify_now();
    record->status = (int32_t)status;
    if ((got != NULL) != (status == HF_OK))
        record->flags |= VERIFY_GIVEN_A_NO;
    if (status == HF_OK && got != NULL) {
        record->token = hf_token(got);
        atomic_store(&record->stage, VERIFY_ANSWERED);
        hold(worker, record, got, percent);
    } else {
        hf_release(got, NULL);
        atomic_store(&record->stage, VERIFY_ENDED);
        if (status >= HF_DENIED)
            report(worker->board, &err);
    }
}

/* Even rows are after the lock that is held for moments, odd ones mostly after the other. */
static void round_of_worker(struct worker *worker)
{
    const uint32_t dice = verify_chance(&worker->seed, 100);
    const bool of_long = worker->index % 2 == 1;
    const uint8_t lock = dice < (of_long ? 75 : 3) ? VERIFY_LONG : VERIFY_SHORT;
    const bool only_try = verify_chance(&worker->seed, 5) == 0 || (lock == VERIFY_LONG && !of_long);
    const bool brief = verify_chance(&worker->seed, 10) == 0;
    const int64_t left_ms = (worker->run->history.end_ns - verify_now()) / VERIFY_MS;

    uint32_t wait_ms = 1 + verify_chance(&worker->seed, brief ? 20 : 1500);

    /* Nobody is to wait for those who still wait when it is over. */
    if (left_ms > 0 && left_ms < wait_ms)
        wait_ms = (uint32_t)left_ms;
    ask(worker, only_try ? VERIFY_TRY : VERIFY_WAIT, lock, only_try ? 0 : wait_ms);
    rest((worker->run->rest_us + (int64_t)verify_chance(&worker->seed, worker->run->rest_us * 2)) * 1000);
}

/* A store that is in trouble just now is tried again. */
static bool get_in(struct worker *worker)
{
    while (!is_over(worker)) {
        struct verify_record *record = begin(worker, VERIFY_OPEN, VERIFY_PROBE);
        if (record == NULL)
            return false;
        const hf_status status = hf_open(&worker->client, worker->run->url, NULL, NULL);
        record->answered_ns = verify_now();
        record->status = (int32_t)status;
        atomic_store(&record->stage, VERIFY_ENDED);
        if (status == HF_OK)
            return true;
        rest(OPEN_REST_NS);
    }
    return false;
}

void verify_work(const struct verify_run *run, uint32_t index, uint32_t owner)
{
    struct worker worker = {
        .run = run,
        .board = run->board,
        .row = &run->board->row[index],
        .records = run->records + (size_t)index * run->room,
        .index = index,
        .owner = owner,
        .seed = (uint64_t)verify_now() * 2 + owner, /* not 0 */
    };

    if (!get_in(&worker))
        return;
    while (!is_over(&worker)) {
        if (index < run->history.workers) {
            round_of_worker(&worker);
        } else {
            ask(&worker, VERIFY_TRY, VERIFY_PROBE, 0);
            rest(PROBE_REST_US * INT64_C(1000));
        }
    }
    hf_close(worker.client);
}
