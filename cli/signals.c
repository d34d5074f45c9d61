/* SPDX-License-Identifier: MIT
 *
 * signals.c: taking signals in order to pass them on.
 */
#include "run.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Those that stop (SIGTSTP and its kin) are not among them: their default action is right for us and for the child
 * alike. */
static const struct {
    int number;
    bool deadly;
} forwarded[] = {
    { SIGTERM, true }, { SIGINT, true },  { SIGHUP, true },    { SIGQUIT, true },  { SIGUSR1, true },
    { SIGUSR2, true }, { SIGALRM, true }, { SIGWINCH, false }, { SIGCONT, false },
};

bool hfc_signals_reopen(struct hfc_signals *signals)
{
    signals->fd = signalfd(-1, &signals->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals->fd < 0)
        hfc_say("cannot open a descriptor for signals: %s", strerror(errno));
    return signals->fd >= 0;
}

bool hfc_signals_take(struct hfc_signals *signals)
{
    struct sigaction action;

    sigemptyset(&signals->taken);
    for (size_t i = 0; i < sizeof forwarded / sizeof forwarded[0]; i++)
        /* A blocked signal is queued even if it is ignored: taking it would undo the caller's nohup. */
        if (sigaction(forwarded[i].number, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&signals->taken, forwarded[i].number);
    /* An ignored SIGCHLD, which a careless parent can leave to us, would make the kernel reap the child before we
     * can. */
    signal(SIGCHLD, SIG_DFL);
    sigaddset(&signals->taken, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals->taken, &signals->original);
    return hfc_signals_reopen(signals);
}

static bool next_signal(const struct hfc_signals *signals, struct signalfd_siginfo *info)
{
    ssize_t got;

    do
        got = read(signals->fd, info, sizeof *info);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *info;
}

void hfc_signals_forward(const struct hfc_signals *signals, pid_t target)
{
    struct signalfd_siginfo info;

    /* Ends: the descriptor does not block, and a standard signal is queued at most once. */
    while (next_signal(signals, &info)) {
        /* What the terminal sends goes to the whole foreground group, the child included; a second one would, for
         * instance, turn one ^C into the two that some programs take for "at once". */
        if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL && target > 0)
            kill(target, (int)info.ssi_signo);
    }
}

bool hfc_signals_deadly(int number)
{
    for (size_t i = 0; i < sizeof forwarded / sizeof forwarded[0]; i++)
        if (forwarded[i].number == number)
            return forwarded[i].deadly;
    return false;
}

int hfc_signals_next_deadly(const struct hfc_signals *signals)
{
    struct signalfd_siginfo info;

    while (next_signal(signals, &info))
        if (hfc_signals_deadly((int)info.ssi_signo))
            return (int)info.ssi_signo;
    return 0;
}

void hfc_signals_die(int number)
{
    sigset_t set;

    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    _exit(HFC_EXIT_SIGNAL + number);
}
