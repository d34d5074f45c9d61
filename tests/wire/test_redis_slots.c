/* SPDX-License-Identifier: MIT
 *
 * test_redis_slots.c: finding a key's server in a cluster: maps and redirections that are cut, stall, make no sense or
 * go round in circles, and sharded channels. One scripted server is the whole cluster.
 */
#include "wire.h"

#define URL "redis+cluster://127.0.0.1:%d"
#define MAPPED "port\nhello main\ncluster-slots\nslots\nask-sharded\n"
#define OPENED MAPPED "sharded no\n"
#define SHARDED MAPPED "sharded yes\n"
#define RELEASED "use main\nrelease 1\nsend :1\\r\\n\n"
#define HERE "127.0.0.1:\\5\\5\\5\\5\\5"

static void get_it(uint32_t timeout_ms, const char *script)
{
    struct wire wire;
    hf_lock *lock = wire_hold(&wire, URL, 15000, timeout_ms, script);
    wire_release(&wire, lock, HF_OK);
}

TEST(all_goes_well)
{
    get_it(5000, OPENED "acquire 1 20000 0\ngranted 41\n" RELEASED);
    get_it(5000, SHARDED "acquire 1 20000 0\ngranted 41\n" RELEASED);
}

/* --- the map --- */

TEST_LIMIT(faults_while_the_map_is_asked_for, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*1\\r\\n*3\\r\\n:0\\r\\n:163");
        snprintf(script, sizeof script, "port\nhello main\ncluster-slots\n%s", fault);
        wire_refuse(URL, HF_UNAVAILABLE, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

#define RANGE(from, to, rest) "*1\\r\\n*3\\r\\n:" from "\\r\\n:" to "\\r\\n" rest
#define NODE "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n:6379"

TEST_LIMIT(maps_that_make_no_sense, 60)
{
    static const struct {
        const char *reply;
        hf_status status;
    } maps[] = { { "+OK", HF_INTERNAL },
                 { ":1", HF_INTERNAL },
                 { "$-1", HF_INTERNAL },
                 { "*1\\r\\n:1", HF_INTERNAL },
                 { "*1\\r\\n*0", HF_INTERNAL },
                 { "*1\\r\\n*2\\r\\n:0\\r\\n:16383", HF_INTERNAL },
                 { RANGE("-1", "16383", NODE), HF_INTERNAL },
                 { RANGE("0", "16384", NODE), HF_INTERNAL },
                 { RANGE("0", "9223372036854775807", NODE), HF_INTERNAL },
                 { "*1\\r\\n*3\\r\\n+0\\r\\n+16383\\r\\n" NODE, HF_INTERNAL },
                 { "*0", HF_UNAVAILABLE }, /* nobody has anything */
                 { RANGE("16383", "0", NODE), HF_UNAVAILABLE },
                 { RANGE("0", "-5", NODE), HF_UNAVAILABLE },
                 { RANGE("5", "16383", NODE), HF_UNAVAILABLE }, /* not the first one */
                 { RANGE("0", "16383", "*0"), HF_UNAVAILABLE },
                 { RANGE("0", "16383", ":1"), HF_UNAVAILABLE },
                 { RANGE("0", "16383", "*2\\r\\n$1\\r\\nh\\r\\n$4\\r\\n6379"), HF_UNAVAILABLE },
                 { RANGE("0", "16383", "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n:0"), HF_UNAVAILABLE },
                 { RANGE("0", "16383", "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n:-9223372036854775808"), HF_UNAVAILABLE },
                 { RANGE("0", "16383", "*2\\r\\n$9\\r\\n127.0.0.1\\r\\n:1"), HF_UNAVAILABLE }, /* not there */
                 { "-ERR This instance has cluster support disabled", HF_INVALID },
                 { "-NOPERM x", HF_DENIED },
                 { "-LOADING x", HF_UNAVAILABLE } };
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        struct wire wire;
        hf_error err = { 0 };
        test_note("%s", maps[i].reply);
        wire_serve(&wire, "port\nhello main\ncluster-slots\nsend %s\\r\\n\neof\n", maps[i].reply);
        CHECK_STATUS(maps[i].status, wire_open_url(&wire, URL, test_ms(1000), &err), &err);
        wire_check_words(maps[i].status, &err);
        wire_end(&wire);
    }
}

/* Servers that do not know their own name are where they were asked. */
TEST(a_map_without_names)
{
    static const char *const names[] = { "$0\\r\\n", "$1\\r\\n?", "$-1", ":7" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char script[2000];
        snprintf(script, sizeof script,
                 "port\nhello main\ncluster-slots\nsend " RANGE(
                     "0", "16383", "*2\\r\\n%s\\r\\n:\\5\\5\\5\\5\\5\\r\\n") "\nask-sharded\nsharded no\nacquire 1 "
                                                                             "20000 0\ngranted 41\n" RELEASED,
                 names[i]);
        get_it(5000, script);
    }
}

TEST_LIMIT(whether_publishing_is_sharded, 60)
{
    static const char *const replies[] = { "-NOPERM x", "+OK", "*0", "*-1", "*1\\r\\n:1", "*2\\r\\n*0\\r\\n*0", "$-1" };
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        char script[2000];
        test_note("%s", replies[i]);
        snprintf(script, sizeof script, MAPPED "send %s\\r\\n\nacquire 1 20000 0\ngranted 41\n" RELEASED, replies[i]);
        get_it(5000, script);
    }
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[2000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], "*1\\r\\n*1");
        snprintf(script, sizeof script, MAPPED "%s", fault);
        wire_refuse(URL, HF_UNAVAILABLE, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

/* --- redirections --- */

#define ASKED "acquire 1 20000 0\n"
#define FOUR(lines) lines lines lines lines

TEST(a_redirection_is_followed)
{
    get_it(5000, OPENED ASKED "send -MOVED 5 " HERE "\\r\\n\n" ASKED "granted 41\n" RELEASED);
    get_it(5000, OPENED ASKED "send -MOVED 5 :\\5\\5\\5\\5\\5\\r\\n\n" ASKED "granted 41\n" RELEASED);
    get_it(5000,
           OPENED ASKED "send -TRYAGAIN x\\r\\n\n" ASKED "send -TRYAGAIN x\\r\\n\n" ASKED "granted 41\n" RELEASED);
    get_it(5000, OPENED ASKED "send -ASK 5 " HERE "\\r\\n\nexpect *1\\r\\n$6\\r\\nASKING\\r\\n\n" ASKED
                              "send +OK\\r\\n:41\\r\\n\n" RELEASED);
}

/* Each says that the other has it: the client does not go round for ever, and says what is the matter. */
TEST(redirections_in_a_circle)
{
#define MOVED ASKED "send -MOVED 5 " HERE "\\r\\n\n"
    wire_miss(URL, HF_UNAVAILABLE, 0, 5000, OPENED MOVED FOUR(MOVED) FOUR(MOVED));
#undef MOVED
#define SENT_ON "expect *1\\r\\n$6\\r\\nASKING\\r\\n\n" ASKED "send +OK\\r\\n-ASK 5 " HERE "\\r\\n\n"
    wire_miss(URL, HF_UNAVAILABLE, 0, 5000, OPENED ASKED "send -ASK 5 " HERE "\\r\\n\n" FOUR(SENT_ON) FOUR(SENT_ON));
#undef SENT_ON
}

TEST(redirections_to_nowhere)
{
    static const char *const replies[] = { "MOVED",
                                           "MOVED 5",
                                           "MOVED 5 ",
                                           "MOVED 5 h",
                                           "MOVED 5 h:",
                                           "MOVED 5 h:0",
                                           "MOVED 5 h:65536",
                                           "MOVED 5 h:x",
                                           "MOVED 5 :",
                                           "MOVED x 127.0.0.1:1",
                                           "MOVED 99999999999999999999 127.0.0.1:1",
                                           "MOVED -1 127.0.0.1:1",
                                           "ASK",
                                           "ASK 5 127.0.0.1:1",
                                           "ASK 5 h:99999" };
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        char script[2000];
        test_note("%s", replies[i]);
        /* One that names another slot than the key's changes nothing for the key: it is asked for again. */
        const bool other_slot = strstr(replies[i], "MOVED ") && strstr(replies[i], "127.0.0.1:1");
        snprintf(script, sizeof script, OPENED ASKED "send -%s\\r\\n\n%s", replies[i],
                 other_slot ? ASKED "send -CLUSTERDOWN x\\r\\n\n" : "");
        wire_miss(URL, HF_UNAVAILABLE, 0, test_ms(1000), script);
    }
}

TEST_LIMIT(faults_after_a_redirection, 60)
{
    for (size_t i = 0; i < wire_fault_count; i++) {
        char script[3000], fault[300];
        test_note("%s", wire_faults[i].name);
        wire_fault_lines(fault, sizeof fault, &wire_faults[i], ":4");
        snprintf(script, sizeof script,
                 OPENED ASKED "send -ASK 5 " HERE "\\r\\n\nexpect *1\\r\\n$6\\r\\nASKING\\r\\n\n" ASKED
                              "send +OK\\r\\n\n%srefuse\n",
                 fault);
        wire_miss(URL, HF_UNKNOWN, 0, wire_faults[i].slow ? test_ms(300) : 5000, script);
    }
}

/* --- sharded channels --- */

#define BUSY "busy 60000 -1 900000\n"
#define LINED_UP                                                                                                       \
    SHARDED ASKED BUSY "hello push\nsubscribe\nsubscribed\nuse main\nacquire 1 20000 1\nbusy 60000 0 5000000\n"

/* It may have come by way of a server that has lost the slot: the waiter asks before it believes. */
TEST(a_gift_on_a_sharded_channel_is_asked_about)
{
    get_it(5000, LINED_UP "use push\npush 1 41 5 0\nuse main\nacquire 1 20000 1\ngranted 41\n" RELEASED);
}

/* The slot has moved: the server ends the subscription by itself. */
TEST(a_subscription_that_the_server_ends)
{
    static const char *const endings[] = { "send *3\\r\\n$12\\r\\nsunsubscribe\\r\\n$1\\r\\nx\\r\\n:0\\r\\n\n",
                                           "send *3\\r\\n$11\\r\\nunsubscribe\\r\\n$1\\r\\nx\\r\\n:0\\r\\n\n",
                                           ("send -MOVED 5 " HERE "\\r\\n\n"), "send -ERR x\\r\\n\n", "cut\n" };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char script[3000];
        test_note("%s", endings[i]);
        snprintf(script, sizeof script,
                 LINED_UP "use push\n%suse main\n" ASKED "busy 60000 -1 1500000\n"
                          "hello push\nsubscribe\nsubscribed\nuse main\nacquire 1 20000 1\ngranted 46\n" RELEASED,
                 endings[i]);
        get_it(5000, script);
    }
}

/* Nobody lines up who could not be told; but whoever waits goes on asking. */
TEST(a_confirmation_that_never_comes)
{
    get_it(test_ms(300), SHARDED ASKED BUSY "hello push\nsubscribe\nuse main\n" ASKED "granted 41\n" RELEASED);
    wire_miss(URL, HF_TIMEOUT, test_ms(200), test_ms(2000),
              SHARDED ASKED BUSY "hello push\nsubscribe\nuse main\n" ASKED BUSY);
}

TEST(a_subscription_that_is_refused)
{
    wire_miss(URL, HF_DENIED, 10000, 5000, SHARDED ASKED BUSY "hello push\nsubscribe\nsend -NOPERM x\\r\\n\neof\n");
    wire_miss(URL, HF_UNSUPPORTED, 10000, 5000,
              SHARDED ASKED BUSY "hello push\nsubscribe\nsend -ERR unknown command 'SSUBSCRIBE'\\r\\n\neof\n");
    /* Moved meanwhile: whoever asks next is told where. */
    get_it(5000, SHARDED ASKED BUSY "hello push\nsubscribe\nsend -MOVED 5 " HERE "\\r\\n\neof\nuse main\n" ASKED
                                    "granted 41\n" RELEASED);
}
