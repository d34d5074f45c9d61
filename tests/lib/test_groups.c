/* SPDX-License-Identifier: MIT
 *
 * test_groups.c: the tests' own groups of servers, clocks and networks do what they say: redis_group.h, netns.h.
 * TEST_SERVER in the environment: another server than the system's.
 */
#include "netns.h"
#include "redis_group.h"
#include "shared.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HOUR_MS (3600 * 1000LL)
#define MINUTE_MS (60 * 1000LL)

static const char *binary(void)
{
    return getenv("TEST_SERVER");
}

static void pause_briefly(void)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    REQUIRE(test_now_ns() < test_deadline_ns());
    nanosleep(&pause, NULL);
}

/* The error begins with `start`. */
static void check_refused(struct redis_server *server, const char *start, const char *command)
{
    redisReply *reply = redis_server_command(server, command);
    CHECK_INT(REDIS_REPLY_ERROR, reply->type);
    CHECK(reply->str && strncmp(reply->str, start, strlen(start)) == 0);
    test_note("%s: %s", command, reply->str ? reply->str : "");
    freeReplyObject(reply);
}

static void await_key(struct redis_server *server, const char *key, int64_t count)
{
    while (redis_server_number(server, "EXISTS %s", key) != count)
        pause_briefly();
}

/* ---------------------------------------------------------------------------------------------------------- masters */

TEST(masters_know_nothing_of_each_other)
{
    struct redis_group *group = redis_masters_start(5, &(struct redis_group_options){ .binary = binary() });
    char url[400];
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d",
             group->server[0]->port, group->server[1]->port, group->server[2]->port, group->server[3]->port,
             group->server[4]->port);
    CHECK_STR(url, group->url);
    redis_server_do(group->server[0], "SET key 1");
    redis_server_do(group->server[1], "SET key 1");
    CHECK_INT(0, redis_server_number(group->server[2], "EXISTS key"));

    redis_server_kill(group->server[0]);
    CHECK(!redis_server_runs(group->server[0]));
    redis_server_restart(group->server[0], true, "");
    CHECK_INT(0, redis_server_number(group->server[0], "EXISTS key"));
    redis_server_pause(group->server[1]);
    CHECK(!redis_server_runs(group->server[1]));
    redis_server_continue(group->server[1]);
    CHECK_INT(1, redis_server_number(group->server[1], "EXISTS key"));
    redis_group_stop(group);
}

/* How far the server's clock is from where it should be must be small beside the jump. */
static void check_clock(struct redis_server *server, int64_t expected_ms)
{
    const int64_t off_ms = redis_server_clock_offset_ms(server) - expected_ms;
    CHECK(off_ms > -MINUTE_MS && off_ms < MINUTE_MS);
}

TEST(the_clock_of_one_master_jumps)
{
    struct redis_group *group =
        redis_masters_start(3, &(struct redis_group_options){ .binary = binary(), .own_clocks = 1U << 1 });
    struct redis_server *jumper = group->server[1];
    check_clock(jumper, 0);
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "SET key 1 PX %d", 10 * (int)MINUTE_MS);

    redis_server_set_clock(jumper, HOUR_MS);
    check_clock(jumper, HOUR_MS);
    check_clock(group->server[0], 0);
    CHECK_INT(0, redis_server_number(jumper, "EXISTS key"));
    CHECK_INT(1, redis_server_number(group->server[0], "EXISTS key"));

    redis_server_do(jumper, "SET key 1 PX %d", 10 * (int)MINUTE_MS);
    redis_server_set_clock(jumper, -HOUR_MS);
    check_clock(jumper, -HOUR_MS);
    CHECK(redis_server_number(jumper, "PTTL key") > 2 * HOUR_MS);

    /* Its timers go by another clock and must not wait for the two hours to pass: nobody but they removes this key. */
    redis_server_do(jumper, "SET short 1 PX 1");
    while (redis_server_number(jumper, "DBSIZE") != 1)
        pause_briefly();
}

/* -------------------------------------------------------------------------------------------------------- Sentinels */

TEST_LIMIT(sentinels_fail_over_when_told, 60)
{
    struct redis_group *group = redis_sentinel_start(&(struct redis_group_options){ .binary = binary() });
    struct redis_server *old = redis_sentinel_master(group);
    char url[400];
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/mymaster",
             group->sentinel[0]->port, group->sentinel[1]->port, group->sentinel[2]->port);
    CHECK_STR(url, group->url);
    CHECK(old == group->server[0]);
    redis_server_do(old, "SET key 1");
    CHECK_INT(2, redis_server_number(old, "WAIT 2 10000"));

    redis_sentinel_failover(group);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    CHECK(new != old &&redis_sentinel_master(group) == new);
    CHECK(redis_sentinel_await_settled(group) == new);
    CHECK_INT(1, redis_server_number(new, "EXISTS key"));
    check_refused(old, "READONLY", "SET key 2");
    redis_server_do(new, "SET key 2");
    CHECK_INT(2, redis_server_number(new, "WAIT 2 10000"));
}

TEST_LIMIT(sentinels_fail_over_when_the_master_dies, 90)
{
    struct redis_group *group = redis_sentinel_start(&(struct redis_group_options){ .binary = binary() });
    struct redis_server *first = redis_sentinel_master(group);
    redis_server_kill(first);
    struct redis_server *second = redis_sentinel_await_change(group, first);
    redis_server_do(second, "SET key 1");

    /* It comes back as a master, since nobody has told it otherwise, and becomes a replica. */
    redis_server_restart(first, true, "");
    CHECK(redis_sentinel_await_settled(group) == second);
    await_key(first, "key", 1);

    /* A master that does not answer, and does not know that it is no master any more. */
    redis_server_pause(second);
    struct redis_server *third = redis_sentinel_await_change(group, second);
    CHECK(third != second);
    redis_server_continue(second);
    CHECK(redis_sentinel_await_settled(group) == third);
    check_refused(second, "READONLY", "SET key 2");
    redis_group_stop(group);
}

TEST_LIMIT(sentinels_with_passwords_and_tls, 60)
{
    const struct redis_group_options options = {
        .binary = binary(), .password = "of-servers", .sentinel_password = "of-sentinels", .tls = true
    };
    struct redis_group *group = redis_sentinel_start(&options);
    struct redis_server *old = redis_sentinel_master(group);
    redisContext *stranger = redisConnect("127.0.0.1", group->sentinel[0]->port);
    REQUIRE(stranger && stranger->err == 0);
    redisReply *reply = redisCommand(stranger, "SENTINEL MASTERS");
    CHECK(reply && reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "NOAUTH", 6) == 0);
    freeReplyObject(reply);
    redisFree(stranger);

    redis_sentinel_failover(group);
    CHECK(redis_sentinel_await_change(group, old) != old);
    redis_sentinel_await_settled(group);
}

/* ---------------------------------------------------------------------------------------------------------- cluster */

TEST_LIMIT(a_slot_moves_step_by_step, 60)
{
    struct redis_group *group = redis_cluster_start(&(struct redis_group_options){ .binary = binary() });
    const int slot = redis_cluster_slot(group, "{tag}key");
    struct redis_server *from = redis_cluster_owner(group, NULL, slot);
    REQUIRE(from != NULL);
    struct redis_server *to = from == group->server[0] ? group->server[1] : group->server[0];
    redis_server_do(from, "SET {tag}key 7 PX 600000");
    check_refused(to, "MOVED ", "GET {tag}key");

    redis_cluster_move_begin(group, slot, to);
    CHECK_INT(7, redis_server_number(from, "GET {tag}key"));
    check_refused(from, "ASK ", "GET {tag}other");
    check_refused(from, "TRYAGAIN ", "MGET {tag}key {tag}other");
    CHECK_INT(1, redis_cluster_move_keys(group, slot, to, 10));
    check_refused(from, "ASK ", "GET {tag}key");
    check_refused(to, "MOVED ", "GET {tag}key");
    redis_server_do(to, "ASKING");
    CHECK_INT(7, redis_server_number(to, "GET {tag}key"));
    CHECK(redis_cluster_owner(group, to, slot) == from);

    redis_cluster_move_end(group, slot, to);
    check_refused(from, "MOVED ", "GET {tag}key");
    CHECK(redis_server_number(to, "PTTL {tag}key") > 0);
    redis_cluster_move(group, slot, from);
    CHECK_INT(7, redis_server_number(from, "GET {tag}key"));
    redis_cluster_await_settled(group);
}

TEST_LIMIT(a_replica_takes_the_place_of_a_dead_node, 90)
{
    struct redis_group *group = redis_cluster_start(&(struct redis_group_options){ .binary = binary() });
    const int slot = 0;
    struct redis_server *first = redis_cluster_owner(group, NULL, slot);
    char url[400];
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", group->server[0]->port,
             group->server[1]->port, group->server[2]->port);
    CHECK_STR(url, group->url);
    CHECK(first == group->server[0]);
    redis_server_kill(first);
    CHECK(redis_cluster_await_change(group, first, slot) == group->server[3]);
    redis_server_restart(first, true, "");
    redis_cluster_await_settled(group);
    CHECK(redis_cluster_owner(group, first, slot) == group->server[3]);

    redis_cluster_failover(first, "");
    CHECK(redis_cluster_await_change(group, group->server[3], slot) == first);
    redis_cluster_await_settled(group);
    redis_cluster_failover(group->server[3], "TAKEOVER");
    CHECK(redis_cluster_await_change(group, first, slot) == group->server[3]);
    redis_cluster_await_settled(group);
}

TEST_LIMIT(a_cluster_with_password_and_tls_and_without_sharded_publish, 60)
{
    const struct redis_group_options options = {
        .binary = binary(), .password = "of-servers", .tls = true, .no_sharded_publish = true
    };
    struct redis_group *group = redis_cluster_start(&options);
    const int slot = redis_cluster_slot(group, "key");
    struct redis_server *from = redis_cluster_owner(group, NULL, slot);
    struct redis_server *to = from == group->server[0] ? group->server[1] : group->server[0];
    REQUIRE(from != NULL);
    redis_server_do(from, "SET key 7");
    redis_cluster_move(group, slot, to);
    CHECK_INT(7, redis_server_number(to, "GET key"));
    check_refused(to, "ERR unknown command", "SPUBLISH channel message");
    redis_server_do(to, "PUBLISH channel message");
}

/* --------------------------------------------------------------------------------------------------------- networks */

struct talk {
    char address[20];
    int port;
    struct gate connected, cut, silent, healed;
};

static redisContext *reach(const struct talk *talk, uint32_t ms)
{
    const struct timeval limit = { .tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000 };
    redisContext *context = redisConnectWithTimeout(talk->address, talk->port, limit);
    REQUIRE(context != NULL);
    if (context->err == 0)
        redisSetTimeout(context, limit);
    return context;
}

static bool pings(redisContext *context)
{
    redisReply *reply = context->err == 0 ? redisCommand(context, "PING") : NULL;
    const bool answered = reply && reply->type == REDIS_REPLY_STATUS;
    freeReplyObject(reply);
    return answered;
}

/* Nothing comes, and nobody says why. */
static void check_silence(redisContext *context)
{
    errno = 0;
    CHECK(!pings(context));
    CHECK(strstr(context->errstr, "timed out") || strstr(context->errstr, "temporarily unavailable"));
    test_note("silence: %s", context->errstr);
    redisFree(context);
}

static void talk_across(void *arg)
{
    struct talk *talk = arg;
    redisContext *patient = reach(talk, 15000), *hasty = reach(talk, 15000);
    REQUIRE(pings(patient) && pings(hasty));
    gate_pass(&talk->connected);
    gate_await(&talk->cut, 1);
    redisSetTimeout(hasty, (struct timeval){ .tv_usec = 300000 });
    check_silence(hasty);
    check_silence(reach(talk, 300));
    gate_pass(&talk->silent);
    gate_await(&talk->healed, 1);
    CHECK(pings(patient)); /* it has not noticed anything */
    hasty = reach(talk, 15000);
    CHECK(pings(hasty));
    redisFree(patient);
    redisFree(hasty);
}

/* Cuts in one way or another, while a client on `left` talks to `server` on `right`. */
static void cut_and_heal(struct netns *left, struct netns *right, const struct redis_server *server, bool one_way)
{
    struct talk *talk = shared_new(sizeof *talk);
    snprintf(talk->address, sizeof talk->address, "%s", right->address);
    talk->port = server->port;
    const pid_t client = netns_helper_start(left, talk_across, talk);
    gate_await(&talk->connected, 1);
    if (one_way)
        netns_cut_way(right, left);
    else
        netns_cut(right);
    gate_pass(&talk->cut);
    gate_await(&talk->silent, 1);
    if (one_way)
        netns_heal_way(right, left);
    else
        netns_heal(right);
    gate_pass(&talk->healed);
    helper_join(client);
}

TEST_LIMIT(a_network_is_cut_and_healed, 60)
{
    struct netns *left = netns_new(), *right = netns_new();
    struct redis_group *group =
        redis_masters_start(1, &(struct redis_group_options){ .binary = binary(), .places = &right });
    cut_and_heal(left, right, group->server[0], false);
    cut_and_heal(left, right, group->server[0], true);
}

/* The master is alone on one side; the others make a new one, which he learns when he is back. */
TEST_LIMIT(sentinels_on_both_sides_of_a_cut, 90)
{
    struct netns *places[REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS];
    for (int i = 0; i < REDIS_GROUP_SERVERS + REDIS_GROUP_SENTINELS; i++)
        places[i] = netns_new();
    struct redis_group *group =
        redis_sentinel_start(&(struct redis_group_options){ .binary = binary(), .places = places });
    struct redis_server *old = redis_sentinel_master(group);
    REQUIRE(old == group->server[0]);
    netns_cut(places[0]);
    struct redis_server *new = redis_sentinel_await_change(group, old);
    redis_server_do(old, "SET key of-the-old");
    redis_server_do(new, "SET key of-the-new");
    netns_heal(places[0]);
    CHECK(redis_sentinel_await_settled(group) == new);
    char value[20];
    redis_server_text(old, value, sizeof value, "GET key");
    CHECK_STR("of-the-new", value);
}

TEST_LIMIT(a_cluster_on_both_sides_of_a_cut, 90)
{
    struct netns *places[REDIS_CLUSTER_NODES];
    for (int i = 0; i < REDIS_CLUSTER_NODES; i++)
        places[i] = netns_new();
    struct redis_group *group =
        redis_cluster_start(&(struct redis_group_options){ .binary = binary(), .places = places });
    struct redis_server *old = group->server[0];
    netns_move(places[0], 1);
    netns_move(places[4], 1); /* with the replica of another, which stays what it is */
    redisReply *reply;
    while ((reply = redis_server_command(old, "CLUSTER INFO")) && !strstr(reply->str, "cluster_state:fail")) {
        freeReplyObject(reply);
        pause_briefly();
    }
    freeReplyObject(reply);
    while (redis_cluster_owner(group, group->server[1], 0) != group->server[3])
        pause_briefly();
    CHECK(redis_cluster_owner(group, old, 0) == old);
    netns_heal(places[0]);
    netns_heal(places[4]);
    CHECK(redis_cluster_await_change(group, old, 0) == group->server[3]);
    redis_cluster_await_settled(group);
    CHECK(redis_cluster_owner(group, old, 0) == group->server[3]);
}

/* -------------------------------------------------------------------------------------------------- nothing is left */

#define PROCESSES 7

struct remains {
    struct gate started;
    char directory[100];
    pid_t pids[PROCESSES];
    ino_t network;
};

static void start_and_hang(void *arg)
{
    struct remains *remains = arg;
    REQUIRE_INT(0, setenv("TEST_DIRECTORY", remains->directory, 1));
    struct netns *place = netns_new();
    struct netns *places[PROCESSES] = { place, place, place, place, place, place, place };
    struct redis_group *group =
        redis_sentinel_start(&(struct redis_group_options){ .binary = binary(), .places = places });
    struct stat status;
    REQUIRE_INT(0, fstat(place->fd, &status));
    remains->network = status.st_ino;
    for (int i = 0; i < 3; i++) {
        remains->pids[i] = group->server[i]->pid;
        remains->pids[3 + i] = group->sentinel[i]->pid;
    }
    remains->pids[6] = getpid();
    gate_pass(&remains->started);
    for (;;)
        pause();
}

/* Dead, though maybe not buried: that is for whoever inherits them. A process whose first thread is dead can only be
 * buried when the last one is. */
static bool is_dead(pid_t pid)
{
    char path[64], state = 'X';
    int threads = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return true;
    const int found = fscanf(file, "%*d (%*[^)]) %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d",
                             &state, &threads);
    fclose(file);
    return found < 1 || ((state == 'Z' || state == 'X') && threads <= 1);
}

static bool leads_to(const char *folder, const char *name, const char *wanted)
{
    char path[600], target[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const ssize_t size = readlink(path, target, sizeof target - 1);
    target[size > 0 ? size : 0] = '\0';
    return strcmp(target, wanted) == 0;
}

/* A namespace lives as long as a process is in it, a descriptor leads to it, or it is mounted. */
static bool is_used(ino_t network)
{
    char wanted[64], folder[300], line[1000];
    bool used = false;
    struct dirent *process, *entry;
    snprintf(wanted, sizeof wanted, "net:[%lu]", (unsigned long)network);
    DIR *all = opendir("/proc");
    REQUIRE(all != NULL);
    while ((process = readdir(all))) {
        snprintf(folder, sizeof folder, "/proc/%s", process->d_name);
        used |= leads_to(folder, "ns/net", wanted);
        snprintf(folder, sizeof folder, "/proc/%s/fd", process->d_name);
        DIR *descriptors = process->d_name[0] >= '1' && process->d_name[0] <= '9' ? opendir(folder) : NULL;
        while (descriptors && (entry = readdir(descriptors)))
            used |= leads_to(folder, entry->d_name, wanted);
        if (descriptors)
            closedir(descriptors);
    }
    closedir(all);
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    REQUIRE(mounts != NULL);
    while (fgets(line, sizeof line, mounts))
        used |= strstr(line, wanted) != NULL;
    fclose(mounts);
    return used;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

TEST_LIMIT(a_test_that_is_killed_leaves_no_process_and_no_network, 60)
{
    struct remains *remains = shared_new(sizeof *remains);
    /* What the victim had on disk is left, for whoever wants to know why it died. */
    snprintf(remains->directory, sizeof remains->directory, "%s/killed-XXXXXX", getenv("TEST_DIRECTORY"));
    REQUIRE(mkdtemp(remains->directory) != NULL);
    const pid_t victim = helper_start(start_and_hang, remains);
    gate_await(&remains->started, 1);
    for (int i = 0; i < PROCESSES; i++)
        CHECK(!is_dead(remains->pids[i]));
    CHECK(is_used(remains->network));
    helper_kill(victim);
    for (int i = 0; i < PROCESSES; i++)
        while (!is_dead(remains->pids[i]))
            pause_briefly();
    while (is_used(remains->network))
        pause_briefly();
    CHECK_INT(0, nftw(remains->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS));
}

TEST_LIMIT(a_group_that_is_stopped_leaves_nothing, 60)
{
    struct redis_group *group = redis_cluster_start(&(struct redis_group_options){ .binary = binary() });
    pid_t pids[REDIS_CLUSTER_NODES];
    char directory[200], configuration[210];
    snprintf(directory, sizeof directory, "%s", group->server[5]->directory);
    snprintf(configuration, sizeof configuration, "%s", group->server[5]->configuration);
    for (int i = 0; i < REDIS_CLUSTER_NODES; i++)
        pids[i] = group->server[i]->pid;
    CHECK_INT(0, access(directory, F_OK));
    CHECK_INT(0, access(configuration, F_OK));
    redis_group_stop(group);
    for (int i = 0; i < REDIS_CLUSTER_NODES; i++)
        CHECK(kill(pids[i], 0) < 0 && errno == ESRCH);
    CHECK(access(directory, F_OK) < 0 && errno == ENOENT);
    CHECK(access(configuration, F_OK) < 0 && errno == ENOENT);
}
