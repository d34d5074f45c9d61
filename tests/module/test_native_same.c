/* SPDX-License-Identifier: MIT
 *
 * test_native_same.c: the commands of holdfast.so and the scripts that they stand for, side by side. Two locks of one
 * server get the same requests in the same order, one by the scripts and the other by the module, while the server's
 * clock stands still; every answer, every message, every event and all that is stored must be the same, on the server,
 * on a replica and after a restart from the log on disk, and neither of the latter has the module.
 */
#include "engines/redis/redis.h"
#include "native_support.h"
#include "server_clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define ROUNDS 4
#define STEPS 400
#define TEXT 16000
#define CLIENTS 5
#define DEAD 3 /* clients from this one on listen to nothing */
#define WORDS_MOST 16

static struct redis_server *master, *replica;
static redisContext *listener, *remote_listener, *event_listener;
static int64_t now_us;
static uint64_t chance_state;
static bool mixed; /* the module's side goes by scripts now and then, as clients with and without it would */

static const char *const clients[CLIENTS] = { "00000000000000aa", "00000000000000bb", "00000000000000cc",
                                              "00000000000000dd", "00000000000000ee" };

/* A lock, and which of the two ways leads to it. */
struct side {
    const char *lock, *queue, *guard;
    bool natively;
};
static const struct side sides[2] = { { "hf:{a}", "hf:{a}:q", "hf:{a}:g", false },
                                      { "hf:{b}", "hf:{b}:q", "hf:{b}:g", true } };

/* ---------------------------------------------------------------------------------------------------------- chances */

static void start_chances(void)
{
    const char *seed = getenv("HOLDFAST_TEST_SEED");
    if (seed)
        chance_state = strtoull(seed, NULL, 10);
    else
        REQUIRE(getrandom(&chance_state, sizeof chance_state, 0) == sizeof chance_state);
    test_note("HOLDFAST_TEST_SEED=%" PRIu64, chance_state);
}

static uint32_t chance(uint32_t below)
{
    chance_state = chance_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(chance_state >> 33) % below;
}

/* ----------------------------------------------------------------------------------------------------------- asking */

struct words {
    const char *text[WORDS_MOST];
    int count;
};

/* { "HF.X" or "EVAL" and the script, keys…, arguments… } */
static redisReply *ask(const struct side *side, enum redis_script_name script, const struct words *keys,
                       const struct words *arguments)
{
    static const char *const names[REDIS_SCRIPTS] = { [REDIS_ACQUIRE] = "HF.ACQUIRE",
                                                      [REDIS_RELEASE] = "HF.RELEASE",
                                                      [REDIS_RENEW] = "HF.RENEW",
                                                      [REDIS_LOOK] = "HF.LOOK",
                                                      [REDIS_GUARD] = "HF.GUARD" };
    const char *words[2 * WORDS_MOST + 3];
    char number[8];
    int count = 0;
    const bool natively = side->natively && names[script] && (!mixed || chance(2));
    words[count++] = natively ? names[script] : "EVAL";
    if (!natively)
        words[count++] = script == REDIS_GUARD ? hfi_redis_guard_script : hfi_redis_native.scripts[script];
    snprintf(number, sizeof number, "%d", keys->count);
    words[count++] = number;
    for (int i = 0; i < keys->count; i++)
        words[count++] = keys->text[i];
    for (int i = 0; i < arguments->count; i++)
        words[count++] = arguments->text[i];
    redisReply *reply = redisCommandArgv(master->control, count, words, NULL);
    REQUIRE(reply != NULL);
    return reply;
}

static void add(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *out, const char *format, ...)
{
    const size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(out + used, TEXT - used, format, args);
    va_end(args);
    REQUIRE(length >= 0 && (size_t)length < TEXT - used);
}

/* Of errors the first word, since a script adds where it was. */
static void add_reply(char *out, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_INTEGER)
        add(out, ":%lld ", reply->integer);
    else if (reply->type == REDIS_REPLY_ERROR)
        add(out, "-%.*s ", (int)strcspn(reply->str, " "), reply->str);
    else if (reply->type == REDIS_REPLY_NIL)
        add(out, "nil ");
    else if (reply->type != REDIS_REPLY_ARRAY)
        add(out, "\"%.*s\" ", (int)reply->len, reply->str);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {
        add(out, "%s", i ? "" : "[ ");
        add_reply(out, reply->element[i]);
        add(out, "%s", i + 1 == reply->elements ? "] " : "");
    }
}

/* What the server keeps of a lock. */
static void add_state(char *out, struct redis_server *server, const struct side *side)
{
    const char *const commands[] = { "HMGET %s o t u i a n x",    "HLEN %s",        "PEXPIRETIME %s",
                                     "ZRANGE %s 0 -1 WITHSCORES", "PEXPIRETIME %s", "GET %s" };
    const char *const keys[] = { side->lock, side->lock, side->lock, side->queue, side->queue, side->guard };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        redisReply *reply = redis_server_command(server, commands[i], keys[i]);
        add_reply(out, reply);
        freeReplyObject(reply);
        add(out, "\n");
    }
}

/* --------------------------------------------------------------------------------------------------------- messages */

static redisContext *listen_to(struct redis_server *server, const char *what)
{
    redisContext *context = redis_server_connect(server);
    REQUIRE(context != NULL);
    redisReply *reply = redisCommand(context, what);
    REQUIRE(reply && reply->type == REDIS_REPLY_ARRAY);
    freeReplyObject(reply);
    return context;
}

/* All that has come until now; the lock's letter in names of keys is left out. What has expired is found by whoever
 * comes first, which may be the other side. */
static void add_messages(char *out, redisContext *context, const char *end)
{
    bool ended = false;
    redis_server_do(master, "PUBLISH %s end", end);
    while (!ended) {
        redisReply *message = NULL;
        REQUIRE_INT(REDIS_OK, redisGetReply(context, (void **)&message));
        const bool by_pattern = message->elements == 4;
        if (by_pattern || (message->elements == 3 && strcmp(message->element[0]->str, "message") == 0)) {
            const char *channel = message->element[by_pattern ? 2 : 1]->str;
            const char *text = message->element[by_pattern ? 3 : 2]->str;
            const bool is_key = strncmp(text, "hf:{", 4) == 0;
            ended = strcmp(channel, end) == 0;
            if (!ended && !strstr(channel, ":expired"))
                add(out, "%s %s%s; ", channel, is_key ? "hf" : text, is_key ? text + 6 : "");
        }
        freeReplyObject(message);
    }
}

static void add_all_messages(char *out)
{
    add_messages(out, listener, "end-here");
    add(out, "\nevents: ");
    add_messages(out, event_listener, "__keyevent@0__:end");
    add(out, "\nreplica: ");
    add_messages(out, remote_listener, "end-there");
    add(out, "\n");
}

/* ------------------------------------------------------------------------------------------------------------ steps */

static const char *pick_owner(char out[40])
{
    snprintf(out, 40, "%s.%u", clients[chance(CLIENTS)], 1 + chance(2));
    return out;
}

static const char *pick_who(char out[500])
{
    static const char *const notes[] = { "", "note", "a longer note with blanks", "+ * { } \"'" };
    const uint32_t which = chance(12);
    snprintf(out, 500, "host%u 4711 %s", chance(2), notes[which % 4]);
    if (which == 11) {
        memset(out, 'x', 400);
        memcpy(out, "host 1 ", 7);
        out[400] = 0;
    }
    return out;
}

static const char *pick_ttl(void)
{
    static const char *const all[] = { "1", "50", "2000", "30000", "30000", "3600000", "3600001", "7200000" };
    return all[chance(sizeof all / sizeof *all)];
}

/* One request, as words that are the same for both. */
struct step {
    enum redis_script_name script;
    char texts[3][500];
    struct words arguments;
};

static void add_word(struct words *words, const char *text)
{
    words->text[words->count++] = text;
}

static void choose_renewal(struct step *step)
{
    step->script = REDIS_RENEW;
    char owner[40];
    const uint32_t number = chance(5);
    pick_owner(owner);
    snprintf(step->texts[0], sizeof step->texts[0], number ? "%s+%u" : "%s", owner, number);
    add_word(&step->arguments, step->texts[0]);
    add_word(&step->arguments, pick_ttl());
}

static void choose_guard(struct step *step)
{
    static const char *const tokens[] = {
        "1", "9", "10", "17", "9223372036854775807", "9223372036854775806", "1794720074184568"
    };
    step->script = REDIS_GUARD;
    add_word(&step->arguments, tokens[chance(sizeof tokens / sizeof *tokens)]);
}

static void choose(struct step *step)
{
    const uint32_t what = chance(100);
    memset(step, 0, sizeof *step);
    if (what < 22) {
        choose_renewal(step);
        return;
    }
    if (what < 27) {
        choose_guard(step);
        return;
    }
    if (what < 30) {
        step->script = REDIS_LOOK;
        return;
    }
    if (what < 33) {
        step->script = REDIS_EVICT;
        return;
    }
    step->script = what < 75 ? REDIS_ACQUIRE : REDIS_RELEASE;
    add_word(&step->arguments, pick_owner(step->texts[0]));
    add_word(&step->arguments, pick_who(step->texts[1]));
    if (step->script == REDIS_RELEASE) {
        if (chance(6) == 0)
            add_word(&step->arguments, "1");
        return;
    }
    add_word(&step->arguments, pick_ttl());
    add_word(&step->arguments, chance(3) ? "1" : "0");
    if (chance(4) == 0) {
        snprintf(step->texts[2], sizeof step->texts[2], "%u", 1 + chance(63));
        add_word(&step->arguments, step->texts[2]);
    }
}

static struct words keys_for(const struct side *side, enum redis_script_name script)
{
    struct words keys = { .count = 0 };
    add_word(&keys, script == REDIS_GUARD ? side->guard : side->lock);
    if (script != REDIS_GUARD && script != REDIS_RENEW)
        add_word(&keys, side->queue);
    return keys;
}

/* Whoever breaks a lock asks twice, and a text that stands for the holder is the same on both sides. */
static void break_lock(char *out, const struct side *side)
{
    const struct words keys = keys_for(side, REDIS_EVICT);
    redisReply *seen = ask(side, REDIS_EVICT, &keys, &(struct words){ { "" }, 1 });
    add_reply(out, seen);
    if (seen->type == REDIS_REPLY_STRING) {
        redisReply *reply = ask(side, REDIS_EVICT, &keys, &(struct words){ { seen->str, "tester" }, 2 });
        add_reply(out, reply);
        freeReplyObject(reply);
    }
    freeReplyObject(seen);
}

static void take_step(char *out, const struct side *side, const struct step *step)
{
    out[0] = 0;
    if (step->script == REDIS_EVICT) {
        break_lock(out, side);
    } else {
        const struct words keys = keys_for(side, step->script);
        redisReply *reply = ask(side, step->script, &keys, &step->arguments);
        add_reply(out, reply);
        freeReplyObject(reply);
    }
    add(out, "\n");
    add_all_messages(out);
    add_state(out, master, side);
}

static void describe(char *out, size_t size, const struct step *step)
{
    size_t used = (size_t)snprintf(out, size, "at %" PRId64 ": %d", now_us, (int)step->script);
    for (int i = 0; i < step->arguments.count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, " [%s]", step->arguments.text[i]);
}

static void move_clock(void)
{
    static const int64_t us[] = { 0,       0,       1,       1,        500,        1000,       50000,       499999,
                                  1999999, 2000000, 2000001, 10000000, 3600000000, -5000000,   90000000000, 30000000,
                                  1,       7,       300,     1000000,  2000000,    3000000000, -1,          0 };
    int64_t by_us = us[chance(sizeof us / sizeof *us)];
    if (by_us > 1000000000 && chance(8)) /* seldom: they end everything */
        by_us = 20;
    now_us += by_us;
    server_clock_stop(master->clock, now_us);
}

static void check_replica(void)
{
    char here[TEXT], there[TEXT];
    REQUIRE_INT(1, redis_server_number(master, "WAIT 1 20000"));
    for (int i = 0; i < 2; i++) {
        here[0] = there[0] = 0;
        add_state(here, master, &sides[i]);
        add_state(there, replica, &sides[i]);
        CHECK_STR(here, there);
    }
}

/* A client that is dead on one side is so on the other. */
static void start_servers(void)
{
    char here[300] = "SUBSCRIBE end-here", there[300] = "SUBSCRIBE end-there";
    const struct redis_server_setup setup = { .binary = NULL, .arguments = native_arguments(), .own_clock = true };
    master = redis_server_prepare(&setup);
    do
        redis_server_launch(master, "");
    while (!redis_server_started(master));
    replica = redis_server_start_replica(master);
    for (int i = 0; i < CLIENTS; i++) {
        if (i < DEAD)
            snprintf(here + strlen(here), sizeof here - strlen(here), " hf:c:%s", clients[i]);
        /* as if they had not heard yet that it is no master any more */
        snprintf(there + strlen(there), sizeof there - strlen(there), " hf:c:%s", clients[i]);
    }
    listener = listen_to(master, here);
    remote_listener = listen_to(replica, there);
    event_listener = listen_to(master, "PSUBSCRIBE __keyevent@0__:*");
    redis_server_do(master, "DEBUG SET-ACTIVE-EXPIRE 0"); /* so that names are forgotten by who looks at them */
}

static bool step_is_same(const struct step *step)
{
    static char texts[2][TEXT];
    char what[2000];
    for (int i = 0; i < 2; i++)
        take_step(texts[i], &sides[i], step);
    if (strcmp(texts[0], texts[1]) == 0)
        return true;
    describe(what, sizeof what, step);
    FAIL("%s\nby the script:\n%s\nby the module:\n%s", what, texts[0], texts[1]);
    return false;
}

static void check_after_restart(void)
{
    char before[2][TEXT], after[TEXT];
    for (int i = 0; i < 2; i++) {
        before[i][0] = 0;
        add_state(before[i], master, &sides[i]);
    }
    snprintf(master->arguments, sizeof master->arguments, "--appendonly yes"); /* and no module */
    redis_server_restart(master, true, "");
    server_clock_stop(master->clock, now_us);
    for (int i = 0; i < 2; i++) {
        after[0] = 0;
        add_state(after, master, &sides[i]);
        CHECK_STR(before[i], after);
    }
    CHECK_ERROR_KIND("ERR unknown command", master, "HF.LOOK 2 a b");
}

static void compare_sides(void)
{
    struct step step;
    struct timespec now;
    bool same = true;
    start_chances();
    start_servers();
    clock_gettime(CLOCK_REALTIME, &now);
    now_us = (int64_t)now.tv_sec * 1000000;
    for (int round = 0; round < ROUNDS && same; round++) {
        for (int i = 0; i < STEPS && same; i++) {
            move_clock();
            choose(&step);
            same = step_is_same(&step);
        }
        check_replica();
        if (round + 1 < ROUNDS && chance(2))
            redis_server_do(master, "FLUSHALL");
    }
    check_after_restart();
    redisFree(listener);
    redisFree(remote_listener);
    redisFree(event_listener);
}

TEST_LIMIT(scripts_and_commands_do_the_same, 200)
{
    compare_sides();
}

TEST_LIMIT(scripts_and_commands_take_turns_on_one_lock, 200)
{
    mixed = true;
    compare_sides();
}
