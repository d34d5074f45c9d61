/* SPDX-License-Identifier: MIT
 *
 * etcd_server.c: real clusters for tests; see etcd_server.h.
 */
#include "etcd_server.h"

#include "server_home.h"
#include "shared.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_S 40
#define PORT_FIRST 12000
#define PORT_COUNT 19000
#define ANSWER_S 5
#define FIGURES_MOST ((size_t)1 << 20)

/* ------------------------------------------------------------------------------------------------------ plain HTTP */

/* What the server shows at `path`, head included; "" if it does not answer. */
static void read_page(const struct etcd_server *server, const char *path, char *out, size_t size)
{
    char request[100];
    const struct home_target target = { .address = server->address, .port = server->metrics_port, .limit_s = ANSWER_S };
    snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path);
    home_ask(&target, request, out, size);
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
    REQUIRE(out >= 0);
    server->pid =
        home_launch(&(struct home_program){ .home = cluster->directory, .out = out, .place = server->place }, text);
    close(out);
}

static bool is_healthy(void *server)
{
    char page[1000];
    read_page(server, "/health", page, sizeof page);
    return strstr(page, "\"true\"") != NULL;
}

void etcd_cluster_await(struct etcd_cluster *cluster)
{
    for (int i = 0; i < cluster->count; i++) {
        struct etcd_server *server = &cluster->servers[i];
        if (server->pid)
            home_await(server->pid, cluster->directory, START_S, is_healthy, server);
    }
}

static void stop(void *cluster)
{
    etcd_cluster_stop(cluster);
}

static struct etcd_cluster *new_cluster(const char *options)
{
    struct etcd_cluster *cluster = home_new(sizeof *cluster, stop);
    cluster->tls = strncmp(options, "tls", 3) == 0;
    snprintf(cluster->options, sizeof cluster->options, "%s", options + (cluster->tls ? 3 : 0));
    home_make(cluster->directory, sizeof cluster->directory, NULL, "etcd");
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
        server->port = home_free_port(PORT_FIRST, PORT_COUNT);
        server->peer_port = home_free_port(PORT_FIRST, PORT_COUNT);
        server->metrics_port = home_free_port(PORT_FIRST, PORT_COUNT);
        snprintf(server->address, sizeof server->address, "%s", home_address(server->place));
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
    home_kill(&server->pid, SIGKILL);
}

void etcd_server_restart(struct etcd_server *server)
{
    REQUIRE_INT(0, server->pid);
    start(server);
}

void etcd_server_pause(const struct etcd_server *server)
{
    home_pause(server->pid);
}

void etcd_server_continue(const struct etcd_server *server)
{
    home_continue(server->pid);
}

void etcd_cluster_stop(struct etcd_cluster *cluster)
{
    for (int i = 0; i < cluster->count; i++)
        etcd_server_kill(&cluster->servers[i]);
    home_remove(cluster->directory);
    home_forget(cluster);
}

struct etcd_server *etcd_cluster_leader(struct etcd_cluster *cluster)
{
    for (;;) {
        for (int i = 0; i < cluster->count; i++) {
            struct etcd_server *server = &cluster->servers[i];
            if (server->pid && etcd_server_figure(server, "etcd_server_is_leader", "") == 1)
                return server;
        }
        await_a_moment();
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
    const pid_t pid = home_launch(&(struct home_program){ .home = cluster->directory, .out = pipe_ends[1] }, text);
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
