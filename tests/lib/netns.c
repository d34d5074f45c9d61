/* SPDX-License-Identifier: MIT
 *
 * netns.c: networks that can be cut; see netns.h.
 *
 * The switch is a namespace with a bridge for each side; a host's cable is moved from bridge to bridge, or to none.
 * Every host knows the hardware addresses of the others for good: ARP would fail after some seconds and turn the
 * silence into "no route to host".
 */
#include "netns.h"

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HARDWARE "02:00:00:00:00:%02x"
#define NOWHERE 0xff /* the last byte of a hardware address that nobody has */

static struct netns *hosts[NETNS_MOST];
static int host_count;
static int switch_fd = -1;
static bool bridges[NETNS_SIDES];
static pid_t maker; /* forked helpers inherit the numbers above, but the network is the test's */

static void write_text(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* Who is not root becomes root of a user namespace, in which he may make networks. */
static void become_able(void)
{
    char map[64];
    snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
    if (geteuid() == 0)
        return;
    need_namespaces();
    REQUIRE_INT(0, unshare(CLONE_NEWUSER));
    write_text("/proc/self/uid_map", map);
}

/* The namespace is made by a child that is gone afterwards: this process stays where it is, and could not come back
 * without being root. */
static int new_namespace(void)
{
    int ready[2], done[2];
    char path[64], byte = 0;
    REQUIRE_INT(0, pipe2(ready, O_CLOEXEC));
    REQUIRE_INT(0, pipe2(done, O_CLOEXEC));
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        close(done[1]);
        const bool made = unshare(CLONE_NEWNET) == 0;
        if (!made)
            test_note("cannot make a network namespace: %s", strerror(errno));
        const ssize_t told = made ? write(ready[1], &byte, 1) : -1;
        const ssize_t heard = told == 1 ? read(done[0], &byte, 1) : -1; /* 0: the parent has it, or is gone */
        _exit(heard == 0 ? 0 : 1);
    }
    close(ready[1]);
    close(done[0]);
    REQUIRE_INT(1, read(ready[0], &byte, 1));
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)child);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    close(ready[0]);
    close(done[1]);
    REQUIRE_INT(child, waitpid(child, NULL, 0));
    return fd;
}

/* Lines for ip(8), run in the namespace `fd`. */
__attribute__((format(printf, 2, 3))) static void run_ip(int fd, const char *format, ...)
{
    char text[400 + NETNS_MOST * 100];
    char *arguments[] = { (char *)(uintptr_t) "ip", (char *)(uintptr_t) "-batch", (char *)(uintptr_t) "-", NULL };
    va_list args;
    int status = 0, input[2];
    va_start(args, format);
    const int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    REQUIRE(size > 0 && size < (int)sizeof text); /* so it fits into the pipe */
    REQUIRE_INT(0, pipe2(input, O_CLOEXEC));
    const pid_t parent = getpid(), child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || setns(fd, CLONE_NEWNET) != 0 || dup2(input[0], STDIN_FILENO) < 0)
            _exit(126);
        execvp(arguments[0], arguments);
        test_note("cannot run ip, of the package iproute2: %s", strerror(errno));
        _exit(127);
    }
    REQUIRE_INT(size, write(input[1], text, (size_t)size));
    close(input[0]);
    close(input[1]);
    REQUIRE_INT(child, waitpid(child, &status, 0));
    if (status != 0) {
        FAIL("ip failed at: %s", text);
        test_abort();
    }
}

static void add_bridge(int side)
{
    if (bridges[side])
        return;
    run_ip(switch_fd, "link add side%d type bridge mcast_snooping 0\nlink set side%d up\n", side, side);
    bridges[side] = true;
}

static void begin(void)
{
    if (maker == getpid())
        return;
    maker = getpid();
    host_count = 0;
    memset(bridges, 0, sizeof bridges);
    become_able();
    switch_fd = new_namespace();
    add_bridge(0);
}

/* `host` learns where `other` is, or would be. */
static void introduce(const struct netns *host, const struct netns *other, int hardware)
{
    run_ip(host->fd, "neigh replace %s lladdr " HARDWARE " dev wire nud permanent\n", other->address,
           (unsigned)hardware);
}

struct netns *netns_new(void)
{
    begin();
    REQUIRE(host_count < NETNS_MOST);
    struct netns *host = calloc(1, sizeof *host);
    REQUIRE(host != NULL);
    host->number = host_count + 1;
    host->fd = new_namespace();
    snprintf(host->address, sizeof host->address, "10.99.0.%d", host->number);
    run_ip(switch_fd,
           "link add port%d type veth peer name wire address " HARDWARE " netns /proc/%d/fd/%d\n"
           "link set port%d master side0 up\n",
           host->number, (unsigned)host->number, (int)getpid(), host->fd, host->number);
    char neighbours[NETNS_MOST * 100] = "";
    for (int i = 0; i < host_count; i++) {
        const size_t used = strlen(neighbours);
        snprintf(neighbours + used, sizeof neighbours - used,
                 "neigh replace %s lladdr " HARDWARE " dev wire nud permanent\n", hosts[i]->address,
                 (unsigned)hosts[i]->number);
        introduce(hosts[i], host, host->number);
    }
    run_ip(host->fd, "link set lo up\naddress add %s/24 dev wire\nlink set wire up\n%s", host->address, neighbours);
    hosts[host_count++] = host;
    return host;
}

void netns_enter(const struct netns *host)
{
    REQUIRE_INT(0, setns(host->fd, CLONE_NEWNET));
}

struct visit {
    const struct netns *host;
    helper_fn run;
    void *arg;
};

static void visit(void *arg)
{
    const struct visit *visit = arg;
    netns_enter(visit->host);
    visit->run(visit->arg);
}

pid_t netns_helper_start(struct netns *host, helper_fn run, void *arg)
{
    /* The helper works on its own copy of this frame. */
    struct visit there = { host, run, arg };
    return helper_start(visit, &there);
}

void netns_move(const struct netns *host, int side)
{
    REQUIRE(side >= 0 && side < NETNS_SIDES);
    add_bridge(side);
    run_ip(switch_fd, "link set port%d master side%d\n", host->number, side);
}

void netns_cut(const struct netns *host)
{
    run_ip(switch_fd, "link set port%d nomaster\n", host->number);
}

void netns_heal(const struct netns *host)
{
    netns_move(host, 0);
}

void netns_cut_way(const struct netns *from, const struct netns *to)
{
    introduce(from, to, NOWHERE);
}

void netns_heal_way(const struct netns *from, const struct netns *to)
{
    introduce(from, to, to->number);
}
