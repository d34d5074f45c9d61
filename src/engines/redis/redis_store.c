/* SPDX-License-Identifier: MIT
 *
 * redis_store.c: idle connections, and running a script on one of them.
 */
#include "redis.h"
#include <stdio.h>
#include <string.h>

#define IDLE_MOST 16
/* A connection that was idle for longer may have been closed by the server in the meantime: better looked at than used
 * and the outcome unknown. */
#define TRUSTED_FOR (200 * HFI_MS)

hf_status hfi_redis_borrow(struct redis_store *store, struct redis_connection **out, hfi_time deadline_ns,
                           hf_error *err)
{
    for (;;) {
        pthread_mutex_lock(&store->mutex);
        struct redis_connection *connection = store->idle;
        if (connection) {
            store->idle = connection->next;
            store->idle_count--;
        }
        pthread_mutex_unlock(&store->mutex);
        *out = connection;
        if (!connection)
            return hfi_redis_connect(out, &store->config, store->tls, deadline_ns, err);
        if (store->env->now_ns() - connection->used_ns < TRUSTED_FOR || hfi_redis_is_alive(connection))
            return HF_OK;
        hfi_redis_disconnect(connection);
    }
}

void hfi_redis_give_back(struct redis_store *store, struct redis_connection *connection)
{
    /* What came behind the answer would be taken for the answer to the next question. */
    const bool in_step = connection->reader->pos == connection->reader->len;
    pthread_mutex_lock(&store->mutex);
    const bool keep = in_step && store->idle_count < IDLE_MOST;
    if (keep) {
        connection->next = store->idle;
        store->idle = connection;
        store->idle_count++;
    }
    pthread_mutex_unlock(&store->mutex);
    if (!keep)
        hfi_redis_disconnect(connection);
}

static hf_status receive_all(struct redis_connection *connection, redisReply **replies, size_t count,
                             hfi_time deadline_ns, hf_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const hf_status status = hfi_redis_receive(connection, &replies[i], deadline_ns, err);
        if (status != HF_OK) {
            while (i-- > 0)
                freeReplyObject(replies[i]);
            if (err)
                err->status = HF_UNKNOWN; /* HF_TIMEOUT too: it was sent */
            return HF_UNKNOWN;
        }
    }
    return HF_OK;
}

static hf_status exchange(struct redis_connection *connection, const struct redis_command *first,
                          const struct redis_command *behind, redisReply **replies, hfi_time deadline_ns, hf_error *err)
{
    const struct redis_command *const commands[2] = { first, behind };
    const size_t count = behind ? 2 : 1;
    const hf_status status = hfi_redis_send(connection, commands, count, deadline_ns, err);
    return status == HF_OK ? receive_all(connection, replies, count, deadline_ns, err) : status;
}

static void name_script(struct redis_command *command, const char *verb, const char *script,
                        const struct redis_command *arguments)
{
    command->count = 0;
    hfi_redis_add(command, verb);
    hfi_redis_add(command, script);
    memcpy(command->text + 2, arguments->text, (size_t)arguments->count * sizeof arguments->text[0]);
    memcpy(command->length + 2, arguments->length, (size_t)arguments->count * sizeof arguments->length[0]);
    command->count = 2 + arguments->count;
}

hf_status hfi_redis_ask(struct redis_store *store, struct redis_question *question, redisReply **replies, hf_error *err)
{
    struct redis_connection *connection;
    struct redis_command command;
    hfi_time deadline = question->deadline_ns;
    question->sent_ns = store->env->now_ns();
    if (store->config.timeout_ns && question->sent_ns + store->config.timeout_ns < deadline)
        deadline = question->sent_ns + store->config.timeout_ns;
    hf_status status = hfi_redis_borrow(store, &connection, deadline, err);
    if (status != HF_OK)
        return status;
    name_script(&command, "EVALSHA", question->script->hash, question->arguments);
    question->sent_ns = store->env->now_ns();
    status = exchange(connection, &command, question->behind, replies, deadline, err);
    if (status == HF_OK && hfi_redis_is_error(replies[0], "NOSCRIPT")) {
        /* The server was restarted, or its scripts flushed: nothing was done. */
        freeReplyObject(replies[0]);
        if (question->behind)
            freeReplyObject(replies[1]);
        name_script(&command, "EVAL", question->script->text, question->arguments);
        status = exchange(connection, &command, question->behind, replies, deadline, err);
    }
    if (status != HF_OK) {
        hfi_redis_disconnect(connection);
        return status;
    }
    connection->used_ns = question->sent_ns;
    hfi_redis_give_back(store, connection);
    return HF_OK;
}

/* The user's own {tag} is kept. Both forms stay apart: one ends with "}", the other with ":". */
void hfi_redis_keys(char *key, char *queue, const struct redis_store *store, const char *name)
{
    const char *open = strchr(name, '{');
    const char *close = open ? strchr(open, '}') : NULL;
    const bool own_tag = close && close > open + 1;
    if (own_tag)
        snprintf(key, HFI_REDIS_KEY_MAX, "%s%s:", store->config.prefix, name);
    else
        snprintf(key, HFI_REDIS_KEY_MAX, "%s{%s}", store->config.prefix, name);
    snprintf(queue, HFI_REDIS_KEY_MAX + 2, "%s:q", key);
}

void hfi_redis_owner(char out[40], struct hfi_owner owner)
{
    snprintf(out, 40, "%016llx.%llu", (unsigned long long)owner.client, (unsigned long long)owner.serial);
}
