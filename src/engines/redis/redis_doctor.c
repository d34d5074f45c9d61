/* SPDX-License-Identifier: MIT
 *
 * redis_doctor.c: asking servers what they are and how they are set up. Everything is read: INFO, TIME, CONFIG GET,
 * SENTINEL, CLUSTER; and what a server refuses to show is said.
 */
#include "redis_doctor.h"
#include "engines/local.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const setting_names[REDIS_SETTINGS] = {
    [REDIS_APPENDFSYNC] = "appendfsync",
    [REDIS_NO_APPENDFSYNC_ON_REWRITE] = "no-appendfsync-on-rewrite",
    [REDIS_SAVE] = "save",
    [REDIS_STOP_WRITES] = "stop-writes-on-bgsave-error",
    [REDIS_MAXMEMORY] = "maxmemory",
    [REDIS_MAXMEMORY_POLICY] = "maxmemory-policy",
    [REDIS_MIN_REPLICAS] = "min-replicas-to-write",
    [REDIS_MIN_REPLICAS_LAG] = "min-replicas-max-lag",
    [REDIS_REPLICA_READ_ONLY] = "replica-read-only",
    [REDIS_OUTPUT_LIMITS] = "client-output-buffer-limit",
    [REDIS_TIMEOUT] = "timeout",
    [REDIS_KEEPALIVE] = "tcp-keepalive",
    [REDIS_MAXCLIENTS] = "maxclients",
    [REDIS_NODE_TIMEOUT] = "cluster-node-timeout",
};

/* --- asking --- */

hf_status hfi_redis_patient_command(const struct redis_patient *patient, struct redis_command *command,
                                    redisReply **reply, hf_error *err)
{
    struct redis_question question = {
        .commands = command, .count = 1, .deadline_ns = patient->deadline_ns, .node = patient->node
    };
    return hfi_redis_only_read(hfi_redis_ask(patient->store, &question, reply, err), err);
}

/* Its clock and ours. What lies between question and answer is the doubt. */
static void compare_clocks(struct redis_patient *patient, int64_t before_ms, int64_t after_ms)
{
    const redisReply *time = patient->time;
    if (time->type != REDIS_REPLY_ARRAY || time->elements != 2 || time->element[0]->type != REDIS_REPLY_STRING ||
        time->element[1]->type != REDIS_REPLY_STRING)
        return;
    const int64_t server_ms =
        strtoll(time->element[0]->str, NULL, 10) * 1000 + strtoll(time->element[1]->str, NULL, 10) / 1000;
    patient->unsure_ms = (after_ms - before_ms) / 2 + 1;
    patient->ahead_ms = server_ms - before_ms - (after_ms - before_ms) / 2;
}

hf_status hfi_redis_patient_ask(struct redis_patient *patient, hf_error *err)
{
    struct redis_command commands[2 + REDIS_SETTINGS] = { { REDIS_ROOM(1) }, { REDIS_ROOM(1) } };
    const char *words[REDIS_SETTINGS][3];
    redisReply *replies[2 + REDIS_SETTINGS] = { NULL };
    hfi_redis_add(&commands[0], "INFO");
    hfi_redis_add(&commands[1], "TIME");
    for (size_t i = 0; i < REDIS_SETTINGS; i++) { /* one by one: Redis 6 takes no more */
        commands[2 + i] = (struct redis_command){ .room = 3, .text = words[i] };
        hfi_redis_add(&commands[2 + i], "CONFIG");
        hfi_redis_add(&commands[2 + i], "GET");
        hfi_redis_add(&commands[2 + i], setting_names[i]);
    }
    struct redis_question question = {
        .commands = commands, .count = 2 + REDIS_SETTINGS, .deadline_ns = patient->deadline_ns, .node = patient->node
    };
    /* The clock alone first: INFO and the rest take their time. On a connection that is there already. */
    hf_status status = hfi_redis_patient_command(patient, &commands[1], &patient->time, err);
    freeReplyObject(patient->time);
    patient->time = NULL;
    const int64_t before_ms = hfi_wall_ms();
    if (status == HF_OK)
        status = hfi_redis_patient_command(patient, &commands[1], &patient->time, err);
    if (status != HF_OK)
        return status;
    compare_clocks(patient, before_ms, hfi_wall_ms());
    commands[1] = (struct redis_command){ REDIS_ROOM(1) };
    hfi_redis_add(&commands[1], "PING");
    status = hfi_redis_only_read(hfi_redis_ask(patient->store, &question, replies, err), err);
    if (status != HF_OK)
        return status;
    patient->info = replies[0];
    freeReplyObject(replies[1]);
    memcpy(patient->settings, replies + 2, sizeof patient->settings);
    return HF_OK;
}

void hfi_redis_patient_free(struct redis_patient *patient)
{
    freeReplyObject(patient->info);
    freeReplyObject(patient->time);
    hfi_redis_free_replies(patient->settings, REDIS_SETTINGS);
}

/* --- what it has said --- */

const char *hfi_redis_info(const struct redis_patient *patient, const char *field, char out[REDIS_VALUE_MAX])
{
    const size_t length = strlen(field);
    const char *line = patient->info->type == REDIS_REPLY_STRING ? patient->info->str : "";
    out[0] = 0;
    while (*line && !(strncmp(line, field, length) == 0 && line[length] == ':')) {
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    if (*line)
        snprintf(out, REDIS_VALUE_MAX, "%.*s", (int)strcspn(line + length + 1, "\r\n"), line + length + 1);
    return out;
}

long long hfi_redis_info_number(const struct redis_patient *patient, const char *field)
{
    char value[REDIS_VALUE_MAX];
    return strtoll(hfi_redis_info(patient, field, value), NULL, 10);
}

const char *hfi_redis_setting(const struct redis_patient *patient, enum redis_setting setting)
{
    const redisReply *reply = patient->settings[setting];
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[1]->type != REDIS_REPLY_STRING)
        return NULL;
    return reply->element[1]->str;
}

long long hfi_redis_setting_number(const struct redis_patient *patient, enum redis_setting setting, long long unknown)
{
    const char *value = hfi_redis_setting(patient, setting);
    return value ? strtoll(value, NULL, 10) : unknown;
}

void hfi_redis_say(const struct redis_patient *patient, hf_finding_level level, const char *what, const char *format,
                   ...)
{
    char text[1024];
    const struct redis_address *address = &patient->node->address;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (patient->one_of_many)
        hfi_finding(patient->examination, level, what, "%.100s:%s: %s", address->host, address->port, text);
    else
        hfi_finding(patient->examination, level, what, "%s", text);
}

/* --- which servers there are --- */

static hf_status examine_one(struct redis_store *store, const struct hfi_examination *examination, hfi_time deadline_ns,
                             hf_error *err)
{
    struct redis_patient patient = { .store = store, .examination = examination, .deadline_ns = deadline_ns };
    hf_status status = hfi_redis_find(store, "", &patient.node, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_redis_patient_ask(&patient, err);
    if (status == HF_OK) {
        hfi_redis_examine_server(&patient);
        hfi_redis_examine_rights(&patient);
        hfi_redis_examine_names(&patient);
    }
    if (status == HF_OK && store->config.kind == REDIS_SENTINEL)
        hfi_redis_examine_sentinels(&patient);
    hfi_redis_patient_free(&patient);
    return status;
}

/* Every master of the cluster. One that does not answer is a finding; if none does, the store cannot be asked. */
static hf_status examine_cluster(struct redis_store *store, const struct hfi_examination *examination,
                                 hfi_time deadline_ns, hf_error *err)
{
    size_t left = 0, answered = 0;
    hf_status status = HF_OK;
    for (struct redis_node *node = NULL; (node = hfi_redis_cluster_next(store, node)) != NULL;)
        left++;
    for (struct redis_node *node = NULL; (node = hfi_redis_cluster_next(store, node)) != NULL;) {
        const hfi_time now = hfi_redis_now_ns();
        struct redis_patient patient = { .store = store,
                                         .node = node,
                                         .examination = examination,
                                         .deadline_ns = now + (deadline_ns - now) / (hfi_time)(left ? left-- : 1),
                                         .one_of_many = true };
        hf_error trouble = { .message = "" };
        status = hfi_redis_patient_ask(&patient, &trouble);
        if (status == HF_OK) {
            if (answered++ == 0)
                hfi_redis_examine_cluster(&patient);
            hfi_redis_examine_server(&patient);
            hfi_redis_examine_rights(&patient);
            hfi_redis_examine_names(&patient);
        } else {
            hfi_redis_say(&patient, HF_FINDING_BROKEN, "server",
                          "it does not answer, and nobody can take the locks whose slots it has\n%.200s\n"
                          "start it, or have a replica take its place (CLUSTER FAILOVER)",
                          trouble.message);
            if (err)
                *err = trouble;
        }
        hfi_redis_patient_free(&patient);
    }
    return answered ? HF_OK : status;
}

hf_status hfi_redis_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                            hf_error *err)
{
    struct redis_store *store = memory;
    return (store->config.kind == REDIS_CLUSTER ? examine_cluster : examine_one)(store, examination, deadline_ns, err);
}
