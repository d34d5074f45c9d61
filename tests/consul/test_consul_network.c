/* SPDX-License-Identifier: MIT
 *
 * test_consul_network.c: networks that swallow everything, without a word to either side. A holder that is cut off,
 * alone or together with one of three servers, knows of its loss before anybody else can have the lock.
 */
#include "consul_support.h"
#include "cut_off.h"
#include "netns.h"

#include <stdio.h>
#include <string.h>

/* `it->url` is for the holder, `url` for its successor. */
static void check_cut(struct cut_off *it, struct netns *here, struct netns *there, const char *url)
{
    struct cut_off *successor = shared_new(sizeof *successor);
    it->name = successor->name = "x";
    it->ttl_ms = test_ms(1500);
    pid_t holder = netns_helper_start(here, cut_off_holder, it);
    gate_await(&it->held, 1);
    snprintf(successor->url, sizeof successor->url, "%s", url);
    pid_t other = netns_helper_start(there, cut_off_successor, successor);
    gate_await(&successor->asks, 1);
    netns_cut(here);
    cut_off_check(it, successor);
    netns_heal(here);
    cut_off_end(it, holder, successor, other);
}

TEST_LIMIT(a_holder_that_is_cut_off_loses_its_lock_in_time, 60)
{
    struct netns *here = netns_new(), *there = netns_new();
    struct consul_server *server;
    struct cut_off *it = shared_new(sizeof *it);
    consul_servers_start(&server, 1, &there, "");
    snprintf(it->url, sizeof it->url, "%s", server->url);
    check_cut(it, here, there, server->url);
}

/* The one that is cut off together with its holder leads at first, and answers it for as long as it believes that. */
TEST_LIMIT(a_leader_that_is_cut_off_with_its_holder_takes_the_lock_along_no_longer, 90)
{
    struct netns *places[3];
    struct consul_server *servers[3];
    struct cut_off *it = shared_new(sizeof *it);
    for (int i = 0; i < 3; i++)
        places[i] = netns_new();
    consul_servers_start(servers, 3, places, "");
    const struct consul_server *leader = consul_leader(servers, 3);
    const struct consul_server *const others[2] = { servers[leader == servers[0] ? 1 : 0],
                                                    servers[leader == servers[2] ? 1 : 2] };
    char url[150];
    it->stays_away = true;
    snprintf(it->url, sizeof it->url, "%s", leader->url);
    snprintf(url, sizeof url, "%s,%s", others[0]->url, others[1]->url + strlen("consul://"));
    check_cut(it, leader->place, others[0]->place, url);
}
