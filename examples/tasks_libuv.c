/* SPDX-License-Identifier: MIT
 *
 * tasks_libuv.c: locks in a program that runs libuv's loop.
 *
 *     cc tasks_libuv.c -lholdfast -luv -o tasks && ./tasks [URL]
 *
 * The client's descriptor is one more handle of the loop. Exits 0 if every task had its turn.
 */
#include <holdfast.h>
#include <stdio.h>
#include <uv.h>

#define TASKS 20

static hf_client *client;
static int served, left = TASKS;

static void on_events(uv_poll_t *poll, int status, int events)
{
    hf_event event;

    (void)events;
    while (status == 0 && hf_events(client, &event, 1, sizeof event) == 1) {
        left--; /* no lock is kept beyond this, so that no loss can be told: all events are ends */
        if (event.status == HF_OK) {
            served++;
            printf("task %d has the lock\n", *(int *)event.tag);
            hf_start_release(NULL, event.lock, NULL, NULL);
        } else {
            printf("task %d: %s\n", *(int *)event.tag, event.error.message);
        }
    }
    if (status != 0 || left == 0)
        uv_close((uv_handle_t *)poll, NULL); /* the loop has nothing left, and ends */
}

int main(int argc, char **argv)
{
    int numbers[TASKS];
    uv_poll_t poll;
    hf_error err;

    if (hf_open(&client, argc > 1 ? argv[1] : "file:", NULL, &err) != HF_OK) {
        fprintf(stderr, "tasks: %s\n", err.message);
        return 1;
    }
    uv_poll_init(uv_default_loop(), &poll, hf_events_fd(client));
    uv_poll_start(&poll, UV_READABLE, on_events);
    for (int i = 0; i < TASKS; i++) {
        numbers[i] = i;
        if (hf_start_acquire(NULL, client, "till", NULL, &numbers[i], &err) != HF_OK) {
            fprintf(stderr, "tasks: %s\n", err.message);
            return 1;
        }
    }
    uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    uv_loop_close(uv_default_loop());
    hf_close(client);
    return served == TASKS ? 0 : 1;
}
