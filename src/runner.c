/* SPDX-License-Identifier: MIT
 *
 * runner.c: threads that make what operations want of the store, as engines block. One that has nothing to do stays for
 * a while, the last one for good: what stands in a line may need it. An operation that waits in the store's queue takes
 * one for as long as it does, unless the engine lets it be parked.
 */
#include "core.h"
#include <errno.h>
#include <time.h>

#define IDLE_MOST HFI_SECOND
/* Where waits can be parked: so many exchanges at once are enough. */
#define EXCHANGES_MOST 64
/* Until another one is tried to be started. */
#define SHORT_PAUSE (50 * HFI_MS)

struct hfi_runner {
    hf_client *client;
    pthread_t thread;
};

static hf_op *next_to_run(hf_client *client)
{
    hf_op *op = client->first_to_run;
    if (op)
        hfi_runner_withdraw(op);
    return op;
}

/* True: there may be something to run. False: there was nothing for long. */
static bool wait_for_work(hf_client *client)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_MOST / HFI_SECOND;
    client->idle_runners++;
    const int failure = pthread_cond_timedwait(&client->work, &client->mutex, &until);
    client->idle_runners--;
    return failure != ETIMEDOUT || client->first_to_run || client->runners == 1;
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
    return client->runners > 0 || start(client);
}

bool hfi_runner_submit(hf_op *op)
{
    hf_client *client = op->client;
    op->next = NULL;
    op->prev = client->last_to_run;
    *(op->prev ? &op->prev->next : &client->first_to_run) = op;
    client->last_to_run = op;
    op->to_run = true;
    client->count_to_run++;
    pthread_cond_signal(&client->work);
    const bool enough =
        client->engine->parks && client->runners - atomic_load(&client->waiting_runners) >= EXCHANGES_MOST;
    return client->idle_runners >= client->count_to_run || enough || start(client);
}

void hfi_runner_withdraw(hf_op *op)
{
    hf_client *client = op->client;
    *(op->prev ? &op->prev->next : &client->first_to_run) = op->next;
    *(op->next ? &op->next->prev : &client->last_to_run) = op->prev;
    client->count_to_run--;
    op->to_run = false;
}

void hfi_runners_are_short(hf_client *client)
{
    client->runners_short = true;
    hfi_keeper_start(client, NULL);
    hfi_keeper_expect(client, hfi_now_ns() + SHORT_PAUSE);
}

hfi_time hfi_runners_catch_up(hf_client *client)
{
    if (client->runners_stop)
        return HFI_NEVER;
    if (client->runners_short && (client->idle_runners >= client->count_to_run || start(client)))
        client->runners_short = false;
    return client->runners_short ? hfi_now_ns() + SHORT_PAUSE : HFI_NEVER;
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
