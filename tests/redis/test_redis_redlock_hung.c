/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_hung.c: one of three masters stands still or is down, and much is sent to it that it does not
 * answer, or that nobody waits for.
 */
#include "redlock_support.h"

/* More than a master may owe answers. */
enum { MORE_THAN_OWED = 4200 };

static const char *name_of(int i)
{
    static _Thread_local char name[32];
    snprintf(name, sizeof name, "lock-%d", i);
    return name;
}

TEST_LIMIT(no_release_is_refused_because_one_master_owes_too_much, 60)
{
    static hf_lock *locks[MORE_THAN_OWED];
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    const hf_options options = stranger(endless_ttl_ms());
    for (int i = 0; i < MORE_THAN_OWED; i++)
        locks[i] = must_acquire(client, name_of(i), &options);
    redis_server_pause(group->server[2]);
    for (int i = 0; i < MORE_THAN_OWED; i++)
        must_release(locks[i]);
    for (int i = 0; i < 2; i++)
        CHECK_INT(0, redis_server_number(group->server[i], "EXISTS %s", name_of(MORE_THAN_OWED - 1)));
    redis_server_continue(group->server[2]);
    hf_close(client);
}

/* Nobody reads what it says to that, as the others are faster; so nobody would ever send it the text. */
TEST(a_master_that_forgot_its_scripts_is_sent_their_text)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    const hf_options options = stranger(endless_ttl_ms());
    teach_masters(group, client);
    redis_server_do(group->server[2], "SCRIPT FLUSH");
    redis_server_pause(group->server[2]);
    must_release(must_acquire(client, "another", &options));
    redis_server_continue(group->server[2]);
    redis_server_number(group->server[2], "EXISTS %s", NAME); /* it has answered all of that */
    pause_ms(250); /* a connection that is idle for longer is looked at before it is used */
    redis_server_pause(group->server[2]);
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_continue(group->server[2]);
    await_votes(group, 3);
    must_release(lock);
    hf_close(client);
}

/* The one that was down is not waited for, and nobody else can say that the lock is gone from two of three. */
TEST(a_release_says_that_one_of_a_bare_majority_has_forgotten_the_lock)
{
    struct redis_group *group = start_masters(3, NULL);
    redis_server_kill(group->server[2]);
    hf_client *client = open_client();
    const hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_do(group->server[1], "FLUSHALL");
    hf_error err = { 0 };
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_INT(0, redis_server_number(group->server[0], "EXISTS %s", NAME));
    hf_close(client);
}
