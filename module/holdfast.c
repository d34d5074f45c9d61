/* SPDX-License-Identifier: MIT
 *
 * holdfast.c: a module for Redis (7.0 and later) and Valkey that does what the scripts of the native dialect do, in C,
 * on the server's own functions for keys. Clients with it and clients without share locks: the keys, the channels and
 * the answers are the same. See README.md for the commands.
 *
 * Replicas and the log on disk get the plain HSET, HDEL, ZADD, ZREM, PEXPIREAT and SET that make the same changes
 * there, and need no module. What is stored is of the server's own types, so that the module can be taken away at any
 * time.
 */
#include "native.h"

#define MODULE_NAME "holdfast"
/* What a client is told by HELLO. A later one has all commands of those before it. */
#define MODULE_VERSION 1
#define MODULE_VERSION_TEXT "1"

struct server_api api;

static const struct rm_command_info_version info_version = { .version = 1,
                                                             .size_of_key_spec = sizeof(struct rm_key_spec) };

/* At so many places from the second argument on, behind their number. Clusters before Redis 8 look for keys at places
 * alone, or ask the command: see hf_renew(), whose keys are counted. */
#define KEYS(FLAGS, COUNT)                                                                                             \
    {                                                                                                                  \
        { .flags = (FLAGS),                                                                                            \
          .begin_search = RM_BEGIN_INDEX,                                                                              \
          .begin.index.position = 2,                                                                                   \
          .find_keys = RM_FIND_RANGE,                                                                                  \
          .find.range = { .last_key = (COUNT)-1, .step = 1 } },                                                        \
        {                                                                                                              \
            .flags = 0                                                                                                 \
        }                                                                                                              \
    }
#define CHANGES (RM_KEY_FLAG_RW | RM_KEY_FLAG_ACCESS | RM_KEY_FLAG_UPDATE)

static const struct rm_key_spec changed_keys[] = KEYS(CHANGES, 2);
static const struct rm_key_spec changed_key[] = KEYS(CHANGES, 1);
static const struct rm_key_spec seen_keys[] = KEYS(RM_KEY_FLAG_RO | RM_KEY_FLAG_ACCESS, 2);
static const struct rm_key_spec counted_keys[] = { { .flags = CHANGES,
                                                     .begin_search = RM_BEGIN_INDEX,
                                                     .begin.index.position = 1,
                                                     .find_keys = RM_FIND_COUNTED,
                                                     .find.counted = { .count_index = 0, .first_key = 1, .step = 1 } },
                                                   { .flags = 0 } };

struct command {
    const char *name;
    rm_handler handler;
    const char *flags;
    const char *categories;
    int last_key; /* from the second argument on; 0: it says itself where its keys are */
    struct rm_command_info info;
};

#define INFO(ARITY, KEYS, SUMMARY, COMPLEXITY)                                                                         \
    {                                                                                                                  \
        .version = &info_version, .summary = (SUMMARY), .complexity = (COMPLEXITY), .since = MODULE_VERSION_TEXT,      \
        .arity = (ARITY), .key_specs = (KEYS)                                                                          \
    }

/* Release and renew are not "deny-oom": a lock can be given back and kept when memory is short. A client whose acquire
 * is refused for that goes on by the script, which tells whether there is anything to be stored. */
static const struct command commands[] = {
    { "hf.acquire", hf_acquire, "write deny-oom fast", "write hash sortedset fast", 3,
      INFO(-8, changed_keys, "Takes a lock if it is free, or lines up for it.", "O(log N) with N waiters") },
    { "hf.sacquire", hf_sharded_acquire, "write deny-oom fast", "write hash sortedset fast", 3,
      INFO(-8, changed_keys, "The same, where waiters listen to sharded channels.", "O(log N) with N waiters") },
    { "hf.release", hf_release, "write fast", "write hash sortedset fast", 3,
      INFO(-6, changed_keys, "Gives a lock back, or leaves its queue.", "O(log N) with N waiters") },
    { "hf.srelease", hf_sharded_release, "write fast", "write hash sortedset fast", 3,
      INFO(-6, changed_keys, "The same, where waiters listen to sharded channels.", "O(log N) with N waiters") },
    { "hf.renew", hf_renew, "write fast getkeys-api", "write hash fast", 0,
      INFO(-5, counted_keys, "Keeps locks that are held.", "O(N) with N locks") },
    { "hf.look", hf_look, "readonly", "read hash sortedset", 3,
      INFO(4, seen_keys, "Says who holds a lock and who waits for it.", "O(N) with N waiters") },
    { "hf.guard", hf_guard, "write deny-oom fast", "write string fast", 2,
      INFO(4, changed_key, "Notes a token, unless a larger one was seen.", "O(1)") },
};

static bool add_command(struct rm_context *context, const struct command *command)
{
    const int last = command->last_key, first = last ? 2 : 0;
    if (api.create_command(context, command->name, command->handler, command->flags, first, last, last ? 1 : 0) !=
        RM_OK) {
        api.log(context, "warning", "%s is not loaded: the command '%s' is there already, from another module",
                MODULE_NAME, command->name);
        return false;
    }
    struct rm_command *const added = api.get_command(context, command->name);
    if (!added || api.set_command_info(added, &command->info) != RM_OK ||
        (api.set_command_acl_categories && api.set_command_acl_categories(added, command->categories) != RM_OK)) {
        api.log(context, "warning", "%s is not loaded: the server does not take what it is told of '%s'", MODULE_NAME,
                command->name);
        return false;
    }
    return true;
}

int RedisModule_OnLoad(struct rm_context *context, struct rm_string **argv, int argc)
{
    (void)argv;
    if (!server_api_load(&api, context) || !server_api_load_keys(&api, context)) {
        if (api.log)
            api.log(context, "warning", "%s is not loaded: it needs Redis 7.0 or later, or Valkey", MODULE_NAME);
        return RM_ERR;
    }
    if (argc != 0) {
        api.log(context, "warning", "%s is not loaded: it takes no arguments", MODULE_NAME);
        return RM_ERR;
    }
    if (api.is_module_name_busy(MODULE_NAME)) {
        api.log(context, "warning", "%s is not loaded: it is loaded already", MODULE_NAME);
        return RM_ERR;
    }
    api.set_module_attribs(context, MODULE_NAME, MODULE_VERSION, RM_INTERFACE_VERSION);
    /* What finds nothing to change must not break a transaction that watches the key. */
    api.set_module_options(context, RM_OPTION_NO_IMPLICIT_SIGNAL);
    native_prepare();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (!add_command(context, &commands[i]))
            return RM_ERR;
    }
    return RM_OK;
}
