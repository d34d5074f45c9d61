/* SPDX-License-Identifier: MIT
 *
 * test_redis_partition.c: networks that are cut without a word between clients, Sentinels and servers, and healed
 * again. The party on the one side holds a lock; the other side wants it.
 */
#include "group_support.h"

#include <stdio.h>
#include <string.h>

#define NAME "the-lock"
#define OTHER "another-lock"

/* What a client on some host does, and what it saw; in shared memory. */
struct party {
    char url[450];
    uint32_t ttl_ms;
    struct gate held, told, ask, answered, healed, leave;
    _Atomic int64_t held_ns, told_ns;
    _Atomic uint64_t token;
    _Atomic int answer;
    char words[240];
};

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct party *party = arg;
    (void)lock;
    (void)why;
    atomic_store(&party->told_ns, test_now_ns());
    gate_pass(&party->told);
}

static hf_lock *take(struct party *party, hf_client *client)
{
    hf_options options = stranger(party->ttl_ms);
    options.on_lost = note_loss;
    options.arg = party;
    hf_lock *lock = must_acquire(client, NAME, &options);
    atomic_store(&party->held_ns, test_now_ns());
    atomic_store(&party->token, hf_token(lock));
    gate_pass(&party->held);
    return lock;
}

/* Holds until told that it is lost; asks for another lock when it is told to; and once more when all is well. */
static void hold_and_lose(void *arg)
{
    struct party *party = arg;
    hf_error err = { 0 };
    hf_client *client = open_url("%s", party->url);
    hf_lock *lock = take(party, client), *other = NULL;
    gate_await(&party->ask, 1);
    atomic_store(&party->answer, hf_try_acquire(&other, client, OTHER, NULL, &err));
    snprintf(party->words, sizeof party->words, "%s", err.message);
    hf_release(other, NULL);
    gate_pass(&party->answered);
    gate_await(&party->told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    gate_await(&party->healed, 1);
    check_usable(client, OTHER);
    check_usable(client, NAME);
    hf_close(client);
}

/* Waits for the lock and keeps it for as long as it is asked to. */
static void wait_and_hold(void *arg)
{
    struct party *party = arg;
    hf_error err = { 0 };
    hf_client *client = open_url("%s", party->url);
    hf_lock *lock = take(party, client);
    gate_await(&party->leave, 1);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    CHECK_INT(0, gate_count(&party->told));
    hf_close(client);
}

static struct party *party_new(const struct redis_group *group, const char *options, uint32_t ttl_ms)
{
    struct party *party = shared_new(sizeof *party);
    snprintf(party->url, sizeof party->url, "%s%s", group->url, options);
    party->ttl_ms = ttl_ms;
    return party;
}

struct network {
    struct netns *places[REDIS_GROUP_MOST];
    struct netns *left, *right; /* of the two parties */
    struct redis_group *group;
};

static struct network network_new(int servers, struct redis_group *(*start)(const struct redis_group_options *))
{
    struct network network = { .group = NULL };
    for (int i = 0; i < servers; i++)
        network.places[i] = netns_new();
    network.left = netns_new();
    network.right = netns_new();
    network.group = start(&(struct redis_group_options){ .places = network.places });
    return network;
}

/* The one who was cut off knew of its loss before the other got the lock; tokens tell which is the later. */
static void check_handed_on(const struct party *loser, const struct party *winner)
{
    CHECK(atomic_load(&loser->told_ns) <= atomic_load(&winner->held_ns));
    CHECK(atomic_load(&loser->token) < atomic_load(&winner->token));
}

/* -------------------------------------------------------------------------------------------------------- Sentinels */

/* The old master goes on serving whoever is with it, but nothing that it grants or renews reaches a replica. */
TEST_LIMIT(with_replicas_a_holder_cut_off_together_with_the_old_master_loses_its_lock_before_another_gets_it, 60)
{
    struct network network = network_new(REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS, redis_sentinel_start);
    const char *const options = "?replicas=1&replica_timeout=200";
    struct party *loser = party_new(network.group, options, test_ms(4000));
    struct party *winner = party_new(network.group, options, test_ms(20000));
    struct redis_server *old = network.group->server[0];
    const pid_t left = netns_helper_start(network.left, hold_and_lose, loser);
    gate_await(&loser->held, 1);
    const pid_t right = netns_helper_start(network.right, wait_and_hold, winner);
    await_queue(old, NAME, 1);
    netns_move(network.places[0], 1);
    netns_move(network.left, 1);
    gate_pass(&loser->ask);
    gate_await(&loser->answered, 1);
    CHECK_INT(HF_UNAVAILABLE, atomic_load(&loser->answer));
    test_note("on the side of the old master: %s", loser->words);
    struct redis_server *new = redis_sentinel_await_change(network.group, old);
    gate_await(&winner->held, 1);
    gate_await(&loser->told, 1);
    check_handed_on(loser, winner);
    CHECK_INT(atomic_load(&winner->token), redis_server_number(new, "HGET hf:{" NAME "} t"));
    netns_heal(network.places[0]);
    netns_heal(network.left);
    CHECK(redis_sentinel_await_settled(network.group) == new);
    CHECK_INT(atomic_load(&winner->token), redis_server_number(new, "HGET hf:{" NAME "} t"));
    gate_pass(&winner->leave);
    helper_join(right);
    gate_pass(&loser->healed);
    helper_join(left);
}

/* So many replicas confirm on the side of the old master that its renewals count, and one is left to be promoted: only
 * `replicas=` with the number of all of them keeps the two sides apart. The first replica goes with the old master. */
static struct network divide_replicas(const char *options, struct party **left, struct party **right, pid_t *holder)
{
    struct network network = network_new(REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS, redis_sentinel_start);
    *left = party_new(network.group, options, test_ms(4000));
    *right = party_new(network.group, "", test_ms(20000)); /* too few are left to confirm anything */
    *holder = netns_helper_start(network.left, hold_and_lose, *left);
    gate_await(&(*left)->held, 1);
    for (int i = 1; i < REDIS_GROUP_SERVERS; i++)
        await_known(network.group->server[i], NAME);
    netns_move(network.places[0], 1);
    netns_move(network.places[1], 1);
    netns_move(network.left, 1);
    return network;
}

/* The only one that is left is the master, and all Sentinels say so. */
static void await_promoted(const struct redis_group *group, const struct redis_server *server)
{
    for (int i = 0; i < group->sentinel_count; i++) {
        bool said = false;
        while (!said) {
            await_a_moment();
            redisReply *reply =
                redis_server_command(group->sentinel[i], "SENTINEL GET-MASTER-ADDR-BY-NAME %s", REDIS_GROUP_NAME);
            said = reply->type == REDIS_REPLY_ARRAY && strcmp(reply->element[0]->str, server->address) == 0;
            freeReplyObject(reply);
        }
    }
}

static void join_sides(const struct network *network, struct party *left, struct party *right, pid_t holder,
                       pid_t other)
{
    netns_heal(network->places[0]);
    netns_heal(network->places[1]);
    netns_heal(network->left);
    gate_await(&left->told, 1);
    gate_pass(&left->ask);
    redis_sentinel_await_settled(network->group);
    gate_pass(&right->leave);
    helper_join(other);
    gate_pass(&left->healed);
    helper_join(holder);
}

TEST_LIMIT(with_fewer_replicas_than_there_are_both_sides_of_a_cut_can_hold_the_lock, 60)
{
    struct party *left, *right;
    pid_t holder;
    struct network network = divide_replicas("?replicas=1&replica_timeout=200", &left, &right, &holder);
    await_promoted(network.group, network.group->server[2]);
    const pid_t other = netns_helper_start(network.right, wait_and_hold, right);
    gate_await(&right->held, 1);
    CHECK_INT(0, gate_count(&left->told)); /* its renewals are confirmed */
    CHECK(atomic_load(&left->token) < atomic_load(&right->token));
    join_sides(&network, left, right, holder, other);
}

TEST_LIMIT(with_all_replicas_a_holder_cut_off_with_some_of_them_loses_its_lock_before_another_gets_it, 60)
{
    struct party *left, *right;
    pid_t holder;
    struct network network = divide_replicas("?replicas=2&replica_timeout=200", &left, &right, &holder);
    await_promoted(network.group, network.group->server[2]);
    const pid_t other = netns_helper_start(network.right, wait_and_hold, right);
    gate_await(&right->held, 1);
    gate_await(&left->told, 1);
    check_handed_on(left, right);
    join_sides(&network, left, right, holder, other);
}

/* Nothing can be done about this one but to ask for replicas: each side has a master of its own. The tokens tell who is
 * late, and the loss is told when the network is whole again. */
TEST_LIMIT(without_replicas_both_sides_of_a_cut_can_hold_the_lock_and_only_tokens_tell_who_is_late, 60)
{
    struct network network = network_new(REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS, redis_sentinel_start);
    struct party *loser = party_new(network.group, "", test_ms(2000));
    struct party *winner = party_new(network.group, "", test_ms(20000));
    struct redis_server *old = network.group->server[0];
    struct fenced_register place = { 0 };
    const pid_t left = netns_helper_start(network.left, hold_and_lose, loser);
    gate_await(&loser->held, 1);
    for (int i = 1; i < network.group->count; i++)
        await_known(network.group->server[i], NAME);
    netns_move(network.places[0], 1);
    netns_move(network.left, 1);
    CHECK(fenced_write(&place, atomic_load(&loser->token)));
    redis_sentinel_await_change(network.group, old);
    const pid_t right = netns_helper_start(network.right, wait_and_hold, winner);
    gate_await(&winner->held, 1);
    CHECK(atomic_load(&loser->token) < atomic_load(&winner->token));
    CHECK(fenced_write(&place, atomic_load(&winner->token)));
    CHECK_INT(0, gate_count(&loser->told)); /* it believes its own master */
    CHECK(!fenced_write(&place, atomic_load(&loser->token)));
    netns_heal(network.places[0]);
    netns_heal(network.left);
    gate_await(&loser->told, 1);
    gate_pass(&loser->ask);
    gate_pass(&winner->leave);
    helper_join(right);
    gate_pass(&loser->healed);
    helper_join(left);
}

TEST_LIMIT(a_holder_cut_off_from_everything_knows_its_loss_before_another_gets_the_lock, 60)
{
    struct network network = network_new(REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS, redis_sentinel_start);
    struct party *loser = party_new(network.group, "", test_ms(2000));
    struct party *winner = party_new(network.group, "", test_ms(20000));
    const pid_t left = netns_helper_start(network.left, hold_and_lose, loser);
    gate_await(&loser->held, 1);
    const pid_t right = netns_helper_start(network.right, wait_and_hold, winner);
    await_queue(network.group->server[0], NAME, 1);
    netns_cut(network.left);
    gate_await(&winner->held, 1);
    gate_await(&loser->told, 1);
    check_handed_on(loser, winner);
    netns_heal(network.left);
    gate_pass(&loser->ask);
    gate_await(&loser->answered, 1);
    gate_pass(&winner->leave);
    helper_join(right);
    gate_pass(&loser->healed);
    helper_join(left);
}

/* Those who are left are no majority: no new master is made, and what is held stays held. */
TEST_LIMIT(sentinels_that_are_cut_off_disturb_nobody, 60)
{
    struct network network = network_new(REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS, redis_sentinel_start);
    struct party *party = party_new(network.group, "", test_ms(1500));
    const pid_t right = netns_helper_start(network.right, wait_and_hold, party);
    gate_await(&party->held, 1);
    for (int i = 0; i < REDIS_GROUP_SENTINELS; i++)
        netns_cut(network.places[REDIS_GROUP_SERVERS + i]);
    CHECK(!gate_await_for(&party->told, 1, 2 * party->ttl_ms));
    for (int i = 0; i < REDIS_GROUP_SENTINELS; i++)
        netns_heal(network.places[REDIS_GROUP_SERVERS + i]);
    gate_pass(&party->leave);
    helper_join(right);
}

/* ---------------------------------------------------------------------------------------------------------- cluster */

TEST_LIMIT(a_holder_cut_off_with_a_minority_of_the_cluster_loses_its_lock_before_another_gets_it, 60)
{
    struct network network = network_new(REDIS_CLUSTER_NODES, redis_cluster_start);
    const char *const options = "?replicas=1&replica_timeout=200";
    struct party *loser = party_new(network.group, options, test_ms(3000));
    /* One replica is left behind: the majority can ask for none. */
    struct party *winner = party_new(network.group, "", test_ms(20000));
    const int slot = redis_cluster_slot(network.group, "hf:{" NAME "}");
    struct redis_server *old = redis_cluster_owner(network.group, NULL, slot);
    const pid_t left = netns_helper_start(network.left, hold_and_lose, loser);
    gate_await(&loser->held, 1);
    netns_move(old->place, 1);
    netns_move(network.left, 1);
    struct redis_server *new = redis_cluster_await_change(network.group, old, slot);
    gate_pass(&loser->ask);
    gate_await(&loser->answered, 1);
    CHECK_INT(HF_UNAVAILABLE, atomic_load(&loser->answer));
    test_note("on the side of the minority: %s", loser->words);
    const pid_t right = netns_helper_start(network.right, wait_and_hold, winner);
    gate_await(&winner->held, 1);
    gate_await(&loser->told, 1);
    check_handed_on(loser, winner);
    CHECK_INT(atomic_load(&winner->token), redis_server_number(new, "HGET hf:{" NAME "} t"));
    netns_heal(old->place);
    netns_heal(network.left);
    redis_cluster_await_settled(network.group);
    CHECK_INT(atomic_load(&winner->token), redis_server_number(new, "HGET hf:{" NAME "} t"));
    gate_pass(&winner->leave);
    helper_join(right);
    gate_pass(&loser->healed);
    helper_join(left);
}
