/* SPDX-License-Identifier: MIT
 *
 * pooler.c: see pooler.h.
 */
#include "pooler.h"

#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static void write_settings(const char *path, const struct postgres_server *server, int port, const char *mode, int size)
{
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    fprintf(file,
            "[databases]\n* = host=%s port=%d user=postgres\n"
            "[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = %s\ndefault_pool_size = %d\nmax_client_conn = 400\n",
            server->directory, server->port, port, mode, size);
    REQUIRE_INT(0, fchmod(fileno(file), 0644)); /* it runs as another user */
    REQUIRE_INT(0, fclose(file));
}

struct pooler pooler_start(const struct postgres_server *server, const char *mode, int size)
{
    struct pooler pooler = { .port = postgres_server_free_port() };
    char path[250], command[600];
    const char *program = getenv("TEST_POOLER");
    const struct timespec pause = { .tv_nsec = 10000000 };
    REQUIRE(program != NULL);
    snprintf(path, sizeof path, "%s/pooler-%d.ini", server->directory, pooler.port);
    write_settings(path, server, pooler.port, mode, size);
    snprintf(command, sizeof command, "%s -q %s", program, path);
    snprintf(pooler.url, sizeof pooler.url, "postgres://postgres@127.0.0.1:%d/postgres", pooler.port);
    pooler.pid = postgres_server_launch(server, command);
    for (bool ready = false; !ready; nanosleep(&pause, NULL)) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        REQUIRE_INT(0, waitpid(pooler.pid, NULL, WNOHANG)); /* what it said is in the server's log */
        PGconn *pq = PQconnectdb(pooler.url);
        ready = PQstatus(pq) == CONNECTION_OK;
        PQfinish(pq);
    }
    return pooler;
}

void pooler_stop(const struct pooler *pooler)
{
    kill(pooler->pid, SIGTERM);
    waitpid(pooler->pid, NULL, 0);
}
