/* SPDX-License-Identifier: MIT
 *
 * test_redis_start.c: questions that no thread waits for, on the connection that threads share: whatever happens at
 * whichever await, each ends once, with its own answers or none, and nobody who starts one waits for anything.
 */
#include "disturb.h"
#include "memory.h"
#include "redis_support.h"
#include "silent_relay.h"
#include "wire_store.h"
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>

/* "return ARGV[1]", started. */
struct echo {
    struct redis_script script;
    const char *words[4];
    struct redis_command command;
    redisReply *reply;
    struct redis_question question;
    char text[64];
    const char *large; /* in place of `text` */
    _Atomic int ends;
    hf_status status;
    bool right;         /* its answer is its own */
    struct gate *stops; /* its end waits for this */
    struct gate ended;
};

static struct echo *echo_of(struct redis_question *question)
{
    return (struct echo *)(void *)((char *)question - offsetof(struct echo, question));
}

static void answered(struct redis_store *store, struct redis_question *question, hf_status status, const hf_error *err)
{
    struct echo *echo = echo_of(question);
    const char *text = echo->large ? echo->large : echo->text;
    (void)store;
    CHECK(status == HF_OK || (err->status == status && err->message[0] != 0));
    CHECK((echo->reply != NULL) == (status == HF_OK));
    echo->right = echo->reply && echo->reply->type == REDIS_REPLY_STRING && strcmp(echo->reply->str, text) == 0;
    freeReplyObject(echo->reply);
    echo->reply = NULL;
    echo->status = status;
    atomic_fetch_add(&echo->ends, 1);
    struct gate *stops = echo->stops;
    gate_pass(&echo->ended); /* it may be gone from now on */
    if (stops)
        gate_await(stops, 1);
}

static bool start(struct redis_store *store, struct echo *echo, hfi_time deadline_ns)
{
    atomic_store(&echo->ends, 0);
    atomic_store(&echo->ended.count, 0);
    hfi_redis_script_init(&echo->script, "return ARGV[1]");
    echo->command = (struct redis_command){ .text = echo->words, .room = 4 };
    hfi_redis_add_script(&echo->command, &echo->script);
    hfi_redis_add(&echo->command, "0");
    hfi_redis_add(&echo->command, echo->large ? echo->large : echo->text);
    echo->question = (struct redis_question){ .commands = &echo->command, .count = 1, .node = store->nodes };
    return hfi_redis_wire_start(store, &echo->question, &echo->reply, deadline_ns, answered);
}

static void begin(struct redis_store *store, struct echo *echo)
{
    REQUIRE(start(store, echo, now_ns() + 20 * HFI_SECOND));
}

static void check_answer(struct echo *echo)
{
    gate_await(&echo->ended, 1);
    CHECK_INT(HF_OK, echo->status);
    CHECK_INT(1, atomic_load(&echo->ends));
    CHECK(echo->right);
}

static void check_echo(struct redis_store *store, const char *text)
{
    struct echo echo = { .large = NULL };
    snprintf(echo.text, sizeof echo.text, "%s", text);
    begin(store, &echo);
    check_answer(&echo);
}

static void *attend(void *arg)
{
    struct redis_store *store = arg;
    hfi_loop_attend(&store->loop);
    return NULL;
}

static struct redis_store *open_attended(const char *url, pthread_t *thread)
{
    struct redis_store *store = open_store(url);
    REQUIRE_INT(0, pthread_create(thread, NULL, attend, store));
    return store;
}

static void close_attended(struct redis_store *store, pthread_t thread)
{
    hfi_loop_dismiss(&store->loop);
    pthread_join(thread, NULL);
    close_store(store);
}

/* Until it sleeps: its own await is none of the test's. */
static void await_attendant(struct redis_store *store)
{
    for (bool there = false; !there;) {
        hfi_loop_enter(&store->loop);
        there = store->loop.attendant && store->loop.driver == store->loop.attendant;
        hfi_loop_leave(&store->loop);
    }
}

/* --- one thing at one await --- */

/* At the first the connection is made, at the second the script is asked by its hash, at the third by its text. */
static void check_await(struct redis_server *server, const char *url, unsigned at, enum disturbance what)
{
    pthread_t thread;
    struct redis_store *store = open_attended(url, &thread);
    struct echo echo = { .text = "disturbed" };
    await_attendant(store);
    redis_server_do(server, "SCRIPT FLUSH");
    disturb_at(&store->loop, at, what);
    begin(store, &echo);
    gate_await(&echo.ended, 1);
    hfi_loop_enter(&store->loop);
    store->loop.on_await = NULL;
    hfi_loop_leave(&store->loop);
    CHECK_INT(1, plan.times);
    const hf_status expected = at == 1 ? HF_UNAVAILABLE : HF_UNKNOWN;
    /* It may be connected before anybody looks, and in spite of being cut off. */
    if (!CHECK(echo.status == expected || (at == 1 && echo.right)))
        test_note("await %u, %d: %d", at, (int)what, (int)echo.status);
    check_echo(store, "another"); /* and not what came late */
    CHECK_INT(1, atomic_load(&echo.ends));
    close_attended(store, thread);
}

TEST_LIMIT(at_every_await_the_time_may_be_over_or_the_connection_break, 60)
{
    struct redis_server *server = redis_server_start_tls(NULL, "");
    for (unsigned at = 1; at <= 3; at++) {
        for (enum disturbance what = 0; what < DISTURBANCES; what++) {
            check_await(server, server->url, at, what);
            check_await(server, server->tls_url, at, what);
        }
    }
}

TEST_LIMIT(every_allocation_may_fail, 60)
{
    pthread_t thread;
    struct redis_server *server = redis_server_start(NULL, "");
    bool all_well = false;
    for (long after = 1; !all_well; after++) {
        struct redis_store *store = open_attended(server->url, &thread);
        struct echo echo = { .text = "poor" };
        await_attendant(store);
        hfi_alloc_set_fault(after);
        const bool started = start(store, &echo, now_ns() + 20 * HFI_SECOND);
        if (started)
            gate_await(&echo.ended, 1);
        hfi_alloc_set_fault(0);
        all_well = started && echo.status == HF_OK;
        CHECK(!started || atomic_load(&echo.ends) == 1);
        check_echo(store, "rich again");
        close_attended(store, thread);
    }
}

/* --- together --- */

static unsigned segments_sent(struct redis_store *store)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    hfi_loop_enter(&store->loop);
    REQUIRE_INT(0, getsockopt(store->loop.sources->fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    hfi_loop_leave(&store->loop);
    return info.tcpi_data_segs_out;
}

/* The first finds nobody under way, and goes by itself; the others go together, when whoever attends comes to it. */
TEST_LIMIT(what_is_started_together_is_sent_together, 40)
{
    enum { MANY = 64 };
    static struct echo many[MANY];
    struct gate gate = { 0 };
    pthread_t thread;
    struct redis_server *server = redis_server_start(NULL, "");
    struct redis_store *store = open_attended(server->url, &thread);
    struct echo first = { .text = "first", .stops = &gate };
    check_echo(store, "known from now on");
    begin(store, &first);
    gate_await(&first.ended, 1); /* the attendant is held up now */
    const unsigned before = segments_sent(store);
    for (int i = 0; i < MANY; i++) {
        snprintf(many[i].text, sizeof many[i].text, "number %d", i);
        begin(store, &many[i]);
    }
    CHECK_INT(before + 1, segments_sent(store));
    gate_pass(&gate);
    for (int i = 0; i < MANY; i++)
        check_answer(&many[i]);
    CHECK_INT(before + 2, segments_sent(store));
    close_attended(store, thread);
}

static struct redis_store *shared;

/* A thread that waits beside those that do not. */
static void ask_or_start(void *arg, uint32_t index)
{
    (void)arg;
    for (int i = 0; i < 200; i++) {
        char text[64];
        snprintf(text, sizeof text, "thread %u, question %d", index, i);
        if (index % 2) {
            check_echo(shared, text);
            continue;
        }
        struct redis_command command = { REDIS_ROOM(2) };
        redisReply *reply = NULL;
        hfi_redis_add(&command, "ECHO");
        hfi_redis_add(&command, text);
        struct redis_question question = { .commands = &command, .count = 1, .node = shared->nodes };
        const hfi_time deadline = now_ns() + 20 * HFI_SECOND;
        if (CHECK_INT(HF_OK, hfi_redis_wire_ask(shared, &question, false, &reply, deadline, NULL)))
            CHECK_STR(text, reply->str);
        freeReplyObject(reply);
    }
}

TEST_LIMIT(threads_and_what_is_started_share_a_connection, 60)
{
    pthread_t thread;
    struct redis_server *server = redis_server_start_tls(NULL, "");
    const char *const urls[] = { server->url, server->tls_url };
    for (int i = 0; i < 2; i++) {
        shared = open_attended(urls[i], &thread);
        run_threads(8, ask_or_start, NULL);
        close_attended(shared, thread);
    }
}

/* What the socket has no room for goes when it has. */
TEST_LIMIT(large_commands_go_piece_by_piece, 60)
{
    enum { MANY = 4 };
    static struct echo many[MANY];
    pthread_t thread;
    const size_t length = 3000000;
    char *text = malloc(length + 1);
    struct redis_server *server = redis_server_start(NULL, "");
    struct redis_store *store = open_attended(server->url, &thread);
    memset(text, 'x', length);
    text[length] = 0;
    check_echo(store, "known from now on");
    redis_server_pause(server);
    for (int i = 0; i < MANY; i++) {
        many[i].large = text;
        begin(store, &many[i]);
    }
    redis_server_continue(server);
    for (int i = 0; i < MANY; i++)
        check_answer(&many[i]);
    close_attended(store, thread);
    free(text);
}

/* --- a server that does not answer --- */

/* Nobody waits: the loop is alone with the deadline, which may be nearer than what it sleeps for. */
TEST_LIMIT(a_deadline_is_kept_though_nobody_waits, 40)
{
    pthread_t thread;
    struct redis_server *server = redis_server_start(NULL, "");
    struct redis_store *store = open_attended(server->url, &thread);
    struct echo patient = { .text = "patient" }, hurried = { .text = "hurried" };
    check_echo(store, "known from now on");
    redis_server_pause(server); /* nothing that is started from here on may wait for it */
    begin(store, &patient);
    REQUIRE(start(store, &hurried, now_ns() + 50 * HFI_MS));
    gate_await(&hurried.ended, 1);
    CHECK_INT(HF_UNKNOWN, hurried.status);
    CHECK_INT(0, atomic_load(&patient.ends));
    redis_server_continue(server);
    check_answer(&patient);
    check_echo(store, "on another connection");
    CHECK_INT(1, atomic_load(&hurried.ends));
    close_attended(store, thread);
}

/* The first connection: the server takes it, and says nothing to the log-in. */
TEST_LIMIT(a_connection_is_made_without_whoever_starts, 40)
{
    pthread_t thread;
    struct redis_server *server = redis_server_start_tls(NULL, "");
    const char *const urls[] = { server->url, server->tls_url, server->unix_url };
    for (int i = 0; i < 3; i++) {
        struct redis_store *store = open_attended(urls[i], &thread);
        struct echo one = { .text = "one" }, late = { .text = "late" };
        redis_server_pause(server);
        REQUIRE(start(store, &late, now_ns() + 50 * HFI_MS));
        gate_await(&late.ended, 1);
        CHECK_INT(HF_UNAVAILABLE, late.status); /* and nothing was sent */
        begin(store, &one);
        redis_server_continue(server);
        check_answer(&one);
        close_attended(store, thread);
    }
}

/* A thread sits in a read of the same connection, and reads for all. */
TEST_LIMIT(whoever_reads_for_itself_reads_for_what_is_started, 40)
{
    pthread_t thread;
    struct redis_server *server = redis_server_start(NULL, "");
    struct relay *relay = relay_start(server->port);
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", relay->port);
    struct redis_store *store = open_attended(url, &thread);
    struct echo lost = { .text = "lost" };
    check_echo(store, "known from now on");
    atomic_store(&relay->swallow_all, true);
    while (atomic_load(&relay->swallow_all))
        await_a_moment();
    begin(store, &lost);
    struct redis_command command = { REDIS_ROOM(1) };
    redisReply *reply = NULL;
    hfi_redis_add(&command, "PING");
    struct redis_question question = { .commands = &command, .count = 1, .node = store->nodes };
    const hfi_time deadline = now_ns() + 100 * HFI_MS;
    CHECK_INT(HF_UNKNOWN, hfi_redis_wire_ask(store, &question, false, &reply, deadline, NULL));
    CHECK_INT(0, atomic_load(&lost.ends));
    check_echo(store, "on another connection");
    hfi_redis_drop_node(store, store->nodes);
    gate_await(&lost.ended, 1);
    CHECK_INT(HF_UNKNOWN, lost.status);
    close_attended(store, thread);
    relay_stop(relay);
}
