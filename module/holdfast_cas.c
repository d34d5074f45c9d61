/* SPDX-License-Identifier: MIT
 *
 * holdfast_cas.c: a module for Redis and Valkey that adds two commands for strings, with the replies, options and
 * errors that Tair documents:
 *
 *     CAS key old new [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]     sets `new` if the value is `old`
 *     CAD key value                                                   deletes the key if it has this value
 *
 * Both reply 1: done, 0: the value is another, -1: there is no such key.
 *
 * What changes a key is the server's own SET or DEL, called from here: replicas and the log on disk get these, with
 * an absolute expiry, and need no module; events, WATCH and client-side caches see what they always see.
 */
#include "server_api.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

#define MODULE_NAME "holdfast-cas"
#define MODULE_VERSION 1
#define MODULE_VERSION_TEXT "1"

#define SYNTAX_ERROR "ERR syntax error"
#define WRONG_TYPE "WRONGTYPE Operation against a key holding the wrong kind of value"
#define ARITY_ERROR(command_) "ERR wrong number of arguments for '" command_ "' command"
#define EXPIRY_ERROR "ERR invalid expire time in 'cas' command"
#define REFUSED "ERR the server did not carry out a command that belongs to this one"

#define CAS_OPTIONS_AT 4
#define CAD_ARGUMENTS 3
#define SERVER_WITH_PXAT 0x060200 /* SET … PXAT came with 6.2.0 */

enum expiry_kind { EXPIRY_NONE, EXPIRY_KEEP, EXPIRY_AT };

struct expiry {
    enum expiry_kind kind;
    long long at_ms;
};

struct expiry_option {
    const char *name;
    bool is_relative;
    long long unit_ms;
};

/* The first three are replies, too. */
enum found { FOUND_NO_KEY = -1, FOUND_OTHER = 0, FOUND_SAME = 1, FOUND_WRONG_TYPE, FOUND_UNREADABLE };

static struct server_api api;
static bool server_has_pxat;

/* --------------------------------------------------------------------------------------------------------- options */

static bool is_word(const struct rm_string *argument, const char *word)
{
    size_t length = 0;
    const char *text = api.string_ptr_len(argument, &length);
    return length == strlen(word) && strncasecmp(text, word, length) == 0;
}

/* NULL, or what is wrong with it. */
static const char *read_time(struct expiry *out, const struct expiry_option *option, const struct rm_string *argument)
{
    long long time = 0;
    if (api.string_to_long_long(argument, &time) != RM_OK || time <= 0)
        return SYNTAX_ERROR;
    const long long start_ms = option->is_relative ? api.milliseconds() : 0;
    /* A sum that wraps around would be a time long past: the lock would vanish while its holder works. */
    if (time > (LLONG_MAX - start_ms) / option->unit_ms)
        return EXPIRY_ERROR;
    out->kind = EXPIRY_AT;
    out->at_ms = start_ms + time * option->unit_ms;
    return NULL;
}

static const struct expiry_option *find_option(const struct rm_string *argument)
{
    static const struct expiry_option options[] = {
        { "EX", true, 1000 },
        { "PX", true, 1 },
        { "EXAT", false, 1000 },
        { "PXAT", false, 1 },
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (is_word(argument, options[i].name))
            return &options[i];
    }
    return NULL;
}

/* At most one option. NULL, or what is wrong with them. */
static const char *read_options(struct expiry *out, struct rm_string **options, int count)
{
    *out = (struct expiry){ .kind = EXPIRY_NONE };
    if (count == 0)
        return NULL;
    if (count == 1 && is_word(options[0], "KEEPTTL")) {
        out->kind = EXPIRY_KEEP;
        return NULL;
    }
    const struct expiry_option *option = count == 2 ? find_option(options[0]) : NULL;
    return option ? read_time(out, option, options[1]) : SYNTAX_ERROR;
}

/* -------------------------------------------------------------------------------------------------------- comparing */

/* GET, and not the key's own memory: to show that, the server would store short values and numbers anew, and a
 * comparison must change nothing. */
static enum found compare_value(struct rm_context *context, struct rm_string *name, const char *expected, size_t length)
{
    enum found found = FOUND_UNREADABLE;
    struct rm_reply *reply = api.call(context, "GET", "s", name);
    if (!reply)
        return found;
    if (api.call_reply_type(reply) == RM_REPLY_STRING) {
        size_t there_length = 0;
        const char *there = api.call_reply_string_ptr(reply, &there_length);
        const bool same = there_length == length && (length == 0 || memcmp(there, expected, length) == 0);
        found = same ? FOUND_SAME : FOUND_OTHER;
    }
    api.free_call_reply(reply);
    return found;
}

static enum found look(struct rm_context *context, struct rm_string *name, const struct rm_string *expected)
{
    enum found found = FOUND_OTHER;
    size_t length = 0;
    const char *bytes = api.string_ptr_len(expected, &length);
    /* As commands that write look keys up: what has expired is removed, and a key that is missing is no "keymiss". */
    struct rm_key *key = api.open_key(context, name, RM_READ | RM_WRITE);
    const int type = api.key_type(key);
    if (type == RM_KEY_EMPTY)
        found = FOUND_NO_KEY;
    else if (type != RM_KEY_STRING)
        found = FOUND_WRONG_TYPE;
    const bool may_be_same = type == RM_KEY_STRING && api.value_length(key) == length;
    api.close_key(key);
    return may_be_same ? compare_value(context, name, bytes, length) : found;
}

static int reply_without_change(struct rm_context *context, enum found found)
{
    if (found == FOUND_WRONG_TYPE)
        return api.reply_with_error(context, WRONG_TYPE);
    if (found == FOUND_UNREADABLE)
        return api.reply_with_error(context, REFUSED);
    return api.reply_with_long_long(context, found);
}

/* --------------------------------------------------------------------------------------------------------- changing */

/* Takes the reply. If it is an error, the client gets it, and the answer is false. */
static bool was_done(struct rm_context *context, struct rm_reply *reply)
{
    const bool done = reply && api.call_reply_type(reply) != RM_REPLY_ERROR;
    if (!reply)
        api.reply_with_error(context, REFUSED);
    else if (!done)
        api.reply_with_call_reply(context, reply);
    if (reply)
        api.free_call_reply(reply);
    return done;
}

/* Replicas get the time at which it expires and not how long it lasts: that is the same for all, late or not. */
static bool set(struct rm_context *context, struct rm_string *name, struct rm_string *value, struct expiry expiry)
{
    if (expiry.kind == EXPIRY_NONE)
        return was_done(context, api.call(context, "SET", "!ss", name, value));
    if (expiry.kind == EXPIRY_KEEP)
        return was_done(context, api.call(context, "SET", "!ssc", name, value, "KEEPTTL"));
    if (server_has_pxat)
        return was_done(context, api.call(context, "SET", "!sscl", name, value, "PXAT", expiry.at_ms));
    return was_done(context, api.call(context, "SET", "!ss", name, value)) &&
           was_done(context, api.call(context, "PEXPIREAT", "!sl", name, expiry.at_ms));
}

static int cas(struct rm_context *context, struct rm_string **argv, int argc)
{
    struct expiry expiry;
    if (argc < CAS_OPTIONS_AT)
        return api.reply_with_error(context, ARITY_ERROR("cas"));
    const char *wrong = read_options(&expiry, argv + CAS_OPTIONS_AT, argc - CAS_OPTIONS_AT);
    if (wrong)
        return api.reply_with_error(context, wrong);
    const enum found found = look(context, argv[1], argv[2]);
    if (found != FOUND_SAME)
        return reply_without_change(context, found);
    return set(context, argv[1], argv[3], expiry) ? api.reply_with_long_long(context, FOUND_SAME) : RM_OK;
}

static int cad(struct rm_context *context, struct rm_string **argv, int argc)
{
    if (argc != CAD_ARGUMENTS)
        return api.reply_with_error(context, ARITY_ERROR("cad"));
    const enum found found = look(context, argv[1], argv[2]);
    if (found != FOUND_SAME)
        return reply_without_change(context, found);
    const bool done = was_done(context, api.call(context, "DEL", "!s", argv[1]));
    return done ? api.reply_with_long_long(context, FOUND_SAME) : RM_OK;
}

/* ---------------------------------------------------------------------------------------------------------- loading */

static const struct rm_command_info_version info_version = { .version = 1,
                                                             .size_of_key_spec = sizeof(struct rm_key_spec) };

/* Both let the caller learn something of the value: who may not read a key may not compare it. */
static const struct rm_key_spec cas_keys[] = { { .flags = RM_KEY_FLAG_RW | RM_KEY_FLAG_ACCESS | RM_KEY_FLAG_UPDATE,
                                                 .begin_search = RM_BEGIN_INDEX,
                                                 .begin.index.position = 1,
                                                 .find_keys = RM_FIND_RANGE,
                                                 .find.range = { .last_key = 0, .step = 1 } },
                                               { .flags = 0 } };
static const struct rm_key_spec cad_keys[] = { { .flags = RM_KEY_FLAG_RW | RM_KEY_FLAG_ACCESS | RM_KEY_FLAG_DELETE,
                                                 .begin_search = RM_BEGIN_INDEX,
                                                 .begin.index.position = 1,
                                                 .find_keys = RM_FIND_RANGE,
                                                 .find.range = { .last_key = 0, .step = 1 } },
                                               { .flags = 0 } };

static const struct rm_command_info cas_info = { .version = &info_version,
                                                 .summary = "Sets a string if it has the value that is given.",
                                                 .complexity = "O(N) in the length of the value",
                                                 .since = MODULE_VERSION_TEXT,
                                                 .arity = -CAS_OPTIONS_AT,
                                                 .key_specs = cas_keys };
static const struct rm_command_info cad_info = { .version = &info_version,
                                                 .summary = "Deletes a string if it has the value that is given.",
                                                 .complexity = "O(N) in the length of the value",
                                                 .since = MODULE_VERSION_TEXT,
                                                 .arity = CAD_ARGUMENTS,
                                                 .key_specs = cad_keys };

/* What older servers cannot be told: access to keys in detail and the arity (7.0), access by category (7.2). */
static bool describe(struct rm_context *context, const char *name, const struct rm_command_info *info)
{
    if (!api.get_command || !api.set_command_info)
        return true;
    struct rm_command *command = api.get_command(context, name);
    if (!command || api.set_command_info(command, info) != RM_OK)
        return false;
    return !api.set_command_acl_categories || api.set_command_acl_categories(command, "write string fast") == RM_OK;
}

static bool add_command(struct rm_context *context, const char *name, rm_handler handler, const char *flags,
                        const struct rm_command_info *info)
{
    if (api.create_command(context, name, handler, flags, 1, 1, 1) != RM_OK) {
        api.log(context, "warning", "%s is not loaded: the command '%s' is there already, from another module",
                MODULE_NAME, name);
        return false;
    }
    if (!describe(context, name, info)) {
        api.log(context, "warning", "%s is not loaded: the server does not take what it is told of '%s'", MODULE_NAME,
                name);
        return false;
    }
    return true;
}

int RedisModule_OnLoad(struct rm_context *context, struct rm_string **argv, int argc)
{
    (void)argv;
    if (!server_api_load(&api, context)) {
        if (api.log)
            api.log(context, "warning", "%s is not loaded: it needs Redis 6.0 or later, or Valkey", MODULE_NAME);
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
    /* SET and DEL tell of the change. A comparison that fails must not break a transaction that watches the key. */
    api.set_module_options(context, RM_OPTION_NO_IMPLICIT_SIGNAL);
    server_has_pxat = api.get_server_version && api.get_server_version() >= SERVER_WITH_PXAT;

    /* CAD is not "deny-oom": a lock must be releasable when memory is short, and that frees some. */
    const bool added = add_command(context, "cas", cas, "write deny-oom fast", &cas_info) &&
                       add_command(context, "cad", cad, "write fast", &cad_info);
    return added ? RM_OK : RM_ERR;
}
