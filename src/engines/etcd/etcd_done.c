/* SPDX-License-Identifier: MIT
 *
 * etcd_done.c: that the work of a lock is done, for once_per_ms. The mark is the key P/.done/NAME, below no lock's
 * name, which has no dot at its beginning; its value is a holder's, with the token. It ends with a lease of its own
 * that nobody keeps alive, so that its time is counted by the leader of the cluster, in whole seconds, as for every
 * lease: a new leader counts it from its beginning.
 */
#include "etcd.h"
#include <stdio.h>
#include <string.h>

#define TOGETHER_MOST 32 /* marks whose leases are asked about in one write */

/* What is known of the time of a mark; -1: not known. */
struct mark_time {
    int64_t left_ms, ago_ms;
};

size_t hfi_etcd_done_key(char out[HFI_ETCD_KEY_MAX + 1], const struct etcd_store *store, const char *name)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, name);
    return (size_t)snprintf(out, HFI_ETCD_KEY_MAX + 1, "%s/.done/%s", store->config.prefix, encoded);
}

/* --- its time --- */

/* What a server says is in whole seconds that are left: up to one more may be. */
static struct mark_time read_time(const Etcd__LeaseTimeToLiveResponse *life)
{
    const int64_t most = INT64_MAX / 1000;
    if (!life || life->ttl < 0 || life->granted_ttl < life->ttl || life->granted_ttl > most)
        return (struct mark_time){ .left_ms = -1, .ago_ms = -1 };
    const int64_t ago = life->granted_ttl - life->ttl;
    return (struct mark_time){ .left_ms = life->ttl * 1000, .ago_ms = ago ? (ago - 1) * 1000 : 0 };
}

static hf_status ask_for_times(struct etcd_store *store, const int64_t *leases, struct mark_time *times, size_t count,
                               hfi_time deadline_ns, hf_error *err)
{
    Etcd__LeaseRequest requests[TOGETHER_MOST];
    struct etcd_call calls[TOGETHER_MOST];
    struct etcd_question question = { .calls = calls, .count = count, .deadline_ns = deadline_ns };
    for (size_t i = 0; i < count; i++) {
        etcd__lease_request__init(&requests[i]);
        requests[i].id = leases[i];
        calls[i] = (struct etcd_call){ .path = "/etcdserverpb.Lease/LeaseTimeToLive",
                                       .request = &requests[i].base,
                                       .type = &etcd__lease_time_to_live_response__descriptor,
                                       .optional = true };
    }
    const hf_status status = hfi_etcd_ask(store, &question, err);
    for (size_t i = 0; i < count; i++)
        times[i] = read_time(status == HF_OK ? (const Etcd__LeaseTimeToLiveResponse *)calls[i].answer : NULL);
    hfi_etcd_answers_free(&question);
    return status;
}

void hfi_etcd_say_done(struct etcd_store *store, const struct etcd_view *view, struct hfi_grant *grant,
                       hfi_time deadline_ns)
{
    struct mark_time time;
    snprintf(grant->holder, sizeof grant->holder, "%s", view->holder);
    ask_for_times(store, &view->done_lease, &time, 1, deadline_ns, NULL); /* it is done in any case */
    grant->holder_left_ms = time.left_ms;
    grant->done_ago_ms = time.ago_ms;
}

/* --- leaving it --- */

/* The number is ours, so that asking again makes no second lease. */
static hf_status ask_for_lease(struct etcd_store *store, int64_t id, uint64_t ms, hfi_time deadline_ns, hf_error *err)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;
    struct etcd_call call = { .path = "/etcdserverpb.Lease/LeaseGrant",
                              .request = &request.base,
                              .type = &etcd__lease_grant_response__descriptor };
    struct etcd_question question = { .calls = &call, .count = 1, .deadline_ns = deadline_ns };
    request.ttl = (int64_t)((ms + 999) / 1000);
    request.id = id;
    /* Not `writes`: nothing is done yet. */
    const hf_status status = hfi_etcd_ask(store, &question, err);
    hfi_etcd_answers_free(&question);
    return question.lease_there ? HF_OK : status;
}

hf_status hfi_etcd_finish(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                          hf_error *err)
{
    if (!lock->done_lease) /* more than 0 */
        lock->done_lease = (int64_t)(store->env->random() >> 2) + 1;
    hf_status status = ask_for_lease(store, lock->done_lease, request->done_ms, request->deadline_ns, err);
    if (status == HF_OK)
        status = hfi_etcd_ask_to_finish(store, lock, request, err);
    if (status == HF_LOST)
        hfi_etcd_leases_revoke(store, &lock->done_lease, 1, request->deadline_ns);
    return status;
}

/* --- for people --- */

static int show(const struct etcd_store *store, const Etcd__KeyValue *mark, const struct mark_time *time,
                hf_inspect_fn each, void *arg)
{
    char encoded[HFI_NAME_ENCODED_MAX], name[HFI_NAME_MAX + 1];
    struct etcd_person person;
    const size_t before = strlen(store->config.prefix) + strlen("/.done/");
    if (mark->key.len <= before || mark->key.len - before >= sizeof encoded)
        return 0;
    snprintf(encoded, sizeof encoded, "%.*s", (int)(mark->key.len - before), (const char *)mark->key.data + before);
    if (!hfi_name_decode(name, sizeof name, encoded))
        return 0;
    hfi_etcd_read_person(&person, &mark->value);
    const hf_info info = { .size = sizeof info,
                           .name = name,
                           .host = person.host,
                           .pid = person.pid,
                           .token = person.token,
                           .held_ms = time->ago_ms,
                           .remaining_ms = time->left_ms,
                           .waiters = -1,
                           .note = person.note };
    return each(&info, arg);
}

hf_status hfi_etcd_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err)
{
    struct etcd_store *store = memory;
    char start[HFI_ETCD_KEY_MAX + 1];
    struct etcd_call call;
    hfi_etcd_done_key(start, store, prefix);
    hf_status status = hfi_etcd_read_keys(store, start, &call, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const Etcd__RangeResponse *range = (const Etcd__RangeResponse *)call.answer;
    int stop = 0;
    for (size_t from = 0, count; from < range->n_kvs && status == HF_OK && !stop; from += count) {
        int64_t leases[TOGETHER_MOST];
        struct mark_time times[TOGETHER_MOST];
        for (count = 0; count < TOGETHER_MOST && from + count < range->n_kvs; count++)
            leases[count] = range->kvs[from + count]->lease;
        status = ask_for_times(store, leases, times, count, deadline_ns, err);
        for (size_t i = 0; i < count && status == HF_OK && !stop; i++)
            stop = show(store, range->kvs[from + i], &times[i], each, arg);
    }
    hfi_etcd_answers_free(&(struct etcd_question){ .calls = &call, .count = 1 });
    return status;
}

hf_status hfi_etcd_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct etcd_store *store = memory;
    char key[HFI_ETCD_KEY_MAX + 1];
    struct etcd_call call;
    const size_t length = hfi_etcd_done_key(key, store, name);
    hf_status status = hfi_etcd_read_keys(store, key, &call, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const Etcd__RangeResponse *range = (const Etcd__RangeResponse *)call.answer;
    for (size_t i = 0; i < range->n_kvs && status == HF_OK; i++) {
        const Etcd__KeyValue *mark = range->kvs[i];
        if (mark->key.len != length) /* of a longer name */
            continue;
        status = hfi_etcd_delete_key(store, mark, NULL, deadline_ns, err);
        if (status == HF_OK && mark->lease)
            hfi_etcd_leases_revoke(store, &mark->lease, 1, deadline_ns);
    }
    hfi_etcd_answers_free(&(struct etcd_question){ .calls = &call, .count = 1 });
    return status;
}
