/* SPDX-License-Identifier: MIT
 *
 * silent_relay.c: see silent_relay.h.
 */
#include "silent_relay.h"
#include "test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS_MOST 64
#define LOOK_MS 5

struct pair {
    int side[2]; /* the client's, the server's; -1: free */
    bool subscribed, swallowed, delayed;
};

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void let_in(struct relay *relay, int listener, struct pair *pairs)
{
    struct sockaddr_in address = loopback(atomic_load(&relay->upstream));
    const int client = accept(listener, NULL, NULL);
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t place = 0;
    while (place < PAIRS_MOST && pairs[place].side[0] >= 0)
        place++;
    if (place == PAIRS_MOST || connect(server, (struct sockaddr *)&address, sizeof address) != 0) {
        close(client);
        close(server);
        return;
    }
    pairs[place] = (struct pair){ .side = { client, server }, .delayed = atomic_load(&relay->delay_new) };
    atomic_fetch_add(&relay->delayed, pairs[place].delayed);
}

static void carry(struct pair *pair, int from)
{
    char bytes[16384];
    const ssize_t got = read(pair->side[from], bytes, sizeof bytes);
    if (got <= 0 && !pair->swallowed) {
        close(pair->side[0]);
        close(pair->side[1]);
        pair->side[0] = pair->side[1] = -1;
        return;
    }
    if (got <= 0) { /* not even its end is passed on */
        close(pair->side[from]);
        pair->side[from] = -1;
        return;
    }
    /* Also SSUBSCRIBE, and LISTEN of PostgreSQL; the command is short and comes in one piece. */
    pair->subscribed =
        pair->subscribed ||
        (from == 0 && (memmem(bytes, (size_t)got, "SUBSCRIBE", 9) || memmem(bytes, (size_t)got, "LISTEN ", 7)));
    if (!pair->swallowed && write(pair->side[!from], bytes, (size_t)got) != got)
        shutdown(pair->side[!from], SHUT_RDWR);
}

static void mute(struct relay *relay, struct pair *pairs)
{
    for (size_t i = 0; i < PAIRS_MOST; i++) {
        if (pairs[i].side[0] < 0 || pairs[i].swallowed)
            continue;
        if (atomic_load(&relay->swallow_all) || (atomic_load(&relay->swallow_pushes) && pairs[i].subscribed)) {
            pairs[i].swallowed = true;
            atomic_fetch_add(&relay->swallowed, 1);
        }
    }
    atomic_store(&relay->swallow_all, false);
    atomic_store(&relay->swallow_pushes, false);
}

static bool is_delayed(const struct relay *relay, const struct pair *pair)
{
    return pair->delayed && atomic_load(&relay->delay_new);
}

struct start {
    struct relay *relay;
    int listener;
};

static void run(void *arg)
{
    const struct start *start = arg;
    struct pair pairs[PAIRS_MOST];
    for (size_t i = 0; i < PAIRS_MOST; i++)
        pairs[i] = (struct pair){ .side = { -1, -1 } };
    while (test_now_ns() < test_deadline_ns()) {
        struct pollfd fds[1 + 2 * PAIRS_MOST] = { { .fd = start->listener, .events = POLLIN } };
        for (size_t i = 0; i < 2 * PAIRS_MOST; i++)
            fds[1 + i] = (struct pollfd){ .fd = is_delayed(start->relay, &pairs[i / 2]) ? -1 : pairs[i / 2].side[i % 2],
                                          .events = POLLIN };
        poll(fds, sizeof fds / sizeof *fds, LOOK_MS);
        mute(start->relay, pairs);
        for (size_t i = 0; i < 2 * PAIRS_MOST; i++) {
            if (fds[1 + i].revents && pairs[i / 2].side[i % 2] == fds[1 + i].fd)
                carry(&pairs[i / 2], (int)(i % 2));
        }
        if (fds[0].revents)
            let_in(start->relay, start->listener, pairs);
    }
}

struct relay *relay_start(int upstream)
{
    struct relay *relay = shared_new(sizeof *relay);
    struct start start = { relay, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    REQUIRE(bind(start.listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(start.listener, 64) == 0);
    REQUIRE(getsockname(start.listener, (struct sockaddr *)&address, &length) == 0);
    relay->port = ntohs(address.sin_port);
    atomic_store(&relay->upstream, upstream);
    relay->pid = helper_start(run, &start);
    close(start.listener);
    return relay;
}

void relay_stop(struct relay *relay)
{
    helper_kill(relay->pid);
}
