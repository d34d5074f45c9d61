/* SPDX-License-Identifier: MIT
 *
 * test_mysql_network.c: a network that swallows everything, without a word to either side. A lock that is bound to a
 * connection is lost then, and both the holder and the server must find out by themselves, the holder first; a bell
 * that is stuck with a client which is cut off must not stall those who wait.
 */
#include "cut_off.h"
#include "mysql_support.h"
#include "netns.h"

#include <stdio.h>

/* All at once: it takes as long as it takes. */
TEST_LIMIT(a_cut_network_ends_locks_on_both_sides, 120)
{
    struct netns *here = netns_new(), *there = netns_new();
    struct mysql_server *server = mysql_server_start_at(there, "");
    struct cut_off *it[STRATEGIES];
    struct waiter waiters[STRATEGIES];
    hf_client *clients[STRATEGIES];
    pid_t holders[STRATEGIES];
    for (int i = 0; i < STRATEGIES; i++) {
        it[i] = shared_new(sizeof *it[i]);
        snprintf(it[i]->url, sizeof it[i]->url, "%s?strategy=%s", server->url, strategy_names[i]);
        it[i]->name = strategy_names[i]; /* a name has one strategy */
        it[i]->ttl_ms = 3000;
        holders[i] = netns_helper_start(here, cut_off_holder, it[i]);
        gate_await(&it[i]->held, 1);
    }
    for (int i = 0; i < STRATEGIES; i++) { /* these reach the server by its socket file */
        char url[400];
        snprintf(url, sizeof url, "%s&strategy=%s", server->unix_url, strategy_names[i]);
        store_url = url;
        clients[i] = open_client();
        waiter_start(&waiters[i], clients[i], strategy_names[i], NULL);
    }
    mysql_server_await(server, STRATEGIES, "SELECT COUNT(*) " OUR_CONNECTIONS " AND COMMAND <> 'Sleep'");
    netns_cut(here);
    for (int i = 0; i < STRATEGIES; i++) {
        gate_await(&it[i]->told, 1);
        waiter_join(&waiters[i], HF_OK);
        CHECK(atomic_load(&it[i]->told_ns) <= waiters[i].ended_ns); /* the holder knows first */
        must_release(waiters[i].lock);
        hf_close(clients[i]);
    }
    netns_heal(here);
    for (int i = 0; i < STRATEGIES; i++) {
        gate_pass(&it[i]->healed);
        helper_join(holders[i]);
    }
}
