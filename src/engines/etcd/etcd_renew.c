/* SPDX-License-Identifier: MIT
 *
 * etcd_renew.c: keeping what is held. In one write the leases are kept and all keys are looked at: a lease that lives
 * says nothing about a key that somebody has deleted.
 */
#include "etcd.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A server takes 128 operations in one transaction unless it was told otherwise (max-txn-ops): then fewer. One for each
 * lock, and one for each lease. */
#define TOGETHER_MOST 100
#define LEASES_MOST 28

/* One lock of many. */
struct part {
    struct etcd_lease *lease; /* NULL: it was released by another thread */
    size_t lease_index;
    bool lost; /* that is known already; what is still asked is who broke it */
    int64_t own_revision;
    char key[HFI_ETCD_KEY_MAX + 1];
    Etcd__Compare compare;
    Etcd__RequestOp operation;
    Etcd__RangeRequest range;
};

/* One of their leases. */
struct shared {
    struct etcd_lease *lease;
    size_t call; /* that keeps it; 0: none, as the first call is the transaction */
    bool kept;
    Etcd__LeaseRequest keep;
    char start[HFI_ETCD_BROKEN_MAX], end[HFI_ETCD_BROKEN_MAX]; /* between them is who broke which of its locks */
    Etcd__RequestOp operation;
    Etcd__RangeRequest range;
};

struct renewal {
    struct part parts[TOGETHER_MOST];
    size_t count;
    struct shared leases[LEASES_MOST];
    size_t lease_count;
    Etcd__Compare *compares[TOGETHER_MOST];
    Etcd__RequestOp *operations[TOGETHER_MOST + LEASES_MOST]; /* those of the leases behind all others */
    Etcd__TxnRequest request;
    struct etcd_call calls[1 + LEASES_MOST];
    struct etcd_question question;
};

static size_t find_lease(const struct etcd_store *store, struct renewal *all, struct etcd_lease *lease)
{
    size_t i = 0;
    while (i < all->lease_count && all->leases[i].lease != lease)
        i++;
    if (i < all->lease_count)
        return i;
    struct shared *shared = &all->leases[all->lease_count++];
    shared->lease = lease;
    const size_t length = hfi_etcd_broken_key(shared->start, sizeof shared->start, store, lease->id, "");
    memcpy(shared->end, shared->start, length + 1);
    shared->end[length - 1] = '/' + 1;
    etcd__range_request__init(&shared->range);
    shared->range.key = (ProtobufCBinaryData){ .len = length, .data = (uint8_t *)shared->start };
    shared->range.range_end = (ProtobufCBinaryData){ .len = length, .data = (uint8_t *)shared->end };
    etcd__request_op__init(&shared->operation);
    shared->operation.request_case = ETCD__REQUEST_OP__REQUEST_RANGE;
    shared->operation.range = &shared->range;
    return i;
}

/* Has the lease kept too, unless it was a moment ago. */
static void keep(struct etcd_store *store, struct renewal *all, struct shared *shared, uint32_t ttl_ms)
{
    if (shared->call || !hfi_etcd_lease_is_stale(store, shared->lease, ttl_ms))
        return;
    etcd__lease_request__init(&shared->keep);
    shared->keep.id = shared->lease->id;
    shared->call = all->question.count++;
    all->calls[shared->call] = (struct etcd_call){ .path = "/etcdserverpb.Lease/LeaseKeepAlive",
                                                   .request = &shared->keep.base,
                                                   .type = &etcd__lease_keep_alive_response__descriptor };
}

/* If all keys are as they were made nothing is read; else each is. */
static void add_part(struct etcd_store *store, struct renewal *all, const struct hfi_renewal *renewal)
{
    struct part *part = &all->parts[all->count++];
    part->lease = hfi_etcd_lease_use(store, renewal->lock, &part->own_revision, &part->lost);
    if (!part->lease)
        return;
    part->lease_index = find_lease(store, all, part->lease);
    const size_t length = hfi_etcd_key(part->key, store, renewal->name, part->lease->id);
    etcd__compare__init(&part->compare);
    part->compare.target = ETCD__COMPARE__TARGET__CREATE;
    part->compare.key = (ProtobufCBinaryData){ .len = length, .data = (uint8_t *)part->key };
    part->compare.target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    part->compare.create_revision = part->own_revision;
    etcd__range_request__init(&part->range);
    part->range.key = part->compare.key;
    part->range.keys_only = true;
    etcd__request_op__init(&part->operation);
    part->operation.request_case = ETCD__REQUEST_OP__REQUEST_RANGE;
    part->operation.range = &part->range;
    all->compares[all->request.n_compare++] = &part->compare;
    all->operations[all->request.n_failure++] = &part->operation;
    if (!part->lost)
        keep(store, all, &all->leases[part->lease_index], renewal->ttl_ms);
}

/* What was read at `index`; NULL: nothing was. */
static const Etcd__RangeResponse *range_at(const Etcd__TxnResponse *answer, size_t index)
{
    if (index >= answer->n_responses || answer->responses[index]->response_case != ETCD__RESPONSE_OP__RESPONSE_RANGE)
        return NULL;
    return answer->responses[index]->range;
}

/* Whether the key that was asked for at `index` is the one that we made. */
static bool is_there(const Etcd__TxnResponse *answer, size_t index, int64_t revision)
{
    if (answer->succeeded)
        return true;
    const Etcd__RangeResponse *range = range_at(answer, index);
    return range && range->n_kvs == 1 && range->kvs[0]->create_revision == revision;
}

/* Says who broke the lock, if somebody has said so of its lease. */
static void explain(struct hfi_renewal *renewal, const struct etcd_store *store, const struct renewal *all,
                    const struct part *part)
{
    const Etcd__TxnResponse *answer = (const Etcd__TxnResponse *)all->calls[0].answer;
    const Etcd__RangeResponse *range = range_at(answer, all->request.n_compare + part->lease_index);
    char key[HFI_ETCD_KEY_MAX + 1];
    const size_t length = hfi_etcd_broken_key(key, sizeof key, store, part->lease->id, renewal->name);
    for (size_t i = 0; range && i < range->n_kvs; i++) {
        char text[HFI_ETCD_VALUE_MAX], *by;
        const Etcd__KeyValue *one = range->kvs[i];
        if (one->key.len != length || memcmp(one->key.data, key, length) != 0)
            continue;
        snprintf(text, sizeof text, "%.*s", (int)(one->value.len < sizeof text ? one->value.len : sizeof text - 1),
                 one->value.data ? (const char *)one->value.data : "");
        if (strtoll(text, &by, 10) == part->own_revision && by[0] == ' ' && by[1])
            hfi_say_broken(renewal->why, by + 1);
    }
}

static bool makes_sense(const struct renewal *all, const Etcd__TxnResponse *answer)
{
    return answer->succeeded || answer->n_responses == all->request.n_failure;
}

static void take_answer(struct etcd_store *store, struct renewal *all, struct hfi_renewal *renewals)
{
    const Etcd__TxnResponse *answer = (const Etcd__TxnResponse *)all->calls[0].answer;
    size_t asked = 0;
    for (size_t i = 0; i < all->lease_count; i++) {
        struct shared *shared = &all->leases[i];
        shared->kept = !shared->call || hfi_etcd_lease_kept(store, shared->lease, &all->question, shared->call);
    }
    for (size_t i = 0; i < all->count; i++) {
        const struct part *part = &all->parts[i];
        struct hfi_renewal *renewal = &renewals[i];
        renewal->status = HF_LOST;
        if (!part->lease)
            continue;
        if (!is_there(answer, asked++, part->own_revision)) {
            explain(renewal, store, all, part);
            continue;
        }
        if (part->lost || hfi_etcd_lease_has_ended(store, part->lease))
            continue;
        renewal->status = all->leases[part->lease_index].kept ? HF_OK : HF_UNAVAILABLE;
        renewal->counted_from_ns = hfi_etcd_lease_counts_from(store, part->lease, renewal->ttl_ms,
                                                              renewal->counted_from_ns, &renewal->valid_ms);
    }
}

static size_t together(struct etcd_store *store)
{
    pthread_mutex_lock(&store->mutex);
    const size_t most = store->together ? store->together : TOGETHER_MOST;
    pthread_mutex_unlock(&store->mutex);
    return most;
}

/* That many are too many for the server. */
static void take_fewer(struct etcd_store *store, size_t count)
{
    pthread_mutex_lock(&store->mutex);
    store->together = count / 2;
    pthread_mutex_unlock(&store->mutex);
}

/* As many as go into one question; how many. 0: they were too many, and fewer are asked for from now on. */
static size_t renew_some(struct etcd_store *store, struct renewal *all, struct hfi_renewal *renewals, size_t count,
                         hfi_time deadline_ns, hf_error *err)
{
    memset(all, 0, sizeof *all);
    etcd__txn_request__init(&all->request);
    all->request.compare = all->compares;
    all->request.failure = all->operations;
    all->calls[0] = (struct etcd_call){ .path = "/etcdserverpb.KV/Txn",
                                        .request = &all->request.base,
                                        .type = &etcd__txn_response__descriptor };
    all->question = (struct etcd_question){ .calls = all->calls, .count = 1, .deadline_ns = deadline_ns };
    const size_t most = together(store);
    while (all->count < count && all->count < most && all->lease_count < LEASES_MOST)
        add_part(store, all, &renewals[all->count]);
    for (size_t i = 0; i < all->lease_count; i++)
        all->operations[all->request.n_failure++] = &all->leases[i].operation;
    hf_status status = hfi_etcd_ask(store, &all->question, err);
    const bool too_many = all->question.too_many && all->count > 1;
    if (too_many)
        take_fewer(store, all->count);
    if (status == HF_OK && !makes_sense(all, (const Etcd__TxnResponse *)all->calls[0].answer))
        status = hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    for (size_t i = 0; i < all->count && status != HF_OK; i++)
        renewals[i].status = all->parts[i].lost ? HF_LOST : status; /* what is known to be lost is so in any case */
    if (status == HF_OK)
        take_answer(store, all, renewals);
    hfi_etcd_answers_free(&all->question);
    for (size_t i = 0; i < all->count; i++) {
        if (all->parts[i].lease)
            hfi_etcd_lease_unuse(store, all->parts[i].lease);
    }
    return too_many ? 0 : all->count;
}

hf_status hfi_etcd_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns, hf_error *err)
{
    struct etcd_store *store = memory;
    struct renewal *all = hfi_alloc(sizeof *all);
    if (!all)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a renewal");
    for (size_t done = 0; done < count;)
        done += renew_some(store, all, renewals + done, count - done, deadline_ns, err);
    hfi_etcd_tell_losses(store); /* of those that share a lease with these */
    hfi_free(all);
    return HF_OK;
}
