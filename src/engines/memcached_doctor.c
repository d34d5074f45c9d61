/* SPDX-License-Identifier: MIT
 *
 * memcached_doctor.c: what the server's settings and figures say of the records that it keeps for us. Two questions,
 * "stats settings" and "stats"; nothing is written.
 */
#include "engines/memcached.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASKED 5
#define CLOCKS_APART_S 3
#define FULL_PERCENT 90

struct doctor {
    const struct hfi_examination *examination;
    const char *settings, *figures; /* "STAT NAME VALUE" in lines; "evictions" is in both */
    hfi_time slowest_ns;
    int64_t here_s; /* our time when it was asked */
};

/* What stands behind a name; "" if it is not there. */
static const char *value_of(const char *answer, const char *name)
{
    char line[64];
    const int length = snprintf(line, sizeof line, "STAT %s ", name);
    const char *at = strstr(answer, line);
    return at ? at + length : "";
}

static int64_t number(const struct doctor *doctor, const char *figure)
{
    return strtoll(value_of(doctor->figures, figure), NULL, 10);
}

static bool is(const struct doctor *doctor, const char *setting, const char *value)
{
    const char *found = value_of(doctor->settings, setting);
    const size_t length = strlen(value);
    return strncmp(found, value, length) == 0 && found[length] == '\r';
}

static void look_at_room(const struct doctor *doctor)
{
    const int64_t used = number(doctor, "bytes"), most = number(doctor, "limit_maxbytes");
    const int64_t removed = number(doctor, "evictions");
    const bool is_full = most > 0 && used / (most / 100 + 1) >= FULL_PERCENT;
    if (is(doctor, "evictions", "on") && removed > 0)
        hfi_finding(doctor->examination, HF_FINDING_BROKEN, "evictions",
                    "the server has removed records to make room, and removes those of held locks like any other\n"
                    "%" PRId64 " evictions, with %" PRId64 " of %" PRId64 " bytes used (stats)\n"
                    "a server for locks alone, started with -M",
                    removed, used, most);
    else if (is(doctor, "evictions", "on"))
        hfi_finding(doctor->examination, HF_FINDING_RISK, "evictions",
                    "when memory is full the server removes records to make room, also of locks that are held\n"
                    "evictions on, %" PRId64 " of %" PRId64 " bytes used (stats settings, stats)\n"
                    "start memcached with -M; best a server for locks alone",
                    used, most);
    else if (is_full)
        hfi_finding(doctor->examination, HF_FINDING_RISK, "evictions",
                    "memory is nearly full: soon no lock is granted, and those that are held cannot be renewed\n"
                    "%" PRId64 " of %" PRId64 " bytes used, evictions off (stats, stats settings)\nmore memory: -m",
                    used, most);
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "evictions",
                    "the server removes nothing by itself, and there is room\n"
                    "%" PRId64 " of %" PRId64 " bytes used, evictions off (stats, stats settings)",
                    used, most);
}

static void look_at_flush(const struct doctor *doctor)
{
    const int64_t flushes = number(doctor, "cmd_flush");
    if (flushes > 0)
        hfi_finding(doctor->examination, HF_FINDING_RISK, "flush_all",
                    "somebody uses it, and each time all locks are free at once, under their holders\n"
                    "%" PRId64 " times since the server was started (stats: cmd_flush)\n"
                    "start memcached with -F, and give what is flushed a server of its own",
                    flushes);
    else if (is(doctor, "flush_enabled", "yes"))
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "flush_all",
                    "whoever can connect may free all locks at once by it; nobody has since the start\n"
                    "flush_enabled yes (stats settings)\nstart memcached with -F");
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "flush_all",
                    "nobody can free all locks at once\nflush_enabled no (stats settings)");
}

/* There is nobody to ask for the way to the disk: there is none. */
static void look_at_memory(const struct doctor *doctor)
{
    hfi_finding(doctor->examination, HF_FINDING_NOTE, "restart",
                "all is in memory: a restart frees all locks, and who holds one learns of it when it renews\n"
                "up for %" PRId64 " s (stats)\nwhere that must not be, a store that keeps what it is told",
                number(doctor, "uptime"));
}

static void look_at_connections(const struct doctor *doctor)
{
    const int64_t most = number(doctor, "max_connections") - number(doctor, "reserved_fds");
    const int64_t now = number(doctor, "curr_connections");
    const int64_t refused = number(doctor, "rejected_connections") + number(doctor, "listen_disabled_num");
    if (refused > 0 || now * 10 >= most * 9)
        hfi_finding(doctor->examination, HF_FINDING_RISK, "connections",
                    "the server %s: who needs one to renew then loses its lock\n"
                    "%" PRId64 " of %" PRId64 " are taken, %" PRId64 " were refused or made to wait (stats)\nmore: -c",
                    refused > 0 ? "had no connection left, and may have none again" : "will soon refuse new ones", now,
                    most, refused);
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "connections",
                    "there is room for more\n%" PRId64 " of %" PRId64 " are taken (stats)", now, most);
}

static void look_at_time(const struct doctor *doctor)
{
    const int64_t ahead_s = number(doctor, "time") - doctor->here_s;
    const int64_t off_s = ahead_s < 0 ? -ahead_s : ahead_s;
    if (off_s > CLOCKS_APART_S + doctor->slowest_ns / HFI_SECOND)
        hfi_finding(
            doctor->examination, HF_FINDING_NOTE, "clock",
            "tokens begin with the server's clock at its start: if that is set back before the next one they fall\n"
            "it is %" PRId64 " s %s ours (stats: time)\nhave NTP keep both clocks",
            off_s, ahead_s < 0 ? "behind" : "ahead of");
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "clock",
                    "it agrees with that of this machine\nwithin %d s (stats: time)", CLOCKS_APART_S);
}

static void look_at_latency(const struct doctor *doctor)
{
    const uint32_t ttl_ms = doctor->examination->ttl_ms;
    const int64_t slowest_ms = doctor->slowest_ns / HFI_MS;
    if (slowest_ms > ttl_ms / 6)
        hfi_finding(doctor->examination, HF_FINDING_RISK, "latency",
                    "a renewal, which comes at a third of the time-to-live and is tried again, may come too late\n"
                    "the slowest of %d answers took %" PRId64 " ms, with %u ms to live\na longer --ttl",
                    ASKED, slowest_ms, ttl_ms);
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "latency",
                    "renewals have the time to be tried again\n"
                    "the slowest of %d answers took %" PRId64 " ms, with %u ms to live",
                    ASKED, slowest_ms, ttl_ms);
    if (ttl_ms * HFI_MS < 2 * MEMCACHED_BEHIND)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "time-to-live",
                    "a lock whose holder has died is free up to %d s after its time\n"
                    "the server counts whole seconds, with %u ms to live\nif that is much: a store that counts in less",
                    (int)(MEMCACHED_BEHIND / HFI_SECOND) + 1, ttl_ms);
}

/* A server that grants locks at all is of a good version and was started without -C: else it is not opened. */
hf_status hfi_memcached_examine(void *store, const struct hfi_examination *examination, hfi_time deadline_ns,
                                hf_error *err)
{
    struct hfi_talks *talks = store;
    struct doctor doctor = { .examination = examination };
    struct hfi_talk *talk;
    hf_status status = hfi_talk_begin(&talk, talks, deadline_ns, err);
    if (status != HF_OK)
        return status;
    talk->silence = HF_UNAVAILABLE;
    for (int i = 0; i < ASKED && status == HF_OK; i++) {
        const hfi_time begun = talks->env->now_ns();
        doctor.here_s = time(NULL);
        hfi_talk_add(talk, "stats settings\r\nstats\r\n");
        status = hfi_talk_ask(talk, 2);
        const hfi_time took = talks->env->now_ns() - begun;
        doctor.slowest_ns = took > doctor.slowest_ns ? took : doctor.slowest_ns;
    }
    doctor.settings = talk->in;
    doctor.figures = strstr(talk->in, "STAT pid ");
    if (status == HF_OK && !doctor.figures) {
        status = hfi_fail(err, HF_UNAVAILABLE, 0, "%.100s does not show its figures: stats", talks->host);
        talk->is_broken = true;
    }
    if (status == HF_OK) {
        look_at_latency(&doctor);
        look_at_room(&doctor);
        look_at_flush(&doctor);
        look_at_memory(&doctor);
        look_at_connections(&doctor);
        look_at_time(&doctor);
    }
    return hfi_talk_end(talk, status);
}
