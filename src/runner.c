/* SPDX-License-Identifier: MIT
 *
 * runner.c: threads that make what operations want of the store, as engines block. One that has nothing to do stays for
 * a while, the last one for good: what stands in a line may need it. An operation that waits in the store's queue takes
 * one for as long as it does.
 */
#include "core.h"
#include <errno.h>
#include <time.h>

#define IDLE_MOST HFI_SECOND

struct hfi_runner {
    struct hfi_runner *next; /* among those that have ended */
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

static void *run(void *argument)
{
    struct hfi_runner *runner = argument;
    hf_client *client = runner->client;
    hf_op *op;
    pthread_mutex_lock(&client->mutex);
    do {
        while ((op = next_to_run(client)) != NULL)
            hfi_op_run(op);
    } while (!client->runners_stop && wait_for_work(client));
    client->runners--;
    runner->next = client->ended_runners;
    client->ended_runners = runner;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
    return NULL;
}

/* Those that have ended, or are about to: none of them takes the mutex any more. */
static void join_ended(hf_client *client)
{
    for (struct hfi_runner *runner; (runner = client->ended_runners) != NULL;) {
        client->ended_runners = runner->next;
        pthread_join(runner->thread, NULL);
        hfi_free(runner);
    }
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
    join_ended(client);
    pthread_cond_signal(&client->work);
    return client->idle_runners >= client->count_to_run || start(client);
}

void hfi_runner_withdraw(hf_op *op)
{
    hf_client *client = op->client;
    *(op->prev ? &op->prev->next : &client->first_to_run) = op->next;
    *(op->next ? &op->next->prev : &client->last_to_run) = op->prev;
    client->count_to_run--;
    op->to_run = false;
}

void hfi_runners_stop(hf_client *client)
{
    client->runners_stop = true;
    pthread_cond_broadcast(&client->work);
    while (client->runners > 0)
        pthread_cond_wait(&client->changed, &client->mutex);
    join_ended(client);
}
