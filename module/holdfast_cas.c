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
 * A key is read and changed by the server's functions for keys, and not by a command within this one, which would take
 * twice as long. Replicas and the log on disk get a plain SET, with an absolute expiry, or DEL, and need no module;
 * events, WATCH and client-side caches see what they see of these.
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

/* A key that is open for a comparison, and for the change that follows. */
struct target {
    struct rm_context *context;
    struct rm_string *name;
    struct rm_key *key;
};

/* The first three are replies, too. */
enum found { FOUND_NO_KEY = -1, FOUND_OTHER = 0, FOUND_SAME = 1, FOUND_WRONG_TYPE };

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

static enum found compare(const struct target *target, const struct rm_string *expected)
{
    size_t length = 0, there_length = 0;
    const char *bytes = api.string_ptr_len(expected, &length);
    const int type = api.key_type(target->key);
    if (type == RM_KEY_EMPTY)
        return FOUND_NO_KEY;
    if (type != RM_KEY_STRING)
        return FOUND_WRONG_TYPE;
    /* The length first: to show its memory, the server stores a short value or a number anew. */
    if (api.value_length(target->key) != length)
        return FOUND_OTHER;
    const char *there = api.string_dma(target->key, &there_length, RM_READ);
    const bool same = there_length == length && (length == 0 || memcmp(there, bytes, length) == 0);
    return same ? FOUND_SAME : FOUND_OTHER;
}

static int reply(const struct target *target, enum found found)
{
    if (found == FOUND_WRONG_TYPE)
        return api.reply_with_error(target->context, WRONG_TYPE);
    return api.reply_with_long_long(target->context, found);
}

/* As commands that write look keys up: what has expired is removed, and a key that is missing is no "keymiss". */
static struct target open_target(struct rm_context *context, struct rm_string *name)
{
    return (struct target){ .context = context, .name = name, .key = api.open_key(context, name, RM_READ | RM_WRITE) };
}

/* --------------------------------------------------------------------------------------------------------- changing */

static void tell(const struct target *target, int kind, const char *event)
{
    api.notify_keyspace_event(target->context, kind, event, target->name);
}

static void delete_key(const struct target *target)
{
    api.signal_modified_key(target->context, target->name); /* Redis 8 looks for the key */
    api.delete_key(target->key);
    api.replicate(target->context, "DEL", "s", target->name);
    tell(target, RM_NOTIFY_GENERIC, "del");
}

/* Servers before 6.2 only know how long a key lasts. */
static long long expiry_of(const struct target *target)
{
    if (api.get_abs_expire)
        return api.get_abs_expire(target->key);
    const long long left_ms = api.get_expire(target->key);
    return left_ms == RM_NO_EXPIRE ? RM_NO_EXPIRE : left_ms + api.milliseconds();
}

static void expire_at(const struct target *target, long long at_ms)
{
    if (api.set_abs_expire)
        api.set_abs_expire(target->key, at_ms);
    else {
        const long long in_ms = at_ms - api.milliseconds();
        api.set_expire(target->key, in_ms > 0 ? in_ms : 0); /* -1 would be no end at all */
    }
}

/* Replicas get the time at which it expires and not how long it lasts: that is the same for all, late or not. */
static void replicate_set(const struct target *target, struct rm_string *value, struct expiry expiry)
{
    struct rm_context *const context = target->context;
    if (expiry.kind == EXPIRY_AT && server_has_pxat) {
        api.replicate(context, "SET", "sscl", target->name, value, "PXAT", expiry.at_ms);
        return;
    }
    if (expiry.kind == EXPIRY_KEEP)
        api.replicate(context, "SET", "ssc", target->name, value, "KEEPTTL");
    else
        api.replicate(context, "SET", "ss", target->name, value);
    if (expiry.kind == EXPIRY_AT)
        api.replicate(context, "PEXPIREAT", "sl", target->name, expiry.at_ms);
}

static bool is_same(const struct rm_string *one, const struct rm_string *other)
{
    size_t length = 0, other_length = 0;
    const char *bytes = api.string_ptr_len(one, &length);
    const char *others = api.string_ptr_len(other, &other_length);
    return length == other_length && (length == 0 || memcmp(bytes, others, length) == 0);
}

/* `old`: what is there. A lock that is kept has the same value as before: it is left as it is stored. */
static void set(const struct target *target, const struct rm_string *old, struct rm_string *value, struct expiry expiry)
{
    if (expiry.kind == EXPIRY_AT && expiry.at_ms <= api.milliseconds()) { /* it has ended before it begins */
        delete_key(target);
        return;
    }
    const long long kept_ms = expiry.kind == EXPIRY_KEEP ? expiry_of(target) : RM_NO_EXPIRE;
    if (expiry.kind != EXPIRY_AT || !is_same(old, value))
        api.string_set(target->key, value); /* removes the expiry */
    if (expiry.kind == EXPIRY_AT)
        expire_at(target, expiry.at_ms);
    else if (kept_ms != RM_NO_EXPIRE)
        expire_at(target, kept_ms);
    api.signal_modified_key(target->context, target->name);
    replicate_set(target, value, expiry);
    tell(target, RM_NOTIFY_STRING, "set");
    if (expiry.kind == EXPIRY_AT)
        tell(target, RM_NOTIFY_GENERIC, "expire");
}

static int cas(struct rm_context *context, struct rm_string **argv, int argc)
{
    struct expiry expiry;
    if (argc < CAS_OPTIONS_AT)
        return api.reply_with_error(context, ARITY_ERROR("cas"));
    const char *wrong = read_options(&expiry, argv + CAS_OPTIONS_AT, argc - CAS_OPTIONS_AT);
    if (wrong)
        return api.reply_with_error(context, wrong);
    const struct target target = open_target(context, argv[1]);
    const enum found found = compare(&target, argv[2]);
    if (found == FOUND_SAME)
        set(&target, argv[2], argv[3], expiry);
    api.close_key(target.key);
    return reply(&target, found);
}

static int cad(struct rm_context *context, struct rm_string **argv, int argc)
{
    if (argc != CAD_ARGUMENTS)
        return api.reply_with_error(context, ARITY_ERROR("cad"));
    const struct target target = open_target(context, argv[1]);
    const enum found found = compare(&target, argv[2]);
    if (found == FOUND_SAME)
        delete_key(&target);
    api.close_key(target.key);
    return reply(&target, found);
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
    /* A comparison that fails must not break a transaction that watches the key. */
    api.set_module_options(context, RM_OPTION_NO_IMPLICIT_SIGNAL);
    server_has_pxat = api.get_server_version && api.get_server_version() >= SERVER_WITH_PXAT;

    /* CAD is not "deny-oom": a lock must be releasable when memory is short, and that frees some. */
    const bool added = add_command(context, "cas", cas, "write deny-oom fast", &cas_info) &&
                       add_command(context, "cad", cad, "write fast", &cad_info);
    return added ? RM_OK : RM_ERR;
}
