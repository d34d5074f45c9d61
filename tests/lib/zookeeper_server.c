/* SPDX-License-Identifier: MIT
 *
 * zookeeper_server.c: real servers for tests; see zookeeper_server.h.
 */
#include "zookeeper_server.h"

#include "netns.h"
#include "test.h"

#include <arpa/inet.h>
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

#define ARGUMENTS_MOST 40
#define PORT_FIRST 12000
#define PORT_COUNT 9000
#define ANSWER_S 2
#define START_S 60

static struct zookeeper_server *servers;
static pid_t starter; /* atexit() handlers are inherited by forked children, the servers are not theirs */

/* ------------------------------------------------------------------------------------------------ places and files */

/* Not one of those that the kernel gives to outgoing connections. */
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

static FILE *write_file(const struct zookeeper_server *server, const char *name)
{
    char path[260];
    snprintf(path, sizeof path, "%s/%s", server->directory, name);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    return file;
}

/* `settings` is split: what begins with -D is Java's. */
static void write_settings(struct zookeeper_server *server, FILE *file, const char *settings)
{
    char text[600], *rest = NULL;
    snprintf(text, sizeof text, "%s", settings);
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        const size_t used = strlen(server->properties);
        if (strncmp(word, "-D", 2) == 0)
            snprintf(server->properties + used, sizeof server->properties - used, " %s", word);
        else
            fprintf(file, "%s\n", word);
    }
}

static void configure(struct zookeeper_server *server, struct zookeeper_server **all, int count, const char *settings)
{
    FILE *file = write_file(server, "zoo.cfg");
    fprintf(file,
            "tickTime=200\ninitLimit=50\nsyncLimit=25\ndataDir=%s/data\nclientPort=%d\nclientPortAddress=%s\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
            server->directory, server->port, server->address);
    write_settings(server, file, settings);
    for (int i = 0; count > 1 && i < count; i++)
        fprintf(file, "server.%d=%s:%d:%d\n", i + 1, all[i]->address, all[i]->quorum_port, all[i]->election_port);
    REQUIRE_INT(0, fclose(file));
    file = write_file(server, "data/myid");
    fprintf(file, "%d\n", server->number);
    REQUIRE_INT(0, fclose(file));
}

/* ---------------------------------------------------------------------------------------------- starting and ending */

static int split(char **out, char *text)
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word && count < ARGUMENTS_MOST - 1; word = strtok_r(NULL, " ", &rest))
        out[count++] = word;
    out[count] = NULL;
    return count;
}

void zookeeper_server_launch(struct zookeeper_server *server)
{
    char command[1500], program[300], log[220];
    char *arguments[ARGUMENTS_MOST];
    const char *java = getenv("TEST_JAVA"), *jar = getenv("TEST_ZOOKEEPER");
    const pid_t parent = getpid();
    REQUIRE(java != NULL && jar != NULL);
    /* Small and quick to start; nothing of what is tested depends on what survives a loss of power. */
    snprintf(command, sizeof command,
             "%s -Xmx128m -Xms24m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dzookeeper.forceSync=no "
             "-Dzookeeper.preAllocSize=1024%s -cp %s org.apache.zookeeper.server.quorum.QuorumPeerMain %s/zoo.cfg",
             java, server->properties, jar, server->directory);
    REQUIRE(split(arguments, command) > 0);
    snprintf(program, sizeof program, "%s", java);
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
    if (chdir(server->directory) == 0)
        execv(program, arguments);
    _exit(127);
}

void zookeeper_server_await(struct zookeeper_server *server)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    char answer[8000];
    /* One that is not in an ensemble yet answers, but not this. */
    while (!zookeeper_server_ask(server, "mntr", answer, sizeof answer) || !strstr(answer, "zk_server_state")) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid || test_now_ns() > end_ns) {
            FAIL("the server does not serve: see %s/log", server->directory);
            test_abort();
        }
        nanosleep(&pause, NULL);
    }
}

void zookeeper_server_restart(struct zookeeper_server *server)
{
    REQUIRE_INT(0, server->pid);
    zookeeper_server_launch(server);
    zookeeper_server_await(server);
}

static void stop_all(void)
{
    while (servers && getpid() == starter)
        zookeeper_server_stop(servers);
}

static struct zookeeper_server *new_server(int number, struct netns *place)
{
    static unsigned count;
    char data[220];
    const char *folder = getenv("TEST_DIRECTORY");
    struct zookeeper_server *server = calloc(1, sizeof *server);
    if (!server || !folder) {
        FAIL("no memory, or no TEST_DIRECTORY in the environment");
        test_abort();
    }
    if (starter != getpid()) {
        starter = getpid();
        servers = NULL;
        REQUIRE_INT(0, atexit(stop_all));
    }
    snprintf(server->directory, sizeof server->directory, "%s/zookeeper-%d-%u", folder, (int)getpid(), ++count);
    remove_tree(server->directory);
    snprintf(data, sizeof data, "%s/data", server->directory);
    REQUIRE_INT(0, mkdir(server->directory, 0700));
    REQUIRE_INT(0, mkdir(data, 0700));
    server->number = number;
    server->place = place;
    server->port = free_port();
    server->quorum_port = free_port();
    server->election_port = free_port();
    snprintf(server->address, sizeof server->address, "%s", place ? place->address : "127.0.0.1");
    snprintf(server->url, sizeof server->url, "zookeeper://%s:%d", server->address, server->port);
    server->next = servers;
    servers = server;
    return server;
}

void zookeeper_servers_start(struct zookeeper_server **out, int count, struct netns **places, const char *settings)
{
    char url[200] = "zookeeper://";
    REQUIRE(count <= ZOOKEEPER_SERVERS_MOST);
    for (int i = 0; i < count; i++) {
        out[i] = new_server(i + 1, places ? places[i] : NULL);
        const size_t used = strlen(url);
        snprintf(url + used, sizeof url - used, "%s%s:%d", i ? "," : "", out[i]->address, out[i]->port);
    }
    for (int i = 0; i < count; i++) {
        snprintf(out[i]->ensemble_url, sizeof out[i]->ensemble_url, "%s", url);
        configure(out[i], out, count, settings);
        zookeeper_server_launch(out[i]);
    }
    for (int i = 0; i < count; i++)
        zookeeper_server_await(out[i]);
}

struct zookeeper_server *zookeeper_server_start(const char *settings)
{
    struct zookeeper_server *server;
    zookeeper_servers_start(&server, 1, NULL, settings);
    return server;
}

void zookeeper_server_kill(struct zookeeper_server *server)
{
    if (server->pid > 0) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

void zookeeper_server_stop(struct zookeeper_server *server)
{
    struct zookeeper_server **link = &servers;
    zookeeper_server_kill(server);
    remove_tree(server->directory);
    while (*link != server)
        link = &(*link)->next;
    *link = server->next;
    free(server);
}

void zookeeper_server_pause(struct zookeeper_server *server)
{
    CHECK_INT(0, kill(server->pid, SIGSTOP));
}

void zookeeper_server_continue(struct zookeeper_server *server)
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

bool zookeeper_server_ask(struct zookeeper_server *server, const char *word, char *answer, size_t size)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server->port) };
    const struct timeval limit = { .tv_sec = ANSWER_S };
    size_t used = 0;
    inet_pton(AF_INET, server->address, &address.sin_addr);
    const int fd = socket_at(server->place);
    REQUIRE(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    bool good = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
                send(fd, word, strlen(word), MSG_NOSIGNAL) == (ssize_t)strlen(word);
    ssize_t got = 1;
    while (good && used < size - 1 && (got = recv(fd, answer + used, size - 1 - used, 0)) > 0)
        used += (size_t)got;
    answer[used] = '\0';
    close(fd);
    return good && got >= 0;
}

int64_t zookeeper_server_number(struct zookeeper_server *server, const char *name)
{
    char answer[8000], line[80];
    REQUIRE(zookeeper_server_ask(server, "mntr", answer, sizeof answer));
    snprintf(line, sizeof line, "%s\t", name);
    const char *found = strstr(answer, line);
    if (found)
        return strtoll(found + strlen(line), NULL, 10);
    FAIL("mntr does not say %s", name);
    test_abort();
}

struct zookeeper_server *zookeeper_leader(struct zookeeper_server **all, int count)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    for (;;) {
        for (int i = 0; i < count; i++) {
            char answer[8000];
            if (all[i]->pid > 0 && zookeeper_server_ask(all[i], "mntr", answer, sizeof answer) &&
                strstr(answer, "zk_server_state\tleader"))
                return all[i];
        }
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        nanosleep(&pause, NULL);
    }
}
