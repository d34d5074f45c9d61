/* SPDX-License-Identifier: MIT
 *
 * test_consul_traffic.c: how often the server is asked, and how many wake up, as counted in the server's own log.
 */
#include "consul_support.h"

#include <stdio.h>

#define REQUEST "Request finished"
#define LOGGED ", \"log_level\": \"debug\""

/* The server writes its log after it has answered. */
static int requests(struct consul_server *server, const char *what)
{
    int count = -1, again = consul_server_logged(server, REQUEST, what);
    while (count != again) {
        count = again;
        pause_ms(30);
        again = consul_server_logged(server, REQUEST, what);
    }
    return count;
}

TEST_LIMIT(a_pair_is_two_exchanges, 40)
{
    enum { PAIRS = 200 };
    struct consul_server *server = start_store(LOGGED);
    hf_client *client = open_client();
    must_release(must_acquire(client, "pair", NULL));
    const int before = requests(server, "method="), transactions = requests(server, "url=/v1/txn");
    for (int i = 0; i < PAIRS; i++)
        must_release(must_acquire(client, "pair", NULL));
    CHECK_INT(2 * PAIRS, requests(server, "url=/v1/txn") - transactions);
    /* The session was renewed now and then, whatever the number of pairs. */
    const int others = requests(server, "method=") - before - 2 * PAIRS;
    test_note("%d exchanges beside %d pairs", others, PAIRS);
    CHECK(others <= 10);
    hf_close(client);
}

TEST_LIMIT(many_locks_are_kept_by_one_session, 40)
{
    enum { LOCKS = 100 };
    struct consul_server *server = start_store(LOGGED);
    hf_client *client = open_client();
    hf_lock *locks[LOCKS];
    hf_options options = stranger(test_ms(2000));
    for (unsigned i = 0; i < LOCKS; i++)
        locks[i] = must_acquire(client, numbered_name("kept", i).text, &options);
    CHECK_INT(1, consul_server_sessions(server));
    const int renewals = requests(server, "url=/v1/session/renew"), transactions = requests(server, "url=/v1/txn");
    const int64_t begun_ns = test_now_ns();
    pause_ms(3 * options.ttl_ms);
    const int64_t lives = (test_now_ns() - begun_ns) / 1000000 / options.ttl_ms + 1;
    for (unsigned i = 0; i < LOCKS; i++)
        CHECK(hf_remaining_ms(locks[i]) > 0);
    const int renewed = requests(server, "url=/v1/session/renew") - renewals;
    const int looked = requests(server, "url=/v1/txn") - transactions;
    test_note("%d renewals and %d looks at %d locks in %d times-to-live", renewed, looked, LOCKS, (int)lives);
    CHECK(renewed > 0 && renewed <= 6 * lives);
    /* All of them are looked at each time that the core renews them, sixty in one exchange; and they do not fall due at
     * the very same time. */
    CHECK(looked > 0 && looked <= 16 * lives);
    for (unsigned i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    hf_close(client);
}

/* `count` clients wait; each release must wake one of them, which is one long poll that is answered. */
static void hand_over(struct consul_server *server, int count)
{
    hf_client *clients[33], *holder = open_client();
    struct waiter waiters[33];
    hf_lock *lock = must_acquire(holder, "queue", NULL);
    for (int i = 0; i < count; i++) {
        clients[i] = open_client();
        waiter_start(&waiters[i], clients[i], "queue", NULL);
        await_waiters(holder, "queue", i + 1);
    }
    const int polls = requests(server, ".holdfast") + requests(server, ".lock?index");
    for (int i = 0; i < count; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
        for (int later = i + 1; later < count; later++)
            CHECK_INT(0, gate_count(&waiters[later].ended));
    }
    const int answered = requests(server, ".holdfast") + requests(server, ".lock?index") - polls;
    test_note("%d waiters: %d long polls were answered", count, answered);
    CHECK_INT(count, answered);
    must_release(lock);
    for (int i = 0; i < count; i++)
        hf_close(clients[i]);
    hf_close(holder);
}

TEST_LIMIT(a_release_wakes_one_however_many_wait, 60)
{
    struct consul_server *server = start_store(LOGGED);
    hand_over(server, 3);
    hand_over(server, 32);
}

/* Threads of one client stand behind each other without asking the server at all. */
TEST_LIMIT(neighbours_of_one_client_need_no_long_poll, 40)
{
    enum { COUNT = 20 };
    struct consul_server *server = start_store(LOGGED);
    hf_client *holder = open_client(), *client = open_client();
    struct waiter waiters[COUNT];
    hf_lock *lock = must_acquire(holder, "queue", NULL);
    for (int i = 0; i < COUNT; i++) {
        waiter_start(&waiters[i], client, "queue", NULL);
        await_waiters(holder, "queue", i + 1);
    }
    const int transactions = requests(server, "url=/v1/txn");
    for (int i = 0; i < COUNT; i++) {
        must_release(lock);
        waiter_join(&waiters[i], HF_OK);
        lock = waiters[i].lock;
    }
    /* One to release and one to take, each. */
    CHECK_INT(2 * COUNT, requests(server, "url=/v1/txn") - transactions);
    CHECK_INT(1, requests(server, ".lock?index"));
    CHECK_INT(0, requests(server, "/v1/kv/holdfast/queue/.holdfast"));
    must_release(lock);
    hf_close(client);
    hf_close(holder);
}
