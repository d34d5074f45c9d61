/* SPDX-License-Identifier: MIT
 *
 * test_redlock_hosts.c: three masters that are known by names, one of which the resolver does not tell.
 */
#include "hosts.h"
#include "redlock_support.h"

#include <sys/socket.h>

static const char *const names[] = { "one.test", "two.test", "three.test" };

/* The masters of `group` by their names; all are found for now. */
static void name_masters(const struct redis_group *group)
{
    char url[300];
    snprintf(url, sizeof url, "redlock://%s:%d,%s:%d,%s:%d", names[0], group->server[0]->port, names[1],
             group->server[1]->port, names[2], group->server[2]->port);
    for (int i = 0; i < 3; i++)
        hosts_answer(names[i], "127.0.0.1");
    use_url(url);
}

/* Nobody waits for the master that is not found: not who opens, asks, waits or renews. */
static void work_without(int missing)
{
    struct redis_group *group = redis_masters_start(3, NULL);
    struct loss loss = { 0 };
    hf_options options = stranger(test_ms(4000));
    name_masters(group);
    hosts_hang(names[missing]);
    const int64_t start = test_now_ns();
    hf_client *client = open_client(), *other = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    hf_options waiting = stranger(0);
    hf_error err = { 0 };
    hf_lock *none = NULL;
    waiting.wait_ms = 200;
    CHECK(hf_acquire(&none, other, NAME, &waiting, &err) != HF_OK);
    CHECK(test_now_ns() - start < (int64_t)test_ms(8000) * 1000000);
    CHECK(!gate_await_for(&loss.told, 1, options.ttl_ms + options.ttl_ms / 4));
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    check_free(other, NAME);
    hf_close(other);
    hf_close(client);
    CHECK_INT(1, hosts_hanging());
}

TEST_LIMIT(the_first_master_is_not_found, 40)
{
    work_without(0);
}

TEST_LIMIT(the_last_master_is_not_found, 40)
{
    work_without(2);
}

/* Two of the names hang, and all connections end: the masters are where they were. */
TEST_LIMIT(a_lock_is_kept_where_the_masters_were, 40)
{
    struct redis_group *group = redis_masters_start(3, NULL);
    name_masters(group);
    struct held *held = hold_lock(group, test_ms(4000));
    for (int i = 0; i < 3; i++) {
        if (i)
            hosts_hang(names[i]);
        shut_connections(group->server[i]->port, SHUT_RDWR);
    }
    CHECK(!gate_await_for(&held->loss.told, 1, held->ttl_ms + held->ttl_ms / 4));
    finish(held, HF_OK);
}
