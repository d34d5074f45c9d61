/* SPDX-License-Identifier: MIT
 *
 * late_relay.c: see late_relay.h. One thread carries everything; the mutex guards what is to be caught, the gates tell
 * how far it is.
 */
#include "late_relay.h"

#include "shared.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS_MOST 64
#define CHUNK 16384
#define HELD_MOST 65536

struct pair {
    int client, server; /* -1: closed */
    char *held;         /* what was caught and is not delivered; NULL: nothing */
    size_t used;
    bool unanswered; /* what was caught is delivered */
};

struct late_relay {
    pthread_t thread;
    int listener, bell;
    int port;
    struct sockaddr_in server;
    pthread_mutex_t mutex;
    char text[300]; /* "": nothing is to be caught */
    unsigned nth;
    _Atomic bool cut; /* the connection of what is caught */
    late_relay_answer_fn *_Atomic answer;
    struct gate connections, caught, delivered, refused, resets, ends;
    uint32_t to_catch, to_deliver; /* how often, so far */
    struct pair pairs[PAIRS_MOST];
};

static int connect_to(const struct sockaddr_in *address)
{
    const int one = 1;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Whoever is gone does not hear it: no failure. */
static void pass_on(int fd, const char *bytes, size_t length)
{
    for (size_t sent = 0; fd >= 0 && sent < length;) {
        const ssize_t step = send(fd, bytes + sent, length - sent, MSG_NOSIGNAL);
        if (step <= 0)
            return;
        sent += (size_t)step;
    }
}

static void greet(struct late_relay *relay)
{
    const int one = 1;
    const int client = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (size_t i = 0; i < PAIRS_MOST; i++) {
        struct pair *pair = &relay->pairs[i];
        if (pair->client < 0 && pair->server < 0 && !pair->held) {
            *pair = (struct pair){ .client = client, .server = connect_to(&relay->server) };
            gate_pass(&relay->connections);
            return;
        }
    }
    FAIL("more than %d connections", PAIRS_MOST);
    close(client);
}

static bool is_to_be_caught(struct late_relay *relay, const char *bytes, size_t length)
{
    pthread_mutex_lock(&relay->mutex);
    const bool match = *relay->text && memmem(bytes, length, relay->text, strlen(relay->text)) && --relay->nth == 0;
    if (match)
        relay->text[0] = 0;
    pthread_mutex_unlock(&relay->mutex);
    return match;
}

static void from_client(struct late_relay *relay, struct pair *pair)
{
    char bytes[CHUNK];
    const ssize_t got = recv(pair->client, bytes, sizeof bytes, 0);
    if (got <= 0) {
        gate_pass(got < 0 && errno == ECONNRESET ? &relay->resets : &relay->ends);
        shut(&pair->client);
        if (!pair->held && !pair->unanswered)
            shut(&pair->server);
        return;
    }
    const bool now = !pair->held && is_to_be_caught(relay, bytes, (size_t)got);
    if (now)
        pair->held = shared_new(HELD_MOST); /* for as long as the test */
    if (!pair->held) {
        pass_on(pair->server, bytes, (size_t)got);
        return;
    }
    REQUIRE(pair->used + (size_t)got <= HELD_MOST);
    memcpy(pair->held + pair->used, bytes, (size_t)got);
    pair->used += (size_t)got;
    if (now && relay->answer) {
        char answer[64];
        pass_on(pair->client, answer, relay->answer(answer, bytes, (size_t)got));
    }
    if (now && relay->cut)
        shut(&pair->client);
    if (now)
        gate_pass(&relay->caught);
}

static void end_delivery(struct late_relay *relay, struct pair *pair, bool refused)
{
    pair->unanswered = false;
    if (refused)
        gate_pass(&relay->refused);
    gate_pass(&relay->delivered);
}

/* The client is not told of the server's end. */
static void from_server(struct late_relay *relay, struct pair *pair)
{
    char bytes[CHUNK];
    const ssize_t got = recv(pair->server, bytes, sizeof bytes, 0);
    if (got > 0)
        pass_on(pair->client, bytes, (size_t)got);
    if (got <= 0 || (pair->unanswered && pair->client < 0))
        shut(&pair->server);
    if (pair->unanswered)
        end_delivery(relay, pair, got <= 0);
}

static void deliver(struct late_relay *relay)
{
    struct pair *pair = relay->pairs;
    while (pair < relay->pairs + PAIRS_MOST && !pair->held)
        pair++;
    REQUIRE(pair < relay->pairs + PAIRS_MOST);
    pass_on(pair->server, pair->held, pair->used);
    pair->held = NULL;
    pair->used = 0;
    pair->unanswered = true;
    if (pair->server < 0)
        end_delivery(relay, pair, true);
}

static void *carry(void *arg)
{
    struct late_relay *relay = arg;
    for (;;) {
        struct pollfd all[2 + 2 * PAIRS_MOST] = { { .fd = relay->listener, .events = POLLIN },
                                                  { .fd = relay->bell, .events = POLLIN } };
        for (size_t i = 0; i < PAIRS_MOST; i++) {
            all[2 + 2 * i] = (struct pollfd){ .fd = relay->pairs[i].client, .events = POLLIN };
            all[3 + 2 * i] = (struct pollfd){ .fd = relay->pairs[i].server, .events = POLLIN };
        }
        if (poll(all, 2 + 2 * PAIRS_MOST, -1) < 0 && errno != EINTR)
            return NULL;
        for (size_t i = 0; i < PAIRS_MOST; i++) {
            struct pair *pair = &relay->pairs[i];
            if (all[3 + 2 * i].revents && pair->server >= 0)
                from_server(relay, pair);
            if (all[2 + 2 * i].revents && pair->client >= 0)
                from_client(relay, pair);
        }
        if (all[0].revents)
            greet(relay);
        if (all[1].revents) {
            uint64_t rung;
            if (read(relay->bell, &rung, sizeof rung) == sizeof rung)
                deliver(relay);
        }
    }
}

struct late_relay *late_relay_start(const char *address, int port)
{
    struct late_relay *relay = shared_new(sizeof *relay);
    struct sockaddr_in here = { .sin_family = AF_INET };
    socklen_t size = sizeof here;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    relay->server = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    REQUIRE(inet_pton(AF_INET, address, &relay->server.sin_addr) == 1);
    relay->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    relay->bell = eventfd(0, EFD_CLOEXEC);
    REQUIRE(relay->listener >= 0 && relay->bell >= 0);
    REQUIRE(bind(relay->listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(relay->listener, 32) == 0 &&
            getsockname(relay->listener, (struct sockaddr *)&here, &size) == 0);
    relay->port = ntohs(here.sin_port);
    for (size_t i = 0; i < PAIRS_MOST; i++)
        relay->pairs[i].client = relay->pairs[i].server = -1;
    REQUIRE(pthread_mutex_init(&relay->mutex, NULL) == 0);
    REQUIRE(pthread_create(&relay->thread, NULL, carry, relay) == 0);
    return relay;
}

int late_relay_port(const struct late_relay *relay)
{
    return relay->port;
}

static void catch_next(struct late_relay *relay, const char *text, unsigned nth, bool cut, late_relay_answer_fn *answer)
{
    pthread_mutex_lock(&relay->mutex);
    REQUIRE(relay->text[0] == 0 && strlen(text) < sizeof relay->text);
    snprintf(relay->text, sizeof relay->text, "%s", text);
    relay->nth = nth;
    relay->cut = cut;
    relay->answer = answer;
    pthread_mutex_unlock(&relay->mutex);
    relay->to_catch++;
}

void late_relay_catch(struct late_relay *relay, const char *text, unsigned nth)
{
    catch_next(relay, text, nth, false, NULL);
}

void late_relay_cut(struct late_relay *relay, const char *text, unsigned nth)
{
    catch_next(relay, text, nth, true, NULL);
}

void late_relay_answer(struct late_relay *relay, const char *text, unsigned nth, late_relay_answer_fn *answer)
{
    catch_next(relay, text, nth, true, answer);
}

void late_relay_await(struct late_relay *relay)
{
    gate_await(&relay->caught, relay->to_catch);
}

void late_relay_deliver_if_open(struct late_relay *relay)
{
    const uint64_t ring = 1;
    late_relay_await(relay);
    REQUIRE(write(relay->bell, &ring, sizeof ring) == sizeof ring);
    gate_await(&relay->delivered, ++relay->to_deliver);
}

void late_relay_deliver(struct late_relay *relay)
{
    late_relay_deliver_if_open(relay);
    REQUIRE_INT(0, gate_count(&relay->refused));
}

uint32_t late_relay_connections(const struct late_relay *relay)
{
    return gate_count(&relay->connections);
}

uint32_t late_relay_resets(const struct late_relay *relay)
{
    return gate_count(&relay->resets);
}

uint32_t late_relay_ends(const struct late_relay *relay)
{
    return gate_count(&relay->ends);
}
