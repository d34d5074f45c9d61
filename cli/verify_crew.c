/* SPDX-License-Identifier: MIT
 *
 * verify_crew.c: the workers of `holdfast verify` as processes: started, stopped and continued, killed and replaced,
 * and in the end all sent home. Each is known by its process id, and nobody else is touched.
 *
 * This process has no client of its own while there are workers, because nothing of Holdfast crosses fork().
 */
#include "verify.h"

#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_MS 10
#define STALL_NS (100 * VERIFY_MS) /* this process was kept from running for so long: others may have been, too */
#define SHOW_NS (200 * VERIFY_MS)
#define BAR 24
/* A worker that has not come back so long after the end hangs: its longest wait and two exchanges are far less. */
#define PATIENCE_NS (20 * VERIFY_SECOND)
#define GRACE_NS (5 * VERIFY_SECOND)

struct crew {
    struct verify_run *run;
    const struct hfc_signals *signals;
    struct verify_history *history;
    uint32_t rows, owners;
    uint64_t seed;
    int64_t tick_ns, shown_ns;
    int64_t next_kill_ns, next_pause_ns, last_strike_ns;
    int64_t during_ns;          /* when to start the user's own fault */
    struct verify_event *fault; /* it was started */
    pid_t fault_pid;            /* 0: it has ended */
    int code;
};

static struct verify_event *note(struct crew *crew, enum verify_event_kind kind, int64_t from_ns)
{
    struct verify_event *event = &crew->history->event[crew->history->events];

    if (crew->history->events == VERIFY_EVENTS_MAX)
        return NULL;
    crew->history->events++;
    *event = (struct verify_event){ .kind = kind, .from_ns = from_ns, .to_ns = INT64_MAX };
    return event;
}

/* -------------------------------------------------------------------------------------------------------- processes */

static bool start_worker(struct crew *crew, uint32_t index)
{
    struct verify_row *row = &crew->run->board->row[index];
    const pid_t parent = getpid();

    row->owner = ++crew->owners;
    const pid_t pid = fork();
    if (pid == 0) {
        /* Nobody goes on after a verify that was killed. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(HFC_EXIT_INTERNAL);
        verify_work(crew->run, index, row->owner);
        _exit(HFC_EXIT_OK);
    }
    row->pid = pid > 0 ? pid : 0; /* not by the child, too: the row is shared */
    if (pid < 0) {
        hfc_say("cannot start worker %u: %s", index, strerror(errno));
        crew->code = HFC_EXIT_INTERNAL;
    }
    return pid > 0;
}

/* True: `pid` has ended, and its end was seen. */
static bool reap(pid_t pid, int options, int *wait_status)
{
    pid_t ended;

    do
        ended = waitpid(pid, wait_status, options);
    while (ended < 0 && errno == EINTR);
    return ended == pid;
}

/* Workers end when they are told to, or by our hand. */
static void look_after_workers(struct crew *crew)
{
    for (uint32_t i = 0; i < crew->rows; i++) {
        struct verify_row *row = &crew->run->board->row[i];
        int wait_status;
        if (row->pid == 0 || !reap(row->pid, WNOHANG, &wait_status))
            continue;
        row->pid = 0;
        if (atomic_load(&crew->run->board->stop) && wait_status == 0)
            continue;
        struct verify_event *event = note(crew, VERIFY_KILLED, verify_now());
        if (event != NULL)
            *event = (struct verify_event){ VERIFY_KILLED, i, row->owner, event->from_ns, event->from_ns, 0 };
        hfc_say("worker %u died by itself: wait status %d", i, wait_status);
        crew->code = HFC_EXIT_INTERNAL;
    }
}

/* ---------------------------------------------------------------------------------------------------------- strikes */

static bool holds(const struct crew *crew, uint32_t index)
{
    const uint64_t count = atomic_load(&crew->run->board->row[index].count);

    return count > 0 && atomic_load(&crew->run->records[index * crew->run->room + count - 1].stage) == VERIFY_HELD;
}

/* A worker that runs, more often than not one that holds a lock; UINT32_MAX: there is none just now. */
static uint32_t choose_victim(struct crew *crew)
{
    const bool any = verify_chance(&crew->seed, 10) < 4;
    const uint32_t from = verify_chance(&crew->seed, crew->history->workers);

    for (uint32_t i = 0; i < crew->history->workers; i++) {
        const uint32_t index = (from + i) % crew->history->workers;
        const struct verify_row *row = &crew->run->board->row[index];
        if (row->pid != 0 && row->pause == NULL && (any || holds(crew, index)))
            return index;
    }
    return UINT32_MAX;
}

static void kill_one(struct crew *crew, int64_t now)
{
    const uint32_t index = choose_victim(crew);
    struct verify_event *event = index == UINT32_MAX ? NULL : note(crew, VERIFY_KILLED, now);
    int wait_status;

    if (event == NULL)
        return;
    struct verify_row *row = &crew->run->board->row[index];
    event->worker = index;
    event->owner = row->owner;
    event->from_ns = verify_now();
    kill(row->pid, SIGKILL);
    reap(row->pid, 0, &wait_status);
    row->pid = 0;
    event->to_ns = verify_now();
    start_worker(crew, index);
    crew->next_kill_ns =
        event->to_ns + (crew->history->ttl_ms / 2 + verify_chance(&crew->seed, crew->history->ttl_ms)) * VERIFY_MS;
}

static void resume(struct verify_row *row)
{
    if (row->pid != 0)
        kill(row->pid, SIGCONT);
    row->pause->to_ns = verify_now();
    row->pause = NULL;
}

/* For longer than its lock lasts without it. */
static void pause_one(struct crew *crew, int64_t now)
{
    const uint32_t ttl_ms = crew->history->ttl_ms;
    const uint32_t length_ms = crew->history->end_ms > ttl_ms ? crew->history->end_ms : ttl_ms;
    const uint32_t index = choose_victim(crew);
    struct verify_event *event = index == UINT32_MAX ? NULL : note(crew, VERIFY_PAUSED, now);

    if (event == NULL)
        return;
    struct verify_row *row = &crew->run->board->row[index];
    event->worker = index;
    event->owner = row->owner;
    event->from_ns = verify_now();
    kill(row->pid, SIGSTOP);
    row->pause = event;
    row->resume_ns = verify_now() + (length_ms + length_ms / 10 + verify_chance(&crew->seed, ttl_ms)) * VERIFY_MS;
    crew->next_pause_ns = row->resume_ns + verify_chance(&crew->seed, ttl_ms / 2) * VERIFY_MS;
}

static void strike(struct crew *crew, int64_t now)
{
    for (uint32_t i = 0; i < crew->history->workers; i++) {
        struct verify_row *row = &crew->run->board->row[i];
        if (row->pause != NULL && now >= row->resume_ns)
            resume(row);
    }
    if (crew->run->kill && now >= crew->next_kill_ns && now < crew->last_strike_ns)
        kill_one(crew, now);
    if (crew->run->pause && now >= crew->next_pause_ns && now < crew->last_strike_ns)
        pause_one(crew, now);
}

/* --------------------------------------------------------------------------------------------- the user's own fault */

static void start_fault(struct crew *crew, int64_t now)
{
    const pid_t parent = getpid();

    crew->during_ns = INT64_MAX;
    crew->fault = note(crew, VERIFY_DURING, now);
    if (crew->fault == NULL)
        return;
    crew->fault_pid = fork();
    if (crew->fault_pid == 0) {
        /* A group of its own: what runs in it at the end is ended with it. */
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        sigprocmask(SIG_SETMASK, &crew->signals->original, NULL);
        const int nothing = open("/dev/null", O_RDONLY);
        if (getppid() == parent && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
            dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) /* our output may be JSON */
            execl("/bin/sh", "sh", "-c", crew->run->during, (char *)NULL);
        _exit(HFC_EXIT_CANNOT_RUN);
    }
    if (crew->fault_pid > 0) {
        setpgid(crew->fault_pid, crew->fault_pid); /* whichever comes first */
        return;
    }
    crew->fault_pid = 0;
    crew->fault->to_ns = now;
    hfc_say("cannot start the command of --during: %s", strerror(errno));
    crew->code = HFC_EXIT_INTERNAL;
}

static void look_after_fault(struct crew *crew, int64_t now)
{
    int wait_status;

    if (crew->run->during != NULL && now >= crew->during_ns)
        start_fault(crew, now);
    if (crew->fault_pid == 0 || !reap(crew->fault_pid, WNOHANG, &wait_status))
        return;
    crew->fault_pid = 0;
    crew->fault->to_ns = now;
    crew->fault->code = hfc_child_exit_code(wait_status);
    if (crew->fault->code == HFC_EXIT_CANNOT_RUN || crew->fault->code == HFC_EXIT_NOT_FOUND)
        hfc_say("the command of --during could not be run: exit code %d", crew->fault->code);
}

/* ------------------------------------------------------------------------------------------------------- the window */

static void show(struct crew *crew, int64_t now)
{
    const double gone = (double)(now - crew->history->start_ns);
    const double all = (double)(crew->history->end_ns - crew->history->start_ns);
    const int full = gone >= all ? BAR : (int)(BAR * gone / all);
    uint32_t killed = 0, paused = 0;

    if (now - crew->shown_ns < SHOW_NS || !isatty(STDERR_FILENO) || tcgetpgrp(STDERR_FILENO) != getpgrp())
        return;
    crew->shown_ns = now;
    for (size_t i = 0; i < crew->history->events; i++) {
        killed += crew->history->event[i].kind == VERIFY_KILLED;
        paused += crew->history->event[i].kind == VERIFY_PAUSED;
    }
    fprintf(stderr, "\r[%.*s%.*s] %.1f of %.1f s, %llu grants, %u killed, %u paused%s\033[K", full,
            "########################", BAR - full, "........................", gone / 1e9, all / 1e9,
            (unsigned long long)atomic_load(&crew->run->board->grants), killed, paused,
            crew->fault_pid != 0 ? ", the fault is on" : "");
}

/* Sleeps for a moment, or until a signal comes. Notes it if that was far longer. */
static void tick(struct crew *crew)
{
    struct pollfd fd = { .fd = crew->signals->fd, .events = POLLIN };

    poll(&fd, 1, TICK_MS);
    const int deadly = hfc_signals_next_deadly(crew->signals);
    if (deadly != 0)
        crew->run->signal = deadly;
    const int64_t now = verify_now();
    if (now - crew->tick_ns > TICK_MS * VERIFY_MS + STALL_NS) {
        struct verify_event *event = note(crew, VERIFY_STALLED, crew->tick_ns);
        if (event != NULL)
            event->to_ns = now;
    }
    crew->tick_ns = now;
}

static void conduct(struct crew *crew)
{
    while (crew->tick_ns < crew->history->end_ns && crew->run->signal == 0 && crew->code == HFC_EXIT_OK) {
        tick(crew);
        look_after_workers(crew);
        look_after_fault(crew, crew->tick_ns);
        strike(crew, crew->tick_ns);
        show(crew, crew->tick_ns);
    }
    if (crew->tick_ns < crew->history->end_ns)
        crew->history->end_ns = crew->tick_ns;
    if (crew->shown_ns != 0)
        fprintf(stderr, "\r\033[K");
}

/* ---------------------------------------------------------------------------------------------------------- the end */

static void end_fault(struct crew *crew, int64_t now, bool at_once)
{
    if (crew->fault_pid != 0)
        kill(-crew->fault_pid, at_once ? SIGKILL : SIGTERM);
    look_after_fault(crew, now);
}

static bool all_gone(const struct crew *crew)
{
    for (uint32_t i = 0; i < crew->rows; i++)
        if (crew->run->board->row[i].pid != 0)
            return false;
    return crew->fault_pid == 0;
}

static void kill_the_rest(struct crew *crew)
{
    int wait_status;

    for (uint32_t i = 0; i < crew->rows; i++) {
        struct verify_row *row = &crew->run->board->row[i];
        if (row->pid == 0)
            continue;
        hfc_say("worker %u did not come back and is killed", i);
        kill(row->pid, SIGKILL);
        reap(row->pid, 0, &wait_status);
        row->pid = 0;
    }
    if (crew->fault_pid != 0) {
        kill(-crew->fault_pid, SIGKILL);
        reap(crew->fault_pid, 0, &wait_status);
        crew->fault_pid = 0;
        crew->fault->to_ns = verify_now();
        crew->fault->code = hfc_child_exit_code(wait_status);
    }
}

/* Sends everybody home: they release what they hold. A second ^C does not wait for that. */
static void dismiss(struct crew *crew)
{
    const int64_t began = verify_now();
    const int first = crew->run->signal;

    atomic_store(&crew->run->board->stop, true);
    crew->run->signal = 0;
    for (uint32_t i = 0; i < crew->rows; i++)
        if (crew->run->board->row[i].pause != NULL)
            resume(&crew->run->board->row[i]);
    end_fault(crew, began, false);
    crew->during_ns = INT64_MAX;
    while (!all_gone(crew) && crew->run->signal == 0 && verify_now() - began < PATIENCE_NS) {
        tick(crew);
        look_after_workers(crew);
        if (verify_now() - began > GRACE_NS)
            end_fault(crew, verify_now(), true);
        look_after_fault(crew, verify_now());
    }
    crew->history->over_ns = verify_now();
    kill_the_rest(crew);
    crew->run->hurried = crew->run->signal != 0 && first != 0;
    crew->run->signal = crew->run->signal != 0 ? crew->run->signal : first;
}

/* The rows of the board, one behind the other. What a worker was about to write when it was killed is not there. */
static void collect(struct verify_run *run, uint32_t rows)
{
    struct verify_history *history = &run->history;

    history->record = run->records;
    for (uint32_t i = 0; i < rows; i++) {
        const size_t count = atomic_load(&run->board->row[i].count);
        for (size_t k = 0; k < count; k++) {
            struct verify_record *record = &run->records[(size_t)i * run->room + k];
            const uint8_t stage = atomic_load(&record->stage);
            record->answered_ns = stage >= VERIFY_ANSWERED ? record->answered_ns : 0;
            record->released_ns = stage >= VERIFY_ENDED ? record->released_ns : 0;
        }
        memmove((void *)(run->records + history->records), run->records + (size_t)i * run->room,
                count * sizeof *run->records);
        history->records += count;
    }
}

int verify_crew(struct verify_run *run, const struct hfc_signals *signals)
{
    struct verify_history *history = &run->history;
    const int64_t now = verify_now(), window_ns = run->window_ms * VERIFY_MS;
    struct crew crew = { .run = run, .signals = signals, .history = history, .rows = history->workers + 1 };
    const int64_t quiet_ns = history->end_ms * VERIFY_MS + VERIFY_SLACK_NS;

    crew.seed = (uint64_t)now | 1;
    crew.tick_ns = history->start_ns = now;
    history->end_ns = now + window_ns;
    crew.during_ns = now + window_ns / 3;
    crew.next_kill_ns = now + history->ttl_ms / 2 * VERIFY_MS;
    crew.next_pause_ns = now + history->ttl_ms / 4 * VERIFY_MS;
    /* What was struck has the time to be seen to come free. */
    crew.last_strike_ns = window_ns > 2 * quiet_ns ? history->end_ns - quiet_ns : now + window_ns / 2;
    for (uint32_t i = 0; i < crew.rows && start_worker(&crew, i); i++)
        continue;
    crew.tick_ns = verify_now();
    conduct(&crew);
    dismiss(&crew);
    collect(run, crew.rows);
    return crew.code;
}
