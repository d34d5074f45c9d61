/* SPDX-License-Identifier: MIT
 *
 * holdback.c: see holdback.h.
 */
#include "holdback.h"

#include "test.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINES 60
#define KEPT_MOST 65536
#define LOOK_MS 2 /* how often the relay looks whether it is to deliver */

/* One connection. */
struct line {
    int client, server; /* -1: none */
};

struct state {
    struct holdback *relay;
    struct line lines[LINES];
    struct line *held; /* NULL: none */
    bool delivered;    /* … and what it sent was sent on */
    char kept[KEPT_MOST];
    size_t kept_length;
};

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void take_call(struct state *state)
{
    const struct sockaddr_in address = loopback(state->relay->server_port);
    const int yes = 1;
    struct line *line = state->lines;
    while (line < state->lines + LINES && (line->client >= 0 || line->server >= 0))
        line++;
    REQUIRE(line < state->lines + LINES);
    *line = (struct line){ .client = accept4(state->relay->listener, NULL, NULL, SOCK_CLOEXEC),
                           .server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    REQUIRE(line->client >= 0 && line->server >= 0);
    atomic_fetch_add(&state->relay->calls, 1);
    setsockopt(line->client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(line->server, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(line->server, (const struct sockaddr *)&address, sizeof address) != 0) {
        close_one(&line->client);
        close_one(&line->server);
    }
}

static void end_held(struct state *state)
{
    state->held = NULL;
    state->delivered = false;
    gate_pass(&state->relay->done);
}

static void hear_client(struct state *state, struct line *line)
{
    char bytes[KEPT_MOST];
    const ssize_t length = recv(line->client, bytes, sizeof bytes, 0);
    const char *text = state->relay->text;
    if (length > 0 && !state->held && atomic_load(&state->relay->armed) &&
        memmem(bytes, (size_t)length, text, strlen(text))) {
        atomic_store(&state->relay->armed, false);
        state->held = line;
        state->kept_length = 0;
    }
    const bool held = line == state->held && !state->delivered;
    if (length <= 0) {
        close_one(&line->client);
        if (!held)
            close_one(&line->server);
    } else if (held) {
        REQUIRE(state->kept_length + (size_t)length <= sizeof state->kept);
        memcpy(state->kept + state->kept_length, bytes, (size_t)length);
        state->kept_length += (size_t)length;
        if (gate_count(&state->relay->kept) == gate_count(&state->relay->done))
            gate_pass(&state->relay->kept);
    } else if (send(line->server, bytes, (size_t)length, MSG_NOSIGNAL) < 0) {
        close_one(&line->client);
        close_one(&line->server);
    }
    if (line == state->held && state->delivered && line->server < 0)
        end_held(state);
}

static void hear_server(struct state *state, struct line *line)
{
    char bytes[KEPT_MOST];
    const ssize_t length = recv(line->server, bytes, sizeof bytes, 0);
    if (length <= 0) {
        close_one(&line->server);
        if (line != state->held || state->delivered)
            close_one(&line->client);
    } else if (line->client >= 0) {
        (void)!send(line->client, bytes, (size_t)length, MSG_NOSIGNAL);
    }
    if (line == state->held && state->delivered)
        end_held(state);
}

static void send_kept(struct state *state)
{
    const struct line *line = state->held;
    atomic_store(&state->relay->deliver, false);
    state->delivered = true;
    if (line->server < 0 || send(line->server, state->kept, state->kept_length, MSG_NOSIGNAL) < 0)
        end_held(state); /* the server does not listen any more */
}

static void serve(void *arg)
{
    static struct state state;
    state.relay = arg;
    for (int i = 0; i < LINES; i++)
        state.lines[i] = (struct line){ -1, -1 };
    for (;;) {
        struct pollfd fds[1 + 2 * LINES] = { { .fd = state.relay->listener, .events = POLLIN } };
        for (int i = 0; i < LINES; i++) {
            fds[1 + 2 * i] = (struct pollfd){ .fd = state.lines[i].client, .events = POLLIN };
            fds[2 + 2 * i] = (struct pollfd){ .fd = state.lines[i].server, .events = POLLIN };
        }
        poll(fds, 1 + 2 * LINES, LOOK_MS);
        for (int i = 0; i < LINES; i++) {
            if (fds[1 + 2 * i].revents && state.lines[i].client >= 0)
                hear_client(&state, &state.lines[i]);
            if (fds[2 + 2 * i].revents && state.lines[i].server >= 0)
                hear_server(&state, &state.lines[i]);
        }
        if (fds[0].revents)
            take_call(&state);
        if (state.held && !state.delivered && atomic_load(&state.relay->deliver))
            send_kept(&state);
    }
}

struct holdback *holdback_open(int server_port)
{
    struct holdback *relay = shared_new(sizeof *relay);
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    relay->server_port = server_port;
    relay->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(relay->listener >= 0);
    REQUIRE_INT(0, bind(relay->listener, (const struct sockaddr *)&address, size));
    REQUIRE_INT(0, listen(relay->listener, LINES));
    REQUIRE_INT(0, getsockname(relay->listener, (struct sockaddr *)&address, &size));
    relay->port = ntohs(address.sin_port);
    relay->pid = helper_start(serve, relay);
    return relay;
}

void holdback_close(const struct holdback *relay)
{
    helper_kill(relay->pid);
    close(relay->listener);
}

void holdback_arm(struct holdback *relay, const char *text)
{
    snprintf(relay->text, sizeof relay->text, "%s", text);
    atomic_store(&relay->armed, true);
}

void holdback_await(struct holdback *relay)
{
    gate_await(&relay->kept, gate_count(&relay->done) + 1);
}

void holdback_deliver(struct holdback *relay)
{
    const uint32_t before = gate_count(&relay->done);
    atomic_store(&relay->deliver, true);
    gate_await(&relay->done, before + 1);
}
