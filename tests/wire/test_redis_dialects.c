/* SPDX-License-Identifier: MIT
 *
 * test_redis_dialects.c: the dialects plain, tair and redisson on the wire: what is asked of the server beside the
 * scripts, and answers to it that are lost, late, refused or nonsense.
 */
#include "wire.h"

#define PLAIN_URL "redis://127.0.0.1:%d?dialect=plain"
#define TAIR_URL "redis://127.0.0.1:%d?dialect=tair"
#define REDISSON_URL "redis://127.0.0.1:%d?dialect=redisson"
#define PLAIN "dialect plain\nhello main\nprobe\n"
#define TAIR "dialect tair\nhello main\nprobe\n"
#define REDISSON "dialect redisson\nhello main\n"
#define HELD "acquire 1 20000 0\ngranted 41\n"

/* Waits for the lock if need be, and gives it back, which must end so. */
static void hold(const char *url, uint32_t timeout_ms, hf_status released, const char *script)
{
    struct wire wire;
    hf_lock *lock = wire_hold(&wire, url, 15000, timeout_ms, script);
    wire_release(&wire, lock, released);
}

/* --- what the server has --- */

TEST(the_best_that_the_server_has_is_used)
{
    static const char *const kinds[][2] = {
        { "has delex delifeq cad cas\n", "delex 1\nsend :1\\r\\n:0\\r\\n\n" },
        { "has delifeq cad\n", "delifeq 1\nsend :1\\r\\n:0\\r\\n\n" },
        { "has cad\n", "cad 1\nsend :1\\r\\n:0\\r\\n\n" },
        { "has cas\n", "release 1\nsend :1\\r\\n\n" },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char script[1000];
        snprintf(script, sizeof script, PLAIN "%s" HELD "%s", kinds[i][0], kinds[i][1]);
        hold(PLAIN_URL, 5000, HF_OK, script);
    }
}

/* Whatever is no answer to the question means that the script does it. */
TEST(answers_about_commands_that_make_no_sense)
{
    static const char *const replies[] = { "-NOPERM x",
                                           "-ERR unknown command 'COMMAND'",
                                           "+OK",
                                           ":1",
                                           "$-1",
                                           "*-1",
                                           "*0",
                                           "*1\\r\\n*1\\r\\n+x",
                                           "*3\\r\\n:1\\r\\n:1\\r\\n:1",
                                           "*3\\r\\n*0\\r\\n*0\\r\\n*0",
                                           "*4\\r\\n*1\\r\\n+x\\r\\n*1\\r\\n+x\\r\\n*1\\r\\n+x\\r\\n*-1" };
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        char script[1000];
        test_note("%s", replies[i]);
        snprintf(script, sizeof script, PLAIN "send %s\\r\\n\n" HELD "release 1\nsend :1\\r\\n\n", replies[i]);
        hold(PLAIN_URL, 5000, HF_OK, script);
    }
}

TEST(commands_that_are_tried)
{
    static const char *const busy[] = { ":-1", ":0", "-NOPERM x", "-OOM x", "-LOADING x" };
    static const char *const nonsense[] = { "+OK", "$-1", "*-1", "*0", "*1\\r\\n:1" };
    char script[1000];
    wire_refuse(TAIR_URL, HF_UNSUPPORTED, 5000, TAIR "has delex delifeq cad\neof\n");
    wire_refuse(TAIR_URL, HF_UNSUPPORTED, 5000, TAIR "has cas\neof\n");
    for (size_t i = 0; i < 5; i++) {
        test_note("%s, %s", busy[i], nonsense[i]);
        snprintf(script, sizeof script, TAIR "send %s\\r\\n%s\\r\\n\n%s" HELD "cad 1\nsend :1\\r\\n:0\\r\\n\n", busy[i],
                 busy[i], wire_after(busy[i]));
        hold(TAIR_URL, 5000, HF_OK, script);
        snprintf(script, sizeof script, TAIR "send :-1\\r\\n%s\\r\\n\neof\n", nonsense[i]);
        wire_refuse(TAIR_URL, HF_INTERNAL, 5000, script);
    }
}

TEST_LIMIT(faults_while_the_commands_are_asked_for, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[1000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*3\\r\\n*-1");
        snprintf(script, sizeof script, PLAIN "%s", fault);
        wire_refuse(PLAIN_URL, HF_UNAVAILABLE, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

/* --- releasing by one command --- */

TEST(a_command_that_is_refused_is_replaced_by_the_script)
{
    static const char *const refusals[] = { "-OOM command not allowed", "-ERR unknown command 'CAD'", "-NOPERM x",
                                            "-WRONGTYPE x", "-ERR Key should be of string type" };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char script[1000];
        test_note("%s", refusals[i]);
        snprintf(script, sizeof script,
                 PLAIN "has cad\n" HELD "cad 1\nsend %s\\r\\n:0\\r\\n\nrelease 1\nsend :1\\r\\n\n", refusals[i]);
        hold(PLAIN_URL, 5000, HF_OK, script);
        snprintf(script, sizeof script,
                 TAIR "has cad cas\n" HELD "cad 1\nsend %s\\r\\n:0\\r\\n\nrelease 1\nsend :0\\r\\n\n", refusals[i]);
        hold(TAIR_URL, 5000, HF_LOST, script);
    }
}

TEST(answers_to_a_release_by_command)
{
    static const struct {
        const char *reply;
        hf_status status;
    } answers[] = { { ":1", HF_OK },        { ":0", HF_LOST },     { ":-1", HF_LOST },          { "+OK", HF_INTERNAL },
                    { "$-1", HF_INTERNAL }, { "*0", HF_INTERNAL }, { "$1\\r\\n1", HF_INTERNAL } };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        char script[1000];
        test_note("%s", answers[i].reply);
        snprintf(script, sizeof script, PLAIN "has delifeq\n" HELD "delifeq 1\nsend %s\\r\\n:0\\r\\n\n",
                 answers[i].reply);
        hold(PLAIN_URL, 5000, answers[i].status, script);
    }
    /* What the call of the next says does not matter, nor that the server does not know the script yet. */
    hold(PLAIN_URL, 5000, HF_OK, PLAIN "has delifeq\n" HELD "delifeq 1\nsend :1\\r\\n-OOM x\\r\\n\n");
}

TEST_LIMIT(a_lost_answer_to_a_release_by_command_is_asked_for_again, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":1\\r\\n:");
        snprintf(script, sizeof script,
                 PLAIN "has cad\n" HELD "cad 1\n%sretry\nhello\ncad 1\ncut\ndone\n"
                       "retry\nhello\ncad 1\nsend :-1\\r\\n:0\\r\\n\ndone\n",
                 fault);
        hold(PLAIN_URL, wire_faults[i].slow ? test_ms(300) : 5000, HF_UNKNOWN, script);
    }
}

/* --- CAS --- */

TEST(answers_to_cas)
{
    static const struct {
        const char *lines;
        hf_status status;
    } answers[] = { { "send :1\\r\\n\n", HF_OK },
                    { "send :0\\r\\n\n", HF_LOST },
                    { "send :-1\\r\\n\n", HF_LOST },
                    { "send -OOM x\\r\\n\nrenew 1 30000\nsend *1\\r\\n:1\\r\\n\n", HF_OK },
                    { "send -OOM x\\r\\n\nrenew 1 30000\nsend *1\\r\\n:0\\r\\n\n", HF_LOST },
                    { "send :2\\r\\n\nrenew 1 30000\nsend *1\\r\\n:7\\r\\n\n", HF_INTERNAL },
                    { "send +OK\\r\\n\nrenew 1 30000\nsend -NOPERM x\\r\\n\n", HF_DENIED } };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        const hf_options options = wire_options(0);
        const bool lost = answers[i].status == HF_LOST;
        test_note("%s", answers[i].lines);
        wire_serve(&wire, TAIR "has cad cas\n" HELD "cas 1 30000\n%s%s", answers[i].lines,
                   lost ? "cad 1\nsend :0\\r\\n:0\\r\\n\n" : "cad 1\nsend :1\\r\\n:0\\r\\n\n");
        REQUIRE_STATUS(HF_OK, wire_open_url(&wire, TAIR_URL, 5000, &err), &err);
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", &options, &err), &err);
        CHECK_STATUS(answers[i].status, hf_renew(lock, 30000, &err), &err);
        if (answers[i].status != HF_OK)
            wire_check_words(answers[i].status, &err);
        wire_release(&wire, lock, lost ? HF_LOST : HF_OK);
    }
}

/* --- plain waiting --- */

#define LINED_UP                                                                                                       \
    PLAIN "has none\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"                     \
          "use main\nacquire 1 20000 1\nbusy 60000 0 5000000\nuse push\n"

/* Only its own number, and nothing else, is a call; and a call is not a gift. */
TEST(calls_and_what_is_none)
{
    static const char *const messages[] = {
        "push 7",        "push ",
        "push x",        "push 1 41 5 0",
        "push 1 ",       "push -1",
        "push 1x",       "push 99999999999999999999999",
        "send +1\\r\\n", "send *3\\r\\n$7\\r\\nmessage\\r\\n$1\\r\\nx\\r\\n:1\\r\\n"
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char script[2000];
        if (strcmp(messages[i], "push 1 ") == 0)
            continue; /* a blank at the end is one that a call may have */
        test_note("%s", messages[i]);
        snprintf(script, sizeof script,
                 LINED_UP "%s\nstall\npush 1\nuse main\nacquire 1 20000 1\ngranted 42\nrelease 1\nsend :1\\r\\n\n",
                 messages[i]);
        struct wire wire;
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        const hf_options options = wire_options(15000);
        wire_serve(&wire, "%s", script);
        REQUIRE_STATUS(HF_OK, wire_open_url(&wire, PLAIN_URL, 5000, &err), &err);
        script_go(wire.server);
        REQUIRE_STATUS(HF_OK, hf_acquire(&lock, wire.client, "job", &options, &err), &err);
        CHECK_INT(42, hf_token(lock));
        wire_release(&wire, lock, HF_OK);
    }
}

/* --- redisson --- */

#define LET_GO "release 1\nsend :1\\r\\n\ndrop-latch 1\n"

TEST(the_answer_about_the_latch_may_be_late)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    const hf_options options = wire_options(0);
    wire_serve(&wire, REDISSON HELD LET_GO
               "acquire 2 20000 0\nsend :1\\r\\n:42\\r\\n\nrelease 2\nsend :1\\r\\n\ndrop-latch 2\n"
               "send -ERR x\\r\\n\nacquire 3 20000 0\ngranted 43\nrelease 3\n"
               "send :1\\r\\n\ndrop-latch 3\n");
    REQUIRE_STATUS(HF_OK, wire_open_url(&wire, REDISSON_URL, 5000, &err), &err);
    for (uint64_t token = 41; token <= 43; token++) {
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", &options, &err), &err);
        CHECK_INT(token, hf_token(lock));
        CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    }
    wire_end(&wire);
}

/* An answer is missing: what comes is taken for the one that is owed, and never for the next. */
TEST(the_answer_about_the_latch_may_never_come)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    const hf_options options = wire_options(0);
    wire_serve(&wire, REDISSON HELD LET_GO "acquire 2 20000 0\ngranted 42\n"
                                           "retry\nhello\nundo 2\nsend :1\\r\\n\ndone\ndrop-latch 2\n");
    REQUIRE_STATUS(HF_OK, wire_open_url(&wire, REDISSON_URL, test_ms(300), &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", &options, &err), &err);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    CHECK_STATUS(HF_UNKNOWN, hf_try_acquire(&lock, wire.client, "job", &options, &err), &err);
    wire_check_words(HF_UNKNOWN, &err);
    wire_end(&wire);
}

TEST_LIMIT(a_lost_answer_to_a_release_is_asked_for_again, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":1\\r");
        snprintf(script, sizeof script,
                 REDISSON HELD "release 1\n%s" WIRE_GIVE_BACK("release 1") "use undo\ndrop-latch 1\n", fault);
        hold(REDISSON_URL, wire_faults[i].slow ? test_ms(300) : 5000, HF_UNKNOWN, script);
    }
}

#define LISTENING                                                                                                      \
    REDISSON "acquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"                            \
             "use main\nacquire 1 20000 1\nbusy 60000 0 5000000\nuse push\n"

/* Whatever is said on the channel means that it is worth asking; what is said elsewhere does not. */
TEST(messages_on_the_channel)
{
    static const char *const messages[] = { "push 0\n", "push 1\n", "push \n", "push nonsense\n" };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char script[2000];
        snprintf(script, sizeof script,
                 LISTENING "send *3\\r\\n$7\\r\\nmessage\\r\\n$1\\r\\nx\\r\\n$1\\r\\n0\\r\\n\nsend +x\\r\\n\n%s"
                           "use main\nacquire 1 20000 1\ngranted 42\n" LET_GO,
                 messages[i]);
        hold(REDISSON_URL, 5000, HF_OK, script);
    }
}

TEST(a_subscription_that_ends_or_is_refused)
{
    static const char *const endings[] = { "send -NOPERM x\\r\\n\n", "cut\n",
                                           "send *3\\r\\n$11\\r\\nunsubscribe\\r\\n$1\\r\\nx\\r\\n:0\\r\\n\n" };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char script[2000];
        snprintf(script, sizeof script,
                 LISTENING "%suse main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"
                           "use main\nacquire 1 20000 1\ngranted 42\n" LET_GO,
                 endings[i]);
        hold(REDISSON_URL, 5000, HF_OK, script);
    }
    wire_miss(REDISSON_URL, HF_DENIED, 10000, 5000,
              REDISSON "acquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsend -NOPERM x\\r\\n\neof\n");
}
