/* SPDX-License-Identifier: MIT
 *
 * etcd_lease.c: a key lives as long as the lease it is tied to. All locks of a client with the same time-to-live share
 * one lease, which the push connection keeps alive; only those that want the same name at once need one each, since the
 * lease is what tells their keys apart.
 */
#include "etcd.h"
#include <errno.h>
#include <string.h>
#include <time.h>

/* A lease that no lock uses is kept for the next one, for so long. */
#define IDLE_MOST (60 * HFI_SECOND)
/* What a client that is closed takes to give its leases back. */
#define FAREWELL (500 * HFI_MS)

/* --- which lease; with the mutex --- */

static struct etcd_lock **bucket_of(struct etcd_store *store, uint64_t hash)
{
    return &store->locks[hash % HFI_ETCD_BUCKETS];
}

/* Whether a lock of this client has a key with that name and lease. */
static bool is_taken(struct etcd_store *store, const struct etcd_lock *lock, const struct etcd_lease *lease)
{
    const struct etcd_lock *other = *bucket_of(store, lock->hash);
    while (other && (other->lease != lease || other->hash != lock->hash || strcmp(other->name, lock->name) != 0))
        other = other->next;
    return other != NULL;
}

static struct etcd_lease *find(struct etcd_store *store, uint32_t ttl_ms, const struct etcd_lock *lock)
{
    struct etcd_lease *lease = store->leases;
    while (lease && (lease->ttl_ms != ttl_ms || lease->state == ETCD_LEASE_GONE || lease->retired ||
                     (lease->state == ETCD_LEASE_ALIVE && is_taken(store, lock, lease))))
        lease = lease->next;
    return lease;
}

/* One that is not kept any more ends by itself. */
void hfi_etcd_lease_forget(struct etcd_store *store, struct etcd_lease *lease)
{
    struct etcd_lease **link = &store->leases;
    while (*link != lease)
        link = &(*link)->next;
    *link = lease->next;
    hfi_free(lease);
}

static void stop_using(struct etcd_store *store, struct etcd_lease *lease)
{
    lease->users--;
    lease->used_ns = store->env->now_ns();
    if (lease->users == 0 && lease->state == ETCD_LEASE_GONE)
        hfi_etcd_lease_forget(store, lease);
    else if (lease->users == 0 && lease->retired)
        hfi_etcd_push_expect(store, lease->used_ns); /* it is revoked now */
}

void hfi_etcd_lease_mark_gone(struct etcd_store *store, struct etcd_lease *lease)
{
    lease->state = ETCD_LEASE_GONE;
    for (size_t i = 0; i < HFI_ETCD_BUCKETS; i++) {
        for (struct etcd_lock *lock = store->locks[i]; lock; lock = lock->next) {
            if (lock->lease != lease)
                continue;
            lock->called = true;
            lock->lost = lock->place == ETCD_HELD;
            store->push.losses = store->push.losses || lock->lost;
            hfi_push_call(&store->push.shared, &lock->waiter);
        }
    }
    if (store->push.losses)
        hfi_etcd_push_expect(store, store->env->now_ns());
}

void hfi_etcd_leases_tidy(struct etcd_store *store, hfi_time now_ns)
{
    for (struct etcd_lease *lease = store->leases, *next; lease; lease = next) {
        next = lease->next;
        const hfi_time last = lease->retired ? lease->kept_ns + lease->length_ns : lease->used_ns + IDLE_MOST;
        if (lease->state == ETCD_LEASE_ALIVE && lease->users == 0 && now_ns > last)
            hfi_etcd_lease_forget(store, lease);
    }
}

/* --- how long --- */

/* Of what a server says; no lease is longer than this, and no sum with it too large. */
static hfi_time seconds(int64_t ttl)
{
    const int64_t most = 100 * 365 * 86400LL;
    return (ttl < most ? ttl : most) * HFI_SECOND;
}

hfi_time hfi_etcd_lease_counts_from(struct etcd_store *store, const struct etcd_lease *lease, uint32_t ttl_ms,
                                    hfi_time now_ns, uint32_t *valid_ms)
{
    const hfi_time ttl_ns = ttl_ms * HFI_MS;
    pthread_mutex_lock(&store->mutex);
    const hfi_time length = lease->length_ns, counted = lease->counted_ns;
    pthread_mutex_unlock(&store->mutex);
    if (length < ttl_ns) {
        *valid_ms = (uint32_t)(length / HFI_MS);
        return counted;
    }
    /* The lease lasts longer than the lock needs, so the lock's time may be taken to begin later: less what the clocks
     * may run apart meanwhile. */
    const hfi_time spare = length - ttl_ns;
    const hfi_time from = counted + spare - spare / 100;
    *valid_ms = 0;
    return from < now_ns ? from : now_ns;
}

bool hfi_etcd_lease_has_ended(struct etcd_store *store, const struct etcd_lease *lease)
{
    pthread_mutex_lock(&store->mutex);
    const bool ended = lease && lease->state == ETCD_LEASE_GONE;
    pthread_mutex_unlock(&store->mutex);
    return ended;
}

bool hfi_etcd_lease_is_stale(struct etcd_store *store, const struct etcd_lease *lease, uint32_t ttl_ms)
{
    uint32_t valid_ms;
    const hfi_time now = store->env->now_ns();
    const hfi_time from = hfi_etcd_lease_counts_from(store, lease, ttl_ms, now, &valid_ms);
    return now - from > (valid_ms ? valid_ms : ttl_ms) * HFI_MS / 10;
}

/* A leader that stood still while another one was elected goes on keeping leases alive, in its memory, until it
 * notices. So the answer counts only beside that to a transaction, which needs a majority, by the leader of the same
 * term: if there was no other leader when both were sent, there can only have come one since, and a new leader gives
 * every lease its whole time again. */
bool hfi_etcd_lease_kept(struct etcd_store *store, struct etcd_lease *lease, const struct etcd_question *question,
                         size_t index)
{
    const Etcd__TxnResponse *proof = (const Etcd__TxnResponse *)question->calls[0].answer;
    const Etcd__LeaseKeepAliveResponse *answer = (const Etcd__LeaseKeepAliveResponse *)question->calls[index].answer;
    if (!answer || !answer->header || !proof->header)
        return false;
    const bool counts = answer->ttl > 0 && answer->header->raft_term == proof->header->raft_term;
    pthread_mutex_lock(&store->mutex);
    if (answer->ttl <= 0 && lease->state == ETCD_LEASE_ALIVE) {
        hfi_etcd_lease_mark_gone(store, lease);
    } else if (counts && question->sent_ns > lease->counted_ns) {
        lease->counted_ns = lease->kept_ns = question->sent_ns;
        lease->length_ns = seconds(answer->ttl);
    }
    pthread_mutex_unlock(&store->mutex);
    return counts;
}

void hfi_etcd_lease_gone(struct etcd_store *store, struct etcd_lease *lease)
{
    pthread_mutex_lock(&store->mutex);
    if (lease->state == ETCD_LEASE_ALIVE)
        hfi_etcd_lease_mark_gone(store, lease);
    pthread_mutex_unlock(&store->mutex);
}

/* --- granting --- */

static hf_status ask_for_grant(struct etcd_store *store, struct etcd_lease *lease, hfi_time deadline_ns, hf_error *err)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;
    struct etcd_call call = { .path = "/etcdserverpb.Lease/LeaseGrant",
                              .request = &request.base,
                              .type = &etcd__lease_grant_response__descriptor };
    struct etcd_question question = { .calls = &call, .count = 1, .deadline_ns = deadline_ns };
    request.ttl = ((int64_t)lease->ttl_ms + 999) / 1000;
    /* Not `writes`: a lease that nobody knows of ends by itself, so a lost answer leaves nothing unknown. */
    hf_status status = hfi_etcd_ask(store, &question, err);
    if (status != HF_OK)
        return status;
    const Etcd__LeaseGrantResponse *answer = (const Etcd__LeaseGrantResponse *)call.answer;
    pthread_mutex_lock(&store->mutex);
    lease->id = answer->id;
    lease->length_ns = seconds(answer->ttl);
    lease->counted_ns = lease->kept_ns = question.sent_ns;
    pthread_mutex_unlock(&store->mutex);
    if (answer->id == 0 || answer->ttl <= 0)
        status = hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    hfi_etcd_answers_free(&question);
    return status;
}

/* With the mutex, which is let go of meanwhile. */
static hf_status grant(struct etcd_store *store, uint32_t ttl_ms, struct etcd_lease **out, hfi_time deadline_ns,
                       hf_error *err)
{
    struct etcd_lease *lease = hfi_alloc(sizeof *lease);
    *out = lease;
    if (!lease)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a lease");
    lease->ttl_ms = ttl_ms;
    lease->users = 1;
    lease->next = store->leases;
    store->leases = lease;
    pthread_mutex_unlock(&store->mutex);
    const hf_status status = ask_for_grant(store, lease, deadline_ns, err);
    pthread_mutex_lock(&store->mutex);
    if (status == HF_OK) {
        lease->state = ETCD_LEASE_ALIVE;
        hfi_etcd_push_expect(store, store->env->now_ns() + lease->length_ns / 3);
    } else {
        hfi_etcd_lease_forget(store, lease);
    }
    pthread_cond_broadcast(&store->granted);
    return status;
}

/* With the mutex. False: the deadline came. */
static bool await_grant(struct etcd_store *store, hfi_time deadline_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const hfi_time at = until.tv_sec * HFI_SECOND + until.tv_nsec + (deadline_ns - store->env->now_ns());
    until = (struct timespec){ .tv_sec = at / HFI_SECOND, .tv_nsec = at % HFI_SECOND };
    return pthread_cond_clockwait(&store->granted, &store->mutex, CLOCK_MONOTONIC, &until) != ETIMEDOUT;
}

/* A lease of this length on which no other lock has the name of `lock`; with the mutex, which is let go of meanwhile.
 * It counts as used. */
static hf_status get(struct etcd_store *store, uint32_t ttl_ms, const struct etcd_lock *lock, struct etcd_lease **out,
                     hfi_time deadline_ns, hf_error *err)
{
    for (;;) {
        struct etcd_lease *lease = find(store, ttl_ms, lock);
        if (!lease)
            return grant(store, ttl_ms, out, deadline_ns, err);
        if (lease->state == ETCD_LEASE_ALIVE) {
            lease->users++;
            *out = lease;
            return HF_OK;
        }
        /* Another thread is asking for one. */
        if (store->env->now_ns() >= deadline_ns || !await_grant(store, deadline_ns))
            return hfi_fail(err, HF_UNAVAILABLE, 0, "the server did not grant a lease in time");
    }
}

hf_status hfi_etcd_lease_take(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                              hf_error *err)
{
    struct etcd_lease *lease = NULL;
    pthread_mutex_lock(&store->mutex);
    const hf_status status = get(store, request->ttl_ms, lock, &lease, request->deadline_ns, err);
    if (status == HF_OK && lease) {
        struct etcd_lock **bucket = bucket_of(store, lock->hash);
        lock->lease = lease;
        lock->next = *bucket;
        *bucket = lock;
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

/* It is not used for anything new: a late request may have left a mark on it, or its key cannot be deleted. */
static void retire(struct etcd_store *store, struct etcd_lease *lease)
{
    lease->retired = true;
    hfi_etcd_push_expect(store, store->env->now_ns());
}

void hfi_etcd_lease_refuse(struct etcd_store *store, struct etcd_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    if (!lock->refused)
        lock->lease->refused++;
    lock->refused = true;
    retire(store, lock->lease);
    pthread_mutex_unlock(&store->mutex);
}

void hfi_etcd_lease_drop(struct etcd_store *store, struct etcd_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    if (lock->lease) {
        struct etcd_lock **link = bucket_of(store, lock->hash);
        while (*link != lock)
            link = &(*link)->next;
        *link = lock->next;
        if (lock->late)
            retire(store, lock->lease);
        lock->lease->refused -= lock->refused;
        stop_using(store, lock->lease);
    }
    lock->lease = NULL;
    lock->late = lock->refused = lock->lost = false;
    lock->own_revision = 0;
    lock->place = ETCD_NOWHERE;
    pthread_mutex_unlock(&store->mutex);
}

struct etcd_lease *hfi_etcd_lease_use(struct etcd_store *store, const struct etcd_lock *lock, int64_t *own_revision)
{
    pthread_mutex_lock(&store->mutex);
    struct etcd_lease *lease = lock->place == ETCD_HELD && !lock->lost ? lock->lease : NULL;
    if (lease)
        lease->users++;
    *own_revision = lock->own_revision;
    pthread_mutex_unlock(&store->mutex);
    return lease;
}

int64_t hfi_etcd_lease_alive(struct etcd_store *store, const struct etcd_lock *lock, int64_t *own_revision)
{
    pthread_mutex_lock(&store->mutex);
    const struct etcd_lease *lease = lock->place == ETCD_HELD ? lock->lease : NULL;
    const int64_t id = lease && lease->state == ETCD_LEASE_ALIVE ? lease->id : 0;
    *own_revision = lock->own_revision;
    pthread_mutex_unlock(&store->mutex);
    return id;
}

void hfi_etcd_lease_unuse(struct etcd_store *store, struct etcd_lease *lease)
{
    pthread_mutex_lock(&store->mutex);
    stop_using(store, lease);
    pthread_mutex_unlock(&store->mutex);
}

/* --- the end --- */

void hfi_etcd_leases_revoke(struct etcd_store *store, const int64_t *ids, size_t count, hfi_time deadline_ns)
{
    Etcd__LeaseRequest requests[HFI_ETCD_REVOKE_MOST];
    struct etcd_call calls[HFI_ETCD_REVOKE_MOST];
    struct etcd_question question = { .calls = calls, .count = count, .deadline_ns = deadline_ns };
    for (size_t i = 0; i < count; i++) {
        etcd__lease_request__init(&requests[i]);
        requests[i].id = ids[i];
        calls[i] = (struct etcd_call){ .path = "/etcdserverpb.Lease/LeaseRevoke",
                                       .request = &requests[i].base,
                                       .type = &etcd__lease_revoke_response__descriptor };
    }
    if (hfi_etcd_ask(store, &question, NULL) == HF_OK)
        hfi_etcd_answers_free(&question);
}

void hfi_etcd_leases_close(struct etcd_store *store)
{
    int64_t ids[HFI_ETCD_REVOKE_MOST];
    size_t count = 0;
    for (const struct etcd_lease *lease = store->leases; lease; lease = lease->next) {
        if (lease->state == ETCD_LEASE_ALIVE)
            ids[count++] = lease->id;
        /* They end by themselves too, so a server that does not answer is not asked for more. */
        if (store->answers && count && (count == HFI_ETCD_REVOKE_MOST || !lease->next)) {
            hfi_etcd_leases_revoke(store, ids, count, store->env->now_ns() + FAREWELL);
            count = 0;
        }
    }
    while (store->leases)
        hfi_etcd_lease_forget(store, store->leases);
}
