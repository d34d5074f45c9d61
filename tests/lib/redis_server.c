/* SPDX-License-Identifier: MIT
 *
 * redis_server.c: real servers for tests; see redis_server.h.
 */
#include "redis_server.h"

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGUMENTS_MOST 80
/* How long a server may take to start; on a busy machine that can be seconds. */
#define START_S 20
#define START_TRIES 5

static struct redis_server *servers;
static pid_t starter; /* atexit() handlers are inherited by forked children, the servers are not theirs */

/* ---------------------------------------------------------------------------------------------- starting and ending */

static int free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    REQUIRE_INT(0, bind(fd, (struct sockaddr *)&address, sizeof address));
    REQUIRE_INT(0, getsockname(fd, (struct sockaddr *)&address, &size));
    close(fd);
    return ntohs(address.sin_port);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

static void remove_tree(const char *path)
{
    chmod(path, 0700);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Splits at blanks; "" becomes an empty argument. */
static int split(char **out, int count, char *text)
{
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        REQUIRE(count < ARGUMENTS_MOST - 1);
        out[count++] = strcmp(word, "\"\"") == 0 ? word + 2 : word;
    }
    return count;
}

static _Noreturn void become_server(const struct redis_server *server, const char *more, pid_t parent)
{
    char text[3000];
    char *arguments[ARGUMENTS_MOST] = { NULL };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    snprintf(text, sizeof text,
             "%s --port %d --bind 127.0.0.1 -::1 --dir %s --unixsocket %s/s --logfile %s/log --daemonize no "
             "--save \"\" --appendonly no --repl-diskless-sync-delay 0 %s %s",
             server->binary, server->port, server->directory, server->directory, server->directory, server->arguments,
             more);
    if (split(arguments, 0, text) == 0)
        _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* the runner's mask must not be the server's */
    execvp(arguments[0], arguments);
    test_note("cannot run %s: %s", arguments[0], strerror(errno));
    _exit(127);
}

void redis_server_launch(struct redis_server *server, const char *more)
{
    const pid_t parent = getpid();
    REQUIRE_INT(0, server->pid);
    server->pid = fork();
    REQUIRE(server->pid >= 0);
    if (server->pid == 0)
        become_server(server, more, parent);
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
        return context;
    }
    if (context)
        redisFree(context);
    return NULL;
}

/* True if it answers, and is done with loading. */
static bool answers(struct redis_server *server)
{
    forget_control(server);
    server->control = redis_server_connect(server);
    redisReply *reply = server->control ? redisCommand(server->control, "PING") : NULL;
    const bool ready = reply && strncmp(reply->str, "LOADING", 7) != 0;
    freeReplyObject(reply);
    if (!ready)
        forget_control(server);
    return ready;
}

/* False: the server has ended, most likely because somebody else got the port. */
static bool await_start(struct redis_server *server)
{
    const struct timespec pause = { .tv_nsec = 5000000 };
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    while (!answers(server)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        REQUIRE(test_now_ns() < end_ns);
        nanosleep(&pause, NULL);
    }
    return true;
}

void redis_server_await(struct redis_server *server)
{
    REQUIRE(await_start(server));
}

static void stop_all(void)
{
    while (servers && getpid() == starter)
        redis_server_stop(servers);
}

static struct redis_server *new_server(const char *binary, const char *arguments)
{
    static unsigned count;
    const char *folder = getenv("TEST_DIRECTORY");
    struct redis_server *server = calloc(1, sizeof *server);
    if (!server || !folder) {
        FAIL("no memory, or no TEST_DIRECTORY in the environment");
        test_abort();
    }
    if (starter != getpid()) {
        starter = getpid();
        servers = NULL;
        REQUIRE_INT(0, atexit(stop_all));
    }
    snprintf(server->binary, sizeof server->binary, "%s", binary ? binary : "redis-server");
    snprintf(server->directory, sizeof server->directory, "%s/redis-%d-%u", folder, (int)getpid(), ++count);
    REQUIRE(strlen(server->directory) < 100); /* a Unix socket's path is short */
    remove_tree(server->directory);
    REQUIRE_INT(0, mkdir(server->directory, 0700));
    server->next = servers;
    servers = server;
    snprintf(server->arguments, sizeof server->arguments, "%s", arguments);
    snprintf(server->unix_url, sizeof server->unix_url, "redis+unix://%s/s", server->directory);
    return server;
}

static struct redis_server *start(const char *binary, const char *arguments, bool tls)
{
    struct redis_server *server = new_server(binary, arguments);
    const char *certificates = getenv("TEST_CERTIFICATES");
    for (int try = 0; try < START_TRIES; try++) {
        server->port = free_port();
        snprintf(server->url, sizeof server->url, "redis://127.0.0.1:%d", server->port);
        snprintf(server->url6, sizeof server->url6, "redis://[::1]:%d", server->port);
        if (tls) {
            REQUIRE(certificates != NULL);
            server->tls_port = free_port();
            snprintf(server->tls_url, sizeof server->tls_url, "rediss://localhost:%d?cafile=%s/ca.pem",
                     server->tls_port, certificates);
            snprintf(server->arguments, sizeof server->arguments,
                     "--tls-port %d --tls-cert-file %s/server.pem --tls-key-file %s/server.key "
                     "--tls-ca-cert-file %s/ca.pem --tls-auth-clients no %s",
                     server->tls_port, certificates, certificates, certificates, arguments);
        }
        redis_server_launch(server, "");
        if (await_start(server))
            return server;
    }
    FAIL("%s does not start; %s/log says why", server->binary, server->directory);
    test_abort();
}

struct redis_server *redis_server_start(const char *binary, const char *arguments)
{
    return start(binary, arguments, false);
}

struct redis_server *redis_server_start_tls(const char *binary, const char *arguments)
{
    return start(binary, arguments, true);
}

struct redis_server *redis_server_start_replica(struct redis_server *master)
{
    char arguments[100];
    const struct timespec pause = { .tv_nsec = 10000000 };
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    snprintf(arguments, sizeof arguments, "--replicaof 127.0.0.1 %d --repl-diskless-load disabled", master->port);
    struct redis_server *replica = start(master->binary, arguments, false);
    /* WAIT, and not the replica's own word: it counts what the master has heard from it. */
    redis_server_do(master, "SET in-step 1");
    while (redis_server_number(master, "WAIT 1 100") < 1) {
        REQUIRE(test_now_ns() < end_ns);
        nanosleep(&pause, NULL);
    }
    redis_server_do(master, "DEL in-step");
    return replica;
}

static void reap(struct redis_server *server)
{
    pid_t reaped;
    forget_control(server);
    do
        reaped = waitpid(server->pid, NULL, 0);
    while (reaped < 0 && errno == EINTR);
    server->pid = 0;
}

void redis_server_kill(struct redis_server *server)
{
    REQUIRE(server->pid > 0);
    CHECK_INT(0, kill(server->pid, SIGKILL));
    reap(server);
}

void redis_server_stop(struct redis_server *server)
{
    struct redis_server **link = &servers;
    if (server->pid > 0)
        redis_server_kill(server); /* what it would save is removed anyway */
    while (*link && *link != server)
        link = &(*link)->next;
    if (*link)
        *link = server->next;
    remove_tree(server->directory);
    free(server);
}

void redis_server_restart(struct redis_server *server, bool with_data, const char *more)
{
    if (server->pid > 0)
        redis_server_kill(server);
    if (!with_data) {
        remove_tree(server->directory);
        REQUIRE_INT(0, mkdir(server->directory, 0700));
    }
    redis_server_launch(server, more);
    redis_server_await(server);
}

void redis_server_pause(struct redis_server *server)
{
    int status = 0;
    CHECK_INT(0, kill(server->pid, SIGSTOP));
    REQUIRE_INT(server->pid, waitpid(server->pid, &status, WUNTRACED));
    CHECK(WIFSTOPPED(status));
}

void redis_server_continue(struct redis_server *server)
{
    CHECK_INT(0, kill(server->pid, SIGCONT));
}

/* --------------------------------------------------------------------------------------------------------- commands */

static redisReply *ask(struct redis_server *server, const char *format, va_list args)
{
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

int64_t redis_server_sent(struct redis_server *server)
{
    /* PUBLISH and the like are called by scripts alone; PING and INFO are also this file's own. */
    static const char *const by_clients[] = { "evalsha", "eval",        "subscribe",  "unsubscribe", "scan",   "wait",
                                              "waitaof", "auth",        "select",     "hello",       "script", "multi",
                                              "exec",    "script|load", "psubscribe", "ssubscribe",  "fcall" };
    redisReply *reply = redis_server_command(server, "INFO commandstats");
    int64_t sent = 0;
    for (size_t i = 0; i < sizeof by_clients / sizeof *by_clients; i++)
        sent += calls_in(reply->str, by_clients[i]);
    freeReplyObject(reply);
    return sent;
}
