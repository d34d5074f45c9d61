/* SPDX-License-Identifier: MIT
 *
 * test_redis_cluster.c: redis+cluster:// on a real cluster of three masters and their replicas: slots that move while
 * locks in them are held and waited for, nodes that die, and what goes to which node.
 */
#include "group_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"
#define KEY "hf:{the-lock}"

static struct redis_group *cluster(void)
{
    struct redis_group *group = redis_cluster_start(NULL);
    use_url(group->url);
    return group;
}

static int slot_of(struct redis_group *group, const char *name)
{
    char key[600];
    snprintf(key, sizeof key, "hf:{%s}", name);
    return redis_cluster_slot(group, key);
}

static struct redis_server *owner_of(struct redis_group *group, const char *name)
{
    struct redis_server *owner = redis_cluster_owner(group, NULL, slot_of(group, name));
    REQUIRE(owner != NULL);
    return owner;
}

/* Another master than the one of the lock. */
static struct redis_server *elsewhere(struct redis_group *group, const char *name)
{
    return owner_of(group, name) == group->server[0] ? group->server[1] : group->server[0];
}

/* "lock-N", the first from `*number` on that is at `server`. */
static struct name name_at(struct redis_group *group, const struct redis_server *server, unsigned *number)
{
    struct name name;
    do
        snprintf(name.text, sizeof name.text, "lock-%u", (*number)++);
    while (owner_of(group, name.text) != server);
    return name;
}

static struct redis_server *replica_of(struct redis_group *group, const struct redis_server *master)
{
    for (int i = 0; i < REDIS_CLUSTER_MASTERS; i++)
        if (group->server[i] == master)
            return group->server[i + REDIS_CLUSTER_MASTERS];
    FAIL("this is no master");
    test_abort();
}

/* -------------------------------------------------------------------------------------------------- slots that move */

TEST_LIMIT(a_slot_that_moved_while_nobody_looked_is_followed, 40)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    const uint64_t token = hf_token(held->lock);
    struct redis_server *from = owner_of(group, NAME), *to = elsewhere(group, NAME);
    hf_error err = { 0 };
    redis_cluster_move(group, slot_of(group, NAME), to);
    CHECK_STATUS(HF_OK, hf_renew(held->lock, 0, &err), &err);
    check_held_at(to, held);
    held_finish(held, HF_OK);
    redis_cluster_move(group, slot_of(group, NAME), from);
    struct held *next = hold(client, NAME, LONG_TTL_MS);
    CHECK(hf_token(next->lock) > token);
    check_held_at(from, next);
    redis_cluster_move(group, slot_of(group, NAME), to);
    held_finish(next, HF_OK);
    CHECK(!server_has_owner(to, NAME));
    hf_close(client);
}

/* Its keys are at the one node already, and the slot still belongs to the other. */
TEST_LIMIT(a_held_lock_in_a_slot_on_its_way_is_renewed_and_stays_busy, 40)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, test_ms(1500));
    const int slot = slot_of(group, NAME);
    struct redis_server *to = elsewhere(group, NAME);
    hf_error err = { 0 };
    redis_cluster_move_begin(group, slot, to);
    held_mark(held);
    await_renewal(held); /* where it was */
    redis_cluster_move_keys(group, slot, to, INT32_MAX);
    held_mark(held);
    await_renewal(held); /* by ASK */
    await_renewal(held);
    CHECK_STATUS(HF_OK, hf_renew(held->lock, 0, &err), &err);
    redis_cluster_move_end(group, slot, to);
    await_renewal(held);
    check_held_at(to, held);
    check_busy(other, NAME);
    held_finish(held, HF_OK);
    check_usable(other, NAME);
    hf_close(other);
    hf_close(client);
}

/* The server cannot run what needs more than one key while a slot is on its way. A release and an acquire that come in
 * the middle are made good as soon as the slot has arrived, and nobody waits for the end of a lease. */
TEST_LIMIT(a_release_and_an_acquire_in_a_slot_on_its_way_are_done_when_it_has_arrived, 40)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, endless_ttl_ms());
    const int slot = slot_of(group, NAME);
    struct redis_server *to = elsewhere(group, NAME);
    struct waiter waiter;
    hf_error err = { 0 };
    redis_cluster_move_begin(group, slot, to);
    redis_cluster_move_keys(group, slot, to, INT32_MAX);
    waiter_start(&waiter, other, NAME, NULL);
    const hf_status status = hf_release(held->lock, &err);
    if (status != HF_OK && status != HF_UNAVAILABLE)
        FAIL("the release: %s: %s", hf_status_name(status), err.message);
    CHECK(!gate_await_for(&waiter.ended, 1, test_ms(300)) || waiter.status == HF_OK);
    redis_cluster_move_end(group, slot, to);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(waiter.token, redis_server_number(to, "HGET " KEY " t"));
    must_release(waiter.lock);
    hf_close(other);
    hf_close(client);
}

/* The lock's own key is at the one node, its queue at the other (TRYAGAIN). */
TEST_LIMIT(a_lock_that_is_torn_from_its_queue_is_kept_and_handed_on_in_order, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, test_ms(1500));
    const int slot = slot_of(group, NAME);
    struct redis_server *from = owner_of(group, NAME), *to = elsewhere(group, NAME);
    struct waiter waiters[3];
    for (int i = 0; i < 2; i++) {
        waiter_start(&waiters[i], other, NAME, NULL);
        await_queue(from, NAME, i + 1);
    }
    redis_cluster_move_begin(group, slot, to);
    CHECK_INT(1, redis_cluster_move_keys(group, slot, to, 1));
    waiter_start(&waiters[2], other, NAME, NULL);
    held_mark(held);
    await_renewal(held);
    await_renewal(held);
    CHECK_INT(0, gate_count(&waiters[2].ended));
    redis_cluster_move_keys(group, slot, to, INT32_MAX);
    redis_cluster_move_end(group, slot, to);
    await_queue(to, NAME, 3);
    held_finish(held, HF_OK);
    for (int i = 0; i < 3; i++) {
        waiter_finish(&waiters[i]);
    }
    hf_close(other);
    hf_close(client);
}

/* Where publishing is sharded, waiters are told that the slot has moved, and listen at the new node before they are
 * needed. Without, a message reaches them from everywhere, but the node does not know and calls one after the other. */
static void reshard_with_waiters(struct redis_group *group, bool in_order)
{
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, endless_ttl_ms());
    struct redis_server *from = owner_of(group, NAME), *to = elsewhere(group, NAME);
    struct waiter waiters[3];
    uint64_t last = hf_token(held->lock);
    for (int i = 0; i < 3; i++) {
        waiter_start(&waiters[i], i == 1 ? client : other, NAME, NULL);
        await_queue(from, NAME, i + 1);
    }
    redis_cluster_move(group, slot_of(group, NAME), to);
    CHECK_INT(3, server_waiters(to, NAME));
    check_held_at(to, held);
    held_finish(held, HF_OK);
    for (int i = 0; i < 3 && in_order; i++) {
        waiter_join(&waiters[i], HF_OK);
        CHECK(waiters[i].token > last);
        last = waiters[i].token;
        must_release(waiters[i].lock);
    }
    if (!in_order)
        take_turns(waiters, 3, last);
    CHECK(!server_has_owner(to, NAME));
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(resharding_a_held_lock_loses_nothing_and_its_waiters_get_it_in_order, 40)
{
    reshard_with_waiters(cluster(), true);
}

TEST_LIMIT(resharding_loses_nothing_without_sharded_publish_either, 40)
{
    struct redis_group *group = redis_cluster_start(&(struct redis_group_options){ .no_sharded_publish = true });
    use_url(group->url);
    reshard_with_waiters(group, false);
}

/* --------------------------------------------------------------------------------------------------- nodes that die */

/* Kept by the replica, and by the other nodes; whoever waits for it gets it from the replica. */
TEST_LIMIT(a_held_lock_is_kept_when_the_replica_of_a_dead_node_takes_its_place, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, MEDIUM_TTL_MS);
    const int slot = slot_of(group, NAME);
    struct redis_server *old = owner_of(group, NAME), *replica = replica_of(group, old);
    struct waiter waiter;
    waiter_start(&waiter, other, NAME, NULL);
    redis_server_do(replica, "READONLY");
    await_known(replica, NAME);
    await_queue(replica, NAME, 1);
    redis_server_kill(old);
    CHECK(redis_cluster_await_change(group, old, slot) == replica);
    held_mark(held);
    await_renewal(held);
    check_held_at(replica, held);
    held_finish(held, HF_OK);
    waiter_finish(&waiter);
    redis_server_restart(old, true, "");
    redis_cluster_await_settled(group);
    check_usable(other, NAME);
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(a_lock_that_the_replica_of_a_dead_node_does_not_know_is_lost_before_its_time, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct redis_server *old = owner_of(group, NAME), *replica = replica_of(group, old);
    refuse_replicas(old);
    struct held *held = hold(client, NAME, MEDIUM_TTL_MS);
    redis_server_kill(old);
    CHECK(redis_cluster_await_change(group, old, slot_of(group, NAME)) == replica);
    gate_await(&held->loss.told, 1);
    CHECK(atomic_load(&held->loss.told_ns) < held->asked_ns + held->ttl_ms * 1000000LL * 9 / 10);
    struct held *next = hold(other, NAME, 0);
    CHECK(hf_token(next->lock) > hf_token(held->lock));
    held_finish(held, HF_LOST);
    check_held_at(replica, next);
    held_finish(next, HF_OK);
    hf_close(other);
    hf_close(client);
}

/* The locks of all nodes are renewed together; the others must not have to wait until that of one has failed. */
TEST_LIMIT(a_node_that_stands_still_costs_no_lock_at_another_node, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client();
    struct held *held[9];
    struct name names[9];
    unsigned number = 0;
    for (int i = 0; i < 9; i++) {
        names[i] = name_at(group, group->server[i % 3], &number);
        held[i] = hold(client, names[i].text, test_ms(4000));
    }
    for (int i = 0; i < group->count; i++) /* so that nobody takes its place */
        redis_server_do(group->server[i], "CONFIG SET cluster-node-timeout 60000");
    redis_server_pause(group->server[0]);
    for (int i = 0; i < 9; i++)
        held_mark(held[i]);
    for (int i = 0; i < 9; i += 3)
        gate_await(&held[i]->loss.told, 1);
    redis_server_continue(group->server[0]);
    for (int i = 0; i < 9; i++) {
        if (i % 3 != 0)
            await_renewal(held[i]);
        held_finish(held[i], i % 3 == 0 ? HF_LOST : HF_OK);
    }
    check_usable(client, names[0].text);
    hf_close(client);
}

/* Nor one that is taken while the renewal of those at the node hangs. */
TEST_LIMIT(a_lock_taken_while_a_renewal_hangs_is_renewed, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client();
    const uint32_t long_ms = test_ms(9000);
    unsigned number = 0;
    const struct name there = name_at(group, group->server[0], &number);
    const struct name here = name_at(group, group->server[1], &number);
    for (int i = 0; i < group->count; i++) /* so that nobody takes its place */
        redis_server_do(group->server[i], "CONFIG SET cluster-node-timeout 60000");
    struct held *hung = hold(client, there.text, long_ms);
    redis_server_pause(group->server[0]);
    while (hf_remaining_ms(hung->lock) > long_ms * 2 / 3 - 200) /* by then the renewal is under way */
        pause_ms(10);
    struct held *held = hold(client, here.text, test_ms(900));
    for (int i = 0; i < 3; i++) {
        held_mark(held);
        await_renewal(held);
    }
    CHECK(hf_remaining_ms(hung->lock) > 0);
    redis_server_continue(group->server[0]);
    await_renewal(hung);
    held_finish(held, HF_OK);
    held_finish(hung, HF_OK);
    hf_close(client);
}

TEST_LIMIT(a_cluster_that_has_lost_its_majority_refuses_in_words_and_held_locks_end_in_time, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client();
    struct redis_server *left = group->server[2];
    unsigned number = 0;
    const struct name name = name_at(group, left, &number), next = name_at(group, left, &number);
    struct held *held = hold(client, name.text, test_ms(5000));
    for (int i = 0; i < group->count; i++)
        if (group->server[i] != left && i != 5) /* two masters, and their replicas */
            redis_server_kill(group->server[i]);
    redisReply *reply;
    while ((reply = redis_server_command(left, "CLUSTER INFO")) && !strstr(reply->str, "cluster_state:fail")) {
        freeReplyObject(reply);
        pause_ms(10);
    }
    freeReplyObject(reply);
    refuse_lock(client, next.text, HF_UNAVAILABLE, "the cluster is down");
    gate_await(&held->loss.told, 1);
    held_finish(held, HF_LOST);
    for (int i = 0; i < group->count; i++)
        if (!redis_server_runs(group->server[i]))
            redis_server_restart(group->server[i], true, "");
    redis_cluster_await_settled(group);
    check_usable(client, next.text);
    check_usable(client, name.text);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------ what goes to which node */

TEST_LIMIT(a_tag_of_the_users_own_puts_locks_into_one_slot, 40)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client();
    const int slot = redis_cluster_slot(group, "{orders}");
    static const char *const names[3] = { "a{orders}", "{orders}b", "c{orders}d" };
    struct held *held[3];
    for (int i = 0; i < 3; i++)
        held[i] = hold(client, names[i], 0);
    CHECK_INT(3, redis_server_number(redis_cluster_owner(group, NULL, slot), "CLUSTER COUNTKEYSINSLOT %d", slot));
    for (int i = 0; i < 3; i++) {
        check_busy(client, names[i]);
        held_finish(held[i], HF_OK);
    }
    hf_close(client);
}

static int64_t reads_of(struct redis_server *server)
{
    char info[8000];
    redis_server_text(server, info, sizeof info, "INFO stats");
    const char *found = strstr(info, "total_reads_processed:");
    REQUIRE(found != NULL);
    return strtoll(strchr(found, ':') + 1, NULL, 10);
}

#define MANY 200

/* 200 locks, renewed in batches of at most 128: a few reads at each server, where one for each lock would be 66. */
TEST_LIMIT(the_renewals_of_200_locks_go_out_in_one_write_for_each_node_and_batch, 60)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client();
    struct held *held[MANY];
    struct name names[MANY] = { { { 0 } } };
    int64_t sent[3], reads[3];
    for (unsigned i = 0; i < MANY; i++) {
        snprintf(names[i].text, sizeof names[i].text, "lock-%u", i);
        held[i] = hold(client, names[i].text, test_ms(10000));
    }
    for (int i = 0; i < 3; i++) {
        sent[i] = redis_server_sent(group->server[i]);
        reads[i] = reads_of(group->server[i]);
    }
    for (int i = 0; i < MANY; i++)
        await_renewal(held[i]);
    for (int i = 0; i < 3; i++) {
        sent[i] = redis_server_sent(group->server[i]) - sent[i];
        reads[i] = reads_of(group->server[i]) - reads[i];
        test_note("node %d: %d commands, %d reads", i, (int)sent[i], (int)reads[i]);
        /* The replica, and this test, send something as well; a large write may take two reads. */
        CHECK(reads[i] <= 30);
    }
    CHECK(sent[0] + sent[1] + sent[2] >= MANY && sent[0] + sent[1] + sent[2] < 2 * MANY);
    for (int i = 0; i < MANY; i++)
        held_finish(held[i], HF_OK);
    hf_close(client);
}

/* Waiters at three nodes: each is subscribed at its own, and no message leaves its shard. */
TEST_LIMIT(waiters_hear_from_their_own_node_alone, 40)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct held *held[3];
    struct name names[3];
    struct waiter waiters[3];
    unsigned number = 0;
    for (int i = 0; i < 3; i++) {
        names[i] = name_at(group, group->server[i], &number);
        held[i] = hold(client, names[i].text, endless_ttl_ms());
        waiter_start(&waiters[i], other, names[i].text, NULL);
        await_queue(group->server[i], names[i].text, 1);
    }
    for (int i = 0; i < 3; i++) {
        redisReply *reply = redis_server_command(group->server[i], "PUBSUB SHARDCHANNELS");
        CHECK_INT(1, reply->elements);
        freeReplyObject(reply);
        held_finish(held[i], HF_OK);
        waiter_finish(&waiters[i]);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(1, redis_server_calls(group->server[i], "spublish"));
        CHECK_INT(0, redis_server_calls(group->server[i], "publish"));
        char info[4000];
        redis_server_text(group->server[i], info, sizeof info, "CLUSTER INFO");
        CHECK(!strstr(info, "cluster_stats_messages_publish_sent"));
    }
    hf_close(other);
    hf_close(client);
}

static int count_locks(const hf_info *info, void *arg)
{
    int *count = arg;
    CHECK(info->remaining_ms > 0 && info->token > 0);
    ++*count;
    return 0;
}

TEST_LIMIT(the_locks_of_all_nodes_are_listed_and_can_be_broken, 40)
{
    struct redis_group *group = cluster();
    hf_client *client = open_client(), *other = open_client();
    struct held *held[6];
    struct name names[6];
    unsigned number = 0;
    int count = 0;
    hf_error err = { 0 };
    for (int i = 0; i < 6; i++) {
        names[i] = name_at(group, group->server[i % 3], &number);
        held[i] = hold(client, names[i].text, test_ms(3000));
    }
    CHECK_STATUS(HF_OK, hf_inspect(other, "lock-", count_locks, &count, &err), &err);
    CHECK_INT(6, count);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(HF_OK, hf_break(other, names[i].text, &err), &err);
        gate_await(&held[i]->loss.told, 1);
    }
    count = 0;
    CHECK_STATUS(HF_OK, hf_inspect(other, NULL, count_locks, &count, &err), &err);
    CHECK_INT(3, count);
    for (int i = 0; i < 6; i++)
        held_finish(held[i], i < 3 ? HF_LOST : HF_OK);
    hf_close(other);
    hf_close(client);
}
