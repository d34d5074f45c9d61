/* SPDX-License-Identifier: MIT
 *
 * redis_ask.c: one exchange: the commands go to whoever has the key, scripts by their hash; and to somebody else if the
 * server says that it has the key no longer.
 */
#include "redis_wire.h"
#include <string.h>

/* How often a request may be sent from one server to the next. */
#define MOVES_MOST 8
/* Between two tries with a server that says that it needs a moment. */
#define MOMENT (5 * HFI_MS)
#define MOMENTS_MOST 200

void hfi_redis_free_replies(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

/* Replies from `first` on; if one does not come, those before it are freed. */
static hf_status receive_all(struct redis_connection *connection, redisReply **replies, size_t first, size_t count,
                             hfi_time deadline_ns, hf_error *err)
{
    for (size_t i = first; i < count; i++) {
        const hf_status status = hfi_redis_receive(connection, &replies[i], deadline_ns, err);
        if (status != HF_OK) {
            hfi_redis_free_replies(replies, i);
            if (err)
                err->status = HF_UNKNOWN; /* HF_TIMEOUT too: it was sent */
            return HF_UNKNOWN;
        }
    }
    return HF_OK;
}

/* From `first` on. */
static hf_status send_again(struct redis_connection *connection, const struct redis_question *question,
                            redisReply **replies, size_t first, hfi_time deadline_ns, hf_error *err)
{
    hfi_redis_free_replies(replies + first, question->count - first);
    hf_status status =
        hfi_redis_send(connection, &question->commands[first], question->count - first, deadline_ns, err);
    if (status == HF_OK)
        status = receive_all(connection, replies, first, question->count, deadline_ns, err);
    else
        hfi_redis_free_replies(replies, first);
    return status;
}

static hf_status say_asking(struct redis_connection *connection, hfi_time deadline_ns, hf_error *err)
{
    struct redis_command asking = { REDIS_ROOM(1) };
    hfi_redis_add(&asking, "ASKING");
    const hf_status status = hfi_redis_send(connection, &asking, 1, deadline_ns, err);
    connection->owed += status == HF_OK;
    return status;
}

/* The first command that the server did not know goes again, and whatever came behind it: a script with its text, since
 * it was restarted or its scripts flushed; a command of the module as the script that does the same. */
static hf_status repeat_what_is_not_known(struct redis_connection *connection, const struct redis_question *question,
                                          bool asking, redisReply **replies, hfi_time deadline_ns, hf_error *err)
{
    bool natively = connection->native;
    hf_status status = HF_OK;
    for (size_t i = 0; i < question->count && status == HF_OK;) {
        struct redis_command *command = &question->commands[i];
        bool gone;
        const enum redis_again how = hfi_redis_again(question, replies, i, natively, &gone);
        connection->native = connection->native && !gone;
        i += how != REDIS_BY_HASH;
        if (how == REDIS_ANSWERED)
            continue;
        const size_t first = (size_t)(command - question->commands);
        if (asking && (status = say_asking(connection, deadline_ns, err)) != HF_OK)
            hfi_redis_free_replies(replies, question->count);
        else
            status = send_again(connection, question, replies, first, deadline_ns, err);
        natively = connection->native; /* as it was said */
        if (how == REDIS_BY_TEXT) {
            command->text[0] = "EVALSHA";
            command->text[1] = command->script->hash;
        }
    }
    return status;
}

static hf_status ask_apart(struct redis_store *store, struct redis_question *question, bool asking,
                           redisReply **replies, hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *connection;
    hf_status status = hfi_redis_borrow(store, question->node, &connection, deadline_ns, err);
    if (status != HF_OK)
        return status;
    question->sent_ns = store->env->now_ns();
    const bool may_be_replaced = store->config.kind == REDIS_SENTINEL;
    if (may_be_replaced && !hfi_redis_asked(store, question->node, connection)) {
        hfi_redis_disconnect(connection);
        return hfi_fail(err, HF_UNAVAILABLE, 0, "another server has taken its place");
    }
    if (asking)
        status = say_asking(connection, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_redis_send(connection, question->commands, question->count, deadline_ns, err);
    if (status == HF_OK)
        status = receive_all(connection, replies, 0, question->count, deadline_ns, err);
    if (status == HF_OK)
        status = repeat_what_is_not_known(connection, question, asking, replies, deadline_ns, err);
    if (may_be_replaced)
        hfi_redis_answered(store, question->node, connection);
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        hfi_redis_drop_old(store, question->node);
        return status;
    }
    connection->used_ns = question->sent_ns;
    hfi_redis_give_back(store, question->node, connection);
    return HF_OK;
}

/* A server that waits for its replicas keeps everything else on that connection waiting. */
static bool waits_for_replicas(const struct redis_store *store)
{
    return store->config.replicas || store->config.fsync;
}

/* Whoever leaves the one that all share, since an answer did not come in time, would cost releases that are on their
 * way. */
static bool shares_with_rounds(const struct redis_store *store)
{
    return store->config.kind == REDIS_REDLOCK;
}

static hf_status ask_node(struct redis_store *store, struct redis_question *question, bool asking, redisReply **replies,
                          hfi_time deadline_ns, hf_error *err)
{
    if (waits_for_replicas(store) || shares_with_rounds(store) ||
        (question->renews && hfi_redis_wire_is_busy(store, question->node)))
        return ask_apart(store, question, asking, replies, deadline_ns, err);
    const hf_status status = hfi_redis_wire_ask(store, question, asking, replies, deadline_ns, err);
    if (status != HF_OK)
        hfi_redis_drop_old(store, question->node);
    return status;
}

hf_status hfi_redis_ask_open(struct redis_store *store, struct redis_node *node, hfi_time deadline_ns, hf_error *err)
{
    struct redis_connection *connection;
    if (!waits_for_replicas(store))
        return hfi_redis_wire_open(store, node, deadline_ns, err);
    const hf_status status = hfi_redis_borrow(store, node, &connection, deadline_ns, err);
    if (status == HF_OK) {
        connection->used_ns = store->env->now_ns();
        hfi_redis_give_back(store, node, connection);
    }
    return status;
}

void hfi_redis_tell(struct redis_store *store, struct redis_node *node, const struct redis_command *command)
{
    if (!waits_for_replicas(store)) {
        hfi_redis_wire_tell(store, node, command);
        return;
    }
    struct redis_connection *connection = hfi_redis_idle(store, node);
    if (!connection)
        return;
    if (connection->phase != REDIS_READY || hfi_redis_send(connection, command, 1, hfi_redis_now_ns(), NULL) != HF_OK) {
        hfi_redis_disconnect(connection);
        return;
    }
    connection->owed++;
    hfi_redis_give_back(store, node, connection);
}

hf_status hfi_redis_find(struct redis_store *store, const char *key, struct redis_node **out, hfi_time deadline_ns,
                         hf_error *err)
{
    if (store->config.kind == REDIS_SENTINEL)
        return hfi_redis_sentinel_find(store, out, deadline_ns, err);
    if (store->config.kind == REDIS_CLUSTER)
        return hfi_redis_cluster_find(store, key, out, deadline_ns, err);
    *out = store->nodes;
    return HF_OK;
}

/* Whether the answer is final; *asked: the node that is to be asked next, once. */
static enum redis_verdict judge(struct redis_store *store, struct redis_node *node, hf_status status,
                                const redisReply *reply, struct redis_node **asked, hfi_time deadline_ns)
{
    *asked = NULL;
    if (store->config.kind == REDIS_SENTINEL)
        return hfi_redis_sentinel_judge(store, node, status, reply, deadline_ns);
    if (store->config.kind == REDIS_CLUSTER)
        return hfi_redis_cluster_judge(store, node, status, reply, asked, deadline_ns);
    /* No master any more, or not yet. The address, a name say, may lead to another server by now, and only our
     * connections still to this one: whoever asks next asks there. */
    if (status == HF_OK && (hfi_redis_is_replica(reply) || hfi_redis_is_error(reply, "LOADING"))) {
        pthread_mutex_lock(&store->mutex);
        node->demoted = node->demoted || hfi_redis_is_replica(reply);
        pthread_mutex_unlock(&store->mutex);
        hfi_redis_drop_node(store, node);
        hfi_redis_lose_push(store, node);
    }
    return REDIS_FINAL;
}

/* Nothing was done, and still nobody has said yes or no. */
static bool is_sent_on(const struct redis_store *store, hf_status status, const redisReply *reply)
{
    return store->config.kind == REDIS_CLUSTER && status == HF_OK &&
           (hfi_redis_is_error(reply, "MOVED") || hfi_redis_is_error(reply, "ASK"));
}

static hf_status give_up(const struct redis_question *question, redisReply **replies, hf_error *err)
{
    const hf_status status =
        hfi_fail(err, HF_UNAVAILABLE, 0, "the servers of the cluster do not agree on who has key %.60s: %.80s",
                 question->key, replies[0]->str);
    hfi_redis_free_replies(replies, question->count);
    return status;
}

static hfi_time deadline_of(const struct redis_store *store, const struct redis_question *question)
{
    const hfi_time most = store->config.timeout_ns ? store->env->now_ns() + store->config.timeout_ns : HFI_NEVER;
    return question->deadline_ns < most ? question->deadline_ns : most;
}

hf_status hfi_redis_ask(struct redis_store *store, struct redis_question *question, redisReply **replies, hf_error *err)
{
    const hfi_time deadline = deadline_of(store, question);
    struct redis_node *asked = NULL;
    int moves = 0, moments = 0;
    /* What cannot be answered would cost its connection: of many at once, one each. */
    if (hfi_redis_now_ns() >= deadline)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "there was no time left to ask the server");
    for (;;) {
        hf_status status = HF_OK;
        const bool asking = asked != NULL;
        if (asking)
            question->node = asked;
        else if (question->key)
            status = hfi_redis_find(store, question->key, &question->node, deadline, err);
        if (status != HF_OK)
            return status;
        status = ask_node(store, question, asking, replies, deadline, err);
        /* A master that stood still while another took its place: what it grants is not ours. */
        if (status == HF_OK && store->config.kind == REDIS_SENTINEL &&
            hfi_redis_sentinel_replaced(store, question->node)) {
            hfi_redis_free_replies(replies, question->count);
            hfi_fail(err, HF_UNKNOWN, 0, "the master was replaced before it answered");
            status = HF_UNKNOWN;
        }
        if (!question->key)
            return status;
        const enum redis_verdict verdict =
            judge(store, question->node, status, status == HF_OK ? replies[0] : NULL, &asked, deadline);
        const bool patient = verdict == REDIS_MOVED ? moves++ < MOVES_MOST : moments++ < MOMENTS_MOST;
        if (verdict == REDIS_FINAL)
            return is_sent_on(store, status, replies[0]) ? give_up(question, replies, err) : status;
        if (status == HF_OK)
            hfi_redis_free_replies(replies, question->count);
        if (!patient || store->env->now_ns() + MOMENT >= deadline)
            return hfi_fail(err, HF_UNAVAILABLE, 0, "the lock is just being moved from one server to another");
        if (verdict == REDIS_LATER) {
            moves = 0; /* as often as it takes: a slot on its way sends us from one to the other and back */
            poll(NULL, 0, MOMENT / HFI_MS);
        }
    }
}

bool hfi_redis_can_start(const struct redis_store *store)
{
    return store->config.kind == REDIS_ONE && store->config.dialect == &hfi_redis_native && !waits_for_replicas(store);
}

static void answered(struct redis_store *store, struct redis_question *question, hf_status status, const hf_error *err)
{
    struct redis_node *nobody;
    if (status != HF_OK)
        hfi_redis_drop_old(store, question->node);
    judge(store, question->node, status, status == HF_OK ? question->replies[0] : NULL, &nobody, HFI_NEVER);
    question->answered(store, question, status, err);
}

bool hfi_redis_ask_start(struct redis_store *store, struct redis_question *question, redisReply **replies)
{
    const hfi_time deadline = deadline_of(store, question);
    question->node = store->nodes;
    question->replies = replies;
    return hfi_redis_now_ns() < deadline && hfi_redis_wire_start(store, question, replies, deadline, answered);
}

hf_status hfi_redis_only_read(hf_status status, hf_error *err)
{
    if (status != HF_UNKNOWN)
        return status;
    if (err)
        err->status = HF_UNAVAILABLE;
    return HF_UNAVAILABLE;
}
