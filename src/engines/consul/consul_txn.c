/* SPDX-License-Identifier: MIT
 *
 * consul_txn.c: transactions, and what is in the entries of their answers. All conditions of a transaction hold, and
 * all of it is done; or nothing is, and the answer says which do not.
 */
#include "consul.h"
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- keys --- */

void hfi_consul_key(char out[HFI_CONSUL_KEY_MAX], const struct consul_store *store, enum consul_key kind,
                    const char *name, struct hfi_owner owner)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, name);
    int used = snprintf(out, HFI_CONSUL_KEY_MAX, "%s/%s/.", store->config.prefix, encoded);
    char *end = out + used;
    const size_t room = HFI_CONSUL_KEY_MAX - (size_t)used;
    if (kind == CONSUL_LOCK)
        snprintf(end, room, "lock");
    else if (kind == CONSUL_PLACE)
        snprintf(end, room, "holdfast/%016" PRIx64 ".%" PRIu64, owner.client, owner.serial);
    else if (kind == CONSUL_MARKER)
        snprintf(end, room, "holdfast/queue");
}

/* --- requests --- */

static json_t *operation_json(const struct consul_operation *operation)
{
    json_t *one = json_pack("{s:s, s:s}", "Verb", operation->verb, "Key", operation->key);
    bool whole = one != NULL;
    if (operation->session)
        whole = whole && json_object_set_new(one, "Session", json_string(operation->session)) == 0;
    if (operation->index)
        whole = whole && json_object_set_new(one, "Index", json_integer((json_int_t)operation->index)) == 0;
    if (operation->flags)
        whole = whole && json_object_set_new(one, "Flags", json_integer((json_int_t)operation->flags)) == 0;
    if (operation->value) {
        unsigned char text[HFI_CONSUL_VALUE_MAX * 4 / 3 + 8];
        EVP_EncodeBlock(text, (const unsigned char *)operation->value, (int)strlen(operation->value));
        whole = whole && json_object_set_new(one, "Value", json_string((const char *)text)) == 0;
    }
    json_t *wrapped = whole ? json_pack("{s:o}", "KV", one) : NULL;
    if (!whole)
        json_decref(one);
    return wrapped;
}

hf_status hfi_consul_txn_begin(struct consul_store *store, struct consul_exchange *exchange,
                               const struct consul_operation *operations, size_t count, hf_error *err)
{
    json_t *all = json_array();
    bool whole = all != NULL;
    for (size_t i = 0; i < count && whole; i++)
        whole = json_array_append_new(all, operation_json(&operations[i])) == 0;
    const size_t length = whole ? json_dumpb(all, NULL, 0, JSON_COMPACT) : 0;
    char *body = length ? hfi_alloc(length + 1) : NULL;
    if (body)
        json_dumpb(all, body, length, JSON_COMPACT);
    json_decref(all);
    if (!body)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a request");
    /* With writes among them the whole is written in order, and needs no other word for it. */
    const struct consul_request request = { .method = "PUT", .path = "/v1/txn?consistent", .body = body };
    const hf_status status = hfi_consul_begin(store, exchange, &request, err);
    hfi_free(body);
    return status;
}

/* --- answers --- */

void hfi_consul_answer_free(struct consul_answer *answer)
{
    json_decref(answer->root);
    answer->root = NULL;
}

static hf_status read_errors(struct consul_answer *answer, const json_t *errors, hf_error *err)
{
    size_t i;
    const json_t *one;
    json_array_foreach(errors, i, one)
    {
        const json_int_t operation = json_integer_value(json_object_get(one, "OpIndex"));
        const char *what = json_string_value(json_object_get(one, "What"));
        if (!what || operation < 0 || operation > 63)
            return hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
        const hf_status status = hfi_consul_complaint(what, err);
        if (status != HF_OK)
            return status;
        answer->failed |= (uint64_t)1 << operation;
        answer->delayed = answer->delayed || strstr(what, "lock delay");
        answer->no_session = answer->no_session || strstr(what, "invalid session");
    }
    return HF_OK;
}

static hf_status read_answer(const struct consul_store *store, const struct consul_reply *reply,
                             struct consul_answer *answer, hf_error *err)
{
    *answer = (struct consul_answer){ .date_s = reply->date_s };
    if (reply->status != 200 && reply->status != 409)
        return hfi_consul_refusal(store, reply, true, err);
    answer->root = json_loadb(reply->body, reply->length, 0, NULL);
    if (!answer->root) /* a semaphore's flags are too large a number for an integer; and more than we need to know */
        answer->root = json_loadb(reply->body, reply->length, JSON_DECODE_INT_AS_REAL, NULL);
    const json_t *results = json_object_get(answer->root, "Results");
    const json_t *errors = json_object_get(answer->root, "Errors");
    hf_status status = HF_OK;
    if (json_array_size(errors) > 0)
        status = read_errors(answer, errors, err);
    else if (reply->status != 200 || !results) /* Results are null if there are none */
        status = hfi_fail(err, HF_INTERNAL, reply->status, "the server answered in a way that makes no sense");
    if (status != HF_OK)
        hfi_consul_answer_free(answer);
    return status;
}

hf_status hfi_consul_txn_end(struct consul_store *store, struct consul_exchange *exchange, struct consul_answer *answer,
                             hfi_time deadline_ns, hf_error *err)
{
    const hfi_time give_up = exchange->begun_ns + hfi_consul_patience(store);
    hf_status status = hfi_consul_finish(store, exchange, deadline_ns < give_up ? deadline_ns : give_up, err);
    if (status == HF_TIMEOUT && store->env->now_ns() < give_up)
        return HF_TIMEOUT;
    if (status == HF_TIMEOUT)
        status = hfi_fail(err, HF_UNKNOWN, 0, "the server did not answer in time");
    if (status == HF_OK)
        status = read_answer(store, exchange->reply, answer, err);
    hfi_consul_end(store, exchange);
    return status;
}

static hf_status try_txn(struct consul_store *store, const struct consul_operation *operations, size_t count,
                         struct consul_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    struct consul_exchange exchange = { 0 };
    hf_status status = hfi_consul_txn_begin(store, &exchange, operations, count, err);
    if (status != HF_OK)
        return status;
    status = hfi_consul_txn_end(store, &exchange, answer, deadline_ns, err);
    hfi_consul_end(store, &exchange);
    if (status == HF_TIMEOUT && err)
        err->status = HF_UNKNOWN;
    return status == HF_TIMEOUT ? HF_UNKNOWN : status;
}

/* An agent may have given a request to a leader that was cut off, and hear nothing more of it: the second half of the
 * time is for asking again, somebody else if there is somebody. */
hf_status hfi_consul_txn(struct consul_store *store, const struct consul_operation *operations, size_t count,
                         struct consul_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    const hfi_time now = store->env->now_ns();
    const hf_status status = try_txn(store, operations, count, answer, now + (deadline_ns - now) / 2, err);
    if (status != HF_UNKNOWN)
        return status;
    return try_txn(store, operations, count, answer, deadline_ns, err);
}

/* --- entries --- */

void hfi_consul_describe(char out[HFI_CONSUL_VALUE_MAX], struct consul_store *store, struct hfi_owner owner,
                         uint32_t ttl_ms, const char *note)
{
    pthread_mutex_lock(&store->mutex);
    const int64_t since = store->clock_s + (store->env->now_ns() - store->clock_ns) / HFI_SECOND;
    pthread_mutex_unlock(&store->mutex);
    snprintf(out, HFI_CONSUL_VALUE_MAX, "%016" PRIx64 ".%" PRIu64 " %" PRId64 " %" PRIu32 " 0 %s %d %s", owner.client,
             owner.serial, since, ttl_ms, store->host, store->pid, note);
}

size_t hfi_consul_entries(const struct consul_answer *answer)
{
    return json_array_size(json_object_get(answer->root, "Results"));
}

static void read_value(char text[HFI_CONSUL_VALUE_MAX], const json_t *entry)
{
    const char *encoded = json_string_value(json_object_get(entry, "Value"));
    const size_t length = encoded ? strlen(encoded) : 0;
    text[0] = 0;
    if (length == 0 || length % 4 || length / 4 * 3 >= HFI_CONSUL_VALUE_MAX)
        return;
    const int decoded = EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)encoded, (int)length);
    text[decoded > 0 ? decoded : 0] = 0;
}

static const json_t *entry_of(const struct consul_answer *answer, size_t i)
{
    return json_object_get(json_array_get(json_object_get(answer->root, "Results"), i), "KV");
}

void hfi_consul_text(char out[HFI_CONSUL_VALUE_MAX], const struct consul_answer *answer, size_t i)
{
    read_value(out, entry_of(answer, i));
}

uint64_t hfi_consul_number(const struct consul_answer *answer, size_t i)
{
    char text[HFI_CONSUL_VALUE_MAX];
    hfi_consul_text(text, answer, i);
    return strtoull(text, NULL, 10);
}

static void read_holder(struct consul_holder *holder, const json_t *entry)
{
    char text[HFI_CONSUL_VALUE_MAX];
    int used = 0;
    *holder = (struct consul_holder){ .owner = { 0, 0 } };
    read_value(text, entry);
    struct consul_holder read = { .owner = { 0, 0 } };
    if (sscanf(text, "%16" SCNx64 ".%" SCNu64 " %" SCNd64 " %" SCNu32 " %" SCNu64 " %64s %lld %n", &read.owner.client,
               &read.owner.serial, &read.since_s, &read.ttl_ms, &read.token, read.host, &read.pid, &used) < 7)
        return;
    snprintf(read.note, sizeof read.note, "%s", used ? text + used : "");
    *holder = read;
}

static uint64_t number(const json_t *entry, const char *field)
{
    const json_t *value = json_object_get(entry, field);
    const double real = json_real_value(value); /* 0 if it is none */
    if (json_is_integer(value))
        return (uint64_t)json_integer_value(value);
    return real > 0 && real < (double)INT64_MAX ? (uint64_t)real : 0;
}

bool hfi_consul_entry(const struct consul_answer *answer, size_t i, struct consul_entry *out)
{
    const json_t *entry = entry_of(answer, i);
    const char *session = json_string_value(json_object_get(entry, "Session"));
    *out = (struct consul_entry){
        .key = json_string_value(json_object_get(entry, "Key")),
        .session = session ? session : "",
        .created = number(entry, "CreateIndex"),
        .modified = number(entry, "ModifyIndex"),
        .locked = number(entry, "LockIndex"),
        .flags = number(entry, "Flags"),
    };
    read_holder(&out->holder, entry);
    return out->key && out->modified > 0 && out->modified <= INT64_MAX;
}
