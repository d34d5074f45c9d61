/* SPDX-License-Identifier: MIT
 *
 * consul_server.c: real servers for tests; see consul_server.h.
 */
#include "consul_server.h"

#include "server_home.h"
#include "shared.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORT_FIRST 3000
#define PORT_COUNT 8000
#define ANSWER_S 3
#define START_S 60
#define ANSWER_MOST 200000
#define MEMORY "/dev/shm"
#define DATA "holdfast-consul-" /* what home_make() makes of "consul" */

/* ----------------------------------------------------------------------------------------------- files and settings */

/* What tests left behind that were killed. */
static void remove_orphans(void)
{
    char path[300];
    struct dirent *entry;
    DIR *list = opendir(MEMORY);
    while (list && (entry = readdir(list))) {
        const bool ours = strncmp(entry->d_name, DATA, strlen(DATA)) == 0;
        const long pid = ours ? strtol(entry->d_name + strlen(DATA), NULL, 10) : 0;
        snprintf(path, sizeof path, "%s/%s", MEMORY, entry->d_name);
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            home_remove(path);
    }
    if (list)
        closedir(list);
}

/* In memory, if there is any: a server writes to its disk twice for each pair, and nothing of what is tested depends on
 * what survives a loss of power. */
static void choose_data(struct consul_server *server)
{
    remove_orphans();
    home_make(server->data, sizeof server->data, access(MEMORY, W_OK) == 0 ? MEMORY : NULL, "consul");
}

static void configure(const struct consul_server *server, struct consul_server **all, int count, const char *settings)
{
    FILE *file = home_write(server->directory, "settings.json");
    fprintf(
        file,
        "{\"server\": true, \"bootstrap_expect\": %d, \"node_name\": \"n%d\", \"data_dir\": \"%s\",\n"
        "\"bind_addr\": \"%s\", \"client_addr\": \"%s\", \"ports\": {\"http\": %d, \"https\": %d, \"dns\": -1,\n"
        "\"grpc\": -1, \"server\": %d, \"serf_lan\": %d, \"serf_wan\": -1},\n"
        "\"performance\": {\"raft_multiplier\": 1}, \"session_ttl_min\": \"200ms\", \"disable_update_check\": true,\n"
        "\"limits\": {\"http_max_conns_per_client\": 2000}%s,\n\"retry_interval\": \"1s\", \"retry_join\": [",
        count, server->number, server->data, server->address, server->address, server->port,
        strstr(settings, "cert_file") ? server->tls_port : -1, server->raft_port, server->gossip_port, settings);
    for (int i = 0; count > 1 && i < count; i++)
        fprintf(file, "%s\"%s:%d\"", i ? ", " : "", all[i]->address, all[i]->gossip_port);
    fprintf(file, "]}\n");
    REQUIRE_INT(0, fclose(file));
}

/* ---------------------------------------------------------------------------------------------- starting and ending */

/* What the test itself uses must not be the server's. */
static void forget_token(const void *arg)
{
    (void)arg;
    unsetenv("CONSUL_HTTP_TOKEN");
}

void consul_server_launch(struct consul_server *server)
{
    char command[600];
    const struct home_program program = { .home = server->directory, .place = server->place, .prepare = forget_token };
    snprintf(command, sizeof command, "%s agent -config-file=%s/settings.json", home_need("TEST_CONSUL"),
             server->directory);
    server->pid = home_launch(&program, command);
}

/* Reads what only a leader that is ready answers; and where there are ACLs, until they are there too. */
static bool serves(void *arg)
{
    struct consul_server *server = arg;
    char answer[300];
    return consul_server_ask(server, "PUT", "/v1/txn?consistent", "[{\"KV\":{\"Verb\":\"get-tree\",\"Key\":\"x\"}}]",
                             answer, sizeof answer) == 200 &&
           (!*server->token ||
            consul_server_ask(server, "GET", "/v1/acl/token/self", "", answer, sizeof answer) == 200);
}

void consul_server_await(struct consul_server *server)
{
    home_await(server->pid, server->directory, START_S, serves, server);
}

void consul_server_restart(struct consul_server *server)
{
    REQUIRE_INT(0, server->pid);
    consul_server_launch(server);
    consul_server_await(server);
}

static void stop(void *server)
{
    consul_server_stop(server);
}

static struct consul_server *new_server(int number, struct netns *place, const char *settings)
{
    const char *token = strstr(settings, "\"initial_management\": \"");
    const char *older = strstr(settings, "\"master\": \"");
    struct consul_server *server = home_new(sizeof *server, stop);
    home_make(server->directory, sizeof server->directory, NULL, "consul");
    choose_data(server);
    server->number = number;
    server->place = place;
    int *const ports[] = { &server->port, &server->tls_port, &server->raft_port, &server->gossip_port };
    for (size_t i = 0; i < 4; i++)
        *ports[i] = home_free_port(PORT_FIRST, PORT_COUNT);
    if (token || older)
        sscanf(token ? token : older, "\"%*[^\"]\": \"%59[^\"]", server->token);
    snprintf(server->address, sizeof server->address, "%s", home_address(place));
    snprintf(server->url, sizeof server->url, "consul://%s:%d", server->address, server->port);
    snprintf(server->tls_url, sizeof server->tls_url, "consuls://%s:%d", server->address, server->tls_port);
    return server;
}

void consul_servers_start(struct consul_server **out, int count, struct netns **places, const char *settings)
{
    char url[200] = "consul://";
    REQUIRE(count <= CONSUL_SERVERS_MOST);
    for (int i = 0; i < count; i++) {
        out[i] = new_server(i + 1, places ? places[i] : NULL, settings);
        const size_t used = strlen(url);
        snprintf(url + used, sizeof url - used, "%s%s:%d", i ? "," : "", out[i]->address, out[i]->port);
    }
    for (int i = 0; i < count; i++) {
        snprintf(out[i]->ensemble_url, sizeof out[i]->ensemble_url, "%s", url);
        configure(out[i], out, count, settings);
        consul_server_launch(out[i]);
    }
    for (int i = 0; i < count; i++)
        consul_server_await(out[i]);
}

struct consul_server *consul_server_start(const char *settings)
{
    struct consul_server *server;
    consul_servers_start(&server, 1, NULL, settings);
    return server;
}

void consul_server_kill(struct consul_server *server)
{
    home_kill(&server->pid, SIGKILL);
}

void consul_server_stop(struct consul_server *server)
{
    consul_server_kill(server);
    home_remove(server->data);
    home_remove(server->directory);
    home_forget(server);
}

void consul_server_pause(struct consul_server *server)
{
    home_pause(server->pid);
}

void consul_server_continue(struct consul_server *server)
{
    home_continue(server->pid);
}

/* -------------------------------------------------------------------------------------------------------- questions */

/* HTTP/1.0: an answer in one piece, and then the end. */
int consul_server_ask(struct consul_server *server, const char *method, const char *path, const char *body,
                      char *answer, size_t size)
{
    const struct home_target target = { server->address, server->port, ANSWER_S, server->place };
    char text[4000];
    int status = 0;
    snprintf(text, sizeof text, "%s %s HTTP/1.0\r\nX-Consul-Token: %s\r\nContent-Length: %zu\r\n\r\n%s", method, path,
             server->token, strlen(body), body);
    char *whole = calloc(1, ANSWER_MOST);
    REQUIRE(whole != NULL);
    const ssize_t length = home_ask(&target, text, whole, ANSWER_MOST);
    const bool complete = length >= 0 && length < ANSWER_MOST - 1;
    const char *end = complete ? strstr(whole, "\r\n\r\n") : NULL;
    if (end && sscanf(whole, "HTTP/1.%*d %d", &status) == 1)
        snprintf(answer, size, "%s", end + 4);
    free(whole);
    return status;
}

void consul_server_do(struct consul_server *server, const char *method, const char *path, const char *body,
                      char *answer, size_t size)
{
    char unread[1000];
    const int status =
        consul_server_ask(server, method, path, body, answer ? answer : unread, answer ? size : sizeof unread);
    if (status != 200) {
        FAIL("%s %s: %d %s", method, path, status, status ? (answer ? answer : unread) : "no answer");
        test_abort();
    }
}

static int count_words(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        count++;
    return count;
}

int consul_server_keys(struct consul_server *server, const char *prefix)
{
    char path[300];
    char *answer = calloc(1, ANSWER_MOST);
    REQUIRE(answer != NULL);
    snprintf(path, sizeof path, "/v1/kv/%s?recurse&consistent", prefix);
    const int status = consul_server_ask(server, "GET", path, "", answer, ANSWER_MOST);
    REQUIRE(status == 200 || status == 404);
    const int count = status == 200 ? count_words(answer, "\"Key\":") : 0;
    free(answer);
    return count;
}

int consul_server_sessions(struct consul_server *server)
{
    char answer[20000];
    consul_server_do(server, "GET", "/v1/session/list?consistent", "", answer, sizeof answer);
    return count_words(answer, "\"ID\":");
}

void consul_server_destroy_sessions(struct consul_server *server)
{
    char answer[20000], path[100], id[40];
    consul_server_do(server, "GET", "/v1/session/list?consistent", "", answer, sizeof answer);
    for (const char *at = strstr(answer, "\"ID\":\""); at; at = strstr(at + 1, "\"ID\":\"")) {
        snprintf(id, sizeof id, "%.36s", at + 6);
        snprintf(path, sizeof path, "/v1/session/destroy/%s", id);
        consul_server_do(server, "PUT", path, "", NULL, 0);
    }
}

int consul_server_logged(struct consul_server *server, const char *word, const char *other)
{
    char path[260], *line = NULL;
    size_t room = 0;
    int count = 0;
    snprintf(path, sizeof path, "%s/log", server->directory);
    FILE *file = fopen(path, "re");
    REQUIRE(file != NULL);
    while (getline(&line, &room, file) >= 0)
        count += strstr(line, word) && strstr(line, other);
    free(line);
    fclose(file);
    return count;
}

struct consul_server *consul_leader(struct consul_server **all, int count)
{
    for (;;) {
        for (int i = 0; i < count; i++) {
            char answer[100] = "", own[60];
            snprintf(own, sizeof own, "\"%s:%d\"", all[i]->address, all[i]->raft_port);
            if (all[i]->pid > 0 && consul_server_ask(all[i], "GET", "/v1/status/leader", "", answer, sizeof answer) &&
                strstr(answer, own))
                return all[i];
        }
        await_a_moment();
    }
}
