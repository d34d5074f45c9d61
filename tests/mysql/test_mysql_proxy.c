/* SPDX-License-Identifier: MIT
 *
 * test_mysql_proxy.c: something between client and server that has sessions of its own, as ProxySQL and MaxScale do: it
 * greets with a number that is not the session's. Locks and bells belong to sessions, so it is refused, unless the user
 * vouches for it.
 */
#include "mysql_support.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER 5 /* of a packet, and the protocol's version */

struct proxy {
    int listener, server_port;
};

static int connect_to(int port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* The greeting of the server, with another number of the session behind the server's version. */
static void forge_greeting(int from, int to)
{
    unsigned char text[500] = { 0 };
    const ssize_t size = recv(from, text, sizeof text - 1, 0);
    REQUIRE(size > 20);
    const size_t number = HEADER + strlen((char *)text + HEADER) + 1;
    text[number + 1] ^= 0x55;
    REQUIRE_INT(size, send(to, text, (size_t)size, MSG_NOSIGNAL));
}

static bool pass_on(int from, int to)
{
    char text[4096];
    const ssize_t size = recv(from, text, sizeof text, 0);
    return size > 0 && send(to, text, (size_t)size, MSG_NOSIGNAL) == size;
}

static void *serve_one(void *arg)
{
    const struct proxy *proxy = arg;
    const int client = accept(proxy->listener, NULL, NULL), server = connect_to(proxy->server_port);
    struct pollfd ends[2] = { { .fd = client, .events = POLLIN }, { .fd = server, .events = POLLIN } };
    bool open = true;
    forge_greeting(server, client);
    while (open && poll(ends, 2, -1) > 0)
        open = (!ends[0].revents || pass_on(client, server)) && (!ends[1].revents || pass_on(server, client));
    close(client);
    close(server);
    return NULL;
}

static void check_through_proxy(const struct mysql_server *server, const char *options, hf_status status,
                                const char *words)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof address;
    struct proxy proxy = { .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .server_port = server->port };
    pthread_t thread;
    char url[200];
    REQUIRE(proxy.listener >= 0 && bind(proxy.listener, (struct sockaddr *)&address, size) == 0);
    REQUIRE_INT(0, listen(proxy.listener, 4));
    REQUIRE_INT(0, getsockname(proxy.listener, (struct sockaddr *)&address, &size));
    REQUIRE_INT(0, pthread_create(&thread, NULL, serve_one, &proxy));
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/app?%s", ntohs(address.sin_port), options);
    check_open(url, status, words);
    REQUIRE_INT(0, pthread_join(thread, NULL));
    close(proxy.listener);
}

TEST_LIMIT(a_proxy_with_sessions_of_its_own_is_refused, 60)
{
    const struct mysql_server *server = start_store("lease", "");
    check_through_proxy(server, "strategy=lease", HF_UNSUPPORTED, "proxy");
    check_through_proxy(server, "strategy=get-lock", HF_UNSUPPORTED, "pooler=session");
    check_through_proxy(server, "strategy=get-lock&pooler=session", HF_OK, "");
}
