/* SPDX-License-Identifier: MIT
 *
 * test_redis_wait.c: waiting: the subscription, the place in the queue, and gifts, believed and not believed.
 */
#include "wire.h"

#include <pthread.h>

#define URL "redis://127.0.0.1:%d"
/* Where a waiter stands in the queue and listens; server time is 5 s then. */
#define LINED_UP                                                                                                       \
    "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\n"                                                            \
    "hello push\nsubscribe\nsubscribed\n"                                                                              \
    "use main\nacquire 1 20000 1\nbusy 60000 0 5000000\n"
#define RELEASED "use main\nrelease 1\nsend :1\\r\\n\n"
/* The wait is given up, and its place in the queue with it, as soon as the server can be told. */
#define GIVEN_UP "use main\nrelease 1\ncut\nretry\nhello\nrelease 1\nsend :1\\r\\n\ndone\n"

/* Waits for the lock on a server with that script, must get it with that token, and gives it back. */
static void get_it(uint64_t token, uint32_t timeout_ms, const char *script)
{
    struct wire wire;
    hf_lock *lock = wire_hold(&wire, URL, 15000, timeout_ms, script);
    CHECK_INT(token, hf_token(lock));
    wire_release(&wire, lock, HF_OK);
}

/* --- gifts --- */

TEST(a_gift_is_taken_without_asking)
{
    get_it(41, 5000, LINED_UP "use push\npush 1 41 5 0\n" RELEASED);
}

TEST(a_gift_of_several_tokens_is_taken_as_one_of_one_is)
{
    get_it(41, 5000, LINED_UP "use push\npush 1 41 5 0 64\n" RELEASED);
}

TEST(a_gift_in_single_bytes)
{
    get_it(41, 5000,
           LINED_UP "use push\ndribble *3\\r\\n$7\\r\\nmessage\\r\\n$1\\r\\nx\\r\\n$8\\r\\n1 41 5 0\\r\\n\n" RELEASED);
}

/* Until it is confirmed a gift lasts for the claim time only. */
TEST(a_gift_is_confirmed)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    const hf_options options = wire_options(15000);
    wire_serve(&wire, LINED_UP
               "use push\npush 1 41 5 0\nuse main\nrenew 1 20000\ncut\n"
               "retry\nhello\nrenew 1+1 20000\ndone\nsend *1\\r\\n:1\\r\\n\nstall\nrelease 1\nsend :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, wire.client, "job", &options, &err), &err);
    CHECK(hf_remaining_ms(lock) <= 2000);
    script_await_stall(wire.server, 1);
    wire_await_remaining(lock, 2000);
    script_go(wire.server);
    wire_release(&wire, lock, HF_OK);
}

static void pass_gate(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)why;
    gate_pass(arg);
}

TEST(a_gift_that_cannot_be_confirmed_is_lost)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    struct gate lost = { 0 };
    hf_options options = wire_options(15000);
    options.on_lost = pass_gate;
    options.arg = &lost;
    wire_serve(&wire, LINED_UP "use push\npush 1 41 5 0\nuse main\nrenew 1 20000\nsend *1\\r\\n:0\\r\\n\n"
                               "release 1\nsend :0\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, wire.client, "job", &options, &err), &err);
    gate_await(&lost, 1);
    wire_release(&wire, lock, HF_LOST);
}

/* Too old, from the future, or without what belongs to it: the waiter asks before it believes. */
TEST(gifts_that_are_not_believed)
{
    static const char *const gifts[] = { "1 41 4 999999", "1 41 99 0", "1 41 4294967295 0", "1 41 5 999999" };
    for (size_t i = 0; i < sizeof gifts / sizeof *gifts; i++) {
        char script[2000];
        test_note("%s", gifts[i]);
        snprintf(script, sizeof script,
                 LINED_UP "use push\npush %s\nuse main\nacquire 1 20000 1\ngranted 43\n" RELEASED, gifts[i]);
        get_it(43, 5000, script);
    }
}

/* The waiter asked, and the gift had gone to somebody else: it sleeps again, and does not ask and ask. */
TEST(a_gift_that_was_too_late)
{
    get_it(45, 5000,
           LINED_UP "use push\npush 1 41 4 999999\nuse main\nacquire 1 20000 1\nbusy 60000 0 6000000\n"
                    "use push\npush 1 45 6 0\n" RELEASED);
}

TEST(messages_for_nobody)
{
    static const char *const messages[] = {
        "push 7 41 5 0",
        "push ",
        "push x",
        "push 1 41 5 0 x",
        "push 1 41 5 0 0",
        "push 1 41 5 0 65",
        "push 1 41 5 0 64 1",
        "push 1 41 1 0x",
        "push 1,41,1,0",
        "push 99999999999999999999999 41 5 0",
        "push 1 41 9223372036854775807 0",
        "push 1 41 -9223372036854775808 0",
        "push 1 41 1",
        "push 1 41",
        "push 1",
        "push 1 0 5 0",
        "push 1 41 1 1000000",
        "send +hello\\r\\n",
        "send :1\\r\\n",
        "send $1\\r\\n1\\r\\n",
        "send *-1\\r\\n",
        "send *0\\r\\n",
        "send *3\\r\\n:1\\r\\n:41\\r\\n:1000000\\r\\n",
        "send *3\\r\\n$7\\r\\nmessage\\r\\n$1\\r\\nx\\r\\n$-1\\r\\n",
        "send *3\\r\\n$9\\r\\nsubscribe\\r\\n$1\\r\\nx\\r\\n:1\\r\\n",
        "send *3\\r\\n$11\\r\\nunsubscribe\\r\\n$1\\r\\nx\\r\\n$8\\r\\n1 41 5 0\\r\\n",
        "send *4\\r\\n$1\\r\\na\\r\\n$1\\r\\nb\\r\\n$1\\r\\nc\\r\\n$1\\r\\n1\\r\\n",
        "send -ERR x\\r\\n"
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char script[2000];
        test_note("%s", messages[i]);
        snprintf(script, sizeof script, LINED_UP "use push\n%s\npush 1 45 5 0\n" RELEASED, messages[i]);
        get_it(45, 5000, script);
    }
}

/* --- the subscription --- */

/* Whatever was said meanwhile was missed: the waiter asks, subscribes anew, and takes its place again. */
TEST_LIMIT(a_subscription_that_breaks, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[3000], fault[300];
        if (wire_faults[i].slow)
            continue; /* half a message may still become a whole one */
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*3\\r\\n$7\\r\\nmess");
        snprintf(script, sizeof script,
                 LINED_UP "use push\n%suse main\nacquire 1 20000 0\nbusy 60000 -1 1500000\n"
                          "hello push\nsubscribe\nsubscribed\nuse main\nacquire 1 20000 1\nbusy 60000 0 2000000\n"
                          "use push\npush 1 46 2 0\n" RELEASED,
                 fault);
        get_it(46, 5000, script);
    }
}

TEST_LIMIT(faults_while_subscribing, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[3000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*3\\r\\n$9\\r\\nsubs");
        snprintf(script, sizeof script,
                 "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\n%s"
                 "use main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"
                 "use main\nacquire 1 20000 1\ngranted 47\n" RELEASED,
                 fault);
        get_it(47, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

TEST(a_subscription_that_is_refused)
{
    static const struct {
        const char *reply;
        hf_status status;
    } replies[] = { { "-NOPERM this user has no permissions to access the channel", HF_DENIED },
                    { "-ERR unknown command 'SUBSCRIBE'", HF_UNSUPPORTED },
                    { "+OK", HF_INTERNAL },
                    { ":1", HF_INTERNAL },
                    { "*0", HF_INTERNAL },
                    { "*-1", HF_INTERNAL },
                    { "*3\\r\\n$1\\r\\nx\\r\\n$1\\r\\nx\\r\\n:1", HF_INTERNAL } };
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        char script[1000];
        test_note("%s", replies[i].reply);
        /* It never stood in the queue, so nothing is given up. */
        snprintf(script, sizeof script,
                 "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsend %s\\r\\n\neof\n",
                 replies[i].reply);
        wire_miss(URL, replies[i].status, 10000, 5000, script);
    }
}

TEST(a_subscription_that_is_refused_for_now)
{
    get_it(47, 5000,
           "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsend -LOADING x\\r\\n\neof\n"
           "use main\nacquire 1 20000 0\ngranted 47\n" RELEASED);
}

/* --- asking again and giving up --- */

/* The holder's time is over and nobody said anything: the backstop. */
TEST(the_end_of_the_holders_time)
{
    get_it(48, 5000,
           "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"
           "use main\nacquire 1 20000 1\nbusy 30 0 1000000\nacquire 1 20000 1\ncut\n"
           "retry\nhello main\nacquire 1 20000 1\ngranted 48\ndone\n"
           "use main\nundo 1\nsend :1\\r\\n\n");
}

TEST(a_wait_that_ends_leaves_the_queue)
{
    wire_miss(URL, HF_TIMEOUT, 300, 5000, LINED_UP GIVEN_UP);
}

/* The gift comes when the deadline has passed: it is given back with the place. */
TEST(a_gift_after_the_deadline)
{
    wire_miss(URL, HF_TIMEOUT, 300, 5000,
              LINED_UP "use main\nrelease 1\nuse push\npush 1 41 5 0\nuse main\nsend :1\\r\\n\n");
}

/* The subscription broke, and no new one could be had until the deadline: the old place in the queue is still there. */
TEST(a_place_from_before_a_broken_subscription_is_left_too)
{
    wire_miss(URL, HF_TIMEOUT, 500, 5000,
              LINED_UP "use push\ncut\nuse main\nacquire 1 20000 0\nbusy 60000 -1 1500000\n"
                       "hello push\nsubscribe\n" GIVEN_UP);
}

/* The server may have written the place down before its answer was lost. */
TEST(a_place_whose_answer_was_lost_is_left_too)
{
    wire_miss(URL, HF_TIMEOUT, 400, 5000,
              "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"
              "use main\nacquire 1 20000 1\n"
              "retry\nhello\nundo 1\nsend :1\\r\\n\ndone\n");
}

/* --- several threads --- */

struct waiter {
    struct wire *wire;
    pthread_t thread;
    uint64_t token; /* expected; 0: its wait is cancelled */
};

static void *wait_for_it(void *arg)
{
    struct waiter *waiter = arg;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    const hf_options options = wire_options(15000);
    const hf_status status = hf_acquire(&lock, waiter->wire->client, "job", &options, &err);
    CHECK_STATUS(waiter->token ? HF_OK : HF_CANCELED, status, &err);
    if (status == HF_OK) {
        CHECK_INT(waiter->token, hf_token(lock));
        CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    }
    return NULL;
}

static void start(struct waiter *waiter, struct wire *wire, uint64_t token)
{
    waiter->wire = wire;
    waiter->token = token;
    REQUIRE_INT(0, pthread_create(&waiter->thread, NULL, wait_for_it, waiter));
}

TEST(a_cancelled_wait_leaves_the_queue)
{
    struct wire wire;
    struct waiter waiter;
    hf_error err = { 0 };
    wire_serve(&wire, LINED_UP "stall\n" GIVEN_UP);
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    start(&waiter, &wire, 0);
    script_await_stall(wire.server, 1);
    script_go(wire.server);
    CHECK_INT(HF_OK, hf_cancel(wire.client, "job"));
    REQUIRE_INT(0, pthread_join(waiter.thread, NULL));
    wire_end(&wire);
}

/* One thread listens for all: the gift for the second waiter is read by the first, and the other way round. */
TEST(gifts_for_two_threads)
{
    struct wire wire;
    struct waiter first, second;
    hf_error err = { 0 };
    /* The first one's answer comes after the second one has asked, on the connection that they share. */
    wire_serve(&wire, "hello main\nacquire 1 20000 0\nbusy 60000 -1 900000\nhello push\nsubscribe\nsubscribed\n"
                      "use main\nacquire 1 20000 1\nstall\nacquire 2 20000 1\nbusy 60000 0 5000000\n"
                      "busy 60000 1 5000000\nuse push\npush 2 51 5 0\nuse main\nrelease 2\nsend :1\\r\\n\nstall\n"
                      "use push\npush 1 52 4 999999\nuse main\nacquire 1 20000 1\ngranted 53\n"
                      "release 1\nsend :1\\r\\n\n");
    REQUIRE_STATUS(HF_OK, wire_open(&wire, "", 5000, &err), &err);
    start(&first, &wire, 53);
    script_await_stall(wire.server, 1);
    start(&second, &wire, 51);
    script_go(wire.server);
    REQUIRE_INT(0, pthread_join(second.thread, NULL));
    script_go(wire.server);
    REQUIRE_INT(0, pthread_join(first.thread, NULL));
    wire_end(&wire);
}
