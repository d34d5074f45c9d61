/* SPDX-License-Identifier: MIT
 *
 * redis_connection.c: one connection: the socket, TLS, the log-in, and exchanges with a deadline. hiredis formats and
 * parses; the socket is ours, so that every wait ends when the core says so.
 *
 * The socket blocks, with SO_RCVTIMEO as a limit: an exchange is then one send and one recv, as with raw hiredis. Only
 * a deadline nearer than that limit costs a poll.
 */
#include "redis.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 16384

/* The core's clock, read directly: a socket waits in real time, also where a test has set env->now_ns() forward. */
static hfi_time now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * HFI_SECOND + now.tv_nsec;
}

/* True if the socket is ready by the deadline. */
static bool ready_by(int fd, short events, hfi_time deadline_ns)
{
    struct pollfd one = { .fd = fd, .events = events };
    int result;
    do {
        const hfi_time left = deadline_ns == HFI_NEVER ? HFI_SECOND : deadline_ns - now_ns();
        const struct timespec time = { .tv_sec = left > 0 ? left / HFI_SECOND : 0,
                                       .tv_nsec = left > 0 ? left % HFI_SECOND : 0 };
        result = ppoll(&one, 1, &time, NULL);
    } while ((result < 0 && errno == EINTR) || (result == 0 && deadline_ns == HFI_NEVER));
    return result > 0;
}

void hfi_redis_add(struct redis_command *command, const char *text)
{
    command->text[command->count] = text;
    command->length[command->count] = strlen(text);
    command->count++;
}

/* --- sending and receiving bytes --- */

/* What OpenSSL wants before it can go on; false: it failed. */
static bool tls_wants(const struct redis_connection *connection, int result, hfi_time deadline_ns)
{
    const int error = SSL_get_error(connection->tls, result);
    if (error == SSL_ERROR_WANT_READ)
        return ready_by(connection->fd, POLLIN, deadline_ns);
    if (error == SSL_ERROR_WANT_WRITE)
        return ready_by(connection->fd, POLLOUT, deadline_ns);
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
        if (sent >= 0 || errno != EAGAIN || !ready_by(connection->fd, POLLOUT, deadline_ns))
            return 0;
    }
}

static void limit_receive(struct redis_connection *connection, hfi_time limit_ns)
{
    const struct timeval limit = { .tv_sec = limit_ns / HFI_SECOND, .tv_usec = limit_ns % HFI_SECOND / 1000 };
    if (setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0)
        connection->receive_ns = limit_ns;
}

/* Bytes received; 0: the other side closed; -1 with errno, EAGAIN if nothing came by the deadline. */
static ssize_t receive_some(struct redis_connection *connection, char *buffer, size_t size, hfi_time deadline_ns)
{
    for (;;) {
        const hfi_time left = deadline_ns == HFI_NEVER ? HFI_NEVER : deadline_ns - now_ns();
        const bool buffered = connection->tls && SSL_pending(connection->tls) > 0;
        if (!buffered && left < connection->receive_ns && !ready_by(connection->fd, POLLIN, deadline_ns)) {
            errno = EAGAIN;
            return -1;
        }
        if (!connection->tls) {
            const ssize_t got = recv(connection->fd, buffer, size, 0);
            if (got < 0 && (errno == EINTR || (errno == EAGAIN && now_ns() < deadline_ns)))
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
            errno = now_ns() >= deadline_ns ? EAGAIN : ECONNRESET;
            return -1;
        }
    }
}

/* --- whole commands and replies --- */

hf_status hfi_redis_send(struct redis_connection *connection, const struct redis_command *const *commands, size_t count,
                         hfi_time deadline_ns, hf_error *err)
{
    char *all = NULL;
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        char *one = NULL;
        const int size = redisFormatCommandArgv(&one, commands[i]->count, (const char **)(uintptr_t)commands[i]->text,
                                                commands[i]->length);
        char *joined = size < 0 ? NULL : i == 0 ? one : hfi_alloc(length + (size_t)size);
        if (joined && i > 0) {
            memcpy(joined, all, length);
            memcpy(joined + length, one, (size_t)size);
            redisFreeCommand(one);
        }
        if (i == 1)
            redisFreeCommand(all);
        else if (i > 1)
            hfi_free(all);
        if (!joined) {
            if (size >= 0)
                redisFreeCommand(one);
            return hfi_fail(err, HF_NOMEM, 0, "no memory for a command");
        }
        all = joined;
        length += (size_t)size;
    }
    size_t sent = 0;
    size_t step = 1;
    while (sent < length && (step = send_some(connection, all + sent, length - sent, deadline_ns)) > 0)
        sent += step;
    if (count == 1)
        redisFreeCommand(all);
    else
        hfi_free(all);
    if (sent == length)
        return HF_OK;
    return hfi_fail(err, HF_UNKNOWN, 0, "the connection broke while a command was being sent");
}

hf_status hfi_redis_receive(struct redis_connection *connection, redisReply **out, hfi_time deadline_ns, hf_error *err)
{
    char buffer[BUFFER];
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(connection->reader, &reply) != REDIS_OK)
            return hfi_fail(err, HF_UNKNOWN, 0, "the server's reply is no Redis protocol (%.60s)",
                            connection->reader->errstr);
        *out = reply;
        if (reply)
            return HF_OK;
        const ssize_t got = receive_some(connection, buffer, sizeof buffer, deadline_ns);
        if (got < 0 && errno == EAGAIN)
            return hfi_fail(err, HF_TIMEOUT, 0, "the server did not answer in time");
        if (got <= 0)
            return hfi_fail(err, HF_UNKNOWN, got < 0 ? errno : 0,
                            "the server closed the connection before it answered");
        if (redisReaderFeed(connection->reader, buffer, (size_t)got) != REDIS_OK)
            return hfi_fail(err, HF_UNKNOWN, 0, "no memory for the server's reply");
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
    } while (connection->tls); /* what OpenSSL has read, poll() does not see */
    return HF_OK;
}

hf_status hfi_redis_fetched(struct redis_connection *connection, redisReply **out)
{
    void *reply = NULL;
    const int result = redisReaderGetReply(connection->reader, &reply);
    *out = reply;
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

static bool create_reader(struct redis_connection *connection)
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

/* --- connecting --- */

static hf_status unreachable(const struct redis_config *config, int number, hf_error *err)
{
    char reason[80];
    const char *separator = *config->port ? ":" : "";
    return hfi_fail(err, number == EMFILE || number == ENFILE ? HF_NOMEM : HF_UNAVAILABLE, number,
                    "cannot connect to %.120s%s%s: %s", config->host, separator, config->port,
                    number == EAGAIN ? "no answer in time" : strerror_r(number, reason, sizeof reason));
}

/* A connected socket, or -1 with errno. */
static int connect_to(const struct sockaddr *address, socklen_t length, hfi_time deadline_ns)
{
    int number = 0;
    socklen_t size = sizeof number;
    const int fd = HFI_FD(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    if (connect(fd, address, length) != 0)
        number = errno;
    if (number == EINPROGRESS || number == EINTR) {
        number = EAGAIN;
        if (ready_by(fd, POLLOUT, deadline_ns))
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size);
    }
    if (number == 0 && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0)
        return fd;
    hfi_fd_close(fd);
    errno = number ? number : EIO;
    return -1;
}

static int connect_unix(const struct redis_config *config, hfi_time deadline_ns)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s", config->host) >= (int)sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return connect_to((const struct sockaddr *)&address, sizeof address, deadline_ns);
}

static hf_status open_socket(int *fd, const struct redis_config *config, hfi_time deadline_ns, hf_error *err)
{
    if (!*config->port) {
        *fd = connect_unix(config, deadline_ns);
        return *fd >= 0 ? HF_OK : unreachable(config, errno, err);
    }
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    const int failure = getaddrinfo(config->host, config->port, &hints, &found);
    if (failure)
        return hfi_fail(err, HF_UNAVAILABLE, failure, "cannot find host %.120s: %s", config->host,
                        gai_strerror(failure));
    *fd = -1;
    for (const struct addrinfo *one = found; one && *fd < 0; one = one->ai_next)
        *fd = connect_to(one->ai_addr, one->ai_addrlen, deadline_ns);
    const int number = errno;
    freeaddrinfo(found);
    if (*fd < 0)
        return unreachable(config, number, err);
    const int yes = 1;
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(*fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    return HF_OK;
}

static hf_status start_tls(struct redis_connection *connection, const struct redis_config *config, SSL_CTX *context,
                           hfi_time deadline_ns, hf_error *err)
{
    connection->tls = SSL_new(context);
    if (!connection->tls || SSL_set_fd(connection->tls, connection->fd) != 1 ||
        SSL_set1_host(connection->tls, config->host) != 1)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a TLS connection");
    SSL_set_tlsext_host_name(connection->tls, config->host);
    fcntl(connection->fd, F_SETFL,
          fcntl(connection->fd, F_GETFL) | O_NONBLOCK); /* deadlines hold in the handshake too */
    int done;
    do {
        ERR_clear_error();
        done = SSL_connect(connection->tls);
    } while (done != 1 && tls_wants(connection, done, deadline_ns));
    if (done == 1)
        return HF_OK;
    const long verified = SSL_get_verify_result(connection->tls);
    if (verified != X509_V_OK)
        return hfi_fail(err, HF_DENIED, (int)verified, "the certificate of %.100s is not to be trusted: %s",
                        config->host, X509_verify_cert_error_string(verified));
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return hfi_fail(err, HF_UNAVAILABLE, 0, "no TLS with %.100s: %s", config->host,
                    reason ? reason : "no answer in time");
}

hf_status hfi_redis_tls_new(SSL_CTX **out, const struct redis_config *config, hf_error *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    *out = context;
    if (!context)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_AUTO_RETRY | SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_verify(context, config->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (config->ca_file && SSL_CTX_load_verify_locations(context, config->ca_file, NULL) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read certificates from %.160s", config->ca_file);
    if (!config->ca_file)
        SSL_CTX_set_default_verify_paths(context);
    if (config->cert_file && SSL_CTX_use_certificate_chain_file(context, config->cert_file) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read a certificate from %.160s", config->cert_file);
    const char *key = config->key_file ? config->key_file : config->cert_file;
    if (key && SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return hfi_fail(err, HF_INVALID, 0, "cannot read a private key from %.160s", key);
    return HF_OK;
}

/* AUTH and SELECT, as far as the URL asks for them, and a PING, which a server that wants a password refuses. */
static hf_status log_in(struct redis_connection *connection, const struct redis_config *config, hfi_time deadline_ns,
                        hf_error *err)
{
    struct redis_command auth = { 0 }, database = { 0 }, ping = { 0 };
    const struct redis_command *commands[3];
    size_t count = 0;
    char number[16];
    if (*config->password) {
        hfi_redis_add(&auth, "AUTH");
        if (*config->user)
            hfi_redis_add(&auth, config->user);
        hfi_redis_add(&auth, config->password);
        commands[count++] = &auth;
    }
    if (config->database) {
        snprintf(number, sizeof number, "%d", config->database);
        hfi_redis_add(&database, "SELECT");
        hfi_redis_add(&database, number);
        commands[count++] = &database;
    }
    hfi_redis_add(&ping, "PING");
    commands[count++] = &ping;
    hf_status status = hfi_redis_send(connection, commands, count, deadline_ns, err);
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        redisReply *reply = NULL;
        status = hfi_redis_receive(connection, &reply, deadline_ns, err);
        if (status == HF_OK && reply && reply->type == REDIS_REPLY_ERROR)
            status = hfi_redis_refusal(reply, commands[i] == &auth ? NULL : "", err);
        freeReplyObject(reply);
    }
    /* Nothing that mattered was sent yet. */
    return status == HF_UNKNOWN || status == HF_TIMEOUT ? HF_UNAVAILABLE : status;
}

hf_status hfi_redis_connect(struct redis_connection **out, const struct redis_config *config, SSL_CTX *tls,
                            hfi_time deadline_ns, hf_error *err)
{
    if (config->connect_ns && now_ns() + config->connect_ns < deadline_ns)
        deadline_ns = now_ns() + config->connect_ns;
    struct redis_connection *connection = hfi_alloc(sizeof *connection);
    *out = NULL;
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->fd = -1;
    hf_status status = create_reader(connection) ? open_socket(&connection->fd, config, deadline_ns, err)
                                                 : hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    if (status == HF_OK) {
        limit_receive(connection, HFI_SECOND);
        if (tls)
            status = start_tls(connection, config, tls, deadline_ns, err);
    }
    if (status == HF_OK)
        status = log_in(connection, config, deadline_ns, err);
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        if (err)
            err->status = status;
        return status;
    }
    *out = connection;
    return HF_OK;
}

void hfi_redis_disconnect(struct redis_connection *connection)
{
    if (!connection)
        return;
    SSL_free(connection->tls); /* without the farewell, which could block */
    hfi_fd_close(connection->fd);
    if (connection->reader)
        redisReaderFree(connection->reader);
    hfi_free(connection);
}

bool hfi_redis_is_alive(const struct redis_connection *connection)
{
    char byte;
    const ssize_t got = recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EINTR); /* idle: nothing there, not even the end */
}
