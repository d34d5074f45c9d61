/* SPDX-License-Identifier: MIT
 *
 * test_redis_discovery.c: finding the master: Sentinels and servers that cut, stall and talk nonsense at every answer.
 * One scripted server is the only Sentinel, and the master too.
 */
#include "wire.h"

#include <pthread.h>

#define URL "redis+sentinel://127.0.0.1:%d/m"
/* The client listens first, and asks what happened before; then it greets the master. */
#define LISTENING "port\nsentinel-push push\nhello\nfind-master\naddress\neof\n"
#define MASTER "greet-master main\nis-master\n"
#define ASKED "hello\nfind-master\naddress\neof\n"
#define RELEASED "use main\nrelease 1\nsend :1\\r\\n\n"

/* Opening must fail so, within its time: the listening's own half second comes on top. */
static void refuse(hf_status expected, const char *words, uint32_t timeout_ms, const char *script)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, "%s", script);
    const int64_t start = test_now_ns();
    CHECK_STATUS(expected, wire_open_url(&wire, URL, timeout_ms, &err), &err);
    CHECK((test_now_ns() - start) / 1000000 < timeout_ms + 500 + WIRE_SLACK_MS);
    wire_check_words(expected, &err);
    if (words && !strstr(err.message, words))
        FAIL("the message has no \"%s\": %s", words, err.message);
    wire_end(&wire);
}

/* Takes the lock on a server with that script, and gives it back. */
static void get_it(uint32_t timeout_ms, const char *script)
{
    struct wire wire;
    hf_lock *lock = wire_hold(&wire, URL, 0, timeout_ms, script);
    wire_release(&wire, lock, HF_OK);
}

TEST(all_goes_well)
{
    get_it(5000, LISTENING MASTER "acquire 1 20000 0\ngranted 41\n" RELEASED);
}

/* --- discovery --- */

TEST_LIMIT(faults_while_the_master_is_asked_for, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*2\\r\\n$9\\r\\n127.0");
        snprintf(script, sizeof script, "port\nsentinel-push push\nhello a\nfind-master\n%shello b\nfind-master\n%s",
                 fault, fault);
        refuse(HF_UNAVAILABLE, "Sentinel", wire_faults[i].slow ? test_ms(1500) : 5000, script);
    }
}

TEST_LIMIT(answers_that_name_no_master, 60)
{
    static const struct {
        const char *reply;
        hf_status status;
        const char *words;
    } answers[] = { { "*-1", HF_INVALID, "knows no master called m" },
                    { "$-1", HF_INVALID, "knows no master called m" },
                    { "+OK", HF_INTERNAL, "Sentinel" },
                    { ":1", HF_INTERNAL, "Sentinel" },
                    { "*0", HF_INTERNAL, "Sentinel" },
                    { "*1\\r\\n$9\\r\\n127.0.0.1", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n:1\\r\\n:6379", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$0\\r\\n\\r\\n$4\\r\\n6379", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$1\\r\\n\\x00\\r\\n$4\\r\\n6379", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n$1\\r\\n0", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n$5\\r\\n65536", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n$0\\r\\n", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n$5\\r\\n80 80", HF_INTERNAL, "Sentinel" },
                    { "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n$1\\r\\n1", HF_UNAVAILABLE, "127.0.0.1:1" },
                    { "-NOAUTH Authentication required.", HF_DENIED, "password" },
                    { "-ERR unknown command 'SENTINEL'", HF_UNSUPPORTED, "command" },
                    { "-IDONTKNOW No such\\tmaster", HF_INTERNAL, "IDONTKNOW" } };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        char script[2000];
        test_note("%s", answers[i].reply);
        const bool taken = answers[i].status == HF_UNAVAILABLE; /* believed at the first time */
        snprintf(script, sizeof script, "port\nsentinel-push push\nhello a\nfind-master\nsend %s\\r\\n\neof\n%s%s%s",
                 answers[i].reply, taken ? "" : "hello b\nfind-master\nsend ", taken ? "" : answers[i].reply,
                 taken ? "" : "\\r\\n\neof\n");
        refuse(answers[i].status, answers[i].words, 5000, script);
    }
}

TEST_LIMIT(a_log_in_that_the_sentinel_refuses, 60)
{
    refuse(HF_DENIED, "password", 5000,
           "port\naccept\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\nsend -NOAUTH x\\r\\n\neof\n"
           "accept\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\nsend -NOAUTH x\\r\\n\neof\n");
}

/* Nobody tells of a failover then; but the master can be found. */
TEST_LIMIT(faults_while_listening_begins, 90)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*3\\r\\n$9\\r\\nsubs");
        snprintf(script, sizeof script,
                 "port\nhello push\nsentinel-subscribe\n%s" ASKED MASTER "acquire 1 20000 0\ngranted 41\n" RELEASED,
                 fault);
        get_it(5000, script);
    }
    get_it(5000, "port\nhello push\nsentinel-subscribe\nsend -NOPERM x\\r\\n\neof\n" ASKED MASTER
                 "acquire 1 20000 0\ngranted 41\n" RELEASED);
}

/* --- the role --- */

TEST_LIMIT(faults_while_the_role_is_asked_for, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "+PONG\\r\\n*3\\r\\n$6\\r\\nmas");
        snprintf(script, sizeof script, LISTENING "greet-master main\n%s", fault);
        refuse(HF_UNAVAILABLE, NULL, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

/* Whoever does not say that it is the master is none. */
TEST_LIMIT(roles_other_than_master, 60)
{
    static const struct {
        const char *reply;
        hf_status status;
    } roles[] = { { "*5\\r\\n$5\\r\\nslave\\r\\n$1\\r\\na\\r\\n:1\\r\\n$9\\r\\nconnected\\r\\n:7", HF_UNAVAILABLE },
                  { "*2\\r\\n$8\\r\\nsentinel\\r\\n*0", HF_UNAVAILABLE },
                  { "*1\\r\\n:1", HF_UNAVAILABLE },
                  { "*0", HF_UNAVAILABLE },
                  { "*-1", HF_UNAVAILABLE },
                  { "+OK", HF_UNAVAILABLE },
                  { ":1", HF_UNAVAILABLE },
                  { "$6\\r\\nmaster", HF_UNAVAILABLE },
                  { "-NOPERM x", HF_DENIED },
                  { "-ERR unknown command 'ROLE'", HF_UNSUPPORTED } };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        char script[2000];
        test_note("%s", roles[i].reply);
        snprintf(script, sizeof script, LISTENING "greet-master main\nsend +PONG\\r\\n%s\\r\\n\neof\n", roles[i].reply);
        refuse(roles[i].status, NULL, 5000, script);
    }
}

/* --- failovers --- */

/* It is a replica now, and the Sentinel has not noticed, or cannot say: not asked in a loop. */
TEST_LIMIT(a_master_that_is_none_any_more, 60)
{
    wire_miss(URL, HF_UNAVAILABLE, 0, 5000,
              LISTENING MASTER "acquire 1 20000 0\nsend -READONLY x\\r\\n\nhello\nfind-master\naddress\n");
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*2\\r\\n$9\\r\\n127.0");
        snprintf(script, sizeof script,
                 LISTENING MASTER "acquire 1 20000 0\nsend -READONLY x\\r\\n\nhello\nfind-master\n%s", fault);
        wire_miss(URL, HF_UNAVAILABLE, 0, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

/* An answer that was lost is undone with whoever is the master then. */
TEST(an_answer_that_was_lost_is_undone_after_asking_for_the_master)
{
    wire_miss(URL, HF_UNKNOWN, 0, 5000,
              LISTENING MASTER
              "acquire 1 20000 0\ncut\n"
              "hello\nfind-master\naddress\neof\ngreet-master undo\nis-master\nundo 1\nsend :0\\r\\n\n");
}

/* --- what the Sentinel tells --- */

#define TOLD(length, text)                                                                                             \
    "send *3\\r\\n$7\\r\\nmessage\\r\\n$14\\r\\n+switch-master\\r\\n$" length "\\r\\n" text "\\r\\n\n"

#define NEW_MASTER TOLD("29", "m 127.0.0.1 1 localhost \\5\\5\\5\\5\\5")

struct other {
    struct wire *wire;
    hf_status status;
    hf_error err;
};

static void *try_beside(void *argument)
{
    struct other *other = argument;
    const hf_options options = wire_options(0);
    hf_lock *lock = NULL;
    other->status = hf_try_acquire(&lock, other->wire->client, "job", &options, &other->err);
    return NULL;
}

/* A thread has asked who the master is, and while the answer is on its way the Sentinel tells of another one: that is
 * later, and what the answer names is no longer the master. The server is both, under two names. */
TEST(an_answer_that_is_older_than_a_switch_does_not_take_it_back)
{
    struct wire wire;
    struct other other = { .wire = &wire };
    pthread_t thread;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    hf_options options = wire_options(0);
    options.renew = HF_RENEW_ON;
    wire_serve(&wire, "%s%s%s", LISTENING MASTER "acquire 1 20000 0\ngranted 41\n",
               "acquire 2 20000 0\nsend -READONLY x\\r\\n\nhello asked\nfind-master\nuse push\n" NEW_MASTER
               "greet-master new\nis-master\nrenew 1 20000\nsend *1\\r\\n:1\\r\\n\nstall\n"
               "renew 1 20000\nsend *1\\r\\n:1\\r\\n\nstall\n",
               "use asked\naddress\neof\nuse new\nacquire 2 20000 0\nbusy 20000 -1 1\nrelease 1\nsend :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open_url(&wire, URL, 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", &options, &err), &err);
    REQUIRE(pthread_create(&thread, NULL, try_beside, &other) == 0);
    script_await_stall(wire.server, 1);
    script_go(wire.server);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err); /* after the other, whose connection is free then */
    script_await_stall(wire.server, 2);
    script_go(wire.server);
    pthread_join(thread, NULL);
    CHECK_STATUS(HF_BUSY, other.status, &other.err);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    wire_end(&wire);
}

/* Whatever is no news of our master changes nothing; when the Sentinel goes, what is held is renewed at once. */
TEST(messages_that_name_no_new_master)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    hf_options options = wire_options(0);
    options.renew = HF_RENEW_ON;
    wire_serve(
        &wire,
        LISTENING MASTER "acquire 1 20000 0\ngranted 41\nuse push\n" TOLD("0", "") TOLD("1", "m") TOLD("7", "m 1 2 3")
            TOLD("12", "m 1 2 h 0 xy") TOLD("9", "m 1 2 h x") TOLD("15", "other 1 2 h 637") TOLD(
                "15",
                "m 1 2 h 9999999") "send +hello\\r\\n:1\\r\\n*-1\\r\\n*0\\r\\n-ERR x\\r\\n\n"
                                   "send "
                                   "*3\\r\\n:1\\r\\n:2\\r\\n:3\\r\\n*3\\r\\n$1\\r\\na\\r\\n$1\\r\\nb\\r\\n$-1\\r\\n\n"
                                   "cut\nuse main\nrenew 1 20000\nsend *1\\r\\n:1\\r\\n\nstall\n");
    REQUIRE_STATUS(HF_OK, wire_open_url(&wire, URL, test_ms(1000), &err), &err);
    REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, wire.client, "job", &options, &err), &err);
    script_await_stall(wire.server, 1);
    CHECK(hf_remaining_ms(lock) > 0);
    script_go(wire.server);
    script_check(wire.server);
    hf_release(lock, NULL); /* there is no server any more: whatever it says, it comes back */
    hf_close(wire.client);
}
