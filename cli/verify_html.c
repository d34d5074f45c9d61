/* SPDX-License-Identifier: MIT
 *
 * verify_html.c: the page of a verify: verdicts, figures, and who believed to have which lock when. One file that needs
 * no other and no network, and no script.
 */
#include "verify.h"

#include "cli.h"

#include <inttypes.h>
#include <string.h>

#define LEFT 92.0 /* of the drawing: names */
#define WIDTH 1080.0
#define ROW 26.0
#define TOP 8.0
#define LEAST 0.8   /* the narrowest thing that can be seen */
#define CLOSE_UPS 3 /* of violations */

static const char style[] =
    ":root{--bg:#fbfbf9;--fg:#20201d;--dim:#6f6d66;--line:#dddbd3;--wait:#cfccc2;--l0:#2f6fb3;--l1:#1f8a70;"
    "--pause:#e3b341;--kill:#c62828;--told:#c75b12;--stale:#8e44ad;--fault:#c6282822;--ok:#2e7d32;--bad:#c62828}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#171816;--fg:#e8e6df;--dim:#9b988e;--line:#363733;--wait:#4c4d48;"
    "--l0:#6aa9e9;--l1:#4cc2a4;--pause:#d6a62f;--kill:#ff6b60;--told:#ff9a4d;--stale:#cf8ff0;--fault:#ff6b6026;"
    "--ok:#7bc47f;--bad:#ff6b60}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2rem auto;"
    "padding:0 1rem}\n"
    "h1{font-size:1.35rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p{margin:.3rem 0}"
    ".dim,small{color:var(--dim)}code{font-size:.93em;overflow-wrap:anywhere}\n"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.2rem .9rem .2rem 0;border-bottom:1px solid "
    "var(--line);vertical-align:top}td:first-child{text-align:right}.kept{color:var(--ok)}"
    ".broken{color:var(--bad);font-weight:700}\n"
    ".cards{display:flex;flex-wrap:wrap;gap:1rem 2.2rem;margin:1rem 0}.cards b{display:block;font-size:1.25rem}\n"
    ".draw{overflow-x:auto}svg{display:block;min-width:900px;width:100%;height:auto}svg text{fill:var(--dim);font:11px "
    "system-ui,sans-serif}svg path{fill:none}\n"
    ".axis{stroke:var(--line)}.w{stroke:var(--wait);stroke-width:3}.h0{stroke:var(--l0);stroke-width:12}"
    ".h1{stroke:var(--l1);stroke-width:12}.p{stroke:var(--pause);stroke-width:4}.k{stroke:var(--kill);stroke-width:2.5}"
    ".t{stroke:var(--told);stroke-width:2.5}.s{stroke:var(--stale);stroke-width:2}.f{fill:var(--fault)}"
    ".v{stroke:var(--bad);stroke-width:1.2;stroke-dasharray:3 2}\n"
    ".key{display:flex;flex-wrap:wrap;gap:.2rem 1.3rem;font-size:.85rem}.key svg{display:inline;min-width:0;width:26px;"
    "height:14px;vertical-align:-2px;margin-right:.35rem}\n";

static void put_text(FILE *out, const char *text)
{
    char shown[4096];

    for (text = hfc_printable(shown, sizeof shown, text); *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- a timeline */

struct view {
    const struct verify_run *run;
    FILE *out;
    int64_t from_ns, to_ns;
    int digits;  /* of the labels, behind the point */
    double edge; /* how far the path that is being drawn has come */
    bool open;   /* there is one */
};

static double x_of(const struct view *view, int64_t at_ns)
{
    if (at_ns <= view->from_ns)
        return LEFT;
    if (at_ns >= view->to_ns)
        return LEFT + WIDTH;
    return LEFT + WIDTH * (double)(at_ns - view->from_ns) / (double)(view->to_ns - view->from_ns);
}

/* One path for each sort of bar in a row. Bars that touch in the drawing become one, so that it does not grow with the
 * length of the run. */
static void begin_path(struct view *view, const char *class)
{
    fprintf(view->out, "<path class=\"%s\" d=\"", class);
    view->open = false;
    view->edge = 0;
}

static void add_bar(struct view *view, double y, int64_t from_ns, int64_t to_ns)
{
    double from = x_of(view, from_ns), to = x_of(view, to_ns);

    if (to_ns <= view->from_ns || from_ns >= view->to_ns)
        return;
    to = to - from < LEAST ? from + LEAST : to;
    if (view->open && from <= view->edge + LEAST / 2) {
        if (to <= view->edge)
            return;
        fprintf(view->out, "H%.1f", to);
    } else {
        fprintf(view->out, "M%.1f %.1fH%.1f", from, y, to);
    }
    view->open = true;
    view->edge = to;
}

static void end_path(struct view *view)
{
    fputs("\"/>\n", view->out);
}

/* An upright stroke, with what it is when one points to it. Not two in the same place. */
static void add_mark(struct view *view, const char *class, double y, double height, int64_t at_ns, const char *what)
{
    const double x = x_of(view, at_ns);

    if (at_ns < view->from_ns || at_ns > view->to_ns || (view->open && x - view->edge < LEAST))
        return;
    view->open = true;
    view->edge = x;
    fprintf(view->out, "<path class=\"%s\" d=\"M%.1f %.1fv%.1f\"><title>%s, %.3f s</title></path>\n", class, x, y,
            height, what, verify_seconds(&view->run->history, at_ns));
}

static int64_t end_of(const struct view *view, int64_t at_ns)
{
    return at_ns != 0 && at_ns != INT64_MAX ? at_ns : view->run->history.over_ns;
}

static void draw_waits(struct view *view, uint32_t worker, double y)
{
    const struct verify_history *history = &view->run->history;

    begin_path(view, "w");
    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *record = &history->record[i];
        if (record->worker == worker && record->kind == VERIFY_WAIT)
            add_bar(view, y, record->asked_ns,
                    record->answered_ns != 0 ? record->answered_ns : record->asked_ns + record->wait_ms * VERIFY_MS);
    }
    end_path(view);
}

static void draw_beliefs(struct view *view, uint32_t worker, int lock, double y)
{
    const struct verify_history *history = &view->run->history;

    begin_path(view, lock == 0 ? "h0" : "h1");
    for (size_t i = 0; i < history->records; i++) {
        const struct verify_record *record = &history->record[i];
        if (record->worker == worker && record->lock == lock && record->granted_ns != 0)
            add_bar(view, y, record->granted_ns, record->believed_ns);
    }
    end_path(view);
}

static bool was_told(const struct verify_record *record, int64_t *at_ns)
{
    *at_ns = atomic_load(&record->told_ns);
    return *at_ns != 0;
}

static void draw_marks(struct view *view, uint32_t worker, double y)
{
    const struct verify_history *history = &view->run->history;
    int64_t at_ns;

    begin_path(view, "p");
    for (size_t i = 0; i < history->events; i++)
        if (history->event[i].kind == VERIFY_PAUSED && history->event[i].worker == worker)
            add_bar(view, y - 9, history->event[i].from_ns, end_of(view, history->event[i].to_ns));
    end_path(view);
    view->open = false;
    for (size_t i = 0; i < history->records; i++)
        if (history->record[i].worker == worker && was_told(&history->record[i], &at_ns))
            add_mark(view, "t", y - 8, 16, at_ns, "told that it is lost");
    view->open = false;
    for (size_t i = 0; i < history->records; i++)
        for (int k = 0; k < 2 && history->record[i].worker == worker; k++)
            if (history->record[i].write[k].to_ns != 0 && history->record[i].write[k].status == HF_LOST)
                add_mark(view, "s", y + 5, 7, history->record[i].write[k].to_ns, "a stale write was refused");
    view->open = false;
    for (size_t i = 0; i < history->events; i++)
        if (history->event[i].kind == VERIFY_KILLED && history->event[i].worker == worker)
            add_mark(view, "k", y - 10, 20, history->event[i].from_ns, "killed");
}

static void draw_axis(const struct view *view, double bottom)
{
    const double all = (double)(view->to_ns - view->from_ns) / 1e9;

    for (int i = 0; i <= 10; i++) {
        const double x = LEFT + WIDTH * i / 10;
        fprintf(view->out,
                "<path class=\"axis\" d=\"M%.1f %.1fV%.1f\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.*f s"
                "</text>\n",
                x, TOP, bottom, x, bottom + 14,
                i == 0    ? "start"
                : i == 10 ? "end"
                          : "middle",
                view->digits, verify_seconds(&view->run->history, view->from_ns) + all * i / 10);
    }
}

static void draw_faults(const struct view *view, double bottom)
{
    const struct verify_history *history = &view->run->history;

    for (size_t i = 0; i < history->events; i++) {
        const struct verify_event *event = &history->event[i];
        const double from = x_of(view, event->from_ns), to = x_of(view, end_of(view, event->to_ns));
        if (event->kind != VERIFY_DURING && event->kind != VERIFY_STALLED)
            continue;
        fprintf(view->out,
                "<rect class=\"f\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%s</title></rect>\n",
                from, TOP, to - from < LEAST ? LEAST : to - from, bottom - TOP,
                event->kind == VERIFY_DURING ? "the fault" : "this machine did not run");
    }
}

/* The workers one below the other, from one time to another. */
static void draw(const struct verify_run *run, FILE *out, int64_t from_ns, int64_t to_ns, int digits)
{
    const struct verify_history *history = &run->history;
    struct view view = { .run = run, .out = out, .from_ns = from_ns, .to_ns = to_ns, .digits = digits };
    const double bottom = TOP + ROW * history->workers + 4;

    fprintf(out, "<div class=\"draw\"><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", LEFT + WIDTH + 8, bottom + 20);
    draw_axis(&view, bottom);
    draw_faults(&view, bottom);
    for (uint32_t i = 0; i < history->workers; i++) {
        const double y = TOP + ROW * i + ROW / 2 + 2;
        fprintf(out, "<text x=\"0\" y=\"%.1f\">worker %u</text>\n", y + 4, i);
        draw_waits(&view, i, y);
        draw_beliefs(&view, i, 0, y);
        draw_beliefs(&view, i, 1, y);
        draw_marks(&view, i, y);
    }
    view.open = false;
    for (size_t i = 0; i < run->result.violations; i++)
        add_mark(&view, "v", TOP, bottom - TOP, run->result.violation[i].at_ns, "a promise was broken");
    fputs("</svg></div>\n", out);
}

/* ------------------------------------------------------------------------------------------------------------ parts */

static void put_key(FILE *out)
{
    static const struct {
        const char *class, *path, *words;
    } keys[] = {
        { "w", "M0 7H26", "waits" },
        { "h0", "M0 7H26", "believes that it holds lock 1" },
        { "h1", "M0 7H26", "lock 2" },
        { "p", "M0 7H26", "paused" },
        { "k", "M13 0V14", "killed, and replaced" },
        { "t", "M13 0V14", "told of a loss" },
        { "s", "M13 3V11", "stale write refused" },
        { "v", "M13 0V14", "a promise was broken" },
    };

    fputs("<p class=\"key\">", out);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        fprintf(out, "<span><svg viewBox=\"0 0 26 14\"><path class=\"%s\" d=\"%s\"/></svg>%s</span>\n", keys[i].class,
                keys[i].path, keys[i].words);
    fputs(
        "<span><svg viewBox=\"0 0 26 14\"><rect class=\"f\" width=\"26\" height=\"14\"/></svg>the fault, or a time in "
        "which this machine did not run</span></p>\n",
        out);
}

static void put_verdicts(const struct verify_run *run, FILE *out)
{
    char remark[240];

    fputs("<table><tr><th></th><th>promise</th><th>verdict</th><th>seen</th></tr>\n", out);
    for (int i = 0; i < VERIFY_PROMISES; i++) {
        const enum verify_outcome outcome = run->result.verdict[i].outcome;
        verify_remark(remark, sizeof remark, run, (enum verify_promise)i);
        fprintf(out, "<tr><td>%s</td><td>%s</td><td class=\"%s\">%s</td><td class=\"dim\">",
                verify_number((enum verify_promise)i), verify_words((enum verify_promise)i),
                outcome == VERIFY_KEPT     ? "kept"
                : outcome == VERIFY_BROKEN ? "broken"
                                           : "dim",
                verify_outcome_name(outcome));
        put_text(out, remark);
        fputs("</td></tr>\n", out);
    }
    fputs("</table>\n", out);
}

static void put_figures(const struct verify_run *run, FILE *out)
{
    const struct verify_figures *figures = &run->result.figures;

    fputs("<div class=\"cards\">\n", out);
    fprintf(out, "<div><b>%" PRIu64 "</b>grants</div>\n", figures->granted);
    fprintf(out, "<div><b>%.0f ms</b>longest gap in service</div>\n", (double)figures->gap_ns / 1e6);
    fprintf(out, "<div><b>%.2f / %.2f ms</b>hand-off, median / 99&thinsp;%%</div>\n",
            (double)figures->handoff_p50_ns / 1e6, (double)figures->handoff_p99_ns / 1e6);
    fprintf(out, "<div><b>%" PRIu64 " of %" PRIu64 "</b>losses known in time</div>\n", figures->losses_in_time,
            figures->losses);
    fprintf(out, "<div><b>%" PRIu64 "</b>stale writes refused</div>\n", figures->refused);
    fprintf(out, "<div><b>%" PRIu64 " / %" PRIu64 "</b>workers killed / paused</div>\n</div>\n", figures->killed,
            figures->paused);
}

/* From a little before the hold that was there first to a little after what came in its way. */
static void close_up(const struct verify_run *run, FILE *out, const struct verify_violation *violation)
{
    int64_t from_ns = violation->at_ns, to_ns = from_ns;
    const size_t records[2] = { violation->one, violation->other };

    for (int i = 0; i < 2; i++) {
        const struct verify_record *record = records[i] == SIZE_MAX ? NULL : &run->history.record[records[i]];
        if (record == NULL)
            continue;
        from_ns = record->answered_ns != 0 && record->answered_ns < from_ns ? record->answered_ns : from_ns;
        to_ns = record->believed_ns > to_ns ? record->believed_ns : to_ns;
        to_ns = record->released_ns > to_ns ? record->released_ns : to_ns;
    }
    const int64_t more_ns = (to_ns - from_ns) / 10 + 2 * VERIFY_MS;
    draw(run, out, from_ns - more_ns, to_ns + more_ns, 3);
}

static void put_violations(const struct verify_run *run, FILE *out)
{
    int shown = 0;

    if (run->result.violations == 0)
        return;
    fputs("<h2>What was broken</h2>\n", out);
    for (size_t i = 0; i < run->result.violations; i++) {
        const struct verify_violation *violation = &run->result.violation[i];
        fprintf(out, "<p><span class=\"broken\">%.3f s</span>, promise %s, %s: ",
                verify_seconds(&run->history, violation->at_ns), verify_number(violation->promise),
                verify_words(violation->promise));
        put_text(out, violation->text);
        fputs("</p>\n", out);
        if (violation->one != SIZE_MAX && shown++ < CLOSE_UPS)
            close_up(run, out, violation);
    }
}

static bool is_broken(const struct verify_run *run)
{
    for (int i = 0; i < VERIFY_PROMISES; i++)
        if (run->result.verdict[i].outcome == VERIFY_BROKEN)
            return true;
    return false;
}

void verify_report_html(const struct verify_run *run, FILE *out)
{
    const struct verify_history *history = &run->history;

    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\n"
            "<title>holdfast verify</title>\n<style>\n%s</style></head><body>\n",
            style);
    fprintf(out, "<h1>holdfast verify: <span class=\"%s\">%s</span></h1>\n", is_broken(run) ? "broken" : "kept",
            is_broken(run) ? "a promise was broken" : "every promise that could be tried was kept");
    fputs("<p><code>", out);
    put_text(out, run->shown);
    fprintf(out, "</code></p>\n<p class=\"dim\">%u workers for %.1f s, time-to-live %.1f s%s%s; holdfast %s</p>\n",
            history->workers, verify_seconds(history, history->end_ns), history->ttl_ms / 1e3,
            run->pause ? ", --pause" : "", run->kill ? ", --kill" : "", hf_version());
    if (run->during != NULL) {
        fputs("<p class=\"dim\">--during <code>", out);
        put_text(out, run->during);
        fputs("</code></p>\n", out);
    }
    put_figures(run, out);
    put_verdicts(run, out);
    fputs("<h2>Who believed to hold which lock</h2>\n", out);
    draw(run, out, history->start_ns, history->end_ns, 1);
    put_key(out);
    put_violations(run, out);
    fputs(
        "<p><small>What each promise is: docs/GUARANTEES.md. All times are of one clock, since the start.</small></p>\n"
        "</body></html>\n",
        out);
}
