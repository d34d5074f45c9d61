/* SPDX-License-Identifier: MIT
 *
 * test_redis_operations.c: many operations that wait in the queues of one server: one thread listens for all of them,
 * and there is always one that does.
 */
#include "redis_support.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>

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
    static char name[32];
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

TEST_LIMIT(a_thousand_locks_are_waited_for_by_few_threads, 120)
{
    static hf_lock *locks[MANY];
    static hf_op *ops[MANY];
    struct redis_server *server = serve("");
    hf_client *holder = open_client(), *client = open_client();
    const int threads = count_entries("/proc/self/task"), descriptors = count_entries("/proc/self/fd");
    hold_and_wait(server, holder, client, MANY, locks, ops);
    /* Those that asked end when there is nothing to do; and each has slept with a descriptor of its own, at most. */
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
