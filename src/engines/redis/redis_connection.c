/* SPDX-License-Identifier: MIT
 *
 * redis_connection.c: commands and replies on one connection, each by a deadline. hiredis formats and parses; the
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

static void free_formatted(void *command)
{
    redisFreeCommand(command);
}

/* All commands as one text, which *free_it must free; NULL: no memory. */
static char *format(const struct redis_command *commands, size_t count, size_t *length, void (**free_it)(void *))
{
    struct buffer {
        char *text;
        size_t used, room;
    } all = { NULL, 0, 0 };
    *free_it = count == 1 ? free_formatted : hfi_free;
    for (size_t i = 0; i < count; i++) {
        char *one = NULL;
        const int size = redisFormatCommandArgv(&one, commands[i].count, commands[i].text, NULL);
        if (size < 0)
            break;
        *length = all.used + (size_t)size;
        if (count == 1)
            return one;
        if (*length > all.room) {
            char *larger = hfi_alloc(2 * *length);
            if (larger && all.used)
                memcpy(larger, all.text, all.used);
            hfi_free(all.text);
            all.text = larger;
            all.room = 2 * *length;
        }
        if (all.text)
            memcpy(all.text + all.used, one, (size_t)size);
        redisFreeCommand(one);
        if (!all.text)
            return NULL;
        all.used = *length;
        if (i + 1 == count)
            return all.text;
    }
    hfi_free(all.text);
    return NULL;
}

hf_status hfi_redis_send(struct redis_connection *connection, const struct redis_command *commands, size_t count,
                         hfi_time deadline_ns, hf_error *err)
{
    void (*free_it)(void *);
    size_t length = 0, sent = 0, step = 1;
    char *all = format(commands, count, &length, &free_it);
    if (!all)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a command");
    connection->unanswered += (unsigned)count;
    while (sent < length && (step = send_some(connection, all + sent, length - sent, deadline_ns)) > 0)
        sent += step;
    free_it(all);
    if (sent == length)
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
