/* SPDX-License-Identifier: MIT
 *
 * test_redis_commands.c: the commands of the server's module instead of scripts: found by what the server says at the
 * log-in, used where they are, and left for the scripts where they are refused.
 */
#include "wire.h"

#define URL "redis://127.0.0.1:%d?module=yes"
#define PING_HELLO                                                                                                     \
    "accept\nexpect *1\\r\\n$4\\r\\nPING\\r\\n*2\\r\\n$5\\r\\nHELLO\\r\\n$1\\r\\n2\\r\\n\nsend +PONG\\r\\n"
#define UNKNOWN "send -ERR unknown command 'HF.ACQUIRE', with args beginning with: '2' \\r\\n\n"

TEST(the_commands_of_the_module_are_used)
{
    struct wire wire;
    wire_release(&wire,
                 wire_hold(&wire, URL, 0, 5000,
                           "hello-native\nnative-acquire 1 20000 0\ngranted 41\nnative-release 1\nsend :1\\r\\n\n"),
                 HF_OK);
}

TEST(renewals_and_the_guard_go_by_the_module_too)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = wire_hold(&wire, URL, 0, 5000,
                              "hello-native\nnative-acquire 1 20000 0\ngranted 41\nnative-renew 1 20000\n"
                              "send *1\\r\\n:1\\r\\n\nnative-guard 41\nsend :1\\r\\n\nnative-release 1\n"
                              "send :1\\r\\n\n");
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_OK, hf_guard(wire.client, "job", hf_token(lock), &err), &err);
    wire_release(&wire, lock, HF_OK);
}

/* Nothing was done, and the script can do it, or says better why not. */
TEST_LIMIT(what_the_module_refuses_the_script_does, 60)
{
    static const struct {
        const char *reply;
        bool for_good; /* it is not asked again on this connection */
    } refusals[] = { { "ERR unknown command 'HF.ACQUIRE', with args beginning with: '2' ", true },
                     { "ERR unknown command `HF.ACQUIRE`, with args beginning with: `2`, ", true },
                     { "NOPERM this user has no permissions to run the 'hf.acquire' command", true },
                     { "OOM command not allowed when used memory > 'maxmemory'.", false },
                     { "MISCONF Redis is configured to save RDB snapshots", false },
                     { "NOREPLICAS Not enough good replicas to write.", false } };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct wire wire;
        char script[1000];
        test_note("%s", refusals[i].reply);
        snprintf(script, sizeof script,
                 "hello-native\nnative-acquire 1 20000 0\nsend -%s\\r\\n\nacquire 1 20000 0\ngranted 41\n%s 1\n"
                 "send :1\\r\\n\n",
                 refusals[i].reply, refusals[i].for_good ? "release" : "native-release");
        wire_release(&wire, wire_hold(&wire, URL, 0, 5000, script), HF_OK);
    }
}

TEST(a_script_that_is_not_known_either_goes_with_its_text)
{
    struct wire wire;
    wire_release(&wire,
                 wire_hold(&wire, URL, 0, 5000,
                           "hello-native\nnative-acquire 1 20000 0\n" UNKNOWN
                           "acquire 1 20000 0\nsend -NOSCRIPT x\\r\\n\neval-acquire 1 20000 0\ngranted 41\n"
                           "release 1\nsend :1\\r\\n\n"),
                 HF_OK);
}

/* A script that is let through says as much as its answer does. */
TEST(a_user_with_scripts_is_denied_the_module_once)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = wire_hold(&wire, URL, 0, 5000,
                              "hello-native\nnative-acquire 1 20000 0\nsend -NOPERM x\\r\\n\n"
                              "acquire 1 20000 0\nsend -NOSCRIPT x\\r\\n\neval-acquire 1 20000 0\ngranted 41\n"
                              "renew 1 20000\nsend *1\\r\\n:1\\r\\n\nrelease 1\nsend :1\\r\\n\n");
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    wire_release(&wire, lock, HF_OK);
}

/* Whatever else it says is final: it is not asked twice for what it has done, or will not do. */
TEST_LIMIT(other_errors_of_the_module_are_the_answer, 60)
{
    static const struct wire_refusal refusals[] = {
        { "WRONGTYPE Operation against a key holding the wrong kind of value", HF_DENIED, "another program" },
        { "ERR an argument that must be a number is none", HF_INTERNAL, "number" },
        { "BUSY Redis is busy running a script.", HF_UNAVAILABLE, "busy" },
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char script[1000];
        snprintf(script, sizeof script, "hello-native\nnative-acquire 1 20000 0\nsend -%s\\r\\n\n", refusals[i].reply);
        wire_miss(URL, refusals[i].status, 0, 5000, script);
    }
}

TEST_LIMIT(a_lost_answer_of_the_module_is_undone, 60)
{
    wire_miss(URL, HF_UNKNOWN, 0, 5000,
              "hello-native\nnative-acquire 1 20000 0\ncut\nretry\nhello-native\nnative-undo 1\ncut\ndone\n"
              "retry\nhello-native undo\nnative-undo 1\nsend :1\\r\\n\ndone\n");
}

/* What is no list with the module in it is a server without it. */
TEST_LIMIT(a_server_that_does_not_name_the_module_is_sent_scripts, 60)
{
    static const char *const answers[] = {
        "-ERR unknown command `HELLO`, with args beginning with: `2`, \\r\\n",
        "-NOPERM x\\r\\n",
        "+OK\\r\\n",
        ":7\\r\\n",
        "$-1\\r\\n",
        "*-1\\r\\n",
        "*0\\r\\n",
        "*1\\r\\n$7\\r\\nmodules\\r\\n",
        "*2\\r\\n$7\\r\\nmodules\\r\\n$8\\r\\nholdfast\\r\\n",
        "*2\\r\\n$7\\r\\nmodules\\r\\n*0\\r\\n",
        "*2\\r\\n$7\\r\\nmodules\\r\\n*1\\r\\n$8\\r\\nholdfast\\r\\n",
        "*2\\r\\n$7\\r\\nmodules\\r\\n*1\\r\\n*2\\r\\n$4\\r\\nname\\r\\n$12\\r\\nholdfast-cas\\r\\n",
        "*2\\r\\n$7\\r\\nmodules\\r\\n*1\\r\\n*2\\r\\n$4\\r\\nname\\r\\n:1\\r\\n",
        "*2\\r\\n$7\\r\\nmodules\\r\\n*1\\r\\n*2\\r\\n$3\\r\\nver\\r\\n$8\\r\\nholdfast\\r\\n",
        "*2\\r\\n:7\\r\\n*1\\r\\n*2\\r\\n$4\\r\\nname\\r\\n$8\\r\\nholdfast\\r\\n",
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct wire wire;
        char script[1000];
        test_note("%s", answers[i]);
        snprintf(script, sizeof script, PING_HELLO "%s\nacquire 1 20000 0\ngranted 41\nrelease 1\nsend :1\\r\\n\n",
                 answers[i]);
        wire_release(&wire, wire_hold(&wire, URL, 0, 5000, script), HF_OK);
    }
}
