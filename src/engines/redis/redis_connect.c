/* SPDX-License-Identifier: MIT
 *
 * redis_connect.c: getting in: the socket, TLS and the log-in, in steps that never wait, so that many servers can be
 * connected to at once and none that is dead holds up the others. hfi_redis_connect() takes all steps for one of them.
 */
#include "engines/tls.h"
#include "redis.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define RECEIVE_LIMIT HFI_SECOND

/* --- the socket --- */

hf_status hfi_redis_connect_begin(struct redis_connection **out, const struct redis_address *address,
                                  const struct redis_access *access, hf_error *err)
{
    static _Atomic uint64_t numbers;
    struct redis_connection *connection = hfi_alloc(sizeof *connection);
    *out = connection;
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->number = ++numbers;
    connection->fd = -1;
    connection->wants = POLLIN | POLLOUT;
    connection->dial.alone = access->alone;
    connection->dial.silence_ms = access->silence_ms;
    hf_status status = HF_OK;
    if (!hfi_redis_create_reader(connection))
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    if (status == HF_OK)
        status = hfi_dial_begin(&connection->dial, &connection->fd, address->host, address->port, err);
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        *out = NULL;
    }
    return status;
}

/* HF_OK: connected. */
static hf_status step_connecting(struct redis_connection *connection, const struct redis_address *address,
                                 const struct redis_access *access, hf_error *err)
{
    const hf_status status = hfi_dial_step(&connection->dial, &connection->fd, address->host, address->port, err);
    if (status != HF_OK)
        return status;
    const struct timeval limit = { .tv_sec = 1 }; /* RECEIVE_LIMIT */
    if (setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0)
        connection->receive_ns = RECEIVE_LIMIT;
    /* With TLS it stays without blocking: deadlines must hold in the middle of a record too. */
    if (!access->tls && fcntl(connection->fd, F_SETFL, fcntl(connection->fd, F_GETFL) & ~O_NONBLOCK) != 0)
        return hfi_dial_failed(address->host, address->port, errno, err);
    connection->phase = REDIS_SHAKING_HANDS;
    return HF_OK;
}

/* --- TLS --- */

hf_status hfi_redis_tls_new(SSL_CTX **out, const struct redis_config *config, hf_error *err)
{
    const struct hfi_tls_files files = { .verify = config->verify,
                                         .ca_file = config->ca_file,
                                         .cert_file = config->cert_file,
                                         .key_file = config->key_file };
    return hfi_tls_open(out, &files, err);
}

static hf_status step_shaking_hands(struct redis_connection *connection, const struct redis_address *address,
                                    const struct redis_access *access, hf_error *err)
{
    return access->tls ? hfi_tls_shake_hands(&connection->tls, access->tls, connection->fd, address->host,
                                             &connection->wants, err)
                       : HF_OK;
}

/* --- the log-in --- */

/* AUTH and SELECT, as far as the URL asks for them; ROLE, if only a master will do; and a PING, which a server that
 * wants a password refuses. HELLO says which modules there are, to every user; it changes nothing, and a server or a
 * proxy that does not know it has none. */
static hf_status send_login(struct redis_connection *connection, const struct redis_access *access, hf_error *err)
{
    /* Each has room for what may stand there when one before it is not sent. */
    struct redis_command commands[5] = {
        { REDIS_ROOM(3) }, { REDIS_ROOM(2) }, { REDIS_ROOM(2) }, { REDIS_ROOM(2) }, { REDIS_ROOM(1) }
    };
    struct redis_command *next = commands;
    char number[16];
    connection->with_auth = *access->password;
    if (connection->with_auth) {
        hfi_redis_add(next, "AUTH");
        if (*access->user)
            hfi_redis_add(next, access->user);
        hfi_redis_add(next++, access->password);
    }
    if (access->database) {
        snprintf(number, sizeof number, "%d", access->database);
        hfi_redis_add(next, "SELECT");
        hfi_redis_add(next++, number);
    }
    hfi_redis_add(next++, "PING");
    if (access->asks_modules) {
        hfi_redis_add(next, "HELLO");
        hfi_redis_add(next++, "2");
    }
    if (access->master)
        hfi_redis_add(next++, "ROLE");
    connection->expected = (unsigned)(next - commands);
    connection->wants = POLLIN;
    connection->phase = REDIS_LOGGING_IN;
    /* A new connection has room for it. */
    return hfi_redis_send(connection, commands, connection->expected, hfi_redis_now_ns(), err);
}

/* The reply that has come is the one to HELLO. */
static bool is_hello(const struct redis_connection *connection, const struct redis_access *access)
{
    return access->asks_modules && connection->logged + 1 + access->master == connection->expected;
}

static hf_status check_login(struct redis_connection *connection, const struct redis_address *address,
                             const struct redis_access *access, const redisReply *reply, hf_error *err)
{
    if (is_hello(connection, access)) {
        connection->native = hfi_redis_names_module(reply);
        return HF_OK;
    }
    if (reply->type == REDIS_REPLY_ERROR)
        return hfi_redis_refusal(reply, connection->with_auth && connection->logged == 0 ? NULL : "", err);
    if (!access->master || connection->logged + 1 < connection->expected) /* ROLE's is the last one */
        return HF_OK;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_STRING &&
        strcmp(reply->element[0]->str, "master") == 0)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the server at %.120s:%s is not the master", address->host, address->port);
}

static hf_status step_logging_in(struct redis_connection *connection, const struct redis_address *address,
                                 const struct redis_access *access, hf_error *err)
{
    hf_status status = hfi_redis_fetch(connection);
    while (status == HF_OK && connection->logged < connection->expected) {
        redisReply *reply = NULL;
        status = hfi_redis_fetched(connection, &reply);
        if (status == HF_OK && !reply)
            return HF_TIMEOUT;
        if (status == HF_OK)
            status = check_login(connection, address, access, reply, err);
        else
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server's reply is no Redis protocol (%.60s)",
                              connection->reader->errstr);
        connection->logged++;
        freeReplyObject(reply);
        if (status != HF_OK)
            return status;
    }
    if (status != HF_OK) /* nothing that mattered was sent yet */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the server at %.120s closed the connection before it answered",
                        address->host);
    return HF_OK;
}

/* --- all of it --- */

hf_status hfi_redis_connect_step(struct redis_connection *connection, const struct redis_address *address,
                                 const struct redis_access *access, hf_error *err)
{
    hf_status status = HF_OK;
    if (connection->phase == REDIS_CONNECTING)
        status = step_connecting(connection, address, access, err);
    if (status == HF_OK && connection->phase == REDIS_SHAKING_HANDS) {
        status = step_shaking_hands(connection, address, access, err);
        if (status == HF_OK)
            status = send_login(connection, access, err);
        if (status == HF_UNKNOWN) /* nothing that mattered was sent yet */
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server at %.120s closed the connection", address->host);
    }
    if (status == HF_OK && connection->phase == REDIS_LOGGING_IN)
        status = step_logging_in(connection, address, access, err);
    if (status == HF_OK)
        connection->phase = REDIS_READY;
    return status;
}

hf_status hfi_redis_connect_late(const struct redis_connection *connection, const struct redis_address *address,
                                 hf_error *err)
{
    if (connection->phase == REDIS_SHAKING_HANDS)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "no TLS with %.100s: no answer in time", address->host);
    if (connection->phase == REDIS_LOGGING_IN)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the server did not answer in time");
    return hfi_dial_late(&connection->dial, address->host, address->port, err);
}

hf_status hfi_redis_connect(struct redis_connection **out, const struct redis_address *address,
                            const struct redis_access *access, hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *connection;
    const hfi_time begun = hfi_redis_now_ns();
    if (access->connect_ns && begun + access->connect_ns < deadline_ns)
        deadline_ns = begun + access->connect_ns;
    *out = NULL;
    hf_status status = hfi_redis_connect_begin(&connection, address, access, err);
    if (status != HF_OK)
        return status;
    bool last = false; /* one that always has something to say must not keep us */
    while ((status = hfi_redis_connect_step(connection, address, access, err)) == HF_TIMEOUT) {
        const bool ready = !last && hfi_redis_ready_by(connection->fd, connection->wants, deadline_ns);
        last = hfi_redis_now_ns() >= deadline_ns;
        if (!ready) {
            status = hfi_redis_connect_late(connection, address, err);
            break;
        }
    }
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        return status;
    }
    *out = connection;
    return HF_OK;
}

void hfi_redis_disconnect(struct redis_connection *connection)
{
    if (!connection)
        return;
    if (connection->unanswered && !connection->owed) /* what nobody waits for may arrive */
        hfi_dial_reset(connection->fd);
    hfi_dial_end(&connection->dial);
    SSL_free(connection->tls); /* without the farewell, which could block */
    hfi_fd_close(connection->fd);
    if (connection->reader)
        redisReaderFree(connection->reader);
    hfi_free(connection);
}
