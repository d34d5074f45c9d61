/* SPDX-License-Identifier: MIT
 *
 * test_redis_hold.c: keeping a lock and giving it back: renewals and releases whose answers are lost, late or wrong.
 */
#include "wire.h"

#include <stdatomic.h>

/* Told of by on_lost; its own time is what is compared with the lease's. */
struct loss {
    struct gate gate;
    _Atomic int64_t at_ns;
    _Atomic int64_t remaining_ms;
    char why[160];
};

static void on_lost(hf_lock *lock, const char *why, void *arg)
{
    struct loss *loss = arg;
    loss->at_ns = test_now_ns();
    loss->remaining_ms = hf_remaining_ms(lock);
    snprintf(loss->why, sizeof loss->why, "%s", why);
    gate_pass(&loss->gate);
}

/* A lock held on a server that goes on with `script`. */
static hf_lock *hold_as(hf_options options, struct wire *wire, struct loss *loss, uint32_t timeout_ms,
                        const char *script)
{
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    *loss = (struct loss){ .gate = { 0 } };
    options.on_lost = on_lost;
    options.arg = loss;
    wire_serve(wire, "hello main\nacquire 1 %u 0\ngranted 41\n%s", options.ttl_ms, script);
    REQUIRE_STATUS(HF_OK, wire_open(wire, "", timeout_ms, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire->client, "job", &options, &err), &err);
    return lock;
}

/* For 20 s, without renewal. */
static hf_lock *hold(struct wire *wire, struct loss *loss, uint32_t timeout_ms, const char *script)
{
    return hold_as(wire_options(0), wire, loss, timeout_ms, script);
}

/* With renewal in the background. */
static hf_lock *keep(struct wire *wire, struct loss *loss, uint32_t ttl_ms, uint32_t timeout_ms, const char *script)
{
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.renew = HF_RENEW_ON;
    return hold_as(options, wire, loss, timeout_ms, script);
}

/* --- release --- */

TEST_LIMIT(a_lost_answer_to_a_release_is_asked_for_again, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        struct loss loss;
        char fault[300], script[600];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":1\\r");
        snprintf(script, sizeof script, "release 1\n%s" WIRE_GIVE_BACK("release 1"), fault);
        hf_lock *lock = hold(&wire, &loss, wire_faults[i].slow ? test_ms(300) : 5000, script);
        wire_release(&wire, lock, HF_UNKNOWN);
        CHECK_INT(0, gate_count(&loss.gate)); /* it was held until it was released */
    }
}

TEST(a_release_that_finds_nobody_is_repeated)
{
    struct wire wire;
    struct loss loss;
    hf_error err = { 0 };
    /* Cut while it was idle; whoever comes next finds another trouble first. */
    hf_lock *lock = hold(&wire, &loss, 5000,
                         "cut\nretry\nhello\nrelease 1\nsend -BUSY x\\r\\n\nrelease 1\nsend -OOM x\\r\\n\n"
                         "release 1\nsend :1\\r\\n\ndone\n");
    const hf_status status = hf_release(lock, &err);
    if (status != HF_UNAVAILABLE)
        CHECK_STATUS(HF_UNKNOWN, status, &err);
    wire_check_words(status, &err);
    wire_end(&wire);
}

TEST(a_late_answer_to_a_release)
{
    struct wire wire;
    struct loss loss;
    hf_lock *lock = hold(&wire, &loss, test_ms(300),
                         "release 1\nretry\nhello\nrelease 1\ncut\ndone\nuse main\ntorn\n"
                         "retry\nhello\nrelease 1\nsend :0\\r\\n\ndone\n");
    wire_release(&wire, lock, HF_UNKNOWN);
}

TEST(answers_to_a_release)
{
    static const struct {
        const char *reply;
        hf_status status;
    } answers[] = { { ":1", HF_OK },
                    { ":0", HF_LOST },
                    { "+OK", HF_INTERNAL },
                    { "$1\\r\\n1", HF_INTERNAL },
                    { "*-1", HF_INTERNAL },
                    { "*1\\r\\n:1", HF_INTERNAL },
                    { "$-1", HF_INTERNAL },
                    { "-NOPERM x", HF_DENIED },
                    { "-WRONGTYPE x", HF_DENIED } };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct wire wire;
        struct loss loss;
        char script[200];
        test_note("%s", answers[i].reply);
        snprintf(script, sizeof script, "release 1\nsend %s\\r\\n\n", answers[i].reply);
        hf_lock *lock = hold(&wire, &loss, 5000, script);
        wire_release(&wire, lock, answers[i].status);
    }
}

TEST(trouble_at_a_release_is_waited_out)
{
    static const char *const passing[] = { "LOADING x", "BUSY x",     "READONLY x", "MASTERDOWN x", "CLUSTERDOWN x",
                                           "OOM x",     "TRYAGAIN x", "MISCONF x",  "NOREPLICAS x" };
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        struct wire wire;
        struct loss loss;
        char script[300];
        test_note("%s", passing[i]);
        snprintf(script, sizeof script,
                 "release 1\nsend -%s\\r\\n\n%srelease 1\nsend -%s\\r\\n\n%srelease 1\nsend :1\\r\\n\n", passing[i],
                 wire_after(passing[i]), passing[i], wire_after(passing[i]));
        hf_lock *lock = hold(&wire, &loss, 5000, script);
        wire_release(&wire, lock, HF_UNAVAILABLE);
    }
}

/* What came behind the grant is not the release's answer. */
TEST(a_reply_too_many_is_not_the_next_answer)
{
    struct wire wire;
    hf_lock *lock = wire_hold(&wire, "redis://127.0.0.1:%d", 0, 5000,
                              "hello\nacquire 1 20000 0\nsend :41\\r\\n:1\\r\\n\neof\n"
                              "hello\nrelease 1\nsend :0\\r\\n\n");
    wire_release(&wire, lock, HF_LOST);
}

/* --- renewal by hand --- */

TEST_LIMIT(a_lost_answer_to_a_renewal_changes_nothing, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        struct loss loss;
        hf_error err = { 0 };
        char fault[300], script[600];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*1\\r\\n:");
        snprintf(script, sizeof script,
                 "renew 1 40000\n%shello\nrenew 1+1 40000\nsend *1\\r\\n:1\\r\\n\nrelease 1\nsend :1\\r\\n\n", fault);
        hf_lock *lock = hold(&wire, &loss, wire_faults[i].slow ? test_ms(300) : 5000, script);
        const hf_status status = hf_renew(lock, 40000, &err);
        CHECK_STATUS(HF_UNKNOWN, status, &err);
        wire_check_words(status, &err);
        CHECK(hf_remaining_ms(lock) > 0 && hf_remaining_ms(lock) <= 20000);
        CHECK_STATUS(HF_OK, hf_renew(lock, 40000, &err), &err);
        CHECK(hf_remaining_ms(lock) > 20000);
        wire_release(&wire, lock, HF_OK);
        CHECK_INT(0, gate_count(&loss.gate));
    }
}

TEST(answers_to_a_renewal)
{
    static const char *const nonsense[] = { "+OK",        ":1",          "*0",  "*-1",       "*2\\r\\n:1\\r\\n:1",
                                            "*1\\r\\n+1", "*1\\r\\n$-1", "$-1", "*1\\r\\n:7" };
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        struct wire wire;
        struct loss loss;
        hf_error err = { 0 };
        char script[300];
        test_note("%s", nonsense[i]);
        snprintf(script, sizeof script, "renew 1 20000\nsend %s\\r\\n\nrelease 1\nsend :1\\r\\n\n", nonsense[i]);
        hf_lock *lock = hold(&wire, &loss, 5000, script);
        CHECK_STATUS(HF_INTERNAL, hf_renew(lock, 0, &err), &err);
        wire_check_words(HF_INTERNAL, &err);
        CHECK(hf_remaining_ms(lock) > 0); /* nobody said that it is lost */
        wire_release(&wire, lock, HF_OK);
        CHECK_INT(0, gate_count(&loss.gate));
    }
}

TEST(refusals_of_a_renewal)
{
    for (size_t i = 0; i < wire_refusal_count; i++) {
        struct wire wire;
        struct loss loss;
        hf_error err = { 0 };
        char script[400];
        test_note("%s", wire_refusals[i].reply);
        snprintf(script, sizeof script, "renew 1 20000\nsend -%s\\r\\n\n%srelease 1\nsend :1\\r\\n\n",
                 wire_refusals[i].reply, wire_after(wire_refusals[i].reply));
        hf_lock *lock = hold(&wire, &loss, 5000, script);
        CHECK_STATUS(wire_refusals[i].status, hf_renew(lock, 0, &err), &err);
        CHECK(strstr(err.message, wire_refusals[i].words) != NULL);
        wire_check_words(wire_refusals[i].status, &err);
        wire_release(&wire, lock, HF_OK);
    }
}

TEST(a_renewal_that_is_told_no)
{
    struct wire wire;
    struct loss loss;
    hf_error err = { 0 };
    /* Lost, and still given back, in case that the server meant something else. */
    hf_lock *lock = hold(&wire, &loss, 5000, "renew 1 20000\nsend *1\\r\\n:0\\r\\n\nrelease 1\nsend :0\\r\\n\n");
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    wire_check_words(HF_LOST, &err);
    CHECK_INT(1, gate_count(&loss.gate));
    CHECK_INT(0, hf_remaining_ms(lock));
    wire_release(&wire, lock, HF_LOST);
}

/* --- renewal in the background --- */

TEST_LIMIT(lost_answers_to_renewals_lead_to_other_tries, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        struct wire wire;
        struct loss loss;
        char fault[300], script[900];
        const uint32_t ttl_ms = test_ms(3000);
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*1\\r\\n:");
        snprintf(script, sizeof script,
                 "renew 1 %u\n%sretry\nhello\nrenew 1+1 %u\ncut\ndone\nretry\nhello\nrenew 1+2 %u\ndone\n"
                 "send *1\\r\\n:1\\r\\n\nstall\nrelease 1\nsend :1\\r\\n\n",
                 ttl_ms, fault, ttl_ms, ttl_ms);
        hf_lock *lock = keep(&wire, &loss, ttl_ms, wire_faults[i].slow ? test_ms(300) : 5000, script);
        script_await_stall(wire.server, 1);
        wire_await_remaining(lock, ttl_ms * 2 / 3);
        CHECK_INT(0, gate_count(&loss.gate));
        script_go(wire.server);
        wire_release(&wire, lock, HF_OK);
        CHECK_INT(0, gate_count(&loss.gate));
    }
}

/* However the server fails, the holder knows of its loss at its own deadline, which is before the server's. */
TEST_LIMIT(a_lock_that_cannot_be_renewed_is_lost_in_time, 60)
{
    static const char *const troubles[] = { "cut\nrefuse\n", "renew 1 900\n", "renew 1 900\nsend *1\\r\\n\n",
                                            "renew 1 900\nreset\nrefuse\n" };
    for (size_t i = 0; i < sizeof troubles / sizeof *troubles; i++) {
        struct wire wire;
        struct loss loss;
        const uint32_t ttl_ms = 900;
        test_note("trouble %zu", i);
        const int64_t start = test_now_ns();
        hf_lock *lock = keep(&wire, &loss, ttl_ms, 300, troubles[i]);
        const int64_t held = test_now_ns();
        gate_await(&loss.gate, 1);
        /* Not later than the server could give it to somebody else, were it not for the machine's load. */
        CHECK(loss.at_ns >= start + (900 - 9 - 2) * 1000000LL);
        CHECK(loss.at_ns < held + (900 + WIRE_SLACK_MS) * 1000000LL);
        CHECK_INT(0, loss.remaining_ms);
        CHECK(strncmp(loss.why, "the store has ", 14) == 0);
        wire_release(&wire, lock, HF_LOST);
        CHECK_INT(1, gate_count(&loss.gate));
    }
}

TEST(a_lock_that_the_server_forgot_is_lost_at_once)
{
    struct wire wire;
    struct loss loss;
    char script[200];
    const uint32_t ttl_ms = test_ms(3000);
    snprintf(script, sizeof script, "renew 1 %u\nsend *1\\r\\n:0\\r\\n\nrelease 1\nsend :0\\r\\n\n", ttl_ms);
    hf_lock *lock = keep(&wire, &loss, ttl_ms, 5000, script);
    gate_await(&loss.gate, 1);
    CHECK_STR("the store no longer has it: it was broken, or ended or forgotten there", loss.why);
    CHECK_INT(0, loss.remaining_ms);
    wire_release(&wire, lock, HF_LOST);
}

TEST(nonsense_to_a_renewal_is_no_answer)
{
    struct wire wire;
    struct loss loss;
    char script[400];
    const uint32_t ttl_ms = test_ms(3000);
    snprintf(script, sizeof script,
             "renew 1 %u\nsend *1\\r\\n$-1\\r\\n\nrenew 1 %u\nsend *2\\r\\n:0\\r\\n:0\\r\\n\n"
             "renew 1 %u\nsend *1\\r\\n:1\\r\\n\nstall\nrelease 1\nsend :1\\r\\n\n",
             ttl_ms, ttl_ms, ttl_ms);
    hf_lock *lock = keep(&wire, &loss, ttl_ms, 5000, script);
    script_await_stall(wire.server, 1);
    wire_await_remaining(lock, ttl_ms * 2 / 3);
    CHECK_INT(0, gate_count(&loss.gate));
    script_go(wire.server);
    wire_release(&wire, lock, HF_OK);
}
