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
    missing |= find("RedisModule_DeleteKey", &api->delete_key);
    missing |= find("RedisModule_StringDMA", &api->string_dma);
    missing |= find("RedisModule_StringSet", &api->string_set);
    missing |= find("RedisModule_GetExpire", &api->get_expire);
    missing |= find("RedisModule_SetExpire", &api->set_expire);
    missing |= find("RedisModule_SignalModifiedKey", &api->signal_modified_key);
    missing |= find("RedisModule_NotifyKeyspaceEvent", &api->notify_keyspace_event);
    missing |= find("RedisModule_Replicate", &api->replicate);
    missing |= find("RedisModule_ReplyWithLongLong", &api->reply_with_long_long);
    missing |= find("RedisModule_ReplyWithError", &api->reply_with_error);

    find("RedisModule_GetServerVersion", &api->get_server_version);
    find("RedisModule_GetAbsExpire", &api->get_abs_expire);
    find("RedisModule_SetAbsExpire", &api->set_abs_expire);
    find("RedisModule_GetCommand", &api->get_command);
    find("RedisModule_SetCommandInfo", &api->set_command_info);
    find("RedisModule_SetCommandACLCategories", &api->set_command_acl_categories);
    return missing == 0;
}
