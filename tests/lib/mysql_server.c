/* SPDX-License-Identifier: MIT
 *
 * mysql_server.c: real servers for tests; see mysql_server.h.
 */
#include "mysql_server.h"

#include "server_clock.h"
#include "server_home.h"
#include "shared.h"
#include "test.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define START_S 40
#define PORT_FIRST 13000
#define PORT_COUNT 8000

/* As small as it gets, and without waiting for a disk: a crash of the server, but not of the machine, is survived. */
#define SMALL                                                                                                          \
    "--skip-log-bin --performance-schema=off --max-connections=450 --innodb-buffer-pool-size=8M"                       \
    " --innodb-log-file-size=4M --innodb-undo-tablespaces=0 --innodb-data-file-path=ibdata1:2M:autoextend"             \
    " --innodb-autoextend-increment=1 --innodb-flush-log-at-trx-commit=2 --innodb-flush-method=nosync"                 \
    " --innodb-buffer-pool-dump-at-shutdown=0 --innodb-buffer-pool-load-at-startup=0 --key-buffer-size=1M"             \
    " --aria-pagecache-buffer-size=1M --thread-cache-size=64 --table-open-cache=100 --back-log=200"

/* ---------------------------------------------------------------------------------------------- starting and ending */

static void forget_control(struct mysql_server *server)
{
    if (server->control)
        mysql_close(server->control);
    server->control = NULL;
}

static bool answers_to(struct mysql_server *server, const char *database)
{
    char path[250];
    forget_control(server);
    server->control = mysql_init(NULL);
    REQUIRE(server->control != NULL);
    snprintf(path, sizeof path, "%s/socket", server->directory);
    return mysql_real_connect(server->control, NULL, "root", "", database, 0, path, 0) != NULL;
}

static bool answers(void *server)
{
    return answers_to(server, NULL);
}

static bool answers_with_its_data(void *server)
{
    return answers_to(server, "app");
}

static void boot(struct mysql_server *server, bool (*serves)(void *server))
{
    char command[2000];
    const struct home_program program = { .home = server->directory, .place = server->place, .clock = server->clock };
    /* tmpdir: a server that starts clears it, also of what belongs to another. */
    snprintf(command, sizeof command,
             "%s --no-defaults --datadir=%s/data --tmpdir=%s --socket=%s/socket --pid-file=%s/pid --port=%d"
             " --bind-address=%s %s " SMALL " %s",
             home_need("TEST_MYSQL"), server->directory, server->directory, server->directory, server->directory,
             server->port, home_address(server->place), geteuid() == 0 ? "--user=root" : "", server->settings);
    server->pid = home_launch(&program, command);
    home_await(server->pid, server->directory, START_S, serves, server);
}

static void stop(void *server)
{
    mysql_server_stop(server);
}

static struct mysql_server *new_server(struct netns *place, const char *settings)
{
    struct mysql_server *server = home_new(sizeof *server, stop);
    home_make(server->directory, sizeof server->directory, NULL, "mysql");
    server->port = home_free_port(PORT_FIRST, PORT_COUNT);
    server->place = place;
    snprintf(server->settings, sizeof server->settings, "%s", settings);
    snprintf(server->url, sizeof server->url, "mysql://root@%s:%d/app", home_address(place), server->port);
    snprintf(server->unix_url, sizeof server->unix_url, "mysql://root@/app?socket=%s/socket", server->directory);
    return server;
}

struct mysql_server *mysql_server_start(const char *settings)
{
    return mysql_server_start_at(NULL, settings);
}

struct mysql_server *mysql_server_start_at(struct netns *place, const char *settings)
{
    struct mysql_server *server = new_server(place, settings);
    char copy[500];
    snprintf(copy, sizeof copy, "cp -a %s %s/data", home_need("TEST_MYSQL_TEMPLATE"), server->directory);
    home_run(&(struct home_program){ .home = server->directory }, copy);
    boot(server, answers);
    mysql_server_do(server, "CREATE DATABASE app");
    mysql_server_do(server, "USE app");
    mysql_server_do(server, "CREATE USER root@'%%'");
    mysql_server_do(server, "GRANT ALL ON *.* TO root@'%%' WITH GRANT OPTION");
    mysql_server_do(server, "CREATE USER guest@'%%' IDENTIFIED BY 'open-sesame'");
    return server;
}

void mysql_server_kill(struct mysql_server *server)
{
    forget_control(server);
    home_kill(&server->pid, SIGKILL);
}

void mysql_server_restart(struct mysql_server *server)
{
    REQUIRE_INT(0, server->pid);
    boot(server, answers_with_its_data);
}

void mysql_server_own_clock(struct mysql_server *server)
{
    snprintf(server->clock, sizeof server->clock, "%s/clock", server->directory);
    server_clock_set(server->clock, 0);
    mysql_server_kill(server);
    mysql_server_restart(server);
}

void mysql_server_stop(struct mysql_server *server)
{
    mysql_server_kill(server);
    home_remove(server->directory);
    home_forget(server);
}

/* -------------------------------------------------------------------------------------------------------------- SQL */

bool mysql_server_try(struct mysql_server *server, char *why, size_t size, const char *sql)
{
    const bool good = mysql_query(server->control, sql) == 0;
    if (!good)
        snprintf(why, size, "%s", mysql_error(server->control));
    /* A procedure has a status behind its rows. */
    do {
        MYSQL_RES *result = good ? mysql_store_result(server->control) : NULL;
        mysql_free_result(result);
    } while (good && mysql_next_result(server->control) == 0);
    return good;
}

static void must(struct mysql_server *server, const char *sql)
{
    if (mysql_query(server->control, sql) != 0) {
        FAIL("%s: %s", sql, mysql_error(server->control));
        test_abort();
    }
}

void mysql_server_do(struct mysql_server *server, const char *format, ...)
{
    char sql[4000];
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    must(server, sql);
    MYSQL_RES *result = mysql_store_result(server->control);
    mysql_free_result(result);
}

static int64_t number(struct mysql_server *server, const char *sql)
{
    must(server, sql);
    MYSQL_RES *result = mysql_store_result(server->control);
    REQUIRE(result != NULL);
    MYSQL_ROW row = mysql_fetch_row(result);
    const int64_t value = row && row[0] ? strtoll(row[0], NULL, 10) : -1;
    mysql_free_result(result);
    return value;
}

int64_t mysql_server_number(struct mysql_server *server, const char *format, ...)
{
    char sql[4000];
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    return number(server, sql);
}

void mysql_server_await(struct mysql_server *server, int64_t expected, const char *sql)
{
    while (number(server, sql) != expected)
        await_a_moment();
}
