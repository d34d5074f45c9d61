/* SPDX-License-Identifier: MIT
 *
 * server_api.c: asks the server for its functions.
 */
#include "server_api.h"

#include <string.h>

/* Every server begins what it hands to a module with this function. */
typedef int (*find_function)(const char *name, void *place);

static find_function finder(struct rm_context *context)
{
    find_function find = NULL;
    memcpy(&find, context, sizeof find);
    return find;
}

bool server_api_load(struct server_api *api, struct rm_context *context)
{
    const find_function find = finder(context);
    int missing = 0;
    memset(api, 0, sizeof *api);

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

bool server_api_load_keys(struct server_api *api, struct rm_context *context)
{
    const find_function find = finder(context);
    int missing = 0;
    missing |= find("RedisModule_AutoMemory", &api->auto_memory);
    missing |= find("RedisModule_GetContextFlags", &api->get_context_flags);
    missing |= find("RedisModule_IsKeysPositionRequest", &api->is_keys_position_request);
    missing |= find("RedisModule_KeyAtPos", &api->key_at_pos);
    missing |= find("RedisModule_CreateString", &api->create_string);
    missing |= find("RedisModule_CreateStringFromLongLong", &api->create_string_from_long_long);
    missing |= find("RedisModule_FreeString", &api->free_string);
    missing |= find("RedisModule_StringAppendBuffer", &api->string_append_buffer);
    missing |= find("RedisModule_HashGet", &api->hash_get);
    missing |= find("RedisModule_HashSet", &api->hash_set);
    missing |= find("RedisModule_ZsetAdd", &api->zset_add);
    missing |= find("RedisModule_ZsetRem", &api->zset_rem);
    missing |= find("RedisModule_ZsetScore", &api->zset_score);
    missing |= find("RedisModule_ZsetFirstInScoreRange", &api->zset_first_in_score_range);
    missing |= find("RedisModule_ZsetRangeCurrentElement", &api->zset_range_current_element);
    missing |= find("RedisModule_ZsetRangeNext", &api->zset_range_next);
    missing |= find("RedisModule_ZsetRangeStop", &api->zset_range_stop);
    missing |= find("RedisModule_PublishMessage", &api->publish_message);
    missing |= find("RedisModule_PublishMessageShard", &api->publish_message_shard);
    missing |= find("RedisModule_Call", &api->call);
    missing |= find("RedisModule_CallReplyType", &api->call_reply_type);
    missing |= find("RedisModule_CallReplyInteger", &api->call_reply_integer);
    missing |= find("RedisModule_ReplyWithArray", &api->reply_with_array);
    missing |= find("RedisModule_ReplyWithString", &api->reply_with_string);
    missing |= find("RedisModule_ReplyWithStringBuffer", &api->reply_with_string_buffer);
    return missing == 0 && api->set_abs_expire && api->set_command_info && api->get_command;
}
