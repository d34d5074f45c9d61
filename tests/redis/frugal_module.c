/* SPDX-License-Identifier: MIT
 *
 * frugal_module.c: commands CAS and CAD that the server refuses when it is out of memory, as those of Tair's own module
 * are. They are only there to be refused: called, they answer that there is no such key.
 */
#include "server_api.h"

static struct server_api api;

static int say_no(struct rm_context *context, struct rm_string **argv, int argc)
{
    (void)argv;
    (void)argc;
    return api.reply_with_long_long(context, -1);
}

int RedisModule_OnLoad(struct rm_context *context, struct rm_string **argv, int argc)
{
    (void)argv;
    (void)argc;
    if (!server_api_load(&api, context))
        return RM_ERR;
    api.set_module_attribs(context, "frugal", 1, RM_INTERFACE_VERSION);
    if (api.create_command(context, "cas", say_no, "write deny-oom", 1, 1, 1) != RM_OK)
        return RM_ERR;
    return api.create_command(context, "cad", say_no, "write deny-oom", 1, 1, 1);
}
