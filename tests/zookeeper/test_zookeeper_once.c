/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_once.c: the marks that work is done: what they cost, whose clock they go by, what becomes of them when
 * answers, servers, directories and rights are lost, and that they are in nobody's way.
 */
#include "server_clock.h"
#include "zookeeper_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOUR_MS 3600000
#define DAY_MS (24 * HOUR_MS)
#define PAIRS 20

static hf_options once_per_hour(void)
{
    hf_options options = with_ttl(60000);
    options.owner = HF_OWNER_HANDLE;
    options.once_per_ms = HOUR_MS;
    return options;
}

static void do_it(hf_client *client, const char *name)
{
    const hf_options options = once_per_hour();
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, name, &options), &err), &err);
}

static void check_once(hf_client *client, const char *name, hf_status expected)
{
    const hf_options options = once_per_hour();
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    CHECK_STATUS(expected, hf_acquire(&lock, client, name, &options, &err), &err);
    hf_release(lock, NULL);
}

static void check_forget(hf_client *client, const char *name)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_forget_done(client, name, &err), &err);
}

/* ------------------------------------------------------------------------------------------------------------ clock */

static char clock_path[300];

/* How far the clock of the server is ahead of ours from now on. */
static void set_clock(int64_t ahead_ms)
{
    server_clock_set(clock_path, ahead_ms);
}

static struct zookeeper_server *serve_with_clock(int64_t ahead_ms)
{
    const char *folder = getenv("TEST_DIRECTORY");
    REQUIRE(folder != NULL);
    snprintf(clock_path, sizeof clock_path, "%s/clock-%d", folder, (int)getpid());
    set_clock(ahead_ms);
    server_clock_follow(clock_path);
    struct zookeeper_server *server = serve("");
    REQUIRE_INT(0, unsetenv("LD_PRELOAD"));
    return server;
}

struct seen {
    int count;
    int64_t ago_ms, left_ms;
    uint64_t token;
    char host[300], note[130];
    int64_t pid;
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    seen->ago_ms = info->held_ms;
    seen->left_ms = info->remaining_ms;
    seen->token = info->token;
    seen->pid = info->pid;
    snprintf(seen->host, sizeof seen->host, "%s", info->host);
    snprintf(seen->note, sizeof seen->note, "%s", info->note);
    return 0;
}

static struct seen inspect(hf_client *client, const char *prefix)
{
    struct seen seen = { 0 };
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_inspect_done(client, prefix, see, &seen, &err), &err);
    return seen;
}

TEST_LIMIT(marks_go_by_the_clock_of_the_servers, 90)
{
    serve_with_clock(-10 * (int64_t)DAY_MS);
    hf_client *client = open_patient_client(), *other = open_patient_client();
    do_it(client, "x");
    check_once(other, "x", HF_DONE);
    struct seen seen = inspect(other, "x");
    CHECK_INT(1, seen.count);
    CHECK(seen.ago_ms >= 0 && seen.ago_ms < HOUR_MS / 2 && seen.left_ms > HOUR_MS / 2 && seen.left_ms <= HOUR_MS);
    set_clock(-10 * (int64_t)DAY_MS + 2 * HOUR_MS);
    CHECK_INT(0, inspect(other, NULL).count);
    check_once(other, "x", HF_OK);
    set_clock(-11 * (int64_t)DAY_MS); /* then it has only just been done, and not a day in the future */
    seen = inspect(other, NULL);
    CHECK(seen.count == 1 && seen.ago_ms == 0 && seen.left_ms <= HOUR_MS);
    check_once(other, "x", HF_DONE);
    hf_close(client);
    hf_close(other);
    unlink(clock_path);
}

/* The mark is younger than the node of whoever waits, and yet its time is over when the lock comes free. */
TEST_LIMIT(a_mark_whose_time_is_over_when_a_waiter_is_served_does_not_count, 90)
{
    struct zookeeper_server *server = serve_with_clock(0);
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_patient_client(), *other = open_patient_client();
    const hf_options options = once_per_hour();
    struct waiter waiters[2];
    hf_lock *lock = must_acquire(client, "x", NULL);
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], other, "x", &options);
        await_waiters(client, "x", i + 1);
    }
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/.done"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "3600000 7 host 1 early", "/holdfast/.done/x"));
    set_clock(2 * HOUR_MS);
    must_release(lock);
    waiter_join(&waiters[0], HF_OK);
    CHECK_STATUS(HF_OK, hf_release_done(waiters[0].lock, NULL), NULL); /* in its place */
    waiter_join(&waiters[1], HF_DONE);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/x"));
    CHECK_INT(1, raw->stat.version);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
    unlink(clock_path);
}

/* ---------------------------------------------------------------------------------------------------------- traffic */

/* The server stands still: what passes waits for no answer. */
TEST_LIMIT(the_mark_is_read_in_the_exchange_that_asks_for_the_lock, 60)
{
    struct zookeeper_server *server = serve("");
    struct valve *valve = valve_open(server);
    const hf_options options = once_per_hour();
    struct waiter waiter;
    use_url(valve->url);
    hf_client *client = open_patient_client();
    must_release(must_acquire(client, "x", &options)); /* makes the directory */
    const int before[] = { atomic_load(&valve->passed[VALVE_CREATE]), atomic_load(&valve->passed[VALVE_LIST]),
                           atomic_load(&valve->passed[VALVE_GET]) };
    zookeeper_server_pause(server);
    waiter_start(&waiter, client, "x", &options);
    while (atomic_load(&valve->passed[VALVE_CREATE]) == before[0] ||
           atomic_load(&valve->passed[VALVE_LIST]) == before[1] ||
           atomic_load(&valve->passed[VALVE_GET]) == before[2]) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(2);
    }
    zookeeper_server_continue(server);
    waiter_join(&waiter, HF_OK);
    must_release(waiter.lock);
    helper_kill(valve->pid);
    hf_close(client);
}

static void check_requests(struct zookeeper_server *server, int64_t before, int64_t least)
{
    const int64_t used = zookeeper_server_number(server, "zk_packets_received") - before;
    /* The question itself is one; and there may be a few signs of life. */
    if (used < least || used > least + 10)
        FAIL("%d requests instead of %d", (int)used, (int)least);
}

TEST_LIMIT(a_pair_that_leaves_a_mark_is_four_requests, 90)
{
    struct zookeeper_server *server = serve_with_clock(0);
    hf_client *client = open_patient_client();
    do_it(client, "x"); /* makes the directories */
    int64_t before = zookeeper_server_number(server, "zk_packets_received");
    for (int i = 0; i < PAIRS; i++) {
        check_forget(client, "x");
        do_it(client, "x");
    }
    check_requests(server, before,
                   (3 + 4) * PAIRS); /* it is read before it is taken back, at a server that is up to date */
    before = zookeeper_server_number(server, "zk_packets_received");
    for (int i = 0; i < PAIRS; i++) { /* in place of one whose time is over */
        set_clock((i + 1) * (int64_t)HOUR_MS);
        do_it(client, "x");
    }
    check_requests(server, before, 4 * PAIRS);
    hf_close(client);
    unlink(clock_path);
}

/* Whoever has waited asks for the time, by a write to the directory of the marks, if there is one to be judged. */
TEST_LIMIT(a_mark_that_was_forgotten_costs_a_waiter_no_write, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    const hf_options options = once_per_hour();
    hf_client *client = open_patient_client();
    struct waiter waiter;
    do_it(client, "x");
    check_forget(client, "x");
    hf_lock *lock = must_acquire(client, "x", NULL);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done"));
    const int32_t version = raw->stat.version;
    waiter_start(&waiter, client, "x", &options);
    await_contenders(raw, "x", 2);
    must_release(lock);
    waiter_finish(&waiter);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done"));
    CHECK_INT(version, raw->stat.version);
    hf_close(client);
    raw_close(raw);
}

/* ---------------------------------------------------------------------------------------------------------- trouble */

TEST_LIMIT(a_mark_survives_the_death_of_the_server, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *client = open_patient_client();
    do_it(client, "x");
    zookeeper_server_kill(server);
    zookeeper_server_restart(server);
    check_once(client, "x", HF_DONE);
    CHECK_INT(1, inspect(client, NULL).count);
    hf_close(client);
}

TEST_LIMIT(a_mark_whose_answer_is_lost_is_left_once, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    hf_options options = once_per_hour();
    hf_client *other = open_patient_client();
    options.renew = HF_RENEW_OFF; /* which is a transaction, too */
    use_url(valve->url);
    for (int i = 0; i < 2; i++) { /* where there is no directory for it, and where there is one */
        const struct name name = numbered_name("x", (unsigned)i);
        hf_client *client = open_patient_client();
        hf_lock *lock = must_acquire(client, name.text, &options);
        const uint64_t token = hf_token(lock);
        atomic_store(&valve->lose, VALVE_CHECK);
        CHECK_STATUS(HF_UNKNOWN, hf_release_done(lock, NULL), NULL);
        CHECK_INT(i + 1, atomic_load(&valve->lost));
        await_contenders(raw, name.text, 0);
        hf_close(client); /* nothing is under way any more */
        REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/%s", name.text));
        CHECK_INT(0, raw->stat.version);
        CHECK_INT(token, inspect(other, name.text).token);
        check_once(other, name.text, HF_DONE);
    }
    CHECK_INT(2, inspect(other, NULL).count);
    helper_kill(valve->pid);
    hf_close(other);
    raw_close(raw);
}

/* What was asked for is found again, and the mark looked for then. */
TEST_LIMIT(a_mark_is_found_though_answers_are_lost, 60)
{
    static const int lost[] = { VALVE_CREATE, VALVE_LIST, VALVE_GET };
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct valve *valve = valve_open(server);
    use_url(valve->url);
    hf_client *client = open_patient_client();
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        check_forget(client, "x");
        atomic_store(&valve->lose, lost[i]);
        do_it(client, "x");
        atomic_store(&valve->lose, lost[i]);
        check_once(client, "x", HF_DONE);
        CHECK_INT(2 * i + 2, atomic_load(&valve->lost));
        await_contenders(raw, "x", 0);
    }
    helper_kill(valve->pid);
    hf_close(client);
    raw_close(raw);
}

/* The marks, or one, come and go while the lock is held. */
TEST_LIMIT(a_mark_is_left_whatever_was_there, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    const hf_options options = once_per_hour();
    hf_client *client = open_patient_client();
    hf_lock *lock = must_acquire(client, "x", &options);
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/.done"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "not a mark", "/holdfast/.done/x"));
    CHECK_INT(0, inspect(client, NULL).count);
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    check_once(client, "x", HF_DONE);
    check_forget(client, "x");
    CHECK_INT(0, inspect(client, NULL).count);
    lock = must_acquire(client, "x", &options);
    REQUIRE_INT(ZOK, raw_delete(raw, "/holdfast/.done/x"));
    REQUIRE_INT(ZOK, raw_delete(raw, "/holdfast/.done"));
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    CHECK_INT(0, contenders(raw, "x"));
    check_once(client, "x", HF_DONE);
    hf_close(client);
    raw_close(raw);
}

/* The work is done, and must not be done again because nobody may say so. */
TEST_LIMIT(a_lock_whose_mark_is_refused_is_held_until_it_is_not, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    const hf_options options = once_per_hour();
    hf_client *client = open_patient_client(), *other = open_patient_client();
    hf_lock *lock = must_acquire(client, "x", &options);
    hf_error err = { 0 };
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/.done"));
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_READ | ZOO_PERM_ADMIN, "/holdfast/.done"));
    CHECK_STATUS(HF_DENIED, hf_release_done(lock, &err), &err);
    check_error(&err, HF_DENIED, "leave a mark");
    check_busy(other, "x");
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ALL, "/holdfast/.done"));
    await_contenders(raw, "x", 0);
    check_once(other, "x", HF_DONE);
    /* One that may not be read is no reason to do it again. */
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ADMIN, "/holdfast/.done/x"));
    check_once(other, "x", HF_DENIED);
    await_contenders(raw, "x", 0);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

/* ----------------------------------------------------------------------------------------------------------- others */

static int count_locks(const hf_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return 0;
}

TEST_LIMIT(marks_are_in_nobodys_way, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_patient_client();
    static const char *const names[] = { ".done", "x", "a/b", ".done/x" };
    int locks = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        do_it(client, names[i]);
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
            check_once(client, names[j], j <= i ? HF_DONE : HF_OK);
    }
    CHECK_INT(4, inspect(client, NULL).count);
    CHECK_INT(2, inspect(client, ".done").count);
    REQUIRE_INT(ZOK, raw_list(raw, "/holdfast/.done"));
    CHECK_INT(4, raw->count);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/a%%2Fb"));
    /* There is nothing in a lock's own directory but those who want it, and no lock but those that are held. */
    CHECK_INT(0, contenders(raw, "x"));
    CHECK_STATUS(HF_OK, hf_inspect(client, NULL, count_locks, &locks, NULL), NULL);
    CHECK_INT(0, locks);
    hf_close(client);
    raw_close(raw);
}

/* Those of another path are others; and those of a user are for nobody else. */
TEST_LIMIT(marks_are_below_the_path_and_as_private_as_nodes, 60)
{
    struct zookeeper_server *server = serve("");
    char url[200];
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_patient_client();
    do_it(client, "x");
    snprintf(url, sizeof url, "zookeeper://joe:sesame@127.0.0.1:%d/apps/ours", server->port);
    use_url(url);
    hf_client *joe = open_patient_client();
    check_once(joe, "x", HF_OK);
    do_it(joe, "x");
    check_once(joe, "x", HF_DONE);
    check_forget(client, "x");
    check_once(joe, "x", HF_DONE);
    CHECK_INT(1, inspect(joe, NULL).count);
    CHECK_INT(ZNOAUTH, raw_get(raw, "/apps/ours/.done/x"));
    check_forget(joe, "x");
    check_once(joe, "x", HF_OK);
    hf_close(client);
    hf_close(joe);
    raw_close(raw);
}

TEST_LIMIT(a_mark_says_who_did_it_also_while_the_lock_is_held, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_options options = once_per_hour();
    char host[256] = "", who[400];
    hf_client *client = open_patient_client(), *other = open_patient_client();
    hf_error err = { 0 };
    hf_lock *none = NULL;
    options.note = "nightly report";
    gethostname(host, sizeof host - 1);
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, "x", &options), NULL), NULL);
    hf_lock *lock = must_acquire(client, "x", NULL);
    snprintf(who, sizeof who, "done by %s:%d nightly report", host, (int)getpid());
    CHECK_STATUS(HF_DONE, hf_try_acquire(&none, other, "x", &options, &err), &err);
    check_error(&err, HF_DONE, who);
    CHECK_STATUS(HF_DONE, hf_acquire(&none, other, "x", &options, &err), &err);
    CHECK_INT(1, contenders(raw, "x")); /* no place is kept in the queue */
    const struct seen seen = inspect(other, "x");
    CHECK_INT(1, seen.count);
    CHECK_STR(host, seen.host);
    CHECK_STR("nightly report", seen.note);
    CHECK_INT(getpid(), seen.pid);
    must_release(lock);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}
