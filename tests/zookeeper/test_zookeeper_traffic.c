/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_traffic.c: how often the server is asked, and how many it wakes, by its own counts.
 */
#include "zookeeper_support.h"

#define CLIENTS 4
#define CROWD 24

static int64_t requests(struct zookeeper_server *server)
{
    return zookeeper_server_number(server, "zk_packets_received");
}

TEST_LIMIT(a_pair_is_three_exchanges, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    const int64_t before = requests(server);
    for (int i = 0; i < 200; i++)
        must_release(must_acquire(client, "x", NULL));
    const int64_t used = requests(server) - before;
    /* The question itself is one; and there may be a sign of life, if it takes that long. */
    if (used < 600 || used > 606)
        FAIL("%d requests for 200 pairs", (int)used);
    hf_close(client);
}

TEST_LIMIT(a_hand_off_wakes_one_and_costs_two_requests, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *clients[CLIENTS], *holder = open_client();
    struct waiter waiters[CROWD];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = open_client();
    hf_lock *lock = must_acquire(holder, "x", NULL);
    for (int i = 0; i < CROWD; i++) {
        waiter_start(&waiters[i], clients[i % CLIENTS], "x", NULL);
        await_waiters(holder, "x", i + 1);
    }
    const int64_t before = requests(server), woken = zookeeper_server_number(server, "zk_sum_node_deleted_watch_count");
    must_release(lock);
    for (int i = 0; i < CROWD; i++) {
        waiter_finish(&waiters[i]);
    }
    const int64_t used = requests(server) - before;
    /* The first in line, which was right behind the holder, had a watch on its own node too. */
    CHECK_INT(CROWD + 1, zookeeper_server_number(server, "zk_sum_node_deleted_watch_count") - woken);
    /* One to delete the node, and one of whoever is woken, to see that it is the first; and a few signs of life. */
    if (used < CROWD || used > 2 * CROWD + 12)
        FAIL("%d requests for %d hand-offs", (int)used, CROWD);
    for (int i = 0; i < CLIENTS; i++)
        hf_close(clients[i]);
    hf_close(holder);
}

static int64_t requests_while_holding(struct zookeeper_server *server, unsigned count)
{
    hf_client *client = open_client();
    const hf_options options = with_ttl(2000);
    hf_lock *locks[100];
    for (unsigned i = 0; i < count; i++)
        locks[i] = must_acquire(client, numbered_name("x", i).text, &options);
    const int64_t before = requests(server);
    pause_ms(4000);
    const int64_t used = requests(server) - before;
    for (unsigned i = 0; i < count; i++)
        must_release(locks[i]);
    hf_close(client);
    return used;
}

TEST_LIMIT(many_locks_are_kept_alive_with_few_requests, 60)
{
    struct zookeeper_server *server = serve("");
    const int64_t one = requests_while_holding(server, 1), many = requests_while_holding(server, 100);
    /* For two lifetimes: renewals, signs of life in between, and those of the session that open() began with. */
    test_note("%d requests for one lock, %d for a hundred", (int)one, (int)many);
    CHECK(one <= 30);
    CHECK(many <= 3 * one);
}

TEST_LIMIT(nothing_is_left_behind, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    const int64_t connections = zookeeper_server_number(server, "zk_num_alive_connections");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *none = NULL, *lock = must_acquire(client, "x", NULL);
    options.wait_ms = 10;
    for (int i = 0; i < 50; i++)
        CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, other, "x", &options, NULL), NULL);
    await_contenders(raw, "x", 1);
    CHECK(zookeeper_server_number(server, "zk_watch_count") <= 2); /* one for each session and node, however many */
    must_release(lock);
    CHECK_INT(0, contenders(raw, "x"));
    hf_close(client);
    hf_close(other);
    CHECK_INT(0, zookeeper_server_number(server, "zk_ephemerals_count"));
    while (zookeeper_server_number(server, "zk_num_alive_connections") > connections)
        await_a_moment();
    raw_close(raw);
}
