/* SPDX-License-Identifier: MIT
 *
 * tasks_epoll.c: many tasks in one thread share a lock, with epoll.
 *
 *     cc tasks_epoll.c -lholdfast -o tasks && ./tasks [URL [TASKS]]
 *
 * Each task asks for the lock, writes with its token when it has it, and gives it back; one changes its mind. The
 * thread sleeps in epoll_wait() and nowhere else: all that the client has to tell comes through one descriptor. Exits 0
 * if every task had its turn, nobody was in another one's way, and the tokens grew.
 */
#include <holdfast.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

struct till {
    hf_client *client;
    uint64_t largest_token;
    int served, left;
    bool right;
};

/* What a task does once it has the lock. A real one would start something here, and release when that has ended. */
static void serve(struct till *till, hf_lock *lock)
{
    till->right &= hf_token(lock) > till->largest_token && hf_remaining_ms(lock) > 0;
    till->largest_token = hf_token(lock);
    till->served++;
    hf_start_release(NULL, lock, NULL, NULL); /* does not block, and nobody needs to know how it ended */
}

static void take_events(struct till *till)
{
    hf_event event;

    while (hf_events(till->client, &event, 1, sizeof event) == 1) {
        if (event.kind == HF_EVENT_LOST) /* not here, where no lock is kept; a real task would stop what it does */
            continue;
        till->left--;
        if (event.status == HF_OK)
            serve(till, event.lock);
        else if (event.status != HF_CANCELED)
            printf("a task was not served: %s\n", event.error.message);
        hf_op_free(event.op);
    }
}

static bool run(struct till *till)
{
    struct epoll_event event = { .events = EPOLLIN };
    int loop = epoll_create1(EPOLL_CLOEXEC), fd = hf_events_fd(till->client);

    if (loop < 0 || fd < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) != 0)
        return false;
    while (till->left > 0) {
        /* A program with sockets of its own has them in the same epoll. */
        if (epoll_wait(loop, &event, 1, 20000) <= 0)
            break;
        take_events(till);
    }
    close(loop);
    return till->left == 0;
}

int main(int argc, char **argv)
{
    struct till till = { .left = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 100, .right = true };
    const int tasks = till.left;
    hf_op *undecided = NULL;
    hf_error err;

    if (hf_open(&till.client, argc > 1 ? argv[1] : "file:", NULL, &err) != HF_OK) {
        fprintf(stderr, "tasks: %s\n", err.message);
        return 1;
    }
    for (int i = 0; i < tasks; i++) {
        if (hf_start_acquire(i == tasks - 1 ? &undecided : NULL, till.client, "till", NULL, NULL, &err) != HF_OK) {
            fprintf(stderr, "tasks: %s\n", err.message);
            return 1;
        }
    }
    hf_op_cancel(undecided); /* this one and no other; it still ends, and is told, once */
    till.right &= run(&till);
    printf("%d of %d tasks were served, in one thread\n", till.served, tasks);
    hf_close(till.client);
    return till.right && till.served >= tasks - 1 ? 0 : 1;
}
