/* SPDX-License-Identifier: MIT
 *
 * test_redis_open.c: connecting, AUTH, SELECT and PING, and every way in which they can go wrong.
 */
#include "wire.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECRET "s3cr3t-w0rd"
#define AUTH "*3\\r\\n$4\\r\\nAUTH\\r\\n$3\\r\\nann\\r\\n$11\\r\\n" SECRET "\\r\\n"
#define SELECT "*2\\r\\n$6\\r\\nSELECT\\r\\n$1\\r\\n3\\r\\n"
#define HELLO "*2\\r\\n$5\\r\\nHELLO\\r\\n$1\\r\\n2\\r\\n"
#define NO_HELLO "-ERR unknown command `HELLO`\\r\\n"
#define LOG_IN "accept\nexpect " AUTH SELECT "*1\\r\\n$4\\r\\nPING\\r\\n" HELLO "\n"

/* As wire_open(), with a user, a password and a database. */
static hf_status open_as_ann(struct wire *wire, uint32_t timeout_ms, hf_error *err)
{
    char url[200];
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    snprintf(url, sizeof url, "redis://ann:" SECRET "@127.0.0.1:%d/3", script_port(wire->server));
    const hf_status status = hf_open(&wire->client, url, &options, err);
    if (status != HF_OK) {
        CHECK(wire->client == NULL);
        CHECK(strstr(err->message, SECRET) == NULL);
        wire_check_words(status, err);
    } else {
        CHECK(strstr(hf_url(wire->client), SECRET) == NULL);
    }
    return status;
}

TEST(a_refused_connection_names_the_server)
{
    struct wire wire;
    hf_error err = { 0 };
    char place[40];
    wire_serve(&wire, "refuse\n");
    script_await_end(wire.server);
    CHECK_STATUS(HF_UNAVAILABLE, wire_open(&wire, "", 2000, &err), &err);
    wire_check_words(HF_UNAVAILABLE, &err);
    snprintf(place, sizeof place, "127.0.0.1:%d", script_port(wire.server));
    CHECK(strstr(err.message, place) != NULL);
    wire_end(&wire);
}

TEST(the_log_in_is_one_write)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, LOG_IN "send +OK\\r\\n+OK\\r\\n+PONG\\r\\n" NO_HELLO "\n");
    CHECK_STATUS(HF_OK, open_as_ann(&wire, 2000, &err), &err);
    wire_end(&wire);
}

TEST(a_log_in_in_single_bytes)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, LOG_IN "dribble +OK\\r\\n+OK\\r\\n+PONG\\r\\n" NO_HELLO "\n");
    CHECK_STATUS(HF_OK, open_as_ann(&wire, 5000, &err), &err);
    wire_end(&wire);
}

TEST(a_password_without_a_user)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, "accept\nexpect *2\\r\\n$4\\r\\nAUTH\\r\\n$11\\r\\n" SECRET "\\r\\n*1\\r\\n$4\\r\\nPING\\r\\n\n"
                      "send +OK\\r\\n+PONG\\r\\n\n");
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", SECRET, 1));
    CHECK_STATUS(HF_OK, wire_open(&wire, "", 2000, &err), &err);
    wire_end(&wire);
}

TEST(a_unix_socket)
{
    struct wire wire = { 0 };
    char directory[] = "/tmp/holdfast-wire-XXXXXX", path[100], url[140];
    hf_error err = { 0 };
    REQUIRE(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/s", directory);
    snprintf(url, sizeof url, "redis+unix://%s?module=no", path);
    wire.server = script_start_unix(path, "accept\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\nsend +PONG\\r\\n\neof\n");
    REQUIRE_STATUS(HF_OK, hf_open(&wire.client, url, NULL, &err), &err);
    hf_close(wire.client);
    script_check(wire.server);
    CHECK_STATUS(HF_UNAVAILABLE, hf_open(&wire.client, url, NULL, &err), &err);
    wire_check_words(HF_UNAVAILABLE, &err);
    CHECK(strstr(err.message, path) != NULL);
    CHECK_INT(0, rmdir(directory));
}

/* Nothing that mattered was sent, so nothing is unknown. */
TEST_LIMIT(faults_at_every_reply_of_the_log_in, 60)
{
    static const struct {
        const char *before, *half;
    } points[] = { { "", "+O" },
                   { "send +OK\\r\\n\n", "+OK\\r" },
                   { "send +OK\\r\\n+OK\\r\\n\n", "+PONG\\r" },
                   { "send +OK\\r\\n+OK\\r\\n+PONG\\r\\n\n", "*14\\r\\n$6\\r\\nserv" } };
    for (size_t point = 0; point < sizeof points / sizeof *points; point++) {
        for (size_t i = 0; i < wire_fault_count; i++) {
            struct wire wire;
            hf_error err = { 0 };
            char fault[300];
            test_note("%s, at reply %zu", wire_faults[i].name, point + 1);
            wire_fault_lines(fault, sizeof fault, &wire_faults[i], points[point].half);
            wire_serve(&wire, LOG_IN "%s%s", points[point].before, fault);
            const int64_t start = test_now_ns();
            CHECK_STATUS(HF_UNAVAILABLE, open_as_ann(&wire, wire_faults[i].slow ? 100 : 2000, &err), &err);
            if (wire_faults[i].slow)
                CHECK((test_now_ns() - start) / 1000000 < 100 + WIRE_SLACK_MS);
            wire_end(&wire);
        }
    }
}

TEST(the_connect_timeout_of_the_url)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, "accept\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\neof\n");
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, wire_open(&wire, "?connect_timeout=50", 10000, &err), &err);
    CHECK((test_now_ns() - start) / 1000000 < 50 + WIRE_SLACK_MS);
    wire_check_words(HF_UNAVAILABLE, &err);
    wire_end(&wire);
}

TEST(refusals_at_every_reply_of_the_log_in)
{
    static const char *const before[] = { "", "+OK\\r\\n", "+OK\\r\\n+OK\\r\\n" };
    for (size_t point = 0; point < 3; point++) {
        for (size_t i = 0; i < wire_refusal_count; i++) {
            struct wire wire;
            hf_error err = { 0 };
            test_note("%s, at reply %zu", wire_refusals[i].reply, point + 1);
            wire_serve(&wire, LOG_IN "send %s-%s\\r\\n\neof\n", before[point], wire_refusals[i].reply);
            CHECK_STATUS(wire_refusals[i].status, open_as_ann(&wire, 2000, &err), &err);
            /* What is said about AUTH without being understood is not repeated: it may contain the password. */
            CHECK((point == 0 && wire_refusals[i].status == HF_INTERNAL) ||
                  strstr(err.message, wire_refusals[i].words) != NULL);
            wire_end(&wire);
        }
    }
}

TEST(refusals_of_a_password)
{
    static const struct wire_refusal refusals[] = {
        { "WRONGPASS invalid username-password pair or user is disabled.", HF_DENIED, "password" },
        { "ERR invalid password", HF_DENIED, "password" },
        { "ERR AUTH <password> called without any password configured for the default user.", HF_DENIED, "password" },
        /* A server that lacks a command tells its arguments back: here the password is one. */
        { "ERR unknown command 'AUTH', with args beginning with: 'ann' '" SECRET "'", HF_UNSUPPORTED, "lacks" },
        { "ERR strange server: " SECRET, HF_INTERNAL, "server" },
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct wire wire;
        hf_error err = { 0 };
        test_note("%s", refusals[i].reply);
        wire_serve(&wire, LOG_IN "send -%s\\r\\n\neof\n", refusals[i].reply);
        CHECK_STATUS(refusals[i].status, open_as_ann(&wire, 2000, &err), &err);
        CHECK(strstr(err.message, refusals[i].words) != NULL);
        wire_end(&wire);
    }
}

/* What is left over is no answer to the next question: that connection is of no use. */
TEST(a_reply_too_many)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "accept\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\nsend +PONG\\r\\n:7\\r\\n\neof\n"
                      "hello\nacquire 1 30000 0\ngranted 41\nrelease 1\nsend :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    CHECK_INT(41, hf_token(lock));
    wire_release(&wire, lock, HF_OK);
}

/* --- a server that never comes to an end --- */

struct talk {
    int fd;
    bool logs_in; /* it answers the log-in, and begins behind that */
};

/* There is always something to read, and never a whole answer. */
static void *talk_on(void *argument)
{
    const struct talk *talk = argument;
    char request[500], more[20000];
    if (recv(talk->fd, request, sizeof request, 0) > 0 && talk->logs_in &&
        send(talk->fd, "+PONG\r\n", 7, MSG_NOSIGNAL) == 7 && recv(talk->fd, request, sizeof request, 0) <= 0) {
        close(talk->fd);
        return NULL;
    }
    send(talk->fd, "+", 1, MSG_NOSIGNAL);
    memset(more, 'a', sizeof more);
    while (send(talk->fd, more, sizeof more, MSG_NOSIGNAL) > 0 && test_now_ns() < test_deadline_ns())
        ;
    close(talk->fd);
    return NULL;
}

struct talker {
    int listener, port;
    bool logs_in;
};

static void *serve_talk(void *argument)
{
    const struct talker *server = argument;
    for (;;) {
        pthread_t thread;
        struct talk *talk = shared_new(sizeof *talk);
        talk->logs_in = server->logs_in;
        talk->fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (talk->fd < 0 || pthread_create(&thread, NULL, talk_on, talk) != 0)
            return NULL;
        pthread_detach(thread);
    }
}

static struct talker *start_talker(bool logs_in)
{
    struct talker *server = shared_new(sizeof *server);
    struct sockaddr_in here = { .sin_family = AF_INET };
    socklen_t size = sizeof here;
    pthread_t thread;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->logs_in = logs_in;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE_INT(0, bind(server->listener, (struct sockaddr *)&here, sizeof here));
    REQUIRE_INT(0, listen(server->listener, 32));
    REQUIRE_INT(0, getsockname(server->listener, (struct sockaddr *)&here, &size));
    server->port = ntohs(here.sin_port);
    REQUIRE_INT(0, pthread_create(&thread, NULL, serve_talk, server));
    return server;
}

static hf_status open_talker(hf_client **out, bool logs_in, hf_error *err)
{
    char url[60];
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = test_ms(500);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d?module=no", start_talker(logs_in)->port);
    return hf_open(out, url, &options, err);
}

TEST_LIMIT(a_log_in_that_is_answered_at_length_without_an_end_is_given_up, 30)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNAVAILABLE, open_talker(&client, false, &err), &err);
    CHECK(strstr(err.message, "in time") != NULL);
}

TEST_LIMIT(a_request_that_is_answered_at_length_without_an_end_is_given_up, 30)
{
    hf_client *client = NULL;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, open_talker(&client, true, &err), &err);
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, client, "job", NULL, &err), &err);
    hf_close(client);
}
