/* SPDX-License-Identifier: MIT
 *
 * redis_store.c: what a client of redis: or redlock: is made of, and when its waiters ask by themselves.
 */
#include "redis.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* When the holder's time is over its first waiter asks, and the others after it, should it be dead. */
#define BACKSTOP_FIRST (10 * HFI_MS)
#define BACKSTOP_STEP (20 * HFI_MS)
/* However long the holder's time, and however long the queue: should the first ten be dead, the rest ask together. */
#define BACKSTOP_MOST INT64_C(86400000)
#define PLACE_MOST INT64_C(10)
/* A holder that tells nobody when it is done is asked after: soon at first, then more and more seldom. */
#define POLL_FIRST (10 * HFI_MS)
#define POLLS_MOST 4u

static int64_t within(int64_t number, int64_t most)
{
    return number < 0 ? 0 : number < most ? number : most;
}

void hfi_redis_backstop(const struct redis_store *store, struct redis_wait *wait, int64_t left_ms, int64_t place)
{
    const int64_t turn = within(place, PLACE_MOST);
    hfi_time pause = within(left_ms, BACKSTOP_MOST) * HFI_MS + BACKSTOP_FIRST + turn * BACKSTOP_STEP;
    hfi_time spread = BACKSTOP_STEP;
    if (left_ms == -1) {
        pause = (POLL_FIRST << wait->polls) * (turn + 1);
        spread = pause;
        wait->polls += wait->polls < POLLS_MOST;
    } else {
        wait->polls = 0;
    }
    wait->waiter.ask_again_ns = store->env->now_ns() + pause + (hfi_time)(store->env->random() % (uint64_t)spread);
}

/* "hf:{KEY}:x" and "hf::KEY:x", whichever letter; and Redisson's latch. */
static bool is_companion(const struct redis_dialect *dialect, const char *key)
{
    const size_t length = strlen(key);
    if (dialect->leaves_latch && strncmp(key, "redisson_unlock_latch:", 22) == 0)
        return true;
    return length > 6 && (strncmp(key, "hf:{", 4) == 0 || strncmp(key, "hf::", 4) == 0) && key[length - 2] == ':' &&
           key[length - 1] >= 'a' && key[length - 1] <= 'z';
}

hf_status hfi_redis_check_name(const struct redis_store *store, const char *name, hf_error *err)
{
    char key[HFI_REDIS_KEY_MAX];
    if (store->config.dialect == &hfi_redis_native) /* whose keys end in ways that keep them apart */
        return HF_OK;
    snprintf(key, sizeof key, "%s%s", store->config.prefix, name);
    if (!is_companion(store->config.dialect, key))
        return HF_OK;
    return hfi_fail(
        err, HF_INVALID, 0,
        "in this dialect the name is the key, and %.120s is where Holdfast keeps what belongs to another lock", key);
}

void hfi_redis_scripts_init(struct redis_script scripts[REDIS_SCRIPTS], const struct redis_dialect *dialect,
                            bool sharded)
{
    hfi_redis_script_init(&scripts[REDIS_GUARD], hfi_redis_guard_script);
    hfi_redis_script_init(&scripts[REDIS_FORGET_DONE], hfi_redis_forget_script);
    for (size_t i = 0; i < REDIS_GUARD; i++) {
        const char *text = sharded ? dialect->sharded_scripts[i] : dialect->scripts[i];
        if (text)
            hfi_redis_script_init(&scripts[i], text);
    }
    for (size_t i = 0; i < REDIS_SCRIPTS && dialect->commands; i++)
        scripts[i].native = sharded ? dialect->sharded_commands[i] : dialect->commands[i];
}

hf_status hfi_redis_store_init(struct redis_store *store, const struct hfi_url *url, const struct hfi_env *env,
                               hf_error *err)
{
    char host[65] = "";
    struct redis_config *config = &store->config;
    store->env = env;
    pthread_mutex_init(&store->mutex, NULL);
    const bool watches = hfi_redis_watch_open(store);
    if (!hfi_loop_open(&store->loop) || !watches)
        return hfi_fail_errno(err, errno, "make", "a client");
    gethostname(host, sizeof host - 1);
    snprintf(store->who, sizeof store->who, "%s %d", host, (int)getpid());
    hf_status status = hfi_redis_config_read(config, url, err);
    if (status == HF_OK && config->tls)
        status = hfi_redis_tls_new(&config->access.tls, config, err);
    if (status == HF_OK && config->sentinel_tls)
        status = hfi_redis_tls_new(&config->sentinel.tls, config, err);
    /* Sentinels are not servers of ours; all others are. */
    for (size_t i = 0; i < config->address_count && status == HF_OK && config->kind != REDIS_SENTINEL; i++) {
        if (!hfi_redis_node(store, &config->addresses[i]))
            status = hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    }
    return status;
}

void hfi_redis_store_free(struct redis_store *store)
{
    hfi_redis_nodes_free(store);
    hfi_loop_close(&store->loop);
    SSL_CTX_free(store->config.access.tls);
    SSL_CTX_free(store->config.sentinel.tls);
    hfi_redis_config_free(&store->config);
    pthread_mutex_destroy(&store->mutex);
}
