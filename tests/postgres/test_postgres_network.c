/* SPDX-License-Identifier: MIT
 *
 * test_postgres_network.c: a network that swallows everything, without a word to either side. A lock that is bound to a
 * connection is lost then, and both the holder and the server must find out by themselves.
 */
#include "cut_off.h"
#include "netns.h"
#include "postgres_support.h"

#include <stdio.h>

/* All at once: it takes as long as it takes. */
TEST_LIMIT(a_cut_network_ends_locks_on_both_sides, 90)
{
    enum { HOLDERS = 3 };
    static const char *const strategies[HOLDERS] = { "advisory", "for-update", "lease" };
    struct netns *here = netns_new(), *there = netns_new();
    struct postgres_server *server = postgres_server_start_at(there, "");
    struct cut_off *it[HOLDERS];
    pid_t holders[HOLDERS];
    for (int i = 0; i < HOLDERS; i++) {
        it[i] = shared_new(sizeof *it[i]);
        snprintf(it[i]->url, sizeof it[i]->url, "%s?strategy=%s", server->url, strategies[i]);
        it[i]->name = strategies[i]; /* a name has one strategy */
        it[i]->ttl_ms = 3000;
        holders[i] = netns_helper_start(here, cut_off_holder, it[i]);
        gate_await(&it[i]->held, 1);
    }
    netns_cut(here);
    for (int i = 0; i < HOLDERS; i++)
        gate_await(&it[i]->told, 1);
    /* Nor does the server keep them. */
    postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    netns_heal(here);
    for (int i = 0; i < HOLDERS; i++) {
        gate_pass(&it[i]->healed);
        helper_join(holders[i]);
    }
}

static void find_the_other(void *arg)
{
    store_url = arg;
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}

/* A primary whose machine is gone does not refuse connections, it swallows them: the next host must still be asked. */
TEST_LIMIT(a_host_that_swallows_everything_is_passed_over, 60)
{
    struct netns *here = netns_new(), *there = netns_new(), *gone = netns_new();
    const struct postgres_server *server = postgres_server_start_at(there, "");
    char *url = shared_new(200);
    snprintf(url, 200, "postgres://postgres@%s:%d,%s:%d/postgres", gone->address, server->port, there->address,
             server->port);
    netns_cut(gone);
    helper_join(netns_helper_start(here, find_the_other, url));
}
