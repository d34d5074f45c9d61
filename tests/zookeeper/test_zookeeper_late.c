/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_late.c: requests that arrive when they were given up long ago, and done anew on another connection.
 * The server has closed the connection they come by, or takes nothing from it any more: the session is elsewhere.
 */
#include "late_relay.h"
#include "zookeeper_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A client that gives a silent server up soon, behind the relays. */
static hf_client *open_behind(const struct late_relay *one, const struct late_relay *other)
{
    char url[200];
    hf_client_options hurry = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hurry.timeout_ms = test_ms(4000);
    snprintf(url, sizeof url, "zookeeper://127.0.0.1:%d,127.0.0.1:%d", late_relay_port(one), late_relay_port(other));
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &hurry, NULL), NULL);
    return client;
}

/* A node's own name, of the only one there is. */
static void only_node(struct raw *raw, const char *name, char out[300])
{
    REQUIRE_INT(1, contenders(raw, name));
    snprintf(out, 300, "%.*s", (int)strcspn(raw->text, " "), raw->text);
}

static void check_late_create(const struct zookeeper_server *server, hf_client *client, struct late_relay *relay)
{
    late_relay_catch(relay, "/holdfast/x/_c_", 1);
    hf_lock *lock = must_acquire(client, "x", NULL);
    late_relay_await(relay);
    must_release(lock);
    late_relay_deliver_if_open(relay);
    struct raw *raw = raw_open(server, NULL, NULL); /* not before: its session needs somebody who looks after it */
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL, "", "/holdfast/x/after")); /* what came before it is done */
    CHECK_INT(1, contenders(raw, "x"));
    raw_close(raw);
}

TEST_LIMIT(a_node_that_is_asked_for_late_is_not_made, 60)
{
    struct zookeeper_server *server = serve("");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client *client = open_behind(relay, relay);
    must_release(must_acquire(client, "x", NULL));
    check_late_create(server, client, relay);
    check_free(client, "x");
    hf_close(client);
}

/* The request waits before a server that the client has left for another one. */
TEST_LIMIT(a_node_that_is_asked_for_late_at_another_server_is_not_made, 60)
{
    struct zookeeper_server *servers[3];
    serve_three(servers, "");
    struct late_relay *relays[2] = { late_relay_start("127.0.0.1", servers[0]->port),
                                     late_relay_start("127.0.0.1", servers[1]->port) };
    hf_client *client = open_behind(relays[0], relays[1]);
    must_release(must_acquire(client, "x", NULL));
    struct late_relay *used = relays[late_relay_connections(relays[0]) > 0 ? 0 : 1];
    check_late_create(servers[2], client, used);
    check_free(client, "x");
    hf_close(client);
}

TEST_LIMIT(a_renewal_and_a_release_that_come_late_change_nothing, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client *client = open_behind(relay, relay), *other = open_client();
    hf_options options = with_ttl(60000);
    char node[300];
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = must_acquire(client, "x", &options);
    only_node(raw, "x", node);
    late_relay_catch(relay, node, 1);
    hf_renew(lock, 30000, NULL);
    late_relay_await(relay);
    while (hf_renew(lock, 60000, NULL) != HF_OK) /* it connects again */
        REQUIRE(hf_remaining_ms(lock) > 0);
    late_relay_deliver_if_open(relay);
    CHECK(hf_remaining_ms(lock) > 30000);
    check_busy(other, "x");
    late_relay_catch(relay, node, 1);
    hf_release(lock, NULL);
    late_relay_await(relay);
    check_becomes_free(other, "x");
    lock = must_acquire(client, "x", &options);
    late_relay_deliver_if_open(relay);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
    check_busy(other, "x");
    must_release(lock);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

struct
try {
    hf_client *client;
    hf_lock *lock;
};

static void *try_x(void *arg)
{
    struct try *try = arg;
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_try_acquire(&try->lock, try->client, "x", NULL, &err), &err);
    return NULL;
}

/* A try in vain deletes its node. Whether that was done is not known when the lock comes free: it must not be held by
 * a node that may go at any moment. */
TEST_LIMIT(a_node_that_was_to_be_deleted_holds_nothing, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    struct try try = { .client = open_behind(relay, relay) };
    pthread_t thread;
    char holder[300], own[40];
    must_release(must_acquire(try.client, "x", NULL));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "", "/holdfast/x/a-lock-"));
    snprintf(holder, sizeof holder, "%.299s", raw->text);
    snprintf(own, sizeof own, "-lock-%010d", (int)strtol(holder + strlen(holder) - 10, NULL, 10) + 1);
    late_relay_catch(relay, own, 1);
    REQUIRE_INT(0, pthread_create(&thread, NULL, try_x, &try));
    late_relay_await(relay);
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/x/now"));
    const int64_t now = raw->stat.czxid;
    REQUIRE_INT(ZOK, raw_delete(raw, "%s", holder));
    pthread_join(thread, NULL);
    CHECK(hf_token(try.lock) > (uint64_t)now);
    must_release(try.lock);
    hf_close(try.client);
    raw_close(raw);
}

static void *break_x(void *client)
{
    CHECK_STATUS(HF_OK, hf_break(client, "x", NULL), NULL);
    return NULL;
}

/* Its holder, whom the break was meant for, has released the lock meanwhile. */
TEST_LIMIT(a_break_that_comes_late_breaks_nobody_else, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client *breaker = open_behind(relay, relay), *holder = open_client(), *next = open_client();
    pthread_t thread;
    char node[300];
    struct waiter waiter;
    hf_lock *lock = must_acquire(holder, "x", NULL);
    only_node(raw, "x", node);
    waiter_start(&waiter, next, "x", NULL);
    await_waiters(holder, "x", 1);
    late_relay_catch(relay, node, 1);
    REQUIRE_INT(0, pthread_create(&thread, NULL, break_x, breaker));
    late_relay_await(relay);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    late_relay_deliver_if_open(relay);
    pthread_join(thread, NULL);
    CHECK_STATUS(HF_OK, hf_renew(waiter.lock, 0, NULL), NULL);
    must_release(waiter.lock);
    hf_close(breaker);
    hf_close(holder);
    hf_close(next);
    raw_close(raw);
}

/* What was done by its successor was taken back meanwhile. */
TEST_LIMIT(a_mark_that_comes_late_is_not_left, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client *client = open_behind(relay, relay), *other = open_client();
    hf_options options = with_ttl(60000);
    options.once_per_ms = 3600000;
    hf_lock *lock = must_acquire(client, "x", &options);
    late_relay_catch(relay, "/holdfast/.done/x", 1);
    CHECK_STATUS(HF_UNKNOWN, hf_release_done(lock, NULL), NULL);
    late_relay_await(relay);
    check_becomes_free(other, "x");
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/x"));
    CHECK_STATUS(HF_OK, hf_forget_done(other, "x", NULL), NULL);
    late_relay_deliver_if_open(relay);
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL, "", "/holdfast/x/after")); /* what came before it is done */
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/x"));
    CHECK_STR("", raw->text);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

static void do_x(hf_client *client)
{
    hf_options options = with_ttl(60000);
    options.once_per_ms = 3600000;
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, "x", &options), NULL), NULL);
}

static void forget_x(void *relay)
{
    hf_forget_done(open_behind(relay, relay), "x", NULL);
}

/* Whoever asked for it has died before it arrives, and does not connect again; the work was done anew meanwhile. */
TEST_LIMIT(a_forget_that_comes_late_takes_nothing_back, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client *client = open_client();
    do_x(client);
    late_relay_catch(relay, "/holdfast/.done/x", 2); /* the first one reads */
    const pid_t helper = helper_start(forget_x, relay);
    late_relay_await(relay);
    helper_kill(helper);
    CHECK_STATUS(HF_OK, hf_forget_done(client, "x", NULL), NULL);
    do_x(client);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/x"));
    const int64_t written = raw->stat.mzxid;
    late_relay_deliver(relay);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/.done/x"));
    CHECK_INT(written, raw->stat.mzxid);
    CHECK(strlen(raw->text) > 0);
    hf_close(client);
    raw_close(raw);
}
