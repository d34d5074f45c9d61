/* SPDX-License-Identifier: MIT
 *
 * etcd_support.c: see etcd_support.h.
 */
#include "etcd_support.h"

#include <stdio.h>
#include <string.h>

struct etcd_cluster *start_store(int members, const char *options)
{
    struct etcd_cluster *cluster = etcd_cluster_start(members, options);
    use_url(cluster->url);
    return cluster;
}

void await_keys(struct etcd_cluster *cluster, int count)
{
    while (etcd_ctl_keys(cluster, "holdfast/") - etcd_ctl_keys(cluster, "holdfast/.") != count) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(20);
    }
}

void await_watches(const struct etcd_server *server, int64_t count)
{
    while (etcd_server_figure(server, "etcd_debugging_mvcc_watcher_total", "") < count)
        await_a_moment();
}

void find_lease(struct etcd_cluster *cluster, const char *name, char out[32])
{
    char keys[2000];
    etcd_ctl_read(cluster, keys, sizeof keys, "get --prefix --keys-only --sort-by=CREATE --limit=1 holdfast/%s/", name);
    const char *slash = strrchr(keys, '/');
    REQUIRE(slash != NULL);
    snprintf(out, 32, "%.*s", (int)strcspn(slash + 1, "\n"), slash + 1);
}
