/* SPDX-License-Identifier: MIT
 *
 * etcd_errand.c: what the push connection does on the side, with the mutex: calls that nobody waits for. A lease that
 * no lock is to use any more is revoked as soon as none does. And a holder that had to wait, and stays, writes its
 * token into its key, for whoever looks: it is in nothing else that the server knows.
 */
#include "etcd.h"

#define REVOKE_AGAIN HFI_SECOND
#define ERRAND_PATIENCE (2 * HFI_SECOND)
#define NOT_FOUND 5

struct etcd_errand {
    struct etcd_errand *next;
    struct etcd_stream stream;
    int64_t revokes; /* a lease; 0: it tells a token */
};

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static void send_errand(struct etcd_store *store, const char *path, const ProtobufCMessage *message, int64_t revokes)
{
    struct etcd_push *push = &store->push;
    const char *token = hfi_etcd_token(store);
    struct etcd_errand *errand = hfi_alloc(sizeof *errand);
    if (!errand)
        return; /* it comes again */
    errand->stream.path = path;
    errand->revokes = revokes;
    errand->next = push->errands;
    push->errands = errand;
    if (!hfi_etcd_add_message(&errand->stream, message) ||
        !hfi_etcd_begin(push->connection, &errand->stream, push->node->authority, token, ERRAND_PATIENCE))
        errand->stream.closed = true;
}

void hfi_etcd_errand_tell(struct etcd_store *store, const struct etcd_lock *lock)
{
    char key[HFI_ETCD_KEY_MAX + 1], value[HFI_ETCD_VALUE_MAX];
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare = ETCD__COMPARE__INIT, *compares[] = { &compare };
    Etcd__RequestOp operation = ETCD__REQUEST_OP__INIT, *operations[] = { &operation };
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    put.key.len = hfi_etcd_key(key, store, lock->name, lock->lease->id);
    put.key.data = (uint8_t *)key;
    put.value.len = hfi_etcd_value(value, store, lock->token, lock->note);
    put.value.data = (uint8_t *)value;
    put.lease = lock->lease->id;
    operation.request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    operation.put = &put;
    compare.target = ETCD__COMPARE__TARGET__CREATE;
    compare.key = put.key;
    compare.target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    compare.create_revision = lock->own_revision;
    request.compare = compares;
    request.success = operations;
    request.n_compare = request.n_success = 1;
    send_errand(store, "/etcdserverpb.KV/Txn", &request.base, 0);
}

hfi_time hfi_etcd_errands_send(struct etcd_store *store, hfi_time now_ns)
{
    hfi_time due = HFI_NEVER;
    for (struct etcd_lease *lease = store->leases; lease; lease = lease->next) {
        if (!lease->retired || lease->users > lease->refused || lease->state != ETCD_LEASE_ALIVE)
            continue;
        const hfi_time mine = lease->revoked_ns ? lease->revoked_ns + REVOKE_AGAIN : now_ns;
        if (now_ns >= mine && store->push.state == ETCD_PUSH_READY) {
            Etcd__LeaseRequest request = ETCD__LEASE_REQUEST__INIT;
            request.id = lease->id;
            send_errand(store, "/etcdserverpb.Lease/LeaseRevoke", &request.base, lease->id);
            lease->revoked_ns = now_ns;
        }
        due = earlier(due, lease->revoked_ns ? lease->revoked_ns + REVOKE_AGAIN : now_ns);
    }
    return due;
}

static void take_revoked(struct etcd_store *store, int64_t id)
{
    struct etcd_lease *lease = store->leases;
    while (lease && lease->id != id)
        lease = lease->next;
    if (lease && lease->users)
        hfi_etcd_lease_mark_gone(store, lease);
    else if (lease)
        hfi_etcd_lease_forget(store, lease);
}

void hfi_etcd_errands_take(struct etcd_store *store)
{
    for (struct etcd_errand **link = &store->push.errands; *link;) {
        struct etcd_errand *errand = *link;
        if (!errand->stream.closed) {
            link = &errand->next;
            continue;
        }
        *link = errand->next;
        if (errand->revokes && (errand->stream.code == 0 || errand->stream.code == NOT_FOUND))
            take_revoked(store, errand->revokes);
        if (hfi_etcd_is_stale_token(&errand->stream)) /* it comes again, with another */
            store->push.refused = store->push.refused || *store->config.user;
        hfi_etcd_stream_free(&errand->stream);
        hfi_free(errand);
    }
}

void hfi_etcd_errands_free(struct etcd_push *push)
{
    for (struct etcd_errand *next; push->errands; push->errands = next) {
        next = push->errands->next;
        hfi_etcd_stream_free(&push->errands->stream);
        hfi_free(push->errands);
    }
}
