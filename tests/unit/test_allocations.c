/* SPDX-License-Identifier: MIT
 *
 * test_allocations.c: every allocation fails once, and then all from it on; nothing crashes, leaks or stays locked.
 */
#include "fault.h"
#include "memory.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int count_names(const hf_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return 0;
}

static hf_status use(hf_client *client, hf_error *err)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *outer = NULL, *inner = NULL, *third = NULL;
    int names = 0;
    options.max_hold_ms = 60000; /* starts the keeper */
    hf_status status = hf_acquire(&outer, client, "x", &options, err);
    if (status == HF_OK)
        status = hf_acquire(&inner, client, "x", &options, err);
    options.owner = HF_OWNER_HANDLE;
    options.wait_ms = 20;
    if (status == HF_OK) {
        status = hf_acquire(&third, client, "x", &options, err);
        CHECK(third == NULL);
        status = status == HF_TIMEOUT ? HF_OK : status;
    }
    if (status == HF_OK)
        status = hf_inspect(client, NULL, count_names, &names, err);
    hf_release(inner, NULL);
    hf_release(outer, NULL);
    return status;
}

static hf_status open_and_use(void *url)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hf_status status = hf_open(&client, url, NULL, &err);
    if (status == HF_OK)
        status = use(client, &err);
    hf_close(client);
    if (status != HF_OK)
        CHECK(err.message[0] != 0);
    return status;
}

TEST_LIMIT(mem_survives_every_failed_allocation, 60)
{
    CHECK(fault_each_allocation(hfi_alloc_set_fault, open_and_use, (char *)"mem:") > 4);
}

TEST_LIMIT(file_survives_every_failed_allocation, 60)
{
    char directory[] = "/tmp/holdfast-alloc-XXXXXX";
    char url[64], file[64];
    REQUIRE(mkdtemp(directory) != NULL);
    snprintf(url, sizeof url, "file://%s", directory);
    CHECK(fault_each_allocation(hfi_alloc_set_fault, open_and_use, url) > 4);
    CHECK_STATUS(HF_OK, open_and_use(url), NULL); /* nothing stayed locked */
    snprintf(file, sizeof file, "%s/x", directory);
    CHECK_INT(0, unlink(file));
    CHECK_INT(0, rmdir(directory)); /* and nothing else was left behind */
}
