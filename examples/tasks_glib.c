/* SPDX-License-Identifier: MIT
 *
 * tasks_glib.c: locks in a program that runs GLib's main loop.
 *
 *     cc tasks_glib.c $(pkg-config --cflags --libs glib-2.0) -lholdfast -o tasks && ./tasks [URL]
 *
 * The client's descriptor is one more source of the loop. Exits 0 if every task had its turn.
 */
#include <glib-unix.h>
#include <holdfast.h>

#define TASKS 20

struct work {
    hf_client *client;
    GMainLoop *loop;
    int served, left;
};

static gboolean on_events(gint fd, GIOCondition condition, gpointer data)
{
    struct work *work = data;
    hf_event event;

    (void)fd;
    (void)condition;
    while (hf_events(work->client, &event, 1, sizeof event) == 1) {
        work->left--; /* no lock is kept beyond this, so that no loss can be told: all events are ends */
        if (event.status == HF_OK) {
            work->served++;
            g_print("task %d has the lock\n", GPOINTER_TO_INT(event.tag));
            hf_start_release(NULL, event.lock, NULL, NULL);
        } else {
            g_print("task %d: %s\n", GPOINTER_TO_INT(event.tag), event.error.message);
        }
    }
    if (work->left > 0)
        return G_SOURCE_CONTINUE;
    g_main_loop_quit(work->loop);
    return G_SOURCE_REMOVE;
}

int main(int argc, char **argv)
{
    struct work work = { .loop = g_main_loop_new(NULL, FALSE), .left = TASKS };
    hf_error err;

    if (hf_open(&work.client, argc > 1 ? argv[1] : "file:", NULL, &err) != HF_OK) {
        g_printerr("tasks: %s\n", err.message);
        return 1;
    }
    g_unix_fd_add(hf_events_fd(work.client), G_IO_IN, on_events, &work);
    for (int i = 0; i < TASKS; i++) {
        if (hf_start_acquire(NULL, work.client, "till", NULL, GINT_TO_POINTER(i), &err) != HF_OK) {
            g_printerr("tasks: %s\n", err.message);
            return 1;
        }
    }
    g_main_loop_run(work.loop);
    g_main_loop_unref(work.loop);
    hf_close(work.client);
    return work.served == TASKS ? 0 : 1;
}
