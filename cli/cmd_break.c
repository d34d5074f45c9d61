/* SPDX-License-Identifier: MIT
 *
 * cmd_break.c: `holdfast break`: an administrator's forced release.
 */
#include "cli.h"

#include <getopt.h>

static int print_help(void)
{
    fputs("usage: holdfast break [-u URL] NAME\n"
          "\n"
          "Takes the lock NAME away from whoever holds it. The holder learns of it as of any loss: `holdfast run`\n"
          "ends its command and exits with 76. Succeeds too if nobody holds it.\n"
          "\n"
          "  -u, --url URL   where the lock is kept; see `holdfast --help`\n"
          "      --reach processes|machines  whom the store must exclude; see there too\n"
          "      --help      print this\n",
          stdout);
    return hfc_finish_output();
}

int hfc_break_main(struct hfc_globals *globals, int argc, char **argv)
{
    static const struct option options[] = { HFC_STORE_OPTIONS,
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    hf_client *client;
    hf_error err;
    int option;

    while ((option = getopt_long(argc, argv, ":h" HFC_STORE_LETTERS, options, NULL)) != -1) {
        int code = hfc_store_option(globals, "break", option);
        if (code != -1)
            return code >= 0 ? code : option == 'h' ? print_help() : hfc_bad_option("break", argv);
    }
    if (argc - optind != 1)
        return hfc_usage("break", optind == argc ? "the name of a lock is missing" : "one name at a time");
    int code = hfc_configure(globals);
    if (code == HFC_EXIT_OK)
        code = hfc_open(&client, globals);
    if (code != HFC_EXIT_OK)
        return code;
    hf_status status = hf_break(client, argv[optind], &err);
    if (status != HF_OK)
        code = hfc_fail(&err);
    hf_close(client);
    return code;
}
