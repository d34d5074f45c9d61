/* SPDX-License-Identifier: MIT
 *
 * test_mysql_late.c: what arrives late does nothing: a request that was given up comes to the server after its
 * successor was answered. And a connection that ends behind a proxy, which keeps its other half open.
 */
#include "late_relay.h"
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

/* The ordinary exchange takes a few milliseconds; one that was caught is given up after this. */
#define TIMEOUT_MS 2500

static void relayed_url(char out[200], const struct late_relay *relay, const char *strategy)
{
    snprintf(out, 200, "mysql://root@127.0.0.1:%d/app?strategy=%s", late_relay_port(relay), strategy);
}

/* Its statements are prepared, and the row of the name is there. */
static hf_client *relayed_client(const struct late_relay *relay, const char *strategy, const char *name)
{
    char url[200];
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = test_ms(TIMEOUT_MS);
    relayed_url(url, relay, strategy);
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &options, &err), &err);
    must_release(must_acquire(client, name, NULL));
    return client;
}

static hf_options lasting(void)
{
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = endless_ttl_ms();
    return options;
}

static void check_free_now(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    if (CHECK_STATUS(HF_OK, hf_try_acquire(&lock, client, name, NULL, &err), &err))
        must_release(lock);
}

/* The connection of what was caught, in one way or the other. */
static void await_given_up(const struct late_relay *relay)
{
    while (late_relay_resets(relay) + late_relay_ends(relay) == 0)
        pause_ms(2); /* the test's limit ends it */
}

/* ------------------------------------------------------------------------------------------------------- attempts */

/* The n-th statement of an attempt that came to nothing, for each of them. */
static void check_late_attempt(struct mysql_server *server, const char *strategy, unsigned nth)
{
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    const hf_options options = lasting();
    char name[60];
    snprintf(name, sizeof name, "%s-late-%u", strategy, nth);
    hf_client *client = relayed_client(relay, strategy, name), *other = open_client();
    hf_lock *lock = NULL;
    late_relay_catch(relay, name, nth);
    const hf_status status = hf_try_acquire(&lock, client, name, &options, NULL);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    late_relay_await(relay);
    check_becomes_free(other, name);
    late_relay_deliver(relay);
    check_becomes_free(other, name); /* its undoing may take another moment; what is held for nobody lasts for longer */
    /* And after a hold of the same client. */
    must_release(must_acquire(client, name, &options));
    check_free_now(other, name);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_late_attempt_takes_it_for_nobody, 120)
{
    static const struct {
        const char *strategy;
        unsigned statements;
    } attempts[] = { { "lease", 1 }, { "version", 2 }, { "insert", 2 } };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        use_strategy(server, attempts[i].strategy);
        for (unsigned nth = 1; nth <= attempts[i].statements; nth++)
            check_late_attempt(server, attempts[i].strategy, nth);
    }
}

/* One attempt is late, the next is granted, and what it has got is released before the first arrives. */
TEST_LIMIT(an_attempt_later_than_the_release_of_the_next, 90)
{
    static const char *const strategies[] = { "lease", "version", "insert" };
    static const unsigned taking[] = { 1, 2, 1 }; /* which statement takes it */
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        const char *name = strategies[i];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        hf_options options = lasting();
        use_strategy(server, name);
        hf_client *client = relayed_client(relay, name, name), *other = open_client();
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        late_relay_catch(relay, name, taking[i]);
        options.wait_ms = test_ms(30000);
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, name, &options, &err), &err); /* asks again */
        late_relay_await(relay);
        must_release(lock);
        late_relay_deliver(relay);
        check_free_now(other, name);
        hf_close(client);
        hf_close(other);
    }
}

/* ------------------------------------------------------------------------------------------------------- renewals */

#define LEFT_MS                                                                                                        \
    "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires) DIV 1000 FROM holdfast_locks WHERE name = '%s'"

TEST_LIMIT(a_late_renewal_does_not_cut_a_later_one, 90)
{
    static const char *const strategies[] = { "lease", "version", "insert" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        const char *name = strategies[i];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        hf_options options = lasting();
        use_strategy(server, name);
        options.renew = HF_RENEW_OFF;
        hf_client *client = relayed_client(relay, name, name);
        hf_lock *lock = must_acquire(client, name, &options);
        late_relay_catch(relay, name, 1);
        CHECK(hf_renew(lock, 20000, NULL) != HF_OK);
        late_relay_await(relay);
        CHECK_STATUS(HF_OK, hf_renew(lock, 600000, NULL), NULL);
        late_relay_deliver(relay);
        const int64_t believed = hf_remaining_ms(lock), stored = mysql_server_number(server, LEFT_MS, name);
        CHECK(believed > 300000);
        if (stored < believed)
            FAIL("%lld ms are believed, and %lld stored", (long long)believed, (long long)stored);
        must_release(lock);
        hf_close(client);
    }
}

/* Many by one statement: the late one is of all of them. */
TEST_LIMIT(a_late_renewal_of_many_does_not_cut_later_ones, 90)
{
    enum { COUNT = 3 };
    struct mysql_server *server = start_store("lease", "");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *locks[COUNT];
    hf_client *client = relayed_client(relay, "lease", "many");
    options.ttl_ms = test_ms(12000);
    for (unsigned i = 0; i < COUNT; i++)
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
    late_relay_catch(relay, numbered_name("many", 1).text, 1); /* the keeper's */
    late_relay_await(relay);
    for (unsigned i = 0; i < COUNT; i++)
        CHECK_STATUS(HF_OK, hf_renew(locks[i], 600000, NULL), NULL);
    await_given_up(relay);
    late_relay_deliver(relay);
    for (unsigned i = 0; i < COUNT; i++) {
        const int64_t stored = mysql_server_number(server, LEFT_MS, numbered_name("many", i).text);
        CHECK(hf_remaining_ms(locks[i]) <= stored);
        CHECK(stored > 300000);
        must_release(locks[i]);
    }
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------- releases */

struct leaver {
    char name[60], url[200];
    struct gate held, go;
};

static void hold_and_release(void *arg)
{
    struct leaver *leaver = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = test_ms(3000);
    options.renew = HF_RENEW_OFF;
    store_url = leaver->url;
    hf_lock *lock = must_acquire(open_client(), leaver->name, &options);
    gate_pass(&leaver->held);
    gate_await(&leaver->go, 1);
    hf_release(lock, NULL);
}

/* The n-th statement of a release. Whoever made it has died before it arrives, and somebody else has the lock. */
static void check_late_release(struct mysql_server *server, const char *strategy, unsigned nth)
{
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    struct leaver *leaver = shared_new(sizeof *leaver);
    struct loss loss = { 0 };
    hf_options options = lasting();
    snprintf(leaver->name, sizeof leaver->name, "%s-release-%u", strategy, nth);
    relayed_url(leaver->url, relay, strategy);
    const pid_t helper = helper_start(hold_and_release, leaver);
    gate_await(&leaver->held, 1);
    late_relay_catch(relay, leaver->name, nth);
    gate_pass(&leaver->go);
    late_relay_await(relay);
    helper_kill(helper);
    hf_client *client = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, leaver->name, &options); /* when its time is over */
    late_relay_deliver(relay);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
    CHECK_INT(0, gate_count(&loss.told));
    must_release(lock);
    hf_close(client);
}

TEST_LIMIT(a_late_release_does_not_free_the_next_holder, 120)
{
    struct mysql_server *server = start_store("lease", "");
    use_strategy(server, "lease");
    check_late_release(server, "lease", 1);
    use_strategy(server, "version");
    check_late_release(server, "version", 1);
    use_strategy(server, "insert");
    check_late_release(server, "insert", 1); /* for whoever waits */
    check_late_release(server, "insert", 2);
}

/* ------------------------------------------------------------------------------------------------- forced release */

TEST_LIMIT(a_late_break_does_not_break_the_next_holder, 90)
{
    static const char *const strategies[] = { "lease", "version", "insert" };
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < 3; i++) {
        const char *name = strategies[i];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        hf_options options = lasting();
        struct loss loss = { 0 };
        use_strategy(server, name);
        hf_client *breaker = relayed_client(relay, name, "other"), *client = open_client();
        hf_lock *lock = must_acquire(client, name, NULL);
        CHECK_STATUS(HF_OK, hf_break(breaker, "other", NULL), NULL); /* nobody has it; statements are prepared */
        late_relay_catch(relay, name, 2);                            /* the first looks who has it */
        CHECK(hf_break(breaker, name, NULL) != HF_OK);
        late_relay_await(relay);
        must_release(lock);
        record_loss(&options, &loss);
        lock = must_acquire(client, name, &options);
        late_relay_deliver(relay);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        CHECK_INT(0, gate_count(&loss.told));
        must_release(lock);
        hf_close(breaker);
        hf_close(client);
    }
}

/* By then the connection that was to be ended has another lock. */
TEST_LIMIT(a_late_break_does_not_end_a_connection_that_holds_something_else, 90)
{
    struct mysql_server *server = start_store("lease", "");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    struct loss loss = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    use_strategy(server, "get-lock");
    hf_client *breaker = relayed_client(relay, "get-lock", "other"), *client = open_client();
    hf_lock *lock = must_acquire(client, "first", NULL);
    const int64_t held_by = mysql_server_number(server, "SELECT IS_USED_LOCK('app:first')");
    late_relay_catch(relay, "KILL", 1);
    CHECK(hf_break(breaker, "first", NULL) != HF_OK);
    late_relay_await(relay);
    must_release(lock);
    record_loss(&options, &loss);
    lock = must_acquire(client, "second", &options);
    REQUIRE_INT(held_by, mysql_server_number(server, "SELECT IS_USED_LOCK('app:second')")); /* or it tests nothing */
    late_relay_deliver(relay);
    CHECK_INT(held_by, mysql_server_number(server, "SELECT IS_USED_LOCK('app:second')"));
    CHECK_INT(0, gate_count(&loss.told));
    must_release(lock);
    hf_close(breaker);
    hf_close(client);
}

/* -------------------------------------------------------------------------------------------- the way it is ended */

TEST_LIMIT(a_connection_that_is_given_up_is_reset, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        use_strategy(server, strategy_names[i]);
        hf_client *client = relayed_client(relay, strategy_names[i], strategy_names[i]);
        hf_lock *lock = NULL;
        late_relay_catch(relay, strategy_names[i], 1);
        CHECK(hf_try_acquire(&lock, client, strategy_names[i], NULL, NULL) != HF_OK);
        await_given_up(relay);
        CHECK(late_relay_resets(relay) >= 1);
        CHECK_INT(0, late_relay_ends(relay));
        late_relay_deliver(relay);
        hf_close(client);
    }
}

/* ------------------------------------------------------------------------------------------------- behind a proxy */

/* The server ends the connection, the proxy does not say so, and nothing but an unanswered ping can tell. */
TEST_LIMIT(a_connection_that_ends_behind_a_proxy_is_a_loss, 90)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 3; i < STRATEGIES; i++) {
        char url[200];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        struct loss loss = { 0 };
        hf_options options = HF_OPTIONS_INIT;
        relayed_url(url, relay, strategy_names[i]);
        use_strategy(server, strategy_names[i]);
        hf_client *other = open_client();
        store_url = url;
        hf_client *client = open_client();
        record_loss(&options, &loss);
        hf_lock *lock = must_acquire(client, strategy_names[i], &options);
        mysql_server_do(server, "KILL %lld",
                        (long long)mysql_server_number(server,
                                                       "SELECT connection FROM"
                                                       " holdfast_locks_grants WHERE name = '%s'",
                                                       strategy_names[i]));
        hf_lock *theirs = must_acquire(other, strategy_names[i], NULL);
        gate_await(&loss.told, 1);
        CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
        check_busy(client, strategy_names[i]);
        must_release(theirs);
        hf_close(client);
        hf_close(other);
    }
}

/* What only asks is done sooner. */
#define WAITING_CONNECTION OUR_CONNECTIONS " AND COMMAND <> 'Sleep' AND TIME_MS > 500"

/* The same to one that waits, of which the proxy does not say so either. */
TEST_LIMIT(a_waiter_whose_connection_ends_behind_a_proxy_asks_anew, 120)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 3; i < STRATEGIES; i++) {
        char url[200];
        struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
        struct waiter waiter;
        relayed_url(url, relay, strategy_names[i]);
        use_strategy(server, strategy_names[i]);
        hf_client *holder = open_client();
        store_url = url;
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(holder, strategy_names[i], NULL);
        waiter_start(&waiter, client, strategy_names[i], NULL);
        mysql_server_await(server, 1, "SELECT COUNT(*) " WAITING_CONNECTION);
        mysql_server_do(server, "KILL %lld", (long long)mysql_server_number(server, "SELECT ID " WAITING_CONNECTION));
        must_release(lock);
        waiter_join(&waiter, HF_OK);
        must_release(waiter.lock);
        hf_close(client);
        hf_close(holder);
    }
}
