/* SPDX-License-Identifier: MIT
 *
 * test_postgres_look.c: who holds what, who waits for it, in order, and whom a forced release ends.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAITERS 3

struct sight {
    unsigned locks;
    int64_t waiters;
    char waiting[WAITERS][200];
};

static int see(const hf_info *info, void *arg)
{
    struct sight *sight = arg;
    sight->locks++;
    sight->waiters = info->waiters;
    CHECK_STR("the holder's", info->note);
    CHECK_INT(getpid(), info->pid);
    for (int i = 0; i < WAITERS; i++)
        snprintf(sight->waiting[i], sizeof sight->waiting[i], "%s", info->waiting ? info->waiting[i] : "");
    return 0;
}

TEST_LIMIT(waiters_are_shown_in_order, 60)
{
    static const char *const notes[WAITERS] = { "the first", "", "the last: 'quoted' %s" };
    struct postgres_server *server = start_store("lease", "");
    for (size_t s = 0; s < STRATEGIES; s++) {
        const char *name = strategy_names[s];
        use_strategy(server, name);
        hf_client *client = open_client(), *other = open_client();
        hf_options options = HF_OPTIONS_INIT;
        struct waiter waiters[WAITERS];
        struct sight sight = { 0 };
        options.note = "the holder's";
        hf_lock *lock = must_acquire(client, name, &options);
        options.owner = HF_OWNER_HANDLE;
        for (int i = 0; i < WAITERS; i++) {
            options.note = notes[i];
            waiter_start(&waiters[i], other, name, &options);
            await_waiters(client, name, i + 1);
        }
        CHECK_STATUS(HF_OK, hf_inspect(client, name, see, &sight, NULL), NULL);
        CHECK_INT(1, sight.locks);
        CHECK_INT(strcmp(name, "for-update") == 0 ? -1 : WAITERS, sight.waiters); /* row locks are not in pg_locks */
        for (int i = 0; i < WAITERS && !is_bound(name); i++) {
            const char *note = strchr(sight.waiting[i], ' ');
            CHECK(strchr(sight.waiting[i], ':') != NULL && note != NULL);
            CHECK_STR(notes[i], note ? note + 1 : "");
        }
        must_release(lock);
        for (int served = 0; served < WAITERS;) {
            for (int i = 0; i < WAITERS; i++) {
                if (!waiters[i].client || !gate_await_for(&waiters[i].ended, 1, 1))
                    continue;
                waiter_finish(&waiters[i]);
                waiters[i].client = NULL;
                served++;
            }
        }
        hf_close(client);
        hf_close(other);
    }
}

/* What a holder leaves behind that was killed: its row says who held the lock, until the next one does. */
TEST_LIMIT(a_process_number_may_have_gone_to_another_session, 60)
{
    struct postgres_server *server = start_store("for-update", "");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct sight sight = { 0 };
    options.note = "the holder's";
    hf_lock *lock = must_acquire(client, "kept", &options);
    postgres_server_do(server, "INSERT INTO holdfast_locks (name) VALUES ('left')");
    postgres_server_do(server, "INSERT INTO holdfast_locks_grants SELECT 'left', token, client, serial, backend, since,"
                               " host, pid, note FROM holdfast_locks_grants WHERE name = 'kept'");
    CHECK_STATUS(HF_OK, hf_inspect(other, "", see, &sight, NULL), NULL);
    CHECK_INT(1, sight.locks);
    CHECK_STATUS(HF_OK, hf_break(other, "left", NULL), NULL);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

/* The number of a session that has ended goes to another one, a program's that writes no row. */
TEST_LIMIT(a_break_ends_who_has_the_lock_whatever_the_row_says, 60)
{
    struct postgres_server *server = start_store("advisory", "");
    PGconn *stranger = PQconnectdb(server->url);
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    postgres_server_do(server, "UPDATE holdfast_locks_grants SET backend = %d", PQbackendPID(stranger));
    PQclear(
        PQexec(stranger, "SELECT pg_advisory_lock(('x' || left(encode(sha256('x'), 'hex'), 16))::bit(64)::bigint)"));
    check_busy(client, "x");
    CHECK_STATUS(HF_OK, hf_break(client, "x", NULL), NULL);
    PQclear(PQexec(stranger, "SELECT 1"));
    CHECK(PQstatus(stranger) == CONNECTION_BAD);
    check_free(client, "x");
    PQfinish(stranger);
    hf_close(client);
}
