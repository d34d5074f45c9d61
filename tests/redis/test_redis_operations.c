/* SPDX-License-Identifier: MIT
 *
 * test_redis_operations.c: many operations on one server: those that wait in its queues have one thread that listens
 * for all of them, and there is always one that does; those that ask it need none, and one that never answers is no
 * reason to lose any.
 */
#include "redis_support.h"
#include "silent_relay.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

enum { MANY = 1000, FEW = 6 };

static int count_entries(const char *directory)
{
    int count = 0;
    DIR *folder = opendir(directory);
    REQUIRE(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static const char *name_of(int i)
{
    static _Thread_local char name[32];
    snprintf(name, sizeof name, "lock-%d", i);
    return name;
}

/* The locks are held, each is waited for by one operation, and all of those stand in their queues. */
static void hold_and_wait(struct redis_server *server, hf_client *holder, hf_client *client, int count, hf_lock **locks,
                          hf_op **ops)
{
    const hf_options options = with_ttl(endless_ttl_ms());
    for (int i = 0; i < count; i++) {
        locks[i] = must_acquire(holder, name_of(i), &options);
        REQUIRE_INT(HF_OK, hf_start_acquire(&ops[i], client, name_of(i), &options, NULL, NULL));
    }
    for (int i = 0; i < count; i++)
        await_queue(server, name_of(i), 1);
}

static void finish(hf_op *op)
{
    hf_event event;
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    CHECK_STATUS(HF_OK, event.status, &event.error);
    hf_op_free(op);
    must_release(event.lock);
}

static hf_op *start(hf_client *client, int i, const hf_options *options)
{
    hf_op *op = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_start_acquire(&op, client, name_of(i), options, NULL, &err), &err);
    return op;
}

TEST_LIMIT(a_thousand_locks_are_waited_for_by_few_threads, 120)
{
    static hf_lock *locks[MANY];
    static hf_op *ops[MANY];
    struct redis_server *server = serve("");
    hf_client *holder = open_client(), *client = open_client();
    finish(start(client, MANY, NULL)); /* the attendant is there, and a runner that stays */
    const int threads = count_entries("/proc/self/task"), descriptors = count_entries("/proc/self/fd");
    hold_and_wait(server, holder, client, MANY, locks, ops);
    /* The listener, and a keeper and a helper of each client. Those that ran the operations end when there is nothing
     * to do; and each has slept with a descriptor of its own, at most. */
    while (count_entries("/proc/self/task") > threads + 6)
        await_a_moment();
    CHECK(count_entries("/proc/self/fd") <= descriptors + 80);
    for (int i = 0; i < MANY; i++) {
        must_release(locks[i]);
        finish(ops[i]);
    }
    hf_close(client);
    hf_close(holder);
    redis_server_stop(server);
}

/* They wait for the connection to listen on, which one of them makes. */
TEST_LIMIT(a_push_connection_that_hangs_keeps_one_thread_and_no_more, 60)
{
    enum { WAITING = 100 };
    hf_lock *locks[WAITING];
    hf_op *ops[WAITING];
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *holder = open_client(), *client = NULL;
    const hf_options options = with_ttl(endless_ttl_ms());
    const hf_client_options patient = { .size = sizeof patient, .timeout_ms = 60000 };
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", relay->port);
    REQUIRE_INT(HF_OK, hf_open(&client, url, &patient, NULL));
    for (int i = 0; i < WAITING; i++)
        locks[i] = must_acquire(holder, name_of(i), &options);
    finish(start(client, WAITING, NULL));
    const int threads = count_entries("/proc/self/task");
    atomic_store(&relay->delay_new, true);
    for (int i = 0; i < WAITING; i++)
        ops[i] = start(client, i, &options);
    finish(start(client, WAITING, NULL)); /* so is all that was asked before it */
    while (atomic_load(&relay->delayed) == 0 || count_entries("/proc/self/task") > threads + FEW)
        await_a_moment();
    CHECK_INT(1, atomic_load(&relay->delayed));
    hf_op_free(ops[0]); /* which may be the one that makes it */
    atomic_store(&relay->delay_new, false);
    for (int i = 1; i < WAITING; i++)
        await_queue(server, name_of(i), 1);
    for (int i = 1; i < WAITING; i++) {
        must_release(locks[i]);
        finish(ops[i]);
    }
    must_release(locks[0]);
    check_becomes_free(holder, name_of(0));
    hf_close(client);
    hf_close(holder);
    relay_stop(relay);
}

/* Nobody is left waiting for what another one has given up, nor for one who was in a hurry. */
TEST_LIMIT(a_push_connection_that_cannot_be_made_keeps_nobody_from_the_lock, 60)
{
    hf_op *ops[2 * FEW];
    hf_lock *locks[2 * FEW];
    hf_event event;
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *holder = open_client(), *client = open_url("redis://127.0.0.1:%d?connect_timeout=200", relay->port);
    hf_options options = with_ttl(endless_ttl_ms());
    finish(start(client, 2 * FEW, NULL));
    atomic_store(&relay->delay_new, true);
    for (int i = 0; i < 2 * FEW; i++) {
        locks[i] = must_acquire(holder, name_of(i), NULL);
        options.wait_ms = i < FEW ? 100 : 0;
        ops[i] = start(client, i, &options);
    }
    for (int i = 0; i < FEW; i++) {
        while (!hf_op_wait(ops[i], 1000, &event, sizeof event))
            ;
        CHECK_STATUS(HF_TIMEOUT, event.status, &event.error);
        hf_op_free(ops[i]);
        must_release(locks[i]);
    }
    for (int i = FEW; i < 2 * FEW; i++) { /* they ask from time to time */
        must_release(locks[i]);
        finish(ops[i]);
    }
    hf_close(client);
    hf_close(holder);
    relay_stop(relay);
}

TEST_LIMIT(whoever_listens_for_all_may_be_cancelled, 60)
{
    hf_lock *locks[FEW];
    hf_op *ops[FEW];
    struct redis_server *server = serve("");
    hf_client *holder = open_client(), *client = open_client();
    hold_and_wait(server, holder, client, FEW, locks, ops);
    for (int i = 0; i < FEW; i += 2) {
        hf_op_free(ops[i]);
        must_release(locks[i + 1]);
        finish(ops[i + 1]);
        must_release(locks[i]);
        check_becomes_free(holder, name_of(i));
    }
    hf_close(client);
    hf_close(holder);
    redis_server_stop(server);
}

TEST_LIMIT(those_that_wait_without_a_thread_survive_the_loss_of_the_push_connection, 60)
{
    hf_lock *locks[FEW];
    hf_op *ops[FEW];
    struct redis_server *server = serve("");
    hf_client *holder = open_client(), *client = open_client();
    hold_and_wait(server, holder, client, FEW, locks, ops);
    redis_server_do(server, "CLIENT KILL TYPE pubsub");
    for (int i = 0; i < FEW; i++) {
        must_release(locks[i]);
        finish(ops[i]);
    }
    hf_close(client);
    hf_close(holder);
    redis_server_stop(server);
}

/* A thread waits beside them, which may be the one that listens. */
TEST_LIMIT(threads_and_operations_listen_for_each_other, 60)
{
    hf_lock *locks[FEW];
    hf_op *ops[FEW];
    struct waiter waiter;
    struct redis_server *server = serve("");
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *lock = must_acquire(holder, "thread", NULL);
    waiter_start(&waiter, client, "thread", NULL);
    await_queue(server, "thread", 1);
    hold_and_wait(server, holder, client, FEW, locks, ops);
    must_release(locks[0]);
    finish(ops[0]);
    must_release(lock);
    waiter_finish(&waiter);
    for (int i = 1; i < FEW; i++) {
        must_release(locks[i]);
        finish(ops[i]);
    }
    hf_close(client);
    hf_close(holder);
    redis_server_stop(server);
}

/* --- exchanges that no thread waits for --- */

/* The first one starts the threads that there are in any case. */
static void warm_up(hf_client *client)
{
    finish(start(client, 0, NULL));
}

TEST_LIMIT(a_thousand_exchanges_take_no_thread_and_no_connection_each, 60)
{
    static hf_op *ops[MANY];
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    hf_event event;
    warm_up(client);
    const int threads = count_entries("/proc/self/task"), descriptors = count_entries("/proc/self/fd");
    redis_server_pause(server); /* whoever starts one must not wait for it */
    for (int i = 0; i < MANY; i++)
        ops[i] = start(client, i, NULL);
    CHECK_INT(threads, count_entries("/proc/self/task"));
    CHECK_INT(descriptors, count_entries("/proc/self/fd"));
    redis_server_continue(server);
    for (int i = 0; i < MANY; i++) {
        while (!hf_op_wait(ops[i], 1000, &event, sizeof event))
            ;
        CHECK_STATUS(HF_OK, event.status, &event.error);
        hf_op_free(ops[i]);
        CHECK_INT(HF_OK, hf_start_release(NULL, event.lock, NULL, NULL)); /* nobody asks what becomes of it */
    }
    for (int i = 0; i < MANY; i++)
        check_becomes_free(client, name_of(i));
    hf_close(client);
}

TEST_LIMIT(what_is_granted_to_nobody_is_given_back, 60)
{
    hf_op *ops[FEW];
    hf_event event;
    struct redis_server *server = serve("");
    hf_client *client = open_client(), *other = open_client();
    const hf_options options = with_ttl(endless_ttl_ms());
    warm_up(client);
    redis_server_pause(server);
    for (int i = 0; i < FEW; i++)
        ops[i] = start(client, i, &options);
    for (int i = 0; i < FEW; i++) {
        if (i % 3 == 0)
            hf_op_cancel(ops[i]);
        else if (i % 3 == 1)
            CHECK_INT(HF_OK, hf_cancel(client, name_of(i)));
        if (i % 3 == 0 && CHECK_INT(1, hf_op_wait(ops[i], 0, &event, sizeof event))) /* at once */
            CHECK_STATUS(HF_CANCELED, event.status, &event.error);
        if (i % 3 != 1)
            hf_op_free(ops[i]);
    }
    redis_server_continue(server);
    for (int i = 1; i < FEW; i += 3) {
        while (!hf_op_wait(ops[i], 1000, &event, sizeof event))
            ;
        CHECK_STATUS(HF_CANCELED, event.status, &event.error);
        hf_op_free(ops[i]);
    }
    for (int i = 0; i < FEW; i++)
        check_becomes_free(other, name_of(i));
    hf_close(other);
    hf_close(client);
}

/* The same owner asks again, and what was sent before arrives after that, or never. */
TEST_LIMIT(an_acquire_whose_answer_is_lost_is_made_again, 60)
{
    struct redis_server *server = serve("");
    struct relay *relay = relay_start(server->port);
    hf_client *client = open_url("redis://127.0.0.1:%d?timeout=300", relay->port), *other = open_client();
    hf_op *ops[FEW];
    warm_up(client);
    atomic_store(&relay->swallow_all, true);
    while (atomic_load(&relay->swallow_all))
        await_a_moment();
    for (int i = 0; i < FEW; i++)
        ops[i] = start(client, i, NULL);
    for (int i = 0; i < FEW; i++)
        finish(ops[i]);
    warm_up(client);
    redis_server_pause(server);
    for (int i = 0; i < FEW; i++)
        ops[i] = start(client, i, NULL);
    pause_ms(400); /* they give up, and what they have sent is still to come */
    redis_server_continue(server);
    for (int i = 0; i < FEW; i++) {
        finish(ops[i]);
        check_becomes_free(other, name_of(i));
    }
    hf_close(other);
    hf_close(client);
    relay_stop(relay);
}

TEST_LIMIT(a_release_whose_answer_is_lost_is_made_again, 60)
{
    struct redis_server *server = serve("");
    hf_client *client = open_url("%s?timeout=300", server->url), *other = open_client();
    const hf_options options = with_ttl(endless_ttl_ms());
    hf_lock *locks[FEW];
    hf_event event;
    hf_op *op = NULL;
    warm_up(client);
    for (int i = 0; i < FEW; i++)
        locks[i] = must_acquire(client, name_of(i), &options);
    redis_server_pause(server);
    REQUIRE_INT(HF_OK, hf_start_release(&op, locks[0], NULL, NULL));
    for (int i = 1; i < FEW; i++)
        CHECK_INT(HF_OK, hf_start_release(NULL, locks[i], NULL, NULL));
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    CHECK_STATUS(HF_UNKNOWN, event.status, &event.error);
    hf_op_free(op);
    redis_server_continue(server);
    for (int i = 0; i < FEW; i++)
        check_becomes_free(other, name_of(i));
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(a_client_is_closed_with_exchanges_under_way, 60)
{
    struct redis_server *server = serve("");
    hf_client *client = open_url("%s?timeout=300", server->url), *other = open_client();
    hf_op *ops[FEW];
    hf_event event;
    const hf_options options = with_ttl(1000);
    warm_up(client);
    redis_server_pause(server);
    for (int i = 0; i < FEW; i++)
        ops[i] = start(client, i, &options);
    const pid_t child = fork();
    if (child == 0) { /* it has none of that, and leaves it alone */
        hf_op_cancel(ops[0]);
        hf_close(client);
        _exit(0);
    }
    helper_join(child);
    hf_close(client);
    for (int i = 0; i < FEW; i++) {
        CHECK_INT(1, hf_op_wait(ops[i], 0, &event, sizeof event));
        CHECK_STATUS(HF_CANCELED, event.status, &event.error);
        hf_op_free(ops[i]);
    }
    redis_server_continue(server);
    for (int i = 0; i < FEW; i++)
        check_becomes_free(other, name_of(i)); /* by its time at the latest: nobody is there to release it */
    hf_close(other);
}

struct chaos {
    hf_client *client;
    struct redis_server *server;
    _Atomic bool over;
};

static void operate(struct chaos *chaos, int i)
{
    hf_event event;
    hf_op *op = start(chaos->client, i, NULL);
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    CHECK_STATUS(HF_OK, event.status, &event.error);
    hf_op_free(op);
    if (event.lock)
        CHECK_INT(HF_OK, hf_start_release(NULL, event.lock, NULL, NULL));
}

/* Operations, threads that wait, and somebody who cuts their connection and has the server forget its scripts. */
static void take_part(void *arg, uint32_t index)
{
    struct chaos *chaos = arg;
    if (index == 0) {
        for (int i = 0; i < 40; i++) {
            redis_server_do(chaos->server, i % 2 ? "SCRIPT FLUSH" : "CLIENT KILL TYPE normal SKIPME yes");
            await_a_moment();
        }
        atomic_store(&chaos->over, true);
        return;
    }
    while (!atomic_load(&chaos->over)) {
        if (index % 2) {
            operate(chaos, (int)index / 4);
            continue;
        }
        hf_lock *lock = must_acquire(chaos->client, name_of((int)index / 4), NULL);
        hf_release(lock, NULL);
    }
}

TEST_LIMIT(connections_that_break_cost_no_operation, 60)
{
    struct chaos chaos = { .server = serve("") };
    chaos.client = open_client();
    run_threads(9, take_part, &chaos);
    for (int i = 0; i < 3; i++)
        check_becomes_free(chaos.client, name_of(i));
    hf_close(chaos.client);
}
