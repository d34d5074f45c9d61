/* SPDX-License-Identifier: MIT
 *
 * wire.c: scripts in the words of the redis engine; see wire.h.
 */
#include "wire.h"

#include "engines/redis/redis.h"
#include "who.h"

#include <dirent.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SCRIPT_MOST 200000

struct text {
    char *bytes;
    size_t used;
    const struct redis_dialect *dialect; /* of the lines that follow */
    bool sharded;
    bool natively; /* of the line */
    bool tells_port;
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

/* In `redisson` a uuid takes the number's place: group 2. */
static void add_owner(struct text *out, const char *serial)
{
    const bool uuid = out->dialect == &hfi_redis_redisson;
    add(out, "$%zu\\r\\n", (uuid ? 37 : 17) + strlen(serial));
    if (!uuid)
        add_client(out);
    for (int i = 0; i < 36 && uuid; i++)
        add(out, "\\2");
    add(out, "%c%s\\r\\n", uuid ? ':' : '.', serial);
}

static void add_holder(struct text *out)
{
    char host[65] = "", info[100];
    gethostname(host, sizeof host - 1);
    snprintf(info, sizeof info, "%s %d ", host, (int)getpid());
    add_word(out, info);
}

/* Who breaks a lock. */
static void add_breaker(struct text *out)
{
    char who[160];
    who_we_are(who, sizeof who);
    add_word(out, who);
}

static void add_script(struct text *out, int words, const struct redis_script *script, bool whole)
{
    add(out, "expect *%d\\r\\n", words + (out->natively ? 1 : 2));
    if (!out->natively)
        add_word(out, whole ? "EVAL" : "EVALSHA");
    add_word(out, out->natively ? script->native : whole ? script->text : script->hash);
}

#define LATCH "redisson_unlock_latch:{job}:"

static void add_latch(struct text *out, const char *serial)
{
    add(out, "$%zu\\r\\n" LATCH, strlen(LATCH) + 32);
    add_client(out);
    add(out, "%016lx\\r\\n", strtoul(serial, NULL, 10));
}

static int key_count(const struct text *out)
{
    return out->dialect == &hfi_redis_native ? 2 : out->dialect == &hfi_redis_redisson ? 4 : 3;
}

static void add_keys(struct text *out, const char *serial)
{
    const char number[2] = { (char)('0' + key_count(out)), 0 };
    add_word(out, number);
    if (out->dialect == &hfi_redis_native) {
        add_word(out, "hf:{job}");
        add_word(out, "hf:{job}:q");
        return;
    }
    add_word(out, "job");
    add_word(out, out->dialect == &hfi_redis_redisson ? "redisson_lock__channel:{job}" : "hf:{job}:w");
    add_word(out, "hf:{job}:t");
    if (out->dialect == &hfi_redis_redisson)
        add_latch(out, serial);
}

/* --- lines --- */

static void add_request(struct text *out, const char *verb, char words[][32])
{
    struct redis_script scripts[REDIS_SCRIPTS];
    const bool whole = strncmp(verb, "eval-", 5) == 0;
    out->natively = strncmp(verb, "native-", 7) == 0;
    verb += whole ? 5 : out->natively ? 7 : 0;
    hfi_redis_scripts_init(scripts, out->dialect, out->sharded);
    if (strcmp(verb, "acquire") == 0) {
        add_script(out, 5 + key_count(out), &scripts[REDIS_ACQUIRE], whole);
        add_keys(out, words[0]);
        add_owner(out, words[0]);
        add_holder(out);
        add_word(out, words[1]);
        add_word(out, words[2]);
    } else if (strcmp(verb, "release") == 0 || strcmp(verb, "undo") == 0) {
        const bool mark = strcmp(verb, "undo") == 0;
        add_script(out, 3 + mark + key_count(out), &scripts[REDIS_RELEASE], whole);
        add_keys(out, words[0]);
        add_owner(out, words[0]);
        add_holder(out);
        if (mark)
            add_word(out, "1");
    } else if (strcmp(verb, "renew") == 0) {
        add_script(out, 4, &scripts[REDIS_RENEW], whole);
        add_word(out, "1");
        add_word(out, out->dialect == &hfi_redis_native ? "hf:{job}" : "job");
        add_owner(out, words[0]);
        add_word(out, words[1]);
    } else if (strcmp(verb, "guard") == 0) {
        add_script(out, 3, &scripts[REDIS_GUARD], whole);
        add_word(out, "1");
        add_word(out, "hf:{job}:g");
        add_word(out, words[0]);
    } else {
        const bool evict = strcmp(verb, "evict") == 0;
        const bool seen = evict && *words[0];
        add_script(out, 1 + evict + seen + key_count(out), &scripts[evict ? REDIS_EVICT : REDIS_LOOK], whole);
        add_keys(out, "0");
        if (evict)
            add_word(out, words[0]);
        if (seen)
            add_breaker(out);
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
    const bool native = out->dialect == &hfi_redis_native;
    if (out->dialect == &hfi_redis_redisson) {
        add_word(out, "redisson_lock__channel:{job}");
        return;
    }
    if (out->sharded)
        add(out, native ? "$27\\r\\nhf:{job}:c:" : "$29\\r\\nhf:{job}:w:c:");
    else
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
        add(out, "send *3\\r\\n%s\\r\\n", out->sharded ? "$10\\r\\nssubscribe" : "$9\\r\\nsubscribe");
        add_channel(out);
        add(out, ":1\\r\\n\n");
    } else if (strcmp(verb, "push") == 0) {
        const char *text = line + 5;
        add(out, "send *3\\r\\n%s\\r\\n", out->sharded ? "$8\\r\\nsmessage" : "$7\\r\\nmessage");
        add_channel(out);
        add(out, "$%zu\\r\\n%s\\r\\n\n", strlen(text), text);
    } else {
        return false;
    }
    return true;
}

/* --- lines of other dialects --- */

static void choose_dialect(struct text *out, const char *name)
{
    static const struct redis_dialect *const all[] = { &hfi_redis_native, &hfi_redis_plain, &hfi_redis_tair,
                                                       &hfi_redis_redisson };
    out->dialect = NULL;
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(all[i]->name, name) == 0)
            out->dialect = all[i];
    }
    REQUIRE(out->dialect != NULL);
}

static const char *const probed[] = { "DELEX", "DELIFEQ", "CAD" };

/* tair tries its commands, on a key that is not there; plain asks what there is. */
static void add_probe(struct text *out)
{
    if (out->dialect == &hfi_redis_tair) {
        add(out, "expect *6\\r\\n$3\\r\\nCAS\\r\\n$21\\r\\nhf:p:");
        add_client(out);
        add(out, "\\r\\n$1\\r\\n0\\r\\n$1\\r\\n0\\r\\n$2\\r\\nPX\\r\\n$1\\r\\n1\\r\\n\n");
        add(out, "expect *3\\r\\n$3\\r\\nCAD\\r\\n$21\\r\\nhf:p:");
        add_client(out);
        add(out, "\\r\\n$1\\r\\n0\\r\\n\n");
        return;
    }
    add(out, "expect *5\\r\\n$7\\r\\nCOMMAND\\r\\n$4\\r\\nINFO\\r\\n");
    for (size_t i = 0; i < 3; i++)
        add_word(out, probed[i]);
    add(out, "\n");
}

static void add_answer_to_probe(struct text *out, const char *line)
{
    static const char *const small[] = { " delex", " delifeq", " cad" };
    const char *const unknown = "-ERR unknown command\\r\\n", *const absent = ":-1\\r\\n";
    if (out->dialect == &hfi_redis_tair) {
        add(out, "send %s%s\n", strstr(line, " cas") ? absent : unknown, strstr(line, " cad") ? absent : unknown);
        return;
    }
    add(out, "send *3\\r\\n");
    for (size_t i = 0; i < 3; i++)
        add(out, strstr(line, small[i]) ? "*1\\r\\n+x\\r\\n" : "*-1\\r\\n");
    add(out, "\n");
}

/* What compares and deletes, and the script behind it. */
static void add_release_by(struct text *out, const char *verb, const char *serial)
{
    struct redis_script scripts[REDIS_SCRIPTS];
    const bool delex = strcmp(verb, "DELEX") == 0;
    hfi_redis_scripts_init(scripts, out->dialect, out->sharded);
    add(out, "expect *%d\\r\\n", delex ? 4 : 3);
    add_word(out, verb);
    add_word(out, "job");
    if (delex)
        add_word(out, "IFEQ");
    add_owner(out, serial);
    add(out, "\n");
    add_script(out, 1 + key_count(out), &scripts[REDIS_CALL], false);
    add_keys(out, serial);
    add(out, "\n");
}

static bool add_dialect_line(struct text *out, const char *verb, char words[][32], const char *line)
{
    if (strcmp(verb, "dialect") == 0) {
        choose_dialect(out, words[0]);
    } else if (strcmp(verb, "probe") == 0) {
        add_probe(out);
    } else if (strcmp(verb, "has") == 0) {
        add_answer_to_probe(out, line);
    } else if (strcmp(verb, "delex") == 0 || strcmp(verb, "delifeq") == 0 || strcmp(verb, "cad") == 0) {
        add_release_by(out, probed[verb[0] == 'c' ? 2 : verb[3] == 'e' ? 0 : 1], words[0]);
    } else if (strcmp(verb, "cas") == 0) {
        add(out, "expect *6\\r\\n$3\\r\\nCAS\\r\\n$3\\r\\njob\\r\\n");
        add_owner(out, words[0]);
        add(out, "\nexpect "); /* a group stands in a step once */
        add_owner(out, words[0]);
        add_word(out, "PX");
        add_word(out, words[1]);
        add(out, "\n");
    } else if (strcmp(verb, "drop-latch") == 0) {
        add(out, "expect *2\\r\\n$3\\r\\nDEL\\r\\n");
        add_latch(out, words[0]);
        add(out, "\n");
    } else {
        return false;
    }
    return true;
}

/* --- lines of Sentinels and clusters --- */

#define PING "*1\\r\\n$4\\r\\nPING\\r\\n"
#define ASKED_FOR_MODULES "*2\\r\\n$5\\r\\nHELLO\\r\\n$1\\r\\n2\\r\\n"
#define WITH_MODULE                                                                                                    \
    "*4\\r\\n$4\\r\\nrole\\r\\n$6\\r\\nmaster\\r\\n$7\\r\\nmodules\\r\\n*1\\r\\n*4\\r\\n"                              \
    "$4\\r\\nname\\r\\n$8\\r\\nholdfast\\r\\n$3\\r\\nver\\r\\n:1\\r\\n"
#define PORT "\\5\\5\\5\\5\\5"
#define HELLO "accept %s\nexpect " PING "\nsend +PONG\\r\\n\n"
#define SUBSCRIBE "expect *2\\r\\n$9\\r\\nSUBSCRIBE\\r\\n$14\\r\\n+switch-master\\r\\n\n"

static bool add_topology_line(struct text *out, const char *verb, char words[][32])
{
    static const struct {
        const char *verb;
        const char *lines; /* %s: the first word */
    } all[] = {
        { "port", "accept port\nexpect " PORT "\neof\n" },
        { "sentinel-push",
          HELLO SUBSCRIBE "send *3\\r\\n$9\\r\\nsubscribe\\r\\n$14\\r\\n+switch-master\\r\\n:1\\r\\n\n" },
        { "sentinel-subscribe", SUBSCRIBE },
        { "find-master",
          "expect *3\\r\\n$8\\r\\nSENTINEL\\r\\n$23\\r\\nGET-MASTER-ADDR-BY-NAME\\r\\n$1\\r\\nm\\r\\n\n" },
        { "address", "send *2\\r\\n$9\\r\\n127.0.0.1\\r\\n$5\\r\\n" PORT "\\r\\n\n" },
        { "greet-master", "accept %s\nexpect " PING "*1\\r\\n$4\\r\\nROLE\\r\\n\n" },
        { "is-master", "send +PONG\\r\\n*3\\r\\n$6\\r\\nmaster\\r\\n:0\\r\\n*0\\r\\n\n" },
        { "cluster-slots", "expect *2\\r\\n$7\\r\\nCLUSTER\\r\\n$5\\r\\nSLOTS\\r\\n\n" },
        { "slots", "send *1\\r\\n*3\\r\\n:0\\r\\n:16383\\r\\n*2\\r\\n$9\\r\\n127.0.0.1\\r\\n:" PORT "\\r\\n\n" },
        { "ask-sharded", "expect *3\\r\\n$7\\r\\nCOMMAND\\r\\n$4\\r\\nINFO\\r\\n$8\\r\\nSPUBLISH\\r\\n\n" },
        { "sharded", "send *1\\r\\n" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(verb, all[i].verb) != 0)
            continue;
        add(out, all[i].lines, words[0]); /* NOLINT: a table of formats */
        if (strcmp(verb, "sharded") == 0) {
            out->sharded = strcmp(words[0], "yes") == 0;
            add(out, out->sharded ? "*1\\r\\n+x\\r\\n\n" : "*-1\\r\\n\n");
        }
        out->tells_port = out->tells_port || strcmp(verb, "port") == 0;
        return true;
    }
    return false;
}

/* Tells the server its own port, before anybody else comes. */
static void tell_port(const struct script_server *server)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)script_port(server)) };
    char text[8];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    snprintf(text, sizeof text, "%05d", script_port(server));
    REQUIRE(write(fd, text, 5) == 5);
    close(fd);
}

static void add_line(struct text *out, const char *line)
{
    static const char *const requests[] = { "acquire",        "eval-acquire",   "release",     "eval-release",
                                            "undo",           "renew",          "eval-renew",  "evict",
                                            "look",           "eval-look",      "guard",       "eval-guard",
                                            "native-acquire", "native-release", "native-undo", "native-renew",
                                            "native-look",    "native-guard" };
    char verb[32] = "", words[3][32] = { "", "", "" };
    sscanf(line, "%31s %31s %31s %31s", verb, words[0], words[1], words[2]);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        if (strcmp(verb, requests[i]) == 0) {
            add_request(out, verb, words);
            return;
        }
    }
    if (strcmp(verb, "hello-native") == 0) {
        add(out, "accept %s\nexpect " PING ASKED_FOR_MODULES "\nsend +PONG\\r\\n" WITH_MODULE "\n", words[0]);
    } else if (strcmp(verb, "hello") == 0) {
        add(out, "accept %s\nexpect *1\\r\\n$4\\r\\nPING\\r\\n\nsend +PONG\\r\\n\n", words[0]);
    } else if (strcmp(verb, "scan") == 0) {
        add_scan(out, words[0]);
    } else if (strcmp(verb, "subscribe") == 0) {
        add(out, "expect *2\\r\\n%s\\r\\n", out->sharded ? "$10\\r\\nSSUBSCRIBE" : "$9\\r\\nSUBSCRIBE");
        add_channel(out);
        add(out, "\n");
    } else if (!add_reply(out, verb, words, line) && !add_dialect_line(out, verb, words, line) &&
               !add_topology_line(out, verb, words)) {
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
    struct text out = { .bytes = calloc(1, SCRIPT_MOST), .dialect = &hfi_redis_native };
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
    if (out.tells_port)
        tell_port(wire->server);
    free(script);
    free(out.bytes);
}

hf_status wire_open(struct wire *wire, const char *query, uint32_t timeout_ms, hf_error *err)
{
    char url[300];
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = wire->timeout_ms = timeout_ms;
    options.handoff_ms = -1; /* every waiter of a test speaks to the server itself */
    snprintf(url, sizeof url, "redis://127.0.0.1:%d%s%smodule=no", script_port(wire->server), query,
             *query ? "&" : "?");
    return hf_open(&wire->client, url, &options, err);
}

hf_status wire_open_url(struct wire *wire, const char *format, uint32_t timeout_ms, hf_error *err)
{
    char url[300];
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = wire->timeout_ms = timeout_ms;
    options.handoff_ms = -1; /* every waiter of a test speaks to the server itself */
    snprintf(url, sizeof url, format, script_port(wire->server)); /* NOLINT: the test's own words */
    if (!strstr(url, "module="))
        snprintf(url + strlen(url), sizeof url - strlen(url), "%smodule=no", strchr(url, '?') ? "&" : "?");
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
#if HIREDIS_MAJOR < 1 /* newer ones read them, and they are an answer that makes no sense like any other */
    { "arrays in arrays",
      "send *1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n*1\\r\\n:1\\r\\n\n", "",
      false },
#endif
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
#if HIREDIS_MAJOR < 1 /* newer ones take a line end within a line for another protocol */
    { "ERR something\\nover two lines\\x1b[31m", HF_INTERNAL, "something" },
#else
    { "ERR something\\tthat blinks\\x1b[31m", HF_INTERNAL, "something" },
#endif
    { "ERR", HF_INTERNAL, "ERR" },
};
const size_t wire_refusal_count = sizeof wire_refusals / sizeof *wire_refusals;

const char *wire_after(const char *refusal)
{
    const bool left = strstr(refusal, "READONLY") || strstr(refusal, "MASTERDOWN") || strstr(refusal, "LOADING");
    return left ? "eof\nhello\n" : "";
}
