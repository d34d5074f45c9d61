/* SPDX-License-Identifier: MIT
 *
 * test_etcd_traffic.c: what the server is asked, counted by the server itself.
 */
#include "etcd_support.h"

#include <stdio.h>
#include <time.h>

#define CLIENTS 4

struct figures {
    int64_t transactions, reads, grants, watches, events;
};

static struct figures count(const struct etcd_server *server)
{
    return (struct figures){
        .transactions = etcd_server_figure(server, "grpc_server_started_total", "\"Txn\""),
        .reads = etcd_server_figure(server, "grpc_server_started_total", "\"Range\""),
        .grants = etcd_server_figure(server, "grpc_server_started_total", "\"LeaseGrant\""),
        .watches = etcd_server_figure(server, "grpc_server_started_total", "\"Watch\""),
        .events = etcd_server_figure(server, "etcd_debugging_mvcc_events_total", ""),
    };
}

TEST_LIMIT(a_pair_is_two_transactions, 60)
{
    enum { PAIRS = 200 };
    const struct etcd_server *server = &start_store(1, QUICK)->servers[0];
    hf_client *client = open_client();
    must_release(must_acquire(client, "pair", NULL));
    const struct figures before = count(server);
    for (int i = 0; i < PAIRS; i++)
        must_release(must_acquire(client, "pair", NULL));
    const struct figures after = count(server);
    CHECK_INT(2 * PAIRS, after.transactions - before.transactions);
    CHECK_INT(0, after.reads - before.reads);
    CHECK_INT(0, after.grants - before.grants);
    hf_close(client);
}

TEST_LIMIT(many_locks_share_one_lease_and_one_renewal, 60)
{
    enum { LOCKS = 60 };
    const struct etcd_server *server = &start_store(1, QUICK)->servers[0];
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *locks[LOCKS];
    options.ttl_ms = 3000;
    const struct figures before = count(server);
    for (unsigned i = 0; i < LOCKS; i++)
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
    CHECK_INT(1, count(server).grants - before.grants);
    CHECK_INT(LOCKS, count(server).transactions - before.transactions);
    /* Renewed once at least, all of them in a few transactions. */
    while (count(server).transactions - before.transactions == LOCKS)
        REQUIRE(test_now_ns() < test_deadline_ns());
    CHECK(count(server).transactions - before.transactions <= LOCKS + 10);
    for (unsigned i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    hf_close(client);
}

/* So many wait, and each gives on what it gets. What that cost, from the first release on. */
static struct figures relay(const struct etcd_server *server, unsigned waiting)
{
    hf_client *clients[CLIENTS], *holder = open_client();
    struct waiter waiters[32];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = open_client();
    hf_lock *lock = must_acquire(holder, "queue", NULL);
    await_watches(server, 1); /* of its own key, which begins after a second */
    for (unsigned i = 0; i < waiting; i++) {
        waiter_start(&waiters[i], clients[i % CLIENTS], "queue", NULL);
        /* Before the next one lines up: who finds that something has changed since it looked asks once more. */
        await_watches(server, i + 2);
    }
    const struct figures before = count(server);
    must_release(lock);
    for (unsigned i = 0; i < waiting; i++)
        waiter_finish(&waiters[i]);
    const struct figures after = count(server);
    for (int i = 0; i < CLIENTS; i++)
        hf_close(clients[i]);
    hf_close(holder);
    while (etcd_server_figure(server, "etcd_debugging_mvcc_watcher_total", "") > 0)
        await_a_moment();
    return (struct figures){ .transactions = after.transactions - before.transactions,
                             .reads = after.reads - before.reads,
                             .watches = after.watches - before.watches,
                             .events = after.events - before.events };
}

TEST_LIMIT(a_release_wakes_one_waiter_however_many_there_are, 90)
{
    const struct etcd_server *server = &start_store(1, QUICK)->servers[0];
    static const unsigned counts[] = { 4, 32 };
    for (int i = 0; i < 2; i++) {
        const struct figures cost = relay(server, counts[i]);
        test_note("%u waiters: %d transactions, %d events", counts[i], (int)cost.transactions, (int)cost.events);
        /* One event for each, of the key before its own; one transaction to see that it is its turn, and one to
         * release. The first holder watches its own key, and may hear of its own release. */
        CHECK(cost.events == counts[i] || cost.events == counts[i] + 1);
        CHECK_INT(2 * counts[i] + 1, cost.transactions);
        CHECK_INT(0, cost.reads);
        CHECK_INT(0, cost.watches);
    }
}

TEST_LIMIT(all_waits_of_a_client_share_one_stream, 60)
{
    enum { WAITS = 20 };
    const struct etcd_server *server = &start_store(1, QUICK)->servers[0];
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *locks[WAITS];
    struct waiter waiters[WAITS];
    struct name names[WAITS];
    const struct figures before = count(server);
    for (unsigned i = 0; i < WAITS; i++) {
        names[i] = numbered_name("wait", i);
        locks[i] = must_acquire(holder, names[i].text, NULL);
        waiter_start(&waiters[i], client, names[i].text, NULL);
        await_waiters(holder, names[i].text, 1);
    }
    for (unsigned i = 0; i < WAITS; i++)
        must_release(locks[i]);
    for (unsigned i = 0; i < WAITS; i++)
        waiter_finish(&waiters[i]);
    CHECK(count(server).watches - before.watches <= 2); /* and the holder's, for its own keys */
    CHECK_INT(2, count(server).grants - before.grants);
    hf_close(holder);
    hf_close(client);
}

struct shown {
    uint64_t token;
    char note[100];
};

static int see(const hf_info *info, void *arg)
{
    struct shown *shown = arg;
    shown->token = info->token;
    snprintf(shown->note, sizeof shown->note, "%s", info->note);
    return 0;
}

/* No revision of its key is its token, and nothing is written while it may be a matter of moments. */
TEST_LIMIT(who_had_to_wait_shows_its_token_if_it_stays, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    const struct etcd_server *server = &cluster->servers[0];
    hf_client *holder = open_client(), *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiter;
    struct shown shown = { 0 };
    const struct timespec pause = { .tv_nsec = 20000000 };
    options.note = "7 of 9: late";
    options.ttl_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(holder, "x", NULL);
    waiter_start(&waiter, client, "x", &options);
    await_waiters(holder, "x", 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    const struct figures before = count(server);
    while (shown.token == 0) {
        REQUIRE_STATUS(HF_OK, hf_inspect(holder, "x", see, &shown, NULL), NULL);
        CHECK_STR("7 of 9: late", shown.note);
        nanosleep(&pause, NULL);
    }
    CHECK_INT(waiter.token, shown.token);
    CHECK_STR("7 of 9: late", shown.note);
    CHECK_INT(1, count(server).transactions - before.transactions);
    must_release(waiter.lock);
    CHECK_INT(0, etcd_ctl_keys(cluster, "holdfast/"));
    hf_close(holder);
    hf_close(client);
}
