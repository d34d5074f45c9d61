/* SPDX-License-Identifier: MIT
 *
 * test.h: a small test runner. Every test runs in a process and a process group of its own, with its own time limit,
 * because a lock test that fails usually hangs. Output is TAP; what a test prints is shown only if it fails.
 *
 *     TEST(second_acquire_is_busy)
 *     {
 *         hf_error err = { 0 };
 *         REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", NULL, &err), &err);
 *         CHECK_INT(2, number_of_things());
 *     }
 *
 * CHECK… counts a failure and goes on, REQUIRE… ends the test; both work in threads and in forked helpers too. A
 * program without a main() gets one from the library: PROGRAM [--list] [SUBSTRING…].
 */
#ifndef TEST_H
#define TEST_H

#include <holdfast.h>
#include <stdbool.h>
#include <stdint.h>

/* Built with AddressSanitizer or ThreadSanitizer. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

struct test {
    const char *name;
    const char *file;
    int line;
    int limit_s;
    uint32_t needs; /* for test_run()'s filter; bits that must be there */
    uint32_t lacks; /* bits that must not be there */
    void (*run)(void);
    struct test *next;
};

#define TEST_DEFINE(name_, limit_s_, needs_, lacks_)                                                                   \
    static void test_##name_(void);                                                                                    \
    static struct test test_entry_##name_ = { #name_, __FILE__, __LINE__, limit_s_, needs_, lacks_, test_##name_, 0 }; \
    __attribute__((constructor)) static void test_register_##name_(void)                                               \
    {                                                                                                                  \
        test_register(&test_entry_##name_);                                                                            \
    }                                                                                                                  \
    static void test_##name_(void)

#define TEST(name_) TEST_DEFINE(name_, 60, 0, 0)
#define TEST_LIMIT(name_, seconds_) TEST_DEFINE(name_, seconds_, 0, 0)

void test_register(struct test *test);

/* Says why a test is not selected in `reason` and returns false, or returns true. */
typedef bool (*test_filter)(const struct test *test, char *reason, size_t size);

/* Runs the tests whose names contain one of `count` substrings (none: all) and none of those behind "--but", or lists
 * them; returns main()'s value. `filter` may be NULL. */
int test_run(int count, char **substrings, test_filter filter);

/* HOLDFAST_TEST_SLOW, at least 1: what all time limits are multiplied by under valgrind and sanitizers. */
int test_slowness(void);

/* `ms`, longer in slow runs but not by the whole factor: for times that a test itself spends. */
uint32_t test_ms(uint32_t ms);

/* Nanoseconds on CLOCK_BOOTTIME: the same clock in all processes. */
int64_t test_now_ns(void);

/* When this test will be killed, on that clock: the bound of every wait. */
int64_t test_deadline_ns(void);

/* In a child made by plain fork(): ends it with the failures that it counted. Nothing of the parent's is run at
 * exit. */
_Noreturn void test_exit_child(void);

/* A comment line in the output. */
void test_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- what the macros call: true if the check held --- */
bool test_check(bool held, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
bool test_check_int(const char *file, int line, const char *text, int64_t expected, int64_t actual);
bool test_check_str(const char *file, int line, const char *text, const char *expected, const char *actual);
bool test_check_status(const char *file, int line, const char *text, hf_status expected, hf_status actual,
                       const hf_error *err);
_Noreturn void test_abort(void);
/* This system does not let the test do what it is about, and `why`: it is neither passed nor failed, and named in the
 * last lines of the whole run. For what belongs to the system; what tools/setup could install is no reason. */
_Noreturn void test_cannot_run(const char *why);

#define CHECK(condition_) test_check((condition_), __FILE__, __LINE__, "%s does not hold", #condition_)
#define CHECK_INT(expected_, actual_)                                                                                  \
    test_check_int(__FILE__, __LINE__, #actual_, (int64_t)(expected_), (int64_t)(actual_))
#define CHECK_STR(expected_, actual_) test_check_str(__FILE__, __LINE__, #actual_, (expected_), (actual_))
#define CHECK_STATUS(expected_, call_, err_) test_check_status(__FILE__, __LINE__, #call_, (expected_), (call_), (err_))
#define FAIL(...) test_check(false, __FILE__, __LINE__, __VA_ARGS__)

#define TEST_REQUIRE(check_)                                                                                           \
    do {                                                                                                               \
        if (!(check_))                                                                                                 \
            test_abort();                                                                                              \
    } while (0)
#define REQUIRE(condition_) TEST_REQUIRE(CHECK(condition_))
#define REQUIRE_INT(expected_, actual_) TEST_REQUIRE(CHECK_INT(expected_, actual_))
#define REQUIRE_STATUS(expected_, call_, err_) TEST_REQUIRE(CHECK_STATUS(expected_, call_, err_))

#endif
