/* SPDX-License-Identifier: MIT
 *
 * test_postgres_disk.c: what waits for the disk and what does not, and what is left of it after a crash. The servers
 * here write nothing to the disk by themselves, or as seldom as they can: what nobody waits for is lost in a crash.
 */
#include "postgres_support.h"
#include "server_clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define ROWS 3
#define LAZY "-c wal_writer_delay=10s -c wal_writer_flush_after=100MB -c autovacuum=off"

static struct postgres_server *start_lazy(const char *settings)
{
    struct postgres_server *server = start_store("lease", settings);
    hf_close(open_client()); /* the tables */
    return server;
}

static void crash(struct postgres_server *server)
{
    postgres_server_kill(server);
    postgres_server_restart(server);
}

static bool is_free(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    const hf_status status = hf_try_acquire(&lock, client, name, NULL, &err);
    if (status != HF_OK)
        CHECK_STATUS(HF_BUSY, status, &err);
    else
        must_release(lock);
    return status == HF_OK;
}

/* --- how often it waits --- */

/* How often the log was brought to the disk. What a session counted is added up when it has ended. */
static int64_t syncs(struct postgres_server *server)
{
    const bool younger = PQserverVersion(server->control) >= 180000;
    postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    postgres_server_do(server, "SELECT pg_stat_clear_snapshot()");
    return postgres_server_number(server, younger ? "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
                                                  : "SELECT wal_sync FROM pg_stat_wal");
}

static int64_t count_syncs(struct postgres_server *server, const char *strategy, unsigned pairs)
{
    hf_client *client = open_client();
    must_release(must_acquire(client, strategy, NULL));
    hf_close(client);
    const int64_t before = syncs(server);
    client = open_client();
    for (unsigned i = 0; i < pairs; i++)
        must_release(must_acquire(client, strategy, NULL));
    hf_close(client);
    return syncs(server) - before;
}

#define PAIRS 200

/* The acquire does, and brings the release before it to the disk as well. */
TEST_LIMIT(a_release_does_not_wait_for_the_disk, 120)
{
    struct postgres_server *server = start_lazy(LAZY " -c fsync=on");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        const int64_t counted = count_syncs(server, strategy_names[i], PAIRS);
        test_note("%s: %d pairs, %d times", strategy_names[i], PAIRS, (int)counted);
        if (strcmp(strategy_names[i], "advisory") == 0) /* the acquire does not either, but now and then */
            CHECK(counted < PAIRS / 4);
        else
            CHECK(counted >= PAIRS && counted < PAIRS + PAIRS / 4); /* the server's own are few */
    }
}

/* --- after a crash --- */

/* Nobody holds it, though the server may think so. */
TEST_LIMIT(a_crash_right_after_a_release_frees_it_at_the_latest_after_its_ttl, 120)
{
    static const char taken[] = "SELECT count(*) FROM holdfast_locks WHERE client IS NOT NULL";
    struct postgres_server *server = start_lazy(LAZY);
    hf_client *clients[ROWS];
    const hf_options options = with_ttl(short_ttl_ms());
    for (size_t i = 0; i < ROWS; i++) {
        use_strategy(server, strategy_names[i]);
        clients[i] = open_client();
    }
    for (size_t i = 0; i < ROWS; i++)
        must_release(must_acquire(clients[i], strategy_names[i], &options));
    crash(server);
    test_note("%d of %d releases were lost", (int)postgres_server_number(server, taken), ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        check_becomes_free(clients[i], strategy_names[i]);
        hf_close(clients[i]);
    }
}

/* One frees it, another one has it: a release that hands it on waits, whatever the strategies of the two. */
static void check_handed_on(struct postgres_server *server, const char *from, const char *to)
{
    const hf_options options = stranger(endless_ttl_ms());
    struct waiter waiter;
    char name[60];
    snprintf(name, sizeof name, "%s to %s", from, to);
    use_strategy(server, from);
    hf_client *client = open_client();
    use_strategy(server, to);
    hf_client *other = open_client();
    hf_lock *lock = must_acquire(client, name, &options);
    waiter_start(&waiter, other, name, &options);
    await_waiters(client, name, 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    const int64_t token = (int64_t)hf_token(waiter.lock);
    crash(server);
    CHECK_INT(token, postgres_server_number(server, "SELECT token FROM holdfast_locks WHERE name = '%s'", name));
    hf_release(waiter.lock, NULL); /* it may be lost, if the server took longer to come back than the claim lasts */
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_grant_that_was_handed_on_survives_a_crash, 120)
{
    struct postgres_server *server = start_lazy(LAZY);
    for (size_t i = 0; i < ROWS; i++)
        check_handed_on(server, strategy_names[i], strategy_names[i]);
    check_handed_on(server, "lease", "insert");
    check_handed_on(server, "insert", "version");
}

/* Whatever a role has as its default. */
TEST_LIMIT(a_grant_survives_a_crash_though_the_role_does_not_wait_for_the_disk, 120)
{
    struct postgres_server *server = start_lazy(LAZY);
    const hf_options options = with_ttl(endless_ttl_ms());
    postgres_server_do(server, "ALTER ROLE postgres SET synchronous_commit = off");
    for (size_t i = 0; i < ROWS; i++) {
        const char *name = strategy_names[i];
        use_strategy(server, name);
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, name, &options);
        crash(server);
        CHECK_INT((int64_t)hf_token(lock),
                  postgres_server_number(server, "SELECT token FROM holdfast_locks WHERE name = '%s'", name));
        hf_release(lock, NULL);
        hf_close(client);
    }
}

/* What was said to be done, and what was broken, waits for the disk as ever. */
TEST_LIMIT(what_is_done_or_broken_survives_a_crash, 120)
{
    struct postgres_server *server = start_lazy(LAZY);
    for (size_t i = 0; i < STRATEGIES; i++) {
        const char *name = strategy_names[i];
        const hf_options options = with_ttl(endless_ttl_ms());
        hf_options once = HF_OPTIONS_INIT;
        hf_lock *none = NULL;
        hf_error err = { 0 };
        once.once_per_ms = 3600000;
        use_strategy(server, name);
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, name, &once);
        CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
        crash(server);
        CHECK_STATUS(HF_DONE, hf_try_acquire(&none, client, name, &once, &err), NULL);
        if (!is_bound(name)) {
            lock = must_acquire(client, "broken", &options);
            CHECK_STATUS(HF_OK, hf_break(client, "broken", &err), &err);
            crash(server);
            CHECK(is_free(client, "broken"));
            CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        }
        hf_close(client);
        postgres_server_do(server, "DELETE FROM holdfast_locks WHERE name = 'broken'");
    }
}

#define CRASHES 3
#define GRANTS 5

/* All of it: or one process of its own, after which it recovers without having been started anew. */
static void crash_somehow(struct postgres_server *server, int round)
{
    if (round % 2 == 0) {
        crash(server);
        return;
    }
    PGconn *witness = PQconnectdb(server->unix_url);
    REQUIRE_INT(CONNECTION_OK, PQstatus(witness));
    const int64_t backend = postgres_server_number(server, "SELECT pg_backend_pid()");
    CHECK_INT(0, kill((pid_t)backend, SIGKILL));
    for (; PQstatus(witness) == CONNECTION_OK; await_a_moment()) /* the server ends all others */
        PQclear(PQexec(witness, "SELECT 1"));
    PQfinish(witness);
    for (PGPing ping = PQPING_REJECT; ping != PQPING_OK; await_a_moment())
        ping = PQping(server->unix_url);
}

/* One strategy after the other: what waits for the disk brings all that was done before it there. */
static void check_tokens(struct postgres_server *server, const char *strategy)
{
    const hf_options options = with_ttl(short_ttl_ms()); /* a release may be lost */
    uint64_t last = 0;
    server_clock_set(server->clock, 0);
    use_strategy(server, strategy);
    for (int round = 0; round < CRASHES; round++) {
        hf_client *client = open_client();
        for (int grant = 0; grant < GRANTS; grant++) {
            hf_lock *lock = must_acquire(client, strategy, &options);
            const uint64_t token = hf_token(lock);
            must_release(lock);
            if (token <= last)
                FAIL("%s: %llu after %llu", strategy, (unsigned long long)token, (unsigned long long)last);
            last = token;
        }
        crash_somehow(server, round);
        hf_close(client);
        server_clock_set(server->clock, -3600000LL * (round + 1));
    }
}

/* The clock is set back as well: it does not help out if the last token is forgotten. */
TEST_LIMIT(tokens_grow_through_crashes, 180)
{
    struct postgres_server *server = start_lazy(LAZY);
    postgres_server_own_clock(server);
    for (size_t i = 0; i < STRATEGIES; i++)
        check_tokens(server, strategy_names[i]);
}
