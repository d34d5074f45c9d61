/* SPDX-License-Identifier: MIT
 *
 * postgres_server.c: real servers for tests; see postgres_server.h.
 */
#include "postgres_server.h"

#include "server_clock.h"
#include "server_home.h"
#include "test.h"

#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define START_S 40
#define PORT_FIRST 22000
#define PORT_COUNT 9000

/* ----------------------------------------------------------------------------------------------- users and programs */

int postgres_server_free_port(void)
{
    return home_free_port(PORT_FIRST, PORT_COUNT);
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

static void become_plain_user(const void *arg)
{
    (void)arg;
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

static struct home_program program_of(const struct postgres_server *server)
{
    return (struct home_program){ .home = server->directory,
                                  .place = server->place,
                                  .clock = server->clock,
                                  .last_signal = SIGQUIT,
                                  .prepare = become_plain_user };
}

/* With the path of a program of PostgreSQL. */
static void find_program(char *out, size_t size, const char *command)
{
    if (*command == '/')
        snprintf(out, size, "%s", command);
    else
        snprintf(out, size, "%s/%s", home_need("TEST_POSTGRES"), command);
}

pid_t postgres_server_launch(const struct postgres_server *server, const char *command)
{
    char found[2000];
    const struct home_program program = program_of(server);
    find_program(found, sizeof found, command);
    return home_launch(&program, found);
}

void postgres_server_run(const struct postgres_server *server, const char *command)
{
    char found[2000];
    const struct home_program program = program_of(server);
    find_program(found, sizeof found, command);
    home_run(&program, found);
}

/* ---------------------------------------------------------------------------------------------- starting and ending */

static void forget_control(struct postgres_server *server)
{
    PQfinish(server->control);
    server->control = NULL;
}

static bool answers(void *arg)
{
    struct postgres_server *server = arg;
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
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    snprintf(command, sizeof command, "postgres -D %s/data -p %d -k %s %s", server->directory, server->port,
             server->directory, server->settings);
    server->pid = postgres_server_launch(server, command);
    /* What a crash left in shared memory may be in its way for a moment. */
    while (!home_starts(server->pid, server->directory, START_S, answers, server)) {
        REQUIRE(test_now_ns() < end_ns);
        server->pid = postgres_server_launch(server, command);
    }
}

static void stop(void *server)
{
    postgres_server_stop(server);
}

static struct postgres_server *new_server(struct netns *place)
{
    const bool usable = geteuid() != 0 || is_reachable(home_need("TEST_DIRECTORY"));
    struct postgres_server *server = home_new(sizeof *server, stop);
    home_make(server->directory, sizeof server->directory, usable ? NULL : "/tmp", "pg");
    if (geteuid() == 0)
        REQUIRE_INT(0, chown(server->directory, plain_user()->pw_uid, plain_user()->pw_gid));
    server->port = postgres_server_free_port();
    server->place = place;
    snprintf(server->url, sizeof server->url, "postgres://postgres@%s:%d/postgres", home_address(place), server->port);
    snprintf(server->unix_url, sizeof server->unix_url, "postgres://postgres@/postgres?host=%s&port=%d",
             server->directory, server->port);
    return server;
}

static void write_access(const struct postgres_server *server)
{
    FILE *file = home_write(server->directory, "data/pg_hba.conf");
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
    const char *folder = home_need("TEST_DIRECTORY"), *programs = home_need("TEST_POSTGRES");
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
        home_remove(command);
}

struct postgres_server *postgres_server_start_at(struct netns *place, const char *settings)
{
    struct postgres_server *server = new_server(place);
    make_data(server);
    write_access(server);
    snprintf(server->settings, sizeof server->settings,
             "-c listen_addresses=%s -c max_connections=450 -c shared_buffers=24MB -c fsync=off "
             "-c max_wal_senders=4 %s",
             home_address(place), settings);
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
    home_kill(&server->pid, SIGQUIT);
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
    postgres_server_kill(server);
    home_remove(server->directory);
    home_forget(server);
}

/* ------------------------------------------------------------------------------------------------------------- TLS */

/* Into the server's data, as its own. */
static void install_file(const struct postgres_server *server, const char *name, const char *suffix, const char *as)
{
    char path[400], text[8000];
    struct stat owner;
    const char *folder = home_need("TEST_CERTIFICATES");
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
    home_continue(backend);
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
