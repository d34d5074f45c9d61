/* SPDX-License-Identifier: MIT
 *
 * test_module_server.c: CAS and CAD of the server's module as a part of the server: replicas, the log on disk, memory,
 * events, access control, clusters, loading and unloading.
 */
#include "module_support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- replicas and the disk */

static const char *const every_key[] = { "plain", "ex",  "px",   "exat",  "pxat", "keep",
                                         "past",  "cad", "late", "multi", "lua",  "left" };
#define KEYS (sizeof every_key / sizeof *every_key)

struct content {
    char value[40];
    int64_t expiry_ms;
};

static void read_content(struct redis_server *server, struct content content[KEYS])
{
    for (size_t i = 0; i < KEYS; i++) {
        redis_server_text(server, content[i].value, sizeof content[i].value, "GET %s", every_key[i]);
        content[i].expiry_ms = expiry_of(server, every_key[i]);
    }
}

static void check_same_content(const struct content expected[KEYS], const struct content actual[KEYS])
{
    for (size_t i = 0; i < KEYS; i++) {
        CHECK_STR(expected[i].value, actual[i].value);
        if (!same_expiry(expected[i].expiry_ms, actual[i].expiry_ms))
            FAIL("%s expires at %" PRId64 ", expected %" PRId64, every_key[i], actual[i].expiry_ms,
                 expected[i].expiry_ms);
    }
}

static void use_every_way(struct redis_server *server)
{
    const long long now_s = server_now_ms(server) / 1000;
    for (size_t i = 0; i < KEYS; i++)
        redis_server_do(server, "SET %s old PX 400000", every_key[i]);
    CHECK_ANSWER(1, server, "CAS plain old new");
    CHECK_ANSWER(1, server, "CAS ex old new EX 500");
    CHECK_ANSWER(1, server, "CAS px old new PX 600000");
    CHECK_ANSWER(1, server, "CAS exat old new EXAT %lld", now_s + 700);
    CHECK_ANSWER(1, server, "CAS pxat old new PXAT %lld", now_s * 1000 + 800001);
    CHECK_ANSWER(1, server, "CAS keep old new KEEPTTL");
    CHECK_ANSWER(1, server, "CAS past old new PXAT 1");
    CHECK_ANSWER(1, server, "CAD cad old");
    CHECK_ANSWER(0, server, "CAD late older");
    CHECK_ANSWER(0, server, "CAS late older new");
    redis_server_do(server, "MULTI");
    redis_server_do(server, "CAS multi old middle PX 900000");
    redis_server_do(server, "CAS multi middle new KEEPTTL");
    redis_server_do(server, "CAD left old");
    redis_server_do(server, "EXEC");
    redis_server_do(server, "EVAL %s 1 lua", "return redis.call('CAS', KEYS[1], 'old', 'new', 'PX', 950000)");
}

static void check_every_way(const struct content content[KEYS])
{
    static const char *const values[KEYS] = {
        "new", "new", "new", "new", "new", "new", "", "", "old", "new", "new", ""
    };
    for (size_t i = 0; i < KEYS; i++) {
        CHECK_STR(values[i], content[i].value);
        CHECK_INT(values[i][0] == '\0', content[i].expiry_ms == -2);
        CHECK_INT(i == 0, content[i].expiry_ms == -1); /* "plain" alone has lost its expiry */
    }
}

TEST_LIMIT(a_replica_has_the_same_values_and_expiries, 60)
{
    struct redis_server *master = serve_with_module("");
    struct redis_server *replica = redis_server_start_replica(master); /* which has no module */
    struct content expected[KEYS], actual[KEYS];
    use_every_way(master);
    REQUIRE_INT(1, redis_server_number(master, "WAIT 1 20000"));
    read_content(master, expected);
    read_content(replica, actual);
    check_every_way(expected);
    check_same_content(expected, actual);
    /* One command each, so that no replica ever has the new value with another expiry. */
    if (server_version() >= 700)
        CHECK_INT(0, redis_server_calls(replica, "pexpireat"));
    CHECK(redis_server_calls(replica, "del") > 0);
}

TEST_LIMIT(a_replica_gets_nothing_when_nothing_changes, 60)
{
    struct redis_server *master = serve_with_module("");
    struct redis_server *replica = redis_server_start_replica(master);
    redis_server_do(master, "SET k old");
    REQUIRE_INT(1, redis_server_number(master, "WAIT 1 20000"));
    const int64_t sets = redis_server_calls(replica, "set");
    const int64_t deletions = redis_server_calls(replica, "del");
    CHECK_ANSWER(0, master, "CAD k other");
    CHECK_ANSWER(0, master, "CAS k other new PX 1000");
    CHECK_ANSWER(-1, master, "CAD none old");
    CHECK_ANSWER(-1, master, "CAS none old new PX 1000");
    redis_server_do(master, "SET end 1");
    REQUIRE_INT(1, redis_server_number(master, "WAIT 1 20000"));
    CHECK_INT(sets + 1, redis_server_calls(replica, "set"));
    CHECK_INT(deletions, redis_server_calls(replica, "del"));
}

TEST(a_replica_refuses_both)
{
    struct redis_server *replica = serve_with_module("--replicaof 127.0.0.1 1"); /* where nobody is */
    CHECK_ERROR_KIND("READONLY", replica, "CAD k old");
    CHECK_ERROR_KIND("READONLY", replica, "CAS k old new");
}

TEST_LIMIT(the_log_on_disk_has_the_same_and_needs_no_module, 60)
{
    struct redis_server *server = serve_with_module("--appendonly yes --appendfsync always");
    struct content expected[KEYS], actual[KEYS];
    use_every_way(server);
    read_content(server, expected);
    check_every_way(expected);
    redis_server_restart(server, true, "");
    read_content(server, actual);
    check_same_content(expected, actual);
    snprintf(server->arguments, sizeof server->arguments, "--appendonly yes");
    redis_server_restart(server, true, "");
    read_content(server, actual);
    check_same_content(expected, actual);
    CHECK_ERROR_KIND("ERR unknown command", server, "CAD late old");
}

/* ----------------------------------------------------------------------------------------------------------- memory */

TEST(without_memory_cad_works_and_cas_is_refused)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "MSET k old lua old");
    redis_server_do(server, "CONFIG SET maxmemory 1");
    CHECK_ERROR_KIND("OOM ", server, "SET other 1");
    CHECK_ERROR_KIND("OOM ", server, "CAS k old new");
    CHECK_ERROR_KIND("OOM ", server, "CAS k old new PX 1000");
    CHECK_ANSWER(0, server, "CAD k other");
    CHECK_ANSWER(1, server, "CAD k old");
    CHECK_ANSWER(-1, server, "CAD k old");
    CHECK_ANSWER(1, server, "EVAL %s 1 lua", "return redis.call('CAD', KEYS[1], 'old')");
    CHECK_ANSWER(0, server, "EXISTS k lua");
}

/* ----------------------------------------------------------------------------------------------------------- events */

/* Every event since the last call, as "set:k expire:k ". */
static void read_events(struct redis_server *server, redisContext *subscriber, char *out, size_t size)
{
    bool ended = false;
    size_t used = 0;
    out[0] = '\0';
    redis_server_do(server, "PUBLISH __keyevent@0__:end all");
    while (!ended) {
        redisReply *message = NULL;
        REQUIRE_INT(REDIS_OK, redisGetReply(subscriber, (void **)&message));
        REQUIRE_INT(4, message->elements);
        const char *event = strchr(message->element[2]->str, ':') + 1;
        ended = strcmp(event, "end") == 0;
        if (!ended)
            used += (size_t)snprintf(out + used, size - used, "%s:%s ", event, message->element[3]->str);
        REQUIRE(used < size);
        freeReplyObject(message);
    }
}

static void check_same_events(struct redis_server *server, redisContext *subscriber, const char *native,
                              const char *ours)
{
    char expected[200], actual[200];
    redis_server_do(server, "SET k old PX 100000");
    read_events(server, subscriber, expected, sizeof expected);
    redis_server_do(server, native);
    read_events(server, subscriber, expected, sizeof expected);
    redis_server_do(server, "SET k old PX 100000");
    read_events(server, subscriber, actual, sizeof actual);
    CHECK_ANSWER(1, server, ours);
    read_events(server, subscriber, actual, sizeof actual);
    CHECK(expected[0] != '\0');
    CHECK_STR(expected, actual);
}

TEST(events_are_those_of_the_servers_own_commands)
{
    struct redis_server *server = serve_with_module("--notify-keyspace-events KEAm");
    redisContext *subscriber = redis_server_connect(server);
    char events[200];
    REQUIRE(subscriber != NULL);
    freeReplyObject(redisCommand(subscriber, "PSUBSCRIBE __keyevent@0__:*"));
    check_same_events(server, subscriber, "SET k new", "CAS k old new");
    check_same_events(server, subscriber, "SET k new EX 100", "CAS k old new EX 100");
    check_same_events(server, subscriber, "SET k new PX 100000", "CAS k old new PX 100000");
    check_same_events(server, subscriber, "SET k new KEEPTTL", "CAS k old new KEEPTTL");
    check_same_events(server, subscriber, "DEL k", "CAD k old");
    redis_server_do(server, "SET k old");
    read_events(server, subscriber, events, sizeof events);
    CHECK_ANSWER(0, server, "CAS k other new");
    CHECK_ANSWER(0, server, "CAD k other");
    CHECK_ANSWER(0, server, "CAD k 123"); /* as long as what is there */
    CHECK_ANSWER(-1, server, "CAS none other new");
    CHECK_ANSWER(-1, server, "CAD none other");
    read_events(server, subscriber, events, sizeof events);
    CHECK_STR("", events);
    redisFree(subscriber);
}

/* -------------------------------------------------------------------------------------------- what the server knows */

static bool has_word(const redisReply *list, const char *word)
{
    for (size_t i = 0; i < list->elements; i++) {
        if (list->element[i]->str && strcmp(list->element[i]->str, word) == 0)
            return true;
    }
    return false;
}

static void check_known(const redisReply *info, const char *name, int arity, bool denies_oom)
{
    REQUIRE_INT(REDIS_REPLY_ARRAY, info->type);
    REQUIRE(info->elements >= 6);
    CHECK_STR(name, info->element[0]->str);
    if (server_version() >= 700)
        CHECK_INT(arity, info->element[1]->integer);
    CHECK(has_word(info->element[2], "write"));
    CHECK(has_word(info->element[2], "fast"));
    CHECK_INT(denies_oom, has_word(info->element[2], "denyoom"));
    for (size_t i = 3; i < 6; i++)
        CHECK_INT(1, info->element[i]->integer); /* first key, last key, step */
}

TEST(command_info_describes_both)
{
    struct redis_server *server = serve_with_module("");
    redisReply *reply = redis_server_command(server, "COMMAND INFO cas cad");
    REQUIRE_INT(2, reply->elements);
    check_known(reply->element[0], "cas", -4, true);
    check_known(reply->element[1], "cad", 3, false);
    freeReplyObject(reply);
    reply = redis_server_command(server, "COMMAND GETKEYS CAS k old new PX 10");
    REQUIRE_INT(1, reply->elements);
    CHECK_STR("k", reply->element[0]->str);
    freeReplyObject(reply);
}

static int64_t ask_as(redisContext *client, const char *command)
{
    redisReply *reply = redisCommand(client, command);
    REQUIRE(reply != NULL);
    REQUIRE_INT(REDIS_REPLY_INTEGER, reply->type);
    const int64_t answer = reply->integer;
    freeReplyObject(reply);
    return answer;
}

#define CHECK_AS_ERROR_KIND(expected_, client_, command_)                                                              \
    check_error_kind(__FILE__, __LINE__, (expected_), redisCommand((client_), (command_)))

static redisContext *connect_as(struct redis_server *server, const char *user)
{
    redisContext *client = redis_server_connect(server);
    REQUIRE(client != NULL);
    freeReplyObject(redisCommand(client, "AUTH %s any", user));
    return client;
}

/* Servers before Redis 7.2 know no categories of module commands; there, each command is allowed by its name. */
TEST(both_are_in_the_categories_of_commands_that_write_strings)
{
    static const char *const categories[] = { "write", "string", "fast" };
    struct redis_server *server = serve_with_module("");
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        redis_server_do(server, "ACL SETUSER someone reset on nopass ~* -@all +@%s +auth", categories[i]);
        redisContext *client = connect_as(server, "someone");
        if (server_version() >= 702) {
            CHECK_INT(-1, ask_as(client, "CAS k old new"));
            CHECK_INT(-1, ask_as(client, "CAD k old"));
        } else {
            CHECK_AS_ERROR_KIND("NOPERM", client, "CAD k old");
        }
        redisFree(client);
    }
    redis_server_do(server, "ACL SETUSER someone reset on nopass ~* +@all -cad");
    redisContext *client = connect_as(server, "someone");
    CHECK_AS_ERROR_KIND("NOPERM", client, "CAD k old");
    CHECK_INT(-1, ask_as(client, "CAS k old new"));
    redisFree(client);
}

TEST(access_to_the_key_and_to_the_command_is_enough)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "MSET k old other old");
    redis_server_do(server, "ACL SETUSER locker on nopass ~k -@all +cas +cad +auth");
    redisContext *client = connect_as(server, "locker");
    CHECK_INT(1, ask_as(client, "CAS k old new PX 100000"));
    CHECK_INT(1, ask_as(client, "CAD k new"));
    CHECK_AS_ERROR_KIND("NOPERM", client, "CAS other old new");
    CHECK_AS_ERROR_KIND("NOPERM", client, "CAD other old");
    if (server_version() >= 700) { /* comparing is reading, by way of guesses */
        redis_server_do(server, "ACL SETUSER writer on nopass %%W~other -@all +cas +cad +auth");
        redisFree(client);
        client = connect_as(server, "writer");
        CHECK_AS_ERROR_KIND("NOPERM", client, "CAS other old new");
        CHECK_AS_ERROR_KIND("NOPERM", client, "CAD other old");
    }
    CHECK_TEXT("old", server, "GET other");
    redisFree(client);
}

TEST_LIMIT(in_a_cluster_the_key_decides_where, 60)
{
    struct redis_server *server = serve_with_module("--cluster-enabled yes --cluster-require-full-coverage no");
    redis_server_do(server, "CLUSTER ADDSLOTS %d", (int)redis_server_number(server, "CLUSTER KEYSLOT k"));
    bool ready = false;
    while (!ready) {
        redisReply *reply = redis_server_command(server, "CLUSTER INFO");
        ready = strstr(reply->str, "cluster_state:ok") != NULL;
        freeReplyObject(reply);
        REQUIRE(test_now_ns() < test_deadline_ns());
    }
    redis_server_do(server, "SET k old");
    CHECK_ANSWER(1, server, "CAS k old elsewhere PX 100000");
    CHECK_ANSWER(1, server, "CAD k elsewhere");
    CHECK_ERROR_KIND("CLUSTERDOWN Hash slot not served", server, "CAS elsewhere k k");
    CHECK_ERROR_KIND("CLUSTERDOWN Hash slot not served", server, "CAD elsewhere k");
}

/* ---------------------------------------------------------------------------------------------------------- loading */

static void check_log_has(struct redis_server *server, const char *words)
{
    char path[300], line[1000];
    bool found = false;
    snprintf(path, sizeof path, "%s/log", server->directory);
    FILE *log = fopen(path, "r");
    REQUIRE(log != NULL);
    while (fgets(line, sizeof line, log))
        found = found || strstr(line, words) != NULL;
    fclose(log);
    CHECK(found);
}

TEST(it_is_not_loaded_twice)
{
    struct redis_server *server = serve_with_module("");
    CHECK_ERROR_KIND("ERR Error loading the extension", server, "MODULE LOAD %s", module_path());
    check_log_has(server, "it is loaded already");
    redis_server_do(server, "SET k old");
    CHECK_ANSWER(1, server, "CAS k old new");
    CHECK_ANSWER(1, server, "CAD k new");
}

TEST(it_is_not_loaded_beside_another_cad)
{
    struct redis_server *server = serve_without_module("");
    redis_server_do(server, "MODULE LOAD %s", getenv("TEST_RIVAL_MODULE"));
    CHECK_ERROR_KIND("ERR Error loading the extension", server, "MODULE LOAD %s", module_path());
    check_log_has(server, "the command 'cad' is there already");
    CHECK_ANSWER(42, server, "CAD k old");
    CHECK_ERROR_KIND("ERR unknown command", server, "CAS k old new");
    redis_server_do(server, "MODULE UNLOAD rival");
    redis_server_do(server, "MODULE LOAD %s", module_path());
    CHECK_ANSWER(-1, server, "CAD k old");
}

TEST(it_takes_no_arguments)
{
    struct redis_server *server = serve_without_module("");
    CHECK_ERROR_KIND("ERR Error loading the extension", server, "MODULE LOAD %s deny-oom", module_path());
    check_log_has(server, "it takes no arguments");
    redis_server_do(server, "MODULE LOAD %s", module_path());
    CHECK_ANSWER(-1, server, "CAD k old");
}

TEST(it_can_be_unloaded_and_loaded_again)
{
    struct redis_server *server = serve_with_module("");
    redis_server_do(server, "SET k old");
    CHECK_ANSWER(1, server, "CAS k old new PX 100000");
    const int64_t expiry_ms = expiry_of(server, "k");
    redis_server_do(server, "MODULE UNLOAD holdfast-cas");
    CHECK_ERROR_KIND("ERR unknown command", server, "CAD k new");
    CHECK_ERROR_KIND("ERR unknown command", server, "CAS k new other");
    CHECK_TEXT("new", server, "GET k");
    CHECK(same_expiry(expiry_ms, expiry_of(server, "k")));
    redis_server_do(server, "MODULE LOAD %s", module_path());
    CHECK_ANSWER(1, server, "CAD k new");
}
