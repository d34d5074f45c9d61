/* SPDX-License-Identifier: MIT
 *
 * clock_jumps.c: see clock_jumps.h.
 */
#include "clock_jumps.h"

#include "conformance.h"
#include "server_clock.h"

#include <stdio.h>
#include <time.h>

#define HOUR_MS INT64_C(3600000)
#define LEASES_MOST 4

static void set_clock(const struct clock_jumps *jumps, int64_t offset_ms)
{
    server_clock_set(jumps->clock, offset_ms);
    const int64_t wrong_s = jumps->seconds() - time(NULL) - offset_ms / 1000;
    REQUIRE(wrong_s > -60 && wrong_s < 60); /* or all of this tests nothing */
}

/* --- forward --- */

static void check_early_end(const struct clock_jumps *jumps, const char *name)
{
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    options.ttl_ms = endless_ttl_ms();
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, name, &options);
    const uint64_t token = hf_token(lock);
    CHECK_STATUS(HF_OK, hf_guard(client, name, token, NULL), NULL);
    set_clock(jumps, HOUR_MS);
    hf_lock *theirs = must_acquire(other, name, &options);
    const uint64_t greater = hf_token(theirs);
    CHECK(greater > token);
    CHECK_STATUS(HF_OK, hf_guard(other, name, greater, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_guard(client, name, token, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, name);
    /* Put right, which is a jump back: nothing happens to who holds it now, and tokens go on. */
    set_clock(jumps, 0);
    CHECK_STATUS(HF_OK, hf_renew(theirs, 0, NULL), NULL);
    check_busy(client, name);
    must_release(theirs);
    lock = must_acquire(client, name, &options);
    CHECK(hf_token(lock) > greater);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

void check_clock_set_forward(const struct clock_jumps *jumps)
{
    for (size_t i = 0; i < jumps->count; i++) {
        jumps->use(jumps->leases[i]);
        check_early_end(jumps, jumps->leases[i]);
    }
}

/* --- back --- */

/* Two holders that die, of whose locks one is waited for when the clock is set and the other asked for afterwards; and
 * one that lives. */
struct hour {
    hf_client *client, *waiting;
    struct holder *awaited, *asked_for, *living;
    pid_t awaited_pid, asked_for_pid, living_pid;
    struct waiter waiter;
};

static struct holder *new_holder(const char *strategy, const char *role)
{
    char text[60];
    snprintf(text, sizeof text, "%s-%s", strategy, role);
    struct holder *holder = holder_new(text);
    holder->options.ttl_ms = test_ms(1500);
    return holder;
}

static void begin(struct hour *hour, const char *strategy)
{
    hour->client = open_client();
    hour->waiting = open_client();
    hour->living = new_holder(strategy, "living");
    hour->awaited = new_holder(strategy, "awaited");
    hour->asked_for = new_holder(strategy, "asked-for");
    hour->living_pid = holder_start(hour->living);
    hour->awaited_pid = holder_start(hour->awaited);
    hour->asked_for_pid = holder_start(hour->asked_for);
    waiter_start(&hour->waiter, hour->waiting, hour->awaited->name.text, NULL);
    await_waiters(hour->client, hour->awaited->name.text, 1);
}

static hf_status try_once(struct hour *hour)
{
    hf_lock *lock = NULL;
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    const hf_status status = hf_try_acquire(&lock, hour->client, hour->asked_for->name.text, &options, NULL);
    if (status == HF_OK) {
        CHECK(hf_token(lock) > atomic_load(&hour->asked_for->token));
        must_release(lock);
    }
    return status;
}

/* Who only tries gets it, too. */
static void await_by_trying(struct hour *hour)
{
    hf_status status = HF_BUSY;
    while (status == HF_BUSY) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        random_pause(50000);
        status = try_once(hour);
    }
    CHECK_STATUS(HF_OK, status, NULL);
}

static void end(struct hour *hour)
{
    await_by_trying(hour);
    waiter_join(&hour->waiter, HF_OK);
    CHECK(hour->waiter.token > atomic_load(&hour->awaited->token));
    must_release(hour->waiter.lock);
    check_busy(hour->client, hour->living->name.text);
    CHECK_INT(0, gate_count(&hour->living->told));
    holder_finish(hour->living, hour->living_pid, HF_OK);
    hf_close(hour->client);
    hf_close(hour->waiting);
}

void check_clock_set_back(const struct clock_jumps *jumps)
{
    static struct hour hours[LEASES_MOST];
    REQUIRE(jumps->count <= LEASES_MOST);
    for (size_t i = 0; i < jumps->count; i++) {
        jumps->use(jumps->leases[i]);
        begin(&hours[i], jumps->leases[i]);
    }
    for (size_t i = 0; i < jumps->count; i++) {
        helper_kill(hours[i].awaited_pid);
        helper_kill(hours[i].asked_for_pid);
    }
    set_clock(jumps, -HOUR_MS);
    for (size_t i = 0; i < jumps->count; i++)
        try_once(&hours[i]);
    for (size_t i = 0; i < jumps->count; i++)
        end(&hours[i]);
}

/* --- neither --- */

void check_clock_does_not_matter(const struct clock_jumps *jumps)
{
    static const int64_t offsets_ms[] = { HOUR_MS, -HOUR_MS };
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    struct waiter waiter;
    options.ttl_ms = test_ms(3000);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    const uint64_t token = hf_token(lock);
    waiter_start(&waiter, other, "x", NULL);
    for (size_t i = 0; i < sizeof offsets_ms / sizeof offsets_ms[0]; i++) {
        set_clock(jumps, offsets_ms[i]);
        CHECK(!gate_await_for(&loss.told, 1, test_ms(1000)));
        check_busy(client, "x");
        CHECK_INT(0, gate_count(&waiter.ended));
    }
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > token);
    must_release(waiter.lock);
    hf_close(client);
    hf_close(other);
}
