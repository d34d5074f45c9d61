/* SPDX-License-Identifier: MIT
 *
 * event.c: what a client's operations came to, and which of their locks are lost, in one queue with one descriptor.
 */
#include "core.h"
#include "waker.h"
#include <string.h>
#include <sys/eventfd.h>

/* --- the queue; with the mutex --- */

void hfi_event_queue(hf_client *client, struct hfi_event *event)
{
    if (!client->first_event && client->events_fd >= 0)
        hfi_bell_ring(client->events_fd);
    event->next = NULL;
    event->prev = client->last_event;
    *(event->prev ? &event->prev->next : &client->first_event) = event;
    client->last_event = event;
    event->queued = true;
}

void hfi_event_unqueue(hf_client *client, struct hfi_event *event)
{
    if (!event->queued)
        return;
    *(event->prev ? &event->prev->next : &client->first_event) = event->next;
    *(event->next ? &event->next->prev : &client->last_event) = event->prev;
    event->queued = false;
    if (!client->first_event && client->events_fd >= 0)
        hfi_bell_hush(client->events_fd);
}

/* --- losses --- */

void hfi_event_lost(hf_lock *lock, const char *why, void *argument)
{
    struct hfi_event *event = argument;
    (void)why; /* the hold has it */
    event->lock = lock;
    hfi_event_queue(lock->hold->client, event);
}

void hfi_event_drop_loss(hf_lock *lock)
{
    if (lock->on_lost != hfi_event_lost)
        return;
    hfi_event_unqueue(lock->hold->client, lock->arg);
    hfi_free(lock->arg);
    lock->on_lost = NULL;
}

void hfi_event_forget_loss(hf_lock *lock)
{
    hfi_event_drop_loss(lock);
    lock->on_lost = NULL;
}

/* --- the calls --- */

static void tell_loss(hf_event *out, const struct hfi_event *event)
{
    *out = (hf_event){ .kind = HF_EVENT_LOST, .status = HF_LOST, .tag = event->tag, .lock = event->lock };
    hfi_fail(&out->error, HF_LOST, 0, "%s", hfi_hold_why(event->lock->hold));
}

/* What it got is handed out once. */
static void tell_end(hf_event *out, hf_op *op)
{
    *out = (hf_event){ .kind = HF_EVENT_ENDED,
                       .status = op->error.status,
                       .tag = op->event.tag,
                       .op = op->kept ? op : NULL,
                       .lock = op->delivered ? NULL : op->lock,
                       .error = op->error };
    op->delivered = true;
}

/* The caller may be compiled against a shorter struct, or a longer one. */
static void copy_out(void *out, size_t size, const hf_event *event)
{
    if (size > sizeof *event)
        memset((char *)out + sizeof *event, 0, size - sizeof *event);
    memcpy(out, event, size < sizeof *event ? size : sizeof *event);
}

size_t hf_events(hf_client *client, hf_event *out, size_t room, size_t size)
{
    size_t count = 0;
    struct hfi_event *event;
    if (client->generation != hfi_generation)
        return 0;
    hfi_client_lock(client);
    for (; count < room && (event = client->first_event) != NULL; count++) {
        hf_event told;
        hfi_event_unqueue(client, event);
        if (event->op)
            tell_end(&told, event->op);
        else
            tell_loss(&told, event);
        copy_out((char *)out + count * size, size, &told);
        if (event->op)
            hfi_operation_settle(event->op);
    }
    hfi_client_unlock(client);
    return count;
}

int hf_events_fd(hf_client *client)
{
    if (client->generation != hfi_generation)
        return -1;
    hfi_client_lock(client);
    if (client->events_fd < 0)
        client->events_fd = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (client->events_fd >= 0 && client->first_event)
        hfi_bell_ring(client->events_fd);
    const int fd = client->events_fd;
    hfi_client_unlock(client);
    return fd;
}

int hf_op_wait(hf_op *op, int64_t wait_ms, hf_event *out, size_t size)
{
    hf_event told = { .kind = HF_EVENT_ENDED, .status = HF_INVALID, .tag = op->event.tag, .op = op };
    if (op->generation != hfi_generation) {
        hfi_fail(&told.error, HF_INVALID, 0, "the operation belongs to the process that forked this one");
        copy_out(out, size, &told);
        return 1;
    }
    hfi_client_lock(op->client);
    const bool ended = hfi_operation_await(op, wait_ms);
    if (ended) {
        hfi_event_unqueue(op->client, &op->event);
        tell_end(&told, op);
    }
    hfi_client_unlock(op->client);
    if (ended)
        copy_out(out, size, &told);
    return ended;
}

void hfi_events_close(hf_client *client)
{
    for (struct hfi_event *event; (event = client->first_event) != NULL;) {
        hf_op *op = event->op;
        hfi_event_unqueue(client, event);
        if (!op || op->kept)
            continue; /* whoever has the lock, or the operation, knows of it */
        hf_lock *lock = op->lock;
        hfi_operation_settle(op);
        pthread_mutex_unlock(&client->mutex);
        hf_release(lock, NULL);
        pthread_mutex_lock(&client->mutex);
    }
    hfi_fd_close(client->events_fd);
    client->events_fd = -1;
}
