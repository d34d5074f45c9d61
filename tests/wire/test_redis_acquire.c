/* SPDX-License-Identifier: MIT
 *
 * test_redis_acquire.c: asking for a lock: the script by its hash, by its text, with WAIT behind it, and every way in
 * which the answer can be lost, late or wrong.
 */
#include "wire.h"

/* --- right answers --- */

TEST(granted_and_released)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello\nacquire 1 30000 0\ngranted 41\nrelease 1\nsend :1\\r\\n\neof\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    CHECK_INT(41, hf_token(lock));
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    hf_close(wire.client);
    wire.client = NULL;
    wire_end(&wire);
}

TEST(replies_in_single_bytes)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello\nacquire 1 30000 0\ndribble :41\\r\\n\nrelease 1\ndribble :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    CHECK_INT(41, hf_token(lock));
    wire_release(&wire, lock, HF_OK);
}

TEST(busy_says_by_whom)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    /* Nothing was taken, so nothing is given back. */
    wire_serve(&wire, "hello\nacquire 1 30000 0\nbusy 2500 -1 1000000\neof\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    CHECK(lock == NULL);
    CHECK_STR("held by alpha:77, 2.5 s left", err.message);
    hf_close(wire.client);
    wire.client = NULL;
    wire_end(&wire);
}

TEST(an_unknown_script_is_sent_as_text)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello\nacquire 1 30000 0\nsend -NOSCRIPT No matching script. Please use EVAL.\\r\\n\n"
                      "eval-acquire 1 30000 0\ngranted 41\n"
                      "release 1\nsend -NOSCRIPT No matching script.\\r\\n\neval-release 1\nsend :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    wire_release(&wire, lock, HF_OK);
}

/* --- lost answers --- */

/* An acquire whose answer is lost after `asked`; it must be undone by the owner that asked. */
static void lose_answers(const char *query, const char *asked, const char *half, const char *behind)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = (hf_lock *)&wire;
        char fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], half);
        wire_serve(&wire, "hello first\n%s%s%s" WIRE_GIVE_BACK("undo 1"), asked, behind, fault);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, query, wire_faults[i].slow ? test_ms(300) : 5000, &err), &err);
        const int64_t start = test_now_ns();
        CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
        CHECK((test_now_ns() - start) / 1000000 < wire.timeout_ms + WIRE_SLACK_MS);
        CHECK(lock == NULL);
        wire_check_words(HF_UNKNOWN, &err);
        wire_end(&wire);
    }
}

TEST_LIMIT(lost_answers_to_the_hash, 60)
{
    lose_answers("", "acquire 1 30000 0\n", ":41\\r", "");
}

TEST_LIMIT(lost_answers_to_the_text, 60)
{
    lose_answers("", "acquire 1 30000 0\nsend -NOSCRIPT No matching script.\\r\\n\neval-acquire 1 30000 0\n", ":41\\r",
                 "");
}

TEST_LIMIT(lost_answers_to_the_text_after_silence_in_between, 60)
{
    lose_answers("", "acquire 1 30000 0\nsend -NOSCR\nsend IPT x\\r\\n\neval-acquire 1 30000 0\n", ":", "");
}

/* 700 ms, or what the request's own deadline leaves of them. */
#define WAIT "expect *3\\r\\n$4\\r\\nWAIT\\r\\n$1\\r\\n2\\r\\n$3\\r\\n\\?\\?\\?\\r\\n\n"
#define REPLICAS "?replicas=2&replica_timeout=700"

TEST_LIMIT(lost_answers_with_replicas, 60)
{
    lose_answers(REPLICAS, "acquire 1 30000 0\n" WAIT, ":41\\r", "");
}

TEST_LIMIT(lost_answers_of_replicas, 60)
{
    lose_answers(REPLICAS, "acquire 1 30000 0\n" WAIT, ":", "granted 41\n");
}

/* Nobody waits for the answer any more: it cannot come, nor can the question if it had not arrived yet. */
TEST(a_late_answer)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello first\nacquire 1 30000 0\nretry\nhello\nundo 1\ncut\ndone\n"
                      "use first\ntorn\nretry\nhello\nundo 1\nsend :1\\r\\n\ndone\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", test_ms(300), &err), &err);
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    CHECK(lock == NULL);
    wire_end(&wire);
}

TEST(the_command_timeout_of_the_url)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello\nacquire 1 30000 0\neof\n" WIRE_GIVE_BACK("undo 1"));
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "?timeout=100", 15000, &err), &err);
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    CHECK((test_now_ns() - start) / 1000000 < 100 + WIRE_SLACK_MS);
    wire_end(&wire);
}

/* --- a wait goes on through trouble --- */

TEST_LIMIT(a_waiter_asks_again_as_the_same_owner, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        char fault[300];
        const hf_options options = wire_options(10000);
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":4");
        wire_serve(&wire,
                   "hello\nacquire 1 20000 0\n%sretry\nhello\nacquire 1 20000 0\ngranted 42\ndone\n"
                   "undo 1\nsend :1\\r\\n\n",
                   fault);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", wire_faults[i].slow ? test_ms(300) : 5000, &err), &err);
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, wire.client, "job", &options, &err), &err);
        CHECK_INT(42, hf_token(lock));
        wire_release(&wire, lock, HF_OK);
    }
}

/* Whatever the server does, the wait ends with its own deadline, and not before. */
TEST(a_wait_keeps_its_deadline)
{
    static const char *const troubles[] = { "", "cut\n", "send -LOADING x\\r\\n\n" };
    for (size_t i = 0; i < 3; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        const hf_options options = wire_options(300);
        test_note("trouble %zu", i);
        wire_serve(&wire, "hello\nacquire 1 20000 0\n%srefuse\n", troubles[i]);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        const int64_t start = test_now_ns();
        const hf_status status = hf_acquire(&lock, wire.client, "job", &options, &err);
        const int64_t took_ms = (test_now_ns() - start) / 1000000;
        if (status != HF_UNAVAILABLE)
            CHECK_STATUS(HF_UNKNOWN, status, &err);
        CHECK(took_ms >= 300 && took_ms < 300 + WIRE_SLACK_MS);
        CHECK(lock == NULL);
        wire_check_words(status, &err);
        wire_end(&wire);
    }
}

/* --- answers that make no sense --- */

TEST(answers_that_make_no_sense_are_undone)
{
    static const char *const answers[] = { "+OK",
                                           ":0",
                                           ":-1",
                                           "$2\\r\\nno",
                                           "$-1",
                                           "*-1",
                                           "*0",
                                           "*1\\r\\n:41",
                                           "*2\\r\\n:41\\r\\n:5",
                                           "*4\\r\\n:-1\\r\\n:5\\r\\n:100\\r\\n:-1",
                                           "*5\\r\\n:-1\\r\\n:5\\r\\n+x\\r\\n:-1\\r\\n$1\\r\\nx",
                                           "*5\\r\\n:-1\\r\\n:5\\r\\n:100\\r\\n:-1\\r\\n:0",
                                           "*5\\r\\n*1\\r\\n:41\\r\\n:5\\r\\n:5\\r\\n:5\\r\\n$1\\r\\nx" };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        test_note("%s", answers[i]);
        wire_serve(&wire,
                   "hello\nacquire 1 30000 0\nsend %s\\r\\n\n"
                   "release 1\ncut\nretry\nhello\nrelease 1\nsend :1\\r\\n\ndone\n",
                   answers[i]);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        CHECK_STATUS(HF_INTERNAL, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
        CHECK(lock == NULL);
        wire_check_words(HF_INTERNAL, &err);
        wire_end(&wire);
    }
}

TEST(absurd_numbers_in_an_answer)
{
    static const char *const numbers[] = { "9223372036854775807 0 9223372036854775807",
                                           "-9223372036854775808 9223372036854775807 -9223372036854775808" };
    for (size_t i = 0; i < 2; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        wire_serve(&wire, "hello\nacquire 1 30000 0\nbusy %s\n", numbers[i]);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 500, &err), &err);
        CHECK_STATUS(HF_BUSY, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
        wire_check_words(HF_BUSY, &err);
        wire_end(&wire);
    }
}

/* The server did nothing, so nothing is given back: the next thing on the connection is its end. */
TEST(refusals)
{
    for (size_t i = 0; i < wire_refusal_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        test_note("%s", wire_refusals[i].reply);
        wire_serve(&wire, "hello\nacquire 1 30000 0\nsend -%s\\r\\n\neof\n", wire_refusals[i].reply);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        CHECK_STATUS(wire_refusals[i].status, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
        CHECK(lock == NULL);
        CHECK(strstr(err.message, wire_refusals[i].words) != NULL);
        CHECK(wire_refusals[i].status == HF_INTERNAL || strstr(err.message, "hf:{job}") != NULL);
        wire_check_words(wire_refusals[i].status, &err);
        hf_close(wire.client);
        wire.client = NULL;
        wire_end(&wire);
    }
}

TEST(trouble_that_passes_is_not_noticed)
{
    static const char *const passing[] = { "LOADING x", "BUSY x", "TRYAGAIN x", "READONLY x", "OOM x", "MISCONF x" };
    for (size_t i = 0; i < 6; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        const hf_options options = wire_options(10000);
        wire_serve(&wire,
                   "hello\nacquire 1 20000 0\nsend -%s\\r\\n\n%sacquire 1 20000 0\nsend -%s\\r\\n\n%s"
                   "acquire 1 20000 0\ngranted 42\nrelease 1\nsend :1\\r\\n\n",
                   passing[i], wire_after(passing[i]), passing[i], wire_after(passing[i]));
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, wire.client, "job", &options, &err), &err);
        wire_release(&wire, lock, HF_OK);
    }
}

/* --- replicas --- */

TEST(enough_replicas)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello\nacquire 1 30000 0\n" WAIT "granted 41\nsend :3\\r\\n\nrelease 1\nsend :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, REPLICAS, 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    wire_release(&wire, lock, HF_OK);
}

/* Held on too few servers is not held: it is given back before the caller hears of it. */
TEST(too_few_replicas_or_nonsense_from_them)
{
    static const struct {
        const char *reply;
        hf_status status;
    } replies[] = { { ":1", HF_UNAVAILABLE },
                    { ":-5", HF_UNAVAILABLE },
                    { "+OK", HF_UNAVAILABLE },
                    { "*-1", HF_UNAVAILABLE },
                    { "*2\\r\\n:0\\r\\n:9", HF_UNAVAILABLE },
                    { "*2\\r\\n+a\\r\\n+b", HF_UNAVAILABLE },
                    { "-ERR unknown command 'WAIT'", HF_UNSUPPORTED },
                    { "-NOPERM no wait for you", HF_DENIED },
                    { "-ERR ACL failure in script: No permissions to access a channel", HF_DENIED } }; /* Redis 8.0 */
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        test_note("%s", replies[i].reply);
        wire_serve(&wire,
                   "hello\nacquire 1 30000 0\n" WAIT "granted 41\nsend %s\\r\\n\n"
                   "release 1\ncut\nretry\nhello\nrelease 1\nsend :1\\r\\n\ndone\n",
                   replies[i].reply);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, REPLICAS, 5000, &err), &err);
        CHECK_STATUS(replies[i].status, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
        CHECK(lock == NULL);
        wire_check_words(replies[i].status, &err);
        wire_end(&wire);
    }
}

TEST(busy_with_replicas)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "hello\nacquire 1 30000 0\n" WAIT "busy 900 -1 1000000\nsend :0\\r\\n\neof\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, REPLICAS, 5000, &err), &err);
    CHECK_STATUS(HF_BUSY, hf_try_acquire(&lock, wire.client, "job", NULL, &err), &err);
    hf_close(wire.client);
    wire.client = NULL;
    wire_end(&wire);
}
