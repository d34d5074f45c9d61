/* SPDX-License-Identifier: MIT
 *
 * runner.c: threads that make what operations want of the store where that blocks. One that has nothing to do stays for
 * a while, the last one for good: what stands in a line may need it. An operation that waits in the store's queue takes
 * one for as long as it does, unless the engine lets it be parked. And the attendant, where the engine can make
 * exchanges that no thread waits for.
 */
#include "core.h"
#include <errno.h>
#include <time.h>

#define IDLE_MOST HFI_SECOND
/* Where waits can be parked: so many exchanges at once are enough. */
#define EXCHANGES_MOST 64
/* If none of them has taken anything for so long, they hang, or wait for what is to be run: there is another one. */
#define STALL (25 * HFI_MS)

struct hfi_runner {
    hf_client *client;
    pthread_t thread;
};

static hf_op *next_to_run(hf_client *client)
{
    hf_op *op = client->to_run[0].first ? client->to_run[0].first : client->to_run[1].first;
    if (op) {
        hfi_runner_withdraw(op);
        client->taken_ns = hfi_now_ns();
    }
    return op;
}

/* Those that are not asleep on behalf of an operation. */
static unsigned at_hand(const hf_client *client)
{
    return client->runners - atomic_load(&client->waiting_runners);
}

/* True: there may be something to run. False: there was nothing for long. One of those that wait looks after what comes
 * due: all of them would be in each other's way, and none would ever have nothing to do. */
static bool wait_for_work(hf_client *client)
{
    const hfi_time now = hfi_now_ns(), look = hfi_operations_look(client);
    const bool looks = !client->runner_looks;
    const hfi_time left = looks && look < now + IDLE_MOST ? look - now : IDLE_MOST;
    struct timespec until;
    if (client->count_to_run || left <= 0)
        return true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const hfi_time at = until.tv_sec * HFI_SECOND + until.tv_nsec + left;
    until = (struct timespec){ .tv_sec = at / HFI_SECOND, .tv_nsec = at % HFI_SECOND };
    client->idle_runners++;
    client->runner_looks = true;
    const int failure = pthread_cond_timedwait(&client->work, &client->mutex, &until);
    client->idle_runners--;
    client->runner_looks = client->runner_looks && !looks;
    return failure != ETIMEDOUT || left < IDLE_MOST || client->count_to_run || at_hand(client) == 1;
}

/* One after the other: nobody but a runner that ends waits for one that has ended. */
static void join(struct hfi_runner *ended)
{
    if (ended)
        pthread_join(ended->thread, NULL);
    hfi_free(ended);
}

static void *run(void *argument)
{
    struct hfi_runner *runner = argument;
    hf_client *client = runner->client;
    hf_op *op;
    pthread_mutex_lock(&client->mutex);
    do {
        while ((op = next_to_run(client)) != NULL)
            hfi_operation_run(op);
    } while (!client->runners_stop && wait_for_work(client));
    struct hfi_runner *before = client->ended_runner;
    client->ended_runner = runner;
    client->runners--;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
    join(before);
    return NULL;
}

static bool start(hf_client *client)
{
    struct hfi_runner *runner = hfi_alloc(sizeof *runner);
    if (!runner)
        return false;
    runner->client = client;
    if (hfi_thread_start(&runner->thread, run, runner) != 0) {
        hfi_free(runner);
        return false;
    }
    client->runners++;
    return true;
}

bool hfi_runner_is_there(hf_client *client)
{
    return at_hand(client) > 0 || start(client);
}

/* Which list it is in: until it is taken nothing of that changes. */
static int urgency(const hf_op *op)
{
    return op->kind == HFI_OP_ACQUIRE && !op->contest ? 1 : 0;
}

bool hfi_runner_submit(hf_op *op)
{
    hf_client *client = op->client;
    const int list = urgency(op);
    op->next = NULL;
    op->prev = client->to_run[list].last;
    *(op->prev ? &op->prev->next : &client->to_run[list].first) = op;
    client->to_run[list].last = op;
    op->to_run = true;
    client->count_to_run++;
    pthread_cond_signal(&client->work);
    if (client->idle_runners >= client->count_to_run)
        return true;
    const bool enough = client->engine->parks && at_hand(client) >= EXCHANGES_MOST;
    const bool started = !enough && start(client);
    if (!started)
        hfi_keeper_expect(client, hfi_now_ns() + STALL);
    return enough || started;
}

void hfi_runner_withdraw(hf_op *op)
{
    hf_client *client = op->client;
    const int list = urgency(op);
    *(op->prev ? &op->prev->next : &client->to_run[list].first) = op->next;
    *(op->next ? &op->next->prev : &client->to_run[list].last) = op->prev;
    client->count_to_run--;
    op->to_run = false;
}

void hfi_runner_begins_to_wait(hf_client *client, const struct hfi_want *want)
{
    if (want->op)
        atomic_fetch_add(&client->waiting_runners, 1);
}

void hfi_runner_stops_to_wait(hf_client *client, const struct hfi_want *want)
{
    if (want->op)
        atomic_fetch_sub(&client->waiting_runners, 1);
}

hfi_time hfi_runners_catch_up(hf_client *client, hfi_time now_ns)
{
    if (client->count_to_run <= client->idle_runners || client->runners_stop)
        return HFI_NEVER;
    if (now_ns < client->taken_ns + STALL)
        return client->taken_ns + STALL;
    start(client);
    client->taken_ns = now_ns;
    return now_ns + STALL;
}

void hfi_runners_stop(hf_client *client)
{
    client->runners_stop = true;
    pthread_cond_broadcast(&client->work);
    while (client->runners > 0)
        pthread_cond_wait(&client->changed, &client->mutex);
    struct hfi_runner *last = client->ended_runner;
    client->ended_runner = NULL;
    pthread_mutex_unlock(&client->mutex);
    join(last);
    pthread_mutex_lock(&client->mutex);
}

/* --- exchanges that no thread waits for --- */

static void *attend(void *argument)
{
    const hf_client *client = argument;
    client->engine->attend(client->store);
    return NULL;
}

bool hfi_attendant_is_there(hf_client *client)
{
    if (!client->attended && !client->closing)
        client->attended = hfi_thread_start(&client->attendant, attend, client) == 0;
    return client->attended;
}

void hfi_attendant_stop(hf_client *client)
{
    if (!client->attended)
        return;
    pthread_mutex_unlock(&client->mutex);
    client->engine->dismiss(client->store);
    pthread_join(client->attendant, NULL);
    pthread_mutex_lock(&client->mutex);
    client->attended = false;
}
