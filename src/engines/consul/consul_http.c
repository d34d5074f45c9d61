/* SPDX-License-Identifier: MIT
 *
 * consul_http.c: one exchange over HTTP/1.1: requests of a known length, answers with a length or in chunks, on
 * connections that are kept for the next one. The caller's own thread makes its own round trip.
 */
#include "consul.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define IDLE_MOST 16
#define REPLY_MOST (64u << 20)
#define READ_SIZE 16384
/* A connection that was idle for longer may have been closed by the server in the meantime: better looked at than used
 * and the outcome unknown. */
#define TRUSTED_FOR (200 * HFI_MS)
/* For one host, if there are others to ask. */
#define CONNECT_MOST HFI_SECOND
/* An answer is waited for this long at least, if not by one call, then by the next ones for the same lock. */
#define PATIENCE_LEAST (2 * HFI_SECOND)

void hfi_consul_escape(char *out, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 128 && (isalnum(c) || strchr("/-_.~", c))) {
            *out++ = (char)c;
        } else {
            *out++ = '%';
            *out++ = digits[c >> 4];
            *out++ = digits[c & 15];
        }
    }
    *out = 0;
}

/* --- the request --- */

static hf_status compose(const struct consul_store *store, struct consul_connection *connection,
                         const struct consul_request *request, hf_error *err)
{
    const struct consul_config *config = &store->config;
    const struct consul_address *address = &config->addresses[0];
    const char *body = request->body ? request->body : "";
    char datacenter[3 * 64 + 8] = "", escaped[3 * 64 + 1] = "";
    if (*config->datacenter && strlen(config->datacenter) <= 64) {
        hfi_consul_escape(escaped, config->datacenter);
        snprintf(datacenter, sizeof datacenter, "%cdc=%s", strchr(request->path, '?') ? '&' : '?', escaped);
    }
    const size_t room = strlen(request->path) + strlen(body) + strlen(config->token) + sizeof datacenter + 600;
    connection->out = hfi_alloc(room);
    if (!connection->out)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a request");
    connection->out_sent = 0;
    connection->out_length =
        (size_t)snprintf(connection->out, room, "%s %s%s HTTP/1.1\r\nHost: %s:%s\r\nUser-Agent: holdfast\r\n%s%s%s",
                         request->method, request->path, datacenter, address->host, address->port,
                         *config->token ? "X-Consul-Token: " : "", config->token, *config->token ? "\r\n" : "");
    connection->out_length +=
        (size_t)snprintf(connection->out + connection->out_length, room - connection->out_length,
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    return HF_OK;
}

/* --- the reply --- */

static const struct {
    const char *name;
    int number;
} months[] = { { "Jan", 0 }, { "Feb", 1 }, { "Mar", 2 }, { "Apr", 3 }, { "May", 4 },  { "Jun", 5 },
               { "Jul", 6 }, { "Aug", 7 }, { "Sep", 8 }, { "Oct", 9 }, { "Nov", 10 }, { "Dec", 11 } };

/* "Sun, 15 Nov 2026 10:44:12 GMT"; 0 if it is not like that. */
static int64_t read_date(const char *text)
{
    char month[4] = "";
    struct tm when = { 0 };
    if (sscanf(text, "%*3s, %2d %3s %4d %2d:%2d:%2d GMT", &when.tm_mday, month, &when.tm_year, &when.tm_hour,
               &when.tm_min, &when.tm_sec) != 6)
        return 0;
    when.tm_year -= 1900;
    for (size_t i = 0; i < sizeof months / sizeof months[0]; i++) {
        if (strcmp(month, months[i].name) == 0) {
            when.tm_mon = months[i].number;
            return timegm(&when);
        }
    }
    return 0;
}

struct header {
    size_t head;   /* its length, empty line included */
    size_t length; /* of the body */
    bool chunked;
};

static const char *value_of(const char *line, const char *name)
{
    const size_t length = strlen(name);
    if (strncasecmp(line, name, length) != 0 || line[length] != ':')
        return NULL;
    return line + length + 1 + strspn(line + length + 1, " ");
}

static void read_line(struct consul_reply *reply, struct header *header, const char *line)
{
    const char *value;
    if ((value = value_of(line, "Content-Length")) != NULL)
        header->length = strtoull(value, NULL, 10);
    else if ((value = value_of(line, "Transfer-Encoding")) != NULL)
        header->chunked = strncasecmp(value, "chunked", 7) == 0;
    else if ((value = value_of(line, "Connection")) != NULL)
        reply->keeps = strncasecmp(value, "close", 5) != 0;
    else if ((value = value_of(line, "X-Consul-Index")) != NULL)
        reply->index = strtoull(value, NULL, 10);
    else if ((value = value_of(line, "Date")) != NULL)
        reply->date_s = read_date(value);
}

/* HF_TIMEOUT: there is more to come. The buffer ends with a zero. */
static hf_status read_head(const struct consul_connection *connection, struct consul_reply *reply,
                           struct header *header)
{
    const char *end = strstr(connection->in, "\r\n\r\n");
    int minor = 0;
    if (!end)
        return connection->in_used > READ_SIZE ? HF_INTERNAL : HF_TIMEOUT;
    *reply = (struct consul_reply){ .keeps = true };
    if (sscanf(connection->in, "HTTP/1.%d %3d", &minor, &reply->status) != 2 || reply->status < 200)
        return HF_INTERNAL;
    reply->keeps = minor > 0;
    header->head = (size_t)(end - connection->in) + 4;
    for (const char *line = strstr(connection->in, "\r\n"); line < end; line = strstr(line + 2, "\r\n"))
        read_line(reply, header, line + 2);
    return header->length > REPLY_MOST ? HF_INTERNAL : HF_OK;
}

/* Puts the chunks together where they are. Writes only once all of them are there. */
static hf_status join_chunks(struct consul_connection *connection, struct consul_reply *reply, size_t head, bool write)
{
    const char *at = connection->in + head, *end = connection->in + connection->in_used;
    char *to = connection->in + head;
    for (;;) {
        const char *line = strstr(at, "\r\n");
        char *digits;
        if (!line)
            return end - at > 20 ? HF_INTERNAL : HF_TIMEOUT;
        const unsigned long long size = strtoull(at, &digits, 16);
        if (digits == at || (*digits != '\r' && *digits != ';') || size > REPLY_MOST)
            return HF_INTERNAL;
        if ((unsigned long long)(end - line) < size + 4)
            return HF_TIMEOUT;
        if (write)
            memmove(to, line + 2, size);
        to += size;
        at = line + 2 + size + 2;
        if (size == 0)
            break;
    }
    if (write)
        *to = 0;
    reply->body = connection->in + head;
    reply->length = (size_t)(to - reply->body);
    reply->keeps = reply->keeps && at == end;
    return HF_OK;
}

static hf_status read_reply(struct consul_connection *connection)
{
    struct header header = { 0 };
    struct consul_reply *reply = &connection->reply;
    hf_status status = read_head(connection, reply, &header);
    if (status != HF_OK)
        return status;
    if (header.chunked) {
        status = join_chunks(connection, reply, header.head, false);
        return status == HF_OK ? join_chunks(connection, reply, header.head, true) : status;
    }
    if (connection->in_used - header.head < header.length)
        return HF_TIMEOUT;
    reply->body = connection->in + header.head;
    reply->length = header.length;
    /* What came behind the answer would be taken for the answer to the next request. */
    reply->keeps = reply->keeps && connection->in_used == header.head + header.length;
    return HF_OK;
}

static bool make_room(struct consul_connection *connection)
{
    if (connection->in_used + READ_SIZE < connection->in_room)
        return true;
    const size_t room = connection->in_used * 2 + READ_SIZE * 2;
    char *larger = room < 2 * (size_t)REPLY_MOST ? hfi_alloc(room) : NULL;
    if (!larger)
        return false;
    if (connection->in_used)
        memcpy(larger, connection->in, connection->in_used);
    hfi_free(connection->in);
    connection->in = larger;
    connection->in_room = room;
    return true;
}

/* --- steps --- */

static hf_status step_sending(struct consul_connection *connection, hf_error *err)
{
    while (connection->out_sent < connection->out_length) {
        const ssize_t sent = hfi_consul_write(connection, connection->out + connection->out_sent,
                                              connection->out_length - connection->out_sent);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            return HF_TIMEOUT;
        if (sent <= 0)
            return hfi_fail(err, HF_UNKNOWN, sent < 0 ? errno : 0,
                            "the connection broke while a request was being sent");
        connection->out_sent += (size_t)sent;
    }
    connection->phase = CONSUL_RECEIVING;
    connection->wants = POLLIN;
    connection->in_used = 0;
    return HF_TIMEOUT;
}

static hf_status step_receiving(struct consul_connection *connection, hf_error *err)
{
    for (;;) {
        if (!make_room(connection))
            return hfi_fail(err, HF_UNKNOWN, 0, "no memory for the server's reply");
        const ssize_t got = hfi_consul_read(connection, connection->in + connection->in_used, READ_SIZE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return HF_TIMEOUT;
        if (got <= 0)
            return hfi_fail(err, HF_UNKNOWN, got < 0 ? errno : 0,
                            "the server closed the connection before it answered");
        connection->in_used += (size_t)got;
        connection->in[connection->in_used] = 0;
        const hf_status status = read_reply(connection);
        if (status == HF_INTERNAL)
            return hfi_fail(err, HF_UNKNOWN, 0, "the server's reply is no HTTP");
        if (status == HF_OK)
            return HF_OK;
    }
}

/* How far the agent's clock was, for those who want to know since when a lock is held. */
static void note_reply(struct consul_store *store, const struct consul_connection *connection)
{
    const struct consul_reply *reply = &connection->reply;
    store->answers = true;
    if (reply->date_s) {
        store->clock_s = reply->date_s;
        store->clock_ns = store->env->now_ns();
    }
    /* It is there, but not for us: the next one is asked somebody else. */
    if (reply->status >= 500 && store->preferred == connection->host)
        store->preferred = (connection->host + 1) % store->config.address_count;
}

static void enter(struct consul_store *store, const struct consul_exchange *exchange)
{
    if (!exchange->locked)
        pthread_mutex_lock(&store->mutex);
}

static void leave(struct consul_store *store, const struct consul_exchange *exchange)
{
    if (!exchange->locked)
        pthread_mutex_unlock(&store->mutex);
}

hf_status hfi_consul_step(struct consul_store *store, struct consul_exchange *exchange, hf_error *err)
{
    struct consul_connection *connection = exchange->connection;
    hf_status status = HF_OK;
    if (connection->phase < CONSUL_SENDING)
        status = hfi_consul_connect_step(store, connection, err);
    if (status == HF_OK && connection->phase == CONSUL_SENDING)
        status = step_sending(connection, err);
    else if (status == HF_OK)
        status = step_receiving(connection, err);
    if (status != HF_OK)
        return status;
    connection->phase = CONSUL_IDLE;
    exchange->reply = &connection->reply;
    enter(store, exchange);
    note_reply(store, connection);
    leave(store, exchange);
    return HF_OK;
}

/* --- connections --- */

static bool is_alive(const struct consul_store *store, const struct consul_connection *connection)
{
    char byte;
    if (store->env->now_ns() - connection->used_ns < TRUSTED_FOR)
        return true;
    const ssize_t got = recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EINTR); /* idle: nothing there, not even the end */
}

/* An idle one to the preferred host, or NULL. With the mutex. */
static struct consul_connection *borrow(struct consul_store *store)
{
    struct consul_connection *connection;
    while ((connection = store->idle) != NULL) {
        store->idle = connection->next;
        store->idle_count--;
        if (connection->host == store->preferred && is_alive(store, connection)) {
            connection->phase = CONSUL_SENDING;
            return connection;
        }
        hfi_consul_disconnect(connection);
    }
    return NULL;
}

/* False: it is of no use any more, or there are enough of them. With the mutex. */
static bool keep_idle(struct consul_store *store, struct consul_connection *connection)
{
    if (connection->phase != CONSUL_IDLE || !connection->reply.keeps || store->idle_count >= IDLE_MOST)
        return false;
    hfi_consul_forget_request(connection);
    if (connection->in_room > 4 * READ_SIZE) { /* one long answer does not make all connections large */
        hfi_free(connection->in);
        connection->in = NULL;
        connection->in_room = 0;
    }
    connection->used_ns = store->env->now_ns();
    connection->next = store->idle;
    store->idle = connection;
    store->idle_count++;
    return true;
}

/* --- whole exchanges --- */

hf_status hfi_consul_begin(struct consul_store *store, struct consul_exchange *exchange,
                           const struct consul_request *request, hf_error *err)
{
    exchange->begun_ns = store->env->now_ns();
    exchange->tries = 0;
    enter(store, exchange);
    exchange->connection = borrow(store);
    const size_t host = store->preferred;
    leave(store, exchange);
    hf_status status = HF_OK;
    if (!exchange->connection)
        status = hfi_consul_connect(store, host, &exchange->connection, err);
    if (exchange->connection && status == HF_OK)
        status = compose(store, exchange->connection, request, err);
    if (status != HF_OK)
        hfi_consul_end(store, exchange);
    return status;
}

void hfi_consul_end(struct consul_store *store, struct consul_exchange *exchange)
{
    struct consul_connection *connection = exchange->connection;
    if (!connection)
        return;
    enter(store, exchange);
    const bool kept = keep_idle(store, connection);
    leave(store, exchange);
    if (!kept)
        hfi_consul_disconnect(connection);
    exchange->connection = NULL;
    exchange->reply = NULL;
}

/* The host does not answer: the next one is asked from now on. */
static size_t turn_away(struct consul_store *store, size_t host)
{
    pthread_mutex_lock(&store->mutex);
    const size_t next = (host + 1) % store->config.address_count;
    if (store->preferred == host)
        store->preferred = next;
    store->answers = false;
    pthread_mutex_unlock(&store->mutex);
    return next;
}

/* Nothing was sent yet: the same request goes to the next host, if there is one that was not tried. */
static hf_status move_on(struct consul_store *store, struct consul_exchange *exchange, hf_status status, hf_error *err)
{
    struct consul_connection *old = exchange->connection;
    size_t host = turn_away(store, old->host);
    while (status == HF_UNAVAILABLE && ++exchange->tries < store->config.address_count) {
        struct consul_connection *fresh;
        status = hfi_consul_connect(store, host, &fresh, err);
        if (status == HF_OK) {
            fresh->out = old->out;
            fresh->out_length = old->out_length;
            old->out = NULL;
            hfi_consul_disconnect(old);
            exchange->connection = fresh;
        } else {
            host = turn_away(store, host);
        }
    }
    return status;
}

static bool sleep_until_ready(const struct consul_store *store, const struct consul_connection *connection,
                              hfi_time deadline_ns)
{
    struct pollfd one = { .fd = connection->fd, .events = connection->wants };
    const hfi_time left = deadline_ns - store->env->now_ns();
    const struct timespec most = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
    return left > 0 && ppoll(&one, 1, &most, NULL) != 0; /* a signal: look again */
}

/* When to give up on this host, if it does not even take the request. */
static hfi_time patience(const struct consul_store *store, const struct consul_exchange *exchange, hfi_time deadline_ns)
{
    const bool others = exchange->tries + 1 < store->config.address_count;
    const hfi_time most = exchange->begun_ns + (hfi_time)(exchange->tries + 1) * CONNECT_MOST;
    return others && exchange->connection->phase < CONSUL_SENDING && most < deadline_ns ? most : deadline_ns;
}

hf_status hfi_consul_finish(struct consul_store *store, struct consul_exchange *exchange, hfi_time deadline_ns,
                            hf_error *err)
{
    for (;;) {
        hf_status status = hfi_consul_step(store, exchange, err);
        struct consul_connection *connection = exchange->connection;
        if (status == HF_TIMEOUT) {
            if (sleep_until_ready(store, connection, patience(store, exchange, deadline_ns)) ||
                store->env->now_ns() < patience(store, exchange, deadline_ns))
                continue;
            if (connection->out_sent) {
                turn_away(store, connection->host);
                return hfi_fail(err, HF_TIMEOUT, 0, "%.100s did not answer in time",
                                store->config.addresses[connection->host].host);
            }
            status = hfi_dial_late(&connection->dial, store->config.addresses[connection->host].host,
                                   store->config.addresses[connection->host].port, err);
        }
        if (status == HF_OK)
            return HF_OK;
        const bool sent = connection->out_sent > 0;
        if (!sent && status == HF_UNKNOWN) /* the connection was closed before we said anything */
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "the server closed the connection");
        if (sent)
            turn_away(store, connection->host);
        else
            status = move_on(store, exchange, status, err);
        if (status != HF_OK)
            return status;
    }
}

hfi_time hfi_consul_patience(const struct consul_store *store)
{
    const hfi_time usual = store->env->timeout_ns / (store->config.address_count > 1 ? 2 : 1);
    return usual > PATIENCE_LEAST ? usual : PATIENCE_LEAST;
}

hf_status hfi_consul_ask(struct consul_store *store, struct consul_exchange *exchange,
                         const struct consul_request *request, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = hfi_consul_begin(store, exchange, request, err);
    if (status != HF_OK)
        return status;
    const hfi_time give_up = exchange->begun_ns + hfi_consul_patience(store);
    status = hfi_consul_finish(store, exchange, deadline_ns < give_up ? deadline_ns : give_up, err);
    if (status == HF_OK)
        return HF_OK;
    hfi_consul_end(store, exchange);
    if (status == HF_TIMEOUT && err)
        err->status = HF_UNKNOWN;
    return status == HF_TIMEOUT ? HF_UNKNOWN : status;
}
