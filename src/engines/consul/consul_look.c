/* SPDX-License-Identifier: MIT
 *
 * consul_look.c: who holds what, forced release, and fencing.
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAITER_MOST 256
#define TRIES_MOST 50

/* What only reads changes nothing, answered or not. */
static hf_status read_only(hf_status status, hf_error *err)
{
    if (status == HF_UNKNOWN && err)
        err->status = HF_UNAVAILABLE;
    return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
}

hf_status hfi_consul_get_tree(struct consul_store *store, const char *key, struct consul_answer *answer,
                              hfi_time deadline_ns, hf_error *err)
{
    const struct consul_operation look = { .verb = "get-tree", .key = key };
    return read_only(hfi_consul_txn(store, &look, 1, answer, deadline_ns, err), err);
}

/* --- who holds what --- */

struct listing {
    struct consul_store *store;
    const struct consul_answer *answer;
    hf_inspect_fn each;
    void *arg;
};

static int by_creation(const void *a, const void *b)
{
    const struct consul_entry *one = a, *other = b;
    return one->created < other->created ? -1 : one->created > other->created;
}

/* The places of the lock that is entry `i`, in the order of the queue, the holder's own left out; *out is to be freed.
 * Entries come in the order of their keys, so places stand right before their lock. -1: no memory. */
static int64_t find_waiters(const struct listing *listing, size_t i, const struct consul_entry *lock,
                            struct consul_entry **out)
{
    const size_t stem = strlen(lock->key) - strlen("lock");
    size_t first = i, count = 0;
    struct consul_entry entry;
    while (first > 0 && hfi_consul_entry(listing->answer, first - 1, &entry) &&
           strncmp(entry.key, lock->key, stem) == 0 && strncmp(entry.key + stem, "holdfast/", 9) == 0)
        first--;
    struct consul_entry *found = *out = first < i ? hfi_alloc((i - first) * sizeof *found) : NULL;
    if (first < i && !found)
        return -1;
    for (; first < i; first++) {
        if (hfi_consul_entry(listing->answer, first, &entry) && *entry.session && entry.holder.owner.client &&
            !hfi_consul_same(entry.holder.owner, lock->holder.owner))
            found[count++] = entry;
    }
    if (count)
        qsort(found, count, sizeof *found, by_creation);
    return (int64_t)count;
}

/* The texts of all waiters, and pointers to them in front: one block, freed at once. NULL: no memory. */
static const char **describe_waiters(const struct consul_entry *waiters, size_t count)
{
    const char **pointers = hfi_alloc(count * (sizeof *pointers + WAITER_MOST) + 1);
    char *texts = pointers ? (char *)(pointers + count) : NULL;
    for (size_t i = 0; pointers && i < count; i++) {
        const struct consul_holder *one = &waiters[i].holder;
        pointers[i] = texts + i * WAITER_MOST;
        snprintf(texts + i * WAITER_MOST, WAITER_MOST, "%s:%lld%s%s", one->host, one->pid, *one->note ? " " : "",
                 one->note);
    }
    return pointers;
}

/* Since when, by the agent's clock, which says seconds. -1: not known. */
static int64_t held_ms(const struct listing *listing, const struct consul_holder *holder)
{
    struct consul_store *store = listing->store;
    pthread_mutex_lock(&store->mutex);
    const int64_t now = store->clock_s;
    pthread_mutex_unlock(&store->mutex);
    if (!holder->owner.client || !now || !holder->since_s)
        return -1;
    return now > holder->since_s ? (now - holder->since_s) * 1000 : 0;
}

static int show(const struct listing *listing, const char *name, size_t i, const struct consul_entry *lock)
{
    const struct consul_holder *holder = &lock->holder;

    struct consul_entry *waiters;
    const int64_t count = find_waiters(listing, i, lock, &waiters);
    const char **waiting = count >= 0 ? describe_waiters(waiters, (size_t)count) : NULL;
    const hf_info info = { .size = sizeof info,
                           .name = name,
                           .host = holder->host,
                           .pid = holder->pid,
                           .token = holder->token ? holder->token : lock->modified,
                           .held_ms = held_ms(listing, holder),
                           .remaining_ms = -1, /* of its session, which does not say when it was renewed last */
                           .waiters = count,
                           .note = holder->note,
                           .waiting = waiting };
    const int stop = listing->each(&info, listing->arg);
    hfi_free(waiters);
    hfi_free((void *)(uintptr_t)waiting);
    return stop;
}

/* The name of the lock whose key this is; false if it is not a lock's. */
static bool name_of(char name[HFI_NAME_MAX + 1], const struct consul_store *store, const char *key)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    const size_t prefix = strlen(store->config.prefix) + 1;
    const size_t length = strlen(key);
    if (length <= prefix + 6 || strcmp(key + length - 6, "/.lock") != 0 || length - prefix - 6 >= sizeof encoded)
        return false;
    snprintf(encoded, sizeof encoded, "%.*s", (int)(length - prefix - 6), key + prefix);
    return hfi_name_decode(name, HFI_NAME_MAX + 1, encoded);
}

/* The locks whose keys start with this name, or have it and then `end`. */
static hf_status show_all(struct consul_store *store, const char *start, const char *end, hf_inspect_fn each, void *arg,
                          hfi_time deadline_ns, hf_error *err)
{
    struct consul_answer answer;
    char key[HFI_CONSUL_KEY_MAX], encoded[HFI_NAME_ENCODED_MAX] = "";
    hfi_name_encode(encoded, start);
    snprintf(key, sizeof key, "%s/%s%s", store->config.prefix, encoded, end);
    const hf_status status = hfi_consul_get_tree(store, key, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const struct listing listing = { .store = store, .answer = &answer, .each = each, .arg = arg };
    int stop = 0;
    for (size_t i = 0; i < hfi_consul_entries(&answer) && !stop; i++) {
        char name[HFI_NAME_MAX + 1];
        struct consul_entry entry;
        if (hfi_consul_entry(&answer, i, &entry) && *entry.session && name_of(name, store, entry.key))
            stop = show(&listing, name, i, &entry);
    }
    hfi_consul_answer_free(&answer);
    return HF_OK;
}

hf_status hfi_consul_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                             hf_error *err)
{
    return show_all(memory, prefix, "", each, arg, deadline_ns, err);
}

hf_status hfi_consul_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err)
{
    return show_all(memory, name, "/", each, arg, deadline_ns, err);
}

/* --- forced release --- */

/* Tells this grant from every other, though somebody may write another value into the key meanwhile. */
struct grant {
    char session[64];
    uint64_t created, locked;
};

static bool is_same(const struct grant *grant, const struct consul_entry *lock)
{
    return grant->created == lock->created && grant->locked == lock->locked &&
           strcmp(grant->session, lock->session) == 0;
}

#define BREAK_ALONE 3    /* operations that break it, whoever the holder is */
#define BREAK_AND_TELL 5 /* … and tell a holder of ours, if it listens */
#define DOES_NOT_LISTEN ((uint64_t)1 << 3)

/* Deletes the lock and its holder's place, if they are as they were seen. Deleted, not only unlocked: a key that stays
 * would show the value of somebody who holds nothing. In the same step writes who did it into the key of the holder's
 * session, to which it listens; if that is not there, or not ours to write, it learns of it when it renews. */
static hf_status evict_holder(struct consul_store *store, const char *name, const struct consul_entry *lock,
                              const char *by, bool *done, hfi_time deadline_ns, hf_error *err)
{
    const struct hfi_owner owner = lock->holder.owner;
    char place[HFI_CONSUL_KEY_MAX], session[HFI_CONSUL_KEY_MAX], value[HFI_CONSUL_VALUE_MAX];
    struct consul_answer answer;
    hfi_consul_key(place, store, CONSUL_PLACE, name, owner);
    hfi_consul_session_key(session, store, lock->session);
    /* Another value each time, or the server would leave everything as it is. */
    snprintf(value, sizeof value, "%016" PRIx64 " %016" PRIx64 ".%" PRIu64 " %s", store->env->random(), owner.client,
             owner.serial, by);
    const struct consul_operation operations[BREAK_AND_TELL] = {
        { .verb = "check-index", .key = lock->key, .index = lock->modified },
        { .verb = "delete", .key = lock->key },
        { .verb = "delete", .key = place },
        { .verb = "check-session", .key = session, .session = lock->session },
        { .verb = "set", .key = session, .value = value }
    };
    const size_t count = owner.client ? BREAK_AND_TELL : BREAK_ALONE;
    hf_error trouble = { .status = HF_OK };
    hf_status status = hfi_consul_txn(store, operations, count, &answer, deadline_ns, &trouble);
    if (count == BREAK_AND_TELL && (status == HF_DENIED || (status == HF_OK && answer.failed == DOES_NOT_LISTEN))) {
        if (status == HF_OK)
            hfi_consul_answer_free(&answer);
        status = hfi_consul_txn(store, operations, BREAK_ALONE, &answer, deadline_ns, &trouble);
    }
    if (status == HF_OK) {
        *done = answer.failed == 0;
        hfi_consul_answer_free(&answer);
    } else if (err) {
        *err = trouble;
    }
    return status;
}

hf_status hfi_consul_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct consul_store *store = memory;
    char key[HFI_CONSUL_KEY_MAX];
    const struct hfi_owner nobody = { 0, 0 };
    struct grant first = { .created = 0 };
    hfi_consul_key(key, store, CONSUL_LOCK, name, nobody);
    for (unsigned tries = 0; tries < TRIES_MOST; tries++) {
        struct consul_answer answer;
        struct consul_view view;
        bool done = true;
        hf_status status = hfi_consul_get_tree(store, key, &answer, deadline_ns, err);
        if (status != HF_OK)
            return status;
        hfi_consul_view(&view, &answer, store, name, nobody);
        if (tries == 0 && !view.free) {
            first = (struct grant){ .created = view.lock.created, .locked = view.lock.locked };
            snprintf(first.session, sizeof first.session, "%s", view.lock.session);
        }
        /* Another one has it rightly: the first was broken by a request whose answer was lost, or has let go. */
        if (!view.free && is_same(&first, &view.lock))
            status = evict_holder(store, name, &view.lock, by, &done, deadline_ns, err);
        hfi_consul_answer_free(&answer);
        if (status != HF_OK || done)
            return status;
    }
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the value of %.100s changes faster than it can be broken", key);
}

/* --- fencing --- */

/* The largest token that was shown so far is the number in P/.guard/NAME/token. */
static hf_status show_token(struct consul_store *store, const char *key, uint64_t token, bool *done,
                            hfi_time deadline_ns, hf_error *err)
{
    char value[24];
    struct consul_answer answer;
    struct consul_entry entry;
    hf_status status = hfi_consul_get_tree(store, key, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const bool there = hfi_consul_entry(&answer, 0, &entry);
    const uint64_t shown = there ? hfi_consul_number(&answer, 0) : 0;
    const uint64_t index = there ? entry.modified : 0;
    hfi_consul_answer_free(&answer);
    *done = token <= shown;
    if (token < shown)
        return hfi_fail(err, HF_LOST, 0, "the token %" PRIu64 " is older than %" PRIu64 ", which was shown before",
                        token, shown);
    if (token == shown)
        return HF_OK;
    snprintf(value, sizeof value, "%" PRIu64, token);
    /* An index of 0 is one that must not be there. */
    const struct consul_operation cas = { .verb = "cas", .key = key, .index = index, .value = value };
    status = hfi_consul_txn(store, &cas, 1, &answer, deadline_ns, err);
    if (status == HF_OK) {
        *done = answer.failed == 0;
        hfi_consul_answer_free(&answer);
    }
    return status;
}

hf_status hfi_consul_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err)
{
    struct consul_store *store = memory;
    char key[HFI_CONSUL_KEY_MAX], encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, resource);
    snprintf(key, sizeof key, "%s/.guard/%s/token", store->config.prefix, encoded);
    for (unsigned tries = 0; tries < TRIES_MOST; tries++) {
        bool done = false;
        const hf_status status = show_token(store, key, token, &done, deadline_ns, err);
        if (status != HF_OK || done)
            return status;
    }
    return hfi_fail(err, HF_UNAVAILABLE, 0, "too many show tokens for %.100s at once", resource);
}
