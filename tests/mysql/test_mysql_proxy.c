/* SPDX-License-Identifier: MIT
 *
 * test_mysql_proxy.c: something between client and server. It may have sessions of its own, as ProxySQL and MaxScale
 * do, and greet with a number that is not the session's: locks and bells belong to sessions, so it is refused, unless
 * the user vouches for it. Or it loses the server's answer to a statement that was done. Or it is hostile, and asks for
 * a file or a password.
 */
#include "mysql_support.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER 5 /* of a packet, and the protocol's version */
#define CONNECTIONS_MOST 32

struct proxy {
    int listener, port, server_port;
    bool forges;         /* the number of the session */
    _Atomic int answers; /* of the server that are passed on before one is lost; negative: all of them */
    _Atomic uint32_t lost;
    const char *demand; /* what a hostile one says in the place of the next answer; NULL: nothing */
    size_t demand_size;
    _Atomic int passed_on; /* so many requests of clients are passed on before */
    char given[4096];      /* what the client gave it */
    struct gate satisfied;
    pthread_t thread, connections[CONNECTIONS_MOST];
    size_t count;
};

static int connect_to(int port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* The greeting of the server, with another number of the session behind the server's version. */
static void pass_greeting(const struct proxy *proxy, int from, int to)
{
    unsigned char text[500] = { 0 };
    const ssize_t size = recv(from, text, sizeof text - 1, 0);
    REQUIRE(size > 20);
    const size_t number = HEADER + strlen((char *)text + HEADER) + 1;
    text[number + 1] ^= proxy->forges ? 0x55 : 0;
    send(to, text, (size_t)size, MSG_NOSIGNAL);
}

static bool pass_on(int from, int to)
{
    char text[4096];
    const ssize_t size = recv(from, text, sizeof text, 0);
    return size > 0 && send(to, text, (size_t)size, MSG_NOSIGNAL) == size;
}

static bool pass_answer(struct proxy *proxy, int from, int to)
{
    if (atomic_load(&proxy->answers) >= 0 && atomic_fetch_sub(&proxy->answers, 1) == 0) {
        atomic_fetch_add(&proxy->lost, 1);
        return false;
    }
    return pass_on(from, to);
}

/* All that comes until the client ends it. */
static void demand(struct proxy *proxy, int client)
{
    size_t used = 0;
    send(client, proxy->demand, proxy->demand_size, MSG_NOSIGNAL);
    for (ssize_t size = 1; size > 0 && used < sizeof proxy->given; used += (size_t)(size > 0 ? size : 0))
        size = recv(client, proxy->given + used, sizeof proxy->given - used, 0);
    gate_pass(&proxy->satisfied);
}

struct link {
    struct proxy *proxy;
    int client;
};

static void *serve_one(void *arg)
{
    struct link *link = arg;
    const int server = connect_to(link->proxy->server_port);
    struct pollfd ends[2] = { { .fd = link->client, .events = POLLIN }, { .fd = server, .events = POLLIN } };
    bool open = true;
    pass_greeting(link->proxy, server, link->client);
    while (open && poll(ends, 2, -1) > 0) {
        if (ends[0].revents && link->proxy->demand && atomic_fetch_sub(&link->proxy->passed_on, 1) == 0) {
            char request[4096];
            recv(link->client, request, sizeof request, 0);
            demand(link->proxy, link->client);
            break;
        }
        open = (!ends[0].revents || pass_on(link->client, server)) &&
               (!ends[1].revents || pass_answer(link->proxy, server, link->client));
    }
    close(link->client);
    close(server);
    free(link);
    return NULL;
}

/* Until the listener is shut down. */
static void *serve(void *arg)
{
    struct proxy *proxy = arg;
    for (int client; (client = accept(proxy->listener, NULL, NULL)) >= 0;) {
        struct link *link = malloc(sizeof *link);
        if (!link || proxy->count >= CONNECTIONS_MOST) {
            FAIL("too many connections");
            test_abort();
        }
        *link = (struct link){ proxy, client };
        REQUIRE_INT(0, pthread_create(&proxy->connections[proxy->count++], NULL, serve_one, link));
    }
    return NULL;
}

static struct proxy *proxy_start(const struct mysql_server *server, bool forges)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof address;
    struct proxy *proxy = calloc(1, sizeof *proxy);
    if (!proxy) {
        FAIL("no memory");
        test_abort();
    }
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    proxy->server_port = server->port;
    proxy->forges = forges;
    atomic_store(&proxy->answers, -1);
    REQUIRE(proxy->listener >= 0 && bind(proxy->listener, (struct sockaddr *)&address, size) == 0);
    REQUIRE_INT(0, listen(proxy->listener, 16));
    REQUIRE_INT(0, getsockname(proxy->listener, (struct sockaddr *)&address, &size));
    proxy->port = ntohs(address.sin_port);
    REQUIRE_INT(0, pthread_create(&proxy->thread, NULL, serve, proxy));
    return proxy;
}

/* When all of its clients have gone. */
static void proxy_stop(struct proxy *proxy)
{
    shutdown(proxy->listener, SHUT_RDWR);
    REQUIRE_INT(0, pthread_join(proxy->thread, NULL));
    for (size_t i = 0; i < proxy->count; i++)
        REQUIRE_INT(0, pthread_join(proxy->connections[i], NULL));
    close(proxy->listener);
    free(proxy);
}

/* -------------------------------------------------------------------------------------------- sessions of its own */

TEST_LIMIT(a_proxy_with_sessions_of_its_own_is_refused, 60)
{
    struct proxy *proxy = proxy_start(start_store("lease", ""), true);
    check_open_at(HF_UNSUPPORTED, "proxy", "mysql://root@127.0.0.1:%d/app", proxy->port);
    check_open_at(HF_UNSUPPORTED, "pooler=session", "mysql://root@127.0.0.1:%d/app?strategy=get-lock", proxy->port);
    check_open_at(HF_OK, "", "mysql://root@127.0.0.1:%d/app?strategy=get-lock&pooler=session", proxy->port);
    proxy_stop(proxy);
}

/* -------------------------------------------------------------------------------------------------------- hostile */

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* "Switch to this plugin": the answer to who wants to get in. */
TEST_LIMIT(a_password_is_not_given_in_clear, 60)
{
    static const char clear[] = "\x16\0\0\2\xfe"
                                "mysql_clear_password";
    char url[200];
    hf_client *client = NULL;
    hf_error err = { 0 };
    struct proxy *proxy = proxy_start(start_store("lease", ""), false);
    proxy->demand = clear;
    proxy->demand_size = sizeof clear; /* with the 0 behind it */
    snprintf(url, sizeof url, "mysql://guest:open-sesame@127.0.0.1:%d/app", proxy->port);
    CHECK(hf_open(&client, url, NULL, &err) != HF_OK);
    gate_await(&proxy->satisfied, 1);
    CHECK(memmem(proxy->given, sizeof proxy->given, "sesame", 6) == NULL);
    proxy_stop(proxy);
}

/* "Send me this file": the answer to a statement. The user's own option file allows it, for other programs. */
TEST_LIMIT(a_file_is_not_given_to_a_server_that_asks, 60)
{
    char packet[300] = "", url[500], options[250];
    struct mysql_server *server = start_store("lease", "");
    struct proxy *proxy = proxy_start(server, false);
    hf_client *client = NULL;
    snprintf(options, sizeof options, "%s/options", server->directory);
    write_file(options, "[client]\nlocal-infile=1\n");
    snprintf(packet + 5, sizeof packet - 5, "%s/private", server->directory);
    write_file(packet + 5, "open sesame");
    packet[0] = (char)(1 + strlen(packet + 5));
    packet[3] = 1;
    packet[4] = '\xfb';
    proxy->demand_size = 5 + strlen(packet + 5);
    proxy->demand = packet;
    atomic_store(&proxy->passed_on, 1); /* who it is */
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?default-file=%s", proxy->port, options);
    CHECK(hf_open(&client, url, NULL, NULL) != HF_OK);
    gate_await(&proxy->satisfied, 1);
    CHECK(memmem(proxy->given, sizeof proxy->given, "sesame", 6) == NULL);
    proxy_stop(proxy);
}

/* ------------------------------------------------------------------------------------------ answers that get lost */

/* Each of the answers to acquire and release in turn. Whatever the server has done: a try is not told that it is held,
 * a wait finds it, and in the end nobody has it. */
static void check_lost_answers(struct proxy *proxy, hf_client *other, const char *strategy)
{
    static char url[200];
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 20000;
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?strategy=%s", proxy->port, strategy);
    store_url = url;
    for (int answers = 0; answers < 4; answers++) {
        hf_client *client = open_client();
        hf_lock *lock = NULL;
        must_release(must_acquire(client, strategy, &options)); /* statements are prepared, the row is there */
        const uint32_t lost = atomic_load(&proxy->lost);
        atomic_store(&proxy->answers, answers);
        const hf_status tried = hf_try_acquire(&lock, client, strategy, &options, NULL);
        CHECK(tried == HF_OK || tried == HF_UNKNOWN || tried == HF_UNAVAILABLE);
        CHECK((tried == HF_OK) == (lock != NULL));
        hf_release(lock, NULL);
        lock = must_acquire(client, strategy, &options);
        check_busy(other, strategy);
        const hf_status released = hf_release(lock, NULL);
        CHECK(released == HF_OK || released == HF_LOST || released == HF_UNKNOWN || released == HF_UNAVAILABLE);
        check_becomes_free(other, strategy);
        atomic_store(&proxy->answers, -1);
        CHECK_INT(lost + 1, atomic_load(&proxy->lost)); /* or nothing was tried */
        hf_close(client);
    }
}

TEST_LIMIT(answers_that_are_lost, 90)
{
    struct mysql_server *server = start_store("lease", "");
    struct proxy *proxies[STRATEGIES];
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_client *other = open_client();
        proxies[i] = proxy_start(server, false);
        check_lost_answers(proxies[i], other, strategy_names[i]);
        hf_close(other);
        proxy_stop(proxies[i]);
    }
}

/* -------------------------------------------------------------------------------------------- answers to the keeper */

/* The server has ended the session behind the proxy, which says so when it is pinged, and stays connected. */
TEST_LIMIT(a_ping_that_is_answered_with_an_error_is_a_loss, 60)
{
    static const char killed[] = "\x1e\0\0\1\xff\x87\7#70100Connection was killed";
    char url[200];
    struct loss loss = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    struct proxy *proxy = proxy_start(start_store("lease", ""), false);
    proxy->demand = killed;
    proxy->demand_size = sizeof killed - 1;
    atomic_store(&proxy->passed_on, 1000);
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?strategy=get-lock", proxy->port);
    use_url(url);
    hf_client *client = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    atomic_store(&proxy->passed_on, 0);
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_await(&proxy->satisfied, 1);
    hf_close(client);
    proxy_stop(proxy);
}
