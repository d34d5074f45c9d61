/* SPDX-License-Identifier: MIT
 *
 * etcd_node.c: the servers of the cluster and the idle connections to them. A call takes one of them for itself, so
 * that no thread waits for another's answer.
 */
#include "etcd.h"
#include <stdio.h>
#include <string.h>

#define IDLE_MOST 16
/* One that answered a moment ago is not looked at again before it is used. */
#define JUST_NOW (50 * HFI_MS)

hf_status hfi_etcd_nodes_new(struct etcd_store *store, hf_error *err)
{
    const struct etcd_config *config = &store->config;
    store->nodes = hfi_alloc(config->address_count * sizeof *store->nodes);
    if (!store->nodes)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    for (size_t i = 0; i < config->address_count; i++) {
        struct etcd_node *node = &store->nodes[i];
        const char *format = strchr(config->addresses[i].host, ':') ? "[%s]:%s" : "%s:%s";
        node->address = &config->addresses[i];
        snprintf(node->authority, sizeof node->authority, format, node->address->host, node->address->port);
    }
    return HF_OK;
}

void hfi_etcd_nodes_free(struct etcd_store *store)
{
    for (size_t i = 0; store->nodes && i < store->config.address_count; i++) {
        for (struct etcd_connection *next, *one = store->nodes[i].idle; one; one = next) {
            next = one->next;
            hfi_etcd_disconnect(one);
        }
    }
    hfi_free(store->nodes);
}

/* Reads what the server said meanwhile; false: it is gone, or takes no more calls. */
static bool is_usable(struct etcd_connection *connection, hfi_time now_ns)
{
    if (now_ns - connection->used_ns > JUST_NOW && !hfi_etcd_fetch(connection))
        return false;
    return !connection->leaving;
}

static struct etcd_connection *take_idle(struct etcd_store *store, struct etcd_node *node)
{
    for (;;) {
        pthread_mutex_lock(&store->mutex);
        struct etcd_connection *connection = node->idle;
        if (connection) {
            node->idle = connection->next;
            node->idle_count--;
        }
        pthread_mutex_unlock(&store->mutex);
        if (!connection || is_usable(connection, hfi_etcd_now_ns()))
            return connection;
        hfi_etcd_disconnect(connection);
    }
}

static hf_status connect_to(struct etcd_store *store, struct etcd_node *node, struct etcd_connection **out,
                            hfi_time deadline_ns, hf_error *err)
{
    struct etcd_connection *connection;
    hf_status status = hfi_etcd_connect_begin(&connection, node->address, store->config.address_count == 1, err);
    if (status != HF_OK)
        return status;
    while ((status = hfi_etcd_connect_step(connection, node->address, store->tls, err)) == HF_TIMEOUT) {
        if (!hfi_etcd_ready_by(connection->fd, connection->wants, deadline_ns)) {
            status = connection->phase == ETCD_CONNECTING
                         ? hfi_dial_late(&connection->dial, node->address->host, node->address->port, err)
                         : hfi_fail(err, HF_UNAVAILABLE, 0, "no TLS with %.120s:%s: no answer in time",
                                    node->address->host, node->address->port);
            break;
        }
    }
    if (status == HF_OK)
        *out = connection;
    else
        hfi_etcd_disconnect(connection);
    return status;
}

hf_status hfi_etcd_borrow(struct etcd_store *store, struct etcd_node *node, struct etcd_connection **out,
                          hfi_time deadline_ns, hf_error *err)
{
    *out = take_idle(store, node);
    return *out ? HF_OK : connect_to(store, node, out, deadline_ns, err);
}

void hfi_etcd_give_back(struct etcd_store *store, struct etcd_node *node, struct etcd_connection *connection)
{
    pthread_mutex_lock(&store->mutex);
    const bool keep = node->idle_count < IDLE_MOST && !connection->leaving;
    if (keep) {
        connection->next = node->idle;
        node->idle = connection;
        node->idle_count++;
    }
    pthread_mutex_unlock(&store->mutex);
    if (!keep)
        hfi_etcd_disconnect(connection);
}
