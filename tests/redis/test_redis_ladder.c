/* SPDX-License-Identifier: MIT
 *
 * test_redis_ladder.c: how dialect=plain releases: by the best command that the server has, and by a script where it
 * has none, may not use it, or has it no longer. Run on servers of several kinds, TEST_SERVER each: what they have is
 * asked of them, and what was used is read from their own counts.
 */
#include "redis_support.h"
#include "server_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"

static void use_plain(const struct redis_server *server, const char *user)
{
    char url[100];
    snprintf(url, sizeof url, "redis://%s127.0.0.1:%d?dialect=plain", user, server->port);
    use_url(url);
}

static struct redis_server *start(bool module)
{
    char arguments[400] = "";
    if (module)
        snprintf(arguments, sizeof arguments, "--loadmodule %s", home_need("TEST_SERVER_MODULE"));
    struct redis_server *server = redis_server_start(home_need("TEST_SERVER"), arguments);
    use_plain(server, "");
    return server;
}

/* The first of the ladder that the server has; "eval" if there is none. */
static const char *best_of(struct redis_server *server)
{
    static const char *const rungs[] = { "delex", "delifeq", "cad" };
    const char *best = "eval";
    redisReply *reply = redis_server_command(server, "COMMAND INFO delex delifeq cad");
    REQUIRE_INT(3, reply->elements);
    for (size_t i = 3; i-- > 0;) {
        if (reply->element[i]->type == REDIS_REPLY_ARRAY && reply->element[i]->elements > 0)
            best = rungs[i];
    }
    freeReplyObject(reply);
    return best;
}

static hf_lock *acquire(hf_client *client)
{
    hf_options options = stranger(endless_ttl_ms());
    return must_acquire(client, NAME, &options);
}

/* Everything that must hold for a release, whichever way it is done. `rung`: the command that is to be used. */
static void check_releases(struct redis_server *server, const char *rung)
{
    static const char *const others[] = { "delex", "delifeq", "cad" };
    struct waiter waiter;
    char value[16];
    hf_error err = { 0 };
    test_note("by %s", rung);
    hf_client *client = open_client();
    const int64_t scripts = redis_server_calls(server, "eval") + redis_server_calls(server, "evalsha");
    int64_t before[3];
    for (size_t i = 0; i < 3; i++)
        before[i] = redis_server_calls(server, others[i]);

    must_release(acquire(client));
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(strcmp(rung, others[i]) == 0 ? 1 : 0, redis_server_calls(server, others[i]) - before[i]);
    CHECK(redis_server_calls(server, "eval") + redis_server_calls(server, "evalsha") > scripts);

    hf_lock *lock = acquire(client); /* the next waiter is called */
    hf_options options = stranger(endless_ttl_ms());
    waiter_start(&waiter, client, NAME, &options);
    while (redis_server_number(server, "ZCARD hf:{" NAME "}:w") != 1)
        pause_ms(1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);

    redis_server_do(server, "SET " NAME " theirs PX 600000"); /* somebody else's stays */
    CHECK_STATUS(HF_LOST, hf_release(waiter.lock, &err), &err);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    redis_server_do(server, "DEL " NAME);

    lock = acquire(client); /* as does what is no string */
    redis_server_do(server, "DEL " NAME);
    redis_server_do(server, "RPUSH " NAME " theirs");
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_INT(1, redis_server_number(server, "LLEN " NAME));
    redis_server_do(server, "DEL " NAME);

    lock = acquire(client); /* gone is lost */
    redis_server_do(server, "DEL " NAME);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);

    lock = acquire(client); /* no memory is needed */
    redis_server_do(server, "CONFIG SET maxmemory 1");
    must_release(lock);
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    redis_server_do(server, "CONFIG SET maxmemory 0");
    hf_close(client);
}

TEST(the_best_command_that_the_server_has)
{
    struct redis_server *server = start(false);
    check_releases(server, best_of(server));
}

TEST(the_best_command_with_our_module)
{
    struct redis_server *server = start(true);
    const char *best = best_of(server);
    CHECK(strcmp(best, "eval") != 0);
    check_releases(server, best);
}

/* What it has cannot be found out. */
TEST(a_user_who_may_not_ask_for_commands_releases_by_script)
{
    struct redis_server *server = start(true);
    redis_server_do(server, "ACL SETUSER bob on >pw ~* &* +@all -command");
    use_plain(server, "bob:pw@");
    check_releases(server, "eval");
}

/* What is its own it removes, and nothing of others. */
static void check_releases_its_own(struct redis_server *server, hf_client *client)
{
    char value[16];
    hf_error err = { 0 };
    must_release(acquire(client));
    CHECK_INT(0, redis_server_number(server, "EXISTS " NAME));
    hf_lock *lock = acquire(client);
    redis_server_do(server, "SET " NAME " theirs PX 600000");
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    redis_server_text(server, value, sizeof value, "GET " NAME);
    CHECK_STR("theirs", value);
    hf_close(client);
}

/* COMMAND INFO says what there is, not what one may use. */
TEST(a_user_who_may_not_use_the_command_releases_by_script)
{
    struct redis_server *server = start(true);
    redis_server_do(server, "ACL SETUSER bob on >pw ~* &* +@all -%s", best_of(server));
    use_plain(server, "bob:pw@");
    hf_client *client = open_client();
    check_releases_its_own(server, client);
}

/* As after a failover to a server that lacks it. */
TEST(a_command_that_is_gone_is_replaced_by_the_script)
{
    struct redis_server *server = redis_server_start(NULL, "");
    char arguments[400];
    snprintf(arguments, sizeof arguments, "--loadmodule %s", home_need("TEST_SERVER_MODULE"));
    redis_server_kill(server);
    redis_server_restart(server, false, arguments);
    use_plain(server, "");
    hf_client *client = open_client();
    CHECK_STR("cad", best_of(server));
    must_release(acquire(client));
    redis_server_kill(server);
    redis_server_restart(server, false, "");
    CHECK_STR("eval", best_of(server));
    check_releases_its_own(server, client);
}

/* The dialect is named after two commands; others that compare do not replace them. */
TEST(the_dialect_tair_wants_cas_and_cad_whatever_else_there_is)
{
    struct redis_server *server = start(false);
    hf_error err = { 0 };
    refuse_url(HF_UNSUPPORTED, "CAS and CAD", "%s?dialect=tair", server->url);
    server = start(true);
    hf_client *client = open_url("%s?dialect=tair", server->url);
    hf_lock *lock = acquire(client);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    CHECK_INT(2, redis_server_calls(server, "cas")); /* each was tried once before */
    CHECK_INT(2, redis_server_calls(server, "cad"));
    hf_close(client);
}
