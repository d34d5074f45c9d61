/* SPDX-License-Identifier: MIT
 *
 * redis_connection.c: commands and replies on one connection, each by a deadline. hiredis parses; the
 * socket is ours, so that every wait ends when the core says so.
 *
 * The socket blocks, with SO_RCVTIMEO as a limit: an exchange is then one send and one recv, as with raw hiredis. Only
 * a deadline nearer than that limit costs a poll.
 */
#include "redis.h"
#include <assert.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define BUFFER 16384

/* The core's clock, read directly: a socket waits in real time, also where a test has set env->now_ns() forward. */
hfi_time hfi_redis_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * HFI_SECOND + now.tv_nsec;
}

bool hfi_redis_ready_by(int fd, short events, hfi_time deadline_ns)
{
    struct pollfd one = { .fd = fd, .events = events };
    int result;
    do {
        const hfi_time left = deadline_ns == HFI_NEVER ? HFI_SECOND : deadline_ns - hfi_redis_now_ns();
        const struct timespec time = { .tv_sec = left > 0 ? left / HFI_SECOND : 0,
                                       .tv_nsec = left > 0 ? left % HFI_SECOND : 0 };
        result = ppoll(&one, 1, &time, NULL);
    } while ((result < 0 && errno == EINTR) || (result == 0 && deadline_ns == HFI_NEVER));
    return result > 0;
}

/* --- commands --- */

void hfi_redis_script_init(struct redis_script *script, const char *text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    script->text = text;
    script->native = NULL;
    EVP_Digest(text, strlen(text), digest, &length, EVP_sha1(), NULL);
    for (unsigned i = 0; i < length && i < 20; i++)
        snprintf(script->hash + (size_t)2 * i, 3, "%02x", digest[i]);
}

void hfi_redis_add(struct redis_command *command, const char *text)
{
    assert(command->count < command->room);
    command->text[command->count++] = text;
}

void hfi_redis_add_script(struct redis_command *command, const struct redis_script *script)
{
    command->script = script;
    hfi_redis_add(command, "EVALSHA");
    hfi_redis_add(command, script->hash);
}

/* --- sending and receiving bytes --- */

/* What OpenSSL wants before it can go on; false: it failed. */
static bool tls_wants(const struct redis_connection *connection, int result, hfi_time deadline_ns)
{
    const int error = SSL_get_error(connection->tls, result);
    if (error == SSL_ERROR_WANT_READ)
        return hfi_redis_ready_by(connection->fd, POLLIN, deadline_ns);
    if (error == SSL_ERROR_WANT_WRITE)
        return hfi_redis_ready_by(connection->fd, POLLOUT, deadline_ns);
    return false;
}

/* How many bytes were sent; 0: failed, or the deadline came. */
static size_t send_some(struct redis_connection *connection, const char *bytes, size_t length, hfi_time deadline_ns)
{
    for (;;) {
        if (connection->tls) {
            ERR_clear_error();
            const int sent = SSL_write(connection->tls, bytes, (int)length);
            if (sent > 0)
                return (size_t)sent;
            if (!tls_wants(connection, sent, deadline_ns))
                return 0;
            continue;
        }
        const ssize_t sent = send(connection->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0)
            return (size_t)sent;
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent >= 0 || errno != EAGAIN || !hfi_redis_ready_by(connection->fd, POLLOUT, deadline_ns))
            return 0;
    }
}

/* Bytes received; 0: the other side closed; -1 with errno, EAGAIN if nothing came by the deadline. */
static ssize_t receive_some(struct redis_connection *connection, char *buffer, size_t size, hfi_time deadline_ns)
{
    for (;;) {
        const hfi_time left = deadline_ns == HFI_NEVER ? HFI_NEVER : deadline_ns - hfi_redis_now_ns();
        const bool buffered = connection->tls && SSL_pending(connection->tls) > 0;
        if (!buffered && left < connection->receive_ns && !hfi_redis_ready_by(connection->fd, POLLIN, deadline_ns)) {
            errno = EAGAIN;
            return -1;
        }
        if (!connection->tls) {
            const ssize_t got = recv(connection->fd, buffer, size, 0);
            if (got < 0 && (errno == EINTR || (errno == EAGAIN && hfi_redis_now_ns() < deadline_ns)))
                continue;
            return got;
        }
        ERR_clear_error();
        const int got = SSL_read(connection->tls, buffer, (int)size);
        if (got > 0)
            return got;
        if (SSL_get_error(connection->tls, got) == SSL_ERROR_ZERO_RETURN)
            return 0;
        if (!tls_wants(connection, got, deadline_ns)) {
            errno = hfi_redis_now_ns() >= deadline_ns ? EAGAIN : ECONNRESET;
            return -1;
        }
    }
}

/* --- whole commands and replies --- */

/* A word, of those from `natively` on: the module's command has one in place of EVALSHA and the hash. */
static const char *word_of(const struct redis_command *command, bool natively, int i)
{
    return natively && i == 1 ? command->script->native : command->text[i];
}

static char *add_number(char *at, char kind, size_t number)
{
    char digits[24];
    size_t length = 0;
    do
        digits[length++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    *at++ = kind;
    while (length > 0)
        *at++ = digits[--length];
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

#define NUMBER_MOST 24

bool hfi_redis_format(struct hfi_bytes *out, const struct redis_connection *connection,
                      const struct redis_command *command)
{
    const bool natively = connection->native && command->script && command->script->native && !command->by_script;
    size_t all = NUMBER_MOST;
    for (int i = natively; i < command->count; i++)
        all += NUMBER_MOST + strlen(word_of(command, natively, i)) + 2;
    if (!hfi_bytes_reserve(out, all))
        return false;
    char *at = add_number(out->data + out->used, '*', (size_t)(command->count - natively));
    for (int i = natively; i < command->count; i++) {
        const size_t length = strlen(word_of(command, natively, i));
        at = add_number(at, '$', length);
        memcpy(at, word_of(command, natively, i), length);
        at += length;
        *at++ = '\r';
        *at++ = '\n';
    }
    out->used = (size_t)(at - out->data);
    return true;
}

hf_status hfi_redis_send(struct redis_connection *connection, const struct redis_command *commands, size_t count,
                         hfi_time deadline_ns, hf_error *err)
{
    struct hfi_bytes all = { 0 };
    size_t sent = 0, step = 1;
    for (size_t i = 0; i < count; i++) {
        if (!hfi_redis_format(&all, connection, &commands[i])) {
            hfi_free(all.data);
            return hfi_fail(err, HF_NOMEM, 0, "no memory for a command");
        }
    }
    connection->unanswered += (unsigned)count;
    while (sent < all.used && (step = send_some(connection, all.data + sent, all.used - sent, deadline_ns)) > 0)
        sent += step;
    hfi_free(all.data);
    if (sent == all.used)
        return HF_OK;
    return hfi_fail(err, HF_UNKNOWN, 0, "the connection broke while a command was being sent");
}

hf_status hfi_redis_receive(struct redis_connection *connection, redisReply **out, hfi_time deadline_ns, hf_error *err)
{
    char buffer[BUFFER];
    for (bool last = false;;) { /* a server that talks on without an end must not keep us */
        void *reply = NULL;
        *out = NULL; /* also of an answer that was freed below */
        if (redisReaderGetReply(connection->reader, &reply) != REDIS_OK)
            return hfi_fail(err, HF_UNKNOWN, 0, "the server's reply is no Redis protocol (%.60s)",
                            connection->reader->errstr);
        *out = reply;
        connection->unanswered -= reply && connection->unanswered;
        if (reply && connection->owed == 0)
            return HF_OK;
        if (reply) { /* an answer that nobody waited for */
            connection->owed--;
            freeReplyObject(reply);
            continue;
        }
        const ssize_t got = last ? -1 : receive_some(connection, buffer, sizeof buffer, deadline_ns);
        if (last || (got < 0 && errno == EAGAIN))
            return hfi_fail(err, HF_TIMEOUT, 0, "the server did not answer in time");
        if (got <= 0)
            return hfi_fail(err, HF_UNKNOWN, got < 0 ? errno : 0,
                            "the server closed the connection before it answered");
        if (redisReaderFeed(connection->reader, buffer, (size_t)got) != REDIS_OK)
            return hfi_fail(err, HF_UNKNOWN, 0, "no memory for the server's reply");
        last = hfi_redis_now_ns() >= deadline_ns;
    }
}

hf_status hfi_redis_fetch(struct redis_connection *connection)
{
    char buffer[BUFFER];
    ssize_t got;
    do {
        if (connection->tls) {
            ERR_clear_error();
            got = SSL_read(connection->tls, buffer, sizeof buffer);
            if (got <= 0 && SSL_get_error(connection->tls, (int)got) == SSL_ERROR_WANT_READ)
                return HF_OK;
        } else {
            got = recv(connection->fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR))
                return HF_OK;
        }
        if (got <= 0 || redisReaderFeed(connection->reader, buffer, (size_t)got) != REDIS_OK)
            return HF_UNKNOWN;
    } while (connection->tls && SSL_pending(connection->tls) > 0); /* which poll() does not see */
    return HF_OK;
}

hf_status hfi_redis_fetched(struct redis_connection *connection, redisReply **out)
{
    int result;
    do {
        void *reply = NULL;
        result = redisReaderGetReply(connection->reader, &reply);
        *out = reply;
        connection->unanswered -= reply && connection->unanswered;
        if (!reply || connection->owed == 0)
            break;
        connection->owed--; /* an answer that nobody waited for */
        freeReplyObject(reply);
        *out = NULL;
    } while (result == REDIS_OK);
    return result == REDIS_OK ? HF_OK : HF_UNKNOWN;
}

/* --- the reader --- */

/* hiredis sets aside, and later looks through, as many places as the header of an array announces: gigabytes and many
 * seconds for one line of nonsense. No answer to us has more than this. */
#define ELEMENTS_MOST 1000000

#if HIREDIS_MAJOR < 1
typedef int elements_number;
#else
typedef size_t elements_number;
#endif

static void *create_array(const redisReadTask *task, elements_number elements)
{
    const redisReplyObjectFunctions *usual = task->privdata;
    return elements > ELEMENTS_MOST ? NULL : usual->createArray(task, elements);
}

bool hfi_redis_create_reader(struct redis_connection *connection)
{
    redisReader *reader = connection->reader = redisReaderCreate();
    if (!reader)
        return false;
    connection->functions = *reader->fn;
    connection->functions.createArray = create_array;
    reader->privdata = reader->fn;
    reader->fn = &connection->functions;
    return true;
}

bool hfi_redis_is_alive(struct redis_connection *connection)
{
    char byte;
    redisReply *reply = NULL;
    if (connection->owed &&
        (hfi_redis_fetch(connection) != HF_OK || hfi_redis_fetched(connection, &reply) != HF_OK || reply)) {
        freeReplyObject(reply);
        return false;
    }
    const ssize_t got = recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0)
        return connection->owed > 0;                       /* it has come this very moment */
    return got < 0 && (errno == EAGAIN || errno == EINTR); /* idle: nothing there, not even the end */
}
