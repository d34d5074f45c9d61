/* SPDX-License-Identifier: MIT
 *
 * compare_etcd.c: what Holdfast adds to the requests of an uncontended lock, and what a hand-off costs.
 *
 *     compare_etcd HOST:PORT [ROUNDS]    prints one object of JSON
 *
 * The raw side sends the two transactions that etcd's own clients send, on one connection of its own, in turns with
 * Holdfast, so that both see the same machine. For the hand-off it is a deletion and the news of it on a watch that was
 * there before.
 */
#include "compare_store.h"
#include "engines/etcd/etcd.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDOFFS 200
#define BATCH 50
#define PATIENCE_MS 10000
#define KEY "raw/x/77"
#define GROUP "raw/x/"
#define GROUP_END "raw/x0"

/* --- raw requests --- */

struct raw {
    char authority[300];
    struct etcd_connection *connection;
    int64_t lease;
};

static ProtobufCBinaryData text(const char *words)
{
    return (ProtobufCBinaryData){ .len = strlen(words), .data = (uint8_t *)(uintptr_t)words };
}

static bool is_ready(const struct etcd_connection *connection)
{
    struct pollfd one = { .fd = connection->fd, .events = connection->wants };
    return poll(&one, 1, PATIENCE_MS) > 0;
}

static ProtobufCMessage *ask(struct raw *raw, const char *path, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *type)
{
    struct etcd_stream stream = { .path = path };
    ProtobufCMessage *answer = NULL;
    demand(hfi_etcd_add_message(&stream, request) && hfi_etcd_begin(raw->connection, &stream, raw->authority, NULL, 0),
           "cannot ask");
    demand(hfi_etcd_flush(raw->connection), "cannot ask");
    while (!stream.closed)
        demand(is_ready(raw->connection) && hfi_etcd_fetch(raw->connection), "no answer");
    demand(stream.code == 0 && hfi_etcd_take_message(&stream, type, &answer) && answer, stream.reason);
    hfi_etcd_stream_free(&stream);
    return answer;
}

static void compare_revision(Etcd__Compare *compare, int64_t revision)
{
    etcd__compare__init(compare);
    compare->target = ETCD__COMPARE__TARGET__CREATE;
    compare->key = text(KEY);
    compare->target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    compare->create_revision = revision;
}

/* IF there is no such key THEN make it, and read the oldest of its group. In which revision. */
static int64_t raw_acquire(struct raw *raw)
{
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare, *compares[] = { &compare };
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    Etcd__RangeRequest range = ETCD__RANGE_REQUEST__INIT;
    Etcd__RequestOp first = ETCD__REQUEST_OP__INIT, second = ETCD__REQUEST_OP__INIT;
    Etcd__RequestOp *operations[] = { &first, &second };
    compare_revision(&compare, 0);
    put.key = text(KEY);
    put.lease = raw->lease;
    range.key = text(GROUP);
    range.range_end = text(GROUP_END);
    range.limit = 1;
    range.sort_order = ETCD__RANGE_REQUEST__SORT_ORDER__ASCEND;
    range.sort_target = ETCD__RANGE_REQUEST__SORT_TARGET__CREATE;
    first.request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    first.put = &put;
    second.request_case = ETCD__REQUEST_OP__REQUEST_RANGE;
    second.range = &range;
    request.compare = compares;
    request.n_compare = 1;
    request.success = operations;
    request.n_success = 2;
    ProtobufCMessage *answer = ask(raw, "/etcdserverpb.KV/Txn", &request.base, &etcd__txn_response__descriptor);
    const Etcd__TxnResponse *said = (const Etcd__TxnResponse *)answer;
    demand(said->succeeded && said->header, "the raw key is there already");
    const int64_t revision = said->header->revision;
    protobuf_c_message_free_unpacked(answer, NULL);
    return revision;
}

static void raw_release(struct raw *raw, int64_t revision)
{
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare, *compares[] = { &compare };
    Etcd__DeleteRangeRequest remove = ETCD__DELETE_RANGE_REQUEST__INIT;
    Etcd__RequestOp operation = ETCD__REQUEST_OP__INIT, *operations[] = { &operation };
    compare_revision(&compare, revision);
    remove.key = text(KEY);
    operation.request_case = ETCD__REQUEST_OP__REQUEST_DELETE_RANGE;
    operation.delete_range = &remove;
    request.compare = compares;
    request.success = operations;
    request.n_compare = request.n_success = 1;
    protobuf_c_message_free_unpacked(ask(raw, "/etcdserverpb.KV/Txn", &request.base, &etcd__txn_response__descriptor),
                                     NULL);
}

static double raw_pair_us(struct raw *raw)
{
    const double start = now_us();
    raw_release(raw, raw_acquire(raw));
    return now_us() - start;
}

static struct etcd_connection *connect_raw(const struct etcd_address *address)
{
    struct etcd_connection *connection = NULL;
    hf_error err = { 0 };
    demand(hfi_etcd_connect_begin(&connection, address, false, &err) == HF_OK, err.message);
    while (hfi_etcd_connect_step(connection, address, NULL, &err) == HF_TIMEOUT)
        demand(is_ready(connection), "no connection");
    demand(connection->phase == ETCD_READY, err.message);
    return connection;
}

static void open_raw(struct raw *raw, const struct etcd_address *address)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;
    request.ttl = 600;
    snprintf(raw->authority, sizeof raw->authority, "%s:%s", address->host, address->port);
    raw->connection = connect_raw(address);
    ProtobufCMessage *answer =
        ask(raw, "/etcdserverpb.Lease/LeaseGrant", &request.base, &etcd__lease_grant_response__descriptor);
    raw->lease = ((const Etcd__LeaseGrantResponse *)answer)->id;
    protobuf_c_message_free_unpacked(answer, NULL);
}

/* --- raw news --- */

static void await_watch(struct raw *push, struct etcd_stream *stream, bool event)
{
    for (;;) {
        ProtobufCMessage *message;
        demand(hfi_etcd_take_message(stream, &etcd__watch_response__descriptor, &message), "nonsense");
        const Etcd__WatchResponse *response = (const Etcd__WatchResponse *)message;
        const bool wanted = response && (event ? response->n_events > 0 : response->created);
        protobuf_c_message_free_unpacked(message, NULL);
        if (wanted)
            return;
        if (message)
            continue;
        demand(hfi_etcd_flush(push->connection) && is_ready(push->connection) && hfi_etcd_fetch(push->connection) &&
                   !stream->closed,
               "the watch broke");
    }
}

/* From a deletion to the news of it. */
static double raw_news_us(struct raw *raw, struct raw *push, struct etcd_stream *stream)
{
    const int64_t revision = raw_acquire(raw);
    const double start = now_us();
    raw_release(raw, revision);
    await_watch(push, stream, true);
    return now_us() - start;
}

static void start_watch(struct raw *push, struct etcd_stream *stream)
{
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;
    Etcd__WatchCreateRequest create = ETCD__WATCH_CREATE_REQUEST__INIT;
    Etcd__WatchCreateRequest__FilterType filter = ETCD__WATCH_CREATE_REQUEST__FILTER_TYPE__NOPUT;
    create.key = text(KEY);
    create.filters = &filter;
    create.n_filters = 1;
    request.request_case = ETCD__WATCH_REQUEST__REQUEST_CREATE;
    request.create = &create;
    stream->path = "/etcdserverpb.Watch/Watch";
    stream->stays_open = true;
    demand(hfi_etcd_add_message(stream, &request.base) &&
               hfi_etcd_begin(push->connection, stream, push->authority, NULL, 0),
           "cannot watch");
    await_watch(push, stream, false);
}

/* --- Holdfast --- */

struct heir {
    hf_client *client;
    double got_us;
    hf_lock *lock;
};

static void read_address(struct etcd_address *address, const char *words)
{
    const char *colon = strrchr(words, ':');
    demand(colon != NULL, "usage: compare_etcd HOST:PORT [ROUNDS]");
    snprintf(address->host, sizeof address->host, "%.*s", (int)(colon - words), words);
    snprintf(address->port, sizeof address->port, "%.7s", colon + 1);
}

int main(int argc, char **argv)
{
    demand(argc >= 2, "usage: compare_etcd HOST:PORT [ROUNDS]");
    const size_t rounds = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 1000;
    double *ours = calloc(rounds, sizeof *ours), *theirs = calloc(rounds, sizeof *theirs), handoffs[HANDOFFS],
           news[HANDOFFS];
    struct etcd_address address;
    struct raw raw = { .lease = 0 }, push = { .lease = 0 };
    struct etcd_stream watch = { .path = NULL };
    hf_client *client = NULL, *other = NULL;
    hf_error err = { 0 };
    char url[300];
    demand(ours && theirs && rounds > 0, "no memory");
    read_address(&address, argv[1]);
    snprintf(url, sizeof url, "etcd://%s:%s", address.host, address.port);
    demand(hf_open(&client, url, NULL, &err) == HF_OK && hf_open(&other, url, NULL, &err) == HF_OK, err.message);
    open_raw(&raw, &address);
    open_raw(&push, &address);
    /* In batches by turns, so that both find caches and processors as warm, and share what else the machine does. */
    for (size_t i = 0; i < rounds; i += BATCH) {
        for (size_t j = i; j < rounds && j < i + BATCH; j++)
            ours[j] = our_pair_us(client);
        for (size_t j = i; j < rounds && j < i + BATCH; j++)
            theirs[j] = raw_pair_us(&raw);
    }
    start_watch(&push, &watch);
    for (size_t i = 0; i < HANDOFFS; i++) {
        handoffs[i] = our_handoff_us(client, other);
        news[i] = raw_news_us(&raw, &push, &watch);
    }
    const double mine = median(ours, rounds), raw_pair = median(theirs, rounds), handoff = median(handoffs, HANDOFFS),
                 raw_news = median(news, HANDOFFS);
    printf("{\"pair_us\": %.1f, \"raw_pair_us\": %.1f, \"ratio\": %.3f, \"handoff_us\": %.1f, \"raw_news_us\": %.1f, "
           "\"handoff_in_raw_news\": %.2f}\n",
           mine, raw_pair, mine / raw_pair, handoff, raw_news, handoff / raw_news);
    hf_close(client);
    hf_close(other);
    hfi_etcd_disconnect(raw.connection);
    hfi_etcd_disconnect(push.connection);
    hfi_etcd_stream_free(&watch);
    free(ours);
    free(theirs);
    return 0;
}
