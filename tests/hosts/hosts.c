/* SPDX-License-Identifier: MIT
 *
 * hosts.c: see hosts.h. Nothing here is locked while it hangs, so that a process can fork meanwhile.
 */
#include "hosts.h"
#include "test.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define HOSTS_MOST 128
#define HANG_NS 30000000000LL

enum answer { ANSWERS, IS_LATE, HANGS, FAILS };

static struct host {
    char name[64], addresses[100];
    enum answer answer;
} hosts[HOSTS_MOST];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int hanging, to_refuse, refused;

static struct host *find(const char *name, bool add)
{
    for (int i = 0; i < HOSTS_MOST; i++) {
        if (add && !*hosts[i].name)
            snprintf(hosts[i].name, sizeof hosts[i].name, "%s", name);
        if (strcmp(hosts[i].name, name) == 0)
            return &hosts[i];
    }
    return NULL;
}

static void set(const char *name, enum answer answer, const char *addresses)
{
    pthread_mutex_lock(&mutex);
    struct host *host = find(name, true);
    REQUIRE(host != NULL);
    host->answer = answer;
    if (addresses)
        snprintf(host->addresses, sizeof host->addresses, "%s", addresses);
    pthread_mutex_unlock(&mutex);
}

void hosts_answer(const char *host, const char *addresses)
{
    set(host, ANSWERS, addresses);
}

void hosts_answer_late(const char *host, const char *addresses)
{
    set(host, IS_LATE, addresses);
}

void hosts_hang(const char *host)
{
    set(host, HANGS, NULL);
}

void hosts_fail(const char *host)
{
    set(host, FAILS, NULL);
}

void hosts_move(void)
{
    hosts_refuse(INT_MAX);
}

void hosts_refuse(int times)
{
    atomic_store(&refused, 0);
    atomic_store(&to_refuse, times);
}

int hosts_hanging(void)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    while (atomic_load(&hanging) == 0 && test_now_ns() < test_deadline_ns())
        nanosleep(&moment, NULL);
    return atomic_load(&hanging);
}

typedef int (*lookup)(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found);

/* All of the addresses, in this order. */
static int answer(lookup real, const char *addresses, const char *service, const struct addrinfo *hints,
                  struct addrinfo **found)
{
    char copy[100], *rest = NULL;
    int failure = EAI_NONAME;
    snprintf(copy, sizeof copy, "%s", addresses);
    for (char *one = strtok_r(copy, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
        failure = real(one, service, hints, found);
        if (failure)
            break;
        while (*found)
            found = &(*found)->ai_next;
    }
    return failure;
}

static void hang(bool until_refused)
{
    const struct timespec moment = { .tv_nsec = 10000000 };
    const int64_t end = test_now_ns() + HANG_NS;
    atomic_fetch_add(&hanging, 1);
    while (test_now_ns() < end && !(until_refused && atomic_load(&refused)))
        nanosleep(&moment, NULL);
    atomic_fetch_sub(&hanging, 1);
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints, struct addrinfo **found)
{
    lookup real;
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &symbol, sizeof real);
    pthread_mutex_lock(&mutex);
    const struct host *known = node ? find(node, false) : NULL;
    const struct host host = known ? *known : (struct host){ .name = "" };
    pthread_mutex_unlock(&mutex);
    if (!*host.name)
        return real(node, service, hints, found);
    if (hints && hints->ai_flags & AI_NUMERICHOST)
        return EAI_NONAME;
    if (host.answer == IS_LATE || host.answer == HANGS)
        hang(host.answer == IS_LATE);
    return host.answer == ANSWERS || host.answer == IS_LATE ? answer(real, host.addresses, service, hints, found)
                                                            : EAI_AGAIN;
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *address, socklen_t size)
{
    int (*real)(int fd, const struct sockaddr *address, socklen_t size);
    struct sockaddr_in there = { .sin_family = AF_UNSPEC };
    void *symbol = dlsym(RTLD_NEXT, "connect");
    memcpy(&real, &symbol, sizeof real);
    if (address->sa_family == AF_INET && size == sizeof there)
        memcpy(&there, address, sizeof there);
    if (there.sin_addr.s_addr != inet_addr(HOSTS_FORMER))
        return real(fd, address, size);
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (atomic_load(&refused) >= atomic_load(&to_refuse))
        return real(fd, (const struct sockaddr *)&there, sizeof there);
    atomic_fetch_add(&refused, 1);
    errno = ECONNREFUSED;
    return -1;
}
