/* SPDX-License-Identifier: MIT
 *
 * compare_redlock.c: redlock: on five masters, beside raw hiredis with the same script on each of them in turn. What
 * counts is the slowest round trip of the fastest majority: it is the least that an acquire can take. Ratios, by turns
 * in one run, with all masters up, with two of them dead, and with two that do not answer; and many threads of one
 * client, each with a lock of its own on three masters, beside one thread.
 *
 *     compare_redlock [--json] DIRECTORY
 *
 * Servers are started for it, with their data below DIRECTORY. "1 ms apart" is through bench/relay.c.
 */
#include "compare_redis.h"

#include "engines/redlock/redlock.h"
#include "redis_group.h"
#include "relay.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MASTERS 5
#define MAJORITY 3
/* Those that die or are paused: the first is the one at which waiters line up. */
#define OUT 2
#define ROUNDS 301
#define ROUNDS_APART 41
#define WARM_UP_ROUNDS 5
#define ONE_WAY_NS 500000
#define BAR 2.5
/* Ahead of the masters' clocks, as Holdfast's guess of a token is. */
#define AHEAD_US 2000

/* How the masters are reached. */
struct way_there {
    const char *words;
    char url[300];
    int port[MASTERS];
    int client_core, server_core;
    int rounds;
    bool judged; /* not where masters share a core, and cannot work at the same time */
};

/* The raw side, one for each master that is there. */
struct raw_side {
    redisContext *context[MASTERS];
    char hash[2][41]; /* [0] acquire, [1] release */
    char info[96], member[160];
};

static struct redis_group *group;
static struct server servers[MASTERS];

/* --- the raw side --- */

static void open_raw(struct raw_side *raw, const struct way_there *there)
{
    char host[65] = "";

    gethostname(host, sizeof host - 1);
    snprintf(raw->info, sizeof raw->info, "%s %d ", host, (int)getpid());
    snprintf(raw->member, sizeof raw->member, "0123456789abcdef.123456 %s", raw->info);
    for (int i = 0; i < MASTERS; i++) {
        raw->context[i] = NULL;
        if (!redis_server_runs(group->server[i]))
            continue;
        raw->context[i] = connect_raw(there->port[i]);
        load_script(raw->context[i], hfi_redlock_scripts[REDLOCK_ACQUIRE], raw->hash[0]);
        load_script(raw->context[i], hfi_redlock_scripts[REDLOCK_RELEASE], raw->hash[1]);
    }
}

static void close_raw(struct raw_side *raw)
{
    for (int i = 0; i < MASTERS; i++)
        if (raw->context[i] != NULL)
            redisFree(raw->context[i]);
}

/* { 1, … } is what both scripts answer to whoever has the lock. */
static void ask_for_one(redisContext *context, int count, const char **words)
{
    size_t length[16];
    redisReply *reply;

    for (int i = 0; i < count; i++)
        length[i] = strlen(words[i]);
    reply = redisCommandArgv(context, count, words, length);
    check_reply(context, reply);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0 || reply->element[0]->integer != 1)
        die("the raw side did not have its lock");
    freeReplyObject(reply);
}

/* What Holdfast sends, word for word but for the lock's name, which is as long. The acquire's round trip in ns. */
static double raw_round_trip(const struct raw_side *raw, int master)
{
    char guess[32];
    const char *acquire[] = {
        "EVALSHA", raw->hash[0], "3", "plain", "hf:{plain}:w",           "hf:{plain}:t", "0123456789abcdef.123456.1",
        raw->info, "30000",      "0", guess,   "0123456789abcdef.123456"
    };
    const char *release[] = {
        "EVALSHA",   raw->hash[1], "3", "plain", "hf:{plain}:w", "hf:{plain}:t", "0123456789abcdef.123456.1",
        raw->member, "",           ""
    };
    struct timespec now;
    int64_t began, ended;

    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(guess, sizeof guess, "%lld", (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000 + AHEAD_US);
    began = now_ns();
    ask_for_one(raw->context[master], 12, acquire);
    ended = now_ns();
    ask_for_one(raw->context[master], 10, release);
    return (double)(ended - began);
}

/* A release is done when a majority has let go: what the others still have to do shall not be measured as part of the
 * next acquire. Their answer to this comes behind it. */
static void await_rest(const struct raw_side *raw)
{
    for (int i = 0; i < MASTERS; i++)
        if (raw->context[i] != NULL)
            freeReplyObject(ask_raw(raw->context[i], "PING"));
}

static double our_acquire(hf_client *client, const struct raw_side *raw)
{
    hf_lock *lock;
    hf_error err;
    int64_t began = now_ns(), ended;

    must(hf_acquire(&lock, client, "mutex", NULL, &err), &err, "acquire");
    ended = now_ns();
    must(hf_release(lock, &err), &err, "release");
    await_rest(raw);
    return (double)(ended - began);
}

/* --- acquire --- */

#define BATCH 9

/* The medians of one batch: a single sample may have been interrupted. */
struct sample {
    double ours;
    double majority; /* the slowest round trip of the fastest majority */
    double sum;      /* of all that are there */
};

/* The raw side goes from master to master too: one that is asked again and again has everything in its caches. */
static struct sample take_sample(hf_client *client, const struct raw_side *raw)
{
    double ours[BATCH], trips[MASTERS][BATCH], each[MASTERS];
    struct sample sample = { .sum = 0 };
    size_t count = 0;

    for (int i = 0; i < BATCH; i++)
        ours[i] = our_acquire(client, raw);
    sample.ours = median(ours, BATCH);
    for (int i = 0; i < BATCH; i++)
        for (int master = 0; master < MASTERS; master++)
            if (raw->context[master] != NULL)
                trips[master][i] = raw_round_trip(raw, master);
    for (int master = 0; master < MASTERS; master++) {
        if (raw->context[master] == NULL)
            continue;
        each[count] = median(trips[master], BATCH);
        sample.sum += each[count++];
    }
    median(each, count); /* sorts */
    sample.majority = each[MAJORITY - 1];
    return sample;
}

static void add_acquire(struct results *results, const char *name, const char *against, double bar, double *ours,
                        double *raw, int count)
{
    double ratio[ROUNDS];

    for (int i = 0; i < count; i++)
        ratio[i] = ours[i] / raw[i];
    results_add(results, (struct row){ .name = name,
                                       .against = against,
                                       .unit = "us",
                                       .judged = bar > 0 ? RATIO_AT_MOST : NOT_JUDGED,
                                       .bar = bar,
                                       .ratio = median(ratio, (size_t)count),
                                       .raw = median(raw, (size_t)count) / 1e3,
                                       .ours = median(ours, (size_t)count) / 1e3 });
}

/* `state`: of the masters, "" if all are up. */
static void compare_acquire(struct results *results, const struct way_there *there, const char *state)
{
    static double ours[ROUNDS], again[ROUNDS], majority[ROUNDS], sum[ROUNDS];
    hf_client *client = open_client(there->url);
    struct raw_side raw;

    say("redlock: acquire%s, %s ...\n", state, there->words);
    open_raw(&raw, there);
    for (int i = -WARM_UP_ROUNDS; i < there->rounds; i++) {
        struct sample sample = take_sample(client, &raw);

        if (i < 0)
            continue;
        ours[i] = again[i] = sample.ours;
        majority[i] = sample.majority;
        sum[i] = sample.sum;
    }
    add_acquire(results, name_of("redlock: acquire%s, %s", state, there->words), "3rd fastest round trip",
                there->judged ? BAR : 0, ours, majority, there->rounds);
    if (*state == 0)
        add_acquire(results, name_of("redlock: acquire over sum, %s", there->words), "5 round trips in turn",
                    there->judged ? 1 : 0, again, sum, there->rounds);
    close_raw(&raw);
    hf_close(client);
}

/* --- many threads --- */

#define FEW 3 /* masters */
#define WINDOW_NS (2 * SECOND_NS)

struct threads {
    hf_client *client;
    _Atomic long pairs;
    _Atomic int next;
    atomic_bool end;
};

static void *take_own_lock(void *arg)
{
    struct threads *threads = arg;
    char name[32];
    hf_lock *lock;
    hf_error err;

    snprintf(name, sizeof name, "own-%d", atomic_fetch_add(&threads->next, 1));
    while (!atomic_load(&threads->end)) {
        must(hf_acquire(&lock, threads->client, name, NULL, &err), &err, "acquire");
        must(hf_release(lock, &err), &err, "release");
        atomic_fetch_add(&threads->pairs, 1);
    }
    return NULL;
}

/* Locks of their own, for a while: pairs per second, and what each takes of processors, ours and the masters'. */
static void run_threads(hf_client *client, int count, double *per_second, double *cpu_us)
{
    struct threads threads = { .client = client };
    struct timespec window = { .tv_sec = WINDOW_NS / SECOND_NS, .tv_nsec = WINDOW_NS % SECOND_NS };
    pthread_t thread[CROWD];
    double cpu = cpu_seconds();
    int64_t began = now_ns();

    for (int i = 0; i < FEW; i++)
        cpu += server_figure(&servers[i], "cpu", "used_cpu_user") + server_figure(&servers[i], "cpu", "used_cpu_sys");
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread[i], NULL, take_own_lock, &threads) != 0)
            die("cannot start a thread");
    nanosleep(&window, NULL);
    atomic_store(&threads.end, true);
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
    *per_second = (double)atomic_load(&threads.pairs) * 1e9 / (double)(now_ns() - began);
    cpu = cpu_seconds() - cpu;
    for (int i = 0; i < FEW; i++)
        cpu += server_figure(&servers[i], "cpu", "used_cpu_user") + server_figure(&servers[i], "cpu", "used_cpu_sys");
    *cpu_us = cpu * 1e6 / (double)atomic_load(&threads.pairs);
}

/* Whoever has threads asks for more, beside one that is alone: what they share must make it cheaper. */
static void compare_threads(struct results *results, const struct placement *placement)
{
    char url[100];
    double many, many_cpu, one, one_cpu;
    hf_client *client;

    say("redlock: %d threads, %s ...\n", CROWD, placement->words);
    pin_to(placement->client_core);
    for (int i = 0; i < FEW; i++)
        pin_process_to(group->server[i]->pid, placement->server_core);
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", servers[0].port, servers[1].port,
             servers[2].port);
    client = open_client(url);
    run_threads(client, 1, &one, &one_cpu);
    run_threads(client, CROWD, &many, &many_cpu);
    hf_close(client);
    results_add(results, (struct row){ .name = name_of("redlock: 64 threads, 3 masters, %s", placement->words),
                                       .against = "1 thread",
                                       .unit = "pairs/s",
                                       .judged = NOT_JUDGED,
                                       .ours = many,
                                       .raw = one });
    results_add(results, (struct row){ .name = name_of("redlock: the same, all processors, %s", placement->words),
                                       .against = "1 thread",
                                       .unit = "us/pair",
                                       .judged = NOT_JUDGED,
                                       .ours = many_cpu,
                                       .raw = one_cpu });
}

/* --- which masters, and where --- */

static void pin_masters(int core)
{
    for (int i = 0; i < MASTERS; i++)
        if (group->server[i]->pid > 0)
            pin_process_to(group->server[i]->pid, core);
}

static void compare_ways(struct results *results, struct way_there *ways, int count, const char *state)
{
    for (int i = 0; i < count; i++) {
        pin_to(ways[i].client_core);
        pin_masters(ways[i].server_core);
        compare_acquire(results, &ways[i], state);
    }
    pin_to(-1);
    pin_masters(-1);
}

static void describe_way(struct way_there *there, const char *words, const int port[MASTERS])
{
    size_t used = 0;

    there->words = words;
    there->client_core = there->server_core = -1;
    there->rounds = ROUNDS;
    there->judged = false;
    for (int i = 0; i < MASTERS; i++) {
        there->port[i] = port[i];
        used += (size_t)snprintf(there->url + used, sizeof there->url - used, "%s127.0.0.1:%d",
                                 i == 0 ? "redlock://" : ",", port[i]);
    }
}

static void compare_acquires(struct results *results, const struct relay *relay)
{
    struct way_there ways[3];
    int port[MASTERS];
    int count = 1;

    for (int i = 0; i < MASTERS; i++)
        port[i] = servers[i].port;
    describe_way(&ways[0], "1 ms apart", relay->port);
    ways[0].rounds = ROUNDS_APART;
    ways[0].judged = true;
    for (int i = 0; i < results->cores; i++, count++) {
        describe_way(&ways[count], placements[i].words, port);
        ways[count].client_core = placements[i].client_core;
        ways[count].server_core = placements[i].server_core;
    }
    compare_ways(results, ways, count, "");
    for (int i = 0; i < OUT; i++)
        redis_server_pause(group->server[i]);
    compare_ways(results, ways, count, ", 2 paused");
    for (int i = 0; i < OUT; i++) {
        redis_server_continue(group->server[i]);
        redis_server_kill(group->server[i]);
    }
    compare_ways(results, ways, count, ", 2 dead");
}

/* The lock through the relay, and the raw side too. */
static void compare_handoff_apart(struct results *results, const struct relay *relay)
{
    static const struct placement apart = { "1 ms apart", -1, -1 };
    struct server far[MASTERS];
    struct way_there there;

    describe_way(&there, apart.words, relay->port);
    for (int i = 0; i < MASTERS; i++) {
        far[i] = servers[i];
        far[i].port = relay->port[i];
    }
    compare_handoff_placed(results, &(struct crowd){ "redlock", there.url, far, MASTERS }, 0, &apart);
}

static void compare_all(struct results *results)
{
    struct crowd crowd = { "redlock", NULL, servers, MASTERS };
    struct relay relay;
    int port[MASTERS];

    group = redis_masters_start(MASTERS, NULL);
    crowd.url = group->url;
    for (int i = 0; i < MASTERS; i++) {
        open_server(&servers[i], group->server[i]->port);
        port[i] = servers[i].port;
    }
    name_results(results, &servers[0]);
    /* First the parts that fork, while this process has no thread. */
    relay_start(&relay, port, MASTERS, ONE_WAY_NS);
    compare_handoff_apart(results, &relay);
    compare_redis_handoff(results, &crowd, 0);
    compare_crowd_of(results, &crowd);
    for (int i = 0; i < results->cores; i++)
        compare_threads(results, &placements[i]);
    pin_to(-1);
    pin_masters(-1);
    compare_acquires(results, &relay);
    relay_stop(&relay);
    for (int i = 0; i < MASTERS; i++)
        redisFree(servers[i].control);
}

int main(int argc, char **argv)
{
    static struct results results;
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;

    if (argc != (json ? 3 : 2) || argv[argc - 1][0] == '-') {
        fprintf(stderr, "usage: compare_redlock [--json] DIRECTORY\n");
        return 64;
    }
    setenv("TEST_DIRECTORY", argv[argc - 1], 1);
    compare_all(&results);
    results_print(&results, json);
    return 0;
}
