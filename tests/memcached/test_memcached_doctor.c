/* SPDX-License-Identifier: MIT
 *
 * test_memcached_doctor.c: what hf_examine() says of a server that is set up as locks need it, and of some that are
 * not.
 */
#include "engine_support.h"
#include "findings.h"
#include "memcached_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct memcached_server *start_store(const char *arguments)
{
    struct memcached_server *server = memcached_server_start(arguments);
    use_url(server->url);
    return server;
}

static struct findings *find(uint32_t ttl_ms)
{
    hf_client *client = open_client();
    struct findings *found = find_with(client, ttl_ms);
    hf_close(client);
    return found;
}

/* So many values of this size, each under a key of its own. */
static void fill(struct memcached_server *server, size_t count, size_t size)
{
    const size_t most = count * (size + 60) + 10;
    char *text = malloc(most), answer[1000];
    size_t used = 0;
    REQUIRE(text != NULL);
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, most - used, "set fill%zu 0 0 %zu noreply\r\n%0*d\r\n", i, size,
                                 (int)size, 0);
    snprintf(text + used, most - used, "mn");
    memcached_server_ask(server, text, answer, sizeof answer);
    free(text);
}

TEST(a_server_for_locks_alone_has_nothing_wrong)
{
    struct memcached_server *server = start_store("-M -F");
    char answer[1000];
    static const char *const whats[] = { "restart" };
    const struct findings *found = find(0);
    must_find_nothing_but(found, whats, 1);
    must_find(found, HF_FINDING_NOTE, "restart", "all is in memory");
    must_find(found, HF_FINDING_OK, "evictions", "there is room");
    must_find(found, HF_FINDING_OK, "flush_all", "nobody can");
    must_find(found, HF_FINDING_OK, "connections", "room for more");
    must_find(found, HF_FINDING_OK, "clock", "agrees");
    must_find(find(2000), HF_FINDING_NOTE, "time-to-live", "4 s after its time");
    memcached_server_ask(server, "stats", answer, sizeof answer);
    CHECK(strstr(answer, "STAT cmd_set 1\r\n") == NULL); /* it only looks */
}

TEST(a_server_as_it_comes_may_lose_locks)
{
    struct memcached_server *server = start_store("-m 4");
    char answer[1000];
    must_find(find(0), HF_FINDING_RISK, "evictions", "evictions on");
    must_find(find(0), HF_FINDING_NOTE, "flush_all", "nobody has");
    fill(server, 20000, 300);
    must_find(find(0), HF_FINDING_BROKEN, "evictions", "has removed");
    memcached_server_ask(server, "flush_all", answer, sizeof answer);
    must_find(find(0), HF_FINDING_RISK, "flush_all", "1 times");
}

TEST(a_server_that_is_nearly_full_is_found)
{
    struct memcached_server *server = start_store("-M -m 64");
    fill(server, 700, 100000);
    must_find(find(0), HF_FINDING_RISK, "evictions", "nearly full");
}

/* Some of them it keeps for itself. */
TEST(a_server_without_connections_to_spare_is_found)
{
    enum { MOST = 100 };
    start_store("-c 100");
    hf_client *clients[MOST];
    int count = 0;
    while (count < 71)
        clients[count++] = open_client();
    must_find(find(0), HF_FINDING_RISK, "connections", "will soon refuse");
    while (count < MOST && hf_open(&clients[count], store_url, NULL, NULL) == HF_OK)
        count++;
    CHECK(count < MOST);
    while (count > 0)
        hf_close(clients[--count]);
    must_find(find(0), HF_FINDING_RISK, "connections", "had no connection left");
}

static void continue_soon(void *server)
{
    const struct timespec soon = { .tv_nsec = 300000000 };
    nanosleep(&soon, NULL);
    memcached_server_continue(server);
}

/* The slowest answer is what counts. On a busy machine it may be asked for when the server goes on already. */
TEST(a_way_that_is_too_slow_for_the_time_to_live_is_found)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client();
    bool found = false;
    for (int i = 0; i < 20 && !found; i++) {
        memcached_server_pause(server);
        const pid_t helper = helper_start(continue_soon, server);
        const struct findings *findings = find_with(client, 600);
        helper_join(helper);
        for (int k = 0; k < findings->count; k++)
            found |= findings->list[k].level == HF_FINDING_RISK && strcmp(findings->list[k].what, "latency") == 0;
    }
    CHECK(found);
    hf_close(client);
}
