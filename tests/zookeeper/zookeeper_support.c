/* SPDX-License-Identifier: MIT
 *
 * zookeeper_support.c: see zookeeper_support.h.
 */
#include "zookeeper_support.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------------------- stores */

struct zookeeper_server *serve(const char *settings)
{
    char all[400];
    snprintf(all, sizeof all, "maxSessionTimeout=600000 %s", settings);
    struct zookeeper_server *server = zookeeper_server_start(all);
    use_url(server->url);
    return server;
}

void serve_three(struct zookeeper_server **out, const char *settings)
{
    zookeeper_servers_start(out, 3, NULL, settings);
    use_url(out[0]->ensemble_url);
}

void check_refused(hf_client *client, const char *name, hf_status status, const char *words)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(status, hf_try_acquire(&lock, client, name, NULL, &err), &err);
    check_error(&err, status, words);
    hf_release(lock, NULL);
}

/* --------------------------------------------------------------------------------------------- a client of its own */

static void hear(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    struct raw *raw = context;
    (void)zh;
    (void)path;
    if (type == ZOO_SESSION_EVENT) {
        raw->connected = state == ZOO_CONNECTED_STATE;
        raw->expired = raw->expired || state == ZOO_EXPIRED_SESSION_STATE;
    }
}

static void say_nothing(const char *message)
{
    (void)message;
}

/* One turn of the library. */
static void turn(struct raw *raw)
{
    struct pollfd socket = { .fd = -1 };
    struct timeval time = { 0 };
    int interest = 0;
    if (zookeeper_interest(raw->zh, &socket.fd, &interest, &time) != ZOK)
        return;
    socket.events = (short)((interest & ZOOKEEPER_READ ? POLLIN : 0) | (interest & ZOOKEEPER_WRITE ? POLLOUT : 0));
    if (poll(&socket, 1, 20) > 0)
        zookeeper_process(raw->zh, (socket.revents & ~POLLOUT ? ZOOKEEPER_READ : 0) |
                                       (socket.revents & POLLOUT ? ZOOKEEPER_WRITE : 0));
}

struct raw *raw_open(const struct zookeeper_server *server, const clientid_t *session, const char *credentials)
{
    char host[40];
    struct raw *raw = calloc(1, sizeof *raw);
    REQUIRE(raw != NULL);
    snprintf(host, sizeof host, "%s:%d", server->address, server->port);
    raw->zh = zookeeper_init2(host, hear, 30000, session, raw, ZOO_NO_LOG_CLIENTENV, say_nothing);
    REQUIRE(raw->zh != NULL);
    if (credentials)
        zoo_add_auth(raw->zh, "digest", credentials, (int)strlen(credentials), NULL, NULL);
    while (!raw->connected) {
        turn(raw);
        REQUIRE(!raw->expired && test_now_ns() < test_deadline_ns() - 1000000000LL);
    }
    return raw;
}

void raw_close(struct raw *raw)
{
    zookeeper_close(raw->zh);
    free(raw);
}

static int finish(struct raw *raw, int rc)
{
    raw->done = rc != ZOK; /* not even sent */
    raw->rc = rc;
    while (!raw->done) {
        turn(raw);
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    }
    return raw->rc;
}

static void take_nothing(int rc, const void *data)
{
    struct raw *raw = (struct raw *)data;
    raw->rc = rc;
    raw->done = true;
}

static void take_path(int rc, const char *path, const struct Stat *stat, const void *data)
{
    struct raw *raw = (struct raw *)data;
    if (rc == ZOK) {
        snprintf(raw->text, sizeof raw->text, "%s", path);
        raw->stat = *stat;
    }
    take_nothing(rc, data);
}

static void take_data(int rc, const char *value, int length, const struct Stat *stat, const void *data)
{
    struct raw *raw = (struct raw *)data;
    if (rc == ZOK) {
        snprintf(raw->text, sizeof raw->text, "%.*s", length, value);
        raw->stat = *stat;
    }
    take_nothing(rc, data);
}

static void take_children(int rc, const struct String_vector *list, const void *data)
{
    struct raw *raw = (struct raw *)data;
    size_t used = 0;
    raw->text[0] = '\0';
    raw->count = rc == ZOK ? list->count : 0;
    for (int i = 0; i < raw->count && used < sizeof raw->text; i++)
        used += (size_t)snprintf(raw->text + used, sizeof raw->text - used, "%s ", list->data[i]);
    take_nothing(rc, data);
}

#define PATH_FROM_FORMAT                                                                                               \
    char path[2000];                                                                                                   \
    va_list args;                                                                                                      \
    va_start(args, format);                                                                                            \
    vsnprintf(path, sizeof path, format, args);                                                                        \
    va_end(args)

int raw_create(struct raw *raw, int mode, const char *data, const char *format, ...)
{
    PATH_FROM_FORMAT;
    return finish(raw,
                  zoo_acreate2(raw->zh, path, data, (int)strlen(data), &ZOO_OPEN_ACL_UNSAFE, mode, take_path, raw));
}

int raw_delete(struct raw *raw, const char *format, ...)
{
    PATH_FROM_FORMAT;
    return finish(raw, zoo_adelete(raw->zh, path, -1, take_nothing, raw));
}

int raw_permit(struct raw *raw, int permissions, const char *format, ...)
{
    PATH_FROM_FORMAT;
    struct ACL anybody = { permissions, ZOO_ANYONE_ID_UNSAFE };
    struct ACL_vector acl = { 1, &anybody };
    return finish(raw, zoo_aset_acl(raw->zh, path, -1, &acl, take_nothing, raw));
}

int raw_list(struct raw *raw, const char *format, ...)
{
    PATH_FROM_FORMAT;
    return finish(raw, zoo_aget_children(raw->zh, path, 0, take_children, raw));
}

int raw_get(struct raw *raw, const char *format, ...)
{
    PATH_FROM_FORMAT;
    return finish(raw, zoo_aget(raw->zh, path, 0, take_data, raw));
}

int contenders(struct raw *raw, const char *name)
{
    const int rc = raw_list(raw, "/holdfast/%s", name);
    REQUIRE(rc == ZOK || rc == ZNONODE);
    return raw->count;
}

void await_contenders(struct raw *raw, const char *name, int count)
{
    while (contenders(raw, name) != count)
        await_a_moment();
}

void await_watch(struct zookeeper_server *server)
{
    while (zookeeper_server_number(server, "zk_watch_count") < 1)
        await_a_moment();
}

/* The servers make a session's password of its number, with the random numbers of Java. */
static void password_of(clientid_t *session)
{
    uint64_t state = ((uint64_t)session->client_id ^ 0xB3415C00u ^ 0x5DEECE66Du) & 0xffffffffffffu;
    for (int i = 0; i < 16; i += 4) {
        state = (state * 0x5DEECE66Du + 0xBu) & 0xffffffffffffu;
        const uint32_t bits = (uint32_t)(state >> 16);
        for (int j = 0; j < 4; j++)
            session->passwd[i + j] = (char)(bits >> 8 * j);
    }
}

void expire_session_of(const struct zookeeper_server *server, const struct valve *valve, const char *name)
{
    char node[200];
    clientid_t session = { 0 };
    struct raw *raw = raw_open(server, NULL, NULL);
    REQUIRE(contenders(raw, name) > 0);
    const char *ours = strstr(raw->text, "_c_");
    REQUIRE(ours != NULL);
    snprintf(node, sizeof node, "%.*s", (int)strcspn(ours, " "), ours);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/%s/%s", name, node));
    session.client_id = raw->stat.ephemeralOwner;
    password_of(&session);
    REQUIRE_INT(0, kill(valve->pid, SIGSTOP));
    raw_close(raw_open(server, &session, NULL));
    REQUIRE_INT(ZNONODE, raw_get(raw, "/holdfast/%s/%s", name, node));
    REQUIRE_INT(0, kill(valve->pid, SIGCONT));
    raw_close(raw);
}
