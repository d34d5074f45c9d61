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
    { "hold", hfc_hold_main, "hold a lock until standard input ends, for the rest of a script" },
    { "ls", hfc_ls_main, "list the locks that are held" },
    { "status", hfc_status_main, "show one lock; exit 0 if it is held, 1 if it is free" },
    { "break", hfc_break_main, "take a lock away from its holder" },
    { "forget", hfc_forget_main, "forget that the work of a lock is done, as --once-per remembers it" },
    { "guard", hfc_guard_main, "show a fencing token; exit 0 if it is not too old" },
    { "engines", hfc_engines_main, "list what can keep locks, and what each can do" },
    { "doctor", hfc_doctor_main, "look for what could lose a lock, and say what mends it" },
    { "bench", hfc_bench_main, "measure a store" },
    { "verify", hfc_verify_main, "try on a store what is promised" },
};
#define COMMANDS (sizeof commands / sizeof commands[0])

static int print_help(void)
{
    fputs("usage: holdfast [-u URL] COMMAND [ARGUMENT ...]\n"
          "\n"
          "A lock that threads, processes and machines can agree on.\n"
          "\n"
          "  -u, --url URL   where the lock is kept; default: $HOLDFAST_URL, what holdfast.conf says, or file:\n"
          "      --reach processes|machines\n"
          "                  refuse a store that does not exclude other machines; default: processes\n"
          "      --json      print JSON, wherever there is something to read\n"
          "      --help      print this, or after COMMAND its help; also `holdfast help [COMMAND]`\n"
          "  -V, --version   print the version\n"
          "\n"
          "commands:\n",
          stdout);
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-8s  %s\n", commands[i].name, commands[i].summary);
    printf("  %-8s  %s\n", "help", "print help, or that of a command");
    fputs("\nFor example: holdfast run -n nightly -- ./report.sh\n", stdout);
    return hfc_finish_output();
}

static int print_version(void)
{
    printf("holdfast %s\n", hf_version());
    return hfc_finish_output();
}

static int run_command(struct hfc_globals *globals, int argc, char **argv)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].main(globals, argc, argv);
    if (strcmp(argv[0], "release") == 0)
        return hfc_usage(NULL, "a lock is given back when the standard input of `holdfast hold` ends: close that");
    return hfc_usage(NULL, "unknown command '%s'", argv[0]);
}

static int help_command(struct hfc_globals *globals, int argc, char **argv)
{
    char option[] = "--help";

    if (argc == 1)
        return print_help();
    if (argc > 2)
        return hfc_usage(NULL, "help: one command at a time");
    char *words[] = { argv[1], option, NULL };
    return run_command(globals, 2, words);
}

int main(int argc, char **argv)
{
    enum { OPT_JSON = HFC_OPT_FIRST };
    static const struct option options[] = {
        HFC_STORE_OPTIONS,
        { "json", no_argument, NULL, OPT_JSON },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    struct hfc_globals globals = { .json = false };
    int option;

    opterr = 0;
    /* '+': the first word that is no option is the command's name, and what follows belongs to it. */
    while ((option = getopt_long(argc, argv, "+:hV" HFC_STORE_LETTERS, options, NULL)) != -1) {
        int code = hfc_store_option(&globals, NULL, option);
        if (code >= 0)
            return code;
        if (option == 'h')
            return print_help();
        if (option == 'V')
            return print_version();
        if (option == OPT_JSON)
            globals.json = true;
        else if (code == -2)
            return hfc_bad_option(NULL, argv);
    }
    if (optind == argc)
        return hfc_usage(NULL, "a command is missing");
    argc -= optind;
    argv += optind;
    optind = 0; /* glibc: start afresh */
    return strcmp(argv[0], "help") == 0 ? help_command(&globals, argc, argv) : run_command(&globals, argc, argv);
}
