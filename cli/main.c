/* SPDX-License-Identifier: MIT
 *
 * main.c: the `holdfast` command: the options before the command's name, and the table of commands.
 */
#include "cli.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    hfc_main_fn main;
    const char *summary;
} commands[] = {
    { "run", hfc_run_main, "run a command while holding a lock" },
    { "ls", hfc_ls_main, "list the locks that are held" },
    { "status", hfc_status_main, "show one lock; exit 0 if it is held, 1 if it is free" },
    { "break", hfc_break_main, "take a lock away from its holder" },
    { "engines", hfc_engines_main, "list what can keep locks, and what each can do" },
    { "bench", hfc_bench_main, "measure a store" },
};

static int print_help(void)
{
    fputs("usage: holdfast [-u URL] COMMAND [ARGUMENT ...]\n"
          "\n"
          "A lock that threads, processes and machines can agree on.\n"
          "\n"
          "  -u, --url URL   where the lock is kept; default: $HOLDFAST_URL, or file:\n"
          "      --json      print JSON, wherever there is something to read\n"
          "      --help      print this, or after COMMAND its help\n"
          "      --version   print the version\n"
          "\n"
          "commands:\n",
          stdout);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        printf("  %-8s  %s\n", commands[i].name, commands[i].summary);
    fputs("\nFor example: holdfast run -n nightly -- ./report.sh\n", stdout);
    return hfc_finish_output();
}

static int print_version(void)
{
    printf("holdfast %s\n", hf_version());
    return hfc_finish_output();
}

int main(int argc, char **argv)
{
    enum { OPT_JSON = HFC_OPT_FIRST, OPT_VERSION };
    static const struct option options[] = {
        { "url", required_argument, NULL, 'u' },
        { "json", no_argument, NULL, OPT_JSON },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, OPT_VERSION },
        { NULL, 0, NULL, 0 },
    };
    struct hfc_globals globals = { NULL, false };
    int option;

    opterr = 0;
    /* '+': the first word that is no option is the command's name, and what follows belongs to it. */
    while ((option = getopt_long(argc, argv, "+:u:h", options, NULL)) != -1) {
        switch (option) {
        case 'u':
            /* Most likely an unset variable of a script: the default store would be the wrong one. */
            if (*optarg == '\0')
                return hfc_usage(NULL, "--url: the URL is empty");
            globals.url = optarg;
            break;
        case OPT_JSON:
            globals.json = true;
            break;
        case 'h':
            return print_help();
        case OPT_VERSION:
            return print_version();
        default:
            return hfc_bad_option(NULL, argv);
        }
    }
    if (optind == argc)
        return hfc_usage(NULL, "a command is missing");
    argc -= optind;
    argv += optind;
    optind = 0; /* glibc: start afresh */
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].main(&globals, argc, argv);
    return hfc_usage(NULL, "unknown command '%s'", argv[0]);
}
