/* SPDX-License-Identifier: MIT
 *
 * server_api.c: asks the server for its functions.
 */
#include "server_api.h"

#include <string.h>

/* Every server begins what it hands to a module with this function. */
typedef int (*find_function)(const char *name, void *place);

bool server_api_load(struct server_api *api, struct rm_context *context)
{
    find_function find = NULL;
    int missing = 0;
    memset(api, 0, sizeof *api);
    memcpy(&find, context, sizeof find);

    missing |= find("RedisModule_SetModuleAttribs", &api->set_module_attribs);
    missing |= find("RedisModule_IsModuleNameBusy", &api->is_module_name_busy);
    missing |= find("RedisModule_SetModuleOptions", &api->set_module_options);
    missing |= find("RedisModule_CreateCommand", &api->create_command);
    missing |= find("RedisModule_Log", &api->log);
    missing |= find("RedisModule_StringPtrLen", &api->string_ptr_len);
    missing |= find("RedisModule_StringToLongLong", &api->string_to_long_long);
    missing |= find("RedisModule_Milliseconds", &api->milliseconds);
    missing |= find("RedisModule_OpenKey", &api->open_key);
    missing |= find("RedisModule_CloseKey", &api->close_key);
    missing |= find("RedisModule_KeyType", &api->key_type);
    missing |= find("RedisModule_ValueLength", &api->value_length);
    missing |= find("RedisModule_Call", &api->call);
    missing |= find("RedisModule_CallReplyType", &api->call_reply_type);
    missing |= find("RedisModule_CallReplyStringPtr", &api->call_reply_string_ptr);
    missing |= find("RedisModule_FreeCallReply", &api->free_call_reply);
    missing |= find("RedisModule_ReplyWithLongLong", &api->reply_with_long_long);
    missing |= find("RedisModule_ReplyWithError", &api->reply_with_error);
    missing |= find("RedisModule_ReplyWithCallReply", &api->reply_with_call_reply);

    find("RedisModule_GetServerVersion", &api->get_server_version);
    find("RedisModule_GetCommand", &api->get_command);
    find("RedisModule_SetCommandInfo", &api->set_command_info);
    find("RedisModule_SetCommandACLCategories", &api->set_command_acl_categories);
    return missing == 0;
}
