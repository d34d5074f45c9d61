/* SPDX-License-Identifier: MIT
 *
 * request.c: the options about the lock itself, which `run` and `hold` share.
 */
#include "run.h"

#include <getopt.h>
#include <stdlib.h>
#include <unistd.h>

#define NOTE_MOST 120 /* of the library */

const char *hfc_typed(char buffer[HFC_TYPED], const struct option *options, int index, int option)
{
    if (index >= 0)
        snprintf(buffer, HFC_TYPED, "--%s", options[index].name);
    else
        snprintf(buffer, HFC_TYPED, "-%c", option);
    return buffer;
}

int hfc_duration_option(const char *command, const char *typed, bool zero_allowed, uint32_t *ms)
{
    const char *why;

    if (!hfc_duration(optarg, ms, &why))
        return hfc_usage(command, "%s: '%s' %s", typed, optarg, why);
    if (*ms == 0 && !zero_allowed)
        return hfc_usage(command, "%s: '%s' is no time at all", typed, optarg);
    return -1;
}

int hfc_request_option(struct hfc_acquire *request, const char *command, const char *typed, int option)
{
    hf_options *lock = &request->options;
    const char *why;
    long code;
    int result;

    switch (option) {
    case 'n':
        request->wait = false;
        return -1;
    case 'w':
        result = hfc_duration_option(command, typed, true, &lock->wait_ms);
        request->wait = lock->wait_ms > 0;
        return result;
    case 't':
        return hfc_ttl(optarg, &lock->ttl_ms, &why) ? -1 : hfc_usage(command, "%s: '%s' %s", typed, optarg, why);
    case 'E':
        if (!hfc_number(optarg, 0, 255, &code))
            return hfc_usage(command, "%s: '%s' is not a number from 0 to 255", typed, optarg);
        request->conflict_code = (int)code;
        return -1;
    case 'q':
        request->quiet = true;
        return -1;
    case HFC_OPT_VERBOSE:
        request->verbose = true;
        return -1;
    case HFC_OPT_LOG:
        if (*optarg == '\0')
            return hfc_usage(command, "%s: neither syslog nor journal nor a file is named", typed);
        request->events.log = optarg;
        return -1;
    case HFC_OPT_ON_LOST_EXEC:
        request->events.on_lost_exec = optarg;
        return -1;
    case HFC_OPT_NO_RENEW:
        lock->renew = HF_RENEW_OFF;
        return -1;
    case HFC_OPT_MAX_HOLD:
        return hfc_duration_option(command, typed, false, &lock->max_hold_ms);
    case HFC_OPT_NOTE:
        lock->note = optarg;
        return -1;
    default:
        return -2;
    }
}

void hfc_default_note(struct hfc_acquire *request, const char *command)
{
    static char note[NOTE_MOST + 1];
    char text[512], number[24];
    const char *user = getenv("LOGNAME");

    if (request->options.note != NULL)
        return;
    if (user == NULL || *user == '\0')
        user = getenv("USER");
    if (user == NULL || *user == '\0') {
        snprintf(number, sizeof number, "%lld", (long long)geteuid());
        user = number;
    }
    snprintf(text, sizeof text, "%s%s%s", user, command != NULL ? ": " : "", command != NULL ? command : "");
    request->options.note = hfc_printable(note, sizeof note, text);
}

/* Nobody has to hear that one of several hosts is enough. */
static int conflict_code(const struct hfc_acquire *request)
{
    if (request->conflict_code >= 0)
        return request->conflict_code;
    return request->options.once_per_ms != 0 ? HFC_EXIT_OK : HFC_EXIT_BUSY;
}

int hfc_done_before(const struct hfc_acquire *request, hf_client *client, const hf_error *err)
{
    hfc_event_done(&request->events, err->message);
    if (!request->quiet && (request->verbose || isatty(STDERR_FILENO)))
        hfc_say("'%s' was %s (%s)", request->name, err->message, hf_url(client));
    return conflict_code(request);
}

int hfc_not_acquired(const struct hfc_acquire *request, hf_client *client, const hf_error *err)
{
    hfc_event_not_acquired(&request->events, err->message);
    /* Who exits with 0 then has expected it: no mail from cron. */
    if (!request->quiet && conflict_code(request) != 0)
        hfc_say("the lock '%s' was not acquired: %s (%s)", request->name, err->message, hf_url(client));
    return conflict_code(request);
}

void hfc_say_held(const struct hfc_acquire *request, hf_client *client)
{
    if (!request->quiet && isatty(STDERR_FILENO))
        hfc_say("the lock '%s' is held in %s", request->name, hf_url(client));
}
