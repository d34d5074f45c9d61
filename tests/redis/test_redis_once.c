/* SPDX-License-Identifier: MIT
 *
 * test_redis_once.c: what hf_release_done() leaves on a real server, by whose clock it ends, and what becomes of it
 * when memory, rights, replicas or answers are missing.
 */
#include "late_relay.h"
#include "redis_support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "nightly"
#define KEY "hf:{nightly}:d"
#define HOUR_MS 3600000

static const char *const dialects[] = { "native", "plain", "redisson" };
#define DIALECTS (sizeof dialects / sizeof *dialects)

static hf_options once(void)
{
    hf_options options = stranger(endless_ttl_ms());
    options.once_per_ms = HOUR_MS;
    return options;
}

static void do_it(hf_client *client, const char *name)
{
    const hf_options options = once();
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, name, &options), &err), &err);
}

static void check_try(hf_status expected, hf_client *client, const char *name)
{
    const hf_options options = once();
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    CHECK_STATUS(expected, hf_try_acquire(&lock, client, name, &options, &err), &err);
    if (lock)
        must_release(lock);
}

static void await_commands(struct redis_server *server, const char *command, int64_t count)
{
    while (redis_server_calls(server, command) < count) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(1);
    }
}

struct seen {
    int count;
    char name[260];
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    snprintf(seen->name, sizeof seen->name, "%s", info->name);
    return 0;
}

/* --- the key --- */

TEST(the_record_says_who_did_it_and_ends_by_itself)
{
    struct redis_server *server = serve("");
    for (unsigned i = 0; i < DIALECTS; i++) {
        char record[400], host[80] = "", note[40] = "";
        unsigned long long token = 0;
        long long seconds = 0, microseconds = -1, ends = 0, pid = 0;
        hf_options options = once();
        hf_error err = { 0 };
        options.note = "vacuum";
        hf_client *client = open_url("%s?dialect=%s", server->url, dialects[i]);
        hf_lock *lock = must_acquire(client, NAME, &options);
        const uint64_t granted = hf_token(lock);
        CHECK_INT(0, redis_server_number(server, "EXISTS " KEY));
        CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
        redis_server_text(server, record, sizeof record, "GET " KEY);
        if (!CHECK_INT(7, sscanf(record, "%llu %*s %lld %lld %lld %79s %lld %39s", &token, &seconds, &microseconds,
                                 &ends, host, &pid, note)))
            test_note("%s", record);
        CHECK_INT(granted, token);
        CHECK_INT(getpid(), pid);
        CHECK_STR("vacuum", note);
        const int64_t left = redis_server_number(server, "PTTL " KEY);
        CHECK(left > HOUR_MS - 60000 && left <= HOUR_MS);
        CHECK(ends - (seconds * 1000 + microseconds / 1000) <= HOUR_MS && ends - seconds * 1000 > HOUR_MS - 60000);
        check_try(HF_DONE, client, NAME);
        CHECK_STATUS(HF_OK, hf_forget_done(client, NAME, &err), &err);
        CHECK_INT(0, redis_server_number(server, "EXISTS " KEY));
        hf_close(client);
    }
}

TEST(the_record_follows_prefix_and_tag)
{
    static const struct {
        const char *options, *name, *key;
    } all[] = {
        { "", "shop{eu}", "hf:shop{eu}::d" },
        { "?prefix=app:", NAME, "app:{nightly}:d" },
        { "?dialect=plain", "shop{eu}", "hf::shop{eu}:d" },
        { "?dialect=plain&prefix=app:", NAME, "hf:{app:nightly}:d" },
        { "?dialect=redisson", NAME, KEY },
        { "", "}", "hf:{-}};:d" },
    };
    struct redis_server *server = serve("");
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        struct seen seen = { 0 };
        hf_error err = { 0 };
        hf_client *client = open_url("%s%s", server->url, all[i].options);
        do_it(client, all[i].name);
        if (!CHECK_INT(1, redis_server_number(server, "EXISTS %s", all[i].key)))
            test_note("for %s", all[i].key);
        CHECK_STATUS(HF_OK, hf_inspect_done(client, all[i].name, see, &seen, &err), &err);
        CHECK_INT(1, seen.count);
        CHECK_STR(all[i].name, seen.name);
        redis_server_do(server, "FLUSHALL");
        hf_close(client);
    }
}

TEST(asked_for_once_a_pair_is_two_commands_still)
{
    enum { PAIRS = 10 };
    struct redis_server *server = serve("");
    for (unsigned i = 0; i < DIALECTS; i++) {
        const hf_options options = once();
        hf_client *client = open_url("%s?dialect=%s", server->url, dialects[i]);
        do_it(client, "warm-up"); /* which makes the scripts known */
        const int64_t before = redis_server_sent(server);
        hf_lock *locks[PAIRS];
        for (int pair = 0; pair < PAIRS; pair++) {
            char name[40];
            snprintf(name, sizeof name, "job-%u-%d", i, pair);
            locks[pair] = must_acquire(client, name, &options);
        }
        CHECK_INT(PAIRS, redis_server_sent(server) - before);
        const int64_t taken = redis_server_calls(server, "evalsha");
        for (int pair = 0; pair < PAIRS; pair++)
            CHECK_STATUS(HF_OK, hf_release_done(locks[pair], NULL), NULL);
        CHECK_INT(PAIRS, redis_server_calls(server, "evalsha") - taken);
        const int64_t asked = redis_server_sent(server);
        check_try(HF_DONE, client, "warm-up");
        CHECK_INT(1, redis_server_sent(server) - asked);
        redis_server_do(server, "FLUSHALL"); /* the dialects share the record */
        hf_close(client);
    }
}

/* --- time and restarts --- */

TEST(what_was_done_outlasts_the_server)
{
    struct redis_server *server = serve("--appendonly yes --appendfsync always");
    hf_client *client = open_client();
    do_it(client, NAME);
    redis_server_kill(server);
    redis_server_restart(server, true, "");
    hf_close(client);
    client = open_client();
    check_try(HF_DONE, client, NAME);
    hf_close(client);
}

TEST(it_is_over_by_the_clock_of_the_server)
{
    const struct redis_server_setup setup = { .own_clock = true };
    struct redis_server *server = redis_server_prepare(&setup);
    redis_server_launch(server, "");
    REQUIRE(redis_server_started(server));
    for (unsigned i = 0; i < DIALECTS; i++) {
        redis_server_set_clock(server, 0);
        hf_client *client = open_url("%s?dialect=%s", server->url, dialects[i]);
        do_it(client, NAME);
        redis_server_set_clock(server, HOUR_MS - 60000);
        check_try(HF_DONE, client, NAME);
        redis_server_set_clock(server, HOUR_MS + 60000);
        check_try(HF_OK, client, NAME);
        hf_close(client);
    }
}

/* --- refusals --- */

TEST(without_memory_it_is_released_and_recorded_all_the_same)
{
    struct redis_server *server = serve("");
    for (unsigned i = 0; i < DIALECTS; i++) {
        const hf_options options = once();
        hf_error err = { 0 };
        hf_client *client = open_url("%s?dialect=%s", server->url, dialects[i]);
        hf_lock *lock = must_acquire(client, NAME, &options);
        redis_server_do(server, "CONFIG SET maxmemory 1");
        CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
        redis_server_do(server, "CONFIG SET maxmemory 0");
        check_try(HF_DONE, client, NAME);
        check_free(client, NAME);
        redis_server_do(server, "FLUSHALL");
        hf_close(client);
    }
}

/* Who may not write the record is told so, and keeps nobody out. */
TEST(without_the_right_to_record_it_is_released_and_said_so)
{
    struct redis_server *server = serve("");
    const hf_options options = once();
    hf_error err = { 0 };
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(server, "ACL SETUSER default -set");
    CHECK_STATUS(HF_DENIED, hf_release_done(lock, &err), &err);
    check_words(&err, "it is released, but not recorded as done");
    check_words(&err, "ACL");
    CHECK(!server_has_owner(server, NAME));
    redis_server_do(server, "ACL SETUSER default +@all");
    check_try(HF_OK, client, NAME);
    hf_close(client);
}

TEST(what_is_no_record_is_left_alone)
{
    static const char *const others[] = { "SET " KEY " hello", "SET " KEY " 1", "LPUSH " KEY " 1" };
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        struct seen seen = { 0 };
        hf_error err = { 0 };
        redis_server_do(server, others[i]);
        check_try(HF_DENIED, client, NAME);
        check_free(client, NAME);
        CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, see, &seen, &err), &err);
        CHECK_INT(0, seen.count);
        CHECK_INT(1, redis_server_number(server, "EXISTS " KEY));
        redis_server_do(server, "DEL " KEY);
    }
    hf_close(client);
}

/* --- answers that are missing --- */

/* As safe as a grant: while no replica has it, it is not said to be recorded; the keeper goes on until one does, and
 * the release that is sent again finds what it has recorded. */
TEST_LIMIT(a_record_that_no_replica_has_is_not_counted_on, 60)
{
    for (unsigned i = 0; i < DIALECTS; i++) {
        struct redis_server *server = serve("");
        struct redis_server *replica = redis_server_start_replica(server);
        const hf_options options = once();
        hf_error err = { 0 };
        char record[400], again[400];
        hf_client *client =
            open_url("%s?dialect=%s&replicas=1&replica_timeout=%u", server->url, dialects[i], test_ms(300));
        hf_lock *lock = must_acquire(client, NAME, &options);
        redis_server_pause(replica);
        CHECK_STATUS(HF_UNKNOWN, hf_release_done(lock, &err), &err);
        check_words(&err, "replicas");
        redis_server_text(server, record, sizeof record, "GET " KEY);
        await_commands(server, "wait", redis_server_calls(server, "wait") + 2); /* sent again, and answered */
        redis_server_continue(replica);
        while (redis_server_number(replica, "EXISTS " KEY) == 0)
            pause_ms(1);
        redis_server_text(server, again, sizeof again, "GET " KEY);
        CHECK_STR(record, again);
        CHECK(*record != 0);
        check_try(HF_DONE, client, NAME);
        hf_close(client);
        redis_server_stop(replica);
        redis_server_stop(server);
    }
}

/* The first release is late, the second has done it: one record, and the next holder is left alone. */
TEST_LIMIT(a_release_that_is_late_records_nothing, 60)
{
    for (unsigned i = 0; i < DIALECTS; i++) {
        struct redis_server *server = serve("");
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        const hf_options options = once();
        hf_error err = { 0 };
        char record[400], again[400];
        hf_client *other = open_url("%s?dialect=%s", server->url, dialects[i]);
        do_it(other, "warm-up");
        hf_client *client = open_url("redis://127.0.0.1:%d?dialect=%s", late_relay_port(relay), dialects[i]);
        hf_lock *lock = must_acquire(client, NAME, &options);
        late_relay_cut(relay, "EVAL", 1);
        CHECK_STATUS(HF_UNKNOWN, hf_release_done(lock, &err), &err);
        while (redis_server_number(server, "EXISTS " KEY) == 0) { /* by the release that is sent again */
            REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
            pause_ms(1);
        }
        redis_server_text(server, record, sizeof record, "GET " KEY);
        hf_lock *next = must_acquire(other, NAME, NULL);
        late_relay_deliver(relay);
        redis_server_text(server, again, sizeof again, "GET " KEY);
        CHECK_STR(record, again);
        must_release(next);
        hf_close(client);
        hf_close(other);
        redis_server_stop(server);
    }
}

/* So does an attempt that was not answered and arrives when all is over, though the record was taken back. */
TEST_LIMIT(an_attempt_that_is_late_takes_nothing_after_the_work_was_done, 60)
{
    for (unsigned i = 0; i < DIALECTS; i++) {
        struct redis_server *server = serve("");
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        const hf_options options = once();
        hf_error err = { 0 };
        hf_client *other = open_url("%s?dialect=%s", server->url, dialects[i]);
        do_it(other, "warm-up");
        hf_client *client = open_url("redis://127.0.0.1:%d?dialect=%s", late_relay_port(relay), dialects[i]);
        late_relay_cut(relay, "EVAL", 1);
        hf_lock *lock = must_acquire(client, NAME, &options); /* by the one that follows */
        CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
        check_try(HF_DONE, other, NAME);
        CHECK_STATUS(HF_OK, hf_forget_done(other, NAME, &err), &err);
        late_relay_deliver(relay);
        check_try(HF_OK, other, NAME);
        hf_close(client);
        hf_close(other);
        redis_server_stop(server);
    }
}

/* What is taken back late is not what was done since. */
TEST_LIMIT(a_record_is_not_taken_back_late, 60)
{
    for (unsigned i = 0; i < DIALECTS; i++) {
        struct redis_server *server = serve("");
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        hf_error err = { 0 };
        hf_client *other = open_url("%s?dialect=%s", server->url, dialects[i]);
        hf_client *client = open_url("redis://127.0.0.1:%d?dialect=%s", late_relay_port(relay), dialects[i]);
        do_it(other, "warm-up");
        CHECK_STATUS(HF_OK, hf_forget_done(client, "warm-up", &err), &err);
        do_it(other, NAME);
        late_relay_cut(relay, KEY, 2); /* the first looks what is there */
        CHECK_STATUS(HF_UNKNOWN, hf_forget_done(client, NAME, &err), &err);
        CHECK_STATUS(HF_OK, hf_forget_done(client, NAME, &err), &err);
        do_it(other, NAME);
        late_relay_deliver(relay);
        check_try(HF_DONE, other, NAME);
        hf_close(client);
        hf_close(other);
        redis_server_stop(server);
    }
}
