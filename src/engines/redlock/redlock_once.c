/* SPDX-License-Identifier: MIT
 *
 * redlock_once.c: what is done once in a while. Each master that lets go of a lock whose work is done keeps the record
 * of that, in the same step: so whoever is granted the lock next by a majority has asked one that has it. One record is
 * therefore enough, on whichever master; and to be forgotten it must be forgotten by all of them.
 */
#include "redlock.h"
#include <stdio.h>
#include <stdlib.h>

bool hfi_redlock_says_done(const struct redlock_leg *leg)
{
    const redisReply *reply = leg->reply;
    return leg->state == REDLOCK_ANSWERED && hfi_redlock_number(reply, 0) == -2 && reply->elements == 3 &&
           reply->element[1]->type == REDIS_REPLY_INTEGER && reply->element[2]->type == REDIS_REPLY_STRING;
}

/* The answer with the last record: that of the largest token. NULL: nobody says that it is done. */
static const redisReply *last_record(const struct redlock_round *round, uint64_t *token)
{
    const redisReply *last = NULL;
    *token = 0;
    for (size_t i = 0; i < round->store->count; i++) {
        if (!hfi_redlock_says_done(&round->legs[i]))
            continue;
        const redisReply *reply = round->legs[i].reply;
        const uint64_t one = strtoull(reply->element[2]->str, NULL, 10);
        if (!last || one > *token) {
            last = reply;
            *token = one;
        }
    }
    return last;
}

hf_status hfi_redlock_take_done(const struct redlock_round *round, const char *name, struct hfi_grant *grant,
                                hf_error *err)
{
    uint64_t token;
    hf_status status = HF_OK;
    const redisReply *reply = last_record(round, &token);
    if (reply)
        hfi_redis_take_done(reply, name, grant, &status, err);
    return status;
}

/* Runs a script that takes the key of the record of `name`, and perhaps a word, on all masters; how many have
 * answered. */
static size_t ask_all(struct redlock_round *round, enum redlock_script_name script, const char *name, const char *word,
                      hfi_time deadline_ns)
{
    struct redlock_store *store = round->store;
    struct redis_command command = { REDIS_ROOM(5) };
    char key[HFI_REDIS_KEY_MAX];
    size_t answered = 0;
    hfi_redis_done_key(key, &store->redis, name);
    hfi_redis_add_script(&command, &store->scripts[script]);
    hfi_redis_add(&command, "1");
    hfi_redis_add(&command, key);
    if (word)
        hfi_redis_add(&command, word);
    for (size_t i = 0; i < store->count; i++)
        round->legs[i].command = &command;
    hfi_redlock_ask(round, hfi_redlock_all_answered, deadline_ns);
    for (size_t i = 0; i < store->count; i++)
        answered += round->legs[i].state == REDLOCK_ANSWERED;
    return answered;
}

size_t hfi_redlock_forget(struct redlock_round *round, const char *name, uint64_t token, hfi_time deadline_ns)
{
    char number[24];
    snprintf(number, sizeof number, "%llu", (unsigned long long)token);
    return ask_all(round, REDLOCK_FORGET_DONE, name, number, deadline_ns);
}

hf_status hfi_redlock_show_done(struct redlock_store *store, const char *name, hf_inspect_fn each, void *arg, int *stop,
                                hfi_time deadline_ns, hf_error *err)
{
    struct redlock_round round = { .store = store };
    struct redis_done done;
    uint64_t token;
    const size_t answered = ask_all(&round, REDLOCK_LOOK_DONE, name, NULL, deadline_ns);
    const redisReply *reply = last_record(&round, &token);
    if (reply && hfi_redis_read_done(&done, reply->element[2]->str, reply->element[1]->integer))
        *stop = hfi_redis_show_done(&done, name, each, arg);
    hfi_redlock_end(&round);
    return answered >= store->quorum ? HF_OK : hfi_redlock_too_few(&round, answered, "answered", err);
}

/* Looks for the last record first: what is forgotten is what was done up to that, and not what is done from now on, if
 * this arrives late. A master that does not hear of it would have the record still when it is back. */
hf_status hfi_redlock_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct redlock_store *store = memory;
    struct redlock_round look = { .store = store, .must = ~0u, .decided = hfi_redlock_all_answered }, forget = look;
    const struct redlock_round *last = &look;
    uint64_t token;
    if (hfi_redis_check_name(&store->redis, name, err) != HF_OK)
        return HF_INVALID;
    const hfi_time now = store->redis.env->now_ns(); /* a master that hangs leaves time for the second question */
    size_t answered = ask_all(&look, REDLOCK_LOOK_DONE, name, NULL, now + (deadline_ns - now) / 2);
    if (last_record(&look, &token)) {
        answered = hfi_redlock_forget(&forget, name, token, deadline_ns);
        last = &forget;
    }
    hf_status status = HF_OK;
    if (answered < store->count)
        status = hfi_fail(err, HF_UNAVAILABLE, last->trouble.native,
                          "only %zu of %zu masters have forgotten it, and one is enough to know it: %.120s", answered,
                          store->count, last->trouble.message);
    hfi_redlock_end(&forget);
    hfi_redlock_end(&look);
    return status;
}
