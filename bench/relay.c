/* SPDX-License-Identifier: MIT
 *
 * relay.c: servers that seem far away; see relay.h.
 */
#include "relay.h"

#include "compare.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAYS_MAX 128
#define CHUNK_MAX 16384

/* On its way. */
struct chunk {
    struct chunk *next;
    int64_t due_ns;
    size_t size;
    char bytes[];
};

/* One direction of a connection; the other is ways[index ^ 1]. */
struct way {
    int from, to; /* -1: unused */
    struct chunk *first, *last;
};

static struct way ways[WAYS_MAX];
static int64_t delay;

static int loopback_socket(struct sockaddr_in *address, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        die("no socket: %s", strerror(errno));
    *address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return fd;
}

static int listen_anywhere(int *port)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int fd = loopback_socket(&address, 0);

    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        die("cannot listen: %s", strerror(errno));
    *port = ntohs(address.sin_port);
    return fd;
}

static void free_chunks(struct way *way)
{
    while (way->first != NULL) {
        struct chunk *next = way->first->next;

        free(way->first);
        way->first = next;
    }
}

static void drop(int index)
{
    struct way *way = &ways[index & ~1];

    close(way[0].from);
    close(way[0].to);
    for (int i = 0; i < 2; i++) {
        way[i].from = way[i].to = -1;
        free_chunks(&way[i]);
    }
}

/* A server that is not there closes the connection instead of refusing it: a relay has accepted it by then. */
static void take_in(int listener, int server_port)
{
    struct sockaddr_in address;
    int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* cppcheck-suppress nullPointer */
    int server = loopback_socket(&address, server_port);
    int index = 0, on = 1;

    while (index < WAYS_MAX && ways[index].from >= 0)
        index += 2;
    if (index == WAYS_MAX)
        die("the relay has too many connections");
    if (client < 0) {
        close(server);
        return;
    }
    if (connect(server, (struct sockaddr *)&address, sizeof address) != 0) {
        close(client);
        close(server);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ways[index] = (struct way){ .from = client, .to = server };
    ways[index + 1] = (struct way){ .from = server, .to = client };
}

static void read_some(int index)
{
    struct way *way = &ways[index];
    struct chunk *chunk = malloc(sizeof *chunk + CHUNK_MAX);
    ssize_t size;

    if (chunk == NULL)
        die("no memory");
    size = recv(way->from, chunk->bytes, CHUNK_MAX, MSG_DONTWAIT);
    if (size <= 0) {
        free(chunk);
        if (size == 0 || (errno != EAGAIN && errno != EINTR))
            drop(index);
        return;
    }
    chunk->next = NULL;
    chunk->size = (size_t)size;
    chunk->due_ns = now_ns() + delay;
    if (way->first == NULL)
        way->first = chunk;
    else
        way->last->next = chunk;
    way->last = chunk;
}

/* Sends what is due. A peer that takes nothing any more loses its connection: nobody else shall wait for it. */
static void send_due(int index)
{
    struct way *way = &ways[index];

    while (way->first != NULL && way->first->due_ns <= now_ns()) {
        struct chunk *chunk = way->first;

        if (send(way->to, chunk->bytes, chunk->size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)chunk->size) {
            drop(index);
            return;
        }
        way->first = chunk->next;
        free(chunk);
    }
}

static int64_t first_due(void)
{
    int64_t due_ns = now_ns() + SECOND_NS;

    for (int i = 0; i < WAYS_MAX; i++)
        if (ways[i].first != NULL && ways[i].first->due_ns < due_ns)
            due_ns = ways[i].first->due_ns;
    return due_ns;
}

/* One turn: sleeps until something comes in or is due. */
static void turn(const int *listeners, const int *server_ports, int count)
{
    struct pollfd fds[RELAY_SERVERS + WAYS_MAX];
    int64_t left = first_due() - now_ns();
    struct timespec time = { .tv_sec = left > 0 ? left / SECOND_NS : 0, .tv_nsec = left > 0 ? left % SECOND_NS : 0 };

    for (int i = 0; i < count; i++)
        fds[i] = (struct pollfd){ .fd = listeners[i], .events = POLLIN };
    for (int i = 0; i < WAYS_MAX; i++)
        fds[count + i] = (struct pollfd){ .fd = ways[i].from, .events = POLLIN };
    if (ppoll(fds, (nfds_t)count + WAYS_MAX, &time, NULL) < 0 && errno != EINTR)
        die("poll: %s", strerror(errno));
    for (int i = 0; i < WAYS_MAX; i++) {
        if (fds[count + i].revents != 0 && ways[i].from == fds[count + i].fd)
            read_some(i);
        send_due(i);
    }
    for (int i = 0; i < count; i++)
        if (fds[i].revents != 0)
            take_in(listeners[i], server_ports[i]);
}

void relay_start(struct relay *relay, const int *server_ports, int count, int64_t delay_ns)
{
    int listeners[RELAY_SERVERS];

    for (int i = 0; i < count; i++)
        listeners[i] = listen_anywhere(&relay->port[i]);
    relay->pid = fork_child();
    if (relay->pid == 0) {
        prctl(PR_SET_TIMERSLACK, 1UL);
        delay = delay_ns;
        for (int i = 0; i < WAYS_MAX; i++)
            ways[i] = (struct way){ .from = -1, .to = -1 };
        for (;;) /* until it is killed, with its parent at the latest */
            turn(listeners, server_ports, count);
    }
    for (int i = 0; i < count; i++)
        close(listeners[i]);
}

void relay_stop(struct relay *relay)
{
    kill(relay->pid, SIGKILL);
    waitpid(relay->pid, NULL, 0);
}
