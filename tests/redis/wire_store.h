/* SPDX-License-Identifier: MIT
 *
 * wire_store.h: a client's part of the engine by itself, for tests of connections that are shared.
 */
#ifndef WIRE_STORE_H
#define WIRE_STORE_H

#include "engines/redis/redis_wire.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline hfi_time now_ns(void)
{
    return hfi_loop_now_ns();
}

static inline uint64_t no_chance(void)
{
    return 0;
}

static const struct hfi_env env = { .timeout_ns = 5 * HFI_SECOND, .now_ns = now_ns, .random = no_chance };

static inline struct redis_store *open_store(const char *url)
{
    struct redis_store *store = calloc(1, sizeof *store);
    const char *colon = strchr(url, ':');
    char scheme[32];
    hf_error err = { 0 };
    snprintf(scheme, sizeof scheme, "%.*s", (int)(colon - url), url);
    const struct hfi_url split = { .scheme = scheme, .rest = colon + 1 };
    REQUIRE_STATUS(HF_OK, hfi_redis_store_init(store, &split, &env, &err), &err);
    return store;
}

static inline void close_store(struct redis_store *store)
{
    CHECK_INT(0, store->loop.op_count);
    hfi_redis_watch_close(store);
    hfi_redis_store_free(store);
    free(store);
}

#endif
