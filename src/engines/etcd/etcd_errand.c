/* SPDX-License-Identifier: MIT
 *
 * etcd_errand.c: what the ear does on the side, with the mutex: calls that nobody waits for. A request to make a key
 * that was given up may be done late, by a server that was only slow; nobody would know of that key. So it is deleted
 * until its lease is gone, and the lease is revoked as soon as no lock needs it. And a holder that had to wait, and
 * stays, writes its token into its key, for whoever looks: it is in nothing else that the server knows.
 */
#include "etcd.h"

#define SWEEP_FIRST (50 * HFI_MS)
#define SWEEP_MOST (5 * HFI_SECOND)
#define REVOKE_AGAIN HFI_SECOND
#define ERRAND_PATIENCE (2 * HFI_SECOND)
#define NOT_FOUND 5

struct etcd_errand {
    struct etcd_errand *next;
    struct etcd_stream stream;
    int64_t revokes; /* a lease; 0: it deletes a key */
};

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static void send_errand(struct etcd_store *store, const char *path, const ProtobufCMessage *message, int64_t revokes)
{
    struct etcd_ear *ear = &store->ear;
    const char *token = hfi_etcd_token(store);
    struct etcd_errand *errand = hfi_alloc(sizeof *errand);
    if (!errand)
        return; /* it comes again */
    errand->stream.path = path;
    errand->revokes = revokes;
    errand->next = ear->errands;
    ear->errands = errand;
    if (!hfi_etcd_add_message(&errand->stream, message) ||
        !hfi_etcd_begin(ear->connection, &errand->stream, ear->node->authority, token, ERRAND_PATIENCE))
        errand->stream.closed = true;
}

/* Does it if the key was made in a revision that compares so. */
static void send_txn(struct etcd_store *store, ProtobufCBinaryData key, Etcd__Compare__Result result, int64_t revision,
                     Etcd__RequestOp *operation)
{
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare = ETCD__COMPARE__INIT, *compares[] = { &compare };
    compare.target = ETCD__COMPARE__TARGET__CREATE;
    compare.result = result;
    compare.key = key;
    compare.target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    compare.create_revision = revision;
    request.compare = compares;
    request.success = &operation;
    request.n_compare = request.n_success = 1;
    send_errand(store, "/etcdserverpb.KV/Txn", &request.base, 0);
}

static void delete_ghost(struct etcd_store *store, const struct etcd_ghost *ghost)
{
    Etcd__RequestOp operation = ETCD__REQUEST_OP__INIT;
    Etcd__DeleteRangeRequest remove = ETCD__DELETE_RANGE_REQUEST__INIT;
    remove.key = (ProtobufCBinaryData){ .len = ghost->length, .data = (uint8_t *)(uintptr_t)ghost->key };
    operation.request_case = ETCD__REQUEST_OP__REQUEST_DELETE_RANGE;
    operation.delete_range = &remove;
    send_txn(store, remove.key, ETCD__COMPARE__RESULT__NOT_EQUAL, 0, &operation);
}

void hfi_etcd_errand_tell(struct etcd_store *store, const struct etcd_lock *lock)
{
    char key[HFI_ETCD_KEY_MAX + 1], value[HFI_ETCD_VALUE_MAX];
    Etcd__RequestOp operation = ETCD__REQUEST_OP__INIT;
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    put.key.len = hfi_etcd_key(key, store, lock->name, lock->lease->id);
    put.key.data = (uint8_t *)key;
    put.value.len = hfi_etcd_value(value, store, lock->token, lock->note);
    put.value.data = (uint8_t *)value;
    put.lease = lock->lease->id;
    operation.request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    operation.put = &put;
    send_txn(store, put.key, ETCD__COMPARE__RESULT__EQUAL, lock->own_revision, &operation);
}

/* Sooner at first: most of what comes late is late by little. */
static hfi_time sweep(struct etcd_store *store, hfi_time now_ns)
{
    hfi_time due = HFI_NEVER;
    for (struct etcd_ghost *ghost = store->ghosts; ghost; ghost = ghost->next) {
        if (ghost->lease->users == 0) /* its lease is revoked, and it with it */
            continue;
        if (now_ns >= ghost->due_ns && store->ear.state == ETCD_EAR_READY) {
            delete_ghost(store, ghost);
            ghost->pause_ns = ghost->pause_ns ? earlier(2 * ghost->pause_ns, SWEEP_MOST) : SWEEP_FIRST;
            ghost->due_ns = now_ns + ghost->pause_ns;
        }
        due = earlier(due, ghost->due_ns);
    }
    return due;
}

static hfi_time revoke(struct etcd_store *store, hfi_time now_ns)
{
    hfi_time due = HFI_NEVER;
    for (struct etcd_lease *lease = store->leases; lease; lease = lease->next) {
        if (!lease->retired || lease->users || lease->state != ETCD_LEASE_ALIVE)
            continue;
        const hfi_time mine = lease->revoked_ns ? lease->revoked_ns + REVOKE_AGAIN : now_ns;
        if (now_ns >= mine && store->ear.state == ETCD_EAR_READY) {
            Etcd__LeaseRequest request = ETCD__LEASE_REQUEST__INIT;
            request.id = lease->id;
            send_errand(store, "/etcdserverpb.Lease/LeaseRevoke", &request.base, lease->id);
            lease->revoked_ns = now_ns;
        }
        due = earlier(due, lease->revoked_ns ? lease->revoked_ns + REVOKE_AGAIN : now_ns);
    }
    return due;
}

hfi_time hfi_etcd_errands_send(struct etcd_store *store, hfi_time now_ns)
{
    return earlier(sweep(store, now_ns), revoke(store, now_ns));
}

static void take_revoked(struct etcd_store *store, int64_t id)
{
    struct etcd_lease *lease = store->leases;
    while (lease && lease->id != id)
        lease = lease->next;
    if (lease)
        hfi_etcd_lease_forget(store, lease);
}

void hfi_etcd_errands_take(struct etcd_store *store)
{
    for (struct etcd_errand **link = &store->ear.errands; *link;) {
        struct etcd_errand *errand = *link;
        if (!errand->stream.closed) {
            link = &errand->next;
            continue;
        }
        *link = errand->next;
        if (errand->revokes && (errand->stream.code == 0 || errand->stream.code == NOT_FOUND))
            take_revoked(store, errand->revokes);
        if (hfi_etcd_is_stale_token(&errand->stream)) /* it comes again, with another */
            store->ear.refused = store->ear.refused || *store->config.user;
        hfi_etcd_stream_free(&errand->stream);
        hfi_free(errand);
    }
}

void hfi_etcd_errands_free(struct etcd_ear *ear)
{
    for (struct etcd_errand *next; ear->errands; ear->errands = next) {
        next = ear->errands->next;
        hfi_etcd_stream_free(&ear->errands->stream);
        hfi_free(ear->errands);
    }
}
