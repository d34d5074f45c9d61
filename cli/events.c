/* SPDX-License-Identifier: MIT
 *
 * events.c: what becomes of a lock, for people on stderr, for programs as lines of JSON (--log), and for whoever wants
 * to be called (--on-lost-exec).
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define JOURNAL "/run/systemd/journal/socket"

void hfc_wall_clock(char *buffer, size_t size, const char *format, int64_t at_ms)
{
    struct tm tm;
    const time_t then = time(NULL) - (time_t)((hfc_now_ms() - at_ms) / 1000);

    buffer[0] = '\0';
    if (localtime_r(&then, &tm) != NULL)
        strftime(buffer, size, format, &tm);
}

/* --- for programs --- */

/* systemd's own way: a datagram of fields. A text with a newline would need another form; JSON has none. */
static bool send_to_journal(const char *line)
{
    char message[4600];
    struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = JOURNAL };
    const int length = snprintf(message, sizeof message, "MESSAGE=%s\nPRIORITY=6\nSYSLOG_IDENTIFIER=holdfast\n", line);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool sent = fd >= 0 && sendto(fd, message, (size_t)length, MSG_NOSIGNAL, (const struct sockaddr *)&address,
                                        sizeof address) == length;
    if (fd >= 0)
        close(fd);
    return sent;
}

static bool append_to_file(const char *path, const char *line)
{
    char whole[4200];
    const int length = snprintf(whole, sizeof whole, "%s\n", line);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    /* One write(2): those of several processes do not mix. */
    const bool written = fd >= 0 && write(fd, whole, (size_t)length) == length;
    const int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    return written;
}

static void send_line(const struct hfc_events *events, const char *line)
{
    bool sent = true;

    if (strcmp(events->log, "syslog") == 0)
        syslog(LOG_INFO | LOG_USER, "%s", line);
    else if (strcmp(events->log, "journal") == 0)
        sent = send_to_journal(line);
    else
        sent = append_to_file(events->log, line);
    if (!sent)
        hfc_say("cannot write to the log '%s': %s", events->log, strerror(errno));
}

/* `number` belongs to `member`, and `why` may be NULL. */
static void log_event(const struct hfc_events *events, const char *event, const char *member, int64_t number,
                      const char *why)
{
    char time[40], *line = NULL;
    size_t length;
    bool first = true;

    if (events->log == NULL)
        return;
    FILE *out = open_memstream(&line, &length);
    if (out == NULL)
        return;
    hfc_wall_clock(time, sizeof time, "%Y-%m-%dT%H:%M:%S%z", hfc_now_ms());
    fputc('{', out);
    hfc_json_key(out, "time", &first);
    hfc_json_string(out, time);
    hfc_json_key(out, "event", &first);
    hfc_json_string(out, event);
    hfc_json_key(out, "name", &first);
    hfc_json_string(out, events->name);
    hfc_json_key(out, "store", &first);
    hfc_json_string(out, events->url);
    hfc_json_key(out, "pid", &first);
    fprintf(out, "%lld", (long long)getpid());
    if (events->token != 0) {
        hfc_json_key(out, "token", &first);
        fprintf(out, "%llu", (unsigned long long)events->token);
    }
    hfc_json_key(out, member, &first);
    fprintf(out, "%lld", (long long)number);
    if (why != NULL) {
        hfc_json_key(out, "why", &first);
        hfc_json_string(out, why);
    }
    fputc('}', out);
    if (fclose(out) == 0)
        send_line(events, line);
    free(line);
}

/* --- for whoever wants to be called --- */

static void call(const struct hfc_events *events, const struct hfc_signals *signals, const char *why)
{
    int ignored;

    if (events->on_lost_exec == NULL)
        return;
    const pid_t child = fork();
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &signals->original, NULL);
        if (setenv("HOLDFAST_NAME", events->name, 1) == 0 && setenv("HOLDFAST_WHY", why, 1) == 0)
            execl("/bin/sh", "sh", "-c", events->on_lost_exec, (char *)NULL);
        _exit(HFC_EXIT_INTERNAL);
    }
    if (child < 0)
        hfc_say("cannot start a process: %s", strerror(errno));
    while (child > 0 && waitpid(child, &ignored, 0) < 0 && errno == EINTR)
        continue;
}

/* --- what happens --- */

void hfc_event_asked(struct hfc_events *events, const struct hfc_acquire *request, const char *url)
{
    events->name = request->name;
    events->url = url;
    events->since_ms = hfc_now_ms();
    events->token = 0;
}

void hfc_event_acquired(struct hfc_events *events, uint64_t token)
{
    const int64_t now = hfc_now_ms();

    events->token = token;
    log_event(events, "acquired", "waited_ms", now - events->since_ms, NULL);
    events->since_ms = now;
}

void hfc_event_not_acquired(const struct hfc_events *events, const char *why)
{
    log_event(events, "waited", "waited_ms", hfc_now_ms() - events->since_ms, why);
}

void hfc_event_done(const struct hfc_events *events, const char *why)
{
    log_event(events, "done", "waited_ms", hfc_now_ms() - events->since_ms, why);
}

void hfc_event_released(const struct hfc_events *events)
{
    log_event(events, "released", "held_ms", hfc_now_ms() - events->since_ms, NULL);
}

void hfc_event_lost(const struct hfc_events *events, const struct hfc_signals *signals, int64_t lost_ms,
                    const char *why)
{
    char at[16], after[32];

    hfc_wall_clock(at, sizeof at, "%H:%M:%S", lost_ms);
    hfc_say("the lock '%s' was lost at %s after %s: %s (%s)", events->name, at,
            hfc_short_time(after, sizeof after, lost_ms - events->since_ms), why, events->url);
    log_event(events, "lost", "held_ms", lost_ms - events->since_ms, why);
    call(events, signals, why);
}
