/* SPDX-License-Identifier: MIT
 *
 * etcd_txn.c: what the server is asked for one lock, each time in one transaction, and what its answer says. Keys are
 * made as etcd's own clients make them, P/NAME/<lease>: whoever has the oldest one holds the lock.
 */
#include "etcd.h"
#include <stdio.h>
#include <string.h>

#define KEEP_ALIVE "/etcdserverpb.Lease/LeaseKeepAlive"

/* --- keys --- */

size_t hfi_etcd_key(char out[HFI_ETCD_KEY_MAX + 1], const struct etcd_store *store, const char *name, int64_t lease)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, name);
    const int used = lease ? snprintf(out, HFI_ETCD_KEY_MAX + 1, "%s/%s/%llx", store->config.prefix, encoded,
                                      (unsigned long long)lease)
                           : snprintf(out, HFI_ETCD_KEY_MAX + 1, "%s/%s/", store->config.prefix, encoded);
    return (size_t)used;
}

size_t hfi_etcd_value(char out[HFI_ETCD_VALUE_MAX], const struct etcd_store *store, int64_t token, const char *note)
{
    char told[24] = "";
    if (token)
        snprintf(told, sizeof told, ":%lld", (long long)token);
    const int length = snprintf(out, HFI_ETCD_VALUE_MAX, "%s%s %s", store->who, told, note);
    return (size_t)(length < HFI_ETCD_VALUE_MAX ? length : HFI_ETCD_VALUE_MAX - 1);
}

static ProtobufCBinaryData bytes(const char *text, size_t length)
{
    return (ProtobufCBinaryData){ .len = length, .data = (uint8_t *)(uintptr_t)text };
}

/* --- a transaction --- */

#define OPERATIONS_MOST 3
#define COMPARES_MOST 3

struct txn {
    const struct etcd_store *store;
    struct etcd_lock *lock;
    char key[HFI_ETCD_KEY_MAX + 1];   /* the own one */
    char group[HFI_ETCD_KEY_MAX + 1]; /* "P/NAME/", below which all contenders are */
    char end[HFI_ETCD_KEY_MAX + 1];   /* behind the last of them */
    char mark[HFI_ETCD_KEY_MAX + 1];  /* if it is there, the own key is not to be made any more */
    char done[HFI_ETCD_KEY_MAX + 1];  /* if it is there, the work of the lock is done */
    size_t key_length, group_length;
    char value[HFI_ETCD_VALUE_MAX];
    Etcd__Compare conditions[COMPARES_MOST], *compares[COMPARES_MOST];
    Etcd__RequestOp operations[2][OPERATIONS_MOST], *pointers[2][OPERATIONS_MOST];
    Etcd__RangeRequest ranges[2][OPERATIONS_MOST];
    Etcd__PutRequest put;      /* of the own key, or of the mark that it was undone */
    Etcd__PutRequest put_done; /* of the mark that the work is done */
    Etcd__DeleteRangeRequest remove;
    Etcd__TxnRequest request;
    Etcd__LeaseRequest keep;
    struct etcd_call calls[2]; /* and one to keep the lease, when it is time for that */
    struct etcd_question question;
};

static void begin(struct txn *txn, const struct etcd_store *store, struct etcd_lock *lock, hfi_time deadline_ns)
{
    txn->store = store;
    txn->lock = lock;
    txn->key_length = hfi_etcd_key(txn->key, store, lock->name, lock->lease->id);
    txn->group_length = hfi_etcd_key(txn->group, store, lock->name, 0);
    memcpy(txn->end, txn->group, txn->group_length + 1);
    txn->end[txn->group_length - 1] = '/' + 1;
    etcd__txn_request__init(&txn->request);
    txn->request.compare = txn->compares;
    txn->request.success = txn->pointers[0];
    txn->request.failure = txn->pointers[1];
    txn->calls[0] = (struct etcd_call){ .path = "/etcdserverpb.KV/Txn",
                                        .request = &txn->request.base,
                                        .type = &etcd__txn_response__descriptor };
    txn->question = (struct etcd_question){ .calls = txn->calls, .count = 1, .deadline_ns = deadline_ns };
}

/* A condition: the revision in which a key was made, 0 if it is not there. */
static Etcd__Compare *add_condition(struct txn *txn, ProtobufCBinaryData key, Etcd__Compare__Result result,
                                    int64_t revision)
{
    Etcd__Compare *compare = &txn->conditions[txn->request.n_compare];
    etcd__compare__init(compare);
    compare->target = ETCD__COMPARE__TARGET__CREATE;
    compare->result = result;
    compare->key = key;
    compare->target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    compare->create_revision = revision;
    txn->compares[txn->request.n_compare++] = compare;
    return compare;
}

/* … of the own key, or of all of the group. */
static void only_if(struct txn *txn, bool group, Etcd__Compare__Result result, int64_t revision)
{
    if (group)
        add_condition(txn, bytes(txn->group, txn->group_length), result, revision)->range_end =
            bytes(txn->end, txn->group_length);
    else
        add_condition(txn, bytes(txn->key, txn->key_length), result, revision);
}

/* What to do if the condition holds (0), and if not (1). */
static Etcd__RequestOp *add_operation(struct txn *txn, int branch)
{
    size_t *count = branch ? &txn->request.n_failure : &txn->request.n_success;
    Etcd__RequestOp *operation = &txn->operations[branch][*count];
    etcd__request_op__init(operation);
    txn->pointers[branch][(*count)++] = operation;
    return operation;
}

static Etcd__RangeRequest *add_range(struct txn *txn, int branch)
{
    Etcd__RequestOp *operation = add_operation(txn, branch);
    Etcd__RangeRequest *range = &txn->ranges[branch][operation - txn->operations[branch]];
    etcd__range_request__init(range);
    operation->request_case = ETCD__REQUEST_OP__REQUEST_RANGE;
    operation->range = range;
    return range;
}

/* The oldest or the newest key of the group. */
static Etcd__RangeRequest *add_end_of_queue(struct txn *txn, int branch, Etcd__RangeRequest__SortOrder order)
{
    Etcd__RangeRequest *range = add_range(txn, branch);
    range->key = bytes(txn->group, txn->group_length);
    range->range_end = bytes(txn->end, txn->group_length);
    range->limit = 1;
    range->sort_order = order;
    range->sort_target = ETCD__RANGE_REQUEST__SORT_TARGET__CREATE;
    return range;
}

/* Goes with the lease. */
static void add_put(struct txn *txn, int branch, Etcd__PutRequest *put, ProtobufCBinaryData key, size_t value_length,
                    int64_t lease)
{
    Etcd__RequestOp *operation = add_operation(txn, branch);
    etcd__put_request__init(put);
    put->key = key;
    put->value = bytes(txn->value, value_length);
    put->lease = lease;
    operation->request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    operation->put = put;
    txn->question.writes = true;
}

/* What says that the own key was undone. It is below no lock's name, which has no dot at its beginning. */
static ProtobufCBinaryData mark_of(struct txn *txn)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, txn->lock->name);
    const int length = snprintf(txn->mark, sizeof txn->mark, "%s/.undone/%s/%llx", txn->store->config.prefix, encoded,
                                (unsigned long long)txn->lock->lease->id);
    return bytes(txn->mark, (size_t)length);
}

/* Makes the own key, unless it was undone: then this is a request that comes late. */
static void add_own(struct txn *txn, const char *note)
{
    add_condition(txn, mark_of(txn), ETCD__COMPARE__RESULT__EQUAL, 0);
    add_put(txn, 0, &txn->put, bytes(txn->key, txn->key_length), hfi_etcd_value(txn->value, txn->store, 0, note),
            txn->lock->lease->id);
}

static ProtobufCBinaryData done_of(struct txn *txn)
{
    return bytes(txn->done, hfi_etcd_done_key(txn->done, txn->store, txn->lock->name));
}

/* Nothing is made if the work is done: then the mark is read. */
static void add_unless_done(struct txn *txn)
{
    add_condition(txn, done_of(txn), ETCD__COMPARE__RESULT__EQUAL, 0);
    add_range(txn, 1)->key = done_of(txn);
}

static void add_delete(struct txn *txn)
{
    Etcd__RequestOp *operation = add_operation(txn, 0);
    etcd__delete_range_request__init(&txn->remove);
    txn->remove.key = bytes(txn->key, txn->key_length);
    operation->request_case = ETCD__REQUEST_OP__REQUEST_DELETE_RANGE;
    operation->delete_range = &txn->remove;
    txn->question.writes = true;
}

/* Asks, and in the same write to keep the lease if that was not asked for some time: whoever gets the lock then has it
 * for nearly its whole time-to-live. */
static hf_status run(struct txn *txn, struct etcd_store *store, bool keep, const Etcd__TxnResponse **answer,
                     hf_error *err)
{
    struct etcd_lease *lease = txn->lock->lease;
    if (keep && hfi_etcd_lease_is_stale(store, lease, lease->ttl_ms)) {
        etcd__lease_request__init(&txn->keep);
        txn->keep.id = lease->id;
        txn->calls[txn->question.count++] = (struct etcd_call){ .path = KEEP_ALIVE,
                                                                .request = &txn->keep.base,
                                                                .type = &etcd__lease_keep_alive_response__descriptor,
                                                                .optional = true };
    }
    const hf_status status = hfi_etcd_ask(store, &txn->question, err);
    if (status == HF_OK && txn->question.count > 1)
        hfi_etcd_lease_kept(store, lease, &txn->question, 1);
    if (txn->question.lease_missing)
        hfi_etcd_lease_gone(store, lease);
    *answer = status == HF_OK ? (const Etcd__TxnResponse *)txn->calls[0].answer : NULL;
    return status;
}

static void end(struct txn *txn)
{
    hfi_etcd_answers_free(&txn->question);
}

/* --- answers --- */

/* The keys that the operation `index` has read; NULL: the answer makes no sense. */
static const Etcd__RangeResponse *range_of(const Etcd__TxnResponse *answer, size_t index)
{
    if (index >= answer->n_responses || answer->responses[index]->response_case != ETCD__RESPONSE_OP__RESPONSE_RANGE)
        return NULL;
    return answer->responses[index]->range;
}

static const Etcd__KeyValue *only_key(const Etcd__RangeResponse *range)
{
    return range && range->n_kvs ? range->kvs[0] : NULL;
}

static hf_status nonsense(hf_error *err)
{
    return hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
}

void hfi_etcd_say_who(char out[160], const ProtobufCBinaryData *value)
{
    char text[HFI_ETCD_VALUE_MAX], host[65], pid[24];
    snprintf(text, sizeof text, "%.*s", (int)(value->len < sizeof text ? value->len : sizeof text - 1),
             value->data ? (const char *)value->data : "");
    out[0] = 0;
    if (sscanf(text, "%64s %23[0-9]", host, pid) == 2)
        snprintf(out, 160, "%s:%s", host, pid);
}

static hf_status keep_before(struct etcd_view *view, const Etcd__KeyValue *one, hf_error *err)
{
    if (one->key.len == 0)
        return nonsense(err);
    view->before = hfi_alloc(one->key.len + 1);
    if (!view->before)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a lock");
    memcpy(view->before, one->key.data, one->key.len);
    view->before_length = one->key.len;
    return HF_OK;
}

void hfi_etcd_view_free(struct etcd_view *view)
{
    hfi_free(view->before);
    view->before = NULL;
}

static bool is_revision(int64_t number)
{
    return number > 0 && number < INT64_MAX;
}

static hf_status note_revision(struct etcd_view *view, const Etcd__TxnResponse *answer, hf_error *err)
{
    *view = (struct etcd_view){ .revision = answer->header ? answer->header->revision : 0 };
    return is_revision(view->revision) ? HF_OK : nonsense(err);
}

/* A key that is there already was made by a request of ours whose answer was lost. */
static hf_status find_own(struct etcd_view *view, const Etcd__KeyValue *oldest, const Etcd__KeyValue *own,
                          hf_error *err)
{
    if (!oldest || !own || !is_revision(own->create_revision))
        return nonsense(err);
    view->placed = true;
    view->own_revision = own->create_revision;
    view->first = oldest->create_revision == own->create_revision;
    hfi_etcd_say_who(view->holder, &oldest->value);
    return HF_OK;
}

/* The mark, if it was asked for and read: at `index`, where the conditions held or not. */
static const Etcd__KeyValue *mark_in(const struct hfi_request *request, const Etcd__TxnResponse *answer, size_t index,
                                     bool held)
{
    return request->once && !!answer->succeeded == held ? only_key(range_of(answer, index)) : NULL;
}

/* `mark` may be NULL. */
static void note_done(struct etcd_view *view, const Etcd__KeyValue *mark)
{
    struct etcd_person person;
    if (!mark)
        return;
    hfi_etcd_read_person(&person, &mark->value);
    view->done = true;
    view->done_lease = mark->lease;
    view->holder[0] = 0;
    if (*person.host)
        snprintf(view->holder, sizeof view->holder, "%s:%lld%s%.70s", person.host, person.pid, *person.note ? " " : "",
                 person.note);
}

static bool is_own(const struct txn *txn, const Etcd__KeyValue *one)
{
    return one->key.len == txn->key_length && memcmp(one->key.data, txn->key, txn->key_length) == 0;
}

/* --- questions --- */

static void note_doubt(struct etcd_lock *lock, const struct etcd_question *question)
{
    lock->late = lock->late || question->unsure;
    lock->crowded_out = question->full;
}

hf_status hfi_etcd_ask_if_free(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                               struct etcd_view *view, hf_error *err)
{
    struct txn txn;
    const Etcd__TxnResponse *answer;
    begin(&txn, store, lock, request->deadline_ns);
    only_if(&txn, true, ETCD__COMPARE__RESULT__EQUAL, 0);
    add_own(&txn, request->note);
    add_end_of_queue(&txn, 1, ETCD__RANGE_REQUEST__SORT_ORDER__ASCEND);
    if (request->once)
        add_unless_done(&txn);
    hf_status status = run(&txn, store, true, &answer, err);
    note_doubt(lock, &txn.question);
    if (status == HF_OK)
        status = note_revision(view, answer, err);
    if (status == HF_OK) {
        const Etcd__KeyValue *oldest = answer->succeeded ? NULL : only_key(range_of(answer, 0));
        const Etcd__KeyValue *mark = mark_in(request, answer, 1, false);
        if (answer->succeeded) {
            view->placed = view->first = true;
            view->own_revision = view->revision;
        } else if (oldest && is_own(&txn, oldest)) {
            status = find_own(view, oldest, oldest, err);
        } else if (oldest) {
            hfi_etcd_say_who(view->holder, &oldest->value);
        }
        note_done(view, mark);
        if (!answer->succeeded && !oldest && !mark)
            status = nonsense(err);
    }
    end(&txn);
    return status;
}

hf_status hfi_etcd_ask_to_line_up(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                  struct etcd_view *view, hf_error *err)
{
    struct txn txn;
    const Etcd__TxnResponse *answer;
    begin(&txn, store, lock, request->deadline_ns);
    only_if(&txn, false, ETCD__COMPARE__RESULT__EQUAL, 0);
    add_end_of_queue(&txn, 0, ETCD__RANGE_REQUEST__SORT_ORDER__ASCEND);
    add_end_of_queue(&txn, 0, ETCD__RANGE_REQUEST__SORT_ORDER__DESCEND)->keys_only = true;
    add_own(&txn, request->note);
    add_end_of_queue(&txn, 1, ETCD__RANGE_REQUEST__SORT_ORDER__ASCEND);
    add_range(&txn, 1)->key = bytes(txn.key, txn.key_length);
    if (request->once)
        add_unless_done(&txn);
    hf_status status = run(&txn, store, true, &answer, err);
    note_doubt(lock, &txn.question);
    if (status == HF_OK)
        status = note_revision(view, answer, err);
    if (status == HF_OK) {
        const Etcd__KeyValue *oldest = only_key(range_of(answer, 0)), *other = only_key(range_of(answer, 1));
        const Etcd__KeyValue *mark = mark_in(request, answer, 2, false);
        if (!answer->succeeded) {
            if (other || !mark)
                status = find_own(view, oldest, other, err);
            note_done(view, mark);
        } else {
            view->placed = true;
            view->first = !oldest;
            view->own_revision = view->revision;
            if (oldest)
                hfi_etcd_say_who(view->holder, &oldest->value);
            if (other)
                status = keep_before(view, other, err);
        }
    }
    end(&txn);
    return status;
}

hf_status hfi_etcd_ask_whose_turn(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                  struct etcd_view *view, hf_error *err)
{
    struct txn txn;
    const Etcd__TxnResponse *answer;
    begin(&txn, store, lock, request->deadline_ns);
    only_if(&txn, false, ETCD__COMPARE__RESULT__EQUAL, lock->own_revision);
    Etcd__RangeRequest *before = add_end_of_queue(&txn, 0, ETCD__RANGE_REQUEST__SORT_ORDER__DESCEND);
    before->max_create_revision = lock->own_revision - 1;
    before->keys_only = true;
    add_end_of_queue(&txn, 0, ETCD__RANGE_REQUEST__SORT_ORDER__ASCEND);
    if (request->once) /* whoever was before us may have left a mark */
        add_range(&txn, 0)->key = done_of(&txn);
    hf_status status = run(&txn, store, true, &answer, err);
    if (status == HF_OK)
        status = note_revision(view, answer, err);
    if (status == HF_OK) {
        view->placed = answer->succeeded;
        view->own_revision = lock->own_revision;
        const Etcd__KeyValue *other = only_key(range_of(answer, 0)), *oldest = only_key(range_of(answer, 1));
        view->first = view->placed && !other;
        if (view->placed && !oldest)
            status = nonsense(err);
        else if (oldest)
            hfi_etcd_say_who(view->holder, &oldest->value);
        if (status == HF_OK && other)
            status = keep_before(view, other, err);
        note_done(view, mark_in(request, answer, 2, true));
    }
    end(&txn);
    return status;
}

/* Not the key by its name alone: a request that comes late would delete what was made anew under that name. */
static void begin_to_delete(struct txn *txn, const struct etcd_store *store, struct etcd_lock *lock,
                            const struct hfi_request *request, bool mark)
{
    begin(txn, store, lock, request->deadline_ns);
    if (lock->own_revision)
        only_if(txn, false, ETCD__COMPARE__RESULT__EQUAL, lock->own_revision);
    else
        only_if(txn, false, ETCD__COMPARE__RESULT__NOT_EQUAL, 0);
    add_delete(txn);
    for (int branch = 0; branch < 2 && mark; branch++)
        add_put(txn, branch, &txn->put, mark_of(txn), 0, lock->lease->id);
}

static hf_status delete_own(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                            bool mark, hf_error *err)
{
    struct txn txn;
    const Etcd__TxnResponse *answer;
    begin_to_delete(&txn, store, lock, request, mark);
    hf_status status = run(&txn, store, false, &answer, err);
    /* One that comes late would delete what has the same name by then: so nothing new gets that name. */
    lock->late = lock->late || (txn.question.unsure && !lock->own_revision);
    /* Whether it was gone before, or by this very request whose first answer was lost, nobody can tell. */
    if (status == HF_OK && !answer->succeeded && !txn.question.unsure && lock->own_revision)
        status = hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    end(&txn);
    return status;
}

hf_status hfi_etcd_ask_to_delete(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                 hf_error *err)
{
    const hf_status status = delete_own(store, lock, request, lock->late, err);
    /* A server that is full takes no mark: it is asked for again, but who waits need not wait for that. */
    if (status == HF_UNAVAILABLE && lock->late)
        delete_own(store, lock, request, false, NULL);
    return status;
}

hf_status hfi_etcd_ask_to_finish(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                 hf_error *err)
{
    struct txn txn;
    begin_to_delete(&txn, store, lock, request, lock->late);
    add_put(&txn, 0, &txn.put_done, done_of(&txn), hfi_etcd_value(txn.value, store, lock->token, request->note),
            lock->done_lease);
    add_range(&txn, 1)->key = done_of(&txn);
    hf_status status = hfi_etcd_ask(store, &txn.question, err);
    /* The mark's, so that its time is over; or the key's, which is seen without a mark. */
    if (txn.question.lease_missing)
        return hfi_etcd_ask_to_delete(store, lock, request, err);
    if (status != HF_OK)
        return status;
    const Etcd__TxnResponse *answer = (const Etcd__TxnResponse *)txn.calls[0].answer;
    const Etcd__KeyValue *mark = answer->succeeded ? NULL : only_key(range_of(answer, answer->n_responses - 1));
    /* No other has this lease: with such a mark it was done by a request whose answer was lost. */
    if (!answer->succeeded && (!mark || mark->lease != lock->done_lease))
        status = hfi_fail(err, HF_LOST, 0, "the server no longer had it");
    end(&txn);
    return status;
}
