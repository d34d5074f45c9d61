/* SPDX-License-Identifier: MIT
 *
 * engine_support.c: see engine_support.h.
 */
#include "engine_support.h"
#include "who.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What the conformance suite's support expects of a main program. */
extern uint32_t run_tag;
extern uint64_t run_seed;
const char *store_url;
uint32_t store_caps;
uint32_t run_tag = 1;
uint64_t run_seed = 1;

void use_url(const char *url)
{
    static char kept[1000];
    REQUIRE(snprintf(kept, sizeof kept, "%s", url) < (int)sizeof kept);
    store_url = kept;
    hf_client *client = open_client();
    store_caps = hf_capabilities(client);
    hf_close(client);
}

void check_error(const hf_error *err, hf_status status, const char *words)
{
    CHECK_STATUS(status, err->status, err);
    if (!strstr(err->message, words))
        FAIL("\"%s\" is not in: %s", words, err->message);
    CHECK(strstr(err->message, "sesame") == NULL);
}

void check_open_at(hf_status status, const char *words, const char *format, ...)
{
    char url[1500];
    va_list args;
    va_start(args, format);
    REQUIRE(vsnprintf(url, sizeof url, format, args) < (int)sizeof url);
    va_end(args);
    check_open(url, status, words);
}

void check_works(const char *url)
{
    store_url = url;
    hf_client *client = open_client();
    CHECK(strstr(hf_url(client), "sesame") == NULL);
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}

void check_open(const char *url, hf_status status, const char *words)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    if (!CHECK_STATUS(status, hf_open(&client, url, NULL, &err), &err))
        test_note("for %s", url);
    if (status != HF_OK)
        check_error(&err, status, words);
    CHECK(strstr(err.message, "sesame") == NULL);
    if (client)
        CHECK(strstr(hf_url(client), "sesame") == NULL);
    hf_close(client);
}

/* --- who broke it --- */

static int count_one(const hf_info *info, void *arg)
{
    (void)info;
    ++*(unsigned *)arg;
    return 0;
}

static void check_told_when_it_renews(hf_client *client, hf_client *other, bool waited)
{
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    struct waiter waiter;
    hf_error err = { 0 };
    unsigned shown = 0;
    record_loss(&options, &loss);
    options.ttl_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(client, "renewed", &options);
    if (waited) {
        waiter_start(&waiter, other, "renewed", NULL);
        await_waiters(other, "renewed", 1);
    }
    CHECK_STATUS(HF_OK, hf_break(other, "renewed", NULL), NULL);
    if (waited)
        waiter_join(&waiter, HF_OK);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    check_we_broke_it(err.message);
    gate_await(&loss.told, 1);
    check_we_broke_it(loss.why);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    if (waited) {
        CHECK(waiter.token > 0);
        must_release(waiter.lock);
    }
    CHECK_STATUS(HF_OK, hf_inspect(other, "renewed", count_one, &shown, NULL), NULL);
    CHECK_INT(0, shown);
}

/* On mysql: a lock beyond the eighth has no connection of its own, which the break would end: nobody but the release
 * finds out. */
static void check_told_when_it_releases(hf_client *client, hf_client *other)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *others[8];
    hf_error err = { 0 };
    options.ttl_ms = endless_ttl_ms();
    for (unsigned i = 0; i < 8; i++)
        others[i] = must_acquire(client, numbered_name("others", i).text, &options);
    hf_lock *lock = must_acquire(client, "released", &options);
    CHECK_STATUS(HF_OK, hf_break(other, "released", NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    check_we_broke_it(err.message);
    for (unsigned i = 0; i < 8; i++)
        must_release(others[i]);
}

void check_broken_is_told(void)
{
    hf_client *client = open_client(), *other = open_client();
    check_told_when_it_renews(client, other, false);
    check_told_when_it_renews(client, other, true);
    check_told_when_it_releases(client, other);
    hf_close(client);
    hf_close(other);
}

void check_broken_is_told_after(const char *bound, bool excludes)
{
    hf_client *client = open_client(), *other = open_client(), *before = NULL;
    const hf_options options = with_ttl(endless_ttl_ms());
    hf_error err = { 0 };
    unsigned shown = 0;
    REQUIRE_STATUS(HF_OK, hf_open(&before, bound, NULL, &err), &err);
    hf_lock *lock = must_acquire(before, "renewed", NULL);
    CHECK_STATUS(HF_OK, hf_break(before, "renewed", NULL), NULL); /* it writes nothing more */
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_told_when_it_renews(client, other, false);
    lock = must_acquire(before, "renewed", NULL);
    if (!excludes) {
        hf_lock *beside = must_acquire(client, "renewed", &options);
        CHECK_STATUS(HF_OK, hf_break(other, "renewed", NULL), NULL);
        CHECK_STATUS(HF_LOST, hf_renew(beside, 0, &err), &err); /* a release may meet the end of its connection */
        CHECK(strstr(err.message, "broken by") == NULL);
        CHECK_STATUS(HF_LOST, hf_release(beside, NULL), NULL);
    }
    CHECK_STATUS(HF_OK, hf_inspect(before, "renewed", count_one, &shown, NULL), NULL);
    CHECK_INT(1, shown);
    must_release(lock);
    hf_close(before);
    hf_close(client);
    hf_close(other);
}

/* The middle one of three is not broken, and stays. */
void check_broken_is_told_with_others(uint32_t ttl_ms)
{
    hf_client *client = open_client(), *other = open_client();
    struct loss losses[3] = { 0 };
    hf_lock *locks[3];
    for (unsigned i = 0; i < 3; i++) {
        hf_options options = HF_OPTIONS_INIT;
        record_loss(&options, &losses[i]);
        options.ttl_ms = ttl_ms;
        locks[i] = must_acquire(client, numbered_name("many", i).text, &options);
    }
    for (unsigned i = 0; i < 3; i += 2) {
        CHECK_STATUS(HF_OK, hf_break(other, numbered_name("many", i).text, NULL), NULL);
        gate_await(&losses[i].told, 1);
        check_we_broke_it(losses[i].why);
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    }
    must_release(locks[1]);
    CHECK_INT(0, gate_count(&losses[1].told));
    hf_close(client);
    hf_close(other);
}

void check_broken_is_not_told_of_others(const char *name, void *server, int64_t (*notes)(void *server),
                                        void (*remove)(void *server, const char *name))
{
    hf_client *client = open_client(), *other = open_client();
    const hf_options options = with_ttl(endless_ttl_ms());
    hf_error err = { 0 };
    const int64_t before = notes(server);
    must_release(must_acquire(client, name, &options));
    CHECK_STATUS(HF_OK, hf_break(other, name, NULL), NULL);
    CHECK_INT(before, notes(server));
    hf_lock *lock = must_acquire(client, name, &options);
    CHECK_STATUS(HF_OK, hf_break(other, name, NULL), NULL);
    CHECK_INT(before + 1, notes(server));
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    hf_release(lock, NULL);
    lock = must_acquire(client, name, &options);
    remove(server, name);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK(strstr(err.message, "the store no longer has it") != NULL);
    hf_release(lock, NULL);
    hf_close(client);
    hf_close(other);
}

void found(hf_finding_level level, const char *what, const char *words)
{
    hf_client *client = open_patient_client();
    must_find(find_with(client, 0), level, what, words);
    hf_close(client);
}

void check_rests(void)
{
    struct timespec before, after;
    REQUIRE(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before) == 0);
    pause_ms(1000);
    REQUIRE(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after) == 0);
    const long used_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    if (used_ms > 100)
        FAIL("%ld ms of processor time in a second", used_ms);
}
