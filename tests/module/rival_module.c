/* SPDX-License-Identifier: MIT
 *
 * rival_module.c: another module that has a command CAD, as Tair's own has: ours must not be loaded beside it, not even
 * in part.
 */
#include "server_api.h"

#define RIVAL_ANSWER 42

static struct server_api api;

static int rival_cad(struct rm_context *context, struct rm_string **argv, int argc)
{
    (void)argv;
    (void)argc;
    return api.reply_with_long_long(context, RIVAL_ANSWER);
}

int RedisModule_OnLoad(struct rm_context *context, struct rm_string **argv, int argc)
{
    (void)argv;
    (void)argc;
    if (!server_api_load(&api, context))
        return RM_ERR;
    api.set_module_attribs(context, "rival", 1, RM_INTERFACE_VERSION);
    return api.create_command(context, "cad", rival_cad, "write", 1, 1, 1);
}
