/* SPDX-License-Identifier: MIT
 *
 * consul_server.c: real servers for tests; see consul_server.h.
 */
#include "consul_server.h"

#include "netns.h"
#include "test.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
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

#define PORT_FIRST 3000
#define PORT_COUNT 8000
#define ANSWER_S 3
#define START_S 60
#define ANSWER_MOST 200000
#define MEMORY "/dev/shm"
#define DATA "holdfast-consul-"

static struct consul_server *servers;
static pid_t starter; /* atexit() handlers are inherited by forked children, the servers are not theirs */

/* ------------------------------------------------------------------------------------------------ places and files */

/* Not one of those that the kernel gives to outgoing connections; free for both protocols, gossip uses both. */
static int free_port(void)
{
    static unsigned last;
    if (last == 0)
        REQUIRE_INT(sizeof last, getrandom(&last, sizeof last, 0));
    for (int try = 0; try < 1000; try++) {
        const int port = PORT_FIRST + (int)(++last % PORT_COUNT);
        const struct sockaddr_in address = { .sin_family = AF_INET,
                                             .sin_port = htons((uint16_t)port),
                                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
        bool bound = true;
        for (int i = 0; i < 2; i++) {
            const int fd = socket(AF_INET, (i ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
            bound = bound && fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
            if (fd >= 0)
                close(fd);
        }
        if (bound)
            return port;
    }
    FAIL("no free port");
    test_abort();
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
            remove_tree(path);
    }
    if (list)
        closedir(list);
}

/* In memory, if there is any: a server writes to its disk twice for each pair, and nothing of what is tested depends on
 * what survives a loss of power. */
static void choose_data(struct consul_server *server, unsigned count)
{
    const bool memory = access(MEMORY, W_OK) == 0;
    remove_orphans();
    snprintf(server->data, sizeof server->data, "%s/" DATA "%d-%u", memory ? MEMORY : getenv("TEST_DIRECTORY"),
             (int)getpid(), count);
    remove_tree(server->data);
    REQUIRE_INT(0, mkdir(server->data, 0700));
}

static void configure(const struct consul_server *server, struct consul_server **all, int count, const char *settings)
{
    char path[260];
    snprintf(path, sizeof path, "%s/settings.json", server->directory);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
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

void consul_server_launch(struct consul_server *server)
{
    char settings[260], log[220];
    const char *program = getenv("TEST_CONSUL");
    const pid_t parent = getpid();
    if (!program) {
        FAIL("no TEST_CONSUL in the environment");
        test_abort();
    }
    snprintf(settings, sizeof settings, "-config-file=%s/settings.json", server->directory);
    snprintf(log, sizeof log, "%s/log", server->directory);
    fflush(stdout);
    server->pid = fork();
    REQUIRE(server->pid >= 0);
    if (server->pid > 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (server->place)
        netns_enter(server->place);
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (getppid() != parent || fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(125);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    unsetenv("CONSUL_HTTP_TOKEN");
    execl(program, program, "agent", settings, (char *)NULL);
    _exit(127);
}

/* Reads what only a leader that is ready answers; and where there are ACLs, until they are there too. */
static bool serves(struct consul_server *server)
{
    char answer[300];
    return consul_server_ask(server, "PUT", "/v1/txn?consistent", "[{\"KV\":{\"Verb\":\"get-tree\",\"Key\":\"x\"}}]",
                             answer, sizeof answer) == 200 &&
           (!*server->token ||
            consul_server_ask(server, "GET", "/v1/acl/token/self", "", answer, sizeof answer) == 200);
}

void consul_server_await(struct consul_server *server)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    while (!serves(server)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid || test_now_ns() > end_ns) {
            FAIL("the server does not serve: see %s/log", server->directory);
            test_abort();
        }
        nanosleep(&pause, NULL);
    }
}

void consul_server_restart(struct consul_server *server)
{
    REQUIRE_INT(0, server->pid);
    consul_server_launch(server);
    consul_server_await(server);
}

static void stop_all(void)
{
    while (servers && getpid() == starter)
        consul_server_stop(servers);
}

static struct consul_server *new_server(int number, struct netns *place, const char *settings)
{
    static unsigned count;
    const char *folder = getenv("TEST_DIRECTORY");
    const char *token = strstr(settings, "\"initial_management\": \"");
    const char *older = strstr(settings, "\"master\": \"");
    struct consul_server *server = calloc(1, sizeof *server);
    if (!server || !folder) {
        FAIL("no memory, or no TEST_DIRECTORY in the environment");
        test_abort();
    }
    if (starter != getpid()) {
        starter = getpid();
        servers = NULL;
        REQUIRE_INT(0, atexit(stop_all));
    }
    snprintf(server->directory, sizeof server->directory, "%s/consul-%d-%u", folder, (int)getpid(), ++count);
    remove_tree(server->directory);
    REQUIRE_INT(0, mkdir(server->directory, 0700));
    choose_data(server, count);
    server->number = number;
    server->place = place;
    int *const ports[] = { &server->port, &server->tls_port, &server->raft_port, &server->gossip_port };
    for (size_t i = 0; i < 4; i++)
        *ports[i] = free_port();
    if (token || older)
        sscanf(token ? token : older, "\"%*[^\"]\": \"%59[^\"]", server->token);
    snprintf(server->address, sizeof server->address, "%s", place ? place->address : "127.0.0.1");
    snprintf(server->url, sizeof server->url, "consul://%s:%d", server->address, server->port);
    snprintf(server->tls_url, sizeof server->tls_url, "consuls://%s:%d", server->address, server->tls_port);
    server->next = servers;
    servers = server;
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
    if (server->pid > 0) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

void consul_server_stop(struct consul_server *server)
{
    struct consul_server **link = &servers;
    consul_server_kill(server);
    remove_tree(server->data);
    remove_tree(server->directory);
    while (*link != server)
        link = &(*link)->next;
    *link = server->next;
    free(server);
}

void consul_server_pause(struct consul_server *server)
{
    CHECK_INT(0, kill(server->pid, SIGSTOP));
}

void consul_server_continue(struct consul_server *server)
{
    CHECK_INT(0, kill(server->pid, SIGCONT));
}

/* -------------------------------------------------------------------------------------------------------- questions */

/* A socket belongs to the network in which it was made, wherever it is used. */
static int socket_at(const struct netns *place)
{
    if (!place)
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    REQUIRE(home >= 0);
    netns_enter(place);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE_INT(0, setns(home, CLONE_NEWNET));
    close(home);
    return fd;
}

/* All that comes until the server closes; NULL: it did not come to that. */
static char *exchange(const struct consul_server *server, const char *text)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server->port) };
    const struct timeval limit = { .tv_sec = ANSWER_S };
    size_t used = 0;
    ssize_t got = 1;
    char *answer = calloc(1, ANSWER_MOST);
    REQUIRE(answer != NULL);
    inet_pton(AF_INET, server->address, &address.sin_addr);
    const int fd = socket_at(server->place);
    REQUIRE(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const bool sent = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
                      send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
    while (sent && used < ANSWER_MOST - 1 && (got = recv(fd, answer + used, ANSWER_MOST - 1 - used, 0)) > 0)
        used += (size_t)got;
    close(fd);
    if (sent && got == 0 && used)
        return answer;
    free(answer);
    return NULL;
}

/* HTTP/1.0: an answer in one piece, and then the end. */
int consul_server_ask(struct consul_server *server, const char *method, const char *path, const char *body,
                      char *answer, size_t size)
{
    char text[4000];
    int status = 0;
    snprintf(text, sizeof text, "%s %s HTTP/1.0\r\nX-Consul-Token: %s\r\nContent-Length: %zu\r\n\r\n%s", method, path,
             server->token, strlen(body), body);
    char *whole = exchange(server, text);
    const char *end = whole ? strstr(whole, "\r\n\r\n") : NULL;
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
    const struct timespec pause = { .tv_nsec = 20000000 };
    for (;;) {
        for (int i = 0; i < count; i++) {
            char answer[100] = "", own[60];
            snprintf(own, sizeof own, "\"%s:%d\"", all[i]->address, all[i]->raft_port);
            if (all[i]->pid > 0 && consul_server_ask(all[i], "GET", "/v1/status/leader", "", answer, sizeof answer) &&
                strstr(answer, own))
                return all[i];
        }
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        nanosleep(&pause, NULL);
    }
}
