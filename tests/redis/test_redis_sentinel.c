/* SPDX-License-Identifier: MIT
 *
 * test_redis_sentinel.c: redis+sentinel:// on a real master with replicas behind real Sentinels: finding the master,
 * and what becomes of a held lock when another server takes its place.
 */
#include "group_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"
#define OTHER "another-lock"

static struct redis_group *sentinels(void)
{
    struct redis_group *group = redis_sentinel_start(NULL);
    use_url(group->url);
    return group;
}

/* The master is killed, or told to step down. Returns the new one. */
static struct redis_server *replace_master(struct redis_group *group, bool by_death)
{
    struct redis_server *old = redis_sentinel_master(group);
    if (by_death)
        redis_server_kill(old);
    else
        redis_sentinel_failover(group);
    return redis_sentinel_await_change(group, old);
}

/* ---------------------------------------------------------------------------------------------- finding the master */

TEST_LIMIT(the_master_is_found_through_any_sentinel_though_others_are_dead_or_silent, 40)
{
    struct redis_group *group = sentinels();
    redis_server_kill(group->sentinel[0]);
    redis_server_pause(group->sentinel[1]);
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, 0);
    check_held_at(group->server[0], held);
    held_finish(held, HF_OK);
    hf_close(client);
}

TEST_LIMIT(a_master_name_that_no_sentinel_knows_is_refused_in_words, 40)
{
    struct redis_group *group = sentinels();
    refuse_url(HF_INVALID, "knows no master called nobody", "redis+sentinel://%s/nobody", group->hosts);
    redis_server_kill(group->sentinel[2]); /* the last word is not that of whoever did not answer */
    refuse_url(HF_INVALID, "knows no master called nobody", "redis+sentinel://%s/nobody", group->hosts);
}

TEST_LIMIT(without_sentinels_nothing_opens_but_held_locks_are_kept, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, test_ms(2000));
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_kill(group->sentinel[i]);
    refuse_url(HF_UNAVAILABLE, "127.0.0.1", "%s", group->url);
    held_mark(held);
    await_renewal(held);
    await_renewal(held);
    check_usable(client, OTHER); /* the master that was known is still one */
    held_finish(held, HF_OK);
    hf_close(client);
}

static void write_file(char path[300], const char *name, const char *text)
{
    snprintf(path, 300, "%s/%s", getenv("TEST_DIRECTORY"), name);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    fprintf(file, "%s\n", text);
    REQUIRE_INT(0, fclose(file));
}

TEST_LIMIT(sentinels_and_servers_with_passwords_of_their_own_and_tls, 60)
{
    const struct redis_group_options options = { .password = "of-servers",
                                                 .sentinel_password = "of-sentinels",
                                                 .tls = true };
    struct redis_group *group = redis_sentinel_start(&options);
    const char *const certificates = getenv("TEST_CERTIFICATES");
    char right[300], wrong[300];
    write_file(right, "sentinel-password", "of-sentinels");
    write_file(wrong, "sentinel-password-wrong", "of-nobody");
    refuse_url(HF_DENIED, "password",
               "redis+sentinel://:of-servers@%s/mymaster?tls=yes&cafile=%s/ca.pem&sentinel_password_file=%s",
               group->hosts, certificates, wrong);
    refuse_url(HF_DENIED, "password",
               "redis+sentinel://:of-nobody@%s/mymaster?tls=yes&cafile=%s/ca.pem&sentinel_password_file=%s",
               group->hosts, certificates, right);
    refuse_url(HF_DENIED, "certificate",
               "redis+sentinel://:of-servers@%s/mymaster?tls=yes&cafile=%s/other-ca.pem&sentinel_password_file=%s",
               group->hosts, certificates, right);
    hf_client *client =
        open_url("redis+sentinel://:of-servers@%s/mymaster?tls=yes&cafile=%s/ca.pem&sentinel_password_file=%s",
                 group->hosts, certificates, right);
    struct held *held = hold(client, NAME, MEDIUM_TTL_MS);
    for (int i = 1; i < group->count; i++)
        await_known(group->server[i], NAME);
    struct redis_server *new = replace_master(group, false);
    await_renewal(held);
    check_held_at(new, held);
    held_finish(held, HF_OK);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------ a lock that stays */

/* The renewal comes from the word of the Sentinels: none is due for a long time. */
static void keep_over_failover(bool by_death)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    const uint64_t token = hf_token(held->lock);
    for (int i = 1; i < group->count; i++)
        await_known(group->server[i], NAME);
    struct redis_server *old = redis_sentinel_master(group);
    struct redis_server *new = replace_master(group, by_death);
    await_renewal(held);
    CHECK_INT(token, hf_token(held->lock));
    check_held_at(new, held);
    check_busy(other, NAME);
    if (by_death)
        redis_server_restart(old, true, "");
    CHECK(redis_sentinel_await_settled(group) == new); /* the old one is a replica now */
    check_busy(other, NAME);
    held_finish(held, HF_OK);
    CHECK(!server_has_owner(new, NAME));
    struct held *next = hold(other, NAME, 0);
    CHECK(hf_token(next->lock) > token);
    check_held_at(new, next);
    held_finish(next, HF_OK);
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(a_held_lock_is_kept_when_the_master_is_told_to_step_down, 60)
{
    keep_over_failover(false);
}

TEST_LIMIT(a_held_lock_is_kept_when_the_master_dies_and_comes_back_as_a_replica, 60)
{
    keep_over_failover(true);
}

TEST_LIMIT(a_held_lock_outlasts_one_failover_after_the_other, 80)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    for (int i = 0; i < 3; i++) {
        held_mark(held);
        for (int server = 0; server < group->count; server++)
            await_known(group->server[server], NAME);
        struct redis_server *old = redis_sentinel_master(group);
        struct redis_server *new = replace_master(group, i == 1);
        await_renewal(held);
        check_held_at(new, held);
        if (i == 1)
            redis_server_restart(old, true, "");
        redis_sentinel_await_settled(group);
    }
    held_finish(held, HF_OK);
    hf_close(client);
}

/* ---------------------------------------------------------------------------------------------- a lock that is gone */

/* Written to the old master alone; both replicas are well, and know nothing of it. */
static void lose_by_failover(bool kill_listened)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *other = open_client();
    struct redis_server *old = redis_sentinel_master(group);
    refuse_replicas(old);
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    const uint64_t token = hf_token(held->lock);
    if (kill_listened)
        redis_server_kill(group->sentinel[0]); /* the first in the URL: it is the one that was asked */
    struct redis_server *new = replace_master(group, true);
    await_prompt_loss(held);
    struct held *next = hold(other, NAME, 0);
    CHECK(hf_token(next->lock) > token);
    check_held_at(new, next);
    held_finish(held, HF_LOST);
    check_held_at(new, next);
    held_finish(next, HF_OK);
    hf_close(other);
    hf_close(client);
}

TEST_LIMIT(a_lock_that_the_new_master_does_not_know_is_lost_at_once_when_the_old_one_died, 29)
{
    lose_by_failover(false);
}

TEST_LIMIT(another_sentinel_is_listened_to_when_the_one_that_was_is_dead, 29)
{
    lose_by_failover(true);
}

/* How many listen to this Sentinel, other Sentinels aside. */
static int listeners(struct redis_server *sentinel)
{
    char list[8000];
    int count = 0;
    redis_server_text(sentinel, list, sizeof list, "CLIENT LIST TYPE pubsub");
    for (const char *line = list; (line = strstr(line, " sub=1 ")) != NULL; line++)
        count++;
    return count;
}

TEST_LIMIT(another_sentinel_is_listened_to_when_the_one_that_was_says_nothing_any_more, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client();
    struct held *held = hold(client, NAME, test_ms(3000));
    REQUIRE_INT(1, listeners(group->sentinel[0])); /* the first in the URL */
    REQUIRE_INT(0, listeners(group->sentinel[1]));
    redis_server_pause(group->sentinel[0]);
    while (listeners(group->sentinel[1]) == 0 && listeners(group->sentinel[2]) == 0)
        await_a_moment();
    redis_server_continue(group->sentinel[0]);
    held_finish(held, HF_OK);
    hf_close(client);
}

static void await_listeners(const struct redis_group *group, int count)
{
    while (listeners(group->sentinel[1]) + listeners(group->sentinel[2]) < count)
        await_a_moment();
}

/* A client that only waits has nothing to renew: it must not need that to find another one. */
TEST_LIMIT(a_client_that_only_waits_listens_to_another_sentinel_too, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    struct waiter waiter;
    waiter_start(&waiter, other, NAME, NULL);
    await_queue(group->server[0], NAME, 1);
    REQUIRE_INT(2, listeners(group->sentinel[0]));
    redis_server_kill(group->sentinel[0]);
    await_listeners(group, 2);
    CHECK_INT(1, server_waiters(group->server[0], NAME)); /* and it has kept its place */
    for (int i = 1; i < group->count; i++)
        await_known(group->server[i], NAME);
    struct redis_server *new = replace_master(group, false); /* which both are told of */
    await_renewal(held);
    await_queue(new, NAME, 1);
    held_finish(held, HF_OK);
    waiter_finish(&waiter);
    hf_close(other);
    hf_close(client);
}

/* Those that are left let themselves be connected to, and then say nothing: whoever tries that must not be the thread
 * that tells of losses. Another client, which knows of no Sentinel, shows how fast this machine is. */
TEST_LIMIT(sentinels_that_hang_do_not_keep_a_loss_from_being_told_in_time, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *direct = open_url("%s", group->server[0]->url);
    struct loss measured = { 0 }, compared = { 0 };
    hf_options options = stranger(test_ms(1000));
    options.renew = HF_RENEW_OFF;
    redis_server_pause(group->sentinel[1]);
    redis_server_pause(group->sentinel[2]);
    record_loss(&options, &measured);
    hf_lock *lock = must_acquire(client, NAME, &options);
    record_loss(&options, &compared);
    hf_lock *other = must_acquire(direct, OTHER, &options);
    while (hf_remaining_ms(lock) > 150)
        pause_ms(2);
    redis_server_kill(group->sentinel[0]);
    gate_await(&measured.told, 1);
    gate_await(&compared.told, 1);
    const int64_t later_ns = atomic_load(&measured.told_ns) - atomic_load(&compared.told_ns);
    test_note("told %d ms later", (int)(later_ns / 1000000));
    CHECK(later_ns < 200 * 1000000LL); /* a keeper that tries it itself is late by more than 300 ms */
    hf_release(other, NULL);
    hf_release(lock, NULL);
    redis_server_continue(group->sentinel[1]);
    redis_server_continue(group->sentinel[2]);
    hf_close(direct);
    hf_close(client);
}

/* The connection to it stays open: nothing tells that nothing will come. */
TEST_LIMIT(a_sentinel_that_stops_without_a_word_does_not_hide_a_failover_for_longer_than_a_renewal, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client();
    struct redis_server *old = redis_sentinel_master(group);
    refuse_replicas(old);
    struct held *held = hold(client, NAME, MEDIUM_TTL_MS);
    redis_server_pause(group->sentinel[0]);
    struct redis_server *new = replace_master(group, true);
    gate_await(&held->loss.told, 1);
    CHECK(atomic_load(&held->loss.told_ns) < held->asked_ns + held->ttl_ms * 1000000LL);
    check_usable(client, NAME);
    CHECK(!server_has_owner(new, NAME));
    held_finish(held, HF_LOST);
    hf_close(client);
}

/* --------------------------------------------------------------------------------------------------- second masters */

/* A master that is demoted by hand, and keeps its clients: they learn it from READONLY. */
TEST_LIMIT(a_demoted_master_that_keeps_its_clients_is_left_for_the_new_one, 60)
{
    struct redis_group *group = sentinels();
    hf_client *client = open_client(), *other = open_client();
    struct held *held = hold(client, NAME, LONG_TTL_MS);
    struct redis_server *old = redis_sentinel_master(group);
    struct waiter waiter;
    for (int i = 1; i < group->count; i++)
        await_known(group->server[i], NAME);
    redis_server_do(old, "REPLICAOF 127.0.0.1 1");
    refuse_lock(client, OTHER, HF_UNAVAILABLE, "replica");
    waiter_start(&waiter, client, OTHER, NULL);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    waiter_join(&waiter, HF_OK);
    CHECK(server_has_owner(new, OTHER));
    must_release(waiter.lock);
    await_renewal(held);
    check_held_at(new, held);
    check_busy(other, NAME);
    held_finish(held, HF_OK);
    hf_close(other);
    hf_close(client);
}

/* A question that was sent before the old master stood still is not waited for, and its answer not believed, once
 * another has taken its place. */
TEST_LIMIT(an_answer_of_the_old_master_is_neither_waited_for_nor_believed_after_the_switch, 60)
{
    struct redis_group *group = sentinels();
    const hf_client_options patient = { .size = sizeof patient, .timeout_ms = endless_ttl_ms(), .handoff_ms = -1 };
    hf_client *client = NULL, *other = open_client();
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, group->url, &patient, &err), &err);
    struct held *kept = hold(client, NAME, LONG_TTL_MS);
    struct redis_server *old = redis_sentinel_master(group);
    struct waiter waiter;
    for (int i = 1; i < group->count; i++)
        await_known(group->server[i], NAME);
    check_usable(client, OTHER); /* so that there is a connection which nobody doubts */
    redis_server_pause(old);
    waiter_start(&waiter, client, OTHER, NULL);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(waiter.token, redis_server_number(new, "HGET hf:{" OTHER "} t"));
    redis_server_continue(old); /* and now it does what it was asked for */
    CHECK(redis_sentinel_await_settled(group) == new);
    CHECK_INT(waiter.token, redis_server_number(new, "HGET hf:{" OTHER "} t"));
    check_busy(other, OTHER);
    must_release(waiter.lock);
    check_held_at(new, kept);
    held_finish(kept, HF_OK);
    hf_close(other);
    hf_close(client);
}

/* The renewal that is under way when the master stops must leave some of its time for the new one: enough for Sentinels
 * that cannot agree on who of them elects one, and try again after some seconds. */
TEST_LIMIT(a_lock_is_renewed_at_the_new_master_though_the_old_one_stopped_in_the_middle_of_a_renewal, 90)
{
    struct redis_group *group = sentinels();
    const hf_client_options patient = { .size = sizeof patient, .timeout_ms = endless_ttl_ms(), .handoff_ms = -1 };
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, group->url, &patient, &err), &err);
    struct held *held = hold(client, NAME, test_ms(24000));
    struct redis_server *old = redis_sentinel_master(group);
    for (int i = 1; i < group->count; i++)
        await_known(group->server[i], NAME);
    /* The next renewal is near: it meets a silent master, and no new one yet. */
    while (hf_remaining_ms(held->lock) > held->ttl_ms * 7 / 10)
        pause_ms(2);
    redis_server_pause(old);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    await_renewal(held);
    check_held_at(new, held);
    redis_server_continue(old);
    redis_sentinel_await_settled(group);
    await_renewal(held);
    held_finish(held, HF_OK);
    hf_close(client);
}
