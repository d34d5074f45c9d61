/* SPDX-License-Identifier: MIT
 *
 * test_etcd_network.c: a network that is cut between the members. Whoever is on the side of the few loses what it
 * holds, and knows before anybody on the other side is given it.
 */
#include "etcd_support.h"

#include <stdio.h>

struct cut_off {
    char few[100], many[200]; /* URLs */
    uint32_t ttl_ms;
    struct gate held, told, next_held, healed;
    _Atomic uint64_t token;
    _Atomic int64_t believed_ns, next_ns;
};

static void hold_on_the_side_of_the_few(void *arg)
{
    struct cut_off *it = arg;
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    store_url = it->few;
    hf_client *client = open_client();
    options.ttl_ms = it->ttl_ms;
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    while (!gate_await_for(&loss.told, 1, 2)) {
        const int64_t now_ns = test_now_ns();
        if (hf_remaining_ms(lock) > 0)
            atomic_store(&it->believed_ns, now_ns);
    }
    gate_pass(&it->told);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_await(&it->healed, 1);
    lock = must_acquire(client, "x", NULL);
    CHECK(hf_token(lock) > atomic_load(&it->token));
    must_release(lock);
    hf_close(client);
}

static void wait_on_the_side_of_the_many(void *arg)
{
    struct cut_off *it = arg;
    store_url = it->many;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    atomic_store(&it->next_ns, test_now_ns());
    CHECK(hf_token(lock) > atomic_load(&it->token));
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->next_held);
    gate_await(&it->healed, 1);
    must_release(lock);
    hf_close(client);
}

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
    struct cut_off *it = shared_new(sizeof *it);
    const struct etcd_server *server = &cluster->servers[alone];
    snprintf(it->few, sizeof it->few, "etcd://%s:%d", server->address, server->port);
    snprintf(it->many, sizeof it->many, "%s", cluster->url);
    it->ttl_ms = 3000;
    pid_t holder = netns_helper_start(places[MEMBERS + 1], hold_on_the_side_of_the_few, it);
    gate_await(&it->held, 1);
    pid_t next = netns_helper_start(places[MEMBERS], wait_on_the_side_of_the_many, it);
    netns_move(places[alone], 1);
    netns_move(places[MEMBERS + 1], 1);
    gate_await(&it->told, 1);
    gate_await(&it->next_held, 1);
    CHECK(atomic_load(&it->believed_ns) > 0);
    CHECK(atomic_load(&it->believed_ns) <= atomic_load(&it->next_ns));
    netns_heal(places[alone]);
    netns_heal(places[MEMBERS + 1]);
    gate_pass(&it->healed);
    helper_join(next);
    helper_join(holder);
}

TEST_LIMIT(a_holder_at_a_leader_that_is_cut_off_knows_in_time, 90)
{
    check_cut(true);
}

TEST_LIMIT(a_holder_at_a_follower_that_is_cut_off_knows_in_time, 90)
{
    check_cut(false);
}
