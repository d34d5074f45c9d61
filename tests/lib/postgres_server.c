/* SPDX-License-Identifier: MIT
 *
 * postgres_server.c: real servers for tests; see postgres_server.h.
 */
#include "postgres_server.h"

#include "netns.h"
#include "server_clock.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGUMENTS_MOST 60
#define START_S 40
#define PORT_FIRST 22000
#define PORT_COUNT 9000

static struct postgres_server *servers;
static pid_t starter; /* atexit() handlers are inherited by forked children, the servers are not theirs */

/* ------------------------------------------------------------------------------------------------ places and users */

static const char *from_environment(const char *name)
{
    const char *value = getenv(name);
    if (value)
        return value;
    FAIL("no %s in the environment", name);
    test_abort();
}

int postgres_server_free_port(void)
{
    static unsigned last;
    if (last == 0)
        REQUIRE_INT(sizeof last, getrandom(&last, sizeof last, 0));
    for (int try = 0; try < 1000; try++) {
        const int port = PORT_FIRST + (int)(++last % PORT_COUNT);
        const struct sockaddr_in address = { .sin_family = AF_INET,
                                             .sin_port = htons((uint16_t)port),
                                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
        if (fd >= 0)
            close(fd);
        if (bound)
            return port;
    }
    FAIL("no free port");
    test_abort();
}

/* Whom root becomes. */
static const struct passwd *plain_user(void)
{
    const struct passwd *user = getpwnam("postgres"); /* cppcheck-suppress getpwnamCalled; one thread at a time */
    if (!user)
        user = getpwnam("nobody"); /* cppcheck-suppress getpwnamCalled */
    REQUIRE(user != NULL);
    return user;
}

static void become_plain_user(void)
{
    if (geteuid() != 0)
        return;
    const struct passwd *user = plain_user();
    if (setgroups(0, NULL) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0)
        _exit(126);
}

/* Another user must be able to get there. */
static bool is_reachable(const char *path)
{
    char part[200];
    struct stat status;
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (stat(part, &status) != 0 || !(status.st_mode & S_IXOTH))
            return false;
    }
    return true;
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
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ------------------------------------------------------------------------------------------------------- programs */

static int split(char **out, char *text)
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word && count < ARGUMENTS_MOST - 1; word = strtok_r(NULL, " ", &rest))
        out[count++] = word;
    out[count] = NULL;
    return count;
}

pid_t postgres_server_launch(const struct postgres_server *server, const char *command)
{
    char text[1500], path[300], log[220];
    char *arguments[ARGUMENTS_MOST];
    const char *programs = from_environment("TEST_POSTGRES");
    const pid_t parent = getpid();
    snprintf(text, sizeof text, "%s", command);
    REQUIRE(split(arguments, text) > 0);
    if (*text == '/')
        snprintf(path, sizeof path, "%.250s", text);
    else
        snprintf(path, sizeof path, "%.200s/%.90s", programs, text);
    snprintf(log, sizeof log, "%s/log", server->directory);
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid > 0)
        return pid;
    if (server->place)
        netns_enter(server->place);
    if (*server->clock)
        server_clock_follow(server->clock);
    become_plain_user();
    prctl(PR_SET_PDEATHSIG, SIGQUIT); /* after the change of user, which clears it */
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (getppid() != parent || fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(125);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (chdir(server->directory) == 0)
        execv(path, arguments);
    _exit(127);
}

void postgres_server_run(const struct postgres_server *server, const char *command)
{
    int status = 1;
    const pid_t pid = postgres_server_launch(server, command);
    REQUIRE_INT(pid, waitpid(pid, &status, 0));
    if (status != 0) {
        FAIL("%.200s: see %s/log", command, server->directory);
        test_abort();
    }
}

/* ---------------------------------------------------------------------------------------------- starting and ending */

static void forget_control(struct postgres_server *server)
{
    PQfinish(server->control);
    server->control = NULL;
}

static bool answers(struct postgres_server *server)
{
    char where[400];
    forget_control(server);
    snprintf(where, sizeof where, "host=%s port=%d user=postgres dbname=postgres connect_timeout=%d", server->directory,
             server->port, START_S);
    server->control = PQconnectdb(where);
    return PQstatus(server->control) == CONNECTION_OK;
}

static void boot(struct postgres_server *server)
{
    char command[1200];
    const struct timespec pause = { .tv_nsec = 10000000 };
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    snprintf(command, sizeof command, "postgres -D %s/data -p %d -k %s %s", server->directory, server->port,
             server->directory, server->settings);
    server->pid = postgres_server_launch(server, command);
    while (!answers(server)) {
        /* What a crash left in shared memory may be in its way for a moment. */
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid)
            server->pid = postgres_server_launch(server, command);
        REQUIRE(test_now_ns() < end_ns);
        nanosleep(&pause, NULL);
    }
}

static void stop_all(void)
{
    while (servers && getpid() == starter)
        postgres_server_stop(servers);
}

static struct postgres_server *new_server(struct netns *place)
{
    static unsigned count;
    const char *folder = from_environment("TEST_DIRECTORY");
    struct postgres_server *server = calloc(1, sizeof *server);
    if (!server)
        abort();
    if (starter != getpid()) {
        starter = getpid();
        servers = NULL;
        REQUIRE_INT(0, atexit(stop_all));
    }
    /* A Unix socket's path is short, and must be open to the user that runs the server. */
    const bool usable = strlen(folder) < 60 && (geteuid() != 0 || is_reachable(folder));
    snprintf(server->directory, sizeof server->directory, "%s/holdfast-pg-%d-%u", usable ? folder : "/tmp",
             (int)getpid(), ++count);
    remove_tree(server->directory);
    REQUIRE_INT(0, mkdir(server->directory, 0700));
    if (geteuid() == 0)
        REQUIRE_INT(0, chown(server->directory, plain_user()->pw_uid, plain_user()->pw_gid));
    server->port = postgres_server_free_port();
    server->place = place;
    snprintf(server->url, sizeof server->url, "postgres://postgres@%s:%d/postgres",
             place ? place->address : "127.0.0.1", server->port);
    snprintf(server->unix_url, sizeof server->unix_url, "postgres://postgres@/postgres?host=%s&port=%d",
             server->directory, server->port);
    server->next = servers;
    servers = server;
    return server;
}

static void write_access(const struct postgres_server *server)
{
    char path[250];
    snprintf(path, sizeof path, "%s/data/pg_hba.conf", server->directory);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    fprintf(file, "local all all trust\nlocal replication all trust\n"
                  "host all guest 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
                  "host all all 10.99.0.0/16 trust\n");
    REQUIRE_INT(0, fclose(file));
}

struct postgres_server *postgres_server_start(const char *settings)
{
    return postgres_server_start_at(NULL, settings);
}

/* initdb takes as long as most of the tests: all servers of a build folder are copies of one. Several tests may make it
 * at once; the first one's is taken. */
static void make_data(const struct postgres_server *server)
{
    char original[300], command[800], *slash;
    struct stat status;
    const char *folder = from_environment("TEST_DIRECTORY"), *programs = from_environment("TEST_POSTGRES");
    snprintf(original, sizeof original, "%.120s/holdfast-pg%.100s", folder, programs);
    for (slash = original + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL;)
        *slash = '-';
    const bool shared = strncmp(server->directory, folder, strlen(folder)) == 0;
    snprintf(command, sizeof command, "/bin/cp -a %s %s/data", original, server->directory);
    if (shared && stat(original, &status) == 0) {
        postgres_server_run(server, command);
        return;
    }
    snprintf(command, sizeof command,
             "initdb -D %s/data -U postgres -A trust -E UTF8 --locale=C --no-sync --wal-segsize=1", server->directory);
    postgres_server_run(server, command);
    if (!shared)
        return;
    snprintf(command, sizeof command, "/bin/cp -a %s/data %s/original", server->directory, server->directory);
    postgres_server_run(server, command);
    snprintf(command, sizeof command, "%s/original", server->directory);
    if (rename(command, original) != 0) /* another one was first */
        remove_tree(command);
}

struct postgres_server *postgres_server_start_at(struct netns *place, const char *settings)
{
    struct postgres_server *server = new_server(place);
    make_data(server);
    write_access(server);
    snprintf(server->settings, sizeof server->settings,
             "-c listen_addresses=%s -c max_connections=450 -c shared_buffers=24MB -c fsync=off "
             "-c max_wal_senders=4 %s",
             place ? place->address : "127.0.0.1", settings);
    boot(server);
    postgres_server_do(server, "CREATE ROLE guest LOGIN PASSWORD 'open-sesame'");
    return server;
}

struct postgres_server *postgres_server_start_standby(struct postgres_server *primary)
{
    char command[800];
    struct postgres_server *server = new_server(NULL);
    snprintf(command, sizeof command, "pg_basebackup -D %s/data -h %s -p %d -U postgres -R -X stream -c fast --no-sync",
             server->directory, primary->directory, primary->port);
    postgres_server_run(server, command);
    snprintf(server->settings, sizeof server->settings, "%s", primary->settings);
    boot(server);
    return server;
}

void postgres_server_kill(struct postgres_server *server)
{
    forget_control(server);
    if (server->pid > 0) {
        kill(server->pid, SIGQUIT);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

void postgres_server_restart(struct postgres_server *server)
{
    REQUIRE_INT(0, server->pid);
    boot(server);
}

void postgres_server_own_clock(struct postgres_server *server)
{
    snprintf(server->clock, sizeof server->clock, "%s/clock", server->directory);
    server_clock_set(server->clock, 0);
    postgres_server_kill(server);
    postgres_server_restart(server);
}

void postgres_server_stop(struct postgres_server *server)
{
    struct postgres_server **link = &servers;
    postgres_server_kill(server);
    remove_tree(server->directory);
    while (*link != server)
        link = &(*link)->next;
    *link = server->next;
    free(server);
}

/* ------------------------------------------------------------------------------------------------------------- TLS */

/* Into the server's data, as its own. */
static void install_file(const struct postgres_server *server, const char *name, const char *suffix, const char *as)
{
    char path[400], text[8000];
    struct stat owner;
    const char *folder = from_environment("TEST_CERTIFICATES");
    snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix);
    FILE *file = fopen(path, "re");
    REQUIRE(file != NULL);
    const size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    snprintf(path, sizeof path, "%s/data/%s", server->directory, as);
    file = fopen(path, "we");
    REQUIRE(file != NULL && size > 0 && size < sizeof text);
    REQUIRE_INT(0, stat(server->directory, &owner));
    REQUIRE_INT(0, fchmod(fileno(file), 0600));
    REQUIRE_INT(0, fchown(fileno(file), owner.st_uid, owner.st_gid));
    REQUIRE_INT(size, fwrite(text, 1, size, file));
    REQUIRE_INT(0, fclose(file));
}

void postgres_server_use_tls(struct postgres_server *server, const char *name)
{
    install_file(server, name, ".pem", "server.crt");
    install_file(server, name, ".key", "server.key");
    postgres_server_do(server, "ALTER SYSTEM SET ssl = on");
    postgres_server_do(server, "SELECT pg_reload_conf()");
    postgres_server_await(server, 1, "SELECT (current_setting('ssl') = 'on')::int");
}

void postgres_server_pause_backend(pid_t backend)
{
    CHECK_INT(0, kill(backend, SIGSTOP));
}

void postgres_server_continue_backend(pid_t backend)
{
    CHECK_INT(0, kill(backend, SIGCONT));
}

/* -------------------------------------------------------------------------------------------------------------- SQL */

static PGresult *ask(struct postgres_server *server, const char *sql)
{
    if (PQstatus(server->control) != CONNECTION_OK)
        REQUIRE(answers(server));
    PGresult *result = PQexec(server->control, sql);
    const ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        FAIL("%s: %s", sql, PQerrorMessage(server->control));
        test_abort();
    }
    return result;
}

void postgres_server_do(struct postgres_server *server, const char *format, ...)
{
    char sql[4000];
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    PQclear(ask(server, sql));
}

static int64_t number(struct postgres_server *server, const char *sql)
{
    PGresult *result = ask(server, sql);
    const bool some = PQntuples(result) > 0 && !PQgetisnull(result, 0, 0);
    const int64_t value = some ? strtoll(PQgetvalue(result, 0, 0), NULL, 10) : -1;
    PQclear(result);
    return value;
}

int64_t postgres_server_number(struct postgres_server *server, const char *format, ...)
{
    char sql[4000];
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    return number(server, sql);
}

void postgres_server_await(struct postgres_server *server, int64_t expected, const char *sql)
{
    const struct timespec pause = { .tv_nsec = 2000000 };
    const int64_t limit_ns = test_deadline_ns(); /* 0: not within a test */
    const int64_t end_ns = limit_ns ? limit_ns - 1000000000LL : test_now_ns() + START_S * 1000000000LL;
    while (number(server, sql) != expected) {
        REQUIRE(test_now_ns() < end_ns);
        nanosleep(&pause, NULL);
    }
}
