/* SPDX-License-Identifier: MIT
 *
 * test_etcd_late.c: requests that arrive when they were given up long ago, and done anew on another connection. The
 * server does nothing for them: its revision stays as it is.
 */
#include "etcd_support.h"
#include "late_relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scene {
    struct etcd_cluster *cluster;
    struct late_relay *relay, *other_relay; /* both to the same server */
    hf_client *client, *other;              /* behind the relays; and not */
    hf_lock *kept;                          /* keeps the client's lease alive */
};

static void begin(struct scene *scene, const char *options)
{
    char url[200];
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    scene->cluster = start_store(1, options);
    scene->relay = late_relay_start("127.0.0.1", scene->cluster->servers[0].port);
    scene->other_relay = late_relay_start("127.0.0.1", scene->cluster->servers[0].port);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d,127.0.0.1:%d", late_relay_port(scene->relay),
             late_relay_port(scene->other_relay));
    hurry.timeout_ms = test_ms(3000);
    REQUIRE_STATUS(HF_OK, hf_open(&scene->client, url, &hurry, NULL), NULL);
    scene->other = open_client();
    scene->kept = must_acquire(scene->client, "kept", NULL);
}

static void finish(struct scene *scene)
{
    must_release(scene->kept);
    hf_close(scene->client);
    hf_close(scene->other);
    await_keys(scene->cluster, 0);
}

static long long revision(struct etcd_cluster *cluster)
{
    char status[4000];
    etcd_ctl_read(cluster, status, sizeof status, "get something -w fields");
    const char *found = strstr(status, "\"Revision\" :");
    REQUIRE(found != NULL);
    return strtoll(found + 12, NULL, 10);
}

static void check_does_nothing(struct scene *scene)
{
    const struct etcd_server *server = &scene->cluster->servers[0];
    const long long before = revision(scene->cluster);
    const int64_t handled = etcd_server_figure(server, "grpc_server_handled_total", "\"Txn\"");
    late_relay_deliver(scene->relay);
    while (etcd_server_figure(server, "grpc_server_handled_total", "\"Txn\"") == handled) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(2);
    }
    CHECK_INT(before, revision(scene->cluster));
}

TEST_LIMIT(a_try_that_comes_late_takes_nothing, 60)
{
    struct scene scene;
    begin(&scene, QUICK);
    late_relay_catch(scene.relay, "holdfast/x/", 1);
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, scene.client, "x", NULL, &err), &err);
    late_relay_await(scene.relay);
    must_release(lock);
    check_does_nothing(&scene);
    check_free(scene.other, "x");
    must_release(must_acquire(scene.client, "x", NULL)); /* of another lease */
    finish(&scene);
}

/* HTTP status 500 and nothing else, to the last request of what was sent in one write. */
static size_t answer_500(char out[64], const char *request, size_t length)
{
    static const char settings[9] = { 0, 0, 0, 4 }, headers[10] = { 0, 0, 1, 1, 5, 0, 0, 0, 0, (char)0x8e };
    const size_t preface = length >= 24 && memcmp(request, "PRI ", 4) == 0 ? 24 : 0;
    memcpy(out, settings, sizeof settings); /* which a new connection must begin with, and any may have */
    memcpy(out + 9, headers, sizeof headers);
    for (size_t at = preface; at + 9 <= length;) {
        const unsigned char *frame = (const unsigned char *)request + at;
        if (frame[3] == 1)
            memcpy(out + 9 + 5, frame + 5, 4); /* the stream */
        at += 9 + (size_t)(frame[0] << 16 | frame[1] << 8 | frame[2]);
    }
    return sizeof settings + sizeof headers;
}

/* A proxy that gave up may have passed it on: who gives the lock back must see to what comes yet. */
TEST_LIMIT(a_try_that_a_proxy_answers_with_5xx_and_passes_on_later_takes_nothing, 60)
{
    struct scene scene;
    begin(&scene, QUICK);
    late_relay_answer(scene.relay, "holdfast/x/", 1, answer_500);
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, scene.client, "x", NULL, &err), &err);
    late_relay_await(scene.relay);
    must_release(lock);
    check_does_nothing(&scene);
    check_free(scene.other, "x");
    finish(&scene);
}

/* Its second request is answered, that somebody else has the lock. */
TEST_LIMIT(a_try_in_vain_that_comes_late_takes_nothing, 60)
{
    struct scene scene;
    begin(&scene, QUICK);
    hf_lock *held = must_acquire(scene.other, "x", NULL), *none = NULL;
    late_relay_catch(scene.relay, "holdfast/x/", 1);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, scene.client, "x", NULL, NULL), NULL);
    late_relay_await(scene.relay);
    must_release(held);
    check_does_nothing(&scene);
    check_free(scene.other, "x");
    finish(&scene);
}

TEST_LIMIT(a_place_that_is_asked_for_late_is_not_taken, 60)
{
    struct scene scene;
    begin(&scene, QUICK);
    hf_lock *held = must_acquire(scene.other, "x", NULL);
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiter;
    options.wait_ms = 20000;
    late_relay_catch(scene.relay, "holdfast/x/", 1);
    waiter_start(&waiter, scene.client, "x", &options);
    late_relay_await(scene.relay);
    await_waiters(scene.other, "x", 1);
    REQUIRE_STATUS(HF_OK, hf_cancel(scene.client, "x"), NULL);
    waiter_join(&waiter, HF_CANCELED);
    must_release(held);
    await_keys(scene.cluster, 1);
    check_does_nothing(&scene);
    check_free(scene.other, "x");
    finish(&scene);
}

TEST_LIMIT(a_release_that_comes_late_frees_nothing, 60)
{
    struct scene scene;
    begin(&scene, QUICK);
    hf_lock *lock = must_acquire(scene.client, "x", NULL);
    late_relay_catch(scene.relay, "holdfast/x/", 1);
    must_release(lock);
    late_relay_await(scene.relay);
    lock = must_acquire(scene.client, "x", NULL); /* of the same lease, so with the same key */
    check_does_nothing(&scene);
    check_busy(scene.other, "x");
    must_release(lock);
    finish(&scene);
}

static void *break_it(void *client)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_break(client, "x", &err), &err);
    return NULL;
}

TEST_LIMIT(a_break_that_comes_late_breaks_nobody_else, 60)
{
    struct scene scene;
    pthread_t thread;
    char lease[32], key[80];
    begin(&scene, QUICK);
    hf_lock *lock = must_acquire(scene.other, "x", NULL);
    find_lease(scene.cluster, "x", lease);
    snprintf(key, sizeof key, "holdfast/x/%s", lease);
    late_relay_catch(scene.relay, key, 1);
    REQUIRE_INT(0, pthread_create(&thread, NULL, break_it, scene.client));
    late_relay_await(scene.relay);
    must_release(lock);
    lock = must_acquire(scene.other, "x", NULL);
    pthread_join(thread, NULL);
    check_does_nothing(&scene);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
    must_release(lock);
    finish(&scene);
}

/* A full server takes no mark. The lock is free all the same, and the mark is asked for again. */
TEST_LIMIT(what_is_in_doubt_is_given_back_to_a_full_server, 120)
{
    struct scene scene;
    char alarms[500] = "";
    hf_lock *lock = NULL, *none = NULL;
    hf_error err = { 0 };
    begin(&scene, QUICK " --quota-backend-bytes 200000");
    late_relay_catch(scene.relay, "holdfast/x/", 1);
    CHECK_STATUS(HF_OK, hf_try_acquire(&lock, scene.client, "x", NULL, &err), &err);
    late_relay_await(scene.relay);
    for (unsigned i = 0; i < 2000 && !strstr(alarms, "NOSPACE"); i++) {
        if (hf_try_acquire(&none, scene.other, numbered_name("more", i).text, NULL, NULL) == HF_OK)
            hf_release(none, NULL); /* of each revision something stays */
        else
            etcd_ctl_read(scene.cluster, alarms, sizeof alarms, "alarm list");
    }
    CHECK(strstr(alarms, "NOSPACE") != NULL);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, &err), &err);
    CHECK_INT(0, etcd_ctl_keys(scene.cluster, "holdfast/x/"));
    finish(&scene);
}
