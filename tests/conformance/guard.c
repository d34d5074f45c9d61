/* SPDX-License-Identifier: MIT
 *
 * The guard: hf_guard() lets no token pass that is smaller than one it has let pass before for the same resource,
 * whoever shows it, from wherever.
 *
 * What a store remembers of a resource stays for ever, so every resource here has a name that was never used before.
 */
#include "conformance.h"

#include <inttypes.h>
#include <string.h>

static void check_passes(hf_client *client, const char *resource, uint64_t token)
{
    hf_error err = { 0 };
    if (!CHECK_STATUS(HF_OK, hf_guard(client, resource, token, &err), &err))
        test_note("for token %" PRIu64, token);
}

static void check_refused(hf_client *client, const char *resource, uint64_t token)
{
    hf_error err = { 0 };
    if (!CHECK_STATUS(HF_LOST, hf_guard(client, resource, token, &err), &err))
        test_note("for token %" PRIu64, token);
    CHECK_INT(HF_LOST, err.status);
    CHECK(*err.message != '\0' && strchr(err.message, '\n') == NULL);
}

PROMISE(guard_lets_no_smaller_token_pass, HF_CAP_GUARD)
{
    struct name resource = unique_name("data");
    hf_client *client = open_client(), *other = open_client();
    check_passes(client, resource.text, 40); /* whichever is the first */
    check_passes(client, resource.text, 40);
    check_passes(other, resource.text, 40);
    check_refused(other, resource.text, 39);
    check_passes(other, resource.text, 50);
    check_refused(client, resource.text, 49);
    check_refused(client, resource.text, 40);
    check_refused(client, resource.text, 1); /* and the refused ones have changed nothing: */
    check_refused(client, resource.text, 49);
    check_passes(client, resource.text, 50);
    CHECK_STATUS(HF_LOST, hf_guard(client, resource.text, 49, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

PROMISE(guard_keeps_resources_apart, HF_CAP_GUARD)
{
    struct name one = unique_name("one"), another = unique_name("another");
    hf_client *client = open_client();
    check_passes(client, one.text, 1000);
    check_passes(client, another.text, 1);
    check_refused(client, one.text, 999);
    check_passes(client, another.text, 2);
    check_refused(client, another.text, 1);
    hf_close(client);
}

/* A number is no text, for which 9 is larger than 10, and has 64 bits, not the 53 of a floating-point one. */
PROMISE(guard_compares_numbers_to_the_last_bit, HF_CAP_GUARD)
{
    static const uint64_t growing[] = {
        1,
        2,
        9,
        10,
        11,
        99,
        100,
        UINT64_C(0x7fffffff),
        UINT64_C(0x80000000),
        UINT64_C(0xffffffff),
        UINT64_C(0x100000000),
        UINT64_C(0x1fffffffffffff), /* 2^53 - 1 */
        UINT64_C(0x20000000000000),
        UINT64_C(0x20000000000001),
        UINT64_C(0x7ffffffffffffffe),
        UINT64_C(0x7fffffffffffffff),
    };
    struct name resource = unique_name("data");
    hf_client *client = open_client();
    for (size_t i = 0; i < sizeof growing / sizeof *growing; i++) {
        check_passes(client, resource.text, growing[i]);
        if (i > 0)
            check_refused(client, resource.text, growing[i - 1]);
        check_passes(client, resource.text, growing[i]);
    }
    hf_close(client);
}

PROMISE(guard_refuses_what_is_no_token, HF_CAP_GUARD)
{
    static const uint64_t none[] = { 0, UINT64_C(1) << 63, UINT64_MAX };
    struct name resource = unique_name("data");
    hf_client *client = open_client();
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        hf_error err = { 0 };
        CHECK_STATUS(HF_INVALID, hf_guard(client, resource.text, none[i], &err), &err);
        CHECK(*err.message != '\0');
        CHECK_STATUS(HF_INVALID, hf_guard(client, resource.text, none[i], NULL), NULL);
    }
    check_passes(client, resource.text, 1);
    hf_close(client);
}

/* What the guard is for: a holder that lost its lock without knowing comes after its successor. */
PROMISE(guard_refuses_a_holder_who_was_succeeded, HF_CAP_GUARD | HF_CAP_EXPIRY)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = short_ttl_ms();
    options.renew = HF_RENEW_OFF;
    options.owner = HF_OWNER_HANDLE;
    hf_lock *paused = must_acquire(client, name.text, &options);
    check_passes(client, name.text, hf_token(paused));
    hf_lock *successor = must_acquire(other, name.text, NULL); /* waits until the store has ended the first */
    check_passes(client, name.text, hf_token(paused));         /* nobody has written yet, so it is not too late */
    check_passes(other, name.text, hf_token(successor));
    check_refused(client, name.text, hf_token(paused));
    check_passes(other, name.text, hf_token(successor));
    must_release(successor);
    CHECK_STATUS(HF_LOST, hf_release(paused, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

/* A resource may have the name of a lock, and the two know nothing of each other. */
PROMISE(guard_and_lock_of_one_name_do_not_meet, HF_CAP_GUARD)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    check_passes(client, name.text, INT64_MAX);
    check_free(client, name.text);
    hf_lock *lock = must_acquire(client, name.text, NULL);
    CHECK(hf_token(lock) < INT64_MAX);
    check_busy(other, name.text);
    check_refused(other, name.text, hf_token(lock));
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    check_free(other, name.text);
    hf_close(client);
    hf_close(other);
}

/* --- many at once --- */

struct crowd {
    struct name resource;
    _Atomic uint64_t next;   /* token */
    _Atomic uint64_t shown;  /* the largest, or a larger one: noted before it is shown */
    _Atomic uint64_t passed; /* the largest: noted after it has passed */
    _Atomic uint32_t refused;
};

static void raise_to(_Atomic uint64_t *mark, uint64_t token)
{
    uint64_t seen = atomic_load(mark);
    while (seen < token && !atomic_compare_exchange_weak(mark, &seen, token)) {
    }
}

/* Shows tokens that grow on the whole, but come out of order. What passes is not smaller than what had passed before;
 * and nothing is refused but for a larger one. */
static void press_forward(void *arg, uint32_t index)
{
    struct crowd *crowd = arg;
    hf_client *client = open_client();
    for (uint32_t i = 0; i < 25; i++) {
        hf_error err = { 0 };
        const uint64_t token = atomic_fetch_add(&crowd->next, 1) - (3 * i + index) % 5;
        raise_to(&crowd->shown, token);
        const uint64_t passed_before = atomic_load(&crowd->passed);
        const hf_status status = hf_guard(client, crowd->resource.text, token, &err);
        if (status == HF_LOST) {
            CHECK(token < atomic_load(&crowd->shown));
            atomic_fetch_add(&crowd->refused, 1);
        } else if (CHECK_STATUS(HF_OK, status, &err)) {
            CHECK(token >= passed_before);
            raise_to(&crowd->passed, token);
        }
    }
    hf_close(client);
}

static void check_crowd(void (*run)(uint32_t count, member_fn run, void *arg))
{
    struct crowd *crowd = shared_new(sizeof *crowd);
    crowd->resource = unique_name("data");
    atomic_store(&crowd->next, 100);
    run(8, press_forward, crowd);
    hf_client *client = open_client();
    const uint64_t largest = atomic_load(&crowd->shown);
    CHECK_INT(largest, atomic_load(&crowd->passed)); /* the largest one has no reason to be refused */
    CHECK(atomic_load(&crowd->refused) > 0);         /* or nothing was tried */
    check_passes(client, crowd->resource.text, largest);
    check_refused(client, crowd->resource.text, largest - 1);
    hf_close(client);
}

PROMISE_LIMIT(guard_holds_against_threads, HF_CAP_GUARD, 40)
{
    check_crowd(run_threads);
}

PROMISE_LIMIT(guard_holds_against_processes, HF_CAP_GUARD | HF_CAP_PROCESSES, 40)
{
    check_crowd(run_processes);
}

/* All threads of one client share its connections. */
struct shared_client {
    hf_client *client;
    struct name resource;
};

static void show_in_turn(void *arg, uint32_t index)
{
    struct shared_client *shared = arg;
    const struct name own = numbered_name("own", index);
    for (uint64_t token = 1; token <= 10; token++) {
        check_passes(shared->client, own.text, token);
        check_passes(shared->client, shared->resource.text, 7);
    }
    check_refused(shared->client, own.text, 9);
}

PROMISE(guard_serves_many_threads_of_one_client, HF_CAP_GUARD)
{
    struct shared_client shared = { open_client(), unique_name("data") };
    run_threads(8, show_in_turn, &shared);
    check_refused(shared.client, shared.resource.text, 6);
    hf_close(shared.client);
}

/* --- where it cannot be --- */

static void show_inherited(void *arg)
{
    struct shared_client *inherited = arg;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_guard(inherited->client, inherited->resource.text, 9, &err), &err);
    CHECK(*err.message != '\0');
    hf_client *own = open_client();
    check_passes(own, inherited->resource.text, 8);
    hf_close(own);
}

PROMISE(guard_does_not_cross_fork, HF_CAP_GUARD)
{
    struct shared_client inherited = { open_client(), unique_name("data") };
    check_passes(inherited.client, inherited.resource.text, 5);
    helper_join(helper_start(show_inherited, &inherited));
    check_refused(inherited.client, inherited.resource.text, 7);
    check_passes(inherited.client, inherited.resource.text, 8);
    hf_close(inherited.client);
}

PROMISE_WITHOUT(guard_of_a_store_that_has_none_says_so, 0, HF_CAP_GUARD)
{
    struct name resource = unique_name("data");
    hf_client *client = open_client();
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNSUPPORTED, hf_guard(client, resource.text, 1, &err), &err);
    CHECK_INT(HF_UNSUPPORTED, err.status);
    CHECK(*err.message != '\0');
    hf_close(client);
}
