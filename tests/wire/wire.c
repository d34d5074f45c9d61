/* SPDX-License-Identifier: MIT
 *
 * wire.c: scripts in the words of the redis engine; see wire.h.
 */
#include "wire.h"

#include "engines/redis/redis.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SCRIPT_MOST 200000

struct text {
    char *bytes;
    size_t used;
};

static void add(struct text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(out->bytes + out->used, SCRIPT_MOST - out->used, format, args);
    va_end(args);
    REQUIRE(length >= 0 && out->used + (size_t)length < SCRIPT_MOST);
    out->used += (size_t)length;
}

/* --- commands --- */

/* One word of a command, spelt for a script. */
static void add_word(struct text *out, const char *word)
{
    add(out, "$%zu\\r\\n", strlen(word));
    for (; *word; word++) {
        if (*word == '\n')
            add(out, "\\n");
        else if (*word == '\\')
            add(out, "\\\\");
        else
            add(out, "%c", *word);
    }
    add(out, "\\r\\n");
}

/* The client's random number is not known: group 1. */
static void add_client(struct text *out)
{
    for (int i = 0; i < 16; i++)
        add(out, "\\1");
}

static void add_owner(struct text *out, const char *serial)
{
    add(out, "$%zu\\r\\n", 17 + strlen(serial));
    add_client(out);
    add(out, ".%s\\r\\n", serial);
}

static void add_holder(struct text *out)
{
    char host[65] = "", info[100];
    gethostname(host, sizeof host - 1);
    snprintf(info, sizeof info, "%s %d ", host, (int)getpid());
    add_word(out, info);
}

static void add_script(struct text *out, int words, const struct redis_script *script, bool whole)
{
    add(out, "expect *%d\\r\\n", words + 2);
    add_word(out, whole ? "EVAL" : "EVALSHA");
    add_word(out, whole ? script->text : script->hash);
}

static void add_keys(struct text *out)
{
    add_word(out, "2");
    add_word(out, "hf:{job}");
    add_word(out, "hf:{job}:q");
}

/* --- lines --- */

static void add_request(struct text *out, const char *verb, char words[][32])
{
    struct redis_script scripts[REDIS_SCRIPTS];
    const bool whole = strncmp(verb, "eval-", 5) == 0;
    verb += whole ? 5 : 0;
    hfi_redis_scripts_init(scripts, &hfi_redis_native, false);
    if (strcmp(verb, "acquire") == 0) {
        add_script(out, 7, &scripts[REDIS_ACQUIRE], whole);
        add_keys(out);
        add_owner(out, words[0]);
        add_holder(out);
        add_word(out, words[1]);
        add_word(out, words[2]);
    } else if (strcmp(verb, "release") == 0) {
        add_script(out, 5, &scripts[REDIS_RELEASE], whole);
        add_keys(out);
        add_owner(out, words[0]);
        add_holder(out);
    } else if (strcmp(verb, "renew") == 0) {
        add_script(out, 4, &scripts[REDIS_RENEW], whole);
        add_word(out, "1");
        add_word(out, "hf:{job}");
        add_owner(out, words[0]);
        add_word(out, words[1]);
    } else {
        add_script(out, 3, &scripts[strcmp(verb, "evict") == 0 ? REDIS_EVICT : REDIS_LOOK], whole);
        add_keys(out);
    }
    add(out, "\n");
}

static void add_scan(struct text *out, const char *cursor)
{
    static const char *const rest[] = { "MATCH", "hf:*", "COUNT", "1000", "TYPE", "hash" };
    add(out, "expect *8\\r\\n");
    add_word(out, "SCAN");
    add_word(out, cursor);
    for (size_t i = 0; i < 6; i++)
        add_word(out, rest[i]);
    add(out, "\n");
}

static void add_channel(struct text *out)
{
    add(out, "$21\\r\\nhf:c:");
    add_client(out);
    add(out, "\\r\\n");
}

static bool add_reply(struct text *out, const char *verb, char words[][32], const char *line)
{
    if (strcmp(verb, "granted") == 0) {
        add(out, "send :%s\\r\\n\n", words[0]);
    } else if (strcmp(verb, "busy") == 0) {
        add(out, "send *5\\r\\n:-1\\r\\n:%s\\r\\n:%s\\r\\n:%s\\r\\n$12\\r\\n5 0 alpha 77\\r\\n\n", words[2], words[0],
            words[1]);
    } else if (strcmp(verb, "subscribed") == 0) {
        add(out, "send *3\\r\\n$9\\r\\nsubscribe\\r\\n");
        add_channel(out);
        add(out, ":1\\r\\n\n");
    } else if (strcmp(verb, "push") == 0) {
        const char *text = line + 5;
        add(out, "send *3\\r\\n$7\\r\\nmessage\\r\\n");
        add_channel(out);
        add(out, "$%zu\\r\\n%s\\r\\n\n", strlen(text), text);
    } else {
        return false;
    }
    return true;
}

static void add_line(struct text *out, const char *line)
{
    static const char *const requests[] = { "acquire",    "eval-acquire", "release", "eval-release", "renew",
                                            "eval-renew", "evict",        "look",    "eval-look" };
    char verb[32] = "", words[3][32] = { "", "", "" };
    sscanf(line, "%31s %31s %31s %31s", verb, words[0], words[1], words[2]);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        if (strcmp(verb, requests[i]) == 0) {
            add_request(out, verb, words);
            return;
        }
    }
    if (strcmp(verb, "hello") == 0) {
        add(out, "accept %s\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\nsend +PONG\\r\\n\n", words[0]);
    } else if (strcmp(verb, "scan") == 0) {
        add_scan(out, words[0]);
    } else if (strcmp(verb, "subscribe") == 0) {
        add(out, "expect *2\\r\\n$9\\r\\nSUBSCRIBE\\r\\n");
        add_channel(out);
        add(out, "\n");
    } else if (!add_reply(out, verb, words, line)) {
        add(out, "%s\n", line);
    }
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    REQUIRE(all != NULL);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

void wire_serve(struct wire *wire, const char *format, ...)
{
    struct text out = { .bytes = calloc(1, SCRIPT_MOST) };
    char *script = NULL;
    va_list args;
    va_start(args, format);
    REQUIRE(out.bytes && vasprintf(&script, format, args) >= 0);
    va_end(args);
    if (!script)
        test_abort();
    for (char *line = script, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        add_line(&out, line);
    }
    wire->client = NULL;
    wire->descriptors = count_descriptors();
    wire->server = script_start(out.bytes);
    free(script);
    free(out.bytes);
}

hf_status wire_open(struct wire *wire, const char *query, uint32_t timeout_ms, hf_error *err)
{
    char url[300];
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = wire->timeout_ms = timeout_ms;
    snprintf(url, sizeof url, "redis://127.0.0.1:%d%s", script_port(wire->server), query);
    return hf_open(&wire->client, url, &options, err);
}

void wire_end(struct wire *wire)
{
    script_await_end(wire->server); /* what is done in the background needs the client */
    hf_close(wire->client);
    script_check(wire->server);
    CHECK_INT(wire->descriptors, count_descriptors());
}

void wire_await_remaining(const hf_lock *lock, int64_t ms)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    while (hf_remaining_ms(lock) <= ms && test_now_ns() < test_deadline_ns())
        nanosleep(&pause, NULL); /* a lock tells of its loss, but of no renewal */
    CHECK(hf_remaining_ms(lock) > ms);
}

void wire_check_words(hf_status status, const hf_error *err)
{
    CHECK_INT(status, err->status);
    CHECK(*err->message != '\0');
    for (const char *c = err->message; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127) {
            FAIL("the message has the control character %d: %s", *c, err->message);
            break;
        }
    }
}

/* --- faults --- */

const struct wire_fault wire_faults[] = {
    { "cut before the reply", "cut\n", "", false },
    { "reset", "reset\n", "", false },
    { "half a reply", NULL, "cut\n", false },
    { "half a reply and a reset", NULL, "reset\n", false },
    { "silence", "", "", true },
    { "half a reply and silence", NULL, "", true },
    { "another protocol", "send HTTP/1.1 400 Bad Request\\r\\nServer: x\\r\\n\\r\\n\n", "", false },
    { "binary", "send \\x15\\x03\\x01\\x00\\x02\\x02\\x16\\x00\\xff\n", "", false },
    { "an absurdly long string", "send $9223372036854775000\\r\\nabc\n", "", true },
    { "a length that is no number", "send $many\\r\\n\n", "", false },
    { "an array that is too long for a number", "send *99999999999999999999\\r\\n\n", "", false },
    { "an absurdly long array", "send *2000000000\\r\\n:1\\r\\n\n", "", false },
    { "arrays in arrays",
      "send *1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n:1\\r\\n\n", "",
      false },
};
const size_t wire_fault_count = sizeof wire_faults / sizeof *wire_faults;

void wire_fault_lines(char *out, size_t size, const struct wire_fault *fault, const char *first_half)
{
    if (fault->before)
        snprintf(out, size, "%s%s", fault->before, fault->after);
    else
        snprintf(out, size, "send %s\n%s", first_half, fault->after);
}

const struct wire_refusal wire_refusals[] = {
    { "LOADING Redis is loading the dataset in memory", HF_UNAVAILABLE, "loading" },
    { "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", HF_UNAVAILABLE,
      "SCRIPT KILL" },
    { "TRYAGAIN Multiple keys request during rehashing of slot", HF_UNAVAILABLE, "moved" },
    { "CLUSTERDOWN The cluster is down", HF_UNAVAILABLE, "cluster" },
    { "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", HF_UNAVAILABLE, "master" },
    { "READONLY You can't write against a read only replica.", HF_UNAVAILABLE, "replica" },
    { "ERR Error running script (call to f_0123): @user_script:3: -READONLY You can't write", HF_UNAVAILABLE,
      "replica" },
    { "OOM command not allowed when used memory > 'maxmemory'.", HF_UNAVAILABLE, "maxmemory" },
    { "ERR Error running script (call to f_0123): @user_script: 5: -OOM command not allowed", HF_UNAVAILABLE,
      "maxmemory" },
    { "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.", HF_UNAVAILABLE,
      "stop-writes-on-bgsave-error" },
    { "NOREPLICAS Not enough good replicas to write.", HF_UNAVAILABLE, "min-replicas-to-write" },
    { "NOPERM this user has no permissions to run the 'evalsha' command", HF_DENIED, "+evalsha" },
    { "NOAUTH Authentication required.", HF_DENIED, "HOLDFAST_PASSWORD" },
    { "WRONGTYPE Operation against a key holding the wrong kind of value", HF_DENIED, "another type" },
    { "MOVED 3999 127.0.0.1:6381", HF_UNSUPPORTED, "cluster" },
    { "ASK 3999 127.0.0.1:6381", HF_UNSUPPORTED, "cluster" },
    { "CROSSSLOT Keys in request don't hash to the same slot", HF_UNSUPPORTED, "cluster" },
    { "ERR unknown command 'EVALSHA', with args beginning with: ", HF_UNSUPPORTED, "renamed" },
    { "ERR max number of clients reached", HF_UNAVAILABLE, "maxclients" },
    { "ERR something\\nover two lines\\x1b[31m", HF_INTERNAL, "something" },
    { "ERR", HF_INTERNAL, "ERR" },
};
const size_t wire_refusal_count = sizeof wire_refusals / sizeof *wire_refusals;
