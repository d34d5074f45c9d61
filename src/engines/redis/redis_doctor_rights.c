/* SPDX-License-Identifier: MIT
 *
 * redis_doctor_rights.c: whether our user may do what it must; and whether the names of our locks are used in another
 * dialect too.
 *
 * Rights are tried: ACL GETUSER and ACL DRYRUN are for administrators, and a user who may call them has all others as
 * well. Every command goes out in a form that changes nothing, whatever is at the key: with a word where a number must
 * be, or for a member that is not there. The server looks at rights before it looks at that.
 */
#include "redis_doctor.h"
#include <stdio.h>
#include <string.h>

/* The lock that `holdfast doctor` takes, in whichever dialect it is asked for; and nobody's lock. */
#define DOCTORS_NAME "holdfast-doctor"
#define NAME DOCTORS_NAME "-rights"
#define WORDS_MOST 400

enum { NATIVE = 1, PLAIN = 2, REDISSON = 4, REDLOCK = 8, LIKE_PLAIN = PLAIN | REDLOCK, STRANGERS = 14, ALL = 15 };

/* What scripts call, as arguments of redis.pcall(). */
static const struct {
    unsigned dialects;
    const char *call;
} calls[] = {
    { ALL, "'time'" },
    { ALL, "'pexpire', KEYS[1], 'no'" },
    { ALL, "'publish', CHANNEL, ''" },
    { NATIVE, "'hget', KEYS[1], 'none'" },
    { NATIVE, "'hmget', KEYS[1], 'none'" },
    { NATIVE, "'hset', KEYS[1], 'none', '', 'none'" },
    { NATIVE, "'hdel', KEYS[1], 'none'" },
    { NATIVE | REDISSON, "'hincrby', KEYS[1], 'none', 'no'" },
    { NATIVE | LIKE_PLAIN, "'zadd', KEYS[2], 'no', 'none'" },
    { NATIVE | LIKE_PLAIN, "'zrem', KEYS[2], 'none'" },
    { NATIVE | LIKE_PLAIN, "'zrank', KEYS[2], 'none'" },
    { NATIVE | LIKE_PLAIN, "'zcard', KEYS[2]" },
    { NATIVE | LIKE_PLAIN, "'zrange', KEYS[2], 0, 0" },
    { NATIVE, "'zpopmin', KEYS[2], 'no'" },
    { REDLOCK, "'zscore', KEYS[2], 'none'" },
    { STRANGERS, "'exists', KEYS[1]" },
    { STRANGERS, "'pttl', KEYS[1]" },
    { STRANGERS, "'get', KEYS[3]" },
    { STRANGERS, "'set', KEYS[3], '', 'px', 'no'" },
    { STRANGERS, "'set', KEYS[1], '', 'px', 'no'" },
    { REDISSON, "'hexists', KEYS[1], 'none'" },
    { REDISSON, "'hkeys', KEYS[1]" },
};

/* DEL has no form that changes nothing, but for a key that is not there. */
static const char script_begins[] = "local denied, CHANNEL = {}, ARGV[1]\n"
                                    "local function try(...)\n"
                                    "  local r = redis.pcall(...)\n"
                                    "  if type(r) == 'table' and r.err then\n"
                                    "    denied[#denied + 1] = (...)\n"
                                    "    denied[#denied + 1] = r.err\n"
                                    "  end\n"
                                    "end\n";
static const char script_deletes[] = "if redis.pcall('exists', KEYS[1]) == 0 then try('del', KEYS[1]) end\n";
static const char script_ends[] = "return denied\n";

struct rights {
    char denied[WORDS_MOST];  /* "+hset +zadd" */
    char luxury[WORDS_MOST];  /* the same of what locks do without */
    char missing[WORDS_MOST]; /* "hset zadd": renamed */
    bool keys, channels;      /* that we may not use */
    hf_error cut_off;         /* status HF_OK: all could be tried */
    char words[160];          /* the server's, of the last */
};

static void append(char list[WORDS_MOST], const char *before, const char *word)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s%.40s", before, word);
    const char *place = strstr(list, whole);
    const size_t used = strlen(list), length = strlen(whole);
    if (place && (place[length] == ' ' || place[length] == 0))
        return;
    snprintf(list + used, WORDS_MOST - used, "%s%s", used ? " " : "", whole);
}

/* What the answer to a command says about our rights, if it is a refusal. */
static void judge(struct rights *rights, const char *command, const char *words, bool luxury)
{
    const redisReply reply = { .type = REDIS_REPLY_ERROR, .str = (char *)words, .len = strlen(words) };
    const hf_status status = hfi_redis_refusal(&reply, "", NULL);
    const bool unknown = strstr(words, "nknown Redis command") || strstr(words, "unknown command");
    if (status != HF_DENIED && !unknown && !strstr(words, "can't access at least one of the keys"))
        return;
    if (strstr(words, "WRONGTYPE"))
        return;
    if (!luxury || !*rights->words)
        snprintf(rights->words, sizeof rights->words, "%s", words);
    const bool command_itself = strstr(words, "run the '") || strstr(words, "run this command");
    if (unknown)
        append(rights->missing, "", command);
    else if (!command_itself && strstr(words, "channel"))
        rights->channels = true;
    else if (!command_itself && (strstr(words, " key") || strstr(words, "access")))
        rights->keys = true;
    else
        append(luxury ? rights->luxury : rights->denied, "+", command);
}

static unsigned dialect_of(const struct redis_store *store)
{
    if (store->config.kind == REDIS_REDLOCK)
        return REDLOCK;
    return store->config.dialect == &hfi_redis_native     ? NATIVE
           : store->config.dialect == &hfi_redis_redisson ? REDISSON
                                                          : PLAIN;
}

/* --- what scripts do --- */

static void write_script(char *out, size_t size, const struct redis_store *store)
{
    const unsigned dialect = dialect_of(store);
    size_t used = (size_t)snprintf(out, size, "%s", script_begins);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (calls[i].dialects & dialect)
            used += (size_t)snprintf(out + used, size - used, "try(%s)\n", calls[i].call);
    }
    if (store->sharded)
        used += (size_t)snprintf(out + used, size - used, "try('spublish', CHANNEL, '')\n");
    snprintf(out + used, size - used, "%s%s", dialect & STRANGERS ? script_deletes : "", script_ends);
}

/* Where we listen. */
static void channel_of(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const redis_keys keys)
{
    if (store->config.dialect->own_channels || store->sharded)
        store->config.dialect->channel(out, keys, store->env->client);
    else
        snprintf(out, HFI_REDIS_KEY_MAX, "hf:c:%016llx", (unsigned long long)store->env->client);
}

static void try_script(const struct redis_patient *patient, const redis_keys keys, size_t count, const char *channel,
                       struct rights *rights)
{
    char text[2048], number[8];
    struct redis_command command = { REDIS_ROOM(4 + HFI_REDIS_KEYS_MOST) };
    redisReply *reply = NULL;
    hf_error trouble = { .message = "" };
    write_script(text, sizeof text, patient->store);
    snprintf(number, sizeof number, "%zu", count);
    hfi_redis_add(&command, "EVAL");
    hfi_redis_add(&command, text);
    hfi_redis_add(&command, number);
    for (size_t i = 0; i < count; i++)
        hfi_redis_add(&command, keys[i]);
    hfi_redis_add(&command, channel);
    if (hfi_redis_patient_command(patient, &command, &reply, &trouble) != HF_OK) {
        rights->cut_off = trouble;
        return;
    }
    if (reply->type == REDIS_REPLY_ERROR)
        judge(rights, "eval", reply->str, false);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements; i += 2) {
        if (reply->element[i]->type == REDIS_REPLY_STRING && reply->element[i + 1]->type == REDIS_REPLY_STRING)
            judge(rights, reply->element[i]->str, reply->element[i + 1]->str, false);
    }
    freeReplyObject(reply);
}

/* --- what we do ourselves --- */

static void try_command(const struct redis_patient *patient, const char *const *words, size_t count, bool luxury,
                        struct rights *rights)
{
    struct redis_command command = { REDIS_ROOM(6) };
    redisReply *reply = NULL;
    hf_error trouble = { .message = "" };
    char name[32];
    for (size_t i = 0; i < count; i++)
        hfi_redis_add(&command, words[i]);
    if (hfi_redis_patient_command(patient, &command, &reply, &trouble) != HF_OK) {
        rights->cut_off = trouble;
        return;
    }
    snprintf(name, sizeof name, "%s", words[0]);
    for (char *c = name; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    if (reply->type == REDIS_REPLY_ERROR)
        judge(rights, name, reply->str, luxury);
    freeReplyObject(reply);
}

static void try_commands(const struct redis_patient *patient, const char *key, struct rights *rights)
{
    const struct redis_config *config = &patient->store->config;
    const bool native = config->dialect == &hfi_redis_native;
    char guard[HFI_REDIS_KEY_MAX];
    snprintf(guard, sizeof guard, "%.*s:g", HFI_REDIS_KEY_MAX - 3, key);
    const struct {
        bool wanted, luxury;
        const char *words[5];
        size_t count;
    } all[] = {
        { true, false, { "EVALSHA", "0000000000000000000000000000000000000000", "0" }, 3 },
        { true, true, { "SCAN", "0", "COUNT", "1" }, 4 },
        { native, true, { "GET", guard }, 2 },
        { native, true, { "SET", guard, "", "PX", "no" }, 5 },
        { config->replicas > 0, false, { "WAIT", "0", "1" }, 3 },
        { config->fsync, false, { "WAITAOF", "0", "0", "1" }, 4 },
        { patient->store->verb == REDIS_BY_DELEX, false, { "DELEX", key, "IFEQ", "none" }, 4 },
        { patient->store->verb == REDIS_BY_DELIFEQ, false, { "DELIFEQ", key, "none" }, 3 },
        { patient->store->verb == REDIS_BY_CAD, false, { "CAD", key, "none" }, 3 },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].wanted)
            try_command(patient, all[i].words, all[i].count, all[i].luxury, rights);
    }
}

/* On a connection of its own: one that has subscribed is good for nothing else. */
static void try_to_listen(const struct redis_patient *patient, const char *channel, struct rights *rights)
{
    struct redis_store *store = patient->store;
    struct redis_connection *connection = NULL;
    struct redis_command command = { REDIS_ROOM(2) };
    redisReply *reply = NULL;
    hfi_redis_add(&command, store->sharded ? "SSUBSCRIBE" : "SUBSCRIBE");
    hfi_redis_add(&command, channel);
    hf_error trouble = { .message = "" };
    hf_status status =
        hfi_redis_connect(&connection, &patient->node->address, &store->config.access, patient->deadline_ns, &trouble);
    if (status == HF_OK)
        status = hfi_redis_send(connection, &command, 1, patient->deadline_ns, &trouble);
    if (status == HF_OK)
        status = hfi_redis_receive(connection, &reply, patient->deadline_ns, &trouble);
    if (status != HF_OK) {
        rights->cut_off = trouble;
        rights->cut_off.status = status;
    } else if (reply->type == REDIS_REPLY_ERROR) {
        judge(rights, store->sharded ? "ssubscribe" : "subscribe", reply->str, false);
    }
    freeReplyObject(reply);
    hfi_redis_disconnect(connection);
}

static void say_rights(const struct redis_patient *patient, const struct rights *rights)
{
    const struct redis_config *config = &patient->store->config;
    const char *user = *config->access.user ? config->access.user : "default";
    const bool own_prefix = *config->prefix != 0;
    if (*rights->missing)
        hfi_redis_say(patient, HF_FINDING_BROKEN, "commands",
                      "it lacks commands that locks need\nwithout %.200s: %.150s\n"
                      "give them back their names (rename-command), or use a newer server",
                      rights->missing, rights->words);
    if (*rights->denied || rights->channels || (rights->keys && own_prefix))
        hfi_redis_say(patient, HF_FINDING_BROKEN, "rights",
                      "user %.60s may not do what locks need\n%.150s\nACL SETUSER %.60s%s%.300s%s%s%s%s", user,
                      rights->words, user, *rights->denied ? " " : "", rights->denied, rights->keys ? " ~" : "",
                      rights->keys ? config->prefix : "", rights->keys ? "*" : "",
                      !rights->channels               ? ""
                      : config->dialect->own_channels ? " &redisson_lock__channel:*"
                      : patient->store->sharded       ? " &hf:*"
                                                      : " &hf:c:*");
    else if (rights->keys)
        hfi_redis_say(patient, HF_FINDING_NOTE, "rights",
                      "user %.60s may not use every key, and in this dialect the name of a lock is its key: whether "
                      "it may use yours is not known\n%.150s\nACL SETUSER %.60s ~NAME ~hf:*",
                      user, rights->words, user);
    else if (*rights->luxury)
        hfi_redis_say(patient, HF_FINDING_NOTE, "rights",
                      "user %.60s may do all that locks need; only `ls`, `guard` or --once-per are refused\n%.150s\n"
                      "ACL SETUSER %.60s %.200s",
                      user, rights->words, user, rights->luxury);
    else if (rights->cut_off.status != HF_OK)
        hfi_redis_say(patient, HF_FINDING_NOTE, "rights",
                      "whether user %.60s may do all that locks need could not be tried to the end\n%.200s\n"
                      "try again when the server answers",
                      user, rights->cut_off.message);
    else if (!*rights->missing)
        hfi_redis_say(patient, HF_FINDING_OK, "rights",
                      "user %.60s may do all that locks need\nevery command was tried, in a way that changes nothing",
                      user);
}

/* How a lock is released in the format of others. Without CAS and CAD `tair` does not open. */
static void say_verb(const struct redis_patient *patient)
{
    static const char *const verbs[] = { [REDIS_BY_SCRIPT] = "a script",
                                         [REDIS_BY_DELEX] = "DELEX",
                                         [REDIS_BY_DELIFEQ] = "DELIFEQ",
                                         [REDIS_BY_CAD] = "CAD, of a module" };
    if (dialect_of(patient->store) == PLAIN)
        hfi_redis_say(patient, HF_FINDING_OK, "release", "a lock is compared and deleted in one step, by %s\n(%s)",
                      verbs[patient->store->verb], "COMMAND INFO DELEX DELIFEQ CAD");
}

void hfi_redis_examine_rights(const struct redis_patient *patient)
{
    struct redis_store *store = patient->store;
    struct redis_patient asked = *patient;
    struct rights rights = { .keys = false };
    char channel[HFI_REDIS_KEY_MAX];
    redis_keys keys;
    const size_t count = store->config.dialect->keys(keys, store, NAME, (struct hfi_owner){ store->env->client, 0 });
    channel_of(channel, store, keys);
    if (store->config.kind == REDIS_CLUSTER) { /* only who has the key can be tried: one of them stands for all */
        if (hfi_redis_find(store, keys[0], &asked.node, patient->deadline_ns, NULL) != HF_OK ||
            asked.node != patient->node)
            return;
    }
    try_script(&asked, keys, count, channel, &rights);
    try_commands(&asked, keys[0], &rights);
    try_to_listen(&asked, channel, &rights);
    say_rights(patient, &rights);
    say_verb(patient);
}

/* --- other dialects --- */

#define NAMES_MOST 512
#define STEPS_MOST 10

/* Names that were seen as a lock of our own dialect, and in that of others; by hash: two that share one by chance cost
 * a wrong word, and nothing else. */
struct names {
    uint64_t seen[NAMES_MOST];
    uint8_t how[NAMES_MOST];
    size_t count, both;
    char example[REDIS_VALUE_MAX];
};

static void note_name(struct names *names, const char *name, uint8_t how)
{
    const uint64_t hash = hfi_name_hash(name);
    size_t i = 0;
    while (i < names->count && names->seen[i] != hash)
        i++;
    if (i == NAMES_MOST)
        return;
    if (i == names->count) {
        names->seen[names->count++] = hash;
        names->how[i] = 0;
    }
    const bool before = names->how[i] == 3;
    names->how[i] |= how;
    if (names->how[i] == 3 && !before && names->both++ == 0)
        snprintf(names->example, sizeof names->example, "%.*s", REDIS_VALUE_MAX - 1, name);
}

/* "hf:{NAME}" is a lock of ours, "hf:{NAME}:t" the last grant of one in another dialect. */
static void take_key(struct names *names, const char *key)
{
    char name[HFI_REDIS_KEY_MAX];
    const size_t length = strlen(key);
    const bool other = length > 7 && strcmp(key + length - 3, "}:t") == 0;
    if (length >= sizeof name || length < 6 || strncmp(key, "hf:{", 4) != 0 || (!other && key[length - 1] != '}'))
        return;
    const size_t behind = other ? 3 : 1;
    memcpy(name, key + 4, length - 4 - behind);
    name[length - 4 - behind] = 0;
    if (strcmp(name, DOCTORS_NAME) != 0)
        note_name(names, name, other ? 2 : 1);
}

void hfi_redis_examine_names(const struct redis_patient *patient)
{
    struct names names = { .count = 0 };
    char cursor[24] = "0";
    hf_status status = HF_OK;
    for (int step = 0; step < STEPS_MOST && status == HF_OK && (step == 0 || strcmp(cursor, "0") != 0); step++) {
        struct redis_command command = { REDIS_ROOM(6) };
        redisReply *reply = NULL;
        const char *const words[] = { "SCAN", cursor, "MATCH", "hf:{*", "COUNT", "1000" };
        for (size_t i = 0; i < 6; i++)
            hfi_redis_add(&command, words[i]);
        status = hfi_redis_patient_command(patient, &command, &reply, NULL);
        if (status != HF_OK)
            return;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[1]->type != REDIS_REPLY_ARRAY) {
            freeReplyObject(reply); /* a right that is missing: said there */
            return;
        }
        snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
        for (size_t i = 0; i < reply->element[1]->elements; i++) {
            if (reply->element[1]->element[i]->type == REDIS_REPLY_STRING)
                take_key(&names, reply->element[1]->element[i]->str);
        }
        freeReplyObject(reply);
    }
    if (names.both)
        hfi_redis_say(patient, HF_FINDING_RISK, "dialects",
                      "names were locked in two dialects within a day, which do not exclude each other: %zu, "
                      "\"%.80s\" among them\nhf:{NAME} and hf:{NAME}:t are both there (SCAN 0 MATCH hf:{*)\n"
                      "have all programs use the same dialect= for the same names",
                      names.both, names.example);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "dialects",
                      "no name was found that is locked in two dialects\n%zu names were looked at (SCAN 0 MATCH hf:{*)",
                      names.count);
}
