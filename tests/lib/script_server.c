/* SPDX-License-Identifier: MIT
 *
 * script_server.c: runs a script against whoever connects; see script_server.h.
 */
#include "script_server.h"

#include "script_parse.h"
#include "shared.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTIONS_MOST 16
#define BUFFER_SIZE 65536
#define GROUP_SIZE 128

struct connection {
    int fd; /* -1: none, or cut */
    char name[SCRIPT_NAME_MOST];
    char received[BUFFER_SIZE]; /* and not yet expected */
    size_t used;
    bool closed; /* the client has */
    bool torn;   /* … by a reset */
};

/* What the bytes of \1 and so on are, once an expect has met them. */
struct group {
    char bytes[GROUP_SIZE];
    size_t length;
};

struct script_server {
    pthread_t thread;
    int listener;
    int port; /* 0: a Unix socket */
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    _Atomic unsigned patience_ms;
    struct script script;
    struct gate stalled, go, ended;
    unsigned stalls;
    struct connection connections[CONNECTIONS_MOST];
    size_t connection_count;
    struct connection *current;
    struct group groups[SCRIPT_GROUPS];
    bool gave_up;   /* the client closed the connection where something was expected */
    char why[1000]; /* "": all as expected */
};

static bool mismatch(struct script_server *server, const struct script_step *step, const char *what)
{
    char wanted[300], came[300] = "";
    script_show(wanted, sizeof wanted, step->bytes ? step->bytes : "", step->bytes ? step->length : 0);
    if (server->current)
        script_show(came, sizeof came, server->current->received, server->current->used);
    snprintf(server->why, sizeof server->why, "line %d: %s; expected \"%s\", received \"%s\"", step->line, what, wanted,
             came);
    return false;
}

/* --- receiving --- */

static int64_t step_deadline_ns(const struct script_server *server)
{
    return test_now_ns() + server->patience_ms * 1000000LL;
}

static bool wait_readable(int fd, int64_t deadline_ns)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    for (;;) {
        int64_t left_ms = (deadline_ns - test_now_ns() + 999999) / 1000000;
        int ready = poll(&one, 1, left_ms > 0 ? (int)left_ms : 0);
        if (ready > 0)
            return true;
        if (ready == 0 || errno != EINTR)
            return false;
    }
}

/* Reads what there is. False: nothing came in time, or nothing will come any more. */
static bool receive_more(struct connection *connection, int64_t deadline_ns)
{
    if (connection->closed || connection->used == BUFFER_SIZE || !wait_readable(connection->fd, deadline_ns))
        return false;
    ssize_t got = recv(connection->fd, connection->received + connection->used, BUFFER_SIZE - connection->used, 0);
    if (got <= 0) {
        connection->closed = true;
        connection->torn = got < 0 && errno == ECONNRESET;
        return false;
    }
    connection->used += (size_t)got;
    return true;
}

static void consume(struct connection *connection, size_t length)
{
    connection->used -= length;
    memmove(connection->received, connection->received + length, connection->used);
}

static bool missing(struct script_server *server, const struct script_step *step)
{
    server->gave_up = server->current->closed;
    return mismatch(server, step,
                    server->current->closed ? "the client closed the connection" : "not enough came in time");
}

/* True if the bytes at `received`, as far as they are there, are those of the step. */
static bool is_expected(const struct script_server *server, const struct script_step *step, const char *received,
                        size_t length)
{
    size_t seen[SCRIPT_GROUPS] = { 0 };
    for (size_t i = 0; i < length && i < step->length; i++) {
        const unsigned char special = step->special[i];
        if (special == SCRIPT_ANY)
            continue;
        if (special == 0) {
            if (received[i] != step->bytes[i])
                return false;
            continue;
        }
        const struct group *group = &server->groups[special];
        const size_t place = seen[special]++;
        if (group->length && (place >= group->length || received[i] != group->bytes[place]))
            return false;
    }
    return true;
}

/* Keeps the bytes of groups that were not met before. False: too many. */
static bool remember_groups(struct script_server *server, const struct script_step *step, const char *received)
{
    struct group met[SCRIPT_GROUPS] = { { .length = 0 } };
    for (size_t i = 0; i < step->length; i++) {
        const unsigned char special = step->special[i];
        if (special == 0 || special == SCRIPT_ANY)
            continue;
        if (met[special].length == GROUP_SIZE)
            return false;
        met[special].bytes[met[special].length++] = received[i];
    }
    for (size_t i = 0; i < SCRIPT_GROUPS; i++) {
        if (met[i].length && !server->groups[i].length)
            server->groups[i] = met[i];
    }
    return true;
}

static bool do_expect(struct script_server *server, const struct script_step *step)
{
    struct connection *connection = server->current;
    int64_t deadline_ns = step_deadline_ns(server);
    for (;;) {
        /* At every byte, so that a client which sent the wrong thing and waits for the answer is told of at once. */
        if (!is_expected(server, step, connection->received, connection->used))
            return mismatch(server, step, "other bytes came");
        if (connection->used >= step->length)
            break;
        if (!receive_more(connection, deadline_ns))
            return missing(server, step);
    }
    if (!remember_groups(server, step, connection->received))
        return mismatch(server, step, "a group is too long");
    consume(connection, step->length);
    return true;
}

static bool do_expect_up_to(struct script_server *server, const struct script_step *step)
{
    struct connection *connection = server->current;
    int64_t deadline_ns = step_deadline_ns(server);
    for (;;) {
        const char *found = memmem(connection->received, connection->used, step->bytes, step->length);
        if (found) {
            consume(connection, (size_t)(found - connection->received) + step->length);
            return true;
        }
        if (!receive_more(connection, deadline_ns))
            return missing(server, step);
    }
}

static bool do_skip(struct script_server *server, const struct script_step *step)
{
    int64_t deadline_ns = step_deadline_ns(server);
    while (server->current->used < step->length)
        if (!receive_more(server->current, deadline_ns))
            return missing(server, step);
    consume(server->current, step->length);
    return true;
}

static bool do_eof(struct script_server *server, const struct script_step *step)
{
    if (server->current->used == 0)
        receive_more(server->current, step_deadline_ns(server));
    if (server->current->used > 0)
        return mismatch(server, step, "bytes came where an end was expected");
    return server->current->closed || mismatch(server, step, "the client did not close the connection in time");
}

static bool do_torn(struct script_server *server, const struct script_step *step)
{
    return do_eof(server, step) && (server->current->torn || mismatch(server, step, "the client closed it politely"));
}

/* --- all the rest --- */

static bool do_accept(struct script_server *server, const struct script_step *step)
{
    int one = 1;
    server->current = NULL;
    if (server->listener < 0 || server->connection_count == CONNECTIONS_MOST)
        return mismatch(server, step, "there can be no further connection");
    if (!wait_readable(server->listener, step_deadline_ns(server)))
        return mismatch(server, step, "nobody connected in time");
    int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return mismatch(server, step, strerror(errno));
    if (server->port)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    server->current = &server->connections[server->connection_count++];
    server->current->fd = fd;
    server->current->used = 0;
    server->current->closed = server->current->torn = false;
    memcpy(server->current->name, step->name, sizeof step->name);
    return true;
}

static bool do_use(struct script_server *server, const struct script_step *step)
{
    /* The newest of that name. */
    for (size_t i = server->connection_count; i-- > 0;) {
        if (strcmp(server->connections[i].name, step->name) == 0) {
            server->current = &server->connections[i];
            return true;
        }
    }
    return mismatch(server, step, "there is no connection of that name");
}

/* Puts in what the groups stand for. */
static bool fill_in(const struct script_server *server, const struct script_step *step)
{
    size_t seen[SCRIPT_GROUPS] = { 0 };
    for (size_t i = 0; i < step->length; i++) {
        const unsigned char special = step->special[i];
        if (special == 0)
            continue;
        const struct group *group = &server->groups[special];
        const size_t place = seen[special]++;
        if (place >= group->length)
            return false;
        step->bytes[i] = group->bytes[place];
    }
    return true;
}

static bool do_send(struct script_server *server, const struct script_step *step)
{
    const size_t portion = step->verb == SCRIPT_DRIBBLE ? 1 : step->length;
    if (!fill_in(server, step))
        return mismatch(server, step, "a group was not met before");
    for (size_t sent = 0; sent < step->length;) {
        size_t left = step->length - sent;
        ssize_t now = send(server->current->fd, step->bytes + sent, left < portion ? left : portion, MSG_NOSIGNAL);
        if (now < 0) {
            server->gave_up = errno == EPIPE || errno == ECONNRESET;
            return mismatch(server, step, strerror(errno));
        }
        sent += (size_t)now;
    }
    return true;
}

/* The first connection with bytes that no step has asked for yet; NULL: none came in time. */
static struct connection *next_to_speak(struct script_server *server, int64_t deadline_ns)
{
    struct pollfd all[CONNECTIONS_MOST];
    for (;;) {
        for (size_t i = 0; i < server->connection_count; i++) {
            struct connection *connection = &server->connections[i];
            if (connection->fd >= 0 && connection->used > 0)
                return connection;
            const bool open = connection->fd >= 0 && !connection->closed;
            all[i] = (struct pollfd){ .fd = open ? connection->fd : -1, .events = POLLIN };
        }
        const int64_t left_ms = (deadline_ns - test_now_ns() + 999999) / 1000000;
        const int ready = left_ms > 0 ? poll(all, server->connection_count, (int)left_ms) : 0;
        if (ready == 0 || (ready < 0 && errno != EINTR))
            return NULL;
        for (size_t i = 0; ready > 0 && i < server->connection_count; i++) {
            if (all[i].revents)
                receive_more(&server->connections[i], deadline_ns);
        }
    }
}

static bool do_next(struct script_server *server, const struct script_step *step)
{
    server->current = next_to_speak(server, step_deadline_ns(server));
    return server->current || mismatch(server, step, "nothing came in time");
}

static void close_connection(struct connection *connection, bool reset)
{
    const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
    if (connection->fd < 0)
        return;
    if (reset)
        setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(connection->fd);
    connection->fd = -1;
}

static bool do_stall(struct script_server *server, const struct script_step *step)
{
    unsigned number = ++server->stalls;
    gate_pass(&server->stalled);
    int64_t left_ms = (test_deadline_ns() - test_now_ns()) / 1000000;
    return gate_await_for(&server->go, number, left_ms > 0 ? (uint32_t)left_ms : 0) ||
           mismatch(server, step, "nobody ended the stall");
}

static bool do_step(struct script_server *server, const struct script_step *step)
{
    const bool needs_connection = step->verb != SCRIPT_ACCEPT && step->verb != SCRIPT_USE &&
                                  step->verb != SCRIPT_NEXT && step->verb != SCRIPT_STALL &&
                                  step->verb != SCRIPT_REFUSE && step->verb != SCRIPT_RETRY &&
                                  step->verb != SCRIPT_DONE;
    if (needs_connection && (!server->current || server->current->fd < 0))
        return mismatch(server, step, "there is no connection");
    switch (step->verb) {
    case SCRIPT_ACCEPT:
        return do_accept(server, step);
    case SCRIPT_USE:
        return do_use(server, step);
    case SCRIPT_NEXT:
        return do_next(server, step);
    case SCRIPT_EXPECT:
        return do_expect(server, step);
    case SCRIPT_EXPECT_UP_TO:
        return do_expect_up_to(server, step);
    case SCRIPT_SKIP:
        return do_skip(server, step);
    case SCRIPT_EOF:
        return do_eof(server, step);
    case SCRIPT_TORN:
        return do_torn(server, step);
    case SCRIPT_SEND:
    case SCRIPT_DRIBBLE:
        return do_send(server, step);
    case SCRIPT_STALL:
        return do_stall(server, step);
    case SCRIPT_CUT:
    case SCRIPT_RESET:
        close_connection(server->current, step->verb == SCRIPT_RESET);
        return true;
    case SCRIPT_REFUSE:
        close(server->listener);
        server->listener = -1;
        return true;
    case SCRIPT_RETRY:
    case SCRIPT_DONE:
        return true;
    }
    return false;
}

/* The client came too late for this connection: its place is free for the next one. */
static void start_block_again(struct script_server *server)
{
    close_connection(server->current, false);
    if (server->current == &server->connections[server->connection_count - 1])
        server->connection_count--;
    server->current = NULL;
    server->why[0] = '\0';
}

static void *run_script(void *arg)
{
    struct script_server *server = arg;
    const struct script_step *steps = server->script.steps;
    size_t block = SIZE_MAX; /* where the retry block begins that we are in */
    for (size_t i = 0; i < server->script.count; i++) {
        if (steps[i].verb == SCRIPT_RETRY)
            block = i;
        else if (steps[i].verb == SCRIPT_DONE)
            block = SIZE_MAX;
        server->gave_up = false;
        if (do_step(server, &steps[i]))
            continue;
        if (server->gave_up && block != SIZE_MAX && test_now_ns() < test_deadline_ns()) {
            start_block_again(server);
            i = block;
            continue;
        }
        /* The client must not wait for a server that has given up. */
        for (size_t j = 0; j < server->connection_count; j++)
            close_connection(&server->connections[j], false);
        break;
    }
    gate_pass(&server->ended);
    return NULL;
}

/* --- what is called --- */

static struct script_server *server_new(const char *script)
{
    char why[300];
    struct script_server *server = calloc(1, sizeof *server);
    REQUIRE(server != NULL);
    if (!script_parse(&server->script, script, why, sizeof why)) {
        FAIL("%s", why);
        test_abort();
    }
    server->patience_ms = test_ms(5000);
    return server;
}

static struct script_server *server_run(struct script_server *server, const struct sockaddr *address, socklen_t length)
{
    server->listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(server->listener >= 0);
    REQUIRE_INT(0, bind(server->listener, address, length));
    REQUIRE_INT(0, listen(server->listener, CONNECTIONS_MOST));
    if (address->sa_family == AF_INET) {
        struct sockaddr_in own = { 0 };
        socklen_t size = sizeof own;
        REQUIRE_INT(0, getsockname(server->listener, (struct sockaddr *)&own, &size));
        server->port = ntohs(own.sin_port);
    }
    REQUIRE_INT(0, pthread_create(&server->thread, NULL, run_script, server));
    return server;
}

struct script_server *script_start(const char *script)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    return server_run(server_new(script), (struct sockaddr *)&address, sizeof address);
}

struct script_server *script_start_unix(const char *path, const char *script)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct script_server *server = server_new(script);
    REQUIRE(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    memcpy(server->path, path, strlen(path) + 1);
    return server_run(server, (struct sockaddr *)&address, sizeof address);
}

int script_port(const struct script_server *server)
{
    return server->port;
}

void script_set_patience(struct script_server *server, unsigned ms)
{
    server->patience_ms = ms;
}

void script_await_stall(struct script_server *server, unsigned count)
{
    gate_await(&server->stalled, count);
}

void script_go(struct script_server *server)
{
    gate_pass(&server->go);
}

void script_await_end(struct script_server *server)
{
    gate_await(&server->ended, 1);
}

bool script_finish(struct script_server *server, char *why, size_t size)
{
    for (size_t i = 0; i < server->script.count; i++)
        script_go(server);
    pthread_join(server->thread, NULL);
    for (size_t i = 0; i < server->connection_count; i++)
        close_connection(&server->connections[i], false);
    if (server->listener >= 0)
        close(server->listener);
    if (*server->path)
        unlink(server->path);
    snprintf(why, size, "%s", server->why);
    bool as_expected = *server->why == '\0';
    script_free(&server->script);
    free(server);
    return as_expected;
}

void script_check(struct script_server *server)
{
    char why[1000];
    if (!script_finish(server, why, sizeof why))
        FAIL("the script at %s", why);
}
