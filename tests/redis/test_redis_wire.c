/* SPDX-License-Identifier: MIT
 *
 * test_redis_wire.c: a connection that threads share: whatever happens at whichever await, each question ends once,
 * with its own answers or none.
 */
#include "disturb.h"
#include "engines/redis/redis_wire.h"
#include "redis_support.h"
#include "silent_relay.h"
#include "wire_store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "return ARGV[1]", which the server may not know: it is asked by its hash first. */
static hf_status echo(struct redis_store *store, const char *text, hfi_time deadline_ns)
{
    static const char *const source = "return ARGV[1]";
    struct redis_script script;
    struct redis_command command = { REDIS_ROOM(4) };
    redisReply *reply = NULL;
    hf_error err = { 0 };
    hfi_redis_script_init(&script, source);
    hfi_redis_add_script(&command, &script);
    hfi_redis_add(&command, "0");
    hfi_redis_add(&command, text);
    struct redis_question question = { .commands = &command, .count = 1, .node = store->nodes };
    const hf_status status = hfi_redis_wire_ask(store, &question, false, &reply, deadline_ns, &err);
    CHECK_STATUS(status, status == HF_OK ? HF_OK : err.status, &err);
    if (status == HF_OK && CHECK(reply && reply->type == REDIS_REPLY_STRING))
        CHECK_STR(text, reply->str);
    CHECK((reply != NULL) == (status == HF_OK));
    freeReplyObject(reply);
    return status;
}

static hf_status echo_soon(struct redis_store *store, const char *text)
{
    return echo(store, text, now_ns() + 15 * HFI_SECOND);
}

/* --- one thing at one await --- */

/* At the first the connection is made, at the second the script is asked by its hash, at the third by its text. */
static void check_await(struct redis_server *server, const char *url, unsigned at, enum disturbance what)
{
    struct redis_store *store = open_store(url);
    char text[40];
    snprintf(text, sizeof text, "await %u, %d", at, (int)what);
    redis_server_do(server, "SCRIPT FLUSH");
    disturb_at(&store->loop, at, what);
    const hf_status status = echo_soon(store, text);
    store->loop.on_await = NULL;
    CHECK_INT(1, plan.times);
    /* What is not connected yet may be so in spite of that. */
    if (!CHECK(status == (at == 1 ? HF_UNAVAILABLE : HF_UNKNOWN) || (at == 1 && what == BREAK && status == HF_OK)))
        test_note("%s: %d", text, (int)status);
    CHECK_STATUS(HF_OK, echo_soon(store, "another"), NULL); /* and not what came late */
    close_store(store);
}

TEST_LIMIT(at_every_await_the_time_may_be_over_or_the_connection_break, 40)
{
    struct redis_server *server = redis_server_start_tls(NULL, "");
    for (unsigned at = 1; at <= 3; at++) {
        for (enum disturbance what = 0; what < DISTURBANCES; what++) {
            check_await(server, server->url, at, what);
            check_await(server, server->tls_url, at, what);
        }
    }
}

/* --- many at once --- */

#define THREADS 16

static struct redis_store *shared;
static atomic_bool enough;

static void ask_often(void *arg, uint32_t index)
{
    char text[64];
    const unsigned *times = arg;
    for (unsigned i = 0; i < *times || !*times; i++) {
        snprintf(text, sizeof text, "thread %u, question %u", index, i);
        const hf_status status = echo_soon(shared, text);
        CHECK(status == HF_OK || (!*times && (status == HF_UNKNOWN || status == HF_UNAVAILABLE)));
        if (!*times && atomic_load(&enough))
            return;
    }
}

static void check_own_answers(const char *url)
{
    unsigned times = 200;
    shared = open_store(url);
    run_threads(THREADS, ask_often, &times);
    close_store(shared);
}

TEST_LIMIT(each_thread_gets_its_own_answers, 60)
{
    struct redis_server *server = redis_server_start_tls(NULL, "");
    check_own_answers(server->url);
    check_own_answers(server->tls_url);
}

static void ask_or_break(void *arg, uint32_t index)
{
    struct redis_server *server = arg;
    unsigned endless = 0;
    if (index < THREADS) {
        ask_often(&endless, index);
        return;
    }
    for (int i = 0; i < 50; i++) {
        redis_server_do(server, "CLIENT KILL TYPE normal SKIPME yes");
        hfi_redis_wire_break(shared, shared->nodes);
        await_a_moment();
    }
    atomic_store(&enough, true);
}

TEST_LIMIT(a_connection_that_breaks_costs_those_who_wait_and_no_others, 60)
{
    struct redis_server *server = redis_server_start(NULL, "");
    shared = open_store(server->url);
    run_threads(THREADS + 1, ask_or_break, server);
    CHECK_STATUS(HF_OK, echo_soon(shared, "afterwards"), NULL);
    close_store(shared);
}

/* Commands that are larger than what the socket has room for. */
static void ask_much(void *arg, uint32_t index)
{
    const size_t length = 3000000;
    char *text = malloc(length + 1);
    (void)arg;
    memset(text, 'a' + (int)index, length);
    text[length] = 0;
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(HF_OK, echo_soon(shared, text), NULL);
    free(text);
}

TEST_LIMIT(large_commands_of_several_threads_stay_apart, 60)
{
    struct redis_server *server = redis_server_start_tls(NULL, "");
    const char *const urls[] = { server->url, server->tls_url };
    for (int i = 0; i < 2; i++) {
        shared = open_store(urls[i]);
        run_threads(4, ask_much, NULL);
        close_store(shared);
    }
}

/* --- a connection on which nothing comes any more --- */

struct asker {
    struct redis_store *store;
    hfi_time deadline_ns;
    hf_status status;
};

static void *ask_once(void *arg)
{
    struct asker *asker = arg;
    asker->status = echo(asker->store, "on the old one", asker->deadline_ns);
    return NULL;
}

/* Returns when it has asked. */
static void start_asking(pthread_t *thread, struct asker *asker)
{
    REQUIRE_INT(0, pthread_create(thread, NULL, ask_once, asker));
    while (!hfi_redis_wire_is_busy(asker->store, asker->store->nodes))
        await_a_moment();
}

/* Whoever asks after somebody's time was over does so on another connection; those before it still wait. */
TEST_LIMIT(a_silent_connection_is_left_by_those_who_ask_next, 40)
{
    struct redis_server *server = redis_server_start(NULL, "");
    struct relay *relay = relay_start(server->port);
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", relay->port);
    struct redis_store *store = open_store(url);
    CHECK_STATUS(HF_OK, echo_soon(store, "first"), NULL);
    struct redis_wire *old = store->nodes->wire;
    atomic_store(&relay->swallow_all, true);
    struct asker patient = { store, now_ns() + 3 * HFI_SECOND, HF_OK };
    pthread_t thread;
    start_asking(&thread, &patient);
    CHECK_STATUS(HF_UNKNOWN, echo(store, "hurried", now_ns() + 100 * HFI_MS), NULL);
    CHECK_STATUS(HF_OK, echo_soon(store, "next"), NULL);
    CHECK(store->nodes->wire && store->nodes->wire != old);
    pthread_join(thread, NULL);
    CHECK_INT(HF_UNKNOWN, patient.status);
    close_store(store);
    relay_stop(relay);
}

/* Whoever asks has paused it before. */
static void give_up(struct redis_server *server, pthread_t thread, const struct asker *asker, hf_status expected)
{
    hfi_redis_drop_node(asker->store, asker->store->nodes);
    pthread_join(thread, NULL);
    CHECK_INT(expected, asker->status);
    redis_server_continue(server);
    close_store(asker->store);
}

/* Nothing that was said to it is of use any more: also those are told who wait on a connection that was left. */
TEST_LIMIT(a_server_that_is_given_up_ends_the_waits_on_connections_that_were_left, 40)
{
    struct redis_server *server = redis_server_start(NULL, "");
    struct redis_store *store = open_store(server->url);
    struct asker patient = { store, HFI_NEVER, HF_OK };
    pthread_t thread;
    CHECK_STATUS(HF_OK, echo_soon(store, "first"), NULL);
    redis_server_pause(server);
    start_asking(&thread, &patient);
    CHECK_STATUS(HF_UNKNOWN, echo(store, "hurried", now_ns() + 100 * HFI_MS), NULL);
    give_up(server, thread, &patient, HF_UNKNOWN);
}

/* The same for one that is not connected yet: its thread sits in the loop, and must be fetched from there. */
TEST_LIMIT(a_server_that_is_given_up_ends_the_wait_for_a_connection_to_it, 40)
{
    struct redis_server *server = redis_server_start(NULL, "");
    struct redis_store *store = open_store(server->url);
    struct asker patient = { store, HFI_NEVER, HF_OK };
    pthread_t thread;
    bool driven = false;
    redis_server_pause(server);
    start_asking(&thread, &patient);
    while (!driven) {
        await_a_moment();
        hfi_loop_enter(&store->loop);
        driven = store->loop.driver;
        hfi_loop_leave(&store->loop);
    }
    give_up(server, thread, &patient, HF_UNAVAILABLE);
}

/* Found, and replaced before it was asked: no news would end the wait. */
TEST_LIMIT(a_server_that_was_replaced_meanwhile_is_not_asked, 40)
{
    struct redis_server *old = redis_server_start(NULL, "");
    struct redis_store *store = open_store("redis+sentinel://127.0.0.1:1/mymaster");
    struct redis_address address = { .host = "127.0.0.1" }, other = { .host = "127.0.0.1", .port = "1" };
    snprintf(address.port, sizeof address.port, "%d", old->port);
    struct redis_node *node = hfi_redis_node(store, &address);
    store->sentinel.known = node;
    redisReply *reply = NULL;
    struct redis_command command = { REDIS_ROOM(1) };
    hfi_redis_add(&command, "PING");
    struct redis_question question = { .commands = &command, .count = 1, .node = node };
    CHECK_STATUS(HF_OK, hfi_redis_wire_ask(store, &question, false, &reply, HFI_NEVER, NULL), NULL);
    freeReplyObject(reply);
    store->sentinel.known = hfi_redis_node(store, &other);
    hfi_redis_drop_node(store, node);
    hf_error err = { 0 };
    store->config.replicas = 1; /* on a connection of its own */
    question.deadline_ns = HFI_NEVER;
    CHECK_STATUS(HF_UNAVAILABLE, hfi_redis_ask(store, &question, &reply, &err), &err);
    redis_server_pause(old);
    CHECK_STATUS(HF_UNAVAILABLE, hfi_redis_wire_ask(store, &question, false, &reply, HFI_NEVER, &err), &err);
    redis_server_continue(old);
    close_store(store);
}

/* A server that reads nothing: the first sits in a read, the second cannot get rid of what it has to say. */
TEST_LIMIT(a_deadline_is_kept_though_the_socket_is_full, 60)
{
    struct redis_server *server = redis_server_start(NULL, "");
    const size_t length = 12000000;
    char *text = malloc(length + 1);
    memset(text, 'x', length);
    text[length] = 0;
    struct redis_store *store = open_store(server->url);
    struct asker patient = { store, now_ns() + 8 * HFI_SECOND, HF_OK };
    pthread_t thread;
    CHECK_STATUS(HF_OK, echo_soon(store, "first"), NULL);
    redis_server_pause(server);
    start_asking(&thread, &patient);
    CHECK_STATUS(HF_UNKNOWN, echo(store, text, now_ns() + 300 * HFI_MS), NULL);
    CHECK(now_ns() < patient.deadline_ns); /* and not when the other one's time is over */
    redis_server_continue(server);
    pthread_join(thread, NULL);
    close_store(store);
    free(text);
}

/* --- several servers --- */

/* One of INFO's. */
static int64_t figure(struct redis_server *server, const char *name)
{
    char info[16384];
    redis_server_text(server, info, sizeof info, "INFO");
    const char *found = strstr(info, name);
    REQUIRE(found != NULL);
    return strtoll(found + strlen(name), NULL, 10);
}

struct errand {
    struct redis_store *store;
    struct redis_node *node;
    const char *words[3];
    struct gate ended;
};

static void *run_errand(void *arg)
{
    struct errand *errand = arg;
    struct redis_command command = { REDIS_ROOM(3) };
    redisReply *reply = NULL;
    hf_error err = { 0 };
    for (int i = 0; i < 3 && errand->words[i]; i++)
        hfi_redis_add(&command, errand->words[i]);
    struct redis_question question = { .commands = &command, .count = 1, .node = errand->node };
    const hfi_time deadline = now_ns() + 30 * HFI_SECOND;
    CHECK_STATUS(HF_OK, hfi_redis_wire_ask(errand->store, &question, false, &reply, deadline, &err), &err);
    freeReplyObject(reply);
    gate_pass(&errand->ended);
    return NULL;
}

/* The first drives for both until it has its connection, and waits for its answer then: somebody must go on driving. */
TEST_LIMIT(a_thread_that_waits_for_its_answer_leaves_the_driving_to_others, 40)
{
    struct redis_server *first = redis_server_start(NULL, ""), *second = redis_server_start(NULL, "");
    char url[100];
    pthread_t threads[2];
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:1", first->port, second->port);
    struct redis_store *store = open_store(url);
    struct errand waits = { .store = store, .node = store->nodes, .words = { "BLPOP", "a-list", "0" } };
    struct errand pings = { .store = store, .node = store->nodes->next, .words = { "PING" } };
    redis_server_pause(first);
    redis_server_pause(second);
    REQUIRE_INT(0, pthread_create(&threads[0], NULL, run_errand, &waits));
    while (!hfi_redis_wire_is_busy(store, waits.node))
        await_a_moment();
    REQUIRE_INT(0, pthread_create(&threads[1], NULL, run_errand, &pings));
    while (!hfi_redis_wire_is_busy(store, pings.node))
        await_a_moment();
    redis_server_continue(first);
    while (figure(first, "blocked_clients:") == 0)
        await_a_moment();
    redis_server_continue(second);
    gate_await(&pings.ended, 1);
    CHECK_INT(0, gate_count(&waits.ended));
    redis_server_do(first, "LPUSH a-list x");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    close_store(store);
}

/* --- through the library --- */

static void try_often(void *arg, uint32_t index)
{
    const struct name name = numbered_name("own", index);
    hf_lock *lock = NULL;
    while (hf_try_acquire(&lock, arg, name.text, NULL, NULL) != HF_OK)
        await_a_moment();
    must_release(lock);
}

/* One that will never be ready is waited for by threads in turn, so that it is never without one. */
TEST_LIMIT(a_connection_that_is_never_made_is_given_up_though_others_wait_for_it, 60)
{
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *client = open_url("redis://127.0.0.1:%d?timeout=300", relay->port);
    struct waiter waiter;
    redis_server_do(server, "CLIENT KILL TYPE normal SKIPME yes");
    pause_ms(300); /* what was used a moment ago is not looked at */
    redis_server_pause(server);
    waiter_start(&waiter, client, "w", NULL);
    pause_ms(150); /* it connects, and waits for the answer to its log-in, which will not come */
    atomic_store(&relay->swallow_all, true);
    while (atomic_load(&relay->swallow_all))
        await_a_moment();
    redis_server_continue(server);
    run_threads(2, try_often, client);
    waiter_finish(&waiter);
    hf_close(client);
    relay_stop(relay);
}

/* After a release in this dialect the answer to a command that nobody waits for is still to come. */
TEST(an_idle_connection_that_was_closed_is_noticed_behind_an_answer_that_nobody_waits_for)
{
    struct redis_server *server = serve("");
    hf_client *client = open_url("%s?dialect=redisson", server->url);
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    must_release(must_acquire(client, "x", NULL));
    pause_ms(300);
    redis_server_do(server, "CLIENT KILL TYPE normal SKIPME yes");
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, client, "y", NULL, &err), &err);
    must_release(lock);
    hf_close(client);
}

static void pair_often(void *arg, uint32_t index)
{
    const struct name name = numbered_name("own", index);
    for (int i = 0; i < 50; i++)
        must_release(must_acquire(arg, name.text, NULL));
}

TEST_LIMIT(the_threads_of_a_client_have_one_connection, 60)
{
    struct redis_server *server = serve("");
    const int64_t before = figure(server, "total_connections_received:");
    hf_client *client = open_client();
    run_threads(64, pair_often, client);
    CHECK_INT(before + 1, figure(server, "total_connections_received:"));
    hf_close(client);
}
