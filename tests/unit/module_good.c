/* SPDX-License-Identifier: MIT
 *
 * module_good.c: the smallest engine that can be loaded. It answers to etcd: and refuses to open, through the core's
 * own words, which shows that a module can call the core.
 */
#include "engine.h"

static hf_status refuse(void *store, const struct hfi_url *url, const struct hfi_env *env, struct hfi_opened *opened,
                        hf_error *err)
{
    (void)store;
    (void)env;
    (void)opened;
    return hfi_fail(err, HF_UNAVAILABLE, 7, "the module was asked for %s", url->rest);
}

static void close_nothing(void *store)
{
    (void)store;
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "etcd",
    .schemes = "etcd: and nothing else",
    .summary = "a module for tests",
    .caps = HF_CAP_EXPIRY,
    .store_size = 1,
    .open = refuse,
    .close = close_nothing,
};
