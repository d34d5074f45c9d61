/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_faults.c: answers that get lost, sessions that are ended, servers that are killed, paused and started
 * again, directories that are swept away.
 */
#include "scene.h"
#include "zookeeper_support.h"

#include <stdio.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------------- lost answers */

static void acquire_and_release(struct valve *valve, struct raw *raw, int lose_to_acquire, int lose_to_release)
{
    struct name name = unique_name("lost");
    const hf_options options = with_ttl(4000);
    hf_client *client = open_client();
    atomic_store(&valve->lose, lose_to_acquire);
    hf_lock *lock = must_acquire(client, name.text, &options);
    CHECK_INT(0, atomic_load(&valve->lose));
    CHECK_INT(1, contenders(raw, name.text)); /* the first one was found again, and no second one made */
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/%s/%.*s", name.text, (int)strcspn(raw->text, " "), raw->text));
    CHECK_INT(raw->stat.czxid, hf_token(lock));
    CHECK(hf_remaining_ms(lock) > 0);
    atomic_store(&valve->lose, lose_to_release);
    const hf_status status = hf_release(lock, NULL);
    CHECK_STATUS(lose_to_release ? HF_UNKNOWN : HF_OK, status, NULL);
    await_contenders(raw, name.text, 0);
    hf_close(client);
}

TEST_LIMIT(lost_answers_are_found_out_about, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    use_url(valve->url);
    acquire_and_release(valve, raw, VALVE_CREATE, 0);
    acquire_and_release(valve, raw, VALVE_LIST, 0);
    acquire_and_release(valve, raw, 0, VALVE_DELETE);
    acquire_and_release(valve, raw, VALVE_CREATE, VALVE_DELETE);
    CHECK_INT(5, atomic_load(&valve->lost));
    helper_kill(valve->pid);
    raw_close(raw);
}

TEST_LIMIT(answers_to_other_questions_leave_nothing_behind, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    use_url(valve->url);
    atomic_store(&valve->garbles, true);
    acquire_and_release(valve, raw, VALVE_CREATE, 0);
    acquire_and_release(valve, raw, 0, VALVE_DELETE);
    CHECK_INT(2, atomic_load(&valve->lost));
    helper_kill(valve->pid);
    raw_close(raw);
}

/* There is time left when the connection is gone: enough to look on the next one for what was made. */
TEST_LIMIT(a_try_whose_answer_is_lost_finds_out, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    hf_client *other = open_client();
    must_release(must_acquire(other, "x", NULL)); /* makes the directory */
    use_url(valve->url);
    hf_client *client = open_client();
    static const int lost[] = { VALVE_CREATE, VALVE_LIST };
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        atomic_store(&valve->lose, lost[i]);
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
        CHECK_INT(i + 1, atomic_load(&valve->lost));
        REQUIRE_INT(1, contenders(raw, "x"));
        REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/x/%.*s", (int)strcspn(raw->text, " "), raw->text));
        CHECK_INT(raw->stat.czxid, hf_token(lock));
        must_release(lock);
    }
    /* And so does one that finds it busy. */
    hf_lock *lock = must_acquire(other, "x", NULL);
    atomic_store(&valve->lose, VALVE_DELETE);
    check_busy(client, "x");
    CHECK_INT(1, contenders(raw, "x"));
    must_release(lock);
    CHECK_INT(3, atomic_load(&valve->lost));
    helper_kill(valve->pid);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

/* How often a node was made in the directory of "x", or deleted. */
static int changes(struct raw *raw)
{
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/x"));
    return raw->stat.cversion;
}

TEST_LIMIT(a_try_that_is_not_answered_in_time_leaves_nothing, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL, *calm = open_client();
    hurry.timeout_ms = 300;
    must_release(must_acquire(calm, "x", NULL)); /* makes the directory */
    while (hf_open(&client, server->url, &hurry, NULL) != HF_OK)
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    const int before = changes(raw);
    zookeeper_server_pause(server);
    check_refused(client, "x", HF_UNKNOWN, "create a node");
    zookeeper_server_continue(server);
    while (changes(raw) < before + 2) /* it was made late, and deleted */
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    CHECK_INT(0, contenders(raw, "x"));
    hf_close(client);
    hf_close(calm);
    raw_close(raw);
}

/* No answer ever comes within the time that one exchange may take: what was begun is finished all the same. */
TEST_LIMIT(a_client_in_a_hurry_on_a_slow_way_leaves_nothing, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_options options = HF_OPTIONS_INIT;
    hurry.timeout_ms = 3;
    options.wait_ms = 1;
    hf_client *calm = open_client();
    must_release(must_acquire(calm, "x", NULL)); /* makes the directory */
    hf_close(calm);
    while (hf_open(&client, valve->url, &hurry, NULL) != HF_OK)
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    atomic_store(&valve->delay_ms, 300); /* much more than what is added to a wait for the last question */
    for (int i = 0; i < 3; i++) {
        hf_lock *lock = NULL;
        const hf_status status = hf_acquire(&lock, client, "x", &options, NULL);
        CHECK(lock == NULL && (status == HF_UNKNOWN || status == HF_UNAVAILABLE || status == HF_TIMEOUT));
        hf_release(lock, NULL);
        while (changes(raw) < 2 * (i + 2) || raw->stat.numChildren > 0) /* until a node was made, and deleted */
            REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    }
    atomic_store(&valve->delay_ms, 0);
    hf_close(client);
    helper_kill(valve->pid);
    raw_close(raw);
}

/* A session is begun and directories are made before the node is: the time-to-live begins with the grant. */
TEST_LIMIT(a_slow_way_takes_nothing_off_the_time_to_live, 60)
{
    struct zookeeper_server *server = serve("");
    struct valve *valve = valve_open(server);
    use_url(valve->url);
    hf_client *client = open_client();
    const hf_options options = with_ttl(20000);
    atomic_store(&valve->delay_ms, 200);
    const int64_t start = test_now_ns();
    hf_lock *lock = must_acquire(client, "x", &options);
    const int64_t took_ms = (test_now_ns() - start) / 1000000, left_ms = hf_remaining_ms(lock);
    atomic_store(&valve->delay_ms, 0);
    test_note("%lld ms left after %lld", (long long)left_ms, (long long)took_ms);
    CHECK(took_ms > 1000);
    CHECK(left_ms > options.ttl_ms - took_ms / 2);
    must_release(lock);
    helper_kill(valve->pid);
    hf_close(client);
}

TEST_LIMIT(a_renewal_whose_answer_is_lost_is_made_again, 60)
{
    struct zookeeper_server *server = serve("");
    struct valve *valve = valve_open(server);
    use_url(valve->url);
    hf_client *client = open_client();
    hf_options options = with_ttl(2000);
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    atomic_store(&valve->lose, VALVE_CHECK);
    CHECK(!gate_await_for(&loss.told, 1, 5000));
    CHECK_INT(1, atomic_load(&valve->lost));
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    helper_kill(valve->pid);
    hf_close(client);
}

/* --------------------------------------------------------------------------------------------------------- sessions */

TEST_LIMIT(a_session_that_is_ended_from_outside_is_a_loss_at_once, 60)
{
    struct zookeeper_server *server = serve("");
    struct valve *valve = valve_open(server);
    hf_client *other = open_client();
    use_url(valve->url);
    hf_client *client = open_client();
    hf_options options = with_ttl(60000);
    struct loss loss = { 0 };
    struct waiter waiter;
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    const uint64_t token = hf_token(lock);
    expire_session_of(server, valve, "x");
    /* Long before it would be renewed. */
    gate_await(&loss.told, 1);
    CHECK(hf_remaining_ms(lock) <= 0);
    waiter_start(&waiter, other, "x", NULL);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > token);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(waiter.lock);
    /* The client goes on with a new session. */
    lock = must_acquire(client, "x", &options);
    CHECK(hf_token(lock) > waiter.token);
    must_release(lock);
    helper_kill(valve->pid);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_waiter_whose_session_is_ended_lines_up_again, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    use_url(valve->url);
    hf_client *client = open_client();
    const hf_options options = with_ttl(60000);
    struct waiter waiter;
    must_release(must_acquire(client, "x", &options));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "", "/holdfast/x/theirs-"));
    char holder[100];
    snprintf(holder, sizeof holder, "%.99s", raw->text);
    waiter_start(&waiter, client, "x", &options);
    await_contenders(raw, "x", 2);
    expire_session_of(server, valve, "x");
    await_contenders(raw, "x", 2);
    CHECK_INT(0, gate_count(&waiter.ended));
    REQUIRE_INT(ZOK, raw_delete(raw, "%s", holder));
    waiter_finish(&waiter);
    helper_kill(valve->pid);
    hf_close(client);
    raw_close(raw);
}

/* ---------------------------------------------------------------------------------------------------- one server */

TEST_LIMIT(a_restart_of_the_server_loses_nothing, 60)
{
    struct zookeeper_server *server = serve("");
    struct scene scene;
    scene_begin(&scene, "x", 20000);
    zookeeper_server_kill(server);
    zookeeper_server_restart(server);
    while (hf_renew(scene.lock, 0, NULL) != HF_OK) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(20);
    }
    scene_check_kept(&scene);
    scene_end(&scene);
}

TEST_LIMIT(a_pause_of_the_server_longer_than_the_lease_is_a_loss_in_time, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *client = open_client();
    hf_options options = with_ttl(1500);
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    const int64_t until_ns = test_now_ns() + hf_remaining_ms(lock) * 1000000;
    zookeeper_server_pause(server);
    gate_await(&loss.told, 1);
    CHECK(hf_remaining_ms(lock) <= 0);
    CHECK(atomic_load(&loss.told_ns) < until_ns + 1500 * 1000000LL); /* its renewals before the pause moved it on */
    zookeeper_server_continue(server);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_becomes_free(client, "x"); /* whether the session came through or not: the node is deleted */
    hf_close(client);
}

TEST_LIMIT(a_server_that_is_not_there_yet_is_waited_for, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *client = open_client();
    hf_options options = with_ttl(30000);
    struct waiter waiter;
    options.owner = HF_OWNER_HANDLE;
    zookeeper_server_kill(server);
    waiter_start(&waiter, client, "x", &options);
    hf_lock *none = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&none, client, "y", &options, &err), &err);
    CHECK(strstr(err.message, "127.0.0.1") != NULL);
    zookeeper_server_restart(server);
    waiter_finish(&waiter);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------ directories */

TEST_LIMIT(a_directory_that_is_swept_away_is_made_again, 60)
{
    struct zookeeper_server *server = serve("-Dznode.container.checkIntervalMs=50");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client();
    uint64_t token = 0;
    for (int i = 0; i < 3; i++) {
        hf_lock *lock = must_acquire(client, "x", NULL);
        CHECK(hf_token(lock) > token);
        token = hf_token(lock);
        /* The number starts over, the token does not. */
        REQUIRE_INT(1, contenders(raw, "x"));
        CHECK(strstr(raw->text, "-lock-0000000000") != NULL);
        must_release(lock);
        while (raw_list(raw, "/holdfast") == ZOK) /* gone, and the one above it too */
            await_a_moment();
    }
    hf_close(client);
    raw_close(raw);
}

TEST_LIMIT(directories_are_swept_away_while_many_come_and_go, 60)
{
    serve("-Dznode.container.checkIntervalMs=1");
    hf_client *clients[4];
    for (int i = 0; i < 4; i++)
        clients[i] = open_client();
    for (int i = 0; i < 300; i++) {
        must_release(must_acquire(clients[i % 4], "x", NULL));
        must_release(must_acquire(clients[(i + 1) % 4], "y", NULL));
    }
    for (int i = 0; i < 4; i++)
        hf_close(clients[i]);
}
