/* SPDX-License-Identifier: MIT
 *
 * test_consul_once.c: the marks of work that is done: what they cost, what they outlive, by whose clock they end, and
 * that neither a lost answer nor a late request makes or undoes one.
 */
#include "consul_support.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define NAME "x"
#define KEYS "holdfast/x/"
#define MARKS "holdfast/.done/"
#define MARK "/v1/kv/holdfast/.done/x/mark"
#define HOUR_S 3600
#define LOGGED ", \"log_level\": \"debug\""

static hf_options once_an_hour(void)
{
    hf_options options = stranger(10000);
    options.once_per_ms = HOUR_S * 1000;
    return options;
}

static hf_status ask(hf_client *client, hf_error *err)
{
    const hf_options options = once_an_hour();
    hf_lock *lock = NULL;
    const hf_status status = hf_try_acquire(&lock, client, NAME, &options, err);
    if (status == HF_OK)
        must_release(lock);
    return status;
}

static void check_done(hf_client *client, hf_status expected)
{
    hf_error err = { 0 };
    CHECK_STATUS(expected, ask(client, &err), &err);
}

static hf_lock *must_begin(hf_client *client)
{
    const hf_options options = once_an_hour();
    return must_acquire(client, NAME, &options);
}

static void do_it(hf_client *client)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_begin(client), &err), &err);
}

/* --- what it costs --- */

/* The server writes its log after it has answered. */
static int transactions(struct consul_server *server)
{
    int count = -1, again = 0;
    while (count != again) {
        count = again;
        pause_ms(30);
        again = consul_server_logged(server, "Request finished", "url=/v1/txn");
    }
    return count;
}

/* Nothing more to take it; to give it back the agent is asked for the time. Who finds it done takes it and gives it
 * back. */
TEST_LIMIT(to_do_it_once_costs_one_exchange_more, 60)
{
    enum { TIMES = 50 };
    struct consul_server *server = start_store(LOGGED);
    hf_client *client = open_client();
    hf_lock *locks[TIMES];
    hf_options options = once_an_hour();
    options.ttl_ms = endless_ttl_ms(); /* nothing is renewed meanwhile */
    must_release(must_acquire(client, "first", &options));
    const int before = transactions(server);
    for (unsigned i = 0; i < TIMES; i++)
        locks[i] = must_acquire(client, numbered_name(NAME, i).text, &options);
    const int taken = transactions(server);
    CHECK_INT(TIMES, taken - before);
    for (unsigned i = 0; i < TIMES; i++)
        CHECK_STATUS(HF_OK, hf_release_done(locks[i], NULL), NULL);
    const int given = transactions(server);
    CHECK_INT(2 * TIMES, given - taken);
    for (unsigned i = 0; i < TIMES; i++)
        CHECK_STATUS(HF_DONE, hf_try_acquire(&locks[0], client, numbered_name(NAME, i).text, &options, NULL), NULL);
    CHECK_INT(2 * TIMES, transactions(server) - given);
    hf_close(client);
}

/* --- what it outlives, and what ends it --- */

TEST_LIMIT(a_mark_outlives_the_leader_and_a_restart_of_all_servers, 90)
{
    struct consul_server *servers[3];
    hf_client *client;
    hf_error err = { 0 };
    hf_status status;
    consul_servers_start(servers, 3, NULL, "");
    use_url(servers[0]->ensemble_url);
    client = open_patient_client();
    do_it(client);
    consul_server_kill(consul_leader(servers, 3));
    while ((status = ask(client, &err)) != HF_DONE && test_now_ns() < test_deadline_ns() - 1000000000LL)
        pause_ms(20); /* until there is another one */
    CHECK_STATUS(HF_DONE, status, &err);
    hf_close(client);
    for (int i = 0; i < 3; i++) {
        if (servers[i]->pid)
            consul_server_kill(servers[i]);
    }
    for (int i = 0; i < 3; i++)
        consul_server_launch(servers[i]);
    for (int i = 0; i < 3; i++)
        consul_server_await(servers[i]);
    client = open_patient_client();
    check_done(client, HF_DONE);
    hf_close(client);
}

/* Writes the mark, as of somebody who did it a minute ago. */
static void set_mark(struct consul_server *server, int64_t until_s)
{
    char text[200];
    snprintf(text, sizeof text, "%lld %lld 7 elsewhere 42 by hand", (long long)time(NULL) - 60, (long long)until_s);
    consul_server_do(server, "PUT", MARK, text, NULL, 0);
}

struct seen {
    int count;
    hf_info info;
    char name[20], host[20], note[20];
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    seen->info = *info;
    snprintf(seen->name, sizeof seen->name, "%s", info->name);
    snprintf(seen->host, sizeof seen->host, "%s", info->host);
    snprintf(seen->note, sizeof seen->note, "%s", info->note);
    return 0;
}

/* It says until when it counts, by the clock of the agent that shows it. */
TEST_LIMIT(a_mark_ends_by_the_agents_clock, 60)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client();
    struct seen seen = { 0 };
    hf_error err = { 0 };
    set_mark(server, time(NULL) - 1);
    check_done(client, HF_OK);
    CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, see, &seen, NULL), NULL);
    CHECK_INT(0, seen.count);
    set_mark(server, time(NULL) + HOUR_S);
    CHECK_STATUS(HF_DONE, ask(client, &err), &err);
    check_error(&err, HF_DONE, "done by elsewhere:42 by hand 1 min ");
    CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, see, &seen, NULL), NULL);
    CHECK_INT(1, seen.count);
    CHECK_STR(NAME, seen.name);
    CHECK_STR("elsewhere", seen.host);
    CHECK_STR("by hand", seen.note);
    CHECK_INT(42, seen.info.pid);
    CHECK_INT(7, seen.info.token);
    CHECK(seen.info.held_ms >= 60000 && seen.info.held_ms < 120000);
    CHECK(seen.info.remaining_ms > (HOUR_S - 60) * 1000 && seen.info.remaining_ms <= HOUR_S * 1000);
    hf_close(client);
}

/* What is over stays until it is done again, and then there is one mark as before. */
TEST_LIMIT(a_mark_that_is_over_is_overwritten, 60)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client();
    char answer[4000];
    set_mark(server, time(NULL) - 1);
    const int64_t before = time(NULL);
    do_it(client);
    check_done(client, HF_DONE);
    CHECK_INT(1, consul_server_keys(server, MARKS));
    consul_server_do(server, "GET", MARK "?raw", "", answer, sizeof answer);
    long long done = 0, until = 0;
    REQUIRE_INT(2, sscanf(answer, "%lld %lld", &done, &until));
    CHECK(done >= before && done <= time(NULL));
    CHECK(until >= before + HOUR_S && until <= time(NULL) + HOUR_S + 2);
    hf_close(client);
}

static int count_one(const hf_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return 0;
}

TEST_LIMIT(a_mark_is_in_nobodys_way, 60)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client();
    int held = 0;
    do_it(client);
    CHECK_INT(0, consul_server_keys(server, KEYS)); /* `consul lock holdfast/x` looks nowhere else */
    check_free(client, NAME);
    CHECK_STATUS(HF_OK, hf_inspect(client, NULL, count_one, &held, NULL), NULL);
    CHECK_INT(0, held);
    /* And what somebody else may have written there is none. */
    consul_server_do(server, "PUT", MARK, "something else", NULL, 0);
    check_done(client, HF_OK);
    hf_close(client);
}

/* --- answers that are lost, and requests that come late --- */

static hf_client *open_through(const struct meddler *meddler)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, meddler_url(meddler), NULL, &err), &err);
    return client;
}

/* At each transaction in turn; the first ones make the session. */
TEST_LIMIT(any_answer_may_be_lost_and_there_is_one_mark, 60)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *other = open_client();
    unsigned number = 3, count;
    do {
        meddler_expect(meddler, number, MEDDLE_LOSE_REPLY);
        hf_client *client = open_through(meddler);
        hf_error err = { 0 };
        const hf_status status = hf_release_done(must_begin(client), &err);
        if (status != HF_OK && status != HF_UNAVAILABLE)
            CHECK_STATUS(HF_UNKNOWN, status, &err);
        check_becomes_free(other, NAME);
        check_done(other, HF_DONE);
        hf_close(client);
        check_done(other, HF_DONE);
        CHECK_INT(1, consul_server_keys(server, MARKS));
        CHECK_STATUS(HF_OK, hf_forget_done(other, NAME, NULL), NULL);
        await_keys(server, KEYS, 0);
        count = meddler_count(meddler);
        test_note("transaction %u of %u", number, count);
    } while (++number <= count && number < 30);
    CHECK(number >= 3 + 3); /* or nothing was tried */
    hf_close(other);
}

/* What it released was released by its successor, what was done is forgotten, and somebody else is at it. */
TEST_LIMIT(a_release_that_comes_late_leaves_no_mark, 60)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler), *other = open_client();
    hf_lock *lock = must_begin(client);
    meddler_expect(meddler, 2, MEDDLE_KEEP);
    CHECK_STATUS(HF_UNKNOWN, hf_release_done(lock, NULL), NULL);
    await_keys(server, MARKS, 1);
    CHECK_STATUS(HF_OK, hf_forget_done(other, NAME, NULL), NULL);
    lock = must_begin(other);
    CHECK_INT(409, meddler_deliver(meddler));
    CHECK_INT(0, consul_server_keys(server, MARKS));
    check_busy(client, NAME);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

/* What is taken back late is not what was done since. */
TEST_LIMIT(a_mark_is_not_taken_back_late, 60)
{
    struct consul_server *server = start_store("");
    struct meddler *meddler = meddler_start(server);
    hf_client *client = open_through(meddler), *other = open_client();
    do_it(other);
    meddler_expect(meddler, 2, MEDDLE_KEEP);
    CHECK_STATUS(HF_OK, hf_forget_done(client, NAME, NULL), NULL); /* by the second try */
    do_it(other);
    CHECK_INT(409, meddler_deliver(meddler));
    check_done(other, HF_DONE);
    hf_close(client);
    hf_close(other);
}

/* The session has gone, and the lock with it. */
TEST_LIMIT(what_was_lost_leaves_no_mark, 60)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client();
    hf_lock *lock = must_begin(client);
    consul_server_destroy_sessions(server);
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    CHECK_INT(0, consul_server_keys(server, MARKS));
    hf_close(client);
}
