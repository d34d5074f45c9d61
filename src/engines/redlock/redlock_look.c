/* SPDX-License-Identifier: MIT
 *
 * redlock_look.c: who holds what, by majority, and breaking a lock on all masters.
 */
#include "redlock.h"
#include <string.h>

#define LOOK_WORDS_MOST 9

/* Runs a script that takes the keys of `name` on all masters. With `whom`, the one that breaks, on those masters that
 * have somebody to be broken, or are to say whom they have. */
static size_t ask_all(struct redlock_round *round, const char *name, const char *const *whom, const char *by,
                      hfi_time deadline_ns)
{
    struct redlock_store *store = round->store;
    struct redis_command commands[REDLOCK_MASTERS_MOST];
    const char *texts[REDLOCK_MASTERS_MOST][LOOK_WORDS_MOST];
    redis_keys keys;
    size_t answered = 0;
    store->redis.config.dialect->keys(keys, &store->redis, name, (struct hfi_owner){ 0, 0 });
    hfi_redis_companion(keys[3], keys[0], "b");
    for (size_t i = 0; i < store->count; i++) {
        commands[i] = (struct redis_command){ .room = LOOK_WORDS_MOST, .text = texts[i] };
        hfi_redis_add_script(&commands[i], &store->scripts[whom ? REDLOCK_EVICT : REDLOCK_LOOK]);
        hfi_redis_add(&commands[i], whom ? "4" : "3");
        for (size_t key = 0; key < (whom ? 4 : 3); key++)
            hfi_redis_add(&commands[i], keys[key]);
        if (whom && whom[i]) {
            hfi_redis_add(&commands[i], whom[i]);
            hfi_redis_add(&commands[i], by);
        }
        round->legs[i].command = whom && !whom[i] ? NULL : &commands[i];
    }
    hfi_redlock_ask(round, hfi_redlock_all_answered, deadline_ns);
    for (size_t i = 0; i < store->count; i++)
        answered += round->legs[i].state == REDLOCK_ANSWERED;
    return answered;
}

/* --- looking --- */

#define WAITERS_FROM 5 /* in the answer of the script */

struct inspection {
    struct redlock_store *store;
    const char *prefix;
    bool done; /* records of what is done, not locks */
    hf_inspect_fn each;
    void *arg;
    hfi_time deadline_ns;
    int stop;
    uint64_t *seen; /* hashes of names, by hash; room for a power of two of them */
    size_t room, names;
};

static bool is_look(const redisReply *reply)
{
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements < 5 ||
        reply->element[0]->type != REDIS_REPLY_STRING || reply->element[4]->type != REDIS_REPLY_STRING)
        return false;
    for (size_t i = 1; i < 4; i++) {
        if (reply->element[i]->type != REDIS_REPLY_INTEGER)
            return false;
    }
    return reply->element[0]->len > 0;
}

static bool same_holder(const redisReply *a, const redisReply *b)
{
    return is_look(a) && is_look(b) && a->element[0]->len == b->element[0]->len &&
           memcmp(a->element[0]->str, b->element[0]->str, a->element[0]->len) == 0;
}

/* An answer that tells of what a majority has, with the largest token; NULL: nobody has a majority. */
static const redisReply *majority(const struct redlock_round *round)
{
    const struct redlock_store *store = round->store;
    for (size_t i = 0; i < store->count; i++) {
        const redisReply *best = round->legs[i].reply;
        size_t same = 0;
        for (size_t j = 0; j < store->count; j++) {
            const redisReply *other = round->legs[j].reply;
            if (!same_holder(round->legs[i].reply, other))
                continue;
            same++;
            if (other->element[1]->integer > best->element[1]->integer)
                best = other;
        }
        if (same >= store->quorum)
            return best;
    }
    return NULL;
}

/* Not all need stand in line at the same master: those of all of them behind the rest of `reply`. */
static hf_status show(struct inspection *inspection, const struct redlock_round *round, const redisReply *reply,
                      const char *name, hf_error *err)
{
    size_t total = WAITERS_FROM;
    for (size_t i = 0; i < round->store->count; i++) {
        const redisReply *one = round->legs[i].reply;
        total +=
            one && one->type == REDIS_REPLY_ARRAY && one->elements > WAITERS_FROM ? one->elements - WAITERS_FROM : 0;
    }
    redisReply merged = *reply;
    merged.elements = total;
    merged.element = hfi_alloc(total * sizeof(redisReply *));
    if (!merged.element)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a list of those who wait");
    memcpy(merged.element, reply->element, WAITERS_FROM * sizeof(redisReply *));
    size_t used = WAITERS_FROM;
    for (size_t i = 0; i < round->store->count; i++) {
        const redisReply *one = round->legs[i].reply;
        for (size_t j = WAITERS_FROM; one && one->type == REDIS_REPLY_ARRAY && j < one->elements; j++)
            merged.element[used++] = one->element[j];
    }
    inspection->stop = hfi_redis_show_lock(&merged, name, true, inspection->each, inspection->arg);
    hfi_free(merged.element);
    return HF_OK;
}

static hf_status inspect_one(struct inspection *inspection, const char *name, hf_error *err)
{
    if (inspection->done)
        return hfi_redlock_show_done(inspection->store, name, inspection->each, inspection->arg, &inspection->stop,
                                     inspection->deadline_ns, err);
    struct redlock_round round = { .store = inspection->store };
    hf_status status = HF_OK;
    const size_t answered = ask_all(&round, name, NULL, NULL, inspection->deadline_ns);
    const redisReply *reply = majority(&round);
    if (reply)
        status = show(inspection, &round, reply, name, err);
    hfi_redlock_end(&round);
    return answered >= inspection->store->quorum ? status : hfi_redlock_too_few(&round, answered, "answered", err);
}

/* --- every name once, on however many masters it is found --- */

static size_t place_of(const struct inspection *inspection, uint64_t hash)
{
    size_t place = hash & (inspection->room - 1);
    while (inspection->seen[place] && inspection->seen[place] != hash)
        place = (place + 1) & (inspection->room - 1);
    return place;
}

/* True if the name is new; *status: HF_NOMEM if that cannot be told. */
static bool is_new(struct inspection *inspection, const char *name, hf_status *status, hf_error *err)
{
    const uint64_t hash = hfi_name_hash(name) | 1; /* 0 is an empty place */
    if (2 * (inspection->names + 1) > inspection->room) {
        const struct inspection old = *inspection;
        inspection->room = old.room ? 2 * old.room : 64;
        inspection->seen = hfi_alloc(inspection->room * sizeof *inspection->seen);
        for (size_t i = 0; inspection->seen && i < old.room; i++) {
            if (old.seen[i])
                inspection->seen[place_of(inspection, old.seen[i])] = old.seen[i];
        }
        hfi_free(old.seen);
        if (!inspection->seen)
            *status = hfi_fail(err, HF_NOMEM, 0, "no memory for the names of locks");
    }
    if (!inspection->seen)
        return false;
    const size_t place = place_of(inspection, hash);
    if (inspection->seen[place])
        return false;
    inspection->seen[place] = hash;
    inspection->names++;
    return true;
}

static bool is_wanted(const struct inspection *inspection, char name[HFI_REDIS_KEY_MAX], const redisReply *key)
{
    const struct redis_store *redis = &inspection->store->redis;
    if (key->type != REDIS_REPLY_STRING)
        return false;
    return (inspection->done ? hfi_redis_done_name : hfi_redis_companion_name)(name, redis, key->str) &&
           strncmp(name, inspection->prefix, strlen(inspection->prefix)) == 0;
}

static hf_status inspect_master(struct inspection *inspection, size_t index, hf_error *err)
{
    struct redlock_store *store = inspection->store;
    char cursor[24] = "0";
    do {
        redisReply *found = NULL;
        hf_status status = hfi_redis_scan(&store->redis, store->masters[index], inspection->done, cursor, &found,
                                          inspection->deadline_ns, err);
        if (status != HF_OK)
            return status;
        hfi_redlock_mark(store, store->masters[index], false); /* so that it is asked for what was found there */
        const redisReply *keys = found->element[1];
        for (size_t i = 0; i < keys->elements && status == HF_OK && !inspection->stop; i++) {
            char name[HFI_REDIS_KEY_MAX];
            if (is_wanted(inspection, name, keys->element[i]) && is_new(inspection, name, &status, err))
                status = inspect_one(inspection, name, err);
        }
        freeReplyObject(found);
        if (status != HF_OK)
            return status;
    } while (!inspection->stop && strcmp(cursor, "0") != 0);
    return HF_OK;
}

/* What is on one of `enough` masters. Those that failed a moment ago come last, and not never: they may only have been
 * slow, and have what nobody else has. */
static hf_status inspect_masters(struct inspection *inspection, size_t enough, hf_error *err)
{
    struct redlock_store *store = inspection->store;
    bool seen[REDLOCK_MASTERS_MOST] = { false };
    size_t scanned = 0;
    hf_status status = HF_OK;
    for (size_t n = 0; n < 2 * store->count && status == HF_OK && !inspection->stop && scanned < enough; n++) {
        const size_t i = n % store->count;
        if (seen[i] || (n == i && hfi_redlock_is_down(store, store->masters[i])))
            continue;
        status = inspect_master(inspection, i, err);
        if (status == HF_UNAVAILABLE) {
            hfi_redlock_mark(store, store->masters[i], true);
            status = HF_OK;
        } else {
            seen[i] = true;
            scanned++;
        }
    }
    if (status == HF_OK && !inspection->stop && scanned < store->quorum)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "only %zu of %zu masters answered, %zu are needed", scanned,
                        store->count, store->quorum);
    return status;
}

/* Every lock that a majority has is on one of any `count - quorum + 1` masters. */
hf_status hfi_redlock_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                              hf_error *err)
{
    struct redlock_store *store = memory;
    struct inspection inspection = {
        .store = store, .prefix = prefix, .each = each, .arg = arg, .deadline_ns = deadline_ns
    };
    hf_status status = HF_OK;
    if (*prefix && hfi_redis_check_name(&store->redis, prefix, NULL) == HF_OK &&
        is_new(&inspection, prefix, &status, err)) /* by its whole name also a lock that only others know */
        status = inspect_one(&inspection, prefix, err);
    if (status == HF_OK && !inspection.stop)
        status = inspect_masters(&inspection, store->quorum, err);
    hfi_free(inspection.seen);
    return status;
}

/* One record is enough for it to be done, on whichever master it is. */
hf_status hfi_redlock_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg,
                                   hfi_time deadline_ns, hf_error *err)
{
    struct redlock_store *store = memory;
    struct inspection inspection = {
        .store = store, .prefix = prefix, .done = true, .each = each, .arg = arg, .deadline_ns = deadline_ns
    };
    const hf_status status = inspect_masters(&inspection, store->count, err);
    hfi_free(inspection.seen);
    return status;
}

hf_status hfi_redlock_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err)
{
    struct redlock_store *store = memory;
    struct inspection inspection = { .store = store, .each = each, .arg = arg, .deadline_ns = deadline_ns };
    if (hfi_redis_check_name(&store->redis, name, err) != HF_OK)
        return HF_INVALID;
    return inspect_one(&inspection, name, err);
}

/* --- breaking --- */

/* Whom each master has named; NULL: nobody. */
static void take_strings(const char **out, const struct redlock_round *round)
{
    for (size_t i = 0; i < round->store->count; i++) {
        const redisReply *reply = round->legs[i].reply;
        out[i] = reply && reply->type == REDIS_REPLY_STRING ? reply->str : NULL;
    }
}

/* Whom a majority has named; NULL: nobody. */
static const char *seen_by_majority(const struct redlock_store *store, const char *const *seen)
{
    for (size_t i = 0; i < store->count; i++) {
        size_t same = 0;
        for (size_t j = 0; j < store->count; j++)
            same += seen[i] && seen[j] && strcmp(seen[i], seen[j]) == 0;
        if (same >= store->quorum)
            return seen[i];
    }
    return NULL;
}

/* Has all masters tell `owner`, "client.serial.attempt", which may listen to any of them. Not in the script that
 * breaks: the holder would ask the others before they have broken it. Whoever does not hear it learns of it at its next
 * renewal. */
static void tell(struct redlock_store *store, const char *owner, const char *by)
{
    struct redis_command command = { REDIS_ROOM(5) };
    hfi_redis_add_script(&command, &store->scripts[REDLOCK_TELL]);
    hfi_redis_add(&command, "0");
    hfi_redis_add(&command, owner);
    hfi_redis_add(&command, by);
    hfi_redlock_reach(store, NULL, &command, (1u << store->count) - 1, REDLOCK_LET_IN);
}

/* Everybody from whom some master took it: that vote may be missing for a majority now, though few of those that had
 * voted could be reached. Who has lost nothing is asked for nothing but a renewal. */
static void tell_all(struct redlock_store *store, const char *const *whom, const char *by)
{
    for (size_t i = 0; i < store->count; i++) {
        bool told = !whom[i];
        for (size_t j = 0; j < i && !told; j++)
            told = whom[j] && strcmp(whom[i], whom[j]) == 0;
        if (!told)
            tell(store, whom[i], by);
    }
}

/* Asks each master whom it would break, and then for breaking that one: a request that was given up and arrives late
 * must not break the next holder. A master that has not answered by then is told whom the others have seen. */
hf_status hfi_redlock_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct redlock_store *store = memory;
    /* All of them: what stays on a master that failed a moment ago would be in the way of the next holder. */
    struct redlock_round look = { .store = store, .must = ~0u, .decided = hfi_redlock_all_answered }, evict = look;
    const char *whom[REDLOCK_MASTERS_MOST] = { NULL }, *seen[REDLOCK_MASTERS_MOST] = { NULL };
    size_t free = 0;
    if (hfi_redis_check_name(&store->redis, name, err) != HF_OK)
        return HF_INVALID;
    for (size_t i = 0; i < store->count; i++)
        whom[i] = "";
    const hfi_time now = store->redis.env->now_ns(); /* a master that hangs leaves time for the second question */
    size_t answered = ask_all(&look, name, whom, by, now + (deadline_ns - now) / 2);
    const struct redlock_round *last = &look;
    if (answered >= store->quorum) {
        for (size_t i = 0; i < store->count; i++) {
            const redisReply *reply = look.legs[i].reply;
            free += reply && reply->type != REDIS_REPLY_STRING;
        }
        take_strings(seen, &look);
        const char *holder = seen_by_majority(store, seen);
        for (size_t i = 0; i < store->count; i++)
            seen[i] = look.legs[i].reply ? seen[i] : holder;
        answered = free + ask_all(&evict, name, seen, by, deadline_ns);
        last = &evict;
    }
    const hf_status status = answered >= store->quorum ? HF_OK : hfi_redlock_too_few(last, answered, "answered", err);
    take_strings(seen, &evict);
    tell_all(store, seen, by);
    hfi_redlock_end(&evict);
    hfi_redlock_end(&look);
    return status;
}
