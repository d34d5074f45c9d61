/* SPDX-License-Identifier: MIT
 *
 * cmd_ls.c: `holdfast ls` and `holdfast status`: who holds what, and who has done it.
 */
#include "cli.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct locks {
    hf_info *lock; /* with strings of our own */
    size_t count;
    size_t room;
    const char *only; /* NULL: all; else the one name that is wanted */
    bool done;        /* not who holds them, but who has done their work */
    bool no_memory;
    char store[1024]; /* its URL, to be shown */
};

static void free_waiting(const hf_info *info)
{
    for (int64_t i = 0; info->waiting != NULL && i < info->waiters; i++)
        free((char *)info->waiting[i]);
    free((void *)info->waiting);
}

/* The waiters' texts as strings of our own; NULL if there are none to be had. */
static const char *const *copy_waiting(const hf_info *info, bool *no_memory)
{
    if (info->waiting == NULL || info->waiters <= 0)
        return NULL;
    const char **copy = calloc((size_t)info->waiters, sizeof *copy);
    *no_memory |= copy == NULL;
    for (int64_t i = 0; copy != NULL && i < info->waiters; i++) {
        copy[i] = strdup(info->waiting[i]);
        *no_memory |= copy[i] == NULL;
    }
    return copy;
}

static void free_locks(struct locks *locks)
{
    for (size_t i = 0; i < locks->count; i++) {
        free_waiting(&locks->lock[i]);
        free((char *)locks->lock[i].name);
        free((char *)locks->lock[i].host);
        free((char *)locks->lock[i].note);
    }
    free(locks->lock);
}

static int collect(const hf_info *info, void *arg)
{
    struct locks *locks = arg;

    if (locks->count == locks->room) {
        size_t room = locks->room == 0 ? 16 : 2 * locks->room;
        hf_info *grown = realloc(locks->lock, room * sizeof *grown);

        if (grown == NULL) {
            locks->no_memory = true;
            return 1;
        }
        locks->lock = grown;
        locks->room = room;
    }
    hf_info *lock = &locks->lock[locks->count++];
    *lock = *info;
    lock->name = strdup(info->name);
    lock->host = strdup(info->host);
    lock->note = strdup(info->note);
    locks->no_memory = lock->name == NULL || lock->host == NULL || lock->note == NULL;
    lock->waiting = copy_waiting(info, &locks->no_memory);
    return locks->no_memory;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const hf_info *)a)->name, ((const hf_info *)b)->name);
}

/* Fills in `locks`; says why not and returns the exit code if it cannot. */
static int inspect(struct locks *locks, const struct hfc_globals *globals, const char *prefix)
{
    hf_client *client;
    hf_error err;
    int code = hfc_open(&client, globals);

    if (code != HFC_EXIT_OK)
        return code;
    hfc_printable(locks->store, sizeof locks->store, hf_url(client));
    hf_status status;
    if (locks->done)
        status = hf_inspect_done(client, prefix, collect, locks, &err);
    else if (locks->only != NULL)
        status = hf_inspect_one(client, locks->only, collect, locks, &err);
    else
        status = hf_inspect(client, prefix, collect, locks, &err);
    if (status != HF_OK)
        code = hfc_fail(&err);
    hf_close(client);
    if (locks->no_memory) {
        hfc_say("no memory for the list of locks");
        code = HFC_EXIT_INTERNAL;
    }
    if (locks->count > 1)
        qsort(locks->lock, locks->count, sizeof locks->lock[0], by_name);
    return code;
}

/* --- JSON --- */

static void print_json_number(const char *key, int64_t value, bool known, bool *first)
{
    hfc_json_key(stdout, key, first);
    if (known)
        printf("%lld", (long long)value);
    else
        fputs("null", stdout);
}

static void print_json_fields(const hf_info *info, bool done, bool *first)
{
    hfc_json_key(stdout, "name", first);
    hfc_json_string(stdout, info->name);
    hfc_json_key(stdout, "host", first);
    hfc_json_string(stdout, info->host[0] != '\0' ? info->host : NULL);
    print_json_number("pid", info->pid, info->pid > 0, first);
    hfc_json_key(stdout, "token", first);
    if (info->token != 0)
        printf("%llu", (unsigned long long)info->token);
    else
        fputs("null", stdout);
    print_json_number(done ? "ago_ms" : "held_ms", info->held_ms, info->held_ms >= 0, first);
    print_json_number("remaining_ms", info->remaining_ms, info->remaining_ms >= 0, first);
    if (!done)
        print_json_number("waiters", info->waiters, info->waiters >= 0, first);
    hfc_json_key(stdout, "note", first);
    hfc_json_string(stdout, info->note[0] != '\0' ? info->note : NULL);
    if (done)
        return;
    hfc_json_key(stdout, "waiting", first);
    if (info->waiting == NULL) {
        fputs(info->waiters == 0 ? "[]" : "null", stdout);
        return;
    }
    for (int64_t i = 0; i < info->waiters; i++) {
        fputs(i == 0 ? "[" : ", ", stdout);
        hfc_json_string(stdout, info->waiting[i]);
    }
    fputc(']', stdout);
}

static void print_json_list(const struct locks *locks)
{
    fputc('[', stdout);
    for (size_t i = 0; i < locks->count; i++) {
        bool first = true;

        fputs(i == 0 ? "\n  {" : ",\n  {", stdout);
        print_json_fields(&locks->lock[i], locks->done, &first);
        fputc('}', stdout);
    }
    fputs(locks->count > 0 ? "\n]\n" : "]\n", stdout);
}

static void print_json_status(const struct locks *locks)
{
    bool first = true;

    fputc('{', stdout);
    hfc_json_key(stdout, "held", &first);
    fputs(locks->count > 0 ? "true" : "false", stdout);
    if (locks->count > 0) {
        print_json_fields(&locks->lock[0], false, &first);
    } else {
        hfc_json_key(stdout, "name", &first);
        hfc_json_string(stdout, locks->only);
    }
    fputs("}\n", stdout);
}

/* --- plain --- */

enum { COLUMN_NAME, COLUMN_HOLDER, COLUMN_TOKEN, COLUMN_AGE, COLUMN_LEFT, COLUMN_WAITERS, COLUMN_NOTE, COLUMNS };
static const char *const held_titles[COLUMNS] = { "NAME", "HOLDER", "TOKEN", "AGE", "LEFT", "WAITERS", "NOTE" };
static const char *const done_titles[COLUMNS] = { "NAME", "DONE BY", "TOKEN", "AGO", "LEFT", NULL, "NOTE" };

/* Room for four bytes of escape per byte of a name. */
struct cells {
    char text[COLUMNS][4 * 255 + 64];
};

static void fill_cells(struct cells *cells, const hf_info *info)
{
    char holder[512];
    char *const waiters = cells->text[COLUMN_WAITERS], *const token = cells->text[COLUMN_TOKEN];
    const size_t size = sizeof cells->text[0];

    if (info->pid > 0)
        snprintf(holder, sizeof holder, "%s:%lld", info->host[0] != '\0' ? info->host : "?", (long long)info->pid);
    else
        snprintf(holder, sizeof holder, "%s", info->host[0] != '\0' ? info->host : "-");
    hfc_printable(cells->text[COLUMN_NAME], size, info->name);
    hfc_printable(cells->text[COLUMN_HOLDER], size, holder);
    snprintf(token, size, info->token != 0 ? "%llu" : "-", (unsigned long long)info->token);
    hfc_short_time(cells->text[COLUMN_AGE], size, info->held_ms);
    hfc_short_time(cells->text[COLUMN_LEFT], size, info->remaining_ms);
    snprintf(waiters, size, info->waiters >= 0 ? "%lld" : "-", (long long)info->waiters);
    hfc_printable(cells->text[COLUMN_NOTE], size, info->note);
}

/* A column without a title is left out. */
static void print_row(const char *const titles[COLUMNS], const char *const text[COLUMNS], const int width[COLUMNS])
{
    for (int c = 0; c < COLUMNS; c++) {
        if (titles[c] == NULL)
            continue;
        /* The last column is not padded, and two blanks part the others. */
        int padding = c == COLUMN_NOTE ? 0 : width[c] - hfc_columns(text[c]) + 2;
        printf("%s%*s", text[c], padding, "");
    }
    fputc('\n', stdout);
}

static void print_table(const struct locks *locks)
{
    int width[COLUMNS];
    struct cells cells = { { "" } };
    const char *row[COLUMNS];
    const char *const *titles = locks->done ? done_titles : held_titles;
    const char *no_color = getenv("NO_COLOR");
    const bool terminal = isatty(STDOUT_FILENO);
    bool bold = terminal && (no_color == NULL || *no_color == '\0');

    for (int c = 0; c < COLUMNS; c++)
        width[c] = titles[c] != NULL ? (int)strlen(titles[c]) : 0;
    for (size_t i = 0; i < locks->count; i++) {
        fill_cells(&cells, &locks->lock[i]);
        for (int c = 0; c < COLUMNS; c++)
            width[c] = hfc_columns(cells.text[c]) > width[c] ? hfc_columns(cells.text[c]) : width[c];
    }
    if (terminal)
        printf("%s in %s\n", locks->done ? "done" : "locks", locks->store);
    fputs(bold ? "\033[1m" : "", stdout);
    print_row(titles, titles, width);
    fputs(bold ? "\033[0m" : "", stdout);
    for (size_t i = 0; i < locks->count; i++) {
        fill_cells(&cells, &locks->lock[i]);
        for (int c = 0; c < COLUMNS; c++)
            row[c] = cells.text[c];
        print_row(titles, row, width);
    }
}

/* One per line, as they are: a name has no line end in it. For programs, completion above all. */
static void print_names(const struct locks *locks)
{
    for (size_t i = 0; i < locks->count; i++)
        puts(locks->lock[i].name);
}

static void print_status(const struct locks *locks)
{
    static const char *const labels[COLUMNS] = {
        "name", "holder", "token", "held for", "time left", "waiters", "note"
    };
    struct cells cells = { { "" } };

    if (locks->count == 0) {
        printf("%s is free\n", hfc_printable(cells.text[0], sizeof cells.text[0], locks->only));
        return;
    }
    fill_cells(&cells, &locks->lock[0]);
    for (int c = 0; c < COLUMNS; c++)
        if (cells.text[c][0] != '\0')
            printf("%-10s %s\n", labels[c], cells.text[c]);
    const hf_info *info = &locks->lock[0];
    for (int64_t i = 0; info->waiting != NULL && i < info->waiters; i++)
        printf("%-10s %lld. %s\n", i == 0 ? "waiting" : "", (long long)i + 1,
               hfc_printable(cells.text[0], sizeof cells.text[0], info->waiting[i]));
}

/* --- the commands --- */

static int print_ls_help(void)
{
    fputs("usage: holdfast ls [-u URL] [--done] [PREFIX] [--json]\n"
          "\n"
          "Lists the locks that are held, or those whose name starts with PREFIX: who holds them, the fencing token,\n"
          "since when, how long still (\"-\" if only the holder ends it), how many wait, and the holder's note.\n"
          "\n"
          "      --done      list instead what was done, as `holdfast run --once-per` remembers it: by whom, how long\n"
          "                  ago, and for how long it still counts\n"
          "      --json      print an array of objects\n"
          "      --names     print the names alone, one per line\n"
          "  -u, --url URL   where the locks are kept; see `holdfast --help`\n"
          "      --reach processes|machines  whom the store must exclude; see there too\n"
          "      --help      print this\n",
          stdout);
    return hfc_finish_output();
}

static int print_status_help(void)
{
    fputs(
        "usage: holdfast status [-u URL] NAME [-q | --json]\n"
        "\n"
        "Shows the lock NAME. Exits with 0 if it is held and with 1 if it is free. Any other code means that it could\n"
        "not be found out: 69 if the store is not reachable.\n"
        "\n"
        "  -q, --quiet     print nothing: the exit code says it\n"
        "      --json      print an object\n"
        "  -u, --url URL   where the lock is kept; see `holdfast --help`\n"
        "      --reach processes|machines  whom the store must exclude; see there too\n"
        "      --help      print this\n",
        stdout);
    return hfc_finish_output();
}

static const struct option ls_options[] = {
    HFC_STORE_OPTIONS,
    { "json", no_argument, NULL, 'j' },
    { "names", no_argument, NULL, 'b' },
    { "done", no_argument, NULL, 'd' },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static const struct option status_options[] = {
    HFC_STORE_OPTIONS,
    { "json", no_argument, NULL, 'j' },
    { "quiet", no_argument, NULL, 'q' },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

/* The options, which may also stand behind the name, and the settings. -1: go on; else the exit code. */
static int parse(struct hfc_globals *globals, int argc, char **argv, const struct option *options, bool *brief,
                 bool *done)
{
    const bool status = options == status_options;
    int option;

    while ((option = getopt_long(argc, argv, status ? ":hq" HFC_STORE_LETTERS : ":h" HFC_STORE_LETTERS, options,
                                 NULL)) != -1) {
        int code = hfc_store_option(globals, argv[0], option);
        if (code >= 0)
            return code;
        if (option == 'h')
            return status ? print_status_help() : print_ls_help();
        if (option == 'j')
            globals->json = true;
        else if (option == 'b' || option == 'q')
            *brief = true;
        else if (option == 'd')
            *done = true;
        else if (code == -2)
            return hfc_bad_option(argv[0], argv);
    }
    if (argc - optind > 1)
        return hfc_usage(argv[0], "too many arguments: '%s'", argv[optind + 1]);
    if (status && optind == argc)
        return hfc_usage("status", "the name of a lock is missing");
    int code = hfc_configure(globals);
    return code == HFC_EXIT_OK ? -1 : code;
}

int hfc_ls_main(struct hfc_globals *globals, int argc, char **argv)
{
    struct locks locks = { .count = 0 };
    bool names = false;
    int code = parse(globals, argc, argv, ls_options, &names, &locks.done);

    if (code >= 0)
        return code;
    code = inspect(&locks, globals, argv[optind]);
    if (code == HFC_EXIT_OK) {
        if (globals->json)
            print_json_list(&locks);
        else if (names)
            print_names(&locks);
        else
            print_table(&locks);
        code = hfc_finish_output();
    }
    free_locks(&locks);
    return code;
}

int hfc_status_main(struct hfc_globals *globals, int argc, char **argv)
{
    struct locks locks = { .count = 0 };
    bool quiet = false;
    int code = parse(globals, argc, argv, status_options, &quiet, &locks.done);

    if (code >= 0)
        return code;
    locks.only = argv[optind];
    code = inspect(&locks, globals, NULL);
    if (code == HFC_EXIT_OK) {
        if (globals->json)
            print_json_status(&locks);
        else if (!quiet)
            print_status(&locks);
        code = hfc_finish_output();
        if (code == HFC_EXIT_OK && locks.count == 0)
            code = HFC_EXIT_FREE;
    }
    free_locks(&locks);
    return code;
}
