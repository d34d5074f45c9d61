/* SPDX-License-Identifier: MIT
 *
 * cut_off.c: see cut_off.h.
 */
#include "cut_off.h"

void cut_off_holder(void *arg)
{
    struct cut_off *it = arg;
    hf_options options = with_ttl(it->ttl_ms);
    struct loss loss = { 0 };
    store_url = it->url;
    hf_client *client = open_client();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, it->name, &options);
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    /* The user does nothing, and is told. */
    do {
        const int64_t now_ns = test_now_ns();
        if (hf_remaining_ms(lock) > 0)
            atomic_store(&it->believed_ns, now_ns);
    } while (!gate_await_for(&loss.told, 1, 2));
    CHECK(hf_remaining_ms(lock) <= 0);
    atomic_store(&it->told_ns, test_now_ns());
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    gate_pass(&it->told);
    if (it->stays_away)
        return;
    gate_await(&it->healed, 1);
    lock = must_acquire(client, it->name, NULL);
    CHECK(hf_token(lock) > atomic_load(&it->token));
    atomic_store(&it->token, hf_token(lock));
    must_release(lock);
    hf_close(client);
}

void cut_off_successor(void *arg)
{
    struct cut_off *it = arg;
    const hf_options options = with_ttl(it->ttl_ms);
    store_url = it->url;
    hf_client *client = open_client();
    gate_pass(&it->asks);
    hf_lock *lock = must_acquire(client, it->name, &options);
    atomic_store(&it->granted_ns, test_now_ns());
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    gate_await(&it->healed, 1);
    must_release(lock);
    hf_close(client);
}

void cut_off_check(struct cut_off *holder, struct cut_off *successor)
{
    gate_await(&holder->told, 1);
    gate_await(&successor->held, 1);
    const int64_t believed_ns = atomic_load(&holder->believed_ns), granted_ns = atomic_load(&successor->granted_ns);
    CHECK(believed_ns > 0);
    if (!CHECK(believed_ns < granted_ns))
        test_note("for %d ms too long", (int)((believed_ns - granted_ns) / 1000000));
    CHECK(atomic_load(&successor->token) > atomic_load(&holder->token));
}

void cut_off_end(struct cut_off *holder, pid_t holder_pid, struct cut_off *successor, pid_t successor_pid)
{
    gate_pass(&successor->healed);
    gate_pass(&holder->healed);
    helper_join(successor_pid);
    helper_join(holder_pid);
    CHECK(holder->stays_away || atomic_load(&holder->token) > atomic_load(&successor->token));
}
