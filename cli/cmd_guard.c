/* SPDX-License-Identifier: MIT
 *
 * cmd_guard.c: `holdfast guard`: fencing for shells. Shows a token to the store on behalf of a resource.
 */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>

static int print_help(void)
{
    fputs(
        "usage: holdfast guard [-u URL] RESOURCE TOKEN\n"
        "\n"
        "Shows the fencing token TOKEN, such as $HOLDFAST_TOKEN, to the store on behalf of RESOURCE. Exits with 0 if\n"
        "no greater one was ever shown, and from then on no smaller one passes; with 76 if a greater one was: whoever\n"
        "has this one has lost its lock, and must not write. Any other code means that it could not be found out: do\n"
        "not write then either.\n"
        "\n"
        "  -u, --url URL   where the largest token is kept; see `holdfast --help`\n"
        "      --reach processes|machines  whom the store must exclude; see there too\n"
        "      --help      print this\n",
        stdout);
    return hfc_finish_output();
}

static bool read_token(const char *text, uint64_t *token)
{
    char *end;

    errno = 0;
    *token = strtoull(text, &end, 10);
    /* strtoull() takes blanks and signs, which nobody means to type. */
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == '\0' && *token > 0 && *token <= INT64_MAX;
}

int hfc_guard_main(struct hfc_globals *globals, int argc, char **argv)
{
    static const struct option options[] = { HFC_STORE_OPTIONS,
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    hf_client *client;
    hf_error err;
    uint64_t token;
    int option;

    while ((option = getopt_long(argc, argv, ":h" HFC_STORE_LETTERS, options, NULL)) != -1) {
        int code = hfc_store_option(globals, "guard", option);
        if (code != -1)
            return code >= 0 ? code : option == 'h' ? print_help() : hfc_bad_option("guard", argv);
    }
    if (argc - optind != 2)
        return hfc_usage("guard", "it takes the name of a resource and a token");
    if (!read_token(argv[optind + 1], &token))
        return hfc_usage("guard", "'%s' is not a token: a number from 1 to 2^63-1", argv[optind + 1]);
    int code = hfc_configure(globals);
    if (code == HFC_EXIT_OK)
        code = hfc_open(&client, globals);
    if (code != HFC_EXIT_OK)
        return code;
    if (hf_guard(client, argv[optind], token, &err) != HF_OK)
        code = hfc_fail(&err);
    hf_close(client);
    return code;
}
