/* SPDX-License-Identifier: MIT
 *
 * redis_renew.c: keeping locks, many to one exchange: one script for all of them; or, where each key may be at another
 * server or the dialect has a command for it, one command each, those for one server in one write.
 *
 * With replicas=N a renewal that fewer than N replicas have confirmed is none: after a failover the lock would end
 * earlier than its holder thinks.
 *
 * A renewal that was given up may arrive after the next one. Each carries how many of its hold had no answer, and the
 * server ignores one with a smaller number.
 */
#include "redis.h"
#include <stdio.h>
#include <string.h>

#define BATCH_MOST 128

struct words {
    char key[HFI_REDIS_KEY_MAX];
    char owner[HFI_REDIS_OWNER_MAX];
    char ttl[16];
};

/* --- replicas --- */

bool hfi_redis_add_replication(struct redis_command *command, char replicas[16], char patience[24],
                               const struct redis_config *config, hfi_time left_ns)
{
    /* No longer than the request may take, less the way back: an answer that says too few is better than none. */
    const int64_t left_ms = left_ns / HFI_MS * 9 / 10;
    const int64_t patience_ms = left_ms < config->replica_ms ? (left_ms > 1 ? left_ms : 1) : config->replica_ms;
    if (!config->replicas && !config->fsync)
        return false;
    snprintf(replicas, 16, "%d", config->replicas);
    snprintf(patience, 24, "%lld", (long long)patience_ms);
    hfi_redis_add(command, config->fsync ? "WAITAOF" : "WAIT");
    if (config->fsync)
        hfi_redis_add(command, "1");
    hfi_redis_add(command, replicas);
    hfi_redis_add(command, patience);
    return true;
}

hf_status hfi_redis_check_replication(const redisReply *reply, const struct redis_config *config, hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return hfi_redis_refusal(reply, "", err);
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer >= config->replicas)
        return HF_OK;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[0]->integer >= 1 &&
        reply->element[1]->integer >= config->replicas)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE, 0, "fewer than %d replicas, or no disk, confirmed it within %d ms",
                    config->replicas, config->replica_ms);
}

bool hfi_redis_is_confirmed(const redisReply *reply, const struct redis_config *config, hf_error *err)
{
    const bool confirmed = hfi_redis_check_replication(reply, config, err) == HF_OK;
    if (!confirmed && err)
        err->status = HF_UNKNOWN;
    return confirmed;
}

hf_status hfi_redis_ask_confirmed(struct redis_store *store, struct redis_question *question, redisReply **reply,
                                  bool *confirmed, hf_error *err)
{
    struct redis_command commands[2] = { question->commands[0], { REDIS_ROOM(4) } };
    redisReply *replies[2] = { NULL, NULL };
    char replicas[16], patience[24];
    const bool wait = hfi_redis_add_replication(&commands[1], replicas, patience, &store->config,
                                                question->deadline_ns - store->env->now_ns());
    question->commands = commands;
    question->count = wait ? 2 : 1;
    const hf_status status = hfi_redis_ask(store, question, replies, err);
    question->commands = NULL;
    *reply = replies[0];
    *confirmed = status == HF_OK && (!wait || hfi_redis_is_confirmed(replies[1], &store->config, err));
    freeReplyObject(replies[1]);
    return status;
}

/* --- what the server says --- */

static hf_status take_answer(const redisReply *reply, hf_error *err)
{
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 1) /* of a script */
        reply = reply->element[0];
    if (reply->type != REDIS_REPLY_INTEGER)
        return hfi_redis_refusal(reply, "", err);
    if (reply->integer < -1 || reply->integer > 1)
        return hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    return reply->integer == 1 ? HF_OK : HF_LOST;
}

/* --- one script for all --- */

static hf_status renew_together(struct redis_store *store, struct hfi_renewal *renewals, const struct words *words,
                                size_t count, hfi_time deadline_ns, hf_error *err)
{
    struct redis_command commands[2] = { { REDIS_ROOM(3 + 3 * BATCH_MOST) }, { REDIS_ROOM(4) } };
    redisReply *replies[2] = { NULL, NULL };
    char number[16], replicas[16], patience[24];
    snprintf(number, sizeof number, "%zu", count);
    hfi_redis_add_script(&commands[0], &store->scripts[REDIS_RENEW]);
    hfi_redis_add(&commands[0], number);
    for (size_t i = 0; i < count; i++)
        hfi_redis_add(&commands[0], words[i].key);
    for (size_t i = 0; i < count; i++) {
        hfi_redis_add(&commands[0], words[i].owner);
        hfi_redis_add(&commands[0], words[i].ttl);
    }
    const bool wait =
        hfi_redis_add_replication(&commands[1], replicas, patience, &store->config, deadline_ns - store->env->now_ns());
    struct redis_question question = {
        .key = words[0].key, .commands = commands, .count = wait ? 2 : 1, .deadline_ns = deadline_ns, .renews = true
    };
    hf_status status = hfi_redis_ask(store, &question, replies, err);
    if (status != HF_OK)
        return status;
    if (replies[0]->type != REDIS_REPLY_ARRAY || replies[0]->elements != count)
        status = hfi_redis_refusal(replies[0], words[0].key, err);
    const bool safe = !wait || status != HF_OK || hfi_redis_is_confirmed(replies[1], &store->config, err);
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        const hf_status answer = take_answer(replies[0]->element[i], err);
        if (answer != HF_OK && answer != HF_LOST)
            status = answer;
        renewals[i].status = answer == HF_OK && !safe ? HF_UNKNOWN : answer;
        renewals[i].counted_from_ns = question.sent_ns;
    }
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
    return status;
}

/* --- one command for each --- */

static void add_one(struct redis_command *command, const struct redis_store *store, const struct words *words, bool cas)
{
    command->count = 0;
    cas = cas && !strchr(words->owner, '+'); /* CAS cannot tell which of two is later */
    if (cas)
        hfi_redis_add(command, "CAS");
    else
        hfi_redis_add_script(command, &store->scripts[REDIS_RENEW]);
    if (!cas)
        hfi_redis_add(command, "1");
    hfi_redis_add(command, words->key);
    hfi_redis_add(command, words->owner);
    if (cas)
        hfi_redis_add(command, words->owner);
    if (cas)
        hfi_redis_add(command, "PX"); /* always: without it the lock would have no end */
    hfi_redis_add(command, words->ttl);
}

/* One lock by itself, wherever it is; by the script, which needs no memory, unlike CAS. */
static void renew_alone(struct redis_store *store, struct hfi_renewal *renewal, const struct words *words,
                        hfi_time deadline_ns, hf_error *err)
{
    struct redis_command commands[2] = { { REDIS_ROOM(8) }, { REDIS_ROOM(4) } };
    redisReply *replies[2] = { NULL, NULL };
    char replicas[16], patience[24];
    add_one(&commands[0], store, words, false);
    const bool wait =
        hfi_redis_add_replication(&commands[1], replicas, patience, &store->config, deadline_ns - store->env->now_ns());
    struct redis_question question = {
        .key = words->key, .commands = commands, .count = wait ? 2 : 1, .deadline_ns = deadline_ns, .renews = true
    };
    renewal->status = hfi_redis_ask(store, &question, replies, err);
    if (renewal->status != HF_OK)
        return;
    renewal->status = take_answer(replies[0], err);
    if (renewal->status == HF_OK && wait && !hfi_redis_is_confirmed(replies[1], &store->config, err))
        renewal->status = HF_UNKNOWN;
    renewal->counted_from_ns = question.sent_ns;
    freeReplyObject(replies[0]);
    freeReplyObject(replies[1]);
}

struct batch {
    struct redis_store *store;
    struct hfi_renewal *renewals;
    const struct words *words;
    size_t count;
    bool done[BATCH_MOST];
    hf_error *err;
};

/* Those that are at the same server, in one write. */
struct group {
    struct redis_node *node;
    size_t members[BATCH_MOST];
    size_t count;
};

/* The first that is not done yet, and all that are where it is. */
static hf_status find_group(struct batch *batch, struct group *group, size_t first, hfi_time deadline_ns)
{
    group->count = 0;
    const hf_status status =
        hfi_redis_find(batch->store, batch->words[first].key, &group->node, deadline_ns, batch->err);
    for (size_t i = first; i < batch->count && status == HF_OK; i++) {
        struct redis_node *node = group->node;
        /* The first is a member in any case: the map may change between two looks, and then nobody would renew it. */
        if (!batch->done[i] &&
            (i == first || hfi_redis_find(batch->store, batch->words[i].key, &node, deadline_ns, NULL) == HF_OK) &&
            node == group->node) {
            group->members[group->count++] = i;
            batch->done[i] = true;
        }
    }
    return status;
}

static void renew_group(const struct batch *batch, const struct group *group, bool cas, hfi_time deadline_ns)
{
    struct redis_store *store = batch->store;
    const struct words *words = batch->words;
    hf_error *err = batch->err;
    struct redis_command commands[BATCH_MOST + 1];
    const char *texts[BATCH_MOST][8];
    const char *wait_texts[4];
    redisReply *replies[BATCH_MOST + 1];
    char replicas[16], patience[24];
    for (size_t i = 0; i < group->count; i++) {
        commands[i] = (struct redis_command){ .room = 8, .text = texts[i] };
        add_one(&commands[i], store, &words[group->members[i]], cas);
    }
    commands[group->count] = (struct redis_command){ .room = 4, .text = wait_texts };
    const bool wait = hfi_redis_add_replication(&commands[group->count], replicas, patience, &store->config,
                                                deadline_ns - store->env->now_ns());
    struct redis_question question = { .commands = commands,
                                       .count = group->count + (wait ? 1 : 0),
                                       .deadline_ns = deadline_ns,
                                       .renews = true,
                                       .node = group->node };
    const hf_status status = hfi_redis_ask(store, &question, replies, err);
    const bool safe = status == HF_OK && (!wait || hfi_redis_is_confirmed(replies[group->count], &store->config, err));
    for (size_t i = 0; i < group->count; i++) {
        struct hfi_renewal *renewal = &batch->renewals[group->members[i]];
        renewal->status = status == HF_OK ? take_answer(replies[i], NULL) : status;
        renewal->counted_from_ns = question.sent_ns;
        if (renewal->status == HF_OK && !safe)
            renewal->status = HF_UNKNOWN;
    }
    for (size_t i = 0; i < question.count && status == HF_OK; i++)
        freeReplyObject(replies[i]);
}

/* How many servers have them. */
static size_t count_nodes(struct redis_store *store, const struct words *words, size_t count, hfi_time deadline_ns)
{
    struct redis_node *seen[BATCH_MOST];
    size_t nodes = 0;
    for (size_t i = 0; i < count; i++) {
        struct redis_node *node;
        size_t place = 0;
        if (hfi_redis_find(store, words[i].key, &node, deadline_ns, NULL) != HF_OK)
            continue;
        while (place < nodes && seen[place] != node)
            place++;
        if (place == nodes)
            seen[nodes++] = node;
    }
    return nodes;
}

/* Each server has its share of the time: one that stands still must not cost the locks that others have. */
static void renew_groups(struct batch *batch, bool cas, hfi_time deadline_ns)
{
    struct redis_store *store = batch->store;
    size_t left = count_nodes(store, batch->words, batch->count, deadline_ns);
    for (size_t i = 0; i < batch->count; i++) {
        struct group group;
        if (batch->done[i])
            continue;
        const hfi_time now = store->env->now_ns();
        const hfi_time end = left > 1 ? now + (deadline_ns - now) / (hfi_time)left-- : deadline_ns;
        batch->renewals[i].status = find_group(batch, &group, i, end);
        if (batch->renewals[i].status == HF_OK)
            renew_group(batch, &group, cas, end);
    }
}

/* Nothing was done: moved to another server, that server is gone, or it refuses CAS, for want of memory say. */
static bool is_refused(const struct hfi_renewal *renewal)
{
    return renewal->status != HF_OK && renewal->status != HF_LOST && renewal->status != HF_UNKNOWN;
}

static hf_status renew_each(struct redis_store *store, struct hfi_renewal *renewals, const struct words *words,
                            size_t count, hfi_time deadline_ns, hf_error *err)
{
    struct batch batch = { .store = store, .renewals = renewals, .words = words, .count = count, .err = err };
    size_t first = count;
    bool again = false;
    renew_groups(&batch, store->config.dialect == &hfi_redis_tair, deadline_ns);
    /* The first of those that were refused goes by itself, wherever it is now, and shows the way for the others. */
    for (size_t i = 0; i < count; i++) {
        if (!is_refused(&renewals[i]))
            continue;
        if (first == count)
            renew_alone(store, &renewals[first = i], &words[i], deadline_ns, err);
        else
            again = !(batch.done[i] = false);
    }
    if (again)
        renew_groups(&batch, false, deadline_ns);
    /* In a cluster each of those that are left may have a way of its own. */
    for (size_t i = first + 1; i < count && store->config.kind == REDIS_CLUSTER; i++) {
        if (is_refused(&renewals[i]))
            renew_alone(store, &renewals[i], &words[i], deadline_ns, err);
    }
    return HF_OK;
}

static void add_number(char owner[HFI_REDIS_OWNER_MAX], const struct redis_lock *lock)
{
    const size_t used = strlen(owner);
    const unsigned number = lock->unanswered;
    if (number)
        snprintf(owner + used, HFI_REDIS_OWNER_MAX - used, "+%u", number);
}

hf_status hfi_redis_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns, hf_error *err)
{
    struct redis_store *store = memory;
    const struct redis_dialect *dialect = store->config.dialect;
    struct words words[BATCH_MOST];
    redis_keys keys;
    if (count > BATCH_MOST)
        return hfi_fail(err, HF_INTERNAL, 0, "a renewal of %zu locks is too large", count);
    for (size_t i = 0; i < count; i++) {
        dialect->keys(keys, store, renewals[i].name, renewals[i].owner);
        memcpy(words[i].key, keys[0], sizeof words[i].key);
        dialect->owner(words[i].owner, renewals[i].owner);
        add_number(words[i].owner, renewals[i].lock);
        snprintf(words[i].ttl, sizeof words[i].ttl, "%u", renewals[i].ttl_ms);
    }
    /* A server that stands still must leave time for asking the one that takes its place. */
    const hfi_time now = store->env->now_ns();
    if (store->config.kind != REDIS_ONE)
        deadline_ns = now + (deadline_ns - now) / 2;
    const bool each = store->config.kind == REDIS_CLUSTER || dialect == &hfi_redis_tair;
    const hf_status status = each ? renew_each(store, renewals, words, count, deadline_ns, err)
                                  : renew_together(store, renewals, words, count, deadline_ns, err);
    for (size_t i = 0; i < count; i++) {
        struct redis_lock *lock = renewals[i].lock;
        lock->unanswered += (status == HF_OK ? renewals[i].status : status) == HF_UNKNOWN;
    }
    if (status == HF_OK && renewals[0].status == HF_OK)
        hfi_redis_watch(store, words[0].key);
    if (store->config.kind == REDIS_SENTINEL)
        hfi_redis_sentinel_look_after(store);
    return status;
}
