/* SPDX-License-Identifier: MIT
 *
 * cmd_doctor.c: `holdfast doctor`: what in a deployment could lose a lock, and what mends it. The engine looks at its
 * store, and doctor_here.c at what lies between it and us; nothing is changed but one lock of our own, and what any
 * client makes that is opened.
 */
#include "doctor.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEFAULT_TTL_MS 30000 /* of the library */

/* By the worst that was found, beside those of sysexits.h for a store that cannot be asked. */
enum { EXIT_RISK = 1, EXIT_BROKEN = 2 };

static const struct {
    const char *word;
    const char *one, *many; /* in the summary */
    const char *color;
} levels[] = {
    [HF_FINDING_OK] = { "ok", "ok", "ok", "\033[32m" },
    [HF_FINDING_NOTE] = { "note", "note", "notes", "\033[36m" },
    [HF_FINDING_RISK] = { "risk", "risk", "risks", "\033[33m" },
    [HF_FINDING_BROKEN] = { "broken", "broken", "broken", "\033[31m" },
};
#define LEVELS (sizeof levels / sizeof levels[0])

static int print_help(void)
{
    fputs(
        "usage: holdfast doctor [URL | -u URL] [--ttl DURATION] [--read-only] [--json]\n"
        "\n"
        "Looks at a store, at the way it is set up and at the way to it, and says what could lose a lock, how, and\n"
        "the setting that mends it. Changes nothing, but for one lock of its own, '" HFC_DOCTOR_LOCK "', which is\n"
        "taken, renewed and released, and the tables and folders that any client makes.\n"
        "\n"
        "Exits with 0 if nothing is worse than a note, with 1 if there is a risk, with 2 if something is broken. Any\n"
        "other code means that the store could not be asked: 69 if it is not reachable, 77 if it refuses us.\n"
        "\n"
        "  -t, --ttl DURATION  the time-to-live that your locks have; default: that of holdfast.conf, or 30s\n"
        "      --read-only     take no lock, make no tables\n"
        "      --json          print one object\n"
        "  -u, --url URL       where the locks are kept; see `holdfast --help`\n"
        "      --reach processes|machines  whom the store must exclude; see there too\n"
        "      --help          print this\n",
        stdout);
    return hfc_finish_output();
}

/* --- findings --- */

static void print_json(const hf_finding *finding, bool first_finding)
{
    bool first = true;

    fputs(first_finding ? "\n  {" : ",\n  {", stdout);
    hfc_json_key(stdout, "level", &first);
    hfc_json_string(stdout, levels[finding->level].word);
    hfc_json_key(stdout, "what", &first);
    hfc_json_string(stdout, finding->what);
    hfc_json_key(stdout, "sentence", &first);
    hfc_json_string(stdout, finding->sentence);
    hfc_json_key(stdout, "evidence", &first);
    hfc_json_string(stdout, finding->evidence[0] != '\0' ? finding->evidence : NULL);
    hfc_json_key(stdout, "remedy", &first);
    hfc_json_string(stdout, finding->remedy[0] != '\0' ? finding->remedy : NULL);
    fputc('}', stdout);
}

static void print_plain(const struct hfc_doctor *doctor, const hf_finding *finding)
{
    char text[4 * 1024];
    const char *color = doctor->colored ? levels[finding->level].color : "";

    printf("%s%-6s%s  %s: ", color, levels[finding->level].word, doctor->colored ? "\033[0m" : "", finding->what);
    puts(hfc_printable(text, sizeof text, finding->sentence));
    if (finding->level == HF_FINDING_OK)
        return;
    if (finding->evidence[0] != '\0')
        printf("        found:  %s\n", hfc_printable(text, sizeof text, finding->evidence));
    if (finding->remedy[0] != '\0')
        printf("        mend:   %s\n", hfc_printable(text, sizeof text, finding->remedy));
}

static unsigned count(const struct hfc_doctor *doctor)
{
    unsigned sum = 0;

    for (size_t i = 0; i < LEVELS; i++)
        sum += doctor->counts[i];
    return sum;
}

void hfc_doctor_take(const hf_finding *finding, void *arg)
{
    struct hfc_doctor *doctor = arg;

    if (doctor->json)
        print_json(finding, count(doctor) == 0);
    else
        print_plain(doctor, finding);
    doctor->counts[finding->level]++;
    fflush(stdout); /* what comes next may take its time */
}

void hfc_doctor_say(struct hfc_doctor *doctor, hf_finding_level level, const char *what, const char *format, ...)
{
    char text[1024];
    char *line[3], *rest = text;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int i = 0; i < 3; i++) {
        line[i] = rest;
        rest += strcspn(rest, "\n");
        if (*rest != '\0')
            *rest++ = '\0';
    }
    const hf_finding finding = { .size = sizeof finding,
                                 .level = level,
                                 .what = what,
                                 .sentence = line[0],
                                 .evidence = line[1],
                                 .remedy = line[2] };
    hfc_doctor_take(&finding, doctor);
}

/* --- beginning and end --- */

static void begin(const struct hfc_doctor *doctor, const char *url, bool read_only)
{
    char shown[1024];
    bool first = true;

    hfc_printable(shown, sizeof shown, url);
    if (!doctor->json) {
        printf("%s, with locks of %.10g s\n", shown, doctor->ttl_ms / 1000.0);
        if (!read_only)
            puts("the lock '" HFC_DOCTOR_LOCK "' is taken for a moment; --read-only does without");
        return;
    }
    fputc('{', stdout);
    hfc_json_key(stdout, "url", &first);
    hfc_json_string(stdout, url);
    hfc_json_key(stdout, "ttl_ms", &first);
    printf("%u", (unsigned)doctor->ttl_ms);
    hfc_json_key(stdout, "lock", &first);
    hfc_json_string(stdout, read_only ? NULL : HFC_DOCTOR_LOCK);
    hfc_json_key(stdout, "findings", &first);
    fputc('[', stdout);
}

/* What was found, and the exit code: `code` if the store could not be asked. */
static int end(const struct hfc_doctor *doctor, int code)
{
    bool first = true;
    size_t worst = 0;

    if (doctor->json)
        fputs("\n]", stdout);
    for (size_t i = 0; i < LEVELS; i++) {
        const unsigned number = doctor->counts[i];

        worst = number > 0 ? i : worst;
        if (doctor->json) {
            fputs(", ", stdout);
            hfc_json_string(stdout, levels[i].word);
            printf(": %u", number);
        } else if (number > 0) {
            printf("%s%u %s", first ? "" : ", ", number, number == 1 ? levels[i].one : levels[i].many);
            first = false;
        }
    }
    fputs(doctor->json ? "}\n" : "\n", stdout);
    const int printed = hfc_finish_output();
    if (printed != HFC_EXIT_OK)
        return printed;
    if (code != HFC_EXIT_OK)
        return code;
    return worst == HF_FINDING_BROKEN ? EXIT_BROKEN : worst == HF_FINDING_RISK ? EXIT_RISK : HFC_EXIT_OK;
}

static void say_not_asked(struct hfc_doctor *doctor, const hf_error *err)
{
    hfc_doctor_say(doctor, HF_FINDING_BROKEN, "store", "%s: nobody here gets a lock\n%s\n%s",
                   err->status == HF_DENIED ? "it refuses us" : "it cannot be asked", err->message,
                   err->status == HF_DENIED        ? "see Rights in the manual page of the engine"
                   : err->status == HF_UNSUPPORTED ? "install what is named there"
                                                   : "see that it runs, and that nothing is in the way to it");
}

/* --- the command --- */

static int examine(struct hfc_doctor *doctor, hf_client *client, bool read_only)
{
    hf_error err = { .message = "" };
    hf_status status = hf_examine(client, doctor->ttl_ms, hfc_doctor_take, doctor, &err);

    if (status == HF_UNSUPPORTED)
        hfc_doctor_say(doctor, HF_FINDING_NOTE, "store", "%s", err.message);
    else if (status != HF_OK)
        say_not_asked(doctor, &err);
    if (status == HF_OK || status == HF_UNSUPPORTED)
        status = hfc_doctor_latency(doctor, client);
    /* A lock that cannot be had is what is broken, and not that the store could not be asked. */
    if (status == HF_OK && !read_only)
        hfc_doctor_lock(doctor, client);
    return hfc_exit_code(status);
}

static int parse(struct hfc_globals *globals, int argc, char **argv, bool *read_only)
{
    enum { OPT_JSON = HFC_OPT_FIRST, OPT_READ_ONLY };
    static const struct option options[] = {
        HFC_STORE_OPTIONS,
        { "json", no_argument, NULL, OPT_JSON },
        { "ttl", required_argument, NULL, 't' },
        { "read-only", no_argument, NULL, OPT_READ_ONLY },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    const char *why;
    uint32_t ttl_ms = 0;
    int option;

    while ((option = getopt_long(argc, argv, ":ht:" HFC_STORE_LETTERS, options, NULL)) != -1) {
        int code = hfc_store_option(globals, "doctor", option);
        if (code >= 0)
            return code;
        if (option == 'h')
            return print_help();
        if (option == 't' && !hfc_ttl(optarg, &ttl_ms, &why))
            return hfc_usage("doctor", "--ttl: '%s' %s", optarg, why);
        if (option == OPT_JSON)
            globals->json = true;
        else if (option == OPT_READ_ONLY)
            *read_only = true;
        else if (code == -2 && option != 't')
            return hfc_bad_option("doctor", argv);
    }
    if (argc - optind > 1)
        return hfc_usage("doctor", "too many arguments: '%s'", argv[optind + 1]);
    if (optind < argc) { /* as if it stood behind -u */
        optarg = argv[optind];
        int code = hfc_store_option(globals, "doctor", 'u');
        if (code >= 0)
            return code;
    }
    int code = hfc_configure(globals);
    if (code == HFC_EXIT_OK && ttl_ms != 0)
        globals->ttl_ms = ttl_ms;
    return code == HFC_EXIT_OK ? -1 : code;
}

/* Any client of a database makes the tables that are missing there; whoever only reads does not. To be freed; NULL: no
 * memory. */
static char *without_making(const char *url)
{
    static const char *const makers[] = { "postgres:", "postgresql:", "mysql:", "mariadb:", "sqlite:" };
    char *changed = NULL;
    bool makes = false;

    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++)
        makes |= strncasecmp(url, makers[i], strlen(makers[i])) == 0;
    if (!makes)
        return strdup(url);
    const char *slashes = strchr(url, ':')[1] == '\0' ? "//" : "";
    if (asprintf(&changed, "%s%s%ccreate=no", url, slashes, strchr(url, '?') != NULL ? '&' : '?') < 0)
        return NULL;
    return changed;
}

static int open_reading(hf_client **client, const struct hfc_globals *globals, hf_error *err)
{
    struct hfc_globals changed = *globals;
    char *url = without_making(globals->url);

    changed.url = url;
    if (url == NULL)
        hfc_say("no memory for a URL");
    const int code = url != NULL ? hfc_open_quietly(client, &changed, err) : HFC_EXIT_INTERNAL;
    free(url);
    return code;
}

int hfc_doctor_main(struct hfc_globals *globals, int argc, char **argv)
{
    hf_client *client = NULL;
    hf_error err = { .status = HF_OK };
    bool read_only = false;
    char url[1024];
    const char *no_color = getenv("NO_COLOR");
    int code = parse(globals, argc, argv, &read_only);

    if (code >= 0)
        return code;
    struct hfc_doctor doctor = { .json = globals->json,
                                 .colored = isatty(STDOUT_FILENO) && (no_color == NULL || *no_color == '\0'),
                                 .ttl_ms = globals->ttl_ms != 0 ? globals->ttl_ms : DEFAULT_TTL_MS };
    code = read_only ? open_reading(&client, globals, &err) : hfc_open_quietly(&client, globals, &err);
    if (code == HFC_EXIT_USAGE || (code != HFC_EXIT_OK && err.status == HF_OK)) {
        if (err.status != HF_OK)
            hfc_say("%s", err.message);
        return code;
    }
    hfc_shown_url(url, sizeof url, globals->url);
    begin(&doctor, client != NULL ? hf_url(client) : url, read_only);
    if (client != NULL)
        code = examine(&doctor, client, read_only);
    else
        say_not_asked(&doctor, &err);
    hfc_doctor_here(&doctor, client != NULL ? hf_url(client) : url);
    hf_close(client);
    return end(&doctor, code);
}
