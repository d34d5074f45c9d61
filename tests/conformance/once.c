/* SPDX-License-Identifier: MIT
 *
 * Once: what hf_release_done() has recorded is not done again by anybody who asks for it once per some time; failed and
 * lost work is. Marks have the names of single tests, and are taken back where they would outlast them by much.
 */
#include "conformance.h"

#include <string.h>

#define HOUR_MS 3600000u

static hf_options once_per(uint64_t ms)
{
    hf_options options = HF_OPTIONS_INIT;
    options.once_per_ms = ms;
    options.owner = HF_OWNER_HANDLE;
    options.ttl_ms = endless_ttl_ms();
    return options;
}

static void do_it(hf_client *client, const char *name, const hf_options *options)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, name, options), &err), &err);
}

static void check_done(hf_client *client, const char *name)
{
    const hf_options options = once_per(HOUR_MS);
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, client, name, &options, &err), &err);
    CHECK(lock == NULL && err.status == HF_DONE && strncmp(err.message, "done by ", 8) == 0);
    CHECK_STATUS(HF_DONE, hf_acquire(&lock, client, name, &options, NULL), NULL);
}

static void check_not_done(hf_client *client, const char *name)
{
    const hf_options options = once_per(HOUR_MS);
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    if (CHECK_STATUS(HF_OK, hf_try_acquire(&lock, client, name, &options, &err), &err))
        must_release(lock);
}

PROMISE(once_done_is_not_done_again, HF_CAP_ONCE)
{
    const struct name name = unique_name("job"), another = unique_name("another");
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_client(), *other = open_client();
    check_not_done(client, name.text);
    do_it(client, name.text, &options);
    check_done(client, name.text);
    check_done(other, name.text);
    check_not_done(other, another.text);
    check_free(other, name.text); /* who does not ask for once is not concerned */
    check_done(other, name.text);
    CHECK_STATUS(HF_OK, hf_forget_done(other, name.text, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

PROMISE(once_who_is_not_done_can_be_asked_again, HF_CAP_ONCE)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_client(), *other = open_client();
    must_release(must_acquire(client, name.text, &options)); /* it failed */
    check_not_done(other, name.text);
    hf_lock *lock = must_acquire(client, name.text, &options);
    check_busy(other, name.text);
    hf_close(client); /* nor is it done by whoever goes away */
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    check_not_done(other, name.text);
    hf_close(other);
}

PROMISE(once_forgotten_is_done_again, HF_CAP_ONCE)
{
    const struct name name = unique_name("job"), another = unique_name("another");
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_client(), *other = open_client();
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_forget_done(client, name.text, &err), &err); /* nothing to forget */
    do_it(client, name.text, &options);
    do_it(client, another.text, &options);
    CHECK_STATUS(HF_OK, hf_forget_done(other, name.text, &err), &err);
    check_not_done(client, name.text);
    check_done(client, another.text);
    do_it(other, name.text, &options);
    check_done(client, name.text);
    CHECK_STATUS(HF_OK, hf_forget_done(other, name.text, &err), &err);
    CHECK_STATUS(HF_OK, hf_forget_done(other, another.text, &err), &err);
    CHECK_STATUS(HF_INVALID, hf_forget_done(other, "", &err), &err);
    hf_close(client);
    hf_close(other);
}

/* Whoever waits is told so when the work is done, and not given the lock; what comes after them finds it free. */
PROMISE(once_those_who_wait_learn_that_it_was_done, HF_CAP_ONCE)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_client(), *others[3];
    struct waiter waiters[3];
    hf_lock *lock = must_acquire(client, name.text, &options);
    for (int i = 0; i < 3; i++) {
        others[i] = open_client();
        waiter_start(&waiters[i], others[i], name.text, &options);
        await_waiters(client, name.text, i + 1);
    }
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    for (int i = 0; i < 3; i++)
        waiter_join(&waiters[i], HF_DONE);
    check_becomes_free(client, name.text);
    CHECK_STATUS(HF_OK, hf_forget_done(client, name.text, NULL), NULL);
    for (int i = 0; i < 3; i++)
        hf_close(others[i]);
    hf_close(client);
}

/* Among those who wait, one asks without once_per_ms: it is served. */
PROMISE(once_those_who_want_it_anyway_are_served, HF_CAP_ONCE)
{
    const struct name name = unique_name("job");
    const hf_options once = once_per(HOUR_MS);
    hf_options anyway = HF_OPTIONS_INIT;
    anyway.owner = HF_OWNER_HANDLE;
    anyway.ttl_ms = endless_ttl_ms();
    hf_client *client = open_client(), *other = open_client_with_handoff(-1);
    struct waiter waiters[3];
    hf_lock *lock = must_acquire(client, name.text, &once);
    for (int i = 0; i < 3; i++) {
        waiter_start(&waiters[i], other, name.text, i == 1 ? &anyway : &once);
        await_waiters(client, name.text, i + 1);
    }
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    waiter_join(&waiters[1], HF_OK);
    must_release(waiters[1].lock);
    waiter_join(&waiters[0], HF_DONE);
    waiter_join(&waiters[2], HF_DONE);
    CHECK_STATUS(HF_OK, hf_forget_done(client, name.text, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

/* Counted from the grant; a store may keep the mark a little longer, but not give it up before. */
PROMISE_LIMIT(once_is_over_after_its_time, HF_CAP_ONCE, 60)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(1500);
    hf_client *client = open_client(), *other = open_client();
    const int64_t before_ns = test_now_ns();
    hf_status status;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    do_it(client, name.text, &options);
    while ((status = hf_try_acquire(&lock, other, name.text, &options, &err)) == HF_DONE &&
           test_now_ns() < test_deadline_ns())
        random_pause(50000);
    CHECK_STATUS(HF_OK, status, &err);
    CHECK(test_now_ns() - before_ns > 1400 * INT64_C(1000000)); /* clocks do not run at quite the same speed */
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);     /* and it is done anew */
    CHECK_STATUS(HF_OK, hf_forget_done(other, name.text, &err), &err);
    hf_close(client);
    hf_close(other);
}

PROMISE(once_work_that_took_longer_leaves_no_mark, HF_CAP_ONCE)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(100);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, name.text, &options);
    const int64_t since_ns = test_now_ns();
    while (test_now_ns() - since_ns < 150 * INT64_C(1000000))
        random_pause(20000);
    CHECK_STATUS(HF_OK, hf_release_done(lock, NULL), NULL);
    check_not_done(client, name.text);
    hf_close(client);
}

PROMISE(once_what_was_lost_leaves_no_mark, HF_CAP_ONCE | HF_CAP_BREAK)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, name.text, &options);
    CHECK_STATUS(HF_OK, hf_break(other, name.text, NULL), NULL);
    hf_lock *successor = must_acquire(other, name.text, NULL); /* waits until it is free */
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    must_release(successor);
    check_not_done(other, name.text);
    hf_close(client);
    hf_close(other);
}

/* --- who did it --- */

struct seen {
    int count;
    char note[130];
    int64_t done_ms, remaining_ms, waiters;
    uint64_t token;
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    strncpy(seen->note, info->note, sizeof seen->note - 1);
    seen->done_ms = info->held_ms;
    seen->remaining_ms = info->remaining_ms;
    seen->waiters = info->waiters;
    seen->token = info->token;
    return 0;
}

PROMISE(once_is_listed_with_who_did_it, HF_CAP_ONCE)
{
    const struct name name = unique_name("job"), another = unique_name("another");
    hf_options options = once_per(HOUR_MS);
    options.note = "by root: backup";
    hf_client *client = open_client(), *other = open_client();
    hf_error err = { 0 };
    struct seen seen = { 0 };
    hf_lock *lock = must_acquire(client, name.text, &options);
    const uint64_t token = hf_token(lock);
    CHECK_STATUS(HF_OK, hf_inspect_done(other, name.text, see, &seen, &err), &err);
    CHECK_INT(0, seen.count);
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
    do_it(client, another.text, &options);
    CHECK_STATUS(HF_OK, hf_inspect_done(other, name.text, see, &seen, &err), &err);
    CHECK_INT(1, seen.count);
    CHECK_STR("by root: backup", seen.note);
    CHECK(seen.done_ms >= 0 && seen.done_ms < 60000);
    CHECK(seen.remaining_ms > (int64_t)HOUR_MS - 60000 && seen.remaining_ms <= (int64_t)HOUR_MS + 10000);
    CHECK_INT(-1, seen.waiters);
    CHECK_INT(token, seen.token);
    hf_lock *again = NULL;
    CHECK_STATUS(HF_DONE, hf_try_acquire(&again, other, name.text, &options, &err), &err);
    CHECK(strstr(err.message, "by root: backup") != NULL);
    CHECK(strstr(err.message, " s ago, which counts for another ") != NULL);
    CHECK_STATUS(HF_OK, hf_forget_done(other, name.text, &err), &err);
    CHECK_STATUS(HF_OK, hf_forget_done(other, another.text, &err), &err);
    seen.count = 0;
    CHECK_STATUS(HF_OK, hf_inspect_done(other, name.text, see, &seen, &err), &err);
    CHECK_INT(0, seen.count);
    hf_close(client);
    hf_close(other);
}

/* --- five hosts --- */

#define NIGHTS 5

struct nights {
    struct name jobs[NIGHTS];
    _Atomic int runs[NIGHTS];
    _Atomic int missed;
};

/* Each comes a little earlier or later than the others, and the work takes no time at all. */
static void come_every_night(void *arg, uint32_t index)
{
    struct nights *nights = arg;
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_patient_client();
    (void)index;
    for (int i = 0; i < NIGHTS; i++) {
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        random_pause(20000);
        const hf_status status = hf_acquire(&lock, client, nights->jobs[i].text, &options, &err);
        if (status == HF_OK) {
            atomic_fetch_add(&nights->runs[i], 1);
            CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
        } else if (CHECK_STATUS(HF_DONE, status, &err)) {
            atomic_fetch_add(&nights->missed, 1);
        }
    }
    hf_close(client);
}

PROMISE_LIMIT(once_five_processes_do_it_once, HF_CAP_ONCE | HF_CAP_PROCESSES, 60)
{
    struct nights *nights = shared_new(sizeof *nights);
    for (unsigned i = 0; i < NIGHTS; i++)
        nights->jobs[i] = numbered_name("night", i);
    run_processes(5, come_every_night, nights);
    hf_client *client = open_client();
    for (int i = 0; i < NIGHTS; i++) {
        CHECK_INT(1, atomic_load(&nights->runs[i]));
        CHECK_STATUS(HF_OK, hf_forget_done(client, nights->jobs[i].text, NULL), NULL);
    }
    CHECK_INT(4 * NIGHTS, atomic_load(&nights->missed));
    hf_close(client);
}

/* --- where it cannot be --- */

/* Nothing would be recorded, and nobody told so. */
PROMISE(once_of_a_lock_that_was_taken_without_it_is_refused, 0)
{
    const struct name name = unique_name("job");
    hf_client *client = open_client(), *other = open_client();
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_release_done(must_acquire(client, name.text, NULL), &err), &err);
    CHECK(strstr(err.message, "once_per_ms") != NULL);
    check_free(other, name.text); /* it is released all the same */
    hf_close(client);
    hf_close(other);
}

PROMISE(once_more_than_a_year_is_refused, HF_CAP_ONCE)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(UINT64_C(367) * 24 * HOUR_MS);
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&lock, client, name.text, &options, &err), &err);
    hf_close(client);
}

PROMISE_WITHOUT(once_of_a_store_that_cannot_says_so, 0, HF_CAP_ONCE)
{
    const struct name name = unique_name("job");
    const hf_options options = once_per(HOUR_MS);
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    struct seen seen = { 0 };
    CHECK_STATUS(HF_UNSUPPORTED, hf_try_acquire(&lock, client, name.text, &options, &err), &err);
    CHECK_STATUS(HF_UNSUPPORTED, hf_inspect_done(client, NULL, see, &seen, &err), &err);
    CHECK_STATUS(HF_UNSUPPORTED, hf_forget_done(client, name.text, &err), &err);
    hf_close(client);
}
