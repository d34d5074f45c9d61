/* SPDX-License-Identifier: MIT
 *
 * Operations: what hf_start_acquire() and hf_start_release() begin ends exactly once, is told by events or by
 * hf_op_wait(), can be cancelled one by one, and leaves nothing behind.
 */
#include "conformance.h"
#include <dirent.h>
#include <poll.h>
#include <string.h>

#define NO_WAIT 0

/* --- events --- */

/* The next one, which the test's limit ends the wait for. */
static hf_event next_event(hf_client *client)
{
    hf_event event;
    memset(&event, 0, sizeof event);
    while (!has_events(client, 1000))
        ;
    REQUIRE(hf_events(client, &event, 1, sizeof event) == 1);
    return event;
}

/* Starts one that nobody cancels or waits for. */
static void must_start_alone(hf_client *client, const char *name, const hf_options *options, void *tag)
{
    hf_error err = { 0 };
    const hf_status status = hf_start_acquire(NULL, client, name, options, tag, &err);
    REQUIRE_STATUS(HF_OK, status, &err);
}

static void check_ended(const hf_event *event, hf_status status, const void *tag, const hf_op *op)
{
    CHECK_INT(HF_EVENT_ENDED, event->kind);
    CHECK_STATUS(status, event->status, &event->error);
    CHECK(event->tag == tag);
    CHECK(event->op == op);
    CHECK((event->lock != NULL) == (status == HF_OK));
    CHECK((*event->error.message != '\0') == (status != HF_OK));
}

/* Waits for its end, and gives it back. */
static hf_event finish(hf_op *op)
{
    hf_event event;
    memset(&event, 0, sizeof event);
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    hf_op_free(op);
    return event;
}

/* --- one --- */

PROMISE(ops_an_acquire_and_a_release_are_told_by_events, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    int mine, its;
    hf_op *op = NULL;
    hf_error err = { 0 };
    check_no_event(client);
    must_start_alone(client, name.text, NULL, &mine);
    const hf_event event = next_event(client);
    check_ended(&event, HF_OK, &mine, NULL);
    CHECK(hf_token(event.lock) > 0);
    check_busy(other, name.text);
    check_no_event(client);

    REQUIRE_STATUS(HF_OK, hf_start_release(&op, event.lock, &its, &err), &err);
    const hf_event released = next_event(client);
    CHECK_INT(HF_EVENT_ENDED, released.kind);
    CHECK_STATUS(HF_OK, released.status, &released.error);
    CHECK(released.tag == &its && released.op == op && released.lock == NULL);
    hf_op_free(op);
    check_free(other, name.text);
    check_no_event(client);
    hf_close(client);
    hf_close(other);
}

PROMISE(ops_one_can_be_waited_for, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(other, name.text, NULL);
    int tag;
    hf_event event;
    hf_op *op = must_start(client, name.text, NULL, &tag);
    CHECK_INT(0, hf_op_wait(op, NO_WAIT, &event, sizeof event));
    must_release(lock);
    while (!hf_op_wait(op, 1000, &event, sizeof event))
        ;
    check_ended(&event, HF_OK, &tag, op);
    check_no_event(client); /* it is told once */
    hf_event again;
    CHECK_INT(1, hf_op_wait(op, NO_WAIT, &again, sizeof again));
    CHECK(again.status == HF_OK && again.lock == NULL); /* and hands out the lock once */
    hf_op_free(op);
    must_release(event.lock);
    hf_close(client);
    hf_close(other);
}

PROMISE(ops_a_try_says_who_has_it, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(other, name.text, NULL);
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_start_try_acquire(NULL, client, name.text, NULL, NULL, &err), &err);
    const hf_event event = next_event(client);
    check_ended(&event, HF_BUSY, NULL, NULL);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

PROMISE(ops_what_makes_no_sense_is_not_started, 0)
{
    hf_client *client = open_client();
    hf_op *op = (hf_op *)&client;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_start_acquire(&op, client, "", NULL, NULL, &err), &err);
    CHECK(op == NULL);
    CHECK(*err.message != '\0');
    CHECK_STATUS(HF_INVALID, hf_start_release(&op, NULL, NULL, &err), &err);
    CHECK_STATUS(HF_OK, hf_start_release(NULL, NULL, NULL, &err), &err);
    hf_op_free(NULL);
    check_no_event(client);
    hf_close(client);
}

/* In the store's queue, and behind another one of the same client. */
PROMISE(ops_a_wait_ends_at_its_deadline_not_before, 0)
{
    struct name name = unique_name("x");
    hf_client *clients[2] = { open_client(), open_client() };
    hf_lock *lock = must_acquire(clients[0], name.text, NULL);
    for (int i = 0; i < 2; i++) {
        hf_options options = HF_OPTIONS_INIT;
        hf_event event = { .status = HF_UNKNOWN };
        options.wait_ms = 300;
        for (int try = 0; try < 20 && event.status == HF_UNKNOWN; try++) { /* as must_wait_in_vain() does */
            const int64_t deadline_ns = test_now_ns() + 300000000LL;
            event = finish(must_start(clients[i], name.text, &options, &name));
            CHECK(test_now_ns() >= deadline_ns);
            CHECK(event.lock == NULL);
        }
        CHECK_STATUS(HF_TIMEOUT, event.status, &event.error);
    }
    must_release(lock);
    check_becomes_free(clients[1], name.text);
    hf_close(clients[0]);
    hf_close(clients[1]);
}

/* --- many --- */

/* One thread, two clients, eight waits, one lock: whoever has it is alone. */
PROMISE(ops_one_thread_waits_for_many, 0)
{
    enum { WAITS = 8 };
    struct name name = unique_name("x");
    hf_client *clients[2] = { open_client(), open_client() };
    struct pollfd fds[2] = { { .events = POLLIN }, { .events = POLLIN } };
    int tags[WAITS] = { 0 };
    uint64_t last = 0;
    for (int i = 0; i < WAITS; i++)
        must_start_alone(clients[i % 2], name.text, NULL, &tags[i]);
    for (int served = 0; served < WAITS; served++) {
        fds[0].fd = hf_events_fd(clients[0]);
        fds[1].fd = hf_events_fd(clients[1]);
        while (poll(fds, 2, 1000) <= 0)
            ;
        CHECK((fds[0].revents != 0) != (fds[1].revents != 0)); /* only one of them has it */
        hf_client *client = clients[fds[0].revents ? 0 : 1];
        hf_event events[2];
        REQUIRE(hf_events(client, events, 2, sizeof *events) == 1);
        CHECK_STATUS(HF_OK, events[0].status, &events[0].error);
        CHECK_INT(1, ++*(int *)events[0].tag);
        CHECK(hf_token(events[0].lock) > last);
        last = hf_token(events[0].lock);
        CHECK_INT(HF_OK, hf_start_release(NULL, events[0].lock, NULL, NULL));
    }
    check_becomes_free(clients[0], name.text);
    check_no_event(clients[0]);
    check_no_event(clients[1]);
    hf_close(clients[0]);
    hf_close(clients[1]);
}

static int count_threads(void)
{
    int count = -2; /* "." and ".." */
    DIR *folder = opendir("/proc/self/task");
    REQUIRE(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Each in the store's queue for a lock of its own, and as many again for one lock. */
PROMISE_LIMIT(ops_one_thread_waits_for_very_many_without_a_thread_each, PARKS, 60)
{
    enum { LOCKS = 200, ASKING = 64, OTHERS = 64 };
    static struct name names[LOCKS];
    static hf_lock *locks[LOCKS];
    static int ended[2 * LOCKS];
    hf_client *holder = open_client(), *client = open_client();
    const hf_options options = with_ttl(endless_ttl_ms());
    const int before = count_threads();
    for (unsigned i = 0; i < LOCKS; i++) {
        names[i] = numbered_name("x", i);
        locks[i] = must_acquire(holder, names[i].text, &options);
        must_start_alone(client, names[i].text, &options, &ended[i]);
    }
    for (unsigned i = LOCKS; i < 2 * LOCKS; i++)
        must_start_alone(client, names[0].text, &options, &ended[i]);
    for (unsigned i = 0; i < LOCKS; i += LOCKS / 4)
        await_waiters(holder, names[i].text, 1);
    CHECK(count_threads() <= before + ASKING + OTHERS);
    for (unsigned i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    for (unsigned i = 0; i < 2 * LOCKS; i++) {
        const hf_event event = next_event(client);
        REQUIRE_STATUS(HF_OK, event.status, &event.error);
        CHECK_INT(1, ++*(int *)event.tag);
        CHECK_INT(HF_OK, hf_start_release(NULL, event.lock, NULL, NULL));
    }
    check_becomes_free(holder, names[0].text);
    hf_close(client);
    hf_close(holder);
}

PROMISE(ops_of_one_thread_exclude_each_other_unless_they_name_an_owner, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_TEXT;
    options.owner_text = "order 17";
    const hf_event first = finish(must_start(client, name.text, &options, NULL));
    REQUIRE_STATUS(HF_OK, first.status, &first.error);
    REQUIRE_STATUS(HF_OK, hf_start_try_acquire(NULL, client, name.text, NULL, NULL, &err), &err);
    const hf_event busy = next_event(client);
    check_ended(&busy, HF_BUSY, NULL, NULL);
    const hf_event again = finish(must_start(client, name.text, &options, NULL));
    REQUIRE_STATUS(HF_OK, again.status, &again.error);
    CHECK(hf_token(again.lock) == hf_token(first.lock));
    must_release(first.lock);
    check_busy(client, name.text);
    must_release(again.lock);
    check_free(client, name.text);
    hf_close(client);
}

/* --- cancelling --- */

PROMISE(ops_cancel_ends_this_one_at_once_and_no_other, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    int tags[3];
    hf_op *ops[3];
    hf_event event;
    for (int i = 0; i < 3; i++)
        ops[i] = must_start(client, name.text, NULL, &tags[i]);
    await_waiters(holder, name.text, 1);
    for (int i = 1; i >= 0; i--) { /* one that stands behind another, as a rule, and the first */
        hf_op_cancel(ops[i]);
        hf_op_cancel(ops[i]);
        event = next_event(client);
        check_ended(&event, HF_CANCELED, &tags[i], ops[i]);
        hf_op_free(ops[i]);
    }
    check_no_event(client);
    must_release(lock);
    event = next_event(client);
    check_ended(&event, HF_OK, &tags[2], ops[2]);
    hf_op_cancel(ops[2]); /* too late */
    CHECK(hf_remaining_ms(event.lock) > 0);
    hf_op_free(ops[2]);
    must_release(event.lock);
    check_becomes_free(holder, name.text);
    hf_close(client);
    hf_close(holder);
}

PROMISE(ops_hf_cancel_ends_all_for_that_name, 0)
{
    struct name name = unique_name("x"), elsewhere = unique_name("y");
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *x = must_acquire(holder, name.text, NULL), *y = must_acquire(holder, elsewhere.text, NULL);
    hf_op *other = must_start(client, elsewhere.text, NULL, NULL);
    for (int i = 0; i < 3; i++)
        must_start_alone(client, name.text, NULL, &name);
    await_waiters(holder, name.text, 1);
    CHECK_INT(HF_OK, hf_cancel(client, name.text));
    for (int i = 0; i < 3; i++) {
        const hf_event event = next_event(client);
        check_ended(&event, HF_CANCELED, &name, NULL);
    }
    hf_event event;
    CHECK_INT(0, hf_op_wait(other, NO_WAIT, &event, sizeof event));
    must_release(x);
    must_release(y);
    event = finish(other);
    CHECK_STATUS(HF_OK, event.status, &event.error);
    must_release(event.lock);
    check_becomes_free(holder, name.text);
    hf_close(client);
    hf_close(holder);
}

PROMISE(ops_what_is_freed_before_its_end_is_not_told_and_leaves_nothing, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    hf_op *ops[3];
    for (int i = 0; i < 3; i++)
        ops[i] = must_start(client, name.text, NULL, NULL);
    hf_op_free(ops[2]); /* perhaps before it was run */
    await_waiters(holder, name.text, 1);
    hf_op_free(ops[0]);
    hf_op_free(ops[1]);
    must_release(lock);
    check_becomes_free(holder, name.text);
    check_no_event(client);
    hf_close(client);
    hf_close(holder);
}

PROMISE(ops_a_lock_that_nobody_was_told_of_is_given_back, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_op *op = must_start(client, name.text, NULL, NULL);
    while (!has_events(client, 1000))
        ;
    check_busy(other, name.text);
    hf_op_free(op);
    check_no_event(client);
    check_becomes_free(other, name.text);
    hf_close(client);
    hf_close(other);
}

/* --- closing --- */

PROMISE(ops_close_ends_all_of_them, 0)
{
    struct name held = unique_name("x"), untold = unique_name("y");
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *lock = must_acquire(holder, held.text, NULL);
    hf_op *got = must_start(client, untold.text, NULL, NULL), *ops[3];
    while (!has_events(client, 1000))
        ;
    must_start_alone(client, held.text, NULL, NULL);
    for (int i = 0; i < 3; i++)
        ops[i] = must_start(client, held.text, NULL, NULL);
    await_waiters(holder, held.text, 1);
    hf_close(client);
    for (int i = 0; i < 3; i++) {
        const hf_event event = finish(ops[i]);
        CHECK_STATUS(HF_CANCELED, event.status, &event.error);
    }
    check_free(holder, untold.text);
    const hf_event event = finish(got);
    REQUIRE_STATUS(HF_OK, event.status, &event.error);
    CHECK_INT(0, hf_remaining_ms(event.lock));
    CHECK_INT(HF_LOST, hf_release(event.lock, NULL));
    must_release(lock);
    check_becomes_free(holder, held.text);
    hf_close(holder);
}

PROMISE(ops_close_takes_what_was_never_told, 0)
{
    struct name name = unique_name("x"), other_name = unique_name("y");
    hf_client *client = open_client(), *other = open_client();
    hf_op *op = must_start(client, name.text, NULL, NULL);
    while (!has_events(client, 1000))
        ;
    must_start_alone(client, other_name.text, NULL, NULL);
    hf_close(client); /* with one that has ended, and one that may have */
    hf_op_free(op);
    check_becomes_free(other, name.text);
    check_becomes_free(other, other_name.text);
    hf_close(other);
}

/* --- losses --- */

PROMISE(ops_a_loss_is_an_event_after_the_grant, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = with_ttl(short_ttl_ms());
    hf_error err = { 0 };
    must_start_alone(client, name.text, &options, &name);
    const hf_event got = next_event(client);
    check_ended(&got, HF_OK, &name, NULL);
    CHECK_STATUS(HF_OK, hf_break(other, name.text, &err), &err);
    const hf_event lost = next_event(client);
    CHECK_INT(HF_EVENT_LOST, lost.kind);
    CHECK_INT(HF_LOST, lost.status);
    CHECK(lost.tag == &name && lost.lock == got.lock && lost.op == NULL);
    CHECK(*lost.error.message != '\0');
    CHECK_INT(0, hf_remaining_ms(lost.lock));
    CHECK_INT(HF_LOST, hf_release(lost.lock, NULL));
    check_no_event(client);
    hf_close(client);
    hf_close(other);
}

PROMISE(ops_a_loss_is_not_told_once_the_lock_is_given_back, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = with_ttl(short_ttl_ms());
    hf_error err = { 0 };
    must_start_alone(client, name.text, &options, NULL);
    const hf_event got = next_event(client);
    CHECK_STATUS(HF_OK, hf_break(other, name.text, &err), &err);
    while (!has_events(client, 1000))
        ;
    CHECK_INT(HF_LOST, hf_release(got.lock, NULL));
    check_no_event(client);

    must_start_alone(client, name.text, &options, NULL);
    const hf_event second = next_event(client);
    hf_op *op = NULL;
    CHECK_STATUS(HF_OK, hf_break(other, name.text, &err), &err);
    while (!has_events(client, 1000))
        ;
    CHECK_STATUS(HF_OK, hf_start_release(&op, second.lock, &name, &err), &err);
    const hf_event released = next_event(client); /* the only one */
    CHECK_INT(HF_EVENT_ENDED, released.kind);
    CHECK_INT(HF_LOST, released.status);
    hf_op_free(op);
    check_no_event(client);
    hf_close(client);
    hf_close(other);
}

struct renewed {
    hf_client *client;
    const char *name;
    struct gate done;
    hf_status status;
    hf_lock *lock;
};

static void take_it_anew(hf_lock *lock, const char *why, void *arg)
{
    struct renewed *renewed = arg;
    const hf_event event = finish(must_start(renewed->client, renewed->name, NULL, NULL));
    (void)lock;
    (void)why;
    renewed->status = event.status;
    renewed->lock = event.lock;
    gate_pass(&renewed->done);
}

PROMISE(ops_a_callback_may_take_the_lock_anew, 0)
{
    struct name name = unique_name("x");
    struct renewed renewed = { .client = open_client(), .name = name.text };
    hf_options options = HF_OPTIONS_INIT;
    options.max_hold_ms = 100;
    options.on_lost = take_it_anew;
    options.arg = &renewed;
    hf_lock *lock = must_acquire(renewed.client, name.text, &options);
    gate_await(&renewed.done, 1);
    CHECK_INT(HF_OK, renewed.status);
    CHECK(hf_token(renewed.lock) > hf_token(lock));
    CHECK_INT(HF_LOST, hf_release(lock, NULL));
    must_release(renewed.lock);
    hf_close(renewed.client);
}

PROMISE(ops_on_lost_takes_the_place_of_the_event, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = with_ttl(short_ttl_ms());
    struct loss loss;
    memset(&loss, 0, sizeof loss);
    record_loss(&options, &loss);
    must_start_alone(client, name.text, &options, NULL);
    const hf_event got = next_event(client);
    CHECK_INT(HF_OK, hf_break(other, name.text, NULL));
    gate_await(&loss.told, 1);
    check_no_event(client);
    CHECK_INT(HF_LOST, hf_release(got.lock, NULL));
    hf_close(client);
    hf_close(other);
}

/* --- work that is done once; forks --- */

PROMISE(ops_work_is_marked_as_done, HF_CAP_ONCE)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_op *op = NULL;
    hf_error err = { 0 };
    options.once_per_ms = 3600000;
    const hf_event got = finish(must_start(client, name.text, &options, NULL));
    REQUIRE_STATUS(HF_OK, got.status, &got.error);
    REQUIRE_STATUS(HF_OK, hf_start_release_done(&op, got.lock, NULL, &err), &err);
    const hf_event released = finish(op);
    CHECK_STATUS(HF_OK, released.status, &released.error);
    const hf_event done = finish(must_start(client, name.text, &options, NULL));
    CHECK_STATUS(HF_DONE, done.status, &done.error);
    CHECK_INT(HF_OK, hf_forget_done(client, name.text, NULL));
    hf_close(client);
}

struct forked {
    hf_client *client;
    hf_op *op;
    hf_lock *lock;
    const char *name;
};

static void look_at_the_parents(void *arg, uint32_t index)
{
    const struct forked *forked = arg;
    hf_event event;
    (void)index;
    CHECK_INT(HF_INVALID, hf_start_acquire(NULL, forked->client, forked->name, NULL, NULL, NULL));
    CHECK_INT(HF_LOST, hf_start_release(NULL, forked->lock, NULL, NULL));
    CHECK_INT(-1, hf_events_fd(forked->client));
    CHECK_INT(0, (long long)hf_events(forked->client, &event, 1, sizeof event));
    CHECK_INT(1, hf_op_wait(forked->op, 0, &event, sizeof event));
    CHECK_INT(HF_INVALID, event.status);
    hf_op_cancel(forked->op);
    hf_op_free(forked->op);
    hf_close(forked->client);
}

PROMISE(ops_nothing_crosses_a_fork, CAN_FORK_BUSY)
{
    struct name name = unique_name("x"), mine = unique_name("y");
    hf_client *holder = open_client(), *client = open_client();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    const hf_event got = finish(must_start(client, mine.text, NULL, NULL));
    struct forked forked = { client, must_start(client, name.text, NULL, NULL), got.lock, name.text };
    await_waiters(holder, name.text, 1);
    (void)hf_events_fd(client);
    helper_join(start_process(look_at_the_parents, &forked, 0));
    must_release(lock);
    const hf_event event = finish(forked.op);
    CHECK_STATUS(HF_OK, event.status, &event.error);
    must_release(event.lock);
    must_release(got.lock);
    hf_close(client);
    hf_close(holder);
}
