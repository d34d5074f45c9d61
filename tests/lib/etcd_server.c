/* SPDX-License-Identifier: MIT
 *
 * etcd_server.c: real clusters for tests; see etcd_server.h.
 */
#include "etcd_server.h"

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
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

#define ARGUMENTS_MOST 100
#define START_S 40
#define PORT_FIRST 12000
#define PORT_COUNT 19000
#define FIGURES_MOST ((size_t)1 << 20)

static struct etcd_cluster *clusters;
static pid_t starter; /* atexit() handlers are inherited by forked children, the servers are not theirs */

/* ---------------------------------------------------------------------------------------------- places and programs */

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

static void pause_ms(long ms)
{
    const struct timespec pause = { .tv_nsec = ms * 1000000 };
    nanosleep(&pause, NULL);
}

static void split(char **out, char *text)
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        REQUIRE(count < ARGUMENTS_MOST - 1);
        out[count++] = word;
    }
    out[count] = NULL;
}

/* Becomes the program; what it says goes to `out`. */
static _Noreturn void become(char *text, int out, const struct netns *place, pid_t parent)
{
    char *arguments[ARGUMENTS_MOST];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    split(arguments, text);
    if (!arguments[0] || getppid() != parent || out < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
        _exit(125);
    if (place)
        netns_enter(place);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* the runner's mask must not be the server's */
    execvp(arguments[0], arguments);
    _exit(127);
}

static pid_t launch(char *text, int out, const struct netns *place)
{
    const pid_t parent = getpid();
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0)
        become(text, out, place, parent);
    return pid;
}

/* ------------------------------------------------------------------------------------------------------ plain HTTP */

/* What the server shows at `path`, head included; "" if it does not answer. */
static void read_page(const struct etcd_server *server, const char *path, char *out, size_t size)
{
    char request[100];
    const struct timeval limit = { .tv_sec = 5 };
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server->metrics_port) };
    size_t used = 0;
    ssize_t got = 0;
    inet_pton(AF_INET, server->address, &address.sin_addr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const int length = snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
        send(fd, request, (size_t)length, MSG_NOSIGNAL) == length) {
        while (used + 1 < size && (got = recv(fd, out + used, size - used - 1, 0)) > 0)
            used += (size_t)got;
    }
    close(fd);
    out[used] = 0;
}

int64_t etcd_server_figure(const struct etcd_server *server, const char *name, const char *label)
{
    static char page[FIGURES_MOST];
    int64_t sum = 0;
    char *rest = NULL;
    read_page(server, "/metrics", page, sizeof page);
    for (char *line = strtok_r(page, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *value = strrchr(line, ' ');
        if (value && strncmp(line, name, strlen(name)) == 0 && strstr(line, label))
            sum += (int64_t)strtod(value, NULL);
    }
    return sum;
}

/* --------------------------------------------------------------------------------------------- starting and ending */

/* Names are numbers, and so are folders. */
static void start(struct etcd_server *server)
{
    const struct etcd_cluster *cluster = server->cluster;
    const char *program = getenv("TEST_ETCD"), *certificates = getenv("TEST_CERTIFICATES");
    const char *scheme = cluster->tls ? "https" : "http";
    char text[3000], log[250];
    int used = snprintf(text, sizeof text,
                        "%s --name m%d --data-dir %s/%d --listen-client-urls %s://%s:%d --advertise-client-urls "
                        "%s://%s:%d --listen-peer-urls http://%s:%d --initial-advertise-peer-urls http://%s:%d "
                        "--listen-metrics-urls http://%s:%d --initial-cluster %s --initial-cluster-token %d "
                        "--heartbeat-interval 60 --election-timeout 600 --logger zap --log-level warn %s",
                        program && *program ? program : "etcd", server->number, cluster->directory, server->number,
                        scheme, server->address, server->port, scheme, server->address, server->port, server->address,
                        server->peer_port, server->address, server->peer_port, server->address, server->metrics_port,
                        cluster->members, cluster->servers[0].port, cluster->options);
    if (cluster->tls)
        snprintf(text + used, sizeof text - (size_t)used,
                 " --cert-file %s/server.pem --key-file %s/server.key --trusted-ca-file %s/ca.pem --client-cert-auth",
                 certificates, certificates, certificates);
    snprintf(log, sizeof log, "%s/%d.log", cluster->directory, server->number);
    const int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    server->pid = launch(text, out, server->place);
    close(out);
}

static bool is_healthy(const struct etcd_server *server)
{
    char page[1000];
    read_page(server, "/health", page, sizeof page);
    return strstr(page, "\"true\"") != NULL;
}

void etcd_cluster_await(struct etcd_cluster *cluster)
{
    const int64_t end_ns = test_now_ns() + START_S * 1000000000LL * test_slowness();
    for (int i = 0; i < cluster->count; i++) {
        const struct etcd_server *server = &cluster->servers[i];
        while (server->pid && !is_healthy(server)) {
            if (test_now_ns() >= end_ns || waitpid(server->pid, NULL, WNOHANG) == server->pid) {
                FAIL("member %d does not answer: see %s/%d.log", server->number, cluster->directory, server->number);
                test_abort();
            }
            pause_ms(10);
        }
    }
}

static void stop_all(void)
{
    while (clusters && getpid() == starter)
        etcd_cluster_stop(clusters);
}

static struct etcd_cluster *new_cluster(const char *options)
{
    static unsigned count;
    const char *folder = getenv("TEST_DIRECTORY");
    struct etcd_cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster || !folder) {
        FAIL("no memory, or no TEST_DIRECTORY in the environment");
        test_abort();
    }
    if (starter != getpid()) {
        starter = getpid();
        clusters = NULL;
        REQUIRE_INT(0, atexit(stop_all));
    }
    cluster->tls = strncmp(options, "tls", 3) == 0;
    snprintf(cluster->options, sizeof cluster->options, "%s", options + (cluster->tls ? 3 : 0));
    snprintf(cluster->directory, sizeof cluster->directory, "%s/etcd-%d-%u", folder, (int)getpid(), ++count);
    remove_tree(cluster->directory);
    REQUIRE_INT(0, mkdir(cluster->directory, 0700));
    cluster->next = clusters;
    clusters = cluster;
    return cluster;
}

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

struct etcd_cluster *etcd_cluster_start_at(struct netns *const *places, int count, const char *options)
{
    struct etcd_cluster *cluster = new_cluster(options);
    REQUIRE(count <= ETCD_MEMBERS_MOST);
    cluster->count = count;
    for (int i = 0; i < count; i++) {
        struct etcd_server *server = &cluster->servers[i];
        const char *comma = i ? "," : "";
        *server = (struct etcd_server){ .cluster = cluster, .number = i + 1, .place = places ? places[i] : NULL };
        server->port = free_port();
        server->peer_port = free_port();
        server->metrics_port = free_port();
        snprintf(server->address, sizeof server->address, "%s", places ? places[i]->address : "127.0.0.1");
        append(cluster->hosts, sizeof cluster->hosts, "%s%s:%d", comma, server->address, server->port);
        append(cluster->members, sizeof cluster->members, "%sm%d=http://%s:%d", comma, i + 1, server->address,
               server->peer_port);
    }
    snprintf(cluster->url, sizeof cluster->url, "%s://%.150s", cluster->tls ? "etcds" : "etcd", cluster->hosts);
    for (int i = 0; i < count; i++)
        start(&cluster->servers[i]);
    if (!places) /* hosts of its own are not reached from the test's */
        etcd_cluster_await(cluster);
    return cluster;
}

struct etcd_cluster *etcd_cluster_start(int count, const char *options)
{
    return etcd_cluster_start_at(NULL, count, options);
}

void etcd_server_kill(struct etcd_server *server)
{
    if (server->pid > 0) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

void etcd_server_restart(struct etcd_server *server)
{
    REQUIRE_INT(0, server->pid);
    start(server);
}

void etcd_server_pause(const struct etcd_server *server)
{
    CHECK_INT(0, kill(server->pid, SIGSTOP));
    CHECK_INT(server->pid, waitpid(server->pid, NULL, WUNTRACED)); /* not before it stands still */
}

void etcd_server_continue(const struct etcd_server *server)
{
    CHECK_INT(0, kill(server->pid, SIGCONT));
}

void etcd_cluster_stop(struct etcd_cluster *cluster)
{
    struct etcd_cluster **link = &clusters;
    for (int i = 0; i < cluster->count; i++)
        etcd_server_kill(&cluster->servers[i]);
    remove_tree(cluster->directory);
    while (*link != cluster)
        link = &(*link)->next;
    *link = cluster->next;
    free(cluster);
}

struct etcd_server *etcd_cluster_leader(struct etcd_cluster *cluster)
{
    for (;;) {
        for (int i = 0; i < cluster->count; i++) {
            struct etcd_server *server = &cluster->servers[i];
            if (server->pid && etcd_server_figure(server, "etcd_server_is_leader", "") == 1)
                return server;
        }
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(10);
    }
}

/* ---------------------------------------------------------------------------------------------------------- etcdctl */

static void run_ctl(struct etcd_cluster *cluster, char *out, size_t size, const char *command)
{
    char text[2000];
    int pipe_ends[2], status = 1;
    size_t used = 0;
    ssize_t got;
    const char *certificates = getenv("TEST_CERTIFICATES");
    snprintf(text, sizeof text, "etcdctl --endpoints %s --command-timeout 20s %s ", cluster->hosts, cluster->ctl);
    if (cluster->tls)
        append(text, sizeof text, "--cacert %s/ca.pem --cert %s/client.pem --key %s/client.key ", certificates,
               certificates, certificates);
    append(text, sizeof text, "%s", command);
    setenv("ETCDCTL_API", "3", 1);
    REQUIRE_INT(0, pipe2(pipe_ends, O_CLOEXEC));
    const pid_t pid = launch(text, pipe_ends[1], NULL);
    close(pipe_ends[1]);
    while (used + 1 < size && (got = read(pipe_ends[0], out + used, size - used - 1)) > 0)
        used += (size_t)got;
    close(pipe_ends[0]);
    out[used] = 0;
    REQUIRE_INT(pid, waitpid(pid, &status, 0));
    if (status != 0) {
        FAIL("etcdctl %s: %s", command, out);
        test_abort();
    }
}

void etcd_ctl_read(struct etcd_cluster *cluster, char *out, size_t size, const char *format, ...)
{
    char command[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    run_ctl(cluster, out, size, command);
}

void etcd_ctl(struct etcd_cluster *cluster, const char *format, ...)
{
    char command[1000], out[2000];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    run_ctl(cluster, out, sizeof out, command);
}

int etcd_ctl_keys(struct etcd_cluster *cluster, const char *prefix)
{
    static char out[100000];
    int count = 0;
    char *rest = NULL;
    etcd_ctl_read(cluster, out, sizeof out, "get --prefix --keys-only %s", prefix);
    for (const char *line = strtok_r(out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        count++;
    return count;
}
