/* SPDX-License-Identifier: MIT
 *
 * test_postgres_break.c: what a holder whose lock was broken is told.
 */
#include "late_relay.h"
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>

#define MARKS "SELECT count(*) FROM holdfast_locks_grants WHERE note LIKE 'token % broken by %'"

TEST_LIMIT(a_holder_is_told_who_breaks_its_lock, 90)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        use_strategy(server, strategy_names[i]);
        check_broken_is_told();
    }
    check_broken_is_told_with_others(test_ms(9000)); /* the keeper asks after a third of it */
}

/* And of whom nothing else tells that it has it no more. */
TEST_LIMIT(a_holder_is_told_though_a_bound_strategy_had_the_name_before, 90)
{
    static const char *const bound[] = { "advisory", "for-update" };
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        for (size_t b = 0; b < 2; b++) {
            char url[200];
            use_strategy(server, strategy_names[i]);
            snprintf(url, sizeof url, "%s?strategy=%s", server->url, bound[b]);
            check_broken_is_told_after(url, b == 1);
        }
    }
}

static int64_t notes(void *server)
{
    return postgres_server_number(server, "%s", MARKS);
}

static void remove_row(void *server, const char *name)
{
    postgres_server_do(server, "DELETE FROM holdfast_locks WHERE name = '%s'", name);
}

TEST_LIMIT(a_break_is_not_told_of_another_hold, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        use_strategy(server, strategy_names[i]);
        check_broken_is_not_told_of_others(strategy_names[i], server, notes, remove_row);
    }
}

/* It arrives when its holder has let go of the lock, whose row still has the token. */
TEST_LIMIT(a_late_break_blames_nobody, 60)
{
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES && !is_bound(strategy_names[i]); i++) {
        const char *name = strategy_names[i];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        hf_client_options options = HF_CLIENT_OPTIONS_INIT;
        hf_client *breaker = NULL;
        char url[200];
        use_strategy(server, name);
        hf_client *client = open_client();
        snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d/postgres?strategy=%s", late_relay_port(relay),
                 name);
        options.timeout_ms = test_ms(2500);
        REQUIRE_STATUS(HF_OK, hf_open(&breaker, url, &options, NULL), NULL);
        hf_lock *lock = must_acquire(client, name, NULL);
        late_relay_catch(relay, name, 2); /* the first looks who has it */
        CHECK(hf_break(breaker, name, NULL) != HF_OK);
        late_relay_await(relay);
        must_release(lock);
        late_relay_deliver(relay);
        CHECK_INT(0, postgres_server_number(server, "%s", MARKS));
        check_free(client, name);
        hf_close(breaker);
        hf_close(client);
    }
}

/* Who broke it is written where these two strategies have nothing else to write. */
TEST_LIMIT(a_break_needs_no_rights_on_grants, 60)
{
    static const char *const names[] = { "lease", "version" };
    struct postgres_server *server = start_store("lease", "");
    hf_close(open_client());
    postgres_server_do(server,
                       "GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_locks, holdfast_locks_waiters TO guest");
    for (size_t i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT;
        hf_error err = { 0 };
        char url[200];
        snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres?strategy=%s", server->port,
                 names[i]);
        use_url(url);
        hf_client *client = open_client(), *other = open_client();
        options.ttl_ms = endless_ttl_ms();
        hf_lock *lock = must_acquire(client, names[i], &options);
        CHECK_STATUS(HF_OK, hf_break(other, names[i], &err), &err);
        CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
        CHECK(strstr(err.message, "the store no longer has it") != NULL);
        hf_release(lock, NULL);
        check_free(client, names[i]);
        hf_close(client);
        hf_close(other);
    }
}

/* A client of insert locks the row of grants, then that of the lock. A break that has the one while it waits for the
 * other would do the reverse. */
TEST_LIMIT(a_break_waits_for_no_row_of_grants, 60)
{
    static const char *const names[] = { "lease", "version" };
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 2; i++) {
        hf_error err = { 0 };
        use_strategy(server, names[i]);
        hf_client *client = open_client(), *other = open_client();
        hf_lock *lock = must_acquire(client, names[i], NULL);
        postgres_server_do(server, "BEGIN");
        postgres_server_do(server, "INSERT INTO holdfast_locks_grants (name, token) VALUES ('%s', 1)", names[i]);
        CHECK_STATUS(HF_OK, hf_break(other, names[i], &err), &err);
        postgres_server_do(server, "UPDATE holdfast_locks SET token = token + 1 WHERE name = '%s'", names[i]);
        postgres_server_do(server, "COMMIT");
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        check_free(client, names[i]);
        hf_close(client);
        hf_close(other);
    }
}

/* While nobody can say why a lock is lost, those that were renewed with it do not run out. */
TEST_LIMIT(a_loss_without_an_answer_takes_no_other_lock_with_it, 60)
{
    struct postgres_server *server = start_store("lease", "");
    hf_client_options patient = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    patient.timeout_ms = test_ms(20000);
    REQUIRE_STATUS(HF_OK, hf_open(&client, server->url, &patient, NULL), NULL);
    PGconn *session = PQconnectdb(server->url);
    struct loss losses[3] = { 0 };
    hf_lock *locks[3];
    for (unsigned i = 0; i < 3; i++) {
        hf_options options = HF_OPTIONS_INIT;
        record_loss(&options, &losses[i]);
        options.ttl_ms = test_ms(9000); /* the keeper asks after a third of it, and could wait for the rest */
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
    }
    PQclear(PQexec(session, "BEGIN"));
    PQclear(PQexec(session, "LOCK TABLE holdfast_locks_grants IN ACCESS EXCLUSIVE MODE"));
    REQUIRE(PQtransactionStatus(session) == PQTRANS_INTRANS);
    postgres_server_do(server, "DELETE FROM holdfast_locks WHERE name = '%s'", numbered_name("many", 0).text);
    gate_await(&losses[0].told, 1);
    CHECK(strstr(losses[0].why, "the store no longer has it") != NULL);
    CHECK_STATUS(HF_LOST, hf_release(locks[0], NULL), NULL);
    must_release(locks[1]);
    must_release(locks[2]);
    CHECK_INT(0, gate_count(&losses[1].told) + gate_count(&losses[2].told));
    PQfinish(session);
    hf_close(client);
}

/* Of a lock that is bound to a connection the server says why it has ended that. */
TEST_LIMIT(a_holder_is_told_why_the_server_ended_its_session, 60)
{
    static const char *const bound[] = { "for-update", "advisory" };
    struct postgres_server *server = start_store("lease", "");
    for (size_t i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT;
        struct loss loss = { 0 };
        use_strategy(server, bound[i]);
        hf_client *client = open_client(), *other = open_client();
        record_loss(&options, &loss);
        hf_lock *lock = must_acquire(client, bound[i], &options);
        CHECK_STATUS(HF_OK, hf_break(other, bound[i], NULL), NULL);
        gate_await(&loss.told, 1);
        if (strcmp(loss.why, "the server has ended its session: terminating connection due to administrator command"
                             " (57P01)") != 0)
            FAIL("is told: %s", loss.why);
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        hf_close(client);
        hf_close(other);
    }
}
