/* SPDX-License-Identifier: MIT
 *
 * server_api.h: the part of the module interface of Redis (6.0 and later) and Valkey that our modules use, in
 * declarations of its own. The interface is stable: a server hands out its functions by name, so nothing is linked,
 * and one file serves every version.
 */
#ifndef SERVER_API_H
#define SERVER_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What only the server sees into. */
struct rm_context;
struct rm_string;
struct rm_key;
struct rm_reply;
struct rm_command;

typedef int (*rm_handler)(struct rm_context *context, struct rm_string **argv, int argc);

/* The numbers are the interface's. */
enum rm_result { RM_OK = 0, RM_ERR = 1 };
enum rm_open_mode { RM_READ = 1 << 0, RM_WRITE = 1 << 1 };
enum rm_key_type { RM_KEY_EMPTY = 0, RM_KEY_STRING = 1, RM_KEY_HASH = 3, RM_KEY_ZSET = 5 };
enum rm_event_kind {
    RM_NOTIFY_GENERIC = 1 << 2,
    RM_NOTIFY_STRING = 1 << 3,
    RM_NOTIFY_HASH = 1 << 6,
    RM_NOTIFY_ZSET = 1 << 7
};
enum { RM_REPLY_INTEGER = 2 };
enum { RM_CONTEXT_CLUSTER = 1 << 5 };
enum { RM_HASH_NONE = 0 };
/* In place of a value: the field is to go. */
#define RM_HASH_DELETE ((struct rm_string *)(uintptr_t)1)
enum { RM_INTERFACE_VERSION = 1, RM_NO_EXPIRE = -1 };
/* The module says itself when a key has changed. Else whatever is opened for writing counts as changed when closed. */
enum { RM_OPTION_NO_IMPLICIT_SIGNAL = 1 << 1 };

/* What a command does with a key, for access control. */
#define RM_KEY_FLAG_RO (UINT64_C(1) << 0)
#define RM_KEY_FLAG_RW (UINT64_C(1) << 1)
#define RM_KEY_FLAG_ACCESS (UINT64_C(1) << 4)
#define RM_KEY_FLAG_UPDATE (UINT64_C(1) << 5)
#define RM_KEY_FLAG_INSERT (UINT64_C(1) << 6)
#define RM_KEY_FLAG_DELETE (UINT64_C(1) << 7)

/* How keys are found among the arguments: the first at a place, the last so many arguments after it; or their number is
 * there, and they follow. */
enum rm_begin_search { RM_BEGIN_INDEX = 2 };
enum rm_find_keys { RM_FIND_RANGE = 2, RM_FIND_COUNTED = 3 };

struct rm_key_spec {
    const char *notes;
    uint64_t flags;
    enum rm_begin_search begin_search;
    union {
        struct {
            int position;
        } index;
        struct {
            const char *keyword;
            int start_from;
        } keyword;
    } begin;
    enum rm_find_keys find_keys;
    union {
        struct {
            int last_key;
            int step;
            int limit;
        } range;
        struct {
            int count_index;
            int first_key;
            int step;
        } counted;
    } find;
};

/* The server steps through arrays by these sizes, so those of arrays that are not given can be 0. */
struct rm_command_info_version {
    int version;
    size_t size_of_history_entry;
    size_t size_of_key_spec;
    size_t size_of_argument;
};

struct rm_command_info {
    const struct rm_command_info_version *version;
    const char *summary;
    const char *complexity;
    const char *since; /* the module's version, not the server's */
    const void *history;
    const char *tips;
    int arity;                           /* negative: at least so many */
    const struct rm_key_spec *key_specs; /* ends with a zeroed one */
    const void *arguments;
};

struct server_api {
    void (*set_module_attribs)(struct rm_context *context, const char *name, int version, int interface_version);
    int (*is_module_name_busy)(const char *name);
    void (*set_module_options)(struct rm_context *context, int options);
    int (*create_command)(struct rm_context *context, const char *name, rm_handler handler, const char *flags,
                          int first_key, int last_key, int key_step);
    void (*log)(struct rm_context *context, const char *level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

    const char *(*string_ptr_len)(const struct rm_string *string, size_t *length);
    int (*string_to_long_long)(const struct rm_string *string, long long *number);
    long long (*milliseconds)(void);

    struct rm_key *(*open_key)(struct rm_context *context, struct rm_string *name, int mode);
    void (*close_key)(struct rm_key *key);
    int (*key_type)(struct rm_key *key);
    size_t (*value_length)(struct rm_key *key);

    int (*delete_key)(struct rm_key *key);
    /* The bytes of a string, until the key is changed or closed. */
    char *(*string_dma)(struct rm_key *key, size_t *length, int mode);
    int (*string_set)(struct rm_key *key, struct rm_string *value);
    long long (*get_expire)(struct rm_key *key); /* in so many ms */
    int (*set_expire)(struct rm_key *key, long long in_ms);

    /* Who watches the key, or has it in a cache, is to know that it was changed. */
    int (*signal_modified_key)(struct rm_context *context, struct rm_string *name);
    int (*notify_keyspace_event)(struct rm_context *context, int kind, const char *event, struct rm_string *name);
    /* To replicas and to the log on disk. `format`: s an rm_string, c a C string, l a long long. */
    int (*replicate)(struct rm_context *context, const char *command, const char *format, ...);

    int (*reply_with_long_long)(struct rm_context *context, long long number);
    int (*reply_with_error)(struct rm_context *context, const char *text);

    /* NULL where the server is too old. */
    int (*get_server_version)(void);                                                         /* 6.0.9 */
    long long (*get_abs_expire)(struct rm_key *key);                                         /* 6.2.2 */
    int (*set_abs_expire)(struct rm_key *key, long long at_ms);                              /* 6.2.2 */
    struct rm_command *(*get_command)(struct rm_context *context, const char *name);         /* 7.0 */
    int (*set_command_info)(struct rm_command *command, const struct rm_command_info *info); /* 7.0 */
    int (*set_command_acl_categories)(struct rm_command *command, const char *categories);   /* 7.2 */

    /* --- by server_api_load_keys() --- */

    /* What is opened and made from now on is closed and freed when the command has ended. */
    void (*auto_memory)(struct rm_context *context);
    int (*get_context_flags)(struct rm_context *context);
    /* The command is not to be run, but to say at which places its keys are. */
    int (*is_keys_position_request)(struct rm_context *context);
    void (*key_at_pos)(struct rm_context *context, int position);
    struct rm_string *(*create_string)(struct rm_context *context, const char *bytes, size_t length);
    struct rm_string *(*create_string_from_long_long)(struct rm_context *context, long long number);
    void (*free_string)(struct rm_context *context, struct rm_string *string);
    int (*string_append_buffer)(struct rm_context *context, struct rm_string *string, const char *bytes, size_t length);

    /* Pairs of a field and where to put its value, or of a field and its value; and NULL. */
    int (*hash_get)(struct rm_key *key, int flags, ...);
    int (*hash_set)(struct rm_key *key, int flags, ...);
    int (*zset_add)(struct rm_key *key, double score, struct rm_string *member, int *flags);
    int (*zset_rem)(struct rm_key *key, struct rm_string *member, int *deleted);
    int (*zset_score)(struct rm_key *key, struct rm_string *member, double *score);
    int (*zset_first_in_score_range)(struct rm_key *key, double least, double most, int without_least,
                                     int without_most);
    struct rm_string *(*zset_range_current_element)(struct rm_key *key, double *score);
    int (*zset_range_next)(struct rm_key *key);
    void (*zset_range_stop)(struct rm_key *key);

    /* How many receive it here; it goes to no replica. */
    int (*publish_message)(struct rm_context *context, struct rm_string *channel, struct rm_string *message);
    int (*publish_message_shard)(struct rm_context *context, struct rm_string *channel, struct rm_string *message);

    /* `format`: as of replicate. NULL: there is no such command. */
    struct rm_reply *(*call)(struct rm_context *context, const char *command, const char *format, ...);
    int (*call_reply_type)(struct rm_reply *reply);
    long long (*call_reply_integer)(struct rm_reply *reply);

    int (*reply_with_array)(struct rm_context *context, long length);
    int (*reply_with_string)(struct rm_context *context, struct rm_string *string);
    int (*reply_with_string_buffer)(struct rm_context *context, const char *bytes, size_t length);
};

/* Fills `api`; false: the server lacks something that cannot be done without. */
bool server_api_load(struct server_api *api, struct rm_context *context);
/* The same for what commands on hashes and sorted sets need: Redis 7.0 or later, or Valkey. After server_api_load(). */
bool server_api_load_keys(struct server_api *api, struct rm_context *context);

/* What the server calls when it loads the module, and the only name that is visible outside. */
__attribute__((visibility("default"))) int RedisModule_OnLoad(struct rm_context *context, struct rm_string **argv,
                                                              int argc);

#endif
