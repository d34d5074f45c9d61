/* SPDX-License-Identifier: MIT
 *
 * test_redis_failover.c: the master behind Sentinels is replaced in the middle of an acquire, a wait, a renewal, a
 * release; and again and again under load.
 */
#include "group_support.h"

#include <string.h>

#define NAME "the-lock"

static struct redis_group *sentinels(void)
{
    struct redis_group *group = redis_sentinel_start(NULL);
    use_url(group->url);
    return group;
}

static void await_known_everywhere(struct redis_group *group, const char *name)
{
    for (int i = 0; i < group->count; i++)
        await_known(group->server[i], name);
}

static void await_queue_everywhere(struct redis_group *group, const char *name, int64_t count)
{
    for (int i = 0; i < group->count; i++)
        await_queue(group->server[i], name, count);
}

enum fall { DIES, STANDS_STILL, STEPS_DOWN };

static void let_fall(struct redis_group *group, struct redis_server *master, enum fall fall)
{
    if (fall == DIES)
        redis_server_kill(master);
    else if (fall == STANDS_STILL)
        redis_server_pause(master);
    else
        redis_sentinel_failover(group);
}

/* ------------------------------------------------------------------------------------------------- in the middle of */

/* The call begins while there is no master, and does not end before there is one. */
static void acquire_during(enum fall fall)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client();
    struct redis_server *old = redis_sentinel_master(group);
    check_usable(client, NAME);
    let_fall(group, old, fall);
    struct held *held = hold(client, NAME, LONG_TTL_MS); /* which is also how long it bears with that */
    struct redis_server *new = redis_sentinel_await_change(group, old);
    check_held_at(new, held);
    held_finish(held, HF_OK);
    hf_close(client);
}

TEST_LIMIT(an_acquire_that_begins_when_the_master_has_died_ends_at_the_new_one, 60)
{
    acquire_during(DIES);
}

TEST_LIMIT(an_acquire_that_begins_when_the_master_stands_still_ends_at_the_new_one, 60)
{
    acquire_during(STANDS_STILL);
}

/* Until some waiter can be told there: one that cannot is taken for dead, and loses its place. A holder that listens
 * for breaks does so on a channel of another name. */
static void await_listener(struct redis_server *server)
{
    bool found = false;
    while (!found) {
        redisReply *reply = redis_server_command(server, "PUBSUB CHANNELS hf:c:*");
        REQUIRE(reply->type == REDIS_REPLY_ARRAY);
        for (size_t i = 0; i < reply->elements; i++)
            found = found || strcmp(reply->element[i]->str + reply->element[i]->len - 2, ":b") != 0;
        freeReplyObject(reply);
        await_a_moment();
    }
}

/* The holder's client notices and renews; the waiter's client holds nothing, and must notice as well. Nobody has told
 * its time-to-live to be short: a waiter that slept until the holder's time is over would fail the test. */
static void wait_during(enum fall fall)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, endless_ttl_ms());
    struct redis_server *old = redis_sentinel_master(group);
    struct waiter waiters[2];
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], other, NAME, NULL);
        await_queue_everywhere(group, NAME, i + 1);
    }
    let_fall(group, old, fall);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    await_renewal(held);
    await_listener(new);
    held_finish(held, HF_OK);
    for (int i = 0; i < 2; i++) {
        waiter_join(&waiters[i], HF_OK); /* in the order in which they came */
        CHECK_INT(waiters[i].token, redis_server_number(new, "HGET hf:{%s} t", NAME));
        must_release(waiters[i].lock);
    }
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(waiters_get_the_lock_in_order_at_the_new_master_when_the_old_one_died, 60)
{
    wait_during(DIES);
}

TEST_LIMIT(waiters_get_the_lock_in_order_at_the_new_master_when_the_old_one_stands_still, 60)
{
    wait_during(STANDS_STILL);
}

TEST_LIMIT(waiters_get_the_lock_in_order_at_the_new_master_when_the_old_one_stepped_down, 60)
{
    wait_during(STEPS_DOWN);
}

/* The new master has never heard of the lock: neither of its holder, who learns it, nor of the waiter, who gets it. */
TEST_LIMIT(a_waiter_that_the_new_master_does_not_know_gets_the_lock_there, 29)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *other = open_client();
    struct redis_server *old = redis_sentinel_master(group);
    struct waiter waiter;
    refuse_replicas(old);
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(old, NAME, 1);
    redis_server_kill(old);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    await_prompt_loss(held);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > hf_token(held->lock));
    held_finish(held, HF_LOST);
    CHECK_INT(waiter.token, redis_server_number(new, "HGET hf:{%s} t", NAME));
    must_release(waiter.lock);
    hf_close(other);
    hf_close(client);
}

/* A release that could not be delivered is finished at the new master: nobody waits for the end of a lease. */
static void release_during(enum fall fall)
{
    struct redis_group *group = sentinels();
    const hf_client_options hasty = { .size = sizeof hasty, .timeout_ms = test_ms(500), .handoff_ms = -1 };
    hf_client *client = NULL, *other = open_client();
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, group->url, &hasty, &err), &err);
    struct held *held = hold(client, NAME, endless_ttl_ms());
    struct redis_server *old = redis_sentinel_master(group);
    struct waiter waiter;
    waiter_start(&waiter, other, NAME, NULL);
    await_queue_everywhere(group, NAME, 1);
    let_fall(group, old, fall);
    const hf_status status = hf_release(held->lock, &err);
    CHECK(status == HF_UNAVAILABLE || status == HF_UNKNOWN);
    CHECK_INT(0, gate_count(&held->loss.told));
    waiter_join(&waiter, HF_OK);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    CHECK_INT(waiter.token, redis_server_number(new, "HGET hf:{%s} t", NAME));
    must_release(waiter.lock);
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(a_release_that_the_dead_master_did_not_get_is_finished_at_the_new_one, 60)
{
    release_during(DIES);
}

TEST_LIMIT(a_release_that_a_silent_master_did_not_answer_is_finished_at_the_new_one, 60)
{
    release_during(STANDS_STILL);
}

TEST_LIMIT(a_renewal_by_hand_fails_without_a_master_and_works_with_the_new_one, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = must_acquire(client, NAME, &options);
    await_known_everywhere(group, NAME);
    struct redis_server *old = redis_sentinel_master(group);
    redis_server_kill(old);
    const hf_status status = hf_renew(lock, 0, &err);
    CHECK(status == HF_UNAVAILABLE || status == HF_UNKNOWN);
    CHECK(hf_remaining_ms(lock) > 0); /* which does not mean that it is lost */
    struct redis_server *new = redis_sentinel_await_change(group, old);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK(server_has_owner(new, NAME));
    must_release(lock);
    hf_close(client);
}

/* Messages travel to replicas as well. A waiter that still listens to a master of yesterday hears of a gift, though the
 * new master has heard nobody listen and given the lock to the next: and so may that one. */
TEST_LIMIT(a_gift_that_comes_by_way_of_a_demoted_master_is_not_believed, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *waiting[2] = { open_client(), open_client() };
    struct redis_server *old = group->server[0], *new = group->server[1];
    struct waiter waiters[2];
    hf_error err = { 0 };
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], waiting[i], NAME, NULL);
        await_queue_everywhere(group, NAME, i + 1);
    }
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_pause(group->sentinel[i]); /* nobody says a word about it */
    redis_server_do(new, "REPLICAOF NO ONE");
    redis_server_do(old, "REPLICAOF 127.0.0.1 %d", new->port);
    redis_server_do(new, "SET in-step 1");
    while (redis_server_number(old, "EXISTS in-step") == 0)
        pause_ms(2);
    hf_client *direct = open_url("%s", new->url);
    CHECK_STATUS(HF_OK, hf_break(direct, NAME, &err), &err); /* called in turn, and heard by nobody */
    check_usable(direct, "the-end");                         /* replicated after it */
    while (redis_server_number(old, "EXISTS hf:{the-end}") == 0)
        pause_ms(2);
    for (int i = 0; i < 2; i++)
        CHECK(!gate_await_for(&waiters[i].ended, 1, test_ms(200)));
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_continue(group->sentinel[i]);
    take_turns(waiters, 2, hf_token(held->lock));
    gate_await(&held->loss.told, 1);
    held_finish(held, HF_LOST);
    hf_close(direct);
    hf_close(waiting[0]);
    hf_close(waiting[1]);
    hf_close(client);
}

/* The same without anybody who says which server is the master. */
TEST_LIMIT(a_gift_that_a_replica_passes_on_is_not_believed, 60)
{
    struct redis_group *group = sentinels();
    struct redis_server *old = group->server[0], *new = group->server[1];
    hf_client *client = open_url("%s", old->url), *waiting = open_url("%s", old->url);
    struct waiter waiter;
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    options.owner = HF_OWNER_HANDLE;
    options.wait_ms = test_ms(3000);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, waiting, NAME, &options);
    await_queue_everywhere(group, NAME, 1);
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_pause(group->sentinel[i]);
    redis_server_do(new, "REPLICAOF NO ONE");
    redis_server_do(old, "REPLICAOF 127.0.0.1 %d", new->port);
    redis_server_do(new, "SET in-step 1");
    while (redis_server_number(old, "EXISTS in-step") == 0)
        pause_ms(2);
    hf_client *direct = open_url("%s", new->url);
    CHECK_STATUS(HF_OK, hf_break(direct, NAME, &err), &err); /* a gift that nobody hears at this server */
    hf_lock *theirs = must_acquire(direct, NAME, NULL);
    gate_await(&waiter.ended, 1);
    CHECK(waiter.status != HF_OK);
    pthread_join(waiter.thread, NULL);
    must_release(theirs);
    hf_release(lock, NULL);
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_continue(group->sentinel[i]);
    hf_close(direct);
    hf_close(waiting);
    hf_close(client);
}
