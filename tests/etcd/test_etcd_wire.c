/* SPDX-License-Identifier: MIT
 *
 * test_etcd_wire.c: a connection that threads share: whatever happens at whichever await, each question ends once, with
 * its own answer or none.
 */
#include "disturb.h"
#include "engines/etcd/etcd_wire.h"
#include "etcd_support.h"
#include "late_relay.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

extern const struct hfi_engine hfi_module_engine;

static uint64_t no_chance(void)
{
    return 0;
}

static void recheck_nothing(void *core, uint64_t serial)
{
    (void)core;
    (void)serial;
}

static const struct hfi_env env = {
    .timeout_ns = 5 * HFI_SECOND, .now_ns = hfi_loop_now_ns, .random = no_chance, .recheck = recheck_nothing
};

static struct etcd_store *open_store(const char *url)
{
    struct etcd_store *store = calloc(1, sizeof *store);
    struct hfi_opened opened = { 0 };
    const char *colon = strchr(url, ':');
    char scheme[32];
    hf_error err = { 0 };
    snprintf(scheme, sizeof scheme, "%.*s", (int)(colon - url), url);
    const struct hfi_url split = { .scheme = scheme, .rest = colon + 1 };
    REQUIRE_STATUS(HF_OK, hfi_module_engine.open(store, &split, &env, &opened, &err), &err);
    return store;
}

static void close_store(struct etcd_store *store)
{
    CHECK_INT(0, store->loop.op_count);
    hfi_module_engine.close(store);
    free(store);
}

/* With a certificate of our own. */
static const char *tls_url(const struct etcd_cluster *cluster)
{
    static char url[1000];
    const char *folder = getenv("TEST_CERTIFICATES");
    snprintf(url, sizeof url, "%s?cafile=%s/ca.pem&cert=%s/client.pem&key=%s/client.key", cluster->url, folder, folder,
             folder);
    return url;
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){ .len = strlen(text), .data = (uint8_t *)(uintptr_t)text };
}

/* Writes the text, and reads it. HF_OK: there is an answer, if only a refusal when `any`. */
static hf_status echo(struct etcd_store *store, const char *key, const char *text, hfi_time deadline_ns, bool any)
{
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    Etcd__RangeRequest range = ETCD__RANGE_REQUEST__INIT;
    Etcd__RequestOp first = ETCD__REQUEST_OP__INIT, second = ETCD__REQUEST_OP__INIT, *both[] = { &first, &second };
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    struct etcd_call call = { .stream = { .path = "/etcdserverpb.KV/Txn" } };
    struct etcd_question question = { .calls = &call, .count = 1 };
    ProtobufCMessage *answer = NULL;
    hf_error err = { 0 };
    put.key = range.key = bytes(key);
    put.value = bytes(text);
    first.request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    first.put = &put;
    second.request_case = ETCD__REQUEST_OP__REQUEST_RANGE;
    second.range = &range;
    request.success = both;
    request.n_success = 2;
    REQUIRE(hfi_etcd_add_message(&call.stream, &request.base));
    const hf_status status = hfi_etcd_wire_ask(store, store->nodes, &question, NULL, deadline_ns, &err);
    CHECK_STATUS(status, status == HF_OK ? HF_OK : err.status, &err);
    if (status != HF_OK || call.stream.code != 0)
        test_note("%s %s", err.message, call.stream.reason);
    if (status == HF_OK && call.stream.code == 0 &&
        CHECK(hfi_etcd_take_message(&call.stream, &etcd__txn_response__descriptor, &answer) && answer)) {
        const Etcd__TxnResponse *said = (const Etcd__TxnResponse *)answer;
        REQUIRE(said->n_responses == 2 && said->responses[1]->range && said->responses[1]->range->n_kvs == 1);
        const ProtobufCBinaryData *value = &said->responses[1]->range->kvs[0]->value;
        CHECK(value->len == strlen(text) && memcmp(value->data, text, value->len) == 0);
    } else if (status == HF_OK) {
        CHECK(any && (call.stream.code > 0 || call.stream.untouched));
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    hfi_etcd_stream_free(&call.stream);
    return status;
}

static hf_status echo_soon(struct etcd_store *store, const char *text)
{
    return echo(store, "echo", text, hfi_loop_now_ns() + 15 * HFI_SECOND, false);
}

/* --- one thing at one await --- */

/* At the first the connection is made, at the second the call is answered. */
static void check_await(const char *url, unsigned at, enum disturbance what)
{
    struct etcd_store *store = open_store(url);
    char text[40];
    snprintf(text, sizeof text, "await %u, %d", at, (int)what);
    hfi_etcd_wires_close(store, store->nodes);
    disturb_at(&store->loop, at, what);
    const hf_status status = echo_soon(store, text);
    store->loop.on_await = NULL;
    CHECK_INT(1, plan.times);
    /* What is broken before it is connected may be connected in spite of that. */
    const hf_status expected = what == BREAK ? HF_UNKNOWN : HF_UNAVAILABLE;
    const bool connecting = at == 1 && what == BREAK && (status == HF_OK || status == HF_UNAVAILABLE);
    if (!CHECK(status == expected || connecting))
        test_note("%s: %d", text, (int)status);
    CHECK_STATUS(HF_OK, echo_soon(store, "another"), NULL); /* and not what came late */
    close_store(store);
}

static void check_awaits(const char *url)
{
    for (unsigned at = 1; at <= 2; at++) {
        for (enum disturbance what = 0; what < DISTURBANCES; what++)
            check_await(url, at, what);
    }
}

TEST_LIMIT(at_every_await_the_time_may_be_over_or_the_connection_break, 40)
{
    check_awaits(etcd_cluster_start(1, QUICK)->url);
    check_awaits(tls_url(etcd_cluster_start(1, "tls " QUICK)));
}

/* --- many at once --- */

#define THREADS 16

static struct etcd_store *shared;
static atomic_bool enough;

static void ask_often(void *arg, uint32_t index)
{
    char key[40], text[64];
    const unsigned *times = arg;
    snprintf(key, sizeof key, "thread %u", index);
    for (unsigned i = 0; i < *times || !*times; i++) {
        snprintf(text, sizeof text, "thread %u, question %u", index, i);
        const hf_status status = echo(shared, key, text, hfi_loop_now_ns() + 15 * HFI_SECOND, !*times);
        CHECK(status == HF_OK || (!*times && (status == HF_UNKNOWN || status == HF_UNAVAILABLE)));
        if (!*times && atomic_load(&enough))
            return;
    }
}

static void check_own_answers(const char *url)
{
    unsigned times = 100;
    shared = open_store(url);
    hfi_etcd_wires_close(shared, shared->nodes); /* all of them are there before the server has said anything */
    run_threads(THREADS, ask_often, &times);
    close_store(shared);
}

TEST_LIMIT(each_thread_gets_its_own_answers, 60)
{
    check_own_answers(etcd_cluster_start(1, QUICK)->url);
    check_own_answers(tls_url(etcd_cluster_start(1, "tls " QUICK)));
}

/* The rest waits here, and is not refused. */
TEST_LIMIT(a_server_that_takes_few_calls_at_once_gets_no_more, 60)
{
    check_own_answers(etcd_cluster_start(1, QUICK " --max-concurrent-streams 2")->url);
}

static void ask_or_break(void *arg, uint32_t index)
{
    struct etcd_cluster *cluster = arg;
    unsigned endless = 0;
    if (index < THREADS) {
        ask_often(&endless, index);
        return;
    }
    for (int i = 0; i < 50; i++) {
        shut_connections(cluster->servers[0].port, SHUT_RDWR);
        await_a_moment();
    }
    atomic_store(&enough, true);
}

TEST_LIMIT(a_connection_that_breaks_costs_those_who_wait_and_no_others, 60)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK);
    shared = open_store(cluster->url);
    run_threads(THREADS + 1, ask_or_break, cluster);
    echo(shared, "last", "it may be the one that finds it broken", hfi_loop_now_ns() + 15 * HFI_SECOND, true);
    CHECK_STATUS(HF_OK, echo_soon(shared, "afterwards"), NULL);
    close_store(shared);
}

static void *ask_all_the_time(void *arg)
{
    unsigned endless = 0;
    (void)arg;
    run_threads(THREADS, ask_often, &endless);
    return NULL;
}

/* It says so, and takes no more calls. */
TEST_LIMIT(a_server_that_is_stopped_and_started_again_is_used_again, 90)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK " --max-concurrent-streams 4");
    struct etcd_server *server = &cluster->servers[0];
    pthread_t thread;
    shared = open_store(cluster->url);
    REQUIRE_INT(0, pthread_create(&thread, NULL, ask_all_the_time, NULL));
    for (int i = 0; i < 3; i++) {
        kill(server->pid, SIGTERM);
        while (echo(shared, "restart", "gone?", hfi_loop_now_ns() + HFI_SECOND, true) == HF_OK)
            await_a_moment();
        etcd_server_kill(server);
        etcd_server_restart(server);
        etcd_cluster_await(cluster);
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    CHECK_STATUS(HF_OK, echo_soon(shared, "afterwards"), NULL);
    close_store(shared);
}

/* Requests and answers that are larger than what a stream has room for. */
static void ask_much(void *arg, uint32_t index)
{
    const size_t length = 600000;
    char *text = malloc(length + 1), key[40];
    (void)arg;
    snprintf(key, sizeof key, "much %u", index);
    memset(text, 'a' + (int)index, length);
    text[length] = 0;
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(HF_OK, echo(shared, key, text, hfi_loop_now_ns() + 15 * HFI_SECOND, false), NULL);
    free(text);
}

TEST_LIMIT(large_calls_of_several_threads_stay_apart, 60)
{
    struct etcd_cluster *clusters[] = { etcd_cluster_start(1, QUICK), etcd_cluster_start(1, "tls " QUICK) };
    for (int i = 0; i < 2; i++) {
        shared = open_store(i == 0 ? clusters[i]->url : tls_url(clusters[i]));
        run_threads(4, ask_much, NULL);
        close_store(shared);
    }
}

/* --- answers that do not come in time --- */

struct asker {
    pthread_t thread;
    const char *key;
    hfi_time deadline_ns;
    hf_status status;
};

static void *ask_once(void *arg)
{
    struct asker *asker = arg;
    asker->status = echo(shared, asker->key, "x", asker->deadline_ns, true);
    return NULL;
}

static void asker_start(struct asker *asker, const char *key, hfi_time patience_ns)
{
    *asker = (struct asker){ .key = key, .deadline_ns = hfi_loop_now_ns() + patience_ns };
    REQUIRE_INT(0, pthread_create(&asker->thread, NULL, ask_once, asker));
}

static bool is_busy(size_t count)
{
    hfi_loop_enter(&shared->loop);
    const size_t ops = shared->loop.op_count;
    hfi_loop_leave(&shared->loop);
    return ops >= count;
}

/* Whoever asks after somebody's time was over does so on another connection; those before it still wait. */
TEST_LIMIT(a_silent_connection_is_left_by_those_who_ask_next, 40)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK);
    struct late_relay *relay = late_relay_start("127.0.0.1", cluster->servers[0].port);
    struct asker patient;
    char url[64];
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d", late_relay_port(relay));
    shared = open_store(url);
    late_relay_catch(relay, "patient", 1);
    asker_start(&patient, "patient", test_ms(3000) * HFI_MS);
    late_relay_await(relay);
    CHECK_INT(1, late_relay_connections(relay));
    CHECK_STATUS(HF_UNKNOWN, echo(shared, "hurried", "x", hfi_loop_now_ns() + 100 * HFI_MS, false), NULL);
    CHECK_STATUS(HF_OK, echo_soon(shared, "next"), NULL);
    CHECK_INT(2, late_relay_connections(relay));
    pthread_join(patient.thread, NULL);
    CHECK_INT(HF_UNKNOWN, patient.status);
    while (late_relay_resets(relay) == 0) /* which R4 asks for: nothing of it may arrive any more */
        await_a_moment();
    close_store(shared);
}

/* The first call is given up before the server, which is told how long it has, would give it up. */
static void hurry(struct hfi_op *op)
{
    op->loop->on_await = NULL;
    hfi_op_limit(op, hfi_loop_now_ns() + 3 * HFI_SECOND);
}

/* A call that hangs in the server is canceled, and what others ask meanwhile is answered on the same connection. */
TEST_LIMIT(a_call_that_hangs_is_no_reason_to_leave_a_connection, 60)
{
    /* A leader that nobody follows takes calls for so long, before it takes itself for none. */
    struct etcd_cluster *cluster = etcd_cluster_start(3, QUICK " --heartbeat-interval 100 --election-timeout 5000");
    struct etcd_server *leader = etcd_cluster_leader(cluster);
    /* To be read as this server knows it, which needs no others: no field of the engine's. */
    ProtobufCMessageUnknownField serializable = {
        .tag = 7, .wire_type = PROTOBUF_C_WIRE_TYPE_VARINT, .len = 1, .data = (uint8_t *)"\x01"
    };
    struct asker asker;
    char url[64];
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d", leader->port);
    shared = open_store(url);
    CHECK_STATUS(HF_OK, echo_soon(shared, "first"), NULL);
    const struct etcd_wire *wire = shared->nodes->wire;
    for (int i = 0; i < 3; i++) { /* there is nobody left to agree with it */
        if (&cluster->servers[i] != leader)
            etcd_server_pause(&cluster->servers[i]);
    }
    shared->loop.on_await = hurry;
    asker_start(&asker, "hangs", 30 * HFI_SECOND);
    while (!is_busy(1))
        await_a_moment();
    while (is_busy(1)) {
        Etcd__RangeRequest request = ETCD__RANGE_REQUEST__INIT;
        struct etcd_call call = { .stream = { .path = "/etcdserverpb.KV/Range" } };
        struct etcd_question question = { .calls = &call, .count = 1 };
        hf_error err = { 0 };
        request.key = bytes("x");
        request.base.unknown_fields = &serializable;
        request.base.n_unknown_fields = 1;
        REQUIRE(hfi_etcd_add_message(&call.stream, &request.base));
        CHECK_STATUS(
            HF_OK, hfi_etcd_wire_ask(shared, shared->nodes, &question, NULL, hfi_loop_now_ns() + 10 * HFI_SECOND, &err),
            &err);
        hfi_etcd_stream_free(&call.stream);
    }
    pthread_join(asker.thread, NULL);
    CHECK_INT(HF_UNKNOWN, asker.status);
    CHECK(shared->nodes->wire == wire);
    for (int i = 0; i < 3; i++) {
        if (&cluster->servers[i] != leader)
            etcd_server_continue(&cluster->servers[i]);
    }
    etcd_cluster_await(cluster);
    CHECK_STATUS(HF_OK, echo_soon(shared, "another"), NULL);
    close_store(shared);
}

/* What waits here because the server takes no more calls was not sent when its time is over. */
TEST_LIMIT(what_was_not_sent_is_not_unknown, 60)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK " --max-concurrent-streams 2");
    struct asker askers[2], last;
    shared = open_store(cluster->url);
    CHECK_STATUS(HF_OK, echo_soon(shared, "first"), NULL);
    etcd_server_pause(&cluster->servers[0]);
    for (int i = 0; i < 2; i++)
        asker_start(&askers[i], "sent", test_ms(2000) * HFI_MS);
    while (!is_busy(2))
        await_a_moment();
    asker_start(&last, "not sent", 200 * HFI_MS);
    pthread_join(last.thread, NULL);
    CHECK_INT(HF_UNAVAILABLE, last.status);
    for (int i = 0; i < 2; i++) {
        pthread_join(askers[i].thread, NULL);
        CHECK_INT(HF_UNKNOWN, askers[i].status);
    }
    etcd_server_continue(&cluster->servers[0]);
    CHECK_STATUS(HF_OK, echo_soon(shared, "another"), NULL);
    CHECK_INT(0, etcd_ctl_keys(cluster, "not"));
    close_store(shared);
}

/* --- through the library --- */

struct crowd {
    hf_client *client;
    hf_lock *renewed;
};

static void pair_often(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    const struct name name = numbered_name("own", index);
    for (int i = 0; i < 20; i++) {
        if (index == 0)
            CHECK_STATUS(HF_OK, hf_renew(crowd->renewed, 0, NULL), NULL);
        else
            must_release(must_acquire(crowd->client, name.text, NULL));
    }
}

static uint32_t open_connections(const struct late_relay *relay)
{
    const uint32_t gone = late_relay_resets(relay) + late_relay_ends(relay);
    return late_relay_connections(relay) - gone;
}

/* One for all, one for renewals, and one to listen; one that was left may take a moment to go. */
TEST_LIMIT(the_threads_of_a_client_have_few_connections, 60)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK);
    struct late_relay *relay = late_relay_start("127.0.0.1", cluster->servers[0].port);
    char url[64];
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d", late_relay_port(relay));
    store_url = url;
    struct crowd crowd = { .client = open_client() };
    crowd.renewed = must_acquire(crowd.client, "renewed", NULL);
    run_threads(64, pair_often, &crowd);
    test_note("%u connections were made", late_relay_connections(relay));
    while (open_connections(relay) > 3)
        await_a_moment();
    must_release(crowd.renewed);
    hf_close(crowd.client);
}

/* A request is stuck on the way, and whatever comes behind it on the same connection. */
TEST_LIMIT(a_call_that_hangs_costs_nobody_a_lease, 60)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK);
    struct late_relay *relay = late_relay_start("127.0.0.1", cluster->servers[0].port);
    struct loss loss = { .told_ns = 0 };
    hf_client_options patient = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_options options = with_ttl(test_ms(3000));
    struct waiter waiter;
    char url[64];
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d", late_relay_port(relay));
    patient.timeout_ms = test_ms(12000);
    record_loss(&options, &loss);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &patient, NULL), NULL);
    hf_lock *lock = must_acquire(client, "kept", &options);
    late_relay_catch(relay, "holdfast/x/", 1);
    waiter_start(&waiter, client, "x", NULL);
    late_relay_await(relay);
    pause_ms(2 * options.ttl_ms);
    CHECK_INT(0, gate_count(&waiter.ended));
    CHECK_INT(0, gate_count(&loss.told));
    CHECK(hf_remaining_ms(lock) > 0);
    late_relay_deliver(relay);
    waiter_finish(&waiter);
    must_release(lock);
    hf_close(client);
}
