/* SPDX-License-Identifier: MIT
 *
 * compare_ops.c: operations of one thread on a Redis server. Pairs of acquire and release on locks of their own, 64 at
 * a time, beside hiredis that sends the very same scripts, 64 ahead on one connection; very many locks that are taken
 * and released so, beside the same; and very many waits, on one lock and on a lock each.
 *
 *     compare_ops [--json] [--rounds N] [--held LOCKS] [--waits N] PORT
 *
 * PORT is where a redis-server of our own listens on 127.0.0.1: its data is flushed. With 0 for LOCKS or for N a part
 * is left out. As with bench/compare the program ends with 0 whatever the figures, and says "OVER" where a bar is not
 * met.
 */
#include "compare_redis.h"

#include "engines/redis/redis.h"
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 64
#define PAIRS 5000
#define ROUNDS_MOST 101
#define NAME_SIZE 14
#define NAME_FORMAT "hold-%07d"
#define RATIO_BAR 0.6
#define HELD_BAR 60000
#define MEMORY_BAR 350
#define WAIT_BAR 2048
#define RELEASE_WORDS 7
#define ACQUIRE_WORDS 9

/* What is to be done with each of so many locks. */
enum job { PAIR, TAKE, GIVE_BACK };

struct slot {
    int lock; /* which one is under way in it */
    bool holds;
};

struct ours {
    hf_client *client;
    hf_options options;
    hf_lock **locks; /* by number, between TAKE and GIVE_BACK */
    int lost;
};

struct raw {
    redisContext *context;
    struct redis_script scripts[REDIS_SCRIPTS];
    char info[96];
};

/* How long `count` locks took, one after the other in DEPTH slots. */
typedef double (*sweep_fn)(void *side, enum job job, int count);

/* --- ours --- */

static void start_release(hf_lock *lock, struct slot *slot)
{
    hf_op *op; /* comes back with its event */
    hf_error err;

    must(hf_start_release(&op, lock, slot, &err), &err, "start");
}

static void begin(struct ours *ours, enum job job, struct slot *slot, int lock)
{
    char name[32];
    hf_error err;

    slot->lock = lock;
    if (job == GIVE_BACK) {
        start_release(ours->locks[lock], slot);
        return;
    }
    snprintf(name, sizeof name, NAME_FORMAT, lock);
    must(hf_start_try_acquire(NULL, ours->client, name, &ours->options, slot, &err), &err, "start");
}

/* True: that was all that is to be done in this slot. */
static bool take_event(struct ours *ours, enum job job, const hf_event *event)
{
    struct slot *slot = event->tag;

    if (event->kind == HF_EVENT_LOST) {
        ours->lost++;
        return false;
    }
    must(event->status, &event->error, "operation");
    hf_op_free(event->op);
    if (job == TAKE)
        ours->locks[slot->lock] = event->lock;
    else if (event->lock != NULL)
        start_release(event->lock, slot);
    return job != PAIR || event->lock == NULL;
}

static size_t next_events(struct ours *ours, hf_event events[DEPTH])
{
    struct pollfd one = { .fd = hf_events_fd(ours->client), .events = POLLIN };
    size_t count;

    while ((count = hf_events(ours->client, events, DEPTH, sizeof events[0])) == 0)
        if (poll(&one, 1, 30000) == 0)
            die("an operation does not end");
    return count;
}

static double our_sweep(void *side, enum job job, int count)
{
    struct ours *ours = side;
    const int64_t began = now_ns();
    static struct slot slots[DEPTH];
    hf_event events[DEPTH];
    int next = 0;

    for (; next < DEPTH && next < count; next++)
        begin(ours, job, &slots[next], next);
    for (int done = 0; done < count;) {
        const size_t got = next_events(ours, events);
        for (size_t i = 0; i < got; i++) {
            if (!take_event(ours, job, &events[i]))
                continue;
            done++;
            if (next < count)
                begin(ours, job, events[i].tag, next++);
        }
    }
    return (double)(now_ns() - began) / 1e9;
}

/* --- raw --- */

static void append(struct raw *raw, enum redis_script_name script, int lock)
{
    char key[40], queue[40], owner[40];
    const char *words[ACQUIRE_WORDS] = {
        "EVALSHA", raw->scripts[script].hash, "2", key, queue, owner, raw->info, "30000", "0"
    };
    const int count = script == REDIS_ACQUIRE ? ACQUIRE_WORDS : RELEASE_WORDS;
    size_t length[ACQUIRE_WORDS];

    snprintf(key, sizeof key, "hf:{" NAME_FORMAT "}", lock);
    snprintf(queue, sizeof queue, "hf:{" NAME_FORMAT "}:q", lock);
    snprintf(owner, sizeof owner, "0123456789abcdef.%d", lock);
    for (int i = 0; i < count; i++)
        length[i] = strlen(words[i]);
    if (redisAppendCommandArgv(raw->context, count, words, length) != REDIS_OK)
        die("no memory");
}

static void take_reply(struct raw *raw)
{
    void *reply = NULL;

    redisGetReply(raw->context, &reply);
    check_reply(raw->context, reply);
    if (((redisReply *)reply)->type != REDIS_REPLY_INTEGER || ((redisReply *)reply)->integer <= 0)
        die("the raw side did not get its lock, or did not have it");
    freeReplyObject(reply);
}

static double raw_sweep(void *side, enum job job, int count)
{
    struct raw *raw = side;
    const int64_t began = now_ns();
    const enum redis_script_name first = job == GIVE_BACK ? REDIS_RELEASE : REDIS_ACQUIRE;
    struct slot slots[DEPTH];
    int next = 0;

    for (; next < DEPTH && next < count; next++) {
        slots[next] = (struct slot){ next, job == PAIR };
        append(raw, first, next);
    }
    /* Replies come in the order of the commands, and each slot has one under way. */
    for (int done = 0, at = 0; done < count; at = (at + 1) % DEPTH) {
        struct slot *slot = &slots[at];
        if (slot->lock < 0)
            continue;
        take_reply(raw);
        if (slot->holds) {
            slot->holds = false;
            append(raw, REDIS_RELEASE, slot->lock);
            continue;
        }
        done++;
        *slot = (struct slot){ next < count ? next++ : -1, job == PAIR };
        if (slot->lock >= 0)
            append(raw, first, slot->lock);
    }
    return (double)(now_ns() - began) / 1e9;
}

static void open_raw(struct raw *raw, int port)
{
    char host[65] = "";

    raw->context = connect_raw(port);
    hfi_redis_scripts_init(raw->scripts, &hfi_redis_native, false);
    load_script(raw->context, raw->scripts[REDIS_ACQUIRE].text, raw->scripts[REDIS_ACQUIRE].hash);
    load_script(raw->context, raw->scripts[REDIS_RELEASE].text, raw->scripts[REDIS_RELEASE].hash);
    gethostname(host, sizeof host - 1);
    snprintf(raw->info, sizeof raw->info, "%s %d ", host, (int)getpid());
}

/* --- pairs --- */

static void add_rate(struct results *results, const char *what, double ours, double raw, double ratio)
{
    results_add(results, (struct row){ .name = name_of("redis: %d operations in flight, %s", DEPTH, what),
                                       .against = "hiredis, same scripts",
                                       .unit = "per s",
                                       .judged = RATIO_AT_LEAST,
                                       .bar = RATIO_BAR,
                                       .ours = ours,
                                       .raw = raw,
                                       .ratio = ratio });
}

static void compare_flight(struct results *results, struct ours *ours, struct raw *raw, int rounds)
{
    double our_rate[ROUNDS_MOST], raw_rate[ROUNDS_MOST], ratio[ROUNDS_MOST];

    say("redis: %d operations in flight ...\n", DEPTH);
    our_sweep(ours, PAIR, PAIRS);
    raw_sweep(raw, PAIR, PAIRS);
    for (int i = 0; i < rounds; i++) {
        our_rate[i] = PAIRS / our_sweep(ours, PAIR, PAIRS);
        raw_rate[i] = PAIRS / raw_sweep(raw, PAIR, PAIRS);
        ratio[i] = our_rate[i] / raw_rate[i];
    }
    const double middle = median(ratio, (size_t)rounds); /* sorts them */
    say("the ratio was %.2f to %.2f\n", ratio[0], ratio[rounds - 1]);
    add_rate(results, "pairs", median(our_rate, (size_t)rounds), median(raw_rate, (size_t)rounds), middle);
}

/* --- very many that are held --- */

static double memory_in_use(void)
{
    malloc_trim(0);
    return resident_bytes();
}

static void add_held(struct results *results, int count, const char *what, struct row row)
{
    row.name = name_of("redis: %d held, %s", count, what);
    row.against = row.against != NULL ? row.against : "";
    results_add(results, row);
}

static void compare_held(struct results *results, struct server *server, struct ours *ours, struct raw *raw, int count)
{
    double rates[2][2];

    say("redis: %d locks are taken and given back ...\n", count);
    ours->locks = malloc((size_t)count * sizeof(hf_lock *));
    if (ours->locks == NULL)
        die("no memory");
    memset(ours->locks, 1, (size_t)count * sizeof(hf_lock *)); /* resident from now on */
    freeReplyObject(ask_raw(server->control, "FLUSHALL"));
    rates[1][0] = count / raw_sweep(raw, TAKE, count);
    rates[1][1] = count / raw_sweep(raw, GIVE_BACK, count);
    freeReplyObject(ask_raw(server->control, "FLUSHALL"));
    const double before = memory_in_use();
    rates[0][0] = count / our_sweep(ours, TAKE, count);
    const double bytes = (memory_in_use() - before) / count - NAME_SIZE;
    rates[0][1] = count / our_sweep(ours, GIVE_BACK, count);
    const char *const words[2] = { "acquired", "released" };
    for (int i = 0; i < 2; i++) {
        add_rate(results, name_of("%d held, %s", count, words[i]), rates[0][i], rates[1][i], 0);
        add_held(
            results, count, words[i],
            (struct row){ .unit = "per s", .judged = OURS_AT_LEAST, .bar = HELD_BAR, .ours = rates[0][i], .raw = -1 });
    }
    add_held(results, count, "lost",
             (struct row){ .unit = "locks", .judged = OURS_AT_MOST, .ours = ours->lost, .raw = -1 });
    add_held(results, count, "memory of each",
             (struct row){ .unit = "bytes", .judged = OURS_AT_MOST, .bar = MEMORY_BAR, .ours = bytes, .raw = -1 });
    free(ours->locks);
}

/* --- very many that wait --- */

static int entries_of(const char *directory)
{
    DIR *folder = opendir(directory);
    int count = 0;

    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* Until the threads that made the exchanges for all that is started have nothing to do any more. */
static void await_rest(struct server *server)
{
    double commands, before = -1;

    while ((commands = server_commands(server)) != before) {
        const struct timespec moment = { .tv_sec = 3 };
        before = commands;
        nanosleep(&moment, NULL);
    }
}

static void compare_waits(struct results *results, struct server *server, const char *url, int count, int names)
{
    struct ours holder = { .client = open_client(url), .options = HF_OPTIONS_INIT };
    struct ours ours = { .client = open_client(url), .options = HF_OPTIONS_INIT };
    hf_op **ops = malloc((size_t)count * sizeof(hf_op *));
    hf_event event;
    hf_error err;

    say("redis: %d waits on %d locks ...\n", count, names);
    holder.locks = malloc((size_t)names * sizeof(hf_lock *));
    if (ops == NULL || holder.locks == NULL)
        die("no memory");
    freeReplyObject(ask_raw(server->control, "FLUSHALL"));
    our_sweep(&holder, TAKE, names);
    memset(ops, 1, (size_t)count * sizeof(hf_op *));
    const double before = memory_in_use();
    const int threads = entries_of("/proc/self/task"), descriptors = entries_of("/proc/self/fd");
    const int64_t began = now_ns();
    for (int i = 0; i < count; i++) {
        char name[32];

        snprintf(name, sizeof name, NAME_FORMAT, i % names);
        must(hf_start_acquire(&ops[i], ours.client, name, &ours.options, NULL, &err), &err, "start");
    }
    await_rest(server);
    const double bytes = (memory_in_use() - before) / count;
    const int more_threads = entries_of("/proc/self/task") - threads;
    const int more_descriptors = entries_of("/proc/self/fd") - descriptors;
    our_sweep(&holder, GIVE_BACK, names);
    for (int i = 0; i < count; i++) {
        if (!hf_op_wait(ops[i], 30000, &event, sizeof event))
            die("a wait does not end");
        must(event.status, &event.error, "wait");
        hf_op_free(ops[i]);
        must(hf_start_release(NULL, event.lock, NULL, &err), &err, "release");
    }
    say("all of them had their lock after %.1f s\n", (double)(now_ns() - began) / 1e9);
    hf_close(ours.client);
    hf_close(holder.client);
    const struct {
        const char *what, *unit;
        double bar, figure;
    } rows[] = { { "memory of each", "bytes", WAIT_BAR, bytes },
                 { "threads", "in all", 10, more_threads },
                 { "descriptors", "in all", 200, more_descriptors } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        results_add(results,
                    (struct row){ .name = name_of("redis: %d waits on %d locks, %s", count, names, rows[i].what),
                                  .against = "",
                                  .unit = rows[i].unit,
                                  .judged = OURS_AT_MOST,
                                  .bar = rows[i].bar,
                                  .ours = rows[i].figure,
                                  .raw = -1 });
    free(holder.locks);
    free(ops);
}

int main(int argc, char **argv)
{
    static struct results results;
    struct server server;
    struct ours ours = { .options = HF_OPTIONS_INIT };
    struct raw raw;
    int rounds = 15, held = 1000000, waits = 10000, i = 1;
    bool json = false;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = number_or_die(argv[++i], ROUNDS_MOST);
        else if (strcmp(argv[i], "--held") == 0 && i + 1 < argc)
            held = number_or_die(argv[++i], 9999999);
        else if (strcmp(argv[i], "--waits") == 0 && i + 1 < argc)
            waits = number_or_die(argv[++i], 1000000);
        else
            argc = 0;
    }
    if (i + 1 != argc) {
        fprintf(stderr, "usage: compare_ops [--json] [--rounds N] [--held LOCKS] [--waits N] PORT\n");
        return 64;
    }
    mallopt(M_ARENA_MAX, 1); /* threads that have ended leave theirs half empty: that is not the locks' memory */
    open_server(&server, number_or_die(argv[i], 65535));
    name_results(&results, &server);
    open_raw(&raw, server.port);
    ours.client = open_client(results.url);
    freeReplyObject(ask_raw(server.control, "FLUSHALL"));
    if (rounds > 0)
        compare_flight(&results, &ours, &raw, rounds);
    if (held > 0)
        compare_held(&results, &server, &ours, &raw, held);
    hf_close(ours.client);
    if (waits > 0) {
        compare_waits(&results, &server, results.url, waits, 1);
        compare_waits(&results, &server, results.url, waits, waits);
    }
    redisFree(raw.context);
    redisFree(server.control);
    results_print(&results, json);
    return 0;
}
