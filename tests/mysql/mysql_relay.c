/* SPDX-License-Identifier: MIT
 *
 * mysql_relay.c: see mysql_relay.h.
 */
#include "mysql_relay.h"

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINKS_MOST 64
#define ROOM 16384

struct link {
    struct mysql_relay *relay;
    pthread_t thread;
    int client, server; /* -1: has ended */
    char kept[ROOM];
    size_t kept_size;
};

struct mysql_relay {
    int listener, port, server_port;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t changed;
    char text[64]; /* "": nothing is to be caught */
    unsigned nth;
    struct link *caught;
    bool deliver, answered;
    unsigned resets, ends;
    struct link links[LINKS_MOST];
    size_t count;
};

static int dial(int port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* --- one connection --- */

/* With the mutex. */
static bool is_to_be_caught(struct mysql_relay *relay, const char *bytes, size_t size)
{
    if (!*relay->text || !memmem(bytes, size, relay->text, strlen(relay->text)) || --relay->nth > 0)
        return false;
    relay->text[0] = 0;
    return true;
}

static void end_client(struct link *link, bool reset)
{
    struct mysql_relay *relay = link->relay;
    pthread_mutex_lock(&relay->mutex);
    relay->resets += reset;
    relay->ends += !reset;
    pthread_cond_broadcast(&relay->changed);
    pthread_mutex_unlock(&relay->mutex);
    close(link->client);
    link->client = -1;
}

static void from_client(struct link *link)
{
    struct mysql_relay *relay = link->relay;
    char bytes[ROOM];
    const ssize_t size = recv(link->client, bytes, sizeof bytes, 0);
    if (size <= 0) {
        end_client(link, size < 0 && errno == ECONNRESET);
        return;
    }
    pthread_mutex_lock(&relay->mutex);
    if (relay->caught != link && is_to_be_caught(relay, bytes, (size_t)size)) {
        relay->caught = link;
        pthread_cond_broadcast(&relay->changed);
    }
    const bool kept = relay->caught == link;
    pthread_mutex_unlock(&relay->mutex);
    if (kept) {
        REQUIRE(link->kept_size + (size_t)size <= ROOM);
        memcpy(link->kept + link->kept_size, bytes, (size_t)size);
        link->kept_size += (size_t)size;
    } else if (link->server >= 0) {
        send(link->server, bytes, (size_t)size, MSG_NOSIGNAL);
    }
}

/* The client is not told of the server's end. */
static void from_server(struct link *link)
{
    char bytes[ROOM];
    const ssize_t size = recv(link->server, bytes, sizeof bytes, 0);
    if (size <= 0) {
        close(link->server);
        link->server = -1;
    } else {
        send(link->client, bytes, (size_t)size, MSG_NOSIGNAL);
    }
}

/* Its client has gone: what it had sent arrives now. */
static void arrive_late(struct link *link)
{
    struct mysql_relay *relay = link->relay;
    char bytes[ROOM];
    pthread_mutex_lock(&relay->mutex);
    while (!relay->deliver)
        pthread_cond_wait(&relay->changed, &relay->mutex);
    pthread_mutex_unlock(&relay->mutex);
    REQUIRE(send(link->server, link->kept, link->kept_size, MSG_NOSIGNAL) == (ssize_t)link->kept_size);
    CHECK(recv(link->server, bytes, sizeof bytes, 0) > 0);
    pthread_mutex_lock(&relay->mutex);
    relay->answered = true;
    relay->caught = NULL;
    pthread_cond_broadcast(&relay->changed);
    pthread_mutex_unlock(&relay->mutex);
}

static void *serve_link(void *arg)
{
    struct link *link = arg;
    while (link->client >= 0) {
        struct pollfd ends[2] = { { .fd = link->client, .events = POLLIN }, { .fd = link->server, .events = POLLIN } };
        if (poll(ends, 2, -1) < 0)
            continue;
        if (ends[1].revents)
            from_server(link);
        if (ends[0].revents)
            from_client(link);
    }
    if (link->kept_size > 0 && link->server >= 0)
        arrive_late(link);
    if (link->server >= 0)
        close(link->server);
    return NULL;
}

/* --- all of them --- */

/* Until the listener is shut down. */
static void *serve(void *arg)
{
    struct mysql_relay *relay = arg;
    for (int client; (client = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        REQUIRE(relay->count < LINKS_MOST);
        struct link *link = &relay->links[relay->count++];
        link->relay = relay;
        link->client = client;
        link->server = dial(relay->server_port);
        REQUIRE_INT(0, pthread_create(&link->thread, NULL, serve_link, link));
    }
    return NULL;
}

struct mysql_relay *mysql_relay_start(const struct mysql_server *server)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof address;
    struct mysql_relay *relay = calloc(1, sizeof *relay);
    if (!relay) {
        FAIL("no memory");
        test_abort();
    }
    pthread_mutex_init(&relay->mutex, NULL);
    pthread_cond_init(&relay->changed, NULL);
    relay->server_port = server->port;
    relay->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(relay->listener >= 0 && bind(relay->listener, (struct sockaddr *)&address, size) == 0);
    REQUIRE_INT(0, listen(relay->listener, 16));
    REQUIRE_INT(0, getsockname(relay->listener, (struct sockaddr *)&address, &size));
    relay->port = ntohs(address.sin_port);
    REQUIRE_INT(0, pthread_create(&relay->thread, NULL, serve, relay));
    return relay;
}

int mysql_relay_port(const struct mysql_relay *relay)
{
    return relay->port;
}

void mysql_relay_catch(struct mysql_relay *relay, const char *text, unsigned nth)
{
    pthread_mutex_lock(&relay->mutex);
    snprintf(relay->text, sizeof relay->text, "%s", text);
    relay->nth = nth;
    relay->deliver = relay->answered = false;
    pthread_mutex_unlock(&relay->mutex);
}

bool mysql_relay_has_caught(struct mysql_relay *relay)
{
    pthread_mutex_lock(&relay->mutex);
    const bool caught = relay->caught != NULL;
    pthread_mutex_unlock(&relay->mutex);
    return caught;
}

/* The test's limit ends it. */
void mysql_relay_deliver(struct mysql_relay *relay)
{
    pthread_mutex_lock(&relay->mutex);
    relay->deliver = true;
    pthread_cond_broadcast(&relay->changed);
    while (!relay->answered)
        pthread_cond_wait(&relay->changed, &relay->mutex);
    pthread_mutex_unlock(&relay->mutex);
}

unsigned mysql_relay_resets(struct mysql_relay *relay)
{
    pthread_mutex_lock(&relay->mutex);
    const unsigned resets = relay->resets;
    pthread_mutex_unlock(&relay->mutex);
    return resets;
}

unsigned mysql_relay_ends(struct mysql_relay *relay)
{
    pthread_mutex_lock(&relay->mutex);
    const unsigned ends = relay->ends;
    pthread_mutex_unlock(&relay->mutex);
    return ends;
}

void mysql_relay_stop(struct mysql_relay *relay)
{
    shutdown(relay->listener, SHUT_RDWR);
    REQUIRE_INT(0, pthread_join(relay->thread, NULL));
    for (size_t i = 0; i < relay->count; i++)
        REQUIRE_INT(0, pthread_join(relay->links[i].thread, NULL));
    close(relay->listener);
    free(relay);
}
