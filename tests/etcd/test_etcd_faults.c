/* SPDX-License-Identifier: MIT
 *
 * test_etcd_faults.c: members that crash, stand still or all go at once; leases and keys that are taken away from
 * outside; answers that never come.
 */
#include "etcd_support.h"
#include "scene.h"
#include "who.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOLDER_TTL_MS 5000

static struct etcd_cluster *begin(struct scene *scene, int members, const char *options, uint32_t ttl_ms)
{
    struct etcd_cluster *cluster = start_store(members, options);
    scene_begin(scene, "x", ttl_ms);
    scene->in_trouble = true;
    return cluster;
}

/* Nothing is left in the store. */
static void finish(struct scene *scene, struct etcd_cluster *cluster)
{
    scene_end(scene);
    etcd_cluster_await(cluster);
    await_keys(cluster, 0);
}

static void await_time(int64_t until_ns)
{
    const int64_t left = until_ns - test_now_ns();
    const struct timespec pause = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
    if (left > 0)
        nanosleep(&pause, NULL);
}

/* --- members --- */

TEST_LIMIT(a_lock_outlives_the_leader, 60)
{
    struct scene scene;
    struct etcd_cluster *cluster = begin(&scene, 3, "", HOLDER_TTL_MS);
    etcd_server_kill(etcd_cluster_leader(cluster));
    /* Longer than its time-to-live: it was renewed by way of another member. */
    await_time(test_now_ns() + (HOLDER_TTL_MS + 500) * 1000000LL);
    scene_check_kept(&scene);
    finish(&scene, cluster);
}

/* Its connections stay open, and say nothing. */
TEST_LIMIT(a_lock_outlives_a_member_that_stands_still, 60)
{
    struct scene scene;
    struct etcd_cluster *cluster = begin(&scene, 3, QUICK, HOLDER_TTL_MS);
    etcd_server_pause(&cluster->servers[0]); /* the first of the URL: the one that both clients use */
    await_time(test_now_ns() + (HOLDER_TTL_MS + 500) * 1000000LL);
    scene_check_kept(&scene);
    gate_await(&scene.waiter.ended, 1);
    etcd_server_continue(&cluster->servers[0]);
    scene.in_trouble = false;
    finish(&scene, cluster);
}

TEST_LIMIT(a_lock_outlives_a_restart_of_all_members, 60)
{
    struct scene scene;
    struct etcd_cluster *cluster = begin(&scene, 3, "", 20000);
    for (int i = 0; i < 3; i++)
        etcd_server_kill(&cluster->servers[i]);
    for (int i = 0; i < 3; i++)
        etcd_server_restart(&cluster->servers[i]);
    etcd_cluster_await(cluster);
    scene_check_kept(&scene);
    finish(&scene, cluster);
}

TEST_LIMIT(tokens_grow_through_a_restart, 60)
{
    struct etcd_cluster *cluster = start_store(1, "");
    uint64_t last = 0;
    for (int i = 0; i < 3; i++) {
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, "x", NULL);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        must_release(lock);
        hf_close(client);
        etcd_server_kill(&cluster->servers[0]);
        etcd_server_restart(&cluster->servers[0]);
        etcd_cluster_await(cluster);
    }
}

/* A store that says nothing for longer than a time-to-live. */
TEST_LIMIT(silence_is_a_loss, 60)
{
    struct scene scene;
    struct etcd_cluster *cluster = begin(&scene, 1, QUICK, 2000);
    etcd_server_pause(&cluster->servers[0]);
    gate_await(&scene.loss.told, 1); /* by nobody but its own clock */
    CHECK_INT(0, gate_count(&scene.waiter.ended));
    etcd_server_continue(&cluster->servers[0]);
    scene_check_lost(&scene);
    finish(&scene, cluster);
}

/* --- leases and keys --- */

/* The server says nothing by itself; the keep-alive that is answered with "there is no such lease" does. */
TEST_LIMIT(a_lease_that_is_revoked_is_a_loss, 60)
{
    struct scene scene;
    char lease[32];
    struct etcd_cluster *cluster = begin(&scene, 1, QUICK, 20000);
    find_lease(cluster, "x", lease);
    etcd_ctl(cluster, "lease revoke %s", lease);
    scene_check_lost(&scene);
    /* The client is as good as new. */
    waiter_finish(&scene.waiter);
    hf_lock *again = must_acquire(scene.client, "x", NULL);
    CHECK(hf_token(again) > scene.waiter.token);
    must_release(again);
    hf_close(scene.client);
    hf_close(scene.other);
}

/* The holder watches its own key, so that it does not have to wait for its next renewal. */
TEST_LIMIT(a_key_that_is_deleted_is_a_loss_at_once, 60)
{
    struct scene scene;
    struct etcd_cluster *cluster = begin(&scene, 1, QUICK, 0);
    char lease[32];
    find_lease(cluster, "x", lease);
    /* Somebody watches the waiter's predecessor, which is the holder's key: the waiter. And its own: the holder. */
    await_watches(&cluster->servers[0], 2);
    const int64_t deleted_ns = test_now_ns();
    etcd_ctl(cluster, "del holdfast/x/%s", lease);
    scene_check_lost(&scene);
    CHECK(atomic_load(&scene.loss.told_ns) - deleted_ns < 5000000000LL); /* a third of 30 s is ten */
    finish(&scene, cluster);
}

/* As soon as it is told of the loss: by its watch, or by the renewal that asks first. */
TEST_LIMIT(a_holder_is_told_who_breaks_its_lock, 60)
{
    struct scene scene;
    hf_error err = { 0 };
    struct etcd_cluster *cluster = begin(&scene, 1, QUICK, 0);
    hf_lock *unwatched = must_acquire(scene.client, "y", NULL);
    CHECK_STATUS(HF_OK, hf_break(scene.other, "y", &err), &err);
    CHECK_STATUS(HF_LOST, hf_renew(unwatched, 0, &err), NULL);
    check_error(&err, HF_LOST, "it was broken by ");
    CHECK_STATUS(HF_LOST, hf_release(unwatched, NULL), NULL);
    await_watches(&cluster->servers[0], 2);
    CHECK_STATUS(HF_OK, hf_break(scene.other, "x", &err), &err);
    gate_await(&scene.loss.told, 1);
    check_we_broke_it(scene.loss.why);
    CHECK_STATUS(HF_LOST, hf_release(scene.lock, NULL), NULL);
    finish(&scene, cluster);
}

/* What was said of an earlier lock of the same name, on the same lease, says nothing of this one. */
TEST_LIMIT(a_key_that_is_deleted_was_broken_by_nobody, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client *client = open_client(), *other = open_client();
    hf_error err = { 0 };
    char lease[32];
    hf_lock *lock = must_acquire(client, "x", NULL);
    CHECK_STATUS(HF_OK, hf_break(other, "x", &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    lock = must_acquire(client, "x", NULL);
    find_lease(cluster, "x", lease);
    etcd_ctl(cluster, "del holdfast/x/%s", lease);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), NULL);
    check_error(&err, HF_LOST, "the store no longer has it");
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
    hf_close(other);
    await_keys(cluster, 0);
}

/* Another program would not read who broke its lock, and its lease may last for ever. */
TEST_LIMIT(nothing_is_left_on_the_lease_of_a_foreign_holder, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client *client = open_client();
    hf_error err = { 0 };
    char answer[200], lease[32] = "";
    etcd_ctl_read(cluster, answer, sizeof answer, "lease grant 600");
    REQUIRE_INT(1, sscanf(answer, "lease %31s", lease));
    etcd_ctl(cluster, "put --lease=%s holdfast/x/%s foreign", lease, lease);
    CHECK_STATUS(HF_OK, hf_break(client, "x", &err), &err);
    CHECK_INT(0, etcd_ctl_keys(cluster, "holdfast/"));
    hf_close(client);
}

TEST_LIMIT(a_waiter_whose_lease_is_revoked_lines_up_again, 60)
{
    struct scene scene;
    char keys[2000], lease[32];
    struct etcd_cluster *cluster = begin(&scene, 1, QUICK, 20000);
    etcd_ctl_read(cluster, keys, sizeof keys,
                  "get --prefix --keys-only --sort-by=CREATE --order=DESCEND --limit=1 holdfast/x/");
    snprintf(lease, sizeof lease, "%.*s", (int)strcspn(strrchr(keys, '/') + 1, "\n"), strrchr(keys, '/') + 1);
    etcd_ctl(cluster, "lease revoke %s", lease);
    await_waiters(scene.client, "x", 1);
    CHECK_INT(0, gate_count(&scene.waiter.ended));
    must_release(scene.lock);
    finish(&scene, cluster);
}

TEST_LIMIT(a_compaction_does_not_disturb_who_waits, 60)
{
    struct scene scene;
    char status[1000];
    struct etcd_cluster *cluster = begin(&scene, 1, QUICK, 20000);
    for (int i = 0; i < 5; i++)
        etcd_ctl(cluster, "put something %d", i);
    etcd_ctl_read(cluster, status, sizeof status, "get something -w fields");
    const char *revision = strstr(status, "\"Revision\" :");
    REQUIRE(revision != NULL);
    etcd_ctl(cluster, "compact --physical %lld", strtoll(revision + 12, NULL, 10));
    must_release(scene.lock);
    finish(&scene, cluster);
}

/* --- answers that do not come --- */

TEST_LIMIT(what_was_not_answered_is_undone, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_error err = { 0 };
    hurry.timeout_ms = 300;
    while (hf_open(&client, cluster->url, &hurry, &err) != HF_OK)
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    /* Of the same lease, which this keeps alive: what is done late is not removed by its end. */
    hf_lock *kept = must_acquire(client, "kept", NULL), *none = NULL;
    for (int i = 0; i < 3; i++) {
        etcd_server_pause(&cluster->servers[0]);
        CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&none, client, "x", NULL, &err), &err);
        etcd_server_continue(&cluster->servers[0]);
        await_keys(cluster, 1);
        release_in_trouble(must_acquire(client, "x", NULL));
    }
    CHECK(hf_remaining_ms(kept) > 0);
    release_in_trouble(kept);
    await_keys(cluster, 0);
    hf_close(client);
}

/* A wait goes on through a time without answers, and keeps its place. */
TEST_LIMIT(a_wait_goes_on_after_a_crash, 60)
{
    struct scene scene;
    struct etcd_cluster *cluster = begin(&scene, 1, "", 20000);
    etcd_server_kill(&cluster->servers[0]);
    await_time(test_now_ns() + 1500000000LL);
    CHECK_INT(0, gate_count(&scene.waiter.ended));
    etcd_server_restart(&cluster->servers[0]);
    etcd_cluster_await(cluster);
    scene_check_kept(&scene);
    finish(&scene, cluster);
}
