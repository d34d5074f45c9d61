/* SPDX-License-Identifier: MIT
 *
 * verify.h: what the parts of `holdfast verify` share. cmd_verify.c reads the options and runs the show; verify_crew.c
 * starts, pauses and kills the workers, verify_worker.c is what each of them does; all of it becomes a history, a list
 * of what was asked, believed and done when, which verify_check.c, verify_tokens.c and verify_service.c judge without
 * knowing where it comes from; verify_report.c and verify_html.c show it.
 *
 * All times are nanoseconds on CLOCK_BOOTTIME, which is the same in all processes of a machine; 0: it did not happen.
 */
#ifndef HFC_VERIFY_H
#define HFC_VERIFY_H

#include <holdfast.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define VERIFY_MS INT64_C(1000000)
#define VERIFY_SECOND INT64_C(1000000000)
/* How late a wait, a try or the end of a dead holder's lock may be: what schedulers and networks take. */
#define VERIFY_SLACK_NS VERIFY_SECOND

/* Two locks are fought for, one in short visits and one that is also held for long. The third is the probe's alone, a
 * process that asks all the time whether the store can be reached. */
enum { VERIFY_SHORT, VERIFY_LONG, VERIFY_PROBE, VERIFY_LOCKS };

/* ---------------------------------------------------------------------------------------------------------- history */

enum verify_kind { VERIFY_WAIT, VERIFY_TRY, VERIFY_OPEN };
enum verify_stage { VERIFY_NOTHING, VERIFY_ASKED, VERIFY_ANSWERED, VERIFY_HELD, VERIFY_RELEASING, VERIFY_ENDED };

enum {
    VERIFY_RENEWED = 1 << 0,       /* it is renewed in the background; else a plain lease */
    VERIFY_GIVEN_A_NO = 1 << 1,    /* hf_acquire() left a handle though it did not return HF_OK, or none with HF_OK */
    VERIFY_REENTERED = 1 << 2,     /* taken again by the same owner, */
    VERIFY_REENTRY_WRONG = 1 << 3, /* and refused while it was held, or with another token */
    VERIFY_STARVED = 1 << 4        /* the worker was kept from running for a quarter of the time-to-live */
};

/* A write to the fenced register with the token. */
struct verify_write {
    int64_t from_ns, to_ns;
    int32_t status; /* HF_LOST: refused */
};

/* One lock that was asked for, from the question to the release. Written step by step by its worker, who may be killed
 * anywhere between two of them. */
struct verify_record {
    uint32_t worker; /* its row; the probe is in the last one */
    uint32_t owner;  /* the process, from 1; a row has another one after each kill */
    uint8_t lock, kind, flags;
    _Atomic uint8_t stage;
    uint32_t wait_ms;
    int32_t status, release_status;
    uint64_t token;
    int64_t asked_ns, answered_ns;
    /* The worker believes that it has the lock from when hf_remaining_ms() was first seen above 0 to when it was last:
     * each time the clock is read before, so that a pause in between makes the belief shorter and never longer. */
    int64_t granted_ns, believed_ns;
    int64_t until_ns;        /* how long it would have gone on, by what was seen last; INT64_MAX: no end is known */
    int64_t over_ns;         /* hf_remaining_ms() was first seen at 0 or less */
    _Atomic int64_t told_ns; /* on_lost was called */
    int64_t releasing_ns, released_ns;
    struct verify_write write[2]; /* when the hold begins and when it ends, believed in or not */
};

enum verify_event_kind { VERIFY_KILLED, VERIFY_PAUSED, VERIFY_STALLED, VERIFY_DURING };

struct verify_event {
    enum verify_event_kind kind;
    uint32_t worker, owner; /* of VERIFY_KILLED and VERIFY_PAUSED */
    int64_t from_ns, to_ns;
    int code; /* VERIFY_DURING: the exit code */
};

/* What a stranger found of a lock when all was over. */
struct verify_left {
    int32_t status; /* of hf_acquire() */
    bool listed;    /* it was still shown as held after that one had been released */
};

struct verify_history {
    struct verify_record *record;
    size_t records;
    struct verify_event *event;
    size_t events;
    struct verify_left left[VERIFY_LOCKS];
    uint32_t workers; /* without the probe */
    uint32_t caps;    /* HF_CAP_ bits */
    uint32_t ttl_ms;
    uint32_t end_ms;          /* how long the store may take to end what is not renewed */
    uint32_t claim_ms;        /* how long somebody first in line who does not come may hold up the others */
    int64_t start_ns, end_ns; /* the window */
    int64_t over_ns;          /* when the last worker had gone */
};

/* ------------------------------------------------------------------------------------------------------------ check */

/* The promises as docs/GUARANTEES.md numbers them, as far as they can be seen from outside. */
enum verify_promise {
    VERIFY_P1,
    VERIFY_P2,
    VERIFY_P3,
    VERIFY_P4,
    VERIFY_P5,
    VERIFY_P5_PAUSED,
    VERIFY_P6,
    VERIFY_P7,
    VERIFY_P8,
    VERIFY_P9,
    VERIFY_P10,
    VERIFY_P12,
    VERIFY_PROMISES
};

enum verify_outcome { VERIFY_KEPT, VERIFY_BROKEN, VERIFY_NOT_CLAIMED, VERIFY_NOT_SEEN };

struct verify_verdict {
    enum verify_outcome outcome;
    bool claimed;
    uint64_t seen;   /* how often it could have been broken */
    uint64_t broken; /* how often it was */
};

#define VERIFY_SHOWN 5 /* violations of each promise that are kept, the first ones */

struct verify_violation {
    enum verify_promise promise;
    int64_t at_ns;
    size_t one, other; /* records; SIZE_MAX: none */
    char text[240];
};

struct verify_figures {
    uint64_t asked, granted, busy, timeouts, troubles; /* of the workers, not of the probe */
    uint64_t losses, losses_in_time;
    uint64_t writes, refused; /* refused: of tokens that had been overtaken */
    uint64_t killed, killed_holding, paused, paused_holding;
    uint64_t handoffs;
    int64_t handoff_p50_ns, handoff_p99_ns, handoff_max_ns;
    int64_t gap_ns, gap_from_ns; /* the longest time in which somebody waited and nobody had the lock */
    uint8_t gap_lock;
    int64_t freed_ns; /* of these gaps the longest that the death of a holder has left */
    int64_t late_ns;  /* the latest end of a bounded wait after its time */
};

struct verify_result {
    struct verify_verdict verdict[VERIFY_PROMISES];
    struct verify_violation *violation;
    size_t violations;
    struct verify_figures figures;
};

/* Judges. False: no memory. What it found is given back with verify_result_free(). */
bool verify_check(const struct verify_history *history, struct verify_result *result);
void verify_result_free(struct verify_result *result);

/* "1", "5b", and a few words. */
const char *verify_number(enum verify_promise promise);
const char *verify_words(enum verify_promise promise);
const char *verify_outcome_name(enum verify_outcome outcome);

/* --- between verify_check.c, verify_tokens.c and verify_service.c --- */

struct verify_span {
    int64_t from_ns, to_ns;
};

/* What a check in progress knows. */
struct verify_judge {
    const struct verify_history *history;
    struct verify_result *result;
    struct verify_span *trouble; /* when the store, or this machine, did not answer: sorted, apart from each other */
    size_t troubles;
    uint32_t *order[VERIFY_LOCKS]; /* the records that were believed in, by when that began */
    size_t believed[VERIFY_LOCKS];
};

void verify_violate(struct verify_judge *judge, enum verify_promise promise, int64_t at_ns, size_t one, size_t other,
                    const char *format, ...) __attribute__((format(printf, 6, 7)));
bool verify_in_trouble(const struct verify_judge *judge, int64_t from_ns, int64_t to_ns);
/* Judges the tokens. False: no memory. */
bool verify_judge_tokens(struct verify_judge *judge);
/* Judges what there was between the holds: gaps in service, and hand-offs. False: no memory. */
bool verify_judge_service(struct verify_judge *judge);
/* Sorts spans and joins those that meet, or between which there are `hole_ns` at most. Returns how many are left. */
size_t verify_join_spans(struct verify_span *spans, size_t count, int64_t hole_ns);

/* ---------------------------------------------------------------------------------------------------------- the run */

#define VERIFY_WORKERS_MAX 64
#define VERIFY_EVENTS_MAX 8192

struct verify_run;

/* A worker, in memory that all share. */
struct verify_row {
    _Atomic uint64_t count; /* of its records */
    pid_t pid;              /* from here on the parent's; 0: its end was seen */
    uint32_t owner;
    struct verify_event *pause; /* it is stopped now */
    int64_t resume_ns;
};

struct verify_board {
    _Atomic bool stop;
    _Atomic bool refused;                          /* the store does not do what it is asked, and will not; */
    hf_error why;                                  /* the first such answer */
    _Atomic uint64_t grants;                       /* for the progress bar */
    _Atomic uint64_t largest[VERIFY_LOCKS];        /* the register, where the store has none */
    struct verify_row row[VERIFY_WORKERS_MAX + 1]; /* the probe behind the workers */
};

struct verify_run {
    const char *url; /* with its password */
    char shown[512]; /* as the library shows it */
    char name[VERIFY_LOCKS][256];
    uint32_t window_ms;
    uint32_t rest_us; /* between two rounds of a worker, at least */
    size_t room;      /* records for each row */
    bool pause, kill, json, guard;
    const char *during; /* NULL: nothing */
    const char *html;   /* NULL: none */
    struct verify_board *board;
    struct verify_record *records; /* `room` for each row */
    struct verify_history history;
    struct verify_result result;
    int signal;   /* that ended it early; 0: none */
    bool hurried; /* and another one after that */
};

struct hfc_signals;

int64_t verify_now(void);
/* From `*seed`, below `limit`. */
uint32_t verify_chance(uint64_t *seed, uint32_t limit);
/* What the process of row `index` does until the board says stop. */
void verify_work(const struct verify_run *run, uint32_t index, uint32_t owner);
/* The window, from the first worker's start to the last one's end. Returns an exit code. */
int verify_crew(struct verify_run *run, const struct hfc_signals *signals);

/* A time of the history, as seconds since its start. */
double verify_seconds(const struct verify_history *history, int64_t at_ns);
void verify_report_table(const struct verify_run *run, FILE *out);
void verify_report_json(const struct verify_run *run, FILE *out);
void verify_report_html(const struct verify_run *run, FILE *out);
/* One line about a verdict: how often it was seen, what was measured. */
void verify_remark(char *buffer, size_t size, const struct verify_run *run, enum verify_promise promise);

#endif
