/* SPDX-License-Identifier: MIT
 *
 * etcd_support.c: see etcd_support.h.
 */
#include "etcd_support.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

extern uint32_t run_tag;
extern uint64_t run_seed;

const char *store_url;
uint32_t store_caps;
uint32_t run_tag = 1;
uint64_t run_seed = 1;

struct etcd_cluster *start_store(int members, const char *options)
{
    struct etcd_cluster *cluster = etcd_cluster_start(members, options);
    store_url = cluster->url;
    hf_client *client = open_client();
    store_caps = hf_capabilities(client);
    hf_close(client);
    return cluster;
}

void check_open(const char *url, hf_status status, const char *words)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    if (!CHECK_STATUS(status, hf_open(&client, url, NULL, &err), &err))
        test_note("for %s", url);
    if (status != HF_OK && !strstr(err.message, words))
        FAIL("\"%s\" is not in: %s", words, err.message);
    CHECK(strstr(err.message, "sesame") == NULL);
    if (client)
        CHECK(strstr(hf_url(client), "sesame") == NULL);
    hf_close(client);
}

void await_keys(struct etcd_cluster *cluster, int count)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    while (etcd_ctl_keys(cluster, "holdfast/") != count) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        nanosleep(&pause, NULL);
    }
}

void await_watches(const struct etcd_server *server, int64_t count)
{
    const struct timespec pause = { .tv_nsec = 5000000 };
    while (etcd_server_figure(server, "etcd_debugging_mvcc_watcher_total", "") < count) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        nanosleep(&pause, NULL);
    }
}

void find_lease(struct etcd_cluster *cluster, const char *name, char out[32])
{
    char keys[2000];
    etcd_ctl_read(cluster, keys, sizeof keys, "get --prefix --keys-only --sort-by=CREATE --limit=1 holdfast/%s/", name);
    const char *slash = strrchr(keys, '/');
    REQUIRE(slash != NULL);
    snprintf(out, 32, "%.*s", (int)strcspn(slash + 1, "\n"), slash + 1);
}
