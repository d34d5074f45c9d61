/* SPDX-License-Identifier: MIT
 *
 * consul_support.c: see consul_support.h.
 */
#include "consul_support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct consul_server *start_store(const char *settings)
{
    struct consul_server *server = consul_server_start(settings);
    use_url(server->url);
    return server;
}

void await_keys(struct consul_server *server, const char *prefix, int count)
{
    while (consul_server_keys(server, prefix) != count)
        await_a_moment();
}

/* --- the meddler --- */

#define REQUEST_MOST 60000
#define DELAY_MS 500

struct meddler {
    int listener, server_port;
    char url[60];
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all below */
    unsigned count, number;
    unsigned forgets;
    enum meddling what;
    char kept[REQUEST_MOST];
    size_t kept_length;
};

struct pair {
    struct meddler *meddler;
    int client, server;
    enum meddling what; /* is to be done to the next answer */
};

static int connect_to(int port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The engine sends a request in one piece. */
static enum meddling judge(struct meddler *meddler, const char *request, size_t length)
{
    enum meddling what = MEDDLE_NOT;
    if (length < 11 || memcmp(request, "PUT /v1/txn", 11) != 0)
        return MEDDLE_NOT;
    pthread_mutex_lock(&meddler->mutex);
    if (++meddler->count == meddler->number) {
        what = meddler->what;
        memcpy(meddler->kept, request, length);
        meddler->kept_length = length;
    }
    pthread_mutex_unlock(&meddler->mutex);
    return what;
}

static bool send_all(int fd, const char *bytes, size_t length)
{
    return send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length;
}

/* What becomes of an answer. False: this connection is at its end. */
static bool answer(const struct pair *pair, const char *bytes, size_t length)
{
    static const char garbage[] = "SSH-2.0-OpenSSH_9.2\r\n\r\n";
    static const char nonsense[] = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[1, \"x\"]\n";
    bool sent = true;
    switch (pair->what) {
    case MEDDLE_LOSE_REPLY:
        return false;
    case MEDDLE_HALF:
        return send_all(pair->client, bytes, length / 2) && false;
    case MEDDLE_GARBAGE:
        return send_all(pair->client, garbage, strlen(garbage));
    case MEDDLE_NONSENSE:
        return send_all(pair->client, nonsense, strlen(nonsense));
    case MEDDLE_DRIBBLE:
        for (size_t i = 0; i < length && sent; i++)
            sent = send_all(pair->client, bytes + i, 1);
        return sent;
    case MEDDLE_DELAY:
        pause_ms(DELAY_MS);
        return send_all(pair->client, bytes, length);
    case MEDDLE_NOT:
    case MEDDLE_KEEP:
        break;
    }
    return send_all(pair->client, bytes, length);
}

static bool is_forgotten(struct meddler *meddler, const char *request, size_t length)
{
    static const char renewal[] = "PUT /v1/session/renew/";
    if (length < strlen(renewal) || memcmp(request, renewal, strlen(renewal)) != 0)
        return false;
    pthread_mutex_lock(&meddler->mutex);
    const bool forgotten = meddler->forgets > 0;
    meddler->forgets -= forgotten;
    pthread_mutex_unlock(&meddler->mutex);
    return forgotten;
}

/* False: this connection is at its end. */
static bool pass_on(struct pair *pair, bool from_client)
{
    static const char unknown[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 20\r\n\r\nSession id not found";
    char buffer[REQUEST_MOST];
    const ssize_t got = recv(from_client ? pair->client : pair->server, buffer, sizeof buffer, 0);
    if (got <= 0)
        return false;
    if (!from_client)
        return answer(pair, buffer, (size_t)got);
    if (is_forgotten(pair->meddler, buffer, (size_t)got))
        return send_all(pair->client, unknown, strlen(unknown));
    pair->what = judge(pair->meddler, buffer, (size_t)got);
    return pair->what != MEDDLE_KEEP && send_all(pair->server, buffer, (size_t)got);
}

static void *mediate(void *arg)
{
    struct pair *pair = arg;
    struct pollfd fds[2] = { { .fd = pair->client, .events = POLLIN }, { .fd = pair->server, .events = POLLIN } };
    bool open = true;
    while (open && poll(fds, 2, -1) > 0) {
        for (int i = 0; i < 2 && open; i++)
            open = !fds[i].revents || pass_on(pair, i == 0);
    }
    close(pair->client);
    close(pair->server);
    free(pair);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct meddler *meddler = arg;
    for (;;) {
        struct pair *pair = calloc(1, sizeof *pair);
        pthread_t thread;
        REQUIRE(pair != NULL);
        pair->meddler = meddler;
        pair->client = accept(meddler->listener, NULL, NULL);
        pair->server = connect_to(meddler->server_port);
        if (pair->client < 0 || pair->server < 0 || pthread_create(&thread, NULL, mediate, pair) != 0) {
            close(pair->client);
            close(pair->server);
            free(pair);
            continue;
        }
        pthread_detach(thread);
    }
    return NULL;
}

struct meddler *meddler_start(const struct consul_server *server)
{
    struct meddler *meddler = calloc(1, sizeof *meddler);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof address;
    REQUIRE(meddler != NULL);
    pthread_mutex_init(&meddler->mutex, NULL);
    meddler->server_port = server->port;
    meddler->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(meddler->listener >= 0);
    REQUIRE_INT(0, bind(meddler->listener, (const struct sockaddr *)&address, sizeof address));
    REQUIRE_INT(0, listen(meddler->listener, 100));
    REQUIRE_INT(0, getsockname(meddler->listener, (struct sockaddr *)&address, &length));
    snprintf(meddler->url, sizeof meddler->url, "consul://127.0.0.1:%d", ntohs(address.sin_port));
    REQUIRE_INT(0, pthread_create(&meddler->thread, NULL, accept_all, meddler));
    return meddler;
}

const char *meddler_url(const struct meddler *meddler)
{
    return meddler->url;
}

void meddler_expect(struct meddler *meddler, unsigned number, enum meddling what)
{
    pthread_mutex_lock(&meddler->mutex);
    meddler->count = 0;
    meddler->number = number;
    meddler->what = what;
    pthread_mutex_unlock(&meddler->mutex);
}

unsigned meddler_count(struct meddler *meddler)
{
    pthread_mutex_lock(&meddler->mutex);
    const unsigned count = meddler->count;
    pthread_mutex_unlock(&meddler->mutex);
    return count;
}

void meddler_forget(struct meddler *meddler, unsigned renewals)
{
    pthread_mutex_lock(&meddler->mutex);
    meddler->forgets = renewals;
    pthread_mutex_unlock(&meddler->mutex);
}

unsigned meddler_forgets(struct meddler *meddler)
{
    pthread_mutex_lock(&meddler->mutex);
    const unsigned forgets = meddler->forgets;
    pthread_mutex_unlock(&meddler->mutex);
    return forgets;
}

int meddler_deliver(struct meddler *meddler)
{
    char answer[4000] = "";
    int status = 0;
    const int fd = connect_to(meddler->server_port);
    REQUIRE(fd >= 0);
    pthread_mutex_lock(&meddler->mutex);
    REQUIRE(meddler->kept_length > 0);
    REQUIRE_INT(meddler->kept_length, send(fd, meddler->kept, meddler->kept_length, MSG_NOSIGNAL));
    pthread_mutex_unlock(&meddler->mutex);
    REQUIRE(recv(fd, answer, sizeof answer - 1, 0) > 0);
    close(fd);
    REQUIRE_INT(1, sscanf(answer, "HTTP/1.1 %d", &status));
    return status;
}
