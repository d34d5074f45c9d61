/* SPDX-License-Identifier: MIT
 *
 * message.c: what the command says on stderr, and the exit code that goes with it.
 */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static void write_line(const char *text, const char *after)
{
    char shown[2048];
    char line[2304];
    int length = snprintf(line, sizeof line, "holdfast: %s%s\n", hfc_printable(shown, sizeof shown, text), after);

    /* One write(2), so that lines of several processes do not mix; there is nowhere to report its failure to. */
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

void hfc_say(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_line(text, "");
}

int hfc_usage(const char *command, const char *format, ...)
{
    char text[1024], after[64];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(after, sizeof after, " (see `holdfast %s%s--help`)", command ? command : "", command ? " " : "");
    write_line(text, after);
    return HFC_EXIT_USAGE;
}

int hfc_exit_code(hf_status status)
{
    switch (status) {
    case HF_OK:
        return HFC_EXIT_OK;
    case HF_BUSY:
    case HF_TIMEOUT:
    case HF_CANCELED:
    case HF_DONE:
        return HFC_EXIT_BUSY;
    case HF_LOST:
        return HFC_EXIT_LOST;
    case HF_UNAVAILABLE:
    case HF_UNKNOWN:
        return HFC_EXIT_UNAVAILABLE;
    case HF_DENIED:
        return HFC_EXIT_DENIED;
    case HF_INVALID:
    case HF_UNSUPPORTED:
        return HFC_EXIT_USAGE;
    case HF_NOMEM:
    case HF_INTERNAL:
        break;
    }
    return HFC_EXIT_INTERNAL;
}

int hfc_fail(const hf_error *err)
{
    hfc_say("%s", err->message);
    return hfc_exit_code(err->status);
}

int hfc_bad_option(const char *command, char **argv)
{
    const char *word = argv[optind - 1];

    /* getopt_long() leaves in optopt 0 for a long option that it does not know, else what identifies the option. The
     * letter of a short one may stand in the middle of a word that optind does not point behind yet. */
    if (optopt > 0 && optopt < HFC_OPT_REACH && strncmp(word, "--", 2) != 0)
        return hfc_usage(command, "option '-%c' is unknown, or lacks its argument", optopt);
    if (optopt == 0)
        return hfc_usage(command, "unknown option '%s'", word);
    return hfc_usage(command, "option '%s' %s", word, strchr(word, '=') ? "takes no argument" : "lacks its argument");
}

int hfc_finish_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return HFC_EXIT_OK;
    hfc_say("cannot write the output: %s", strerror(errno));
    return HFC_EXIT_INTERNAL;
}
