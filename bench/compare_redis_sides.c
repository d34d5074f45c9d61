/* SPDX-License-Identifier: MIT
 *
 * compare_redis_sides.c: pairs of acquire and release with nobody in the way, of several kinds of lock by turns in
 * short batches, so that whatever else the machine does hits all of them.
 */
#include "compare_redis.h"

#include <string.h>

/* Shorter than a turn of the scheduler, as in compare_pairs.c, and long enough for a dozen pairs. */
#define BATCH_NS 1000000
#define WARM_UP_PAIRS 500
#define WORDS_MAX 16

static const char compare_and_delete[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

static void our_pair(const struct side *side)
{
    hf_lock *lock;
    hf_error err;

    must(hf_acquire(&lock, side->client, side->name, NULL, &err), &err, "acquire");
    must(hf_release(lock, &err), &err, "release");
}

long long exchange(redisContext *context, int count, const char **words)
{
    size_t length[WORDS_MAX];
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

void release_raw(redisContext *context, int count, const char **words)
{
    if (exchange(context, count, words) != 1)
        die("the raw side did not have its lock");
}

static void plain_pair(const struct side *side)
{
    const char *acquire[] = { "SET", "plain:pair", "0123456789abcdef0123456789abcdef", "NX", "PX", "30000" };
    const char *release[] = { "EVALSHA", side->hash, "1", "plain:pair", "0123456789abcdef0123456789abcdef" };

    exchange(side->context, 6, acquire);
    release_raw(side->context, 5, release);
}

void load_script(redisContext *context, const char *text, char hash[41])
{
    redisReply *reply = ask_raw(context, "SCRIPT LOAD %s", text);

    snprintf(hash, 41, "%s", reply->str);
    freeReplyObject(reply);
}

struct side our_side(const char *url, const char *name)
{
    return (struct side){ .pair = our_pair, .client = open_client(url), .name = name };
}

struct side plain_side(redisContext *context)
{
    struct side side = { .pair = plain_pair, .context = context };

    load_script(context, compare_and_delete, side.hash);
    return side;
}

void close_side(struct side *side)
{
    if (side->client != NULL)
        hf_close(side->client);
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

void measure_sides(const struct side *sides, int count, double ns[SIDES_MAX][SIDE_ROUNDS])
{
    int batch[SIDES_MAX];

    for (int i = 0; i < count; i++)
        batch[i] = batch_of(&sides[i]);
    for (int round = 0; round < SIDE_ROUNDS; round++)
        for (int i = 0; i < count; i++)
            ns[i][round] = ns_per_pair(&sides[i], batch[i]);
}

static double median_of(const double values[SIDE_ROUNDS])
{
    double copy[SIDE_ROUNDS];

    memcpy(copy, values, sizeof copy);
    return median(copy, SIDE_ROUNDS);
}

void add_sides(struct results *results, struct row row, double ns[SIDES_MAX][SIDE_ROUNDS], int ours, int raw)
{
    double ratio[SIDE_ROUNDS];

    for (int round = 0; round < SIDE_ROUNDS; round++)
        ratio[round] = ns[ours][round] / ns[raw][round];
    row.unit = "us";
    row.ours = median_of(ns[ours]) / 1e3;
    row.raw = median_of(ns[raw]) / 1e3;
    row.ratio = median_of(ratio);
    results_add(results, row);
}
