/* SPDX-License-Identifier: MIT
 *
 * sqlite_support.c: see sqlite_support.h.
 */
#include "sqlite_support.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const strategy_names[STRATEGIES] = { "lease", "insert", "version" };

/* --- databases --- */

const char *new_path(const char *label)
{
    static char path[400];
    static const char *const companions[] = { "", "-journal", "-wal", "-shm" };
    char command[500];
    snprintf(path, sizeof path, "%s/%s.db", getenv("TEST_DIRECTORY"), label);
    for (size_t i = 0; i < sizeof companions / sizeof companions[0]; i++) {
        snprintf(command, sizeof command, "%s%s", path, companions[i]);
        unlink(command);
    }
    return path;
}

const char *new_store(const char *label, const char *options)
{
    char url[500];
    const char *path = new_path(label);
    snprintf(url, sizeof url, "sqlite://%s?%s", path, options);
    use_url(url);
    return path;
}

void check_open_path(const char *path, const char *options, hf_status status, const char *words)
{
    char url[600];
    snprintf(url, sizeof url, "sqlite://%s?%s", path, options);
    check_open(url, status, words);
}

/* --- SQL of our own --- */

static int64_t run(const char *path, const char *format, va_list arguments)
{
    int64_t number = -1;
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    char *text = sqlite3_vmprintf(format, arguments);
    const char *rest = text;
    REQUIRE_INT(SQLITE_OK, sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL));
    sqlite3_busy_timeout(db, 10000);
    while (rest && *rest) {
        int code = sqlite3_prepare_v2(db, rest, -1, &statement, &rest);
        while (code == SQLITE_OK && (code = sqlite3_step(statement)) == SQLITE_ROW) {
            number = sqlite3_column_int64(statement, 0);
            code = SQLITE_OK;
        }
        if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_MISUSE)
            FAIL("%s: %s", text, sqlite3_errmsg(db));
        sqlite3_finalize(statement);
    }
    sqlite3_free(text);
    sqlite3_close(db);
    return number;
}

void raw_do(const char *path, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    run(path, format, arguments);
    va_end(arguments);
}

int64_t raw_number(const char *path, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int64_t number = run(path, format, arguments);
    va_end(arguments);
    return number;
}

void check_intact(const char *path)
{
    CHECK_INT(1, raw_number(path, "SELECT integrity_check = 'ok' FROM pragma_integrity_check LIMIT 1"));
}

/* --- a counter, and random deaths --- */

struct crowd {
    _Atomic bool over;
    _Atomic uint32_t inside, entries, overlaps, disorders;
    struct fenced_register place;
    uint32_t ttl_ms;
};

static void compete(void *arg)
{
    struct crowd *crowd = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = crowd->ttl_ms;
    hf_client *client = open_client();
    while (!atomic_load(&crowd->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, "counter", &options, &err);
        if (status == HF_UNAVAILABLE || status == HF_UNKNOWN)
            continue;
        REQUIRE_STATUS(HF_OK, status, &err);
        /* Who was here before has left, or was killed. */
        const uint32_t me = (uint32_t)getpid();
        const uint32_t before = atomic_exchange(&crowd->inside, me);
        if (before != 0 && kill((pid_t)before, 0) == 0 && hf_remaining_ms(lock) > 0)
            atomic_fetch_add(&crowd->overlaps, 1);
        if (!fenced_write(&crowd->place, hf_token(lock)) && hf_remaining_ms(lock) > 0)
            atomic_fetch_add(&crowd->disorders, 1);
        atomic_fetch_add(&crowd->entries, 1);
        uint32_t expected = me;
        atomic_compare_exchange_strong(&crowd->inside, &expected, 0);
        hf_release(lock, NULL);
    }
    hf_close(client);
}

static void await_entries(struct crowd *crowd, uint32_t count)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    while (atomic_load(&crowd->entries) < count) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 2000000000LL);
        nanosleep(&pause, NULL);
    }
}

void check_crowd(const char *strategy, int blows, int seconds)
{
    enum { PROCESSES = 8 };
    pid_t pids[PROCESSES];
    struct crowd *crowd = shared_new(sizeof *crowd);
    const int64_t end_ns = test_now_ns() + seconds * 1000000000LL;
    crowd->ttl_ms = short_ttl_ms();
    for (int i = 0; i < PROCESSES; i++)
        pids[i] = helper_start(compete, crowd);
    for (int blow = 0; blow < blows || test_now_ns() < end_ns; blow++) {
        await_entries(crowd, atomic_load(&crowd->entries) + 20);
        random_pause(20000);
        const uint32_t victim = random_below(PROCESSES);
        helper_kill(pids[victim]);
        pids[victim] = helper_start(compete, crowd);
    }
    atomic_store(&crowd->over, true);
    for (int i = 0; i < PROCESSES; i++)
        helper_join(pids[i]);
    CHECK_INT(0, atomic_load(&crowd->overlaps));
    CHECK_INT(0, atomic_load(&crowd->disorders));
    test_note("%s: %u entries", strategy, atomic_load(&crowd->entries));
}
