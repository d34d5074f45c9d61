/* SPDX-License-Identifier: MIT
 *
 * test_postgres_tokens.c: tokens of advisory locks grow though few grants wait for the disk: through servers that are
 * killed among many of them, with a clock that is set back at the same time, so that it does not help out; beside
 * clients of the version before; and whatever is removed from the table of those who wait, in which a mark is.
 */
#include "postgres_support.h"
#include "server_clock.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* What is not waited for is on no disk when the server is killed. */
#define LAZY "-c wal_writer_delay=10s -c wal_writer_flush_after=100MB -c autovacuum=off"

static struct postgres_server *start_lazy(void)
{
    struct postgres_server *server = start_store("advisory", LAZY);
    postgres_server_own_clock(server);
    hf_close(open_client()); /* the tables */
    return server;
}

static void crash(struct postgres_server *server, int64_t clock_ms)
{
    postgres_server_kill(server);
    server_clock_set(server->clock, clock_ms);
    postgres_server_restart(server);
}

/* --- killed among many grants --- */

#define CRASHES 4
#define GRANTS 80 /* before each crash */
#define THREADS 4
#define NAMES 2

struct crowd {
    _Atomic uint64_t last[NAMES];
    _Atomic int open, grants, reversed;
    _Atomic bool over;
};

static void raise_to(_Atomic uint64_t *last, uint64_t token)
{
    uint64_t seen = atomic_load(last);
    while (seen < token && !atomic_compare_exchange_weak(last, &seen, token))
        continue;
}

/* A token that anybody had before this one was asked for is smaller, though two may hold it while a server dies. */
static void *take_again_and_again(void *arg)
{
    static const char *const names[NAMES] = { "one", "other" };
    struct crowd *crowd = arg;
    hf_client *client = open_patient_client();
    atomic_fetch_add(&crowd->open, 1);
    for (size_t i = 0; !atomic_load(&crowd->over); i++) {
        hf_lock *lock = NULL;
        const uint64_t before = atomic_load(&crowd->last[i % NAMES]);
        if (hf_acquire(&lock, client, names[i % NAMES], NULL, NULL) != HF_OK)
            continue;
        atomic_fetch_add(&crowd->reversed, hf_token(lock) <= before);
        raise_to(&crowd->last[i % NAMES], hf_token(lock));
        atomic_fetch_add(&crowd->grants, 1);
        hf_release(lock, NULL);
    }
    hf_close(client);
    return NULL;
}

TEST_LIMIT(tokens_grow_though_the_server_is_killed_among_many_grants, 120)
{
    struct postgres_server *server = start_lazy();
    struct crowd crowd = { .grants = 0 };
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, take_again_and_again, &crowd));
    while (atomic_load(&crowd.open) < THREADS) /* which needs a server */
        await_a_moment();
    for (int i = 1; i <= CRASHES; i++) {
        const int enough = atomic_load(&crowd.grants) + GRANTS;
        while (atomic_load(&crowd.grants) < enough)
            await_a_moment();
        crash(server, -3600000LL * i);
    }
    atomic_store(&crowd.over, true);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    test_note("%d grants", atomic_load(&crowd.grants));
    CHECK_INT(0, atomic_load(&crowd.reversed));
}

/* --- what else there may be --- */

static uint64_t take_once(hf_client *client, const char *name)
{
    hf_lock *lock = must_acquire(client, name, NULL);
    const uint64_t token = hf_token(lock);
    must_release(lock);
    return token;
}

static void check_grows(uint64_t *last, uint64_t token)
{
    if (token <= *last)
        FAIL("%llu after %llu", (unsigned long long)token, (unsigned long long)*last);
    *last = token;
}

/* As version 0.1 writes down a grant. */
static uint64_t take_as_before(struct postgres_server *server)
{
    return (uint64_t)postgres_server_number(
        server, "INSERT INTO holdfast_locks_grants AS g (name, token)"
                " VALUES ('x', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) ON CONFLICT (name) DO UPDATE"
                " SET token = greatest(g.token + 1, excluded.token) RETURNING token");
}

TEST_LIMIT(tokens_grow_beside_the_version_before, 60)
{
    struct postgres_server *server = start_lazy();
    hf_client *client = open_client();
    uint64_t last = take_as_before(server);
    for (int i = 0; i < 3; i++) {
        server_clock_set(server->clock, -3600000LL * i);
        for (int j = 0; j < 4; j++) {
            check_grows(&last, take_once(client, "x"));
            check_grows(&last, take_once(client, "x"));
            check_grows(&last, take_as_before(server));
        }
    }
    hf_close(client);
}

/* The mark is made again, where it had to be after a crash; also by who had to wait for the lock. */
/* What was granted without waiting for the disk is forgotten, and another strategy is the next. */
static void check_after_advisory(const char *strategy)
{
    struct postgres_server *server = start_lazy();
    char url[300];
    hf_client *client = open_client();
    uint64_t last = take_once(client, "x");
    for (int i = 0; i < 5; i++)
        check_grows(&last, take_once(client, "x"));
    crash(server, -3600000);
    hf_close(client);
    snprintf(url, sizeof url, "%s?strategy=%s", server->url, strategy);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, NULL, NULL), NULL);
    check_grows(&last, take_once(client, "x"));
    check_grows(&last, take_once(client, "x"));
    hf_close(client);
}

TEST_LIMIT(tokens_of_for_update_are_above_what_advisory_gave_before_a_crash, 60)
{
    check_after_advisory("for-update");
}

TEST_LIMIT(tokens_of_insert_are_above_what_advisory_gave_before_a_crash, 60)
{
    check_after_advisory("insert");
}

/* The mark of advisory locks is ahead of the clock. If those of other strategies were, too, a standby that lags would
 * give them again when it is promoted. */
static void check_beside_advisory(const char *strategy)
{
    static const char ceiling[] = "SELECT token FROM holdfast_locks_grants WHERE name = ''";
    struct postgres_server *server = start_lazy();
    char url[300];
    hf_client *client = open_client(), *other;
    for (int i = 0; i < 3; i++) /* the second one raises it */
        take_once(client, "y");
    snprintf(url, sizeof url, "%s?strategy=%s", server->url, strategy);
    REQUIRE_STATUS(HF_OK, hf_open(&other, url, NULL, NULL), NULL);
    const int64_t token = (int64_t)take_once(other, "x"), mark = postgres_server_number(server, ceiling);
    CHECK(mark > postgres_server_number(server, "SELECT (extract(epoch FROM now()) * 1000000)::bigint"));
    CHECK(token < mark);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(tokens_of_for_update_keep_to_the_clock_beside_advisory, 60)
{
    check_beside_advisory("for-update");
}

TEST_LIMIT(tokens_of_insert_keep_to_the_clock_beside_advisory, 60)
{
    check_beside_advisory("insert");
}

TEST_LIMIT(tokens_grow_though_the_marks_are_removed, 60)
{
    hf_options options = HF_OPTIONS_INIT;
    struct postgres_server *server = start_lazy();
    hf_client *client = open_client(), *other = open_client();
    struct waiter waiter;
    uint64_t last = 0;
    options.owner = HF_OWNER_HANDLE;
    for (int i = 1; i <= 3; i++) {
        for (int j = 0; j < 5; j++)
            check_grows(&last, take_once(client, "x"));
        postgres_server_do(server, "TRUNCATE holdfast_locks_waiters");
        for (int j = 0; j < 5; j++)
            check_grows(&last, take_once(client, "x"));
        hf_lock *lock = must_acquire(client, "x", NULL);
        check_grows(&last, hf_token(lock));
        waiter_start(&waiter, other, "x", &options);
        await_waiters(client, "x", 1);
        postgres_server_do(server, "DELETE FROM holdfast_locks_waiters");
        must_release(lock);
        waiter_join(&waiter, HF_OK);
        check_grows(&last, waiter.token);
        must_release(waiter.lock);
        crash(server, -3600000LL * i);
    }
    hf_close(client);
    hf_close(other);
}

/* Of the mark that is on the disk, after which those who know it go by it for a while. */
TEST_LIMIT(tokens_grow_though_the_ceiling_is_removed_before_a_crash, 60)
{
    struct postgres_server *server = start_lazy();
    hf_client *client = open_client();
    uint64_t last = 0;
    for (int i = 1; i <= 2; i++) {
        for (int j = 0; j < 5; j++)
            check_grows(&last, take_once(client, "x"));
        postgres_server_do(server, "DELETE FROM holdfast_locks_grants WHERE name = ''");
        for (int j = 0; j < 5; j++)
            check_grows(&last, take_once(client, "x"));
        crash(server, -3600000LL * i);
        check_grows(&last, take_once(client, "x"));
    }
    hf_close(client);
}

TEST_LIMIT(a_ceiling_that_is_removed_is_made_anew, 60)
{
    static const char highest[] = "SELECT max(token) FROM holdfast_locks_grants WHERE name <> ''";
    struct postgres_server *server = start_lazy();
    hf_close(open_client());
    postgres_server_do(server, "INSERT INTO holdfast_locks_grants (name, token) VALUES ('ahead', 9000000000000000)");
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL)); /* makes the floor */
    postgres_server_do(server, "DELETE FROM holdfast_locks_grants WHERE name = ''");
    take_once(client, "x"); /* the first raised nothing, as nobody was granted anything before */
    CHECK(postgres_server_number(server, "SELECT token FROM holdfast_locks_grants WHERE name = ''") >
          postgres_server_number(server, "%s", highest));
    hf_close(client);
}

/* Whatever a role has as its default: what a token relies on is on the disk. */
TEST_LIMIT(tokens_grow_though_the_role_does_not_wait_for_the_disk, 60)
{
    struct postgres_server *server = start_lazy();
    uint64_t last = 0;
    postgres_server_do(server, "ALTER ROLE postgres SET synchronous_commit = off");
    for (int i = 1; i <= 2; i++) {
        hf_client *client = open_client();
        for (int j = 0; j < 5; j++)
            check_grows(&last, take_once(client, "x"));
        crash(server, -3600000LL * i);
        hf_close(client);
    }
    hf_client *client = open_client();
    check_grows(&last, take_once(client, "x"));
    hf_close(client);
}

/* A crash then does not remove the mark, by whose absence it is known. */
TEST_LIMIT(tokens_grow_though_those_who_wait_are_logged, 60)
{
    struct postgres_server *server = start_lazy();
    uint64_t last = 0;
    postgres_server_do(server, "ALTER TABLE holdfast_locks_waiters SET LOGGED");
    hf_client *client = open_client();
    for (int i = 1; i <= 2; i++) {
        for (int j = 0; j < 5; j++)
            check_grows(&last, take_once(client, "x"));
        crash(server, -3600000LL * i);
        check_grows(&last, take_once(client, "x"));
    }
    hf_close(client);
}

/* By a session that hangs: without it a grant waits for the disk, and for nothing else. */
TEST_LIMIT(a_mark_that_is_locked_holds_up_nobody, 60)
{
    struct postgres_server *server = start_lazy();
    hf_client *client = open_client();
    uint64_t last = 0;
    check_grows(&last, take_once(client, "x"));
    postgres_server_do(server, "BEGIN");
    CHECK_INT(0, postgres_server_number(server, "SELECT token FROM holdfast_locks_grants WHERE name = '' FOR UPDATE"));
    for (int i = 0; i < 20; i++)
        check_grows(&last, take_once(client, "x"));
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM pg_locks WHERE NOT granted"));
    postgres_server_do(server, "ROLLBACK");
    crash(server, -3600000);
    check_grows(&last, take_once(client, "x"));
    hf_close(client);
}

/* Whose row it is does not say who has it. */
TEST_LIMIT(the_last_holder_is_not_taken_for_the_holder, 60)
{
    struct postgres_server *server = start_lazy();
    hf_client *client = open_client();
    hf_lock *none = NULL;
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, "x", NULL);
    const int64_t key =
        postgres_server_number(server, "SELECT ('x' || left(encode(sha256('x'), 'hex'), 16))::bit(64)::bigint");
    must_release(lock);
    postgres_server_do(server, "SELECT pg_advisory_lock(%lld)", (long long)key); /* a program of another kind */
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&none, client, "x", NULL, &err), NULL);
    CHECK(strstr(err.message, "somebody else") != NULL);
    hf_close(client);
}

/* --- no floor --- */

static void *try_it(void *arg)
{
    struct waiter *waiter = arg;
    hf_lock *lock = NULL;
    waiter->status = hf_try_acquire(&lock, waiter->client, waiter->name, NULL, NULL);
    if (lock)
        must_release(lock);
    return NULL;
}

/* After a crash: one finds no mark, and another one makes it before the first can look why it got nothing. */
TEST_LIMIT(a_free_lock_is_not_busy_though_another_one_makes_the_mark, 60)
{
    struct postgres_server *server = start_lazy();
    pthread_t thread;
    hf_close(open_client());
    crash(server, 0);
    struct waiter waiter = { .client = open_client(), .name = "x", .status = HF_BUSY };
    postgres_server_do(server, "BEGIN");
    postgres_server_do(server, "LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE"); /* the look needs it, a try not */
    REQUIRE_INT(0, pthread_create(&thread, NULL, try_it, &waiter));
    postgres_server_await(server, 1, "SELECT count(*) FROM pg_locks WHERE NOT granted");
    postgres_server_do(server, "INSERT INTO holdfast_locks_waiters (name, client, serial, backend, note)"
                               " VALUES ('', 0, 0, 0, '0')");
    postgres_server_do(server, "COMMIT");
    pthread_join(thread, NULL);
    CHECK_STATUS(HF_OK, waiter.status, NULL);
    hf_close(waiter.client);
}

TEST_LIMIT(a_free_lock_is_not_busy_though_no_mark_can_stay, 60)
{
    struct postgres_server *server = start_lazy();
    hf_client *client = open_client();
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    postgres_server_do(server, "TRUNCATE holdfast_locks_waiters");
    postgres_server_do(server, "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
                               " CREATE TRIGGER skip BEFORE INSERT ON holdfast_locks_waiters FOR EACH ROW"
                               " EXECUTE FUNCTION skip()");
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&lock, client, "x", NULL, &err), NULL);
    CHECK(strstr(err.message, "emptied again and again") != NULL);
    postgres_server_do(server, "DROP FUNCTION skip CASCADE");
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}
