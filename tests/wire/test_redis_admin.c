/* SPDX-License-Identifier: MIT
 *
 * test_redis_admin.c: looking at locks, breaking them and guarding with them, through every trouble on the wire.
 */
#include "wire.h"

#define KEYS "send *2\\r\\n$1\\r\\n0\\r\\n*1\\r\\n$8\\r\\nhf:{job}\\r\\n\n"
#define NOBODY "send *2\\r\\n$1\\r\\n0\\r\\n*0\\r\\n\n"
#define LOOK "*7\\r\\n:1\\r\\n:41\\r\\n:900\\r\\n:100\\r\\n$12\\r\\nalpha 77 hey\\r\\n$1\\r\\na\\r\\n$1\\r\\nb\\r\\n"

struct seen {
    int count;
    hf_info last;
    char note[40], host[40], name[40];
};

static int remember(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    seen->last = *info;
    snprintf(seen->note, sizeof seen->note, "%s", info->note);
    snprintf(seen->host, sizeof seen->host, "%s", info->host);
    snprintf(seen->name, sizeof seen->name, "%s", info->name);
    return 0;
}

static hf_status inspect(struct wire *wire, struct seen *seen, hf_error *err)
{
    *seen = (struct seen){ .count = 0 };
    return hf_inspect(wire->client, NULL, remember, seen, err);
}

/* --- looking --- */

TEST(a_lock_and_its_waiters)
{
    struct wire wire;
    struct seen seen;
    hf_error err = { 0 };
    wire_serve(&wire, "hello\nscan 0\nsend *2\\r\\n$2\\r\\n17\\r\\n*0\\r\\n\nscan 17\n" KEYS
                      "look\nsend -NOSCRIPT x\\r\\n\neval-look\ndribble " LOOK "\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    CHECK_STATUS(HF_OK, inspect(&wire, &seen, &err), &err);
    CHECK_INT(1, seen.count);
    CHECK_STR("job", seen.name);
    CHECK_STR("alpha", seen.host);
    CHECK_STR("hey", seen.note);
    CHECK_INT(77, seen.last.pid);
    CHECK_INT(41, seen.last.token);
    CHECK_INT(900, seen.last.remaining_ms);
    CHECK_INT(100, seen.last.held_ms);
    CHECK_INT(2, seen.last.waiters);
    wire_end(&wire);
}

/* A lock that has ended since SCAN, and keys that are nobody's lock. */
TEST(what_is_not_shown)
{
    struct wire wire;
    struct seen seen;
    hf_error err = { 0 };
    wire_serve(&wire, "hello\nscan 0\nsend *2\\r\\n$1\\r\\n0\\r\\n*8\\r\\n$8\\r\\nhf:{job}\\r\\n$3\\r\\nhf:\\r\\n"
                      "$4\\r\\nhf:{\\r\\n$7\\r\\nhf:{job\\r\\n$7\\r\\nhf:job}\\r\\n$2\\r\\nno\\r\\n:5\\r\\n$8\\r\\nhf:{"
                      "j\\x00b}\\r\\n\n"
                      "look\nsend *1\\r\\n:0\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    CHECK_STATUS(HF_OK, inspect(&wire, &seen, &err), &err);
    CHECK_INT(0, seen.count);
    wire_end(&wire);
}

/* Looking changes nothing, so nothing about it is unknown; but what was not answered is not "there is none". */
static void fail_to_look(const char *asked, const char *half)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        struct seen seen;
        hf_error err = { 0 };
        char fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], half);
        wire_serve(&wire, "hello\n%s%shello\nscan 0\n" NOBODY, asked, fault);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", wire_faults[i].slow ? test_ms(300) : 5000, &err), &err);
        const int64_t start = test_now_ns();
        CHECK_STATUS(HF_UNAVAILABLE, inspect(&wire, &seen, &err), &err);
        CHECK((test_now_ns() - start) / 1000000 < wire.timeout_ms + WIRE_SLACK_MS);
        wire_check_words(HF_UNAVAILABLE, &err);
        CHECK_INT(0, seen.count);
        CHECK_STATUS(HF_OK, inspect(&wire, &seen, &err), &err);
        wire_end(&wire);
    }
}

TEST_LIMIT(lost_answers_to_scan, 60)
{
    fail_to_look("scan 0\n", "*2\\r\\n$1\\r\\n0\\r\\n*1\\r\\n$8");
}

TEST_LIMIT(lost_answers_to_look, 60)
{
    fail_to_look("scan 0\n" KEYS "look\n", "*7\\r\\n:1\\r\\n:41\\r\\n:900\\r\\n:100\\r\\n$12\\r\\nalp");
}

TEST(nonsense_where_locks_should_be)
{
    static const char *const answers[] = {
        "scan 0\nsend +OK\\r\\n\n",
        "scan 0\nsend *0\\r\\n\n",
        "scan 0\nsend *-1\\r\\n\n",
        "scan 0\nsend *2\\r\\n$1\\r\\n0\\r\\n$1\\r\\n0\\r\\n\n",
        "scan 0\nsend *2\\r\\n:0\\r\\n*0\\r\\n\n",
        "scan 0\n" KEYS "look\nsend +OK\\r\\n\n",
        "scan 0\n" KEYS "look\nsend *-1\\r\\n\n",
        "scan 0\n" KEYS "look\nsend *0\\r\\n\n",
        "scan 0\n" KEYS "look\nsend *2\\r\\n:1\\r\\n:41\\r\\n\n",
        "scan 0\n" KEYS "look\nsend *5\\r\\n:1\\r\\n:41\\r\\n:9\\r\\n:1\\r\\n:0\\r\\n\n",
        "scan 0\n" KEYS "look\nsend *5\\r\\n:1\\r\\n+x\\r\\n+x\\r\\n+x\\r\\n$1\\r\\nx\\r\\n\n",
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct wire wire;
        struct seen seen;
        hf_error err = { 0 };
        test_note("%s", answers[i]);
        wire_serve(&wire, "hello\n%s", answers[i]);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        CHECK_STATUS(HF_INTERNAL, inspect(&wire, &seen, &err), &err);
        wire_check_words(HF_INTERNAL, &err);
        CHECK_INT(0, seen.count);
        wire_end(&wire);
    }
}

static void refuse_to_show(const char *asked)
{
    for (size_t i = 0; i < wire_refusal_count; i++) {
        struct wire wire;
        struct seen seen;
        hf_error err = { 0 };
        test_note("%s", wire_refusals[i].reply);
        wire_serve(&wire, "hello\n%ssend -%s\\r\\n\n", asked, wire_refusals[i].reply);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        CHECK_STATUS(wire_refusals[i].status, inspect(&wire, &seen, &err), &err);
        CHECK(strstr(err.message, wire_refusals[i].words) != NULL);
        wire_check_words(wire_refusals[i].status, &err);
        wire_end(&wire);
    }
}

TEST(refusals_of_scan)
{
    refuse_to_show("scan 0\n");
}

TEST(refusals_of_look)
{
    refuse_to_show("scan 0\n" KEYS "look\n");
}

TEST(absurd_words_and_numbers_about_a_lock)
{
    struct wire wire;
    struct seen seen;
    hf_error err = { 0 };
    wire_serve(
        &wire,
        "hello\nscan 0\n" KEYS "look\nsend *5\\r\\n:1\\r\\n:-9223372036854775808\\r\\n"
        ":9223372036854775807\\r\\n:-9223372036854775808\\r\\n$27\\r\\nalpha 99999999999999999999 x\\r\\n\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    CHECK_STATUS(HF_OK, inspect(&wire, &seen, &err), &err);
    CHECK_INT(1, seen.count);
    wire_end(&wire);
}

/* --- breaking --- */

TEST_LIMIT(lost_answers_to_a_break, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        char fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":1\\r");
        /* Who holds it; then that one is broken. The first changes nothing, the second may have. */
        for (int known = 0; known < 2; known++) {
            wire_serve(&wire, "hello\nevict\n%s%shello\nevict\nsend :0\\r\\n\n",
                       known ? "send $4\\r\\nthat\\r\\n\nevict that\n" : "", fault);
            REQUIRE_STATUS(HF_OK, wire_open(&wire, "", wire_faults[i].slow ? test_ms(300) : 5000, &err), &err);
            const hf_status status = hf_break(wire.client, "job", &err);
            CHECK_STATUS(known ? HF_UNKNOWN : HF_UNAVAILABLE, status, &err);
            wire_check_words(status, &err);
            CHECK_STATUS(HF_OK, hf_break(wire.client, "job", &err), &err);
            wire_end(&wire);
        }
    }
}

TEST(nonsense_and_refusals_of_a_break)
{
    static const char *const nonsense[] = { "+OK", "*-1", "$-1", "*1\\r\\n:1" };
    for (size_t i = 0; i < 4 + wire_refusal_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        const struct wire_refusal *refusal = i < 4 ? NULL : &wire_refusals[i - 4];
        const hf_status expected = refusal ? refusal->status : HF_INTERNAL;
        const char *reply = refusal ? refusal->reply : nonsense[i];
        test_note("%s", reply);
        for (int known = 0; known < 2; known++) {
            wire_serve(&wire, "hello\nevict\n%ssend %s%s\\r\\n\n", known ? "send $4\\r\\nthat\\r\\n\nevict that\n" : "",
                       refusal ? "-" : "", reply);
            REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
            CHECK_STATUS(expected, hf_break(wire.client, "job", &err), &err);
            CHECK(!refusal || strstr(err.message, refusal->words) != NULL);
            wire_check_words(expected, &err);
            wire_end(&wire);
        }
    }
}

/* --- guarding --- */

TEST(a_token_and_a_larger_one)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, "hello\nguard 41\nsend -NOSCRIPT x\\r\\n\neval-guard 41\ndribble :1\\r\\n\n"
                      "guard 9223372036854775806\ndribble $19\\r\\n9223372036854775807\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    CHECK_STATUS(HF_OK, hf_guard(wire.client, "job", 41, &err), &err);
    CHECK_STATUS(HF_LOST, hf_guard(wire.client, "job", INT64_MAX - 1, &err), &err);
    CHECK_STR("token 9223372036854775806 is too old for job, which has seen 9223372036854775807", err.message);
    wire_check_words(HF_LOST, &err);
    wire_end(&wire);
}

/* Never HF_OK: whoever hears that writes. Asking again is safe. */
TEST_LIMIT(lost_answers_to_a_guard, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        char fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":1\\r");
        wire_serve(&wire, "hello\nguard 41\n%shello\nguard 41\nsend :1\\r\\n\n", fault);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", wire_faults[i].slow ? test_ms(300) : 5000, &err), &err);
        const hf_status status = hf_guard(wire.client, "job", 41, &err);
        CHECK_STATUS(HF_UNKNOWN, status, &err);
        wire_check_words(status, &err);
        CHECK_STATUS(HF_OK, hf_guard(wire.client, "job", 41, &err), &err);
        wire_end(&wire);
    }
}

TEST(nonsense_and_refusals_of_a_guard)
{
    static const char *const nonsense[] = { "+OK", "*-1", "$-1", "*1\\r\\n:1", ":0", ":2" };
    const size_t nonsenses = sizeof nonsense / sizeof *nonsense;
    for (size_t i = 0; i < nonsenses + wire_refusal_count; i++) {
        struct wire wire;
        hf_error err = { 0 };
        const struct wire_refusal *refusal = i < nonsenses ? NULL : &wire_refusals[i - nonsenses];
        const hf_status expected = refusal ? refusal->status : HF_INTERNAL;
        const char *reply = refusal ? refusal->reply : nonsense[i];
        test_note("%s", reply);
        wire_serve(&wire, "hello\nguard 41\nsend %s%s\\r\\n\n", refusal ? "-" : "", reply);
        REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
        CHECK_STATUS(expected, hf_guard(wire.client, "job", 41, &err), &err);
        CHECK(!refusal || strstr(err.message, refusal->words) != NULL);
        wire_check_words(expected, &err);
        wire_end(&wire);
    }
}
