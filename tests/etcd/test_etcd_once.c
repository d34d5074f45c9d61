/* SPDX-License-Identifier: MIT
 *
 * test_etcd_once.c: the marks of work that is done: what they cost, what they outlive, what ends them, and that neither
 * a lost answer nor a late request makes or undoes one.
 */
#include "etcd_support.h"
#include "late_relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOUR_MS 3600000u

static hf_options once_an_hour(void)
{
    hf_options options = HF_OPTIONS_INIT;
    options.once_per_ms = HOUR_MS;
    options.owner = HF_OWNER_HANDLE;
    return options;
}

static hf_status ask(hf_client *client, hf_lock **out, hf_error *err)
{
    const hf_options options = once_an_hour();
    return hf_try_acquire(out, client, "x", &options, err);
}

static void check_done(hf_client *client)
{
    hf_lock *none = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_DONE, ask(client, &none, &err), &err);
}

static void check_not_done(hf_client *client)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    if (CHECK_STATUS(HF_OK, ask(client, &lock, &err), &err))
        must_release(lock);
}

static hf_lock *must_begin(hf_client *client)
{
    const hf_options options = once_an_hour();
    return must_acquire(client, "x", &options);
}

static void do_it(hf_client *client)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_begin(client), &err), &err);
}

static int marks(struct etcd_cluster *cluster)
{
    return etcd_ctl_keys(cluster, "holdfast/.done/");
}

static int leases(struct etcd_cluster *cluster)
{
    char list[4000];
    int count = -1;
    etcd_ctl_read(cluster, list, sizeof list, "lease list");
    REQUIRE(sscanf(list, "found %d leases", &count) == 1);
    return count;
}

/* --- what it costs --- */

static int64_t count(const struct etcd_server *server, const char *call)
{
    return etcd_server_figure(server, "grpc_server_started_total", call);
}

/* Nothing more to take it; and to give it back a lease for the mark. */
TEST_LIMIT(to_do_it_once_costs_one_exchange_more, 60)
{
    enum { TIMES = 50 };
    const struct etcd_server *server = &start_store(1, QUICK)->servers[0];
    hf_client *client = open_client();
    hf_lock *locks[TIMES];
    hf_options options = once_an_hour();
    options.ttl_ms = endless_ttl_ms(); /* nothing is renewed meanwhile */
    must_release(must_acquire(client, "first", &options));
    const int64_t reads = count(server, "\"Range\""), grants = count(server, "\"LeaseGrant\"");
    const int64_t before = count(server, "\"Txn\"");
    for (unsigned i = 0; i < TIMES; i++)
        locks[i] = must_acquire(client, numbered_name("x", i).text, &options);
    CHECK_INT(TIMES, count(server, "\"Txn\"") - before);
    CHECK_INT(0, count(server, "\"LeaseGrant\"") - grants);
    for (unsigned i = 0; i < TIMES; i++)
        CHECK_STATUS(HF_OK, hf_release_done(locks[i], NULL), NULL);
    CHECK_INT(2 * TIMES, count(server, "\"Txn\"") - before);
    CHECK_INT(TIMES, count(server, "\"LeaseGrant\"") - grants);
    for (unsigned i = 0; i < TIMES; i++)
        CHECK_STATUS(HF_DONE, hf_try_acquire(&locks[0], client, numbered_name("x", i).text, &options, NULL), NULL);
    CHECK_INT(3 * TIMES, count(server, "\"Txn\"") - before);
    CHECK_INT(TIMES, count(server, "\"LeaseTimeToLive\"")); /* for the words */
    CHECK_INT(0, count(server, "\"Range\"") - reads);
    hf_close(client);
}

/* Three are what waiting needs without it. */
TEST_LIMIT(a_server_that_takes_few_operations_is_enough, 60)
{
    start_store(1, QUICK " --max-txn-ops=3");
    hf_client *client = open_client(), *other = open_client();
    const hf_options options = once_an_hour();
    struct waiter waiter;
    hf_lock *lock = must_begin(client);
    waiter_start(&waiter, other, "x", &options);
    await_waiters(client, "x", 1);
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    waiter_join(&waiter, HF_DONE);
    hf_close(client);
    hf_close(other);
}

/* --- what it outlives, and what ends it --- */

TEST_LIMIT(a_mark_outlives_the_leader_and_a_restart_of_all_members, 60)
{
    struct etcd_cluster *cluster = start_store(3, "");
    hf_client *client = open_client();
    do_it(client);
    hf_close(client);
    etcd_server_kill(etcd_cluster_leader(cluster));
    client = open_client();
    check_done(client);
    for (int i = 0; i < 3; i++) {
        if (cluster->servers[i].pid)
            etcd_server_kill(&cluster->servers[i]);
    }
    for (int i = 0; i < 3; i++)
        etcd_server_restart(&cluster->servers[i]);
    etcd_cluster_await(cluster);
    check_done(client);
    CHECK_INT(1, marks(cluster));
    hf_close(client);
}

/* No client counts its time: it ends with its lease, which the server does. */
TEST_LIMIT(a_mark_ends_with_its_lease, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    char text[4000], lease[32] = "";
    long long number = 0, granted = 0, left = 0;
    hf_client *client = open_client();
    do_it(client);
    etcd_ctl_read(cluster, text, sizeof text, "get -w fields holdfast/.done/x");
    const char *field = strstr(text, "\"Lease\" :");
    REQUIRE(field && sscanf(field, "\"Lease\" : %lld", &number) == 1 && number > 0);
    snprintf(lease, sizeof lease, "%llx", number);
    etcd_ctl_read(cluster, text, sizeof text, "lease timetolive %s", lease);
    field = strstr(text, "granted with TTL(");
    REQUIRE(field && sscanf(field, "granted with TTL(%llds), remaining(%llds)", &granted, &left) == 2);
    CHECK_INT(HOUR_MS / 1000, granted);
    CHECK(left > granted - 60 && left <= granted);
    etcd_ctl(cluster, "lease revoke %s", lease);
    check_not_done(client);
    hf_close(client);
}

TEST_LIMIT(what_is_forgotten_leaves_no_lease, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client *client = open_client();
    hf_error err = { 0 };
    must_release(must_begin(client));
    const int before = leases(cluster);
    do_it(client);
    CHECK_INT(before + 1, leases(cluster));
    CHECK_STATUS(HF_OK, hf_forget_done(client, "x", &err), &err);
    CHECK_INT(before, leases(cluster));
    CHECK_INT(0, marks(cluster));
    hf_close(client);
}

TEST_LIMIT(what_was_lost_leaves_no_mark_and_no_lease, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client *client = open_client();
    char key[32];
    hf_lock *lock = must_begin(client);
    const int before = leases(cluster);
    find_lease(cluster, "x", key);
    etcd_ctl(cluster, "del holdfast/x/%s", key);
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    CHECK_INT(before, leases(cluster));
    CHECK_INT(0, marks(cluster));
    hf_close(client);
}

/* Its release is made when the server answers again, which may still have the lock: but it was told that it is lost. */
TEST_LIMIT(what_is_given_back_after_its_loss_leaves_no_mark, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    hf_options options = once_an_hour();
    struct loss loss = { 0 };
    hf_client *client = NULL;
    hurry.timeout_ms = test_ms(300);
    options.ttl_ms = 2000;
    record_loss(&options, &loss);
    while (hf_open(&client, cluster->url, &hurry, NULL) != HF_OK)
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    hf_lock *lock = must_acquire(client, "x", &options);
    etcd_server_pause(&cluster->servers[0]);
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    etcd_server_continue(&cluster->servers[0]);
    await_keys(cluster, 0);
    CHECK_INT(0, marks(cluster));
    hf_close(client);
}

/* --- others --- */

static int count_one(const hf_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return 0;
}

TEST_LIMIT(a_mark_is_in_nobodys_way, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client *client = open_client();
    int held = 0;
    do_it(client);
    etcd_ctl(cluster, "lock holdfast/x true");
    check_free(client, "x");
    CHECK_STATUS(HF_OK, hf_inspect(client, NULL, count_one, &held, NULL), NULL);
    CHECK_INT(0, held);
    check_done(client);
    hf_close(client);
}

/* --- answers that are lost, and requests that come late --- */

struct scene {
    struct etcd_cluster *cluster;
    struct late_relay *relay, *other_relay; /* both to the same server */
    hf_client *client;
    hf_lock *lock;
    pthread_t thread;
};

static void begin(struct scene *scene)
{
    char url[200];
    hf_client_options patient = HF_CLIENT_OPTIONS_INIT;
    scene->cluster = start_store(1, QUICK);
    scene->relay = late_relay_start("127.0.0.1", scene->cluster->servers[0].port);
    scene->other_relay = late_relay_start("127.0.0.1", scene->cluster->servers[0].port);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d,127.0.0.1:%d", late_relay_port(scene->relay),
             late_relay_port(scene->other_relay));
    patient.timeout_ms = test_ms(20000);
    REQUIRE_STATUS(HF_OK, hf_open(&scene->client, url, &patient, NULL), NULL);
    scene->lock = must_begin(scene->client);
}

static void *finish(void *arg)
{
    const struct scene *scene = arg;
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(scene->lock, &err), &err);
    return NULL;
}

/* The first request is done, but the connection is gone; the second comes after it. */
TEST_LIMIT(a_release_whose_answer_is_lost_leaves_one_mark, 90)
{
    struct scene scene;
    begin(&scene);
    const int before = leases(scene.cluster);
    late_relay_cut(scene.relay, "holdfast/.done/x", 1);
    late_relay_catch(scene.other_relay, "holdfast/.done/x", 1);
    REQUIRE_INT(0, pthread_create(&scene.thread, NULL, finish, &scene));
    late_relay_await(scene.relay);
    late_relay_await(scene.other_relay);
    late_relay_deliver(scene.relay);
    late_relay_deliver(scene.other_relay);
    pthread_join(scene.thread, NULL);
    CHECK_INT(1, marks(scene.cluster));
    CHECK_INT(before + 1, leases(scene.cluster));
    check_done(scene.client);
    hf_close(scene.client);
}

/* What it released is held again, by the same key; and what was done is forgotten. */
TEST_LIMIT(a_release_that_comes_late_leaves_no_mark, 90)
{
    struct scene scene;
    begin(&scene);
    late_relay_cut(scene.relay, "holdfast/.done/x", 1);
    finish(&scene);
    late_relay_await(scene.relay);
    CHECK_STATUS(HF_OK, hf_forget_done(scene.client, "x", NULL), NULL);
    hf_lock *lock = must_begin(scene.client);
    late_relay_deliver(scene.relay);
    CHECK_INT(0, marks(scene.cluster));
    CHECK_INT(1, etcd_ctl_keys(scene.cluster, "holdfast/x/"));
    must_release(lock);
    hf_close(scene.client);
}
