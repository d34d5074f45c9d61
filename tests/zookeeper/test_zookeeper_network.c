/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_network.c: a network that is cut. A server in the minority goes on answering its clients for a while:
 * syncLimit is five seconds here, longer than the sessions. A holder that believed it would hold the lock beside the
 * next one.
 */
#include "netns.h"
#include "zookeeper_support.h"

#include <stdio.h>
#include <string.h>

struct member {
    char url[200];
    hf_options options;
    struct gate held, told, healed;
    _Atomic int64_t believed_ns; /* the last moment at which there was time left */
    _Atomic int64_t granted_ns;
    _Atomic uint64_t token;
};

static void hold_until_lost(void *arg)
{
    struct member *it = arg;
    struct loss loss = { 0 };
    store_url = it->url;
    hf_client *client = open_client();
    record_loss(&it->options, &loss);
    hf_lock *lock = must_acquire(client, "x", &it->options);
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    do {
        const int64_t now_ns = test_now_ns();
        if (hf_remaining_ms(lock) > 0)
            atomic_store(&it->believed_ns, now_ns);
    } while (!gate_await_for(&loss.told, 1, 1));
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_pass(&it->told);
    gate_await(&it->healed, 1);
    lock = must_acquire(client, "x", &it->options);
    CHECK(hf_token(lock) > atomic_load(&it->token));
    atomic_store(&it->token, hf_token(lock));
    must_release(lock);
    hf_close(client);
}

static void take_over(void *arg)
{
    struct member *it = arg;
    store_url = it->url;
    hf_client *client = open_client();
    gate_pass(&it->told);
    hf_lock *lock = must_acquire(client, "x", &it->options);
    atomic_store(&it->granted_ns, test_now_ns());
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    gate_await(&it->healed, 1);
    must_release(lock);
    hf_close(client);
}

/* The holder's server is a follower, and is cut off together with the holder, or alone, or only the holder is. */
static void check_cut(bool cut_server, bool cut_holder)
{
    struct netns *places[3] = { netns_new(), netns_new(), netns_new() }, *here = netns_new(), *there = netns_new();
    struct zookeeper_server *servers[3];
    struct member *holder = shared_new(sizeof *holder), *next = shared_new(sizeof *next);
    zookeeper_servers_start(servers, 3, places, "");
    const struct zookeeper_server *leader = zookeeper_leader(servers, 3);
    const int follower = leader == servers[0] ? 1 : 0;
    holder->options = next->options = with_ttl(1500);
    snprintf(holder->url, sizeof holder->url, "%s", servers[follower]->url);
    snprintf(next->url, sizeof next->url, "%s", leader->ensemble_url);
    const pid_t first = netns_helper_start(here, hold_until_lost, holder);
    gate_await(&holder->held, 1);
    const pid_t second = netns_helper_start(there, take_over, next);
    gate_await(&next->told, 1);
    pause_ms(random_below(700)); /* anywhere between two renewals */
    if (cut_server)
        netns_move(places[follower], 1);
    if (cut_holder)
        netns_move(here, 1);
    gate_await(&next->held, 1);
    gate_await(&holder->told, 1);
    if (!CHECK(atomic_load(&holder->believed_ns) <= atomic_load(&next->granted_ns)))
        test_note("for %d ms too long",
                  (int)((atomic_load(&holder->believed_ns) - atomic_load(&next->granted_ns)) / 1000000));
    CHECK(atomic_load(&next->token) > atomic_load(&holder->token));
    netns_heal(places[follower]);
    netns_heal(here);
    gate_pass(&next->healed);
    gate_pass(&holder->healed);
    helper_join(second);
    helper_join(first);
    CHECK(atomic_load(&holder->token) > atomic_load(&next->token));
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
