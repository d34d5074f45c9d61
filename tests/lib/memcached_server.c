/* SPDX-License-Identifier: MIT
 *
 * memcached_server.c: see memcached_server.h.
 */
#include "memcached_server.h"

#include "server_home.h"
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORT_FIRST 11000
#define PORT_COUNT 8000
#define ANSWER_S 3
#define START_S 20

static void launch(struct memcached_server *server)
{
    char command[900], place[300];
    const struct home_program program = { .home = server->directory };
    if (server->port)
        snprintf(place, sizeof place, "-l 127.0.0.1 -p %d -U 0", server->port);
    else
        snprintf(place, sizeof place, "-s %s/socket", server->directory);
    snprintf(command, sizeof command, "%s %s -u %s %s", home_need("TEST_MEMCACHED"), place,
             geteuid() == 0 ? "root" : "nobody", server->arguments);
    server->pid = home_launch(&program, command);
}

static bool serves(void *arg)
{
    const struct memcached_server *server = arg;
    const struct home_target target = { "127.0.0.1", server->port, ANSWER_S, NULL };
    char answer[100], path[220];
    snprintf(path, sizeof path, "%s/socket", server->directory);
    if (!server->port)
        return access(path, R_OK | W_OK) == 0;
    return home_ask(&target, "version\r\nquit\r\n", answer, sizeof answer) > 0;
}

static void stop(void *server)
{
    memcached_server_stop(server);
}

static struct memcached_server *start(int port, const char *arguments)
{
    struct memcached_server *server = home_new(sizeof *server, stop);
    home_make(server->directory, sizeof server->directory, NULL, "memcached");
    server->port = port;
    snprintf(server->url, sizeof server->url, "memcached://127.0.0.1:%d", port);
    snprintf(server->unix_url, sizeof server->unix_url, "memcached+unix://%s/socket", server->directory);
    snprintf(server->arguments, sizeof server->arguments, "%s", arguments);
    launch(server);
    home_await(server->pid, server->directory, START_S, serves, server);
    return server;
}

struct memcached_server *memcached_server_start(const char *arguments)
{
    return start(home_free_port(PORT_FIRST, PORT_COUNT), arguments);
}

struct memcached_server *memcached_server_start_unix(void)
{
    return start(0, "");
}

void memcached_server_kill(struct memcached_server *server)
{
    home_kill(&server->pid, SIGKILL);
}

void memcached_server_restart(struct memcached_server *server)
{
    REQUIRE_INT(0, server->pid);
    launch(server);
    home_await(server->pid, server->directory, START_S, serves, server);
}

void memcached_server_pause(struct memcached_server *server)
{
    home_pause(server->pid);
}

void memcached_server_continue(struct memcached_server *server)
{
    home_continue(server->pid);
}

void memcached_server_stop(struct memcached_server *server)
{
    memcached_server_kill(server);
    home_remove(server->directory);
    home_forget(server);
}

void memcached_server_ask(struct memcached_server *server, const char *text, char *answer, size_t size)
{
    const struct home_target target = { "127.0.0.1", server->port, ANSWER_S, NULL };
    const size_t size_of_all = strlen(text) + 9;
    char *whole = calloc(1, size_of_all);
    REQUIRE(whole != NULL);
    snprintf(whole, size_of_all, "%s\r\nquit\r\n", text);
    const ssize_t length = home_ask(&target, whole, answer, size);
    free(whole);
    REQUIRE(length >= 0);
}

long long memcached_server_statistic(struct memcached_server *server, const char *name)
{
    char answer[16000], word[80];
    memcached_server_ask(server, "stats", answer, sizeof answer);
    snprintf(word, sizeof word, "STAT %s ", name);
    const char *at = strstr(answer, word);
    REQUIRE(at != NULL);
    return strtoll(at + strlen(word), NULL, 10);
}
