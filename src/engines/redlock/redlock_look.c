/* SPDX-License-Identifier: MIT
 *
 * redlock_look.c: who holds what, by majority, and breaking a lock on all masters.
 */
#include "redlock.h"
#include <string.h>

/* Runs a script that takes the keys of `name` and nothing else, on all masters. */
static size_t ask_all(struct redlock_round *round, enum redlock_script_name script, const char *name,
                      hfi_time deadline_ns)
{
    struct redlock_store *store = round->store;
    struct redis_command command = { REDIS_ROOM(6) };
    redis_keys keys;
    size_t answered = 0;
    store->redis.config.dialect->keys(keys, &store->redis, name, (struct hfi_owner){ 0, 0 });
    hfi_redis_add_script(&command, &store->scripts[script]);
    hfi_redis_add(&command, "3");
    for (size_t i = 0; i < 3; i++)
        hfi_redis_add(&command, keys[i]);
    for (size_t i = 0; i < store->count; i++)
        round->legs[i].command = &command;
    hfi_redlock_ask(round, hfi_redlock_all_answered, deadline_ns);
    for (size_t i = 0; i < store->count; i++)
        answered += round->legs[i].state == REDLOCK_ANSWERED;
    return answered;
}

/* --- looking --- */

struct inspection {
    struct redlock_store *store;
    const char *prefix;
    hf_inspect_fn each;
    void *arg;
    hfi_time deadline_ns;
    int stop;
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

/* The answer of the first master that has what a majority has, *first its index; with the most waiters and the largest
 * token among them. NULL: nobody has a majority. */
static const redisReply *majority(const struct redlock_round *round, size_t *first)
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
            if (other->elements > best->elements ||
                (other->elements == best->elements && other->element[1]->integer > best->element[1]->integer))
                best = other;
        }
        *first = i;
        if (same >= store->quorum)
            return best;
    }
    return NULL;
}

/* Shows the lock, unless a master before `from` has it too, which was looked through before. */
static hf_status inspect_one(struct inspection *inspection, const char *name, size_t from, hf_error *err)
{
    struct redlock_round round = { .store = inspection->store };
    size_t first;
    const size_t answered = ask_all(&round, REDLOCK_LOOK, name, inspection->deadline_ns);
    const redisReply *reply = majority(&round, &first);
    if (reply && first >= from)
        inspection->stop = hfi_redis_show_lock(reply, name, true, inspection->each, inspection->arg);
    hfi_redlock_end(&round);
    return answered >= inspection->store->quorum ? HF_OK : hfi_redlock_too_few(&round, answered, err);
}

static hf_status inspect_master(struct inspection *inspection, size_t index, hf_error *err)
{
    struct redlock_store *store = inspection->store;
    char cursor[24] = "0";
    do {
        redisReply *found = NULL;
        hf_status status =
            hfi_redis_scan(&store->redis, store->masters[index], cursor, &found, inspection->deadline_ns, err);
        if (status != HF_OK)
            return status;
        const redisReply *keys = found->element[1];
        for (size_t i = 0; i < keys->elements && status == HF_OK && !inspection->stop; i++) {
            char name[HFI_REDIS_KEY_MAX];
            const redisReply *key = keys->element[i];
            if (key->type == REDIS_REPLY_STRING && hfi_redis_companion_name(name, &store->redis, key->str) &&
                strncmp(name, inspection->prefix, strlen(inspection->prefix)) == 0 &&
                strcmp(name, inspection->prefix) != 0)
                status = inspect_one(inspection, name, index, err);
        }
        freeReplyObject(found);
        if (status != HF_OK)
            return status;
    } while (!inspection->stop && strcmp(cursor, "0") != 0);
    return HF_OK;
}

/* Every lock that a majority has is on one of any `count - quorum + 1` masters. */
hf_status hfi_redlock_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                              hf_error *err)
{
    struct redlock_store *store = memory;
    struct inspection inspection = {
        .store = store, .prefix = prefix, .each = each, .arg = arg, .deadline_ns = deadline_ns
    };
    size_t seen = 0;
    hf_status status = HF_OK;
    if (*prefix) /* by its whole name also a lock that only others know */
        status = inspect_one(&inspection, prefix, 0, err);
    for (size_t i = 0; i < store->count && status == HF_OK && !inspection.stop && seen < store->quorum; i++) {
        if (hfi_redlock_is_down(store, store->masters[i]))
            continue;
        status = inspect_master(&inspection, i, err);
        if (status == HF_UNAVAILABLE) {
            hfi_redlock_mark(store, store->masters[i], true);
            status = HF_OK;
        } else {
            seen++;
        }
    }
    if (status == HF_OK && !inspection.stop && seen < store->quorum)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "only %zu of %zu masters answered, %zu are needed", seen, store->count,
                        store->quorum);
    return status;
}

hf_status hfi_redlock_evict(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_round round = { .store = store };
    const size_t answered = ask_all(&round, REDLOCK_EVICT, name, deadline_ns);
    hfi_redlock_end(&round);
    return answered >= store->quorum ? HF_OK : hfi_redlock_too_few(&round, answered, err);
}
