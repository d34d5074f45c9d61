/* SPDX-License-Identifier: MIT
 *
 * test_etcd_network.c: a network that is cut between the members. Whoever is on the side of the few loses what it
 * holds, and knows before anybody on the other side is given it.
 */
#include "cut_off.h"
#include "etcd_support.h"

#include <stdio.h>

/* `leader`: whether the member that is cut off leads. */
static void check_cut(bool leader)
{
    enum { MEMBERS = 3 };
    struct netns *places[MEMBERS + 2];
    for (int i = 0; i < MEMBERS + 2; i++)
        places[i] = netns_new();
    struct etcd_cluster *cluster = etcd_cluster_start_at(places, MEMBERS, QUICK);
    netns_enter(places[MEMBERS]); /* this process: to look at the members */
    etcd_cluster_await(cluster);
    const int leads = etcd_cluster_leader(cluster)->number - 1;
    const int alone = leader ? leads : (leads + 1) % MEMBERS;
    struct cut_off *few = shared_new(sizeof *few), *many = shared_new(sizeof *many);
    const struct etcd_server *server = &cluster->servers[alone];
    snprintf(few->url, sizeof few->url, "etcd://%s:%d", server->address, server->port);
    snprintf(many->url, sizeof many->url, "%s", cluster->url);
    few->name = many->name = "x";
    few->ttl_ms = 3000;
    pid_t holder = netns_helper_start(places[MEMBERS + 1], cut_off_holder, few);
    gate_await(&few->held, 1);
    pid_t next = netns_helper_start(places[MEMBERS], cut_off_successor, many);
    netns_move(places[alone], 1);
    netns_move(places[MEMBERS + 1], 1);
    cut_off_check(few, many);
    netns_heal(places[alone]);
    netns_heal(places[MEMBERS + 1]);
    cut_off_end(few, holder, many, next);
}

TEST_LIMIT(a_holder_at_a_leader_that_is_cut_off_knows_in_time, 90)
{
    check_cut(true);
}

TEST_LIMIT(a_holder_at_a_follower_that_is_cut_off_knows_in_time, 90)
{
    check_cut(false);
}
