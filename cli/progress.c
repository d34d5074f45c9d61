/* SPDX-License-Identifier: MIT
 *
 * progress.c: what is said while somebody waits: on a terminal one line that is rewritten in place and leaves nothing
 * behind, elsewhere nothing or, with --verbose, a line for each change.
 */
#include "run.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A store is not asked for a wait that is over soon, and not often for one that lasts. */
#define FIRST_LOOK_MS 1000
#define NEXT_LOOK_MS 5000

/* A process in the background must not write over what the foreground shows, and may be stopped for it. */
static bool owns_terminal(void)
{
    return isatty(STDERR_FILENO) && tcgetpgrp(STDERR_FILENO) == getpgrp();
}

void hfc_progress_start(struct hfc_progress *progress, hf_client *client, const struct hfc_acquire *request)
{
    *progress = (struct hfc_progress){ .client = client, .request = request, .look_at = hfc_now_ms() + FIRST_LOOK_MS };
    if (request->quiet || !(request->verbose || isatty(STDERR_FILENO)))
        progress->look_at = INT64_MAX;
}

int hfc_progress_timeout(const struct hfc_progress *progress)
{
    const int64_t left = progress->look_at - hfc_now_ms();

    if (progress->look_at == INT64_MAX)
        return -1;
    return left > 0 ? (int)left : 0;
}

/* --- the line --- */

struct line {
    char text[1024];     /* what is shown */
    char timeless[1024]; /* the same without what changes by itself */
    bool held;
};

static void append(char *text, size_t size, const char *more)
{
    const size_t used = strlen(text);

    snprintf(text + used, size - used, "%s", more);
}

static void append_to_both(struct line *line, const char *more)
{
    append(line->text, sizeof line->text, more);
    append(line->timeless, sizeof line->timeless, more);
}

/* How many are served before this process; -1: not known. */
static int64_t place_in_line(const hf_info *info)
{
    char host[256] = "", me[300];

    if (info->waiting == NULL || gethostname(host, sizeof host - 1) != 0)
        return -1;
    const int length = snprintf(me, sizeof me, "%s:%lld", host, (long long)getpid());
    for (int64_t i = 0; i < info->waiters; i++)
        if (strncmp(info->waiting[i], me, (size_t)length) == 0 && strchr(" ", info->waiting[i][length]) != NULL)
            return i;
    return -1;
}

static int describe(const hf_info *info, void *arg)
{
    struct line *line = arg;
    char part[400], time[32];
    const int64_t before = place_in_line(info);

    line->held = true;
    if (info->host[0] != '\0' && info->pid > 0) {
        snprintf(part, sizeof part, ", held by %.255s:%lld", info->host, (long long)info->pid);
        append_to_both(line, part);
    } else if (info->host[0] != '\0') {
        snprintf(part, sizeof part, ", held by %.255s", info->host);
        append_to_both(line, part);
    }
    if (info->held_ms >= 0) {
        snprintf(part, sizeof part, " since %s", hfc_short_time(time, sizeof time, info->held_ms));
        append(line->text, sizeof line->text, part);
    }
    if (info->note[0] != '\0') {
        snprintf(part, sizeof part, " (%.120s)", info->note);
        append_to_both(line, part);
    }
    if (before >= 0) {
        snprintf(part, sizeof part, ", %lld before you", (long long)before);
        append_to_both(line, part);
    }
    return 1;
}

/* One line of the terminal: what is longer would wrap, and could not be taken back. */
static void cut(char *text)
{
    struct winsize size;
    const int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    size_t length = strlen(text);

    while (length > 0 && hfc_columns(text) >= columns) {
        do
            length--;
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80); /* inside of a character */
        text[length] = '\0';
    }
}

static void write_out(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nowhere to report it to */
}

static void rewrite(struct hfc_progress *progress, const char *text)
{
    char shown[1200], line[1400];

    snprintf(line, sizeof line, "holdfast: %s", hfc_printable(shown, sizeof shown, text));
    cut(line);
    write_out("\r");
    write_out(line);
    write_out("\033[K");
    progress->shown = true;
}

void hfc_progress_show(struct hfc_progress *progress)
{
    struct line line = { "", "", false };
    char start[300];
    hf_error err;

    if (hfc_now_ms() < progress->look_at)
        return;
    snprintf(start, sizeof start, "waiting for '%s'", progress->request->name);
    append_to_both(&line, start);
    const hf_status status = hf_inspect_one(progress->client, progress->request->name, describe, &line, &err);
    if (status != HF_OK && status != HF_UNSUPPORTED) {
        append_to_both(&line, ": ");
        append_to_both(&line, err.message);
    }
    progress->look_at = hfc_now_ms() + NEXT_LOOK_MS;
    if (isatty(STDERR_FILENO)) {
        if (owns_terminal())
            rewrite(progress, line.text);
    } else if (strcmp(progress->last, line.timeless) != 0) {
        snprintf(progress->last, sizeof progress->last, "%s", line.timeless);
        hfc_say("%s", line.text);
    }
}

void hfc_progress_end(struct hfc_progress *progress)
{
    if (progress->shown && owns_terminal())
        write_out("\r\033[K");
    progress->shown = false;
}
