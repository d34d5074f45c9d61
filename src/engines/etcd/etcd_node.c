/* SPDX-License-Identifier: MIT
 *
 * etcd_node.c: the servers of the cluster.
 */
#include "etcd_wire.h"
#include <stdio.h>
#include <string.h>

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
    for (size_t i = 0; store->nodes && i < store->config.address_count; i++)
        hfi_etcd_wires_close(store, &store->nodes[i]);
    hfi_free(store->nodes);
}
