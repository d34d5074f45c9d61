/* SPDX-License-Identifier: MIT
 *
 * redis_server.c: real servers for tests; see redis_server.h.
 */
#include "redis_server.h"

#include "server_clock.h"
#include "server_home.h"
#include "test.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* How long a server may take to start; on a busy machine that can be seconds. */
#define START_S 20
#define START_TRIES 5
#define PORT_FIRST 12000
#define PORT_COUNT 10000
#define PORT_TRIES 1000
#define BUS_OFFSET 10000

/* ---------------------------------------------------------------------------------------------- starting and ending */

static bool has_loopback6(void)
{
    const struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return bound;
}

/* The port of a cluster's bus is 10000 higher, which is below those of outgoing connections as well. */
static int free_port(void)
{
    int port = home_free_port(PORT_FIRST, PORT_COUNT);
    for (int tries = 0; !home_claim_port(port + BUS_OFFSET); tries++) {
        REQUIRE(tries < PORT_TRIES);
        port = home_free_port(PORT_FIRST, PORT_COUNT);
    }
    return port;
}

/* What every server is started with, on the command line or in a file. */
static void describe(const struct redis_server *server, char *out, size_t size)
{
    const char *const loopback6 = has_loopback6() ? "::1" : "";
    const int used = snprintf(
        out, size, "--port %d --bind %s %s --dir %s --unixsocket %s/s --logfile %s/log --daemonize no ", server->port,
        server->address, server->place ? "" : loopback6, server->directory, server->directory, server->directory);
    const char *const module = getenv("TEST_EVERY_SERVER_LOADS");
    snprintf(out + used, size - (size_t)used, "%s %s %s %s",
             server->sentinel ? "" : "--save \"\" --appendonly no --repl-diskless-sync-delay 0", server->arguments,
             module && !server->sentinel ? "--loadmodule" : "", module && !server->sentinel ? module : "");
}

void redis_server_launch(struct redis_server *server, const char *more)
{
    char described[2000], command[3000];
    const struct home_program program = { .home = server->directory, .place = server->place, .clock = server->clock };
    REQUIRE_INT(0, server->pid);
    describe(server, described, sizeof described);
    snprintf(command, sizeof command, "%s %s %s %s", server->binary,
             *server->configuration ? server->configuration : described, server->sentinel ? "--sentinel" : "", more);
    server->pid = home_launch(&program, command);
}

static void forget_control(struct redis_server *server)
{
    if (server->control)
        redisFree(server->control);
    server->control = NULL;
}

redisContext *redis_server_connect(const struct redis_server *server)
{
    char path[256];
    const struct timeval limit = { .tv_sec = START_S };
    snprintf(path, sizeof path, "%s/s", server->directory);
    redisContext *context = redisConnectUnixWithTimeout(path, limit);
    if (context && context->err == 0) {
        redisSetTimeout(context, limit);
        if (*server->password)
            freeReplyObject(redisCommand(context, "AUTH %s", server->password));
        return context;
    }
    if (context)
        redisFree(context);
    return NULL;
}

/* True if it answers, and is done with loading. */
static bool answers(void *arg)
{
    struct redis_server *server = arg;
    forget_control(server);
    server->control = redis_server_connect(server);
    redisReply *reply = server->control ? redisCommand(server->control, "PING") : NULL;
    const bool ready = reply && strncmp(reply->str, "LOADING", 7) != 0;
    freeReplyObject(reply);
    if (!ready)
        forget_control(server);
    return ready;
}

bool redis_server_started(struct redis_server *server)
{
    const bool started = home_starts(server->pid, server->directory, START_S, answers, server);
    if (!started)
        server->pid = 0;
    return started;
}

void redis_server_await(struct redis_server *server)
{
    REQUIRE(redis_server_started(server));
}

bool redis_server_runs(const struct redis_server *server)
{
    return server->pid > 0 && !server->paused;
}

static void stop(void *server)
{
    redis_server_stop(server);
}

static struct redis_server *new_server(const struct redis_server_setup *setup)
{
    struct redis_server *server = home_new(sizeof *server, stop);
    snprintf(server->binary, sizeof server->binary, "%s", setup->binary ? setup->binary : "redis-server");
    home_make(server->directory, sizeof server->directory, NULL, "redis");
    server->sentinel = setup->sentinel;
    server->place = setup->place;
    snprintf(server->address, sizeof server->address, "%s", home_address(setup->place));
    snprintf(server->unix_url, sizeof server->unix_url, "redis+unix://%s/s", server->directory);
    /* Beside its folder: a server that comes back without its data has its configuration still. */
    if (setup->configuration || setup->sentinel)
        snprintf(server->configuration, sizeof server->configuration, "%s.conf", server->directory);
    if (setup->own_clock)
        snprintf(server->clock, sizeof server->clock, "%s.clock", server->directory);
    return server;
}

static void set_ports(struct redis_server *server, const struct redis_server_setup *setup)
{
    char tls[700] = "";
    server->port = free_port();
    snprintf(server->url, sizeof server->url, "redis://%s:%d", server->address, server->port);
    snprintf(server->url6, sizeof server->url6, "redis://[::1]:%d", server->port);
    if (setup->tls) {
        const char *certificates = home_need("TEST_CERTIFICATES");
        server->tls_port = free_port();
        snprintf(server->tls_url, sizeof server->tls_url, "rediss://localhost:%d?cafile=%s/ca.pem", server->tls_port,
                 certificates);
        const int used = snprintf(tls, sizeof tls,
                                  "--tls-port %d --tls-cert-file %s/server.pem --tls-key-file %s/server.key "
                                  "--tls-ca-cert-file %s/ca.pem --tls-auth-clients no ",
                                  server->tls_port, certificates, certificates, certificates);
        REQUIRE(used < (int)sizeof tls);
    }
    const int used = snprintf(server->arguments, sizeof server->arguments, "%s%s%s", tls,
                              setup->place ? "--protected-mode no " : "", setup->arguments ? setup->arguments : "");
    REQUIRE(used < (int)sizeof server->arguments);
}

void redis_server_configure(const struct redis_server *server, const char *format, ...)
{
    va_list args;
    FILE *file = fopen(server->configuration, "ae");
    REQUIRE(file != NULL);
    va_start(args, format);
    REQUIRE(vfprintf(file, format, args) > 0 && fputc('\n', file) == '\n');
    va_end(args);
    REQUIRE_INT(0, fclose(file));
}

/* The command line, a line for each option. */
static void write_configuration(const struct redis_server *server)
{
    char text[3000], *rest = NULL;
    describe(server, text, sizeof text);
    FILE *file = fopen(server->configuration, "we");
    REQUIRE(file != NULL);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        fprintf(file, strncmp(word, "--", 2) == 0 ? "\n%s" : " %s", strncmp(word, "--", 2) == 0 ? word + 2 : word);
    fputc('\n', file);
    REQUIRE_INT(0, fclose(file));
}

struct redis_server *redis_server_prepare(const struct redis_server_setup *setup)
{
    struct redis_server *server = new_server(setup);
    set_ports(server, setup);
    if (*server->configuration)
        write_configuration(server);
    if (setup->password) {
        REQUIRE(*server->configuration);
        snprintf(server->password, sizeof server->password, "%s", setup->password);
        redis_server_configure(server, "requirepass %s", setup->password);
        if (!setup->sentinel)
            redis_server_configure(server, "masterauth %s", setup->password);
    }
    if (*server->clock)
        redis_server_set_clock(server, 0);
    return server;
}

static struct redis_server *start(const struct redis_server_setup *setup)
{
    struct redis_server *server = new_server(setup);
    for (int try = 0; try < START_TRIES; try++) {
        set_ports(server, setup);
        redis_server_launch(server, "");
        if (redis_server_started(server))
            return server;
    }
    FAIL("%s does not start; %s/log says why", server->binary, server->directory);
    test_abort();
}

struct redis_server *redis_server_start(const char *binary, const char *arguments)
{
    return start(&(struct redis_server_setup){ .binary = binary, .arguments = arguments });
}

struct redis_server *redis_server_start_tls(const char *binary, const char *arguments)
{
    return start(&(struct redis_server_setup){ .binary = binary, .arguments = arguments, .tls = true });
}

struct redis_server *redis_server_start_replica(struct redis_server *master)
{
    char arguments[100];
    const struct timespec pause = { .tv_nsec = 10000000 };
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    snprintf(arguments, sizeof arguments, "--replicaof 127.0.0.1 %d --repl-diskless-load disabled", master->port);
    struct redis_server *replica = redis_server_start(master->binary, arguments);
    /* WAIT, and not the replica's own word: it counts what the master has heard from it. */
    redis_server_do(master, "SET in-step 1");
    while (redis_server_number(master, "WAIT 1 100") < 1) {
        REQUIRE(test_now_ns() < end_ns);
        nanosleep(&pause, NULL);
    }
    redis_server_do(master, "DEL in-step");
    return replica;
}

void redis_server_kill(struct redis_server *server)
{
    REQUIRE(server->pid > 0);
    forget_control(server);
    home_kill(&server->pid, SIGKILL);
    server->paused = false;
}

void redis_server_stop(struct redis_server *server)
{
    if (server->pid > 0)
        redis_server_kill(server); /* what it would save is removed anyway */
    home_remove(server->directory);
    if (*server->configuration)
        unlink(server->configuration);
    if (*server->clock)
        unlink(server->clock);
    home_forget(server);
}

void redis_server_restart(struct redis_server *server, bool with_data, const char *more)
{
    if (server->pid > 0)
        redis_server_kill(server);
    if (!with_data) {
        home_remove(server->directory);
        REQUIRE_INT(0, mkdir(server->directory, 0700));
    }
    redis_server_launch(server, more);
    redis_server_await(server);
}

void redis_server_pause(struct redis_server *server)
{
    home_pause(server->pid);
    server->paused = true;
}

void redis_server_continue(struct redis_server *server)
{
    home_continue(server->pid);
    server->paused = false;
}

void redis_server_set_clock(const struct redis_server *server, int64_t offset_ms)
{
    REQUIRE(*server->clock);
    server_clock_set(server->clock, offset_ms);
}

int64_t redis_server_clock_offset_ms(struct redis_server *server)
{
    struct timeval here;
    redisReply *reply = redis_server_command(server, "TIME");
    gettimeofday(&here, NULL);
    REQUIRE(reply->type == REDIS_REPLY_ARRAY && reply->elements == 2);
    const int64_t there_us =
        strtoll(reply->element[0]->str, NULL, 10) * 1000000 + strtoll(reply->element[1]->str, NULL, 10);
    freeReplyObject(reply);
    return (there_us - (here.tv_sec * 1000000LL + here.tv_usec)) / 1000;
}

/* --------------------------------------------------------------------------------------------------------- commands */

/* Whoever makes a replica of a master, or the other way round, ends its connections: this one too. */
static bool is_closed(const redisContext *context)
{
    struct pollfd state = { .fd = context->fd, .events = POLLIN };
    return poll(&state, 1, 0) != 0;
}

static redisReply *ask(struct redis_server *server, const char *format, va_list args)
{
    if (server->control && is_closed(server->control))
        forget_control(server);
    if (!server->control)
        redis_server_await(server);
    redisReply *reply = redisvCommand(server->control, format, args);
    if (!reply) {
        FAIL("%s: %s", format, server->control->errstr);
        test_abort();
    }
    return reply;
}

static redisReply *ask_well(struct redis_server *server, const char *format, va_list args)
{
    redisReply *reply = ask(server, format, args);
    if (reply->type == REDIS_REPLY_ERROR) {
        FAIL("%s: %s", format, reply->str);
        test_abort();
    }
    return reply;
}

redisReply *redis_server_command(struct redis_server *server, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    redisReply *reply = ask(server, format, args);
    va_end(args);
    return reply;
}

void redis_server_do(struct redis_server *server, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    freeReplyObject(ask_well(server, format, args));
    va_end(args);
}

int64_t redis_server_number(struct redis_server *server, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    redisReply *reply = ask_well(server, format, args);
    va_end(args);
    int64_t number = -1;
    if (reply->type == REDIS_REPLY_INTEGER)
        number = reply->integer;
    else if (reply->type == REDIS_REPLY_STRING)
        number = strtoll(reply->str, NULL, 10);
    else
        REQUIRE_INT(REDIS_REPLY_NIL, reply->type);
    freeReplyObject(reply);
    return number;
}

void redis_server_text(struct redis_server *server, char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    redisReply *reply = ask_well(server, format, args);
    va_end(args);
    snprintf(out, size, "%s", reply->type == REDIS_REPLY_NIL ? "" : reply->str);
    freeReplyObject(reply);
}

/* ------------------------------------------------------------------------------------------------------- statistics */

static int64_t calls_in(const char *statistics, const char *command)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "cmdstat_%s:calls=", command);
    const char *place = strstr(statistics, wanted);
    return place ? strtoll(place + strlen(wanted), NULL, 10) : 0;
}

int64_t redis_server_calls(struct redis_server *server, const char *command)
{
    redisReply *reply = redis_server_command(server, "INFO commandstats");
    const int64_t calls = calls_in(reply->str, command);
    freeReplyObject(reply);
    return calls;
}

int64_t redis_server_listeners(struct redis_server *server)
{
    redisReply *reply = redis_server_command(server, "PUBSUB CHANNELS hf:c:*:b");
    REQUIRE(reply->type == REDIS_REPLY_ARRAY);
    const int64_t count = (int64_t)reply->elements;
    freeReplyObject(reply);
    return count;
}

int64_t redis_server_sent(struct redis_server *server)
{
    /* PUBLISH and the like are called by scripts alone; PING and INFO are also this file's own. */
    static const char *const by_clients[] = { "evalsha",    "eval",     "subscribe",   "unsubscribe", "scan",
                                              "wait",       "waitaof",  "auth",        "select",      "hello",
                                              "script",     "multi",    "exec",        "script|load", "psubscribe",
                                              "ssubscribe", "fcall",    "hf.acquire",  "hf.release",  "hf.renew",
                                              "hf.look",    "hf.guard", "hf.sacquire", "hf.srelease" };
    redisReply *reply = redis_server_command(server, "INFO commandstats");
    int64_t sent = 0;
    for (size_t i = 0; i < sizeof by_clients / sizeof *by_clients; i++)
        sent += calls_in(reply->str, by_clients[i]);
    freeReplyObject(reply);
    return sent;
}
