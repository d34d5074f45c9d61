/* SPDX-License-Identifier: MIT
 *
 * zookeeper_valve.c: a process between clients and a server, which loses the answers that it is told to lose; see
 * zookeeper_support.h.
 */
#include "zookeeper_support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINES 40
#define NUMBER_AT 4 /* of an answer: which request it is for */

/* One connection. */
struct line {
    int client, server; /* -1: none */
    bool lose;          /* what the server says next */
    unsigned char header[12];
    size_t header_length; /* of the request that is passing */
    size_t to_skip;       /* of its body */
};

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

static void hang_up(struct line *line)
{
    close(line->client);
    close(line->server);
    line->client = line->server = -1;
}

static void answer_call(struct line *lines, const struct valve *valve)
{
    const struct sockaddr_in address = loopback(valve->server_port);
    struct sockaddr_in caller;
    socklen_t size = sizeof caller;
    const int yes = 1;
    struct line *line = lines;
    while (line < lines + LINES && line->client >= 0)
        line++;
    REQUIRE(line < lines + LINES);
    *line = (struct line){ .client = accept4(valve->listener, (struct sockaddr *)&caller, &size, SOCK_CLOEXEC),
                           .server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    REQUIRE(line->client >= 0 && line->server >= 0);
    setsockopt(line->client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(line->server, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(line->server, (const struct sockaddr *)&address, sizeof address) != 0)
        hang_up(line);
}

static uint32_t number_at(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Requests are a length, a number and a kind, and arrive in pieces. True if one of this kind begins. */
static bool has_request(struct valve *valve, struct line *line, const unsigned char *bytes, size_t length,
                        uint32_t wanted)
{
    bool found = false;
    for (size_t i = 0; i < length; i++) {
        if (line->to_skip > 0) {
            line->to_skip--;
            continue;
        }
        line->header[line->header_length++] = bytes[i];
        if (line->header_length < sizeof line->header)
            continue;
        const uint32_t kind = number_at(line->header + 8);
        found = found || kind == wanted;
        if (kind < VALVE_KINDS)
            atomic_fetch_add(&valve->passed[kind], 1);
        line->to_skip = number_at(line->header) - 8;
        line->header_length = 0;
    }
    return found;
}

static void pass_on(struct valve *valve, struct line *line, bool to_server)
{
    unsigned char bytes[65536];
    const ssize_t length = recv(to_server ? line->client : line->server, bytes, sizeof bytes, 0);
    const int wanted = atomic_load(&valve->lose);
    if (!to_server)
        pause_ms((uint32_t)atomic_load(&valve->delay_ms));
    const bool found = to_server && length > 0 && has_request(valve, line, bytes, (size_t)length, (uint32_t)wanted);
    if (found && wanted) {
        line->lose = true;
        atomic_store(&valve->lose, 0);
    }
    const bool spoilt = length > 0 && line->lose && !to_server;
    if (spoilt) {
        atomic_fetch_add(&valve->lost, 1);
        bytes[NUMBER_AT] ^= 0x40;
        line->lose = false;
    }
    const bool swallowed = spoilt && !atomic_load(&valve->garbles); /* it is done, and nobody hears of it */
    const int to = to_server ? line->server : line->client;
    if (swallowed || length <= 0 || send(to, bytes, (size_t)length, MSG_NOSIGNAL) < 0)
        hang_up(line);
}

static void serve_lines(void *arg)
{
    struct valve *valve = arg;
    struct line lines[LINES];
    for (int i = 0; i < LINES; i++)
        lines[i].client = lines[i].server = -1;
    for (;;) {
        struct pollfd fds[1 + 2 * LINES] = { { .fd = valve->listener, .events = POLLIN } };
        for (int i = 0; i < LINES; i++) {
            fds[1 + 2 * i] = (struct pollfd){ .fd = lines[i].client, .events = POLLIN };
            fds[2 + 2 * i] = (struct pollfd){ .fd = lines[i].server, .events = POLLIN };
        }
        poll(fds, 1 + 2 * LINES, -1);
        for (int i = 0; i < LINES; i++) {
            if (fds[1 + 2 * i].revents && lines[i].client >= 0)
                pass_on(valve, &lines[i], true);
            if (fds[2 + 2 * i].revents && lines[i].server >= 0)
                pass_on(valve, &lines[i], false);
        }
        if (fds[0].revents)
            answer_call(lines, valve);
    }
}

struct valve *valve_open(const struct zookeeper_server *server)
{
    struct valve *valve = shared_new(sizeof *valve);
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    valve->server_port = server->port;
    valve->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(valve->listener >= 0);
    REQUIRE_INT(0, bind(valve->listener, (const struct sockaddr *)&address, size));
    REQUIRE_INT(0, listen(valve->listener, LINES));
    REQUIRE_INT(0, getsockname(valve->listener, (struct sockaddr *)&address, &size));
    snprintf(valve->url, sizeof valve->url, "zookeeper://127.0.0.1:%d", ntohs(address.sin_port));
    valve->pid = helper_start(serve_lines, valve);
    return valve;
}
