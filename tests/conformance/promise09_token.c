/* SPDX-License-Identifier: MIT
 *
 * Promise 9, the fencing token: greater than that of every earlier grant of the name, whoever got it and however it
 * ended.
 */
#include "conformance.h"

PROMISE(p09_tokens_grow_grant_by_grant, 0)
{
    struct name name = unique_name("x");
    uint64_t last = 0;
    hf_client *clients[3] = { open_client(), open_client(), open_client() };
    for (int i = 0; i < 99; i++) {
        hf_lock *lock = must_acquire(clients[i % 3], name.text, NULL);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        must_release(lock);
    }
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
}

PROMISE(p09_tokens_grow_across_clients_that_come_and_go, 0)
{
    struct name name = unique_name("x");
    uint64_t last = 0;
    for (int i = 0; i < 20; i++) {
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, name.text, NULL);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        if (i % 2)
            must_release(lock);
        hf_close(client);
        if (i % 2 == 0)
            CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    }
}

struct log_of_tokens {
    struct name name;
    _Atomic uint32_t used;
    uint64_t tokens[1024];
};

/* Writes down its token while it holds the lock: the order of the list is the order of the grants. */
static void write_down(void *arg, uint32_t index)
{
    struct log_of_tokens *list = arg;
    (void)index;
    hf_client *client = open_client();
    for (int i = 0; i < 32; i++) {
        hf_lock *lock = must_acquire(client, list->name.text, NULL);
        list->tokens[atomic_fetch_add(&list->used, 1)] = hf_token(lock);
        must_release(lock);
    }
    hf_close(client);
}

static void check_growing(struct log_of_tokens *list, uint32_t count)
{
    CHECK_INT(count, atomic_load(&list->used));
    for (uint32_t i = 1; i < count; i++)
        CHECK(list->tokens[i] > list->tokens[i - 1]);
}

PROMISE_LIMIT(p09_tokens_grow_under_contention_of_threads, 0, 40)
{
    struct log_of_tokens *list = shared_new(sizeof *list);
    list->name = unique_name("x");
    run_threads(16, write_down, list);
    check_growing(list, 16 * 32);
}

PROMISE_LIMIT(p09_tokens_grow_under_contention_of_processes, HF_CAP_PROCESSES, 40)
{
    struct log_of_tokens *list = shared_new(sizeof *list);
    list->name = unique_name("x");
    run_processes(16, write_down, list);
    check_growing(list, 16 * 32);
}

static void acquire_once(void *arg)
{
    struct holder *holder = arg;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, holder->name.text, NULL);
    CHECK(hf_token(lock) > atomic_load(&holder->token));
    atomic_store(&holder->token, hf_token(lock));
    must_release(lock);
    hf_close(client);
}

PROMISE(p09_tokens_grow_though_nobody_is_left_in_between, HF_CAP_PROCESSES | HF_CAP_DURABLE_TOKEN)
{
    struct holder *holder = holder_new("x");
    /* No process has the store open between two of them. */
    for (int i = 0; i < 5; i++)
        helper_join(helper_start(acquire_once, holder));
    CHECK(atomic_load(&holder->token) > 0);
}

PROMISE_LIMIT(p09_tokens_grow_past_killed_holders, HF_CAP_PROCESSES, 40)
{
    uint64_t last = 0;
    for (int i = 0; i < 4; i++) {
        struct holder *holder = holder_new("x");
        holder->options.ttl_ms = ttl_ms_of_the_doomed();
        pid_t pid = holder_start(holder);
        CHECK(atomic_load(&holder->token) > last);
        last = atomic_load(&holder->token);
        helper_kill(pid);
    }
}

PROMISE(p09_tokens_grow_past_lost_leases, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    uint64_t last = 0;
    options.ttl_ms = 150;
    options.renew = HF_RENEW_OFF;
    options.owner = HF_OWNER_HANDLE;
    hf_lock *locks[4];
    for (int i = 0; i < 4; i++) {
        locks[i] = must_acquire(client, name.text, &options);
        CHECK(hf_token(locks[i]) > last);
        last = hf_token(locks[i]);
    }
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    hf_release(locks[3], NULL);
    hf_close(client);
}

PROMISE(p09_re_entry_and_renewal_keep_the_token, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_lock *first = must_acquire(client, name.text, NULL), *second = must_acquire(client, name.text, NULL);
    uint64_t token = hf_token(first);
    hf_error err = { 0 };
    CHECK_INT(token, hf_token(second));
    CHECK_STATUS(HF_OK, hf_renew(first, 0, &err), &err);
    CHECK_INT(token, hf_token(first));
    must_release(first);
    CHECK_INT(token, hf_token(second));
    must_release(second);
    first = must_acquire(client, name.text, NULL);
    CHECK(hf_token(first) > token);
    must_release(first);
    hf_close(client);
}
