/* SPDX-License-Identifier: MIT
 *
 * etcd_renew.c: keeping what is held. In one write the leases are kept and all keys are looked at: a lease that lives
 * says nothing about a key that somebody has deleted.
 */
#include "etcd.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A server takes 128 operations in one transaction unless it was told otherwise (max-txn-ops): then fewer. */
#define TOGETHER_MOST 100
#define LEASES_MOST 30

/* One lock of many. */
struct part {
    struct etcd_lease *lease; /* NULL: it is lost */
    bool asked;               /* … and it is asked for who broke it */
    int64_t own_revision;
    char key[HFI_ETCD_KEY_MAX + 1];
    Etcd__Compare compare;
    Etcd__RequestOp operation;
    Etcd__RangeRequest range;
};

struct renewal {
    struct part parts[TOGETHER_MOST];
    size_t count;
    Etcd__Compare *compares[TOGETHER_MOST];
    Etcd__RequestOp *operations[TOGETHER_MOST];
    Etcd__TxnRequest request;
    Etcd__LeaseRequest keeps[LEASES_MOST];
    struct etcd_lease *leases[LEASES_MOST];
    bool kept[LEASES_MOST];
    struct etcd_call calls[1 + LEASES_MOST];
    struct etcd_question question;
};

/* Has the lease kept too, unless it was a moment ago. */
static void add_lease(struct etcd_store *store, struct renewal *all, struct etcd_lease *lease, uint32_t ttl_ms)
{
    size_t *count = &all->question.count; /* the first call is the transaction */
    for (size_t i = 1; i < *count; i++) {
        if (all->leases[i - 1] == lease)
            return;
    }
    if (!hfi_etcd_lease_is_stale(store, lease, ttl_ms))
        return;
    Etcd__LeaseRequest *keep = &all->keeps[*count - 1];
    etcd__lease_request__init(keep);
    keep->id = lease->id;
    all->leases[*count - 1] = lease;
    all->calls[(*count)++] = (struct etcd_call){ .path = "/etcdserverpb.Lease/LeaseKeepAlive",
                                                 .request = &keep->base,
                                                 .type = &etcd__lease_keep_alive_response__descriptor };
}

/* If all keys are as they were made nothing is read; else each is. */
static void add_part(struct etcd_store *store, struct renewal *all, const struct hfi_renewal *renewal)
{
    struct part *part = &all->parts[all->count++];
    part->lease = hfi_etcd_lease_use(store, renewal->lock, &part->own_revision);
    if (!part->lease)
        return;
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
    add_lease(store, all, part->lease, renewal->ttl_ms);
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

static bool makes_sense(const struct renewal *all, const Etcd__TxnResponse *answer)
{
    return answer->succeeded || answer->n_responses == all->request.n_failure;
}

/* Whether the lease was to be kept, and was not in a way that counts. */
static bool is_doubtful(const struct renewal *all, const struct etcd_lease *lease)
{
    for (size_t i = 1; i < all->question.count; i++) {
        if (all->leases[i - 1] == lease)
            return !all->kept[i - 1];
    }
    return false;
}

static void take_answer(struct etcd_store *store, struct renewal *all, struct hfi_renewal *renewals)
{
    const Etcd__TxnResponse *answer = (const Etcd__TxnResponse *)all->calls[0].answer;
    size_t asked = 0;
    for (size_t i = 1; i < all->question.count; i++)
        all->kept[i - 1] = hfi_etcd_lease_kept(store, all->leases[i - 1], &all->question, i);
    for (size_t i = 0; i < all->count; i++) {
        const struct part *part = &all->parts[i];
        struct hfi_renewal *renewal = &renewals[i];
        renewal->status = HF_LOST;
        if (!part->lease || !is_there(answer, asked++, part->own_revision) ||
            hfi_etcd_lease_has_ended(store, part->lease))
            continue;
        renewal->status = is_doubtful(all, part->lease) ? HF_UNAVAILABLE : HF_OK;
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

/* A question with one transaction, which is still empty. */
static void begin(struct renewal *all, hfi_time deadline_ns)
{
    memset(all, 0, sizeof *all);
    etcd__txn_request__init(&all->request);
    all->request.compare = all->compares;
    all->calls[0] = (struct etcd_call){ .path = "/etcdserverpb.KV/Txn",
                                        .request = &all->request.base,
                                        .type = &etcd__txn_response__descriptor };
    all->question = (struct etcd_question){ .calls = all->calls, .count = 1, .deadline_ns = deadline_ns };
}

/* As many as go into one question; how many. 0: they were too many, and fewer are asked for from now on. */
static size_t renew_some(struct etcd_store *store, struct renewal *all, struct hfi_renewal *renewals, size_t count,
                         hfi_time deadline_ns, hf_error *err)
{
    begin(all, deadline_ns);
    all->request.failure = all->operations;
    const size_t most = together(store);
    while (all->count < count && all->count < most && all->question.count <= LEASES_MOST)
        add_part(store, all, &renewals[all->count]);
    all->question.renews = true;
    hf_status status = hfi_etcd_ask(store, &all->question, err);
    const bool too_many = all->question.too_many && all->count > 1;
    if (too_many)
        take_fewer(store, all->count);
    if (status == HF_OK && !makes_sense(all, (const Etcd__TxnResponse *)all->calls[0].answer))
        status = hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    for (size_t i = 0; i < all->count && status != HF_OK; i++)
        renewals[i].status = all->parts[i].lease ? status : HF_LOST; /* what is known to be lost is so in any case */
    if (status == HF_OK)
        take_answer(store, all, renewals);
    hfi_etcd_answers_free(&all->question);
    for (size_t i = 0; i < all->count; i++) {
        if (all->parts[i].lease)
            hfi_etcd_lease_unuse(store, all->parts[i].lease);
    }
    return too_many ? 0 : all->count;
}

/* --- who broke those that are lost --- */

/* Asks for it if the lock is lost, and not with its lease, with which it would have gone. */
static void add_lost(struct etcd_store *store, struct renewal *all, const struct hfi_renewal *renewal)
{
    struct part *part = &all->parts[all->count++];
    const int64_t lease =
        renewal->status == HF_LOST ? hfi_etcd_lease_alive(store, renewal->lock, &part->own_revision) : 0;
    if (!lease)
        return;
    etcd__range_request__init(&part->range);
    part->range.key = (ProtobufCBinaryData){ .len = hfi_etcd_broken_key(part->key, store, renewal->name, lease),
                                             .data = (uint8_t *)part->key };
    etcd__request_op__init(&part->operation);
    part->operation.request_case = ETCD__REQUEST_OP__REQUEST_RANGE;
    part->operation.range = &part->range;
    part->asked = true;
    all->operations[all->request.n_success++] = &part->operation;
}

/* "17 user@host:4711", if 17 is the revision in which our key was made. */
static void explain(char why[HFI_WHY_MAX], const Etcd__RangeResponse *range, int64_t own_revision)
{
    char text[HFI_ETCD_VALUE_MAX], *by;
    if (!range || range->n_kvs != 1)
        return;
    const ProtobufCBinaryData *value = &range->kvs[0]->value;
    snprintf(text, sizeof text, "%.*s", (int)(value->len < sizeof text ? value->len : sizeof text - 1),
             value->data ? (const char *)value->data : "");
    if (strtoll(text, &by, 10) == own_revision && by[0] == ' ' && by[1])
        hfi_say_broken(why, by + 1);
}

/* As many as go into one question; how many. */
static size_t explain_some(struct etcd_store *store, struct renewal *all, struct hfi_renewal *renewals, size_t count,
                           hfi_time deadline_ns)
{
    begin(all, deadline_ns);
    all->request.success = all->operations;
    const size_t most = together(store);
    while (all->count < count && all->request.n_success < most && all->count < TOGETHER_MOST)
        add_lost(store, all, &renewals[all->count]);
    if (all->request.n_success == 0 || hfi_etcd_ask(store, &all->question, NULL) != HF_OK)
        return all->count;
    size_t asked = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (all->parts[i].asked)
            explain(renewals[i].why, range_at((const Etcd__TxnResponse *)all->calls[0].answer, asked++),
                    all->parts[i].own_revision);
    }
    hfi_etcd_answers_free(&all->question);
    return all->count;
}

/* In a question of its own, since a user may have no right to read that, and when all are renewed, since some may be
 * healthy: for a second at most, and half of the time that is left. */
static void explain_losses(struct etcd_store *store, struct renewal *all, struct hfi_renewal *renewals, size_t count,
                           hfi_time deadline_ns)
{
    const hfi_time now = store->env->now_ns(), half = (deadline_ns - now) / 2;
    const hfi_time until = now + (half < HFI_SECOND ? half : HFI_SECOND);
    for (size_t done = 0; done < count && store->env->now_ns() < until;)
        done += renewals[done].status == HF_LOST ? explain_some(store, all, renewals + done, count - done, until) : 1;
}

hf_status hfi_etcd_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns, hf_error *err)
{
    struct etcd_store *store = memory;
    struct renewal *all = hfi_alloc(sizeof *all);
    if (!all)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a renewal");
    for (size_t done = 0; done < count;)
        done += renew_some(store, all, renewals + done, count - done, deadline_ns, err);
    explain_losses(store, all, renewals, count, deadline_ns);
    hfi_etcd_tell_losses(store); /* of those that share a lease with these */
    hfi_free(all);
    return HF_OK;
}
