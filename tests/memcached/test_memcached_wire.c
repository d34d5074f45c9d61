/* SPDX-License-Identifier: MIT
 *
 * test_memcached_wire.c: what a real server does not do on command: answers that are lost, halved, late or nonsense, at
 * every exchange.
 */
#include "engine_support.h"
#include "script_server.h"

#include <stdio.h>
#include <string.h>

#define SETTINGS "STAT cas_enabled yes\\r\\nEND\\r\\n"
#define STATISTICS "STAT pid 1\\r\\nSTAT uptime 100\\r\\nSTAT time 1700000100\\r\\nSTAT version 1.6.18\\r\\nEND\\r\\n"
#define GREETING "accept\nexpect stats settings\\r\\nstats\\r\\n\nsend " SETTINGS STATISTICS "\n"
#define ADD "expect* mg holdfast:x v c t\\r\\n\n"
#define ADDED "send STORED\\r\\nVA 41 c7 t13\\r\\nfree\\t0000000000000000\\t0000000000000000\\tx\\t\\r\\n\n"
#define TAKE "expect* mg holdfast:x v c t\\r\\n\n"
#define GIVEN_BACK "expect* mg holdfast:x v c t\\r\\n\nsend EN\\r\\n\n"

static hf_client *open_at(struct script_server *server)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_client_options limits = HF_CLIENT_OPTIONS_INIT;
    char url[100];
    limits.timeout_ms = test_ms(500);
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d", script_port(server));
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &limits, &err), &err);
    return client;
}

/* A try, in answer to which the script goes on like this after the greeting. */
static void try_with(const char *rest, hf_status expected, const char *words)
{
    char script[2000];
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    snprintf(script, sizeof script, GREETING "%s", rest);
    struct script_server *server = script_start(script);
    hf_client *client = open_at(server);
    hf_options options = stranger(5000);
    options.renew = HF_RENEW_OFF;
    CHECK_STATUS(expected, hf_try_acquire(&lock, client, "x", &options, &err), &err);
    CHECK(strstr(err.message, words) != NULL);
    hf_close(client);
    script_check(server);
}

TEST(a_server_that_is_no_memcached)
{
    static const struct {
        const char *answer;
        hf_status status;
    } cases[] = {
        { "hello\\r\\nhello\\r\\n", HF_INTERNAL },
        { "END\\r\\nEND\\r\\n", HF_INTERNAL },
        { "CLIENT_ERROR unauthenticated\\r\\nCLIENT_ERROR unauthenticated\\r\\n", HF_DENIED },
        { SETTINGS "STAT uptime 9\\r\\nSTAT time 1700000000\\r\\nSTAT version 1.5.6\\r\\nEND\\r\\n", HF_UNSUPPORTED },
        { "END\\r\\n" STATISTICS, HF_UNSUPPORTED },
        { SETTINGS "STAT uptime 9\\r\\nSTAT time 8\\r\\nSTAT version 1.6.18\\r\\nEND\\r\\n", HF_UNSUPPORTED },
        { SETTINGS "STAT uptime 9\\r\\nSTAT time 10\\r\\nSTAT version 1.6.18\\r\\nEND\\r\\n", HF_UNSUPPORTED },
        { SETTINGS STATISTICS "and more", HF_INTERNAL }
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char script[1000];
        snprintf(script, sizeof script, "accept\nexpect stats settings\\r\\nstats\\r\\n\nsend %s\n", cases[i].answer);
        struct script_server *server = script_start(script);
        check_open_at(cases[i].status, "", "memcached://127.0.0.1:%d", script_port(server));
        script_check(server);
    }
    struct script_server *full = script_start("accept\nsend ERROR Too many open connections\\r\\n\ncut\n");
    check_open_at(HF_UNAVAILABLE, "broke", "memcached://127.0.0.1:%d", script_port(full));
    script_check(full);
}

TEST(an_answer_in_single_bytes)
{
    try_with(
        "expect* mg holdfast:x v c t\\r\\n\n"
        "dribble NOT_STORED\\r\\nVA 50 c7 t13\\r\\nheld\\t0000000000000001\\t0000000000000002\\tx\\tsomebody!\\r\\n\n",
        HF_BUSY, "somebody!");
}

/* Nothing of a lock was asked for yet: there is nothing to give back. */
TEST(the_first_answer_is_lost)
{
    try_with(ADD "cut\n", HF_UNAVAILABLE, "broke");
    try_with(ADD "reset\n", HF_UNAVAILABLE, "broke");
    try_with(ADD "send STORED\\r\\nVA 41 c7 t13\\r\\nfree\\t00\nstall\n", HF_UNAVAILABLE, "in time");
    try_with(ADD "send STORED\\r\\n\ncut\n", HF_UNAVAILABLE, "broke");
}

TEST(the_answer_to_the_grant_is_lost)
{
    static const char again[] = GREETING GIVEN_BACK;
    static const char *const ways[] = { "cut\n", "reset\n", "send STORED\\r\\nVA 4\ncut\n" };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char rest[1500];
        snprintf(rest, sizeof rest, ADD ADDED TAKE "%s%s", ways[i], again);
        try_with(rest, HF_UNKNOWN, "broke");
    }
}

TEST(answers_that_make_no_sense)
{
    try_with(ADD "send STORED\\r\\nWHAT\\r\\n\n", HF_INTERNAL, "says \"STORED\"");
    try_with(ADD "send STORED\\r\\nVA 4 t13\\r\\nfree\\r\\n\n", HF_INTERNAL, "");
    try_with(ADD "send STORED\\r\\nVA 4 c99999999999999999999999 t13\\r\\nfree\\r\\n\n", HF_INTERNAL, "");
    try_with(ADD "send ERROR\\r\\nERROR\\r\\n\n", HF_INTERNAL, "says \"ERROR\"");
    try_with(ADD "send SERVER_ERROR in trouble\\r\\nEN\\r\\n\n", HF_UNAVAILABLE, "in trouble");
    try_with(ADD "send STORED\\r\\nEN\\r\\nEN\\r\\n\n", HF_INTERNAL, "more than it was asked");
    try_with(ADD "send STORED\\r\\nVA 99999999999999999999 c1 t1\\r\\n\nstall\n", HF_UNAVAILABLE, "in time");
}
