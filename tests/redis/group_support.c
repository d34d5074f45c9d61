/* SPDX-License-Identifier: MIT
 *
 * group_support.c: see group_support.h.
 */
#include "group_support.h"

#include <stdio.h>

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct held *held = arg;
    (void)lock;
    snprintf(held->why, sizeof held->why, "%s", why);
    atomic_store(&held->loss.told_ns, test_now_ns());
    gate_pass(&held->loss.told);
}

struct held *hold(hf_client *client, const char *name, uint32_t ttl_ms)
{
    struct held *held = shared_new(sizeof *held);
    hf_options options = stranger(ttl_ms);
    options.on_lost = note_loss;
    options.arg = held;
    held->ttl_ms = ttl_ms;
    held->client = client;
    held->name = name;
    held->asked_ns = test_now_ns();
    held->lock = must_acquire(client, name, &options);
    held_mark(held);
    return held;
}

void held_finish(struct held *held, hf_status expected)
{
    hf_error err = { 0 };
    CHECK_STATUS(expected, hf_release(held->lock, &err), &err);
    if (!CHECK_INT(expected == HF_LOST ? 1 : 0, gate_count(&held->loss.told)))
        test_note("%s: %s", held->name, held->why);
}

/* When it ends, by what its holder knows. */
static int64_t end_ns(const struct held *held)
{
    const int64_t now_ns = test_now_ns();
    return now_ns + hf_remaining_ms(held->lock) * 1000000;
}

void held_mark(struct held *held)
{
    held->end_ns = end_ns(held);
}

void await_renewal(struct held *held)
{
    bool renewed = false;
    while (!renewed) {
        /* What remains is rounded: by more than this it does not grow by itself. */
        renewed = end_ns(held) >= held->end_ns + 20 * 1000000LL;
        if (hf_remaining_ms(held->lock) <= 0 || test_now_ns() > test_deadline_ns() - 1000000000LL) {
            FAIL("%s was not renewed, %d ms are left; %s", held->name, (int)hf_remaining_ms(held->lock), held->why);
            test_abort();
        }
        pause_ms(2);
    }
    held_mark(held);
}

void await_prompt_loss(struct held *held)
{
    gate_await(&held->loss.told, 1);
    CHECK(atomic_load(&held->loss.told_ns) < held->asked_ns + held->ttl_ms * 1000000LL / 3);
    CHECK(hf_remaining_ms(held->lock) <= 0);
}

void check_held_at(struct redis_server *server, const struct held *held)
{
    CHECK(server_has_owner(server, held->name));
    CHECK_INT(hf_token(held->lock), redis_server_number(server, "HGET hf:{%s} t", held->name));
}

void await_known(struct redis_server *server, const char *name)
{
    while (!server_has_owner(server, name))
        await_a_moment();
}

void refuse_replicas(struct redis_server *master)
{
    redis_server_do(master, "ACL SETUSER default -psync -sync");
    redis_server_do(master, "CLIENT KILL TYPE replica");
    /* Whoever was let in in between is seen, and thrown out too. */
    while (redis_server_number(master, "CLIENT KILL TYPE replica") > 0)
        await_a_moment();
}

void check_usable(hf_client *client, const char *name)
{
    const hf_options options = stranger(0);
    must_release(must_acquire(client, name, &options));
}

static struct waiter *await_any(struct waiter *waiters, int count, const bool *seen)
{
    for (;;) {
        for (int i = 0; i < count; i++)
            if (!seen[i] && gate_count(&waiters[i].ended) > 0)
                return &waiters[i];
        await_a_moment();
    }
}

void take_turns(struct waiter *waiters, int count, uint64_t last)
{
    bool seen[16] = { false };
    REQUIRE(count <= 16);
    for (int turn = 0; turn < count; turn++) {
        struct waiter *waiter = await_any(waiters, count, seen);
        seen[waiter - waiters] = true;
        waiter_join(waiter, HF_OK);
        CHECK(waiter->token > last);
        last = waiter->token;
        must_release(waiter->lock);
    }
}
