/* SPDX-License-Identifier: MIT
 *
 * compare_redis_pairs.c: what a pair of acquire and release costs when nobody is in the way: beside raw hiredis with
 * the very same commands, which is what the library itself adds, and beside the plain lock that most programs use,
 * SET NX PX and a script that compares and deletes, which is what tokens and a queue cost.
 */
#include "compare_redis.h"

#include "engines/redis/redis.h"
#include <string.h>
#include <unistd.h>

#define ROUNDS 401
/* Shorter than a turn of the scheduler, as in compare_pairs.c, and long enough for a dozen pairs. */
#define BATCH_NS 1000000
#define WARM_UP_PAIRS 500
#define SIDES 3

/* One side of the comparison. */
struct side {
    void (*pair)(const struct side *side);
    hf_client *client;
    redisContext *context;
    const struct redis_script *scripts;
    char info[96];
    char compare_delete[41];
};

static const char compare_and_delete[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

static void our_pair(const struct side *side)
{
    hf_lock *lock;
    hf_error err;

    must(hf_acquire(&lock, side->client, "pair", NULL, &err), &err, "acquire");
    must(hf_release(lock, &err), &err, "release");
}

/* The reply's number, -1 if it is none. */
static long long exchange(redisContext *context, int count, const char **words)
{
    size_t length[10];
    redisReply *reply;
    long long number;

    for (int i = 0; i < count; i++)
        length[i] = strlen(words[i]);
    reply = redisCommandArgv(context, count, words, length);
    check_reply(context, reply);
    number = reply->type == REDIS_REPLY_INTEGER ? reply->integer : -1;
    freeReplyObject(reply);
    return number;
}

/* A release that removes nothing means that the lock was never had, and that something else is being measured. */
static void release_raw(redisContext *context, int count, const char **words)
{
    if (exchange(context, count, words) != 1)
        die("the raw side did not have its lock");
}

/* What Holdfast sends, word for word but for the lock's name, which is as long. */
static void same_commands_pair(const struct side *side)
{
    const char *acquire[] = { "EVALSHA",
                              side->scripts[REDIS_ACQUIRE].hash,
                              "2",
                              "hf:{same}",
                              "hf:{same}:q",
                              "0123456789abcdef.123456",
                              side->info,
                              "30000",
                              "0" };
    const char *release[] = { "EVALSHA",     side->scripts[REDIS_RELEASE].hash, "2",       "hf:{same}",
                              "hf:{same}:q", "0123456789abcdef.123456",         side->info };

    exchange(side->context, 9, acquire);
    release_raw(side->context, 7, release);
}

static void plain_pair(const struct side *side)
{
    const char *acquire[] = { "SET", "plain:pair", "0123456789abcdef0123456789abcdef", "NX", "PX", "30000" };
    const char *release[] = { "EVALSHA", side->compare_delete, "1", "plain:pair", "0123456789abcdef0123456789abcdef" };

    exchange(side->context, 6, acquire);
    release_raw(side->context, 5, release);
}

static double ns_per_pair(const struct side *side, int count)
{
    int64_t began = now_ns();

    for (int i = 0; i < count; i++)
        side->pair(side);
    return (double)(now_ns() - began) / count;
}

static int batch_of(const struct side *side)
{
    double ns = ns_per_pair(side, WARM_UP_PAIRS);
    double again = ns_per_pair(side, WARM_UP_PAIRS);

    ns = again < ns ? again : ns;
    return BATCH_NS / ns < 1 ? 1 : (int)(BATCH_NS / ns);
}

static void load_script(redisContext *context, const char *text, char hash[41])
{
    redisReply *reply = ask_raw(context, "SCRIPT LOAD %s", text);

    snprintf(hash, 41, "%s", reply->str);
    freeReplyObject(reply);
}

static void compare_placed(struct results *results, const struct side side[SIDES], const struct placement *placement)
{
    double ns[SIDES][ROUNDS], ratio[SIDES][ROUNDS];
    int batch[SIDES];
    static const struct {
        const char *name, *against;
        double bar;
    } row[SIDES] = { { "", "", 0 },
                     { "redis: pair, %s", "hiredis, same commands", 1.10 },
                     { "redis: pair over plain, %s", "SET NX PX, compare-delete", 1.25 } };

    say("redis: pair, %s ...\n", placement->words);
    for (int i = 0; i < SIDES; i++)
        batch[i] = batch_of(&side[i]);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SIDES; i++)
            ns[i][round] = ns_per_pair(&side[i], batch[i]);
        for (int i = 1; i < SIDES; i++)
            ratio[i][round] = ns[0][round] / ns[i][round];
    }
    for (int i = 1; i < SIDES; i++)
        results_add(results, (struct row){ .name = name_of(row[i].name, placement->words),
                                           .against = row[i].against,
                                           .unit = "us",
                                           .judged = RATIO_AT_MOST,
                                           .bar = row[i].bar,
                                           .ours = median(ns[0], ROUNDS) / 1e3,
                                           .raw = median(ns[i], ROUNDS) / 1e3,
                                           .ratio = median(ratio[i], ROUNDS) });
}

static void count_reentry(struct results *results, struct server *server, hf_client *client)
{
    const struct side side = { .client = client };
    hf_lock *outer;
    hf_error err;
    double before;

    must(hf_acquire(&outer, client, "pair", NULL, &err), &err, "acquire");
    before = server_commands(server);
    for (int i = 0; i < 1000; i++)
        our_pair(&side);
    results_add(results, (struct row){ .name = "redis: commands, re-entry",
                                       .against = "",
                                       .unit = "per pair",
                                       .judged = OURS_AT_MOST,
                                       .bar = 0,
                                       .ours = (server_commands(server) - before) / 1000,
                                       .raw = -1 });
    must(hf_release(outer, &err), &err, "release");
}

void compare_redis_pairs(struct results *results, struct server *server)
{
    struct redis_script scripts[REDIS_SCRIPTS];
    redisContext *context = connect_raw(server->port);
    hf_client *client = open_client(results);
    struct side side[SIDES] = { { .pair = our_pair, .client = client },
                                { .pair = same_commands_pair, .context = context, .scripts = scripts },
                                { .pair = plain_pair, .context = context } };
    char host[65] = "";

    hfi_redis_scripts_init(scripts, &hfi_redis_native, false);
    load_script(context, scripts[REDIS_ACQUIRE].text, scripts[REDIS_ACQUIRE].hash);
    load_script(context, scripts[REDIS_RELEASE].text, scripts[REDIS_RELEASE].hash);
    load_script(context, compare_and_delete, side[2].compare_delete);
    gethostname(host, sizeof host - 1);
    snprintf(side[1].info, sizeof side[1].info, "%s %d ", host, (int)getpid());
    for (int i = 0; i < results->cores; i++) {
        pin_to(placements[i].client_core);
        pin_process_to(server->pid, placements[i].server_core);
        compare_placed(results, side, &placements[i]);
    }
    count_reentry(results, server, client);
    hf_close(client);
    redisFree(context);
}
