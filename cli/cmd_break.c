/* SPDX-License-Identifier: MIT
 *
 * cmd_break.c: what an administrator takes back: `holdfast break` a lock, `holdfast forget` that its work is done.
 */
#include "cli.h"

#include <getopt.h>

static const char break_help[] =
    "usage: holdfast break [-u URL] NAME\n"
    "\n"
    "Takes the lock NAME away from whoever holds it. The holder learns of it as of any loss: `holdfast run`\n"
    "ends its command and exits with 76. Succeeds too if nobody holds it.\n";

static const char forget_help[] =
    "usage: holdfast forget [-u URL] NAME\n"
    "\n"
    "Forgets that the work of the lock NAME is done: the next `holdfast run --once-per` of it runs its command.\n"
    "Succeeds too if nothing is remembered; `holdfast ls --done` shows what is. Locks are not touched.\n";

static const char options_help[] = "\n"
                                   "  -u, --url URL   where the lock is kept; see `holdfast --help`\n"
                                   "      --reach processes|machines  whom the store must exclude; see there too\n"
                                   "      --help      print this\n";

static int print_help(const char *help)
{
    fputs(help, stdout);
    fputs(options_help, stdout);
    return hfc_finish_output();
}

typedef hf_status take_fn(hf_client *client, const char *name, hf_error *err);

static int take_back(struct hfc_globals *globals, int argc, char **argv, const char *help, take_fn *take)
{
    static const struct option options[] = { HFC_STORE_OPTIONS,
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    hf_client *client;
    hf_error err;
    int option;

    while ((option = getopt_long(argc, argv, ":h" HFC_STORE_LETTERS, options, NULL)) != -1) {
        int code = hfc_store_option(globals, argv[0], option);
        if (code != -1)
            return code >= 0 ? code : option == 'h' ? print_help(help) : hfc_bad_option(argv[0], argv);
    }
    if (argc - optind != 1)
        return hfc_usage(argv[0], optind == argc ? "the name of a lock is missing" : "one name at a time");
    int code = hfc_configure(globals);
    if (code == HFC_EXIT_OK)
        code = hfc_open(&client, globals);
    if (code != HFC_EXIT_OK)
        return code;
    hf_status status = take(client, argv[optind], &err);
    if (status != HF_OK)
        code = hfc_fail(&err);
    hf_close(client);
    return code;
}

int hfc_break_main(struct hfc_globals *globals, int argc, char **argv)
{
    return take_back(globals, argc, argv, break_help, hf_break);
}

int hfc_forget_main(struct hfc_globals *globals, int argc, char **argv)
{
    return take_back(globals, argc, argv, forget_help, hf_forget_done);
}
