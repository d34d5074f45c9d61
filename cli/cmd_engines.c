/* SPDX-License-Identifier: MIT
 *
 * cmd_engines.c: `holdfast engines`: what can keep locks, what each engine can and cannot do, and what is missing.
 */
#include "cli.h"

#include <getopt.h>
#include <string.h>

static const struct {
    uint32_t bit;
    const char *word;    /* in JSON */
    const char *title;   /* the same over the column, in two lines that break at the bar */
    const char *meaning; /* of a yes */
} capabilities[] = {
    { HF_CAP_EXPIRY, "expiry", "expiry", "ends a lock that is not renewed, also that of a living holder" },
    { HF_CAP_BOUND, "bound", "bound", "frees a lock at once when its holder dies" },
    { HF_CAP_FAIR, "fair", "fair", "serves waiters in order of arrival" },
    { HF_CAP_WAKE_ONE, "wake-one", "wake|one", "a release wakes one waiter, and not all" },
    { HF_CAP_PROCESSES, "processes", "pro|cesses", "excludes other processes of this machine" },
    { HF_CAP_MACHINES, "machines", "ma|chines", "excludes other machines" },
    { HF_CAP_DURABLE_TOKEN, "durable-token", "durable|token", "tokens grow through a restart of everything" },
    { HF_CAP_INSPECT, "inspect", "inspect", "`ls` and `status` show who holds what" },
    { HF_CAP_BREAK, "break", "break", "`break` takes a lock away" },
    { HF_CAP_GUARD, "guard", "guard", "refuses writers whose lock was lost, by hf_guard()" },
    { HF_CAP_ONCE, "once", "once", "remembers that the work of a lock was done, for `run --once-per`" },
};
#define CAPABILITIES (sizeof capabilities / sizeof capabilities[0])

/* Of the longest, zookeeper: with it a row has 79 columns. */
#define NAME_WIDTH 9

enum form { JSON, MATRIX, SUMMARIES };

struct listing {
    enum form form;
    bool first;
};

static int print_help(void)
{
    fputs("usage: holdfast engines [--url[=URL]] [--json]\n"
          "\n"
          "Lists what can keep locks: what each engine can and cannot do, its URLs, for those that are not present\n"
          "what to install, and what the words over the columns mean.\n"
          "\n"
          "      --url[=URL]  say instead which store a command would use, and why; passwords are left out\n"
          "      --reach processes|machines  whom the store must exclude; see `holdfast --help`\n"
          "      --json       print an array of objects, or with --url one object\n"
          "      --help       print this\n",
          stdout);
    return hfc_finish_output();
}

/* As wide as the longer half of its title. */
static size_t column_width(size_t capability)
{
    const char *title = capabilities[capability].title;
    size_t before = strcspn(title, "|");
    size_t after = title[before] == '\0' ? 0 : strlen(title + before + 1);

    return before > after ? before : after;
}

/* A cell of the matrix. What fills it up is printed before the next one, so that no line ends in blanks. */
static void print_cell(const char *text, size_t length, size_t width, size_t *blanks)
{
    if (length > 0) {
        printf("%*s%.*s", (int)*blanks, "", (int)length, text);
        *blanks = 0;
    }
    *blanks += width + 1 - length;
}

static void print_headings(void)
{
    size_t blanks = NAME_WIDTH + 1;

    for (size_t i = 0; i < CAPABILITIES; i++)
        print_cell(capabilities[i].title, strcspn(capabilities[i].title, "|"), column_width(i), &blanks);
    putchar('\n');
    blanks = NAME_WIDTH + 1;
    for (size_t i = 0; i < CAPABILITIES; i++) {
        const char *bar = strchr(capabilities[i].title, '|');
        const char *second = bar == NULL ? "" : bar + 1;

        print_cell(second, strlen(second), column_width(i), &blanks);
    }
    putchar('\n');
}

static void print_row(const hf_engine_info *info)
{
    size_t blanks = 1;

    printf("%-*s", NAME_WIDTH, info->name);
    if (!info->present)
        fputs(" not present", stdout);
    for (size_t i = 0; i < CAPABILITIES && info->present; i++) {
        const char *mark = (info->caps & capabilities[i].bit) != 0 ? "yes" : "-";

        print_cell(mark, strlen(mark), column_width(i), &blanks);
    }
    putchar('\n');
}

static void print_summary(const hf_engine_info *info)
{
    printf("%s (%s): %s\n", info->name, info->schemes, info->summary);
    if (!info->present)
        printf("  not present: %s\n", info->missing);
}

static void print_meanings(void)
{
    for (size_t i = 0; i < CAPABILITIES; i++)
        printf("%-13s  %s\n", capabilities[i].word, capabilities[i].meaning);
}

/* "a: b:" as an array. */
static void print_json_schemes(const char *schemes)
{
    char scheme[64];
    bool first = true;

    fputc('[', stdout);
    while (*schemes != '\0') {
        size_t length = strcspn(schemes, " ");

        if (length > 0 && length < sizeof scheme) {
            memcpy(scheme, schemes, length);
            scheme[length] = '\0';
            fputs(first ? "" : ", ", stdout);
            hfc_json_string(stdout, scheme);
            first = false;
        }
        schemes += length;
        schemes += strspn(schemes, " ");
    }
    fputc(']', stdout);
}

static void print_json_capabilities(uint32_t caps, bool wanted)
{
    bool first = true;

    fputc('[', stdout);
    for (size_t i = 0; i < CAPABILITIES; i++)
        if (((caps & capabilities[i].bit) != 0) == wanted) {
            fputs(first ? "" : ", ", stdout);
            hfc_json_string(stdout, capabilities[i].word);
            first = false;
        }
    fputc(']', stdout);
}

static void print_json_engine(const hf_engine_info *info, bool first_engine)
{
    bool first = true;

    fputs(first_engine ? "\n  {" : ",\n  {", stdout);
    hfc_json_key(stdout, "name", &first);
    hfc_json_string(stdout, info->name);
    hfc_json_key(stdout, "schemes", &first);
    print_json_schemes(info->schemes);
    hfc_json_key(stdout, "summary", &first);
    hfc_json_string(stdout, info->summary);
    hfc_json_key(stdout, "present", &first);
    fputs(info->present ? "true" : "false", stdout);
    hfc_json_key(stdout, "missing", &first);
    hfc_json_string(stdout, info->present ? NULL : info->missing);
    /* Of an engine that is not present nothing is known. */
    hfc_json_key(stdout, "can", &first);
    if (info->present)
        print_json_capabilities(info->caps, true);
    else
        fputs("null", stdout);
    hfc_json_key(stdout, "cannot", &first);
    if (info->present)
        print_json_capabilities(info->caps, false);
    else
        fputs("null", stdout);
    fputc('}', stdout);
}

static void each_engine(const hf_engine_info *info, void *arg)
{
    struct listing *listing = arg;

    if (listing->form == JSON)
        print_json_engine(info, listing->first);
    else if (listing->form == MATRIX)
        print_row(info);
    else
        print_summary(info);
    listing->first = false;
}

/* --- which of them --- */

struct shown_setting {
    const char *key;
    const char *value; /* NULL: none */
    char from[4200];
};

static void print_settings(const struct shown_setting shown[HFC_SETTINGS], bool json)
{
    char text[4096];
    bool first = true;

    if (json)
        fputc('{', stdout);
    for (int id = 0; id < HFC_SETTINGS; id++) {
        if (!json && shown[id].value != NULL)
            printf("%-13s  %s  (%s)\n", shown[id].key, hfc_printable(text, sizeof text, shown[id].value),
                   shown[id].from);
        if (!json)
            continue;
        hfc_json_key(stdout, shown[id].key, &first);
        hfc_json_string(stdout, shown[id].value);
        snprintf(text, sizeof text, "%s_from", shown[id].key);
        hfc_json_key(stdout, text, &first);
        hfc_json_string(stdout, shown[id].value != NULL ? shown[id].from : NULL);
    }
    if (json) {
        hfc_json_key(stdout, "files", &first);
        fputc('[', stdout);
        hfc_json_string(stdout, hfc_settings_path(HFC_USER_FILE));
        fputs(", ", stdout);
        hfc_json_string(stdout, hfc_settings_path(HFC_SYSTEM_FILE));
        fputs("]}\n", stdout);
    } else {
        printf("%-13s  %s %s\n", "files", hfc_settings_path(HFC_USER_FILE), hfc_settings_path(HFC_SYSTEM_FILE));
    }
}

static int show_settings(struct hfc_globals *globals, bool json)
{
    static struct shown_setting shown[HFC_SETTINGS] = {
        [HFC_URL] = { .key = "url" },
        [HFC_PASSWORD_FILE] = { .key = "password_file" },
        [HFC_TTL] = { .key = "ttl", .value = "30s", .from = "default" },
        [HFC_REACH] = { .key = "reach", .value = "processes", .from = "default" },
    };
    char url[4096];
    int code = hfc_configure(globals);

    if (code != HFC_EXIT_OK)
        return code;
    for (int id = 0; id < HFC_SETTINGS; id++) {
        if (globals->settings[id].value == NULL)
            continue;
        shown[id].value = globals->settings[id].value;
        hfc_setting_from(shown[id].from, sizeof shown[id].from, globals, (enum hfc_setting_id)id);
    }
    shown[HFC_URL].value = hfc_shown_url(url, sizeof url, globals->url);
    print_settings(shown, json);
    return hfc_finish_output();
}

int hfc_engines_main(struct hfc_globals *globals, int argc, char **argv)
{
    static const struct option options[] = {
        { "url", optional_argument, NULL, 'U' },
        { "reach", required_argument, NULL, HFC_OPT_REACH },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    struct listing listing = { globals->json ? JSON : MATRIX, true };
    bool url_wanted = false;
    int option;

    while ((option = getopt_long(argc, argv, ":h" HFC_STORE_LETTERS, options, NULL)) != -1) {
        url_wanted |= option == 'U';
        int code =
            option == 'U' && optarg == NULL ? -1 : hfc_store_option(globals, "engines", option == 'U' ? 'u' : option);
        if (code >= 0)
            return code;
        if (option == 'h')
            return print_help();
        if (code == -2 && option != 'j')
            return hfc_bad_option("engines", argv);
        if (option == 'j')
            listing.form = JSON;
    }
    if (optind < argc)
        return hfc_usage("engines", "too many arguments: '%s'", argv[optind]);
    if (url_wanted)
        return show_settings(globals, listing.form == JSON);
    if (listing.form == JSON) {
        fputc('[', stdout);
        hf_engines(each_engine, &listing);
        fputs("\n]\n", stdout);
        return hfc_finish_output();
    }
    print_headings();
    hf_engines(each_engine, &listing);
    putchar('\n');
    listing.form = SUMMARIES;
    hf_engines(each_engine, &listing);
    putchar('\n');
    print_meanings();
    return hfc_finish_output();
}
