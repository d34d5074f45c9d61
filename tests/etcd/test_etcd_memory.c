/* SPDX-License-Identifier: MIT
 *
 * test_etcd_memory.c: every allocation fails once, and then all from it on, in the middle of whatever is said to a real
 * server. Nothing crashes or leaks, and nothing stays behind in the store.
 */
#include "core.h"
#include "etcd_support.h"
#include "memory.h"

#include <string.h>

extern const struct hfi_engine hfi_module_engine;

#define ALLOCATIONS_MOST 1000

static int count_names(const hf_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return 0;
}

/* Done by an earlier round it is, too. */
static hf_status do_once(hf_client *client, hf_error *err)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    int names = 0;
    options.ttl_ms = 2000;
    options.wait_ms = 60;
    options.once_per_ms = 2000;
    hf_status status = hf_acquire(&lock, client, "once", &options, err);
    if (status == HF_OK)
        status = hf_release_done(lock, err);
    if (status == HF_OK || status == HF_DONE)
        status = hf_inspect_done(client, NULL, count_names, &names, err);
    return status == HF_OK ? hf_forget_done(client, "once", err) : status;
}

static hf_status use(hf_client *client, hf_error *err)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *held = NULL, *other = NULL;
    int names = 0;
    options.ttl_ms = 2000;
    options.wait_ms = 60; /* not longer in trouble, which no memory is taken for once something was sent */
    hf_status status = hf_acquire(&held, client, "x", &options, err);
    options.owner = HF_OWNER_HANDLE;
    if (status == HF_OK) {
        status = hf_acquire(&other, client, "x", &options, err);
        CHECK(other == NULL);
        status = status == HF_TIMEOUT ? HF_OK : status;
    }
    if (status == HF_OK)
        status = hf_renew(held, 0, err);
    if (status == HF_OK)
        status = hf_inspect(client, NULL, count_names, &names, err);
    hf_release(held, NULL);
    return status == HF_OK ? do_once(client, err) : status;
}

static hf_status open_and_use(void)
{
    const struct hfi_url split = { "etcd", strchr(store_url, ':') + 1 };
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_status status = hfi_open_engine(&client, &hfi_module_engine, &split, store_url, NULL, &err);
    if (status == HF_OK)
        status = use(client, &err);
    hf_close(client);
    if (status != HF_OK)
        CHECK(err.message[0] != 0 && err.status == status);
    return status;
}

TEST_LIMIT(every_allocation_fails_once, 120)
{
    struct etcd_cluster *cluster = etcd_cluster_start(1, QUICK);
    store_url = cluster->url;
    long after = 1;
    hf_status status = HF_NOMEM;
    for (; after < ALLOCATIONS_MOST && status != HF_OK; after++) {
        hfi_alloc_set_fault(after);
        status = open_and_use();
        hfi_alloc_set_fault(0);
        /* An answer that there was no memory for was lost, and what it answered is unknown. */
        if (status != HF_OK && status != HF_NOMEM && status != HF_UNKNOWN && status != HF_UNAVAILABLE &&
            status != HF_TIMEOUT) {
            CHECK_STATUS(HF_NOMEM, status, NULL);
            test_note("with allocation %ld and all later ones failing", after);
        }
    }
    CHECK_STATUS(HF_OK, status, NULL);
    CHECK(after > 20);
    await_keys(cluster, 0); /* what could not be given back ends with its lease */
}
