/* SPDX-License-Identifier: MIT
 *
 * test_postgres_late.c: requests that were given up and arrive all the same, after their successors: the process of the
 * server that has them is stopped, and goes on later; or a relay keeps them back. Whatever arrives late does nothing.
 */
#include "late_relay.h"
#include "postgres_support.h"
#include "silent_relay.h"
#include "turns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_MS 1000
#define LAST_STATEMENT "SELECT (extract(epoch FROM query_start) * 1000000)::bigint, state FROM pg_stat_activity"
#define IDLE "FROM pg_stat_activity WHERE application_name = 'holdfast' AND state = 'idle'"

static const char *const rows[] = { "lease", "insert", "version" };

static hf_client *open_impatient(void)
{
    hf_client *client = NULL;
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &options, NULL), NULL);
    return client;
}

/* Stops the process of the one session that there is. */
static pid_t stop_session(struct postgres_server *server)
{
    postgres_server_await(server, 1, "SELECT count(*) " IDLE);
    const pid_t backend = (pid_t)postgres_server_number(server, "SELECT pid " IDLE);
    postgres_server_pause_backend(backend);
    return backend;
}

/* It does what it has been sent; and ends, if it finds its client gone. */
static void let_it_run(struct postgres_server *server, pid_t backend)
{
    char unfinished[200];
    const int64_t before = postgres_server_number(server, LAST_STATEMENT " WHERE pid = %d", (int)backend);
    snprintf(unfinished, sizeof unfinished,
             "SELECT count(*) FROM (" LAST_STATEMENT " WHERE pid = %d) one (at, state)"
             " WHERE at <= %lld OR state <> 'idle'",
             (int)backend, (long long)before);
    postgres_server_continue_backend(backend);
    postgres_server_await(server, 0, unfinished);
}

static int64_t seconds_left(struct postgres_server *server, const char *name)
{
    return postgres_server_number(server,
                                  "SELECT extract(epoch FROM expires - clock_timestamp())::bigint"
                                  " FROM holdfast_locks WHERE name = '%s'",
                                  name);
}

TEST_LIMIT(a_late_renewal_does_not_cut_the_lease, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = open_impatient();
        hf_options options = HF_OPTIONS_INIT;
        options.ttl_ms = 300000; /* nothing is renewed by itself meanwhile */
        hf_lock *lock = must_acquire(client, rows[i], &options);
        const pid_t backend = stop_session(server);
        CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 100000, NULL), NULL);
        CHECK_STATUS(HF_OK, hf_renew(lock, 200000, NULL), NULL);
        let_it_run(server, backend);
        CHECK(hf_remaining_ms(lock) > 110000);
        CHECK(seconds_left(server, rows[i]) >= hf_remaining_ms(lock) / 1000);
        must_release(lock);
        hf_close(client);
    }
}

/* The same with the request that took the lock, which its owner had to send twice. */
TEST_LIMIT(a_late_acquire_does_not_cut_the_lease, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = open_impatient();
        hf_options options = HF_OPTIONS_INIT;
        options.ttl_ms = 100000;
        must_release(must_acquire(client, rows[i], NULL));
        const pid_t backend = stop_session(server);
        hf_lock *lock = must_acquire(client, rows[i], &options);
        CHECK_STATUS(HF_OK, hf_renew(lock, 200000, NULL), NULL);
        let_it_run(server, backend);
        CHECK(hf_remaining_ms(lock) > 110000);
        CHECK(seconds_left(server, rows[i]) >= hf_remaining_ms(lock) / 1000);
        must_release(lock);
        CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM holdfast_locks WHERE expires > now()"));
        hf_close(client);
    }
}

/* Its release has been answered, or tried in vain, before the server gets round to it. (for-update takes two sessions,
 * and ends with one.) */
TEST_LIMIT(a_late_acquire_takes_the_lock_for_nobody, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        if (strcmp(strategy_names[i], "for-update") == 0)
            continue;
        use_strategy(server, strategy_names[i]);
        hf_client *client = open_impatient(), *other = NULL;
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL;
        options.ttl_ms = endless_ttl_ms();
        must_release(must_acquire(client, strategy_names[i], NULL));
        const pid_t backend = stop_session(server);
        CHECK(hf_try_acquire(&lock, client, strategy_names[i], &options, NULL) != HF_OK);
        postgres_server_await(server, 1,
                              "SELECT least(1, count(*)) " IDLE " AND query NOT LIKE '%set_config%'"
                              " AND query_start > clock_timestamp() - interval '10 s'");
        let_it_run(server, backend);
        other = open_client();
        check_becomes_free(other, strategy_names[i]);
        hf_close(client);
        check_free(other, strategy_names[i]);
        hf_close(other);
        postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    }
}

/* Whoever broke a lock and got no answer goes away, and the lock changes hands. */
TEST_LIMIT(a_late_break_does_not_break_the_next_holder, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        hf_options options = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        hf_client *breaker = open_impatient();
        CHECK_STATUS(HF_OK, hf_break(breaker, "another", NULL), NULL);
        const pid_t backend = stop_session(server);
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, strategy_names[i], NULL);
        CHECK(hf_break(breaker, strategy_names[i], NULL) != HF_OK);
        hf_close(breaker);
        must_release(lock);
        record_loss(&options, &loss);
        lock = must_acquire(client, strategy_names[i], &options);
        let_it_run(server, backend);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        CHECK_INT(0, gate_count(&loss.told));
        must_release(lock);
        hf_close(client);
        postgres_server_await(server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'");
    }
}

/* ------------------------------------------------------------------------------------------- by way of a relay */

struct leaver {
    char name[60], url[200];
    struct gate held, go;
};

static struct leaver *leaver_new(const char *what, const char *strategy, const struct late_relay *relay)
{
    struct leaver *leaver = shared_new(sizeof *leaver);
    snprintf(leaver->name, sizeof leaver->name, "%s-%s", what, strategy);
    snprintf(leaver->url, sizeof leaver->url, "postgres://postgres@127.0.0.1:%d/postgres?strategy=%s",
             late_relay_port(relay), strategy);
    return leaver;
}

static void hold_and_release(void *arg)
{
    struct leaver *leaver = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = endless_ttl_ms();
    use_url(leaver->url);
    hf_lock *lock = must_acquire(open_client(), leaver->name, &options);
    gate_pass(&leaver->held);
    gate_await(&leaver->go, 1);
    hf_release(lock, NULL);
}

/* Whoever released it has died before that arrives, and somebody else has the lock. */
TEST_LIMIT(a_late_release_does_not_free_the_next_holder, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        struct leaver *leaver = leaver_new("late-release", rows[i], relay);
        struct loss loss = { 0 };
        hf_options options = HF_OPTIONS_INIT;
        const pid_t helper = helper_start(hold_and_release, leaver);
        gate_await(&leaver->held, 1);
        late_relay_catch(relay, leaver->name, 1);
        gate_pass(&leaver->go);
        late_relay_await(relay);
        helper_kill(helper);
        use_strategy(server, rows[i]);
        hf_client *client = open_client();
        CHECK_STATUS(HF_OK, hf_break(client, leaver->name, NULL), NULL);
        record_loss(&options, &loss);
        hf_lock *lock = must_acquire(client, leaver->name, &options);
        late_relay_deliver(relay);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        CHECK_INT(0, gate_count(&loss.told));
        must_release(lock);
        hf_close(client);
    }
}

/* Whoever asked for it has asked again, and left the line, before that arrives. */
TEST_LIMIT(a_late_place_in_line_is_not_taken, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        const struct leaver *leaver = leaver_new("late-place", rows[i], relay);
        struct waiter waiter;
        char in_line[160];
        snprintf(in_line, sizeof in_line, "SELECT count(*) FROM holdfast_locks_waiters WHERE name = '%s'",
                 leaver->name);
        use_url(leaver->url);
        hf_client *client = open_impatient();
        use_strategy(server, rows[i]);
        hf_client *other = open_client();
        hf_lock *lock = must_acquire(other, leaver->name, NULL);
        late_relay_catch(relay, "backend, host, pid, note) SELECT", 1); /* to line up, which is prepared with it */
        waiter_start(&waiter, client, leaver->name, NULL);
        late_relay_await(relay);
        postgres_server_await(server, 1, in_line);
        CHECK_STATUS(HF_OK, hf_cancel(client, leaver->name), NULL);
        waiter_join(&waiter, HF_CANCELED);
        postgres_server_await(server, 0, in_line);
        CHECK(late_relay_resets(relay) >= 1);
        late_relay_deliver_if_open(relay);
        CHECK_INT(0, postgres_server_number(server, "%s", in_line));
        must_release(lock);
        check_free(other, leaver->name);
        hf_close(client);
        hf_close(other);
    }
}

/* A proxy goes on with the connection that listens, and nothing comes by it any more. Whoever hands the lock to its
 * waiter is told that it was heard, and in a crowd that is well it would never find the lock free. All strategies at
 * once. */
TEST_LIMIT(a_waiter_whose_push_connection_died_without_a_word_is_served, 90)
{
    enum { ROWS = 3 };
    struct postgres_server *server = start_store("lease", "");
    hf_client *deaf[ROWS], *others[ROWS];
    struct relay *relays[ROWS];
    struct waiter waiters[ROWS];
    struct turns *turns[ROWS];
    hf_options options = HF_OPTIONS_INIT;
    options.wait_ms = test_ms(40000);
    for (size_t i = 0; i < ROWS; i++) {
        char url[120];
        relays[i] = relay_start(server->port);
        use_strategy(server, rows[i]);
        others[i] = open_client();
        snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d/postgres?strategy=%s", relays[i]->port, rows[i]);
        use_url(url);
        deaf[i] = open_client();
        hf_lock *lock = must_acquire(others[i], rows[i], NULL);
        waiter_start(&waiters[i], deaf[i], rows[i], &options);
        await_waiters(others[i], rows[i], 1);
        atomic_store(&relays[i]->swallow_pushes, true);
        while (atomic_load(&relays[i]->swallowed) == 0)
            await_a_moment();
        turns[i] = turns_start(others[i], rows[i], 30000, 0);
        must_release(lock);
    }
    for (size_t i = 0; i < ROWS; i++) {
        waiter_finish(&waiters[i]);
        test_note("%u grants to others meanwhile", turns_stop(turns[i]));
        CHECK_INT(1, atomic_load(&relays[i]->swallowed));
        hf_close(deaf[i]);
        hf_close(others[i]);
        relay_stop(relays[i]);
    }
}

#define TABLE_OF_0_1                                                                                                   \
    "CREATE TABLE holdfast_locks (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL DEFAULT 0,"               \
    " client bigint, serial bigint, since timestamptz, expires timestamptz, ttl bigint, host text, pid int,"           \
    " note text, queued boolean NOT NULL DEFAULT false) WITH (fillfactor = 50)"

/* The tables of version 0.1 have no number of a request: it is added, by whoever may. */
TEST_LIMIT(a_table_of_the_version_before_is_brought_up_to_date, 60)
{
    char guest[200], no[200];
    struct postgres_server *server = postgres_server_start("");
    snprintf(guest, sizeof guest, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    snprintf(no, sizeof no, "%s?create=no", server->url);
    use_strategy(server, "lease");
    hf_client *client = open_client();
    postgres_server_do(server, "DROP TABLE holdfast_locks");
    postgres_server_do(server, TABLE_OF_0_1);
    postgres_server_do(server, "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest");
    check_open(guest, HF_INVALID, "-f holdfast-postgres.sql");
    check_open(no, HF_INVALID, "column request");
    must_release(must_acquire(client, "x", NULL)); /* a client that had another table before */
    check_open(guest, HF_OK, "");
    check_open(no, HF_OK, "");
    hf_close(client);
}

/* What a client of version 0.1 does with a row whose holder has died: it knows of no number, and leaves it. */
#define SERVED_BY_0_1(word)                                                                                            \
    "WITH given AS (UPDATE holdfast_locks l SET client = w.client, serial = w.serial, token = l.token + 1,"            \
    " since = clock_timestamp(), expires = clock_timestamp() + interval '1 second', ttl = 1000, host = w.host,"        \
    " pid = w.pid, queued = false FROM holdfast_locks_waiters w WHERE l.name = w.name RETURNING"                       \
    " pg_notify('holdfast_' || lpad(to_hex(l.client), 16, '0'), l.serial" word "))"                                    \
    " DELETE FROM holdfast_locks_waiters WHERE (SELECT count(*) FROM given) = 1"
#define TOKEN_AND_TIME " || ' ' || l.token || ' ' || (extract(epoch FROM l.since) * 1000000)::bigint"

TEST_LIMIT(who_is_served_by_a_client_of_the_version_before_keeps_it, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        use_strategy(server, rows[i]);
        hf_client *client = open_client();
        hf_options options = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        struct waiter waiter;
        postgres_server_do(server,
                           "INSERT INTO holdfast_locks (name, token, client, serial, since, expires, ttl, request)"
                           " VALUES ('%s', 1, 5, 5, now(), now() + interval '1 hour', 3600000,"
                           " (extract(epoch FROM now()) * 1000000)::bigint)",
                           rows[i]);
        options.owner = HF_OWNER_HANDLE;
        record_loss(&options, &loss);
        waiter_start(&waiter, client, rows[i], &options);
        postgres_server_await(server, 1, "SELECT count(*) FROM holdfast_locks_waiters");
        if (strcmp(rows[i], "insert") == 0)
            postgres_server_do(server, SERVED_BY_0_1("::text"));
        else
            postgres_server_do(server, SERVED_BY_0_1(TOKEN_AND_TIME));
        waiter_join(&waiter, HF_OK);
        CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, NULL), NULL);
        CHECK_INT(0, gate_count(&loss.told));
        must_release(waiter.lock);
        hf_close(client);
    }
}

/* -------------------------------------------------------------------------------------- sessions that owe an answer */

/* The role that all sessions of guest take on may neither see nor end those of guest. What was asked for is done after
 * the release; the release is repeated, and so nobody waits for the time-to-live. */
TEST_LIMIT(a_session_that_may_not_be_seen_is_not_taken_for_ended, 60)
{
    char url[200];
    hf_error err = { 0 };
    struct postgres_server *server = postgres_server_start("");
    postgres_server_do(server, "CREATE ROLE worker");
    postgres_server_do(server, "GRANT worker TO guest");
    postgres_server_do(server, "GRANT CREATE ON SCHEMA public TO worker");
    postgres_server_do(server, "ALTER ROLE guest SET role = 'worker'");
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    use_url(url);
    hf_client *client = open_impatient();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = endless_ttl_ms();
    must_release(must_acquire(client, "x", NULL));
    const pid_t backend = stop_session(server);
    hf_lock *lock = must_acquire(client, "x", &options); /* by another session, after the first did not answer */
    hf_release(lock, &err);
    check_error(&err, HF_DENIED, "terminat");
    let_it_run(server, backend);
    hf_client *other = open_client();
    check_becomes_free(other, "x");
    hf_close(other);
    hf_close(client);
}

/* Who is not root needs a user namespace to make others in, and stays who he is. */
static void become_able(void)
{
    char map[64];
    if (geteuid() == 0)
        return;
    snprintf(map, sizeof map, "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
    need_namespaces();
    REQUIRE_INT(0, unshare(CLONE_NEWUSER));
    const int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, map, strlen(map)) == (ssize_t)strlen(map));
    close(fd);
}

/* A server whose processes are numbered from 1, as those of one on another machine may be. */
static struct postgres_server *start_apart(pid_t *first)
{
    const int here = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    REQUIRE(here >= 0);
    REQUIRE_INT(0, unshare(CLONE_NEWPID));
    *first = fork(); /* without it there is no second */
    REQUIRE(*first >= 0);
    if (*first == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    struct postgres_server *server = postgres_server_start("");
    REQUIRE_INT(0, setns(here, CLONE_NEWPID));
    close(here);
    return server;
}

static void end_apart(struct postgres_server *server, pid_t first)
{
    postgres_server_stop(server); /* before: the first one ends when all others have been waited for */
    CHECK_INT(0, kill(first, SIGKILL));
    REQUIRE_INT(first, waitpid(first, NULL, 0));
}

static PGconn *connect_to(const struct postgres_server *server)
{
    char where[300];
    snprintf(where, sizeof where, "host=%s port=%d user=postgres dbname=postgres", server->directory, server->port);
    PGconn *session = PQconnectdb(where);
    REQUIRE_INT(CONNECTION_OK, PQstatus(session));
    return session;
}

#define SESSIONS_MOST 200

/* A client with one session with `server`, whose number one of the sessions with `other` has as well, *same. */
static hf_client *open_with_the_same_number(struct postgres_server *server, const struct postgres_server *other,
                                            PGconn **same)
{
    static PGconn *sessions[SESSIONS_MOST];
    int64_t number = postgres_server_number(server, "SELECT pg_backend_pid()");
    size_t count = 0;
    do
        sessions[count] = connect_to(other);
    while (PQbackendPID(sessions[count++]) < number + 20 && count < SESSIONS_MOST);
    for (int tries = 0; tries < SESSIONS_MOST; tries++) {
        hf_client *client = open_impatient();
        must_release(must_acquire(client, "x", NULL));
        postgres_server_await(server, 1, "SELECT count(*) " IDLE);
        number = postgres_server_number(server, "SELECT pid " IDLE);
        for (size_t i = 0; i < count; i++) {
            *same = sessions[i];
            if (PQbackendPID(*same) == number)
                return client;
        }
        hf_close(client);
        postgres_server_await(server, 0, "SELECT count(*) " IDLE);
    }
    FAIL("no two sessions have the same number");
    test_abort();
}

/* After a failover: the session that owes an answer ended with its server. */
TEST_LIMIT(a_session_of_another_server_that_has_the_same_number_is_left_alone, 120)
{
    char url[200];
    PGconn *same = NULL;
    hf_lock *lock = NULL;
    pid_t firsts[2];
    become_able();
    struct postgres_server *server = start_apart(&firsts[0]), *other = start_apart(&firsts[1]);
    snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres", server->port, other->port);
    use_url(url);
    hf_client *client = open_with_the_same_number(server, other, &same);
    postgres_server_do(server, "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS"
                               " 'BEGIN PERFORM pg_catalog.pg_sleep(600); RETURN NULL; END'");
    postgres_server_do(server, "CREATE TRIGGER hang BEFORE INSERT OR UPDATE ON holdfast_locks EXECUTE FUNCTION hang()");
    CHECK_INT(0, kill(server->pid, SIGSTOP)); /* nobody can connect to it any more */
    REQUIRE_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, client, "x", NULL, NULL), NULL);
    postgres_server_await(other, 1, "SELECT least(1, count(*)) " IDLE " AND query NOT LIKE '%set_config%'");
    hf_close(client);
    PGresult *answer = PQexec(same, "SELECT 1");
    CHECK_INT(PGRES_TUPLES_OK, PQresultStatus(answer));
    PQclear(answer);
    CHECK_INT(0, kill(server->pid, SIGCONT));
    end_apart(server, firsts[0]);
    end_apart(other, firsts[1]);
}

/* Stops or continues the processes of all sessions that do nothing; how many there are. */
static int64_t for_all_idle(struct postgres_server *server, void (*what)(pid_t backend))
{
    int64_t count = 0, backend = 0;
    while ((backend = postgres_server_number(server, "SELECT min(pid) " IDLE " AND pid > %lld", (long long)backend)) >
           0) {
        what((pid_t)backend);
        count++;
    }
    return count;
}

/* The grant comes when it would have to be given back. It is asked for again, and is there. */
TEST_LIMIT(a_grant_that_comes_too_late_is_asked_for_again, 90)
{
    struct postgres_server *server = start_store("advisory", "");
    for (size_t i = 3; i < STRATEGIES; i++) {
        use_strategy(server, strategy_names[i]);
        postgres_server_await(server, 0, "SELECT count(*) " IDLE);
        hf_client *client = open_client(), *other = NULL;
        hf_options options = HF_OPTIONS_INIT;
        struct waiter waiter;
        must_release(must_acquire(client, strategy_names[i], NULL));
        postgres_server_await(
            server, 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND state <> 'idle'");
        CHECK(for_all_idle(server, postgres_server_pause_backend) >= 1);
        options.owner = HF_OWNER_HANDLE;
        options.max_hold_ms = 1500;
        waiter_start(&waiter, client, strategy_names[i], &options);
        CHECK(!gate_await_for(&waiter.ended, 1, 1700));
        for_all_idle(server, postgres_server_continue_backend);
        waiter_join(&waiter, HF_OK);
        hf_release(waiter.lock, NULL); /* its time may have passed on a busy machine */
        other = open_client();
        check_becomes_free(other, strategy_names[i]);
        hf_close(client);
        hf_close(other);
    }
}

/* As many as that end in one beat: all of them are told in that beat, and not when those before them are released. */
TEST_LIMIT(all_that_do_not_answer_are_told_at_once, 60)
{
    enum { COUNT = 20 };
    struct postgres_server *server = start_store("advisory", "");
    hf_client *client = NULL;
    hf_client_options patient = HF_CLIENT_OPTIONS_INIT;
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    hf_lock *locks[COUNT];
    pid_t backends[COUNT];
    patient.timeout_ms = 120000; /* for half of it, a release waits for its session to end */
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &patient, NULL), NULL);
    record_loss(&options, &loss);
    for (unsigned i = 0; i < COUNT; i++) {
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
        backends[i] = (pid_t)postgres_server_number(
            server, "SELECT backend FROM holdfast_locks_grants WHERE name = '%s'", numbered_name("many", i).text);
    }
    for (unsigned i = 0; i < COUNT; i++)
        postgres_server_pause_backend(backends[i]);
    gate_await(&loss.told, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        postgres_server_continue_backend(backends[i]);
    for (unsigned i = 0; i < COUNT; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    hf_close(client);
}
