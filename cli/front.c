/* SPDX-License-Identifier: MIT
 *
 * front.c: ^Z without losing the lock.
 *
 * ^Z stops the whole foreground process group. Where a lock ends unless it is renewed, the process that renews it must
 * go on: it is the keeper, a child of the process that the shell knows (the front), and it leaves the group as soon as
 * the command has been forked in it. The front stops and continues with the command, as the shell expects of a job,
 * passes signals on to the keeper, and exits as the keeper does. If the front dies, the keeper sees the end of a pipe
 * (the leash), ends the command and gives the lock back; if the keeper dies, the front, as subreaper of both, ends what
 * is left.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool hfc_front_forced(void)
{
    const char *wish = getenv("HOLDFAST_FRONT");

    return wish != NULL && strcmp(wish, "1") == 0;
}

bool hfc_front_wanted(uint32_t capabilities)
{
    if ((capabilities & HF_CAP_EXPIRY) == 0)
        return false;
    /* Without a controlling terminal nobody can type ^Z. */
    int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (terminal >= 0)
        close(terminal);
    return terminal >= 0;
}

static int keeper_ended(int status)
{
    int ignored;

    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    /* It dies of these by its own will, and only while it waits for the lock. */
    if (hfc_signals_deadly(WTERMSIG(status)))
        hfc_signals_die(WTERMSIG(status));
    hfc_tree_kill(0, &ignored);
    hfc_say("the process that kept the lock was killed by signal %d", WTERMSIG(status));
    return HFC_EXIT_LOST;
}

static int attend(const struct hfc_signals *signals, pid_t keeper)
{
    struct pollfd fd = { .fd = signals->fd, .events = POLLIN };
    int status;
    pid_t pid;

    /* Each turn is a signal; the last one is the keeper's end. */
    for (;;) {
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == keeper)
                return keeper_ended(status);
        if (poll(&fd, 1, -1) > 0)
            hfc_signals_forward(signals, keeper);
    }
}

int hfc_front(struct hfc_signals *signals, struct hfc_guard *guard)
{
    int leash[2];

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (pipe2(leash, O_CLOEXEC) < 0) {
        hfc_say("cannot make a pipe: %s", strerror(errno));
        return HFC_EXIT_INTERNAL;
    }
    pid_t keeper = fork();
    if (keeper < 0) {
        hfc_say("cannot start a process: %s", strerror(errno));
        close(leash[0]);
        close(leash[1]);
        return HFC_EXIT_INTERNAL;
    }
    if (keeper > 0) {
        close(leash[0]);
        return attend(signals, keeper);
    }
    close(leash[1]);
    close(signals->fd);
    if (!hfc_signals_reopen(signals))
        _exit(HFC_EXIT_INTERNAL);
    guard->leash = leash[0];
    return -1;
}

/* While it waits for the lock the keeper stops with the job: a command that starts after a ^Z would be a surprise.
 * From here on it must not be stopped; and, in the background, not for writing to the terminal either. */
static const int stop_signals[] = { SIGTSTP, SIGTTIN, SIGTTOU };
#define STOP_SIGNALS (sizeof stop_signals / sizeof stop_signals[0])
static struct sigaction before[STOP_SIGNALS];

void hfc_front_ignore_stops(void)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };

    for (size_t i = 0; i < STOP_SIGNALS; i++)
        sigaction(stop_signals[i], &ignore, &before[i]);
}

void hfc_front_restore_stops(void)
{
    for (size_t i = 0; i < STOP_SIGNALS; i++)
        sigaction(stop_signals[i], &before[i], NULL);
}

void hfc_front_leave_group(void)
{
    /* Fails only for a session leader, which a forked process never is. */
    setpgid(0, 0);
}

void hfc_front_join_group(void)
{
    /* If the front is dead, the leash says so, and the group does not matter. */
    setpgid(0, getpgid(getppid()));
}
