/* SPDX-License-Identifier: MIT
 *
 * run.h: the parts of `holdfast run`.
 *
 *     holdfast (takes signals, holds the lock, renews it) ---- the command
 *
 * or, where the lock ends unless it is renewed and a ^Z must not stop the renewing (front.c):
 *
 *     front (what the shell knows) ---- keeper (holds the lock, in a process group of its own) ---- the command
 *                                                                                (in the front's process group)
 */
#ifndef HFC_RUN_H
#define HFC_RUN_H

#include "cli.h"

#include <semaphore.h>
#include <signal.h>
#include <sys/types.h>

enum hfc_on_lost { HFC_ON_LOST_TERM, HFC_ON_LOST_KILL, HFC_ON_LOST_IGNORE };

/* --- signals.c --- */

/* The signals that are read from a descriptor and passed on. Those that the caller ignores (nohup) stay ignored. */
struct hfc_signals {
    sigset_t original; /* the mask that the caller gave to us, and the child gets back */
    sigset_t taken;
    int fd; /* becomes readable with each of them */
};

/* Blocks them and opens the descriptor. False, with a message, if that cannot be done. */
bool hfc_signals_take(struct hfc_signals *signals);
/* The descriptor again, in a process that was forked. */
bool hfc_signals_reopen(struct hfc_signals *signals);
/* Passes on to `target` all that have come and that it has not got from the terminal itself. */
void hfc_signals_forward(const struct hfc_signals *signals, pid_t target);
/* The next signal that has come and whose meaning is that we should end; 0 if there is none. */
int hfc_signals_next_deadly(const struct hfc_signals *signals);
/* True if `number` is one of those. */
bool hfc_signals_deadly(int number);
/* Ends this process as that signal would have, so that the caller sees what happened. */
_Noreturn void hfc_signals_die(int number);

/* --- events.c --- */

/* One lock from the moment it is asked for, and who wants to hear what becomes of it. */
struct hfc_events {
    const char *log;          /* "syslog", "journal" or the path of a file; NULL: none */
    const char *on_lost_exec; /* for the shell, after a loss; NULL: nothing */
    const char *name, *url;
    uint64_t token;   /* 0: not held */
    int64_t since_ms; /* when it was asked for; once it is held, since when */
};

struct hfc_acquire;
void hfc_event_asked(struct hfc_events *events, const struct hfc_acquire *request, const char *url);
void hfc_event_acquired(struct hfc_events *events, uint64_t token);
void hfc_event_not_acquired(const struct hfc_events *events, const char *why);
void hfc_event_done(const struct hfc_events *events, const char *why);
void hfc_event_released(const struct hfc_events *events);
/* Says it too; `why` ends a sentence. */
void hfc_event_lost(const struct hfc_events *events, const struct hfc_signals *signals, int64_t lost_ms,
                    const char *why);
/* The time of day, as strftime() formats it, that it was at `at_ms` of hfc_now_ms(). */
void hfc_wall_clock(char *buffer, size_t size, const char *format, int64_t at_ms);

/* --- waiting.c --- */

struct hfc_acquire {
    const char *name;
    bool wait; /* false: try only */
    hf_options options;
    int conflict_code; /* the exit code if it is not acquired; -1: the usual one */
    bool quiet;        /* say nothing but errors */
    bool verbose;      /* say where there is no terminal, too, who is waited for */
    struct hfc_events events;
    int leash; /* readable once nobody wants the result any more (front.c); -1: none */
};

/* hf_try_acquire(), and if that is not enough hf_acquire(), which a deadly signal or the leash ends. *deadly is that
 * signal. */
hf_status hfc_acquire(hf_lock **out, hf_client *client, const struct hfc_acquire *request,
                      const struct hfc_signals *signals, int *deadly, hf_error *err);

/* For hfc_globals.open_again: a store that cannot be reached is tried again for as long as -w says. */
struct hfc_patience {
    struct hfc_acquire *request;
    const struct hfc_signals *signals;
    int64_t until_ms; /* on CLOCK_BOOTTIME */
    unsigned pauses;
};
void hfc_patience_start(struct hfc_patience *patience, struct hfc_acquire *request, const struct hfc_signals *signals);
bool hfc_patience_again(void *patience, const hf_error *err);
/* The store is open: what is left of the wait is for the lock. */
void hfc_patience_end(const struct hfc_patience *patience);

/* --- progress.c --- */

/* What is said during one wait. */
struct hfc_progress {
    hf_client *client;
    const struct hfc_acquire *request;
    int64_t look_at; /* when to look again; INT64_MAX: never */
    bool shown;      /* the line is on the terminal */
    char last[1024]; /* the line that was said last, elsewhere */
};

void hfc_progress_start(struct hfc_progress *progress, hf_client *client, const struct hfc_acquire *request);
/* How long until hfc_progress_show() has something to do, in milliseconds, as poll(2) takes it. */
int hfc_progress_timeout(const struct hfc_progress *progress);
void hfc_progress_show(struct hfc_progress *progress);
void hfc_progress_end(struct hfc_progress *progress);

/* --- request.c --- */

struct option;
#define HFC_TYPED 40

/* What --help of `run` and `hold` says of the options below: at its beginning, and at its end. */
#define HFC_REQUEST_HELP                                                                                               \
    "  -n, --nonblock                  do not wait if somebody else holds it\n"                                        \
    "  -w, --wait DURATION             wait no longer than this; default: for ever; also --timeout\n"                  \
    "  -t, --ttl DURATION              time-to-live of the lock; default: 30s\n"                                       \
    "  -E, --conflict-exit-code CODE   exit with this if not acquired; default: 75; with 0, say nothing then\n"        \
    "  -q, --quiet                     say nothing but errors\n"
#define HFC_REQUEST_HELP_2                                                                                             \
    "      --verbose                   say who is waited for, also where there is no terminal\n"                       \
    "      --log syslog|journal|FILE   write there what becomes of the lock, as lines of JSON\n"                       \
    "      --on-lost-exec TEXT         run TEXT by `sh -c` after the lock was lost; HOLDFAST_WHY says why\n"           \
    "  -u, --url URL                   where the lock is kept; see `holdfast --help`\n"                                \
    "      --reach processes|machines  whom the store must exclude; see there too\n"                                   \
    "      --help                      print this\n"

/* The options of `run` and `hold` about the lock itself: for their tables, and for the string of letters. */
enum {
    HFC_OPT_NO_RENEW = HFC_OPT_FIRST,
    HFC_OPT_MAX_HOLD,
    HFC_OPT_NOTE,
    HFC_OPT_VERBOSE,
    HFC_OPT_LOG,
    HFC_OPT_ON_LOST_EXEC,
    HFC_OPT_RUN_FIRST
};
#define HFC_REQUEST_OPTIONS                                                                                            \
    { "nonblock", no_argument, NULL, 'n' }, { "wait", required_argument, NULL, 'w' },                                  \
        { "timeout", required_argument, NULL, 'w' }, { "ttl", required_argument, NULL, 't' },                          \
        { "conflict-exit-code", required_argument, NULL, 'E' }, { "quiet", no_argument, NULL, 'q' },                   \
        { "no-renew", no_argument, NULL, HFC_OPT_NO_RENEW },                                                           \
        { "max-hold", required_argument, NULL, HFC_OPT_MAX_HOLD }, { "verbose", no_argument, NULL, HFC_OPT_VERBOSE },  \
        { "log", required_argument, NULL, HFC_OPT_LOG },                                                               \
        { "on-lost-exec", required_argument, NULL, HFC_OPT_ON_LOST_EXEC },                                             \
    {                                                                                                                  \
        "note", required_argument, NULL, HFC_OPT_NOTE                                                                  \
    }
#define HFC_REQUEST_LETTERS "nw:t:E:q"

/* The option as the user typed it, for messages: `index` is what getopt_long() left of -1. */
const char *hfc_typed(char buffer[HFC_TYPED], const struct option *options, int index, int option);
/* Reads optarg. Zero means "the default" to the library, which nobody means who types it: only where it has a meaning
 * of its own is it allowed. -1: go on; else the exit code. */
int hfc_duration_option(const char *command, const char *typed, bool zero_allowed, uint32_t *ms);
/* Takes `option` with optarg if it is one of HFC_REQUEST_OPTIONS. -1: taken; -2: it is another; else the exit code. */
int hfc_request_option(struct hfc_acquire *request, const char *command, const char *typed, int option);
/* Who and what it is, unless a note was given: the user as the environment names it, and the command. NULL: none. Not
 * its arguments, which may be secret, and a store has other readers than `ps`. */
void hfc_default_note(struct hfc_acquire *request, const char *command);
/* HF_BUSY, HF_TIMEOUT: says so, unless nobody wants to know. Returns the exit code. */
int hfc_not_acquired(const struct hfc_acquire *request, hf_client *client, const hf_error *err);
/* The same for HF_DONE, which those who use --once-per expect: said on a terminal, or to whoever wants to know. */
int hfc_done_before(const struct hfc_acquire *request, hf_client *client, const hf_error *err);
/* On a terminal: which store it is. */
void hfc_say_held(const struct hfc_acquire *request, hf_client *client);

/* --- child.c --- */

/* On the clock that goes on during suspend, as the lock's own end does. */
int64_t hfc_now_ms(void);

/* What tells the runs inside of the command whether this one holds its lock (nested.c). */
struct hfc_witness {
    int listener; /* where they ask; -1: nowhere */
    int hold[2];  /* a pipe: each of them gets its first end, and we close the second when the hold ends; or -1 */
};

struct hfc_guard {
    const struct hfc_signals *signals;
    hf_lock *lock;        /* NULL: an outer run holds it */
    int64_t lasts_ms;     /* how long it lasts from one renewal to the next, or at all; INT64_MAX: nothing ends it */
    uint32_t max_hold_ms; /* when to end the command though the lock goes on, so that it ends under it; 0: never */
    int lost_fd;          /* readable once it is lost */
    int leash;            /* readable once the front has died; -1: none */
    struct hfc_witness witness;
    enum hfc_on_lost on_lost;
    uint32_t grace_ms;
    sem_t no_command; /* 1 while there is none, 0 while there is */
    bool started;     /* out: there was a command, or a process that was to become one */
    bool lost;        /* out: the lock was lost, or the command ended because it was about to be */
    int64_t ended_ms; /* out: when that was, or was noticed, or we ended the command for another reason; 0: never */
    int64_t heard_ms; /* out: about when the store was heard of for the last time before that; 0: not known */
    bool held_long;   /* out: the command was ended because of max_hold_ms */
};

/* Runs argv and waits for it; ends it, with all its descendants, before the lock does. Returns its exit code. */
int hfc_child_run(struct hfc_guard *guard, char **argv);
/* The exit code that a wait status stands for. */
int hfc_child_exit_code(int wait_status);

/* --- tree.c --- */

/* Sends `number` to `child`, unless it is 0, and to every descendant of this process, which must be their subreaper, as
 * far as /proc shows them. */
void hfc_tree_signal(int number, pid_t child);
/* Kills every descendant and reaps it. *wait_status is set if `child` was among them. */
void hfc_tree_kill(pid_t child, int *wait_status);

/* --- front.c --- */

/* True if a front is wanted for an engine of these capabilities. */
bool hfc_front_wanted(uint32_t capabilities);
/* True if the environment asks for one whatever the engine. */
bool hfc_front_forced(void);
/* Forks the keeper. In the keeper it returns -1, with guard->leash set; in the front it waits for the
 * keeper and returns the exit code. */
int hfc_front(struct hfc_signals *signals, struct hfc_guard *guard);
/* In the keeper, before the child is forked: ^Z does not stop it any more. In the child: the opposite. */
void hfc_front_ignore_stops(void);
void hfc_front_restore_stops(void);
/* In the keeper, once the child has been forked: leaves the process group of the front. */
void hfc_front_leave_group(void);
/* In the keeper, once the child has ended: the opposite. */
void hfc_front_join_group(void);

/* --- nested.c --- */

enum hfc_nested {
    HFC_NESTED_NOT,  /* no ancestor of this process holds the lock */
    HFC_NESTED_HELD, /* one does */
    HFC_NESTED_LOST, /* one did, and is losing it */
};

/* Asks the outer run that HOLDFAST_HELD names for `name` in the store `url`, if any. *token is its token and *hold_fd a
 * descriptor that becomes readable when its hold ends. A deadly signal ends this process. */
enum hfc_nested hfc_nested_find(const char *url, const char *name, const struct hfc_signals *signals, uint64_t *token,
                                int *hold_fd);
/* True if HOLDFAST_HELD names that lock in any store. */
bool hfc_nested_maybe(const char *name);
/* Writes it into the environment, for the child, and opens `witness` unless an outer run holds the lock (NULL). False,
 * with a message, if there is no memory. */
bool hfc_nested_export(const char *url, const char *name, uint64_t token, struct hfc_witness *witness);
/* Answers the next who asks. */
void hfc_witness_answer(struct hfc_witness *witness);
/* The hold ends: tells all who have asked. */
void hfc_witness_end(struct hfc_witness *witness);

#endif
