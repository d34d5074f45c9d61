/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_network.c: a network that is cut. A server in the minority goes on answering its clients for a while:
 * syncLimit is five seconds here, longer than the sessions. A holder that believed it would hold the lock beside the
 * next one.
 */
#include "cut_off.h"
#include "netns.h"
#include "zookeeper_support.h"

#include <stdio.h>

/* The holder's server is a follower, and is cut off together with the holder, or alone, or only the holder is. */
static void check_cut(bool cut_server, bool cut_holder)
{
    struct netns *places[3] = { netns_new(), netns_new(), netns_new() }, *here = netns_new(), *there = netns_new();
    struct zookeeper_server *servers[3];
    struct cut_off *holder = shared_new(sizeof *holder), *next = shared_new(sizeof *next);
    zookeeper_servers_start(servers, 3, places, "");
    const struct zookeeper_server *leader = zookeeper_leader(servers, 3);
    const int follower = leader == servers[0] ? 1 : 0;
    holder->name = next->name = "x";
    holder->ttl_ms = next->ttl_ms = 1500;
    snprintf(holder->url, sizeof holder->url, "%s", servers[follower]->url);
    snprintf(next->url, sizeof next->url, "%s", leader->ensemble_url);
    const pid_t first = netns_helper_start(here, cut_off_holder, holder);
    gate_await(&holder->held, 1);
    const pid_t second = netns_helper_start(there, cut_off_successor, next);
    gate_await(&next->asks, 1);
    pause_ms(random_below(700)); /* anywhere between two renewals */
    if (cut_server)
        netns_move(places[follower], 1);
    if (cut_holder)
        netns_move(here, 1);
    cut_off_check(holder, next);
    netns_heal(places[follower]);
    netns_heal(here);
    cut_off_end(holder, first, next, second);
}

TEST_LIMIT(a_minority_with_the_holder_in_it, 90)
{
    check_cut(true, true);
}

TEST_LIMIT(a_server_that_is_cut_off_from_the_others_and_the_holder, 90)
{
    check_cut(true, false);
}

TEST_LIMIT(a_holder_that_is_cut_off, 90)
{
    check_cut(false, true);
}
