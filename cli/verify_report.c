/* SPDX-License-Identifier: MIT
 *
 * verify_report.c: what a verify has found, for people and for programs.
 */
#include "verify.h"

#include "cli.h"

#include <inttypes.h>
#include <string.h>

double verify_seconds(const struct verify_history *history, int64_t at_ns)
{
    return (double)(at_ns - history->start_ns) / 1e9;
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* ---------------------------------------------------------------------------------------------------------- remarks */

static void remark_on_ends(char *buffer, size_t size, const struct verify_run *run, bool kill)
{
    const struct verify_verdict *verdict = &run->result.verdict[kill ? VERIFY_P5 : VERIFY_P5_PAUSED];
    const struct verify_figures *figures = &run->result.figures;

    if (!(kill ? run->kill : run->pause))
        snprintf(buffer, size, "not tried; %s does", kill ? "--kill" : "--pause");
    else if (kill)
        snprintf(buffer, size, "%" PRIu64 " killed, %" PRIu64 " while holding; others waited for %.2f s at most",
                 figures->killed, figures->killed_holding, (double)figures->freed_ns / 1e9);
    else
        snprintf(buffer, size, "%" PRIu64 " paused, %" PRIu64 " while holding; %" PRIu64 " were overtaken",
                 figures->paused, figures->paused_holding, verdict->seen);
}

void verify_remark(char *buffer, size_t size, const struct verify_run *run, enum verify_promise promise)
{
    const struct verify_figures *figures = &run->result.figures;
    const uint64_t seen = run->result.verdict[promise].seen, broken = run->result.verdict[promise].broken;
    const char *how = run->result.verdict[promise].claimed ? "broken" : "not so";
    const size_t used = broken > 0 ? (size_t)snprintf(buffer, size, "%" PRIu64 " times %s; ", broken, how) : 0;

    buffer += used;
    size -= used;
    switch (promise) {
    case VERIFY_P1:
        snprintf(buffer, size, "%" PRIu64 " holders", seen);
        break;
    case VERIFY_P2:
        snprintf(buffer, size, "%" PRIu64 " tries", seen);
        break;
    case VERIFY_P3:
        snprintf(buffer, size, "%" PRIu64 " waits, ended %.1f ms after their time at most", seen, ms(figures->late_ns));
        break;
    case VERIFY_P4:
        snprintf(buffer, size, "%" PRIu64 " releases came when another had it", seen);
        break;
    case VERIFY_P5:
    case VERIFY_P5_PAUSED:
        remark_on_ends(buffer, size, run, promise == VERIFY_P5);
        break;
    case VERIFY_P6:
        snprintf(buffer, size, "%" PRIu64 " held for longer than %s", seen,
                 run->history.caps & HF_CAP_EXPIRY ? "the time-to-live" : "a moment");
        break;
    case VERIFY_P7:
        snprintf(buffer, size, "%" PRIu64 " losses, %" PRIu64 " known in time", figures->losses,
                 figures->losses_in_time);
        break;
    case VERIFY_P8:
        snprintf(buffer, size, "%" PRIu64 " times", seen);
        break;
    case VERIFY_P9:
        snprintf(buffer, size, "%" PRIu64 " grants; %" PRIu64 " of %" PRIu64 " writes were stale, and refused%s", seen,
                 figures->refused, figures->writes, run->guard ? " by the store" : "");
        break;
    case VERIFY_P10:
        snprintf(buffer, size, "%" PRIu64 " questions without an answer", seen);
        break;
    case VERIFY_P12:
    case VERIFY_PROMISES:
        snprintf(buffer, size, "%" PRIu64 " of %d locks looked at in the end", seen, (int)VERIFY_LOCKS);
    }
}

/* ------------------------------------------------------------------------------------------------------------ table */

static void print_figures(const struct verify_run *run, FILE *out)
{
    const struct verify_figures *figures = &run->result.figures;

    fprintf(out, "\n%-24s %.0f ms, of lock %d at %.1f s\n", "longest gap in service", ms(figures->gap_ns),
            figures->gap_lock + 1, figures->gap_ns > 0 ? verify_seconds(&run->history, figures->gap_from_ns) : 0.0);
    fprintf(out, "%-24s p50 %.2f ms, p99 %.2f ms, max %.2f ms (%" PRIu64 ")\n", "hand-off", ms(figures->handoff_p50_ns),
            ms(figures->handoff_p99_ns), ms(figures->handoff_max_ns), figures->handoffs);
    fprintf(out, "%-24s %" PRIu64 " granted, %" PRIu64 " busy, %" PRIu64 " timed out, %" PRIu64 " in trouble\n",
            "questions", figures->granted, figures->busy, figures->timeouts, figures->troubles);
    for (size_t i = 0; i < run->history.events; i++)
        if (run->history.event[i].kind == VERIFY_DURING)
            fprintf(out, "%-24s %.1f s to %.1f s, exit code %d\n", "the fault",
                    verify_seconds(&run->history, run->history.event[i].from_ns),
                    verify_seconds(&run->history, run->history.event[i].to_ns), run->history.event[i].code);
}

void verify_report_table(const struct verify_run *run, FILE *out)
{
    char shown[1200], remark[240];
    const struct verify_history *history = &run->history;

    fprintf(out, "%s: %u workers for %.1f s, time-to-live %.1f s, names %.*s*\n\n",
            hfc_printable(shown, sizeof shown, run->shown), history->workers, verify_seconds(history, history->end_ns),
            history->ttl_ms / 1e3, (int)strlen(run->name[0]) - 1, run->name[0]);
    for (int i = 0; i < VERIFY_PROMISES; i++) {
        const enum verify_promise promise = (enum verify_promise)i;
        verify_remark(remark, sizeof remark, run, promise);
        fprintf(out, "%3s  %-27s %-12s %s\n", verify_number(promise), verify_words(promise),
                verify_outcome_name(run->result.verdict[i].outcome), remark);
    }
    print_figures(run, out);
    if (run->result.violations > 0)
        fputs("\nthe first violations of each:\n", out);
    for (size_t i = 0; i < run->result.violations; i++) {
        const struct verify_violation *violation = &run->result.violation[i];
        fprintf(out, "%9.3f s  promise %s: %s\n", verify_seconds(history, violation->at_ns),
                verify_number(violation->promise), violation->text);
    }
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static void json_count(FILE *out, const char *key, bool *first, uint64_t value)
{
    hfc_json_key(out, key, first);
    fprintf(out, "%" PRIu64, value);
}

static void json_ms(FILE *out, const char *key, bool *first, int64_t ns)
{
    hfc_json_key(out, key, first);
    fprintf(out, "%.3f", ms(ns));
}

/* A time of the history in seconds; null if it did not come. */
static void json_time(FILE *out, const char *key, bool *first, const struct verify_history *history, int64_t at_ns)
{
    hfc_json_key(out, key, first);
    if (at_ns == 0 || at_ns == INT64_MAX)
        fputs("null", out);
    else
        fprintf(out, "%.6f", verify_seconds(history, at_ns));
}

static void json_text(FILE *out, const char *key, bool *first, const char *text)
{
    hfc_json_key(out, key, first);
    hfc_json_string(out, text);
}

static void json_flag(FILE *out, const char *key, bool *first, bool value)
{
    hfc_json_key(out, key, first);
    fputs(value ? "true" : "false", out);
}

static void json_verdicts(const struct verify_run *run, FILE *out)
{
    char remark[240];

    for (int i = 0; i < VERIFY_PROMISES; i++) {
        const struct verify_verdict *verdict = &run->result.verdict[i];
        bool first = true;
        verify_remark(remark, sizeof remark, run, (enum verify_promise)i);
        fputs(i == 0 ? "\n  {" : ",\n  {", out);
        json_text(out, "promise", &first, i == VERIFY_P5_PAUSED ? "5-paused" : verify_number((enum verify_promise)i));
        json_text(out, "says", &first, verify_words((enum verify_promise)i));
        json_text(out, "verdict", &first, verify_outcome_name(verdict->outcome));
        json_count(out, "seen", &first, verdict->seen);
        json_count(out, "broken", &first, verdict->broken);
        json_text(out, "remark", &first, remark);
        fputs("}", out);
    }
}

static void json_violations(const struct verify_run *run, FILE *out)
{
    for (size_t i = 0; i < run->result.violations; i++) {
        const struct verify_violation *violation = &run->result.violation[i];
        bool first = true;
        fputs(i == 0 ? "\n  {" : ",\n  {", out);
        json_text(out, "promise", &first,
                  violation->promise == VERIFY_P5_PAUSED ? "5-paused" : verify_number(violation->promise));
        json_time(out, "at_s", &first, &run->history, violation->at_ns);
        json_text(out, "text", &first, violation->text);
        if (violation->one != SIZE_MAX)
            json_count(out, "record", &first, violation->one);
        if (violation->other != SIZE_MAX)
            json_count(out, "other_record", &first, violation->other);
        fputs("}", out);
    }
}

static void json_figures(const struct verify_run *run, FILE *out)
{
    const struct verify_figures *figures = &run->result.figures;
    bool first = true;

    json_count(out, "asked", &first, figures->asked);
    json_count(out, "granted", &first, figures->granted);
    json_count(out, "busy", &first, figures->busy);
    json_count(out, "timeouts", &first, figures->timeouts);
    json_count(out, "troubles", &first, figures->troubles);
    json_count(out, "killed", &first, figures->killed);
    json_count(out, "killed_holding", &first, figures->killed_holding);
    json_count(out, "paused", &first, figures->paused);
    json_count(out, "paused_holding", &first, figures->paused_holding);
    json_count(out, "losses", &first, figures->losses);
    json_count(out, "losses_in_time", &first, figures->losses_in_time);
    json_count(out, "writes", &first, figures->writes);
    json_count(out, "stale_writes_refused", &first, figures->refused);
    json_count(out, "handoffs", &first, figures->handoffs);
    json_ms(out, "handoff_p50_ms", &first, figures->handoff_p50_ns);
    json_ms(out, "handoff_p99_ms", &first, figures->handoff_p99_ns);
    json_ms(out, "handoff_max_ms", &first, figures->handoff_max_ns);
    json_ms(out, "gap_ms", &first, figures->gap_ns);
    json_time(out, "gap_from_s", &first, &run->history, figures->gap_from_ns);
    json_ms(out, "free_after_kill_ms", &first, figures->freed_ns);
    json_ms(out, "wait_late_ms", &first, figures->late_ns);
}

static void json_events(const struct verify_history *history, FILE *out)
{
    static const char *const kinds[] = { "killed", "paused", "stalled", "during" };

    for (size_t i = 0; i < history->events; i++) {
        const struct verify_event *event = &history->event[i];
        bool first = true;
        fputs(i == 0 ? "\n  {" : ",\n  {", out);
        json_text(out, "kind", &first, kinds[event->kind]);
        if (event->owner != 0) {
            json_count(out, "worker", &first, event->worker);
            json_count(out, "owner", &first, event->owner);
        }
        json_time(out, "from_s", &first, history, event->from_ns);
        json_time(out, "to_s", &first, history, event->to_ns);
        if (event->kind == VERIFY_DURING)
            json_count(out, "exit_code", &first, (uint64_t)event->code);
        fputs("}", out);
    }
}

static void json_writes(const struct verify_history *history, const struct verify_record *record, FILE *out)
{
    bool any = false;

    for (int i = 0; i < 2; i++) {
        bool first = true;
        if (record->write[i].to_ns == 0)
            continue;
        fputs(any ? ", {" : "{", out);
        any = true;
        json_time(out, "from_s", &first, history, record->write[i].from_ns);
        json_time(out, "to_s", &first, history, record->write[i].to_ns);
        json_text(out, "status", &first, hf_status_name((hf_status)record->write[i].status));
        fputs("}", out);
    }
}

static void json_record(const struct verify_history *history, const struct verify_record *record, FILE *out)
{
    static const char *const kinds[] = { "wait", "try", "open" };
    bool first = true;

    json_count(out, "worker", &first, record->worker);
    json_count(out, "owner", &first, record->owner);
    json_count(out, "lock", &first, record->lock + 1U);
    json_text(out, "kind", &first, kinds[record->kind]);
    json_count(out, "wait_ms", &first, record->wait_ms);
    json_time(out, "asked_s", &first, history, record->asked_ns);
    json_time(out, "answered_s", &first, history, record->answered_ns);
    if (record->answered_ns != 0)
        json_text(out, "status", &first, hf_status_name((hf_status)record->status));
    if (record->token != 0) {
        json_count(out, "token", &first, record->token);
        json_flag(out, "renewed", &first, record->flags & VERIFY_RENEWED);
        json_time(out, "believed_from_s", &first, history, record->granted_ns);
        json_time(out, "believed_to_s", &first, history, record->believed_ns);
        json_time(out, "over_s", &first, history, record->over_ns);
        json_time(out, "told_s", &first, history, atomic_load(&record->told_ns));
        json_time(out, "releasing_s", &first, history, record->releasing_ns);
        json_time(out, "released_s", &first, history, record->released_ns);
        if (record->released_ns != 0)
            json_text(out, "release", &first, hf_status_name((hf_status)record->release_status));
        hfc_json_key(out, "writes", &first);
        fputs("[", out);
        json_writes(history, record, out);
        fputs("]", out);
    }
}

void verify_report_json(const struct verify_run *run, FILE *out)
{
    const struct verify_history *history = &run->history;
    bool first = true, kept = true;

    for (int i = 0; i < VERIFY_PROMISES; i++)
        kept = kept && run->result.verdict[i].outcome != VERIFY_BROKEN;
    fputs("{", out);
    json_text(out, "url", &first, run->shown);
    json_count(out, "workers", &first, history->workers);
    hfc_json_key(out, "seconds", &first);
    fprintf(out, "%.3f", verify_seconds(history, history->end_ns));
    json_count(out, "ttl_ms", &first, history->ttl_ms);
    json_text(out, "during", &first, run->during);
    json_flag(out, "kept", &first, kept);
    hfc_json_key(out, "promises", &first);
    fputs("[", out);
    json_verdicts(run, out);
    fputs("],\n \"violations\": [", out);
    json_violations(run, out);
    fputs("],\n \"figures\": {", out);
    json_figures(run, out);
    fputs("},\n \"events\": [", out);
    json_events(history, out);
    fputs("],\n \"history\": [", out);
    for (size_t i = 0; i < history->records; i++) {
        fputs(i == 0 ? "\n  {" : ",\n  {", out);
        json_record(history, &history->record[i], out);
        fputs("}", out);
    }
    fputs("]}\n", out);
}
