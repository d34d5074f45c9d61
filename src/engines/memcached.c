/* SPDX-License-Identifier: MIT
 *
 * memcached.c: machines that share a memcached server, by its text protocol.
 *
 * What ends a grant:  release(); a time-to-live without a renewal; hf_break(); a restart; flush_all; the server by
 *                     itself, when it needs room and was started without -M.
 * Who counts time:    the server, in whole seconds. A record ends at a moment of its time, which we ask for now and
 *                     then, and up to MEMCACHED_BEHIND and a second late: so no delay on the way makes it end early.
 * Exchanges:          each ends with a look. What it changes depends on the number of the record seen last, so what is
 *                     late changes nothing. Where there is none a free one is added, which is all that a late request
 *                     can do; the next exchange puts ours in its place.
 * Waiting:            the core asks from time to time; there are no pushes, and there is no order.
 * Token:              the record's number among all changes of this run of the server, which are fewer than 10^9 in a
 *                     second, added to so many for each second in the server's clock when it was started.
 * Cannot promise:     exclusion, if the server loses the record: the holder learns of it at its next renewal. Tokens,
 *                     if the clock was set back before a start, or the run before lasted for less than a second.
 */
#include "engines/memcached.h"
#include "registry.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK "mg %s v c t\r\n"
#define BATCH 32 /* exchanges of so many locks fit into a connection's buffers */
#define TRIES_MOST 8
#define FREE_LASTS (10 * HFI_SECOND)
#define TIME_LASTS (10 * HFI_SECOND) /* clocks drift apart */
#define SLOW (HFI_SECOND / 4)

struct memcached_store {
    struct hfi_talks talks; /* the first: the doctor needs nothing else */
    char me[80];
};

struct memcached_lock {
    uint64_t cas;     /* the number of the record that made it ours; 0: it is not known */
    uint64_t start_s; /* of the run of the server in which it has that number: the next one counts from 1 again */
    bool unsure;      /* it may have become ours */
};

struct connection {
    struct hfi_talk talk;
    uint64_t start_s;             /* when the server was started, by its clock */
    uint64_t time_s;              /* the time there … */
    hfi_time at_ns;               /* … when it was asked for */
    char key[MEMCACHED_KEY_MAX];  /* of the lock that is asked for, and … */
    struct memcached_record seen; /* … what was there last */
    bool done, full;              /* the last change was made; there was no room for it */
};

/* --- what the server says --- */

/* An answer that is none to what was asked. */
static hf_status refuse(struct hfi_talk *talk)
{
    hf_status status = strncmp(talk->in, "SERVER_ERROR", 12) == 0 ? HF_UNAVAILABLE : HF_INTERNAL;
    if (strstr(talk->in, "unauthenticated"))
        status = HF_DENIED;
    talk->in[strcspn(talk->in, "\r\n")] = 0;
    talk->is_broken = true; /* what comes next may be about something else */
    return hfi_fail(talk->err, status, 0, "%.100s says \"%.80s\"", talk->of->host, talk->in);
}

/* What time it is there, and whether it can do what will be asked of it. An answer that took long is not believed at
 * first: a server that stood still may tell the time at which it was stopped. */
static hf_status greet(struct connection *connection)
{
    struct hfi_talk *talk = &connection->talk;
    const struct hfi_env *env = talk->of->env;
    unsigned version[3];
    uint64_t up_s;
    hf_status status = HF_OK;
    for (int i = 0; i < 2 && status == HF_OK; i++) {
        connection->at_ns = env->now_ns();
        hfi_talk_add(talk, "stats settings\r\nstats\r\n");
        status = hfi_talk_ask(talk, 2);
        if (env->now_ns() - connection->at_ns < SLOW)
            break;
    }
    if (status != HF_OK)
        return status;
    const char *at = strstr(talk->in, "STAT uptime ");
    if (!at || sscanf(at, "STAT uptime %" SCNu64 " STAT time %" SCNu64 " STAT version %u.%u.%u", &up_s,
                      &connection->time_s, &version[0], &version[1], &version[2]) != 5)
        return refuse(talk);
    connection->start_s = connection->time_s - up_s;
    talk->is_broken = true;
    if (connection->start_s < 3000000 || connection->start_s >= INT64_MAX / HFI_SECOND)
        return hfi_fail(talk->err, HF_UNSUPPORTED, 0, "the server's clock was wrong when memcached was started");
    if (version[0] * 1000000 + version[1] * 1000 + version[2] < 1006013 || !strstr(talk->in, "STAT cas_enabled yes"))
        return hfi_fail(talk->err, HF_UNSUPPORTED, 0, "memcached must be 1.6.13 or newer, and run without -C");
    talk->is_broken = false;
    return HF_OK;
}

/* --- one exchange --- */

/* A connection that knows what time it is on the server. */
static hf_status begin(struct connection **out, struct memcached_store *store, const char *name, hfi_time deadline_ns,
                       hf_error *err)
{
    struct hfi_talk *talk;
    hf_status status = hfi_talk_begin(&talk, &store->talks, deadline_ns, err);
    if (status != HF_OK)
        return status;
    struct connection *connection = *out = (struct connection *)(void *)talk;
    hfi_memcached_make_key(connection->key, name);
    connection->seen = (struct memcached_record){ .is_there = false };
    connection->done = connection->full = false;
    talk->silence = HF_UNAVAILABLE;
    if (talk->is_new || store->talks.env->now_ns() - connection->at_ns > TIME_LASTS)
        status = greet(connection);
    talk->silence = HF_UNKNOWN;
    return status == HF_OK ? HF_OK : hfi_talk_end(talk, status);
}

/* In place of the record that was seen, or where there was none. It ends not before so much time is over. */
static void add_put(struct connection *connection, const char *word, struct hfi_owner owner, const char *name,
                    const char *text, hfi_time lasts_ns)
{
    char value[MEMCACHED_VALUE_MAX], condition[24] = "";
    const hfi_time since_ns = connection->talk.of->env->now_ns() - connection->at_ns;
    const uint64_t end_s = connection->time_s + (uint64_t)((since_ns + MEMCACHED_BEHIND + lasts_ns) / HFI_SECOND) + 1;
    const int size = hfi_memcached_make_value(value, word, owner, name, text);
    if (connection->seen.is_there)
        snprintf(condition, sizeof condition, " %" PRIu64, connection->seen.cas);
    hfi_talk_add(&connection->talk, "%s %s 0 %" PRIu64 " %d%s\r\n%s\r\n", *condition ? "cas" : "add", connection->key,
                 end_s, size, condition, value);
}

/* Sends the change that was added, if any, and looks. */
static hf_status exchange(struct connection *connection)
{
    struct hfi_talk *talk = &connection->talk;
    const bool changes = talk->out_used > 0;
    hfi_talk_add(talk, LOOK, connection->key);
    const hf_status status = hfi_talk_ask(talk, 1 + changes);
    if (status != HF_OK)
        return status;
    const char *limit = talk->in + talk->in_used, *look = changes ? hfi_memcached_end_of(talk->in, limit) : talk->in;
    connection->done = changes && (strncmp(talk->in, "STORED", 6) == 0 || strncmp(talk->in, "HD", 2) == 0);
    connection->full = changes && strncmp(talk->in, "SERVER_ERROR out of memory", 26) == 0;
    const bool not_done = changes && (talk->in[0] == 'N' || strncmp(talk->in, "EX", 2) == 0); /* NF, NOT_…, EXISTS */
    if (changes && !connection->done && !connection->full && !not_done)
        return refuse(talk);
    return hfi_memcached_read_record(&connection->seen, look) ? HF_OK : refuse(talk);
}

static hf_status drop(struct connection *connection, uint64_t cas)
{
    hfi_talk_add(&connection->talk, "md %s C%" PRIu64 "\r\n", connection->key, cas);
    return exchange(connection);
}

/* Whatever was tried, it was not done. */
static hf_status give_up(struct connection *connection)
{
    return hfi_fail(connection->talk.err, HF_UNAVAILABLE, 0, "%s",
                    connection->full ? "the server is out of memory" : "the record of the lock changes all the time");
}

static bool is_of(const struct memcached_record *record, struct hfi_owner owner)
{
    return record->owner.client == owner.client && record->owner.serial == owner.serial;
}

/* --- one lock --- */

static hf_status say_busy(struct connection *connection, const char *name, struct hfi_grant *grant)
{
    const struct memcached_record *seen = &connection->seen;
    if (*seen->name && strcmp(seen->name, name) != 0)
        return hfi_fail(connection->talk.err, HF_UNSUPPORTED, 0, "another lock with a long name has the same key");
    snprintf(grant->holder, sizeof grant->holder, "%s", seen->text);
    grant->holder_left_ms = seen->left_s < 0 ? -1 : seen->left_s * 1000;
    return HF_BUSY;
}

static hf_status memcached_attempt(void *memory, void *memory_of_lock, const struct hfi_request *request,
                                   struct hfi_grant *grant, hf_error *err)
{
    struct memcached_store *store = memory;
    struct memcached_lock *lock = memory_of_lock;
    struct connection *connection;
    char who[160];
    snprintf(who, sizeof who, "%s%s%s", store->me, *request->note ? " " : "", request->note);
    hf_status status = begin(&connection, store, request->name, request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    const struct memcached_record *seen = &connection->seen;
    for (int i = 0; status == HF_OK && i < TRIES_MOST; i++) {
        if (seen->is_held && !is_of(seen, request->owner))
            return hfi_talk_end(&connection->talk, say_busy(connection, request->name, grant));
        if (connection->full)
            break;
        const bool takes = seen->is_there;
        lock->unsure = lock->unsure || takes;
        connection->talk.silence = lock->unsure ? HF_UNKNOWN : HF_UNAVAILABLE;
        add_put(connection, takes ? "held" : "free", request->owner, request->name, takes ? who : "",
                takes ? request->ttl_ms * HFI_MS : FREE_LASTS);
        status = exchange(connection);
        if (status == HF_OK && takes && connection->done && seen->is_held && is_of(seen, request->owner)) {
            lock->cas = seen->cas;
            lock->start_s = connection->start_s;
            grant->token = connection->start_s * HFI_SECOND + seen->cas;
            return hfi_talk_end(&connection->talk, HF_OK);
        }
    }
    return hfi_talk_end(&connection->talk, status == HF_OK ? give_up(connection) : status);
}

/* A record that is free goes, too: a request that was not answered could still find it as it was. */
static hf_status memcached_release(void *store, void *memory, const struct hfi_request *request, hf_error *err)
{
    struct memcached_lock *lock = memory;
    struct connection *connection;
    char why[HFI_WHY_MAX] = "the server no longer had it";
    if (!lock->unsure)
        return hfi_fail(err, HF_LOST, 0, "%s", why);
    hf_status status = begin(&connection, store, request->name, request->deadline_ns, err);
    if (status != HF_OK)
        return status;
    const struct memcached_record *seen = &connection->seen;
    bool was_ours = lock->cas != 0 && lock->start_s == connection->start_s;
    status = was_ours ? drop(connection, lock->cas) : exchange(connection);
    lock->cas = 0; /* if it must be done again, it begins with a look */
    for (int i = 0; status == HF_OK && !connection->done && i < TRIES_MOST; i++) {
        was_ours = seen->is_held && is_of(seen, request->owner);
        if (!was_ours && is_of(seen, request->owner) && *seen->text)
            hfi_say_broken(why, seen->text);
        if (!seen->is_there || (seen->is_held && !was_ours))
            return hfi_talk_end(&connection->talk, hfi_fail(err, HF_LOST, 0, "%s", why));
        status = drop(connection, seen->cas);
    }
    if (status == HF_OK && !connection->done)
        status = give_up(connection);
    if (status == HF_OK && !was_ours)
        status = hfi_fail(err, HF_LOST, 0, "%s", why);
    return hfi_talk_end(&connection->talk, status);
}

/* Leaves a free record, by which the holder learns who did it, if there is room for that. */
static hf_status memcached_evict(void *store, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct connection *connection;
    hf_status status = begin(&connection, store, name, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const struct memcached_record *seen = &connection->seen;
    status = exchange(connection);
    for (int i = 0; status == HF_OK && seen->is_held && i < TRIES_MOST; i++) {
        const hfi_time lasts_ns = (seen->left_s < 0 ? 0 : seen->left_s) * HFI_SECOND;
        const bool full = connection->full;
        if (!full)
            add_put(connection, "free", seen->owner, name, by, lasts_ns);
        status = full ? drop(connection, seen->cas) : exchange(connection);
    }
    return hfi_talk_end(&connection->talk, status == HF_OK && seen->is_held ? give_up(connection) : status);
}

/* --- renewal --- */

/* What was seen of each lock; adds the next record of those that are ours, and counts them. */
static hf_status judge(struct connection *connection, struct hfi_renewal *renewals, size_t count, size_t *ours)
{
    const char *at = connection->talk.in, *limit = at + connection->talk.in_used;
    struct memcached_record *seen = &connection->seen;
    for (size_t i = 0; i < count; i++, at = hfi_memcached_end_of(at, limit)) {
        struct hfi_renewal *one = &renewals[i];
        if (!hfi_memcached_read_record(seen, at))
            return refuse(&connection->talk);
        one->status = seen->is_held && is_of(seen, one->owner) ? HF_OK : HF_LOST;
        if (one->status == HF_OK) {
            hfi_memcached_make_key(connection->key, one->name);
            add_put(connection, "held", one->owner, one->name, seen->text, one->ttl_ms * HFI_MS);
            ++*ours;
        } else if (is_of(seen, one->owner) && *seen->text) {
            hfi_say_broken(one->why, seen->text);
        }
    }
    return HF_OK;
}

/* All are looked at, and those renewed that are ours and still as they were seen. */
static hf_status renew_some(struct memcached_store *store, struct hfi_renewal *renewals, size_t count,
                            hfi_time deadline_ns, hf_error *err)
{
    struct connection *connection;
    size_t ours = 0;
    hf_status status = begin(&connection, store, "", deadline_ns, err);
    if (status != HF_OK)
        return status;
    struct hfi_talk *talk = &connection->talk;
    for (size_t i = 0; i < count; i++) {
        hfi_memcached_make_key(connection->key, renewals[i].name);
        hfi_talk_add(talk, LOOK, connection->key);
    }
    status = hfi_talk_ask(talk, count);
    if (status == HF_OK)
        status = judge(connection, renewals, count, &ours);
    if (status == HF_OK && ours)
        status = hfi_talk_ask(talk, ours);
    const char *at = talk->in, *limit = at + talk->in_used;
    for (size_t i = 0; status == HF_OK && ours && i < count; i++) {
        if (renewals[i].status != HF_OK)
            continue;
        if (strncmp(at, "STORED", 6) != 0)
            renewals[i].status = hfi_fail(err, HF_UNAVAILABLE, 0, "memcached says %.*s", (int)strcspn(at, "\r"), at);
        at = hfi_memcached_end_of(at, limit);
    }
    return hfi_talk_end(talk, status);
}

static hf_status memcached_renew(void *store, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                                 hf_error *err)
{
    for (size_t some; count > 0; renewals += some, count -= some) {
        some = count < BATCH ? count : BATCH;
        const hf_status status = renew_some(store, renewals, some, deadline_ns, err);
        for (size_t i = 0; status != HF_OK && i < some; i++)
            renewals[i].status = status;
    }
    return HF_OK;
}

/* --- open and close --- */

static hf_status memcached_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                                struct hfi_opened *opened, hf_error *err)
{
    struct memcached_store *store = memory;
    struct connection *connection;
    char host[64] = "";
    (void)opened;
    store->talks.env = env;
    store->talks.size = sizeof(struct connection);
    store->talks.end_of = hfi_memcached_end_of;
    gethostname(host, sizeof host - 1);
    snprintf(store->me, sizeof store->me, "%s:%d", host, (int)getpid());
    hf_status status = hfi_talks_open(&store->talks, url, "11211", err);
    if (status == HF_OK)
        status = begin(&connection, store, "", env->now_ns() + env->timeout_ns, err);
    return status == HF_OK ? hfi_talk_end(&connection->talk, HF_OK) : status;
}

static void memcached_close(void *memory)
{
    hfi_talks_close(&((struct memcached_store *)memory)->talks);
}

const struct hfi_engine hfi_engine_memcached = {
    .abi = HFI_ENGINE_ABI,
    .name = "memcached",
    .schemes = "memcached: memcached+unix:",
    .summary = "machines that share a memcached server",
    .caps = HF_CAP_EXPIRY | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN | HF_CAP_BREAK,
    .store_size = sizeof(struct memcached_store),
    .lock_size = sizeof(struct memcached_lock),
    .open = memcached_open,
    .close = memcached_close,
    .attempt = memcached_attempt,
    .renew = memcached_renew,
    .release = memcached_release,
    .evict = memcached_evict,
    .examine = hfi_memcached_examine,
};
