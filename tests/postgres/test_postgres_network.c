/* SPDX-License-Identifier: MIT
 *
 * test_postgres_network.c: a network that swallows everything, without a word to either side. A lock that is bound to a
 * connection is lost then, and both the holder and the server must find out by themselves.
 */
#include "netns.h"
#include "postgres_support.h"

#include <stdio.h>

struct cut_off {
    char url[200];
    struct gate held, told, healed;
};

static void hold_while_cut_off(void *arg)
{
    struct cut_off *it = arg;
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    store_url = it->url;
    hf_client *client = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    const uint64_t token = hf_token(lock);
    gate_pass(&it->held);
    /* The user does nothing, and is told. */
    gate_await(&loss.told, 1);
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_pass(&it->told);
    gate_await(&it->healed, 1);
    lock = must_acquire(client, "x", NULL);
    CHECK(hf_token(lock) > token);
    must_release(lock);
    hf_close(client);
}

static void check_cut(const char *strategy)
{
    struct netns *here = netns_new(), *there = netns_new();
    struct postgres_server *server = postgres_server_start_at(there, "");
    struct cut_off *it = shared_new(sizeof *it);
    snprintf(it->url, sizeof it->url, "%s?strategy=%s", server->url, strategy);
    pid_t holder = netns_helper_start(here, hold_while_cut_off, it);
    gate_await(&it->held, 1);
    netns_cut(here);
    gate_await(&it->told, 1);
    /* Nor does the server keep it. */
    postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    netns_heal(here);
    gate_pass(&it->healed);
    helper_join(holder);
}

TEST_LIMIT(a_cut_network_ends_an_advisory_lock_on_both_sides, 90)
{
    check_cut("advisory");
}

TEST_LIMIT(a_cut_network_ends_a_row_lock_on_both_sides, 90)
{
    check_cut("for-update");
}
