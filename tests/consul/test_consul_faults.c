/* SPDX-License-Identifier: MIT
 *
 * test_consul_faults.c: what servers do to a lock: they stop, die, come back, elect another leader; and what people do
 * to it: they destroy sessions and delete keys. A loss is known before anybody else has the lock, or at once; tokens
 * never fall.
 */
#include "consul_support.h"
#include "who.h"

#include <stdio.h>

#define NAME "x"

/* --- people --- */

TEST_LIMIT(a_session_that_is_destroyed_is_known_at_once, 20)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    struct loss losses[2] = { 0 };
    hf_lock *locks[2];
    for (int i = 0; i < 2; i++) {
        hf_options options = stranger(endless_ttl_ms()); /* it is renewed long after this test */
        record_loss(&options, &losses[i]);
        locks[i] = must_acquire(client, i ? "y" : NAME, &options);
    }
    consul_server_destroy_sessions(server);
    for (int i = 0; i < 2; i++) {
        gate_await(&losses[i].told, 1);
        await_lost_fd(locks[i]);
    }
    hf_lock *next = must_acquire(other, NAME, NULL);
    CHECK(hf_token(next) > hf_token(locks[0]));
    for (int i = 0; i < 2; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    must_release(next);
    /* The same client goes on with another session. */
    must_release(must_acquire(client, NAME, NULL));
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_lock_that_is_broken_is_known_at_once, 20)
{
    start_store("");
    hf_client *client = open_client(), *admin = open_client();
    hf_options options = stranger(endless_ttl_ms());
    struct loss loss = { 0 }, none = { 0 };
    record_loss(&options, &none);
    hf_lock *kept = must_acquire(client, "y", &options);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    CHECK_STATUS(HF_OK, hf_break(admin, NAME, NULL), NULL);
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    /* And no other. */
    CHECK_INT(0, gate_count(&none.told));
    must_release(kept);
    hf_close(client);
    hf_close(admin);
}

/* As soon as it is told of the loss: by its long poll, or by the renewal that asks first. */
TEST_LIMIT(a_holder_is_told_who_breaks_its_lock, 20)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client(), *admin = open_client();
    hf_options options = stranger(endless_ttl_ms());
    struct loss loss = { 0 };
    hf_error err = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    CHECK_STATUS(HF_OK, hf_break(admin, NAME, &err), &err);
    gate_await(&loss.told, 1);
    check_we_broke_it(loss.why);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    options.on_lost = NULL;
    lock = must_acquire(client, NAME, &options);
    CHECK_STATUS(HF_OK, hf_break(admin, NAME, &err), &err);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), NULL);
    check_error(&err, HF_LOST, "it was broken by ");
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    /* What was said of an earlier lock of the same session says nothing of this one. */
    lock = must_acquire(client, NAME, &options);
    consul_server_do(server, "DELETE", "/v1/kv/holdfast/x/.lock", "", NULL, 0);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), NULL);
    check_error(&err, HF_LOST, "the store no longer has it");
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
    hf_close(admin);
}

/* Somebody has deleted the key by which it would be told, and it has no chance to make it anew. */
TEST_LIMIT(a_lock_whose_holder_cannot_be_told_is_broken, 20)
{
    struct consul_server *server = start_store("");
    hf_client *admin = open_client();
    hf_error err = { 0 };
    struct holder *holder = holder_new(NAME);
    const pid_t process = holder_start(holder);
    helper_stop(process);
    consul_server_do(server, "DELETE", "/v1/kv/holdfast/.holdfast/?recurse", "", NULL, 0);
    CHECK_STATUS(HF_OK, hf_break(admin, holder->name.text, &err), &err);
    check_free(admin, holder->name.text);
    helper_continue(process);
    gate_await(&holder->told, 1);
    holder_finish(holder, process, HF_LOST);
    hf_close(admin);
}

TEST_LIMIT(a_key_that_is_deleted_is_known_at_the_next_renewal, 20)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(test_ms(900));
    struct loss loss = { 0 };
    struct waiter waiter;
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, other, NAME, NULL);
    await_waiters(other, NAME, 1);
    consul_server_do(server, "DELETE", "/v1/kv/holdfast/x/.lock", "", NULL, 0);
    gate_await(&loss.told, 1);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > hf_token(lock));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, NAME);
    must_release(waiter.lock);
    /* A place in the queue that is deleted is taken anew. */
    lock = must_acquire(client, NAME, NULL);
    waiter_start(&waiter, other, NAME, NULL);
    await_waiters(other, NAME, 1);
    consul_server_do(server, "DELETE", "/v1/kv/holdfast/x/.holdfast/?recurse", "", NULL, 0);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(other);
    await_keys(server, "holdfast/x/", 0);
}

/* Whoever only writes into the key of a lock takes it from nobody. */
TEST_LIMIT(a_key_that_is_written_to_is_still_held, 20)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(test_ms(900));
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    consul_server_do(server, "PUT", "/v1/kv/holdfast/x/.lock?flags=3304740253564472344", "scribble", NULL, 0);
    CHECK(!gate_await_for(&loss.told, 1, 2 * options.ttl_ms));
    check_busy(other, NAME);
    must_release(lock);
    check_free(other, NAME);
    hf_close(client);
    hf_close(other);
}

/* --- one server --- */

struct victim {
    hf_client *client;
    hf_lock *lock;
    struct loss loss;
};

static void take(struct victim *victim, uint32_t ttl_ms)
{
    hf_options options = stranger(ttl_ms);
    record_loss(&options, &victim->loss);
    victim->client = open_client();
    victim->lock = must_acquire(victim->client, NAME, &options);
}

TEST_LIMIT(a_server_that_stops_for_too_long_costs_the_lock, 30)
{
    struct consul_server *server = start_store("");
    hf_client *other = open_client();
    struct victim victim = { 0 };
    struct waiter waiter;
    take(&victim, test_ms(1000));
    waiter_start(&waiter, other, NAME, NULL);
    await_waiters(other, NAME, 1);
    consul_server_pause(server);
    /* By its own clock: nobody can tell it. */
    gate_await(&victim.loss.told, 1);
    CHECK_INT(0, gate_count(&waiter.ended));
    pause_ms(test_ms(1500)); /* its session is over when the server wakes up */
    consul_server_continue(server);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > hf_token(victim.lock));
    CHECK_STATUS(HF_LOST, hf_release(victim.lock, NULL), NULL);
    must_release(waiter.lock);
    hf_close(victim.client);
    hf_close(other);
}

TEST_LIMIT(a_server_that_stops_for_a_moment_costs_nothing, 30)
{
    struct consul_server *server = start_store("");
    hf_client *other = open_client();
    struct victim victim = { 0 };
    take(&victim, test_ms(4000));
    consul_server_pause(server);
    pause_ms(test_ms(2000));
    consul_server_continue(server);
    CHECK(!gate_await_for(&victim.loss.told, 1, test_ms(3000)));
    check_busy(other, NAME);
    must_release(victim.lock);
    check_free(other, NAME);
    hf_close(victim.client);
    hf_close(other);
}

TEST_LIMIT(a_restart_keeps_locks_and_places, 60)
{
    struct consul_server *server = start_store("");
    hf_client *other = open_client();
    struct victim victim = { 0 };
    struct waiter waiter;
    take(&victim, 30000 * (uint32_t)test_slowness());
    waiter_start(&waiter, other, NAME, NULL);
    await_waiters(other, NAME, 1);
    consul_server_kill(server);
    consul_server_restart(server);
    CHECK_INT(0, gate_count(&waiter.ended));
    check_busy(other, NAME);
    const uint64_t token = hf_token(victim.lock);
    must_release(victim.lock);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > token);
    CHECK_INT(0, gate_count(&victim.loss.told));
    must_release(waiter.lock);
    hf_close(victim.client);
    hf_close(other);
}
