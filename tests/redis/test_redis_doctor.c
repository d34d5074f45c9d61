/* SPDX-License-Identifier: MIT
 *
 * test_redis_doctor.c: what hf_examine() finds on real servers: those that are set up badly on purpose, one thing at a
 * time, and those that are set up well, on which nothing is found. Nothing is ever written.
 */
#include "findings.h"
#include "group_support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DURABLE "--appendonly yes --appendfsync always"
#define TTL_MS 30000
#define NAME "the-lock"

struct at {
    struct redis_server *server;
    hf_client *client;
};

/* Sets it, looks, and sets it back. */
static void try_setting(struct at at, const char *setting, const char *bad, const char *good, hf_finding_level level,
                        const char *what, const char *words)
{
    redis_server_do(at.server, "CONFIG SET %s %s", setting, bad);
    must_find(find_with(at.client, TTL_MS), level, what, words);
    redis_server_do(at.server, "CONFIG SET %s %s", setting, good);
}

/* Waits until the master counts so many replicas that are in step with it. */
static void await_online(struct redis_server *master, int count)
{
    char text[4000];
    for (int online = -1; online != count;) {
        await_a_moment();
        redis_server_text(master, text, sizeof text, "INFO replication");
        online = 0;
        for (const char *at = text; (at = strstr(at, "state=online")) != NULL; at++)
            online++;
    }
}

TEST(on_a_good_server_nothing_is_found_whichever_the_dialect)
{
    struct redis_server *server = serve(DURABLE);
    const char *const dialects[] = { "native", "plain", "redisson" };
    for (int i = 0; i < 3; i++) {
        hf_client *client = open_url("%s?dialect=%s", server->url, dialects[i]);
        must_find_nothing(find_with(client, TTL_MS));
        hf_close(client);
    }
}

TEST(nothing_is_written_and_locks_are_left_alone)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, NAME, NULL);
    const int64_t keys = redis_server_number(server, "DBSIZE");
    char before[16000], after[16000];
    redis_server_text(server, before, sizeof before, "INFO persistence");
    const char *dirty = strstr(before, "rdb_changes_since_last_save:");
    REQUIRE(dirty != NULL);
    CHECK_INT(HF_OK, find_with(client, TTL_MS)->status);
    redis_server_text(server, after, sizeof after, "INFO persistence");
    const char *then = strstr(after, "rdb_changes_since_last_save:");
    REQUIRE(then != NULL);
    CHECK(strncmp(dirty, then, strcspn(dirty, "\r") + 1) == 0); /* every write counts, whatever it does */
    CHECK_INT(keys, redis_server_number(server, "DBSIZE"));
    must_release(lock);
    hf_close(client);
}

TEST(what_a_restart_forgets_is_found)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *client = open_client();
    try_setting((struct at){ server, client }, "appendfsync", "everysec", "always", HF_FINDING_RISK, "persistence",
                "everysec");
    try_setting((struct at){ server, client }, "appendfsync", "no", "always", HF_FINDING_RISK, "persistence",
                "half minute");
    try_setting((struct at){ server, client }, "no-appendfsync-on-rewrite", "yes", "no", HF_FINDING_RISK, "persistence",
                "no-appendfsync-on-rewrite is yes");
    redis_server_do(server, "CONFIG SET appendonly no");
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "persistence", "every lock");
    redis_server_do(server, "CONFIG SET save %s", "3600 1");
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "persistence", "since the last snapshot");
    hf_close(client);
}

TEST(a_disk_that_cannot_be_written_is_found)
{
    struct redis_server *server = serve("--enable-protected-configs yes");
    hf_client *client = open_client();
    char folder[300], state[16000] = "";
    snprintf(folder, sizeof folder, "%s/gone", server->directory);
    REQUIRE_INT(0, mkdir(folder, 0700));
    redis_server_do(server, "CONFIG SET dir %s", folder);
    REQUIRE_INT(0, rmdir(folder));
    redis_server_do(server, "BGSAVE");
    while (!strstr(state, "rdb_last_bgsave_status:err")) {
        await_a_moment();
        redis_server_text(server, state, sizeof state, "INFO persistence");
    }
    redis_server_do(server, "CONFIG SET save %s", "3600 1");
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "disk", "rdb_last_bgsave_status err");
    redis_server_do(server, "CONFIG SET dir %s", server->directory);
    hf_close(client);
}

TEST(a_memory_that_is_short_is_found)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *client = open_client();
    try_setting((struct at){ server, client }, "maxmemory-policy", "volatile-ttl", "noeviction", HF_FINDING_NOTE,
                "eviction", "volatile-ttl");
    redis_server_do(server, "CONFIG SET maxmemory 1gb");
    must_find_nothing(find_with(client, TTL_MS));
    try_setting((struct at){ server, client }, "maxmemory-policy", "allkeys-lru", "noeviction", HF_FINDING_RISK,
                "eviction", "allkeys-lru");
    char used[16000];
    redis_server_text(server, used, sizeof used, "INFO memory");
    long long bytes = 0;
    REQUIRE_INT(1, sscanf(strstr(used, "used_memory:"), "used_memory:%lld", &bytes));
    redis_server_do(server, "CONFIG SET maxmemory %lld", bytes + bytes / 20);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "memory", "nearly full");
    redis_server_do(server, "CONFIG SET maxmemory 100kb");
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "memory", "refuses to grant");
    hf_close(client);
}

TEST(a_server_that_is_no_master_of_its_own_is_found)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *client = open_client();
    try_setting((struct at){ server, client }, "replica-read-only", "no", "yes", HF_FINDING_RISK, "replica-read-only",
                "replica-read-only is no");
    redis_server_do(server, "REPLICAOF 127.0.0.1 1");
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "role", "grants no locks");
    try_setting((struct at){ server, client }, "replica-read-only", "no", "yes", HF_FINDING_BROKEN, "role",
                "exclude nobody");
    hf_close(client);

    server = serve(DURABLE " --cluster-enabled yes");
    client = open_client();
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "role", "redis+cluster://");
    hf_close(client);
}

TEST(replicas_that_the_url_does_not_count_on_or_cannot_are_found)
{
    struct redis_server *server = serve(DURABLE);
    redis_server_start_replica(server);
    await_online(server, 1);
    hf_client *client = open_client();
    hf_client *one = open_url("%s?replicas=1", server->url);
    hf_client *two = open_url("%s?replicas=2", server->url);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "replicas", "replicas=1 in the URL");
    must_find_nothing(find_with(one, TTL_MS));
    must_find(find_with(two, TTL_MS), HF_FINDING_BROKEN, "replicas", "1 of 1 replicas are online");
    try_setting((struct at){ server, one }, "min-replicas-to-write", "2", "0", HF_FINDING_BROKEN,
                "min-replicas-to-write", "and 1 are online");
    redis_server_do(server, "CONFIG SET min-replicas-to-write 1");
    must_find_nothing(find_with(one, TTL_MS));
    try_setting((struct at){ server, one }, "min-replicas-max-lag", "60", "10", HF_FINDING_RISK, "min-replicas-max-lag",
                "60 s");
    hf_close(two);
    hf_close(one);
    hf_close(client);
}

TEST(connections_that_are_cut_off_are_found)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *client = open_client();
    redis_server_do(server, "CONFIG SET client-output-buffer-limit %s", "pubsub 10000 5000 10");
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "buffers", "pubsub 10000 5000 10");
    redis_server_do(server, "CONFIG SET client-output-buffer-limit %s", "pubsub 33554432 8388608 60");
    try_setting((struct at){ server, client }, "timeout", "5", "0", HF_FINDING_RISK, "timeout", "timeout is 5 s");
    try_setting((struct at){ server, client }, "tcp-keepalive", "0", "300", HF_FINDING_RISK, "tcp-keepalive",
                "tcp-keepalive is 0");
    try_setting((struct at){ server, client }, "maxclients", "2", "1000", HF_FINDING_RISK, "connections",
                "2 of 2 are taken");
    must_find_nothing(find_with(client, TTL_MS));
    hf_close(client);
}

TEST(a_clock_that_differs_from_ours_is_found)
{
    const struct redis_server_setup setup = { .arguments = DURABLE, .own_clock = true };
    struct redis_server *server = redis_server_prepare(&setup);
    redis_server_launch(server, "");
    redis_server_await(server);
    hf_client *client = open_url("%s", server->url);
    must_find_nothing(find_with(client, TTL_MS));
    redis_server_set_clock(server, 90000);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "clock", "ahead of ours");
    redis_server_set_clock(server, -90000);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "clock", "behind ours");
    hf_close(client);
}

/* --- rights --- */

static struct findings *examine_as(struct redis_server *server, const char *options, const char *rules)
{
    char command[1000];
    snprintf(command, sizeof command, "ACL SETUSER bob reset on >pw %s", rules);
    freeReplyObject(redis_server_command(server, command));
    hf_client *client = open_url("redis://bob:pw@127.0.0.1:%d%s", server->port, options);
    struct findings *found = find_with(client, TTL_MS);
    hf_close(client);
    return found;
}

/* Of each dialect by docs/REDIS-KEYS.md: with them nothing is missing, without any one of them that one is named. */
TEST(every_right_that_is_missing_is_found_and_no_other)
{
    struct redis_server *server = serve(DURABLE);
    static const char *const common[] = { "+time", "+pexpire", "+publish", "+subscribe", "+eval", "+evalsha" };
    static const char *const native[] = { "+hget", "+hmget", "+hset",  "+hdel",    "+hincrby", "+zadd",
                                          "+zrem", "+zrank", "+zcard", "+zpopmin", "+zrange" };
    char rules[900];
    const char *const all = "~hf:* resetchannels &hf:c:* -@all +ping +eval +evalsha +time +hget +hmget +hset +hdel "
                            "+hincrby +pexpire +zadd +zrem +zrank +zcard +zpopmin +zrange +publish +subscribe +scan "
                            "+get +set";
    must_find(examine_as(server, "", all), HF_FINDING_OK, "rights", "user bob");
    for (size_t i = 0; i < 6 + 11; i++) {
        const char *right = i < 6 ? common[i] : native[i - 6];
        snprintf(rules, sizeof rules, "%s -%s", all, right + 1);
        must_find(examine_as(server, "", rules), HF_FINDING_BROKEN, "rights", right);
    }
    snprintf(rules, sizeof rules, "%s -scan", all);
    must_find(examine_as(server, "", rules), HF_FINDING_NOTE, "rights", "ACL SETUSER bob +scan");
    snprintf(rules, sizeof rules, "%s resetchannels", all);
    must_find(examine_as(server, "", rules), HF_FINDING_BROKEN, "rights", "&hf:c:*");
    snprintf(rules, sizeof rules, "%s resetkeys ~other:*", all);
    must_find(examine_as(server, "", rules), HF_FINDING_BROKEN, "rights", "~hf:*");
}

TEST(rights_in_the_dialects_of_others_are_tried_too)
{
    struct redis_server *server = serve(DURABLE);
    const char *const plain = "~* &hf:c:* -@all +ping +eval +evalsha +time +get +set +del +exists +pexpire +pttl "
                              "+zadd +zrem +zrank +zcard +zrange +publish +subscribe +scan";
    const char *const redisson = "~* &redisson_lock__channel:* -@all +ping +eval +evalsha +time +get +set +del +exists "
                                 "+pexpire +pttl +hexists +hincrby +hkeys +publish +subscribe +unsubscribe +scan";
    char rules[900];
    must_find(examine_as(server, "?dialect=plain", plain), HF_FINDING_OK, "rights", "user bob");
    must_find(examine_as(server, "?dialect=redisson", redisson), HF_FINDING_OK, "rights", "user bob");
    snprintf(rules, sizeof rules, "%s -del", plain);
    must_find(examine_as(server, "?dialect=plain", rules), HF_FINDING_BROKEN, "rights", "+del");
    snprintf(rules, sizeof rules, "%s -hkeys", redisson);
    must_find(examine_as(server, "?dialect=redisson", rules), HF_FINDING_BROKEN, "rights", "+hkeys");
    snprintf(rules, sizeof rules, "%s resetkeys ~app* ~hf:*", plain);
    must_find(examine_as(server, "?dialect=plain", rules), HF_FINDING_NOTE, "rights", "the name of a lock is its key");
}

TEST(a_server_that_does_not_show_itself_is_a_note_and_not_the_end)
{
    struct redis_server *server = serve(DURABLE);
    struct findings *found = examine_as(server, "", "~* &* +@all -config");
    CHECK_INT(HF_OK, found->status);
    must_find(found, HF_FINDING_NOTE, "settings", "CONFIG GET");
    must_find(found, HF_FINDING_NOTE, "persistence", "not known");
    found = examine_as(server, "", "~* &* +@all -info -config");
    CHECK_INT(HF_OK, found->status);
    must_find(found, HF_FINDING_NOTE, "server", "INFO");
    must_find(found, HF_FINDING_OK, "rights", "user bob");
}

TEST(a_command_that_was_renamed_is_found)
{
    struct redis_server *server = serve(DURABLE " --rename-command ZPOPMIN hidden");
    hf_client *client = open_client();
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "commands", "zpopmin");
    CHECK(server->pid > 0);
    hf_close(client);
}

TEST(names_that_are_locked_in_two_dialects_are_found)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *native = open_client();
    hf_client *plain = open_url("%s?dialect=plain", server->url);
    hf_lock *one = must_acquire(native, NAME, NULL);
    hf_lock *other = must_acquire(plain, "another-lock", NULL);
    must_find_nothing(find_with(native, TTL_MS));
    hf_lock *same = must_acquire(plain, NAME, NULL); /* that is the trouble with it */
    must_find(find_with(native, TTL_MS), HF_FINDING_RISK, "dialects", "\"" NAME "\" among them");
    must_find(find_with(plain, TTL_MS), HF_FINDING_RISK, "dialects", "each other: 1, ");
    must_release(same);
    must_release(other);
    must_release(one);
    hf_close(plain);
    hf_close(native);
}

TEST(a_server_that_is_gone_is_told_by_the_status)
{
    struct redis_server *server = serve(DURABLE);
    hf_client *client = open_client();
    redis_server_kill(server);
    const struct findings *found = find_with(client, TTL_MS);
    CHECK_INT(HF_UNAVAILABLE, found->status);
    CHECK(*found->err.message);
    hf_close(client);
}

/* --- masters of redlock: --- */

static struct redis_group *three_masters(void)
{
    return redis_masters_start(3, &(struct redis_group_options){
                                      .arguments = DURABLE " --bind 127.0.0.1 127.0.0.2 127.0.0.3", .own_clocks = 7 });
}

static hf_client *open_apart(const struct redis_group *group)
{
    return open_url("redlock://127.0.0.1:%d,127.0.0.2:%d,127.0.0.3:%d", group->server[0]->port, group->server[1]->port,
                    group->server[2]->port);
}

TEST_LIMIT(masters_that_are_not_what_redlock_needs_are_found, 60)
{
    struct redis_group *group = three_masters();
    hf_client *client = open_apart(group);
    must_find_nothing(find_with(client, TTL_MS));
    hf_client *together = open_url("%s", group->url);
    must_find(find_with(together, TTL_MS), HF_FINDING_RISK, "masters", "3 of 3 are on one machine");
    hf_close(together);
    hf_client *twice = open_url("redlock://127.0.0.1:%d,127.0.0.2:%d,127.0.0.3:%d", group->server[0]->port,
                                group->server[0]->port, group->server[2]->port);
    must_find(find_with(twice, TTL_MS), HF_FINDING_BROKEN, "masters", "are the same server");
    hf_close(twice);
    redis_server_set_clock(group->server[1], 20000);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "clocks", "lie between the first and the last");
    redis_server_set_clock(group->server[1], 0);
    redis_server_do(group->server[2], "CONFIG SET appendfsync everysec");
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "persistence", "127.0.0.3:");
    redis_server_do(group->server[2], "REPLICAOF 127.0.0.1 %d", group->server[0]->port);
    char replication[4000] = "";
    while (!strstr(replication, "master_link_status:up")) {
        await_a_moment();
        redis_server_text(group->server[2], replication, sizeof replication, "INFO replication");
    }
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "masters", "replicate each other");
    redis_server_kill(group->server[2]);
    struct findings *found = find_with(client, TTL_MS);
    must_find(found, HF_FINDING_RISK, "server", "its vote is missing");
    CHECK_INT(HF_OK, found->status);
    redis_server_kill(group->server[1]);
    CHECK_INT(HF_UNAVAILABLE, find_with(client, TTL_MS)->status);
    hf_close(client);
}

/* --- Sentinels and clusters --- */

TEST_LIMIT(sentinels_that_decide_too_late_or_too_easily_are_found, 60)
{
    struct redis_group *group =
        redis_sentinel_start(&(struct redis_group_options){ .arguments = DURABLE " --min-replicas-to-write 1" });
    hf_client *client = open_url("%s?replicas=2", group->url);
    await_online(group->server[0], 2);
    must_find_nothing(find_with(client, TTL_MS));
    must_find(find_with(client, 1000), HF_FINDING_RISK, "failover", "down-after-milliseconds is");
    hf_client *careless = open_url("%s?replicas=1", group->url);
    must_find(find_with(careless, TTL_MS), HF_FINDING_RISK, "replicas", "a failover can forget it");
    hf_close(careless);
    redis_server_do(redis_sentinel_master(group), "CONFIG SET min-replicas-to-write 0");
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "min-replicas-to-write", "cut off from the others");
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_do(group->sentinel[i], "SENTINEL SET %s quorum 1", REDIS_GROUP_NAME);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "quorum", "the quorum is 1 of 3");
    for (int i = 0; i < group->sentinel_count; i++)
        redis_server_do(group->sentinel[i], "SENTINEL SET %s quorum 4", REDIS_GROUP_NAME);
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "quorum", "never be a failover");
    redis_server_kill(group->sentinel[1]);
    must_find(find_with(client, TTL_MS), HF_FINDING_RISK, "sentinels", "1 of 3 did not");
    hf_close(client);
}

TEST_LIMIT(a_cluster_that_decides_too_late_or_has_holes_is_found, 60)
{
    struct redis_group *group =
        redis_cluster_start(&(struct redis_group_options){ .arguments = DURABLE " --min-replicas-to-write 1" });
    hf_client *client = open_url("%s?replicas=1", group->url);
    for (int i = 0; i < REDIS_CLUSTER_MASTERS; i++)
        await_online(group->server[i], 1);
    must_find_nothing(find_with(client, TTL_MS));
    must_find(find_with(client, 1000), HF_FINDING_RISK, "failover", "cluster-node-timeout is");
    redis_server_kill(group->server[4]);
    await_online(group->server[1], 0);
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "replicas", "0 of 0 replicas are online");
    redis_server_do(group->server[0], "CLUSTER DELSLOTS 17");
    must_find(find_with(client, TTL_MS), HF_FINDING_BROKEN, "slots", "of 16384");
    hf_close(client);
}
