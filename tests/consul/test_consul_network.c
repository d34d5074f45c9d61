/* SPDX-License-Identifier: MIT
 *
 * test_consul_network.c: networks that swallow everything, without a word to either side. A holder that is cut off,
 * alone or together with one of three servers, knows of its loss before anybody else can have the lock.
 */
#include "consul_support.h"
#include "netns.h"

#include <stdio.h>
#include <string.h>

#define NAME "x"

struct cut_off {
    char url[200];
    uint32_t ttl_ms;
    bool comes_back; /* its server needs no time to find the others again */
    struct gate held, told, healed;
    _Atomic int64_t believed_ns; /* when time was last seen to remain */
    _Atomic uint64_t token;
    _Atomic int64_t granted_ns; /* to the other one */
    _Atomic uint64_t next_token;
};

static void hold_while_cut_off(void *arg)
{
    struct cut_off *it = arg;
    hf_options options = stranger(it->ttl_ms);
    struct loss loss = { 0 };
    store_url = it->url;
    hf_client *client = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    while (!gate_await_for(&loss.told, 1, 2)) {
        const int64_t now_ns = test_now_ns();
        if (hf_remaining_ms(lock) > 0)
            atomic_store(&it->believed_ns, now_ns);
    }
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_pass(&it->told);
    if (!it->comes_back)
        return;
    gate_await(&it->healed, 1);
    lock = must_acquire(client, NAME, NULL);
    CHECK(hf_token(lock) > atomic_load(&it->next_token));
    must_release(lock);
    hf_close(client);
}

static void succeed(void *arg)
{
    struct cut_off *it = arg;
    store_url = it->url;
    hf_client *client = open_client();
    gate_pass(&it->held); /* that is, it begins to wait */
    hf_lock *lock = must_acquire(client, NAME, NULL);
    atomic_store(&it->granted_ns, test_now_ns());
    atomic_store(&it->next_token, hf_token(lock));
    must_release(lock);
    hf_close(client);
}

/* `it->url` is for the holder, `url` for its successor. */
static void check_cut(struct cut_off *it, struct netns *here, struct netns *there, const char *url)
{
    struct cut_off *successor = shared_new(sizeof *successor);
    it->ttl_ms = test_ms(1500);
    pid_t holder = netns_helper_start(here, hold_while_cut_off, it);
    gate_await(&it->held, 1);
    snprintf(successor->url, sizeof successor->url, "%s", url);
    pid_t other = netns_helper_start(there, succeed, successor);
    gate_await(&successor->held, 1);
    netns_cut(here);
    gate_await(&it->told, 1);
    helper_join(other);
    CHECK(atomic_load(&it->believed_ns) > 0);
    CHECK(atomic_load(&it->believed_ns) < atomic_load(&successor->granted_ns));
    CHECK(atomic_load(&successor->next_token) > atomic_load(&it->token));
    atomic_store(&it->next_token, atomic_load(&successor->next_token));
    netns_heal(here);
    gate_pass(&it->healed);
    helper_join(holder);
}

TEST_LIMIT(a_holder_that_is_cut_off_loses_its_lock_in_time, 60)
{
    struct netns *here = netns_new(), *there = netns_new();
    struct consul_server *server;
    struct cut_off *it = shared_new(sizeof *it);
    consul_servers_start(&server, 1, &there, "");
    snprintf(it->url, sizeof it->url, "%s", server->url);
    it->comes_back = true;
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
    snprintf(it->url, sizeof it->url, "%s", leader->url);
    snprintf(url, sizeof url, "%s,%s", others[0]->url, others[1]->url + strlen("consul://"));
    check_cut(it, leader->place, others[0]->place, url);
}
