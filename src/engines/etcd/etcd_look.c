/* SPDX-License-Identifier: MIT
 *
 * etcd_look.c: who holds what, and breaking a lock. The keys of a lock stand together, and the oldest of them is the
 * holder's.
 */
#include "etcd.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOGETHER_MOST 16 /* locks whose holders are asked about in one write */
#define WAITER_MOST 256

/* The keys of one lock, the oldest first. */
struct group {
    Etcd__KeyValue **keys;
    size_t count;
    char name[HFI_NAME_MAX + 1];
    char start[HFI_ETCD_KEY_MAX + 1], end[HFI_ETCD_KEY_MAX + 1]; /* between them are all its keys */
    int64_t left_ms;                                             /* of the holder's lease; -1: not known */
    uint64_t token;                                              /* 0: not known */
};

/* --- reading keys --- */

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){ .len = strlen(text), .data = (uint8_t *)(uintptr_t)text };
}

hf_status hfi_etcd_read_keys(struct etcd_store *store, const char *start, struct etcd_call *call, hfi_time deadline_ns,
                             hf_error *err)
{
    char end[HFI_ETCD_KEY_MAX + 1];
    Etcd__RangeRequest request = ETCD__RANGE_REQUEST__INIT;
    struct etcd_question question = { .calls = call, .count = 1, .deadline_ns = deadline_ns };
    snprintf(end, sizeof end, "%s", start);
    end[strlen(end) - 1]++; /* no byte of UTF-8 is the last one */
    request.key = bytes(start);
    request.range_end = bytes(end);
    *call = (struct etcd_call){ .path = "/etcdserverpb.KV/Range",
                                .request = &request.base,
                                .type = &etcd__range_response__descriptor };
    return hfi_etcd_ask(store, &question, err);
}

static int by_age(const void *a, const void *b)
{
    const int64_t one = (*(Etcd__KeyValue *const *)a)->create_revision;
    const int64_t other = (*(Etcd__KeyValue *const *)b)->create_revision;
    return (one > other) - (one < other);
}

/* Where in a key its lock's name ends, behind the URL's prefix; 0: it is no lock's key. */
static size_t name_end(const struct etcd_store *store, const Etcd__KeyValue *one)
{
    const size_t before = strlen(store->config.prefix) + 1;
    const uint8_t *slash = one->key.len > before ? memchr(one->key.data + before, '/', one->key.len - before) : NULL;
    return slash ? (size_t)(slash - one->key.data) : 0;
}

/* The next lock whose keys stand at *from; false: there is none any more. Other programs may have keys in between. */
static bool next_group(const struct etcd_store *store, Etcd__KeyValue **keys, size_t count, size_t *from,
                       struct group *group)
{
    const size_t before = strlen(store->config.prefix) + 1;
    while (*from < count) {
        char encoded[HFI_NAME_ENCODED_MAX];
        const Etcd__KeyValue *one = keys[*from];
        const size_t end = name_end(store, one);
        size_t same = 1;
        while (end && *from + same < count && name_end(store, keys[*from + same]) == end &&
               memcmp(one->key.data, keys[*from + same]->key.data, end) == 0)
            same++;
        group->keys = keys + *from;
        group->count = same;
        *from += same;
        if (!end || end - before >= sizeof encoded)
            continue;
        snprintf(encoded, sizeof encoded, "%.*s", (int)(end - before), (const char *)one->key.data + before);
        if (!hfi_name_decode(group->name, sizeof group->name, encoded))
            continue;
        qsort(group->keys, same, sizeof(Etcd__KeyValue *), by_age);
        return true;
    }
    return false;
}

/* --- holders --- */

/* How long the holder's lease lasts; and whether it was alone when it made its key, for then that key's revision is its
 * token. One that had to wait tells its token in the key's value, if it stays. */
static hf_status ask_about_holders(struct etcd_store *store, struct group *groups, size_t count, hfi_time deadline_ns,
                                   hf_error *err)
{
    Etcd__LeaseRequest lives[TOGETHER_MOST];
    Etcd__RangeRequest thens[TOGETHER_MOST];
    struct etcd_call calls[2 * TOGETHER_MOST];
    struct etcd_question question = { .calls = calls, .count = 2 * count, .deadline_ns = deadline_ns };
    for (size_t i = 0; i < count; i++) {
        struct group *group = &groups[i];
        const size_t length = hfi_etcd_key(group->start, store, group->name, 0);
        memcpy(group->end, group->start, length + 1);
        group->end[length - 1]++;
        etcd__lease_request__init(&lives[i]);
        lives[i].id = group->keys[0]->lease;
        etcd__range_request__init(&thens[i]);
        thens[i].key = bytes(group->start);
        thens[i].range_end = bytes(group->end);
        thens[i].revision = group->keys[0]->create_revision;
        thens[i].limit = 2;
        thens[i].keys_only = true;
        calls[2 * i] = (struct etcd_call){ .path = "/etcdserverpb.Lease/LeaseTimeToLive",
                                           .request = &lives[i].base,
                                           .type = &etcd__lease_time_to_live_response__descriptor,
                                           .optional = true };
        calls[2 * i + 1] = (struct etcd_call){ .path = "/etcdserverpb.KV/Range",
                                               .request = &thens[i].base,
                                               .type = &etcd__range_response__descriptor,
                                               .optional = true }; /* that revision may have been compacted */
    }
    const hf_status status = hfi_etcd_ask(store, &question, err);
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        const Etcd__LeaseTimeToLiveResponse *life = (const Etcd__LeaseTimeToLiveResponse *)calls[2 * i].answer;
        const Etcd__RangeResponse *then = (const Etcd__RangeResponse *)calls[2 * i + 1].answer;
        groups[i].left_ms =
            life && life->ttl >= 0 && life->ttl < INT64_MAX / 1000 && groups[i].keys[0]->lease ? life->ttl * 1000 : -1;
        groups[i].token = then && then->n_kvs == 1 ? (uint64_t)groups[i].keys[0]->create_revision : 0;
    }
    hfi_etcd_answers_free(&question);
    return status;
}

/* --- showing --- */

void hfi_etcd_read_person(struct etcd_person *person, const ProtobufCBinaryData *value)
{
    char text[HFI_ETCD_VALUE_MAX];
    int used = 0, more = 0;
    snprintf(text, sizeof text, "%.*s", (int)(value->len < sizeof text ? value->len : sizeof text - 1),
             value->data ? (const char *)value->data : "");
    person->host[0] = 0;
    person->token = 0;
    if (sscanf(text, "%64s %lld%n", person->host, &person->pid, &used) != 2) { /* another program's */
        person->host[0] = 0;
        person->pid = 0;
        used = 0;
    }
    if (used && sscanf(text + used, ":%llu%n", &person->token, &more) == 1)
        used += more;
    snprintf(person->note, sizeof person->note, "%s", text + used + (text[used] == ' '));
}

/* The texts of all waiters, "host:pid note", and pointers to them in front: one block. NULL: no memory. */
static const char **describe_waiters(const struct group *group)
{
    const size_t count = group->count - 1;
    const char **pointers = hfi_alloc(count * (sizeof *pointers + WAITER_MOST) + 1);
    char *texts = pointers ? (char *)(pointers + count) : NULL;
    for (size_t i = 0; pointers && i < count; i++) {
        struct etcd_person person;
        char *text = texts + i * WAITER_MOST;
        hfi_etcd_read_person(&person, &group->keys[1 + i]->value);
        pointers[i] = text;
        if (*person.host)
            snprintf(text, WAITER_MOST, "%s:%lld%s%.120s", person.host, person.pid, *person.note ? " " : "",
                     person.note);
    }
    return pointers;
}

static int show(const struct group *group, hf_inspect_fn each, void *arg)
{
    struct etcd_person holder;
    const char **waiting = describe_waiters(group);
    hfi_etcd_read_person(&holder, &group->keys[0]->value);
    const hf_info info = { .size = sizeof info,
                           .name = group->name,
                           .host = holder.host,
                           .pid = holder.pid,
                           .token = holder.token ? holder.token : group->token,
                           .held_ms = -1, /* the store keeps no times */
                           .remaining_ms = group->left_ms,
                           .waiters = (int64_t)group->count - 1,
                           .note = holder.note,
                           .waiting = waiting };
    const int stop = each(&info, arg);
    hfi_free((void *)waiting);
    return stop;
}

/* The locks whose keys start with `start`. */
static hf_status show_all(struct etcd_store *store, const char *start, hf_inspect_fn each, void *arg,
                          hfi_time deadline_ns, hf_error *err)
{
    struct etcd_call call;
    hf_status status = hfi_etcd_read_keys(store, start, &call, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const Etcd__RangeResponse *range = (const Etcd__RangeResponse *)call.answer;
    struct group *groups = hfi_alloc(TOGETHER_MOST * sizeof *groups);
    if (!groups)
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a list of locks");
    size_t from = 0, count = 1;
    int stop = 0;
    while (groups && status == HF_OK && !stop && count) {
        for (count = 0; count < TOGETHER_MOST && next_group(store, range->kvs, range->n_kvs, &from, &groups[count]);)
            count++;
        if (count)
            status = ask_about_holders(store, groups, count, deadline_ns, err);
        for (size_t i = 0; i < count && status == HF_OK && !stop; i++)
            stop = show(&groups[i], each, arg);
    }
    hfi_free(groups);
    hfi_etcd_answers_free(&(struct etcd_question){ .calls = &call, .count = 1 });
    return status;
}

hf_status hfi_etcd_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                           hf_error *err)
{
    struct etcd_store *store = memory;
    char encoded[HFI_NAME_ENCODED_MAX], start[HFI_ETCD_KEY_MAX + 1];
    hfi_name_encode(encoded, prefix);
    snprintf(start, sizeof start, "%s/%s", store->config.prefix, encoded);
    return show_all(store, start, each, arg, deadline_ns, err);
}

hf_status hfi_etcd_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err)
{
    char start[HFI_ETCD_KEY_MAX + 1];
    hfi_etcd_key(start, memory, name, 0);
    return show_all(memory, start, each, arg, deadline_ns, err);
}

/* --- breaking --- */

size_t hfi_etcd_broken_key(char out[HFI_ETCD_KEY_MAX + 1], const struct etcd_store *store, const char *name,
                           int64_t lease)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, name);
    return (size_t)snprintf(out, HFI_ETCD_KEY_MAX + 1, "%s/.broken/%llx/%s", store->config.prefix,
                            (unsigned long long)lease, encoded);
}

/* *spare: the server refuses the note. */
static hf_status delete_and_put(struct etcd_store *store, const Etcd__KeyValue *one, Etcd__PutRequest *note,
                                bool *spare, hfi_time deadline_ns, hf_error *err)
{
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare = ETCD__COMPARE__INIT, *compares[] = { &compare };
    Etcd__RequestOp operation = ETCD__REQUEST_OP__INIT, put = ETCD__REQUEST_OP__INIT;
    Etcd__RequestOp *operations[] = { &operation, &put };
    Etcd__DeleteRangeRequest remove = ETCD__DELETE_RANGE_REQUEST__INIT;
    struct etcd_call call = { .path = "/etcdserverpb.KV/Txn",
                              .request = &request.base,
                              .type = &etcd__txn_response__descriptor };
    struct etcd_question question = { .calls = &call, .count = 1, .writes = true, .deadline_ns = deadline_ns };
    compare.target = ETCD__COMPARE__TARGET__CREATE;
    compare.key = one->key;
    compare.target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    compare.create_revision = one->create_revision;
    remove.key = one->key;
    operation.request_case = ETCD__REQUEST_OP__REQUEST_DELETE_RANGE;
    operation.delete_range = &remove;
    put.request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    put.put = note;
    request.compare = compares;
    request.n_compare = 1;
    request.success = operations;
    request.n_success = note ? 2 : 1;
    const hf_status status = hfi_etcd_ask(store, &question, err);
    *spare = note && (question.full || question.lease_missing || status == HF_DENIED);
    if (status == HF_OK) /* also if it was gone already, which is what was wanted */
        hfi_etcd_answers_free(&question);
    return status;
}

hf_status hfi_etcd_delete_key(struct etcd_store *store, const Etcd__KeyValue *one, Etcd__PutRequest *note,
                              hfi_time deadline_ns, hf_error *err)
{
    bool spare;
    hf_error trouble = { .status = HF_OK };
    const hf_status status = delete_and_put(store, one, note, &spare, deadline_ns, &trouble);
    if (spare)
        return delete_and_put(store, one, NULL, &spare, deadline_ns, err);
    if (status != HF_OK && err)
        *err = trouble;
    return status;
}

/* Leaves a word for the holder, which goes with its lease; no other program would read it. */
static hf_status break_key(struct etcd_store *store, const char *name, const Etcd__KeyValue *one, const char *by,
                           hfi_time deadline_ns, hf_error *err)
{
    char key[HFI_ETCD_KEY_MAX + 1], value[HFI_ETCD_VALUE_MAX];
    struct etcd_person holder;
    Etcd__PutRequest note = ETCD__PUT_REQUEST__INIT;
    hfi_etcd_read_person(&holder, &one->value);
    hfi_etcd_broken_key(key, store, name, one->lease);
    snprintf(value, sizeof value, "%lld %s", (long long)one->create_revision, by);
    note.key = bytes(key);
    note.value = bytes(value);
    note.lease = one->lease;
    return hfi_etcd_delete_key(store, one, one->lease && *holder.host ? &note : NULL, deadline_ns, err);
}

hf_status hfi_etcd_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct etcd_store *store = memory;
    char start[HFI_ETCD_KEY_MAX + 1];
    struct etcd_call call;
    hfi_etcd_key(start, store, name, 0);
    hf_status status = hfi_etcd_read_keys(store, start, &call, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const Etcd__RangeResponse *range = (const Etcd__RangeResponse *)call.answer;
    const Etcd__KeyValue *oldest = range->n_kvs ? range->kvs[0] : NULL;
    for (size_t i = 1; i < range->n_kvs; i++) {
        if (range->kvs[i]->create_revision < oldest->create_revision)
            oldest = range->kvs[i];
    }
    if (oldest)
        status = break_key(store, name, oldest, by, deadline_ns, err);
    hfi_etcd_answers_free(&(struct etcd_question){ .calls = &call, .count = 1 });
    store->env->recheck(store->env->core, 0); /* it may have been our own */
    return status;
}
