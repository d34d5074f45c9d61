/* SPDX-License-Identifier: MIT
 *
 * support.c: see conformance.h.
 */
#include "conformance.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern uint32_t run_tag;
extern uint64_t run_seed;

bool store_can(uint32_t caps)
{
    return (store_caps & caps) == caps;
}

/* --- names, times, chance --- */

struct name unique_name(const char *text)
{
    struct name name;
    /* Test and helpers are one process group. */
    snprintf(name.text, sizeof name.text, "hftest-%08x-%d-%s", run_tag, (int)getpgrp(), text);
    return name;
}

struct name numbered_name(const char *text, unsigned number)
{
    char numbered[100];
    snprintf(numbered, sizeof numbered, "%s-%u", text, number);
    return unique_name(numbered);
}

uint32_t short_ttl_ms(void)
{
    return test_ms(600);
}

uint32_t endless_ttl_ms(void)
{
    return 120000u * (uint32_t)test_slowness();
}

uint32_t ttl_ms_of_the_doomed(void)
{
    return store_can(HF_CAP_BOUND) ? endless_ttl_ms() : short_ttl_ms();
}

uint32_t chance(uint64_t *seed, uint32_t limit)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % limit;
}

uint32_t random_below(uint32_t limit)
{
    return chance(&run_seed, limit);
}

hf_options with_ttl(uint32_t ttl_ms)
{
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    return options;
}

hf_options stranger(uint32_t ttl_ms)
{
    hf_options options = with_ttl(ttl_ms);
    options.owner = HF_OWNER_HANDLE;
    return options;
}

void pause_ms(uint32_t ms)
{
    const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    nanosleep(&pause, NULL);
}

static void pause_us(uint32_t us)
{
    struct timespec pause = { us / 1000000, us % 1000000 * 1000L };
    nanosleep(&pause, NULL);
}

void random_pause(uint32_t most_us)
{
    pause_us(random_below(most_us));
}

/* --- locks --- */

int64_t store_handoff_ms;

static hf_client *open_with(uint32_t timeout_ms, int64_t handoff_ms)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    options.handoff_ms = handoff_ms;
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &options, &err), &err);
    REQUIRE(client != NULL);
    return client;
}

hf_client *open_client(void)
{
    return open_with(0, store_handoff_ms);
}

hf_client *open_client_with_handoff(int64_t handoff_ms)
{
    return open_with(0, handoff_ms);
}

hf_client *open_patient_client(void)
{
    return open_with(15000, store_handoff_ms);
}

hf_lock *must_acquire(hf_client *client, const char *name, const hf_options *options)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, name, options, &err), &err);
    REQUIRE(lock != NULL);
    return lock;
}

/* A store that is silent for the whole of a short wait is told as trouble, and that is right; a busy machine makes any
 * store silent now and then. The next wait will be answered. */
void must_wait_in_vain(hf_client *client, const char *name, uint32_t wait_ms)
{
    enum { TRIES = 20 };
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    hf_status status = HF_UNKNOWN;
    options.wait_ms = wait_ms;
    for (int i = 0; i < TRIES && status == HF_UNKNOWN; i++) {
        const int64_t deadline_ns = test_now_ns() + wait_ms * INT64_C(1000000);
        hf_lock *none = NULL;
        status = hf_acquire(&none, client, name, &options, &err);
        CHECK(test_now_ns() >= deadline_ns);
        CHECK(none == NULL);
        CHECK(*err.message != '\0');
    }
    CHECK_STATUS(HF_TIMEOUT, status, &err);
}

void must_release(hf_lock *lock)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
}

void check_busy(hf_client *client, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    options.owner = HF_OWNER_HANDLE;
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&lock, client, name, &options, &err), &err);
    CHECK(lock == NULL);
    hf_release(lock, NULL);
}

void check_free(hf_client *client, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    options.owner = HF_OWNER_HANDLE;
    if (CHECK_STATUS(HF_OK, hf_try_acquire(&lock, client, name, &options, &err), &err))
        must_release(lock);
}

void check_becomes_free(hf_client *client, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    must_release(must_acquire(client, name, &options));
}

struct seen_waiters {
    const char *name;
    int64_t waiters;
};

static int note_waiters(const hf_info *info, void *arg)
{
    struct seen_waiters *seen = arg;
    if (strcmp(info->name, seen->name) == 0)
        seen->waiters = info->waiters;
    return 0;
}

void await_waiters(hf_client *client, const char *name, int64_t count)
{
    struct seen_waiters seen = { name, 0 };
    hf_error err = { 0 };
    while (store_can(HF_CAP_INSPECT)) {
        REQUIRE_STATUS(HF_OK, hf_inspect(client, name, note_waiters, &seen, &err), &err);
        if (seen.waiters >= count)
            return;
        if (seen.waiters < 0)
            break;
        await_a_moment();
    }
    pause_us(test_ms(150) * 1000);
}

static void *wait_in_thread(void *arg)
{
    struct waiter *waiter = arg;
    gate_pass(&waiter->began);
    waiter->status = hf_acquire(&waiter->lock, waiter->client, waiter->name, &waiter->options, &waiter->err);
    waiter->ended_ns = test_now_ns();
    waiter->token = waiter->lock ? hf_token(waiter->lock) : 0;
    gate_pass(&waiter->ended);
    return NULL;
}

void waiter_start(struct waiter *waiter, hf_client *client, const char *name, const hf_options *options)
{
    const hf_options stranger = { .size = sizeof stranger, .owner = HF_OWNER_HANDLE };
    memset(waiter, 0, sizeof *waiter);
    waiter->client = client;
    waiter->name = name;
    waiter->options = options ? *options : stranger;
    REQUIRE_INT(0, pthread_create(&waiter->thread, NULL, wait_in_thread, waiter));
    gate_await(&waiter->began, 1); /* where the store cannot tell who waits, a pause is all that follows */
}

void waiter_join(struct waiter *waiter, hf_status expected)
{
    gate_await(&waiter->ended, 1);
    REQUIRE_INT(0, pthread_join(waiter->thread, NULL));
    CHECK_STATUS(expected, waiter->status, &waiter->err);
    CHECK((waiter->lock != NULL) == (waiter->status == HF_OK));
}

void waiter_finish(struct waiter *waiter)
{
    waiter_join(waiter, HF_OK);
    must_release(waiter->lock);
}

/* --- many at once --- */

struct member {
    pthread_t thread;
    member_fn run;
    void *arg;
    uint32_t index;
};

static void *run_member(void *arg)
{
    struct member *member = arg;
    member->run(member->arg, member->index);
    return NULL;
}

static void run_member_process(void *arg)
{
    run_member(arg);
}

void run_threads(uint32_t count, member_fn run, void *arg)
{
    struct member members[WITNESS_MOST];
    REQUIRE(count <= WITNESS_MOST);
    for (uint32_t i = 0; i < count; i++) {
        members[i] = (struct member){ .run = run, .arg = arg, .index = i };
        REQUIRE_INT(0, pthread_create(&members[i].thread, NULL, run_member, &members[i]));
    }
    for (uint32_t i = 0; i < count; i++)
        REQUIRE_INT(0, pthread_join(members[i].thread, NULL));
}

pid_t start_process(member_fn run, void *arg, uint32_t index)
{
    struct member member = { .run = run, .arg = arg, .index = index };
    return helper_start(run_member_process, &member);
}

void run_processes(uint32_t count, member_fn run, void *arg)
{
    pid_t helpers[WITNESS_MOST];
    REQUIRE(count <= WITNESS_MOST);
    for (uint32_t i = 0; i < count; i++)
        helpers[i] = start_process(run, arg, i);
    for (uint32_t i = 0; i < count; i++)
        helper_join(helpers[i]);
}

/* --- holders --- */

struct holder *holder_new(const char *name)
{
    struct holder *holder = shared_new(sizeof *holder);
    const hf_options options = HF_OPTIONS_INIT;
    holder->name = unique_name(name);
    holder->options = options;
    return holder;
}

static void note_holder_lost(hf_lock *lock, const char *why, void *arg)
{
    struct holder *holder = arg;
    (void)lock;
    CHECK(why != NULL && *why != '\0');
    atomic_store(&holder->told_ns, test_now_ns());
    gate_pass(&holder->told);
}

static void hold(void *arg)
{
    struct holder *holder = arg;
    hf_client *client = open_client();
    holder->options.on_lost = note_holder_lost;
    holder->options.arg = holder;
    hf_lock *lock = must_acquire(client, holder->name.text, &holder->options);
    atomic_store(&holder->token, hf_token(lock));
    gate_pass(&holder->held);
    do {
        int64_t now_ns = test_now_ns();
        if (hf_remaining_ms(lock) > 0)
            atomic_store(&holder->believed_ns, now_ns);
    } while (!gate_await_for(&holder->go, 1, 2));
    atomic_store(&holder->remaining_ms, hf_remaining_ms(lock));
    atomic_store(&holder->released, hf_release(lock, NULL));
    hf_close(client);
}

pid_t holder_launch(struct holder *holder)
{
    return helper_start(hold, holder);
}

pid_t holder_start(struct holder *holder)
{
    pid_t pid = holder_launch(holder);
    gate_await(&holder->held, 1);
    return pid;
}

void holder_finish(struct holder *holder, pid_t pid, hf_status expected)
{
    gate_pass(&holder->go);
    helper_join(pid);
    CHECK_STATUS(expected, (hf_status)atomic_load(&holder->released), NULL);
}

/* --- losses --- */

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct loss *loss = arg;
    CHECK(why != NULL && *why != '\0');
    CHECK(hf_remaining_ms(lock) <= 0);
    atomic_store(&loss->told_ns, test_now_ns());
    snprintf(loss->why, sizeof loss->why, "%s", why);
    gate_pass(&loss->told);
}

void record_loss(hf_options *options, struct loss *loss)
{
    options->on_lost = note_loss;
    options->arg = loss;
}

void await_lost_fd(const hf_lock *lock)
{
    struct pollfd one = { .fd = hf_lost_fd(lock), .events = POLLIN };
    REQUIRE(one.fd >= 0);
    int64_t left_ms = (test_deadline_ns() - test_now_ns()) / 1000000 - 1000;
    REQUIRE_INT(1, poll(&one, 1, left_ms > 0 ? (int)left_ms : 0));
    CHECK_INT(POLLIN, one.revents);
}

/* --- operations --- */

bool has_events(hf_client *client, int wait_ms)
{
    struct pollfd fd = { .fd = hf_events_fd(client), .events = POLLIN };
    REQUIRE(fd.fd >= 0);
    return poll(&fd, 1, wait_ms) > 0;
}

void check_no_event(hf_client *client)
{
    hf_event event;
    CHECK(!has_events(client, 0));
    CHECK_INT(0, (long long)hf_events(client, &event, 1, sizeof event));
}

hf_op *must_start(hf_client *client, const char *name, const hf_options *options, void *tag)
{
    hf_op *op = NULL;
    hf_error err = { 0 };
    const hf_status status = hf_start_acquire(&op, client, name, options, tag, &err);
    REQUIRE_STATUS(HF_OK, status, &err);
    REQUIRE(op != NULL);
    return op;
}
