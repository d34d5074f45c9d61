/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_once.c: what the sqlite: engine records as done: its clock, and what becomes of it when an answer, or the
 * file, is lost; and who is told by whom a lock was broken.
 */
#include "sqlite_support.h"
#include "who.h"

#include "engine.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOUR_MS INT64_C(3600000)

static hf_options once_per_hour(void)
{
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    options.ttl_ms = endless_ttl_ms();
    options.once_per_ms = HOUR_MS;
    return options;
}

static hf_status ask(hf_client *client)
{
    const hf_options options = once_per_hour();
    hf_lock *lock = NULL;
    const hf_status status = hf_try_acquire(&lock, client, "x", &options, NULL);
    hf_release(lock, NULL);
    return status;
}

static void do_it(hf_client *client)
{
    const hf_options options = once_per_hour();
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, "x", &options), &err), &err);
}

/* --- the clock --- */

static void check_moved(hf_client *client, const char *path, int64_t by_ms, hf_status expected)
{
    do_it(client);
    raw_do(path, "UPDATE holdfast_locks_done SET done = done + %lld", (long long)by_ms);
    CHECK_STATUS(expected, ask(client), NULL);
    CHECK_STATUS(HF_OK, hf_forget_done(client, "x", NULL), NULL);
    CHECK_STATUS(HF_OK, ask(client), NULL);
}

/* The row is moved, which is the same to it as if the clock had been. */
TEST(what_is_done_counts_by_the_wall_clock)
{
    for (int i = 0; i < STRATEGIES; i++) {
        char options[60];
        snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy_names[i]);
        const char *path = new_store("wall-clock", options);
        hf_client *client = open_client();
        check_moved(client, path, 0, HF_DONE);
        check_moved(client, path, -HOUR_MS / 2, HF_DONE);
        check_moved(client, path, -HOUR_MS - 1, HF_OK);
        check_moved(client, path, HOUR_MS / 2, HF_DONE);
        check_moved(client, path, HOUR_MS + 600000, HF_OK); /* the clock was set back by more than it counts for */
        hf_close(client);
    }
}

TEST(what_is_done_outlasts_a_reboot)
{
    const char *path = new_store("reboot", "synchronous=off");
    hf_client *client = open_client();
    do_it(client);
    hf_close(client);
    raw_do(path, "UPDATE holdfast_locks SET boot = 1, since = since + 1000000000000, renewed = since");
    client = open_client();
    CHECK_STATUS(HF_DONE, ask(client), NULL);
    hf_close(client);
}

TEST(nonsense_in_the_table_is_not_done)
{
    const char *path = new_store("nonsense", "synchronous=off");
    hf_client *client = open_client();
    static const char *const changes[] = { "lasts = -1", "lasts = 0", "done = 'x'", "done = -9223372036854775807",
                                           "lasts = 9223372036854775807, done = -9223372036854775807" };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        do_it(client);
        raw_do(path, "UPDATE holdfast_locks_done SET %s", changes[i]);
        CHECK_STATUS(HF_OK, ask(client), NULL);
    }
    hf_close(client);
}

/* --- trouble --- */

static hfi_time tell_time(void)
{
    return test_now_ns();
}

static uint64_t tell_random(void)
{
    return 77;
}

static void ignore(void *core, uint64_t serial)
{
    (void)serial;
    (void)core;
}

/* The release was done, and the answer lost: the core asks again, in the words of one who still holds it. */
static void check_repeated(const struct hfi_engine *engine, const char *url, hf_status expected, bool break_between)
{
    const struct hfi_env env = {
        .client = 5, .timeout_ns = HFI_SECOND, .now_ns = tell_time, .random = tell_random, .recheck = ignore
    };
    const struct hfi_url split = { "sqlite", url + strlen("sqlite:") };
    struct hfi_opened opened = { 0 };
    struct hfi_grant grant = { 0 };
    struct hfi_request request = {
        .name = "x", .owner = { 5, 1 }, .ttl_ms = 60000, .deadline_ns = test_deadline_ns(), .note = "", .once = true
    };
    hf_error err = { 0 };
    void *store = hfi_alloc(engine->store_size), *lock = hfi_alloc(engine->lock_size);
    void *before = hfi_alloc(engine->lock_size);
    REQUIRE_STATUS(HF_OK, engine->open(store, &split, &env, &opened, &err), &err);
    REQUIRE_STATUS(HF_OK, engine->attempt(store, lock, &request, &grant, &err), &err);
    memcpy(before, lock, engine->lock_size);
    request.done_ms = HOUR_MS;
    if (break_between)
        CHECK_STATUS(HF_OK, engine->evict(store, "x", "somebody", test_deadline_ns(), &err), &err);
    else
        CHECK_STATUS(HF_OK, engine->release(store, lock, &request, &err), &err);
    CHECK_STATUS(expected, engine->release(store, before, &request, &err), &err);
    engine->close(store);
    hfi_free(before);
    hfi_free(lock);
    hfi_free(store);
}

TEST(a_release_whose_answer_was_lost_is_found_to_be_done)
{
    char module[400], url[500];
    snprintf(module, sizeof module, "%s/sqlite.so", getenv("HOLDFAST_MODULES"));
    void *library = dlopen(module, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != NULL);
    const struct hfi_engine *engine = dlsym(library, "hfi_module_engine");
    for (int i = 0; i < STRATEGIES; i++) {
        const char *path = new_path("repeated");
        snprintf(url, sizeof url, "sqlite://%s?synchronous=off&strategy=%s", path, strategy_names[i]);
        check_repeated(engine, url, HF_OK, false);
        CHECK_INT(1, raw_number(path, "SELECT count(*) FROM holdfast_locks_done"));
        raw_do(path, "DELETE FROM holdfast_locks_done");
        check_repeated(engine, url, HF_LOST, true);
        CHECK_INT(0, raw_number(path, "SELECT count(*) FROM holdfast_locks_done"));
    }
    dlclose(library);
}

/* With a log SQLite itself would go on writing to the file that nobody else can open. */
TEST(what_is_recorded_in_a_file_that_is_gone_is_not_done)
{
    const char *path = new_store("gone", "synchronous=off&journal=wal");
    const hf_options options = once_per_hour();
    char other[500];
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", &options);
    static const char *const companions[] = { "", "-wal", "-shm" };
    for (int i = 0; i < 3; i++) {
        snprintf(other, sizeof other, "%s%s", path, companions[i]);
        unlink(other);
    }
    CHECK_STATUS(HF_LOST, hf_release_done(lock, NULL), NULL);
    CHECK_STATUS(HF_OK, ask(client), NULL);
    hf_close(client);
}

/* --- who breaks it --- */

struct told {
    struct gate gate;
    char why[300];
};

static void note_why(hf_lock *lock, const char *why, void *arg)
{
    struct told *told = arg;
    (void)lock;
    snprintf(told->why, sizeof told->why, "%s", why);
    gate_pass(&told->gate);
}

TEST(a_holder_is_told_who_breaks_its_lock)
{
    struct told *told = shared_new(sizeof *told);
    hf_options options = HF_OPTIONS_INIT;
    new_store("told", "synchronous=off");
    hf_client *client = open_client(), *other = open_client();
    options.on_lost = note_why;
    options.arg = told;
    options.ttl_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(client, "x", &options);
    CHECK_STATUS(HF_OK, hf_break(other, "x", NULL), NULL);
    gate_await(&told->gate, 1);
    check_we_broke_it(told->why);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

/* It was given the lock while it stood still, and that was broken before it took it. It waits on, and what it holds in
 * the end is not lost by the news of then. */
TEST(who_is_broken_before_it_holds_waits_on)
{
    new_store("broken-gift", "synchronous=off");
    struct holder *waiter = holder_new("x");
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = endless_ttl_ms();
    options.owner = HF_OWNER_HANDLE;
    waiter->options.ttl_ms = endless_ttl_ms();
    hf_client *client = open_client();
    const char *name = waiter->name.text;
    hf_lock *lock = must_acquire(client, name, &options);
    const pid_t pid = holder_launch(waiter);
    await_waiters(client, name, 1);
    helper_stop(pid);
    must_release(lock);
    CHECK_STATUS(HF_OK, hf_break(client, name, NULL), NULL);
    lock = must_acquire(client, name, &options);
    helper_continue(pid);
    await_waiters(client, name, 1);
    must_release(lock);
    gate_await(&waiter->held, 1);
    holder_finish(waiter, pid, HF_OK);
    CHECK_INT(0, gate_count(&waiter->told));
    hf_close(client);
}
