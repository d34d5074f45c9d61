/* SPDX-License-Identifier: MIT
 *
 * redis_node.c: the servers that a store knows, and the idle connections to each.
 */
#include "redis_wire.h"
#include <string.h>
#include <sys/socket.h>

#define IDLE_MOST 16
/* A connection that was idle for longer may have been closed by the server in the meantime: better looked at than used
 * and the outcome unknown. */
#define TRUSTED_FOR (200 * HFI_MS)
/* A server that owes so many answers has stopped. */
#define OWED_MOST 64u

struct redis_node *hfi_redis_node(struct redis_store *store, const struct redis_address *address)
{
    pthread_mutex_lock(&store->mutex);
    struct redis_node **link = &store->nodes;
    while (*link &&
           (strcmp((*link)->address.host, address->host) != 0 || strcmp((*link)->address.port, address->port) != 0))
        link = &(*link)->next;
    if (!*link) {
        *link = hfi_alloc(sizeof **link);
        if (*link) {
            (*link)->address = *address;
            hfi_redis_push_init(store, *link);
        }
    }
    struct redis_node *node = *link;
    pthread_mutex_unlock(&store->mutex);
    return node;
}

static void disconnect_all(struct redis_connection *connection)
{
    for (struct redis_connection *next; connection; connection = next) {
        next = connection->next;
        hfi_redis_disconnect(connection);
    }
}

void hfi_redis_nodes_free(struct redis_store *store)
{
    for (struct redis_node *node = store->nodes, *next; node; node = next) {
        next = node->next;
        hfi_redis_push_free(node);
        if (node->wire || node->renewing)
            hfi_redis_wire_break(store, node);
        disconnect_all(node->idle);
        hfi_free(node);
    }
    store->nodes = NULL;
}

bool hfi_redis_asked(struct redis_store *store, struct redis_node *node, struct redis_connection *connection)
{
    pthread_mutex_lock(&store->mutex);
    const bool current = store->sentinel.known == node;
    if (current) {
        connection->next = node->asked;
        node->asked = connection;
    }
    pthread_mutex_unlock(&store->mutex);
    return current;
}

void hfi_redis_answered(struct redis_store *store, struct redis_node *node, const struct redis_connection *connection)
{
    pthread_mutex_lock(&store->mutex);
    struct redis_connection **link = &node->asked;
    while (*link != connection)
        link = &(*link)->next;
    *link = connection->next;
    pthread_mutex_unlock(&store->mutex);
}

void hfi_redis_drop_node(struct redis_store *store, struct redis_node *node)
{
    pthread_mutex_lock(&store->mutex);
    for (const struct redis_connection *one = node->asked; one; one = one->next)
        shutdown(one->fd, SHUT_RDWR); /* wakes the thread that reads from it; it is closed there */
    struct redis_connection *all = node->idle;
    node->idle = NULL;
    node->idle_count = 0;
    hfi_redis_watch_anew(store, node);
    pthread_mutex_unlock(&store->mutex);
    disconnect_all(all);
    hfi_redis_wire_break(store, node);
}

void hfi_redis_drop_old(struct redis_store *store, struct redis_node *node)
{
    const hfi_time now = store->env->now_ns();
    struct redis_connection *old = NULL;
    pthread_mutex_lock(&store->mutex);
    for (struct redis_connection **link = &node->idle; *link;) {
        struct redis_connection *one = *link;
        if (now - one->used_ns < TRUSTED_FOR) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        one->next = old;
        old = one;
        node->idle_count--;
    }
    pthread_mutex_unlock(&store->mutex);
    disconnect_all(old);
    hfi_redis_wire_drop_old(store, node);
}

struct redis_connection *hfi_redis_idle(struct redis_store *store, struct redis_node *node)
{
    pthread_mutex_lock(&store->mutex);
    struct redis_connection *connection = node->idle;
    if (connection) {
        node->idle = connection->next;
        node->idle_count--;
    }
    pthread_mutex_unlock(&store->mutex);
    return connection;
}

hf_status hfi_redis_borrow(struct redis_store *store, struct redis_node *node, struct redis_connection **out,
                           hfi_time deadline_ns, hf_error *err)
{
    while ((*out = hfi_redis_idle(store, node)) != NULL) {
        const bool recent = store->env->now_ns() - (*out)->used_ns < TRUSTED_FOR;
        if (recent || hfi_redis_is_alive(*out))
            return HF_OK;
        hfi_redis_disconnect(*out);
    }
    return hfi_redis_connect(out, &node->address, &store->config.access, deadline_ns, err);
}

void hfi_redis_give_back(struct redis_store *store, struct redis_node *node, struct redis_connection *connection)
{
    /* What came behind the answer would be taken for the answer to the next question. */
    const bool in_step = connection->reader->pos == connection->reader->len || connection->owed;
    pthread_mutex_lock(&store->mutex);
    const bool keep = in_step && connection->owed < OWED_MOST && node->idle_count < IDLE_MOST;
    if (keep) {
        connection->next = node->idle;
        node->idle = connection;
        node->idle_count++;
    }
    pthread_mutex_unlock(&store->mutex);
    if (!keep)
        hfi_redis_disconnect(connection);
}
