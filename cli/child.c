/* SPDX-License-Identifier: MIT
 *
 * child.c: the command that runs under the lock, from fork() to its end.
 */
#include "run.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* One run: the guard that was asked for, and what has become of it. */
struct run {
    struct hfc_guard *guard;
    pid_t child;       /* 0 once it has been reaped */
    int wait_status;   /* of the child, once it has been reaped */
    bool none_left;    /* no descendant is left, not only no child */
    int64_t end_at;    /* max_hold_ms, on the clock of hfc_now_ms(); INT64_MAX: never */
    bool ending;       /* asked to end by SIGTERM */
    int64_t kill_at;   /* while ending: when to use SIGKILL */
    int64_t grace_ms;  /* between the two */
    int64_t margin_ms; /* what is kept for the killing itself */
};

int64_t hfc_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int hfc_child_exit_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? HFC_EXIT_SIGNAL + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static _Noreturn void become(const struct hfc_guard *guard, pid_t parent, char **argv)
{
    /* If holdfast is killed, so is the command: nobody would be left to end it with the lock. It may have been killed
     * already, before this line. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(HFC_EXIT_INTERNAL);
    if (guard->leash >= 0)
        hfc_front_restore_stops();
    sigprocmask(SIG_SETMASK, &guard->signals->original, NULL);
    execvp(argv[0], argv);
    int error = errno;
    hfc_say("cannot run '%s': %s", argv[0], strerror(error));
    _exit(error == ENOENT ? HFC_EXIT_NOT_FOUND : HFC_EXIT_CANNOT_RUN);
}

/* How much of its time the command gets for a clean end. A third at the most, so that a short lease is not all grace;
 * and what is left when SIGKILL is used is a tenth, within reason. */
static void plan(struct run *run, const struct hfc_guard *guard)
{
    const int64_t lasts = guard->lasts_ms;

    run->end_at = guard->lock != NULL && guard->max_hold_ms != 0 ? hfc_now_ms() + guard->max_hold_ms : INT64_MAX;
    run->grace_ms = guard->grace_ms;
    run->margin_ms = 0;
    if (lasts == INT64_MAX)
        return;
    if (run->grace_ms > lasts / 3)
        run->grace_ms = lasts / 3;
    run->margin_ms = lasts / 10 < 20 ? 20 : lasts / 10 > 1000 ? 1000 : lasts / 10;
}

/* Before anything was begun: while we were stopped, say, just after we got it. */
static bool is_lost(const struct hfc_guard *guard)
{
    struct pollfd lost = { .fd = guard->lost_fd, .events = POLLIN };

    return poll(&lost, 1, 0) > 0 || (guard->lock != NULL && hf_remaining_ms(guard->lock) <= 0);
}

static void reap(struct run *run)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == run->child) {
            run->wait_status = status;
            run->child = 0;
        }
    run->none_left = pid < 0 && errno == ECHILD;
}

/* SIGTERM to all, and SIGKILL after `grace_ms`. A command that was stopped must go on in order to end. */
static void begin_end(struct run *run, int64_t grace_ms)
{
    run->ending = true;
    if (run->guard->ended_ms == 0)
        run->guard->ended_ms = hfc_now_ms();
    run->kill_at = hfc_now_ms() + grace_ms;
    hfc_witness_end(&run->guard->witness);
    if (grace_ms > 0) {
        hfc_tree_signal(SIGTERM, run->child);
        hfc_tree_signal(SIGCONT, run->child);
    }
}

static void on_loss(struct run *run)
{
    struct hfc_guard *guard = run->guard;

    guard->lost = true;
    if (guard->ended_ms == 0)
        guard->ended_ms = hfc_now_ms();
    guard->lost_fd = -1; /* stays readable for ever: polled on, it would turn the loop into a busy one */
    hfc_witness_end(&guard->witness);
    if (guard->on_lost != HFC_ON_LOST_IGNORE && !run->ending)
        begin_end(run, guard->on_lost == HFC_ON_LOST_KILL ? 0 : run->grace_ms);
}

static int64_t at_least_0(int64_t ms)
{
    return ms > 0 ? ms : 0;
}

/* How long until SIGKILL. A lock that is still renewed may end all the same, and the command must be gone by then. */
static int64_t time_to_kill(const struct run *run)
{
    const struct hfc_guard *guard = run->guard;
    int64_t left = INT64_MAX, grace = run->kill_at - hfc_now_ms();

    if (guard->lock != NULL && !guard->lost)
        left = hf_remaining_ms(guard->lock);
    return at_least_0(left != INT64_MAX && left - run->margin_ms < grace ? left - run->margin_ms : grace);
}

/* How long the loop may sleep while the lock lasts; -1: until something happens. Begins the end of the command if the
 * lock's own end is so near that it must. */
static int64_t time_to_lease_end(struct run *run)
{
    struct hfc_guard *guard = run->guard;

    if (guard->lock == NULL || guard->lost)
        return -1;
    int64_t left = hf_remaining_ms(guard->lock);
    if (left == INT64_MAX || (guard->on_lost == HFC_ON_LOST_IGNORE && left > 0))
        /* Nothing to be done before the loss; a lock that could make no descriptor for it has to be asked. */
        return guard->lost_fd < 0 ? 1000 : -1;
    int64_t grace = guard->on_lost == HFC_ON_LOST_TERM ? run->grace_ms : 0;
    if (left <= 0) {
        on_loss(run);
    } else if (left <= grace + run->margin_ms) {
        guard->lost = true;
        guard->heard_ms = hfc_now_ms() - (guard->lasts_ms - left);
        begin_end(run, left - run->margin_ms < grace ? left - run->margin_ms : grace);
    } else {
        return left - grace - run->margin_ms;
    }
    return 0;
}

/* How long the loop may sleep; -1: until something happens. Begins the end of the command if it is time. */
static int64_t time_to_sleep(struct run *run)
{
    struct hfc_guard *guard = run->guard;
    int64_t until_lease_end = run->ending ? -1 : time_to_lease_end(run);

    if (!run->ending && run->end_at <= hfc_now_ms()) {
        guard->held_long = true;
        begin_end(run, guard->on_lost == HFC_ON_LOST_KILL ? 0 : guard->grace_ms);
    }
    if (run->ending)
        return time_to_kill(run);
    if (run->end_at == INT64_MAX)
        return until_lease_end;
    const int64_t until_end = at_least_0(run->end_at - hfc_now_ms());
    return until_lease_end >= 0 && until_lease_end < until_end ? until_lease_end : until_end;
}

static void supervise(struct run *run)
{
    struct hfc_guard *guard = run->guard;

    /* Each turn is an event; the last one is the end of the child or, if it is being ended, of all its descendants. */
    for (;;) {
        reap(run);
        if (run->ending ? run->none_left : run->child == 0)
            return;
        int64_t sleep_ms = time_to_sleep(run);
        if (run->ending && sleep_ms == 0) {
            hfc_tree_kill(run->child, &run->wait_status);
            return;
        }
        struct pollfd fds[] = { { .fd = guard->signals->fd, .events = POLLIN },
                                { .fd = guard->lost_fd, .events = POLLIN },
                                { .fd = guard->leash, .events = POLLIN },
                                { .fd = guard->witness.listener, .events = POLLIN } };
        if (poll(fds, 4, sleep_ms > 60 * 1000 ? 60 * 1000 : (int)sleep_ms) <= 0)
            continue;
        if (fds[0].revents != 0)
            hfc_signals_forward(guard->signals, run->child);
        if (fds[1].revents != 0)
            on_loss(run);
        if (fds[2].revents != 0) {
            /* The front was killed, and with it what the caller knows of us. */
            guard->leash = -1;
            if (!run->ending)
                begin_end(run, run->grace_ms);
        }
        if (fds[3].revents != 0) {
            if (guard->lock != NULL && hf_remaining_ms(guard->lock) <= 0)
                hfc_witness_end(&guard->witness);
            hfc_witness_answer(&guard->witness);
        }
    }
}

int hfc_child_run(struct hfc_guard *guard, char **argv)
{
    struct run run = { .guard = guard };
    pid_t parent = getpid();
    const bool keeper = guard->leash >= 0;

    if (keeper)
        hfc_front_ignore_stops();
    plan(&run, guard);
    if (is_lost(guard)) {
        guard->lost = true;
        guard->ended_ms = hfc_now_ms();
        return HFC_EXIT_LOST;
    }
    /* So that whatever the command starts can be ended with it, even when its own parent is gone. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* vfork(): half the time of a fork(), which would copy page tables for exec() to throw away. become() keeps to
     * its rules: it changes nothing in memory but its own stack, no signal has a handler, and it ends in exec() or
     * _exit(). The library's descriptors are close-on-exec. */
    const pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (child == 0)
        become(guard, parent, argv); /* NOLINT(clang-analyzer-unix.Vfork) */
    run.child = child;
    if (child < 0) {
        hfc_say("cannot start a process: %s", strerror(errno));
        return HFC_EXIT_INTERNAL;
    }
    guard->started = true;
    if (keeper)
        hfc_front_leave_group();
    supervise(&run);
    return hfc_child_exit_code(run.wait_status);
}
